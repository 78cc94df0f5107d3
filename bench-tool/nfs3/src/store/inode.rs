//! A file: what it is, whose, and who may do what with it.

use super::contents::Contents;
use super::directory::Directory;
use super::pages::Pages;
use crate::wire::auth_sys::Identity;
use crate::wire::types::{Device, FileKind, Time};

/// Permission bits of a class of callers, and so what is asked for.
pub(super) mod may {
    pub(crate) const READ: u32 = 4;
    pub(crate) const WRITE: u32 = 2;
    pub(crate) const EXECUTE: u32 = 1;
}

/// All bits of a mode that are kept.
pub(super) const MODE_BITS: u32 = 0o7777;
/// Runs as its owner.
pub(super) const SET_UID: u32 = 0o4000;
/// Runs as its group; files made in such a directory get the directory's group.
pub(super) const SET_GID: u32 = 0o2000;
/// Of such a directory only owners take names away.
pub(super) const STICKY: u32 = 0o1000;
/// Any bit of execution.
pub(super) const EXECUTE_ANY: u32 = 0o111;

/// What a file holds.
#[derive(Debug)]
pub(super) enum Body {
    Regular(Contents),
    Directory(Directory),
    /// Its contents are the target.
    SymbolicLink(Contents),
    /// Of these there is nothing to know but which device it is.
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
    /// The verifier of the exclusive CREATE that made it.
    pub(super) verifier: Option<[u8; 8]>,
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

    /// Its bytes: of a file, or of a symbolic link.
    pub(super) fn contents(&self) -> Option<&Contents> {
        match &self.body {
            Body::Regular(contents) | Body::SymbolicLink(contents) => Some(contents),
            _ => None,
        }
    }

    /// Gives its memory back.
    pub(super) fn give_back<P: Pages>(&mut self, pages: &mut P) {
        if let Body::Regular(contents) | Body::SymbolicLink(contents) = &mut self.body {
            contents.set_size(pages, 0);
        }
    }

    /// Whether `caller` owns it, or may do as if.
    pub(super) fn is_owned_by(&self, caller: &Identity) -> bool {
        caller.is_root() || caller.uid == self.uid
    }

    /// Whether its mode lets `caller` do all of `asked` (bits of [`may`]). Root may do everything
    /// but execute what nobody may.
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

    /// As for READ and WRITE: who opened a file may go on whatever its mode has become, and the
    /// server cannot know who that was; so owners always may.
    pub(super) fn allows_data(&self, caller: &Identity, asked: u32) -> bool {
        self.is_owned_by(caller) || self.allows(caller, asked)
    }
}
