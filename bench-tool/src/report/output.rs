//! Output files of a report. They are checked before the measurement, and written after it, completely or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use serde::Serialize;

use super::table;
use crate::exit::{Failure, written};

/// Space that the check of a path reserves for a moment: more than a report or the interval log of an hour needs.
const CHECK_BYTES: u64 = 16 << 20;

/// A file to write after the measurement, or standard output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Output {
    option: &'static str,
    target: Target,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    StandardOutput,
    /// A regular file: a complete new file replaces it by a rename.
    File(PathBuf),
    /// A device or a pipe: written directly.
    InPlace(PathBuf),
}

impl Output {
    /// Checks that `path` (`-` for standard output) can be written, so that a long measurement is not lost. `option`
    /// is the option that named the path, for messages.
    ///
    /// # Errors
    /// A failure with the reason why the path cannot be written: a directory, no permission, no space.
    pub(crate) fn check(option: &'static str, path: &Path) -> Result<Self, Failure> {
        if path == Path::new("-") {
            return Ok(Self {
                option,
                target: Target::StandardOutput,
            });
        }
        let target = check_path(path).map_err(|error| cannot_write(option, path, error))?;
        Ok(Self { option, target })
    }

    /// [`Output::check`] for the option `--json`, if it was given.
    pub(crate) fn check_json(path: Option<&Path>) -> Result<Option<Self>, Failure> {
        path.map(|path| Self::check("--json", path)).transpose()
    }

    /// Whether this is standard output.
    #[must_use]
    pub(crate) fn is_standard_output(&self) -> bool {
        self.target == Target::StandardOutput
    }

    /// Whether the other one is the same file, so that one of them would be lost.
    fn is_file_of(&self, other: &Self) -> bool {
        match (&self.target, &other.target) {
            (Target::File(own), Target::File(other)) => place(own) == place(other),
            _ => false,
        }
    }

    /// Writes the contents, completely or not at all.
    ///
    /// # Errors
    /// A failure with the path and the cause; an existing file is then unchanged.
    pub(crate) fn write(&self, contents: impl AsRef<[u8]>) -> Result<(), Failure> {
        let bytes = contents.as_ref();
        match &self.target {
            Target::StandardOutput => {
                // WAIT: for the reader of standard output; a second signal ends the process.
                let mut out = io::stdout().lock();
                written(out.write_all(bytes).and_then(|()| out.flush()))
            }
            Target::File(path) => {
                replace(path, bytes).map_err(|error| cannot_write(self.option, path, error))
            }
            Target::InPlace(path) => {
                write_in_place(path, bytes).map_err(|error| cannot_write(self.option, path, error))
            }
        }
    }
}

/// A path that has only one spelling: the directory exists, and the file may not.
fn place(path: &Path) -> PathBuf {
    let directory = path.parent().filter(|it| !it.as_os_str().is_empty());
    let directory = fs::canonicalize(directory.unwrap_or(Path::new(".")));
    match (directory, path.file_name()) {
        (Ok(directory), Some(name)) => directory.join(name),
        _ => path.to_owned(),
    }
}

/// The failure for two outputs in one file.
fn one_file(first: &str, second: &str) -> Failure {
    Failure::usage(format!(
        "{first} and {second} name the same file, and one of them would be lost"
    ))
    .advice("give one of them another file")
}

fn cannot_write(option: &'static str, path: &Path, error: io::Error) -> Failure {
    let advice = match error.kind() {
        io::ErrorKind::NotFound => {
            format!("create the directory first, or give {option} another path")
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => format!(
            "free some space there ({} MiB are reserved for a moment before the measurement, so that its report is not lost), or \
             give {option} another path",
            CHECK_BYTES >> 20
        ),
        io::ErrorKind::FileTooLarge => format!(
            "raise the limit of the size of files (`ulimit -f`; {} MiB are reserved for a moment before the measurement), or \
             give {option} another path",
            CHECK_BYTES >> 20
        ),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            format!("give {option} a path that you may write, or - for standard output")
        }
        io::ErrorKind::IsADirectory => format!("give {option} a file in that directory"),
        _ => format!("give {option} another path"),
    };
    Failure::failed(format!("cannot write {} ({option})", path.display()))
        .because(error)
        .advice(advice)
}

fn check_path(path: &Path) -> io::Result<Target> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(metadata) if metadata.is_file() => {
            // A rename needs write permission for the directory only. Respect the file's own permission too: its
            // owner set it.
            OpenOptions::new().write(true).open(path)?;
            // Resolve symbolic links: otherwise the rename would replace the link and not its target.
            let path = fs::canonicalize(path)?;
            check_space_beside(&path)?;
            Ok(Target::File(path))
        }
        Ok(_) => Ok(Target::InPlace(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            check_space_beside(path)?;
            Ok(Target::File(path.to_owned()))
        }
        Err(error) => Err(error),
    }
}

fn check_space_beside(path: &Path) -> io::Result<()> {
    let (file, temporary) = Temporary::create(path)?;
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, CHECK_BYTES) {
        // Some file systems cannot reserve space. Then the check is skipped.
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
        Err(errno) => return Err(errno.into()),
    }
    drop(temporary);
    Ok(())
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (mut file, temporary) = Temporary::create(path)?;
    file.write_all(bytes)?;
    // Some file systems report a full disk only at the sync.
    file.sync_all()?;
    fs::rename(&temporary.0, path)?;
    Ok(())
}

fn write_in_place(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(bytes)?;
    file.flush()
}

/// A temporary file in the same directory. Dropping this removes it, unless it was renamed.
struct Temporary(PathBuf);

/// How many names to try for a temporary file: others may have left theirs.
const NAMES_MAX: u32 = 100;

impl Temporary {
    fn create(path: &Path) -> io::Result<(File, Self)> {
        let Some(name) = path.file_name() else {
            return Err(io::ErrorKind::IsADirectory.into());
        };
        for number in 0..NAMES_MAX {
            let mut temporary_name = std::ffi::OsString::from(".");
            temporary_name.push(name);
            temporary_name.push(format!(".{}.{number}.tmp", std::process::id()));
            let path = path.with_file_name(temporary_name);
            // A new file, and no link of others to somewhere else (O_EXCL).
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok((file, Self(path))),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("all {NAMES_MAX} names of a temporary file in its directory are taken"),
        ))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Fails after a rename, because the file is then no longer there.
        let _ = fs::remove_file(&self.0);
    }
}

/// Prints `text`.
///
/// # Errors
/// If standard output cannot be written.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    // WAIT: for the reader of standard output; a second signal ends the process.
    written(io::stdout().lock().write_all(text.as_bytes()))
}

/// Prints `text` to standard error. There is no place to report that it cannot be written.
fn print_error(text: &str) {
    // WAIT: for the reader of standard error; a second signal ends the process.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Prints `text`, and writes `report` as JSON to `json`, if given. If `json` is standard output, the JSON replaces
/// the text.
///
/// # Errors
/// Those of [`Output::write`].
pub(crate) fn put_report(
    text: &str,
    report: &impl Serialize,
    json: Option<&Output>,
) -> Result<(), Failure> {
    let shown = match json {
        Some(json) if json.is_standard_output() => Ok(()),
        _ => print(text),
    };
    // Written even if nobody is left to print to.
    let saved = json.map_or(Ok(()), |json| json.write(json_text(report)));
    shown.and(saved)
}

/// A report as indented JSON with a final newline.
///
/// # Panics
/// Never: a report has only strings, numbers, lists and maps with string keys.
#[must_use]
pub(crate) fn json_text(report: &impl Serialize) -> String {
    serde_json::to_string_pretty(report).expect("a report is plain data") + "\n"
}

/// The outputs of a report.
#[derive(Debug)]
pub(crate) struct Outputs {
    files: Vec<Output>,
    quiet: bool,
}

impl Outputs {
    /// Checks the paths of the given options with [`Output::check`]. With `quiet`, only warnings are shown on the
    /// terminal.
    ///
    /// # Errors
    /// Those of [`Output::check`], and a usage failure if two are standard output or one file.
    pub(crate) fn check(
        paths: &[(&'static str, Option<&Path>)],
        quiet: bool,
    ) -> Result<Self, Failure> {
        let given = paths
            .iter()
            .filter_map(|(option, path)| Some((*option, (*path)?)));
        let files: Vec<Output> = given
            .map(|(option, path)| Output::check(option, path))
            .collect::<Result<_, _>>()?;
        let mut to_stdout = files.iter().filter(|output| output.is_standard_output());
        if let (Some(first), Some(second)) = (to_stdout.next(), to_stdout.next()) {
            return Err(Failure::usage(format!(
                "{} and {} cannot both go to standard output",
                first.option, second.option
            ))
            .advice("give one of them a file"));
        }
        for (number, first) in files.iter().enumerate() {
            if let Some(second) = files
                .iter()
                .skip(number + 1)
                .find(|it| it.is_file_of(first))
            {
                return Err(one_file(first.option, second.option));
            }
        }
        Ok(Self { files, quiet })
    }

    /// Checks that another output is none of these files.
    ///
    /// # Errors
    /// A usage failure with both options.
    pub(crate) fn check_other(&self, other: Option<&Output>) -> Result<(), Failure> {
        let Some(other) = other else {
            return Ok(());
        };
        match self.files.iter().find(|it| it.is_file_of(other)) {
            Some(first) => Err(one_file(first.option, other.option)),
            None => Ok(()),
        }
    }

    /// Whether only warnings are shown on the terminal.
    #[must_use]
    pub(crate) const fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Prints the table, then writes the files: if a file fails, the user has already seen the results. `contents_of`
    /// returns the contents for an option.
    ///
    /// # Errors
    /// Those of [`Output::write`].
    pub(crate) fn write<C: AsRef<[u8]>>(
        &self,
        table: &str,
        warnings: &[String],
        contents_of: impl Fn(&str) -> C,
    ) -> Result<(), Failure> {
        let mut shown = Ok(());
        if self.quiet {
            let mut text = String::new();
            let _ = table::write_warnings(&mut text, warnings);
            print_error(text.trim_start());
        } else if self.files.iter().any(Output::is_standard_output) {
            print_error(table);
        } else {
            shown = print(table);
        }
        // Written even if nobody is left to print to, such as after the loss of a terminal.
        let all = self.write_files(contents_of);
        // The results must not be lost: with `quiet` nothing has shown them yet.
        if all.is_err() && self.quiet {
            print_error(table);
        }
        shown.and(all)
    }

    /// Writes the files.
    ///
    /// # Errors
    /// Those of [`Output::write`].
    pub(crate) fn write_files<C: AsRef<[u8]>>(
        &self,
        contents_of: impl Fn(&str) -> C,
    ) -> Result<(), Failure> {
        // Write all files even if one fails.
        let tried = self
            .files
            .iter()
            .map(|output| output.write(contents_of(output.option)));
        tried.fold(Ok(()), Result::and)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rpcrdma_testkit::{CheckWords, Folder};

    #[test]
    fn temporary_file_of_somebody_else_is_neither_followed_nor_overwritten() {
        let folder = Folder::new("temporary");
        fs::write(folder.path("victim"), "precious").unwrap();
        let name =
            |number: u32| folder.path(&format!(".r.json.{}.{number}.tmp", std::process::id()));
        std::os::unix::fs::symlink("victim", name(0)).unwrap();
        fs::write(name(1), "theirs").unwrap();
        let path = folder.path("r.json");
        let output = Output::check("--json", Path::new(&path)).unwrap();
        output.write("report").unwrap();
        assert_eq!(folder.read("victim"), "precious");
        assert_eq!(fs::read_to_string(name(1)).unwrap(), "theirs");
        assert_eq!(folder.read("r.json"), "report");
        assert_eq!(names(&folder).len(), 4, "and nothing else is left");
    }

    fn names(folder: &Folder) -> Vec<String> {
        fs::read_dir(&**folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[test]
    fn a_check_leaves_nothing_and_a_write_leaves_one_file() {
        let directory = Folder::new("write");
        let path = directory.join("run.json");
        let output = Output::check("--json", &path).unwrap();
        assert!(names(&directory).is_empty());
        output.write("first").unwrap();
        output.write("second").unwrap();
        assert_eq!(names(&directory), ["run.json"]);
        assert_eq!(directory.read("run.json"), "second");
    }

    #[test]
    fn two_outputs_in_one_file_are_refused() {
        let directory = Folder::new("twice");
        fs::write(directory.join("there"), "old").unwrap();
        std::os::unix::fs::symlink(directory.join("there"), directory.join("link")).unwrap();
        std::os::unix::fs::symlink(&*directory, directory.join("again")).unwrap();
        let (a, b) = (directory.join("new"), directory.join("again/new"));
        let (there, link) = (directory.join("there"), directory.join("link"));
        for (first, second) in [(&a, &a), (&a, &b), (&there, &link)] {
            let files = [("--json", Some(&**first)), ("--hgrm", Some(&**second))];
            let failure = Outputs::check(&files, true).unwrap_err();
            assert_eq!(failure.status(), crate::exit::Status::Usage);
            failure.check_words(&["--json and --hgrm name the same file"]);
            let outputs = Outputs::check(&files[..1], true).unwrap();
            let chart = Output::check("--plot", second).unwrap();
            outputs
                .check_other(Some(&chart))
                .unwrap_err()
                .check_words(&["--plot"]);
        }
        let files = [("--json", Some(&*a)), ("--hgrm", Some(&*there))];
        assert!(Outputs::check(&files, true).is_ok());
        // A device is written by both.
        let null = Path::new("/dev/null");
        assert!(Outputs::check(&[("--json", Some(null)), ("--hgrm", Some(null))], true).is_ok());
    }

    #[test]
    fn a_link_stays_a_link() {
        let directory = Folder::new("link");
        let (real, link) = (directory.join("real"), directory.join("link"));
        fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        Output::check("--json", &link)
            .unwrap()
            .write("new")
            .unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&real).unwrap(), "new");
    }

    #[test]
    fn output_check_refuses_an_unwritable_path() {
        let directory = Folder::new("refused");
        for (path, words) in [
            (directory.to_path_buf(), "a file in that directory"),
            (directory.join("missing/run.json"), "create the directory"),
        ] {
            let text = Output::check("--json", &path).unwrap_err().to_string();
            assert!(text.contains(words) && text.contains("--json"), "{text}");
        }
        assert!(names(&directory).is_empty());
    }

    #[test]
    fn a_full_device_is_an_error_with_advice() {
        let output = Output::check("--json", Path::new("/dev/full")).unwrap();
        let failure = output.write("{}").unwrap_err();
        assert_eq!(failure.status(), crate::exit::Status::Failure);
        let text = failure.to_string();
        text.check_words(&["/dev/full", "free some space", "16 MiB are reserved"]);
        let error = io::ErrorKind::FileTooLarge.into();
        let text = cannot_write("--json", Path::new("a"), error).to_string();
        text.check_words(&["ulimit -f", "16 MiB"]);
    }

    #[test]
    fn a_file_that_may_not_be_written_is_not_replaced() {
        use std::os::unix::fs::PermissionsExt;
        let directory = Folder::new("readonly");
        let path = directory.join("keep.json");
        fs::write(&path, "keep").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        // The superuser may write any file, so the check then passes.
        let allowed = OpenOptions::new().write(true).open(&path).is_ok();
        assert_eq!(Output::check("--json", &path).is_ok(), allowed);
        assert_eq!(fs::read_to_string(&path).unwrap(), "keep");
    }
}
