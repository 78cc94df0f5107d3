//! Helpers for the tests of several crates: reproducible random numbers, ports that wrap another port, temporary folders
//! and child processes.
//!
//! The crate depends on no other crate of the workspace, so that the unit tests of every crate can use it.
#![forbid(unsafe_code)]

mod folder;
mod port;
mod program;
mod random;
mod wait;

pub use folder::Folder;
pub use program::{CheckWords, Ended, Running, command};
pub use random::{Random, pattern};
pub use wait::{PATIENCE, Seen, Wait, reach, until};
