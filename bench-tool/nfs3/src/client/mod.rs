//! A client's calls: from a path to a file handle, requests, and what is believed of the answers.
//!
//! | module | what |
//! |---|---|
//! | [`request`], [`reply`] | the calls that are made, and their results |
//! | [`caller`] | calls one at a time, on whatever transport |
//! | [`tcp`] | RPC over TCP |
//! | [`mount`], `portmap`, [`credential`] | from the path of an export to a file handle |
//! | `error` | what failed, and what to do |

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

/// How long a single call may take, with all its repetitions.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a call waits that the server puts off (NFS3ERR_JUKEBOX), before it is made again.
pub const PUT_OFF_PAUSE: Duration = Duration::from_millis(100);
