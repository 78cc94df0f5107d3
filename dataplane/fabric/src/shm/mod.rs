//! The `shm` provider: connects two processes, or two threads, of one machine.
//!
//! It is a fabric, not a mock: reliable and in order, with shared receive queues,
//! receiver-not-ready, length and access errors, flush on error, memory windows with unpredictable
//! keys, and remote invalidation. It needs no device and no privilege.

mod channel;
mod copy;
mod counters;
mod doorbell;
mod files;
#[cfg(feature = "testing")]
pub(crate) mod hostile_ring;
mod join;
mod key_table;
mod link;
mod manager;
mod mapped;
mod packed;
mod peer_memory;
mod port;
mod queue_pair;
mod receive_queue;
mod record;
mod ring;
mod work;

pub(crate) use copy::{prefetch, prefetch_to_write};
pub use files::{ChannelFile, CheckedPeer, CoreIdentity};
pub use join::{Joint, join};
pub use link::{
    Fault, NumberHold, PortEvent, PortFiles, PortHandle, PreparedQueuePair, QueuePairNumber,
};
#[cfg(feature = "testing")]
pub(crate) use manager::message_again;
pub use manager::{Manager, ManagerOptions, check_free};
pub use port::{Port, PortConfig};

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests;
