//! What a core keeps for bulk data, all of it made at start-up.

use std::collections::VecDeque;

use rpcrdma_fabric::interface::{Attributes, Gather, SEGMENTS_MAX, WorkId};
use rpcrdma_fabric::memory::{Buffer, Lease, Pool, SharedLease};
use rpcrdma_protocol::connection::chunks_of;
use rpcrdma_protocol::constants::{PLAN_ITEMS_MAX, READ_ENTRY_BYTES};
use rpcrdma_protocol::v2::TransportError;

use super::arguments::ArgumentItem;
use super::arrival::{FirstHeader, LANDINGS_MAX};
use super::attached::{Attached, ItemPart};
use super::calls::CallSlot;
use super::directed::{OpenDirection, ReplyResult, use_direction};
use super::kept::KeptReplies;
use super::serves::{ServeSlot, ServeStage};
use super::shares::Shares;
use super::{BULK_ITEMS_MAX, BULK_PARTS_MAX, BulkItem, BulkPool, BulkResult};
use crate::application::ConnectionKey;
use crate::config::CoreConfig;

/// The longest transport header of a call with chunks. With lists of a hundred segments it is
/// shorter.
pub(crate) const HEADER_BYTES_MAX: usize = 4096;

/// Entries of the gather list of a Send for its header, its stream, and padding between these and an
/// item.
const ENTRIES_BESIDE_PARTS: usize = 4;

/// Directions of a call that are looked at.
pub(super) const DIRECTIONS_MAX: usize = 256;

/// Something that waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// A call of ours.
    Call(u32),
    /// A call of a peer.
    Serve(u32),
}

/// The items of a reply while its service writes it.
#[derive(Debug)]
pub(crate) struct ReplyItems {
    pub(crate) pool: BulkPool,
    /// For each Write chunk of the call whether it has segments: one without asks for its result
    /// in the stream (RFC 8166 section 4.3.2.3).
    pub(crate) offered: Vec<bool>,
    /// What goes beside the stream, in order.
    pub(crate) attached: Vec<Attached>,
    /// Pieces of them that are shared: each takes a view.
    shared_parts: usize,
    /// Shared pieces that a result is of which Sends place, at most.
    placed_parts_max: usize,
    /// The call is a Transmit Request: these are its directions.
    is_directed: bool,
    directions: Vec<OpenDirection>,
    /// What became of the results of such a call, in order.
    pub(crate) results: Vec<ReplyResult>,
    /// Bytes of the call before its arguments.
    pub(crate) arguments_at: u32,
}

impl ReplyItems {
    /// Takes an item that goes beside the stream, of which `stream_offset` bytes stand before it.
    /// `request_position` is where in the arguments that is which asks for it. False, and the item
    /// is as it was, when the caller has no place for it or wants it in the stream, or when the item
    /// is not of this core's bulk buffers.
    pub(crate) fn place<T: ItemPart>(
        &mut self,
        request_position: u32,
        stream_offset: usize,
        item: &mut BulkItem<T>,
    ) -> bool {
        let is_ours = T::may_be_attached(self, item);
        if self.is_directed {
            return self.place_directed(request_position, stream_offset, item, is_ours);
        }
        let next = self.attached.len();
        let has_segments = match self.offered.get(next) {
            None => return false,
            Some(has_segments) => *has_segments,
        };
        if has_segments && is_ours {
            self.push(item);
            return true;
        }
        self.attached.push(Attached::Own(BulkItem::new()));
        false
    }

    fn push<T: ItemPart>(&mut self, item: &mut BulkItem<T>) {
        let attached = T::attached(std::mem::take(item));
        if let Attached::Shared(item) = &attached {
            self.shared_parts += item.part_count();
        }
        self.attached.push(attached);
    }

    /// Whether pieces that are shared can go beside the stream: there are tokens for them, and few
    /// enough pieces for any way that the caller may have asked for.
    pub(crate) fn may_share(&self, item: &BulkItem<SharedLease>) -> bool {
        let parts = item.part_count();
        let parts_max = if self.is_directed {
            self.placed_parts_max
        } else {
            super::ITEM_PARTS_MAX
        };
        parts <= parts_max
            && self.shared_parts + parts <= self.pool.views_available()
            && item.parts().all(|part| self.pool.may_show(part))
    }

    fn place_directed<T: ItemPart>(
        &mut self,
        request_position: u32,
        stream_offset: usize,
        item: &mut BulkItem<T>,
        is_ours: bool,
    ) -> bool {
        if self.results.len() >= PLAN_ITEMS_MAX {
            return false;
        }
        let bytes = u32::try_from(item.len()).unwrap_or(u32::MAX);
        let position = self.arguments_at.saturating_add(request_position);
        let leaves = use_direction(&mut self.directions, position, bytes);
        let is_attached = leaves && is_ours && self.attached.len() < BULK_ITEMS_MAX;
        self.results.push(ReplyResult {
            request_position: position,
            stream_offset: u32::try_from(stream_offset).unwrap_or(u32::MAX),
            bytes,
            is_attached,
        });
        if is_attached {
            self.push(item);
        }
        is_attached
    }

    /// Takes note of what a call asks for: its directions, or the Write chunks that it offers.
    pub(crate) fn ask_for(&mut self, call: &ServeSlot) {
        self.is_directed = call.is_group();
        if self.is_directed {
            self.directions.extend_from_slice(call.arrival.directions());
            // Of a call that was deferred; of others it is told when they are decoded.
            self.arguments_at = call.arguments_at;
        } else {
            let offered = call.lists().writes.map(|chunk| chunk.len() != 0);
            self.offered.extend(offered);
        }
    }

    /// Forgets the items, and what was offered.
    pub(crate) fn clear(&mut self) {
        self.offered.clear();
        self.is_directed = false;
        self.directions.clear();
        self.results.clear();
        self.arguments_at = 0;
        for item in &mut self.attached {
            if let Attached::Own(item) = item {
                for part in item.drain() {
                    give_lease(&mut self.pool, part);
                }
            }
        }
        self.attached.clear();
        self.shared_parts = 0;
    }
}

/// Gives the buffer of a lease back at once, where it is of this pool.
pub(crate) fn give_lease(pool: &mut BulkPool, lease: Lease) {
    if !pool.owns_lease(&lease) {
        return;
    }
    if let Some((buffer, _, _)) = lease.into_buffer() {
        pool.give(buffer);
    }
}

/// All that bulk data needs.
#[derive(Debug)]
pub(crate) struct Bulk {
    pub(crate) reply: ReplyItems,
    /// One for each RDMA Read that can be in flight: each has a buffer at least.
    pub(crate) gathers: Vec<Gather>,
    /// The list of the RDMA Write that is being posted.
    pub(crate) writing: Gather,
    pub(crate) calls: Box<[CallSlot]>,
    free_calls: Vec<u32>,
    pub(crate) serves: Box<[ServeSlot]>,
    free_serves: Vec<u32>,
    pub(crate) shares: Shares,
    /// Replies that were sent, and may be asked for once more.
    pub(crate) kept: KeptReplies,
    /// The call of a peer that has waited longest for buffers: others take none before it, so that
    /// many small ones do not hold up a large one for ever.
    pub(crate) starving: Option<u32>,
    /// What can perhaps go on; each at most once.
    pub(crate) work: VecDeque<Work>,
    /// Calls of ours whose time is up, and whether it is so for the second time.
    pub(crate) timeouts: Vec<(u32, bool)>,
    pub(crate) results: Vec<BulkResult>,
    pub(crate) argument_items: Vec<ArgumentItem>,
    pub(crate) argument_leases: Vec<Option<Lease>>,
    /// The header of the last part of a message that was put together, when it has chunks.
    pub(crate) assembled_header: Vec<u8>,
    /// Windows that are bound, or whose invalidation is under way.
    pub(crate) windows_open: u32,
    pub(crate) windows_max: u32,
    /// RDMA Reads in flight on one connection.
    pub(crate) read_depth: u32,
    /// Segments of one RDMA Read or Write.
    pub(crate) segments_max: usize,
    pub(crate) sends_with_invalidate: bool,
}

impl Bulk {
    pub(crate) fn new(pool: Pool, config: &CoreConfig, attributes: &Attributes) -> Self {
        let calls = config.bulk_calls_in_use();
        let segments_max = (attributes.send_segments_max as usize).clamp(1, SEGMENTS_MAX);
        let read_depth = attributes.read_depth_max.min(config.read_depth_max).max(1);
        let reads = config.connections_max.saturating_mul(read_depth);
        let reads = reads.min(pool.shape().buffers);
        let slots = calls as usize;
        let serves = config.bulk_serves();
        Self {
            reply: ReplyItems {
                pool: BulkPool::new(pool, config.bulk_buffers, config.views()),
                offered: Vec::with_capacity(BULK_ITEMS_MAX),
                attached: Vec::with_capacity(BULK_ITEMS_MAX),
                shared_parts: 0,
                // One piece goes wherever one that is not shared does.
                placed_parts_max: segments_max.saturating_sub(ENTRIES_BESIDE_PARTS).max(1),
                is_directed: false,
                directions: Vec::with_capacity(DIRECTIONS_MAX),
                results: Vec::with_capacity(PLAN_ITEMS_MAX),
                arguments_at: 0,
            },
            gathers: (0..=reads).map(|_| Gather::new()).collect(),
            writing: Gather::new(),
            calls: (0..slots)
                .map(|_| CallSlot::new(config.send_buffer_bytes))
                .collect(),
            free_calls: (0..calls).rev().collect(),
            serves: (0..serves)
                .map(|_| ServeSlot::new(config.send_buffer_bytes))
                .collect(),
            free_serves: (0..serves).rev().collect(),
            shares: Shares::new(config.connections_max, calls),
            kept: KeptReplies::new(calls, config.send_buffer_bytes),
            starving: None,
            work: VecDeque::with_capacity(slots + serves as usize),
            timeouts: Vec::with_capacity(slots),
            results: Vec::with_capacity(BULK_ITEMS_MAX),
            argument_items: Vec::with_capacity(BULK_ITEMS_MAX),
            argument_leases: Vec::with_capacity(LANDINGS_MAX + BULK_PARTS_MAX),
            assembled_header: Vec::with_capacity(HEADER_BYTES_MAX),
            windows_open: 0,
            windows_max: attributes.windows_max,
            read_depth,
            segments_max,
            sends_with_invalidate: attributes.send_with_invalidate,
        }
    }

    /// Whether the core takes bulk data at all.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        !self.serves.is_empty()
    }

    /// Whether no call with bulk data is under way.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.free_calls.len() == self.calls.len() && self.free_serves.len() == self.serves.len()
    }

    /// Takes a free slot for a call of ours.
    pub(crate) fn take_call(&mut self) -> Option<u32> {
        self.free_calls.pop()
    }

    /// Whether a slot for a call of ours is free.
    pub(crate) fn has_call(&self) -> bool {
        !self.free_calls.is_empty()
    }

    /// Frees the slot of a call of ours.
    pub(crate) fn free_call(&mut self, index: u32) {
        if let Some(slot) = self.calls.get_mut(index as usize) {
            slot.reset();
            self.free_calls.push(index);
        }
    }

    /// Takes a free slot for a call of a peer whose transport header, and the word behind it, is
    /// `header`.
    ///
    /// # Errors
    /// What the call is answered with: SYSTEM when no slot is free, SEGMENTS when the header is
    /// longer than any whose segments are taken.
    pub(crate) fn begin_serve(
        &mut self,
        connection: ConnectionKey,
        xid: u32,
        header: &[u8],
    ) -> Result<u32, TransportError> {
        if header.len() > HEADER_BYTES_MAX || chunks_of(header).is_none() {
            let max_segments = u32::try_from(HEADER_BYTES_MAX / READ_ENTRY_BYTES);
            return Err(TransportError::Segments {
                max_segments: max_segments.unwrap_or(u32::MAX),
            });
        }
        let index = self.free_serves.pop().ok_or(TransportError::System)?;
        if let Some(slot) = self.serves.get_mut(index as usize) {
            slot.header.extend_from_slice(header);
            (slot.connection, slot.xid) = (connection, xid);
        }
        self.shares.take(connection.index);
        Ok(index)
    }

    /// As [`Bulk::begin_serve`], for a call that comes as a transmission group with this header.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn begin_group(
        &mut self,
        connection: ConnectionKey,
        xid: u32,
        first: FirstHeader,
        header: &[u8],
    ) -> Result<u32, TransportError> {
        let index = self.free_serves.pop().ok_or(TransportError::System)?;
        if let Some(slot) = self.serves.get_mut(index as usize) {
            if !slot.arrival.begin(connection, first, header) {
                self.free_serves.push(index);
                return Err(TransportError::System);
            }
            if !slot.arrival.is_checked() {
                slot.planned = None;
            }
            (slot.connection, slot.xid) = (connection, xid);
            slot.stage = ServeStage::Placing;
        }
        self.shares.take(connection.index);
        Ok(index)
    }

    /// Whether a call of the connection at `place` was served, and its reply is still to be sent.
    pub(crate) fn is_answering(&self, place: u32) -> bool {
        let answering = |slot: &ServeSlot| {
            slot.stage == ServeStage::Answering && slot.connection.index == place
        };
        self.shares.in_use_at(place) != 0 && self.serves.iter().any(answering)
    }

    /// Frees the slot of a call of a peer.
    pub(crate) fn free_serve(&mut self, index: u32) {
        if self.starving == Some(index) {
            self.starving = None;
        }
        if let Some(slot) = self.serves.get_mut(index as usize) {
            self.shares.give(slot.connection.index);
            slot.reset();
            self.free_serves.push(index);
        }
    }

    /// Has `work` looked at in this iteration or the next.
    pub(crate) fn queue(&mut self, work: Work) {
        let queued = match work {
            Work::Call(index) => self.calls.get_mut(index as usize).map(|it| &mut it.queued),
            Work::Serve(index) => self.serves.get_mut(index as usize).map(|it| &mut it.queued),
        };
        if let Some(queued) = queued
            && !std::mem::replace(queued, true)
        {
            self.work.push_back(work);
        }
    }

    /// The next work, which is no longer queued then.
    pub(crate) fn next_work(&mut self) -> Option<Work> {
        let work = self.work.pop_front()?;
        let queued = match work {
            Work::Call(index) => self.calls.get_mut(index as usize).map(|it| &mut it.queued),
            Work::Serve(index) => self.serves.get_mut(index as usize).map(|it| &mut it.queued),
        };
        if let Some(queued) = queued {
            *queued = false;
        }
        Some(work)
    }

    /// Gives a gather list back; what is left in it goes to the pool.
    pub(crate) fn give_gather(&mut self, mut gather: Gather) {
        while let Some((buffer, _, _)) = gather.pop() {
            self.give(buffer);
        }
        self.gathers.push(gather);
    }

    /// Gives a buffer of the pool back.
    pub(crate) fn give(&mut self, buffer: Buffer) {
        self.reply.pool.give(buffer);
    }
}

/// Names work of a slot: a slot that is used again is not taken for its former self.
pub(crate) fn work_id(slot: u32, generation: u32) -> WorkId {
    WorkId(u64::from(generation) << 32 | u64::from(slot))
}

/// The slot and the generation that [`work_id`] named.
pub(crate) fn slot_of(work: WorkId) -> (u32, u32) {
    let low = u32::try_from(work.0 & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    let high = u32::try_from(work.0 >> 32).unwrap_or(u32::MAX);
    (low, high)
}
