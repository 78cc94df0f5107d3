//! Calls and replies in the form in which applications use them, and their keys.

use rpcrdma_protocol::rpc::{
    AcceptStatus, AuthStatus, CallHeader, OpaqueAuth, RejectStatus, ReplyBody, ReplyHeader,
};
use rpcrdma_protocol::v2;

/// Identifies a connection of a core: an index, and a generation that tells successive users of the index apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConnectionKey {
    /// Index into the core's table.
    pub index: u32,
    /// Raised whenever the index is used again.
    pub generation: u32,
}

/// Chosen by the requester for a call; comes back with its reply.
pub type CallTag = u64;

/// Whether something was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Activity {
    /// There was nothing to do.
    Idle,
    /// Something was done, and there may be more to do.
    Busy,
}

impl Activity {
    /// Busy when `busy`.
    #[inline]
    pub fn from_busy(busy: bool) -> Self {
        if busy { Self::Busy } else { Self::Idle }
    }

    /// Busy when this or `other` is.
    #[inline]
    pub fn or(self, other: Self) -> Self {
        if self == Self::Busy { self } else { other }
    }

    /// Whether something was done.
    #[inline]
    #[must_use]
    pub fn is_busy(self) -> bool {
        self == Self::Busy
    }
}

/// The slot of a deferred call, and its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DeferId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// The right to answer a deferred call, once. It may be sent to any thread, but only its core can answer with it
/// ([`Context::reply`](crate::Context::reply)). If it is dropped without an answer, its slot stays in use until the
/// core ends.
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "a deferred call is answered with its token, or never"]
pub struct DeferToken(pub(crate) DeferId);

/// How a call of a peer ended (RFC 5531 section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done; the written results are sent.
    Success,
    /// The program does not exist here: PROG_UNAVAIL.
    ProgramUnavailable,
    /// The program exists here in other versions: PROG_MISMATCH.
    ProgramMismatch {
        /// The lowest version there is.
        low: u32,
        /// The highest version there is.
        high: u32,
    },
    /// The program has no such procedure: PROC_UNAVAIL.
    ProcedureUnavailable,
    /// The arguments cannot be decoded: GARBAGE_ARGS.
    GarbageArgs,
    /// Something else failed here: SYSTEM_ERR.
    SystemError,
    /// The credential or verifier is refused: MSG_DENIED with AUTH_ERROR.
    AuthError(AuthStatus),
    /// The call will be answered later, with the token of [`Request::defer`](crate::Request::defer).
    Deferred,
    /// The call gets no answer, as RPCSEC_GSS wants for one whose number was used before (RFC 2203 section 5.3.3.1). Its caller
    /// has one credit less until its time limit; a requester of this crate then ends the connection, if that has version 1 or the call had
    /// bulk data.
    Discarded,
}

impl Outcome {
    /// The reply header for this outcome (RFC 5531 section 9). That of a call without a reply, or without one so far, is
    /// SYSTEM_ERR.
    #[must_use]
    pub fn reply_header(self, xid: u32) -> ReplyHeader<'static> {
        let status = match self {
            Self::Success => AcceptStatus::Success,
            Self::ProgramUnavailable => AcceptStatus::ProgUnavail,
            Self::ProgramMismatch { low, high } => AcceptStatus::ProgMismatch { low, high },
            Self::ProcedureUnavailable => AcceptStatus::ProcUnavail,
            Self::GarbageArgs => AcceptStatus::GarbageArgs,
            Self::SystemError | Self::Deferred | Self::Discarded => AcceptStatus::SystemErr,
            Self::AuthError(status) => {
                return ReplyHeader {
                    xid,
                    body: ReplyBody::Denied(RejectStatus::AuthError(status)),
                };
            }
        };
        ReplyHeader::accepted(xid, status)
    }
}

/// The procedure that a call asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Call {
    /// RPC program.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Procedure of the program.
    pub procedure: u32,
}

impl Call {
    /// The header of such a call.
    pub(crate) const fn header<'a>(self, xid: u32, auth: CallAuth<'a>) -> CallHeader<'a> {
        CallHeader {
            xid,
            program: self.program,
            version: self.version,
            procedure: self.procedure,
            credential: auth.credential,
            verifier: auth.verifier,
        }
    }
}

/// Who calls, and the proof of it (RFC 5531 section 8.2). Each has at most 400 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallAuth<'a> {
    /// Who calls.
    pub credential: OpaqueAuth<'a>,
    /// The proof.
    pub verifier: OpaqueAuth<'a>,
}

impl CallAuth<'static> {
    /// AUTH_NONE, for both.
    pub(crate) const NONE: Self = Self {
        credential: OpaqueAuth::NONE,
        verifier: OpaqueAuth::NONE,
    };
}

impl<'a> From<OpaqueAuth<'a>> for CallAuth<'a> {
    /// This credential, with verifier AUTH_NONE.
    fn from(credential: OpaqueAuth<'a>) -> Self {
        Self {
            credential,
            verifier: OpaqueAuth::NONE,
        }
    }
}

/// A reply to a call of ours.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    /// The results: an XDR stream.
    pub results: &'a [u8],
    /// The responder's verifier, which the engine does not check.
    pub verifier: OpaqueAuth<'a>,
}

/// Why a call of ours ended without results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No reply came in time.
    #[error("no reply came in time")]
    TimedOut,
    /// The connection ended first.
    #[error("the connection ended before the reply came")]
    Disconnected,
    /// The responder answered with a transport error (-00 section 6.4.3).
    #[error("the responder refused the call: {0}")]
    Transport(v2::TransportError),
    /// The reply is no RPC reply.
    #[error("the reply cannot be decoded")]
    BadReply,
    /// The reply is longer than a message may be, or no buffer was free to assemble it.
    #[error("the reply is longer than a message may be here")]
    ReplyTooLong,
    /// PROG_UNAVAIL: the responder does not have the program.
    #[error("the responder does not have the program")]
    ProgramUnavailable,
    /// PROG_MISMATCH: the responder has the program in other versions.
    #[error("the responder has versions {low} to {high} of the program")]
    ProgramMismatch {
        /// The lowest version there is.
        low: u32,
        /// The highest version there is.
        high: u32,
    },
    /// PROC_UNAVAIL: the program has no such procedure.
    #[error("the program has no such procedure")]
    ProcedureUnavailable,
    /// GARBAGE_ARGS: the responder cannot decode the arguments.
    #[error("the responder cannot decode the arguments")]
    GarbageArgs,
    /// SYSTEM_ERR: something else failed at the responder.
    #[error("the call failed at the responder")]
    SystemError,
    /// MSG_DENIED: another version of RPC, or a credential that is refused.
    #[error("the responder denied the call: {0}")]
    Denied(RejectStatus),
}

/// Why a call of ours was not accepted. Nothing was sent, and no completion follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallRefused {
    /// No connection has this key.
    #[error("no such connection")]
    UnknownConnection,
    /// Properties were not exchanged yet, or the connection is closing.
    #[error("the connection is not ready")]
    NotReady,
    /// The call would go in the reverse direction, from the server to the client, and one of the ends
    /// is not ready for that: its properties say so (-00 section 5.2.5).
    #[error("an end of the connection takes no calls from the server to the client")]
    NotTaken,
    /// The core is draining.
    #[error("the core is draining")]
    Draining,
    /// The peer has granted no credit for it; a reply or a grant will bring one. Also
    /// while a message in parts is being sent.
    #[error("the peer has granted no credit")]
    NoCredit,
    /// Too many calls are outstanding, or no buffer is free.
    #[error("too many calls are outstanding")]
    NoSlot,
    /// The message would be longer than a message may be, or its memory has more pieces than
    /// the chunk lists can describe.
    #[error("the call is longer than a message may be")]
    TooLong,
    /// The core has no bulk buffers.
    #[error("the core has no bulk buffers")]
    NoBulk,
    /// The requested [`Placement`](crate::Placement) is impossible: the device has no memory windows, the peer accepts
    /// no chunks in this direction, or one of the ends does not place data by Sends.
    #[error("the items cannot travel in the way that was asked for")]
    NoPlacement,
    /// An item is in the memory of another core, or does not start at the start of its buffer.
    #[error("an item lies in memory that cannot be exposed from here")]
    ForeignMemory,
    /// A message of a header type that is not among [`CoreConfig::header_types`](crate::CoreConfig::header_types), or
    /// on a connection of version 1, which has none.
    #[error("the core's header types do not have this one, or the connection is of version 1")]
    NotRegistered,
}

impl CallRefused {
    /// Whether the same call may be accepted later.
    #[must_use]
    pub fn is_transient(self) -> bool {
        matches!(self, Self::NoCredit | Self::NoSlot)
    }
}

/// Why a deferred reply was not accepted. The token comes back with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyRefused {
    /// Nothing can be sent or queued now: try again in a later poll.
    #[error("nothing can be sent or kept now")]
    Busy,
    /// The reply would be longer than a message may be: answer something else.
    #[error("the reply is longer than a message may be")]
    TooLong,
    /// The outcome is [`Outcome::Deferred`] or [`Outcome::Discarded`], which is no answer.
    #[error("a call that was deferred is neither deferred again nor discarded")]
    NoAnswer,
    /// The token is not of this core, or was used.
    #[error("the token is of another core, or was used")]
    UnknownToken,
}
