//! The short messages that a poll found, and the one that was taken last.

use super::super::record::SHORT_BYTES_MAX;
use crate::interface::{FORM_WORDS_MAX, Formed};

/// The last short message that was taken from its ring.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Inbox {
    pub(super) bytes: [u8; SHORT_BYTES_MAX as usize],
    /// The headers of one that came by its form: only what is behind them is in `bytes` then.
    pub(super) formed: Formed,
    /// The number of its record, counted by [`Counters::records_in`](super::super::counters::Counters).
    pub(super) number: u64,
    /// The receive queue that has a Receive for it; `usize::MAX` after the message was kept.
    pub(super) queue: usize,
}

impl Inbox {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self {
            bytes: [0; SHORT_BYTES_MAX as usize],
            formed: Formed {
                form: 0,
                count: 0,
                words: [0; FORM_WORDS_MAX],
            },
            number: 0,
            queue: usize::MAX,
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
    /// Their numbers, and how many short Sends are left on each.
    pub(super) channels: Vec<(u32, usize)>,
    /// The place of the channel whose short Sends are taken next.
    pub(super) next: usize,
    /// The short Sends that are left on all channels.
    pub(super) left: usize,
}

impl Found {
    /// An empty list for at most `channels_max` channels.
    pub(super) fn new(channels_max: usize) -> Self {
        Self {
            channels: Vec::with_capacity(channels_max),
            next: 0,
            left: 0,
        }
    }

    /// Whether no short Send is left.
    #[inline]
    pub(super) fn is_used_up(&self) -> bool {
        self.left == 0
    }

    /// Whether the last poll found none.
    pub(super) fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }
}
