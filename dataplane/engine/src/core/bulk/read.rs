//! RDMA Reads of the chunks of peers' calls.

use rpcrdma_fabric::interface::{
    Gather, Port, PostError, QueuePairId, RemoteAddress, RemoteKey, Status, WorkId,
};
use rpcrdma_protocol::chunks::Segment;
use rpcrdma_protocol::v2::TransportError;

use super::Step;
use crate::bulk::serves::{ServeSlot, ServeStage};
use crate::bulk::{Work, slot_of, work_id};
use crate::core::State;

impl<P: Port> State<P> {
    /// Posts RDMA Reads of a call, as many as may be in flight.
    pub(super) fn post_reads(&mut self, index: u32) -> Step {
        let Some(slot) = self.bulk.serves.get_mut(index as usize) else {
            return Step::Waits;
        };
        let Some(connection) = self.connections.get_mut(slot.connection) else {
            return Step::Waits;
        };
        let counters = &self.shared.counters;
        while let Some(segment) = slot.next_read() {
            if connection.reads_in_flight >= self.bulk.read_depth {
                if !std::mem::replace(&mut slot.counted, true) {
                    counters.awaiting_read_depth.increment();
                }
                return Step::Again;
            }
            let mut gather = self.bulk.gathers.pop().unwrap_or_default();
            let before = slot.reads;
            let bytes = fill(slot, &mut gather, &segment, self.bulk.segments_max);
            if bytes == 0 {
                // The next buffer is being filled still: its end goes on with this.
                self.bulk.gathers.push(gather);
                return Step::Waits;
            }
            let from = RemoteAddress {
                key: RemoteKey(segment.handle),
                offset: segment.offset.wrapping_add(before.segment_done.into()),
            };
            let work = work_id(index, slot.generation);
            match self
                .port
                .post_read(connection.queue_pair, gather, from, work)
            {
                Ok(()) => {
                    if slot.reads.in_flight == 0 {
                        counters.rdma_read_rounds.increment();
                    }
                    slot.reads.in_flight += 1;
                    connection.reads_in_flight += 1;
                    slot.counted = false;
                    counters.rdma_reads.increment();
                }
                Err((error, gather)) => {
                    take_back(slot, &mut self.bulk.gathers, gather);
                    slot.reads = before;
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
        if slot.reads.in_flight != 0 {
            return Step::Waits;
        }
        slot.counted = false;
        slot.stage = ServeStage::Ready;
        Step::GoesOn
    }

    /// An RDMA Read has ended.
    #[cold]
    pub(in crate::core) fn read_ended(
        &mut self,
        queue_pair: QueuePairId,
        status: Status,
        work: WorkId,
        gather: Gather,
    ) {
        if let Some((_, connection)) = self.connections.of_queue_pair(queue_pair) {
            connection.reads_in_flight = connection.reads_in_flight.saturating_sub(1);
        }
        let (index, generation) = slot_of(work);
        let slot = self.bulk.serves.get_mut(index as usize);
        let Some(slot) = slot.filter(|slot| slot.generation == generation) else {
            // Its connection is closing, and the call is gone.
            return self.bulk.give_gather(gather);
        };
        if status == Status::Success {
            self.shared.counters.bulk_bytes_in.add(gather.bytes());
        }
        slot.reads.in_flight = slot.reads.in_flight.saturating_sub(1);
        take_back(slot, &mut self.bulk.gathers, gather);
        if status == Status::Success {
            self.bulk.queue(Work::Serve(index));
        }
    }
}

/// Fills a scatter list for what is left of a segment, as far as buffers are there. The bytes.
fn fill(slot: &mut ServeSlot, gather: &mut Gather, segment: &Segment, segments_max: usize) -> u32 {
    let mut filled = 0;
    while gather.len() < segments_max && slot.reads.segment_done < segment.length_bytes {
        let Some(part) = slot.read_parts.get_mut(slot.reads.part) else {
            break;
        };
        let room = part.bytes - slot.reads.part_done;
        let bytes = room.min(segment.length_bytes - slot.reads.segment_done);
        let Some(buffer) = part.buffer.take() else {
            break;
        };
        if let Err(buffer) = gather.push(buffer, slot.reads.part_done, bytes) {
            part.buffer = Some(buffer);
            break;
        }
        filled += bytes;
        slot.reads.segment_done += bytes;
        if bytes == room {
            slot.reads.part += 1;
            slot.reads.part_done = 0;
        } else {
            slot.reads.part_done += bytes;
        }
    }
    filled
}

/// Puts the buffers of a list back to their parts.
fn take_back(slot: &mut ServeSlot, gathers: &mut Vec<Gather>, mut gather: Gather) {
    while let Some((buffer, _, _)) = gather.pop() {
        let index = buffer.index();
        let part = slot.read_parts.iter_mut().find(|part| part.index == index);
        match part {
            Some(part) => part.buffer = Some(buffer),
            None => debug_assert!(false, "each buffer came from a part"),
        }
    }
    gathers.push(gather);
}
