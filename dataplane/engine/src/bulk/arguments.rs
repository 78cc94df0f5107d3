//! The bulk items of a peer's call, in the form in which its service gets them.

use rpcrdma_fabric::memory::Lease;

use super::BulkItem;

/// An item of a call that was taken out of its stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ArgumentItem {
    /// Its position in the whole RPC message with all items, in bytes.
    pub(crate) position: u32,
    /// Bytes of the argument stream before it, other items not counted.
    pub(crate) args_offset: usize,
    pub(crate) bytes: u32,
    /// Its pieces: the first, and how many.
    pub(crate) first_part: usize,
    pub(crate) parts: usize,
}

/// The bulk items of a call, each of which the service may take and keep.
#[derive(Debug)]
pub struct BulkArguments<'a> {
    pub(crate) items: &'a mut [ArgumentItem],
    pub(crate) leases: &'a mut [Option<Lease>],
    pub(crate) is_version_1: bool,
}

/// A piece of the whole argument stream: bytes of the stream as it was sent, or of an item at its place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamPiece<'a> {
    /// Bytes of the stream.
    Stream(&'a [u8]),
    /// Bytes of an item; its padding is not among the pieces.
    Item {
        /// Which item.
        index: usize,
        /// Its bytes, or the next of them.
        bytes: &'a [u8],
    },
}

impl BulkArguments<'_> {
    /// The number of items.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether all arguments are in the stream.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// How many bytes of the argument stream come before item `index`, other items not counted.
    #[must_use]
    pub fn args_offset(&self, index: usize) -> Option<usize> {
        self.items.get(index).map(|item| item.args_offset)
    }

    /// The bytes of item `index`, whether it was taken or not.
    #[must_use]
    pub fn bytes(&self, index: usize) -> Option<usize> {
        self.items.get(index).map(|item| item.bytes as usize)
    }

    /// Whether item `index` is an opaque of `bytes` bytes, as the stream before it counts them. In
    /// version 1 a requester may send its round-up with it (RFC 8166 section 3.4.5.2): then the
    /// item's pieces have up to three more bytes, to be ignored.
    #[must_use]
    pub fn is_of(&self, index: usize, bytes: usize) -> bool {
        let is_version_1 = self.is_version_1;
        self.bytes(index)
            .is_some_and(|there| is_opaque_of(there, bytes, is_version_1))
    }

    /// The pieces of item `index`; none once it was taken.
    pub fn parts(&self, index: usize) -> impl Iterator<Item = &[u8]> {
        self.leases_of(index).iter().flatten().map(|part| &**part)
    }

    /// Takes item `index` out of the call, to keep it. `None` when it was taken already, has no pieces, or has more
    /// than [`super::ITEM_PARTS_MAX`].
    pub fn take(&mut self, index: usize) -> Option<BulkItem> {
        let item = self.items.get(index)?;
        let range = item.first_part..item.first_part + item.parts;
        take_parts(self.leases.get_mut(range)?)
    }

    /// Iterates over the items, in order. Each view borrows only the pieces of its item: so items can be read or taken
    /// while other views exist.
    pub fn split(&mut self) -> ArgumentViews<'_> {
        ArgumentViews {
            items: self.items.iter(),
            leases: self.leases,
            is_version_1: self.is_version_1,
        }
    }

    /// Walks the argument stream `args` with the items in their places.
    pub fn stream<'s>(&'s self, args: &'s [u8]) -> impl Iterator<Item = StreamPiece<'s>> {
        let mut at = 0;
        let before = self
            .items
            .iter()
            .enumerate()
            .flat_map(move |(index, item)| {
                let piece = args.get(at..item.args_offset).unwrap_or(&[]);
                at = item.args_offset;
                let parts = self.parts(index);
                let parts = parts.map(move |bytes| StreamPiece::Item { index, bytes });
                std::iter::once(StreamPiece::Stream(piece)).chain(parts)
            });
        let rest = self.items.last().map_or(0, |item| item.args_offset);
        let rest = args.get(rest..).unwrap_or(&[]);
        before
            .chain(std::iter::once(StreamPiece::Stream(rest)))
            .filter(|piece| !matches!(piece, StreamPiece::Stream([])))
    }

    fn leases_of(&self, index: usize) -> &[Option<Lease>] {
        self.items
            .get(index)
            .and_then(|item| {
                self.leases
                    .get(item.first_part..item.first_part + item.parts)
            })
            .unwrap_or(&[])
    }
}

/// The items of a call, each with its own pieces ([`BulkArguments::split`]).
#[derive(Debug, Default)]
pub struct ArgumentViews<'a> {
    items: std::slice::Iter<'a, ArgumentItem>,
    /// The pieces of the items that are left, in the order of the items.
    leases: &'a mut [Option<Lease>],
    is_version_1: bool,
}

impl ArgumentViews<'_> {
    /// [`BulkArguments::args_offset`] of the next item; `None` after the last.
    #[must_use]
    pub fn next_args_offset(&self) -> Option<usize> {
        self.items.as_slice().first().map(|item| item.args_offset)
    }
}

impl<'a> Iterator for ArgumentViews<'a> {
    type Item = ArgumentView<'a>;

    fn next(&mut self) -> Option<ArgumentView<'a>> {
        let item = self.items.next()?;
        let leases = std::mem::take(&mut self.leases);
        let (leases, rest) = leases.split_at_mut_checked(item.parts)?;
        self.leases = rest;
        Some(ArgumentView {
            bytes: item.bytes as usize,
            leases,
            is_version_1: self.is_version_1,
        })
    }
}

/// One item of a call, with access to its pieces.
#[derive(Debug)]
pub struct ArgumentView<'a> {
    bytes: usize,
    leases: &'a mut [Option<Lease>],
    is_version_1: bool,
}

impl ArgumentView<'_> {
    /// As [`BulkArguments::is_of`].
    #[must_use]
    pub fn is_of(&self, bytes: usize) -> bool {
        is_opaque_of(self.bytes, bytes, self.is_version_1)
    }

    /// Its pieces; none if it was taken before.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.leases.iter().flatten().map(|part| &**part)
    }

    /// Takes the item out of the call, to keep it.
    ///
    /// # Errors
    /// The view, unchanged, in the cases in which [`BulkArguments::take`] returns `None`.
    pub fn take(self) -> Result<BulkItem, Self> {
        take_parts(self.leases).ok_or(self)
    }
}

fn is_opaque_of(item_bytes: usize, bytes: usize, is_version_1: bool) -> bool {
    item_bytes == bytes || (is_version_1 && item_bytes == bytes.next_multiple_of(4))
}

fn take_parts(leases: &mut [Option<Lease>]) -> Option<BulkItem> {
    let is_there = leases.iter().all(Option::is_some) && leases.len() <= super::ITEM_PARTS_MAX;
    // All pieces or none: a service cannot use a part of an item.
    if !is_there || leases.is_empty() {
        return None;
    }
    let mut taken = BulkItem::new();
    for part in leases.iter_mut().filter_map(Option::take) {
        // It fits: there are at most ITEM_PARTS_MAX leases.
        let _ = taken.push(part);
    }
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_up_is_part_of_an_item_in_version_1_alone() {
        let length_of = |is_version_1, item_bytes: u32, bytes| {
            let mut items = [ArgumentItem {
                bytes: item_bytes,
                ..ArgumentItem::default()
            }];
            let arguments = BulkArguments {
                items: &mut items,
                leases: &mut [],
                is_version_1,
            };
            assert!(!arguments.is_of(1, bytes), "there is one item");
            arguments.is_of(0, bytes)
        };
        for is_version_1 in [false, true] {
            assert!(length_of(is_version_1, 5, 5));
            assert_eq!(length_of(is_version_1, 8, 5), is_version_1);
            for item_bytes in [4, 6, 7, 9, 12] {
                assert!(!length_of(is_version_1, item_bytes, 5), "{item_bytes}");
            }
        }
    }
}
