//! Replies to calls with chunks: results are written to Write chunks, the rest leaves inline, in
//! parts, or in the Reply chunk (-00 section 6.5).

use rpcrdma_fabric::interface::{Gather, Port, PostError, RemoteAddress, RemoteKey, SendOptions};
use rpcrdma_fabric::memory::Buffer;
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::connection::{Direction, SendRefused};

use super::Step;
use crate::application::{DeferToken, Outcome, ReplyRefused};
use crate::bulk::serves::{RpcReply, ServeSlot, ServeStage, Target, WriteCursor, WritePart};
use crate::bulk::{Bulk, BulkItem, BulkPool, Home, Work};
use crate::connection::{Connection, OutgoingMessage};
use crate::core::State;
use crate::message::Use;
use crate::responder::{RPC_OFFSET, write_reply_with_items};

impl<P: Port> State<P> {
    /// Takes over the items that a service attached to its reply.
    pub(in crate::core) fn take_attached(&mut self, index: u32) {
        let bulk = &mut self.bulk;
        let Some(slot) = bulk.serves.get_mut(index as usize) else {
            return;
        };
        if slot.is_group() {
            return self.take_directed(index);
        }
        for (chunk, item) in bulk.reply.attached.iter_mut().enumerate() {
            let bytes = u32::try_from(item.len()).unwrap_or(u32::MAX);
            slot.written.push(bytes);
            item.drain_into(&mut bulk.reply.pool, |buffer, offset, bytes| {
                slot.write_parts.push(WritePart {
                    index: buffer.index(),
                    buffer: Some(buffer),
                    offset,
                    bytes,
                    done: 0,
                    target: Target::Chunk(chunk),
                });
            });
        }
    }

    /// The next step of a call that is being answered.
    pub(super) fn answer_chunked(&mut self, index: u32) -> Step {
        let slot = self.bulk.serves.get(index as usize);
        if slot.is_some_and(ServeSlot::is_group) {
            return self.answer_group(index);
        }
        if let Some(error) = self.find_short_chunk(index) {
            self.refuse_serve(index, error);
            return Step::Waits;
        }
        match self.post_writes(index) {
            Step::GoesOn => {}
            other => return other,
        }
        let Some(slot) = self.bulk.serves.get(index as usize) else {
            return Step::Waits;
        };
        match slot.reply {
            RpcReply::Short(rpc_bytes) => self.send_short(index, rpc_bytes),
            RpcReply::InChunk(rpc_bytes) => self.send_long(index, rpc_bytes),
            RpcReply::Long(_) => self.choose_long(index),
            RpcReply::None => Step::Waits,
        }
    }

    /// A Write chunk that is too small for its result (-00 section 6.4.3).
    fn find_short_chunk(&self, index: u32) -> Option<TransportError> {
        let slot = self.bulk.serves.get(index as usize)?;
        let chunks = slot.lists().writes.zip(&slot.written).zip(1_u32..);
        for ((segments, &needed), chunk_index) in chunks {
            if u64::from(needed) > segments.total_bytes() {
                return Some(TransportError::WriteResource {
                    chunk_index,
                    length_needed_bytes: needed,
                });
            }
        }
        None
    }

    /// Posts the RDMA Writes of a reply.
    pub(in crate::core) fn post_writes(&mut self, index: u32) -> Step {
        let bulk = &mut self.bulk;
        let Some(slot) = bulk.serves.get_mut(index as usize) else {
            return Step::Waits;
        };
        let Some(connection) = self.connections.get_mut(slot.connection) else {
            return Step::Waits;
        };
        let counters = &self.shared.counters;
        while slot.writes.part < slot.write_parts.len() {
            let before = slot.writes;
            let Some(to) = fill(
                slot,
                index,
                &mut bulk.reply.pool,
                &mut bulk.writing,
                bulk.segments_max,
            ) else {
                if slot.writes.part >= slot.write_parts.len() {
                    break;
                }
                // The buffer is on its way to the segment before: it comes back.
                return Step::Waits;
            };
            let bytes = bulk.writing.bytes();
            match self
                .port
                .post_write(connection.queue_pair, &mut bulk.writing, to, None)
            {
                Ok(()) => {
                    slot.counted = false;
                    counters.rdma_writes.increment();
                    counters.bulk_bytes_out.add(bytes);
                }
                Err(error) => {
                    take_back(slot, &mut bulk.reply.pool, &mut bulk.writing);
                    slot.writes = before;
                    match error {
                        PostError::QueueFull => {
                            if !std::mem::replace(&mut slot.counted, true) {
                                counters.awaiting_send_slot.increment();
                            }
                            return Step::Again;
                        }
                        // Its Disconnected is on its way.
                        PostError::NotConnected | PostError::UnknownQueuePair => {}
                        // The device does not do it.
                        _ => self.refuse_serve(index, TransportError::System),
                    }
                    return Step::Waits;
                }
            }
        }
        Step::GoesOn
    }

    /// A buffer of which a part was written is back: the rest of it can be.
    pub(in crate::core) fn written_part(&mut self, index: u32, part: u16, buffer: Buffer) {
        let slot = self.bulk.serves.get_mut(index as usize);
        let place = slot.and_then(|slot| slot.write_parts.get_mut(usize::from(part)));
        match place {
            Some(place) if place.buffer.is_none() && place.index == buffer.index() => {
                place.buffer = Some(buffer);
                self.bulk.queue(Work::Serve(index));
            }
            _ => self.bulk.give(buffer),
        }
    }

    /// Sends a reply that fits one message.
    fn send_short(&mut self, index: u32, rpc_bytes: usize) -> Step {
        let Some(slot) = self.bulk.serves.get_mut(index as usize) else {
            return Step::Waits;
        };
        let Some(connection) = self.connections.get_mut(slot.connection) else {
            return Step::Waits;
        };
        if !connection.can_reply() || !self.transmit.has_room() {
            if !std::mem::replace(&mut slot.counted, true) {
                self.shared.counters.awaiting_credit.increment();
            }
            return Step::Again;
        }
        let scratch = self.transmit.scratch();
        let lists = slot.returned(0);
        let reply = Direction::Reply;
        let encoded = connection
            .protocol
            .encode_message_with_chunks(scratch, slot.xid, reply, 0, &lists, rpc_bytes);
        let Ok(header_bytes) = encoded else {
            return self.not_encoded(index, encoded);
        };
        let end = header_bytes + rpc_bytes;
        let space = scratch.get_mut(header_bytes..end);
        if let (Some(space), Some(rpc)) = (space, slot.reply_space.get(..rpc_bytes)) {
            space.copy_from_slice(rpc);
        }
        self.post_reply(index, end)
    }

    /// Sends the header of a reply that is in the Reply chunk.
    fn send_long(&mut self, index: u32, rpc_bytes: u32) -> Step {
        let Some(slot) = self.bulk.serves.get_mut(index as usize) else {
            return Step::Waits;
        };
        let Some(connection) = self.connections.get_mut(slot.connection) else {
            return Step::Waits;
        };
        if !connection.can_reply() || !self.transmit.has_room() {
            if !std::mem::replace(&mut slot.counted, true) {
                self.shared.counters.awaiting_credit.increment();
            }
            return Step::Again;
        }
        let lists = slot.returned(rpc_bytes);
        let reply = Direction::Reply;
        let encoded = connection.protocol.encode_long_message(
            self.transmit.scratch(),
            slot.xid,
            reply,
            0,
            &lists,
        );
        match encoded {
            Ok(bytes) => self.post_reply(index, bytes),
            Err(_) => self.not_encoded(index, encoded),
        }
    }

    /// A reply could not be encoded: it waits, or can never be.
    #[cold]
    fn not_encoded(&mut self, index: u32, encoded: Result<usize, SendRefused>) -> Step {
        match encoded {
            Err(SendRefused::TooLong | SendRefused::NoSpace | SendRefused::TooShort) => {
                self.refuse_serve(index, TransportError::System);
                Step::Waits
            }
            _ => Step::Again,
        }
    }

    /// Posts the reply that stands in the scratch buffer, with the invalidation that its requester
    /// asked for (-00 section 6.3.3.2), and is done with the call.
    fn post_reply(&mut self, index: u32, bytes: usize) -> Step {
        let Some(slot) = self.bulk.serves.get(index as usize) else {
            return Step::Waits;
        };
        let key = slot.connection;
        // In version 1 the key of memory that was not used may be one that others share.
        let may_invalidate = self.connections.get(key).is_some_and(|connection| {
            let protocol = &connection.protocol;
            protocol.may_invalidate() && (!protocol.is_version_1() || slot.uses_chunks())
        });
        let invalidate = slot
            .invalidate_key()
            .filter(|_| self.bulk.sends_with_invalidate && may_invalidate);
        let options = SendOptions {
            signalled: None,
            invalidate: invalidate.map(RemoteKey),
        };
        self.count_served_reply(index);
        if let Some(connection) = self.connections.get_mut(key) {
            let counters = &self.shared.counters;
            self.transmit
                .post_scratch_with(&mut self.port, connection, bytes, options, counters);
            if connection.stuck.is_some() {
                self.note_pending(key.index);
            }
        }
        self.end_serve(index);
        Step::Waits
    }

    /// Chooses how a reply leaves that does not fit one message: in parts if the credits cover it,
    /// else in the Reply chunk if that holds it, else in parts, waiting for credits. Version 1 has no
    /// parts: there it leaves in the Reply chunk, or is refused.
    fn choose_long(&mut self, index: u32) -> Step {
        let bulk = &mut self.bulk;
        let Some(slot) = bulk.serves.get_mut(index as usize) else {
            return Step::Waits;
        };
        let Some(connection) = self.connections.get_mut(slot.connection) else {
            return Step::Waits;
        };
        let RpcReply::Long(message) = &slot.reply else {
            return Step::Waits;
        };
        let rpc_bytes = u32::try_from(message.filled().len()).unwrap_or(u32::MAX);
        let part_bytes = connection
            .protocol
            .fragment_bytes_within(message.filled().len(), slot.reply_space.len())
            .max(1);
        let extra = slot.returned_bytes();
        let messages = (message.filled().len() + extra).div_ceil(part_bytes);
        let credits = connection.protocol.credits_for_replies() as usize;
        let continues = !connection.protocol.is_version_1();
        let in_one = connection
            .protocol
            .fits_in_one_message(message.filled().len(), extra);
        let in_parts = if continues {
            credits >= messages && !connection.has_backlog()
        } else {
            in_one
        };
        let room = slot.lists().reply.map_or(0, |chunk| chunk.total_bytes());
        let buffers = bulk.reply.pool.buffers_for(rpc_bytes);
        let fits = u64::from(rpc_bytes) <= room && buffers <= bulk.reply.pool.total();
        if !in_parts && !fits && !continues {
            let error = TransportError::ReplyResource {
                length_needed_bytes: rpc_bytes,
            };
            self.refuse_serve(index, error);
            return Step::Waits;
        }
        if in_parts || !fits {
            return self.send_in_parts(index);
        }
        if !bulk.reply.pool.has(buffers) {
            if !std::mem::replace(&mut slot.counted, true) {
                self.shared.counters.awaiting_bulk_buffer.increment();
            }
            return Step::Again;
        }
        slot.counted = false;
        if let RpcReply::Long(message) = std::mem::take(&mut slot.reply) {
            let memory = self.port.memory();
            for piece in message
                .filled()
                .chunks(bulk.reply.pool.buffer_bytes() as usize)
            {
                let Some(mut buffer) = bulk.reply.pool.take() else {
                    break;
                };
                if let Some(space) = memory.bytes_mut(&mut buffer).get_mut(..piece.len()) {
                    space.copy_from_slice(piece);
                }
                slot.write_parts.push(WritePart {
                    index: buffer.index(),
                    buffer: Some(buffer),
                    offset: 0,
                    bytes: u32::try_from(piece.len()).unwrap_or(u32::MAX),
                    done: 0,
                    target: Target::Reply,
                });
            }
            self.shared.counters.bulk_bytes_copied.add(rpc_bytes.into());
            self.messages.give(message);
        }
        slot.reply = RpcReply::InChunk(rpc_bytes);
        (slot.writes.segment, slot.writes.segment_done) = (0, 0);
        Step::GoesOn
    }

    fn send_in_parts(&mut self, index: u32) -> Step {
        let Some(slot) = self.bulk.serves.get_mut(index as usize) else {
            return Step::Waits;
        };
        let (key, xid) = (slot.connection, slot.xid);
        let Some(connection) = self.connections.get_mut(key) else {
            return Step::Waits;
        };
        if !connection.may_queue() {
            return Step::Again;
        }
        let RpcReply::Long(buffer) = std::mem::take(&mut slot.reply) else {
            return Step::Waits;
        };
        // Version 1 has every chunk come back (RFC 8166 section 4.3).
        let lists = slot.lists();
        let returns_reply_chunk = connection.protocol.is_version_1() && lists.reply.is_some();
        let has_lists = !lists.writes.is_empty() || returns_reply_chunk;
        let message = OutgoingMessage {
            xid,
            direction: Direction::Reply,
            buffer,
            sent_bytes: 0,
            chunks: has_lists.then_some(index),
        };
        slot.stage = ServeStage::InParts;
        match self.outgoing.push(&mut connection.outbound, message) {
            Ok(()) => self.count_served_reply(index),
            Err(message) => {
                debug_assert!(false, "there is an entry for each message buffer");
                self.messages.give(message.buffer);
            }
        }
        self.note_pending(key.index);
        if !has_lists {
            self.end_serve(index);
        }
        Step::Waits
    }

    /// Answers a deferred call that came with chunks. `None` when there is none.
    pub(in crate::core) fn answer_deferred_chunked(
        &mut self,
        token: &DeferToken,
        outcome: Outcome,
        results: &[u8],
        items: &mut [(usize, BulkItem)],
    ) -> Option<Result<(), ReplyRefused>> {
        let slots = self.bulk.serves.iter();
        let index = slots.zip(0_u32..).find_map(|(slot, index)| {
            let is_it = slot.stage == ServeStage::Deferred && slot.deferral == Some(token.0);
            is_it.then_some(index)
        })?;
        Some(self.answer_slot(index, outcome, results, items))
    }

    fn answer_slot(
        &mut self,
        index: u32,
        outcome: Outcome,
        results: &[u8],
        items: &mut [(usize, BulkItem)],
    ) -> Result<(), ReplyRefused> {
        let Some(slot) = self.bulk.serves.get_mut(index as usize) else {
            return Err(ReplyRefused::UnknownToken);
        };
        let xid = slot.xid;
        let Some(mut buffer) = self.messages.take(Use::Answer) else {
            return Err(ReplyRefused::Busy);
        };
        self.bulk.reply.ask_for(slot);
        let written = write_reply_with_items(
            &mut buffer,
            xid,
            outcome,
            results,
            items,
            &mut self.bulk.reply,
        );
        let Some(copied_bytes) = written else {
            self.messages.give(buffer);
            self.bulk.reply.clear();
            return Err(ReplyRefused::TooLong);
        };
        self.shared.counters.bulk_bytes_copied.add(copied_bytes);
        let Some(slot) = self.bulk.serves.get_mut(index as usize) else {
            return Err(ReplyRefused::UnknownToken);
        };
        let rpc = buffer.filled();
        let shift = slot.returned_bytes();
        let threshold = self
            .connections
            .get(slot.connection)
            .map_or(0, |it| it.protocol.send_threshold_bytes() as usize);
        let one_message = threshold.min(slot.reply_space.len());
        if RPC_OFFSET + shift + rpc.len() <= one_message {
            if let Some(space) = slot.reply_space.get_mut(..rpc.len()) {
                space.copy_from_slice(rpc);
            }
            slot.reply = RpcReply::Short(rpc.len());
            self.messages.give(buffer);
        } else {
            slot.reply = RpcReply::Long(buffer);
        }
        slot.stage = ServeStage::Answering;
        slot.deferral = None;
        self.take_attached(index);
        self.clear_items();
        self.bulk.queue(Work::Serve(index));
        Ok(())
    }
}

impl Bulk {
    /// The bytes that the lists of a reply take in the last of its messages.
    pub(in crate::core) fn returned_list_bytes(&self, index: u32) -> usize {
        let slot = self.serves.get(index as usize);
        slot.map_or(0, ServeSlot::returned_bytes)
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
        let Some(slot) = self.serves.get(index as usize) else {
            return Err(SendRefused::Over);
        };
        let (xid, reply) = (slot.xid, Direction::Reply);
        let lists = slot.returned(0);
        connection
            .protocol
            .encode_message_with_chunks(space, xid, reply, 0, &lists, part_bytes)
    }
}

/// Fills a gather list for the next RDMA Write of a reply; where it goes. `None` when nothing is to
/// be written, or the next buffer is under way.
fn fill(
    slot: &mut ServeSlot,
    index: u32,
    pool: &mut BulkPool,
    gather: &mut Gather,
    segments_max: usize,
) -> Option<RemoteAddress> {
    loop {
        let part = slot.write_parts.get(slot.writes.part)?;
        if part.done == part.bytes && part.buffer.is_none() {
            advance_part(slot);
            continue;
        }
        let target = part.target;
        let segment = slot.written_segment(target, slot.writes.segment)?;
        let room = segment.length_bytes - slot.writes.segment_done;
        if room == 0 {
            slot.writes.segment += 1;
            slot.writes.segment_done = 0;
            continue;
        }
        let to = RemoteAddress {
            key: RemoteKey(segment.handle),
            offset: segment.offset.wrapping_add(slot.writes.segment_done.into()),
        };
        return fill_segment(slot, index, pool, gather, (target, room), segments_max).then_some(to);
    }
}

/// Fills the list with parts of `target`, up to `room` bytes. Whether there were any.
fn fill_segment(
    slot: &mut ServeSlot,
    index: u32,
    pool: &mut BulkPool,
    gather: &mut Gather,
    (target, room): (Target, u32),
    segments_max: usize,
) -> bool {
    let mut room = room;
    // A reply that may be sent again has what was written come back.
    let is_group = slot.is_group();
    while room != 0 && gather.len() < segments_max {
        let number = slot.writes.part;
        let Some(part) = slot.write_parts.get_mut(number) else {
            break;
        };
        if part.target != target {
            break;
        }
        let Some(buffer) = part.buffer.take() else {
            break;
        };
        let bytes = room.min(part.bytes - part.done);
        if let Err(buffer) = gather.push(buffer, part.offset + part.done, bytes) {
            part.buffer = Some(buffer);
            break;
        }
        part.done += bytes;
        slot.writes.segment_done += bytes;
        room -= bytes;
        let is_whole = part.done == part.bytes;
        if !is_whole || is_group {
            let part = u16::try_from(number).unwrap_or(u16::MAX);
            let home = Home::Reply { slot: index, part };
            pool.set_home_of(slot.write_parts.get(number).map(|it| it.index), home);
        }
        if !is_whole {
            break;
        }
        advance_part(slot);
    }
    !gather.is_empty()
}

/// Goes on to the next part, which may be of another chunk.
fn advance_part(slot: &mut ServeSlot) {
    let before = slot.write_parts.get(slot.writes.part).map(|it| it.target);
    slot.writes.part += 1;
    let after = slot.write_parts.get(slot.writes.part).map(|it| it.target);
    if before != after {
        slot.writes = WriteCursor {
            part: slot.writes.part,
            ..WriteCursor::default()
        };
    }
}

/// Puts the buffers of a list that was not posted back to their parts.
fn take_back(slot: &mut ServeSlot, pool: &mut BulkPool, gather: &mut Gather) {
    while let Some((buffer, _, bytes)) = gather.pop() {
        let index = buffer.index();
        // The same number may stand in another pool: the part whose buffer is away is meant.
        let part = slot
            .write_parts
            .iter_mut()
            .rev()
            .find(|part| part.index == index && part.buffer.is_none() && part.done >= bytes);
        match part {
            Some(part) => {
                part.done -= bytes;
                part.buffer = Some(buffer);
                pool.set_home(index, Home::Pool);
            }
            None => debug_assert!(false, "each buffer came from a part"),
        }
    }
}
