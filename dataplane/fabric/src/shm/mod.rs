//! The `shm` provider: two processes, or two threads, of one machine.
//!
//! It is a fabric, not a mock: reliable and in order, with shared receive queues,
//! receiver-not-ready, length and access errors, flush on error, memory windows with unpredictable
//! keys, and remote invalidation. It needs no device and no privilege.

mod link;

pub use link::{
    CoreIdentity, Fault, Notice, PeerFiles, PortFiles, PortHandle, QueuePairNumber, Seed,
};
