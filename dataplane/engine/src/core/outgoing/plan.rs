//! Chooses the form of a call of ours with bulk data.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::constants::REPLY_HEADER_BYTES_WITHOUT_AUTH;
use rpcrdma_protocol::v2::ReverseRequestSupport;
use rpcrdma_protocol::v2::plan::layout::BulkItems;
use rpcrdma_protocol::v2::plan::{
    CallFacts, CallForm, CallPlan, Demand, Direction, ExpectedResult as PlannedResult, SenderMeans,
    plan_call,
};
use rpcrdma_protocol::v2::rtr::{RtrSupport, StreamRange};

use super::Outgoing;
use super::call::CALL_PARTS_MAX;
use super::memo::{ChunkTerms, ChunksMemo, Exposed, PlanMemo, PlanShape};
use crate::bulk::{
    BULK_ITEMS_MAX, BulkCall, BulkPool, ExpectedResult, ITEM_PARTS_MAX, Placement, is_foreign,
};
use crate::config::PADDING_BYTES;
use crate::connection::{Connection, Stage};
use crate::core::resources::Resources;
use crate::rpc::{CallRefused, ConnectionKey};

/// The form of a call.
pub(super) enum Plan {
    /// In messages, with its items in the stream; likewise its results.
    Inline,
    /// Its items and results are in chunks.
    Chunks(Exposed),
    /// Its items stay in the stream, its results in that of the reply. A stream that fits no message is in a chunk.
    Stream(Exposed),
    /// A transmission group, by the plan in `plan_memo`.
    GroupAsBefore,
    /// A transmission group, by the plan in `last_plan`.
    Group,
}

impl Plan {
    /// How many bulk buffers and windows the call takes; `group` is its plan if it is a transmission group.
    #[inline(always)]
    pub(super) fn needs(
        &self,
        call: &BulkCall<'_>,
        group: Option<&CallPlan>,
        pool: &BulkPool,
    ) -> (usize, usize) {
        match (self, group) {
            (Self::Inline, _) | (Self::GroupAsBefore | Self::Group, None) => (0, 0),
            (Self::Chunks(exposed) | Self::Stream(exposed), _) => {
                (exposed.buffers, exposed.windows)
            }
            (Self::GroupAsBefore | Self::Group, Some(plan)) => {
                let expected = call.expected().iter().zip(&plan.reply.directions);
                let fresh = expected.filter(|(_, way)| has_memory(**way));
                let buffers = fresh.map(|(expected, _)| pool.buffers_for(expected.bytes_max));
                (buffers.sum(), plan.windows_needed as usize)
            }
        }
    }
}

impl Outgoing {
    /// Chooses the form of a call.
    pub(super) fn plan_outgoing<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        key: ConnectionKey,
        call: &BulkCall<'_>,
    ) -> Result<Plan, CallRefused> {
        let connection = core.connections.get(key);
        let connection = connection.ok_or(CallRefused::UnknownConnection)?;
        if connection.stage != Stage::Ready {
            return Err(CallRefused::NotReady);
        }
        if connection.protocol.own_calls() == ReverseRequestSupport::None {
            return Err(CallRefused::NotTaken);
        }
        if !core.has_bulk {
            return Err(CallRefused::NoBulk);
        }
        let memory = core.port.memory();
        // Two loops: a chain of both is not put in line.
        if call.parts().iter().any(|piece| piece.is_foreign(memory))
            || call.targets.iter().any(|(_, it)| is_foreign(it, memory))
        {
            return Err(CallRefused::ForeignMemory);
        }
        let may_expose = self.may_expose(connection);
        let rpc_bytes = call.header(0).encoded_bytes();
        let may_reduce = call.credential.permits_reduction();
        // The Sends of a reply place results in segments of this core.
        let has_targets = !call.targets.is_empty();
        let is_placed = matches!(call.placement, Placement::Auto | Placement::Send) && !has_targets;
        if may_reduce && is_placed {
            if self.has_plan_for(core, connection, key, call, rpc_bytes) {
                return Ok(Plan::GroupAsBefore);
            }
            if let Some(plan) = self.plan_group(core, connection, call, rpc_bytes)? {
                self.remember_plan(core, key, call, rpc_bytes, &plan);
                self.last_plan = Some(plan);
                return Ok(Plan::Group);
            }
        }
        let demand = match call.placement {
            Placement::Inline | Placement::Send => Demand::Inline,
            Placement::Rdma if !may_expose || !may_reduce => return Err(CallRefused::NoPlacement),
            Placement::Rdma => Demand::Rdma,
            Placement::Auto if !may_reduce => Demand::Inline,
            Placement::Auto if has_targets && may_expose => Demand::Rdma,
            Placement::Auto => Demand::Auto,
        };
        let terms = ChunkTerms {
            demand,
            may_expose,
            is_version_1: connection.protocol.is_version_1(),
        };
        let shape = PlanShape::of(key, call, rpc_bytes, core.properties_epoch);
        if let (Some(memo), Some(shape)) = (self.chunks_memo.of(key), &shape)
            && (memo.shape, memo.terms) == (*shape, terms)
        {
            return Ok(Plan::Chunks(memo.exposed));
        }
        let plan = self.plan_plain(core, connection, call, rpc_bytes, demand)?;
        if let (Plan::Chunks(exposed), Some(shape)) = (&plan, shape) {
            *self.chunks_memo.of_mut(key) = Some(ChunksMemo {
                shape,
                terms,
                exposed: *exposed,
            });
        }
        Ok(plan)
    }

    /// Chooses the form of a call that is no transmission group.
    fn plan_plain<P: Port>(
        &self,
        core: &Resources<P>,
        connection: &Connection,
        call: &BulkCall<'_>,
        rpc_bytes: usize,
        demand: Demand,
    ) -> Result<Plan, CallRefused> {
        let plan = |demand, way| self.plan_call(core, connection, call, rpc_bytes, demand, way);
        let chunked = plan(demand, Way::Chunks);
        // Version 1 has no messages in parts: a stream that is too long has to be in a chunk.
        let in_stream =
            chunked.is_none() && connection.protocol.is_version_1() && self.may_expose(connection);
        let plan = match in_stream {
            true => plan(Demand::Auto, Way::Stream),
            false => chunked,
        };
        let plan = plan.ok_or(CallRefused::TooLong)?;
        let (long_call, reply_bytes) = (plan.form == CallForm::Long, plan.reply.reply_chunk_bytes);
        if plan.windows_needed == 0 && !long_call {
            return Ok(Plan::Inline);
        }
        let pool = &core.reply.pool;
        let beside = !in_stream;
        let targets = call.targets.iter().filter(|_| beside);
        let results = call.expected().iter().enumerate();
        let results = results.filter(|(number, _)| {
            beside && (call.targets.is_empty() || call.targets_of(*number) == 0)
        });
        let items = call
            .parts()
            .iter()
            .filter(|part| beside && !part.is_empty());
        let long_bytes = if long_call { plan.stream_bytes } else { 0 };
        let fresh = results
            .map(|(_, it)| it.bytes_max)
            .chain([reply_bytes, long_bytes]);
        let buffers = fresh.map(|bytes| pool.buffers_for(bytes)).sum();
        let longest = plan.stream_bytes.max(reply_bytes);
        let is_too_long = in_stream && longest > core.config.message_bytes_max;
        if is_too_long || buffers > pool.call_buffers_max() {
            return Err(CallRefused::TooLong);
        }
        let exposed = Exposed {
            long_call,
            reply_bytes,
            buffers,
            windows: buffers + items.count() + targets.count(),
        };
        Ok(match in_stream {
            true => Plan::Stream(exposed),
            false => Plan::Chunks(exposed),
        })
    }

    /// Whether the kept plan has the same inputs as this call, and the credits that it needs are available.
    #[inline(always)]
    pub(super) fn has_plan_for<P: Port>(
        &self,
        core: &Resources<P>,
        connection: &Connection,
        key: ConnectionKey,
        call: &BulkCall<'_>,
        rpc_header_bytes: usize,
    ) -> bool {
        let Some(PlanMemo { shape, plan }) = self.plan_memo.of(key) else {
            return false;
        };
        if PlanShape::of(key, call, rpc_header_bytes, core.properties_epoch).as_ref() != Some(shape)
        {
            return false;
        }
        let group_max = connection.group_transmissions_max();
        let credits = match call.placement {
            Placement::Send => group_max,
            // At least one: any call may wait for one credit, as in `plan_call`.
            _ => connection.credits_for_calls().min(group_max).max(1),
        };
        let reply_credits = connection.reply_credits();
        plan.credits_needed <= credits && plan.reply.transmissions_max <= reply_credits
    }

    /// Keeps the plan of a call, unless it exposes memory: such a plan depends on more than its shape.
    pub(super) fn remember_plan<P: Port>(
        &mut self,
        core: &Resources<P>,
        key: ConnectionKey,
        call: &BulkCall<'_>,
        rpc_header_bytes: usize,
        plan: &CallPlan,
    ) {
        let Some(shape) = PlanShape::of(key, call, rpc_header_bytes, core.properties_epoch) else {
            return;
        };
        let memo = self.plan_memo.of_mut(key);
        if memo.as_ref().is_some_and(|it| it.shape == shape) {
            return;
        }
        let exposes = |way: &Direction| !matches!(way, Direction::Inline | Direction::Placed);
        if !plan.items.iter().chain(&plan.reply.directions).any(exposes) {
            *memo = Some(PlanMemo { shape, plan: *plan });
        }
    }

    /// The plan of a call that was planned as a transmission group.
    pub(super) fn group_plan(&self, key: ConnectionKey, plan: &Plan) -> Option<&CallPlan> {
        match plan {
            Plan::GroupAsBefore => self.plan_memo.of(key).as_ref().map(|memo| &memo.plan),
            Plan::Group => self.last_plan.as_ref(),
            Plan::Inline | Plan::Chunks(_) | Plan::Stream(_) => None,
        }
    }

    /// Whether calls on a connection may expose memory to its peer.
    fn may_expose(&self, connection: &Connection) -> bool {
        self.windows_max != 0 && connection.calls_may_have_chunks()
    }

    /// Plans a call as a transmission group; `None` if it takes another form.
    fn plan_group<P: Port>(
        &self,
        core: &Resources<P>,
        connection: &Connection,
        call: &BulkCall<'_>,
        rpc_bytes: usize,
    ) -> Result<Option<CallPlan>, CallRefused> {
        let (demand, otherwise) = match call.placement {
            Placement::Send => (Demand::Send, Err(CallRefused::NoPlacement)),
            _ => (Demand::Auto, Ok(None)),
        };
        let (Some(config), true) = (&core.config.placement, connection.places_by_send()) else {
            return otherwise;
        };
        // The application gets a result in at most so many pieces.
        let pieces_max = u32::try_from(ITEM_PARTS_MAX).unwrap_or(u32::MAX);
        let group = Group {
            placed_bytes_max: config.segment_bytes.saturating_mul(pieces_max),
            transmissions_max: connection.group_transmissions_max(),
            reply_credits: connection
                .reply_credits()
                .min(core.config.messages_leased_at_once()),
        };
        let way = Way::Group(&group);
        let plan = self.plan_call(core, connection, call, rpc_bytes, demand, way);
        let Some(plan) = plan else {
            // The credits for a reply when no other call waits for one.
            let half = (connection.protocol.credits().limit / 2).max(1);
            if demand == Demand::Send && group.reply_credits < half {
                // There will be more when other replies have come: the caller should try again.
                return Err(CallRefused::NoCredit);
            }
            return otherwise;
        };
        if !matches!(plan.form, CallForm::Group { .. }) {
            // Nothing to place, or placing has no advantage.
            return Ok(None);
        }
        // The slot has room for a stream of so many bytes.
        if plan.stream_bytes > core.config.send_buffer_bytes {
            return otherwise;
        }
        Ok(Some(plan))
    }

    /// Lets the protocol plan a call, as a transmission group or as plain version 2 or 1. `None` when that is impossible.
    fn plan_call<P: Port>(
        &self,
        core: &Resources<P>,
        connection: &Connection,
        call: &BulkCall<'_>,
        rpc_bytes: usize,
        demand: Demand,
        way: Way<'_>,
    ) -> Option<CallPlan> {
        let group = match way {
            Way::Group(group) => Some(group),
            Way::Chunks | Way::Stream => None,
        };
        let protocol = &connection.protocol;
        let reply_bytes = REPLY_HEADER_BYTES_WITHOUT_AUTH.saturating_add(call.results_bytes_max);
        let mut results = [PlannedResult::default(); BULK_ITEMS_MAX];
        for (place, expected) in results.iter_mut().zip(call.expected()) {
            *place = PlannedResult {
                range: range_of(expected, rpc_bytes),
                bytes_max: expected.bytes_max,
            };
        }
        let (mut own, mut peer) = (*protocol.properties(), connection.peer);
        let mut thresholds = core.config.thresholds;
        let parts_max = u32::try_from(CALL_PARTS_MAX).unwrap_or(u32::MAX);
        let mut windows = self.windows_max;
        let mut credits = connection.credits_for_calls();
        let mut plain_send_bytes_max = own.send_bytes_max;
        if let Some(group) = group {
            let placed_bytes_max = &mut thresholds.send_placement_bytes_max;
            *placed_bytes_max = group.placed_bytes_max.min(*placed_bytes_max);
            windows = windows.saturating_sub(self.windows_open);
            credits = credits.min(group.transmissions_max);
        } else {
            // A call with chunks has all its items in them, or none.
            thresholds.inline_item_bytes_max = match way {
                Way::Stream => u32::MAX,
                _ => 0,
            };
            plain_send_bytes_max = core.config.send_buffer_bytes;
            own.rtr_support = RtrSupport::NONE;
            own.receive_buffer_bytes = protocol.receive_threshold_bytes();
            // The sizes of plain messages are limited by the thresholds of the protocol alone.
            peer.send_bytes_max = u32::MAX;
            peer.receive_buffer_bytes = protocol.send_threshold_bytes();
        }
        // In version 1 a call is one message, and a reply is one message.
        let message_bytes_max = match protocol.is_version_1() {
            true => 0,
            false => core.config.message_bytes_max,
        };
        let facts = CallFacts {
            demand,
            thresholds,
            stream_bytes: u32::try_from(rpc_bytes + call.args.len()).ok()?,
            items: &Items(call),
            reply_stream_bytes_max: u32::try_from(reply_bytes).ok()?,
            results: results.get(..call.expected().len()).unwrap_or(&[]),
            means: SenderMeans {
                send_bytes_max: own.send_bytes_max,
                gather_entries_max: core.gather_entries_max(),
                padding_region_bytes: PADDING_BYTES,
                message_bytes_max,
                credits,
            },
            plain_send_bytes_max,
            continues_with_chunks: false,
            credits_max: group.map_or(1, |group| group.transmissions_max),
            own: &own,
            peer: &peer,
            peer_read_chunks_max: u32::MAX,
            peer_write_chunks_max: u32::MAX,
            windows: if self.may_expose(connection) {
                windows.min(parts_max)
            } else {
                0
            },
            window_bytes_max: core.reply.pool.buffer_bytes(),
            reply_bytes_max: message_bytes_max,
            reply_credits: group.map_or(1, |group| group.reply_credits),
        };
        plan_call(&facts).ok()
    }
}

/// The form that a call is planned in.
#[derive(Clone, Copy)]
enum Way<'a> {
    /// Its items and results in chunks, or all in the streams.
    Chunks,
    /// All in the streams. A stream that fits no message is in a chunk.
    Stream,
    /// As a transmission group.
    Group(&'a Group),
}

/// Limits of a call as a transmission group, in addition to those of any call.
struct Group {
    /// The most bytes of one item that Sends place.
    placed_bytes_max: u32,
    transmissions_max: u32,
    /// Credits that the reply can have.
    reply_credits: u32,
}

/// The items of a call, as a plan counts them.
struct Items<'a, 'c>(&'a BulkCall<'c>);

impl BulkItems for Items<'_, '_> {
    fn count(&self) -> usize {
        self.0.items().len()
    }

    fn length_bytes(&self, item: usize) -> u32 {
        self.0.items().get(item).map_or(0, |item| item.bytes)
    }

    fn gather_entries(&self, item: usize, from_bytes: u32, length_bytes: u32) -> u32 {
        let end = from_bytes.saturating_add(length_bytes) as usize;
        let mut at = 0;
        let parts = self.0.parts_of(item).iter().filter(|part| {
            let start = at;
            at += part.len();
            (from_bytes as usize).max(start) < end.min(at)
        });
        u32::try_from(parts.count()).unwrap_or(u32::MAX)
    }

    fn segments(&self, item: usize, segment_bytes_max: u32) -> u32 {
        let segments = self.0.parts_of(item).iter().map(|part| {
            let bytes = u32::try_from(part.len()).unwrap_or(u32::MAX);
            bytes.div_ceil(segment_bytes_max.max(1))
        });
        segments.sum()
    }
}

/// The range of the call that asks for a result; an empty request range means the whole call.
pub(super) fn range_of(expected: &ExpectedResult, rpc_header_bytes: usize) -> StreamRange {
    let asked = &expected.request_range;
    if asked.is_empty() {
        return StreamRange {
            begin: 0,
            end: u32::MAX,
        };
    }
    let before = u32::try_from(rpc_header_bytes).unwrap_or(u32::MAX);
    StreamRange {
        begin: asked.start.saturating_add(before),
        end: asked.end.saturating_add(before),
    }
}

/// Whether a call offers memory for a result with this direction.
pub(super) fn has_memory(way: Direction) -> bool {
    matches!(
        way,
        Direction::Explicit | Direction::Choice | Direction::BySize { .. }
    )
}
