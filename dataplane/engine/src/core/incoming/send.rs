//! Sends replies: in one message, in the Reply chunk, in parts, or as a transmission group.

use rpcrdma_fabric::interface::{Port, RemoteKey, SendOptions};
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::connection::{Direction, SendRefused};

use super::Incoming;
use super::call::{IncomingCall, IncomingState, RpcReply};
use crate::connection::{Connection, OutgoingMessage};
use crate::core::group::Sending;
use crate::core::resources::Resources;
use crate::core::step::Step;

impl Incoming {
    /// The next step of a call that is being answered.
    #[inline(always)]
    pub(super) fn answer_incoming<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut IncomingCall,
    ) -> Result<Step, TransportError> {
        if call.is_group() {
            return self.answer_group(core, call);
        }
        if !self.fill_reply_chunk(core, call) {
            return Ok(call.wait.on(&core.shared.counters.awaiting_bulk_buffer));
        }
        // The Writes come first: a queue pair executes in order, so the results are there when the reply is.
        match self.post_writes(core, call)? {
            Step::GoesOn => {}
            other => return Ok(other),
        }
        match call.reply {
            RpcReply::Short(_) | RpcReply::InChunk(_) => self.send_one_message(core, call),
            RpcReply::Long(_) => Ok(Self::send_in_parts(core, call)),
            RpcReply::None => Ok(Step::Waits),
        }
    }

    /// Sends a reply in one message, or the header of one that is in the Reply chunk, with the invalidation that its
    /// requester asked for (-00 section 6.3.3.2).
    #[inline(always)]
    fn send_one_message<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut IncomingCall,
    ) -> Result<Step, TransportError> {
        let Some(connection) = core.connections.get_mut(call.connection) else {
            return Ok(Step::Waits);
        };
        let counters = &core.shared.counters;
        if !connection.can_reply() {
            return Ok(call.wait.on_connection(&counters.awaiting_credit));
        }
        if !core.transmit.has_room(connection) {
            return Ok(call.wait.on(&counters.awaiting_send_buffer));
        }
        let lists = call.returned(match call.reply {
            RpcReply::InChunk(bytes) => bytes,
            _ => 0,
        });
        let (heading, stream) = ((call.xid, Direction::Reply, 0), call.rpc_reply());
        let transmit = &mut core.transmit;
        let encoded = transmit.encode_with_chunks(connection, heading, &lists, stream);
        let bytes = match encoded {
            Ok(bytes) => bytes,
            // Waiting does not help.
            Err(SendRefused::TooLong | SendRefused::NoSpace | SendRefused::TooShort) => {
                return Err(TransportError::System);
            }
            Err(_) => return Ok(Step::AwaitsConnection),
        };
        let protocol = &connection.protocol;
        // In version 1 the only key of a call may belong to memory that this call did not use, and that other
        // calls share.
        let may_invalidate = core.sends_with_invalidate
            && protocol.may_invalidate()
            && (!protocol.is_version_1() || call.uses_chunks());
        let invalidate = call.invalidate_key().filter(|_| may_invalidate);
        let options = SendOptions {
            signalled: None,
            invalidate: invalidate.map(RemoteKey),
        };
        core.transmit
            .post_scratch_with(&mut core.port, connection, bytes, options, counters);
        if connection.unposted.is_some() {
            core.note_pending(call.connection.index);
        }
        core.count_served_reply(call.found_at);
        Ok(Step::Ends)
    }

    fn send_in_parts<P: Port>(core: &mut Resources<P>, call: &mut IncomingCall) -> Step {
        let connection = core.connections.get(call.connection);
        if !connection.is_some_and(Connection::may_queue) {
            return Step::AwaitsConnection;
        }
        let RpcReply::Long(buffer) = std::mem::take(&mut call.reply) else {
            return Step::Waits;
        };
        let has_lists = !call.lists().writes.is_empty();
        call.state = IncomingState::InParts;
        core.count_served_reply(call.found_at);
        let message = OutgoingMessage {
            chunks: has_lists.then_some(call.index),
            ..OutgoingMessage::new(call.xid, Direction::Reply, buffer)
        };
        core.queue_message(call.connection, message);
        match has_lists {
            true => Step::Waits,
            false => Step::Ends,
        }
    }

    /// The next step of the reply to a call in a transmission group.
    #[inline(always)]
    fn answer_group<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut IncomingCall,
    ) -> Result<Step, TransportError> {
        let key = call.connection;
        if call.group.transmissions == 0 {
            // Once: after a Write was posted the plan can no longer change.
            self.plan_group_reply(core, call)?;
            if !call.write_parts.is_empty()
                && !core.is_group_sendable(call, self.laid_out.of_mut(key))
            {
                return Err(TransportError::System);
            }
        }
        match self.post_writes(core, call)? {
            Step::GoesOn => {}
            other => return Ok(other),
        }
        match core.send_group(call, self.laid_out.of_mut(key)) {
            Sending::Waits(step) => Ok(step),
            Sending::Done => {
                core.count_served_reply(call.found_at);
                self.keep_reply(core, call);
                Ok(Step::Ends)
            }
            Sending::Impossible => Err(TransportError::System),
        }
    }
}

impl Incoming {
    /// The bytes that the lists of a reply take in its last message.
    pub(in crate::core) fn returned_list_bytes(&self, index: u32) -> usize {
        let call = self.calls.get(index);
        call.map_or(0, IncomingCall::returned_bytes)
    }

    /// Encodes the header of the last part of a reply, of `part_bytes` bytes, which returns the
    /// chunk lists.
    pub(in crate::core) fn encode_last_part(
        &self,
        connection: &mut Connection,
        space: &mut [u8],
        index: u32,
        part_bytes: usize,
    ) -> Result<usize, SendRefused> {
        let call = self.calls.get(index).ok_or(SendRefused::Over)?;
        let (xid, reply) = (call.xid, Direction::Reply);
        let lists = call.returned(0);
        connection
            .protocol
            .encode_message_with_chunks(space, xid, reply, 0, &lists, part_bytes)
    }
}
