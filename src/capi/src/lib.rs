//! librpcrdma: the library for C, C++, and languages that call C. `include/rpcrdma.h` is made from this crate by
//! cbindgen, and documents each function; docs/c.md is an introduction.
//!
//! Every function enters by `border::guarded`, which catches panics, and checks its pointers by
//! `pointers`. All that Rust cannot check is there, and in [`call`] and [`service`], which keep what a handler
//! borrows behind a pointer for as long as it runs.
#![allow(unsafe_code)]
#![expect(
    clippy::missing_safety_doc,
    reason = "the beginning of the header has the conditions of all functions, for readers of C"
)]

pub mod border;
pub mod buffer;
pub mod call;
pub mod client;
pub mod codes;
pub mod core;
pub mod node;
pub mod options;
mod pointers;
pub mod poller;
pub mod read;
pub mod server;
pub mod service;
pub mod write;
