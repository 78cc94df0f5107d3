//! The calls of ours with bulk data that a core has, and what they share.

use rpcrdma_fabric::interface::Attributes;

use super::call::OutgoingCall;
use crate::bulk::{BULK_ITEMS_MAX, BulkResult};
use crate::config::CoreConfig;
use crate::core::iterate::TIMERS_MAX;
use crate::core::slots::Slots;
use crate::requester::LateBulk;

/// The calls of ours with bulk data, and what they are worked on with.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(in crate::core) calls: Slots<OutgoingCall>,
    /// Calls whose time is up, and whether it is so for the second time.
    pub(in crate::core) timeouts: Vec<(LateBulk, bool)>,
    /// The results of the call that ends.
    pub(super) results: Vec<BulkResult>,
    /// Windows that are bound, or whose invalidation is under way.
    pub(in crate::core) windows_open: u32,
    pub(in crate::core) windows_max: u32,
    /// Whether windows are invalidated by Sends, both ways.
    pub(in crate::core) sends_with_invalidate: bool,
}

impl Outgoing {
    pub(in crate::core) fn new(config: &CoreConfig, attributes: &Attributes) -> Self {
        let calls = config.bulk_calls_in_use();
        Self {
            calls: Slots::new(calls, |index| {
                OutgoingCall::new(index, config.send_buffer_bytes)
            }),
            timeouts: Vec::with_capacity(TIMERS_MAX as usize),
            results: Vec::with_capacity(BULK_ITEMS_MAX),
            windows_open: 0,
            windows_max: attributes.windows_max,
            sends_with_invalidate: attributes.send_with_invalidate,
        }
    }

    /// Whether there is a slot, and so many windows, for one more call.
    pub(super) fn has_room(&self, windows: usize) -> bool {
        let windows_open = self.windows_open as usize;
        self.calls.free_count() != 0 && windows_open + windows <= self.windows_max as usize
    }
}
