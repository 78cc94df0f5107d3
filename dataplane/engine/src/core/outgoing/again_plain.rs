//! Makes a call of ours again as plain version 2 if the peer does not accept it as a transmission group: once, with the
//! same XID, when all memory that the call exposed is back.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::connection::Direction;

use super::Outgoing;
use super::again::Offer;
use super::call::{Answer, CALL_PARTS_MAX, CallPart, OutgoingCall, OutgoingState};
use super::lists::Role;
use crate::bulk::start_of;
use crate::connection::OutgoingMessage;
use crate::core::group::Way;
use crate::core::resources::Resources;
use crate::message::{MessageBuffer, Use};
use crate::rpc::ConnectionKey;

impl Outgoing {
    /// Starts to make a call again as plain version 2, if it is a transmission group that waits for its
    /// reply. Returns whether it is.
    pub(in crate::core) fn make_call_plain(
        &mut self,
        key: ConnectionKey,
        xid: u32,
        error: TransportError,
    ) -> bool {
        let Some(index) = self.requester.bulk_of(xid, key) else {
            return false;
        };
        let call = self.calls.get_mut(index);
        let Some(call) = call.filter(|call| call.is_group()) else {
            return false;
        };
        match call.state {
            OutgoingState::Waiting | OutgoingState::Placing => {
                self.end_bulk_call(index, Answer::Refused(error));
                true
            }
            // A group that has begun is sent to its end, and the peer ignores the rest: nothing else may be
            // sent in the middle of a group.
            OutgoingState::Sending if call.group.sent > 0 => {
                call.answer = Answer::Refused(error);
                true
            }
            _ => false,
        }
    }

    /// Gives a call that was a transmission group the form of plain version 2. Nothing of it may be exposed any more,
    /// and all of its items must be here. `error` is the answer of the peer. False when no plain form is possible.
    pub(super) fn make_plain<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut OutgoingCall,
        error: TransportError,
    ) -> bool {
        let Some(connection) = core.connections.get_mut(call.connection) else {
            return false;
        };
        let extra = std::mem::take(&mut call.reply_transmissions_max).saturating_sub(1);
        connection.reply_transmissions_extra -= extra;
        call.take_group_apart();
        if self.windows_max == 0 || !connection.calls_may_have_chunks() {
            return self.make_inline(core, call);
        }
        let receive_bytes = connection.protocol.properties().receive_buffer_bytes;
        let mut offer = Offer::before(call, connection);
        offer.reply_bytes = offer.reply_chunk_bytes(call, receive_bytes);
        // Its result does not matter: the plain form is a change already.
        offer.mend(call, error, receive_bytes);
        self.offer_again(core, call, &offer)
    }

    /// Sends a call with its items in the stream.
    pub(super) fn make_inline<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut OutgoingCall,
    ) -> bool {
        let (key, xid) = (call.connection, call.xid);
        let Some(mut message) = core.messages.take(key.index, Use::CallOut) else {
            return false;
        };
        if !self.write_inline(core, &mut message, call) {
            core.messages.give(message);
            return false;
        }
        if !core.queue_message(key, OutgoingMessage::new(xid, Direction::Call, message)) {
            return false;
        }
        call.again = true;
        call.state = OutgoingState::Waiting;
        call.answer = Answer::None;
        call.give_results_back(&mut core.reply.pool);
        call.give_stream_back(&mut core.reply.pool);
        call.chunks = 0;
        core.shared.counters.bulk_calls_retried.increment();
        true
    }

    /// Writes a call with its items in the stream, where a long call has them already. False when it is too long.
    fn write_inline<P: Port>(
        &self,
        core: &Resources<P>,
        message: &mut MessageBuffer,
        call: &OutgoingCall,
    ) -> bool {
        let memory = core.port.memory();
        let stream = call.stream.get(..call.stream_bytes).unwrap_or(&[]);
        let mut beside = 0;
        let items = call.parts.chunk_by(|one, next| one.role == next.role);
        let items = items.filter_map(|parts| {
            let Role::Argument { position } = parts.first()?.role else {
                return None;
            };
            let offset = position.saturating_sub(beside);
            let bytes: u32 = parts.iter().map(|part| part.bytes).sum();
            beside += bytes.next_multiple_of(4);
            let pieces = parts.iter();
            let pieces = pieces.map(|it| start_of(memory, it.buffer.as_ref(), it.bytes));
            Some((offset as usize, pieces))
        });
        let mut copied_bytes = message.weave(stream, items);
        for part in call.parts.iter().filter(|part| part.role == Role::Stream) {
            message.append(start_of(memory, part.buffer.as_ref(), part.bytes));
            copied_bytes += u64::from(part.bytes);
        }
        core.shared.counters.bulk_bytes_copied.add(copied_bytes);
        message.is_whole()
    }
}

impl OutgoingCall {
    /// Turns the placed items of a group into items of a plain call, their pieces in order.
    fn take_group_apart(&mut self) {
        for number in 0..self.group.items.len() {
            let item = self.group.items.get(number).copied();
            let Some(item) = item.filter(|item| item.way == Way::Placed) else {
                continue;
            };
            let position = item.displacement;
            for part in item.first_part..item.first_part + item.parts {
                let Some(part) = self.group.parts.get_mut(part) else {
                    break;
                };
                let part = part.take();
                if part.buffer.is_some() && self.parts.len() < CALL_PARTS_MAX {
                    self.push_part(Role::Argument { position }, part);
                }
            }
        }
        let order = |part: &CallPart| match part.role {
            Role::Stream => 0,
            Role::Argument { position } => u64::from(position) + 1,
            Role::Result { .. } => u64::MAX - 1,
            Role::Reply => u64::MAX,
        };
        // An insertion sort: stable, which keeps the pieces of an item in order, without allocation, and there are
        // few parts.
        let parts = &mut self.parts;
        for at in 1..parts.len() {
            let mut place = at;
            while let [.., before, this] = parts.get(..=place).unwrap_or(&[])
                && order(before) > order(this)
            {
                parts.swap(place - 1, place);
                place -= 1;
            }
        }
        self.group.reset();
        self.directions.clear();
        self.segments.clear();
    }
}
