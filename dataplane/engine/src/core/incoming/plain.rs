//! Calls without chunks: served from their Receive or message buffer, and answered in messages, immediately or later.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::v2::TransportError;

use super::{Incoming, IncomingCall, Stream};
use crate::bulk::BulkItem;
use crate::core::application::Application;
use crate::core::resources::Resources;
use crate::deferrals::Deferred;
use crate::message::{MessageBuffer, Use};
use crate::responder::{
    RPC_OFFSET, ServeContext, Served, write_reply_with_items, write_short_reply, write_success,
};
use crate::rpc::{ConnectionKey, DeferToken, Outcome, ReplyRefused};

impl Incoming {
    /// Whether one more call of a connection may be served: only if its reply can be queued should it not be sent.
    pub(in crate::core) fn may_serve<P: Port>(
        &self,
        core: &Resources<P>,
        key: ConnectionKey,
    ) -> bool {
        !core.is_draining()
            && core.messages.has_room(key.index, Use::Answer)
            && core
                .connections
                .get(key)
                .is_none_or(|connection| connection.may_queue())
    }

    /// Serves a call that waited.
    pub(in crate::core) fn serve_plain<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        key: ConnectionKey,
        xid: u32,
        stream: Stream,
    ) {
        // Copied together here, if it is in several segments.
        let counters = &core.shared.counters;
        stream.bytes(&mut core.gathered, &core.port, counters);
        self.serve_sorted(core, application, key, xid, stream);
    }

    /// Serves a call whose message was copied together last, if it is in several segments.
    pub(in crate::core) fn serve_sorted<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        key: ConnectionKey,
        xid: u32,
        stream: Stream,
    ) {
        let Some(connection) = core.connections.get(key) else {
            return core.give_stream(key, stream);
        };
        let counters = &core.shared.counters;
        let serving = ServeContext {
            key,
            connection: Some(connection),
            programs: &core.programs,
            has_items: false,
            now: core.now,
            is_version_1: connection.protocol.is_version_1(),
            scratch: core.transmit.scratch(),
            lists_bytes: 0,
            messages: core.messages.of(key.index),
            deferrals: &mut self.deferrals,
            items: &mut core.reply,
            counters,
        };
        let message = stream.sorted_bytes(&core.gathered, &core.port);
        let served = serving.serve(xid, message, |request, reply| {
            application.call(request, reply)
        });
        core.give_stream(key, stream);
        self.answer(core, key.index, xid, served);
    }

    /// Sends the reply to a call of a form, or queues it: a success with so many bytes of results, or another.
    #[cold]
    pub(in crate::core) fn answer_unsent<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        index: u32,
        xid: u32,
        served: Result<usize, Served>,
    ) {
        let served = served.map(|results_bytes| {
            let rpc_bytes = write_success(core.transmit.scratch(), xid, results_bytes);
            Served::Short(rpc_bytes)
        });
        let (Ok(served) | Err(served)) = served;
        self.answer(core, index, xid, served);
    }

    /// Sends the reply to a call, or queues it.
    #[inline]
    pub(in crate::core) fn answer<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        index: u32,
        xid: u32,
        served: Served,
    ) {
        match served {
            Served::Short(rpc_bytes) => core.send_scratch_reply(index, xid, rpc_bytes),
            Served::Long => {
                if let Some(buffer) = core.reply.spilled.take() {
                    core.queue_reply(index, xid, buffer);
                }
            }
            Served::TooLong {
                length_needed_bytes,
                rpc_bytes,
            } => self.refuse_too_long(core, index, xid, length_needed_bytes, rpc_bytes),
            Served::Deferred | Served::Discarded => core.note_if_pending(index),
        }
    }

    /// Asks the requester to repeat a call with a Reply chunk. If such calls are not accepted, sends the RPC error in
    /// the scratch buffer.
    #[cold]
    fn refuse_too_long<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        index: u32,
        xid: u32,
        length_needed_bytes: u32,
        rpc_bytes: usize,
    ) {
        let key = core.connections.at(index).map(|it| it.key(index));
        let Some(key) = key.filter(|key| core.takes_chunks(*key)) else {
            core.shared.counters.rpc_errors_sent.increment();
            return core.send_scratch_reply(index, xid, rpc_bytes);
        };
        let error = TransportError::ReplyResource {
            length_needed_bytes,
        };
        core.refuse(key, xid, error);
    }

    pub(in crate::core) fn start_reply<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        token: &DeferToken,
        outcome: Outcome,
        results: &[u8],
        items: &mut [(usize, BulkItem)],
    ) -> Result<(), ReplyRefused> {
        if matches!(outcome, Outcome::Deferred | Outcome::Discarded) {
            return Err(ReplyRefused::NoAnswer);
        }
        let call = self.deferrals.find(token)?;
        // That of the call that was served last may still be there. Most replies have none: those copy nothing.
        core.reply.verifier = None;
        if let Some(verifier) = self.deferrals.verifier(token) {
            core.reply.verifier = Some(*verifier);
        }
        let started = self.write_reply(core, token, call, outcome, results, items);
        core.reply.verifier = None;
        started
    }

    fn write_reply<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        token: &DeferToken,
        call: Deferred,
        outcome: Outcome,
        results: &[u8],
        items: &mut [(usize, BulkItem)],
    ) -> Result<(), ReplyRefused> {
        let (key, xid, found_at) = (call.connection, call.xid, call.found_at);
        let chunked = self.answer_deferred_chunked(core, token, outcome, results, items);
        if let Some(answered) = chunked {
            return answered;
        }
        let live = core.connections.get_mut(key).filter(|it| it.is_live());
        let Some(connection) = live else {
            // No error: the service cannot do anything about it, and its token is used up.
            core.shared.counters.deferred_dropped.increment();
            return Ok(());
        };
        let failed = u64::from(outcome != Outcome::Success);
        // The usual case needs no message buffer.
        if items.is_empty() && connection.can_reply() {
            let (port, counters) = (&mut core.port, &core.shared.counters);
            let transmit = &mut core.transmit;
            let has_form = outcome == Outcome::Success && core.reply.verifier.is_none();
            let is_sent = if has_form {
                transmit.put_results(results)
                    && transmit.send_success(port, connection, xid, results.len(), counters)
            } else {
                let threshold = connection.protocol.send_threshold_bytes() as usize;
                let scratch = transmit.scratch();
                let one_message = scratch.len().min(threshold);
                let written = scratch.get_mut(RPC_OFFSET..one_message).and_then(|space| {
                    write_short_reply(space, xid, outcome, results, core.reply.verifier.as_ref())
                });
                written.is_some_and(|rpc_bytes| {
                    transmit.send_reply(port, connection, xid, rpc_bytes, counters)
                })
            };
            if is_sent {
                counters.rpc_errors_sent.add(failed);
                core.note_late_reply(found_at);
                core.note_if_pending(key.index);
                return Ok(());
            }
        }
        if !connection.may_queue() {
            return Err(ReplyRefused::Busy);
        }
        let buffer = core.write_deferred((key, xid), outcome, results, items, None)?;
        core.shared.counters.rpc_errors_sent.add(failed);
        core.note_late_reply(found_at);
        core.queue_reply(key.index, xid, buffer);
        Ok(())
    }
}

impl<P: Port> Resources<P> {
    /// Writes the reply to a deferred call. Items may leave the stream if the call came with chunks (`chunked`).
    pub(super) fn write_deferred(
        &mut self,
        (key, xid): (ConnectionKey, u32),
        outcome: Outcome,
        results: &[u8],
        items: &mut [(usize, BulkItem)],
        chunked: Option<&IncomingCall>,
    ) -> Result<MessageBuffer, ReplyRefused> {
        let buffer = self.messages.take(key.index, Use::Answer);
        let mut buffer = buffer.ok_or(ReplyRefused::Busy)?;
        let reply = &mut self.reply;
        if let Some(call) = chunked {
            reply.ask_for(call.directions(), call.arguments_at, call.may_reduce);
        }
        let written = write_reply_with_items(&mut buffer, xid, outcome, results, items, reply);
        let Some(copied_bytes) = written else {
            self.messages.give(buffer);
            self.reply.clear();
            return Err(ReplyRefused::TooLong);
        };
        self.shared.counters.bulk_bytes_copied.add(copied_bytes);
        Ok(buffer)
    }
}
