//! Files in registered memory. Their pages are parts of bulk buffers: the data of a WRITE stays in the
//! buffer in which it arrived, and a READ sends it from there.

use std::collections::VecDeque;

use rpcrdma_engine::BulkItem;
use rpcrdma_fabric::memory::{Lease, SharedLease};

use super::pages::{KeptPages, Page, Pages};

/// The most pages of a buffer: [`Run::free`] has one bit for each.
const PAGES_MAX: u32 = u64::BITS;

/// Buffers in stock for data that is copied: enough for a WRITE of 1 MiB, and more for its partial pages.
const STOCK_MAX: usize = 18;

/// A buffer with pages of files.
#[derive(Debug)]
struct Run {
    lease: SharedLease,
    /// One bit for each page: set if the page is in no file.
    free: u64,
}

/// Memory in pages that are parts of bulk buffers.
///
/// Buffers come in two ways. A buffer with the data of a WRITE is kept ([`Pages::keep`]); pages that the
/// data does not fill are free. Data that must be copied goes into buffers of the stock, which is refilled
/// before each call. A buffer without a page in a file is returned.
///
/// While a page is being sent, no page of its buffer is written, because sending shares the whole buffer.
#[derive(Debug)]
pub struct LeasedPages {
    page_bytes: usize,
    total: u64,
    used: u64,
    runs: Vec<Option<Run>>,
    free_numbers: Vec<u32>,
    /// The numbers of runs that may have free pages, each once.
    open: VecDeque<u32>,
    /// Whether a run is in `open`, by number.
    is_open: Vec<bool>,
    stock: Vec<SharedLease>,
    /// A buffer of zeroes, from which holes are sent.
    zeroes: Option<SharedLease>,
    /// The pool of the stock.
    own_pool: Option<u32>,
    /// Buffers of the stock's pool.
    own: Held,
    /// Buffers in which Sends placed data, which are of another pool.
    placed: Held,
}

/// The number of buffers of a pool that are held, and its limit.
#[derive(Clone, Copy, Debug)]
struct Held {
    now: u32,
    max: u32,
}

impl LeasedPages {
    /// Room for `space_bytes` bytes. Its pages have at least `page_bytes` bytes (a power of two), and are parts
    /// of buffers of `buffer_bytes` bytes. In addition it keeps at most `placed_max` of the buffers in which
    /// Sends placed data.
    #[must_use]
    pub fn new(space_bytes: u64, page_bytes: usize, buffer_bytes: u32, placed_max: u32) -> Self {
        let least = buffer_bytes.div_ceil(PAGES_MAX).next_power_of_two();
        let page_bytes = page_bytes.max(least as usize).next_power_of_two();
        let total = space_bytes / u64::try_from(page_bytes).unwrap_or(u64::MAX);
        Self {
            page_bytes,
            total,
            used: 0,
            runs: Vec::new(),
            free_numbers: Vec::new(),
            open: VecDeque::new(),
            is_open: Vec::new(),
            stock: Vec::with_capacity(STOCK_MAX),
            zeroes: None,
            own_pool: None,
            own: Held {
                now: 0,
                max: Self::buffers(space_bytes, buffer_bytes),
            },
            placed: Held {
                now: 0,
                max: placed_max,
            },
        }
    }

    /// The most bulk buffers that are held for `space_bytes` bytes. With these, a page is free as long as the
    /// space is not used up.
    #[must_use]
    pub fn buffers(space_bytes: u64, buffer_bytes: u32) -> u32 {
        let filled = space_bytes.div_ceil(buffer_bytes.max(1).into());
        let filled = u32::try_from(filled).unwrap_or(u32::MAX);
        // The stock, and the buffer of zeroes.
        let beside = u32::try_from(STOCK_MAX + 1).unwrap_or(u32::MAX);
        filled.saturating_add(beside)
    }

    fn pages_of(&self, lease: &SharedLease) -> u32 {
        let pages = lease.len() / self.page_bytes;
        u32::try_from(pages).unwrap_or(u32::MAX).min(PAGES_MAX)
    }

    fn held(&mut self, lease: &SharedLease) -> &mut Held {
        if self.own_pool == Some(lease.pool()) {
            &mut self.own
        } else {
            &mut self.placed
        }
    }

    /// Makes a run of a buffer that is held. Returns its number.
    fn open_run(&mut self, lease: SharedLease, free: u64) -> u32 {
        let run = Some(Run { lease, free });
        let number = match self.free_numbers.pop() {
            Some(number) => number,
            None => {
                self.runs.push(None);
                self.is_open.push(false);
                u32::try_from(self.runs.len() - 1).unwrap_or(u32::MAX)
            }
        };
        if let Some(place) = self.runs.get_mut(number as usize) {
            *place = run;
        }
        if free != 0 {
            self.list(number);
        }
        number
    }

    /// Adds a run to `open`, unless it is in it.
    fn list(&mut self, number: u32) {
        if let Some(is_open) = self.is_open.get_mut(number as usize)
            && !std::mem::replace(is_open, true)
        {
            self.open.push_back(number);
        }
    }

    fn unlist_first(&mut self) {
        let number = self.open.pop_front();
        let is_open = number.and_then(|number| self.is_open.get_mut(number as usize));
        if let Some(is_open) = is_open {
            *is_open = false;
        }
    }

    fn run(&self, page: &Page) -> Option<(&Run, u32)> {
        let (number, index) = (page.0 / PAGES_MAX, page.0 % PAGES_MAX);
        let run = self.runs.get(number as usize)?.as_ref()?;
        Some((run, index))
    }

    fn run_mut(&mut self, page: &Page) -> Option<(&mut Run, u32)> {
        let (number, index) = (page.0 / PAGES_MAX, page.0 % PAGES_MAX);
        let run = self.runs.get_mut(number as usize)?.as_mut()?;
        Some((run, index))
    }

    /// Puts a buffer without files into the stock, or returns it.
    fn retire(&mut self, lease: SharedLease) {
        let is_own = self.own_pool == Some(lease.pool());
        if is_own && self.stock.len() < STOCK_MAX && lease.is_alone() {
            return self.stock.push(lease);
        }
        self.held(&lease).now -= 1;
    }

    /// As [`Pages::take`], but without the limit of space. [`Pages::writable`] uses it, because it returns a
    /// page immediately afterwards.
    fn take_any(&mut self) -> Option<Page> {
        // One round over the open runs. Those that are being read stay in the queue.
        for _ in 0..self.open.len() {
            let number = *self.open.front()?;
            let run = self.runs.get_mut(number as usize)?.as_mut();
            match run.filter(|run| run.free != 0) {
                None => self.unlist_first(),
                Some(run) if run.lease.is_alone() => {
                    let index = run.free.trailing_zeros();
                    run.free &= run.free - 1;
                    self.used += 1;
                    return Some(Page(number * PAGES_MAX + index));
                }
                Some(_) => self.open.rotate_left(1),
            }
        }
        let lease = self.stock.pop()?;
        let free = low_bits(self.pages_of(&lease)) - 1;
        self.used += 1;
        Some(Page(self.open_run(lease, free) * PAGES_MAX))
    }

    /// The bytes of a page in a buffer that nobody else reads.
    fn own_bytes(&mut self, page: &Page) -> Option<&mut [u8]> {
        let page_bytes = self.page_bytes;
        let (run, index) = self.run_mut(page)?;
        let start = index as usize * page_bytes;
        run.lease.bytes_mut()?.get_mut(start..start + page_bytes)
    }
}

/// The lowest `count` bits.
fn low_bits(count: u32) -> u64 {
    match count {
        PAGES_MAX.. => u64::MAX,
        count => (1 << count) - 1,
    }
}

impl Pages for LeasedPages {
    fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    fn total(&self) -> u64 {
        self.total
    }

    fn free(&self) -> u64 {
        self.total.saturating_sub(self.used)
    }

    fn take(&mut self) -> Option<Page> {
        if self.free() == 0 {
            return None;
        }
        self.take_any()
    }

    fn give(&mut self, page: Page) {
        let page_bytes = self.page_bytes;
        let Some((run, index)) = self.run_mut(&page) else {
            return;
        };
        run.free |= 1 << index;
        let pages = u32::try_from(run.lease.len() / page_bytes).unwrap_or(PAGES_MAX);
        let is_empty = run.free == low_bits(pages);
        self.used -= 1;
        let number = page.0 / PAGES_MAX;
        if !is_empty {
            return self.list(number);
        }
        let place = self.runs.get_mut(number as usize);
        if let Some(run) = place.and_then(Option::take) {
            self.free_numbers.push(number);
            self.retire(run.lease);
        }
    }

    fn bytes(&self, page: &Page) -> &[u8] {
        let bytes = self.run(page).and_then(|(run, index)| {
            let start = index as usize * self.page_bytes;
            run.lease.get(start..start + self.page_bytes)
        });
        bytes.unwrap_or(&[])
    }

    fn writable(&mut self, page: &mut Page, keeps: bool) -> Option<&mut [u8]> {
        let (run, index) = self.run(page)?;
        if !run.lease.is_alone() {
            let page_bytes = u32::try_from(self.page_bytes).unwrap_or(u32::MAX);
            let former = run.lease.slice(index * page_bytes, page_bytes)?;
            // This is a page of another run, because this run is being read.
            let fresh = self.take_any()?;
            if keeps && let Some(space) = self.own_bytes(&fresh) {
                space.copy_from_slice(&former);
            }
            drop(former);
            self.give(std::mem::replace(page, fresh));
        }
        self.own_bytes(page)
    }

    fn keep(&mut self, lease: &SharedLease, offset: usize, pages: usize) -> Option<KeptPages> {
        let whole = lease.clone().whole();
        let all = self.pages_of(&whole);
        let count = u32::try_from(pages).ok()?;
        let first = u32::try_from(offset / self.page_bytes).ok()?;
        let end = first.checked_add(count).filter(|end| *end <= all)?;
        // A buffer that is less than half full is not kept: copying its data costs less than replacing the
        // buffer.
        let is_worth_it = 2 * count >= all && offset.is_multiple_of(self.page_bytes);
        if !is_worth_it || self.free() < count.into() || self.own_pool.is_none() {
            return None;
        }
        let held = self.held(lease);
        if held.now >= held.max {
            return None;
        }
        held.now += 1;
        self.used += u64::from(count);
        let free = low_bits(all) & !(low_bits(end) & !low_bits(first));
        let number = self.open_run(whole, free) * PAGES_MAX;
        Some(KeptPages(number + first..number + end))
    }

    fn share(
        &self,
        page: Option<&Page>,
        start: usize,
        bytes: usize,
        item: &mut BulkItem<SharedLease>,
    ) -> bool {
        let Ok(bytes) = u32::try_from(bytes) else {
            return false;
        };
        let last = item.last_mut();
        // The lease, the offset in it, and the offset with which it would extend the last part of the item.
        let place = match page {
            Some(page) => self.run(page).and_then(|(run, index)| {
                let offset = u32::try_from(index as usize * self.page_bytes + start).ok()?;
                Some((&run.lease, offset, offset))
            }),
            None => self.zeroes.as_ref().map(|zeroes| {
                let last = last.as_ref();
                let end = last.map_or(0, |last| last.offset() as usize + last.len());
                (zeroes, 0, u32::try_from(end).unwrap_or(u32::MAX))
            }),
        };
        let Some((lease, offset, behind)) = place else {
            return false;
        };
        if last.is_some_and(|last| last.extend(lease, behind, bytes)) {
            return true;
        }
        lease
            .slice(offset, bytes)
            .is_some_and(|slice| item.push(slice).is_ok())
    }

    fn stock(&mut self, take: &mut dyn FnMut() -> Option<Lease>) {
        while self.stock.len() < STOCK_MAX && self.own.now < self.own.max {
            let Some(mut lease) = take() else {
                return;
            };
            self.own.now += 1;
            if self.zeroes.is_none() {
                lease.fill(0);
                let zeroes = lease.share();
                self.own_pool = Some(zeroes.pool());
                self.zeroes = Some(zeroes);
            } else {
                self.stock.push(lease.share());
            }
        }
    }

    fn is_short(&self) -> bool {
        self.stock.is_empty() && self.own.now >= self.own.max
    }
}

#[cfg(test)]
mod tests;
