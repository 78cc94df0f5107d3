//! RPC over RDMA for programs: servers, clients and bulk data without copies, over shared memory and RDMA devices.
//!
//! ```
//! use rpcrdma::prelude::*;
//!
//! const ECHO: Procedure = Procedure::new(0x2000_0001, 1, 1);
//!
//! fn main() -> rpcrdma::Result<()> {
//! #   let address = &*format!("shm:echo-{}", std::process::id());
//! #   /*
//!     let address = "shm:echo"; // or "rdma:192.0.2.7:20049"
//! #   */
//!     let server = Server::builder()
//!         .procedure(ECHO, |call, reply| {
//!             reply.opaque(call.args().opaque()?);
//!             Ok(())
//!         })
//!         .listen(address)?;
//!
//!     let client = Client::connect(address)?;
//!     let mut answer = client.request(ECHO).opaque(b"ping").call()?;
//!     assert_eq!(answer.results().opaque()?, b"ping");
//!     # drop(server);
//!     Ok(())
//! }
//! ```
//!
//! | type | what it is |
//! |---|---|
//! | [`Server`] | answers calls, now or later, with closures or a [`Service`] for each core |
//! | [`Client`] | calls: blocking, as futures of any runtime, or in batches ([`Poller`]) |
//! | [`Buffers`] | registered memory: data in it is sent and received without a copy |
//! | [`ExternalMemory`] | memory of the program that is used so: hugepages, memfds, dma-bufs |
//! | [`Node`] | polling cores that servers and clients can share |
//! | [`Metrics`] | counters and levels for exporters |
//! | [`record`] | RPC messages on a stream, for programs with their own TCP |
//! | [`once`] | the duplicate request cache, also for servers with their own transport |
//!
//! It is for programs that serve or call any ONC RPC program, block and file stores above all. `docs/embedding.md` of the
//! repository goes on from here: calls in batches, calls that must not run twice, bulk data, a complete appliance. Without a
//! device the address `shm:NAME` joins processes of one machine.
//!
//! The crates below this one are for what it does not offer: `rpcrdma-engine` has the trait that runs on a core,
//! `rpcrdma-control` the connections, `rpcrdma-tuning` the profiles.

#![forbid(unsafe_code)]

mod auth;
mod buffers;
mod client;
mod core;
mod decode;
mod encode;
mod error;
mod exchange;
mod metrics;
mod node;
pub mod once;
mod polled;
mod procedure;
pub mod record;
mod server;
mod service;
mod tcp;
mod trace;

pub use auth::{Sign, Unauthenticated};
pub use buffers::{Buffer, Buffers};
pub use client::{Client, ClientBuilder, Ended, Pending, Poller, Request, Response, Start};
pub use decode::{Bulk, Decoder};
pub use encode::Encode;
pub use error::{Error, ErrorKind, Malformed};
pub use metrics::{Metric, Metrics};
pub use node::{Node, NodeBuilder};
pub use polled::PolledCore;
pub use procedure::Procedure;
pub use server::Server;
pub use service::{Incoming, Later, Refusal, Reply, Results, Service};

pub use rpcrdma_control::{
    Authentication, DrainReport, HostAuthentication, NodeSnapshot, PresharedKey, PresharedKeys,
    Reconnect, Versions,
};
pub use rpcrdma_engine::{CloseReason, ConnectionKey, HostIdentity, VerifierRefused};
pub use rpcrdma_fabric::interface::DeviceLevels;
pub use rpcrdma_fabric::memory::ExternalMemory;
pub use rpcrdma_protocol::rpc::{Auth, AuthStatus};
pub use rpcrdma_tuning::{Idle, Profile};

/// The result of what can fail here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What most programs use.
pub mod prelude {
    pub use crate::{
        Buffer, Buffers, Client, Encode, ErrorKind, Incoming, Node, Procedure, Refusal, Reply,
        Server, Service,
    };
}
