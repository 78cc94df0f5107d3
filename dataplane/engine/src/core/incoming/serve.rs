//! Lets the application answer a call whose stream and items have arrived.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::connection::{Direction, rpc_start_matches};

use super::Incoming;
use super::call::{IncomingCall, IncomingState, RpcReply, Stream};
use crate::bulk::{ArgumentItem, BulkArguments, BulkItem, BulkPool, start_of};
use crate::connection::Connection;
use crate::core::application::Application;
use crate::core::resources::Resources;
use crate::core::step::Step;
use crate::message::{MessageBuffer, Use};
use crate::responder::{RPC_OFFSET, ServeContext, Served};
use crate::rpc::{DeferToken, Outcome, ReplyRefused};

impl Incoming {
    /// Lets the application answer a call.
    pub(super) fn serve_incoming<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        call: &mut IncomingCall,
    ) -> Result<Step, TransportError> {
        // All resources for the reply are checked before the service runs: its answer must not be lost.
        if !self.may_have_buffers(core, call) {
            return Ok(call.wait.on(&core.shared.counters.awaiting_bulk_buffer));
        }
        let (key, xid) = (call.connection, call.xid);
        let connection = core.connections.get(key);
        let may_queue = connection.is_none_or(Connection::may_queue);
        if !may_queue {
            return Ok(call
                .wait
                .on_connection(&core.shared.counters.awaiting_message_buffer));
        }
        if !core.messages.has_room(key.index, Use::Answer) {
            return Ok(call.wait.on(&core.shared.counters.awaiting_message_buffer));
        }
        if matches!(call.stream, Stream::Chunk) {
            let Some(message) = core.messages.take(key.index, Use::CallIn) else {
                return Ok(call.wait.on(&core.shared.counters.awaiting_message_buffer));
            };
            call.stream = Stream::Message(self.gather_stream(core, call, message));
        }
        call.wait.ends();
        let Some(connection) = core.connections.get(key) else {
            return Ok(Step::Waits);
        };
        self.lend_items(call, &mut core.reply.pool);
        let (gathered, counters) = (&mut core.gathered, &core.shared.counters);
        let message = call.stream.bytes(gathered, &core.port, counters);
        if !rpc_start_matches(xid, Direction::Call, 0, message) {
            // Of a long call, whose start came by RDMA Read and was not checked before.
            self.clear_items(core);
            return Err(TransportError::BadXdr);
        }
        core.reply
            .ask_for(call.directions(), call.arguments_at, call.may_reduce);
        // The lists that the reply returns come before it.
        let lists_bytes = call.returned_bytes();
        call.deferral = self.deferrals.next(key.index);
        let serving = ServeContext {
            key,
            connection: Some(connection),
            programs: &core.programs,
            has_items: !self.items.is_empty(),
            now: core.now,
            is_version_1: connection.protocol.is_version_1(),
            scratch: core.transmit.scratch(),
            lists_bytes,
            messages: core.messages.of(key.index),
            deferrals: &mut self.deferrals,
            items: &mut core.reply,
            counters,
        };
        let (items, leases) = (&mut self.items, &mut self.leases);
        let (mut header_bytes, mut may_reduce) = (0, true);
        let served = serving.serve(xid, message, |request, reply| {
            header_bytes = message.len() - request.args.len();
            may_reduce = request.credential.permits_reduction();
            if !rebase(items, header_bytes, request.args.len()) {
                return Outcome::GarbageArgs;
            }
            let mut arguments = BulkArguments {
                items,
                leases,
                is_version_1: request.is_version_1,
            };
            application.call_bulk(request, &mut arguments, reply)
        });
        core.give_stream(key, std::mem::take(&mut call.stream));
        call.arguments_at = u32::try_from(header_bytes).unwrap_or(u32::MAX);
        call.may_reduce = may_reduce;
        let taken = self.take_served(core, call, served, lists_bytes);
        self.clear_items(core);
        taken
    }

    /// Copies a long call from its read buffers into a message buffer.
    fn gather_stream<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut IncomingCall,
        mut message: MessageBuffer,
    ) -> MessageBuffer {
        let first = call.chunks.first().copied().unwrap_or_default();
        let count = core.reply.pool.buffers_for(first.bytes);
        for part in call.read_parts.iter_mut().take(count) {
            let bytes = start_of(core.port.memory(), part.buffer.as_ref(), part.bytes);
            // If it does not fit, the message is not whole: it fails to decode, and is answered so.
            message.append(bytes);
            let counters = &core.shared.counters;
            counters.bulk_bytes_copied.add(part.bytes.into());
            let buffer = part.buffer.take().into_iter();
            buffer.for_each(|it| core.reply.pool.give(it));
        }
        message
    }

    /// Makes leases of the items that were read, for the service to take, in addition to those that Sends placed.
    #[inline(always)]
    fn lend_items(&mut self, call: &mut IncomingCall, pool: &mut BulkPool) {
        let (items, leases) = (&mut self.items, &mut self.leases);
        debug_assert!(items.is_empty() && leases.is_empty(), "one call at a time");
        // Swapped, not copied: all of these lists have the same capacity.
        std::mem::swap(items, &mut call.items);
        std::mem::swap(leases, &mut call.leases);
        let mut parts = call.read_parts.iter_mut();
        for chunk in &call.chunks {
            let count = pool.buffers_for(chunk.bytes);
            if chunk.position == 0 {
                // The Position-Zero chunk, which `gather_stream` has used up.
                parts.by_ref().take(count).for_each(drop);
                continue;
            }
            let first_part = leases.len();
            for part in parts.by_ref().take(count) {
                let lease = part.buffer.take();
                leases.push(lease.and_then(|buffer| pool.lease(buffer, part.bytes)));
            }
            items.push(ArgumentItem {
                position: chunk.position,
                args_offset: 0,
                bytes: chunk.bytes,
                first_part,
                parts: count,
            });
        }
        items.sort_unstable_by_key(|item| item.position);
    }

    /// Takes back the items of a call, and of its reply, that the service left.
    #[inline(always)]
    fn clear_items<P: Port>(&mut self, core: &mut Resources<P>) {
        self.items.clear();
        while let Some(lease) = self.leases.pop() {
            lease.into_iter().for_each(|it| core.end_lease(it));
        }
        core.reply.clear();
    }

    /// Takes what the service wrote: the RPC reply, which is in the scratch buffer behind the place of its header or in
    /// a message buffer, and its items.
    #[inline(always)]
    fn take_served<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut IncomingCall,
        served: Served,
        lists_bytes: usize,
    ) -> Result<Step, TransportError> {
        let reply = match served {
            Served::Deferred => {
                call.state = IncomingState::Deferred;
                if let Some(id) = call.deferral {
                    self.deferrals.set_serve(id, call.index);
                }
                core.note_if_pending(call.connection.index);
                return Ok(Step::Waits);
            }
            Served::Discarded => {
                core.note_if_pending(call.connection.index);
                return Ok(Step::Ends);
            }
            Served::Short(rpc_bytes) | Served::TooLong { rpc_bytes, .. } => {
                // The scratch buffer is needed for other messages before this reply can be sent.
                let start = lists_bytes + RPC_OFFSET;
                let reply = core.transmit.scratch().get(start..start + rpc_bytes);
                let space = call.reply_space.get_mut(..rpc_bytes);
                if let (Some(reply), Some(space)) = (reply, space) {
                    space.copy_from_slice(reply);
                }
                RpcReply::Short(rpc_bytes)
            }
            Served::Long => {
                let Some(buffer) = core.reply.spilled.take() else {
                    debug_assert!(false, "a long reply has a buffer");
                    return Ok(Step::Ends);
                };
                RpcReply::Long(buffer)
            }
        };
        self.take_reply(core, call, reply)?;
        Ok(Step::GoesOn)
    }

    /// Answers a deferred call that came with chunks. `None` for any other call.
    pub(in crate::core) fn answer_deferred_chunked<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        token: &DeferToken,
        outcome: Outcome,
        results: &[u8],
        items: &mut [(usize, BulkItem)],
    ) -> Option<Result<(), ReplyRefused>> {
        let index = self.deferrals.find(token).ok()?.serve?;
        // If the connection of this call has ended, the slot may have another call.
        let is_of = |call: &&IncomingCall| {
            call.state == IncomingState::Deferred && call.deferral == Some(token.0)
        };
        self.calls.get(index).filter(is_of)?;
        let mut call = self.calls.take(index)?;
        let heading = (call.connection, call.xid);
        match core.write_deferred(heading, outcome, results, items, Some(&call)) {
            Ok(buffer) => {
                let taken = self.take_reply(core, &mut call, RpcReply::Long(buffer));
                self.clear_items(core);
                match taken {
                    Ok(()) => {
                        self.calls.put(index, call);
                        self.calls.queue(index);
                    }
                    Err(error) => self.refuse_incoming(core, call, error),
                }
                Some(Ok(()))
            }
            Err(refused) => {
                self.calls.put(index, call);
                Some(Err(refused))
            }
        }
    }
}

/// Sets the places of the items in the argument stream without items. False when one of them is not
/// in the arguments.
fn rebase(items: &mut [ArgumentItem], header_bytes: usize, args_bytes: usize) -> bool {
    let mut before = header_bytes;
    for item in items {
        let offset = (item.position as usize).checked_sub(before);
        match offset {
            Some(offset) if offset <= args_bytes => item.args_offset = offset,
            _ => return false,
        }
        before += (item.bytes as usize).next_multiple_of(4);
    }
    true
}
