//! Wire formats and state machines of RPC-over-RDMA, versions 1 and 2: bytes in, bytes out.
//!
//! The crate does no I/O, reads no clock and owns no buffers: bytes, completions and time are arguments. So it serves
//! programs that bring their transport, captures, fuzzers and tests. Programs that want to call or to serve use the
//! crate `rpcrdma`, and need nothing from here.
//!
//! ```
//! use rpcrdma_protocol::v1::{self, Body};
//!
//! // A whole Send of version 1: an XID of 7, a request for 32 credits, no chunks, then the RPC message.
//! let mut send = [0; 64];
//! let header_bytes = v1::encode_msg_header_without_chunks(&mut send, 7, 32)?;
//!
//! let header = v1::decode(&send)?;
//! assert_eq!((header.xid, header.credit, header.header_bytes), (7, 32, header_bytes));
//! assert!(matches!(header.body, Body::Msg(_)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Decoding returns views of its input. It never allocates, never panics and never reads beyond the input; every list is walked
//! and bounded before a view of it exists.
//!
//! # What to read next
//!
//! [`connection`] is the state machine of a connection: it negotiates the version, and keeps credits and calls by the rules of
//! [`v1::connection`] or [`v2::connection`]. Its type describes in which order its methods are called. The formats, and where
//! they are specified:
//!
//! | module | format | source |
//! |---|---|---|
//! | [`xdr`] | words, opaques and marks | RFC 4506 |
//! | [`rpc`] | call and reply headers of ONC RPC | RFC 5531 |
//! | [`cm_private_data`] | private data that the two ends exchange when they connect | RFC 8797 |
//! | [`common`] | the words that every version shares | RFC 8166 section 7 |
//! | [`form`] | short RPC messages, by the words that vary | RFC 5531, RFC 8166, -00 |
//! | [`chunks`] | Read list, Write list, Reply chunk | RFC 8166 section 3.4 |
//! | [`v1`] | the version 1 header | RFC 8166 |
//! | [`v2`] | the version 2 header and properties | draft-ietf-nfsv4-rpcrdma-version-two-00 ("-00") |
//!
//! All numbers of the wire formats are in [`constants`].
#![forbid(unsafe_code)]

pub mod chunks;
pub mod cm_private_data;
pub mod common;
pub mod connection;
pub mod constants;
pub mod error;
pub mod form;
pub mod rpc;
pub mod v1;
pub mod v2;
pub mod xdr;

pub use error::{DecodeError, EncodeError, Reason};
