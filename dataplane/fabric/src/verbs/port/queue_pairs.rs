//! The queue pairs of a port.

use super::super::number_table::NumberTable;
use super::super::queue_pair::QueuePair;
use super::windows;
use super::works::List;
use crate::clock::Ticks;
use crate::interface::{QueuePairId, Status};

/// The life of a queue pair in its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nobody uses the index.
    Vacant,
    /// Planted at the server; the client is not known to be ready yet.
    Accepting,
    /// Sends and receives.
    Connected,
    /// Failed or disconnected; what is outstanding is being flushed.
    Error,
    /// Everything was flushed and `Disconnected` was reported.
    Flushed,
}

/// A queue pair of a port.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) state: State,
    pub(super) id: QueuePairId,
    /// The device's object; none while vacant.
    pub(super) device: Option<QueuePair>,
    /// The receive queue that it draws from.
    pub(super) receive_queue: usize,
    /// Works that are posted or staged, in that order.
    pub(super) works: List,
    /// Works in that list and in `reads_waiting`.
    pub(super) outstanding: u32,
    /// How many of them the device has.
    pub(super) posted: u32,
    /// The first that it does not have, if any.
    pub(super) first_staged: Option<u32>,
    /// Works since the last that ends in a completion of the device.
    pub(super) unsignalled: u32,
    /// Whether one of those holds buffers.
    pub(super) holding: bool,
    /// In error: the work that was posted behind all others, until the device has flushed it. It
    /// stands in no list.
    pub(super) marker: Option<u32>,
    /// RDMA Reads beyond the depth.
    pub(super) reads_waiting: List,
    /// RDMA Reads that are posted or staged, and how many may be.
    pub(super) reads: u32,
    pub(super) read_depth: u32,
    /// How a part of an RDMA Read failed whose end is still to be told.
    pub(super) read_failure: Option<Status>,
    /// The first window that is bound on it.
    pub(super) windows: u32,
    /// In error: since when, and whether the device has told that no Receive will follow.
    pub(super) error_since: Option<Ticks>,
    pub(super) last_receive: bool,
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
            receive_queue: 0,
            works: List::EMPTY,
            outstanding: 0,
            posted: 0,
            first_staged: None,
            unsignalled: 0,
            holding: false,
            marker: None,
            reads_waiting: List::EMPTY,
            reads: 0,
            read_depth: 0,
            read_failure: None,
            windows: windows::NONE,
            error_since: None,
            last_receive: false,
            in_dirty: false,
        }
    }

    /// In error, or past it.
    #[inline]
    pub(super) fn is_down(&self) -> bool {
        matches!(self.state, State::Error | State::Flushed)
    }
}

/// All of them, by index, and by the numbers that the device gave them.
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

    /// The index of the queue pair that the application names, while it is in use.
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

    /// Puts a queue pair into its vacant place.
    pub(super) fn plant(&mut self, entry: Entry) {
        let index = entry.id.index;
        if let Some(device) = &entry.device {
            self.by_number.set(device.number(), index);
        }
        if let Some(place) = self.get_mut(index) {
            *place = entry;
        }
    }

    /// Takes a queue pair out. Dropping it destroys it.
    pub(super) fn remove(&mut self, index: u32) -> Option<QueuePair> {
        let place = self.get_mut(index)?;
        let id = place.id;
        let in_dirty = place.in_dirty;
        let device = std::mem::replace(place, Entry::vacant()).device;
        place.id = id;
        // What stands in a list of the port stays true.
        place.in_dirty = in_dirty;
        if let Some(device) = &device {
            self.by_number.remove(device.number());
        }
        device
    }
}
