//! Rings by which other threads reach a core.
//!
//! Where several threads meet, `crossbeam_queue::ArrayQueue` serves; where there is one on each
//! side, [`spsc`] does the same without a compare-and-swap. Both are bounded, allocate when they
//! are made and never again, and fail a push instead of waiting.

pub mod spsc;

mod cell;
mod padded;

pub use padded::CachePadded;
