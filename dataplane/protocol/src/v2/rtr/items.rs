//! The bulk data that was taken out of a message, and where it is (RTR section 7.3).

use core::borrow::Borrow;

use super::counted::{CountedList, Entry};
use super::tables::{Context, PlacementType};
use crate::chunks::{Segment, Segments, read_segments, write_segments};
use crate::constants::{RTR_ITEM_SEGMENT_NUMBERS_MAX, RTR_ITEMS_MAX};
use crate::error::{DecodeError, EncodeError, Reason};
use crate::xdr::{Reader, Writer};

/// An item of bulk data that was, or in a reply could have been, taken out of the XDR stream of a message.
///
/// `S` and `N` are the types that the location holds: views of a received message ([`MessageItemView`]), or slices of
/// a sender ([`MessageItemRepr`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageItem<S, N> {
    /// Where the item belongs: octets of the XDR stream before it, as if nothing had been taken out. Meaningless if
    /// nothing was placed.
    pub displacement: u32,
    /// Octets of the item, without XDR round-up. Meaningless if nothing was placed.
    pub length_bytes: u32,
    /// Where it is.
    pub location: Location<S, N>,
}

/// Where an item is, or why it was not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location<S, N> {
    /// In memory for explicit RDMA: an item of a request is to be read from there, one of a response was written there.
    Explicit(S),
    /// In the transmissions themselves: it begins in the targetable segment of the first number, and continues in
    /// those of the following numbers until its length is reached.
    Placed {
        /// Octets of the first segment before the item.
        offset_bytes: u32,
        /// The numbers of the segments, counted through the whole group.
        numbers: N,
    },
    /// The item was shorter than the least length of its direction, and stays in the payload stream. Responses only.
    TooShort,
    /// No item used the direction. Responses only.
    NoItem,
}

/// An item of a received message.
pub type MessageItemView<'a> = MessageItem<Segments<'a>, SegmentNumbers<'a>>;
/// An item to be encoded from slices.
pub type MessageItemRepr<'a> = MessageItem<&'a [Segment], &'a [u32]>;

impl<S, N> MessageItem<S, N> {
    /// Whether the item was taken out of the payload stream.
    #[must_use]
    pub const fn is_excised(&self) -> bool {
        matches!(
            self.location,
            Location::Explicit(_) | Location::Placed { .. }
        )
    }
}

impl<S, N> Location<S, N> {
    /// The kind of location, by its name in the tables of the draft.
    #[must_use]
    pub const fn placement_type(&self) -> PlacementType {
        match self {
            Self::Explicit(_) => PlacementType::Explicit,
            Self::Placed { .. } => PlacementType::Placed,
            Self::TooShort => PlacementType::TooShort,
            Self::NoItem => PlacementType::NoItem,
        }
    }
}

/// Numbers of targetable segments, in the order in which an item fills them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentNumbers<'a> {
    /// A multiple of four.
    bytes: &'a [u8],
}

impl<'a> SegmentNumbers<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let count_field = *reader;
        let count = usize::try_from(reader.read_u32()?).unwrap_or(usize::MAX);
        if count > RTR_ITEM_SEGMENT_NUMBERS_MAX {
            return Err(count_field.error(Reason::TooManySegmentNumbers));
        }
        Ok(Self {
            bytes: reader.read_bytes(4 * count)?,
        })
    }
}

impl Iterator for SegmentNumbers<'_> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        let (word, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(u32::from_be_bytes(*word))
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.bytes.len() / 4;
        (count, Some(count))
    }
}

impl ExactSizeIterator for SegmentNumbers<'_> {}
impl core::iter::FusedIterator for SegmentNumbers<'_> {}

/// The items of a received message, in order: framing, bounds and types were checked.
pub type MessageItems<'a> = CountedList<'a, MessageItemView<'a>>;

impl<'a> MessageItems<'a> {
    /// Reads the items of a request or a response.
    ///
    /// # Errors
    /// `Truncated`, `TooManyItems`, `TooManySegments`, `TooManySegmentNumbers`, and `InvalidPlacementType` for a type
    /// that Table 1 does not allow in this kind of message. This does not check the values of items.
    pub fn decode(reader: &mut Reader<'a>, kind: MessageKind) -> Result<Self, DecodeError> {
        Self::decode_with(reader, |at, item| {
            let placement_type = item.location.placement_type();
            if placement_type.validity(kind.context()).is_valid() {
                return Ok(());
            }
            // The position of the type, which is after displacement and length.
            Err(DecodeError::new(at + 8, Reason::InvalidPlacementType))
        })
    }
}

impl<'a> Entry<'a> for MessageItemView<'a> {
    const MOST: usize = RTR_ITEMS_MAX;

    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let displacement = reader.read_u32()?;
        let length_bytes = reader.read_u32()?;
        let type_field = *reader;
        let location = match PlacementType::from_word(reader.read_u32()?) {
            Some(PlacementType::Explicit) => Location::Explicit(read_segments(reader)?),
            Some(PlacementType::Placed) => Location::Placed {
                offset_bytes: reader.read_u32()?,
                numbers: SegmentNumbers::decode(reader)?,
            },
            Some(PlacementType::TooShort) => Location::TooShort,
            Some(PlacementType::NoItem) => Location::NoItem,
            Some(PlacementType::Choice | PlacementType::BySize) | None => {
                return Err(type_field.error(Reason::InvalidPlacementType));
            }
        };
        Ok(Self {
            displacement,
            length_bytes,
            location,
        })
    }
}

/// The kind of message that items are in: Table 1 depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageKind {
    /// Transmit Request.
    Request,
    /// Transmit Response.
    Response,
}

impl MessageKind {
    const fn context(self) -> Context {
        match self {
            Self::Request => Context::RequestItem,
            Self::Response => Context::ResponseItem,
        }
    }
}

/// Items that can be written into a header.
///
/// A planner that has them in another form implements this with [`write_items`], from any iterator.
pub trait EncodeItems {
    /// Writes the count and the items.
    ///
    /// # Errors
    /// `NoSpace`; `TooLong` when a list is longer than a decoder of ours would accept.
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError>;
}

/// Received items are written unchanged.
impl EncodeItems for MessageItems<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        write_items(writer, *self)
    }
}

impl EncodeItems for &[MessageItemRepr<'_>] {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        write_items(writer, self.iter().copied())
    }
}

/// Writes items: the count, then each.
///
/// # Errors
/// `NoSpace`; `TooLong` beyond `RTR_ITEMS_MAX` items, or `SEGMENTS_MAX` segments or
/// `RTR_ITEM_SEGMENT_NUMBERS_MAX` numbers of one.
pub fn write_items<I, S, N>(writer: &mut Writer<'_>, items: I) -> Result<(), EncodeError>
where
    I: IntoIterator<Item = MessageItem<S, N>>,
    I::IntoIter: ExactSizeIterator,
    S: IntoIterator<Item: Borrow<Segment>, IntoIter: ExactSizeIterator>,
    N: IntoIterator<Item: Borrow<u32>, IntoIter: ExactSizeIterator>,
{
    let items = items.into_iter();
    if items.len() > RTR_ITEMS_MAX {
        return Err(EncodeError::TooLong);
    }
    writer.write_count(items.len())?;
    for item in items {
        writer.write_u32(item.displacement)?;
        writer.write_u32(item.length_bytes)?;
        writer.write_u32(item.location.placement_type().to_word())?;
        match item.location {
            Location::Explicit(segments) => write_segments(writer, segments)?,
            Location::Placed {
                offset_bytes,
                numbers,
            } => {
                let numbers = numbers.into_iter();
                if numbers.len() > RTR_ITEM_SEGMENT_NUMBERS_MAX {
                    return Err(EncodeError::TooLong);
                }
                writer.write_u32(offset_bytes)?;
                writer.write_count(numbers.len())?;
                for number in numbers {
                    writer.write_u32(*number.borrow())?;
                }
            }
            Location::TooShort | Location::NoItem => {}
        }
    }
    Ok(())
}
