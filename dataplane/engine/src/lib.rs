//! The engine: pinned polling cores that speak RPC-over-RDMA version 2.
//!
//! A [`Core`] is one thread that owns a port of the fabric, its receive buffers, its connections,
//! timers and counters, and the [`Application`] that answers calls and makes them. Nothing that a
//! core owns is locked. Other threads reach it only through rings: the control plane with [`CoreHandle`],
//! application threads with [`ring_client`].
//!
//! This crate is for programs that the crate `rpcrdma` is too small for: those that call from a core without a second
//! thread, whose servers call their clients, or that define more header types and properties. All others need `rpcrdma`
//! alone. A core runs an [`Application`]:
//!
//! ```
//! use rpcrdma_engine::{Application, Outcome, ReplyWriter, Request};
//!
//! /// Sends the arguments of each call back.
//! struct Echo;
//!
//! impl Application for Echo {
//!     fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
//!         match reply.write(request.args) {
//!             Ok(()) => Outcome::Success,
//!             Err(_) => Outcome::SystemError,
//!         }
//!     }
//! }
//! ```
//!
//! `Node` of `rpcrdma-control` starts cores with it, and connects them; its documentation goes on with this example.
//! [`Context`] is what an application does beside answering, and [`CoreConfig`] has the sizes.
//!
//! # The way of a call
//!
//! A Send arrives in a Receive of the core's shared receive queue, or of the connection's own queue if
//! the device has no shared ones. The poll iteration ([`Core::iterate`]) reaps its completion, lets
//! `rpcrdma_protocol` decode the transport header in place, and hands the call to [`Application::call`],
//! which runs to completion and writes its results directly into the buffer from which the reply is sent.
//! The Receive is posted again, the reply grants its credit again, and both are flushed once: receives first.
//!
//! # Who owns what
//!
//! | bytes | owner |
//! |---|---|
//! | a call, while the application reads it | its Receive; of a continued one, a message buffer |
//! | a reply of one message | the scratch send buffer; a longer one takes that buffer along |
//! | a message that arrives or is sent in parts | a message buffer, in ordinary memory |
//! | a call that waits until its reply can be queued | its Receive, which is posted again only after that |
//!
//! After start-up a core allocates only when a connection is adopted, and for its properties.
#![forbid(unsafe_code)]

// Unit tests drive whole cores as the integration tests do.
#[cfg(test)]
extern crate self as rpcrdma_engine;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
#[cfg(test)]
const FORM: support::Form = support::Form::SharedQueue;
#[cfg(test)]
type TestFabric = support::fabric::Shm;

mod application_messages;
mod authentication;
mod bulk;
mod close_reason;
mod config;
mod connection;
mod core;
mod counters;
mod deferrals;
mod forms;
mod handle;
mod idle;
mod ledger;
mod levels;
mod limits;
mod memory;
mod message;
mod padded;
pub mod placement_segments;
mod request;
mod requester;
mod responder;
pub mod ring_client;
mod rpc;
mod xids;

pub use crate::application_messages::{
    ApplicationMessage, MessageOutcome, PEER_PROPERTIES_BYTES_MAX, PEER_PROPERTIES_MAX,
    PeerProperties,
};
pub use crate::authentication::{
    AuthenticationFailure, AuthenticationMessage, BadIdentity, HostIdentity,
};
pub use crate::bulk::{
    ArgumentView, ArgumentViews, BULK_ITEMS_MAX, BULK_PARTS_MAX, BulkArguments, BulkCall, BulkItem,
    BulkReply, BulkResult, ExpectedResult, ITEM_PARTS_MAX, NoRoom, Placement, StreamPiece,
    TARGET_PARTS_MAX,
};
pub use crate::close_reason::{CloseReason, Owed};
pub use crate::config::{CoreConfig, IdlePolicy};
pub use crate::core::{Application, Context, Core, RunError, pin_current_thread, processors};
pub use crate::counters::{Counter, CounterSnapshot, Counters};
pub use crate::handle::{
    Command, ConnectionCounters, CoreEvent, CoreHandle, Full, PROPERTY_BYTES_MAX,
};
pub use crate::ledger::{LEDGER, LedgerEntry};
pub use crate::levels::{LevelSnapshot, PollTimeSnapshot};
pub use crate::placement_segments::PlacementConfig;
pub use crate::request::Request;
pub use crate::responder::{ReplyTooLong, ReplyWriter, VerifierRefused};
pub use crate::rpc::{
    Activity, Call, CallAuth, CallError, CallRefused, CallTag, ConnectionKey, DeferToken, Outcome,
    Reply, ReplyRefused,
};
