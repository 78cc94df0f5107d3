//! The messages that carry RPC messages: Transmit Request, Transmit Response, Transmit Continue (RTR sections 9.2 to
//! 9.4).

use super::directions::{EncodeResponseSets, ResponseSets};
use super::items::{EncodeItems, MessageItems, MessageKind};
use crate::error::{DecodeError, EncodeError, Reason};
use crate::xdr::{Reader, Writer};

/// Transmit Request: the first, or only, transmission of an RPC call.
///
/// `I` and `D` are views of a received message ([`TransmitRequestView`]), or the types from which a sender encodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmitRequest<I, D> {
    /// The bulk data that was taken out of the call.
    pub items: I,
    /// The directions for the bulk data of the reply; there may be none.
    pub directions: D,
    /// How many transmissions the call takes, this one included: at least 1.
    pub transmissions: u32,
    /// How many transmissions the reply may take. 1 asks for no continuation, and 0 counts as 1.
    pub response_transmissions_max: u32,
    /// Octets of the payload stream in this transmission, directly after the header.
    pub stream_bytes: u32,
}

/// Transmit Response: the first, or only, transmission of an RPC reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmitResponse<I> {
    /// The result of each direction of the request, with the bulk data that was taken out of the reply.
    pub items: I,
    /// How many transmissions the reply takes, this one included: at least 1.
    pub transmissions: u32,
    /// Octets of the payload stream in this transmission, directly after the header.
    pub stream_bytes: u32,
}

/// Transmit Continue: a later transmission of a call or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransmitContinue {
    /// Its place in the group. The Transmit Request or Response is 0.
    pub sequence: u32,
    /// Octets of the payload stream in this transmission, directly after the header; may be 0.
    pub stream_bytes: u32,
}

/// A received Transmit Request.
pub type TransmitRequestView<'a> = TransmitRequest<MessageItems<'a>, ResponseSets<'a>>;
/// A received Transmit Response.
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

fn read_transmissions(reader: &mut Reader<'_>) -> Result<u32, DecodeError> {
    let field = *reader;
    match reader.read_u32()? {
        0 => Err(field.error(Reason::NoTransmission)),
        transmissions => Ok(transmissions),
    }
}
