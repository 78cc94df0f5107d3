//! RDMA Writes of replies: results to Write chunks or to the memory that directions offer, and long replies to the
//! Reply chunk (-00 section 6.5).

use rpcrdma_fabric::interface::{Gather, Port, RemoteAddress, RemoteKey};
use rpcrdma_protocol::v2::TransportError;

use super::Incoming;
use super::call::{IncomingCall, RpcReply, Target, WriteCursor, WritePart};
use super::staying::Pieces;
use crate::bulk::{BulkPart, BulkPool, Home};
use crate::core::resources::Resources;
use crate::core::step::Step;

impl Incoming {
    /// Posts the RDMA Writes of a reply.
    #[inline(always)]
    pub(super) fn post_writes<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut IncomingCall,
    ) -> Result<Step, TransportError> {
        let Some(connection) = core.connections.get_mut(call.connection) else {
            return Ok(Step::Waits);
        };
        let pool = &mut core.reply.pool;
        let (writing, segments_max) = (&mut self.writing, self.segments_max);
        let counters = &core.shared.counters;
        while call.writes.part < call.write_parts.len() {
            let before = call.writes;
            let Some(to) = fill(call, pool, writing, segments_max) else {
                if call.writes.part >= call.write_parts.len() {
                    break;
                }
                // An earlier Write still has the buffer, for the previous segment; its return continues here.
                return Ok(Step::Waits);
            };
            let bytes = writing.bytes();
            let posted = core
                .port
                .post_write(connection.queue_pair, writing, to, None);
            if let Err(error) = posted {
                take_back(call, pool, writing);
                call.writes = before;
                return call.wait.not_posted(error, &counters.awaiting_send_slot);
            }
            call.wait.ends();
            counters.rdma_writes.increment();
            counters.bulk_bytes_out.add(bytes);
        }
        Ok(Step::GoesOn)
    }

    /// Prepares the stream of a reply to be written to the Reply chunk: its own bytes are copied to bulk buffers, its
    /// items stay where they are. False while there are no buffers for it.
    pub(super) fn fill_reply_chunk<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut IncomingCall,
    ) -> bool {
        let Some(reply_bytes) = call.for_reply_chunk else {
            return true;
        };
        let (pool, ordered) = (&mut core.reply.pool, &mut self.ordered);
        let pieces = Pieces::new(call.rpc_reply(), &call.results);
        let buffers = pieces.map(|piece| pool.buffers_for(piece.len())).sum();
        if !pool.has(buffers) {
            return false;
        }
        let memory = core.port.memory();
        debug_assert!(ordered.is_empty(), "it is used here alone");
        std::mem::swap(ordered, &mut call.write_parts);
        let mut parts = ordered.drain(..).peekable();
        let IncomingCall {
            reply,
            reply_space,
            results,
            write_parts,
            ..
        } = call;
        while let Some(part) = parts.next_if(|part| part.target != Target::Reply) {
            write_parts.push(part);
        }
        let stream = reply.stream(reply_space);
        for (number, mut piece) in Pieces::new(stream, results).enumerate() {
            while piece.len() != 0
                && let Some(mut buffer) = pool.take()
            {
                let bytes = piece.copy_to(memory.bytes_mut(&mut buffer));
                let part = BulkPart::new(buffer, 0, bytes);
                write_parts.push(WritePart::new(part, Target::Reply));
            }
            let mut item_bytes = results.get(number).map_or(0, |result| result.bytes);
            while item_bytes != 0
                && let Some(part) = parts.next()
            {
                item_bytes -= item_bytes.min(part.bytes);
                write_parts.push(part);
            }
        }
        drop(parts);
        let copied_bytes = stream.len() as u64;
        core.shared.counters.bulk_bytes_copied.add(copied_bytes);
        if let RpcReply::Long(message) = std::mem::replace(reply, RpcReply::InChunk(reply_bytes)) {
            core.messages.give(message);
        }
        call.for_reply_chunk = None;
        true
    }
}

/// Fills a gather list for the next RDMA Write of a reply, and returns its target. `None` when nothing is left to
/// write, or an earlier Write still has the next buffer.
#[inline(always)]
fn fill(
    call: &mut IncomingCall,
    pool: &mut BulkPool,
    gather: &mut Gather,
    segments_max: usize,
) -> Option<RemoteAddress> {
    loop {
        let part = call.write_parts.get(call.writes.part)?;
        if part.done == part.bytes && part.buffer.is_none() {
            advance_part(call);
            continue;
        }
        let target = part.target;
        let segment = call.written_segments(target)?.nth(call.writes.segment)?;
        let room = segment.length_bytes - call.writes.segment_done;
        if room == 0 {
            call.writes.segment += 1;
            call.writes.segment_done = 0;
            continue;
        }
        let to = RemoteAddress {
            key: RemoteKey(segment.handle),
            offset: segment.offset.wrapping_add(call.writes.segment_done.into()),
        };
        return fill_segment(call, pool, gather, (target, room), segments_max).then_some(to);
    }
}

/// Fills the list with parts of `target`, up to `room` bytes. Returns whether there were any.
fn fill_segment(
    call: &mut IncomingCall,
    pool: &mut BulkPool,
    gather: &mut Gather,
    (target, room): (Target, u32),
    segments_max: usize,
) -> bool {
    let mut room = room;
    // Written buffers of a group reply come back to the call, which keeps them for a resend.
    let is_group = call.is_group();
    while room != 0 && gather.len() < segments_max {
        let number = call.writes.part;
        let Some(part) = call.write_parts.get_mut(number) else {
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
        call.writes.segment_done += bytes;
        room -= bytes;
        let is_whole = part.done == part.bytes;
        if !is_whole || is_group {
            let (slot, number) = (call.index, u16::try_from(number).unwrap_or(u16::MAX));
            pool.set_home(part.index, Home::Reply { slot, part: number });
        }
        if !is_whole {
            break;
        }
        advance_part(call);
    }
    !gather.is_empty()
}

/// Moves the cursor to the next part, which may be of another chunk.
fn advance_part(call: &mut IncomingCall) {
    let before = call.write_parts.get(call.writes.part).map(|it| it.target);
    call.writes.part += 1;
    let after = call.write_parts.get(call.writes.part).map(|it| it.target);
    if before != after {
        call.writes = WriteCursor {
            part: call.writes.part,
            ..WriteCursor::default()
        };
    }
}

/// Returns the buffers of a list that was not posted to their parts.
fn take_back(call: &mut IncomingCall, pool: &mut BulkPool, gather: &mut Gather) {
    while let Some((buffer, _, bytes)) = gather.pop() {
        let index = buffer.index();
        // Buffers of different pools may have the same index: only a part without a buffer can be meant.
        let mut parts = call.write_parts.iter_mut().rev();
        let is_it = |part: &&mut WritePart| {
            part.index == index && part.buffer.is_none() && part.done >= bytes
        };
        match parts.find(is_it) {
            Some(part) => {
                part.done -= bytes;
                part.buffer = Some(buffer);
                pool.set_home(index, Home::Pool);
            }
            None => debug_assert!(false, "each buffer came from a part"),
        }
    }
}
