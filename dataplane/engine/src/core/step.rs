//! The steps of calls with bulk data.

use rpcrdma_fabric::interface::WorkId;

/// A call that waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// A call of ours.
    Outgoing(u32),
    /// A call of a peer.
    Incoming(u32),
}

/// What a call can do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing, until something comes that it waits for.
    Waits,
    /// Nothing in this iteration.
    Again,
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
