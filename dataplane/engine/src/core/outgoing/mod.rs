//! Calls of ours with bulk data, from their plans to their ends.
//!
//! | file | what it does |
//! |---|---|
//! | [`call`], [`table`] | what is kept of a call, and its states; what calls share |
//! | [`plan`], [`memo`] | choose how a call goes, and remember it for the calls that are alike |
//! | [`start`], [`stream`], [`group`] | put a call into its slot: with chunks, in its stream, in a transmission group |
//! | [`expose`], [`lists`], [`directions`] | bind windows for its memory, and name it in chunk lists or directions |
//! | [`send`] | sends it |
//! | [`reply`], [`place`] | take the reply, of one message or of a transmission group |
//! | [`end`] | takes the windows away, and tells the application |
//! | [`again`], [`plain`] | make a call again that the peer has refused |

mod again;
pub(crate) mod call;
mod directions;
mod end;
mod expose;
mod group;
mod lists;
mod memo;
mod place;
mod plain;
mod plan;
mod reply;
mod send;
mod start;
mod stream;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use call::{OutgoingCall, OutgoingState};
pub(super) use memo::PlanMemo;
pub(crate) use table::Outgoing;

use rpcrdma_fabric::interface::Port;

use super::application::Application;
use super::state::State;
use super::step::Step;

impl<P: Port> State<P> {
    /// The next step of a call.
    pub(super) fn step_outgoing<A: Application>(
        &mut self,
        application: &mut A,
        call: &mut OutgoingCall,
    ) -> Step {
        match call.state {
            OutgoingState::Binding => self.bind_windows(call),
            OutgoingState::Sending if call.is_group() => self.send_group_call(call),
            OutgoingState::Sending => self.send_with_chunks(call),
            OutgoingState::Placing => self.place_results(call),
            OutgoingState::AwaitingInvalidation => self.take_windows_away(application, call),
            OutgoingState::Free | OutgoingState::Waiting => Step::Waits,
        }
    }
}
