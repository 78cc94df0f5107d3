//! The memory of peers that the ports of one manager have mapped: each file once, whole, and all of
//! them within limits.
//!
//! A peer decides what files it passes. So a file is checked before any page of it is mapped:
//!
//! * It has the seals, which keep its size and its pages: nobody can take a page away that was there,
//!   and so no access can fault.
//! * It has the size of what it is for, within a limit, and together with all that is mapped already
//!   stays within another.
//! * It has all its pages. The first process that touches a missing page allocates it and is charged for it: with a
//!   file without pages, a peer could make us allocate memory that it never had.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use rustix::fs::{SealFlags, Stat};

use super::key_table::{ENTRY_BYTES, TABLE_HEAD_BYTES, WINDOWS_MAX};
use super::mapped::{CHANNEL_HEAD_BYTES, DOORBELL_BYTES, RING_BYTES_MAX, RING_BYTES_MIN};
use crate::interface::SetupError;
use crate::memory::Mapping;

/// The peer may only read our memory, and we may only read the peer's. No page of it can be taken away, because
/// `FUTURE_WRITE` forbids to punch holes.
pub(super) const SEALS_READ_ONLY: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::FUTURE_WRITE)
    .union(SealFlags::SEAL);

/// The doorbell is written by all peers, and stays as long as it is.
///
/// `FUTURE_WRITE` holds for the file, whoever has it open and how, and would forbid the next peer to map
/// it. Without that seal a peer can punch a hole into it: the bits are lost, as if the peer had cleared
/// them, and the owner's next look at the doorbell is a page fault that makes the page again. The cost
/// is bounded: one fault for each system call of the peer, which takes the peer longer than the fault
/// takes the owner (4.0 and 3.3 µs on a virtual machine), and one page of memory at a time.
///
/// Sealing after the peer has mapped it would take a file for each peer, and a core looks at one for
/// all. Files that cannot be punched at all (`memfd_secret`) are switched off on many kernels.
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

/// What a file of a peer is for.
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

    /// Whether a file for this has so many bytes.
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
            Self::Arena => bytes > 0,
        }
    }
}

/// Tells a file from others while it is mapped. The process, as the kernel tells it, is part of it, so
/// that no process is given what another has passed; so is the purpose, on which the checks and the
/// access depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FileKey {
    process: u32,
    device: u64,
    inode: u64,
    purpose: Purpose,
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

    /// Checks and maps a file that `process` passed. One that is mapped already is not mapped again:
    /// connections share channels, and channels the other files of a port.
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
        };
        if let Some(mapping) = self.mapped.get(&key).and_then(Weak::upgrade) {
            return Ok(mapping);
        }
        let bytes = self.check(file, purpose)?;
        let mapping = match purpose {
            // Not checked: other peers can punch a hole into it at any time, which is not this peer's fault.
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

    /// Checks seals, size and limits; returns the size in bytes.
    fn check(&mut self, file: &OwnedFd, purpose: Purpose) -> Result<usize, SetupError> {
        let name = purpose.name();
        let has = rustix::fs::fcntl_get_seals(file)
            .map_err(|error| system(format!("the seals of the peer's {name}"), error.into()))?;
        if !has.contains(purpose.seals()) {
            return Err(wrong(format!(
                "{name} is not sealed: it could change under our feet"
            )));
        }
        // From here on the size cannot change behind this check.
        let bytes = u64::try_from(stat(file, name)?.st_size).unwrap_or(0);
        if !purpose.has_size(bytes) {
            return Err(wrong(format!("{name} has a wrong size: {bytes} bytes")));
        }
        let PeerMemoryLimits {
            arena_bytes_max,
            total_bytes_max,
        } = self.limits;
        if purpose == Purpose::Arena && bytes > arena_bytes_max {
            return Err(wrong(format!(
                "arena of {bytes} bytes is larger than the {arena_bytes_max} bytes that are mapped of \
                 one: raise `peer_arena_mib_max` here, or give the peer less registered memory"
            )));
        }
        let mapped = self.mapped_bytes();
        if bytes > total_bytes_max.saturating_sub(mapped) {
            return Err(wrong(format!(
                "{name} of {bytes} bytes does not fit beside the {mapped} bytes of peers that are \
                 mapped: at most {total_bytes_max} may be; raise `peer_memory_mib_max` here"
            )));
        }
        usize::try_from(bytes).map_err(|_| wrong(format!("{name} has a wrong size: {bytes} bytes")))
    }

    /// The bytes that are mapped. Forgets the files that no port holds any more.
    fn mapped_bytes(&mut self) -> u64 {
        let mut total = 0;
        self.mapped.retain(|_, mapping| {
            let mapping = mapping.upgrade();
            total += mapping.as_ref().map_or(0, |mapping| mapping.bytes() as u64);
            mapping.is_some()
        });
        total
    }
}

/// Checks that a sealed file of `bytes` bytes has all its pages.
fn check_whole(file: &OwnedFd, name: &str, bytes: usize) -> Result<(), SetupError> {
    // Pages behind the end, which a file can have from before it was sealed, count as well: they are
    // cut off first, and cannot come back. Of a transparent hugepage that reaches beyond the end a
    // part may stay, so that less than one such page can be missing.
    rustix::fs::ftruncate(file, bytes as u64)
        .map_err(|error| system(format!("cutting off the peer's {name}"), error.into()))?;
    // `st_blocks` counts in 512 bytes, whatever the size of a page.
    let held = stat(file, name)?.st_blocks;
    let held = u64::try_from(held).unwrap_or(0).saturating_mul(512);
    if held >= bytes as u64 {
        return Ok(());
    }
    Err(wrong(format!(
        "{name} has holes: of its {bytes} bytes only {held} are there"
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
