//! Receive queues: private to their port, last in, first out, so that warm buffers are used again.
//!
//! A port that shows itself without shared receive queues keeps to what such a device does: a queue
//! serves one queue pair at a time, its Receives are posted while that is alive, and flushed when
//! it ends.

use crate::interface::ReceiveQueueAttributes;
use crate::memory::Buffer;

/// Who takes the Receives of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taker {
    /// Every queue pair that is adopted on it.
    Any,
    /// One queue pair at a time, and none yet.
    Nobody,
    /// The queue pair of this index, alone.
    QueuePair(u32),
    /// The queue pair of this index, which is in error: nothing is posted for it any more.
    Ended(u32),
}

/// The scatter lists of a receive queue, and which of them are posted.
#[derive(Debug)]
pub(super) struct ReceiveQueue {
    attributes: ReceiveQueueAttributes,
    taker: Taker,
    /// `segments_max` places per Receive.
    segments: Vec<Option<Buffer>>,
    made: u32,
    /// The room in the first segment of each Receive, at least.
    first_bytes_min: u32,
    posted: Vec<u32>,
    staged: Vec<u32>,
}

impl ReceiveQueue {
    pub(super) fn new(attributes: ReceiveQueueAttributes, taker: Taker) -> Self {
        let depth = attributes.depth as usize;
        let places = depth * attributes.segments_max as usize;
        Self {
            attributes,
            taker,
            segments: (0..places).map(|_| None).collect(),
            made: 0,
            first_bytes_min: u32::MAX,
            posted: Vec::with_capacity(depth),
            staged: Vec::with_capacity(depth),
        }
    }

    pub(super) fn attributes(&self) -> ReceiveQueueAttributes {
        self.attributes
    }

    /// Receives that were made.
    pub(super) fn made(&self) -> u32 {
        self.made
    }

    fn range(&self, slot: u32) -> std::ops::Range<usize> {
        let width = self.attributes.segments_max as usize;
        let start = slot as usize * width;
        start..start + width
    }

    /// Stores the scatter list of a new Receive; the caller checked `made` and the count.
    pub(super) fn make(&mut self, list: impl Iterator<Item = Buffer>) -> u32 {
        let slot = self.made;
        let range = self.range(slot);
        for (place, buffer) in self.segments[range].iter_mut().zip(list) {
            *place = Some(buffer);
        }
        // A segment is replaced by one of its size at least.
        let first_bytes = self.segment(slot, 0).map_or(0, Buffer::capacity);
        self.first_bytes_min = self.first_bytes_min.min(first_bytes);
        self.made += 1;
        slot
    }

    /// Segment `index` of a Receive.
    #[inline]
    pub(super) fn segment(&self, slot: u32, index: usize) -> Option<&Buffer> {
        let width = self.attributes.segments_max as usize;
        if index >= width {
            return None;
        }
        self.segments.get(slot as usize * width + index)?.as_ref()
    }

    /// The place of segment `index` of a Receive.
    pub(super) fn segment_mut(&mut self, slot: u32, index: usize) -> Option<&mut Buffer> {
        let range = self.range(slot);
        self.segments.get_mut(range)?.get_mut(index)?.as_mut()
    }

    /// The place that begins `done` bytes into the scatter list, and the bytes it reaches.
    pub(super) fn at(&self, slot: u32, mut done: u32) -> Option<(*mut u8, u32)> {
        for buffer in self.segments.get(self.range(slot))?.iter().flatten() {
            if done < buffer.capacity() {
                let place = buffer.start().wrapping_add(done as usize);
                return Some((place, buffer.capacity() - done));
            }
            done -= buffer.capacity();
        }
        None
    }

    /// The places from `done` bytes into the scatter list on, and the bytes that each reaches.
    #[inline]
    pub(super) fn places_from(&self, slot: u32, done: u32) -> impl Iterator<Item = (*mut u8, u32)> {
        let mut skipped = done;
        let list = self.segments.get(self.range(slot)).unwrap_or(&[]);
        list.iter().flatten().filter_map(move |buffer| {
            let before = skipped.min(buffer.capacity());
            skipped -= before;
            let place = buffer.start().wrapping_add(before as usize);
            (before < buffer.capacity()).then(|| (place, buffer.capacity() - before))
        })
    }

    /// The bytes of all segments of a Receive.
    pub(super) fn capacity(&self, slot: u32) -> u64 {
        let list = self.segments.get(self.range(slot)).unwrap_or(&[]);
        list.iter()
            .flatten()
            .map(|buffer| u64::from(buffer.capacity()))
            .sum()
    }

    /// Stages a Receive of this queue; says whether it is the first one that is staged.
    #[inline]
    pub(super) fn stage(&mut self, slot: u32) -> bool {
        debug_assert!(self.staged.len() < self.staged.capacity());
        let first = self.staged.is_empty();
        self.staged.push(slot);
        first
    }

    /// Makes the staged Receives count; those of a queue that nobody takes from stay staged.
    #[inline]
    pub(super) fn flush(&mut self) {
        if matches!(self.taker, Taker::Nobody | Taker::Ended(_)) {
            return;
        }
        if let [slot] = self.staged[..] {
            self.posted.push(slot);
            self.staged.clear();
        } else {
            self.posted.append(&mut self.staged);
        }
    }

    #[inline]
    pub(super) fn posted(&self) -> u32 {
        u32::try_from(self.posted.len()).unwrap_or(u32::MAX)
    }

    /// Whether one more queue pair may be adopted on the queue.
    pub(super) fn takes_another(&self) -> bool {
        matches!(self.taker, Taker::Any | Taker::Nobody)
    }

    /// The queue pair of this index is adopted on the queue: what is staged is posted.
    pub(super) fn begin(&mut self, queue_pair: u32) {
        if self.taker == Taker::Nobody {
            self.taker = Taker::QueuePair(queue_pair);
        }
        self.flush();
    }

    /// The queue pair of this index is in error.
    pub(super) fn fail(&mut self, queue_pair: u32) {
        if self.taker == Taker::QueuePair(queue_pair) {
            self.taker = Taker::Ended(queue_pair);
        }
    }

    /// Takes a posted Receive of the queue pair of this index, which is in error, to be flushed.
    pub(super) fn take_flushed(&mut self, queue_pair: u32) -> Option<u32> {
        if self.taker != Taker::Ended(queue_pair) {
            return None;
        }
        self.posted.pop()
    }

    /// The queue pair of this index is no more. What is posted for it alone is staged again.
    pub(super) fn end(&mut self, queue_pair: u32) {
        if matches!(self.taker, Taker::QueuePair(index) | Taker::Ended(index) if index == queue_pair)
        {
            self.taker = Taker::Nobody;
            self.staged.append(&mut self.posted);
        }
    }

    /// Takes the Receive that was posted last.
    #[inline]
    pub(super) fn take(&mut self) -> Option<u32> {
        self.posted.pop()
    }

    /// Whether there is a Receive for a message of `bytes` bytes in one piece.
    #[inline]
    pub(super) fn has_for(&self, bytes: u32) -> bool {
        !self.posted.is_empty() && bytes <= self.first_bytes_min
    }

    /// Takes the Receive that was posted last, if its first segment holds `bytes` bytes, and tells
    /// where that begins.
    #[inline]
    pub(super) fn take_for(&mut self, bytes: u32) -> Option<(u32, *mut u8)> {
        let slot = *self.posted.last()?;
        let first = self.segment(slot, 0)?;
        if first.capacity() < bytes {
            return None;
        }
        let place = first.start();
        self.posted.pop();
        Some((slot, place))
    }

    /// Gives a Receive back that was taken and not used: it is posted as before.
    #[inline]
    pub(super) fn put_back(&mut self, slot: u32) {
        self.posted.push(slot);
    }
}
