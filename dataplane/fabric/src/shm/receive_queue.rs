//! Receive queues: private to their port, last in, first out, so that warm buffers are used again.

use crate::interface::{Receive, ReceiveQueueAttributes};
use crate::memory::Buffer;

/// The scatter lists of a receive queue, and which of them are posted.
#[derive(Debug)]
pub(super) struct ReceiveQueue {
    attributes: ReceiveQueueAttributes,
    /// `segments_max` places per Receive.
    segments: Vec<Option<Buffer>>,
    made: u32,
    posted: Vec<u32>,
    staged: Vec<u32>,
}

impl ReceiveQueue {
    pub(super) fn new(attributes: ReceiveQueueAttributes) -> Self {
        let depth = attributes.depth as usize;
        let places = depth * attributes.segments_max as usize;
        Self {
            attributes,
            segments: (0..places).map(|_| None).collect(),
            made: 0,
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

    /// The bytes of all segments of a Receive.
    pub(super) fn capacity(&self, slot: u32) -> u64 {
        let list = self.segments.get(self.range(slot)).unwrap_or(&[]);
        list.iter()
            .flatten()
            .map(|buffer| u64::from(buffer.capacity()))
            .sum()
    }

    #[inline]
    pub(super) fn stage(&mut self, receive: Receive) {
        debug_assert!(self.staged.len() < self.staged.capacity());
        self.staged.push(receive.slot);
    }

    #[inline]
    pub(super) fn has_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// Makes the staged Receives count.
    #[inline]
    pub(super) fn flush(&mut self) {
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

    /// Takes the Receive that was posted last.
    #[inline]
    pub(super) fn take(&mut self) -> Option<u32> {
        self.posted.pop()
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
