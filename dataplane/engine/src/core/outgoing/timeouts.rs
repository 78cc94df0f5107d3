//! Ends calls of ours that the peer has not answered in time.

use rpcrdma_fabric::interface::Port;

use super::Outgoing;
use super::call::{OutgoingCall, OutgoingState};
use crate::close_reason::CloseReason;
use crate::connection::Connection;
use crate::core::application::Application;
use crate::core::resources::Resources;
use crate::requester::{Ended, TimedOut};
use crate::rpc::CallError;

/// The most slots whose deadlines one iteration checks.
const TIMERS_MAX: usize = 32;

impl Outgoing {
    /// Ends calls that have reached their time limit. Returns whether there is more to do.
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
        // Version 1 has no message that distinguishes a slow peer from a dead one, and the call keeps its credit until
        // its reply comes.
        let of_version_1 = |it: &&Connection| it.is_live() && it.protocol.is_version_1();
        if core.connections.get(key).filter(of_version_1).is_some() {
            core.begin_close(key.index, CloseReason::CallUnanswered);
        }
    }

    /// Handles a call with bulk data that has reached its time limit. The application was notified before.
    #[cold]
    pub(super) fn bulk_timed_out<P: Port>(&mut self, core: &mut Resources<P>, late: &TimedOut) {
        let call = late.bulk.and_then(|it| self.calls.get_mut(it));
        let Some(call) = call.filter(|call| call.is(late)) else {
            return;
        };
        if late.is_second {
            // The peer may still write to the memory that the call exposed. Only the end of the queue pair certainly
            // prevents that.
            return core.begin_close(late.connection.index, CloseReason::CallUnanswered);
        }
        call.notified = true;
        if call.is_before_send() {
            // Nothing of it was sent: the peer does not know its keys, and will send no reply.
            call.state = OutgoingState::AwaitingInvalidation;
            let index = call.index;
            self.calls.queue(index);
        }
    }
}

impl OutgoingCall {
    /// Whether the slot still has this call.
    fn is(&self, late: &TimedOut) -> bool {
        self.state != OutgoingState::Free
            && (self.connection, self.xid) == (late.connection, late.xid)
    }
}
