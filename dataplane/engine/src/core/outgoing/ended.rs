//! The ends of calls of ours, of whatever kind, other than by a reply of one message.

use rpcrdma_fabric::interface::Port;

use super::Outgoing;
use crate::close_reason::CloseReason;
use crate::connection::Connection;
use crate::core::application::Application;
use crate::core::resources::Resources;
use crate::message::MessageBuffer;
use crate::requester::{Ended, TimedOut, read_reply};
use crate::rpc::{CallError, ConnectionKey, Reply};

/// Slots for calls of ours whose time is looked at in one iteration.
const TIMERS_MAX: usize = 32;

impl Outgoing {
    /// A reply was put together from parts.
    pub(in crate::core) fn end_assembled<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        key: ConnectionKey,
        xid: u32,
        message: MessageBuffer,
        header: &[u8],
    ) {
        let ended = self.take_end(core, xid, key);
        if let Ended::Bulk(index) = ended {
            return self.end_bulk_assembled(core, index, message, header);
        }
        let result = if header.is_empty() {
            read_reply(message.filled())
        } else {
            // The call offered no chunks, so none can come back.
            Err(CallError::BadReply)
        };
        self.tell_end(core, application, key, ended, result);
        core.messages.give(message);
    }

    /// The end of a call of ours other than by a reply of one message.
    pub(in crate::core) fn end_call<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        key: ConnectionKey,
        xid: u32,
        result: Result<Reply<'_>, CallError>,
    ) {
        let ended = self.take_end(core, xid, key);
        self.end_call_as(core, application, key, ended, result);
    }

    pub(in crate::core) fn end_call_as<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        key: ConnectionKey,
        ended: Ended,
        result: Result<Reply<'_>, CallError>,
    ) {
        if let Ended::Bulk(index) = ended {
            let error = result.err().unwrap_or(CallError::BadReply);
            return self.end_bulk_with_error(core, index, error);
        }
        self.tell_end(core, application, key, ended, result);
    }

    /// What a reply with this XID is the end of. The slot of a call without bulk data is free then.
    pub(in crate::core) fn take_end<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        xid: u32,
        key: ConnectionKey,
    ) -> Ended {
        match core.connections.get_mut(key) {
            Some(connection) => self.requester.end(xid, key, &mut connection.calls),
            None => Ended::Unknown,
        }
    }

    /// What the requester says has ended is told, unless it has bulk data.
    pub(in crate::core) fn tell_end<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        key: ConnectionKey,
        ended: Ended,
        result: Result<Reply<'_>, CallError>,
    ) {
        let counters = &core.shared.counters;
        match ended {
            Ended::Call(tag) => {
                if result.is_ok() {
                    counters.replies_received.increment();
                }
                application.completed(tag, key, result, core.now);
            }
            Ended::TimedOut => counters.late_replies.increment(),
            Ended::Bulk(_) | Ended::Unknown => counters.unmatched_replies.increment(),
        }
    }

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
}
