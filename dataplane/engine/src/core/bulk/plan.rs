//! How a call of ours with bulk data is to travel.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::constants::{
    REPLY_HEADER_BYTES_WITHOUT_AUTH, V2_HEADER_BYTES_WITHOUT_CHUNKS,
};
use rpcrdma_protocol::rpc::OpaqueAuth;
use rpcrdma_protocol::v2::ReverseRequestSupport;
use rpcrdma_protocol::v2::plan::CallPlan;

use crate::application::{CallRefused, ConnectionKey};
use crate::bulk::calls::CALL_PARTS_MAX;
use crate::bulk::lists::list_bytes;
use crate::bulk::{BulkCall, ExpectedResult, Placement};
use crate::connection::Stage;
use crate::core::State;

/// How a call is to travel, and what that takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Plan {
    /// Whether items and results go beside the streams.
    pub(super) by_rdma: bool,
    /// The call itself goes to a Position-Zero Read chunk.
    pub(super) long_call: bool,
    /// Bytes of the Reply chunk; 0 for none.
    pub(super) reply_bytes: u32,
    /// Bulk buffers that it takes.
    pub(super) buffers: usize,
    /// Windows that it takes.
    pub(super) windows: usize,
    /// The call as a transmission group, which then it is.
    pub(super) group: Option<CallPlan>,
}

impl<P: Port> State<P> {
    /// Chooses how a call travels.
    pub(super) fn plan_call(
        &mut self,
        key: ConnectionKey,
        call: &BulkCall<'_>,
    ) -> Result<Plan, CallRefused> {
        let Some(connection) = self.connections.get(key) else {
            return Err(CallRefused::UnknownConnection);
        };
        if connection.stage != Stage::Ready {
            return Err(CallRefused::NotReady);
        }
        if connection.protocol.own_calls() == ReverseRequestSupport::None {
            return Err(CallRefused::NotTaken);
        }
        if !self.bulk.is_on() {
            return Err(CallRefused::NoBulk);
        }
        let memory = self.port.memory();
        if call
            .parts()
            .any(|part| !part.is_of(memory) || part.offset() != 0)
        {
            return Err(CallRefused::ForeignMemory);
        }
        let takes_chunks = connection.protocol.own_calls() == ReverseRequestSupport::General;
        let may_expose = self.bulk.windows_max != 0 && takes_chunks;
        let rpc_bytes = 24 + call.credential.encoded_bytes() + OpaqueAuth::NONE.encoded_bytes();
        let group = self.plan_group(key, call, rpc_bytes, may_expose)?;
        if group.is_some() {
            return Ok(Plan {
                group,
                ..Plan::default()
            });
        }
        let threshold = connection.protocol.send_threshold_bytes() as usize;
        let threshold = threshold.min(self.config.send_buffer_bytes as usize);
        let reply_threshold = connection.protocol.receive_threshold_bytes() as usize;
        let whole_reply = V2_HEADER_BYTES_WITHOUT_CHUNKS
            + REPLY_HEADER_BYTES_WITHOUT_AUTH
            + call.results_bytes_max
            + call.expected().iter().map(padded_result).sum::<usize>();
        let whole = V2_HEADER_BYTES_WITHOUT_CHUNKS + rpc_bytes + call.whole_args_bytes();
        let by_rdma = match call.placement {
            Placement::Inline | Placement::Send => false,
            Placement::Rdma if !may_expose => return Err(CallRefused::NoPlacement),
            Placement::Rdma => true,
            Placement::Auto => may_expose && (whole > threshold || whole_reply > reply_threshold),
        };
        let mut plan = Plan {
            by_rdma,
            ..Plan::default()
        };
        // Version 1 has one message for a call, and one for a reply.
        let inline_bytes = rpc_bytes + call.whole_args_bytes();
        let fits_inline = connection.protocol.can_send_without_chunks(inline_bytes)
            && (!connection.protocol.is_version_1() || whole_reply <= reply_threshold);
        if !by_rdma {
            return if fits_inline {
                Ok(plan)
            } else {
                Err(CallRefused::TooLong)
            };
        }
        let pool = &self.bulk.reply.pool;
        let segment_bytes = connection.peer.segment_bytes_max.max(1);
        let cut = |bytes: u32| bytes.div_ceil(segment_bytes) as usize;
        let buffer_bytes = pool.buffer_bytes();
        // What `bytes` bytes of fresh buffers are cut to: buffers, and segments.
        let fresh = |bytes: u32| {
            let (full, rest) = (bytes / buffer_bytes.max(1), bytes % buffer_bytes.max(1));
            (
                pool.buffers_for(bytes),
                full as usize * cut(buffer_bytes) + cut(rest),
            )
        };
        let items = call.parts().filter(|part| !part.is_empty());
        let items = items.map(|part| cut(u32::try_from(part.len()).unwrap_or(u32::MAX)));
        let (mut windows, mut reads) =
            items.fold((0, 0), |(parts, segments), cut| (parts + 1, segments + cut));
        let (mut chunks, mut writes) = (0, 0);
        for result in call.expected().iter().filter(|it| it.bytes_max != 0) {
            let (buffers, segments) = fresh(result.bytes_max);
            chunks += 1;
            writes += segments;
            plan.buffers += buffers;
        }
        let streamed_reply = V2_HEADER_BYTES_WITHOUT_CHUNKS
            + list_bytes(0, chunks, writes, 0)
            + REPLY_HEADER_BYTES_WITHOUT_AUTH
            + call.results_bytes_max;
        let mut reply = 0;
        if streamed_reply > reply_threshold {
            let bytes = REPLY_HEADER_BYTES_WITHOUT_AUTH + call.results_bytes_max;
            plan.reply_bytes = u32::try_from(bytes).map_err(|_| CallRefused::TooLong)?;
            let (buffers, segments) = fresh(plan.reply_bytes);
            plan.buffers += buffers;
            reply = segments;
        }
        let lists = list_bytes(reads, chunks, writes, reply);
        let rpc_bytes = rpc_bytes + call.args.len();
        plan.long_call = V2_HEADER_BYTES_WITHOUT_CHUNKS + lists + rpc_bytes > threshold;
        if plan.long_call {
            let bytes = u32::try_from(rpc_bytes).map_err(|_| CallRefused::TooLong)?;
            let (buffers, segments) = fresh(bytes);
            plan.buffers += buffers;
            reads += segments;
        }
        windows += plan.buffers;
        plan.windows = windows;
        let lists = list_bytes(reads, chunks, writes, reply);
        let is_too_long = V2_HEADER_BYTES_WITHOUT_CHUNKS + lists > threshold
            || reads + writes + reply > connection.peer.segment_count_max as usize
            || windows > CALL_PARTS_MAX
            || plan.buffers > pool.total();
        if !is_too_long {
            return Ok(plan);
        }
        // Too many pieces for the peer, or for us.
        match call.placement {
            Placement::Auto if fits_inline => Ok(Plan::default()),
            _ => Err(CallRefused::TooLong),
        }
    }
}

fn padded_result(result: &ExpectedResult) -> usize {
    (result.bytes_max as usize).next_multiple_of(4)
}
