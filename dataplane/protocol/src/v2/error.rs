//! Transport errors of version 2 (-00 section 6.4.3), and the one that answers a header that cannot be decoded.

use core::fmt;

use crate::constants::{
    COMMON_PREFIX_BYTES, ERR_VERS, RDMA2_ERR_BAD_XDR, RDMA2_ERR_INVAL_FLAG, RDMA2_ERR_INVAL_HTYPE,
    RDMA2_ERR_READ_CHUNKS, RDMA2_ERR_REPLY_RESOURCE, RDMA2_ERR_SEGMENTS, RDMA2_ERR_SYSTEM,
    RDMA2_ERR_VERS, RDMA2_ERR_WRITE_CHUNKS, RDMA2_ERR_WRITE_RESOURCE, RDMA2_ERROR,
    RPCRDMA_VERSION_1, RPCRDMA_VERSION_2, V1_ERR_VERS_BYTES,
};
use crate::error::{DecodeError, EncodeError, Reason};
use crate::xdr::{Reader, Writer};

/// The range of versions that a responder supports, as in ERR_VERS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ErrVers {
    /// The lowest version supported.
    pub low: u32,
    /// The highest version supported.
    pub high: u32,
}

/// The body of an RDMA2_ERROR message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransportError {
    /// RDMA2_ERR_VERS in the version 2 layout. We never send it so: see
    /// [`encode_err_vers_in_version_1_layout`](super::encode::encode_err_vers_in_version_1_layout).
    Vers(ErrVers),
    /// RDMA2_ERR_BAD_XDR: the header could not be parsed.
    BadXdr,
    /// RDMA2_ERR_INVAL_HTYPE: the header type is not known or not supported.
    InvalHtype,
    /// RDMA2_ERR_INVAL_FLAG: the flags are invalid, or a continued sequence was broken.
    InvalFlag,
    /// RDMA2_ERR_READ_CHUNKS: more Read chunks than the responder serves.
    ReadChunks {
        /// The most that it serves. At 0 the requester retries with a Position-Zero Read chunk.
        max_chunks: u32,
    },
    /// RDMA2_ERR_WRITE_CHUNKS: more Write chunks than the responder serves.
    WriteChunks {
        /// The most that it serves.
        max_chunks: u32,
    },
    /// RDMA2_ERR_SEGMENTS: a chunk has more segments than the responder supports.
    Segments {
        /// The most that it supports.
        max_segments: u32,
    },
    /// RDMA2_ERR_WRITE_RESOURCE: a Write chunk is too small for its result.
    WriteResource {
        /// The first chunk that is too small, counted from 1; 0 when that is not known.
        chunk_index: u32,
        /// Octets that the chunk needs; 0 when that is not known.
        length_needed_bytes: u32,
    },
    /// RDMA2_ERR_REPLY_RESOURCE: the reply fits neither inline nor into the Reply chunk.
    ReplyResource {
        /// Octets that the Reply chunk needs; 0 when that is not known.
        length_needed_bytes: u32,
    },
    /// RDMA2_ERR_SYSTEM: any other problem. Permanent for this RPC.
    System,
    /// A code that -00 does not define. What follows it is ignored.
    Unknown {
        /// The code.
        code: u32,
    },
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Vers(versions) => write!(
                f,
                "it speaks versions {} to {} of RPC-over-RDMA",
                versions.low, versions.high
            ),
            Self::BadXdr => f.write_str("the header cannot be decoded"),
            Self::InvalHtype => f.write_str("it does not know the header type"),
            Self::InvalFlag => f.write_str("the flags of the header are wrong"),
            Self::ReadChunks { max_chunks } => {
                write!(f, "it serves {max_chunks} Read chunks at most")
            }
            Self::WriteChunks { max_chunks } => {
                write!(f, "it serves {max_chunks} Write chunks at most")
            }
            Self::Segments { max_segments } => {
                write!(f, "it takes {max_segments} segments in a chunk at most")
            }
            Self::WriteResource {
                chunk_index,
                length_needed_bytes,
            } => {
                f.write_str("a Write chunk is too short")?;
                if chunk_index != 0 {
                    write!(f, ": number {chunk_index}")?;
                }
                needed(f, length_needed_bytes)
            }
            Self::ReplyResource {
                length_needed_bytes,
            } => {
                f.write_str("there is no room for the reply")?;
                needed(f, length_needed_bytes)
            }
            Self::System => f.write_str("it has a problem that it does not name"),
            Self::Unknown { .. } => write!(f, "error code {}", self.code()),
        }
    }
}

/// Appends the needed octets, if they are known.
fn needed(f: &mut fmt::Formatter<'_>, length_bytes: u32) -> fmt::Result {
    match length_bytes {
        0 => Ok(()),
        bytes => write!(f, ", which takes {bytes} octets"),
    }
}

impl core::error::Error for TransportError {}

impl TransportError {
    /// The error code on the wire.
    #[inline]
    #[must_use]
    pub const fn code(&self) -> u32 {
        match *self {
            Self::Vers(_) => RDMA2_ERR_VERS,
            Self::BadXdr => RDMA2_ERR_BAD_XDR,
            Self::InvalHtype => RDMA2_ERR_INVAL_HTYPE,
            Self::InvalFlag => RDMA2_ERR_INVAL_FLAG,
            Self::ReadChunks { .. } => RDMA2_ERR_READ_CHUNKS,
            Self::WriteChunks { .. } => RDMA2_ERR_WRITE_CHUNKS,
            Self::Segments { .. } => RDMA2_ERR_SEGMENTS,
            Self::WriteResource { .. } => RDMA2_ERR_WRITE_RESOURCE,
            Self::ReplyResource { .. } => RDMA2_ERR_REPLY_RESOURCE,
            Self::System => RDMA2_ERR_SYSTEM,
            Self::Unknown { code } => code,
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match reader.read_u32()? {
            RDMA2_ERR_VERS => Self::Vers(ErrVers {
                low: reader.read_u32()?,
                high: reader.read_u32()?,
            }),
            RDMA2_ERR_BAD_XDR => Self::BadXdr,
            RDMA2_ERR_INVAL_HTYPE => Self::InvalHtype,
            RDMA2_ERR_INVAL_FLAG => Self::InvalFlag,
            RDMA2_ERR_READ_CHUNKS => Self::ReadChunks {
                max_chunks: reader.read_u32()?,
            },
            RDMA2_ERR_WRITE_CHUNKS => Self::WriteChunks {
                max_chunks: reader.read_u32()?,
            },
            RDMA2_ERR_SEGMENTS => Self::Segments {
                max_segments: reader.read_u32()?,
            },
            RDMA2_ERR_WRITE_RESOURCE => Self::WriteResource {
                chunk_index: reader.read_u32()?,
                length_needed_bytes: reader.read_u32()?,
            },
            RDMA2_ERR_REPLY_RESOURCE => Self::ReplyResource {
                length_needed_bytes: reader.read_u32()?,
            },
            RDMA2_ERR_SYSTEM => Self::System,
            code => {
                reader.read_bytes(reader.rest().len())?;
                Self::Unknown { code }
            }
        })
    }

    pub(super) fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        writer.write_u32(self.code())?;
        match *self {
            Self::Vers(ErrVers { low, high }) => {
                writer.write_u32(low)?;
                writer.write_u32(high)
            }
            Self::ReadChunks { max_chunks } | Self::WriteChunks { max_chunks } => {
                writer.write_u32(max_chunks)
            }
            Self::Segments { max_segments } => writer.write_u32(max_segments),
            Self::WriteResource {
                chunk_index,
                length_needed_bytes,
            } => {
                writer.write_u32(chunk_index)?;
                writer.write_u32(length_needed_bytes)
            }
            Self::ReplyResource {
                length_needed_bytes,
            } => writer.write_u32(length_needed_bytes),
            Self::BadXdr
            | Self::InvalHtype
            | Self::InvalFlag
            | Self::System
            | Self::Unknown { .. } => Ok(()),
        }
    }
}

/// How a receiver treats a message whose header, or whose property set, does not decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Discard it in silence, and count it.
    Discard,
    /// ERR_VERS, in the version 1 layout.
    Vers,
    /// RDMA2_ERR_INVAL_HTYPE.
    InvalHtype,
    /// RDMA2_ERR_INVAL_FLAG.
    InvalFlag,
    /// RDMA2_ERR_BAD_XDR.
    BadXdr,
    /// RDMA2_ERR_WRITE_CHUNKS with the receiver's own limit.
    WriteChunks,
    /// RDMA2_ERR_SEGMENTS with the receiver's own limit.
    Segments,
}

/// How -00 section 6.4.3 answers an error of [`decode`](super::header::decode) or
/// [`PropertySet::decode`](super::properties::PropertySet::decode).
///
/// An RDMA2_ERROR, or an error of another version, is never answered: the caller checks the header type first.
#[must_use]
pub const fn refusal(error: DecodeError) -> Refusal {
    match error.reason {
        Reason::BelowLeastSize => Refusal::Discard,
        Reason::UnsupportedVersion => Refusal::Vers,
        Reason::UnknownHeaderType => Refusal::InvalHtype,
        Reason::ReservedFlags => Refusal::InvalFlag,
        Reason::TooManyWriteChunks => Refusal::WriteChunks,
        Reason::TooManySegments => Refusal::Segments,
        _ => Refusal::BadXdr,
    }
}

/// Recognises ERR_VERS in the version 1 layout, with which every responder announces its versions to a peer of another
/// version (RFC 8166 section 7).
///
/// With version 2 in its version word (a version 1 server copies that word from our message) the 28 octets could
/// also be a version 2 error with a flags word of 1. It is one if a valid version 2 message came before, or if the word
/// after the flags is the code of a version 2 error of exactly that length: READ_CHUNKS, WRITE_CHUNKS, SEGMENTS or
/// REPLY_RESOURCE.
#[must_use]
pub fn err_vers_in_version_1_layout(
    message: &[u8],
    before_first_valid_message: bool,
) -> Option<ErrVers> {
    if message.len() != V1_ERR_VERS_BYTES || !before_first_valid_message {
        return None;
    }
    let mut reader = Reader::new(message);
    let _xid = reader.read_u32().ok()?;
    let version = reader.read_u32().ok()?;
    let _credit = reader.read_u32().ok()?;
    let header_type = reader.read_u32().ok()?;
    debug_assert_eq!(reader.position(), COMMON_PREFIX_BYTES);
    let code = reader.read_u32().ok()?;
    let low = reader.read_u32().ok()?;
    let high = reader.read_u32().ok()?;
    let is_version_2_error = version == RPCRDMA_VERSION_2
        && matches!(
            low,
            RDMA2_ERR_READ_CHUNKS
                | RDMA2_ERR_WRITE_CHUNKS
                | RDMA2_ERR_SEGMENTS
                | RDMA2_ERR_REPLY_RESOURCE
        );
    let is_known_version = matches!(version, RPCRDMA_VERSION_1 | RPCRDMA_VERSION_2);
    let is_err_vers = is_known_version && header_type == RDMA2_ERROR && code == ERR_VERS;
    (is_err_vers && !is_version_2_error).then_some(ErrVers { low, high })
}
