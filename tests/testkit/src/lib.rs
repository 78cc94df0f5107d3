//! What the tests of several crates share: numbers that are the same in every run, and ports that pass on to another.
//!
//! It depends on no other crate of the workspace, so that the unit tests of each can use it.
#![forbid(unsafe_code)]

mod port;
mod random;

pub use random::{Random, pattern};
