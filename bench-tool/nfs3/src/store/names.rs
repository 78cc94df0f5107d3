//! Operations on names: lookup, create, remove, rename, list.

use super::contents::Contents;
use super::directory::{COOKIE_PARENT, COOKIE_SELF, Directory};
use super::inode::{Body, Inode, MODE_BITS, SET_GID, STICKY, may};
use super::{Number, Pages, Store};
use crate::wire::Status;
use crate::wire::arguments::CreateHow;
use crate::wire::auth_sys::Identity;
use crate::wire::types::{Device, FileKind, SetAttributes, Time};

/// The longest name, in octets.
pub const NAME_BYTES_MAX: usize = 255;

/// The longest target of a symbolic link, in octets. Linux makes none longer than 4095.
pub const TARGET_BYTES_MAX: usize = 16 * 1024;

/// The most hard links of a file. A directory has one from each directory in it.
pub const LINKS_MAX: u32 = 65_000;

/// The limit of all names is this many times the limit of files, because every name takes memory.
const NAMES_PER_FILE: u64 = 4;

/// The kind of a new file.
#[derive(Clone, Copy, Debug)]
pub enum NewFile<'a> {
    /// A file without bytes.
    Regular,
    /// An empty directory.
    Directory,
    /// A link to this target.
    SymbolicLink(&'a [u8]),
    /// A device, a socket, or a named pipe.
    Special(FileKind, Device),
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// The cookie with which a listing continues after it.
    pub cookie: u64,
    /// The name.
    pub name: &'a [u8],
    /// Its file.
    pub file: Number,
}

/// Checks that a new file may have this name.
fn check_new_name(name: &[u8]) -> Result<(), Status> {
    check_length(name)?;
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(Status::Invalid);
    }
    Ok(())
}

fn check_length(name: &[u8]) -> Result<(), Status> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Status::NameTooLong);
    }
    Ok(())
}

fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

impl<P: Pages> Store<P> {
    /// The file of a name.
    ///
    /// # Errors
    /// NOTDIR, ACCES, NOENT, NAMETOOLONG.
    pub fn lookup(
        &self,
        directory: Number,
        name: &[u8],
        caller: &Identity,
    ) -> Result<Number, Status> {
        let table = self.directory(directory, may::EXECUTE, caller)?;
        check_length(name)?;
        match name {
            b"." => Ok(directory),
            b".." => Ok(table.parent),
            _ => table.find(name).ok_or(Status::NoEntry),
        }
    }

    /// Makes a file, or uses the existing one, as `how` requires.
    ///
    /// # Errors
    /// EXIST; those of [`Store::make`]; those of [`Store::set_attributes`].
    pub fn create(
        &mut self,
        directory: Number,
        name: &[u8],
        how: &CreateHow,
        caller: &Identity,
        now: Time,
    ) -> Result<Number, Status> {
        let attributes = match how {
            CreateHow::Unchecked(attributes) | CreateHow::Guarded(attributes) => *attributes,
            CreateHow::Exclusive(_) => SetAttributes {
                mode: Some(0),
                ..SetAttributes::default()
            },
        };
        match self.lookup(directory, name, caller) {
            Ok(there) => {
                let inode = self.inode(there)?;
                let is_regular = inode.kind() == FileKind::Regular;
                match how {
                    CreateHow::Unchecked(_) if is_regular => {
                        let cut = SetAttributes {
                            size_bytes: attributes.size_bytes,
                            ..SetAttributes::default()
                        };
                        self.set_attributes(there, &cut, None, caller, now)?;
                        Ok(there)
                    }
                    CreateHow::Exclusive(verifier)
                        if inode.exclusive == Some((*verifier, inode.changed)) =>
                    {
                        Ok(there)
                    }
                    _ => Err(Status::Exists),
                }
            }
            Err(Status::NoEntry) => {
                let file =
                    self.make(directory, name, NewFile::Regular, &attributes, caller, now)?;
                if let CreateHow::Exclusive(verifier) = how {
                    self.inode_mut(file)?.exclusive = Some((*verifier, now));
                }
                Ok(file)
            }
            Err(status) => Err(status),
        }
    }

    /// Makes a file with a name that must not exist.
    ///
    /// # Errors
    /// NOTDIR, ACCES, EXIST, INVAL and NAMETOOLONG for the name or the target, MLINK, NOSPC, PERM for
    /// attributes that the caller may not set, BADTYPE.
    pub fn make(
        &mut self,
        directory: Number,
        name: &[u8],
        new: NewFile<'_>,
        attributes: &SetAttributes,
        caller: &Identity,
        now: Time,
    ) -> Result<Number, Status> {
        self.check_free_name(directory, name, caller)?;
        let is_directory = matches!(new, NewFile::Directory);
        if is_directory && self.inode(directory)?.links >= LINKS_MAX {
            return Err(Status::TooManyLinks);
        }
        let body = self.body(directory, new)?;
        let inode = self.new_inode(directory, body, caller, now)?;
        let file = match self.place(inode) {
            Ok(file) => file,
            Err(mut inode) => {
                inode.give_back(&mut self.pages);
                return Err(Status::NoSpace);
            }
        };
        if let Err(status) = self.set_attributes(file, attributes, None, caller, now) {
            self.discard(file);
            return Err(status);
        }
        if is_directory {
            // A directory inherits SET_GID, so that its files get the group as well.
            let parent_mode = self.inode(directory)?.mode;
            self.inode_mut(file)?.mode |= parent_mode & SET_GID;
            self.inode_mut(directory)?.links += 1;
        }
        self.add_name(directory, name, file, now)?;
        Ok(file)
    }

    /// The contents of a new file.
    fn body(&mut self, directory: Number, new: NewFile<'_>) -> Result<Body, Status> {
        Ok(match new {
            NewFile::Regular => Body::Regular(Contents::default()),
            NewFile::Directory => Body::Directory(Directory::new(directory)),
            NewFile::Special(kind, device) => match kind {
                FileKind::BlockDevice | FileKind::CharacterDevice => Body::Special(kind, device),
                FileKind::Socket | FileKind::NamedPipe => Body::Special(kind, Device::default()),
                _ => return Err(Status::BadType),
            },
            NewFile::SymbolicLink(target) => {
                if target.len() > TARGET_BYTES_MAX {
                    return Err(Status::NameTooLong);
                }
                if target.is_empty() || target.contains(&0) {
                    return Err(Status::Invalid);
                }
                let mut contents = Contents::default();
                let written = contents.write(&mut self.pages, 0, std::iter::once(target));
                if usize::try_from(written) != Ok(target.len()) {
                    let short = self.no_page();
                    contents.set_size(&mut self.pages, 0);
                    return Err(short);
                }
                Body::SymbolicLink(contents)
            }
        })
    }

    fn new_inode(
        &self,
        directory: Number,
        body: Body,
        caller: &Identity,
        now: Time,
    ) -> Result<Inode, Status> {
        let parent = self.inode(directory)?;
        let is_directory = matches!(body, Body::Directory(_));
        let mode = match body {
            Body::Directory(_) => 0o755,
            Body::SymbolicLink(_) => 0o777,
            _ => 0o644,
        };
        let hands_down = parent.mode & SET_GID != 0;
        Ok(Inode {
            body,
            mode,
            links: if is_directory { 2 } else { 1 },
            uid: caller.uid,
            gid: if hands_down { parent.gid } else { caller.gid },
            accessed: now,
            modified: now,
            changed: now,
            exclusive: None,
        })
    }

    /// Adds a name to a file.
    ///
    /// # Errors
    /// ISDIR, MLINK, and those of [`Store::make`].
    pub fn link(
        &mut self,
        file: Number,
        directory: Number,
        name: &[u8],
        caller: &Identity,
        now: Time,
    ) -> Result<(), Status> {
        if self.inode(file)?.is_directory() {
            return Err(Status::IsDirectory);
        }
        self.check_free_name(directory, name, caller)?;
        let inode = self.inode_mut(file)?;
        if inode.links >= LINKS_MAX {
            return Err(Status::TooManyLinks);
        }
        inode.links += 1;
        inode.changed = now;
        self.add_name(directory, name, file, now)
    }

    /// Removes a name of a file that is not a directory. The file is removed with its last name.
    ///
    /// # Errors
    /// NOTDIR, ACCES, NOENT, ISDIR, PERM in a sticky directory for a caller who owns neither, INVAL.
    pub fn remove(
        &mut self,
        directory: Number,
        name: &[u8],
        caller: &Identity,
        now: Time,
    ) -> Result<(), Status> {
        let file = self.removable(directory, name, caller)?;
        if self.inode(file)?.is_directory() {
            return Err(Status::IsDirectory);
        }
        self.drop_name(directory, name, now)?;
        self.drop_link(file, now)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// NOTDIR, ACCES, NOENT, NOTEMPTY, PERM as for [`Store::remove`], INVAL for `.`, EXIST for `..`.
    pub fn remove_directory(
        &mut self,
        directory: Number,
        name: &[u8],
        caller: &Identity,
        now: Time,
    ) -> Result<(), Status> {
        if name == b".." {
            return Err(Status::Exists);
        }
        let file = self.removable(directory, name, caller)?;
        self.check_empty(file)?;
        self.drop_name(directory, name, now)?;
        self.discard(file);
        let parent = self.inode_mut(directory)?;
        parent.links = parent.links.saturating_sub(1);
        Ok(())
    }

    /// Renames a file. A file that had the new name loses it.
    ///
    /// # Errors
    /// NOTDIR, ACCES, NOENT, INVAL for a directory that would move into itself, ISDIR and NOTEMPTY
    /// for the file that has the new name, PERM as for [`Store::remove`], MLINK.
    pub fn rename(
        &mut self,
        (from, from_name): (Number, &[u8]),
        (to, to_name): (Number, &[u8]),
        caller: &Identity,
        now: Time,
    ) -> Result<(), Status> {
        let file = self.removable(from, from_name, caller)?;
        self.directory(to, may::WRITE | may::EXECUTE, caller)?;
        check_new_name(to_name)?;
        if is_dots(to_name) {
            return Err(Status::Invalid);
        }
        let moves_directory = self.inode(file)?.is_directory();
        if moves_directory {
            self.check_outside(to, file)?;
            if from != to {
                if !self.inode(file)?.allows(caller, may::WRITE) {
                    return Err(Status::Access);
                }
                if self.inode(to)?.links >= LINKS_MAX {
                    return Err(Status::TooManyLinks);
                }
            }
        }
        if let Some(victim) = self.table(to)?.find(to_name) {
            if victim == file {
                return Ok(());
            }
            self.removable(to, to_name, caller)?;
            if moves_directory {
                self.check_empty(victim)?;
            } else if self.inode(victim)?.is_directory() {
                return Err(Status::IsDirectory);
            }
            self.drop_name(to, to_name, now)?;
            if moves_directory {
                self.discard(victim);
                self.inode_mut(to)?.links -= 1;
            } else {
                self.drop_link(victim, now)?;
            }
        }
        self.drop_name(from, from_name, now)?;
        self.add_name(to, to_name, file, now)?;
        if moves_directory && from != to {
            self.inode_mut(from)?.links -= 1;
            self.inode_mut(to)?.links += 1;
            self.table_mut(file)?.parent = to;
        }
        self.inode_mut(file)?.changed = now;
        Ok(())
    }

    /// The entries of a directory after a cookie; 0 is the beginning.
    ///
    /// # Errors
    /// NOTDIR, ACCES.
    pub fn list(
        &mut self,
        directory: Number,
        cookie: u64,
        caller: &Identity,
        now: Time,
    ) -> Result<impl Iterator<Item = DirectoryEntry<'_>>, Status> {
        self.directory(directory, may::READ, caller)?;
        self.inode_mut(directory)?.accessed = now;
        let table = self.table(directory)?;
        let dots = [
            (COOKIE_SELF, &b"."[..], directory),
            (COOKIE_PARENT, &b".."[..], table.parent),
        ];
        let dots = dots.into_iter().filter(move |(dot, ..)| *dot > cookie);
        let entries = dots.chain(table.entries_behind(cookie));
        Ok(entries.map(|(cookie, name, file)| DirectoryEntry { cookie, name, file }))
    }

    /// The names of a directory, if `caller` has the rights in `asked`.
    fn directory(
        &self,
        directory: Number,
        asked: u32,
        caller: &Identity,
    ) -> Result<&Directory, Status> {
        let table = self.table(directory)?;
        if !self.inode(directory)?.allows(caller, asked) {
            return Err(Status::Access);
        }
        Ok(table)
    }

    fn table(&self, directory: Number) -> Result<&Directory, Status> {
        match &self.inode(directory)?.body {
            Body::Directory(table) => Ok(table),
            _ => Err(Status::NotDirectory),
        }
    }

    fn table_mut(&mut self, directory: Number) -> Result<&mut Directory, Status> {
        match &mut self.inode_mut(directory)?.body {
            Body::Directory(table) => Ok(table),
            _ => Err(Status::NotDirectory),
        }
    }

    /// Checks that `caller` may add this name to a directory.
    fn check_free_name(
        &self,
        directory: Number,
        name: &[u8],
        caller: &Identity,
    ) -> Result<(), Status> {
        let table = self.directory(directory, may::EXECUTE, caller)?;
        check_new_name(name)?;
        if is_dots(name) || table.find(name).is_some() {
            return Err(Status::Exists);
        }
        self.directory(directory, may::WRITE | may::EXECUTE, caller)?;
        if self.names >= u64::from(self.limits.files_max) * NAMES_PER_FILE {
            return Err(Status::NoSpace);
        }
        Ok(())
    }

    /// The file of a name, if `caller` may remove the name.
    fn removable(
        &self,
        directory: Number,
        name: &[u8],
        caller: &Identity,
    ) -> Result<Number, Status> {
        let table = self.directory(directory, may::EXECUTE, caller)?;
        check_length(name)?;
        if name.is_empty() || is_dots(name) {
            return Err(Status::Invalid);
        }
        let file = table.find(name).ok_or(Status::NoEntry)?;
        let parent = self.inode(directory)?;
        if !parent.allows(caller, may::WRITE | may::EXECUTE) {
            return Err(Status::Access);
        }
        let is_owner = parent.is_owned_by(caller) || self.inode(file)?.is_owned_by(caller);
        if parent.mode & STICKY != 0 && !is_owner {
            return Err(Status::NotOwner);
        }
        Ok(file)
    }

    fn check_empty(&self, directory: Number) -> Result<(), Status> {
        if !self.table(directory)?.is_empty() {
            return Err(Status::NotEmpty);
        }
        Ok(())
    }

    /// Checks that `directory` is neither `other` nor below it.
    fn check_outside(&self, directory: Number, other: Number) -> Result<(), Status> {
        let mut at = directory;
        while at != Self::ROOT {
            if at == other {
                return Err(Status::Invalid);
            }
            at = self.table(at)?.parent;
        }
        Ok(())
    }

    fn add_name(
        &mut self,
        directory: Number,
        name: &[u8],
        file: Number,
        now: Time,
    ) -> Result<(), Status> {
        self.table_mut(directory)?.insert(name, file);
        self.names += 1;
        self.touch(directory, now)
    }

    fn drop_name(&mut self, directory: Number, name: &[u8], now: Time) -> Result<(), Status> {
        if self.table_mut(directory)?.remove(name).is_some() {
            self.names -= 1;
        }
        self.touch(directory, now)
    }

    fn touch(&mut self, directory: Number, now: Time) -> Result<(), Status> {
        let inode = self.inode_mut(directory)?;
        inode.modified = now;
        inode.changed = now;
        Ok(())
    }

    fn drop_link(&mut self, file: Number, now: Time) -> Result<(), Status> {
        let inode = self.inode_mut(file)?;
        inode.links -= 1;
        inode.changed = now;
        if inode.links == 0 {
            self.discard(file);
        }
        Ok(())
    }
}

const _: () = assert!(MODE_BITS & STICKY != 0, "a kept bit");
