//! The fabric: everything that touches memory a peer can see, and everything that moves bytes.
//!
//! * [`interface`] has the shape of verbs: [`interface::Port`] is one core's own view of a device (its protection
//!   domain, completion queue, receive queues and queue pairs), and [`interface::Manager`] is the control thread's
//!   interface to make and end connections.
//! * [`memory`] holds registered arenas in hugepages, and the buffers that are carved from them.
//! * [`share`] counts a resource that many holders share, so that each gets its guaranteed part.
//! * `storage` (feature `storage`) writes files from registered memory, and reads them into it.
//! * [`shm`] is the embedded provider: two processes, or two threads, of one machine.
//! * [`verbs`] is the provider for RDMA devices. It loads rdma-core when it is first used; with the feature `rdma-sys`
//!   it links it.
//!
//! This is the only crate of the workspace that contains `unsafe` code, apart from the interface for C.
#![allow(unsafe_code)]

pub mod clock;
pub mod interface;
pub mod memory;
#[cfg(feature = "usdt")]
pub mod probes;
pub mod share;
pub mod shm;
#[cfg(feature = "storage")]
pub mod storage;
#[cfg(feature = "testing")]
pub mod testing;
pub mod verbs;
mod waiting;
