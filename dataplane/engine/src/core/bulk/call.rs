//! Calls of ours with bulk data: their memory is exposed, and they are sent.

use rpcrdma_fabric::interface::{Access, Port, PostError};
use rpcrdma_fabric::memory::Buffer;
use rpcrdma_protocol::chunks::Segment;
use rpcrdma_protocol::constants::REPLY_HEADER_BYTES_WITHOUT_AUTH;
use rpcrdma_protocol::rpc::{CallHeader, OpaqueAuth};
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::connection::{Direction, SendRefused};

use super::Step;
use super::plan::Plan;
use crate::application::{Application, CallError, CallRefused, CallTag, ConnectionKey};
use crate::bulk::calls::{Answer, CallPart, CallSlot, CallStage, NO_INDEX};
use crate::bulk::lists::{OfferedLists, OfferedSegment, Role};
use crate::bulk::{BulkCall, BulkPool, Home, Work, give_lease};
use crate::connection::OutgoingMessage;
use crate::core::{Drain, State};
use crate::counters::Counters;
use crate::message::{MessageBuffer, Use};

impl<P: Port> State<P> {
    /// Accepts a call with bulk data, or leaves it as it is.
    pub(in crate::core) fn start_bulk_call(
        &mut self,
        key: ConnectionKey,
        call: &mut BulkCall<'_>,
        tag: CallTag,
    ) -> Result<(), CallRefused> {
        if self.drain != Drain::No {
            return Err(CallRefused::Draining);
        }
        let plan = self.plan_call(key, call)?;
        let xid = self.requester.next_xid();
        if let (Some(xid), Some(group)) = (xid, &plan.group) {
            let header = call_header(xid, call);
            return self.start_group_call(key, &header, call, tag, group);
        }
        let has_room = self.bulk.has_call()
            && self.bulk.reply.pool.may_give(plan.buffers)
            && self.bulk.windows_open as usize + plan.windows <= self.bulk.windows_max as usize;
        let (Some(xid), true) = (xid, has_room) else {
            self.shared.counters.calls_refused_no_slot.increment();
            return Err(CallRefused::NoSlot);
        };
        let header = call_header(xid, call);
        if plan.in_stream {
            return self.start_stream_call(key, &header, call, tag, &plan);
        }
        if !plan.by_rdma {
            return self.start_inline_bulk_call(key, &header, call, tag);
        }
        let Some(index) = self.bulk.take_call() else {
            return Err(CallRefused::NoSlot);
        };
        self.fill_call(index, &header, call, &plan);
        if let Some(slot) = self.bulk.calls.get_mut(index as usize) {
            (slot.connection, slot.tag, slot.xid) = (key, tag, xid);
            slot.stage = CallStage::Binding;
        }
        self.begin_call(key, tag, index);
        self.bulk.queue(Work::Call(index));
        Ok(())
    }

    /// Takes a slot of the requester for a call in a slot of ours.
    pub(in crate::core) fn begin_call(&mut self, key: ConnectionKey, tag: CallTag, index: u32) {
        self.requester.begin_bulk(key, tag, self.now, index);
        if let Some(connection) = self.connections.get_mut(key) {
            connection.calls_outstanding += 1;
        }
        self.shared.counters.calls_sent.increment();
    }

    /// Puts a call, and the memory that it is to expose, into its slot.
    fn fill_call(
        &mut self,
        index: u32,
        header: &CallHeader<'_>,
        call: &mut BulkCall<'_>,
        plan: &Plan,
    ) {
        let bulk = &mut self.bulk;
        let Some(slot) = bulk.calls.get_mut(index as usize) else {
            return;
        };
        let header_bytes = header.encode(&mut slot.stream).unwrap_or(0);
        slot.stream_bytes = header_bytes + call.args.len();
        if plan.long_call {
            let CallSlot { stream, parts, .. } = &mut *slot;
            let (mut rest, mut skip) = (stream.get(..header_bytes).unwrap_or(&[]), true);
            let mut total = header_bytes + call.args.len();
            while total != 0
                && let Some(mut buffer) = bulk.reply.pool.take()
            {
                let mut space = self.port.memory().bytes_mut(&mut buffer);
                let mut bytes = 0;
                while !space.is_empty() && total != 0 {
                    if rest.is_empty() && std::mem::take(&mut skip) {
                        rest = call.args;
                    }
                    let count = rest.len().min(space.len());
                    let (to, behind) = space.split_at_mut(count);
                    let (from, after) = rest.split_at(count);
                    to.copy_from_slice(from);
                    (space, rest) = (behind, after);
                    bytes += count;
                    total -= count;
                }
                let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                push_part(parts, Role::Stream, buffer, bytes);
            }
            self.shared
                .counters
                .bulk_bytes_copied
                .add(slot.stream_bytes as u64);
            slot.stream_bytes = 0;
        } else if let Some(space) = slot.stream.get_mut(header_bytes..slot.stream_bytes) {
            space.copy_from_slice(call.args);
        }
        let mut before = header_bytes;
        let (items, count) = (call.items, call.item_count);
        let mut parts = call.drain();
        for item in items.iter().take(count) {
            let position = u32::try_from(before + item.args_offset).unwrap_or(u32::MAX);
            for part in parts.by_ref().take(item.parts) {
                if part.is_empty() {
                    give_lease(&mut bulk.reply.pool, part);
                    continue;
                }
                let is_bulk = bulk.reply.pool.owns_lease(&part);
                // Checked before: it is of this memory, and starts with its buffer.
                if let Some((buffer, _, bytes)) = part.into_buffer() {
                    push_part(&mut slot.parts, Role::Argument { position }, buffer, bytes);
                    if let Some(part) = slot.parts.last_mut().filter(|_| !is_bulk) {
                        part.index = NO_INDEX;
                    }
                }
            }
            before += (item.bytes as usize).next_multiple_of(4);
        }
        drop(parts);
        for result in call.expected().iter().filter(|it| it.bytes_max != 0) {
            let role = Role::Result { chunk: slot.chunks };
            if let Some(bytes) = slot.chunk_bytes.get_mut(usize::from(slot.chunks)) {
                *bytes = result.bytes_max;
            }
            slot.chunks += 1;
            push_fresh(slot, &mut bulk.reply.pool, role, result.bytes_max);
        }
        slot.results = slot.chunks;
        push_fresh(slot, &mut bulk.reply.pool, Role::Reply, plan.reply_bytes);
        slot.reply_bytes = plan.reply_bytes;
        let rpc_reply_bytes = REPLY_HEADER_BYTES_WITHOUT_AUTH + call.results_bytes_max;
        slot.rpc_reply_bytes_max = u32::try_from(rpc_reply_bytes).unwrap_or(u32::MAX);
        self.set_homes(index);
    }

    /// Has what a call exposes brought back to it.
    pub(in crate::core) fn set_homes(&mut self, index: u32) {
        let bulk = &mut self.bulk;
        let Some(slot) = bulk.calls.get(index as usize) else {
            return;
        };
        for (part, number) in slot.parts.iter().zip(0_u16..) {
            let slot = index;
            let home = Home::Call { slot, part: number };
            bulk.reply.pool.set_home(part.index, home);
        }
    }

    /// A call whose items go in its stream.
    fn start_inline_bulk_call(
        &mut self,
        key: ConnectionKey,
        header: &CallHeader<'_>,
        call: &mut BulkCall<'_>,
        tag: CallTag,
    ) -> Result<(), CallRefused> {
        let rpc_bytes = header.encoded_bytes() + call.whole_args_bytes();
        if rpc_bytes > self.config.message_bytes_max as usize {
            return Err(CallRefused::TooLong);
        }
        let Some(connection) = self.connections.get_mut(key) else {
            return Err(CallRefused::UnknownConnection);
        };
        if !connection.can_call() {
            self.shared.counters.calls_refused_no_credit.increment();
            return Err(CallRefused::NoCredit);
        }
        let Some(mut message) = self.messages.take(Use::CallOut) else {
            self.shared.counters.calls_refused_no_slot.increment();
            return Err(CallRefused::NoSlot);
        };
        let counters = &self.shared.counters;
        write_whole(&mut message, header, call, counters);
        let Some(index) = self.bulk.take_call() else {
            self.messages.give(message);
            return Err(CallRefused::NoSlot);
        };
        let message = OutgoingMessage {
            xid: header.xid,
            direction: Direction::Call,
            buffer: message,
            sent_bytes: 0,
            chunks: None,
        };
        if let Err(message) = self.outgoing.push(&mut connection.outbound, message) {
            self.messages.give(message.buffer);
            self.bulk.free_call(index);
            return Err(CallRefused::NoSlot);
        }
        if let Some(slot) = self.bulk.calls.get_mut(index as usize) {
            (slot.connection, slot.tag, slot.xid) = (key, tag, header.xid);
            slot.stage = CallStage::Waiting;
        }
        for part in call.drain() {
            give_lease(&mut self.bulk.reply.pool, part);
        }
        self.begin_call(key, tag, index);
        self.note_pending(key.index);
        Ok(())
    }

    /// The next step of a call of ours.
    pub(super) fn step_call<A: Application>(&mut self, application: &mut A, index: u32) -> Step {
        let stage = self.bulk.calls.get(index as usize).map(|slot| slot.stage);
        match stage {
            Some(CallStage::Binding) => self.bind_windows(index),
            Some(CallStage::Sending) if self.is_group_call(index) => self.send_group_call(index),
            Some(CallStage::Sending) => self.send_bulk_call(index),
            Some(CallStage::Placing) => self.place_reply(index),
            Some(CallStage::AwaitingInvalidation) => self.take_windows_away(application, index),
            Some(CallStage::Free | CallStage::Waiting) | None => Step::Waits,
        }
    }

    fn is_group_call(&self, index: u32) -> bool {
        let slot = self.bulk.calls.get(index as usize);
        slot.is_some_and(CallSlot::is_group)
    }

    /// Exposes the memory of a call.
    fn bind_windows(&mut self, index: u32) -> Step {
        let bulk = &mut self.bulk;
        let Some(slot) = bulk.calls.get_mut(index as usize) else {
            return Step::Waits;
        };
        let Some(connection) = self.connections.get(slot.connection) else {
            return Step::Waits;
        };
        let counters = &self.shared.counters;
        for part in &mut slot.parts {
            let Some(buffer) = part.buffer.take() else {
                continue;
            };
            let written = matches!(part.role, Role::Result { .. } | Role::Reply);
            let access = Access {
                remote_read: !written,
                remote_write: written,
            };
            let bound = self
                .port
                .bind_window(connection.queue_pair, buffer, part.bytes, access);
            match bound {
                Ok(window) => {
                    part.window = Some(window);
                    slot.windows += 1;
                    bulk.windows_open += 1;
                    counters.windows_bound.increment();
                }
                Err((error, buffer)) => {
                    part.buffer = Some(buffer);
                    return match error {
                        PostError::QueueFull | PostError::NoWindow => {
                            if !std::mem::replace(&mut slot.counted, true) {
                                counters.awaiting_window.increment();
                            }
                            Step::Again
                        }
                        // Its Disconnected is on its way.
                        PostError::NotConnected | PostError::UnknownQueuePair => Step::Waits,
                        // The device does not do it.
                        _ => {
                            let system = CallError::Transport(TransportError::System);
                            slot.answer = Answer::Error(system);
                            slot.stage = CallStage::AwaitingInvalidation;
                            Step::GoesOn
                        }
                    };
                }
            }
        }
        let buffer_bytes = bulk.reply.pool.buffer_bytes();
        let segment_bytes = connection.peer.segment_bytes_max.min(buffer_bytes);
        offer_segments(slot, segment_bytes.max(1));
        slot.counted = false;
        slot.stage = CallStage::Sending;
        Step::GoesOn
    }

    /// Sends a call whose memory is exposed.
    fn send_bulk_call(&mut self, index: u32) -> Step {
        let Some(slot) = self.bulk.calls.get_mut(index as usize) else {
            return Step::Waits;
        };
        let key = slot.connection;
        let Some(connection) = self.connections.get_mut(key).filter(|it| it.is_live()) else {
            return Step::Waits;
        };
        if !connection.can_call() || !self.transmit.has_room() {
            if !std::mem::replace(&mut slot.counted, true) {
                self.shared.counters.awaiting_credit.increment();
            }
            return Step::Again;
        }
        let lists = OfferedLists {
            segments: &slot.segments,
            chunks: slot.chunks,
        };
        let invalidate = match slot.segments.as_slice() {
            // With one window alone nothing is left to be invalidated here.
            [first, rest @ ..] if rest.iter().all(|it| it.part == first.part) => {
                first.target.handle
            }
            _ => 0,
        };
        let scratch = self.transmit.scratch();
        let (xid, call) = (slot.xid, Direction::Call);
        let protocol = &mut connection.protocol;
        let encoded = if slot.stream_bytes == 0 {
            protocol.encode_long_message(scratch, xid, call, invalidate, &lists)
        } else {
            protocol
                .encode_message_with_chunks(
                    scratch,
                    xid,
                    call,
                    invalidate,
                    &lists,
                    slot.stream_bytes,
                )
                .inspect(|&header_bytes| {
                    let space = scratch.get_mut(header_bytes..header_bytes + slot.stream_bytes);
                    let stream = slot.stream.get(..slot.stream_bytes);
                    if let (Some(space), Some(stream)) = (space, stream) {
                        space.copy_from_slice(stream);
                    }
                })
                .map(|header_bytes| header_bytes + slot.stream_bytes)
        };
        let bytes = match encoded {
            Ok(bytes) => bytes,
            Err(SendRefused::TooLong | SendRefused::NoSpace | SendRefused::TooShort) => {
                // The peer's sizes have changed since the call was planned.
                slot.answer = Answer::Error(CallError::Transport(TransportError::System));
                slot.stage = CallStage::AwaitingInvalidation;
                return Step::GoesOn;
            }
            Err(_) => return Step::Again,
        };
        slot.stage = CallStage::Waiting;
        slot.counted = false;
        let counters = &self.shared.counters;
        self.transmit
            .post_scratch(&mut self.port, connection, bytes, counters);
        if connection.stuck.is_some() {
            self.note_pending(key.index);
        }
        Step::Waits
    }
}

fn call_header<'a>(xid: u32, call: &BulkCall<'a>) -> CallHeader<'a> {
    CallHeader {
        xid,
        program: call.call.program,
        version: call.call.version,
        procedure: call.call.procedure,
        credential: call.credential,
        verifier: OpaqueAuth::NONE,
    }
}

/// Writes a whole call, its items in their places. The caller knows that it fits.
pub(super) fn write_whole(
    message: &mut MessageBuffer,
    header: &CallHeader<'_>,
    call: &BulkCall<'_>,
    counters: &Counters,
) {
    let header_bytes = header.encode(message.space()).unwrap_or(0);
    message.set_len(header_bytes);
    // The size was checked: everything fits.
    let mut at = 0;
    let mut parts = call.parts.iter().flatten();
    for item in call.items() {
        let _ = message.append(call.args.get(at..item.args_offset).unwrap_or(&[]));
        at = item.args_offset;
        for part in parts.by_ref().take(item.parts) {
            let _ = message.append(part);
        }
        let bytes = item.bytes as usize;
        let padding = bytes.next_multiple_of(4) - bytes;
        let _ = message.append([0; 3].get(..padding).unwrap_or(&[]));
        counters.bulk_bytes_copied.add(item.bytes.into());
    }
    let _ = message.append(call.args.get(at..).unwrap_or(&[]));
}

pub(in crate::core) fn push_part(
    parts: &mut Vec<CallPart>,
    role: Role,
    buffer: Buffer,
    bytes: u32,
) {
    parts.push(CallPart {
        role,
        bytes,
        written_bytes: 0,
        index: buffer.index(),
        buffer: Some(buffer),
        window: None,
        invalidating: false,
    });
}

pub(in crate::core) fn push_fresh(
    slot: &mut CallSlot,
    pool: &mut BulkPool,
    role: Role,
    bytes: u32,
) {
    let mut rest = bytes;
    while rest != 0
        && let Some(buffer) = pool.take()
    {
        let bytes = rest.min(buffer.capacity());
        rest -= bytes;
        push_part(&mut slot.parts, role, buffer, bytes);
    }
}

/// Names the windows of a call by segments, none of which is longer than the peer takes and than a
/// bulk buffer, as the plan has it.
fn offer_segments(slot: &mut CallSlot, segment_bytes_max: u32) {
    for (part, number) in slot.parts.iter().zip(0_u16..) {
        let Some(window) = &part.window else {
            continue;
        };
        let remote = window.remote();
        let mut done = 0;
        while done < part.bytes {
            let length_bytes = segment_bytes_max.min(part.bytes - done);
            slot.segments.push(OfferedSegment {
                role: part.role,
                target: Segment {
                    handle: remote.key.0,
                    length_bytes,
                    offset: remote.offset.wrapping_add(done.into()),
                },
                part: number,
            });
            done += length_bytes;
        }
    }
}
