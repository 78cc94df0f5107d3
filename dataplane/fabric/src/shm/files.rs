//! The files that ports share: this end makes its own, and checks and maps those of a peer.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use super::doorbell::CHANNELS_MAX;
use super::key_table::{ENTRY_BYTES, KeyMemory, TABLE_HEAD_BYTES, WINDOWS_MAX};
use super::mapped::{
    CHANNEL_HEAD_BYTES, ChannelHead, DOORBELL_BYTES, MappedBell, MappedRing, RING_BYTES_MAX,
    RING_BYTES_MIN,
};
use super::peer_memory::{PeerMemory, Purpose, SEALS_DOORBELL};
use super::ring::Consumer;
use crate::interface::SetupError;
use crate::memory::{Mapping, SEALS_READ_ONLY};

/// Identifies a core among all processes of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CoreIdentity {
    /// A random number, the same for all ports of a process.
    pub process: [u8; 16],
    /// The port's number within its process.
    pub port: u32,
}

impl CoreIdentity {
    /// The identity of port number `port` of this process.
    #[must_use]
    pub fn of_this_process(port: u32) -> Self {
        static PROCESS: OnceLock<[u8; 16]> = OnceLock::new();
        let process = *PROCESS.get_or_init(|| {
            // Two hashes with random keys of the standard library, which come from the system.
            let mut bytes = [0; 16];
            let (low, high) = bytes.split_at_mut(8);
            low.copy_from_slice(
                &RandomState::new()
                    .hash_one(std::process::id())
                    .to_le_bytes(),
            );
            high.copy_from_slice(&RandomState::new().hash_one(1).to_le_bytes());
            bytes
        });
        Self { process, port }
    }
}

/// The files that the other side sent over the socket. They are not checked yet.
#[derive(Debug)]
pub(super) struct PeerFiles {
    /// Its channel file towards us.
    pub(super) channel: OwnedFd,
    /// Its arena.
    pub(super) arena: OwnedFd,
    /// Its table of memory windows.
    pub(super) keys: OwnedFd,
    /// Its doorbell bitmap.
    pub(super) doorbell: OwnedFd,
    /// The socket that wakes it.
    pub(super) event: OwnedFd,
    /// Its application's memory.
    pub(super) external: Vec<OwnedFd>,
    /// The number that our channel has among its doorbell bits.
    pub(super) doorbell_number: u32,
}

fn sealed_file(
    name: &str,
    bytes: usize,
    seals: SealFlags,
) -> Result<(OwnedFd, Arc<Mapping>), SetupError> {
    let make = || -> io::Result<(OwnedFd, Mapping)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(name, flags)?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        let mapping = Mapping::shared(&file, bytes)?;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        Ok((file, mapping))
    };
    let (file, mapping) = make().map_err(|source| SetupError::System {
        doing: format!("shared memory of {bytes} bytes for `{name}` could not be made"),
        source,
    })?;
    Ok((file, Arc::new(mapping)))
}

/// The file of one direction of a channel.
#[derive(Debug)]
pub struct ChannelFile;

impl ChannelFile {
    /// Makes a channel file with a ring of `ring_bytes` bytes (a power of two from 8192), mapped
    /// to write and sealed so that peers can only read it.
    pub fn create(ring_bytes: u32) -> Result<(OwnedFd, Arc<Mapping>), SetupError> {
        check_ring_bytes(ring_bytes)?;
        let bytes = CHANNEL_HEAD_BYTES + ring_bytes as usize;
        sealed_file("rpcrdma-channel", bytes, SEALS_READ_ONLY)
    }
}

/// Checks that a ring may have `ring_bytes` bytes.
pub(super) fn check_ring_bytes(ring_bytes: u32) -> Result<(), SetupError> {
    let good = ring_bytes.is_power_of_two() && ring_bytes >= RING_BYTES_MIN;
    if good && ring_bytes <= RING_BYTES_MAX {
        return Ok(());
    }
    Err(SetupError::Limit {
        what: "bytes of a channel's ring (a power of two from 8192)",
        asked: u64::from(ring_bytes),
        limit: u64::from(RING_BYTES_MAX),
    })
}

/// Makes the table of memory windows for `windows` windows, rounded up to a power of two.
pub(super) fn create_key_table(windows: u32) -> Result<(OwnedFd, KeyMemory), SetupError> {
    if windows > WINDOWS_MAX {
        return Err(SetupError::Limit {
            what: "memory windows of a port",
            asked: u64::from(windows),
            limit: u64::from(WINDOWS_MAX),
        });
    }
    let entries = windows.max(1).next_power_of_two() as usize;
    let bytes = TABLE_HEAD_BYTES + entries * ENTRY_BYTES;
    let (file, mapping) = sealed_file("rpcrdma-keys", bytes, SEALS_READ_ONLY)?;
    let memory = KeyMemory::new(mapping).ok_or_else(|| wrong("key table has a wrong size"))?;
    Ok((file, memory))
}

/// Makes a doorbell, which every peer may write.
pub(super) fn create_doorbell() -> Result<(OwnedFd, MappedBell), SetupError> {
    let (file, mapping) = sealed_file("rpcrdma-doorbell", DOORBELL_BYTES, SEALS_DOORBELL)?;
    Ok((file, MappedBell::new(mapping)))
}

/// Makes the socket pair by which peers wake a parked core. Returns our end and the peers' end.
///
/// An eventfd would not do, because a write to it may block unless the flag `O_NONBLOCK` is set. That flag belongs to the
/// open file, which all peers share, so a hostile peer could clear it and block another peer's core. A send on a socket
/// takes the flag with each call ([`wake`]).
pub(super) fn create_event() -> Result<(OwnedFd, OwnedFd), SetupError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(|error| {
        SetupError::System {
            doing: "a socket pair to wake a core could not be made".into(),
            source: error.into(),
        }
    })
}

/// The other end of a channel: its memory, checked and mapped. Sizes, seals and pages can no longer
/// change. The bytes can change at any time, so they are checked whenever they are read.
///
/// The connection manager makes it on its own thread, and a [`PreparedQueuePair`](super::PreparedQueuePair) or a
/// [`PortEvent`](super::PortEvent) carries it to the port, which maps nothing.
#[derive(Debug)]
pub struct CheckedPeer {
    pub(super) consumer: Consumer<MappedRing>,
    pub(super) head: ChannelHead,
    pub(super) arena: Arc<Mapping>,
    pub(super) keys: KeyMemory,
    pub(super) bell: MappedBell,
    pub(super) event: OwnedFd,
    /// The number of the channel among the peer's doorbell bits.
    pub(super) doorbell_number: u32,
    /// The channel file, which `consumer` and `head` point into.
    channel: Arc<Mapping>,
}

impl CheckedPeer {
    /// Checks and maps the files that `process` passed.
    ///
    /// # Errors
    ///
    /// As [`PeerMemory::map`], and when the event descriptor or the doorbell number is wrong.
    pub(super) fn map(
        files: PeerFiles,
        process: u32,
        memory: &mut PeerMemory,
    ) -> Result<Self, SetupError> {
        if files.doorbell_number >= CHANNELS_MAX {
            return Err(wrong("doorbell number is out of range"));
        }
        check_event(&files.event)?;
        let channel = memory.map(process, &files.channel, Purpose::Channel)?;
        // SAFETY: both are moved into the value that also holds the mapping.
        let (ring, head) = unsafe { (MappedRing::new(&channel), ChannelHead::new(&channel)) };
        let (Some(ring), Some(head)) = (ring, head) else {
            return Err(wrong("channel file does not have the size of a ring"));
        };
        let keys = memory.map(process, &files.keys, Purpose::Keys)?;
        let keys = KeyMemory::new(keys).ok_or_else(|| wrong("key table has a wrong size"))?;
        let bell = memory.map(process, &files.doorbell, Purpose::Doorbell)?;
        let arena = match files.external.is_empty() {
            true => memory.map(process, &files.arena, Purpose::Arena)?,
            false => memory.map_joined(process, &files.arena, &files.external)?,
        };
        Ok(Self {
            consumer: Consumer::new(ring),
            head,
            arena,
            keys,
            bell: MappedBell::new(bell),
            event: files.event,
            doorbell_number: files.doorbell_number,
            channel,
        })
    }

    /// Whether both have the same channel file. Comparing the mappings is enough, because a manager maps
    /// each file of a process once.
    pub(super) fn shares_channel(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.channel, &other.channel)
    }
}

/// Checks that a peer's event descriptor is a socket: another kind could block the core that sends to it.
fn check_event(event: &OwnedFd) -> Result<(), SetupError> {
    let is_ours = sockopt::socket_domain(event) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(event) == Ok(SocketType::STREAM);
    if is_ours {
        Ok(())
    } else {
        Err(wrong("event descriptor is not a Unix stream socket"))
    }
}

/// Wakes a parked core. Never blocks, whatever the peer does to the socket.
pub(super) fn wake(event: BorrowedFd<'_>) {
    // Errors are ignored: a full socket wakes as well, and a dead peer needs no wake-up.
    let _ = rustix::net::send(event, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Drains the socket: usually completely, but with a bound, because a peer may never stop writing.
pub(super) fn drain(event: BorrowedFd<'_>) {
    const READS: usize = 8;
    let mut bytes = [0; 512];
    for _ in 0..READS {
        match rustix::net::recv(event, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((taken, _)) if taken == bytes.len() => {}
            _ => return,
        }
    }
}

fn wrong(what: &str) -> SetupError {
    SetupError::Peer { what: what.into() }
}
