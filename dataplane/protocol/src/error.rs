//! The decoding and encoding errors of all formats of this crate.

use core::fmt;

/// Why bytes could not be decoded, and where.
///
/// It is `Copy` and small, so that the data path can pass it on and count it. [`Display`](fmt::Display)
/// formats it for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecodeError {
    /// Byte offset, from the start of what was decoded, of the first field that is wrong. For bytes that are
    /// missing it is where the field that lacks them begins.
    pub at: usize,
    /// What is wrong there.
    pub reason: Reason,
}

impl DecodeError {
    /// An error at byte offset `at`.
    #[inline]
    #[must_use]
    pub const fn new(at: usize, reason: Reason) -> Self {
        Self { at, reason }
    }

    /// The same error with its offset counted from the start of an enclosing message, in which the decoded part begins
    /// at `base_bytes`.
    #[inline]
    #[must_use]
    pub const fn within(self, base_bytes: usize) -> Self {
        Self {
            at: self.at.saturating_add(base_bytes),
            reason: self.reason,
        }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: {}", self.at, self.reason)
    }
}

impl core::error::Error for DecodeError {}

/// What can be wrong with received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The message is shorter than the least size of its version and header type: it is discarded in silence, and
    /// counted (RFC 8166 section 4.5; [`crate::constants`] has the sizes).
    BelowLeastSize,
    /// A field reaches beyond the end of the bytes.
    Truncated,
    /// A boolean, or the mark before optional data, is neither 0 nor 1 (RFC 4506 sections 4.4 and 4.19).
    InvalidBoolean,
    /// A variable-length opaque is longer than its declaration allows.
    OpaqueTooLong,
    /// Bytes follow where the format has none.
    TrailingBytes,
    /// The transport version word is not the version that was to be decoded.
    UnsupportedVersion,
    /// The header type is not one of this version.
    UnknownHeaderType,
    /// A version 1 RDMA_NOMSG has no chunk, in which its RPC message would be (RFC 8166 section 4.5.2).
    NoPayload,
    /// A flag bit is set that -00 section 6.3.2 reserves.
    ReservedFlags,
    /// The Write list has more chunks than [`crate::constants::WRITE_CHUNKS_MAX`].
    TooManyWriteChunks,
    /// A chunk or the Read list has more segments than [`crate::constants::SEGMENTS_MAX`].
    TooManySegments,
    /// A Transmit Request or Response has more items, sets or directions than we accept
    /// ([`RTR_ITEMS_MAX`](crate::constants::RTR_ITEMS_MAX) and the two that follow it).
    TooManyItems,
    /// An item names more segments than [`crate::constants::RTR_ITEM_SEGMENT_NUMBERS_MAX`].
    TooManySegmentNumbers,
    /// A placement type is unknown, or not allowed in this place (RTR section 6.2, Table 1).
    InvalidPlacementType,
    /// The header says that the transmission group has no transmission.
    NoTransmission,
    /// The code of a Report Error is not one of RTR section 9.5.
    InvalidReportedError,
    /// The value of a property that we understand does not conform to its XDR type (-00 section 5.1).
    InvalidPropertyValue,
    /// A set has a property that we understand twice.
    DuplicateProperty,
    /// The RPC message type is neither CALL nor REPLY.
    InvalidMessageType,
    /// The message is a reply, not a call.
    NotACall,
    /// The message is a call, not a reply.
    NotAReply,
    /// The RPC version is not 2: the responder answers RPC_MISMATCH (RFC 5531 section 9).
    UnsupportedRpcVersion,
    /// The reply status is neither MSG_ACCEPTED nor MSG_DENIED.
    InvalidReplyStatus,
    /// The status of an accepted reply is not one of RFC 5531 section 9.
    InvalidAcceptStatus,
    /// The status of a denied reply is not one of RFC 5531 section 9.
    InvalidRejectStatus,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BelowLeastSize => "the message is shorter than its version and type allow",
            Self::Truncated => "the field reaches beyond the end of the message",
            Self::InvalidBoolean => "a boolean or list mark is neither 0 nor 1",
            Self::OpaqueTooLong => "the opaque field is longer than its type allows",
            Self::TrailingBytes => "bytes follow the end of the message",
            Self::UnsupportedVersion => "the transport version is not supported",
            Self::UnknownHeaderType => "the header type is not one of this version",
            Self::NoPayload => "the message has neither payload nor chunks",
            Self::ReservedFlags => "a reserved flag bit is set",
            Self::TooManyWriteChunks => "the Write list has too many chunks",
            Self::TooManySegments => "a chunk list has too many segments",
            Self::TooManyItems => "the message has too many items or directions",
            Self::TooManySegmentNumbers => "an item names too many segments",
            Self::InvalidPlacementType => "the placement type may not stand here",
            Self::NoTransmission => "a transmission group has no transmission",
            Self::InvalidReportedError => "the code of the reported error is unknown",
            Self::InvalidPropertyValue => "the property value does not conform to its type",
            Self::DuplicateProperty => "the property stands twice in the set",
            Self::InvalidMessageType => "the RPC message type is neither CALL nor REPLY",
            Self::NotACall => "the RPC message is a reply, not a call",
            Self::NotAReply => "the RPC message is a call, not a reply",
            Self::UnsupportedRpcVersion => "the RPC version is not 2",
            Self::InvalidReplyStatus => "the reply status is neither accepted nor denied",
            Self::InvalidAcceptStatus => "the status of the accepted reply is unknown",
            Self::InvalidRejectStatus => "the status of the denied reply is unknown",
        })
    }
}

/// Why something could not be encoded. Discard what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EncodeError {
    /// The space that was given ends before the encoding does.
    NoSpace,
    /// A length or count exceeds what its type, or its receiver, can hold.
    TooLong,
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSpace => "the encoding does not fit the space given",
            Self::TooLong => "a length exceeds what the format allows",
        })
    }
}

impl core::error::Error for EncodeError {}
