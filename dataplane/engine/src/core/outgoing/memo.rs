//! Keeps the plans of the last call of a connection that was a transmission group and of the last one with chunks, for
//! following calls with the same inputs.

use rpcrdma_protocol::v2::plan::{CallPlan, Demand};

use crate::bulk::{BulkCall, Placement};
use crate::rpc::ConnectionKey;

/// The memory that a call exposes.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct Exposed {
    /// The call itself is in a Position-Zero Read chunk.
    pub(super) long_call: bool,
    /// Bytes of the Reply chunk; 0 for none.
    pub(super) reply_bytes: u32,
    /// How many bulk buffers it takes.
    pub(super) buffers: usize,
    /// How many windows it takes.
    pub(super) windows: usize,
}

/// A plan, and the call that it was made for.
#[derive(Debug)]
pub(in crate::core) struct PlanMemo {
    pub(super) shape: PlanShape,
    pub(super) plan: CallPlan,
}

/// The memory that a call with chunks exposes, and the inputs of that plan.
#[derive(Debug)]
pub(in crate::core) struct ChunksMemo {
    pub(super) shape: PlanShape,
    pub(super) terms: ChunkTerms,
    pub(super) exposed: Exposed,
}

/// The inputs of the plan of a call with chunks, in addition to its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkTerms {
    pub(super) demand: Demand,
    pub(super) may_expose: bool,
    pub(super) is_version_1: bool,
}

/// All inputs of a plan for a call with at most one item, in one piece, and one result; except the properties of this
/// end and the credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlanShape {
    /// The properties epoch: it changes with the properties of any peer.
    epoch: u64,
    connection: ConnectionKey,
    placement: Placement,
    stream_bytes: usize,
    results_bytes_max: usize,
    item_bytes: Option<u32>,
    /// The range of the call that asks for it (first position, first behind it), and its most bytes.
    result: Option<(u32, u32, u32)>,
}

impl PlanShape {
    #[inline(always)]
    pub(super) fn of(
        key: ConnectionKey,
        call: &BulkCall<'_>,
        rpc_header_bytes: usize,
        epoch: u64,
    ) -> Option<Self> {
        if !call.targets.is_empty() {
            return None;
        }
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
            epoch,
            connection: key,
            placement: call.placement,
            stream_bytes: rpc_header_bytes + call.args.len(),
            results_bytes_max: call.results_bytes_max,
            item_bytes,
            result,
        })
    }
}
