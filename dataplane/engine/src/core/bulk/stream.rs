//! Calls of ours whose items may not, or need not, go beside their streams, and that no message holds: version 1 has
//! whole streams in the Position-Zero Read chunk and in the Reply chunk (RFC 8166 section 3.5.3).

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::constants::{
    REPLY_HEADER_BYTES_WITHOUT_AUTH, V2_HEADER_BYTES_WITHOUT_CHUNKS,
};
use rpcrdma_protocol::rpc::{CallHeader, OpaqueAuth};

use super::call::{push_fresh, push_part, write_whole};
use super::plan::Plan;
use crate::application::{CallRefused, CallTag, ConnectionKey};
use crate::bulk::calls::{CALL_PARTS_MAX, CallStage};
use crate::bulk::lists::{Role, list_bytes};
use crate::bulk::{BulkCall, ExpectedResult, Work, give_lease};
use crate::core::State;
use crate::message::Use;

impl<P: Port> State<P> {
    /// The plan for such a call.
    pub(super) fn plan_in_stream(
        &self,
        key: ConnectionKey,
        call: &BulkCall<'_>,
    ) -> Result<Plan, CallRefused> {
        let Some(connection) = self.connections.get(key) else {
            return Err(CallRefused::UnknownConnection);
        };
        let header_bytes = V2_HEADER_BYTES_WITHOUT_CHUNKS;
        let threshold = connection.protocol.send_threshold_bytes() as usize;
        let threshold = threshold.min(self.config.send_buffer_bytes as usize);
        let reply_threshold = connection.protocol.receive_threshold_bytes() as usize;
        let rpc_bytes = 24
            + call.credential.encoded_bytes()
            + OpaqueAuth::NONE.encoded_bytes()
            + call.whole_args_bytes();
        let results = call.expected().iter().map(padded_result).sum::<usize>();
        let reply_bytes = REPLY_HEADER_BYTES_WITHOUT_AUTH + call.results_bytes_max + results;
        if rpc_bytes.max(reply_bytes) > self.config.message_bytes_max as usize {
            return Err(CallRefused::TooLong);
        }
        let pool = &self.bulk.reply.pool;
        let segment_bytes = connection.peer.segment_bytes_max.max(1);
        let segments = |bytes: usize| {
            let cut = pool.buffer_bytes().min(segment_bytes).max(1) as usize;
            bytes.div_ceil(cut)
        };
        let buffers = |bytes: usize| pool.buffers_for(u32::try_from(bytes).unwrap_or(u32::MAX));
        let mut plan = Plan {
            by_rdma: true,
            in_stream: true,
            ..Plan::default()
        };
        let mut reply_segments = 0;
        if header_bytes + reply_bytes > reply_threshold {
            plan.reply_bytes = u32::try_from(reply_bytes).unwrap_or(u32::MAX);
            plan.buffers += buffers(reply_bytes);
            reply_segments = segments(reply_bytes);
        }
        let mut read_segments = 0;
        plan.long_call = header_bytes + list_bytes(0, 0, 0, reply_segments) + rpc_bytes > threshold;
        if plan.long_call {
            plan.buffers += buffers(rpc_bytes);
            read_segments = segments(rpc_bytes);
        }
        plan.windows = plan.buffers;
        let lists = list_bytes(read_segments, 0, 0, reply_segments);
        let is_too_long = header_bytes + lists > threshold
            || read_segments + reply_segments > connection.peer.segment_count_max as usize
            || plan.buffers > CALL_PARTS_MAX
            || plan.buffers > pool.total();
        if is_too_long {
            return Err(CallRefused::TooLong);
        }
        Ok(plan)
    }

    /// Begins such a call: there is room for it.
    pub(super) fn start_stream_call(
        &mut self,
        key: ConnectionKey,
        header: &CallHeader<'_>,
        call: &mut BulkCall<'_>,
        tag: CallTag,
        plan: &Plan,
    ) -> Result<(), CallRefused> {
        let Some(mut message) = self.messages.take(Use::CallOut) else {
            self.shared.counters.calls_refused_no_slot.increment();
            return Err(CallRefused::NoSlot);
        };
        let Some(index) = self.bulk.take_call() else {
            self.messages.give(message);
            return Err(CallRefused::NoSlot);
        };
        let counters = &self.shared.counters;
        write_whole(&mut message, header, call, counters);
        let bulk = &mut self.bulk;
        if let Some(slot) = bulk.calls.get_mut(index as usize) {
            let stream = message.filled();
            slot.stream_bytes = 0;
            if plan.long_call {
                let memory = self.port.memory();
                for piece in stream.chunks(bulk.reply.pool.buffer_bytes().max(1) as usize) {
                    let Some(mut buffer) = bulk.reply.pool.take() else {
                        break;
                    };
                    if let Some(space) = memory.bytes_mut(&mut buffer).get_mut(..piece.len()) {
                        space.copy_from_slice(piece);
                    }
                    let bytes = u32::try_from(piece.len()).unwrap_or(u32::MAX);
                    push_part(&mut slot.parts, Role::Stream, buffer, bytes);
                }
                counters.bulk_bytes_copied.add(stream.len() as u64);
            } else if let Some(space) = slot.stream.get_mut(..stream.len()) {
                space.copy_from_slice(stream);
                slot.stream_bytes = stream.len();
            }
            push_fresh(slot, &mut bulk.reply.pool, Role::Reply, plan.reply_bytes);
            slot.reply_bytes = plan.reply_bytes;
            (slot.connection, slot.tag, slot.xid) = (key, tag, header.xid);
            slot.stage = CallStage::Binding;
        }
        self.messages.give(message);
        for part in call.drain() {
            give_lease(&mut self.bulk.reply.pool, part);
        }
        self.set_homes(index);
        self.begin_call(key, tag, index);
        self.bulk.queue(Work::Call(index));
        Ok(())
    }
}

fn padded_result(result: &ExpectedResult) -> usize {
    (result.bytes_max as usize).next_multiple_of(4)
}
