//! ONC RPC message headers (RFC 5531 sections 8 and 9).
//!
//! A message is a header, directly followed by the arguments or results. Decoding returns the header and its length in
//! octets; credentials and verifiers are passed on unchanged and not checked.

mod auth;
mod call;
mod reply;

pub use auth::{AuthStatus, OpaqueAuth};
pub use call::CallHeader;
pub use reply::{AcceptStatus, RejectStatus, ReplyBody, ReplyHeader};

use crate::constants::{RPC_CALL, RPC_REPLY};
use crate::error::{DecodeError, Reason};
use crate::xdr::Reader;

/// Whether an RPC message is a call or a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageType {
    /// A call, sent by the requester.
    Call,
    /// A reply, sent by the responder.
    Reply,
}

/// Reads XID and message type, the two words with which every RPC message begins.
///
/// # Errors
/// `Truncated`, `InvalidMessageType`.
#[inline]
pub fn peek(message: &[u8]) -> Result<(u32, MessageType), DecodeError> {
    let mut reader = Reader::new(message);
    let xid = reader.read_u32()?;
    let type_field = reader;
    match reader.read_u32()? {
        RPC_CALL => Ok((xid, MessageType::Call)),
        RPC_REPLY => Ok((xid, MessageType::Reply)),
        _ => Err(type_field.error(Reason::InvalidMessageType)),
    }
}
