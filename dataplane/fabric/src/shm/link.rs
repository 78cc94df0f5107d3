//! The data exchanged between the connection manager and the ports of `shm`.
//!
//! A *channel* joins an ordered pair of cores and carries all their queue pairs. Each side owns
//! one channel file, which only it writes: the ring of its outgoing records, and the words that
//! say how far it has consumed the other side's. The manager makes the files, passes them, and maps
//! those of the other side; the port moves the bytes.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use super::files::{CheckedPeer, CoreIdentity};
use crate::interface::{SetupError, Status};
use crate::memory::Mapping;

/// A queue pair's number on the wire: an index (low 16 bits) and a generation (high 16 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueuePairNumber(pub u32);

/// The files of a port that every peer gets. A peer checks sizes and seals, then maps the arena and the
/// keys read-only. The doorbell is the only memory that both ends may write.
#[derive(Debug)]
pub struct PortFiles {
    /// The registered arena.
    pub arena: OwnedFd,
    /// The table of memory windows.
    pub keys: OwnedFd,
    /// The doorbell bitmap.
    pub doorbell: OwnedFd,
    /// The end of a socket pair through which peers wake a parked core.
    pub event: OwnedFd,
    /// Memory of the application, which peers map behind the arena.
    pub external: Vec<OwnedFd>,
}

/// The manager's data about a port.
#[derive(Clone, Debug)]
pub struct PortHandle {
    /// Who the port is.
    pub identity: CoreIdentity,
    /// What its peers get.
    pub files: Arc<PortFiles>,
    /// The stock of free queue pair numbers. The manager takes them; the port returns them with the next
    /// generation.
    pub numbers: Arc<ArrayQueue<QueuePairNumber>>,
    /// Bytes of the ring in each channel file.
    pub channel_ring_bytes: u32,
}

/// A number taken from a port's stock for a queue pair that does not exist yet. Dropping it returns the
/// number with the next generation, because a peer may already have received the old one.
#[derive(Debug)]
pub struct NumberHold {
    number: QueuePairNumber,
    stock: Arc<ArrayQueue<QueuePairNumber>>,
    kept: bool,
}

impl NumberHold {
    /// Takes a number from the port's stock.
    ///
    /// # Errors
    ///
    /// [`SetupError::Limit`] when no number is left.
    pub fn take(port: &PortHandle) -> Result<Self, SetupError> {
        let limit = port.numbers.capacity() as u64;
        let number = port.numbers.pop().ok_or(SetupError::Limit {
            what: "queue pairs of one core",
            asked: limit + 1,
            limit,
        })?;
        Ok(Self {
            number,
            stock: Arc::clone(&port.numbers),
            kept: false,
        })
    }

    /// The number.
    #[must_use]
    pub fn number(&self) -> QueuePairNumber {
        self.number
    }

    /// Whether it was taken from this stock.
    pub(super) fn is_of(&self, stock: &Arc<ArrayQueue<QueuePairNumber>>) -> bool {
        Arc::ptr_eq(&self.stock, stock)
    }

    /// Keeps the number out of the stock: destroying the queue pair returns it.
    pub(super) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for NumberHold {
    fn drop(&mut self) {
        if !self.kept {
            let pushed = self.stock.push(self.number.next_generation());
            debug_assert!(pushed.is_ok(), "the stock has room for all its numbers");
        }
    }
}

/// A queue pair that a port can adopt. If it is dropped, or cannot be adopted, its number becomes free.
#[derive(Debug)]
pub struct PreparedQueuePair {
    /// Our number.
    pub number: NumberHold,
    /// The peer's number.
    pub remote: QueuePairNumber,
    /// The core at the other end.
    pub peer: CoreIdentity,
    /// Our channel file towards that core, mapped; the same for all queue pairs of the channel.
    pub channel: Arc<Mapping>,
    /// The channel's bit in our doorbell.
    pub doorbell_number: u32,
    /// The peer's memory, mapped: at the client immediately, at the server with [`PortEvent::Established`].
    pub memory: Option<CheckedPeer>,
}

impl PreparedQueuePair {
    /// Our number.
    #[must_use]
    pub fn local(&self) -> QueuePairNumber {
        self.number.number()
    }
}

/// An event that the manager reports to a port about a queue pair.
#[derive(Debug)]
pub enum PortEvent {
    /// The client confirmed. The event has its memory, which is ignored if the channel has it already.
    Established {
        /// Our number of the queue pair.
        local: QueuePairNumber,
        /// The client's memory, mapped.
        memory: CheckedPeer,
    },
    /// The peer closed the connection or died: the port processes the peer's last records, then flushes.
    PeerGone {
        /// Our number of the queue pair.
        local: QueuePairNumber,
    },
    /// A fault to inject, for tests and for users who want to see how their system fails.
    Inject(Fault),
}

/// Faults that the provider injects on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The queue pair breaks, as if the link were lost.
    DropConnection {
        /// Our number of the queue pair.
        local: QueuePairNumber,
    },
    /// The next work request posted on the queue pair ends with this status.
    FailNextWork {
        /// Our number of the queue pair.
        local: QueuePairNumber,
        /// The status.
        status: Status,
    },
    /// The port behaves as if no Receive were posted, for a number of polls.
    ReceiverNotReady {
        /// The number of polls.
        polls: u32,
    },
}
