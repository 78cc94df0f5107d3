//! The calls of ours, and the resources that those with bulk data share.

use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::Attributes;
use rpcrdma_protocol::v2::plan::CallPlan;

use super::call::OutgoingCall;
use super::memo::{ChunksMemo, PlanMemo};
use super::shares::Shares;
use crate::bulk::{BULK_ITEMS_MAX, BulkResult};
use crate::config::CoreConfig;
use crate::core::by_connection::ByConnection;
use crate::core::group::LaidOut;
use crate::core::slots::Slots;
use crate::requester::{Requester, first_xid};

/// The calls of ours, and the means to handle them.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Calls with bulk data.
    pub(in crate::core) calls: Slots<OutgoingCall>,
    /// All calls, also those without bulk data.
    pub(in crate::core) requester: Requester,
    pub(in crate::core) shares: Shares,
    /// For each connection, the plan of a call that was a transmission group, for calls with the same inputs.
    pub(super) plan_memo: ByConnection<Option<PlanMemo>>,
    /// The plan of the last call that did not use `plan_memo`.
    pub(super) last_plan: Option<CallPlan>,
    /// The memory that the last call of each connection with chunks exposed.
    pub(super) chunks_memo: ByConnection<Option<ChunksMemo>>,
    /// The last call of each connection that was sent as a transmission group, laid out.
    pub(super) laid_out: ByConnection<LaidOut>,
    /// The results of the call that is ending.
    pub(super) results: Vec<BulkResult>,
    /// Windows that are bound, or whose invalidation is under way.
    pub(in crate::core) windows_open: u32,
    pub(in crate::core) windows_max: u32,
}

impl Outgoing {
    pub(in crate::core) fn new(
        config: &CoreConfig,
        attributes: &Attributes,
        clock: &Clock,
    ) -> Self {
        let calls = config.bulk_calls_in_use();
        Self {
            calls: Slots::new(calls, |index| {
                OutgoingCall::new(index, config.send_buffer_bytes)
            }),
            requester: Requester::new(
                config.calls_outstanding_max,
                config.connections_max,
                clock.ticks(config.call_timeout),
                clock.now(),
                first_xid(),
            ),
            shares: Shares::new(calls, config.bulk_buffers, config.connections_max),
            plan_memo: ByConnection::new(config.connections_max, || None),
            last_plan: None,
            chunks_memo: ByConnection::new(config.connections_max, || None),
            laid_out: ByConnection::new(config.connections_max, LaidOut::new),
            results: Vec::with_capacity(BULK_ITEMS_MAX),
            windows_open: 0,
            windows_max: attributes.windows_max,
        }
    }

    /// Whether there is a slot, and `windows` windows, for one more call.
    pub(super) fn has_room(&self, windows: u32) -> bool {
        let windows_open = self.windows_open.saturating_add(windows);
        self.calls.free_count() != 0 && windows_open <= self.windows_max
    }
}
