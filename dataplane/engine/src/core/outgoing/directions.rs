//! What a call of ours asks of the results, when it goes as a transmission group (RTR section 7.4).

use rpcrdma_protocol::EncodeError;
use rpcrdma_protocol::v2::plan::Direction;
use rpcrdma_protocol::v2::rtr::{
    EncodeResponseSets, ResponseItem, ResponseLocation, ResponseSet, write_response_sets,
};
use rpcrdma_protocol::xdr::Writer;

use super::call::CallDirection;
use super::lists::{OfferedSegment, Role, Targets, segments_of};

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
