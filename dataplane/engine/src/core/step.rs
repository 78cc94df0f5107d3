//! The steps of calls with bulk data. Every step may have to wait, and goes on from where it stood.

use rpcrdma_fabric::interface::{PostError, WorkId};
use rpcrdma_protocol::v2::TransportError;

use crate::counters::Counter;

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

/// Whether a call waits, which is counted once.
#[derive(Debug, Default)]
pub(crate) struct Wait {
    is_counted: bool,
}

impl Wait {
    /// The call waits for what `counter` counts.
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

    /// Work of the call was not posted. `counter` counts the lack of a place for it.
    ///
    /// # Errors
    /// The device does not do it.
    pub(crate) fn not_posted(
        &mut self,
        error: PostError,
        counter: &Counter,
    ) -> Result<Step, TransportError> {
        match error {
            PostError::QueueFull | PostError::NoWindow => Ok(self.on(counter)),
            // Its Disconnected is on its way.
            PostError::NotConnected | PostError::UnknownQueuePair => Ok(Step::Waits),
            _ => Err(TransportError::System),
        }
    }

    /// The call waits for nothing.
    pub(crate) fn ends(&mut self) {
        self.is_counted = false;
    }
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
