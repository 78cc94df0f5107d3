//! Calls of ours, from their plans to their ends.
//!
//! | file | what it does |
//! |---|---|
//! | [`call`], [`table`], [`shares`] | the slot of a call, and its states; all slots; how connections share them |
//! | [`plan`], [`memo`] | choose the form of a call, and remember the plan for following calls with the same inputs |
//! | [`start_plain`] | starts calls without bulk data |
//! | [`start_bulk`], [`stream`], [`group`] | put a call into its slot: with chunks, in its stream, in a transmission group |
//! | [`expose`], [`lists`] | bind windows for its memory, and name it by segments |
//! | [`send`], [`directions`] | send it, with its segments in chunk lists or directions |
//! | [`reply`], [`place`] | take the reply, of one message or of a transmission group |
//! | [`end_bulk`] | ends a call with bulk data, once nothing of it is exposed |
//! | [`end_call`] | ends calls of any kind: with an error, or with a reply that was assembled from parts |
//! | [`timeouts`] | ends calls that the peer has not answered in time |
//! | [`again`], [`again_plain`] | send a refused call again: with what the error asks for, or without a transmission group |

mod again;
mod again_plain;
pub(crate) mod call;
mod directions;
mod end_bulk;
mod end_call;
mod expose;
mod group;
mod lists;
mod memo;
mod place;
mod plan;
mod reply;
mod send;
mod shares;
mod start_bulk;
mod start_plain;
mod stream;
mod table;
#[cfg(test)]
mod tests;
mod timeouts;

#[cfg(test)]
pub(crate) use call::{Answer, CallPart};
pub(crate) use call::{CallDirection, OutgoingCall, OutgoingState};
#[cfg(test)]
pub(crate) use shares::CallShare;
pub(crate) use table::Outgoing;

use rpcrdma_fabric::interface::Port;

use super::application::Application;
use super::resources::Resources;
use super::step::{CALLS_MAX, STEPS_MAX, Step};

impl Outgoing {
    /// Continues calls that may be able to make progress.
    #[inline]
    pub(super) fn go_on<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
    ) -> bool {
        self.calls.queued() != 0 && self.go_on_with_some(core, application)
    }

    #[inline(never)]
    fn go_on_with_some<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
    ) -> bool {
        // More than this poll handles: the core must not park.
        let mut busy = self.calls.queued() > CALLS_MAX;
        for _ in 0..CALLS_MAX.min(self.calls.queued()) {
            if let Some(call) = self.calls.next_queued() {
                busy |= self.go_on_with(core, application, call);
            }
        }
        busy
    }

    fn go_on_with<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        mut call: Box<OutgoingCall>,
    ) -> bool {
        let index = call.index;
        let mut busy = false;
        // Bounded, so that one call cannot hold up the poll.
        for number in 0..STEPS_MAX {
            let step = match core.connections.is_live(call.connection) {
                true => self.step_outgoing(core, application, &mut call),
                false => Step::Waits,
            };
            busy |= number != 0 || !matches!(step, Step::Again | Step::AwaitsConnection);
            match step {
                Step::GoesOn => {}
                Step::Waits => break,
                Step::Again => {
                    self.calls.queue(index);
                    break;
                }
                Step::AwaitsConnection => {
                    core.wait_for(call.connection);
                    self.calls.wait(index);
                    break;
                }
                Step::Ends => {
                    self.end_outgoing(core, call);
                    return true;
                }
            }
        }
        self.calls.put(index, call);
        busy
    }

    /// The next step of a call.
    pub(super) fn step_outgoing<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        call: &mut OutgoingCall,
    ) -> Step {
        match call.state {
            OutgoingState::Binding => self.bind_windows(core, call),
            OutgoingState::Sending if call.is_group() => self.send_group_call(core, call),
            OutgoingState::Sending => self.send_with_chunks(core, call),
            OutgoingState::Placing => self.place_results(core, call),
            OutgoingState::AwaitingInvalidation => self.take_windows_away(core, application, call),
            OutgoingState::Free | OutgoingState::Waiting => Step::Waits,
        }
    }
}
