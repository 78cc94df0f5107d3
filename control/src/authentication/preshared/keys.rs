//! The file of keys.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

/// The most octets of a key's name.
pub(super) const KEY_NAME_BYTES_MAX: usize = 64;

/// Octets that a key may have: at least the output of the hash, at most what HMAC uses without hashing it first.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 32..=64;

/// The most octets of a file of keys.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// The bits of a file's mode that permit anything to group or others.
const MODE_OF_OTHERS: u32 = 0o077;

/// Keys, each with a name by which the peers agree on one. There is at least one; the first is what this end begins
/// exchanges with.
///
/// To change a key: put the new one behind the old one at every end, then in front of it at every end, then remove the
/// old one.
pub struct PresharedKeys(Vec<Key>);

struct Key {
    name: String,
    secret: Zeroizing<Vec<u8>>,
}

impl PresharedKeys {
    /// Reads a file of keys: a line for each, its name (1 to 64 printable characters of ASCII) and the key, 64 to 128
    /// hexadecimal digits, behind blanks. Empty lines and lines that begin with `#` are skipped. Memory that held keys
    /// is cleared.
    ///
    /// # Errors
    /// When the file cannot be read, others than its owner may read or write it, or a line is wrong.
    pub fn read(path: &Path) -> Result<Self, KeyFileError> {
        let unreadable = |source| KeyFileError::Unreadable {
            path: path.to_owned(),
            source,
        };
        let mut file = File::open(path).map_err(unreadable)?;
        // Of the opened file, not of the path: the file cannot be replaced between check and read.
        let metadata = file.metadata().map_err(unreadable)?;
        if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
            return Err(KeyFileError::NoFile {
                path: path.to_owned(),
            });
        }
        if metadata.mode() & MODE_OF_OTHERS != 0 {
            return Err(KeyFileError::OpenToOthers {
                path: path.to_owned(),
                mode: metadata.mode() & 0o777,
            });
        }
        // With full capacity from the start: a vector that grows leaves copies of the keys in freed memory.
        let room = usize::try_from(FILE_BYTES_MAX).unwrap_or(usize::MAX);
        let mut text = Zeroizing::new(Vec::with_capacity(room.saturating_add(1)));
        file.by_ref()
            .take(FILE_BYTES_MAX)
            .read_to_end(&mut text)
            .map_err(unreadable)?;
        Self::parse(&text, path)
    }

    pub(super) fn parse(text: &[u8], path: &Path) -> Result<Self, KeyFileError> {
        let mut keys: Vec<Key> = Vec::new();
        for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let wrong = |what| KeyFileError::Line {
                path: path.to_owned(),
                line: index + 1,
                what,
            };
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let key = Key::parse(line).map_err(wrong)?;
            if keys.iter().any(|other| other.name == key.name) {
                return Err(wrong("another key has that name"));
            }
            keys.push(key);
        }
        if keys.is_empty() {
            return Err(KeyFileError::Empty {
                path: path.to_owned(),
            });
        }
        Ok(Self(keys))
    }

    /// The key that this end begins with, and its name.
    pub(super) fn first(&self) -> Option<(&str, &Zeroizing<Vec<u8>>)> {
        self.0.first().map(|key| (key.name.as_str(), &key.secret))
    }

    /// The key of that name.
    pub(super) fn find(&self, name: &str) -> Option<&Zeroizing<Vec<u8>>> {
        let key = self.0.iter().find(|key| key.name == name)?;
        Some(&key.secret)
    }
}

impl Key {
    fn parse(line: &[u8]) -> Result<Self, &'static str> {
        let blank = line.iter().position(u8::is_ascii_whitespace);
        let (name, digits) = line.split_at(blank.unwrap_or(line.len()));
        let digits = digits.trim_ascii();
        if name.len() > KEY_NAME_BYTES_MAX || !name.iter().all(u8::is_ascii_graphic) {
            return Err("the name of a key has at most 64 printable characters of ASCII");
        }
        let bytes = digits.len() / 2;
        if !digits.len().is_multiple_of(2) || !KEY_BYTES.contains(&bytes) {
            return Err(
                "a key has 64 to 128 hexadecimal digits, an even number of them, behind its name",
            );
        }
        let mut secret = Zeroizing::new(Vec::with_capacity(bytes));
        for pair in digits.chunks_exact(2) {
            let octet = pair.iter().try_fold(0_u32, |octet, &digit| {
                char::from(digit)
                    .to_digit(16)
                    .map(|value| octet << 4 | value)
            });
            let octet = octet.and_then(|octet| u8::try_from(octet).ok());
            secret.push(octet.ok_or("a key consists of hexadecimal digits")?);
        }
        Ok(Self {
            name: String::from_utf8_lossy(name).into_owned(),
            secret,
        })
    }
}

/// Names alone.
impl fmt::Debug for PresharedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|key| &key.name))
            .finish()
    }
}

/// Why a file of keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It cannot be read.
    #[error("the file of keys {} cannot be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is not a file, or it is too large.
    #[error("{} is no file of keys: a file of at most 64 KiB is", path.display())]
    NoFile {
        /// The file.
        path: PathBuf,
    },
    /// Others than its owner may use it.
    #[error(
        "the file of keys {} is open to others than its owner (mode {mode:03o}); make the keys anew if somebody may \
         have read them, and `chmod 600` it",
        path.display()
    )]
    OpenToOthers {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A line is wrong. Its contents are not repeated, because they may be a key.
    #[error("line {line} of the file of keys {}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// There is no key.
    #[error(
        "the file of keys {} has no key; one line makes one: a name and 64 hexadecimal digits, as `openssl rand -hex 32` \
         gives them",
        path.display()
    )]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn parse(text: &str) -> Result<PresharedKeys, String> {
        PresharedKeys::parse(text.as_bytes(), Path::new("keys")).map_err(|error| error.to_string())
    }

    /// A file with this text and mode, removed when it goes.
    struct TestFile(PathBuf);

    impl TestFile {
        fn new(name: &str, text: &str, mode: u32) -> Self {
            let name = format!("rpcrdma-keys-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::write(&path, text).expect("a file for a test");
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, permissions).expect("its mode");
            Self(path)
        }
    }

    impl Drop for TestFile {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_file_has_a_key_on_each_line_and_the_first_is_ours() {
        let (long, short) = ("0123456789abcdef".repeat(8), "FF".repeat(32));
        let text = format!("# keys of the lab\n\n  2026-11\t{long} \nold {short}\n");
        let keys = parse(&text).expect("two keys");
        let (name, secret) = keys.first().expect("a key");
        assert_eq!((name, secret.len(), secret[1]), ("2026-11", 64, 0x23));
        assert_eq!(
            keys.find("old").map(|key| key.to_vec()),
            Some(vec![0xff; 32])
        );
        assert!(keys.find("other").is_none() && keys.find("").is_none());
    }

    #[test]
    fn nothing_prints_a_key() {
        let digits = "5a".repeat(32);
        let keys = parse(&format!("name {digits}")).expect("one key");
        assert_eq!(format!("{keys:?}"), "[\"name\"]");
        let wrong = format!("name {}g", &digits[..63]);
        let error = parse(&wrong).expect_err("g is no digit");
        assert!(!error.contains("5a5a"), "{error}");
    }

    #[test]
    fn wrong_lines_are_named() {
        let digits = "5a".repeat(32);
        for (text, what) in [
            (format!("\nname {}", &digits[2..]), "line 2"),
            (format!("name {digits}5"), "an even number"),
            (format!("name {}", "5a".repeat(65)), "64 to 128"),
            ("name".to_owned(), "behind its name"),
            (format!("{} {digits}", "n".repeat(65)), "at most 64"),
            (format!("n\u{e4}me {digits}"), "printable"),
            (format!("name 0x{}", &digits[2..]), "hexadecimal digits"),
            (
                format!("name {digits}\nname {digits}"),
                "another key has that name",
            ),
            ("# none\n".to_owned(), "openssl rand -hex 32"),
        ] {
            let error = parse(&text).expect_err(&text);
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn a_file_that_others_may_use_is_refused() {
        let text = format!("name {}", "5a".repeat(32));
        for mode in [0o640, 0o604, 0o620, 0o601, 0o666] {
            let file = TestFile::new(&format!("{mode:o}"), &text, mode);
            let error = PresharedKeys::read(&file.0).expect_err("open to others");
            assert!(
                matches!(error, KeyFileError::OpenToOthers { .. }),
                "{error}"
            );
            let error = error.to_string();
            assert!(
                error.contains(&format!("{mode:03o}")) && error.contains("chmod 600"),
                "{error}"
            );
        }
        for mode in [0o600, 0o400] {
            let file = TestFile::new(&format!("{mode:o}"), &text, mode);
            assert!(PresharedKeys::read(&file.0).is_ok());
        }
    }

    #[test]
    fn missing_oversized_or_non_regular_key_file_is_refused() {
        let missing = PresharedKeys::read(Path::new("/nonexistent/keys"));
        assert!(matches!(missing, Err(KeyFileError::Unreadable { .. })));
        let directory = PresharedKeys::read(&std::env::temp_dir());
        assert!(matches!(directory, Err(KeyFileError::NoFile { .. })));
        let large = TestFile::new("large", &"#\n".repeat(33 * 1024), 0o600);
        let large = PresharedKeys::read(&large.0);
        assert!(matches!(large, Err(KeyFileError::NoFile { .. })));
    }
}
