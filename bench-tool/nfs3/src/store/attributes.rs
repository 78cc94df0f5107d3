//! The attributes of files: reading and setting them.

use super::contents::{Contents, FILE_BYTES_MAX};
use super::inode::{Body, EXECUTE_ANY, Inode, MODE_BITS, SET_GID, SET_UID, may};
use super::{Number, Pages, Store};
use crate::wire::Status;
use crate::wire::arguments::access;
use crate::wire::auth_sys::Identity;
use crate::wire::types::{Attributes, Device, SetAttributes, SetTime, Time, Wcc, WccAttributes};

/// The length that a directory reports.
const DIRECTORY_BYTES: u64 = 4096;

/// The space of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// The whole space in bytes.
    pub total_bytes: u64,
    /// The free space in bytes.
    pub free_bytes: u64,
    /// The highest number of files.
    pub total_files: u64,
    /// The number of files that can still be made.
    pub free_files: u64,
}

impl<P: Pages> Store<P> {
    /// The attributes of a file; `None` if it no longer exists.
    #[must_use]
    pub fn attributes(&self, file: Number) -> Option<Attributes> {
        let inode = self.inode(file).ok()?;
        let page_bytes = self.page_bytes();
        let pages = inode.contents().map_or(0, Contents::page_count);
        let device = match inode.body {
            Body::Special(_, device) => device,
            _ => Device::default(),
        };
        Some(Attributes {
            kind: inode.kind(),
            mode: inode.mode,
            links: inode.links,
            uid: inode.uid,
            gid: inode.gid,
            size_bytes: inode.size_bytes(),
            used_bytes: u64::try_from(pages).unwrap_or(u64::MAX) * page_bytes,
            device,
            file_system: super::LASTING,
            file_number: file_number(file),
            accessed: inode.accessed,
            modified: inode.modified,
            changed: inode.changed,
        })
    }

    /// The attributes of a file that are kept from before an operation.
    #[must_use]
    pub fn before(&self, file: Number) -> Option<WccAttributes> {
        let inode = self.inode(file).ok()?;
        Some(WccAttributes {
            size_bytes: inode.size_bytes(),
            modified: inode.modified,
            changed: inode.changed,
        })
    }

    /// The attributes from before an operation, and the current ones.
    #[must_use]
    pub fn wcc(&self, file: Number, before: Option<WccAttributes>) -> Wcc {
        Wcc {
            before,
            after: self.attributes(file),
        }
    }

    /// The space of the store.
    #[must_use]
    pub fn space(&self) -> Space {
        let page_bytes = self.page_bytes();
        let total_files = u64::from(self.limits.files_max);
        Space {
            total_bytes: self.pages.total() * page_bytes,
            free_bytes: self.pages.free() * page_bytes,
            total_files,
            free_files: total_files.saturating_sub(u64::from(self.files)),
        }
    }

    fn page_bytes(&self) -> u64 {
        u64::try_from(self.pages.page_bytes()).unwrap_or(u64::MAX)
    }

    /// The bits of ACCESS in `asked` that `caller` has.
    ///
    /// # Errors
    /// STALE.
    pub fn access(&self, file: Number, asked: u32, caller: &Identity) -> Result<u32, Status> {
        let inode = self.inode(file)?;
        let write = access::MODIFY | access::EXTEND;
        let bits = if inode.is_directory() {
            [
                (may::READ, access::READ),
                (may::EXECUTE, access::LOOKUP),
                (may::WRITE | may::EXECUTE, write | access::DELETE),
            ]
        } else {
            [
                (may::READ, access::READ),
                (may::WRITE, write),
                (may::EXECUTE, access::EXECUTE),
            ]
        };
        let granted = bits.iter().filter(|(mode, _)| inode.allows(caller, *mode));
        Ok(asked & granted.fold(0, |all, (_, bit)| all | bit))
    }

    /// Sets attributes, all or none. With a `guard`, sets them only if the file last changed at that time.
    ///
    /// # Errors
    /// NOT_SYNC if the guard does not match; INVAL for a time with a second or more of nanoseconds; PERM for attributes
    /// that only the owner or root may set; ACCES; ISDIR and INVAL for the length of a file that is not a regular one;
    /// FBIG; JUKEBOX while the page at the new end is being sent and no other page is free.
    pub fn set_attributes(
        &mut self,
        file: Number,
        set: &SetAttributes,
        guard: Option<Time>,
        caller: &Identity,
        now: Time,
    ) -> Result<(), Status> {
        let inode = self.inode(file)?;
        if guard.is_some_and(|guard| guard != inode.changed) {
            return Err(Status::NotSync);
        }
        inode.may_set(set, caller)?;
        let slot = self.slots.get_mut(file.0 as usize);
        let inode = slot.and_then(|slot| slot.file.as_deref_mut());
        let inode = inode.ok_or(Status::Stale)?;
        if let (Some(size_bytes), Body::Regular(contents)) = (set.size_bytes, &mut inode.body) {
            if !contents.set_size(&mut self.pages, size_bytes) {
                return Err(Status::Jukebox);
            }
            inode.modified = now;
            inode.drop_privileges(caller);
        }
        inode.set(set, caller, now);
        if *set != SetAttributes::default() {
            inode.changed = now;
        }
        Ok(())
    }
}

/// The number of a file for clients. It starts at 1, because some clients take 0 for no file.
pub(crate) fn file_number(file: Number) -> u64 {
    u64::from(file.0) + 1
}

impl Inode {
    fn size_bytes(&self) -> u64 {
        match self.body {
            Body::Directory(_) => DIRECTORY_BYTES,
            _ => self.contents().map_or(0, Contents::size_bytes),
        }
    }

    /// A write by a caller other than root clears the bits SET_UID and SET_GID, so that it cannot change a
    /// program that runs with other rights.
    pub(super) fn drop_privileges(&mut self, caller: &Identity) {
        if !caller.is_root() {
            self.drop_set_ids();
        }
    }

    fn drop_set_ids(&mut self) {
        self.mode &= !SET_UID;
        // Without the group's right to execute, SET_GID has another meaning (mandatory locking).
        if self.mode & EXECUTE_ANY & 0o070 != 0 {
            self.mode &= !SET_GID;
        }
    }

    /// Checks that `caller` may set all of these attributes.
    fn may_set(&self, set: &SetAttributes, caller: &Identity) -> Result<(), Status> {
        let is_time = |time: &SetTime| match time {
            SetTime::To(time) => time.nanoseconds < 1_000_000_000,
            SetTime::Keep | SetTime::ToServer => true,
        };
        if !is_time(&set.accessed) || !is_time(&set.modified) {
            return Err(Status::Invalid);
        }
        let is_owner = self.is_owned_by(caller);
        let gives_away = set.uid.is_some_and(|uid| uid != self.uid);
        let takes_group = |gid: u32| gid != self.gid && !caller.is_of(gid);
        let sets_time = |time: &SetTime| matches!(time, SetTime::To(_));
        let root_alone = gives_away || set.gid.is_some_and(takes_group);
        let owner_alone = set.mode.is_some()
            || set.uid.is_some()
            || set.gid.is_some()
            || sets_time(&set.accessed)
            || sets_time(&set.modified);
        if (root_alone && !caller.is_root()) || (owner_alone && !is_owner) {
            return Err(Status::NotOwner);
        }
        if let Some(size_bytes) = set.size_bytes {
            match self.body {
                Body::Regular(_) => {}
                Body::Directory(_) => return Err(Status::IsDirectory),
                _ => return Err(Status::Invalid),
            }
            if size_bytes > FILE_BYTES_MAX {
                return Err(Status::TooBig);
            }
        }
        let is_written = set.size_bytes.is_some()
            || set.accessed == SetTime::ToServer
            || set.modified == SetTime::ToServer;
        if is_written && !self.allows_data(caller, may::WRITE) {
            return Err(Status::Access);
        }
        Ok(())
    }

    /// Sets all attributes except the length.
    fn set(&mut self, set: &SetAttributes, caller: &Identity, now: Time) {
        let changes_owner = set.uid.is_some_and(|uid| uid != self.uid)
            || set.gid.is_some_and(|gid| gid != self.gid);
        if changes_owner && !self.is_directory() {
            self.drop_set_ids();
        }
        self.uid = set.uid.unwrap_or(self.uid);
        self.gid = set.gid.unwrap_or(self.gid);
        if let Some(mode) = set.mode {
            self.mode = mode & MODE_BITS;
            if !caller.is_root() && !caller.is_of(self.gid) {
                self.mode &= !SET_GID;
            }
        }
        let time = |set: SetTime, time: &mut Time| match set {
            SetTime::Keep => {}
            SetTime::ToServer => *time = now,
            SetTime::To(other) => *time = other,
        };
        time(set.accessed, &mut self.accessed);
        time(set.modified, &mut self.modified);
    }
}
