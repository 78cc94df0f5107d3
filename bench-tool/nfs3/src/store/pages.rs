//! The memory that files are made of.

use std::ops::Range;

use rpcrdma_engine::BulkItem;
use rpcrdma_fabric::memory::{Lease, SharedLease};

/// Memory in pages of one size, taken and given back one at a time.
///
/// The store asks for nothing else, so that the same store lies in ordinary memory, or in memory that
/// an RDMA device may reach.
pub trait Pages: Send {
    /// Bytes of a page: a power of two.
    fn page_bytes(&self) -> usize;

    /// Pages that there may be in all.
    fn total(&self) -> u64;

    /// Pages that can still be taken.
    fn free(&self) -> u64;

    /// A page, which can be written; there may be anything in it. `None` when none is left, or none at
    /// the moment.
    fn take(&mut self) -> Option<Page>;

    /// Takes a page back.
    fn give(&mut self, page: Page);

    /// Its bytes; none of a page that was never taken.
    fn bytes(&self, page: &Page) -> &[u8];

    /// Its bytes, to be written. A page that others read stays as it is for them: another takes its
    /// place, with the same bytes if this `keeps` any of them. `None`, and it is as it was, when there
    /// is none.
    fn writable(&mut self, page: &mut Page, keeps: bool) -> Option<&mut [u8]>;

    /// Keeps `pages` pages of the buffer of `lease`, from `offset` on in it, as they are; `None` where that cannot be, or
    /// is not worth it.
    fn keep(&mut self, _lease: &SharedLease, _offset: usize, _pages: usize) -> Option<KeptPages> {
        None
    }

    /// Shares `bytes` bytes from `start` on of a page, or of a hole, as the next of an item. False where
    /// that cannot be.
    fn share(
        &self,
        _page: Option<&Page>,
        _start: usize,
        _bytes: usize,
        _item: &mut BulkItem<SharedLease>,
    ) -> bool {
        false
    }

    /// Takes buffers that pages can be made of, as far as there is need.
    fn stock(&mut self, _take: &mut dyn FnMut() -> Option<Lease>) {}

    /// Whether all memory is taken, so that pages which others read may be missed.
    fn is_short(&self) -> bool {
        false
    }
}

/// A page, owned by who took it.
#[derive(Debug, PartialEq, Eq)]
pub struct Page(pub(super) u32);

/// Pages that were kept, in their order.
#[derive(Debug)]
pub struct KeptPages(pub(super) Range<u32>);

impl Iterator for KeptPages {
    type Item = Page;

    fn next(&mut self) -> Option<Page> {
        self.0.next().map(Page)
    }
}

/// Bytes that are to be written, and where they lie if that can be kept.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// What they lie in, and the offset in its buffer.
    pub lies_in: Option<(&'a SharedLease, usize)>,
}

impl<'a> Piece<'a> {
    /// The first `count` bytes, or all where it has fewer.
    pub(crate) fn first(self, count: usize) -> Self {
        Self {
            bytes: self.bytes.get(..count).unwrap_or(self.bytes),
            ..self
        }
    }

    /// Without the first `count` bytes.
    pub(super) fn behind(self, count: usize) -> Self {
        Self {
            bytes: self.bytes.get(count..).unwrap_or(&[]),
            lies_in: self.lies_in.map(|(lease, offset)| (lease, offset + count)),
        }
    }
}

impl<'a> From<&'a [u8]> for Piece<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            lies_in: None,
        }
    }
}

/// Bytes that are asked of the system at a time.
const BLOCK_BYTES: usize = 16 << 20;

/// Ordinary memory. The system is asked for it as it is needed; it is kept once it was used.
#[derive(Debug)]
pub struct HeapPages {
    page_bytes: usize,
    total: u32,
    blocks: Vec<Box<[u8]>>,
    /// The first page that was never taken: it and all behind it are zeroes.
    fresh: u32,
    /// Pages that were given back; they hold what was written.
    used: Vec<Page>,
}

impl HeapPages {
    /// Room for `space_bytes`, rounded down to whole pages of `page_bytes`, a power of two up to
    /// 16 MiB. There are at most 2^32 - 1 pages.
    #[must_use]
    pub fn new(space_bytes: u64, page_bytes: usize) -> Self {
        let page_bytes = page_bytes.next_power_of_two().min(BLOCK_BYTES);
        let total = space_bytes / u64::try_from(page_bytes).unwrap_or(u64::MAX);
        Self {
            page_bytes,
            total: u32::try_from(total).unwrap_or(u32::MAX),
            blocks: Vec::new(),
            fresh: 0,
            used: Vec::new(),
        }
    }

    /// Where a page lies: its block, and its bytes there.
    fn place(&self, page: &Page) -> (usize, std::ops::Range<usize>) {
        let at = page.0 as usize * self.page_bytes;
        let start = at % BLOCK_BYTES;
        (at / BLOCK_BYTES, start..start + self.page_bytes)
    }
}

impl Pages for HeapPages {
    fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    fn total(&self) -> u64 {
        u64::from(self.total)
    }

    fn free(&self) -> u64 {
        let used = u64::try_from(self.used.len()).unwrap_or(u64::MAX);
        u64::from(self.total - self.fresh).saturating_add(used)
    }

    fn take(&mut self) -> Option<Page> {
        if let Some(page) = self.used.pop() {
            return Some(page);
        }
        if self.fresh == self.total {
            return None;
        }
        let page = Page(self.fresh);
        if self.place(&page).0 == self.blocks.len() {
            self.blocks.push(vec![0; BLOCK_BYTES].into_boxed_slice());
        }
        self.fresh += 1;
        Some(page)
    }

    fn give(&mut self, page: Page) {
        self.used.push(page);
    }

    fn bytes(&self, page: &Page) -> &[u8] {
        let (block, range) = self.place(page);
        let block = self.blocks.get(block);
        block.and_then(|block| block.get(range)).unwrap_or(&[])
    }

    fn writable(&mut self, page: &mut Page, _keeps: bool) -> Option<&mut [u8]> {
        let (block, range) = self.place(page);
        self.blocks.get_mut(block)?.get_mut(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pages_can_be_taken_and_written_and_given_back() {
        let mut pages = HeapPages::new(3 * 4096 + 100, 4096);
        assert_eq!((pages.total(), pages.free()), (3, 3));
        let mut taken: Vec<Page> = std::iter::from_fn(|| pages.take()).collect();
        assert_eq!((taken.len(), pages.free()), (3, 0));
        for (page, byte) in taken.iter_mut().zip(1..) {
            pages.writable(page, false).unwrap().fill(byte);
        }
        for (page, byte) in taken.iter().zip(1..) {
            assert_eq!(pages.bytes(page), [byte; 4096]);
        }
        taken.into_iter().for_each(|page| pages.give(page));
        assert_eq!(pages.free(), 3);
        assert!(pages.take().is_some());
    }
}
