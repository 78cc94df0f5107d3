//! The steps of calls with bulk data. Every step may have to wait, and then continues where it stopped.

use rpcrdma_fabric::interface::{PostError, WorkId};
use rpcrdma_protocol::v2::TransportError;

use crate::counters::Counter;

/// Calls of one direction that are tried in one poll.
pub(super) const CALLS_MAX: usize = 16;
/// Steps of one call in one poll: as many as there are kinds of steps.
pub(super) const STEPS_MAX: usize = 8;

/// What happens to a call next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It waits for an event, which queues it again.
    Waits,
    /// It waits for something that no event reports: it is tried again in the next poll.
    Again,
    /// It waits until a message arrives or leaves on its connection.
    AwaitsConnection,
    /// It takes its next step now.
    GoesOn,
    /// It is done; its slot is freed.
    Ends,
}

/// Whether the present wait of a call was counted, so that each wait is counted once.
#[derive(Debug, Default)]
pub(crate) struct Wait {
    is_counted: bool,
}

impl Wait {
    /// Notes that the call waits for the resource of `counter`.
    pub(crate) fn on(&mut self, counter: &Counter) -> Step {
        if !std::mem::replace(&mut self.is_counted, true) {
            counter.increment();
        }
        Step::Again
    }

    /// As [`Self::on`], until something happens on its connection.
    pub(crate) fn on_connection(&mut self, counter: &Counter) -> Step {
        let _ = self.on(counter);
        Step::AwaitsConnection
    }

    /// The next step after a work request was not posted with `error`. `counter` counts a full queue.
    ///
    /// # Errors
    /// SYSTEM when the device cannot do it at all.
    pub(crate) fn not_posted(
        &mut self,
        error: PostError,
        counter: &Counter,
    ) -> Result<Step, TransportError> {
        match error {
            PostError::QueueFull | PostError::NoWindow => Ok(self.on(counter)),
            // The Disconnected of the queue pair will follow, and end the call.
            PostError::NotConnected | PostError::UnknownQueuePair => Ok(Step::Waits),
            _ => Err(TransportError::System),
        }
    }

    /// Notes that the call does not wait any more.
    pub(crate) fn ends(&mut self) {
        self.is_counted = false;
    }
}

/// Identifies work of a slot. The generation tells late completions of an earlier call in the slot apart.
pub(crate) fn work_id(slot: u32, generation: u32) -> WorkId {
    WorkId(u64::from(generation) << 32 | u64::from(slot))
}

/// The slot and the generation in a [`work_id`].
pub(crate) fn slot_of(work: WorkId) -> (u32, u32) {
    let low = u32::try_from(work.0 & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    let high = u32::try_from(work.0 >> 32).unwrap_or(u32::MAX);
    (low, high)
}
