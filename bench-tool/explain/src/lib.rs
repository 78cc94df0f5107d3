//! Explains RPC-over-RDMA traffic, as text and as JSON.
//!
//! [`capture`] reads captures of RoCEv2 traffic and assembles messages from packets. [`Explainer`] reads captures, or
//! messages in hex, and writes their contents. `bench-tool decode` is its command line.
//!
//! It is for programs that look at traffic: a test that asks what was sent, or a tool that reads captures. To see a capture
//! yourself, use `bench-tool decode`, or Wireshark with the dissector in `docs/wireshark`.
//!
//! ```
//! use rpcrdma_explain::{Explainer, Form};
//!
//! let call = "00000007 00000001 00000020 00000004 00000001 00000001 00000002";
//! let mut explainer = Explainer::new(Vec::new(), Form::Text);
//! explainer.explain(call.as_bytes(), "an example")?;
//! assert!(!explainer.found_wrong());
//! assert!(String::from_utf8(explainer.into_inner())?.contains("xid 0x00000007"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod capture;
mod decode;
mod recent;

pub use decode::{ExplainError, Explainer, Form};
