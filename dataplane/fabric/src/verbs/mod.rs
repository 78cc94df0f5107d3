//! The `verbs` provider: RDMA devices, by libibverbs and librdmacm.
//!
//! # Objects
//!
//! There is a file for each object of verbs, and one (`errno`) for the ways in which calls report failure. A [`Port`]
//! is one core's protection domain, completion queue, shared receive queue, queue pairs and memory windows, all on the
//! [`Context`] that librdmacm opened.
//!
//! All queue pairs of a port share one protection domain, as a shared receive queue requires. The exception is a device
//! where memory is registered for calls and each queue pair has its own receive queue: there each queue pair also has
//! its own domain, in which the memory of the port is registered again. Otherwise windows protect the memory of one
//! peer from another: memory is registered without remote access, and exposed only by windows of type 2B, whose keys
//! work only on the queue pair on which they were bound (InfiniBand volume 1, section 10.6.7.2.4).
//!
//! With [`PortConfig::thread_domain`] the queue pairs of a port are also in a thread domain, without locks of the library.
//!
//! # Children
//!
//! Spawn child processes before a device is opened. Kernels from 5.12 on copy pinned pages for a child;
//! [`Context::fork_safety`] reports whether this is one. On older ones set `RDMAV_FORK_SAFE`, and with hugepages
//! `RDMAV_HUGEPAGES_SAFE`, in the environment: this crate does not, because the library then advises the kernel about
//! each registration, whether there are children or not.

mod bindings;
mod cm;
mod completion_queue;
mod context;
mod errno;
mod events;
#[cfg(all(test, not(loom), not(feature = "rdma-sys")))]
mod fake;
mod join;
mod link;
mod manager;
mod memory_region;
mod memory_window;
mod number_table;
mod port;
mod protection_domain;
mod queue_pair;
mod registrations;
mod shared_receive_queue;
mod thread_domain;
mod trial;
mod work_request;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

pub use bindings::Facilities;
pub use context::{Context, DeviceLimits, ForkSafety, facilities};
pub use join::{join, prepared_pair};
pub use link::{PortEvent, PortHandle};
pub use manager::{Manager, ManagerOptions, check_free, device_at, device_towards};
pub use port::{Port, PortConfig, WithoutWindows};
pub use queue_pair::{PreparedQueuePair, QueuePair, Timers};

/// Objects whose destruction failed.
static LEAKED: AtomicU64 = AtomicU64::new(0);

/// Objects that the device refused to destroy, since the process started. Zero, unless a device was
/// removed or a driver has an error.
#[must_use]
pub fn objects_leaked() -> u64 {
    LEAKED.load(Ordering::Relaxed)
}

/// Counts an object whose destruction failed. A drop cannot return the error.
fn leaked(_what: &'static str, result: io::Result<()>) {
    if result.is_err() {
        LEAKED.fetch_add(1, Ordering::Relaxed);
    }
}
