//! The fabric: registered memory, and what moves bytes between two machines or two processes.
//!
//! Everything that a peer can read or write is here, and so is almost all unsafe code of the workspace (the rest is in the
//! interface for C). Programs meet this crate for memory: leases on registered memory that a service keeps, and files that are
//! written from it by io_uring (the feature `storage`). Calls and connections are made by `rpcrdma-engine` and `rpcrdma-control`,
//! which use the traits below, and most programs need only the crate `rpcrdma` above all of them.
//!
//! ```
//! use rpcrdma_fabric::memory::{Arena, ArenaOptions, HugePages, PoolShape};
//!
//! // Memory that a device or a peer process can map, and a pool of 8 buffers in it.
//! let options = ArenaOptions { bytes: 1 << 16, huge_pages: HugePages::Prefer };
//! let mut arena = Arena::shared(&options)?;
//! let shape = PoolShape { buffers: 8, buffer_bytes: 4096, stride_bytes: 4096, align_bytes: 4096 };
//! let mut pool = arena.pool(shape)?;
//! let mut buffer = pool.take().expect("all 8 are there");
//! arena.memory().bytes_mut(&mut buffer)[..4].copy_from_slice(b"data");
//! # Ok::<(), rpcrdma_fabric::interface::SetupError>(())
//! ```
//!
//! # What to read next
//!
//! [`interface`] has the shape of verbs: [`interface::Port`] is one core's own view of a device (its protection domain,
//! completion queue, receive queues and queue pairs), and [`interface::Manager`] makes and ends connections for a control
//! thread. There are two providers: [`shm`] joins processes of one machine, and [`verbs`] drives RDMA devices through rdma-core,
//! which it loads when it is first used (the feature `rdma-sys` links it). [`rails`] joins several devices into one
//! port. [`memory`] says how buffers and leases are owned, and
//! [`share`] how holders of one resource each get their guaranteed part.
#![allow(unsafe_code)]

pub mod address;
pub mod clock;
pub mod interface;
pub mod memory;
#[cfg(feature = "usdt")]
pub mod probes;
pub mod rails;
pub mod share;
pub mod shm;
#[cfg(feature = "storage")]
pub mod storage;
#[cfg(feature = "testing")]
pub mod testing;
pub mod verbs;
mod waiting;
