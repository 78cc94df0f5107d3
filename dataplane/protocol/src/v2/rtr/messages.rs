//! The messages that carry RPC messages: Transmit Request, Transmit Response, Transmit Continue (RTR sections 9.2 to
//! 9.4).

use super::directions::{EncodeResponseSets, ResponseSets};
use super::items::{EncodeItems, MessageItems, MessageKind};
use super::support::RtrSupport;
use crate::error::{DecodeError, EncodeError, Reason};
use crate::v2::header::{Body, decode_with_rtr};
use crate::xdr::{Reader, Writer};

/// Transmit Request: the first, or only, transmission of an RPC call.
///
/// `I` and `D` are views of a received message ([`TransmitRequestView`]), or whatever a sender encodes from.
///
/// ```
/// use rpcrdma_protocol::v2::rtr::{Location, MessageItemRepr, ResponseSets, TransmitRequest};
/// use rpcrdma_protocol::v2::{Prefix, encode_transmit_request};
///
/// // A call of 120 octets whose data follows in targetable segment 0 of the same Send.
/// let placed = Location::Placed { offset_bytes: 0, numbers: &[0][..] };
/// let body = TransmitRequest {
///     items: &[MessageItemRepr { displacement: 120, length_bytes: 4096, location: placed }][..],
///     directions: ResponseSets::default(),
///     transmissions: 1,
///     response_transmissions_max: 1,
///     stream_bytes: 120,
/// };
/// let mut space = [0; 1024];
/// let header_bytes = encode_transmit_request(&mut space, Prefix { xid: 7, ..Prefix::default() }, &body)?;
/// assert_eq!(header_bytes, 64, "and the call begins there");
/// # Ok::<(), rpcrdma_protocol::EncodeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmitRequest<I, D> {
    /// The bulk data that was taken out of the call.
    pub items: I,
    /// What is asked of the bulk data of the reply; none gives no direction.
    pub directions: D,
    /// How many transmissions the call takes, this one included: at least 1.
    pub transmissions: u32,
    /// How many transmissions the reply may take. 1 asks for no continuation, and 0 counts as 1.
    pub response_transmissions_max: u32,
    /// Octets of the payload stream in this transmission, right behind the header.
    pub stream_bytes: u32,
}

/// Transmit Response: the first, or only, transmission of an RPC reply.
///
/// ```
/// use rpcrdma_protocol::v2::rtr::{MessageItems, TransmitResponse, transmission_head_bytes};
/// use rpcrdma_protocol::v2::{Flags, Prefix, encode_transmit_response};
///
/// // The reply to a call without directions: nothing but a stream of 24 octets.
/// let body = TransmitResponse { items: MessageItems::default(), transmissions: 1, stream_bytes: 24 };
/// let prefix = Prefix { xid: 7, flags: Flags::RESPONSE, ..Prefix::default() };
/// let mut space = [0; 1024];
/// let header_bytes = encode_transmit_response(&mut space, prefix, &body)?;
/// assert_eq!(header_bytes, 32);
/// assert_eq!(transmission_head_bytes(&space), Some(32 + 24));
/// # Ok::<(), rpcrdma_protocol::EncodeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmitResponse<I> {
    /// What became of each direction of the request, and with it the bulk data that was taken out of the reply.
    pub items: I,
    /// How many transmissions the reply takes, this one included: at least 1.
    pub transmissions: u32,
    /// Octets of the payload stream in this transmission, right behind the header.
    pub stream_bytes: u32,
}

/// Transmit Continue: a later transmission of a call or reply.
///
/// ```
/// use rpcrdma_protocol::v2::rtr::{RtrSupport, TransmitContinue};
/// use rpcrdma_protocol::v2::{Body, Prefix, decode_with_rtr, encode_transmit_continue};
///
/// // The third transmission of a group, with nothing of the stream: it brings items alone.
/// let body = TransmitContinue { sequence: 2, stream_bytes: 0 };
/// let mut octets = [0; 32];
/// encode_transmit_continue(&mut octets, Prefix { xid: 7, ..Prefix::default() }, body)?;
/// let header = decode_with_rtr(&octets, RtrSupport::ALL)?;
/// assert_eq!(header.body, Body::TransmitContinue(body));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransmitContinue {
    /// Its place in the group. The Transmit Request or Response is 0.
    pub sequence: u32,
    /// Octets of the payload stream in this transmission, right behind the header; may be 0.
    pub stream_bytes: u32,
}

/// A received Transmit Request.
///
/// ```
/// use rpcrdma_protocol::v2::rtr::{RtrSupport, TransmitRequestView};
/// use rpcrdma_protocol::v2::{Body, Header, decode_with_rtr};
/// # mod receiver { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/placement/receiver.rs")); }
/// # let message = receiver::request(2, &[], &[]);
///
/// let Header { body: Body::TransmitRequest(body), header_bytes, .. } =
///     decode_with_rtr(&message, RtrSupport::ALL)?
/// else {
///     panic!("it is one")
/// };
/// let body: TransmitRequestView<'_> = body;
/// assert_eq!((body.items.len(), body.directions.len(), body.transmissions), (0, 0, 2));
/// let stream = &message[header_bytes..][..20];
/// assert_eq!(stream[..4], [0, 0, 0, 7], "the call begins with its XID");
/// # Ok::<(), rpcrdma_protocol::DecodeError>(())
/// ```
pub type TransmitRequestView<'a> = TransmitRequest<MessageItems<'a>, ResponseSets<'a>>;
/// A received Transmit Response.
///
/// ```
/// use rpcrdma_protocol::constants::{RTR_TRANSMIT_RESPONSE, RTR_TYPE_TOO_SHORT};
/// use rpcrdma_protocol::v2::rtr::{Location, RtrSupport, TransmitResponseView};
/// use rpcrdma_protocol::v2::{Body, decode_with_rtr};
///
/// // XID, version, credits, type and flags; one item; transmissions, octets of the stream.
/// let words = [7, 2, 0, RTR_TRANSMIT_RESPONSE, 1, 1, 0, 0, RTR_TYPE_TOO_SHORT, 1, 24];
/// let octets = words.map(u32::to_be_bytes);
/// let header = decode_with_rtr(octets.as_flattened(), RtrSupport::ALL)?;
/// let Body::TransmitResponse(body) = header.body else { panic!("it is one") };
/// let TransmitResponseView { mut items, stream_bytes, .. } = body;
/// assert_eq!(items.next().map(|item| item.location), Some(Location::TooShort));
/// assert_eq!(stream_bytes, 24, "with the item in it");
/// # Ok::<(), rpcrdma_protocol::DecodeError>(())
/// ```
pub type TransmitResponseView<'a> = TransmitResponse<MessageItems<'a>>;

impl<'a> TransmitRequestView<'a> {
    /// Reads what follows the prefix, up to the payload stream.
    ///
    /// # Errors
    /// Those of [`MessageItems::decode`] and [`ResponseSets::decode`]; `NoTransmission`.
    pub(crate) fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            items: MessageItems::decode(reader, MessageKind::Request)?,
            directions: ResponseSets::decode(reader)?,
            transmissions: read_transmissions(reader)?,
            response_transmissions_max: reader.read_u32()?,
            stream_bytes: reader.read_u32()?,
        })
    }
}

impl<I: EncodeItems, D: EncodeResponseSets> TransmitRequest<I, D> {
    /// Writes what follows the prefix, up to the payload stream.
    pub(crate) fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        self.items.encode(writer)?;
        self.directions.encode(writer)?;
        writer.write_u32(self.transmissions)?;
        writer.write_u32(self.response_transmissions_max)?;
        writer.write_u32(self.stream_bytes)
    }
}

impl<'a> TransmitResponseView<'a> {
    /// Reads what follows the prefix, up to the payload stream.
    ///
    /// # Errors
    /// Those of [`MessageItems::decode`]; `NoTransmission`.
    pub(crate) fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            items: MessageItems::decode(reader, MessageKind::Response)?,
            transmissions: read_transmissions(reader)?,
            stream_bytes: reader.read_u32()?,
        })
    }
}

impl<I: EncodeItems> TransmitResponse<I> {
    /// Writes what follows the prefix, up to the payload stream.
    pub(crate) fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        self.items.encode(writer)?;
        writer.write_u32(self.transmissions)?;
        writer.write_u32(self.stream_bytes)
    }
}

impl TransmitContinue {
    /// Reads what follows the prefix, up to the payload stream.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let sequence = reader.read_u32()?;
        // The draft gives this word (optxc_itype) no meaning: 0 is sent, and anything is received.
        reader.read_u32()?;
        Ok(Self {
            sequence,
            stream_bytes: reader.read_u32()?,
        })
    }

    /// Writes what follows the prefix, up to the payload stream.
    pub(crate) fn encode(self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        writer.write_u32(self.sequence)?;
        writer.write_u32(0)?;
        writer.write_u32(self.stream_bytes)
    }
}

/// Octets of header and payload stream of a transmission that begins with `head`: what has to be in one piece for
/// [`Connection::handle_transmission`](crate::v2::connection::Connection::handle_transmission). `None` when `head` does
/// not begin with the whole header of a transmission.
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

fn read_transmissions(reader: &mut Reader<'_>) -> Result<u32, DecodeError> {
    let field = *reader;
    match reader.read_u32()? {
        0 => Err(field.error(Reason::NoTransmission)),
        transmissions => Ok(transmissions),
    }
}
