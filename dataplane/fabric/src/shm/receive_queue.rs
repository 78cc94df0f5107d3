//! Receive queues. They are private to their port, and last in, first out, so that the buffers in use
//! stay in the cache.
//!
//! A port without shared receive queues behaves like such a device: a queue serves one queue pair at a
//! time. Its Receives are posted while that queue pair exists, and flushed when it ends.

use crate::interface::ReceiveQueueAttributes;
use crate::memory::Buffer;

/// The queue pairs that a receive queue serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taker {
    /// Every queue pair that is adopted on the queue.
    Any,
    /// One queue pair at a time, but none is adopted now.
    Nobody,
    /// Only the queue pair with this index.
    QueuePair(u32),
    /// Only the queue pair with this index, which is in error: no Receive is posted for it.
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
    /// The smallest capacity of a first segment, over all Receives of the queue.
    first_bytes_min: u32,
    /// The smallest capacity of all segments of a Receive, over all Receives of the queue.
    bytes_min: u64,
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
            bytes_min: u64::MAX,
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
        // These stay true, because a segment is only replaced by one that is at least as large.
        let first_bytes = self.segment(slot, 0).map_or(0, Buffer::capacity);
        self.first_bytes_min = self.first_bytes_min.min(first_bytes);
        self.bytes_min = self.bytes_min.min(self.capacity(slot));
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
    #[cold]
    pub(super) fn capacity(&self, slot: u32) -> u64 {
        let list = self.segments.get(self.range(slot)).unwrap_or(&[]);
        list.iter()
            .flatten()
            .map(|buffer| u64::from(buffer.capacity()))
            .sum()
    }

    /// Whether a Receive has room for a message of `bytes` bytes.
    #[inline]
    pub(super) fn holds(&self, slot: u32, bytes: u32) -> bool {
        u64::from(bytes) <= self.bytes_min || u64::from(bytes) <= self.capacity(slot)
    }

    /// Stages a Receive of this queue. Returns whether it is the first staged one.
    #[inline]
    pub(super) fn stage(&mut self, slot: u32) -> bool {
        debug_assert!(self.staged.len() < self.staged.capacity());
        let first = self.staged.is_empty();
        self.staged.push(slot);
        first
    }

    /// Posts the staged Receives. They stay staged while the queue serves no queue pair.
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

    /// A queue pair was adopted on the queue: posts the staged Receives.
    pub(super) fn begin(&mut self, queue_pair: u32) {
        if self.taker == Taker::Nobody {
            self.taker = Taker::QueuePair(queue_pair);
        }
        self.flush();
    }

    /// A queue pair of the queue is in error.
    pub(super) fn fail(&mut self, queue_pair: u32) {
        if self.taker == Taker::QueuePair(queue_pair) {
            self.taker = Taker::Ended(queue_pair);
        }
    }

    /// Takes a posted Receive to flush it, if only this queue pair, which is in error, could use it.
    pub(super) fn take_flushed(&mut self, queue_pair: u32) -> Option<u32> {
        if self.taker != Taker::Ended(queue_pair) {
            return None;
        }
        self.posted.pop()
    }

    /// A queue pair was destroyed. Receives that were posted only for it are staged again.
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

    /// Takes the Receive that was posted last, if its first segment holds `bytes` bytes. Also returns the
    /// start of that segment.
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

    /// Posts a Receive again that was taken but not used.
    #[inline]
    pub(super) fn put_back(&mut self, slot: u32) {
        self.posted.push(slot);
    }
}
