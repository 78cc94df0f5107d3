//! The items of a reply that are sent outside its stream.

use rpcrdma_fabric::memory::SharedLease;

use super::{BulkItem, BulkPart, BulkPool};

/// An item of a reply that is sent outside the stream.
#[derive(Debug)]
pub(crate) enum Attached {
    /// The application owned its pieces alone, and handed them to the core.
    Own(BulkItem),
    /// The application shares its pieces: the core only reads them, and drops its share when they were sent.
    Shared(BulkItem<SharedLease>),
}

impl Attached {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Own(item) => item.len(),
            Self::Shared(item) => item.len(),
        }
    }

    /// Copies its bytes to the start of `out`.
    pub(crate) fn copy_to(&self, out: &mut [u8]) -> usize {
        match self {
            Self::Own(item) => item.copy_to(out),
            Self::Shared(item) => item.copy_to(out),
        }
    }

    /// Takes its pieces out, in order.
    #[inline(always)]
    pub(crate) fn drain_into(&mut self, pool: &mut BulkPool, mut take: impl FnMut(BulkPart)) {
        match self {
            Self::Own(item) => {
                // A gather list has no empty entries.
                for lease in item.drain() {
                    if let Some(part) = BulkPart::of_lease(pool, lease) {
                        take(part);
                    }
                }
            }
            Self::Shared(item) => {
                for lease in item.drain() {
                    if let Some(part) = BulkPart::of_shared(pool, lease) {
                        take(part);
                    }
                }
            }
        }
    }
}
