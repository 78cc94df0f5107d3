//! The virtual XDR stream: the RPC message as it would be had nothing been taken out of it (RTR section 6.2).
//!
//! The payload streams of all transmissions of a group, joined, are the message without its items. A displacement
//! counts everything before it: octets of the payload stream, items, and the octets of XDR round-up after each item,
//! which are not sent.

use super::items::MessageItems;

/// Where an item is in the virtual stream, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ItemExtent {
    /// Its place among the items of the message, counted from 0.
    pub index: usize,
    /// Octets of the virtual stream before it.
    pub displacement: u32,
    /// Octets, without round-up.
    pub length_bytes: u32,
}

impl ItemExtent {
    /// The first octet after the item and its round-up.
    #[inline]
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.displacement as u64 + rounded_up(self.length_bytes)
    }
}

/// Octets of an item with its XDR round-up.
#[inline]
#[must_use]
pub const fn rounded_up(length_bytes: u32) -> u64 {
    (length_bytes as u64).next_multiple_of(4)
}

/// The items that were taken out of a received message.
pub fn excised(items: MessageItems<'_>) -> impl Iterator<Item = ItemExtent> + Clone + '_ {
    let each = items.enumerate().filter(|(_, item)| item.is_excised());
    each.map(|(index, item)| ItemExtent {
        index,
        displacement: item.displacement,
        length_bytes: item.length_bytes,
    })
}

/// The extents of items that a sender takes out. `cuts` has for each item, in order, the octets of the payload stream
/// without items that come before it, and the octets of the item.
pub fn displacements(
    cuts: impl IntoIterator<Item = (u32, u32)>,
) -> impl Iterator<Item = ItemExtent> {
    let each = cuts.into_iter().enumerate();
    each.scan(
        0_u64,
        |items_bytes, (index, (stream_offset, length_bytes))| {
            let displacement = u64::from(stream_offset) + *items_bytes;
            *items_bytes += rounded_up(length_bytes);
            // No valid message has a displacement beyond 32 bits: the receiver finds it out of order.
            Some(ItemExtent {
                index,
                displacement: u32::try_from(displacement).unwrap_or(u32::MAX),
                length_bytes,
            })
        },
    )
}

/// A part of the virtual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamPiece {
    /// Octets of the payload stream.
    Stream {
        /// The first of them.
        from_bytes: u32,
        /// How many.
        length_bytes: u32,
    },
    /// An item; its round-up follows it, but is not sent.
    Item(ItemExtent),
}

/// What is at a position of the virtual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamPlace {
    /// This octet of the payload stream.
    Stream {
        /// Octets of the payload stream before it.
        offset_bytes: u32,
    },
    /// This octet of an item.
    Item {
        /// The item, by its place among the items of the message.
        index: usize,
        /// Octets of the item before it.
        offset_bytes: u32,
    },
    /// The round-up of an item: zero, and not sent.
    RoundUp {
        /// The item.
        index: usize,
    },
}

/// A payload stream and the items that were taken out of it: in order, disjoint, and within the stream.
/// [`Connection`](crate::v2::connection::Connection) checks this for a received message.
#[derive(Clone, Copy, Debug)]
pub struct VirtualStream<I> {
    stream_bytes: u32,
    items: I,
}

impl<I: Iterator<Item = ItemExtent> + Clone> VirtualStream<I> {
    /// A payload stream of so many octets, and its items.
    #[must_use]
    pub const fn new(stream_bytes: u32, items: I) -> Self {
        Self {
            stream_bytes,
            items,
        }
    }

    /// Octets of the message, round-up included.
    #[must_use]
    pub fn length_bytes(&self) -> u64 {
        let items: u64 = self
            .items
            .clone()
            .map(|item| rounded_up(item.length_bytes))
            .sum();
        u64::from(self.stream_bytes) + items
    }

    /// The message from its start to its end, piece by piece. Only an item may be empty.
    #[must_use]
    pub fn pieces(&self) -> StreamPieces<I> {
        StreamPieces {
            items: self.items.clone(),
            next_item: None,
            stream_bytes: self.stream_bytes,
            from_bytes: 0,
            items_bytes: 0,
        }
    }

    /// What is at `position`; `None` after the end.
    #[must_use]
    pub fn locate(&self, position: u32) -> Option<StreamPlace> {
        let position = u64::from(position);
        let mut items_bytes = 0_u64;
        for item in self.items.clone() {
            if position < u64::from(item.displacement) {
                break;
            }
            if position < item.end() {
                let index = item.index;
                let offset = position - u64::from(item.displacement);
                return Some(match u32::try_from(offset) {
                    Ok(offset_bytes) if offset_bytes < item.length_bytes => StreamPlace::Item {
                        index,
                        offset_bytes,
                    },
                    _ => StreamPlace::RoundUp { index },
                });
            }
            items_bytes += rounded_up(item.length_bytes);
        }
        let offset = position.checked_sub(items_bytes)?;
        let offset_bytes = u32::try_from(offset).ok()?;
        (offset_bytes < self.stream_bytes).then_some(StreamPlace::Stream { offset_bytes })
    }

    /// The position of an octet of the payload stream; `None` after its end.
    #[must_use]
    pub fn position_of(&self, stream_offset: u32) -> Option<u64> {
        if stream_offset >= self.stream_bytes {
            return None;
        }
        let mut position = u64::from(stream_offset);
        for item in self.items.clone() {
            if position < u64::from(item.displacement) {
                break;
            }
            position += rounded_up(item.length_bytes);
        }
        Some(position)
    }
}

/// The pieces of a [`VirtualStream`].
#[derive(Clone, Debug)]
pub struct StreamPieces<I> {
    items: I,
    /// The item that comes after the latest piece of the payload stream.
    next_item: Option<ItemExtent>,
    stream_bytes: u32,
    /// Octets of the payload stream that were returned.
    from_bytes: u32,
    /// Octets of the items that were returned, with round-up.
    items_bytes: u64,
}

impl<I: Iterator<Item = ItemExtent>> StreamPieces<I> {
    fn stream(&mut self, end: u32) -> Option<StreamPiece> {
        let from_bytes = self.from_bytes;
        let length_bytes = end.checked_sub(from_bytes).filter(|bytes| *bytes > 0)?;
        self.from_bytes = end;
        Some(StreamPiece::Stream {
            from_bytes,
            length_bytes,
        })
    }
}

impl<I: Iterator<Item = ItemExtent>> Iterator for StreamPieces<I> {
    type Item = StreamPiece;

    fn next(&mut self) -> Option<StreamPiece> {
        let Some(item) = self.next_item.take().or_else(|| self.items.next()) else {
            return self.stream(self.stream_bytes);
        };
        let cut = u64::from(item.displacement).saturating_sub(self.items_bytes);
        let cut = u32::try_from(cut).map_or(self.stream_bytes, |cut| cut.min(self.stream_bytes));
        if let Some(piece) = self.stream(cut) {
            self.next_item = Some(item);
            return Some(piece);
        }
        self.items_bytes += rounded_up(item.length_bytes);
        Some(StreamPiece::Item(item))
    }
}
