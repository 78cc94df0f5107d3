//! The transmission that is about to be sent, as it was laid out: once for its header and its
//! gather list, and once for all groups of one shape that follow one another, as most do.

use rpcrdma_fabric::interface::SEGMENTS_MAX;
use rpcrdma_protocol::v2::plan::Piece;
use rpcrdma_protocol::v2::plan::layout::Placement;

use super::pieces::{Group, Way};
use crate::bulk::BULK_ITEMS_MAX;
use crate::rpc::ConnectionKey;

/// Pieces that are kept: a transmission that can be sent has fewer.
const PIECES_MAX: usize = 2 * SEGMENTS_MAX;
/// Segments that the items of one group lie in at most.
const NUMBERS_MAX: usize = 1024;

/// A transmission, laid out. Its space is used again and again.
#[derive(Debug, Default)]
pub(in crate::core) struct LaidOut {
    /// What it is gathered from, and how much of it stands in Send buffers and how often in padding.
    pieces: Vec<Piece>,
    pub(in crate::core) head_bytes: u32,
    pub(in crate::core) paddings: usize,
    /// Of the first transmission of a group, the numbers of the segments that each item is in, one
    /// item after the other, and where those of each end.
    numbers: Vec<u32>,
    ends: Vec<usize>,
    /// Bytes of its header, of its part of the stream, and of all that is behind the header.
    pub(in crate::core) header_bytes: u32,
    pub(in crate::core) stream_bytes: u32,
    pub(in crate::core) behind_bytes: usize,
    /// The group that it is all of, when the next one may be alike.
    pub(in crate::core) shape: Option<Shape>,
}

/// All that the layout of a group depends on which has at most one item, in one piece: beside the
/// properties of this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) struct Shape {
    connection: ConnectionKey,
    /// Of the properties of peers.
    epoch: u64,
    header_bytes: u32,
    stream_bytes: u32,
    /// Bytes of the item, where there is one and it is placed.
    item_bytes: Option<u32>,
}

impl Shape {
    /// The shape of a group that is to be sent as one transmission; `None` for any other.
    pub(in crate::core) fn of(
        group: &Group,
        connection: ConnectionKey,
        epoch: u64,
    ) -> Option<Self> {
        let item_bytes = match (group.items.as_slice(), group.parts.as_slice()) {
            ([], []) => None,
            ([item], [part]) if item.way == Way::Placed && item.bytes == part.bytes => {
                Some(item.bytes)
            }
            _ => return None,
        };
        (group.transmissions == 1).then_some(Self {
            connection,
            epoch,
            header_bytes: group.header_bytes,
            stream_bytes: group.stream_bytes,
            item_bytes,
        })
    }
}

impl LaidOut {
    pub(in crate::core) fn new() -> Self {
        Self {
            pieces: Vec::with_capacity(PIECES_MAX),
            numbers: Vec::with_capacity(NUMBERS_MAX),
            ends: Vec::with_capacity(2 * BULK_ITEMS_MAX),
            ..Self::default()
        }
    }

    /// What the transmission is gathered from.
    pub(in crate::core) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    pub(in crate::core) fn set_pieces(&mut self, pieces: impl Iterator<Item = Piece>) {
        self.pieces.clear();
        self.pieces.extend(pieces.take(PIECES_MAX));
        (self.head_bytes, self.paddings) = (0, 0);
        for piece in &self.pieces {
            match piece {
                Piece::Header { length_bytes } | Piece::Stream { length_bytes, .. } => {
                    self.head_bytes += length_bytes;
                }
                Piece::Padding { .. } => self.paddings += 1,
                Piece::Item { .. } => {}
            }
        }
    }

    /// Takes the numbers of all placements of a group, which come in the order of its items. False
    /// when they are too many.
    pub(in crate::core) fn set_numbers(
        &mut self,
        placements: impl Iterator<Item = Placement>,
    ) -> bool {
        self.numbers.clear();
        self.ends.clear();
        for Placement { number, item, .. } in placements {
            if self.numbers.len() == NUMBERS_MAX || item >= 2 * BULK_ITEMS_MAX {
                return false;
            }
            while self.ends.len() <= item {
                self.ends.push(self.numbers.len());
            }
            self.numbers.push(number);
            if let Some(end) = self.ends.get_mut(item) {
                *end = self.numbers.len();
            }
        }
        true
    }

    /// The numbers of the segments that `item` is in.
    pub(in crate::core) fn numbers(&self, item: usize) -> &[u32] {
        let before = item.checked_sub(1);
        let begin = before.map_or(Some(&0), |before| self.ends.get(before));
        let range = begin.zip(self.ends.get(item));
        range
            .and_then(|(begin, end)| self.numbers.get(*begin..*end))
            .unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_has_its_own_numbers() {
        let mut laid_out = LaidOut::new();
        let place = |(item, number)| Placement {
            number,
            item,
            from_bytes: 0,
            length_bytes: 1,
            offset_bytes: 0,
        };
        let placements = [(1, 4), (1, 5), (4, 9)].map(place);
        assert!(laid_out.set_numbers(placements.into_iter()));
        let numbers: Vec<_> = (0..6).map(|item| laid_out.numbers(item)).collect();
        let none: &[u32] = &[];
        assert_eq!(numbers, [none, &[4, 5], none, none, &[9], none]);
        assert!(laid_out.set_numbers(std::iter::empty()), "and afterwards");
        assert!(laid_out.numbers(1).is_empty());
        let many = (0..=1024).map(|number| place((0, number)));
        assert!(!laid_out.set_numbers(many));
    }
}
