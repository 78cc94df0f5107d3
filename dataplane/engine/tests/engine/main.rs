//! The engine over the `shm` fabric.

#[path = "../support/mod.rs"]
mod support;

mod calls;
mod guarded;
mod hostile;
mod keep_alive;
mod lifecycle;
mod threads;
