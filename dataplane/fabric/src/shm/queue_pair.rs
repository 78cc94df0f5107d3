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

/// What decides whether messages may come and leave on a queue pair, and where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) state: State,
    /// Our number: index and generation.
    pub(super) local: QueuePairNumber,
    /// The peer's number, which our records carry.
    pub(super) remote: QueuePairNumber,
    /// The channel that carries it.
    pub(super) channel: u32,
    /// The receive queue that it draws from.
    pub(super) receive_queue: usize,
    /// The status with which the next work request fails.
    pub(super) fail_next: Option<Status>,
}

impl Facts {
    /// Those of an index without a queue pair.
    pub(super) const VACANT: Self = Self {
        state: State::Vacant,
        local: QueuePairNumber(0),
        remote: QueuePairNumber(0),
        channel: u32::MAX,
        receive_queue: 0,
        fail_next: None,
    };
}

/// What was looked up and checked for the last short message that came, and for the last one that left. It holds until the
/// facts of any queue pair change: [`QueuePair::change`] empties it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checked {
    pub(super) receiving: Receiving,
    pub(super) sending: Sending,
}

/// The queue pair that may receive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receiving {
    /// The channel and the destination of its records: [`Receiving::key`].
    pub(super) key: u64,
    pub(super) id: QueuePairId,
    pub(super) queue: usize,
}

/// The queue pair that may send messages by their forms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    pub(super) id: QueuePairId,
    pub(super) channel: u32,
    pub(super) remote: QueuePairNumber,
}

impl Receiving {
    /// What the records of a queue pair are known by.
    #[inline]
    pub(super) fn key(channel: u32, destination: u32) -> u64 {
        u64::from(channel) << 32 | u64::from(destination)
    }
}

impl Checked {
    /// Nothing: no channel has this number, and no queue pair this id.
    pub(super) const NOTHING: Self = {
        let nobody = QueuePairId {
            index: u32::MAX,
            generation: u32::MAX,
        };
        Self {
            receiving: Receiving {
                key: u64::MAX,
                id: nobody,
                queue: usize::MAX,
            },
            sending: Sending {
                id: nobody,
                channel: u32::MAX,
                remote: QueuePairNumber(0),
            },
        }
    };
}

/// A queue pair of a port. Its facts can be read as if they were its own fields, and changed by [`QueuePair::change`].
#[derive(Debug)]
pub(super) struct QueuePair {
    facts: Facts,
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
            facts: Facts::VACANT,
            works: List::EMPTY,
            outstanding: 0,
            reads: List::EMPTY,
            writes_unacked: 0,
            last_write: 0,
            windows: key_table::NONE,
            failed: false,
            in_ready: false,
            in_readers: false,
        }
    }

    /// Changes its facts. What was checked by the old ones is forgotten.
    pub(super) fn change(&mut self, checked: &mut Checked, change: impl FnOnce(&mut Facts)) {
        *checked = Checked::NOTHING;
        change(&mut self.facts);
    }

    /// Begins anew, as another queue pair or as none.
    pub(super) fn begin(&mut self, checked: &mut Checked, facts: Facts) {
        // The flags are kept: an earlier queue pair may have put the index into the lists `ready` and `readers`, and a second
        // entry must not follow.
        *self = Self {
            in_ready: self.in_ready,
            in_readers: self.in_readers,
            ..Self::vacant()
        };
        self.change(checked, |it| *it = facts);
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

impl std::ops::Deref for QueuePair {
    type Target = Facts;

    #[inline]
    fn deref(&self) -> &Facts {
        &self.facts
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
