//! RPC over TCP: a connection with one call at a time.
//!
//! MOUNT and the port mapper use it for every transport of NFS (RFC 8267 section 6.2). So do the calls that prepare a load
//! and clean up after it, if the load uses TCP.

use std::sync::atomic::{AtomicU32, Ordering};

mod caller;
mod connect;

pub use self::caller::{TcpCaller, TcpCallerConfig};
pub use self::connect::connect;

/// The first XID of a connection. Servers remember XIDs, so it is far from those of this process's other connections, and
/// most likely from those of other processes.
pub fn first_xid() -> u32 {
    static CONNECTIONS: AtomicU32 = AtomicU32::new(0);
    // Relaxed: the number only has to be unique.
    let number = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
    std::process::id().wrapping_mul(0x9e37_79b9) ^ number.wrapping_mul(0x85eb_ca6b)
}
