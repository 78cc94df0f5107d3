//! The steps of calls with bulk data. Every step may have to wait, and then continues where it stopped.

use rpcrdma_fabric::interface::{Port, PostError, WorkId};
use rpcrdma_protocol::v2::TransportError;

use super::application::Application;
use super::resources::Resources;
use super::slots::Slots;
use crate::counters::Counter;
use crate::rpc::ConnectionKey;

/// Queued calls of one direction that are tried in one poll. Those that go on where a message arrives come on top.
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

/// The calls of one direction, which go on step by step.
pub(super) trait Steps<P: Port> {
    type Call;
    /// Why a call cannot go on.
    type Refusal;

    fn slots(&mut self) -> &mut Slots<Self::Call>;

    /// The slot of a call, and its connection.
    fn place_of(call: &Self::Call) -> (u32, ConnectionKey);

    /// The next step of a call.
    ///
    /// # Errors
    /// The error with which the call is refused.
    fn step<A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        call: &mut Self::Call,
    ) -> Result<Step, Self::Refusal>;

    /// Frees the slot of a call that has ended.
    fn end(&mut self, core: &mut Resources<P>, call: Box<Self::Call>);

    /// Refuses a call, and frees its slot.
    fn refuse(&mut self, core: &mut Resources<P>, call: Box<Self::Call>, error: Self::Refusal);

    /// Continues queued calls.
    #[inline(never)]
    fn drive_queued<A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
    ) -> bool {
        // More than this poll handles: the core must not park.
        let mut busy = self.slots().queued() > CALLS_MAX;
        for _ in 0..CALLS_MAX.min(self.slots().queued()) {
            if let Some(call) = self.slots().next_queued() {
                busy |= self.drive(core, application, call);
            }
        }
        busy
    }

    /// As [`Steps::drive`], of the call in a slot.
    fn drive_at<A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        index: u32,
    ) {
        if let Some(call) = self.slots().take(index) {
            self.drive(core, application, call);
        }
    }

    /// Takes steps of a call until it ends or waits, and puts it into its slot. Whether it got any further.
    fn drive<A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        mut call: Box<Self::Call>,
    ) -> bool {
        let (_, key) = Self::place_of(&call);
        // No step ends the connection.
        if !core.connections.is_live(key) {
            self.leave(core, call, Step::Waits);
            return true;
        }
        // Bounded, so that one call cannot hold up the poll.
        for number in 0..STEPS_MAX {
            match self.step(core, application, &mut call) {
                Ok(Step::GoesOn) => {}
                Ok(Step::Ends) => {
                    self.end(core, call);
                    return true;
                }
                Ok(step) => {
                    self.leave(core, call, step);
                    return number != 0 || step == Step::Waits;
                }
                Err(error) => {
                    self.refuse(core, call, error);
                    return true;
                }
            }
        }
        // In the queue, or nobody would go on with it.
        self.leave(core, call, Step::GoesOn);
        true
    }

    /// Puts a call into its slot that cannot go on now, as `step` says.
    fn leave(&mut self, core: &mut Resources<P>, call: Box<Self::Call>, step: Step) {
        let (index, key) = Self::place_of(&call);
        let slots = self.slots();
        slots.put(index, call);
        match step {
            Step::Waits | Step::Ends => {}
            Step::Again | Step::GoesOn => slots.queue(index),
            Step::AwaitsConnection => {
                core.wait_for(key);
                slots.wait(index);
            }
        }
    }
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
