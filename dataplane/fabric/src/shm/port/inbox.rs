//! The short messages that a poll found, and the one that was taken last.

use super::super::record::SHORT_BYTES_MAX;
use crate::interface::CompletionBatch;

/// The last short message that was taken from its ring.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Inbox {
    /// Of one that came by its form, what is behind its headers.
    pub(super) bytes: [u8; SHORT_BYTES_MAX as usize],
}

impl Inbox {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self {
            bytes: [0; SHORT_BYTES_MAX as usize],
        })
    }

    /// The first `bytes` bytes.
    #[inline]
    pub(super) fn message(&self, bytes: u32) -> &[u8] {
        self.bytes.get(..bytes as usize).unwrap_or(&[])
    }
}

/// The channels on which the last poll found short Sends.
#[derive(Debug)]
pub(super) struct Found {
    /// Their numbers, and how many short Sends each had.
    pub(super) channels: Vec<(u32, usize)>,
    /// The channel whose short Sends are taken now, and how many of them are left.
    pub(super) number: u32,
    pub(super) here: usize,
    /// The place of the channel that is next.
    pub(super) next: usize,
    /// The short Sends that are left on all channels.
    pub(super) left: usize,
}

impl Found {
    /// An empty list for at most `channels_max` channels.
    pub(super) fn new(channels_max: usize) -> Self {
        Self {
            channels: Vec::with_capacity(channels_max),
            number: u32::MAX,
            here: 0,
            next: 0,
            left: 0,
        }
    }

    /// The room of a batch without the places that are kept for the short Sends that are left.
    #[inline]
    pub(super) fn room(&self, batch: &CompletionBatch) -> usize {
        batch.room() - self.left
    }

    /// Goes on to the next channel. Returns whether there is one.
    pub(super) fn turn(&mut self) -> bool {
        let Some((number, count)) = self.channels.get(self.next) else {
            return false;
        };
        (self.number, self.here) = (*number, *count);
        self.next += 1;
        true
    }

    /// Forgets a channel that is dropped: the next one gets its number, and no poll has found its messages.
    pub(super) fn forget(&mut self, number: u32) {
        let numbers = self.channels.iter_mut().map(|(number, _)| number);
        for found in numbers.chain([&mut self.number]) {
            if *found == number {
                *found = u32::MAX;
            }
        }
    }

    /// Forgets all of it: the next poll begins.
    #[inline]
    pub(super) fn end(&mut self) {
        self.channels.clear();
        (self.here, self.next, self.left) = (0, 0, 0);
    }

    /// Whether the last poll found none.
    pub(super) fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }
}
