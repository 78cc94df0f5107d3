//! The header of a reply.

use core::fmt;

use super::{AuthStatus, OpaqueAuth};
use crate::constants::{
    AUTH_ERROR, GARBAGE_ARGS, MSG_ACCEPTED, MSG_DENIED, PROC_UNAVAIL, PROG_MISMATCH, PROG_UNAVAIL,
    REPLY_HEADER_BYTES_WITHOUT_AUTH, RPC_CALL, RPC_MISMATCH, RPC_REPLY, SUCCESS, SYSTEM_ERR,
};
use crate::error::{DecodeError, EncodeError, Reason};
use crate::xdr::{Reader, Writer, put_word, word};

/// The header of a reply: all before the results (RFC 5531 section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReplyHeader<'a> {
    /// The XID of the call.
    pub xid: u32,
    /// Its outcome.
    pub body: ReplyBody<'a>,
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplyBody<'a> {
    /// MSG_ACCEPTED: the call was well-formed and its caller authenticated.
    Accepted {
        /// The proof of the responder's identity.
        verifier: OpaqueAuth<'a>,
        /// Whether the procedure was executed.
        status: AcceptStatus,
    },
    /// MSG_DENIED.
    Denied(RejectStatus),
}

/// The status of an accepted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AcceptStatus {
    /// The procedure was executed; its results follow the header.
    Success,
    /// The program does not exist at the responder.
    ProgUnavail,
    /// The program does not exist there in this version.
    ProgMismatch {
        /// The lowest version that exists.
        low: u32,
        /// The highest version that exists.
        high: u32,
    },
    /// The program has no such procedure.
    ProcUnavail,
    /// The arguments could not be decoded.
    GarbageArgs,
    /// Another failure, for instance of memory.
    SystemErr,
}

/// Why a call was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectStatus {
    /// The RPC version is not supported.
    RpcMismatch {
        /// The lowest RPC version supported.
        low: u32,
        /// The highest RPC version supported.
        high: u32,
    },
    /// The caller was not authenticated.
    AuthError(AuthStatus),
}

impl fmt::Display for RejectStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RpcMismatch { low, high } => write!(f, "it has versions {low} to {high} of RPC"),
            Self::AuthError(status) => status.fmt(f),
        }
    }
}

impl<'a> ReplyHeader<'a> {
    /// The XID of `message`, if it is a reply, whether the rest of it can be decoded or not: so a reply that cannot be decoded
    /// ends only its call (RFC 5531 section 9).
    #[must_use]
    pub fn xid_of(message: &[u8]) -> Option<u32> {
        let words = message.first_chunk::<8>()?;
        (word(words, 1) == RPC_REPLY).then_some(word(words, 0))
    }

    /// The header of a successful reply with verifier AUTH_NONE.
    #[inline]
    #[must_use]
    pub const fn success(xid: u32) -> Self {
        Self::accepted(xid, AcceptStatus::Success)
    }

    /// The header of an accepted reply with verifier AUTH_NONE.
    #[inline]
    #[must_use]
    pub const fn accepted(xid: u32, status: AcceptStatus) -> Self {
        Self {
            xid,
            body: ReplyBody::Accepted {
                verifier: OpaqueAuth::NONE,
                status,
            },
        }
    }

    /// The same reply with this verifier, if it is one that has a verifier: an accepted one.
    #[must_use]
    pub const fn with_verifier<'b>(self, verifier: OpaqueAuth<'b>) -> ReplyHeader<'b>
    where
        'a: 'b,
    {
        let body = match self.body {
            ReplyBody::Accepted { status, .. } => ReplyBody::Accepted { verifier, status },
            denied => denied,
        };
        ReplyHeader { body, ..self }
    }

    /// Decodes the reply header at the start of `message`, and returns it with its length in octets: after
    /// [`AcceptStatus::Success`] the results begin there.
    ///
    /// # Errors
    /// `Truncated`, `NotAReply`, `InvalidMessageType`, `InvalidReplyStatus`, `OpaqueTooLong`, `InvalidAcceptStatus`,
    /// `InvalidRejectStatus`.
    #[inline]
    pub fn decode(message: &'a [u8]) -> Result<(Self, usize), DecodeError> {
        match Self::success_in(message) {
            Some((xid, verifier, _)) => {
                let status = AcceptStatus::Success;
                let body = ReplyBody::Accepted { verifier, status };
                Ok((Self { xid, body }, REPLY_HEADER_BYTES_WITHOUT_AUTH))
            }
            None => Self::decode_any(message),
        }
    }

    /// The hot path: XID, verifier and results of a success whose verifier has an empty body, as nearly every reply is.
    /// `None` for any other message, valid or not; use [`ReplyHeader::decode`] then.
    #[inline]
    #[must_use]
    pub fn success_in(message: &'a [u8]) -> Option<(u32, OpaqueAuth<'a>, &'a [u8])> {
        let (words, results) = message.split_first_chunk::<REPLY_HEADER_BYTES_WITHOUT_AUTH>()?;
        if word(words, 1) != RPC_REPLY
            || word(words, 2) != MSG_ACCEPTED
            || word(words, 4) != 0
            || word(words, 5) != SUCCESS
        {
            return None;
        }
        let verifier = OpaqueAuth {
            flavor: word(words, 3),
            body: &[],
        };
        Some((word(words, 0), verifier, results))
    }

    fn decode_any(message: &'a [u8]) -> Result<(Self, usize), DecodeError> {
        let mut reader = Reader::new(message);
        let xid = reader.read_u32()?;
        let type_field = reader;
        match reader.read_u32()? {
            RPC_REPLY => {}
            RPC_CALL => return Err(type_field.error(Reason::NotAReply)),
            _ => return Err(type_field.error(Reason::InvalidMessageType)),
        }
        let status_field = reader;
        let body = match reader.read_u32()? {
            MSG_ACCEPTED => ReplyBody::Accepted {
                verifier: OpaqueAuth::decode(&mut reader)?,
                status: AcceptStatus::decode(&mut reader)?,
            },
            MSG_DENIED => ReplyBody::Denied(RejectStatus::decode(&mut reader)?),
            _ => return Err(status_field.error(Reason::InvalidReplyStatus)),
        };
        Ok((Self { xid, body }, reader.position()))
    }

    /// Writes the header at the start of `space`, and returns the octets written: the results follow there.
    ///
    /// # Errors
    /// `NoSpace`; `TooLong` for a verifier of more than 400 octets.
    #[inline]
    pub fn encode(&self, space: &mut [u8]) -> Result<usize, EncodeError> {
        let ReplyBody::Accepted {
            verifier: OpaqueAuth { flavor, body: [] },
            status: AcceptStatus::Success,
        } = self.body
        else {
            return self.encode_any(space);
        };
        let Some(out) = space.first_chunk_mut::<REPLY_HEADER_BYTES_WITHOUT_AUTH>() else {
            return Err(EncodeError::NoSpace);
        };
        put_word(out, 0, self.xid);
        put_word(out, 1, RPC_REPLY);
        put_word(out, 2, MSG_ACCEPTED);
        put_word(out, 3, flavor);
        put_word(out, 4, 0);
        put_word(out, 5, SUCCESS);
        Ok(REPLY_HEADER_BYTES_WITHOUT_AUTH)
    }

    fn encode_any(&self, space: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(space);
        writer.write_u32(self.xid)?;
        writer.write_u32(RPC_REPLY)?;
        match &self.body {
            ReplyBody::Accepted { verifier, status } => {
                writer.write_u32(MSG_ACCEPTED)?;
                verifier.encode(&mut writer)?;
                status.encode(&mut writer)?;
            }
            ReplyBody::Denied(status) => {
                writer.write_u32(MSG_DENIED)?;
                status.encode(&mut writer)?;
            }
        }
        Ok(writer.position())
    }
}

impl AcceptStatus {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let field = *reader;
        Ok(match reader.read_u32()? {
            SUCCESS => Self::Success,
            PROG_UNAVAIL => Self::ProgUnavail,
            PROG_MISMATCH => Self::ProgMismatch {
                low: reader.read_u32()?,
                high: reader.read_u32()?,
            },
            PROC_UNAVAIL => Self::ProcUnavail,
            GARBAGE_ARGS => Self::GarbageArgs,
            SYSTEM_ERR => Self::SystemErr,
            _ => return Err(field.error(Reason::InvalidAcceptStatus)),
        })
    }

    fn encode(self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        match self {
            Self::Success => writer.write_u32(SUCCESS),
            Self::ProgUnavail => writer.write_u32(PROG_UNAVAIL),
            Self::ProgMismatch { low, high } => {
                writer.write_u32(PROG_MISMATCH)?;
                writer.write_u32(low)?;
                writer.write_u32(high)
            }
            Self::ProcUnavail => writer.write_u32(PROC_UNAVAIL),
            Self::GarbageArgs => writer.write_u32(GARBAGE_ARGS),
            Self::SystemErr => writer.write_u32(SYSTEM_ERR),
        }
    }
}

impl RejectStatus {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let field = *reader;
        Ok(match reader.read_u32()? {
            RPC_MISMATCH => Self::RpcMismatch {
                low: reader.read_u32()?,
                high: reader.read_u32()?,
            },
            AUTH_ERROR => Self::AuthError(AuthStatus(reader.read_u32()?)),
            _ => return Err(field.error(Reason::InvalidRejectStatus)),
        })
    }

    fn encode(self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        match self {
            Self::RpcMismatch { low, high } => {
                writer.write_u32(RPC_MISMATCH)?;
                writer.write_u32(low)?;
                writer.write_u32(high)
            }
            Self::AuthError(AuthStatus(status)) => {
                writer.write_u32(AUTH_ERROR)?;
                writer.write_u32(status)
            }
        }
    }
}
