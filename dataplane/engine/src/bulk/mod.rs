//! Bulk data: XDR items that travel beside the stream of their message, in registered memory.
//!
//! An application fills [`BulkItem`]s, or takes them from the calls and replies that it gets, and
//! never sees how they travel: inside the stream, by RDMA Read and Write through memory windows
//! that are bound for the one call, or, where both ends can, placed by the Send itself
//! ([`Placement`]). Which items may be taken out of the stream (DDP-eligibility, -00 appendix A)
//! is the binding's to say, that is the caller's and the service's.
//!
//! | bytes | owner |
//! |---|---|
//! | an item that the application fills or keeps | its [`BulkItem`], which may go to any thread |
//! | an item of a call of ours | the memory window that exposes it, until that is gone |
//! | a Write or Reply chunk | its window; then the [`BulkResult`] |
//! | an item of a peer's call | the RDMA Read; then [`BulkArguments`]; then whoever takes it |
//! | an item of a reply | the RDMA Write, then the core's pool |
//! | an item of a reply whose pieces are shared | all who share it; the Send or RDMA Write has a view |
//!
//! A window is bound for one call, and gone before the application gets to know how that ended.
//! Whatever a peer does, each buffer comes home once: with its window, its work request, or the
//! queue pair.

mod arguments;
mod attached;
mod call;
pub(crate) mod directed;
mod item;
mod part;
mod pool;
mod reply;

pub use arguments::{BulkArguments, StreamPiece};
pub use call::{BulkCall, BulkReply, BulkResult, ExpectedResult, NoRoom, Placement};
pub use item::{BulkItem, ITEM_PARTS_MAX};

pub(crate) use arguments::ArgumentItem;
pub(crate) use part::{BulkPart, start_of};
#[cfg(test)]
pub(crate) use pool::tests::pool as pool_for_tests;
pub(crate) use pool::{BulkPool, Home, NO_INDEX, give_lease};
pub(crate) use reply::{ItemPart, ReplyItems};

/// Items in one call, and in one reply.
pub const BULK_ITEMS_MAX: usize = 8;

/// Pieces of registered memory in all items of one call, and in all of its results.
pub const BULK_PARTS_MAX: usize = 64;
