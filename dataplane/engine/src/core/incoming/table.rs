//! The calls of peers that a core handles, and the resources that they share.

use rpcrdma_fabric::interface::{Attributes, Gather, SEGMENTS_MAX};
use rpcrdma_fabric::memory::Lease;

use super::call::{IncomingCall, LENT_PARTS_MAX, WRITE_PARTS_MAX, WritePart};
use super::kept::KeptReplies;
use super::shares::Shares;
use crate::bulk::{ArgumentItem, BULK_ITEMS_MAX};
use crate::config::CoreConfig;
use crate::connection::Connection;
use crate::core::by_connection::ByConnection;
use crate::core::group::LaidOut;
use crate::core::slots::Slots;
use crate::deferrals::Deferrals;

/// The calls of peers, and the means to handle them.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(in crate::core) calls: Slots<IncomingCall>,
    pub(in crate::core) shares: Shares,
    /// Calls that are answered later.
    pub(in crate::core) deferrals: Deferrals,
    /// The last reply of each connection that was sent as a transmission group, laid out.
    pub(super) laid_out: ByConnection<LaidOut>,
    /// Replies that were sent and may have to be sent again.
    pub(in crate::core) kept: KeptReplies,
    /// The call that has waited longest for buffers. No other call takes any before it: otherwise many small calls
    /// could hold up a large one for ever.
    pub(in crate::core) starving: Option<u32>,
    /// The arguments of the call that is being served.
    pub(super) items: Vec<ArgumentItem>,
    pub(super) leases: Vec<Option<Lease>>,
    /// Unused scatter lists: one for each RDMA Read that can be in flight. Each Read has at least one buffer.
    pub(in crate::core) gathers: Vec<Gather>,
    /// The list of the RDMA Write that is being posted.
    pub(super) writing: Gather,
    /// The pieces of a reply, while they are put in order.
    pub(super) ordered: Vec<WritePart>,
    /// RDMA Reads in flight on one connection.
    pub(super) read_depth: u32,
    /// Segments of one RDMA Read or Write.
    pub(super) segments_max: usize,
}

impl Incoming {
    pub(in crate::core) fn new(config: &CoreConfig, attributes: &Attributes, buffers: u32) -> Self {
        let read_depth = attributes.read_depth_max.min(config.read_depth_max).max(1);
        let reads = config
            .connections_max
            .saturating_mul(read_depth)
            .min(buffers);
        let replies = config.bulk_calls_in_use();
        Self {
            calls: Slots::new(config.bulk_serves(), |index| {
                IncomingCall::new(index, config.send_buffer_bytes)
            }),
            shares: Shares::new(config.connections_max, config.bulk_serves_own(), replies),
            deferrals: Deferrals::new(config.connections_max, config.deferred_max),
            laid_out: ByConnection::new(config.connections_max, LaidOut::new),
            kept: KeptReplies::new(replies, config.send_buffer_bytes),
            starving: None,
            items: Vec::with_capacity(BULK_ITEMS_MAX),
            leases: Vec::with_capacity(LENT_PARTS_MAX),
            gathers: (0..=reads).map(|_| Gather::new()).collect(),
            writing: Gather::new(),
            ordered: Vec::with_capacity(WRITE_PARTS_MAX),
            read_depth,
            segments_max: (attributes.send_segments_max as usize).clamp(1, SEGMENTS_MAX),
        }
    }

    /// Whether `connection`, which has the place `index`, may take a slot for one more call.
    #[inline(always)]
    pub(in crate::core) fn may_begin(&self, connection: &Connection, index: u32) -> bool {
        let answerable = connection.protocol.credits_for_replies();
        self.shares.may_take(index, answerable)
    }
}
