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
pub mod memory;
pub mod node;
pub mod options;
mod pointers;
pub mod poller;
pub mod read;
pub mod server;
pub mod service;
pub mod write;

/// What the header says of threads.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    const fn is_moved<T: Send>() {}
    is_shared::<node::NodeHandle>();
    is_shared::<server::ServerHandle>();
    is_shared::<client::ClientHandle>();
    is_shared::<memory::MemoryHandle>();
    is_moved::<options::Options>();
    is_moved::<buffer::BufferHandle>();
    is_moved::<core::CoreHandle>();
    // A call is what it holds, apart from what a handler borrows.
    is_moved::<rpcrdma::Request>();
    is_moved::<rpcrdma::Response>();
    is_moved::<rpcrdma::Later>();
    is_moved::<rpcrdma::Poller>();
};
