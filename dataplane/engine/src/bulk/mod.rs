//! Bulk data: XDR items in registered memory that may travel outside the stream of their message.
//!
//! An application fills [`BulkItem`]s, or takes them from the calls and replies that it gets. The core chooses how they
//! travel ([`Placement`]): inside the stream, by RDMA Read and Write through memory windows that are bound for one
//! call, or, where both ends support it, placed by the Send itself. The binding (caller and service) decides which
//! items may leave the stream (DDP-eligibility, -00 appendix A).
//!
//! | bytes | owner |
//! |---|---|
//! | an item that the application fills or keeps | its [`BulkItem`], which may go to any thread |
//! | an item of a call of ours | the memory window that exposes it, until that is invalidated |
//! | the same, of shared pieces | all who share it; the window or Send has a view |
//! | a Write or Reply chunk | its window; then the [`BulkResult`] |
//! | an item of a peer's call | the RDMA Read; then [`BulkArguments`]; then the service that takes it |
//! | an item of a reply | the RDMA Write, then the core's pool |
//! | an item of a reply whose pieces are shared | all who share it; the Send or RDMA Write has a view |
//!
//! A window is bound for one call, and invalidated before the application learns how that call ended: from then on the
//! peer cannot reach the memory. Whatever a peer does, each buffer comes back exactly once: with its window, its work
//! request, or the queue pair.

mod arguments;
mod attached;
mod call;
pub(crate) mod directed;
mod item;
mod part;
mod piece;
mod pool;
mod reply;

pub use arguments::{ArgumentView, ArgumentViews, BulkArguments, StreamPiece};
pub use call::{
    BulkCall, BulkReply, BulkResult, ExpectedResult, NoRoom, Placement, TARGET_PARTS_MAX,
};
pub use item::{BulkItem, ITEM_PARTS_MAX};

pub(crate) use arguments::ArgumentItem;
pub(crate) use part::{BulkPart, start_of};
pub(crate) use piece::{Piece, is_foreign};
#[cfg(test)]
pub(crate) use pool::tests::pool as pool_for_tests;
pub(crate) use pool::{BulkPool, Home, NO_INDEX, give_lease, give_piece};
pub(crate) use reply::{ItemPart, ReplyItems};

/// Items in one call, and in one reply.
pub const BULK_ITEMS_MAX: usize = 8;

/// Pieces of registered memory in all items of one call, and in all of its results.
pub const BULK_PARTS_MAX: usize = 64;
