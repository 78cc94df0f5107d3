//! The plan of the last call as a transmission group, for the calls after it that are alike.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::v2::plan::{CallPlan, Direction};

use crate::application::ConnectionKey;
use crate::bulk::{BulkCall, Placement};
use crate::core::State;

/// A plan, and the call that it was made for.
#[derive(Debug)]
pub(in crate::core) struct PlanMemo {
    shape: PlanShape,
    plan: CallPlan,
}

/// All that a plan depends on of a call with at most one item, in one piece, and one result; beside
/// the properties of both ends and the credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlanShape {
    connection: ConnectionKey,
    placement: Placement,
    stream_bytes: usize,
    results_bytes_max: usize,
    item_bytes: Option<u32>,
    /// Where the call asks for it: first position, and first behind; and its bytes.
    result: Option<(u32, u32, u32)>,
}

impl PlanShape {
    fn of(key: ConnectionKey, call: &BulkCall<'_>, rpc_header_bytes: usize) -> Option<Self> {
        let item_bytes = match call.items() {
            [] => None,
            [item] if item.parts == 1 => Some(item.bytes),
            _ => return None,
        };
        let result = match call.expected() {
            [] => None,
            [expected] => {
                let range = &expected.request_range;
                Some((range.start, range.end, expected.bytes_max))
            }
            _ => return None,
        };
        Some(Self {
            connection: key,
            placement: call.placement,
            stream_bytes: rpc_header_bytes + call.args.len(),
            results_bytes_max: call.results_bytes_max,
            item_bytes,
            result,
        })
    }
}

impl<P: Port> State<P> {
    /// The plan of the last call, if this one is alike and the credits that it needs are there.
    pub(super) fn remembered_plan(
        &self,
        key: ConnectionKey,
        call: &BulkCall<'_>,
        rpc_header_bytes: usize,
    ) -> Option<&CallPlan> {
        let PlanMemo { shape, plan } = self.plan_memo.as_ref()?;
        if PlanShape::of(key, call, rpc_header_bytes).as_ref() != Some(shape) {
            return None;
        }
        let connection = self.connections.get(key)?;
        let group_max = connection.group_transmissions_max();
        let credits = match call.placement {
            Placement::Send => group_max,
            // One credit is waited for in any case, as in `plan_call`.
            _ => connection.credits_for_calls().min(group_max).max(1),
        };
        let reply_credits = connection.reply_credits();
        let has_credits =
            plan.credits_needed <= credits && plan.reply.transmissions_max <= reply_credits;
        has_credits.then_some(plan)
    }

    /// Keeps the plan of a call. One that exposes memory depends on more than its shape.
    pub(super) fn remember_plan(
        &mut self,
        key: ConnectionKey,
        call: &BulkCall<'_>,
        rpc_header_bytes: usize,
        plan: &CallPlan,
    ) {
        let Some(shape) = PlanShape::of(key, call, rpc_header_bytes) else {
            return;
        };
        if self.plan_memo.as_ref().is_some_and(|it| it.shape == shape) {
            return;
        }
        let exposes = |way: &Direction| !matches!(way, Direction::Inline | Direction::Placed);
        if !plan.items.iter().chain(&plan.reply.directions).any(exposes) {
            self.plan_memo = Some(PlanMemo { shape, plan: *plan });
        }
    }

    /// What the ends told of themselves has changed: nothing is taken for alike.
    pub(in crate::core) fn forget_plans(&mut self) {
        self.plan_memo = None;
        self.told += 1;
        self.laid_out.forget();
    }
}
