//! Wire formats and sans-IO state machines of RPC-over-RDMA.
//!
//! This crate does no I/O, reads no clock and owns no buffers: bytes, completions and time are arguments.
//!
//! # Formats
//!
//! | module | format | source |
//! |---|---|---|
//! | [`xdr`] | words, opaques and marks | RFC 4506 |
//! | [`rpc`] | call and reply headers of ONC RPC | RFC 5531 |
//! | [`cm_private_data`] | private data that the two ends exchange when they connect | RFC 8797 |
//! | [`common`] | the words that every version shares | RFC 8166 section 7 |
//! | [`chunks`] | Read list, Write list, Reply chunk | RFC 8166 section 3.4 |
//! | [`v1`] | the version 1 header | RFC 8166 |
//! | [`v2`] | the version 2 header and properties | draft-ietf-nfsv4-rpcrdma-version-two-00 ("-00") |
//!
//! [`v1::connection`] and [`v2::connection`] are the state machines of a connection of one version; [`connection`]
//! combines them and negotiates the version.
//!
//! Decoding returns views of its input. It never allocates, never panics and never reads beyond the input; every list
//! is walked and bounded before a view of it exists. All numbers of the wire formats are in [`constants`].
#![forbid(unsafe_code)]

pub mod chunks;
pub mod cm_private_data;
pub mod common;
pub mod connection;
pub mod constants;
pub mod error;
pub mod rpc;
pub mod v1;
pub mod v2;
pub mod xdr;

pub use error::{DecodeError, EncodeError, Reason};
