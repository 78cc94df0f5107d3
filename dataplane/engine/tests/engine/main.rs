//! The engine over the `shm` fabric.

#[path = "../support/mod.rs"]
mod support;

mod calls;
