//! RDMA Reads of the chunks of peers' calls.

use rpcrdma_fabric::interface::{
    Gather, Port, QueuePairId, RemoteAddress, RemoteKey, Status, WorkId,
};
use rpcrdma_protocol::chunks::Segment;
use rpcrdma_protocol::v2::TransportError;

use super::Incoming;
use super::call::{IncomingCall, IncomingState};
use crate::bulk::BulkPart;
use crate::core::resources::Resources;
use crate::core::step::{Step, slot_of, work_id};

impl Incoming {
    /// Takes the buffers that the chunks of a call are read into: all or none, so that two calls with half of their
    /// buffers cannot wait for each other.
    #[inline(always)]
    pub(super) fn take_read_buffers<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut IncomingCall,
    ) -> Step {
        // First of all: a call that may not have buffers must not become the one that others wait for.
        if !self.may_have_buffers(core, call) {
            return call.wait.on(&core.shared.counters.awaiting_bulk_buffer);
        }
        let pool = &mut core.reply.pool;
        let chunks = call.chunks.iter();
        let buffers = chunks.map(|chunk| pool.buffers_for(chunk.bytes)).sum();
        let starving = &mut self.starving;
        let is_next = starving.is_none_or(|first| first == call.index);
        if buffers != 0 && (!is_next || !pool.has(buffers)) {
            starving.get_or_insert(call.index);
            return call.wait.on(&core.shared.counters.awaiting_bulk_buffer);
        }
        starving.take_if(|first| *first == call.index);
        call.wait.ends();
        for chunk in &call.chunks {
            let mut rest = chunk.bytes;
            while rest != 0
                && let Some(buffer) = pool.take()
            {
                let bytes = rest.min(buffer.capacity());
                rest -= bytes;
                call.read_parts.push(BulkPart::new(buffer, 0, bytes));
            }
        }
        call.state = IncomingState::Reading;
        Step::GoesOn
    }

    /// Posts RDMA Reads of a call, as many as may be in flight.
    #[inline(always)]
    pub(super) fn post_reads<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut IncomingCall,
    ) -> Result<Step, TransportError> {
        let Some(connection) = core.connections.get_mut(call.connection) else {
            return Ok(Step::Waits);
        };
        let (incoming, counters) = (&mut *self, &core.shared.counters);
        while let Some(segment) = call.next_read() {
            if connection.reads_in_flight >= incoming.read_depth {
                return Ok(call.wait.on_connection(&counters.awaiting_read_depth));
            }
            let mut gather = incoming.gathers.pop().unwrap_or_default();
            let before = call.reads;
            let bytes = fill(call, &mut gather, &segment, incoming.segments_max);
            if bytes == 0 {
                // An earlier Read is still filling the next buffer; its completion continues here.
                incoming.gathers.push(gather);
                return Ok(Step::Waits);
            }
            let from = RemoteAddress {
                key: RemoteKey(segment.handle),
                offset: segment.offset.wrapping_add(before.segment_done.into()),
            };
            let work = work_id(call.index, call.generation);
            let posted = core
                .port
                .post_read(connection.queue_pair, gather, from, work);
            if let Err((error, gather)) = posted {
                take_back(call, &mut incoming.gathers, gather);
                call.reads = before;
                return call.wait.not_posted(error, &counters.awaiting_send_slot);
            }
            if call.reads.in_flight == 0 {
                counters.rdma_read_rounds.increment();
            }
            call.reads.in_flight += 1;
            connection.reads_in_flight += 1;
            call.wait.ends();
            counters.rdma_reads.increment();
        }
        if call.reads.in_flight != 0 {
            return Ok(Step::Waits);
        }
        call.wait.ends();
        call.state = IncomingState::Ready;
        Ok(Step::GoesOn)
    }

    /// Handles the completion of an RDMA Read.
    #[cold]
    pub(in crate::core) fn read_ended<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        queue_pair: QueuePairId,
        status: Status,
        work: WorkId,
        mut gather: Gather,
    ) {
        if let Some((place, connection)) = core.connections.of_queue_pair(queue_pair) {
            connection.reads_in_flight = connection.reads_in_flight.saturating_sub(1);
            core.wake(place);
        }
        let (index, generation) = slot_of(work);
        let call = self.calls.get_mut(index);
        let Some(call) = call.filter(|call| call.generation == generation) else {
            // The call was ended with its connection: its buffers go to the pool.
            while let Some((buffer, _, _)) = gather.pop() {
                core.reply.pool.give(buffer);
            }
            return self.gathers.push(gather);
        };
        let bytes = gather.bytes();
        take_back(call, &mut self.gathers, gather);
        // A failed Read stays counted, so that the call is never served: its buffers contain old bytes, perhaps of
        // another peer. The queue pair is in the error state, and the end of the connection ends the call.
        if status == Status::Success {
            core.shared.counters.bulk_bytes_in.add(bytes);
            call.reads.in_flight = call.reads.in_flight.saturating_sub(1);
            self.calls.queue(index);
        }
    }
}

/// Fills a scatter list for the rest of a segment, as far as buffers are here. Returns its bytes.
fn fill(
    call: &mut IncomingCall,
    gather: &mut Gather,
    segment: &Segment,
    segments_max: usize,
) -> u32 {
    let (reads, mut filled) = (&mut call.reads, 0);
    while gather.len() < segments_max && reads.segment_done < segment.length_bytes {
        let Some(part) = call.read_parts.get_mut(reads.part) else {
            break;
        };
        let room = part.bytes - reads.part_done;
        let bytes = room.min(segment.length_bytes - reads.segment_done);
        let Some(buffer) = part.buffer.take() else {
            break;
        };
        if let Err(buffer) = gather.push(buffer, reads.part_done, bytes) {
            part.buffer = Some(buffer);
            break;
        }
        filled += bytes;
        reads.segment_done += bytes;
        if bytes == room {
            reads.part += 1;
            reads.part_done = 0;
        } else {
            reads.part_done += bytes;
        }
    }
    filled
}

/// Returns the buffers of a list to their parts.
fn take_back(call: &mut IncomingCall, gathers: &mut Vec<Gather>, mut gather: Gather) {
    while let Some((buffer, _, _)) = gather.pop() {
        let index = buffer.index();
        let part = call.read_parts.iter_mut().find(|part| part.index == index);
        match part {
            Some(part) => part.buffer = Some(buffer),
            None => debug_assert!(false, "each buffer came from a part"),
        }
    }
    gathers.push(gather);
}
