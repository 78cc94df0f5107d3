//! Encodes the directions for results in a call of ours that is a transmission group (RTR section 7.4).

use rpcrdma_protocol::EncodeError;
use rpcrdma_protocol::chunks::Segment;
use rpcrdma_protocol::v2::plan::Direction;
use rpcrdma_protocol::v2::rtr::{
    EncodeResponseSets, ResponseItem, ResponseLocation, ResponseSet, write_response_sets,
};
use rpcrdma_protocol::xdr::Writer;

use super::call::{CallDirection, OutgoingCall};
use super::lists::{Role, targets_of};

impl OutgoingCall {
    fn response_item(
        &self,
        index: usize,
        direction: &CallDirection,
    ) -> ResponseItem<impl ExactSizeIterator<Item = Segment>> {
        let role = Role::Result {
            chunk: u8::try_from(index).unwrap_or(u8::MAX),
        };
        let targets = || targets_of(&self.segments, role);
        let (minimum_bytes, location) = match direction.way {
            // No result reaches this minimum, so it stays in the stream.
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

impl EncodeResponseSets for &OutgoingCall {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        let (call, all) = (*self, self.directions.as_slice());
        // Consecutive directions of one range are one set.
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
                    .map(move |(index, direction)| call.response_item(from + index, direction)),
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

/// An iterator whose length is known: `chunk_by` does not know it.
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
