//! Directions: where a request wants the bulk data of its response (RTR section 7.4).

use core::borrow::Borrow;

use super::counted::{CountedList, Entry};
use super::tables::PlacementType;
use crate::chunks::{Segment, Segments, read_segments, write_segments};
use crate::constants::{RTR_RESPONSE_ITEMS_MAX, RTR_RESPONSE_SETS_MAX};
use crate::error::{DecodeError, EncodeError, Reason};
use crate::xdr::{Reader, Writer};

/// Positions in the XDR stream of a request, half-open. An empty range contains nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StreamRange {
    /// The first octet of the range.
    pub begin: u32,
    /// The first octet after it.
    pub end: u32,
}

/// Directions for the bulk data that answers one range of the request, such as one operation of a compound.
///
/// The first DDP-eligible item of that part of the response uses up the first direction, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseSet<I> {
    /// The range.
    pub range: StreamRange,
    /// The directions, in order.
    pub items: I,
}

/// The direction for one potential item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseItem<S> {
    /// A shorter item stays in the payload stream, but uses up the direction too; octets.
    pub minimum_bytes: u32,
    /// Where an item of at least that length goes.
    pub location: ResponseLocation<S>,
}

/// Where the responder puts an item.
///
/// The requester takes back all the memory that it offered, however the responder answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseLocation<S> {
    /// Into this memory, by explicit RDMA.
    Explicit(S),
    /// By explicit RDMA into this memory, or in the transmissions of the response: the responder chooses.
    Choice(S),
    /// In the transmissions when it is shorter than `explicit_from_bytes`, else by explicit RDMA.
    BySize {
        /// The least octets of an item that goes by explicit RDMA.
        explicit_from_bytes: u32,
        /// The memory for it.
        segments: S,
    },
    /// In the transmissions of the response.
    Placed,
}

/// A set of a received request.
pub type ResponseSetView<'a> = ResponseSet<ResponseItems<'a>>;
/// A direction of a received request.
pub type ResponseItemView<'a> = ResponseItem<Segments<'a>>;
/// A direction to be encoded from slices.
pub type ResponseItemRepr<'a> = ResponseItem<&'a [Segment]>;
/// A set to be encoded from slices.
pub type ResponseSetRepr<'a> = ResponseSet<&'a [ResponseItemRepr<'a>]>;

impl<S> ResponseLocation<S> {
    /// The kind of direction, by its name in the tables of the draft.
    #[must_use]
    pub const fn placement_type(&self) -> PlacementType {
        match self {
            Self::Explicit(_) => PlacementType::Explicit,
            Self::Choice(_) => PlacementType::Choice,
            Self::BySize { .. } => PlacementType::BySize,
            Self::Placed => PlacementType::Placed,
        }
    }

    /// The memory that is offered for explicit RDMA.
    #[must_use]
    pub const fn segments(&self) -> Option<&S> {
        match self {
            Self::Explicit(segments) | Self::Choice(segments) | Self::BySize { segments, .. } => {
                Some(segments)
            }
            Self::Placed => None,
        }
    }
}

/// The directions of one set of a received request, in order.
pub type ResponseItems<'a> = CountedList<'a, ResponseItemView<'a>>;

/// The sets of a received request, in order: framing, bounds and types were checked.
pub type ResponseSets<'a> = CountedList<'a, ResponseSetView<'a>>;

impl<'a> ResponseSets<'a> {
    /// Reads the directions of a request.
    ///
    /// # Errors
    /// `Truncated`, `TooManyItems`, `TooManySegments`, `InvalidPlacementType`. This does not check whether the ranges
    /// are disjoint and in order.
    pub fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Self::decode_with(reader, |_, _| Ok(()))
    }
}

impl<'a> Entry<'a> for ResponseSetView<'a> {
    const MOST: usize = RTR_RESPONSE_SETS_MAX;

    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            range: StreamRange {
                begin: reader.read_u32()?,
                end: reader.read_u32()?,
            },
            items: ResponseItems::decode_with(reader, |_, _| Ok(()))?,
        })
    }
}

impl<'a> Entry<'a> for ResponseItemView<'a> {
    const MOST: usize = RTR_RESPONSE_ITEMS_MAX;

    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let minimum_bytes = reader.read_u32()?;
        let type_field = *reader;
        let location = match PlacementType::from_word(reader.read_u32()?) {
            Some(PlacementType::Explicit) => ResponseLocation::Explicit(read_segments(reader)?),
            Some(PlacementType::Choice) => ResponseLocation::Choice(read_segments(reader)?),
            Some(PlacementType::BySize) => ResponseLocation::BySize {
                explicit_from_bytes: reader.read_u32()?,
                segments: read_segments(reader)?,
            },
            Some(PlacementType::Placed) => ResponseLocation::Placed,
            Some(PlacementType::TooShort | PlacementType::NoItem) | None => {
                return Err(type_field.error(Reason::InvalidPlacementType));
            }
        };
        Ok(Self {
            minimum_bytes,
            location,
        })
    }
}

/// Directions that can be written into a header.
///
/// Directions that come from elsewhere implement this with [`write_response_sets`], from any iterators.
pub trait EncodeResponseSets {
    /// Writes the count and the sets.
    ///
    /// # Errors
    /// `NoSpace`; `TooLong` when a list is longer than a decoder of ours would accept.
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError>;
}

/// Received directions are written unchanged.
impl EncodeResponseSets for ResponseSets<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        write_response_sets(writer, *self)
    }
}

impl EncodeResponseSets for &[ResponseSetRepr<'_>] {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        let sets = self.iter().map(|set| ResponseSet {
            range: set.range,
            items: set.items.iter().copied(),
        });
        write_response_sets(writer, sets)
    }
}

/// Writes directions: the count of the sets, then each.
///
/// # Errors
/// `NoSpace`; `TooLong` beyond `RTR_RESPONSE_SETS_MAX` sets, or `RTR_RESPONSE_ITEMS_MAX` directions or `SEGMENTS_MAX`
/// segments of one.
pub fn write_response_sets<I, D, S>(writer: &mut Writer<'_>, sets: I) -> Result<(), EncodeError>
where
    I: IntoIterator<Item = ResponseSet<D>, IntoIter: ExactSizeIterator>,
    D: IntoIterator<Item = ResponseItem<S>, IntoIter: ExactSizeIterator>,
    S: IntoIterator<Item: Borrow<Segment>, IntoIter: ExactSizeIterator>,
{
    let sets = sets.into_iter();
    if sets.len() > RTR_RESPONSE_SETS_MAX {
        return Err(EncodeError::TooLong);
    }
    writer.write_count(sets.len())?;
    for set in sets {
        let items = set.items.into_iter();
        if items.len() > RTR_RESPONSE_ITEMS_MAX {
            return Err(EncodeError::TooLong);
        }
        writer.write_u32(set.range.begin)?;
        writer.write_u32(set.range.end)?;
        writer.write_count(items.len())?;
        for item in items {
            write_response_item(writer, item)?;
        }
    }
    Ok(())
}

fn write_response_item<S>(writer: &mut Writer<'_>, item: ResponseItem<S>) -> Result<(), EncodeError>
where
    S: IntoIterator<Item: Borrow<Segment>, IntoIter: ExactSizeIterator>,
{
    writer.write_u32(item.minimum_bytes)?;
    writer.write_u32(item.location.placement_type().to_word())?;
    match item.location {
        ResponseLocation::Explicit(segments) | ResponseLocation::Choice(segments) => {
            write_segments(writer, segments)
        }
        ResponseLocation::BySize {
            explicit_from_bytes,
            segments,
        } => {
            writer.write_u32(explicit_from_bytes)?;
            write_segments(writer, segments)
        }
        ResponseLocation::Placed => Ok(()),
    }
}
