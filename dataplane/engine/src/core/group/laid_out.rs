//! The layout of the transmission that is about to be sent. It is computed once for the header and the gather list, and
//! used again for following groups of the same shape, which is the common case.

use rpcrdma_fabric::interface::SEGMENTS_MAX;
use rpcrdma_protocol::constants::V2_PREFIX_BYTES;
use rpcrdma_protocol::v2::plan::Piece;
use rpcrdma_protocol::v2::plan::layout::Placement;

use super::pieces::{Group, Way};
use crate::bulk::BULK_ITEMS_MAX;
use crate::core::outgoing::CallDirection;
use crate::rpc::ConnectionKey;

/// The most pieces that are kept: a transmission that can be sent has fewer.
const PIECES_MAX: usize = 2 * SEGMENTS_MAX;
/// The most segments that the items of one group may be in.
const NUMBERS_MAX: usize = 1024;

/// The layout of a transmission. Its memory is reused, so that sending does not allocate.
#[derive(Debug, Default)]
pub(in crate::core) struct LaidOut {
    /// What it is gathered from.
    pieces: Vec<Piece>,
    /// How many send buffers its header and stream take, and how many paddings it has.
    pub(in crate::core) heads: u32,
    pub(in crate::core) paddings: usize,
    /// For the first transmission of a group: the numbers of the segments of all items, one
    /// item after the other; `ends` has the end of each item's numbers.
    numbers: Vec<u32>,
    ends: Vec<usize>,
    /// Bytes of its header, of its part of the stream, and of all that is behind the header.
    pub(in crate::core) header_bytes: u32,
    pub(in crate::core) stream_bytes: u32,
    pub(in crate::core) behind_bytes: usize,
    /// The shape of its group, if that is a single transmission and the next group may have the same layout.
    pub(in crate::core) shape: Option<Shape>,
    /// The header of the last such group without its prefix, and the fields that it encodes, with the shape above.
    body: Vec<u8>,
    body_of: Option<Body>,
}

/// All inputs of the header of a group behind its prefix, for a reply, or a call with at most one direction and no
/// memory handle. Equal inputs give equal octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) struct Body {
    pub(in crate::core) shape: Shape,
    /// Where the item belongs, if there is one.
    pub(in crate::core) displacement: Option<u32>,
    pub(in crate::core) direction: Option<CallDirection>,
    pub(in crate::core) minimum_bytes: u32,
    pub(in crate::core) reply_transmissions_max: u32,
}

/// The longest header, without its prefix, that is kept, in octets. Headers of groups with a shape are shorter.
const BODY_BYTES_MAX: usize = 160;

/// All inputs of the layout of a group with at most one item, in one piece, except the properties of this end, which do
/// not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) struct Shape {
    connection: ConnectionKey,
    /// The properties epoch: it changes with the properties of any peer.
    epoch: u64,
    header_bytes: u32,
    stream_bytes: u32,
    /// Bytes of the item, where there is one and it is placed.
    item_bytes: Option<u32>,
}

impl Shape {
    /// The shape of a group that is to be sent as one transmission; `None` for any other.
    #[inline(always)]
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
            body: Vec::with_capacity(BODY_BYTES_MAX),
            ..Self::default()
        }
    }

    /// Whether this is the layout of a group with these fields, with its header.
    #[inline(always)]
    pub(in crate::core) fn has(&self, body: Option<&Body>) -> bool {
        body.is_some() && self.body_of.as_ref() == body
    }

    /// The kept header without its prefix.
    pub(in crate::core) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Makes room for the layout of another group.
    pub(in crate::core) fn forget(&mut self) {
        (self.shape, self.body_of) = (None, None);
    }

    /// Keeps a header for the next group with the same fields.
    pub(in crate::core) fn keep_body(&mut self, of: Option<Body>, header: &[u8]) {
        let body = header.get(V2_PREFIX_BYTES..).unwrap_or(&[]);
        let is_kept = !body.is_empty() && body.len() <= BODY_BYTES_MAX;
        self.body_of = of.filter(|_| is_kept);
        if self.body_of.is_some() {
            self.body.clear();
            self.body.extend_from_slice(body);
        }
    }

    /// What the transmission is gathered from.
    pub(in crate::core) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Takes the pieces of a transmission, which is sent from buffers of `buffer_bytes`.
    pub(in crate::core) fn set_pieces(
        &mut self,
        pieces: impl Iterator<Item = Piece>,
        buffer_bytes: u32,
    ) {
        self.pieces.clear();
        self.pieces.extend(pieces.take(PIECES_MAX));
        let mut head_bytes = 0;
        self.paddings = 0;
        for piece in &self.pieces {
            match piece {
                Piece::Header { length_bytes } | Piece::Stream { length_bytes, .. } => {
                    head_bytes += length_bytes;
                }
                Piece::Padding { .. } => self.paddings += 1,
                Piece::Item { .. } => {}
            }
        }
        self.heads = head_bytes.div_ceil(buffer_bytes.max(1)).max(1);
    }

    /// Takes the segment numbers of all placements of a group, in the order of its items. False
    /// when there are too many.
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
            // Items without placements in between have no numbers.
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

    /// Any field that differs must prevent the reuse.
    #[test]
    fn a_header_is_kept_for_groups_that_say_the_same() {
        use rpcrdma_protocol::v2::plan::Direction;
        use rpcrdma_protocol::v2::rtr::StreamRange;

        let direction = CallDirection {
            range: StreamRange { begin: 40, end: 44 },
            way: Direction::Placed,
            bytes_max: 4096,
            displacement: None,
        };
        let body = Body {
            shape: Shape {
                connection: ConnectionKey::default(),
                epoch: 1,
                header_bytes: 80,
                stream_bytes: 44,
                item_bytes: Some(4096),
            },
            displacement: Some(44),
            direction: Some(direction),
            minimum_bytes: 513,
            reply_transmissions_max: 1,
        };
        let mut laid_out = LaidOut::new();
        let header: Vec<u8> = (0..80).collect();
        assert!(!laid_out.has(Some(&body)));
        laid_out.keep_body(Some(body), &header);
        assert!(laid_out.has(Some(&body)));
        assert_eq!(laid_out.body(), &header[20..]);
        let shape = body.shape;
        let others = [
            Body {
                displacement: Some(48),
                ..body
            },
            Body {
                displacement: None,
                ..body
            },
            Body {
                direction: None,
                ..body
            },
            Body {
                minimum_bytes: 0,
                ..body
            },
            Body {
                reply_transmissions_max: 2,
                ..body
            },
            Body {
                shape: Shape { epoch: 2, ..shape },
                ..body
            },
            Body {
                shape: Shape {
                    stream_bytes: 48,
                    ..shape
                },
                ..body
            },
            Body {
                shape: Shape {
                    item_bytes: Some(4092),
                    ..shape
                },
                ..body
            },
            Body {
                direction: Some(CallDirection {
                    way: Direction::Inline,
                    ..direction
                }),
                ..body
            },
        ];
        for other in others {
            assert!(!laid_out.has(Some(&other)), "{other:?}");
        }
        assert!(!laid_out.has(None));
        // One that is too long takes the place of the one before all the same.
        laid_out.keep_body(Some(body), &[0; 20 + BODY_BYTES_MAX + 1]);
        assert!(!laid_out.has(Some(&body)));
        laid_out.keep_body(None, &header);
        assert!(!laid_out.has(None));
    }

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
