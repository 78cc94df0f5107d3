//! NFS version 3 (RFC 1813) and MOUNT, for the server and the client of bench-tool.
//!
//! | module | contents |
//! |---|---|
//! | [`wire`] | numbers, types and XDR, for both ends |
//! | [`server`] | a server: the procedures, over RPC-over-RDMA and over TCP |
//! | [`store`] | its file system, in memory |
//! | [`client`] | the calls of a client, the checks of the replies, and MOUNT |
//!
//! This crate does not measure, and reads no command line.
#![forbid(unsafe_code)]

pub mod client;
pub mod server;
pub mod store;
pub mod wire;
