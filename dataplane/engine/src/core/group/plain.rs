//! Calls of ours that a peer takes no transmission group for: they are made again, once, as plain
//! version 2, with the same XID, when all memory that they exposed is home.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::connection::{Direction, Refusal};
use rpcrdma_protocol::v2::rtr::{ReportError, TransmissionId};

use crate::application::ConnectionKey;
use crate::bulk::Bulk;
use crate::bulk::calls::{Answer, CALL_PARTS_MAX, CallPart, CallSlot, CallStage};
use crate::bulk::group::{Group, Way};
use crate::bulk::lists::Role;
use crate::connection::OutgoingMessage;
use crate::core::State;
use crate::core::bulk::{Offer, OfferedItems, push_part};
use crate::message::Use;

impl<P: Port> State<P> {
    /// A peer has found something wrong with a transmission of ours.
    #[cold]
    pub(in crate::core) fn handle_peer_report(&mut self, key: ConnectionKey, report: &ReportError) {
        let bad = report.bad;
        // Most often another transmission of the same group.
        let other = |lead: &TransmissionId| (lead.xid, lead.direction) != (bad.xid, bad.direction);
        let lead = report.lead.filter(other);
        for TransmissionId { xid, direction, .. } in lead.into_iter().chain([bad]) {
            match direction {
                Direction::Call => {
                    self.make_call_plain(key, xid, TransportError::BadXdr);
                }
                Direction::Reply if self.bulk.kept.ask_for(key, xid) => {}
                // It is not kept any more: its call ends.
                Direction::Reply => self.refuse(key, Refusal::new(xid, TransportError::System)),
            }
        }
    }

    /// Has a call made again as plain version 2, if it is a transmission group that waits for its
    /// reply. Whether it is.
    pub(in crate::core) fn make_call_plain(
        &mut self,
        key: ConnectionKey,
        xid: u32,
        error: TransportError,
    ) -> bool {
        let Some(index) = self.requester.bulk_of(xid, key) else {
            return false;
        };
        let slot = self.bulk.calls.get_mut(index as usize);
        let Some(slot) = slot.filter(|slot| slot.is_group()) else {
            return false;
        };
        match slot.stage {
            CallStage::Waiting | CallStage::Placing => {
                self.end_bulk_call(index, Answer::Refused(error));
                true
            }
            // What has begun is sent to its end: the peer passes over it.
            CallStage::Sending if slot.group.sent > 0 => {
                slot.answer = Answer::Refused(error);
                true
            }
            _ => false,
        }
    }

    /// Gives a call that was a transmission group the form of plain version 2. False when there is
    /// none for it; nothing of it is exposed any more, and all of its items are here. `error` is what
    /// the peer said.
    pub(in crate::core) fn rebuild_plain(&mut self, index: u32, error: TransportError) -> bool {
        self.forget_arrival(index);
        let Some(slot) = self.bulk.calls.get_mut(index as usize) else {
            return false;
        };
        if !slot.has_items() || slot.group.parts.iter().any(|part| part.buffer.is_none()) {
            return false;
        }
        let key = slot.connection;
        let Some(connection) = self.connections.get_mut(key) else {
            return false;
        };
        let extra = std::mem::take(&mut slot.reply_transmissions_max).saturating_sub(1);
        connection.reply_transmissions_extra -= extra;
        slot.take_group_apart();
        let takes_chunks = connection.calls_may_have_chunks();
        let receive_bytes = connection.protocol.properties().receive_buffer_bytes;
        let segments_max = connection.peer.segment_count_max;
        if self.bulk.windows_max == 0 || !takes_chunks {
            return self.make_inline(index);
        }
        let Some(slot) = self.bulk.calls.get(index as usize) else {
            return false;
        };
        let mut offer = Offer {
            chunk_bytes: slot.chunk_bytes,
            chunks: slot.chunks,
            reply_bytes: 0,
            items: OfferedItems::Chunks,
            segments_max,
        };
        offer.reply_bytes = offer.reply_chunk_bytes(slot, receive_bytes);
        // Plain version 2 may be all that it takes.
        offer.mend(slot, error, receive_bytes);
        self.offer_again(index, &offer)
    }

    /// Sends a call with its items in the stream.
    pub(in crate::core) fn make_inline(&mut self, index: u32) -> bool {
        let Some(slot) = self.bulk.calls.get_mut(index as usize) else {
            return false;
        };
        if slot.parts.iter().any(|part| part.role == Role::Stream) {
            return false;
        }
        let (key, xid) = (slot.connection, slot.xid);
        let Some(mut message) = self.messages.take(Use::CallOut) else {
            return false;
        };
        let memory = self.port.memory();
        let stream = slot.stream.get(..slot.stream_bytes).unwrap_or(&[]);
        let (mut taken, mut is_whole, mut position_before) = (0, true, None);
        let counters = &self.shared.counters;
        for part in &slot.parts {
            let Role::Argument { position } = part.role else {
                continue;
            };
            if position_before != Some(position) {
                let padding = message.filled().len().next_multiple_of(4) - message.filled().len();
                is_whole &= message.append([0; 3].get(..padding).unwrap_or(&[])).is_ok();
                let before = (position as usize).saturating_sub(message.filled().len());
                let piece = stream.get(taken..taken + before).unwrap_or(&[]);
                is_whole &= message.append(piece).is_ok();
                taken += before;
                position_before = Some(position);
            }
            let bytes = part.buffer.as_ref().map_or(&[][..], |it| memory.bytes(it));
            let bytes = bytes.get(..part.bytes as usize).unwrap_or(&[]);
            is_whole &= message.append(bytes).is_ok();
            counters.bulk_bytes_copied.add(part.bytes.into());
        }
        let padding = message.filled().len().next_multiple_of(4) - message.filled().len();
        is_whole &= message.append([0; 3].get(..padding).unwrap_or(&[])).is_ok();
        is_whole &= message.append(stream.get(taken..).unwrap_or(&[])).is_ok();
        let connection = self.connections.get_mut(key).filter(|_| is_whole);
        let Some(connection) = connection else {
            self.messages.give(message);
            return false;
        };
        let message = OutgoingMessage {
            xid,
            direction: Direction::Call,
            buffer: message,
            sent_bytes: 0,
            chunks: None,
        };
        if let Err(message) = self.outgoing.push(&mut connection.outbound, message) {
            self.messages.give(message.buffer);
            return false;
        }
        slot.again = true;
        slot.stage = CallStage::Waiting;
        slot.answer = Answer::None;
        self.bulk.give_back_results(index);
        counters.bulk_calls_retried.increment();
        self.note_pending(key.index);
        true
    }
}

impl CallSlot {
    /// Makes items of a plain call of those of a group: their pieces, in order.
    fn take_group_apart(&mut self) {
        let Self { group, parts, .. } = self;
        let Group {
            items,
            parts: placed,
            ..
        } = group;
        let first = parts.len();
        for item in items.iter() {
            let role = Role::Argument {
                position: item.displacement,
            };
            if item.way != Way::Placed {
                continue;
            }
            let own = placed.get_mut(item.first_part..item.first_part + item.parts);
            for part in own.unwrap_or(&mut []) {
                if let Some(buffer) = part.buffer.take()
                    && parts.len() < CALL_PARTS_MAX
                {
                    push_part(parts, role, buffer, part.bytes);
                    if let Some(last) = parts.last_mut() {
                        last.index = part.index;
                    }
                }
            }
        }
        debug_assert!(parts.len() >= first, "pieces are added alone");
        let order = |part: &CallPart| match part.role {
            Role::Stream => 0,
            Role::Argument { position } => u64::from(position) + 1,
            Role::Result { .. } => u64::MAX - 1,
            Role::Reply => u64::MAX,
        };
        // Stable, and in place: there are few.
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

impl Bulk {
    /// Gives back what a call had for its results.
    fn give_back_results(&mut self, index: u32) {
        let pool = &mut self.reply.pool;
        let Some(slot) = self.calls.get_mut(index as usize) else {
            return;
        };
        slot.parts.retain_mut(|part| {
            let is_result = matches!(part.role, Role::Result { .. } | Role::Reply);
            if is_result && let Some(buffer) = part.buffer.take() {
                pool.give(buffer);
            }
            !is_result
        });
        slot.chunks = 0;
    }
}
