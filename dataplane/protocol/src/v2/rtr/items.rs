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
/// `S` and `N` are what the location holds: views of a received message ([`MessageItemView`]), or what a sender has
/// ([`MessageItemRepr`]).
///
/// ```
/// use rpcrdma_protocol::constants::RTR_TYPE_PLACED;
/// use rpcrdma_protocol::v2::rtr::{Location, MessageItem, write_items};
/// # use rpcrdma_protocol::{chunks::Segment, xdr::Writer};
///
/// // 5000 octets that stood behind 120 octets of the call, in targetable segments 0 and 1 now.
/// let location = Location::<[Segment; 0], _>::Placed { offset_bytes: 0, numbers: [0, 1] };
/// let item = MessageItem { displacement: 120, length_bytes: 5000, location };
/// assert!(item.is_excised());
/// let mut octets = [0; 32];
/// write_items(&mut Writer::new(&mut octets), [item])?;
/// assert_eq!(octets, [1, 120, 5000, RTR_TYPE_PLACED, 0, 2, 0, 1].map(u32::to_be_bytes).as_flattened());
/// # Ok::<(), rpcrdma_protocol::EncodeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageItem<S, N> {
    /// Where the item belongs: octets of the XDR stream before it, as if nothing had been taken out. Without meaning
    /// where nothing was placed.
    pub displacement: u32,
    /// Octets of the item, without XDR round-up. Without meaning where nothing was placed.
    pub length_bytes: u32,
    /// Where it is.
    pub location: Location<S, N>,
}

/// Where an item is, or why it is nowhere.
///
/// ```
/// use rpcrdma_protocol::v2::rtr::{Location, MessageItemView};
///
/// /// Octets of an item that are to be read by explicit RDMA before the call is whole.
/// fn to_be_read(item: &MessageItemView<'_>) -> u32 {
///     match item.location {
///         Location::Explicit(_) => item.length_bytes,
///         Location::Placed { .. } | Location::TooShort | Location::NoItem => 0,
///     }
/// }
///
/// let location = Location::Explicit(Default::default());
/// let item = MessageItemView { displacement: 40, length_bytes: 5000, location };
/// assert_eq!(to_be_read(&item), 5000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location<S, N> {
    /// In memory that explicit RDMA reaches: of a request, to be read from there; of a response, it was written there.
    Explicit(S),
    /// In the transmissions themselves: it begins in the targetable segment that the first number names, and goes on
    /// in those that the following ones name, until its length is exhausted.
    Placed {
        /// Octets of the first segment before the item.
        offset_bytes: u32,
        /// The numbers of the segments, counted through the whole group.
        numbers: N,
    },
    /// The item was shorter than the least length of its direction, and stays in the payload stream. Responses only.
    TooShort,
    /// The direction met no item. Responses only.
    NoItem,
}

/// An item of a received message.
///
/// ```
/// use rpcrdma_protocol::constants::RTR_TYPE_PLACED;
/// use rpcrdma_protocol::v2::rtr::{Location, MessageItemView, MessageItems, MessageKind};
/// # use rpcrdma_protocol::xdr::Reader;
///
/// let octets = [1, 120, 5000, RTR_TYPE_PLACED, 16, 2, 3, 4].map(u32::to_be_bytes);
/// let mut items = MessageItems::decode(&mut Reader::new(octets.as_flattened()), MessageKind::Request)?;
/// let item: MessageItemView<'_> = items.next().unwrap();
/// let Location::Placed { offset_bytes, numbers } = item.location else { panic!("it was placed") };
/// assert_eq!((item.displacement, item.length_bytes, offset_bytes), (120, 5000, 16));
/// assert!(numbers.eq([3, 4]));
/// # Ok::<(), rpcrdma_protocol::DecodeError>(())
/// ```
pub type MessageItemView<'a> = MessageItem<Segments<'a>, SegmentNumbers<'a>>;
/// An item to be encoded from slices.
///
/// ```
/// use rpcrdma_protocol::chunks::Segment;
/// use rpcrdma_protocol::v2::rtr::{EncodeItems, Location, MessageItemRepr};
/// # use rpcrdma_protocol::xdr::Writer;
///
/// // One item that was placed, and one that the responder reads: a list may have both.
/// let memory = [Segment { handle: 7, length_bytes: 1 << 20, offset: 0x1000 }];
/// let placed = Location::Placed { offset_bytes: 0, numbers: &[0][..] };
/// let items = [
///     MessageItemRepr { displacement: 40, length_bytes: 4096, location: placed },
///     MessageItemRepr { displacement: 4144, length_bytes: 1 << 20, location: Location::Explicit(&memory) },
/// ];
/// # let mut space = [0; 64];
/// # let mut writer = Writer::new(&mut space);
/// (&items[..]).encode(&mut writer)?;
/// assert_eq!(writer.position(), 4 + 24 + 32);
/// # Ok::<(), rpcrdma_protocol::EncodeError>(())
/// ```
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
    /// The kind of location, as the tables of the draft name it.
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

/// Numbers of targetable segments, in the order in which an item goes through them.
///
/// ```
/// use rpcrdma_protocol::v2::rtr::{SegmentNumbers, ReceiveBufferStructure};
///
/// /// The transmission of the group with which an item is complete.
/// fn completes_with(numbers: SegmentNumbers<'_>, structure: &ReceiveBufferStructure) -> Option<u32> {
///     numbers.last().map(|number| number / structure.target_count().max(1))
/// }
/// # use rpcrdma_protocol::v2::rtr::{BufferSegment, Location, MessageItems, MessageKind, SegmentGroup};
/// # let segment = BufferSegment { length_bytes: 4096, align_bytes: 0, is_targetable: true };
/// # let structure = ReceiveBufferStructure::new(&[SegmentGroup { count: 2, segment }]).unwrap();
/// # let octets = [1, 40, 9000, 2, 0, 3, 1, 2, 3].map(u32::to_be_bytes);
/// # let mut reader = rpcrdma_protocol::xdr::Reader::new(octets.as_flattened());
/// # let item = MessageItems::decode(&mut reader, MessageKind::Request).unwrap().next().unwrap();
/// # let Location::Placed { numbers, .. } = item.location else { panic!("it was placed") };
///
/// // Segments 1, 2 and 3, where each buffer has two.
/// assert_eq!(numbers.len(), 3);
/// assert_eq!(completes_with(numbers, &structure), Some(1));
/// assert_eq!(completes_with(SegmentNumbers::default(), &structure), None);
/// ```
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
///
/// ```
/// use rpcrdma_protocol::v2::rtr::{MessageItems, MessageKind};
/// use rpcrdma_protocol::xdr::Reader;
/// # use rpcrdma_protocol::constants::{RTR_TYPE_NO_ITEM, RTR_TYPE_PLACED, RTR_TYPE_TOO_SHORT};
///
/// // A reply to three directions; of what was not placed, displacement and length say nothing.
/// let words = [3, 40, 512, RTR_TYPE_PLACED, 0, 1, 0, 0, 0, RTR_TYPE_TOO_SHORT, 0, 0, RTR_TYPE_NO_ITEM];
/// let octets = words.map(u32::to_be_bytes);
/// let mut reader = Reader::new(octets.as_flattened());
/// let items = MessageItems::decode(&mut reader, MessageKind::Response)?;
/// assert!(reader.is_at_end(), "the counts of what follows come next");
/// assert_eq!(items.filter(|item| item.is_excised()).count(), 1);
/// # Ok::<(), rpcrdma_protocol::DecodeError>(())
/// ```
pub type MessageItems<'a> = CountedList<'a, MessageItemView<'a>>;

impl<'a> MessageItems<'a> {
    /// Reads the items of a request or a response.
    ///
    /// # Errors
    /// `Truncated`, `TooManyItems`, `TooManySegments`, `TooManySegmentNumbers`, and `InvalidPlacementType` for what
    /// Table 1 does not allow in this kind of message. What is wrong with values is not looked at here.
    pub fn decode(reader: &mut Reader<'a>, kind: MessageKind) -> Result<Self, DecodeError> {
        Self::decode_with(reader, |at, item| {
            let placement_type = item.location.placement_type();
            if placement_type.validity(kind.context()).is_valid() {
                return Ok(());
            }
            // Behind displacement and length.
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

/// The kind of message that items stand in: what Table 1 allows depends on it.
///
/// ```
/// use rpcrdma_protocol::constants::RTR_TYPE_TOO_SHORT;
/// use rpcrdma_protocol::v2::rtr::{MessageItems, MessageKind};
/// use rpcrdma_protocol::{Reason, xdr::Reader};
///
/// // That an item was too short answers a direction: a call has nothing to answer.
/// let octets = [1, 0, 0, RTR_TYPE_TOO_SHORT].map(u32::to_be_bytes);
/// let decode = |kind| MessageItems::decode(&mut Reader::new(octets.as_flattened()), kind);
/// assert!(decode(MessageKind::Response).is_ok());
/// let error = decode(MessageKind::Request).unwrap_err();
/// assert_eq!((error.at, error.reason), (12, Reason::InvalidPlacementType));
/// ```
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
///
/// ```
/// use rpcrdma_protocol::v2::rtr::{EncodeItems, Location, MessageItemRepr, write_items};
/// use rpcrdma_protocol::{EncodeError, xdr::Writer};
///
/// /// The answer to so many directions that met nothing.
/// struct NoItems(usize);
///
/// impl EncodeItems for NoItems {
///     fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
///         let none = MessageItemRepr { displacement: 0, length_bytes: 0, location: Location::NoItem };
///         write_items(writer, std::iter::repeat_n(none, self.0))
///     }
/// }
/// # let mut space = [0; 64];
/// # let mut writer = Writer::new(&mut space);
/// NoItems(2).encode(&mut writer)?;
/// assert_eq!(writer.position(), 4 + 2 * 12);
/// assert_eq!(NoItems(257).encode(&mut writer), Err(EncodeError::TooLong));
/// # Ok::<(), EncodeError>(())
/// ```
pub trait EncodeItems {
    /// Writes the count and the items.
    ///
    /// # Errors
    /// `NoSpace`; `TooLong` when a list is longer than a decoder of ours would accept.
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError>;
}

/// Received items are written as they came.
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
