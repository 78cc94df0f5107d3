//! Items that stay in the stream of a reply to a call with chunk lists.

use crate::bulk::ReplyItems;
use crate::bulk::directed::ReplyResult;

/// Inserts attached results of a reply into its stream, each with its padding; `stays` says for a result number whether
/// it stays in the stream. Before, the stream has `stream_bytes` bytes at the start of `space`; afterwards it fills
/// `space`. Returns the bytes of the items.
pub(super) fn insert_items(
    space: &mut [u8],
    stream_bytes: usize,
    reply: &ReplyItems,
    stays: impl Fn(usize) -> bool,
) -> u64 {
    let mut copied_bytes = 0;
    // Backwards, so that a move does not overwrite bytes that still have to be moved.
    let (mut from, mut end) = (stream_bytes, space.len());
    let mut attached = reply.attached.iter().rev();
    let results = reply.results.iter().enumerate().rev();
    for (number, result) in results.filter(|(_, result)| result.is_attached) {
        let Some(item) = attached.next() else {
            break;
        };
        if !stays(number) {
            continue;
        }
        let offset = (result.stream_offset as usize).min(from);
        let item_bytes = item.len();
        let Some(item_end) = end.checked_sub(from - offset) else {
            break;
        };
        let Some(item_start) = item_end.checked_sub(item_bytes.next_multiple_of(4)) else {
            break;
        };
        space.copy_within(offset..from, item_end);
        if let Some(place) = space.get_mut(item_start..item_end) {
            let copied = item.copy_to(place);
            place.get_mut(copied..).unwrap_or(&mut []).fill(0);
            copied_bytes += copied as u64;
        }
        (from, end) = (offset, item_start);
    }
    debug_assert_eq!(from, end, "the stream has the room that its plan says");
    copied_bytes
}

/// The pieces of the stream before, between and behind such items, in order: one more than there are items.
#[derive(Clone)]
pub(crate) struct Pieces<'a> {
    stream: &'a [u8],
    items: std::slice::Iter<'a, ReplyResult>,
    /// Where the next piece begins; `None` behind the last.
    next: Option<usize>,
    padding_bytes: usize,
}

impl<'a> Pieces<'a> {
    /// The pieces of `stream`, in which the items of `results` are missing.
    pub(crate) fn new(stream: &'a [u8], results: &'a [ReplyResult]) -> Self {
        Self {
            stream,
            items: results.iter(),
            next: Some(0),
            padding_bytes: 0,
        }
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        let start = self.next?;
        let item = self.items.next();
        let end = item.map_or(self.stream.len(), |item| item.stream_offset as usize);
        let piece = Piece {
            padding_bytes: self.padding_bytes,
            bytes: self.stream.get(start..end).unwrap_or(&[]),
        };
        self.next = item.map(|_| end);
        self.padding_bytes = item.map_or(0, |item| {
            let bytes = item.bytes as usize;
            bytes.next_multiple_of(4) - bytes
        });
        Some(piece)
    }
}

/// A piece of the stream, with the padding of the item before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    padding_bytes: usize,
    bytes: &'a [u8],
}

impl Piece<'_> {
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.padding_bytes + self.bytes.len()).unwrap_or(u32::MAX)
    }

    /// Moves as much of it to `space` as fits. Returns how many bytes.
    pub(crate) fn copy_to(&mut self, space: &mut [u8]) -> u32 {
        let (padding, rest) = space.split_at_mut(self.padding_bytes.min(space.len()));
        padding.fill(0);
        let (now, later) = self.bytes.split_at(rest.len().min(self.bytes.len()));
        if let Some(place) = rest.get_mut(..now.len()) {
            place.copy_from_slice(now);
        }
        let copied = padding.len() + now.len();
        self.padding_bytes -= padding.len();
        self.bytes = later;
        u32::try_from(copied).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(stream_offset: u32, bytes: u32) -> ReplyResult {
        ReplyResult {
            request_position: 0,
            stream_offset,
            bytes,
            is_attached: true,
        }
    }

    #[test]
    fn pieces_are_the_stream_with_the_padding_of_items_before_them() {
        let stream: Vec<u8> = (1..=20).collect();
        let results = [result(8, 5), result(8, 4), result(20, 3)];
        let mut all = Vec::new();
        for mut piece in Pieces::new(&stream, &results) {
            let mut bytes = Vec::new();
            while piece.len() != 0 {
                let mut space = [0xff; 3];
                let count = piece.copy_to(&mut space) as usize;
                bytes.extend_from_slice(&space[..count]);
            }
            all.push(bytes);
        }
        let expected: [&[u8]; 4] = [
            &[1, 2, 3, 4, 5, 6, 7, 8],
            &[0, 0, 0],
            &[9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20],
            &[0],
        ];
        assert_eq!(all, expected);
    }
}
