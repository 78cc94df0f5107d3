//! A file: its kind, its owner and its permissions.

use super::contents::Contents;
use super::directory::Directory;
use super::pages::Pages;
use crate::wire::auth_sys::Identity;
use crate::wire::types::{Device, FileKind, Time};

/// The permission bits of one class of callers, also used for what a caller asks for.
pub(super) mod may {
    pub(crate) const READ: u32 = 4;
    pub(crate) const WRITE: u32 = 2;
    pub(crate) const EXECUTE: u32 = 1;
}

/// The bits of a mode that are stored.
pub(super) const MODE_BITS: u32 = 0o7777;
/// A program runs as its owner.
pub(super) const SET_UID: u32 = 0o4000;
/// A program runs as its group. Files made in a directory get the directory's group.
pub(super) const SET_GID: u32 = 0o2000;
/// In a directory, only owners may remove names.
pub(super) const STICKY: u32 = 0o1000;
/// The execution bits of all classes.
pub(super) const EXECUTE_ANY: u32 = 0o111;

/// The contents of a file, by its kind.
#[derive(Debug)]
pub(super) enum Body {
    Regular(Contents),
    Directory(Directory),
    /// The contents are the target.
    SymbolicLink(Contents),
    /// A device, a socket or a named pipe; the numbers are those of a device.
    Special(FileKind, Device),
}

/// A file.
#[derive(Debug)]
pub(super) struct Inode {
    pub(super) body: Body,
    pub(super) mode: u32,
    pub(super) links: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) accessed: Time,
    pub(super) modified: Time,
    pub(super) changed: Time,
    /// The verifier of the exclusive CREATE that made it, and when that was. Once the file has changed, that CREATE was
    /// answered, and one with the same verifier is another.
    pub(super) exclusive: Option<([u8; 8], Time)>,
}

impl Inode {
    pub(super) fn kind(&self) -> FileKind {
        match &self.body {
            Body::Regular(_) => FileKind::Regular,
            Body::Directory(_) => FileKind::Directory,
            Body::SymbolicLink(_) => FileKind::SymbolicLink,
            Body::Special(kind, _) => *kind,
        }
    }

    pub(super) fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory(_))
    }

    /// The bytes of a regular file, or of the target of a symbolic link.
    pub(super) fn contents(&self) -> Option<&Contents> {
        match &self.body {
            Body::Regular(contents) | Body::SymbolicLink(contents) => Some(contents),
            _ => None,
        }
    }

    /// Returns its memory.
    pub(super) fn give_back<P: Pages>(&mut self, pages: &mut P) {
        if let Body::Regular(contents) | Body::SymbolicLink(contents) = &mut self.body {
            contents.set_size(pages, 0);
        }
    }

    /// Whether `caller` owns the file, or is root.
    pub(super) fn is_owned_by(&self, caller: &Identity) -> bool {
        caller.is_root() || caller.uid == self.uid
    }

    /// Whether the mode gives `caller` all rights in `asked` (bits of [`may`]). Root has all rights, except
    /// to execute a file that nobody may execute.
    pub(super) fn allows(&self, caller: &Identity, asked: u32) -> bool {
        if caller.is_root() {
            let executes_file = asked & may::EXECUTE != 0 && !self.is_directory();
            return !executes_file || self.mode & EXECUTE_ANY != 0;
        }
        let class = if caller.uid == self.uid {
            self.mode >> 6
        } else if caller.is_of(self.gid) {
            self.mode >> 3
        } else {
            self.mode
        };
        class & asked == asked
    }

    /// As [`Inode::allows`], for READ and WRITE. A client that has opened a file may continue after its mode
    /// changes. The server does not know who has opened it, so the owner always has both rights.
    pub(super) fn allows_data(&self, caller: &Identity, asked: u32) -> bool {
        self.is_owned_by(caller) || self.allows(caller, asked)
    }
}
