//! The steps of calls with bulk data. Every step may have to wait, and goes on from where it stood.

use rpcrdma_fabric::interface::WorkId;

/// Calls of one direction that are looked at in one poll.
pub(super) const CALLS_MAX: usize = 16;
/// Steps of one call in one poll: as many as there are kinds of steps.
pub(super) const STEPS_MAX: usize = 8;

/// What a call can do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing, until something comes that it waits for.
    Waits,
    /// Nothing in this poll.
    Again,
    /// Nothing, until a message of its peer comes, or one of the connection's own has left.
    AwaitsConnection,
    /// More, at once.
    GoesOn,
    /// Nothing: it is done, and its slot can be free.
    Ends,
}

/// Names work of a slot: a slot that is used again is not taken for its former self.
pub(crate) fn work_id(slot: u32, generation: u32) -> WorkId {
    WorkId(u64::from(generation) << 32 | u64::from(slot))
}

/// The slot and the generation that [`work_id`] named.
pub(crate) fn slot_of(work: WorkId) -> (u32, u32) {
    let low = u32::try_from(work.0 & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    let high = u32::try_from(work.0 >> 32).unwrap_or(u32::MAX);
    (low, high)
}
