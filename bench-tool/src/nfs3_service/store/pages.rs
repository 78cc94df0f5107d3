//! The memory that files are made of.

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

    /// A page of zeroes; `None` when none is left.
    fn take(&mut self) -> Option<Page>;

    /// Takes a page back.
    fn give(&mut self, page: Page);

    /// Its bytes; none of a page that was never taken.
    fn bytes(&self, page: &Page) -> &[u8];

    /// Its bytes, to be written.
    fn bytes_mut(&mut self, page: &Page) -> &mut [u8];
}

/// A page, owned by who took it.
#[derive(Debug, PartialEq, Eq)]
pub struct Page(u32);

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
            self.bytes_mut(&page).fill(0);
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

    fn bytes_mut(&mut self, page: &Page) -> &mut [u8] {
        let (block, range) = self.place(page);
        let block = self.blocks.get_mut(block);
        block
            .and_then(|block| block.get_mut(range))
            .unwrap_or(&mut [])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zeroes_whenever_they_are_taken() {
        let mut pages = HeapPages::new(3 * 4096 + 100, 4096);
        assert_eq!((pages.total(), pages.free()), (3, 3));
        let taken: Vec<Page> = std::iter::from_fn(|| pages.take()).collect();
        assert_eq!((taken.len(), pages.free()), (3, 0));
        for page in &taken {
            assert_eq!(pages.bytes(page), [0; 4096]);
            pages.bytes_mut(page).fill(7);
        }
        taken.into_iter().for_each(|page| pages.give(page));
        assert_eq!(pages.free(), 3);
        let again = pages.take().unwrap();
        assert_eq!(pages.bytes(&again), [0; 4096]);
    }
}
