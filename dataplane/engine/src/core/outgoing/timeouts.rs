//! Calls of ours that the peer has not answered in time.

use rpcrdma_fabric::interface::Port;

use super::Outgoing;
use super::call::{OutgoingCall, OutgoingState};
use crate::close_reason::CloseReason;
use crate::connection::Connection;
use crate::core::application::Application;
use crate::core::resources::Resources;
use crate::requester::{Ended, TimedOut};
use crate::rpc::CallError;

/// Slots for calls of ours whose time is looked at in one iteration.
const TIMERS_MAX: usize = 32;

impl Outgoing {
    /// Ends calls whose time is up.
    #[inline]
    pub(in crate::core) fn end_late_calls<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
    ) -> bool {
        self.requester.timeouts_due(core.now) && self.end_timed_out(core, application)
    }

    #[cold]
    fn end_timed_out<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
    ) -> bool {
        let (mut busy, mut slots_max) = (false, TIMERS_MAX);
        while let Some(late) = self.requester.next_timed_out(core.now, &mut slots_max) {
            busy = true;
            if !late.is_second {
                core.shared.counters.timeouts.increment();
            }
            let (tag, key) = (late.tag, late.connection);
            if late.bulk.is_none() {
                application.completed(tag, key, Err(CallError::TimedOut), core.now);
                self.end_unanswered(core, &late);
                continue;
            }
            if !late.is_second {
                application.completed_bulk(tag, key, Err(CallError::TimedOut), core.now);
            }
            self.bulk_timed_out(core, &late);
        }
        busy || self.requester.timeouts_due(core.now)
    }

    fn end_unanswered<P: Port>(&mut self, core: &mut Resources<P>, late: &TimedOut) {
        let key = late.connection;
        let ended = self.take_end(core, late.xid, key);
        debug_assert_eq!(ended, Ended::TimedOut);
        // Version 1 has no message that would tell a slow peer from a dead one, and the call keeps its
        // credit.
        let of_version_1 = |it: &&Connection| it.is_live() && it.protocol.is_version_1();
        if core.connections.get(key).filter(of_version_1).is_some() {
            core.begin_close(key.index, CloseReason::CallUnanswered);
        }
    }

    /// The time of a call of ours is over, and the application has been informed.
    #[cold]
    pub(super) fn bulk_timed_out<P: Port>(&mut self, core: &mut Resources<P>, late: &TimedOut) {
        let call = late.bulk.and_then(|it| self.calls.get_mut(it));
        let Some(call) = call.filter(|call| call.is(late)) else {
            return;
        };
        if late.is_second {
            // The peer may still write to what the call exposed: only the end of the queue pair takes that away
            // for sure.
            return core.begin_close(late.connection.index, CloseReason::CallUnanswered);
        }
        call.notified = true;
        let is_before_send = matches!(call.state, OutgoingState::Binding | OutgoingState::Sending);
        if call.group.sent == 0 && is_before_send {
            // Nobody knows of it.
            call.state = OutgoingState::AwaitingInvalidation;
            let index = call.index;
            self.calls.queue(index);
        }
    }
}

impl OutgoingCall {
    /// Whether the slot has this call, still.
    fn is(&self, late: &TimedOut) -> bool {
        self.state != OutgoingState::Free
            && (self.connection, self.xid) == (late.connection, late.xid)
    }
}
