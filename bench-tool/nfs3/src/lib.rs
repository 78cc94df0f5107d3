//! NFS version 3 (RFC 1813) with MOUNT, as bench-tool serves and calls it.
//!
//! | module | what |
//! |---|---|
//! | [`wire`] | numbers, types and XDR, as both ends see them |
//! | [`server`] | a server: the procedures, by RPC-over-RDMA and by TCP |
//! | [`store`] | its file system, in memory |
//! | [`client`] | the calls of a client, what it believes of the answers, and MOUNT |
//!
//! Nothing here measures or reads a command line.
#![forbid(unsafe_code)]

pub mod client;
pub mod server;
pub mod store;
pub mod wire;
