//! What a request asks of the bulk data of its response (RTR section 7.4).

use core::borrow::Borrow;

use super::counted::{CountedList, Entry};
use super::tables::PlacementType;
use crate::chunks::{Segment, Segments, read_segments, write_segments};
use crate::constants::{RTR_RESPONSE_ITEMS_MAX, RTR_RESPONSE_SETS_MAX};
use crate::error::{DecodeError, EncodeError, Reason};
use crate::xdr::{Reader, Writer};

/// Positions in the XDR stream of a request, half-open. An empty range meets nothing.
///
/// ```
/// use rpcrdma_protocol::v2::rtr::{OutOfRange, Problem, ResponseSet, StreamRange};
/// # mod receiver { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/placement/receiver.rs")); }
/// # use receiver::{report_on, request, server};
///
/// // Two operations of a compound, of which the second seems to begin within the first.
/// let first = StreamRange { begin: 40, end: 64 };
/// let second = StreamRange { begin: 60, end: 96 };
/// let sets = [first, second].map(|range| ResponseSet { range, items: &[][..] });
/// let report = report_on(&request(1, &[], &sets), &mut server());
/// assert_eq!(report.problem, Problem::Offset(OutOfRange { value: 60, min: 64, max: u32::MAX }));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StreamRange {
    /// The first octet of the range.
    pub begin: u32,
    /// The first octet behind it.
    pub end: u32,
}

/// Directions for the bulk data that answers one range of the request, such as one operation of a compound.
///
/// The first DDP-eligible item of that part of the response uses up the first direction, and so on.
///
/// ```
/// use rpcrdma_protocol::v2::rtr::{
///     EncodeResponseSets, ResponseItem, ResponseLocation, ResponseSet, ResponseSetRepr, StreamRange,
/// };
/// # use rpcrdma_protocol::{constants::RTR_TYPE_PLACED, xdr::Writer};
///
/// // The first item that the operation at 40 to 64 answers with is to be placed, if it has 512 octets.
/// let sets: &[ResponseSetRepr<'_>] = &[ResponseSet {
///     range: StreamRange { begin: 40, end: 64 },
///     items: &[ResponseItem { minimum_bytes: 512, location: ResponseLocation::Placed }],
/// }];
/// let mut octets = [0; 24];
/// sets.encode(&mut Writer::new(&mut octets))?;
/// assert_eq!(octets, [1, 40, 64, 1, 512, RTR_TYPE_PLACED].map(u32::to_be_bytes).as_flattened());
/// # Ok::<(), rpcrdma_protocol::EncodeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseSet<I> {
    /// The range.
    pub range: StreamRange,
    /// The directions, in order.
    pub items: I,
}

/// The direction for one potential item.
///
/// ```
/// use rpcrdma_protocol::v2::rtr::{
///     PlacementType, ResponseItem, ResponseLocation, ResponseSet, StreamRange, write_response_sets,
/// };
/// # use rpcrdma_protocol::{chunks::Segment, xdr::Writer};
///
/// // From 64 KiB on by explicit RDMA, into memory that is offered; shorter items by Send, the shortest inline.
/// let memory = [Segment { handle: 7, length_bytes: 1 << 20, offset: 0 }];
/// let location = ResponseLocation::BySize { explicit_from_bytes: 65536, segments: &memory };
/// let item = ResponseItem { minimum_bytes: 512, location };
/// assert_eq!(item.location.placement_type(), PlacementType::BySize);
/// // Directions stand in a set, with the range of the call that they are for: here all of it.
/// let set = ResponseSet { range: StreamRange { begin: 0, end: u32::MAX }, items: [item] };
/// let mut space = [0; 64];
/// let mut writer = Writer::new(&mut space);
/// write_response_sets(&mut writer, [set])?;
/// assert_eq!(writer.position(), 16 + 4 * 4 + 16);
/// # Ok::<(), rpcrdma_protocol::EncodeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseItem<S> {
    /// A shorter item stays in the payload stream, and uses up the direction all the same; octets.
    pub minimum_bytes: u32,
    /// Where a longer one goes.
    pub location: ResponseLocation<S>,
}

/// Where the responder puts an item.
///
/// The requester takes back all the memory that it offered, however the responder answers.
///
/// ```
/// use rpcrdma_protocol::v2::rtr::{PlacementType, ResponseLocation};
/// # use rpcrdma_protocol::chunks::Segment;
///
/// let memory = Segment { handle: 7, length_bytes: 65536, offset: 0x1000 };
/// let choice = ResponseLocation::Choice([memory]);
/// assert_eq!(choice.placement_type(), PlacementType::Choice);
/// assert_eq!(choice.segments(), Some(&[memory]), "to be taken back, used or not");
///
/// let placed = ResponseLocation::<[Segment; 1]>::Placed;
/// assert_eq!(placed.segments(), None);
/// ```
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
///
/// ```
/// use rpcrdma_protocol::constants::RTR_TYPE_PLACED;
/// use rpcrdma_protocol::v2::rtr::{ResponseSetView, ResponseSets, StreamRange};
/// # use rpcrdma_protocol::xdr::Reader;
///
/// let octets = [1, 40, 64, 2, 0, RTR_TYPE_PLACED, 512, RTR_TYPE_PLACED].map(u32::to_be_bytes);
/// let mut sets = ResponseSets::decode(&mut Reader::new(octets.as_flattened()))?;
/// let set: ResponseSetView<'_> = sets.next().unwrap();
/// assert_eq!(set.range, StreamRange { begin: 40, end: 64 });
/// assert!(set.items.map(|item| item.minimum_bytes).eq([0, 512]));
/// # Ok::<(), rpcrdma_protocol::DecodeError>(())
/// ```
pub type ResponseSetView<'a> = ResponseSet<ResponseItems<'a>>;
/// A direction of a received request.
///
/// ```
/// use rpcrdma_protocol::v2::rtr::{ResponseItemView, ResponseLocation};
/// # use rpcrdma_protocol::constants::RTR_TYPE_EXPLICIT;
/// # use rpcrdma_protocol::v2::rtr::ResponseSets;
/// # use rpcrdma_protocol::xdr::Reader;
///
/// /// Whether an item of this length fits the memory that is offered for it.
/// fn fits(direction: &ResponseItemView<'_>, length_bytes: u32) -> bool {
///     let memory = direction.location.segments().copied().unwrap_or_default();
///     memory.total_bytes() >= u64::from(length_bytes)
/// }
/// # // Two segments of handle, length and offset.
/// # let octets = [1, 0, 9, 1, 0, RTR_TYPE_EXPLICIT, 2, 7, 4096, 0, 0, 8, 4096, 0, 0].map(u32::to_be_bytes);
/// # let sets = ResponseSets::decode(&mut Reader::new(octets.as_flattened()))?;
/// # let direction = sets.flat_map(|set| set.items).next().unwrap();
/// assert!(fits(&direction, 8192), "two segments of 4096 octets each");
/// assert!(!fits(&direction, 8193));
/// # Ok::<(), rpcrdma_protocol::DecodeError>(())
/// ```
pub type ResponseItemView<'a> = ResponseItem<Segments<'a>>;
/// A direction to be encoded from slices.
///
/// ```
/// use rpcrdma_protocol::chunks::Segment;
/// use rpcrdma_protocol::v2::rtr::{PlacementType, ResponseItemRepr, ResponseLocation};
///
/// let memory = [Segment { handle: 7, length_bytes: 65536, offset: 0x1000 }];
/// let explicit = ResponseItemRepr { minimum_bytes: 1024, location: ResponseLocation::Explicit(&memory) };
/// // The same memory, with the choice left to the responder.
/// let choice = ResponseItemRepr { location: ResponseLocation::Choice(&memory), ..explicit };
/// assert_eq!(choice.location.placement_type(), PlacementType::Choice);
/// assert_eq!(choice.location.segments(), explicit.location.segments());
/// ```
pub type ResponseItemRepr<'a> = ResponseItem<&'a [Segment]>;
/// A set to be encoded from slices.
///
/// ```
/// use rpcrdma_protocol::v2::rtr::{
///     EncodeResponseSets, ResponseItemRepr, ResponseLocation, ResponseSetRepr, ResponseSets, StreamRange,
/// };
/// use rpcrdma_protocol::xdr::{Reader, Writer};
///
/// // Each of two reads of a compound has one result to place.
/// let placed = [ResponseItemRepr { minimum_bytes: 512, location: ResponseLocation::Placed }];
/// let set = |begin, end| ResponseSetRepr { range: StreamRange { begin, end }, items: &placed };
/// let mut space = [0; 64];
/// (&[set(40, 64), set(64, 88)][..]).encode(&mut Writer::new(&mut space))?;
/// let received = ResponseSets::decode(&mut Reader::new(&space))?;
/// assert!(received.map(|set| (set.range.begin, set.items.len())).eq([(40, 1), (64, 1)]));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub type ResponseSetRepr<'a> = ResponseSet<&'a [ResponseItemRepr<'a>]>;

impl<S> ResponseLocation<S> {
    /// The kind of direction, as the tables of the draft name it.
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
///
/// ```
/// use rpcrdma_protocol::v2::rtr::{PlacementType, ResponseItems, ResponseSets};
/// # use rpcrdma_protocol::constants::{RTR_TYPE_CHOICE, RTR_TYPE_PLACED};
/// # use rpcrdma_protocol::xdr::Reader;
///
/// /// How many directions permit the transmissions of the reply to bring an item.
/// fn by_send(directions: ResponseItems<'_>) -> usize {
///     let types = directions.map(|item| item.location.placement_type());
///     types.filter(|kind| *kind != PlacementType::Explicit).count()
/// }
/// # let words = [1, 0, 9, 2, 0, RTR_TYPE_PLACED, 0, RTR_TYPE_CHOICE, 0];
/// # let octets = words.map(u32::to_be_bytes);
/// # let mut sets = ResponseSets::decode(&mut Reader::new(octets.as_flattened()))?;
/// let directions = sets.next().unwrap().items;
/// assert_eq!(by_send(directions), 2, "one Placed, one Choice");
/// # Ok::<(), rpcrdma_protocol::DecodeError>(())
/// ```
pub type ResponseItems<'a> = CountedList<'a, ResponseItemView<'a>>;

/// The sets of a received request, in order: framing, bounds and types were checked.
///
/// ```
/// use rpcrdma_protocol::Reason;
/// use rpcrdma_protocol::constants::RTR_TYPE_NO_ITEM;
/// use rpcrdma_protocol::v2::rtr::ResponseSets;
/// use rpcrdma_protocol::xdr::Reader;
///
/// // "No item" answers a direction and is none: the error tells where it stands.
/// let octets = [1, 40, 64, 1, 0, RTR_TYPE_NO_ITEM].map(u32::to_be_bytes);
/// let error = ResponseSets::decode(&mut Reader::new(octets.as_flattened())).unwrap_err();
/// assert_eq!((error.at, error.reason), (20, Reason::InvalidPlacementType));
///
/// let none = ResponseSets::decode(&mut Reader::new(&[0; 4]))?;
/// assert!(none.is_empty(), "a call that asks for nothing");
/// # Ok::<(), rpcrdma_protocol::DecodeError>(())
/// ```
pub type ResponseSets<'a> = CountedList<'a, ResponseSetView<'a>>;

impl<'a> ResponseSets<'a> {
    /// Reads the directions of a request.
    ///
    /// # Errors
    /// `Truncated`, `TooManyItems`, `TooManySegments`, `InvalidPlacementType`. Whether the ranges are disjoint and in
    /// order is not looked at here.
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
///
/// ```
/// use rpcrdma_protocol::v2::rtr::{
///     EncodeResponseSets, ResponseItemRepr, ResponseLocation, ResponseSet, StreamRange, write_response_sets,
/// };
/// use rpcrdma_protocol::{EncodeError, xdr::Writer};
///
/// /// Every one of so many results is to be placed.
/// struct PlaceAll(usize);
///
/// impl EncodeResponseSets for PlaceAll {
///     fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
///         let placed = ResponseItemRepr { minimum_bytes: 0, location: ResponseLocation::Placed };
///         let range = StreamRange { begin: 0, end: u32::MAX };
///         write_response_sets(writer, [ResponseSet { range, items: std::iter::repeat_n(placed, self.0) }])
///     }
/// }
/// # let mut space = [0; 64];
/// # let mut writer = Writer::new(&mut space);
/// PlaceAll(3).encode(&mut writer)?;
/// assert_eq!(writer.position(), 16 + 3 * 8);
/// # Ok::<(), EncodeError>(())
/// ```
pub trait EncodeResponseSets {
    /// Writes the count and the sets.
    ///
    /// # Errors
    /// `NoSpace`; `TooLong` when a list is longer than a decoder of ours would accept.
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError>;
}

/// Received directions are written as they came.
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
