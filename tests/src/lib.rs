//! See the crate description; the modules are named after what they do.
#![forbid(unsafe_code)]

pub mod fabric_conformance;
pub mod fuzz_targets;
pub mod hostile;
pub mod shm_peer;
