//! Folders for one test.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A new folder among the system's temporary files; it is removed, with all that is in it, when this is dropped.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// An empty folder with `what` in its name, which no other test and no other process has.
    ///
    /// # Panics
    ///
    /// When it cannot be made.
    #[must_use]
    pub fn new(what: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rpcrdma-{what}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self(path)
    }

    /// The path of a file in it, as an argument of a program.
    #[must_use]
    pub fn path(&self, file: &str) -> String {
        self.0.join(file).display().to_string()
    }

    /// Writes a file, in folders that are made where they are missing; returns its path.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub fn write(&self, file: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.join(file);
        let folder = path.parent().expect("below the folder");
        fs::create_dir_all(folder).expect("folders in a folder of ours");
        fs::write(&path, content).unwrap_or_else(|error| panic!("{file}: {error}"));
        self.path(file)
    }

    /// The text of a file.
    ///
    /// # Panics
    ///
    /// When it is not there, or no text.
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
        // What is left lies among the temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}
