//! RPC over TCP: a connection with one call at a time, and how it is made.
//!
//! MOUNT and the port mapper are spoken this way whatever carries the NFS calls (RFC 8267 section 6.2); so are the
//! calls that prepare a load and clean up after it, where the load goes over TCP.

use std::sync::atomic::{AtomicU32, Ordering};

mod caller;
mod connect;

pub use self::caller::{TcpCaller, TcpCallerConfig};
pub use self::connect::connect;

/// Where the XIDs of a connection begin: apart from those of this process's other connections, because servers remember
/// XIDs, and most likely from those of other processes.
pub fn first_xid() -> u32 {
    static CONNECTIONS: AtomicU32 = AtomicU32::new(0);
    // Relaxed: a number of its own is all that is asked for.
    let number = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
    std::process::id().wrapping_mul(0x9e37_79b9) ^ number.wrapping_mul(0x85eb_ca6b)
}
