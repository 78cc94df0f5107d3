//! The memory of peers that the ports of one manager have mapped. Each file is mapped once and as a whole, and all files
//! together stay within limits.
//!
//! A peer chooses the files that it passes. So a file is checked before any page of it is mapped:
//!
//! * It has the seals that fix its size and its pages: no process can remove a page, so no access can fault. (The
//!   doorbell lacks one of them: see `SEALS_DOORBELL`.)
//! * Its size fits its purpose and is within a limit, and so is the sum of all mapped files.
//! * It has all its pages, except the doorbell. The first process that touches a missing page allocates it and is charged
//!   for it, so a peer with an empty file could make us allocate memory that it never had.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::fs::{SealFlags, Stat};

use super::key_table::{ENTRY_BYTES, TABLE_HEAD_BYTES, WINDOWS_MAX};
use super::mapped::{CHANNEL_HEAD_BYTES, DOORBELL_BYTES, RING_BYTES_MAX, RING_BYTES_MIN};
use crate::interface::SetupError;
use crate::memory::{Mapping, ORDINARY_PAGE_BYTES, SEALS_READ_ONLY, external_offset};

/// For the doorbell, which all peers write. Its size is fixed.
///
/// `FUTURE_WRITE` is a property of the file and would keep the next peer from mapping it writable.
/// Without that seal a peer can punch a hole into the file. The bits are lost then, as if the peer had
/// cleared them, and the owner's next access is a page fault that allocates the page again. The cost is
/// bounded: one fault for each system call of the peer, which takes the peer longer than the fault takes
/// the owner (4.0 and 3.3 µs on a virtual machine), and one page of memory.
///
/// Sealing the file after the peer has mapped it would need one file for each peer, but a core checks
/// one file for all peers. Files that cannot be punched (`memfd_secret`) are disabled on many kernels.
pub(super) const SEALS_DOORBELL: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Limits on the mapped memory of peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerMemoryLimits {
    /// Bytes of one arena.
    pub(super) arena_bytes_max: u64,
    /// Bytes of all files together.
    pub(super) total_bytes_max: u64,
}

/// The purpose of a peer's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    Channel,
    Arena,
    Keys,
    Doorbell,
}

impl Purpose {
    fn name(self) -> &'static str {
        match self {
            Self::Channel => "channel",
            Self::Arena => "arena",
            Self::Keys => "key table",
            Self::Doorbell => "doorbell",
        }
    }

    fn seals(self) -> SealFlags {
        match self {
            Self::Channel | Self::Arena | Self::Keys => SEALS_READ_ONLY,
            Self::Doorbell => SEALS_DOORBELL,
        }
    }

    /// Whether a file for this purpose may have `bytes` bytes.
    fn has_size(self, bytes: u64) -> bool {
        let behind = |head: usize| bytes.checked_sub(head as u64);
        match self {
            Self::Channel => behind(CHANNEL_HEAD_BYTES).is_some_and(|ring| {
                let range = u64::from(RING_BYTES_MIN)..=u64::from(RING_BYTES_MAX);
                ring.is_power_of_two() && range.contains(&ring)
            }),
            Self::Keys => behind(TABLE_HEAD_BYTES).is_some_and(|table| {
                let entries = table / ENTRY_BYTES as u64;
                let is_whole = table.is_multiple_of(ENTRY_BYTES as u64);
                is_whole && entries.is_power_of_two() && entries <= u64::from(WINDOWS_MAX)
            }),
            Self::Doorbell => bytes == DOORBELL_BYTES as u64,
            // A part of a page would keep what lies behind it from being mapped, or unmapped. The size of a page is a
            // constant: `rustix::param::page_size` reads the vDSO, which valgrind has unmapped, and dies there.
            Self::Arena => bytes > 0 && bytes.is_multiple_of(ORDINARY_PAGE_BYTES),
        }
    }
}

/// Identifies a mapped file. It includes the process, which the kernel reports, so that no process gets
/// the mapping of another's file. It includes the purpose, because checks and access depend on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct FileKey {
    process: u32,
    device: u64,
    inode: u64,
    purpose: Purpose,
    /// Device and inode of each file that is mapped behind an arena: with other files it is another mapping.
    external: Box<[(u64, u64)]>,
}

/// The mapped files, and the limits on them.
#[derive(Debug)]
pub(super) struct PeerMemory {
    limits: PeerMemoryLimits,
    /// Ports own the mappings, and release them at any time.
    mapped: HashMap<FileKey, Weak<Mapping>>,
}

impl PeerMemory {
    pub(super) fn new(limits: PeerMemoryLimits) -> Self {
        Self {
            limits,
            mapped: HashMap::new(),
        }
    }

    /// Checks and maps a file that `process` passed. A file that is mapped already is shared:
    /// connections share the files of a channel, and channels those of a port.
    ///
    /// # Errors
    ///
    /// When a seal or a page is missing, the size is wrong or beyond a limit, or the kernel cannot map
    /// the file.
    pub(super) fn map(
        &mut self,
        process: u32,
        file: &OwnedFd,
        purpose: Purpose,
    ) -> Result<Arc<Mapping>, SetupError> {
        let name = purpose.name();
        let stat = stat(file, name)?;
        let key = FileKey {
            process,
            device: stat.st_dev,
            inode: stat.st_ino,
            purpose,
            external: Box::default(),
        };
        if let Some(mapping) = self.mapped.get(&key).and_then(Weak::upgrade) {
            return Ok(mapping);
        }
        let bytes = self.check(file, purpose)?;
        let mapping = match purpose {
            // Its pages are not checked: another peer can punch a hole into it at any time.
            Purpose::Doorbell => Mapping::shared(file, bytes),
            Purpose::Channel | Purpose::Arena | Purpose::Keys => {
                check_whole(file, name, bytes)?;
                Mapping::shared_read_only(file, bytes)
            }
        };
        let mapping = mapping
            .map_err(|error| system(format!("the peer's {name} could not be mapped"), error))?;
        let mapping = Arc::new(mapping);
        self.mapped.insert(key, Arc::downgrade(&mapping));
        Ok(mapping)
    }

    /// Checks and maps an arena, and behind it the memory of the peer's application: each file where
    /// [`external_offset`] puts it. All of them are one mapping, shared as that of the arena.
    ///
    /// # Errors
    ///
    /// As [`PeerMemory::map`].
    pub(super) fn map_joined(
        &mut self,
        process: u32,
        arena: &OwnedFd,
        external: &[OwnedFd],
    ) -> Result<Arc<Mapping>, SetupError> {
        let name = Purpose::Arena.name();
        let stat = stat(arena, name)?;
        let stats = external.iter().map(|file| self::stat(file, name));
        let stats = stats.map(|stat| stat.map(|it| (it.st_dev, it.st_ino)));
        let key = FileKey {
            process,
            device: stat.st_dev,
            inode: stat.st_ino,
            purpose: Purpose::Arena,
            external: stats.collect::<Result<_, _>>()?,
        };
        if let Some(mapping) = self.mapped.get(&key).and_then(Weak::upgrade) {
            return Ok(mapping);
        }
        let mut files = Vec::with_capacity(1 + external.len());
        let (mut end, mut total) = (0, 0);
        for file in std::iter::once(arena).chain(external) {
            let bytes = self.check(file, Purpose::Arena)?;
            check_whole(file, name, bytes)?;
            let offset = match files.is_empty() {
                true => Some(0),
                false => external_offset(end),
            };
            let offset = offset.ok_or_else(|| wrong("application memory is too long".into()))?;
            total += bytes as u64 + gap_cost(offset - end);
            self.check_total(name, total)?;
            end = offset + bytes as u64;
            files.push((file.as_fd(), offset, bytes));
        }
        let mapping = Mapping::joined_read_only(&files)
            .map_err(|error| system(format!("the peer's {name} could not be mapped"), error))?;
        let mapping = Arc::new(mapping);
        self.mapped.insert(key, Arc::downgrade(&mapping));
        Ok(mapping)
    }

    /// Checks seals, size and limits; returns the size in bytes.
    fn check(&mut self, file: &OwnedFd, purpose: Purpose) -> Result<usize, SetupError> {
        let name = purpose.name();
        let has = rustix::fs::fcntl_get_seals(file)
            .map_err(|error| system(format!("the seals of the peer's {name}"), error.into()))?;
        if !has.contains(purpose.seals()) {
            return Err(wrong(format!(
                "{name} is not sealed: its size or its pages could change while it is mapped"
            )));
        }
        // The size is read after the seals, because a sealed file keeps its size.
        let bytes = u64::try_from(stat(file, name)?.st_size).unwrap_or(0);
        if !purpose.has_size(bytes) {
            return Err(wrong(format!("{name} has a wrong size: {bytes} bytes")));
        }
        let arena_bytes_max = self.limits.arena_bytes_max;
        if purpose == Purpose::Arena && bytes > arena_bytes_max {
            return Err(wrong(format!(
                "arena of {bytes} bytes exceeds the limit of {arena_bytes_max} bytes for one arena: \
                 raise `peer_arena_mib_max` here, or give the peer less registered memory"
            )));
        }
        self.check_total(name, bytes)?;
        usize::try_from(bytes).map_err(|_| wrong(format!("{name} has a wrong size: {bytes} bytes")))
    }

    /// Checks that so many bytes more may be mapped.
    fn check_total(&mut self, name: &str, bytes: u64) -> Result<(), SetupError> {
        let (mapped, limit) = (self.mapped_bytes(), self.limits.total_bytes_max);
        if bytes > limit.saturating_sub(mapped) {
            return Err(wrong(format!(
                "{name} of {bytes} bytes exceeds the limit: {mapped} bytes of peers are mapped, and \
                 at most {limit} may be; raise `peer_memory_mib_max` here"
            )));
        }
        Ok(())
    }

    /// The bytes that are mapped. Removes the entries of files that nothing holds.
    fn mapped_bytes(&mut self) -> u64 {
        let mut total = 0;
        self.mapped.retain(|_, mapping| {
            let mapping = mapping.upgrade();
            total += mapping.as_ref().map_or(0, |mapping| {
                let touched = mapping.touched_bytes() as u64;
                touched + gap_cost(mapping.bytes() as u64 - touched)
            });
            mapping.is_some()
        });
        total
    }
}

/// What a gap between the files of a peer can cost: a page of the tables for every 512 pages that the peer makes us read.
const fn gap_cost(bytes: u64) -> u64 {
    bytes / 512
}

/// Checks that a sealed file of `bytes` bytes has all its pages.
fn check_whole(file: &OwnedFd, name: &str, bytes: usize) -> Result<(), SetupError> {
    // `st_blocks` also counts pages after the end of the file, which it may have from before it was
    // sealed. Truncating to the same size removes them, and the seals keep them from coming back. A part
    // of a transparent hugepage at the end may stay, so less than one such page can be missing unseen.
    rustix::fs::ftruncate(file, bytes as u64)
        .map_err(|error| system(format!("cutting off the peer's {name}"), error.into()))?;
    // `st_blocks` counts units of 512 bytes, for any page size.
    let held = stat(file, name)?.st_blocks;
    let held = u64::try_from(held).unwrap_or(0).saturating_mul(512);
    if held >= bytes as u64 {
        return Ok(());
    }
    Err(wrong(format!(
        "{name} has holes: of its {bytes} bytes only {held} are allocated"
    )))
}

pub(super) fn stat(file: &OwnedFd, name: &str) -> Result<Stat, SetupError> {
    rustix::fs::fstat(file).map_err(|error| system(format!("the peer's {name}"), error.into()))
}

fn wrong(what: String) -> SetupError {
    SetupError::Peer { what }
}

fn system(doing: String, source: io::Error) -> SetupError {
    SetupError::System { doing, source }
}
