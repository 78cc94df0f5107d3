//! Calls of peers with chunks: their chunks are read, they are served, and answered. Every step may
//! have to wait, and goes on from where it stood.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::chunks::{ChunkFault, ChunkLimits, PayloadPlace, check_call};
use rpcrdma_protocol::v2::connection::{Direction, Refusal, rpc_start_matches};
use rpcrdma_protocol::v2::{ReverseRequestSupport, TransportError};

use super::{Step, end_lease, lists_of, refusal_of};
use crate::application::{Application, ConnectionKey, Outcome};
use crate::bulk::serves::{Chunk, ReadPart, RpcReply, ServeStage, Stream};
use crate::bulk::{ArgumentItem, BULK_ITEMS_MAX, BULK_PARTS_MAX, Bulk, BulkArguments, Home, Work};
use crate::connection::Connection;
use crate::core::held::HeldWork;
use crate::core::{Received, State};
use crate::message::{MessageBuffer, Use};
use crate::responder::{Desk, RPC_OFFSET, Served};

impl<P: Port> State<P> {
    /// A call with chunks has come in one message; its payload is what `received` says.
    #[inline(never)]
    pub(in crate::core) fn receive_chunked<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        xid: u32,
        received: Received,
    ) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.serves = true;
        }
        // It may have brought the credits that others wait for.
        self.note_if_pending(key.index);
        if !self.takes_chunks(key) {
            let counters = &self.shared.counters;
            let message =
                self.gathered
                    .message(&self.port, &received.receive, received.end, counters);
            let lists = lists_of(message);
            let error = refusal_of(&lists);
            if lists.reads.is_empty() && lists.writes.is_empty() {
                // A Reply chunk may be left unused (-00 section 6.3.3.1).
                return self.serve_or_hold(application, key, xid, received);
            }
            self.repost(key.index, received.receive);
            return self.refuse(key, Refusal::new(xid, error));
        }
        if !self.may_begin_serve(key) {
            return self.hold(key, xid, HeldWork::Chunked(received));
        }
        self.begin_serve(key, xid, received);
    }

    /// Whether calls of this peer may have chunks: not without bulk buffers, and in the reverse
    /// direction only as far as we said (-00 section 5.2.5).
    pub(in crate::core) fn takes_chunks(&self, key: ConnectionKey) -> bool {
        let Some(connection) = self.connections.get(key) else {
            return false;
        };
        self.bulk.is_on() && connection.protocol.peer_calls() == ReverseRequestSupport::General
    }

    /// Whether one more call of a connection may be begun: there is a slot that it may take.
    pub(in crate::core) fn may_begin_serve(&self, key: ConnectionKey) -> bool {
        self.connections
            .get(key)
            .is_none_or(|connection| may_take_slot(&self.bulk, connection, key.index))
    }

    /// Remembers when the call in a slot was found.
    pub(in crate::core) fn note_found(&mut self, index: u32) {
        if let Some(slot) = self.bulk.serves.get_mut(index as usize) {
            slot.found_at = self.now;
        }
    }

    /// Puts a call into a slot.
    pub(in crate::core) fn begin_serve(
        &mut self,
        key: ConnectionKey,
        xid: u32,
        received: Received,
    ) {
        let Received {
            receive,
            start,
            end,
        } = received;
        let counters = &self.shared.counters;
        let message = self.gathered.message(&self.port, &receive, end, counters);
        let header = message.get(..(start + 4).min(end)).unwrap_or(&[]);
        let index = match self.bulk.begin_serve(key, xid, header) {
            Ok(index) => index,
            Err(error) => {
                self.repost(key.index, receive);
                return self.refuse(key, Refusal::new(xid, error));
            }
        };
        self.note_found(index);
        if start == end {
            self.repost(key.index, receive);
            return self.check_serve(index, Stream::Chunk, PayloadPlace::PositionZero);
        }
        let length_bytes = u32::try_from(end - start).unwrap_or(u32::MAX);
        let place = PayloadPlace::Inline { length_bytes };
        let received = Received {
            receive,
            start,
            end,
        };
        self.check_serve(index, Stream::Received(received), place);
    }

    /// As [`State::begin_serve`], for a call that was put together from parts; its chunk lists came
    /// with the last of them.
    #[cold]
    pub(in crate::core) fn begin_assembled(
        &mut self,
        key: ConnectionKey,
        xid: u32,
        message: MessageBuffer,
    ) {
        let header = std::mem::take(&mut self.bulk.assembled_header);
        let begun = if self.takes_chunks(key) {
            self.bulk.begin_serve(key, xid, &header)
        } else {
            Err(refusal_of(&lists_of(&header)))
        };
        self.bulk.assembled_header = header;
        let index = match begun {
            Ok(index) => index,
            Err(error) => {
                self.messages.give(message);
                return self.refuse(key, Refusal::new(xid, error));
            }
        };
        self.note_found(index);
        let length_bytes = u32::try_from(message.filled().len()).unwrap_or(u32::MAX);
        let place = PayloadPlace::Inline { length_bytes };
        self.check_serve(index, Stream::Message(message), place);
    }

    /// Checks all of a call before anything is posted for it.
    fn check_serve(&mut self, index: u32, stream: Stream, place: PayloadPlace) {
        let pool = &self.bulk.reply.pool;
        let Some(slot) = self.bulk.serves.get_mut(index as usize) else {
            return;
        };
        slot.stream = stream;
        let Some(connection) = self.connections.get(slot.connection) else {
            return self.end_serve(index);
        };
        let limits = chunk_limits(connection, self.config.message_bytes_max);
        // The lists come back with the reply, which needs room for an RPC error beside them.
        let threshold = connection.protocol.send_threshold_bytes() as usize;
        let room = threshold.min(slot.reply_space.len());
        let fits = RPC_OFFSET + slot.returned_bytes() + RPC_ERROR_ROOM <= room;
        let lists = slot.lists();
        let checked = check_call(&lists, place, &limits).map_err(ChunkFault::transport_error);
        let mut chunks = [Chunk::default(); BULK_ITEMS_MAX + 1];
        let mut count = 0;
        let mut buffers = 0;
        if let Ok(call) = &checked {
            for (place, chunk) in chunks
                .iter_mut()
                .zip(call.position_zero().into_iter().chain(call.chunks()))
            {
                *place = Chunk {
                    position: chunk.position,
                    bytes: chunk.length_bytes,
                };
                count += 1;
                buffers += pool.buffers_for(chunk.length_bytes);
            }
        }
        let error = match checked {
            Err(error) => error,
            Ok(_) if fits && buffers <= pool.total().min(BULK_PARTS_MAX) => {
                slot.chunks.extend(chunks.into_iter().take(count));
                slot.stage = ServeStage::AwaitingBuffers;
                return self.bulk.queue(Work::Serve(index));
            }
            Ok(_) => TransportError::System,
        };
        self.refuse_serve(index, error);
    }

    /// Answers a call with a transport error.
    pub(in crate::core) fn refuse_serve(&mut self, index: u32, error: TransportError) {
        let Some(slot) = self.bulk.serves.get(index as usize) else {
            return;
        };
        let (key, xid) = (slot.connection, slot.xid);
        self.end_serve(index);
        self.refuse(key, Refusal::new(xid, error));
    }

    /// Gives back all that a call holds, and frees its slot.
    pub(in crate::core) fn end_serve(&mut self, index: u32) {
        let Some(slot) = self.bulk.serves.get_mut(index as usize) else {
            return;
        };
        let key = slot.connection;
        let stream = std::mem::take(&mut slot.stream);
        let reply = std::mem::take(&mut slot.reply);
        if slot.reply_reserved != 0
            && let Some(connection) = self.connections.get_mut(key)
        {
            connection.replies_reserved -= slot.reply_reserved;
        }
        let pool = &mut self.bulk.reply.pool;
        for part in &mut slot.read_parts {
            if let Some(buffer) = part.buffer.take() {
                pool.give(buffer);
            }
        }
        for (part, number) in slot.write_parts.iter_mut().zip(0..) {
            let home = Home::Reply {
                slot: index,
                part: number,
            };
            pool.take_home(part.buffer.take(), part.index, home);
        }
        for (part, number) in slot.group.parts.iter_mut().zip(0..) {
            let home = Home::ReplyGroup {
                slot: index,
                part: number,
            };
            pool.take_home(part.buffer.take(), part.index, home);
        }
        let mut receives = std::mem::take(&mut slot.arrival.receives);
        for received in receives.drain(..) {
            self.repost_of(key, received.receive);
        }
        if let Some(slot) = self.bulk.serves.get_mut(index as usize) {
            slot.arrival.receives = receives;
        }
        self.bulk.free_serve(index);
        if let RpcReply::Long(buffer) = reply {
            self.messages.give(buffer);
        }
        self.give_stream(key, stream);
    }

    /// Gives back what a stream is in.
    fn give_stream(&mut self, key: ConnectionKey, stream: Stream) {
        match stream {
            Stream::Chunk => {}
            Stream::Received(received) if self.connections.get(key).is_some() => {
                self.repost(key.index, received.receive);
            }
            Stream::Received(received) => self.post_receive(received.receive),
            Stream::Message(message) => self.messages.give(message),
        }
    }

    /// The next step of a call.
    pub(super) fn step_serve<A: Application>(&mut self, application: &mut A, index: u32) -> Step {
        let Some(slot) = self.bulk.serves.get(index as usize) else {
            return Step::Waits;
        };
        match slot.stage {
            ServeStage::Free | ServeStage::Deferred | ServeStage::InParts => Step::Waits,
            ServeStage::Placing => self.place_items(index),
            ServeStage::AwaitingBuffers => self.take_read_buffers(index),
            ServeStage::Reading => self.post_reads(index),
            ServeStage::Ready => self.serve_chunked(application, index),
            ServeStage::Answering => self.answer_chunked(index),
        }
    }

    /// Takes the buffers that the chunks of a call are read into, all or none of them.
    fn take_read_buffers(&mut self, index: u32) -> Step {
        let pool = &mut self.bulk.reply.pool;
        let Some(slot) = self.bulk.serves.get_mut(index as usize) else {
            return Step::Waits;
        };
        let buffers = slot.chunks.iter();
        let buffers = buffers.map(|chunk| pool.buffers_for(chunk.bytes)).sum();
        let is_next = self.bulk.starving.is_none_or(|first| first == index);
        if buffers != 0 && (!is_next || !pool.has(buffers)) {
            self.bulk.starving.get_or_insert(index);
            if !std::mem::replace(&mut slot.counted, true) {
                self.shared.counters.awaiting_bulk_buffer.increment();
            }
            return Step::Again;
        }
        if self.bulk.starving == Some(index) {
            self.bulk.starving = None;
        }
        slot.counted = false;
        for chunk in &slot.chunks {
            let mut rest = chunk.bytes;
            while rest != 0
                && let Some(buffer) = pool.take()
            {
                let bytes = rest.min(buffer.capacity());
                rest -= bytes;
                slot.read_parts.push(ReadPart {
                    index: buffer.index(),
                    buffer: Some(buffer),
                    bytes,
                });
            }
        }
        slot.stage = ServeStage::Reading;
        Step::GoesOn
    }

    /// Has the application answer a call whose chunks were read.
    fn serve_chunked<A: Application>(&mut self, application: &mut A, index: u32) -> Step {
        let Some(slot) = self.bulk.serves.get_mut(index as usize) else {
            return Step::Waits;
        };
        let (key, xid) = (slot.connection, slot.xid);
        let connection = self.connections.get(key);
        let may_queue = connection.is_none_or(Connection::may_queue);
        if !may_queue || !self.messages.has_room(Use::Answer) {
            if !std::mem::replace(&mut slot.counted, true) {
                self.shared.counters.awaiting_message_buffer.increment();
            }
            return Step::Again;
        }
        let stream = match std::mem::take(&mut slot.stream) {
            Stream::Chunk => match self.gather_stream(index) {
                Some(message) => Stream::Message(message),
                None => return Step::Again,
            },
            stream => stream,
        };
        self.lend_items(index);
        let Some(slot) = self.bulk.serves.get_mut(index as usize) else {
            return Step::Waits;
        };
        slot.counted = false;
        self.bulk.reply.ask_for(slot);
        // The lists that the reply returns stand before it.
        let shift = slot.returned_bytes();
        slot.deferral = self.deferrals.next();
        let message = match &stream {
            Stream::Received(received) => self
                .gathered
                .message(
                    &self.port,
                    &received.receive,
                    received.end,
                    &self.shared.counters,
                )
                .get(received.start..)
                .unwrap_or(&[]),
            Stream::Message(message) => message.filled(),
            Stream::Chunk => &[],
        };
        let connection = self.connections.get(key);
        let threshold = connection.map_or(0, |connection| {
            connection.protocol.send_threshold_bytes() as usize
        });
        let is_reverse = connection.is_some_and(Connection::serves_reverse);
        let is_version_1 = connection.is_some_and(|it| it.protocol.is_version_1());
        if !rpc_start_matches(xid, Direction::Call, 0, message) {
            // A long call, whose start nobody has looked at so far.
            self.clear_items();
            self.give_stream(key, stream);
            self.refuse_serve(index, TransportError::BadXdr);
            return Step::Waits;
        }
        let desk = Desk {
            connection: key,
            is_reverse,
            is_version_1,
            now: self.now,
            scratch: self.transmit.scratch().get_mut(shift..).unwrap_or(&mut []),
            threshold_bytes: threshold.saturating_sub(shift),
            messages: &mut self.messages,
            deferrals: &mut self.deferrals,
            items: &mut self.bulk.reply,
            counters: &self.shared.counters,
        };
        let items = self.bulk.argument_items.as_mut_slice();
        let leases = self.bulk.argument_leases.as_mut_slice();
        let mut header_bytes = 0;
        let served = desk.serve_with(xid, message, |request, reply| {
            header_bytes = message.len() - request.args.len();
            if !rebase(items, header_bytes, request.args.len()) {
                return Outcome::GarbageArgs;
            }
            let mut arguments = BulkArguments { items, leases };
            application.call_bulk(request, &mut arguments, reply)
        });
        self.give_stream(key, stream);
        if let Some(slot) = self.bulk.serves.get_mut(index as usize) {
            slot.arguments_at = u32::try_from(header_bytes).unwrap_or(u32::MAX);
        }
        self.take_answer(index, served, shift);
        self.clear_items();
        self.after_serving(index)
    }

    /// Puts a long call into one piece. `None` while no message buffer is free.
    fn gather_stream(&mut self, index: u32) -> Option<MessageBuffer> {
        let slot = self.bulk.serves.get_mut(index as usize)?;
        let Some(mut message) = self.messages.take(Use::CallIn) else {
            if !std::mem::replace(&mut slot.counted, true) {
                self.shared.counters.awaiting_message_buffer.increment();
            }
            return None;
        };
        let first = slot.chunks.first().copied().unwrap_or_default();
        let count = self.bulk.reply.pool.buffers_for(first.bytes);
        for part in slot.read_parts.iter_mut().take(count) {
            let Some(buffer) = part.buffer.take() else {
                continue;
            };
            let bytes = self.port.memory().bytes(&buffer);
            let bytes = bytes.get(..part.bytes as usize).unwrap_or(&[]);
            // What does not fit is too long to be decoded, and answered so.
            let _ = message.append(bytes);
            self.shared
                .counters
                .bulk_bytes_copied
                .add(part.bytes.into());
            self.bulk.reply.pool.give(buffer);
        }
        Some(message)
    }

    /// Makes leases of the items that were read, for the service to take.
    fn lend_items(&mut self, index: u32) {
        let bulk = &mut self.bulk;
        let Some(slot) = bulk.serves.get_mut(index as usize) else {
            return;
        };
        bulk.argument_items.append(&mut slot.items);
        bulk.argument_leases.append(&mut slot.leases);
        let mut parts = slot.read_parts.iter_mut();
        for chunk in &slot.chunks {
            let count = bulk.reply.pool.buffers_for(chunk.bytes);
            if chunk.position == 0 {
                // Taken already.
                parts.by_ref().take(count).for_each(drop);
                continue;
            }
            let first_part = bulk.argument_leases.len();
            for part in parts.by_ref().take(count) {
                let lease = part.buffer.take();
                let lease = lease.and_then(|buffer| bulk.reply.pool.lease(buffer, part.bytes));
                bulk.argument_leases.push(lease);
            }
            bulk.argument_items.push(ArgumentItem {
                position: chunk.position,
                args_offset: 0,
                bytes: chunk.bytes,
                first_part,
                parts: count,
            });
        }
        // Those that Sends have placed, and those that were read.
        let position = |item: &ArgumentItem| item.position;
        bulk.argument_items.sort_unstable_by_key(position);
    }

    /// Takes back what a service left of the items of a call, and of its reply.
    pub(in crate::core) fn clear_items(&mut self) {
        let bulk = &mut self.bulk;
        bulk.argument_items.clear();
        for lease in bulk.argument_leases.drain(..).flatten() {
            let counters = &self.shared.counters;
            end_lease(&mut bulk.reply.pool, &mut self.placement, lease, counters);
        }
        bulk.reply.clear();
    }

    /// Takes over what the service wrote: the RPC reply, which stands in the scratch buffer behind
    /// the place of its header, or is long, and the items that go to Write chunks.
    fn take_answer(&mut self, index: u32, served: Served, shift: usize) {
        let Some(slot) = self.bulk.serves.get_mut(index as usize) else {
            return;
        };
        slot.stage = ServeStage::Answering;
        slot.reply = match served {
            Served::Deferred => {
                slot.stage = ServeStage::Deferred;
                return;
            }
            Served::Short(rpc_bytes) => {
                let start = shift + RPC_OFFSET;
                let reply = self.transmit.scratch().get(start..start + rpc_bytes);
                let space = slot.reply_space.get_mut(..rpc_bytes);
                if let (Some(reply), Some(space)) = (reply, space) {
                    space.copy_from_slice(reply);
                }
                RpcReply::Short(rpc_bytes)
            }
            Served::Long(buffer) => RpcReply::Long(buffer),
        };
        slot.deferral = None;
        self.take_attached(index);
    }

    fn after_serving(&mut self, index: u32) -> Step {
        let Some(slot) = self.bulk.serves.get(index as usize) else {
            return Step::Waits;
        };
        match slot.stage {
            ServeStage::Deferred => {
                let index = slot.connection.index;
                self.note_if_pending(index);
                Step::Waits
            }
            _ => Step::GoesOn,
        }
    }

    /// Lets go of all calls of a closing connection.
    pub(in crate::core) fn close_serves(&mut self, key: ConnectionKey) {
        let pool = &mut self.bulk.reply.pool;
        self.bulk.kept.forget_connection(key, pool);
        for index in 0..u32::try_from(self.bulk.serves.len()).unwrap_or(0) {
            let is_of = self
                .bulk
                .serves
                .get(index as usize)
                .is_some_and(|slot| slot.stage != ServeStage::Free && slot.connection == key);
            if is_of {
                self.end_serve(index);
            }
        }
    }
}

/// Whether a connection may take a slot for one more call of its peer.
pub(in crate::core) fn may_take_slot(bulk: &Bulk, connection: &Connection, index: u32) -> bool {
    let answerable = connection.protocol.credits_for_replies();
    bulk.shares.may_take(index, answerable)
}

/// What is served in one call of a peer.
pub(in crate::core) fn chunk_limits(connection: &Connection, call_bytes_max: u32) -> ChunkLimits {
    let properties = connection.protocol.properties();
    let items_max = u32::try_from(BULK_ITEMS_MAX).unwrap_or(u32::MAX);
    // Version 1 has announced no limits: what others offer is taken as far as it is bounded.
    let (segments_max, segment_bytes_max) = if connection.protocol.is_version_1() {
        (VERSION_1_SEGMENTS_MAX, u32::MAX)
    } else {
        (properties.segment_count_max, properties.segment_bytes_max)
    };
    ChunkLimits {
        read_chunks_max: items_max,
        reads_position_zero: true,
        write_chunks_max: items_max,
        segments_max,
        segment_bytes_max,
        call_bytes_max,
    }
}

/// Segments of a version 1 call, over all its lists. Linux offers up to 17 in one list, and with the
/// Reply chunk of a long call as many again.
const VERSION_1_SEGMENTS_MAX: u32 = 64;

/// Room for an RPC error beside the lists that come back with it.
const RPC_ERROR_ROOM: usize = 64;

/// Tells where the items belong in the argument stream without them. False when one of them is not
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
