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

use std::convert::Infallible;

use rpcrdma_fabric::interface::Port;

use super::application::Application;
use super::resources::Resources;
use super::slots::Slots;
use super::step::{Step, Steps};
use crate::rpc::ConnectionKey;

impl Outgoing {
    /// Continues calls that may be able to make progress.
    #[inline]
    pub(super) fn go_on<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
    ) -> bool {
        self.calls.queued() != 0 && self.drive_queued(core, application)
    }

    /// The next step of a call that was not sent yet.
    #[inline(always)]
    fn step_to_send<P: Port>(&mut self, core: &mut Resources<P>, call: &mut OutgoingCall) -> Step {
        match call.state {
            OutgoingState::Binding => self.bind_windows(core, call),
            OutgoingState::Sending if call.is_group() => self.send_group_call(core, call),
            OutgoingState::Sending => self.send_with_chunks(core, call),
            _ => Step::Waits,
        }
    }
}

impl<P: Port> Steps<P> for Outgoing {
    type Call = OutgoingCall;
    type Refusal = Infallible;

    fn slots(&mut self) -> &mut Slots<OutgoingCall> {
        &mut self.calls
    }

    fn place_of(call: &OutgoingCall) -> (u32, ConnectionKey) {
        (call.index, call.connection)
    }

    #[inline(always)]
    fn step<A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        call: &mut OutgoingCall,
    ) -> Result<Step, Infallible> {
        Ok(match call.state {
            OutgoingState::Placing => self.place_results(core, call),
            OutgoingState::AwaitingInvalidation => self.take_windows_away(core, application, call),
            _ => self.step_to_send(core, call),
        })
    }

    fn end(&mut self, core: &mut Resources<P>, call: Box<OutgoingCall>) {
        self.end_outgoing(core, call);
    }

    fn refuse(&mut self, _: &mut Resources<P>, _: Box<OutgoingCall>, error: Infallible) {
        match error {}
    }
}
