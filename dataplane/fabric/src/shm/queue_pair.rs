//! The state of a queue pair.

use super::key_table;
use super::link::QueuePairNumber;
use super::work::List;
use crate::interface::{QueuePairId, Status};

/// The state of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// The index has no queue pair.
    #[default]
    Vacant,
    /// Adopted at the server; the client has not confirmed yet.
    Accepting,
    /// The queue pair can send and receive.
    Connected,
    /// Failed or disconnected; outstanding work requests are being flushed.
    Error,
    /// All work requests were flushed and `Disconnected` was reported.
    Flushed,
}

/// A queue pair of a port.
#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) state: State,
    /// Our number: index and generation.
    pub(super) local: QueuePairNumber,
    /// The peer's number, which our records carry.
    pub(super) remote: QueuePairNumber,
    /// The channel that carries it.
    pub(super) channel: u32,
    /// The receive queue that it draws from.
    pub(super) receive_queue: usize,
    /// Work requests in the order of posting.
    pub(super) works: List,
    /// The number of `works`.
    pub(super) outstanding: u32,
    /// RDMA Reads that are not done.
    pub(super) reads: List,
    /// RDMA Writes that are not acknowledged.
    pub(super) writes_unacked: u32,
    /// The position of the last RDMA Write, which later RDMA Reads must not overtake.
    pub(super) last_write: u32,
    /// The first window that is bound on it.
    pub(super) windows: u32,
    /// The status with which the next work request fails.
    pub(super) fail_next: Option<Status>,
    /// A work request has failed, so no later one may succeed.
    pub(super) failed: bool,
    /// Whether the index is in the port's list `ready`.
    pub(super) in_ready: bool,
    /// Whether the index is in the port's list `readers`.
    pub(super) in_readers: bool,
}

impl QueuePair {
    pub(super) fn vacant() -> Self {
        Self {
            state: State::Vacant,
            local: QueuePairNumber(0),
            remote: QueuePairNumber(0),
            channel: u32::MAX,
            receive_queue: 0,
            works: List::EMPTY,
            outstanding: 0,
            reads: List::EMPTY,
            writes_unacked: 0,
            last_write: 0,
            windows: key_table::NONE,
            fail_next: None,
            failed: false,
            in_ready: false,
            in_readers: false,
        }
    }

    #[inline]
    pub(super) fn id(&self) -> QueuePairId {
        self.local.id()
    }

    /// Whether the queue pair is in error, or `Disconnected` was reported.
    #[inline]
    pub(super) fn is_down(&self) -> bool {
        matches!(self.state, State::Error | State::Flushed)
    }
}

impl QueuePairNumber {
    /// The number of index `index` in its `generation`.
    #[must_use]
    pub fn new(index: u16, generation: u16) -> Self {
        Self(u32::from(index) | u32::from(generation) << 16)
    }

    /// The index and generation as the interface names them.
    #[inline]
    #[must_use]
    pub fn id(self) -> QueuePairId {
        QueuePairId {
            index: self.0 & 0xffff,
            generation: self.0 >> 16,
        }
    }

    /// The number of the same index in the next generation.
    #[must_use]
    pub fn next_generation(self) -> Self {
        Self(self.0.wrapping_add(1 << 16))
    }
}
