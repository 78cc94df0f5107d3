//! RPC over TCP: a connection with one call at a time, and how it is made.
//!
//! MOUNT and the port mapper are spoken this way whatever carries the NFS calls (RFC 8267 section 6.2); so are the
//! calls that prepare a load and clean up after it, where the load goes over TCP.

mod caller;
mod connect;

pub(crate) use self::caller::{TcpCaller, TcpCallerConfig};
pub(crate) use self::connect::connect;
