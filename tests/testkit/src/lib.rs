//! What the tests of several crates share: numbers that are the same in every run, ports that pass on to another, folders
//! that are removed, and programs that are run and watched.
//!
//! It depends on no other crate of the workspace, so that the unit tests of each can use it.
#![forbid(unsafe_code)]

mod folder;
mod port;
mod program;
mod random;

pub use folder::Folder;
pub use program::{CheckWords, Ended, PATIENCE, Running, command, until};
pub use random::{Random, pattern};
