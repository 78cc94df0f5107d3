//! RPC-over-RDMA version 2, revision -00 (draft-ietf-nfsv4-rpcrdma-version-two-00).
//!
//! [`decode`] reads any version 2 transport header; the `encode_…` functions of [`encode`] write each
//! kind. [`properties`] has the transport properties that CONNPROP messages carry, [`error`] the transport errors.
//! [`rtr`] is the round-trip-reduction extension. [`application`] has what applications may add. [`plan`] lays out
//! messages with bulk data.
//! [`connection`] is the state of one connection, which decides what may be sent and what received messages mean.

pub mod application;
pub mod connection;
pub mod encode;
pub mod error;
pub mod header;
pub mod plan;
pub mod properties;
pub mod rtr;

pub use crate::rpc::Direction;
pub use application::{
    ApplicationHeaderTypes, ApplicationNumberRefused, ApplicationProperties,
    write_property_set_with,
};
pub use encode::{
    encode_connprop, encode_connprop_with, encode_credit_grant,
    encode_err_vers_in_version_1_layout, encode_error, encode_msg_header,
    encode_msg_header_without_chunks, encode_nomsg, encode_prefix, encode_report_error,
    encode_transmit_continue, encode_transmit_request, encode_transmit_response,
};
pub use error::{ErrVers, Refusal, TransportError, err_vers_in_version_1_layout, refusal};
pub use header::{
    Body, Chunks, CreditWord, Flags, Header, Prefix, decode, decode_with_rtr,
    transmission_head_bytes,
};
pub use properties::{
    Properties, Property, PropertyList, PropertySet, ReverseRequestSupport, write_property_set,
};
