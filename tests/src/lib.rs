//! See the crate description; the modules are named after what they do.
#![forbid(unsafe_code)]

pub mod fuzz_targets;
