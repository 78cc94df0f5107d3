//! RPC-over-RDMA version 1 (RFC 8166 section 4).
//!
//! [`decode`] reads a transport header, the `encode_…` functions write one. [`connection`] is the state of one
//! connection.

pub mod connection;
mod encode;
mod header;

pub use encode::{encode_error, encode_msg_header, encode_msg_header_without_chunks, encode_nomsg};
pub use header::{Body, Header, Refusal, TransportError, decode, refusal};
