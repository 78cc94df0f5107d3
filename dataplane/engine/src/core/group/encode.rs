//! The lists of items and directions in the headers of transmission groups (RTR sections 7.3, 7.4).

use rpcrdma_protocol::EncodeError;
use rpcrdma_protocol::chunks::{Fill, Segment};
use rpcrdma_protocol::v2::plan::Direction;
use rpcrdma_protocol::v2::rtr::{
    EncodeItems, EncodeResponseSets, Location, MessageItem, ResponseItem, ResponseItemView,
    ResponseLocation, ResponseSet, ResponseSets, write_items, write_response_sets,
};
use rpcrdma_protocol::xdr::Writer;

use super::laid_out::LaidOut;
use crate::bulk::Group;
use crate::bulk::calls::CallDirection;
use crate::bulk::group::{GroupItem, Way};
use crate::bulk::lists::{OfferedSegment, Role, Targets, segments_of};

/// The items of a call of ours.
pub(super) struct CallItems<'a> {
    pub(super) group: &'a Group,
    pub(super) laid_out: &'a LaidOut,
    pub(super) segments: &'a [OfferedSegment],
}

impl EncodeItems for CallItems<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        let items = self.group.items.iter().enumerate();
        let items = items.map(|(index, item)| MessageItem {
            displacement: item.displacement,
            length_bytes: item.bytes,
            location: match item.way {
                Way::Explicit => {
                    let role = Role::Argument {
                        position: item.displacement,
                    };
                    Location::Explicit(Targets(segments_of(self.segments, role).iter()))
                }
                Way::Placed => Location::Placed {
                    offset_bytes: 0,
                    numbers: self.laid_out.numbers(index),
                },
                // A call has none of these.
                Way::TooShort => Location::TooShort,
                Way::NoItem => Location::NoItem,
            },
        });
        write_items(writer, items)
    }
}

/// The directions of a call of ours.
pub(super) struct CallDirections<'a> {
    pub(super) directions: &'a [CallDirection],
    pub(super) minimum_bytes: u32,
    pub(super) segments: &'a [OfferedSegment],
}

impl CallDirections<'_> {
    fn item(&self, index: usize, direction: &CallDirection) -> ResponseItem<Targets<'_>> {
        let role = Role::Result {
            chunk: u8::try_from(index).unwrap_or(u8::MAX),
        };
        let targets = || Targets(segments_of(self.segments, role).iter());
        let (minimum_bytes, location) = match direction.way {
            // Of a length that no result has.
            Direction::Inline => (u32::MAX, ResponseLocation::Placed),
            Direction::Placed => (self.minimum_bytes, ResponseLocation::Placed),
            Direction::Explicit => (self.minimum_bytes, ResponseLocation::Explicit(targets())),
            Direction::Choice => (self.minimum_bytes, ResponseLocation::Choice(targets())),
            Direction::BySize {
                explicit_from_bytes,
            } => (
                self.minimum_bytes,
                ResponseLocation::BySize {
                    explicit_from_bytes,
                    segments: targets(),
                },
            ),
        };
        ResponseItem {
            minimum_bytes,
            location,
        }
    }
}

impl EncodeResponseSets for CallDirections<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        let all = self.directions;
        // Neighbours of one range are one set.
        let sets = all.chunk_by(|one, next| one.range == next.range);
        let mut first = 0;
        let sets = sets.map(|set| {
            let from = first;
            first += set.len();
            ResponseSet {
                range: set.first().map(|it| it.range).unwrap_or_default(),
                items: set
                    .iter()
                    .enumerate()
                    .map(move |(index, direction)| self.item(from + index, direction)),
            }
        });
        let count = all.chunk_by(|one, next| one.range == next.range).count();
        write_response_sets(
            writer,
            Counted {
                items: sets,
                left: count,
            },
        )
    }
}

/// Things of which it is known how many there are.
struct Counted<I> {
    items: I,
    left: usize,
}

impl<I: Iterator> Iterator for Counted<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        self.left = self.left.checked_sub(1)?;
        self.items.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<I: Iterator> ExactSizeIterator for Counted<I> {}

/// What became of the directions of a peer's call: an item for each.
pub(super) struct ReplyAnswers<'a> {
    pub(super) group: &'a Group,
    pub(super) laid_out: &'a LaidOut,
    pub(super) sets: ResponseSets<'a>,
}

impl ReplyAnswers<'_> {
    fn segments(&self, item: &GroupItem, index: usize) -> impl ExactSizeIterator<Item = Segment> {
        let direction: Option<ResponseItemView<'_>> =
            self.sets.flat_map(|set| set.items).nth(index);
        let segments = direction.and_then(|it| it.location.segments().copied());
        Fill::new(segments.unwrap_or_default(), item.bytes).map(|filled| filled.target)
    }
}

impl EncodeItems for ReplyAnswers<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        let items = self.group.items.iter().enumerate();
        let items = items.map(|(index, item)| MessageItem {
            displacement: item.displacement,
            length_bytes: item.bytes,
            location: match item.way {
                Way::Explicit => Location::Explicit(self.segments(item, index)),
                Way::Placed => Location::Placed {
                    offset_bytes: 0,
                    numbers: self.laid_out.numbers(index),
                },
                Way::TooShort => Location::TooShort,
                Way::NoItem => Location::NoItem,
            },
        });
        write_items(writer, items)
    }
}
