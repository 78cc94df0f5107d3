//! How a call of ours with bulk data is to travel.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::constants::REPLY_HEADER_BYTES_WITHOUT_AUTH;
use rpcrdma_protocol::rpc::OpaqueAuth;
use rpcrdma_protocol::v2::plan::{
    CallFacts, CallForm, CallPlan, Demand, ExpectedResult as PlannedResult, SenderMeans,
    Thresholds, plan_call,
};
use rpcrdma_protocol::v2::rtr::RtrSupport;
use rpcrdma_protocol::v2::{Properties, ReverseRequestSupport};

use crate::application::{CallRefused, ConnectionKey};
use crate::bulk::calls::CALL_PARTS_MAX;
use crate::bulk::{BULK_ITEMS_MAX, BulkCall, Placement};
use crate::config::PADDING_BYTES;
use crate::connection::Stage;
use crate::core::State;
use crate::core::group::Items;

/// How a call is to travel, and what that takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Plan {
    /// Whether items and results go beside the streams.
    pub(super) by_rdma: bool,
    /// The call itself goes to a Position-Zero Read chunk.
    pub(super) long_call: bool,
    /// Items go in the call's stream, and results in the reply's, which go to chunks whole where they
    /// do not fit a message.
    pub(super) in_stream: bool,
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
        let may_expose = self.bulk.windows_max != 0 && connection.calls_may_have_chunks();
        let rpc_bytes = 24 + call.credential.encoded_bytes() + OpaqueAuth::NONE.encoded_bytes();
        let may_reduce = call.credential.permits_reduction();
        let group = match may_reduce {
            true => self.plan_group(key, call, rpc_bytes, may_expose)?,
            false => None,
        };
        if group.is_some() {
            return Ok(Plan {
                group,
                ..Plan::default()
            });
        }
        let demand = match call.placement {
            Placement::Inline | Placement::Send => Demand::Inline,
            Placement::Rdma if !may_expose || !may_reduce => return Err(CallRefused::NoPlacement),
            Placement::Rdma => Demand::Rdma,
            Placement::Auto if !may_reduce => Demand::Inline,
            Placement::Auto => Demand::Auto,
        };
        let reply_bytes = REPLY_HEADER_BYTES_WITHOUT_AUTH + call.results_bytes_max;
        let stream_bytes = rpc_bytes + call.args.len();
        let (Ok(stream_bytes), Ok(reply_stream_bytes_max)) =
            (u32::try_from(stream_bytes), u32::try_from(reply_bytes))
        else {
            return Err(CallRefused::TooLong);
        };
        let mut results = [PlannedResult::default(); BULK_ITEMS_MAX];
        for (place, expected) in results.iter_mut().zip(call.expected()) {
            place.bytes_max = expected.bytes_max;
        }
        // Version 1 has one message for a call, and one for a reply.
        let message_bytes_max = match connection.protocol.is_version_1() {
            true => 0,
            false => self.config.message_bytes_max,
        };
        let own = Properties {
            rtr_support: RtrSupport::NONE,
            receive_buffer_bytes: connection.protocol.receive_threshold_bytes(),
            ..*connection.protocol.properties()
        };
        let peer = Properties {
            // What limits a message either way is told by the thresholds.
            send_bytes_max: u32::MAX,
            receive_buffer_bytes: connection.protocol.send_threshold_bytes(),
            ..connection.peer
        };
        let parts_max = u32::try_from(CALL_PARTS_MAX).unwrap_or(u32::MAX);
        let pool = &self.bulk.reply.pool;
        let plan = plan_call(&CallFacts {
            demand,
            thresholds: Thresholds {
                // A call that has chunks has all its items in them.
                inline_item_bytes_max: 0,
                ..self.config.thresholds
            },
            stream_bytes,
            items: &Items(call),
            reply_stream_bytes_max,
            results: results.get(..call.expected().len()).unwrap_or(&[]),
            means: SenderMeans {
                send_bytes_max: own.send_bytes_max,
                gather_entries_max: self.gather_entries_max(),
                padding_region_bytes: PADDING_BYTES,
                message_bytes_max,
                credits: connection.credits_for_calls(),
            },
            plain_send_bytes_max: self.config.send_buffer_bytes,
            continues_with_chunks: false,
            credits_max: 1,
            own: &own,
            peer: &peer,
            peer_read_chunks_max: u32::MAX,
            peer_write_chunks_max: u32::MAX,
            windows: match may_expose {
                true => self.bulk.windows_max.min(parts_max),
                false => 0,
            },
            window_bytes_max: pool.buffer_bytes(),
            reply_bytes_max: message_bytes_max,
            reply_credits: 1,
        });
        let plan = match plan {
            Ok(plan) => plan,
            Err(_) if may_expose && connection.protocol.is_version_1() => {
                return self.plan_in_stream(key, call);
            }
            Err(_) => return Err(CallRefused::TooLong),
        };
        let long_call = plan.form == CallForm::Long;
        let reply_chunk_bytes = plan.reply.reply_chunk_bytes;
        if plan.windows_needed == 0 && !long_call {
            return Ok(Plan::default());
        }
        let lengths = call.expected().iter().map(|it| it.bytes_max);
        let long_bytes = if long_call { plan.stream_bytes } else { 0 };
        let fresh = lengths.chain([reply_chunk_bytes, long_bytes]);
        let buffers = fresh.map(|bytes| pool.buffers_for(bytes)).sum();
        if buffers > pool.total() {
            return Err(CallRefused::TooLong);
        }
        let items = call.parts().filter(|part| !part.is_empty()).count();
        Ok(Plan {
            by_rdma: true,
            in_stream: false,
            long_call,
            reply_bytes: reply_chunk_bytes,
            buffers,
            windows: buffers + items,
            group: None,
        })
    }
}
