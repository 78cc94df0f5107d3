//! The targets themselves stand in `tests/src/fuzz_targets`, where the tests on stable use them too.
#![forbid(unsafe_code)]

#[path = "../../src/fuzz_targets/mod.rs"]
pub mod fuzz_targets;
