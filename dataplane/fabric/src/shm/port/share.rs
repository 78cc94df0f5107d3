//! How a poll is shared among channels and queue pairs.
//!
//! A poll has two things to give: places in the batch, and bytes of the copy budget. Three classes ask for them, in
//! this order: cold channels, our own work (completions, then RDMA Reads), and hot channels. However much one of them
//! asks for, it delays the others by a few polls at most:
//!
//! * **Between classes.** Cold channels get half of both things, own work gets half of what is left then, and hot
//!   channels may use up the rest. So a class has at least a quarter to itself in each poll, whatever the others do.
//!   The unused rest goes to own work at the end. A half of an odd number is rounded up and down by turns, so that even
//!   a batch with a single place goes to each class in one of four polls.
//! * **Within a class.** Channels and queue pairs stand in a circle. Who comes first in a poll may use
//!   up the whole share of the class, and is last in the next poll when it did. Who finds the share
//!   used up by others, or uses up what others left of it, is first in the next poll. So in a class
//!   of N, each one gets all that it asks for, or is first, at least once in N polls. It does not
//!   help to leave a single byte to the others.
//!
//! A queue pair that has nothing left to complete leaves the circle of completions. There it is enough
//! that those who are not done go to the end: each completes something in each round.

use super::core::Core;
use crate::interface::CompletionBatch;

/// The part of a poll that is reserved for others: see [`Core::keep_half`].
#[derive(Debug)]
#[must_use]
pub(super) struct Kept {
    places: usize,
    bytes: u32,
}

impl Core {
    /// Keeps half of what is left of the batch and of the copy budget for others, until
    /// [`Core::give_rest`]. The other half is rounded up when `turn` is odd.
    pub(super) fn keep_half(&mut self, batch: &mut CompletionBatch, turn: u64) -> Kept {
        let (room, budget) = (batch.room(), self.copy_budget);
        let kept = if turn.is_multiple_of(2) {
            Kept {
                places: room.div_ceil(2),
                bytes: budget.div_ceil(2),
            }
        } else {
            Kept {
                places: room / 2,
                bytes: budget / 2,
            }
        };
        batch.keep_back(kept.places);
        self.copy_budget -= kept.bytes;
        kept
    }

    /// Releases the reserved part.
    pub(super) fn give_rest(&mut self, batch: &mut CompletionBatch, kept: &Kept) {
        batch.release(kept.places);
        self.copy_budget += kept.bytes;
    }

    /// Whether the batch or the copy budget is used up.
    #[inline]
    pub(super) fn is_used_up(&self, batch: &CompletionBatch) -> bool {
        batch.is_full() || self.copy_budget == 0
    }
}
