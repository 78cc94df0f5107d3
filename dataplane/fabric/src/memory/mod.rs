//! Registered memory: arenas in hugepages, the pools carved from them, and buffers as tokens.
//!
//! Everything that a wire touches lives in an [`Arena`], mapped once at start-up. A [`Buffer`] is a token for an
//! exclusive piece of it: it cannot be copied, and its bytes are reached only through [`Memory`], with a borrow of
//! both. Posting moves the token into the port, so a slice of posted, exposed or in-flight memory cannot exist; misuse
//! does not compile. A [`Lease`] is a token that left its core: it keeps its arena alive, may be dropped on any thread,
//! and its buffer then returns through a ring that has room for every buffer. A lease becomes read-only as a
//! [`SharedLease`]: there may be many, of parts of one buffer, and [`Views`] provides the tokens with which their bytes
//! are posted. [`ExternalMemory`] is memory of the application, with leases as those on the arena's buffers.

mod ahead;
mod arena;
mod blocks;
mod buffer;
mod external;
mod lease;
mod limit;
#[cfg(all(test, loom))]
mod loom_tests;
mod mapping;
mod pages;
mod pool;
mod shared;
mod site;
#[cfg(all(test, not(loom)))]
mod tests;
mod views;

pub use ahead::{fetch_ahead, fetch_to_write, prefer_hugepages};
pub use arena::{Arena, ArenaOptions, EXTERNAL_MAX, HugePageSize, HugePages, PageKind, PageReport};
pub use buffer::{Buffer, Memory};
pub(crate) use external::Origin;
pub use external::{ExternalMemory, NotLeased};
pub use lease::Lease;
pub use limit::MemoryLimit;
pub use mapping::Mapping;
pub(crate) use mapping::{SEALS_READ_ONLY, external_offset};
pub(crate) use pages::ORDINARY_PAGE_BYTES;
pub use pool::Pool;
pub use shared::SharedLease;
pub use site::PoolShape;
pub use views::Views;
