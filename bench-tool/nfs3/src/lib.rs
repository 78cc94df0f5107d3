//! NFS version 3 (RFC 1813) and MOUNT: a server with files in memory, and the calls of a client.
//!
//! `bench-tool serve --service nfs3` and `bench-tool nfs` are made of it. It is for programs that serve files by RPC-over-RDMA
//! and TCP, or test a server that does. It does not measure, and reads no command line.
//!
//! ```
//! use rpcrdma_nfs3::wire::Procedure;
//!
//! // A call of these may be sent again without harm; the server keeps its replies to all others.
//! assert!(Procedure::Read.is_idempotent());
//! assert!(!Procedure::Remove.is_idempotent());
//! ```
//!
//! # What to read next
//!
//! [`wire`] has the numbers, types and XDR of both ends; programs that bring their transport need it alone. [`server`]
//! answers the procedures over RPC-over-RDMA and TCP, on the file system of [`store`], whose contents are in ordinary or in
//! registered memory. [`client`] makes calls, checks their replies and mounts. `docs/nfs3.md` and `docs/nfs.md` describe both
//! ends as users see them.
#![forbid(unsafe_code)]

pub mod client;
pub mod server;
pub mod store;
pub mod wire;
