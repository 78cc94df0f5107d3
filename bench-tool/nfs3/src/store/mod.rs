//! A file system in memory.
//!
//! It has one owner, and operations run to completion. The time is an argument. A file is a [`Number`]
//! here, which is valid until the file is removed; only operations that remove names do that.
//!
//! | module | contents |
//! |---|---|
//! | `pages` | memory |
//! | `leased_pages` | memory that a device can access |
//! | `contents` | the bytes of a file |
//! | `directory` | the names of a directory |
//! | `inode` | a file and its permissions |
//! | `attributes` | reading and setting attributes |
//! | `names` | operations on names |

mod attributes;
mod contents;
mod directory;
mod inode;
mod leased_pages;
mod names;
mod pages;
#[cfg(test)]
pub(super) mod tests;

pub use self::attributes::Space;
pub(super) use self::attributes::file_number;
pub use self::contents::FILE_BYTES_MAX;
pub use self::directory::Number;
pub use self::leased_pages::LeasedPages;
pub use self::names::{DirectoryEntry, LINKS_MAX, NAME_BYTES_MAX, NewFile, TARGET_BYTES_MAX};
pub use self::pages::{HeapPages, KeptPages, Page, Pages, Piece};

use rpcrdma_engine::BulkItem;
use rpcrdma_fabric::memory::{Lease, SharedLease};

use self::inode::{Body, Inode, may};
use crate::wire::Status;
use crate::wire::auth_sys::Identity;
use crate::wire::types::{FileHandle, FileKind, Time};

/// The limits of a store, except that of the bytes of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most files of all kinds.
    pub files_max: u32,
}

/// A place for a file.
#[derive(Debug, Default)]
struct Slot {
    /// The number of files that were here before. It makes their handles invalid.
    generation: u32,
    file: Option<Box<Inode>>,
}

/// A file system.
#[derive(Debug)]
pub struct Store<P> {
    pages: P,
    slots: Vec<Slot>,
    free: Vec<Number>,
    files: u32,
    /// Names in all directories.
    names: u64,
    limits: Limits,
    /// A number that other stores do not have, nor this one before a restart.
    instance: u64,
}

/// Octets of a file handle: instance, index, generation.
const HANDLE_BYTES: usize = 16;

/// The instance in the handle of the root, and the file system number in all attributes. Both are the same after a
/// restart, so that clients keep their mount: they take another file system number for another mount.
const LASTING: u64 = 1;

impl<P: Pages> Store<P> {
    /// An empty store: a root directory in which everybody may write, like `/tmp`. Handles of another
    /// `instance` are invalid here, except that of the root.
    #[must_use]
    pub fn new(pages: P, limits: Limits, instance: u64, now: Time) -> Self {
        let mut store = Self {
            pages,
            slots: Vec::new(),
            free: Vec::new(),
            files: 0,
            names: 0,
            limits,
            instance,
        };
        let root = Inode {
            body: Body::Directory(directory::Directory::new(Self::ROOT)),
            mode: inode::STICKY | 0o777,
            links: 2,
            uid: 0,
            gid: 0,
            accessed: now,
            modified: now,
            changed: now,
            exclusive: None,
        };
        let placed = store.place(root);
        debug_assert!(placed.is_ok_and(|root| root == Self::ROOT));
        store
    }

    /// The root directory, which cannot be removed.
    pub const ROOT: Number = Number(0);

    /// The write verifier. It changes with the instance, which tells clients that uncommitted bytes may be lost.
    #[must_use]
    pub fn verifier(&self) -> [u8; 8] {
        self.instance.to_be_bytes()
    }

    /// The handle of a file.
    #[must_use]
    pub fn handle(&self, file: Number) -> Option<FileHandle> {
        let slot = self.slots.get(file.0 as usize)?;
        let mut bytes = [0; HANDLE_BYTES];
        let (instance, rest) = bytes.split_first_chunk_mut::<8>()?;
        *instance = self.instance_of(file).to_be_bytes();
        let (index, generation) = rest.split_first_chunk_mut::<4>()?;
        *index = file.0.to_be_bytes();
        generation.copy_from_slice(&slot.generation.to_be_bytes());
        FileHandle::new(&bytes)
    }

    /// The file of a handle.
    ///
    /// # Errors
    /// BADHANDLE for a handle with a wrong length, STALE for any other that names no existing file.
    pub fn find(&self, handle: &FileHandle) -> Result<Number, Status> {
        let bytes: &[u8; HANDLE_BYTES] = handle
            .as_bytes()
            .try_into()
            .map_err(|_| Status::BadHandle)?;
        let [
            i0,
            i1,
            i2,
            i3,
            i4,
            i5,
            i6,
            i7,
            n0,
            n1,
            n2,
            n3,
            g0,
            g1,
            g2,
            g3,
        ] = *bytes;
        let instance = u64::from_be_bytes([i0, i1, i2, i3, i4, i5, i6, i7]);
        let number = Number(u32::from_be_bytes([n0, n1, n2, n3]));
        let generation = u32::from_be_bytes([g0, g1, g2, g3]);
        let slot = self.slots.get(number.0 as usize);
        let slot = slot.filter(|slot| slot.file.is_some() && slot.generation == generation);
        match slot {
            Some(_) if instance == self.instance_of(number) => Ok(number),
            _ => Err(Status::Stale),
        }
    }

    fn instance_of(&self, file: Number) -> u64 {
        match file {
            Self::ROOT => LASTING,
            _ => self.instance,
        }
    }

    /// Begins a READ. Returns the number of bytes from `offset_bytes` on, at most `count_bytes`, and whether
    /// they reach the end of the file. [`Store::pieces`] returns the bytes.
    ///
    /// # Errors
    /// ISDIR, INVAL for a file that is not a regular one, ACCES.
    pub fn read(
        &mut self,
        file: Number,
        offset_bytes: u64,
        count_bytes: u32,
        caller: &Identity,
        now: Time,
    ) -> Result<(u32, bool), Status> {
        let inode = self.regular(file)?;
        // A client must read a program to execute it.
        if !inode.allows_data(caller, may::READ) && !inode.allows(caller, may::EXECUTE) {
            return Err(Status::Access);
        }
        let size = inode.contents().map_or(0, contents::Contents::size_bytes);
        let left = size.saturating_sub(offset_bytes);
        let count = count_bytes.min(u32::try_from(left).unwrap_or(u32::MAX));
        self.inode_mut(file)?.accessed = now;
        Ok((count, u64::from(count) == left))
    }

    /// The bytes of a file, or of the target of a symbolic link, in pieces.
    pub fn pieces(
        &self,
        file: Number,
        offset_bytes: u64,
        count_bytes: u32,
    ) -> impl Iterator<Item = &[u8]> {
        let contents = self.inode(file).ok().and_then(Inode::contents);
        contents
            .into_iter()
            .flat_map(move |contents| contents.pieces(&self.pages, offset_bytes, count_bytes))
    }

    /// The same bytes as an item whose pieces are shared with the file. A later write does not change them.
    /// `None` if the memory does not support that, or there are too many pieces.
    #[must_use]
    pub fn shared(
        &self,
        file: Number,
        offset_bytes: u64,
        count_bytes: u32,
    ) -> Option<BulkItem<SharedLease>> {
        let contents = self.inode(file).ok().and_then(Inode::contents)?;
        contents.shared(&self.pages, offset_bytes, count_bytes)
    }

    /// Takes buffers for files, as many as are needed.
    pub fn stock(&mut self, take: &mut dyn FnMut() -> Option<Lease>) {
        self.pages.stock(take);
    }

    /// Whether memory is short, so that pages which are being sent are needed back.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.pages.is_short()
    }

    /// The status for a write that found no free page: NOSPC if the space is used up, else JUKEBOX.
    fn no_page(&self) -> Status {
        if self.pages.free() == 0 {
            Status::NoSpace
        } else {
            Status::Jukebox
        }
    }

    /// The length of a symbolic link's target.
    ///
    /// # Errors
    /// INVAL for a file that is not a symbolic link.
    pub fn target_bytes(&mut self, link: Number, now: Time) -> Result<u32, Status> {
        let inode = self.inode_mut(link)?;
        let Body::SymbolicLink(target) = &inode.body else {
            return Err(Status::Invalid);
        };
        inode.accessed = now;
        Ok(u32::try_from(target.size_bytes()).unwrap_or(u32::MAX))
    }

    /// Writes the pieces, `count_bytes` bytes in all, from `offset_bytes` on. Returns the bytes written:
    /// fewer when the space runs out.
    ///
    /// # Errors
    /// ISDIR, INVAL for a file that is not a regular one, ACCES, FBIG. When nothing could be written: NOSPC,
    /// or JUKEBOX while the page of the first byte, or all free pages, are in buffers that are being sent.
    pub fn write<'a>(
        &mut self,
        file: Number,
        (offset_bytes, count_bytes): (u64, u32),
        pieces: impl Iterator<Item = impl Into<Piece<'a>>>,
        caller: &Identity,
        now: Time,
    ) -> Result<u32, Status> {
        if !self.regular(file)?.allows_data(caller, may::WRITE) {
            return Err(Status::Access);
        }
        let end = offset_bytes.checked_add(u64::from(count_bytes));
        if end.is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(Status::TooBig);
        }
        let slot = self.slots.get_mut(file.0 as usize);
        let inode = slot.and_then(|slot| slot.file.as_mut());
        let inode = inode.ok_or(Status::Stale)?;
        let Body::Regular(contents) = &mut inode.body else {
            return Err(Status::Invalid);
        };
        let written = contents.write(&mut self.pages, offset_bytes, pieces);
        if written == 0 && count_bytes > 0 {
            let is_there = contents.has_page(self.pages.page_bytes(), offset_bytes);
            return Err(if is_there {
                Status::Jukebox
            } else {
                self.no_page()
            });
        }
        if written > 0 {
            inode.modified = now;
            inode.changed = now;
            inode.drop_privileges(caller);
        }
        Ok(u32::try_from(written).unwrap_or(u32::MAX))
    }

    /// Commits what was written to a file: memory becomes no safer by that.
    ///
    /// # Errors
    /// ISDIR, INVAL for a file that is not a regular one.
    pub fn commit(&self, file: Number) -> Result<(), Status> {
        self.regular(file).map(drop)
    }

    fn regular(&self, file: Number) -> Result<&Inode, Status> {
        let inode = self.inode(file)?;
        match inode.kind() {
            FileKind::Regular => Ok(inode),
            FileKind::Directory => Err(Status::IsDirectory),
            _ => Err(Status::Invalid),
        }
    }

    fn inode(&self, file: Number) -> Result<&Inode, Status> {
        let slot = self.slots.get(file.0 as usize);
        let inode = slot.and_then(|slot| slot.file.as_deref());
        inode.ok_or(Status::Stale)
    }

    fn inode_mut(&mut self, file: Number) -> Result<&mut Inode, Status> {
        let slot = self.slots.get_mut(file.0 as usize);
        let inode = slot.and_then(|slot| slot.file.as_deref_mut());
        inode.ok_or(Status::Stale)
    }

    /// Finds a place for a file. Returns the file as the error at the limit of files.
    fn place(&mut self, inode: Inode) -> Result<Number, Box<Inode>> {
        let inode = Box::new(inode);
        if self.files >= self.limits.files_max.max(1) {
            return Err(inode);
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                let next = u32::try_from(self.slots.len());
                self.slots.push(Slot::default());
                // No overflow: `files_max` is the limit.
                Number(next.unwrap_or(u32::MAX))
            }
        };
        match self.slots.get_mut(number.0 as usize) {
            Some(slot) => {
                slot.file = Some(inode);
                self.files += 1;
                Ok(number)
            }
            None => Err(inode),
        }
    }

    /// Removes a file without a name: frees its memory, and makes its handles stale.
    fn discard(&mut self, file: Number) {
        let Some(slot) = self.slots.get_mut(file.0 as usize) else {
            return;
        };
        let Some(mut inode) = slot.file.take() else {
            return;
        };
        slot.generation = slot.generation.wrapping_add(1);
        inode.give_back(&mut self.pages);
        self.files -= 1;
        self.free.push(file);
    }
}
