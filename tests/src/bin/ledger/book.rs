//! The responder's book: what was executed, in order, one line of fixed length for each call. It
//! outlives the process: an entry is in the file before its call is answered.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use crate::Failure;

/// Names a call: the requester, and the call's number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) requester: u64,
    pub(crate) number: u64,
}

/// Octets of a name as the arguments of a call.
pub(crate) const NAME_BYTES: usize = 16;

impl Name {
    /// As the arguments of a call: two XDR unsigned hypers (RFC 4506 section 4.5).
    pub(crate) fn to_xdr(self) -> [u8; NAME_BYTES] {
        let mut bytes = [0; NAME_BYTES];
        let (requester, number) = bytes.split_at_mut(NAME_BYTES / 2);
        requester.copy_from_slice(&self.requester.to_be_bytes());
        number.copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// From the arguments of a call; `None` when they are not two hypers.
    pub(crate) fn from_xdr(args: &[u8]) -> Option<Self> {
        let (requester, number) = args.split_at_checked(NAME_BYTES / 2)?;
        Some(Self {
            requester: u64::from_be_bytes(requester.try_into().ok()?),
            number: u64::from_be_bytes(number.try_into().ok()?),
        })
    }
}

/// Octets of a line: two numbers of 16 hexadecimal digits, the blank between them, the line's end.
const LINE_BYTES: u64 = 34;

/// The book, open to be written.
#[derive(Debug)]
pub(crate) struct Book {
    file: File,
    entries: u64,
}

impl Book {
    /// Opens a book, and goes on behind its last entry.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let bytes = file.metadata()?.len();
        if bytes % LINE_BYTES != 0 {
            return Err(format!("{} ends within an entry", path.display()).into());
        }
        Ok(Self {
            file,
            entries: bytes / LINE_BYTES,
        })
    }

    /// Entries that the book holds.
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    /// Appends an entry and returns its position, the first being 0.
    pub(crate) fn append(&mut self, name: Name) -> std::io::Result<u64> {
        let Name { requester, number } = name;
        // One write, so that a process killed here leaves the whole line or nothing.
        self.file
            .write_all(format!("{requester:016x} {number:016x}\n").as_bytes())?;
        let position = self.entries;
        self.entries += 1;
        Ok(position)
    }
}

/// Reads a book: what was executed, in order.
pub(crate) fn read(path: &str) -> Result<Vec<Name>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    text.lines()
        .map(|line| parse(line).ok_or_else(|| format!("{path}: no entry: `{line}`").into()))
        .collect()
}

fn parse(line: &str) -> Option<Name> {
    let (requester, number) = line.split_once(' ')?;
    Some(Name {
        requester: u64::from_str_radix(requester, 16).ok()?,
        number: u64::from_str_radix(number, 16).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_two_hypers() {
        let name = Name {
            requester: 0x0102_0304_0506_0708,
            number: 0x1112_1314_1516_1718,
        };
        let bytes = [
            1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
        ];
        assert_eq!(name.to_xdr(), bytes);
        assert_eq!(Name::from_xdr(&bytes), Some(name));
        for len in [0, 7, 8, 15] {
            assert_eq!(Name::from_xdr(&bytes[..len]), None, "{len} octets");
        }
        assert_eq!(Name::from_xdr(&[0; 17]), None);
    }

    #[test]
    fn a_line_has_the_length_that_positions_are_counted_by() {
        let line = format!("{:016x} {:016x}\n", u64::MAX, 0);
        assert_eq!(u64::try_from(line.len()).ok(), Some(LINE_BYTES));
        assert_eq!(
            parse(line.trim_end()),
            Some(Name {
                requester: u64::MAX,
                number: 0
            })
        );
        for bad in ["", "1", "1 g", "x 1", "1 2 3"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
