//! The items of a reply, while its service writes it.

use std::ops::Deref;

use rpcrdma_fabric::interface::{Attributes, SEGMENTS_MAX};
use rpcrdma_fabric::memory::{Lease, Pool, SharedLease};
use rpcrdma_protocol::constants::PLAN_ITEMS_MAX;
use rpcrdma_protocol::rpc::Auth;

use super::attached::Attached;
use super::directed::{OpenDirection, ReplyResult, use_direction};
use super::{BULK_ITEMS_MAX, BulkItem, BulkPool, give_lease};
use crate::config::CoreConfig;
use crate::limits::DIRECTIONS_MAX;
use crate::message::MessageBuffer;

/// Entries of the gather list of a Send for its header, its stream, and padding between these and an
/// item.
const ENTRIES_BESIDE_PARTS: usize = 4;

/// The means that the call offers for results outside the stream of its reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Offered {
    /// It came without chunks: all results are copied into the stream.
    #[default]
    Nothing,
    /// Chunk lists. The plan of the reply says which results leave the stream.
    Lists,
    /// The directions of a Transmit Request.
    Directions,
}

/// The items of a reply while its service writes it.
#[derive(Debug)]
pub(crate) struct ReplyItems {
    pub(crate) pool: BulkPool,
    offered: Offered,
    /// The results that were not copied into the stream, in order.
    pub(crate) attached: Vec<Attached>,
    /// How many of their pieces are shared, or in memory of the application: each takes a view.
    shared_parts: usize,
    /// The most shared pieces of a result that a Send places.
    placed_parts_max: usize,
    directions: Vec<OpenDirection>,
    /// The results of a call with lists or directions, in order, attached or copied.
    pub(crate) results: Vec<ReplyResult>,
    /// Bytes of the call before its arguments.
    pub(crate) arguments_at: u32,
    /// Items may leave the stream: RPCSEC_GSS does not protect it as one whole (RFC 8166 section 8.2.2).
    pub(crate) may_reduce: bool,
    /// The verifier of the reply in hand, if it is not AUTH_NONE.
    pub(crate) verifier: Option<Auth>,
    /// The results of the reply in hand, once they are longer than one message. Here and not in
    /// [`ReplyWriter`](crate::ReplyWriter), which has nothing to drop so.
    pub(crate) spilled: Option<MessageBuffer>,
}

impl ReplyItems {
    pub(crate) fn new(pool: Pool, config: &CoreConfig, attributes: &Attributes) -> Self {
        let segments_max = (attributes.send_segments_max as usize).clamp(1, SEGMENTS_MAX);
        Self {
            pool: BulkPool::new(pool, config.bulk_buffers, config.views()),
            offered: Offered::Nothing,
            attached: Vec::with_capacity(BULK_ITEMS_MAX),
            shared_parts: 0,
            // A single piece always has an entry, as an item that is not shared has.
            placed_parts_max: segments_max.saturating_sub(ENTRIES_BESIDE_PARTS).max(1),
            directions: Vec::with_capacity(DIRECTIONS_MAX),
            results: Vec::with_capacity(PLAN_ITEMS_MAX),
            arguments_at: 0,
            may_reduce: true,
            verifier: None,
            spilled: None,
        }
    }

    /// Takes an item that may leave the stream. `stream_offset` bytes of the stream come before it;
    /// `request_position` is the place in the arguments that asks for it. False, with the item unchanged, when the
    /// caller has to copy it into the stream: the call came without chunks, no direction asks for it, or it is not in
    /// bulk buffers of this core.
    #[inline(always)]
    pub(crate) fn place<T: ItemPart>(
        &mut self,
        request_position: u32,
        stream_offset: usize,
        item: &mut BulkItem<T>,
    ) -> bool {
        if self.offered == Offered::Nothing || self.results.len() >= PLAN_ITEMS_MAX {
            return false;
        }
        let bytes = u32::try_from(item.len()).unwrap_or(u32::MAX);
        let position = self.arguments_at.saturating_add(request_position);
        let leaves = match self.offered {
            Offered::Directions => {
                use_direction(&mut self.directions, position, bytes) && self.may_reduce
            }
            _ => true,
        };
        let views = leaves.then(|| self.views_for(item)).flatten();
        let is_attached = views.is_some();
        // Also a copied result is noted: chunks and directions match results by their order.
        self.results.push(ReplyResult {
            request_position: position,
            stream_offset: u32::try_from(stream_offset).unwrap_or(u32::MAX),
            bytes,
            is_attached,
        });
        if let Some(views) = views {
            self.push(item, views);
        }
        is_attached
    }

    /// The views that an item takes, if there is a place for it and its memory can be sent from.
    fn views_for<T: ItemPart>(&self, item: &BulkItem<T>) -> Option<usize> {
        let has_place = self.attached.len() < BULK_ITEMS_MAX;
        has_place.then(|| T::views_for(self, item)).flatten()
    }

    /// The bytes, with padding, that `items` will take in the stream: none for an item that can be attached, if the
    /// call has chunk lists and there is a place left.
    pub(crate) fn copied_bytes<'a>(&self, items: impl Iterator<Item = &'a BulkItem>) -> usize {
        let mut places = BULK_ITEMS_MAX.saturating_sub(self.attached.len());
        let mut results = PLAN_ITEMS_MAX.saturating_sub(self.results.len());
        let copied = items.map(|item| {
            let has_place = self.offered == Offered::Lists && places != 0 && results != 0;
            let is_attached = has_place && self.views_for(item).is_some();
            results = results.saturating_sub(1);
            places -= usize::from(is_attached);
            match is_attached {
                true => 0,
                false => item.len().next_multiple_of(4),
            }
        });
        copied.sum()
    }

    /// Whether the call came without chunks. With a Reply chunk it would have room for longer results.
    pub(crate) fn came_without_chunks(&self) -> bool {
        self.offered == Offered::Nothing
    }

    fn push<T: ItemPart>(&mut self, item: &mut BulkItem<T>, views: usize) {
        self.shared_parts += views;
        // Made in its place: moving an item copies its whole fixed-size array.
        let count = self.attached.len() + 1;
        self.attached
            .resize_with(count, || T::attached(BulkItem::new()));
        if let Some(place) = self.attached.last_mut().and_then(T::item_of) {
            place.take_from(item);
        }
    }

    /// As [`ReplyItems::may_share`], for an item with memory of the application; the views that it takes.
    #[cold]
    fn may_lend(&self, item: &BulkItem) -> Option<usize> {
        let external = item.parts().filter(|part| part.is_external()).count();
        let may_lend = item.part_count() <= self.parts_max()
            && self.shared_parts + external <= self.pool.views_available()
            && item
                .parts()
                .all(|part| self.pool.owns_lease(part) || self.pool.may_lend(part));
        may_lend.then_some(external)
    }

    /// The most pieces of an item that is not in bulk buffers alone.
    fn parts_max(&self) -> usize {
        match self.offered {
            Offered::Directions => self.placed_parts_max,
            _ => super::ITEM_PARTS_MAX,
        }
    }

    /// Whether an item of shared pieces can leave the stream: there are views for them, and not more pieces than the
    /// way that the caller asked for can carry.
    pub(crate) fn may_share(&self, item: &BulkItem<SharedLease>) -> bool {
        let parts = item.part_count();
        parts <= self.parts_max()
            && self.shared_parts + parts <= self.pool.views_available()
            && item.parts().all(|part| self.pool.may_show(part))
    }

    /// Notes the directions of a call, or that it has chunk lists. `arguments_at` (where its arguments begin) and
    /// `may_reduce` are known for a deferred call; a call that is served now sets them when its header is decoded. A call of a
    /// form asks for nothing, and sets neither.
    #[inline(always)]
    pub(crate) fn ask_for(
        &mut self,
        directions: Option<&[OpenDirection]>,
        arguments_at: u32,
        may_reduce: bool,
    ) {
        self.may_reduce = may_reduce;
        self.offered = Offered::Lists;
        if let Some(directions) = directions {
            self.offered = Offered::Directions;
            self.directions.extend_from_slice(directions);
            self.arguments_at = arguments_at;
        }
    }

    /// Gives back the items, and forgets what the call offered.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.offered = Offered::Nothing;
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

/// A piece of an item of a reply: the application's alone, or shared.
pub(crate) trait ItemPart: Deref<Target = [u8]> + Sized {
    /// The views that the item takes to go beside the stream as it is; `None` if it cannot.
    fn views_for(items: &ReplyItems, item: &BulkItem<Self>) -> Option<usize>;

    /// Wraps the item as an attached one.
    fn attached(item: BulkItem<Self>) -> Attached;

    /// The attached item, if its pieces are of this kind.
    fn item_of(attached: &mut Attached) -> Option<&mut BulkItem<Self>>;

    /// Ends the use of a piece.
    fn give(self, pool: &mut BulkPool);
}

impl ItemPart for Lease {
    fn views_for(items: &ReplyItems, item: &BulkItem) -> Option<usize> {
        match item.parts().all(|part| items.pool.owns_lease(part)) {
            true => Some(0),
            false => items.may_lend(item),
        }
    }

    fn attached(item: BulkItem) -> Attached {
        Attached::Own(item)
    }

    fn item_of(attached: &mut Attached) -> Option<&mut BulkItem> {
        match attached {
            Attached::Own(item) => Some(item),
            Attached::Shared(_) => None,
        }
    }

    fn give(self, pool: &mut BulkPool) {
        give_lease(pool, self);
    }
}

impl ItemPart for SharedLease {
    fn views_for(items: &ReplyItems, item: &BulkItem<Self>) -> Option<usize> {
        items.may_share(item).then(|| item.part_count())
    }

    fn attached(item: BulkItem<Self>) -> Attached {
        Attached::Shared(item)
    }

    fn item_of(attached: &mut Attached) -> Option<&mut BulkItem<Self>> {
        match attached {
            Attached::Own(_) => None,
            Attached::Shared(item) => Some(item),
        }
    }

    fn give(self, _pool: &mut BulkPool) {}
}
