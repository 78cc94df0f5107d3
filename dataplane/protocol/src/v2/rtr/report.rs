//! Report Error: what was wrong with a transmission group (RTR section 9.5).

use core::fmt;

use crate::constants::{
    RTR_ERR_BAD_CONTINUATION, RTR_ERR_BAD_HEADER_TYPE, RTR_ERR_BAD_OFFSET,
    RTR_ERR_BAD_OPTIONAL_TYPE, RTR_ERR_BAD_SEGMENT_NUMBER, RTR_ERR_BAD_SEQUENCE,
    RTR_ERR_BAD_STREAM_LENGTH, RTR_ERR_BAD_XID,
};
use crate::error::{DecodeError, EncodeError, Reason};
use crate::rpc::Direction;
use crate::xdr::{Reader, Writer};

/// One transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransmissionId {
    /// The XID of its RPC message.
    pub xid: u32,
    /// Whether that is a call or a reply.
    pub direction: Direction,
    /// Its place in its group, counted from 0.
    pub sequence: u32,
}

/// The body of a Report Error.
///
/// Unlike a transport error, it is sent in both directions: by the receiver of a bad call to the requester, and by the
/// receiver of a bad reply to the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReportError {
    /// The transmission in which the error was found.
    pub bad: TransmissionId,
    /// An earlier one that may have led to it.
    pub lead: Option<TransmissionId>,
    /// What was wrong.
    pub problem: Problem,
}

/// A field that does not have the one value that was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mismatch {
    /// The value that was expected.
    pub expected: u32,
    /// The value that was received.
    pub current: u32,
}

/// A field that is not within its range, or that is within it but not aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OutOfRange {
    /// The value that was received.
    pub value: u32,
    /// The least value allowed.
    pub min: u32,
    /// The greatest value allowed.
    pub max: u32,
}

/// What was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Problem {
    /// OPTRERR_BADHMT: another header type was expected, because a group is not complete.
    HeaderType(Mismatch),
    /// OPTRERR_BADOMT: another optional type was expected. Never sent, because -00 has no optional types.
    OptionalType(Mismatch),
    /// OPTRERR_BADCONT: an unexpected continuation was received or announced.
    Continuation,
    /// OPTRERR_BADSEQ: another sequence number was expected.
    Sequence(Mismatch),
    /// OPTRERR_BADXID: another XID was expected.
    Xid(Mismatch),
    /// OPTRERR_BADOFF: an offset within a segment, a displacement within the XDR stream, or an end of a range.
    Offset(OutOfRange),
    /// OPTRERR_BADTBSN: the number of a targetable segment.
    SegmentNumber(OutOfRange),
    /// OPTRERR_BADPL: the length of a payload stream.
    StreamLength(OutOfRange),
}

impl Problem {
    /// The code on the wire.
    #[must_use]
    pub const fn code(&self) -> u32 {
        match self {
            Self::HeaderType(_) => RTR_ERR_BAD_HEADER_TYPE,
            Self::OptionalType(_) => RTR_ERR_BAD_OPTIONAL_TYPE,
            Self::Continuation => RTR_ERR_BAD_CONTINUATION,
            Self::Sequence(_) => RTR_ERR_BAD_SEQUENCE,
            Self::Xid(_) => RTR_ERR_BAD_XID,
            Self::Offset(_) => RTR_ERR_BAD_OFFSET,
            Self::SegmentNumber(_) => RTR_ERR_BAD_SEGMENT_NUMBER,
            Self::StreamLength(_) => RTR_ERR_BAD_STREAM_LENGTH,
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let code_field = *reader;
        Ok(match reader.read_u32()? {
            RTR_ERR_BAD_HEADER_TYPE => Self::HeaderType(read_mismatch(reader)?),
            RTR_ERR_BAD_OPTIONAL_TYPE => Self::OptionalType(read_mismatch(reader)?),
            RTR_ERR_BAD_CONTINUATION => Self::Continuation,
            RTR_ERR_BAD_SEQUENCE => Self::Sequence(read_mismatch(reader)?),
            RTR_ERR_BAD_XID => Self::Xid(read_mismatch(reader)?),
            RTR_ERR_BAD_OFFSET => Self::Offset(read_out_of_range(reader)?),
            RTR_ERR_BAD_SEGMENT_NUMBER => Self::SegmentNumber(read_out_of_range(reader)?),
            RTR_ERR_BAD_STREAM_LENGTH => Self::StreamLength(read_out_of_range(reader)?),
            _ => return Err(code_field.error(Reason::InvalidReportedError)),
        })
    }

    fn encode(self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        writer.write_u32(self.code())?;
        match self {
            Self::HeaderType(Mismatch { expected, current })
            | Self::OptionalType(Mismatch { expected, current })
            | Self::Sequence(Mismatch { expected, current })
            | Self::Xid(Mismatch { expected, current }) => {
                writer.write_u32(expected)?;
                writer.write_u32(current)
            }
            Self::Continuation => Ok(()),
            Self::Offset(OutOfRange { value, min, max })
            | Self::SegmentNumber(OutOfRange { value, min, max })
            | Self::StreamLength(OutOfRange { value, min, max }) => {
                writer.write_u32(value)?;
                writer.write_u32(min)?;
                writer.write_u32(max)
            }
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self {
            Self::HeaderType(_) => "the header type",
            Self::OptionalType(_) => "the optional type",
            Self::Continuation => return f.write_str("a continuation was not expected"),
            Self::Sequence(_) => "the sequence number",
            Self::Xid(_) => "the XID",
            Self::Offset(_) => "an offset",
            Self::SegmentNumber(_) => "the number of a segment",
            Self::StreamLength(_) => "the length of the payload stream",
        };
        match self {
            Self::HeaderType(found)
            | Self::OptionalType(found)
            | Self::Sequence(found)
            | Self::Xid(found) => {
                write!(
                    f,
                    "{what} is {:#x} and not {:#x}",
                    found.current, found.expected
                )
            }
            Self::Offset(found) | Self::SegmentNumber(found) | Self::StreamLength(found) => {
                let OutOfRange { value, min, max } = found;
                write!(
                    f,
                    "{what} is {value}, and may be from {min} to {max} where it fits"
                )
            }
            Self::Continuation => Ok(()),
        }
    }
}

impl ReportError {
    /// Reads what follows the prefix.
    ///
    /// # Errors
    /// `Truncated`, `InvalidMessageType`, `InvalidBoolean`, `InvalidReportedError`.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            bad: read_id(reader)?,
            lead: if reader.read_bool()? {
                Some(read_id(reader)?)
            } else {
                None
            },
            problem: Problem::decode(reader)?,
        })
    }

    /// Writes what follows the prefix.
    pub(crate) fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        write_id(writer, self.bad)?;
        writer.write_bool(self.lead.is_some())?;
        if let Some(lead) = self.lead {
            write_id(writer, lead)?;
        }
        self.problem.encode(writer)
    }
}

fn read_id(reader: &mut Reader<'_>) -> Result<TransmissionId, DecodeError> {
    let xid = reader.read_u32()?;
    let direction_field = *reader;
    let direction = Direction::from_message_type(reader.read_u32()?)
        .ok_or_else(|| direction_field.error(Reason::InvalidMessageType))?;
    Ok(TransmissionId {
        xid,
        direction,
        sequence: reader.read_u32()?,
    })
}

fn write_id(writer: &mut Writer<'_>, id: TransmissionId) -> Result<(), EncodeError> {
    writer.write_u32(id.xid)?;
    writer.write_u32(id.direction.message_type())?;
    writer.write_u32(id.sequence)
}

fn read_mismatch(reader: &mut Reader<'_>) -> Result<Mismatch, DecodeError> {
    Ok(Mismatch {
        expected: reader.read_u32()?,
        current: reader.read_u32()?,
    })
}

fn read_out_of_range(reader: &mut Reader<'_>) -> Result<OutOfRange, DecodeError> {
    Ok(OutOfRange {
        value: reader.read_u32()?,
        min: reader.read_u32()?,
        max: reader.read_u32()?,
    })
}
