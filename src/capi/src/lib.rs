//! librpcrdma: the library for C, C++, and languages that call C.
//!
//! Programs in Rust do not need it: the crate `rpcrdma` has the same parts. Programs in other languages do not see this page:
//! `include/rpcrdma.h`, which cbindgen makes from this crate, documents each function, `docs/c.md` is an introduction, and
//! `packaging/install-c` installs the library. A client in C:
//!
//! ```c
//! rpcrdma_client_connect("shm:echo", NULL, &client);
//! rpcrdma_client_call(client, (rpcrdma_procedure){0x20000001, 1, 1}, &call);
//! rpcrdma_put_opaque(call, "ping", 4);
//! rpcrdma_call_run(call);
//! rpcrdma_get_opaque(call, &text, &bytes);
//! ```
//!
//! From Rust the functions are called with the same pointers:
//!
//! ```
//! use rpcrdma_c::options::{rpcrdma_options_free, rpcrdma_options_new, rpcrdma_options_set};
//!
//! let options = rpcrdma_options_new();
//! // SAFETY: the options are ours, and the texts end with a zero.
//! let set = unsafe { rpcrdma_options_set(options, c"repeat".as_ptr(), c"yes".as_ptr()) };
//! assert_eq!(set, rpcrdma_c::codes::RPCRDMA_OK);
//! // SAFETY: they are not used any more.
//! unsafe { rpcrdma_options_free(options) };
//! ```
//!
//! # For who changes it
//!
//! Every function enters by `border::guarded`, which catches panics, and checks its pointers by
//! `pointers`. All that Rust cannot check is there, and in [`call`] and [`service`], which keep what a handler
//! borrows behind a pointer for as long as it runs.
#![allow(unsafe_code)]
#![expect(
    clippy::missing_safety_doc,
    reason = "the beginning of the header has the conditions of all functions, for readers of C"
)]

pub mod auth;
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
