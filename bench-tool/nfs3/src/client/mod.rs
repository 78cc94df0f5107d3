//! The client: finding the file handle of an export, encoding calls, and checking replies.
//!
//! | module | contents |
//! |---|---|
//! | [`request`], [`reply`] | the calls, and their results |
//! | [`caller`] | calls one at a time, on any transport |
//! | [`tcp`] | RPC over TCP |
//! | [`mount`], `portmap`, [`credential`] | from the path of an export to a file handle |
//! | `error` | an error with advice |

pub mod caller;
pub mod credential;
mod error;
pub mod mount;
mod portmap;
pub mod reply;
pub mod request;
pub mod tcp;

use std::time::Duration;

pub use self::error::ClientError;

/// The time limit of a single call, including its repetitions.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The wait before a call is repeated that the server could not serve at the moment (NFS3ERR_JUKEBOX).
pub const PUT_OFF_PAUSE: Duration = Duration::from_millis(100);
