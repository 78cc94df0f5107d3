//! The atomics of this workspace, so that the model checker can stand in for them.
//!
//! Under `--cfg loom` these are loom's, which explore every interleaving; otherwise they are the
//! standard library's. Every ordering stronger than `Relaxed` carries a `SYNC POINT name` comment
//! that also stands at its partner.

#[cfg(loom)]
pub use loom::sync::{Arc, atomic};
#[cfg(not(loom))]
pub use std::sync::{Arc, atomic};
