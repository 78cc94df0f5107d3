//! Temporary folders for tests.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, io};

/// A new folder in the temporary folder of the system. The drop removes it with its contents.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Creates an empty folder with `what` in its name. The name is unique among all tests and processes.
    ///
    /// # Panics
    ///
    /// The folder cannot be created.
    #[must_use]
    pub fn new(what: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("rpcrdma-{what}-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match fs::create_dir(&path) {
                Ok(()) => return Self(path),
                // What a process of the same number left behind when it was killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
    }

    /// The path of a file in the folder, as an argument of a program.
    #[must_use]
    pub fn path(&self, file: &str) -> String {
        self.0.join(file).display().to_string()
    }

    /// Writes a file and returns its path. Creates missing folders.
    ///
    /// # Panics
    ///
    /// The file cannot be written.
    pub fn write(&self, file: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.join(file);
        let folder = path.parent().expect("the file is below the folder");
        fs::create_dir_all(folder).expect("this process owns the folder");
        fs::write(&path, content).unwrap_or_else(|error| panic!("{file}: {error}"));
        self.path(file)
    }

    /// Reads a file as text.
    ///
    /// # Panics
    ///
    /// The file does not exist or is not UTF-8.
    #[must_use]
    pub fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A drop must not panic, and the system cleans its temporary folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}
