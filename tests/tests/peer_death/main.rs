//! The death and the stop of a peer process: whoever survives learns of it, goes on serving
//! others, gets whole messages or none, and keeps nothing of the dead.
//!
//! How much is tried is in the hands of the environment: `RPCRDMA_KILLS` (processes that are
//! killed at random, 20), `RPCRDMA_STOP_SECONDS` (how long one is stopped, 2), and
//! `RPCRDMA_DEATH_STRIDE` (every so many instructions a process is killed, 1).
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

mod children;
mod random_kills;
#[cfg(target_arch = "x86_64")]
mod single_step;
mod stopped;
mod survivor;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The tests count the descriptors and the mappings of this process, so only one runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number from the environment.
fn asked(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} is {text:?}, not a number")),
        Err(_) => default,
    }
}
