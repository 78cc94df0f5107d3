//! Shares a poll among channels and queue pairs.
//!
//! A poll distributes two resources: places in the batch, and bytes of the copy budget. Three classes use them, in this
//! order: cold channels, own work (completions, then RDMA Reads), and hot channels. A class with any amount of work delays
//! the others by a few polls at most:
//!
//! * **Between classes.** Cold channels get half of both resources, own work gets half of what is left then, and hot
//!   channels may use the rest. So each class has at least a quarter in each poll. What is unused goes to own work at the
//!   end. The half of an odd number is rounded up and down in turn, so that even a batch with a single place goes to each
//!   class in one of four polls.
//! * **Within a class.** The channels or queue pairs form a circle. The first one in a poll may use the whole share of the
//!   class; if it does, it is the last one in the next poll. One that finds the share used up by others, or that uses up
//!   what others left, is the first one in the next poll. So in a class of N, each one gets all that it needs, or is first,
//!   at least once in N polls. Leaving a single byte to the others does not change that.
//!
//! Completions have a simpler circle: a queue pair with nothing left to complete leaves it, and the others go to its end.
//! Each completes something in each round.

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
    /// Reserves half of what is left of the batch and of the copy budget for the other classes, until
    /// [`Core::give_rest`]. The half for the caller is the larger one when `turn` is odd.
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
