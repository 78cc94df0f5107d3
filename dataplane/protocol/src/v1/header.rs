//! The version 1 transport header: decoding.

use crate::chunks::ChunkLists;
use crate::common::CommonPrefix;
use crate::constants::{
    COMMON_PREFIX_BYTES, ERR_CHUNK, ERR_VERS, OTHER_VERSION_BYTES_LEAST, RDMA_DONE, RDMA_ERROR,
    RDMA_MSG, RDMA_MSGP, RDMA_NOMSG, RPCRDMA_VERSION_1, V1_ERROR_BYTES_LEAST,
    V1_HEADER_BYTES_WITHOUT_CHUNKS,
};
use crate::error::{DecodeError, Reason};
use crate::xdr::{Reader, word};

/// What follows the common words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// RDMA_MSG: the RPC message follows the header.
    Msg(ChunkLists<'a>),
    /// RDMA_NOMSG: the RPC message is in the chunks.
    Nomsg(ChunkLists<'a>),
    /// RDMA_MSGP, which nobody may send: a responder answers ERR_CHUNK, a requester discards it (RFC 8166
    /// section 4.6.1). Only the common words are decoded.
    Msgp,
    /// RDMA_DONE, which nobody may send: discarded in silence (RFC 8166 section 4.6.2).
    Done,
    /// RDMA_ERROR: ends the RPC at a requester, is discarded by a responder (RFC 8166 section 4.5).
    Error(TransportError),
}

/// The body of an RDMA_ERROR message (RFC 8166 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransportError {
    /// ERR_VERS: the responder supports other versions.
    Vers {
        /// The lowest version supported.
        low: u32,
        /// The highest version supported.
        high: u32,
    },
    /// ERR_CHUNK: the header could not be decoded, or the reply not be delivered.
    Chunk,
    /// A code that RFC 8166 does not define: the message cannot be decoded completely, and is discarded
    /// (RFC 8166 section 4.5).
    Unknown {
        /// The code.
        code: u32,
    },
}

/// A decoded version 1 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// The XID of the RPC message.
    pub xid: u32,
    /// Credits requested by a requester, granted by a responder.
    pub credit: u32,
    /// What follows.
    pub body: Body<'a>,
    /// Octets of the header: the RPC message of an RDMA_MSG is `&message[header_bytes..]`. What follows the header
    /// of another type is ignored.
    pub header_bytes: usize,
}

impl<'a> Header<'a> {
    /// The chunk lists of an RDMA_MSG or RDMA_NOMSG.
    #[inline]
    #[must_use]
    pub const fn chunk_lists(&self) -> Option<&ChunkLists<'a>> {
        match &self.body {
            Body::Msg(lists) | Body::Nomsg(lists) => Some(lists),
            Body::Msgp | Body::Done | Body::Error(_) => None,
        }
    }

    /// The header type on the wire.
    #[inline]
    #[must_use]
    pub const fn header_type(&self) -> u32 {
        match self.body {
            Body::Msg(_) => RDMA_MSG,
            Body::Nomsg(_) => RDMA_NOMSG,
            Body::Msgp => RDMA_MSGP,
            Body::Done => RDMA_DONE,
            Body::Error(_) => RDMA_ERROR,
        }
    }
}

/// How a responder treats a call whose header does not decode. A requester discards each reply that does not
/// (RFC 8166 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Discard it in silence, and count it.
    Discard,
    /// ERR_VERS.
    Vers,
    /// ERR_CHUNK.
    Chunk,
}

/// How RFC 8166 section 4.5 answers an error of [`decode`].
#[must_use]
pub const fn refusal(error: DecodeError) -> Refusal {
    match error.reason {
        Reason::BelowLeastSize => Refusal::Discard,
        Reason::UnsupportedVersion => Refusal::Vers,
        _ => Refusal::Chunk,
    }
}

/// Decodes the version 1 header at the start of `message`, a whole received Send.
///
/// # Errors
/// [`refusal`] returns how a responder answers an error.
#[inline]
pub fn decode(message: &[u8]) -> Result<Header<'_>, DecodeError> {
    match decode_msg_without_chunks(message) {
        Some(header) => Ok(header),
        None => decode_any(message),
    }
}

/// The hot path: an RDMA_MSG with empty lists. `None` for any other message, valid or not.
#[inline]
fn decode_msg_without_chunks(message: &[u8]) -> Option<Header<'_>> {
    let words = message.first_chunk::<V1_HEADER_BYTES_WITHOUT_CHUNKS>()?;
    let lists_are_empty = word(words, 4) | word(words, 5) | word(words, 6) == 0;
    if word(words, 1) != RPCRDMA_VERSION_1 || word(words, 3) != RDMA_MSG || !lists_are_empty {
        return None;
    }
    Some(Header {
        xid: word(words, 0),
        credit: word(words, 2),
        body: Body::Msg(ChunkLists::default()),
        header_bytes: V1_HEADER_BYTES_WITHOUT_CHUNKS,
    })
}

#[inline(never)]
fn decode_any(message: &[u8]) -> Result<Header<'_>, DecodeError> {
    let too_short = DecodeError::new(message.len(), Reason::BelowLeastSize);
    let CommonPrefix {
        xid,
        version,
        credit,
        header_type,
    } = CommonPrefix::peek(message).ok_or(too_short)?;
    let least_bytes = match (version, header_type) {
        (RPCRDMA_VERSION_1, RDMA_ERROR) => V1_ERROR_BYTES_LEAST,
        (RPCRDMA_VERSION_1, _) => V1_HEADER_BYTES_WITHOUT_CHUNKS,
        _ => OTHER_VERSION_BYTES_LEAST,
    };
    if message.len() < least_bytes {
        return Err(too_short);
    }
    if version != RPCRDMA_VERSION_1 {
        return Err(DecodeError::new(4, Reason::UnsupportedVersion));
    }
    let mut reader = Reader::new(message);
    reader.read_bytes(COMMON_PREFIX_BYTES)?;
    let body = match header_type {
        RDMA_MSG => Body::Msg(ChunkLists::decode(&mut reader)?),
        RDMA_NOMSG => Body::Nomsg(decode_nomsg(&mut reader)?),
        RDMA_MSGP => Body::Msgp,
        RDMA_DONE => Body::Done,
        // An error must not be answered with an error: a truncated one counts as too short, and is discarded.
        RDMA_ERROR => Body::Error(decode_error(&mut reader).map_err(|_| too_short)?),
        _ => return Err(DecodeError::new(12, Reason::UnknownHeaderType)),
    };
    Ok(Header {
        xid,
        credit,
        body,
        header_bytes: reader.position(),
    })
}

fn decode_nomsg<'a>(reader: &mut Reader<'a>) -> Result<ChunkLists<'a>, DecodeError> {
    let start = *reader;
    let lists = ChunkLists::decode(reader)?;
    if lists.are_empty() {
        Err(start.error(Reason::NoPayload))
    } else {
        Ok(lists)
    }
}

fn decode_error(reader: &mut Reader<'_>) -> Result<TransportError, DecodeError> {
    Ok(match reader.read_u32()? {
        ERR_VERS => TransportError::Vers {
            low: reader.read_u32()?,
            high: reader.read_u32()?,
        },
        ERR_CHUNK => TransportError::Chunk,
        code => TransportError::Unknown { code },
    })
}
