//! The items that go beside the stream of a reply.

use std::ops::Deref;

use rpcrdma_fabric::memory::{Buffer, Lease, SharedLease};

use super::{BulkItem, BulkPool, ReplyItems, give_lease};

/// An item that goes beside the stream of a reply.
#[derive(Debug)]
pub(crate) enum Attached {
    /// Its pieces were the application's alone, and are the core's.
    Own(BulkItem),
    /// Others read them as well, and the core for as long as it takes.
    Shared(BulkItem<SharedLease>),
}

impl Attached {
    /// Its bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Own(item) => item.len(),
            Self::Shared(item) => item.len(),
        }
    }

    /// Takes its pieces out, in order, as buffers and the ranges of them that count.
    pub(crate) fn drain_into(
        &mut self,
        pool: &mut BulkPool,
        mut take: impl FnMut(Buffer, u32, u32),
    ) {
        match self {
            Self::Own(item) => {
                for (buffer, offset, bytes) in item.drain().filter_map(Lease::into_buffer) {
                    if bytes == 0 {
                        pool.give(buffer);
                    } else {
                        take(buffer, offset, bytes);
                    }
                }
            }
            Self::Shared(item) => {
                for lease in item.drain().filter(|lease| !lease.is_empty()) {
                    let view = pool.show(lease);
                    debug_assert!(view.is_some(), "they were counted when it was attached");
                    if let Some(view) = view {
                        let bytes = view.capacity();
                        take(view, 0, bytes);
                    }
                }
            }
        }
    }
}

/// A piece of an item of a reply: the application's alone, or shared.
pub(crate) trait ItemPart: Deref<Target = [u8]> + Sized {
    /// Whether the item can go beside the stream as it is.
    fn may_be_attached(items: &ReplyItems, item: &BulkItem<Self>) -> bool;

    /// The item, as one that does.
    fn attached(item: BulkItem<Self>) -> Attached;

    /// Is done with a piece.
    fn give(self, pool: &mut BulkPool);
}

impl ItemPart for Lease {
    fn may_be_attached(items: &ReplyItems, item: &BulkItem) -> bool {
        item.parts().all(|part| items.pool.owns_lease(part))
    }

    fn attached(item: BulkItem) -> Attached {
        Attached::Own(item)
    }

    fn give(self, pool: &mut BulkPool) {
        give_lease(pool, self);
    }
}

impl ItemPart for SharedLease {
    fn may_be_attached(items: &ReplyItems, item: &BulkItem<Self>) -> bool {
        items.may_share(item)
    }

    fn attached(item: BulkItem<Self>) -> Attached {
        Attached::Shared(item)
    }

    fn give(self, _pool: &mut BulkPool) {}
}
