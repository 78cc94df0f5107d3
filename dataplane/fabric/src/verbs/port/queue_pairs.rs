//! The queue pairs of a port.

use super::super::number_table::NumberTable;
use super::super::queue_pair::QueuePair;
use super::super::registrations::LocalKeys;
use super::window_table;
use super::works::List;
use crate::clock::Ticks;
use crate::interface::{QueuePairId, Status};

/// The state of a queue pair in its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The index has no queue pair.
    Vacant,
    /// Adopted at the server; the client may not be ready yet.
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
pub(super) struct Entry {
    pub(super) state: State,
    pub(super) id: QueuePairId,
    /// The device's object; `None` while vacant, and after a failed reset.
    pub(super) device: Option<QueuePair>,
    /// The keys of the port's memory for its work requests.
    pub(super) local_keys: LocalKeys,
    /// The receive queue that it draws from.
    pub(super) receive_queue: usize,
    /// Works that are posted or staged: the posted ones first.
    pub(super) works: List,
    /// How many of `works` are posted.
    pub(super) posted: u32,
    /// The first work that is staged, if any.
    pub(super) first_staged: Option<u32>,
    /// Works after the last one that asked for a completion.
    pub(super) unsignalled: u32,
    /// Whether one of the unsignalled works holds buffers.
    pub(super) holding: bool,
    /// In error: the marker, a work that was posted behind all others, until the device has flushed
    /// it. It is in no list.
    pub(super) marker: Option<u32>,
    /// RDMA Reads that wait because `read_depth` is used up.
    pub(super) reads_waiting: List,
    /// RDMA Reads that are posted or staged.
    pub(super) reads: u32,
    /// The limit of `reads`.
    pub(super) read_depth: u32,
    /// The status of a failed part of an RDMA Read, until the Read is reported.
    pub(super) read_failure: Option<Status>,
    /// The status of the work or Receive that put the queue pair in error; `None` if something else
    /// did.
    pub(super) failure: Option<Status>,
    /// The first window that is bound on it.
    pub(super) windows: u32,
    /// In error: the time of the first poll that saw it so.
    pub(super) error_since: Option<Ticks>,
    /// Whether the device has reported that no more Receives complete.
    pub(super) last_receive: bool,
    /// Whether the index is in the port's list `dirty`.
    pub(super) in_dirty: bool,
}

impl Entry {
    pub(super) fn vacant() -> Self {
        Self {
            state: State::Vacant,
            id: QueuePairId {
                index: 0,
                generation: 0,
            },
            device: None,
            local_keys: LocalKeys::default(),
            receive_queue: 0,
            works: List::EMPTY,
            posted: 0,
            first_staged: None,
            unsignalled: 0,
            holding: false,
            marker: None,
            reads_waiting: List::EMPTY,
            reads: 0,
            read_depth: 0,
            read_failure: None,
            failure: None,
            windows: window_table::NONE,
            error_since: None,
            last_receive: false,
            in_dirty: false,
        }
    }

    /// Whether an RDMA Read can ever be posted. It cannot on iWARP, nor where the two ends agreed on
    /// a depth of zero.
    pub(super) fn may_read(&self) -> bool {
        self.read_depth > 0
    }

    /// Records a failure that the device reported. Only the first one before the error state counts:
    /// a flushed work request does not say why, and later failures follow from the first.
    pub(super) fn note_failure(&mut self, status: Status) {
        let tells = !matches!(status, Status::Success | Status::Flushed);
        if tells && !self.is_down() && self.failure.is_none() {
            self.failure = Some(status);
        }
    }

    /// The status of its `Disconnected`.
    pub(super) fn end_status(&self) -> Status {
        self.failure.unwrap_or(Status::Flushed)
    }

    /// Whether the queue pair is in error, or `Disconnected` was reported.
    #[inline]
    pub(super) fn is_down(&self) -> bool {
        matches!(self.state, State::Error | State::Flushed)
    }
}

/// All queue pairs of a port, by index and by the device's number.
#[derive(Debug)]
pub(super) struct QueuePairs {
    entries: Vec<Entry>,
    by_number: NumberTable,
}

impl QueuePairs {
    pub(super) fn new(count: u32) -> Self {
        Self {
            entries: (0..count).map(|_| Entry::vacant()).collect(),
            by_number: NumberTable::new(count),
        }
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&Entry> {
        self.entries.get(index as usize)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Entry> {
        self.entries.get_mut(index as usize)
    }

    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    /// The index of the queue pair with this id, while it is in use.
    #[inline]
    pub(super) fn index_of_id(&self, id: QueuePairId) -> Option<u32> {
        let entry = self.get(id.index)?;
        (entry.id == id && entry.state != State::Vacant).then_some(id.index)
    }

    /// The index of the queue pair with the device's number.
    #[inline]
    pub(super) fn index_of_number(&self, number: u32) -> Option<u32> {
        self.by_number.get(number)
    }

    /// Stores a queue pair at its index, which must be vacant.
    pub(super) fn adopt_queue_pair(&mut self, entry: Entry) {
        let index = entry.id.index;
        if let Some(device) = &entry.device {
            self.by_number.set(device.number(), index);
        }
        if let Some(place) = self.get_mut(index) {
            *place = entry;
        }
    }

    /// Removes a queue pair and returns the device's object, whose drop destroys it.
    pub(super) fn remove(&mut self, index: u32) -> Option<QueuePair> {
        let place = self.get_mut(index)?;
        let id = place.id;
        let in_dirty = place.in_dirty;
        let device = std::mem::replace(place, Entry::vacant()).device;
        place.id = id;
        // The index may still be in the port's list `dirty`.
        place.in_dirty = in_dirty;
        if let Some(device) = &device {
            self.by_number.remove(device.number());
        }
        device
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected() -> Entry {
        Entry {
            state: State::Connected,
            ..Entry::vacant()
        }
    }

    #[test]
    fn a_queue_pair_ends_with_the_failure_that_put_it_in_error() {
        let mut entry = connected();
        entry.note_failure(Status::Success);
        entry.note_failure(Status::Flushed);
        assert_eq!(entry.end_status(), Status::Flushed, "neither is a failure");
        entry.note_failure(Status::ReceiverNotReady);
        entry.note_failure(Status::RetryExceeded);
        assert_eq!(entry.end_status(), Status::ReceiverNotReady, "the first");
    }

    #[test]
    fn failure_in_error_state_does_not_change_the_end_status() {
        for state in [State::Error, State::Flushed] {
            let mut entry = Entry {
                state,
                ..connected()
            };
            entry.note_failure(Status::RetryExceeded);
            assert_eq!(entry.end_status(), Status::Flushed, "{state:?}");
        }
    }

    #[test]
    fn a_queue_pair_without_agreed_depth_takes_no_rdma_read() {
        for (read_depth, may_read) in [(0, false), (1, true), (16, true)] {
            let entry = Entry {
                read_depth,
                ..Entry::vacant()
            };
            assert_eq!(entry.may_read(), may_read, "{read_depth}");
        }
    }
}
