//! The version 2 transport header: decoding (-00 sections 6.3 and 6.4).

use core::fmt;

use super::error::TransportError;
use super::rtr::{
    ReportError, RtrSupport, TransmitContinue, TransmitRequestView, TransmitResponseView,
};
use crate::chunks::ChunkLists;
use crate::constants::{
    COMMON_PREFIX_BYTES, OTHER_VERSION_BYTES_LEAST, RDMA2_CONNPROP, RDMA2_ERROR, RDMA2_F_DEFINED,
    RDMA2_F_MORE, RDMA2_F_RESPONSE, RDMA2_MSG, RDMA2_NOMSG, RPCRDMA_VERSION_2, RTR_REPORT_ERROR,
    RTR_REPORT_ERROR_BYTES_LEAST, RTR_TRANSMIT_CONTINUE, RTR_TRANSMIT_CONTINUE_HEADER_BYTES,
    RTR_TRANSMIT_REQUEST, RTR_TRANSMIT_REQUEST_BYTES_LEAST, RTR_TRANSMIT_RESPONSE,
    RTR_TRANSMIT_RESPONSE_BYTES_LEAST, V2_CONNPROP_BYTES_LEAST, V2_ERROR_BYTES_LEAST,
    V2_HEADER_BYTES_WITHOUT_CHUNKS, V2_MSG_BYTES_LEAST, V2_PREFIX_BYTES,
};
use crate::error::{DecodeError, Reason};
use crate::xdr::{Reader, word};

/// The credit word (-00 section 4.3.1.1): two numbers of sixteen bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CreditWord {
    /// Receives that the sender posted for this peer since its last message: the low half. An increment.
    pub granted: u16,
    /// The most unused credits that the sender will ever have granted at one time: the high half.
    pub maximum: u16,
}

impl CreditWord {
    /// From the word in the header.
    #[inline]
    #[must_use]
    pub const fn from_word(word: u32) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the two halves of the word"
        )]
        Self {
            granted: word as u16,
            maximum: (word >> 16) as u16,
        }
    }

    /// The word in the header.
    #[inline]
    #[must_use]
    pub const fn to_word(self) -> u32 {
        (self.maximum as u32) << 16 | self.granted as u32
    }
}

/// The flags word (-00 section 6.3.2). It can only hold flags that are defined.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(u32);

impl Flags {
    /// No flag: a call that ends with this message.
    pub const NONE: Self = Self(0);
    /// The XID was chosen by the receiver: replies and errors carry it (-00 section 6.3.2.1).
    pub const RESPONSE: Self = Self(RDMA2_F_RESPONSE);
    /// The payload continues in the next message (-00 section 6.3.2.2).
    pub const MORE: Self = Self(RDMA2_F_MORE);

    /// From the word in the header; `None` when a reserved bit is set.
    #[inline]
    #[must_use]
    pub const fn from_word(word: u32) -> Option<Self> {
        if word & !RDMA2_F_DEFINED == 0 {
            Some(Self(word))
        } else {
            None
        }
    }

    /// The word in the header.
    #[inline]
    #[must_use]
    pub const fn to_word(self) -> u32 {
        self.0
    }

    /// These flags and those of `other`.
    #[inline]
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether F_RESPONSE is set.
    #[inline]
    #[must_use]
    pub const fn is_response(self) -> bool {
        self.0 & RDMA2_F_RESPONSE != 0
    }

    /// Whether F_MORE is set.
    #[inline]
    #[must_use]
    pub const fn is_more(self) -> bool {
        self.0 & RDMA2_F_MORE != 0
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.is_response(), self.is_more()) {
            (false, false) => "Flags(NONE)",
            (true, false) => "Flags(RESPONSE)",
            (false, true) => "Flags(MORE)",
            (true, true) => "Flags(RESPONSE | MORE)",
        })
    }
}

/// The fields before the body of any version 2 message that its sender chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    /// The XID of the RPC message; 0 in a credit grant.
    pub xid: u32,
    /// The credits that the message brings.
    pub credit: CreditWord,
    /// The flags.
    pub flags: Flags,
}

/// The chunk lists of version 2, with the handle that the responder may invalidate (-00 section 6.3.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chunks<'a> {
    /// The handle that the requester asks to be invalidated with the reply; 0 asks for none.
    pub inv_handle: u32,
    /// The lists.
    pub lists: ChunkLists<'a>,
}

/// What follows the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// RDMA2_MSG: the RPC message, or a part of it, follows the header.
    Msg(Chunks<'a>),
    /// RDMA2_NOMSG: the RPC message is in the chunks. Without any it is a grant of credits.
    Nomsg(Chunks<'a>),
    /// RDMA2_ERROR.
    Error(TransportError),
    /// RDMA2_CONNPROP: the property set, or, in a continued sequence, a part of one. Concatenated parts are decoded
    /// by [`PropertySet::decode`](super::properties::PropertySet::decode).
    Connprop(&'a [u8]),
    /// Transmit Request of the extension RTR: the first transmission of a call. The payload stream follows it.
    TransmitRequest(TransmitRequestView<'a>),
    /// Transmit Response: the first transmission of a reply. The payload stream follows it.
    TransmitResponse(TransmitResponseView<'a>),
    /// Transmit Continue: a later transmission of either. The payload stream follows it.
    TransmitContinue(TransmitContinue),
    /// Report Error.
    ReportError(ReportError),
}

/// A decoded version 2 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// XID, credits and flags.
    pub prefix: Prefix,
    /// What follows them.
    pub body: Body<'a>,
    /// Octets of the header: the payload of an RDMA2_MSG is `&message[header_bytes..]`, and the payload stream of a
    /// transmission of the extension RTR begins there. For the other types it is the length of the whole message.
    pub header_bytes: usize,
}

impl<'a> Header<'a> {
    /// The chunks of an RDMA2_MSG or RDMA2_NOMSG.
    #[inline]
    #[must_use]
    pub const fn chunks(&self) -> Option<&Chunks<'a>> {
        match &self.body {
            Body::Msg(chunks) | Body::Nomsg(chunks) => Some(chunks),
            _ => None,
        }
    }

    /// Whether the message has no chunks: the lists of an RDMA2_MSG or RDMA2_NOMSG are empty, or it is of another
    /// type. A message with F_MORE must have none (-00 section 6.3.2.2).
    #[inline]
    #[must_use]
    pub const fn lists_are_empty(&self) -> bool {
        match self.chunks() {
            Some(chunks) => chunks.lists.are_empty(),
            None => true,
        }
    }

    /// Whether the message is an asynchronous grant of credits or keep-alive: an RDMA2_NOMSG with empty lists,
    /// whatever its XID and flags are (-00 section 6.4.2).
    #[inline]
    #[must_use]
    pub const fn is_credit_grant(&self) -> bool {
        matches!(self.body, Body::Nomsg(_)) && self.lists_are_empty()
    }

    /// The number of the header type on the wire.
    #[inline]
    #[must_use]
    pub const fn header_type(&self) -> u32 {
        match self.body {
            Body::Msg(_) => RDMA2_MSG,
            Body::Nomsg(_) => RDMA2_NOMSG,
            Body::Error(_) => RDMA2_ERROR,
            Body::Connprop(_) => RDMA2_CONNPROP,
            Body::TransmitRequest(_) => RTR_TRANSMIT_REQUEST,
            Body::TransmitResponse(_) => RTR_TRANSMIT_RESPONSE,
            Body::TransmitContinue(_) => RTR_TRANSMIT_CONTINUE,
            Body::ReportError(_) => RTR_REPORT_ERROR,
        }
    }
}

/// Decodes the version 2 header at the start of `message`, a whole received Send. It does not know the header types of
/// extensions: an endpoint that has announced none uses this function.
///
/// It checks everything that the header alone can show: sizes, header type, reserved flags, marks and counts of the
/// lists. The caller checks what depends on the connection: F_MORE on the wrong type, lists in a message with F_MORE,
/// F_RESPONSE against the RPC message type, credits, and ERR_VERS in the version 1 layout
/// ([`err_vers_in_version_1_layout`](super::error::err_vers_in_version_1_layout)), for which it looks first.
///
/// # Errors
/// [`refusal`](super::error::refusal) says how the receiver answers each error.
#[inline]
pub fn decode(message: &[u8]) -> Result<Header<'_>, DecodeError> {
    if let Some(header) = decode_msg_without_chunks(message) {
        return Ok(header);
    }
    decode_any(message, RtrSupport::NONE)
}

/// As [`decode`], for an endpoint that has announced this support of the extension RTR: the header types that belong
/// to it are known.
///
/// The caller checks whether the payload stream lies within its message, and items where they may.
///
/// # Errors
/// As [`decode`].
#[inline]
pub fn decode_with_rtr(message: &[u8], announced: RtrSupport) -> Result<Header<'_>, DecodeError> {
    if let Some(header) = decode_msg_without_chunks(message) {
        return Ok(header);
    }
    decode_any(message, announced)
}

/// Octets of header and payload stream of a transmission that begins with `head`. These octets have to be in one piece
/// for [`Connection::handle_transmission`](crate::v2::connection::Connection::handle_transmission). `None` if `head`
/// does not begin with the whole header of a transmission.
#[must_use]
pub fn transmission_head_bytes(head: &[u8]) -> Option<usize> {
    let header = decode_with_rtr(head, RtrSupport::ALL).ok()?;
    let stream_bytes = match header.body {
        Body::TransmitRequest(body) => body.stream_bytes,
        Body::TransmitResponse(body) => body.stream_bytes,
        Body::TransmitContinue(body) => body.stream_bytes,
        _ => return None,
    };
    header
        .header_bytes
        .checked_add(usize::try_from(stream_bytes).ok()?)
}

/// The hot path: an RDMA2_MSG of version 2 with defined flags, empty lists and a payload. `None` for every other
/// message, valid or not.
#[inline]
fn decode_msg_without_chunks(message: &[u8]) -> Option<Header<'_>> {
    let words = message.first_chunk::<V2_MSG_BYTES_LEAST>()?;
    let flags = Flags::from_word(word(words, 4))?;
    let lists_are_empty = word(words, 6) | word(words, 7) | word(words, 8) == 0;
    if word(words, 1) != RPCRDMA_VERSION_2 || word(words, 3) != RDMA2_MSG || !lists_are_empty {
        return None;
    }
    Some(Header {
        prefix: Prefix {
            xid: word(words, 0),
            credit: CreditWord::from_word(word(words, 2)),
            flags,
        },
        body: Body::Msg(Chunks {
            inv_handle: word(words, 5),
            lists: ChunkLists::default(),
        }),
        header_bytes: V2_HEADER_BYTES_WITHOUT_CHUNKS,
    })
}

#[inline(never)]
fn decode_any(message: &[u8], announced: RtrSupport) -> Result<Header<'_>, DecodeError> {
    let too_short = Err(DecodeError::new(message.len(), Reason::BelowLeastSize));
    if message.len() < COMMON_PREFIX_BYTES {
        return too_short;
    }
    let mut reader = Reader::new(message);
    let xid = reader.read_u32()?;
    let version_field = reader;
    if reader.read_u32()? != RPCRDMA_VERSION_2 {
        // ERR_VERS answers only a message of full size: the XID of a shorter one cannot be trusted.
        let is_whole = message.len() >= OTHER_VERSION_BYTES_LEAST;
        let unsupported = version_field.error(Reason::UnsupportedVersion);
        return if is_whole {
            Err(unsupported)
        } else {
            too_short
        };
    }
    let credit = CreditWord::from_word(reader.read_u32()?);
    let type_field = reader;
    let header_type = reader.read_u32()?;
    let is_plain = matches!(
        header_type,
        RDMA2_MSG | RDMA2_NOMSG | RDMA2_ERROR | RDMA2_CONNPROP
    );
    let is_known = is_plain || announced.has_header_type(header_type);
    let least_bytes = if is_known {
        least_bytes(header_type)
    } else {
        V2_PREFIX_BYTES
    };
    // Sizes come first: an error of a field is answered, but a message that is too short is not.
    if message.len() < least_bytes {
        return too_short;
    }
    let flags_field = reader;
    let flags_word = reader.read_u32()?;
    if !is_known {
        return Err(type_field.error(Reason::UnknownHeaderType));
    }
    let flags =
        Flags::from_word(flags_word).ok_or_else(|| flags_field.error(Reason::ReservedFlags))?;
    let body = decode_body(&mut reader, header_type)?;
    Ok(Header {
        prefix: Prefix { xid, credit, flags },
        body,
        header_bytes: reader.position(),
    })
}

/// Least size of a version 2 message of this type, which is known.
const fn least_bytes(header_type: u32) -> usize {
    match header_type {
        RDMA2_MSG => V2_MSG_BYTES_LEAST,
        RDMA2_NOMSG => V2_HEADER_BYTES_WITHOUT_CHUNKS,
        RDMA2_ERROR => V2_ERROR_BYTES_LEAST,
        RDMA2_CONNPROP => V2_CONNPROP_BYTES_LEAST,
        RTR_TRANSMIT_REQUEST => RTR_TRANSMIT_REQUEST_BYTES_LEAST,
        RTR_TRANSMIT_RESPONSE => RTR_TRANSMIT_RESPONSE_BYTES_LEAST,
        RTR_TRANSMIT_CONTINUE => RTR_TRANSMIT_CONTINUE_HEADER_BYTES,
        RTR_REPORT_ERROR => RTR_REPORT_ERROR_BYTES_LEAST,
        _ => V2_PREFIX_BYTES,
    }
}

fn decode_body<'a>(reader: &mut Reader<'a>, header_type: u32) -> Result<Body<'a>, DecodeError> {
    match header_type {
        RDMA2_MSG => {
            let chunks = decode_chunks(reader)?;
            // The size check above assumed empty lists. After longer lists, too, there must be a word of payload.
            let mut payload = *reader;
            payload.read_u32()?;
            Ok(Body::Msg(chunks))
        }
        RDMA2_NOMSG => {
            let chunks = decode_chunks(reader)?;
            require_end(reader)?;
            Ok(Body::Nomsg(chunks))
        }
        RDMA2_ERROR => {
            let error = TransportError::decode(reader)?;
            require_end(reader)?;
            Ok(Body::Error(error))
        }
        RTR_TRANSMIT_REQUEST => TransmitRequestView::decode(reader).map(Body::TransmitRequest),
        RTR_TRANSMIT_RESPONSE => TransmitResponseView::decode(reader).map(Body::TransmitResponse),
        RTR_TRANSMIT_CONTINUE => TransmitContinue::decode(reader).map(Body::TransmitContinue),
        RTR_REPORT_ERROR => {
            let report = ReportError::decode(reader)?;
            require_end(reader)?;
            Ok(Body::ReportError(report))
        }
        _ => {
            let body = reader.rest();
            reader.read_bytes(body.len())?;
            Ok(Body::Connprop(body))
        }
    }
}

fn decode_chunks<'a>(reader: &mut Reader<'a>) -> Result<Chunks<'a>, DecodeError> {
    let inv_handle = reader.read_u32()?;
    Ok(Chunks {
        inv_handle,
        lists: ChunkLists::decode(reader)?,
    })
}

fn require_end(reader: &Reader<'_>) -> Result<(), DecodeError> {
    if reader.is_at_end() {
        Ok(())
    } else {
        Err(reader.error(Reason::TrailingBytes))
    }
}
