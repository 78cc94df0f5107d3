//! The items and buffers of an outgoing transmission group (RTR sections 6.2 and 9).

use rpcrdma_fabric::interface::{Gather, SEGMENTS_MAX};
use rpcrdma_fabric::memory::Buffer;
use rpcrdma_protocol::v2::plan::Piece;
use rpcrdma_protocol::v2::plan::layout::BulkItems;

use crate::bulk::{BULK_ITEMS_MAX, BULK_PARTS_MAX, BulkPart};

/// How an item of a group goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// In the Sends themselves.
    Placed,
    /// By explicit RDMA.
    Explicit,
    /// In the stream: it is shorter than the minimum of its direction.
    TooShort,
    /// There is no item for the direction.
    NoItem,
}

/// An item that was taken out of the stream, or the outcome of a direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupItem {
    pub(crate) displacement: u32,
    pub(crate) bytes: u32,
    pub(crate) way: Way,
    /// Its pieces, if it is placed: the number of the first, and how many.
    pub(crate) first_part: usize,
    pub(crate) parts: usize,
}

/// A group, and how much of it was sent.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub(crate) items: Vec<GroupItem>,
    /// The pieces of the items that are placed.
    pub(crate) parts: Vec<BulkPart>,
    /// Bytes of the first header with empty lists of segment numbers.
    pub(crate) header_bytes: u32,
    pub(crate) stream_bytes: u32,
    /// How many transmissions it has; 0 when there is no group.
    pub(crate) transmissions: u32,
    /// How many of them were sent.
    pub(crate) sent: u32,
}

impl Group {
    pub(crate) fn new() -> Self {
        Self {
            items: Vec::with_capacity(2 * BULK_ITEMS_MAX),
            parts: Vec::with_capacity(BULK_PARTS_MAX),
            ..Self::default()
        }
    }

    /// Forgets all. Its buffers must have been taken out.
    pub(crate) fn reset(&mut self) {
        debug_assert!(self.parts.iter().all(|part| part.buffer.is_none()));
        self.items.clear();
        self.parts.clear();
        (self.header_bytes, self.stream_bytes) = (0, 0);
        (self.transmissions, self.sent) = (0, 0);
    }

    /// The place of piece `part`, and the index of its buffer.
    pub(crate) fn place_of(&mut self, part: u16) -> Option<(&mut Option<Buffer>, u32)> {
        let part = self.parts.get_mut(usize::from(part))?;
        Some((&mut part.buffer, part.index))
    }

    /// Whether these pieces can be one Send: header and stream, gathered from buffers of `buffer_bytes`, and the items
    /// fit into `entries_max` entries, and no buffer is needed twice.
    pub(crate) fn is_sendable(
        &self,
        pieces: impl Iterator<Item = Piece>,
        buffer_bytes: u32,
        entries_max: usize,
    ) -> bool {
        let (mut head_bytes, mut entries, mut next_part) = (0, 0, 0);
        for piece in pieces {
            match piece {
                Piece::Header { length_bytes } if length_bytes > buffer_bytes => return false,
                Piece::Header { length_bytes } | Piece::Stream { length_bytes, .. } => {
                    head_bytes += length_bytes;
                }
                Piece::Padding { .. } => entries += 1,
                Piece::Item {
                    item,
                    from_bytes,
                    length_bytes,
                } => {
                    for (part, ..) in self.parts_of(item, from_bytes, length_bytes) {
                        // A buffer moves into the gather list, so it can be there only once.
                        if part < next_part {
                            return false;
                        }
                        next_part = part + 1;
                        entries += 1;
                    }
                }
            }
        }
        let heads = head_bytes.div_ceil(buffer_bytes.max(1)) as usize;
        entries + heads <= entries_max.min(SEGMENTS_MAX)
    }

    /// Whether all buffers of these pieces are here, and none is still in an earlier Send.
    pub(crate) fn is_here(&self, pieces: &[Piece]) -> bool {
        pieces.iter().all(|piece| match *piece {
            Piece::Item {
                item,
                from_bytes,
                length_bytes,
            } => self
                .parts_of(item, from_bytes, length_bytes)
                .all(|(part, ..)| self.parts.get(part).is_some_and(|it| it.buffer.is_some())),
            _ => true,
        })
    }

    /// Puts bytes of an item into a gather list. False when a buffer is away, or the list is full.
    #[inline(always)]
    pub(crate) fn gather(
        &mut self,
        list: &mut Gather,
        item: usize,
        from_bytes: u32,
        length_bytes: u32,
    ) -> bool {
        let Some(&GroupItem {
            first_part, parts, ..
        }) = self.items.get(item)
        else {
            return false;
        };
        let own = self.parts.get_mut(first_part..first_part + parts);
        let (mut at, end) = (0, from_bytes + length_bytes);
        for part in own.unwrap_or(&mut []) {
            let begin = from_bytes.max(at);
            let until = end.min(at + part.bytes);
            if begin < until {
                let Some(buffer) = part.buffer.take() else {
                    return false;
                };
                let offset = part.offset + (begin - at);
                if let Err(buffer) = list.push(buffer, offset, until - begin) {
                    part.buffer = Some(buffer);
                    return false;
                }
            }
            at += part.bytes;
        }
        true
    }

    /// The pieces with these bytes of an item: number, offset in the piece, bytes.
    fn parts_of(
        &self,
        item: usize,
        from_bytes: u32,
        length_bytes: u32,
    ) -> impl Iterator<Item = (usize, u32, u32)> {
        let (first, count) = self
            .items
            .get(item)
            .map_or((0, 0), |item| (item.first_part, item.parts));
        let parts = self.parts.get(first..first + count).unwrap_or(&[]);
        let end = from_bytes.saturating_add(length_bytes);
        let mut at = 0_u32;
        parts.iter().zip(first..).filter_map(move |(part, number)| {
            let start = at;
            at = at.saturating_add(part.bytes);
            let (begin, until) = (from_bytes.max(start), end.min(at));
            (begin < until).then(|| (number, begin - start, until - begin))
        })
    }
}

/// Items that are not placed count as no bytes: the layout has no room for them.
impl BulkItems for Group {
    fn count(&self) -> usize {
        self.items.len()
    }

    fn length_bytes(&self, item: usize) -> u32 {
        self.items
            .get(item)
            .filter(|item| item.way == Way::Placed)
            .map_or(0, |item| item.bytes)
    }

    fn gather_entries(&self, item: usize, from_bytes: u32, length_bytes: u32) -> u32 {
        let entries = self.parts_of(item, from_bytes, length_bytes).count();
        u32::try_from(entries).unwrap_or(u32::MAX)
    }
}
