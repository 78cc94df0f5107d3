//! ONC RPC message headers (RFC 5531 sections 8 and 9).
//!
//! A message is a header, directly followed by the arguments or results. Decoding returns the header and its length in
//! octets; credentials and verifiers are passed on unchanged and not checked. A responder asks [`judge()`] what becomes of a
//! call.

mod auth;
mod call;
mod judge;
mod programs;
mod reply;

pub use auth::{Auth, AuthStatus, OpaqueAuth};
pub use call::CallHeader;
pub use judge::{LastRoute, Route, RoutedCall, Verdict, is_null_call, judge, judge_header};
pub use programs::{Program, Programs};
pub use reply::{AcceptStatus, RejectStatus, ReplyBody, ReplyHeader};

use crate::constants::{RPC_CALL, RPC_REPLY};
use crate::error::{DecodeError, Reason};
use crate::xdr::Reader;

/// The kind of an RPC message. In version 2 F_RESPONSE gives it, too (-00 section 6.3.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// A call: its receiver is the responder.
    Call,
    /// A reply: its receiver is the requester.
    Reply,
}

impl Direction {
    /// From F_RESPONSE.
    #[inline]
    pub(crate) const fn of(is_response: bool) -> Self {
        if is_response { Self::Reply } else { Self::Call }
    }

    /// From the RPC message type.
    #[inline]
    pub(crate) const fn from_message_type(word: u32) -> Option<Self> {
        match word {
            RPC_CALL => Some(Self::Call),
            RPC_REPLY => Some(Self::Reply),
            _ => None,
        }
    }

    /// The RPC message type (RFC 5531 section 9).
    #[inline]
    pub(crate) const fn message_type(self) -> u32 {
        match self {
            Self::Call => RPC_CALL,
            Self::Reply => RPC_REPLY,
        }
    }
}

/// Reads XID and message type, the two words with which every RPC message begins.
///
/// # Errors
/// `Truncated`, `InvalidMessageType`.
#[inline]
pub fn peek(message: &[u8]) -> Result<(u32, Direction), DecodeError> {
    let mut reader = Reader::new(message);
    let xid = reader.read_u32()?;
    let type_field = reader;
    Direction::from_message_type(reader.read_u32()?)
        .map(|direction| (xid, direction))
        .ok_or_else(|| type_field.error(Reason::InvalidMessageType))
}
