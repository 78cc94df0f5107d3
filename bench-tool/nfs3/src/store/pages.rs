//! The memory of files.

use std::ops::Range;

use rpcrdma_engine::BulkItem;
use rpcrdma_fabric::memory::{Lease, SharedLease};

/// Memory in pages of one size, which are taken and returned one at a time.
///
/// The store uses only this interface, so that it can be in ordinary memory, or in memory that an RDMA
/// device accesses.
pub trait Pages: Send {
    /// The size of a page in bytes, a power of two.
    fn page_bytes(&self) -> usize;

    /// The number of all pages.
    fn total(&self) -> u64;

    /// The number of pages that can still be taken.
    fn free(&self) -> u64;

    /// Takes a page, which can be written and whose bytes are arbitrary. `None` when none is left, or none
    /// at the moment.
    fn take(&mut self) -> Option<Page>;

    /// Returns a page.
    fn give(&mut self, page: Page);

    /// The bytes of a page; empty for a page that was never taken.
    fn bytes(&self, page: &Page) -> &[u8];

    /// The bytes of a page, to be written. If others are reading the page, a new page replaces it here, with
    /// a copy of its bytes if the caller `keeps` any of them. `None`, and no change, when no page is free.
    fn writable(&mut self, page: &mut Page, keeps: bool) -> Option<&mut [u8]>;

    /// Takes `pages` pages of the buffer of `lease` over without a copy, from `offset` of the buffer on. `None` if this is
    /// not supported or not worth it.
    fn keep(&mut self, _lease: &SharedLease, _offset: usize, _pages: usize) -> Option<KeptPages> {
        None
    }

    /// Appends `bytes` bytes of a page, or of a hole, from `start` on to an item, without a copy. Returns
    /// false if this is not supported.
    fn share(
        &self,
        _page: Option<&Page>,
        _start: usize,
        _bytes: usize,
        _item: &mut BulkItem<SharedLease>,
    ) -> bool {
        false
    }

    /// Takes buffers for pages, as many as are needed.
    fn stock(&mut self, _take: &mut dyn FnMut() -> Option<Lease>) {}

    /// Whether all memory is taken, so that the pages which others read are needed back.
    fn is_short(&self) -> bool {
        false
    }
}

/// A page. Its holder owns it.
#[derive(Debug, PartialEq, Eq)]
pub struct Page(pub(super) u32);

/// Pages that [`Pages::keep`] took over, in order.
#[derive(Debug)]
pub struct KeptPages(pub(super) Range<u32>);

impl Iterator for KeptPages {
    type Item = Page;

    fn next(&mut self) -> Option<Page> {
        self.0.next().map(Page)
    }
}

/// Bytes to be written, and their buffer if it can be kept.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// The lease of the bytes, and their offset in its buffer.
    pub lies_in: Option<(&'a SharedLease, usize)>,
}

impl<'a> Piece<'a> {
    /// The first `count` bytes, or all if it has fewer.
    pub(crate) fn first(self, count: usize) -> Self {
        Self {
            bytes: self.bytes.get(..count).unwrap_or(self.bytes),
            ..self
        }
    }

    /// The bytes after the first `count`.
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

/// The bytes that are allocated at a time.
const BLOCK_BYTES: usize = 16 << 20;

/// Ordinary memory. It is allocated when it is needed, and not released afterwards.
#[derive(Debug)]
pub struct HeapPages {
    page_bytes: usize,
    total: u32,
    blocks: Vec<Box<[u8]>>,
    /// The first page that was never taken. It and the following pages are zero.
    fresh: u32,
    /// Pages that were returned. They have their old bytes.
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

    /// The block of a page, and the range of its bytes there.
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
