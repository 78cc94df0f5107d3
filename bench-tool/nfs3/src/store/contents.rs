//! The bytes of a file: pages where something was written, holes elsewhere.

use std::collections::BTreeMap;

use rpcrdma_engine::BulkItem;
use rpcrdma_fabric::memory::SharedLease;

use super::pages::{Page, Pages, Piece};

/// The longest file, in bytes. Many clients have signed offsets of 64 bits.
pub const FILE_BYTES_MAX: u64 = i64::MAX.cast_unsigned();

/// The bytes of holes.
static ZEROES: [u8; 64 * 1024] = [0; 64 * 1024];

/// The bytes of a file. It does not own the memory of its pages, so set its size to zero before dropping
/// it.
#[derive(Debug, Default)]
pub(super) struct Contents {
    size_bytes: u64,
    /// Pages by their number in the file. The bytes of the last page after the end of the file are zero.
    pages: BTreeMap<u64, Page>,
}

impl Contents {
    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The number of its pages.
    pub(super) fn page_count(&self) -> usize {
        self.pages.len()
    }

    /// Whether the byte at `offset_bytes` has a page.
    pub(super) fn has_page(&self, page_bytes: usize, offset_bytes: u64) -> bool {
        self.pages.contains_key(&split(offset_bytes, page_bytes).0)
    }

    /// The extents of at most `count_bytes` bytes from `offset_bytes` on.
    fn extents(
        &self,
        page_bytes: usize,
        offset_bytes: u64,
        count_bytes: u32,
    ) -> impl Iterator<Item = Extent<'_>> {
        let end = offset_bytes
            .saturating_add(u64::from(count_bytes))
            .min(self.size_bytes);
        let mut at = offset_bytes;
        std::iter::from_fn(move || {
            let left = end.checked_sub(at).filter(|left| *left > 0)?;
            let (number, start) = split(at, page_bytes);
            let page = self.pages.get(&number);
            let bytes = usize::try_from(left).unwrap_or(usize::MAX);
            let bytes = bytes.min(page_bytes - start);
            at += to_u64(bytes);
            Some(Extent { page, start, bytes })
        })
    }

    /// The pieces of at most `count_bytes` bytes from `offset_bytes` on.
    pub(super) fn pieces<'a, P: Pages>(
        &'a self,
        memory: &'a P,
        offset_bytes: u64,
        count_bytes: u32,
    ) -> impl Iterator<Item = &'a [u8]> {
        let extents = self.extents(memory.page_bytes(), offset_bytes, count_bytes);
        extents.flat_map(|extent| {
            let (start, end) = (extent.start, extent.start + extent.bytes);
            let (bytes, mut left) = match extent.page {
                Some(page) => (memory.bytes(page).get(start..end), 0),
                None => (None, extent.bytes),
            };
            // A page may be longer than `ZEROES`.
            let zeroes = std::iter::from_fn(move || {
                let count = left.min(ZEROES.len());
                left -= count;
                ZEROES.get(..count).filter(|zeroes| !zeroes.is_empty())
            });
            bytes.into_iter().chain(zeroes)
        })
    }

    /// The same bytes as an item whose pieces are shared with this file; `None` if the memory does not support
    /// that.
    pub(super) fn shared<P: Pages>(
        &self,
        memory: &P,
        offset_bytes: u64,
        count_bytes: u32,
    ) -> Option<BulkItem<SharedLease>> {
        let mut item = BulkItem::new();
        let mut extents = self.extents(memory.page_bytes(), offset_bytes, count_bytes);
        let is_shared = extents.all(|it| memory.share(it.page, it.start, it.bytes, &mut item));
        is_shared.then_some(item)
    }

    /// Writes the pieces one after the other, from `offset_bytes` on. Returns the bytes written: fewer than
    /// all if memory runs out. The caller has checked that they end before [`FILE_BYTES_MAX`].
    pub(super) fn write<'a, P: Pages>(
        &mut self,
        memory: &mut P,
        offset_bytes: u64,
        pieces: impl Iterator<Item = impl Into<Piece<'a>>>,
    ) -> u64 {
        let page_bytes = memory.page_bytes();
        let mut at = offset_bytes;
        'pieces: for piece in pieces {
            let mut piece = piece.into();
            while !piece.bytes.is_empty() {
                let (number, start) = split(at, page_bytes);
                let kept = if start == 0 {
                    self.keep(memory, number, &piece)
                } else {
                    0
                };
                let count = if kept != 0 {
                    kept
                } else {
                    let count = piece.bytes.len().min(page_bytes - start);
                    let Some(space) = self.space(memory, number, start, count) else {
                        break 'pieces;
                    };
                    let Some(bytes) = piece.bytes.get(..space.len()) else {
                        break 'pieces;
                    };
                    space.copy_from_slice(bytes);
                    count
                };
                at += to_u64(count);
                piece = piece.behind(count);
            }
        }
        if at > offset_bytes {
            self.size_bytes = self.size_bytes.max(at);
        }
        at - offset_bytes
    }

    /// Takes the whole pages of a piece over without a copy, as pages `number` and following. Returns their
    /// bytes; 0 if the memory does not support that.
    fn keep<P: Pages>(&mut self, memory: &mut P, number: u64, piece: &Piece<'_>) -> usize {
        let page_bytes = memory.page_bytes();
        let pages = piece.bytes.len() / page_bytes;
        let Some((lease, offset)) = piece.lies_in.filter(|_| pages > 0) else {
            return 0;
        };
        let Some(kept) = memory.keep(lease, offset, pages) else {
            return 0;
        };
        for (page, number) in kept.zip(number..) {
            if let Some(former) = self.pages.insert(number, page) {
                memory.give(former);
            }
        }
        pages * page_bytes
    }

    /// `count` bytes of page `number` from `start` on, to be written. A missing page is taken, and is zero
    /// around these bytes.
    fn space<'a, P: Pages>(
        &mut self,
        memory: &'a mut P,
        number: u64,
        start: usize,
        count: usize,
    ) -> Option<&'a mut [u8]> {
        use std::collections::btree_map::Entry;
        let range = start..start + count;
        match self.pages.entry(number) {
            Entry::Occupied(there) => {
                let keeps = count < memory.page_bytes();
                memory.writable(there.into_mut(), keeps)?.get_mut(range)
            }
            Entry::Vacant(hole) => {
                let page = hole.insert(memory.take()?);
                let bytes = memory.writable(page, false)?;
                bytes.get_mut(..start)?.fill(0);
                bytes.get_mut(range.end..)?.fill(0);
                bytes.get_mut(range)
            }
        }
    }

    /// Sets the size: truncates the file, or appends a hole. Returns false, and changes nothing, when it
    /// needs a copy of a page that is being sent and no memory is free. Truncating at the start of a page
    /// needs none.
    pub(super) fn set_size<P: Pages>(&mut self, memory: &mut P, size_bytes: u64) -> bool {
        if size_bytes < self.size_bytes {
            let (number, start) = split(size_bytes, memory.page_bytes());
            if let Some(page) = self.pages.get_mut(&number).filter(|_| start > 0) {
                let Some(bytes) = memory.writable(page, true) else {
                    return false;
                };
                bytes.get_mut(start..).unwrap_or(&mut []).fill(0);
            }
            let first_gone = if start == 0 { number } else { number + 1 };
            for page in self.pages.split_off(&first_gone).into_values() {
                memory.give(page);
            }
        }
        self.size_bytes = size_bytes;
        true
    }
}

/// A range of one page, or of a hole.
struct Extent<'a> {
    page: Option<&'a Page>,
    start: usize,
    bytes: usize,
}

/// The number of the page of a byte, and the offset of the byte in it.
fn split(at: u64, page_bytes: usize) -> (u64, usize) {
    let page_bytes = to_u64(page_bytes).max(1);
    let start = usize::try_from(at % page_bytes).unwrap_or(usize::MAX);
    (at / page_bytes, start)
}

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::pages::HeapPages;
    use super::*;

    fn read(contents: &Contents, memory: &HeapPages, offset: u64, count: u32) -> Vec<u8> {
        contents
            .pieces(memory, offset, count)
            .flatten()
            .copied()
            .collect()
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(u16, Vec<Vec<u8>>),
        SetSize(u16),
        Read(u16, u16),
    }

    fn step() -> impl Strategy<Value = Step> {
        let piece = prop::collection::vec(any::<u8>(), 0..90);
        prop_oneof![
            (0_u16..1000, prop::collection::vec(piece, 0..4))
                .prop_map(|(at, pieces)| Step::Write(at, pieces)),
            (0_u16..1200).prop_map(Step::SetSize),
            (0_u16..1200, 0_u16..1200).prop_map(|(at, count)| Step::Read(at, count)),
        ]
    }

    proptest! {
        #[test]
        fn a_file_is_what_was_written_and_zeroes(steps in prop::collection::vec(step(), 1..60)) {
            let mut memory = HeapPages::new(64 * 32, 64);
            let mut contents = Contents::default();
            let mut model: Vec<u8> = Vec::new();
            for step in steps {
                match step {
                    Step::Write(at, pieces) => {
                        let bytes = pieces.concat();
                        let slices = pieces.iter().map(|piece| &piece[..]);
                        let written = contents.write(&mut memory, u64::from(at), slices);
                        prop_assert_eq!(written, to_u64(bytes.len()));
                        let end = usize::from(at) + bytes.len();
                        if !bytes.is_empty() {
                            model.resize(model.len().max(end), 0);
                            model[usize::from(at)..end].copy_from_slice(&bytes);
                        }
                    }
                    Step::SetSize(size) => {
                        prop_assert!(contents.set_size(&mut memory, u64::from(size)));
                        model.resize(usize::from(size), 0);
                    }
                    Step::Read(at, count) => {
                        let start = usize::from(at).min(model.len());
                        let end = (start + usize::from(count)).min(model.len());
                        prop_assert_eq!(
                            read(&contents, &memory, u64::from(at), u32::from(count)),
                            &model[start..end]
                        );
                    }
                }
                prop_assert_eq!(contents.size_bytes(), to_u64(model.len()));
                let pages = to_u64(contents.page_count());
                prop_assert_eq!(memory.free() + pages, memory.total());
            }
            contents.set_size(&mut memory, 0);
            prop_assert_eq!(memory.free(), memory.total());
        }
    }

    #[test]
    fn holes_cost_nothing_and_a_full_memory_makes_short_writes() {
        let mut memory = HeapPages::new(2 * 64, 64);
        let mut contents = Contents::default();
        let far = 1 << 50;
        assert_eq!(
            contents.write(&mut memory, far, [&[7; 10][..]].into_iter()),
            10
        );
        assert_eq!(contents.page_count(), 1);
        assert_eq!(
            read(&contents, &memory, far - 70, 1000),
            [vec![0; 70], vec![7; 10]].concat()
        );
        assert_eq!(
            contents.write(&mut memory, 0, [&[1; 100][..]].into_iter()),
            64
        );
        assert_eq!(
            contents.write(&mut memory, 64, [&[1; 1][..]].into_iter()),
            0
        );
        assert_eq!(contents.size_bytes(), far + 10);
    }
}
