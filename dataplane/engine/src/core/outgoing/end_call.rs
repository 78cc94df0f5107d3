//! Ends calls of ours of any kind: with an error, or with a reply that was assembled from parts.

use rpcrdma_fabric::interface::Port;

use super::Outgoing;
use crate::core::application::Application;
use crate::core::resources::Resources;
use crate::message::MessageBuffer;
use crate::requester::{Ended, read_reply};
use crate::rpc::{CallError, ConnectionKey, Reply};

impl Outgoing {
    /// Ends a call with a reply that was assembled from parts; `header` is empty if it has no chunks.
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
        self.report_end(core, application, key, ended, result);
        core.messages.give(message);
    }

    /// Ends the call with this XID with an error. Returns what ended: nothing, if there is no such call.
    pub(in crate::core) fn end_call<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        key: ConnectionKey,
        xid: u32,
        error: CallError,
    ) -> Ended {
        let ended = self.take_end(core, xid, key);
        match ended {
            Ended::Bulk(index) => self.end_bulk_with_error(core, index, error),
            _ => self.report_end(core, application, key, ended, Err(error)),
        }
        ended
    }

    /// Ends the call with this XID in the table of the requester, and returns what ended. The slot of a call without
    /// bulk data is free then.
    #[inline(always)]
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

    /// Reports the end of a call without bulk data to the application, or counts a reply without a call.
    pub(in crate::core) fn report_end<P: Port, A: Application>(
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
}
