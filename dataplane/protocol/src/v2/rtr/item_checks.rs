//! The checks of a receiver before it passes items on: that each item is where the header says.
//!
//! A receive buffer may still hold octets of another connection. So an item has to lie within the octets that its
//! transmissions really brought, and must not overlap header, payload stream or another item. Items, and the segments
//! of each, are in increasing order (a rule of ours, which makes this check a single pass). So two of them cannot
//! overlap, and two numbers suffice for each transmission: where its items begin and where they end. These numbers
//! are kept for later transmissions, which are checked when they arrive.

use super::buffer_structure::{NumberedSegment, ReceiveBufferStructure};
use super::directions::ResponseSets;
use super::items::{Location, MessageItems};
use super::report::{OutOfRange, Problem};
use super::stream::rounded_up;
use crate::chunks::Segments;
use crate::constants::RTR_TRANSMISSIONS_MAX;

/// The sizes of a transmission that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arrival {
    /// Octets of its header.
    pub header_bytes: u32,
    /// Octets of the payload stream after it.
    pub stream_bytes: u32,
    /// Octets of the whole Send.
    pub message_bytes: u32,
}

impl Arrival {
    /// The first octet after the payload stream.
    pub(crate) const fn stream_end(self) -> u32 {
        self.header_bytes.saturating_add(self.stream_bytes)
    }

    /// Checks that the payload stream lies within the message.
    pub(crate) fn check_stream(self) -> Result<(), Problem> {
        let max = self.message_bytes.saturating_sub(self.header_bytes);
        if self.stream_bytes <= max {
            return Ok(());
        }
        Err(Problem::StreamLength(OutOfRange {
            value: self.stream_bytes,
            min: 0,
            max,
        }))
    }
}

/// The octets of one transmission of a group that hold items. Both are 0 when no item is in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Span {
    /// Where its first item begins, in octets of the Send.
    begin: u32,
    /// Where its last one ends.
    end: u32,
}

/// What the later transmissions of a group must bring for its items.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expectations {
    /// By transmission; those of the group are in use.
    spans: [Span; RTR_TRANSMISSIONS_MAX],
    /// Octets that the payload streams must have together: then every displacement is within the message.
    pub(crate) stream_bytes_least: u32,
}

impl Expectations {
    pub(crate) const NONE: Self = Self {
        spans: [Span { begin: 0, end: 0 }; RTR_TRANSMISSIONS_MAX],
        stream_bytes_least: 0,
    };

    /// Checks the items of the first transmission of a group of `transmissions`, and notes what the others must bring
    /// for them.
    pub(crate) fn check_items(
        &mut self,
        items: MessageItems<'_>,
        transmissions: u32,
        structure: &ReceiveBufferStructure,
        arrival: Arrival,
    ) -> Result<(), Problem> {
        for span in self.spans_of(transmissions) {
            *span = Span::default();
        }
        self.stream_bytes_least = 0;
        let numbers = structure.target_count().saturating_mul(transmissions);
        let mut layout = Layout {
            structure,
            arrival,
            number_max: numbers.saturating_sub(1),
            has_numbers: numbers > 0,
            transmission: 0,
            free_from: arrival.stream_end(),
        };
        let mut order = DisplacementOrder::new(transmissions == 1, arrival.stream_bytes);
        for item in items {
            match item.location {
                Location::TooShort | Location::NoItem => continue,
                Location::Explicit(segments) => check_memory(segments, item.length_bytes)?,
                Location::Placed {
                    offset_bytes,
                    numbers,
                } => {
                    layout.place(offset_bytes, numbers, item.length_bytes, |at, span| {
                        self.note(at, span);
                    })?;
                }
            }
            order.check(item.displacement, item.length_bytes)?;
        }
        self.stream_bytes_least = order.stream_bytes_least;
        Ok(())
    }

    /// Checks that a later transmission brings what the items need.
    pub(crate) fn check_arrival(
        &self,
        transmission: u32,
        structure: &ReceiveBufferStructure,
        arrival: Arrival,
    ) -> Result<(), Problem> {
        arrival.check_stream()?;
        let index = usize::try_from(transmission).unwrap_or(usize::MAX);
        let span = self.spans.get(index).copied().unwrap_or_default();
        if span.end > arrival.message_bytes {
            let number = number_at(structure, transmission, span.end.saturating_sub(1));
            return Err(not_arrived(number));
        }
        if span.end > 0 && span.begin < arrival.stream_end() {
            return Err(Problem::SegmentNumber(OutOfRange {
                value: number_at(structure, transmission, span.begin),
                min: number_from(structure, transmission, arrival.stream_end()),
                max: u32::MAX,
            }));
        }
        Ok(())
    }

    fn spans_of(&mut self, transmissions: u32) -> &mut [Span] {
        let count = usize::try_from(transmissions).unwrap_or(usize::MAX);
        let count = count.min(RTR_TRANSMISSIONS_MAX);
        self.spans.get_mut(..count).unwrap_or_default()
    }

    /// Notes that a piece of an item lies there.
    fn note(&mut self, transmission: u32, piece: Span) {
        let index = usize::try_from(transmission).unwrap_or(usize::MAX);
        if let Some(span) = self.spans.get_mut(index) {
            // Pieces come in increasing order: the first sets the begin, and each later one moves the end.
            if span.end == 0 {
                span.begin = piece.begin;
            }
            span.end = piece.end;
        }
    }
}

/// Walks through the targetable segments of a group, forward only.
struct Layout<'s> {
    structure: &'s ReceiveBufferStructure,
    /// Of the first transmission.
    arrival: Arrival,
    /// The greatest number of a segment, if there is any.
    number_max: u32,
    has_numbers: bool,
    /// Where the next item may begin: in this transmission,
    transmission: u32,
    /// and from this octet of it on.
    free_from: u32,
}

impl Layout<'_> {
    fn place(
        &mut self,
        offset_bytes: u32,
        numbers: impl Iterator<Item = u32>,
        length_bytes: u32,
        mut note: impl FnMut(u32, Span),
    ) -> Result<(), Problem> {
        let mut remaining = length_bytes;
        let mut offset = offset_bytes;
        let mut last = None;
        for number in numbers {
            if remaining == 0 {
                break;
            }
            let segment = self.segment(number)?;
            if offset >= segment.length_bytes {
                return Err(Problem::Offset(OutOfRange {
                    value: offset,
                    min: 0,
                    max: segment.length_bytes - 1,
                }));
            }
            let begin = segment.offset_bytes + offset;
            if (segment.transmission, begin) < (self.transmission, self.free_from) {
                return Err(self.overlap(number, segment, (last.is_none()).then_some(offset)));
            }
            let piece_bytes = remaining.min(segment.length_bytes - offset);
            let end = begin + piece_bytes;
            if segment.transmission == 0 && end > self.arrival.message_bytes {
                return Err(not_arrived(number));
            }
            note(segment.transmission, Span { begin, end });
            (self.transmission, self.free_from) = (segment.transmission, end);
            remaining -= piece_bytes;
            offset = 0;
            last = Some(number);
        }
        if remaining == 0 {
            return Ok(());
        }
        // The item has more octets than its segments: at least one more number was needed.
        Err(Problem::SegmentNumber(OutOfRange {
            value: last.unwrap_or(0),
            min: last.map_or(0, |number| number.saturating_add(1)),
            max: self.number_max,
        }))
    }

    fn segment(&self, number: u32) -> Result<NumberedSegment, Problem> {
        let in_group = self.has_numbers && number <= self.number_max;
        let segment = self.structure.numbered_segment(number);
        segment
            .filter(|_| in_group)
            .ok_or(Problem::SegmentNumber(OutOfRange {
                value: number,
                min: 0,
                max: self.number_max,
            }))
    }

    /// The error for a piece that begins before the first free octet. If the item begins in this segment, and the end of
    /// the segment is free, the error asks for a greater offset; otherwise for another segment.
    #[cold]
    fn overlap(&self, number: u32, segment: NumberedSegment, offset: Option<u32>) -> Problem {
        let is_here = segment.transmission == self.transmission;
        let taken = self.free_from.saturating_sub(segment.offset_bytes);
        match offset {
            Some(value) if is_here && taken < segment.length_bytes => Problem::Offset(OutOfRange {
                value,
                min: taken,
                max: segment.length_bytes - 1,
            }),
            _ => Problem::SegmentNumber(OutOfRange {
                value: number,
                min: number_from(self.structure, self.transmission, self.free_from),
                max: self.number_max,
            }),
        }
    }
}

/// The error for a segment whose octets did not arrive.
#[cold]
fn not_arrived(number: u32) -> Problem {
    Problem::SegmentNumber(OutOfRange {
        value: number,
        min: 0,
        max: number.saturating_sub(1),
    })
}

/// The number of the targetable segment that this octet of a transmission is in.
#[cold]
fn number_at(structure: &ReceiveBufferStructure, transmission: u32, octet: u32) -> u32 {
    let before = structure
        .segments()
        .filter(|segment| segment.segment.is_targetable && segment.offset_bytes <= octet)
        .count();
    let before = u32::try_from(before).unwrap_or(u32::MAX);
    let first = transmission.saturating_mul(structure.target_count());
    first.saturating_add(before.saturating_sub(1))
}

/// The number of the first targetable segment that begins at this octet of a transmission, or after it.
#[cold]
fn number_from(structure: &ReceiveBufferStructure, transmission: u32, octet: u32) -> u32 {
    let before = structure
        .segments()
        .filter(|segment| segment.segment.is_targetable && segment.offset_bytes < octet)
        .count();
    let before = u32::try_from(before).unwrap_or(u32::MAX);
    let first = transmission.saturating_mul(structure.target_count());
    first.saturating_add(before)
}

/// Octets at the start of a message that no item can contain: the XID and the message type.
const MESSAGE_START_BYTES: u64 = 8;

/// Checks displacements of items: in order, disjoint, and within the message.
struct DisplacementOrder {
    /// The first octet after the previous item.
    end: u64,
    /// Octets of all previous items, with round-up.
    items_bytes: u64,
    /// Octets that the payload stream must have.
    stream_bytes_least: u32,
    /// Octets that it has, if all of it has arrived.
    stream_bytes: Option<u32>,
}

impl DisplacementOrder {
    fn new(is_whole: bool, stream_bytes: u32) -> Self {
        Self {
            end: MESSAGE_START_BYTES,
            items_bytes: 0,
            stream_bytes_least: 0,
            stream_bytes: is_whole.then_some(stream_bytes),
        }
    }

    fn check(&mut self, displacement: u32, length_bytes: u32) -> Result<(), Problem> {
        let stream_max = self.stream_bytes.map_or(u32::MAX, |bytes| bytes & !3);
        let most_behind = u64::from(u32::MAX) + 1 - rounded_up(length_bytes);
        let max = (u64::from(stream_max) + self.items_bytes).min(most_behind & !3);
        let at = u64::from(displacement);
        if at < self.end || at > max || !displacement.is_multiple_of(4) {
            return Err(Problem::Offset(OutOfRange {
                value: displacement,
                min: u32::try_from(self.end).unwrap_or(u32::MAX),
                max: u32::try_from(max).unwrap_or(u32::MAX),
            }));
        }
        // This never decreases: the displacement is at least the end of the previous item.
        self.stream_bytes_least = u32::try_from(at - self.items_bytes).unwrap_or(u32::MAX);
        self.items_bytes += rounded_up(length_bytes);
        self.end = at + rounded_up(length_bytes);
        Ok(())
    }
}

/// Checks that the memory of an item that explicit RDMA moves holds all of it.
fn check_memory(segments: Segments<'_>, length_bytes: u32) -> Result<(), Problem> {
    let memory_bytes = u32::try_from(segments.total_bytes()).unwrap_or(u32::MAX);
    if length_bytes <= memory_bytes {
        return Ok(());
    }
    Err(Problem::Offset(OutOfRange {
        value: length_bytes,
        min: 0,
        max: memory_bytes,
    }))
}

/// Checks that the ranges of directions are disjoint and in order; empty ranges may be anywhere between them.
pub(crate) fn check_ranges(sets: ResponseSets<'_>) -> Result<(), Problem> {
    let mut free_from = 0;
    for set in sets {
        let (begin, end) = (set.range.begin, set.range.end);
        for (value, min) in [(begin, free_from), (end, begin)] {
            if value < min {
                return Err(Problem::Offset(OutOfRange {
                    value,
                    min,
                    max: u32::MAX,
                }));
            }
        }
        free_from = end;
    }
    Ok(())
}

/// A piece of an item that was placed by Send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlacedPiece {
    /// The transmission of the group that brought it.
    pub transmission: u32,
    /// Octets of that transmission before it.
    pub offset_bytes: u32,
    /// Octets of the piece.
    pub length_bytes: u32,
}

/// The pieces of an item that was placed by Send, in order. The numbers were checked when the transmission was
/// received.
pub fn placed_pieces<'s, N>(
    structure: &'s ReceiveBufferStructure,
    offset_bytes: u32,
    numbers: N,
    length_bytes: u32,
) -> impl Iterator<Item = PlacedPiece> + use<'s, N>
where
    N: IntoIterator<Item = u32>,
{
    let mut numbers = numbers.into_iter();
    let mut offset = offset_bytes;
    let mut remaining = length_bytes;
    core::iter::from_fn(move || {
        if remaining == 0 {
            return None;
        }
        let segment = structure.numbered_segment(numbers.next()?)?;
        let room = segment.length_bytes.checked_sub(offset)?;
        let piece = PlacedPiece {
            transmission: segment.transmission,
            offset_bytes: segment.offset_bytes.saturating_add(offset),
            length_bytes: remaining.min(room),
        };
        remaining -= piece.length_bytes;
        offset = 0;
        Some(piece)
    })
}
