//! The bulk buffers of a core, and where each of them belongs when the port gives it back.

use std::collections::VecDeque;

use rpcrdma_fabric::memory::{Buffer, Lease, Pool, SharedLease, Views};

use super::Piece;

/// Where a buffer that the port gives back belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Home {
    /// To the pool.
    #[default]
    Pool,
    /// To a part of a call of ours, which a window exposed.
    Call { slot: u32, part: u16 },
    /// To a part of a reply that is to be written to more than one segment.
    Reply { slot: u32, part: u16 },
    /// To a piece of an item in the transmission group of a call of ours.
    CallGroup { slot: u32, part: u16 },
    /// To a piece of an item in the transmission group of a reply.
    ReplyGroup { slot: u32, part: u16 },
    /// To the pool, which keeps it for a resend of the reply of this number until the buffer is needed elsewhere.
    Kept { reply: u32 },
}

/// In place of an index: the buffer is of another pool.
pub(crate) const NO_INDEX: u32 = u32::MAX;

/// The buffer was given up for other work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GivenUp;

/// Dropped leases taken back before a buffer is taken.
const RECLAIMED_MAX: usize = 16;

/// Registered, page-aligned buffers of one size, and views: tokens with which the core sends bytes that the application
/// shares, and uses memory of the application. Indexes of views follow those of the buffers.
#[derive(Debug)]
pub(crate) struct BulkPool {
    pool: Pool,
    views: Views,
    homes: Box<[Home]>,
    /// Buffers that only calls of peers may take. Without them two cores that call each other, each with all of its
    /// buffers, would wait for each other until their calls time out.
    kept_back: usize,
    /// Buffers kept to send a reply again, by index.
    kept: Box<[Option<Buffer>]>,
    /// The indexes of kept buffers, in the order in which they are given up: oldest first.
    kept_order: VecDeque<u32>,
    /// How many of the kept buffers are views.
    kept_views: usize,
}

impl BulkPool {
    /// Buffers of `pool`, and `views` tokens for shared bytes. `for_calls` of the buffers serve calls; the application
    /// may keep the others for long.
    pub(crate) fn new(pool: Pool, for_calls: u32, views: u32) -> Self {
        let buffers = pool.shape().buffers as usize;
        let views = Views::new(views, pool.shape().buffers);
        let tokens = buffers + views.total();
        Self {
            pool,
            homes: vec![Home::Pool; tokens].into_boxed_slice(),
            // As many as the longest item of a peer's call has; a quarter of a small pool, so that
            // calls of ours can still be made.
            kept_back: (for_calls as usize / 4).min(super::ITEM_PARTS_MAX),
            kept: (0..tokens).map(|_| None).collect(),
            kept_order: VecDeque::with_capacity(tokens),
            kept_views: 0,
            views,
        }
    }

    #[inline]
    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.pool.shape().buffer_bytes
    }

    /// Buffers that `bytes` take.
    pub(crate) fn buffers_for(&self, bytes: u32) -> usize {
        bytes.div_ceil(self.buffer_bytes().max(1)) as usize
    }

    /// How many buffers there are, in use or not.
    pub(crate) fn total(&self) -> usize {
        self.pool.shape().buffers as usize
    }

    /// Buffers that can be taken: free ones, those of dropped leases, and kept ones that are given up on demand.
    pub(crate) fn available(&mut self) -> usize {
        self.pool.reclaim(self.total());
        self.level()
    }

    /// As [`BulkPool::available`], without leases that were dropped since the last reclaim.
    pub(crate) fn level(&self) -> usize {
        self.pool.available() + self.kept_order.len() - self.kept_views
    }

    /// Whether a call of a peer can have `count` buffers.
    pub(crate) fn has(&mut self, count: usize) -> bool {
        // Cheap steps first: a bounded reclaim, then a full one, then the views of kept replies, which
        // cannot be sent again after that.
        self.pool.reclaim(RECLAIMED_MAX);
        self.level() >= count || self.available() >= count || self.gains_by_views(count)
    }

    /// Gives up the kept views, which may hold the last share of a buffer. Whether there are `count` buffers then.
    #[cold]
    fn gains_by_views(&mut self, count: usize) -> bool {
        if self.kept_views == 0 {
            return false;
        }
        self.give_up_views();
        self.available() >= count
    }

    /// The most buffers that a call of ours can ever have.
    pub(crate) fn call_buffers_max(&self) -> usize {
        self.total() - self.kept_back
    }

    /// Whether a call of ours, or the application, can have `count` buffers.
    #[inline(always)]
    pub(crate) fn may_give(&mut self, count: usize) -> bool {
        count == 0 || self.has(count + self.kept_back)
    }

    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<Buffer> {
        let buffer = self.pool.take();
        if buffer.is_none() && self.pool.reclaim(RECLAIMED_MAX) != 0 {
            return self.pool.take();
        }
        buffer.or_else(|| self.give_up_kept())
    }

    /// Keeps a buffer for the reply that its [`Home::Kept`] names.
    pub(crate) fn keep(&mut self, buffer: Buffer) {
        let index = buffer.index();
        if let Some(place) = self.kept.get_mut(index as usize) {
            debug_assert!(place.is_none(), "a buffer is in one place");
            self.kept_views += usize::from(self.views.owns(&buffer));
            *place = Some(buffer);
            self.kept_order.push_back(index);
        }
    }

    /// The buffer `index` that is kept for this reply; `None` while a work request still has it. An error when it was
    /// given up.
    pub(crate) fn kept_for(&self, index: u32, reply: u32) -> Result<Option<&Buffer>, GivenUp> {
        let is_kept = self.homes.get(index as usize) == Some(&Home::Kept { reply });
        let buffer = self.kept.get(index as usize);
        match buffer.filter(|_| is_kept) {
            Some(buffer) => Ok(buffer.as_ref()),
            None => Err(GivenUp),
        }
    }

    /// Stops keeping the buffer `index` for this reply.
    #[inline(always)]
    pub(crate) fn release(&mut self, index: u32, reply: u32) {
        if self.homes.get(index as usize) != Some(&Home::Kept { reply }) {
            return;
        }
        self.set_home(index, Home::Pool);
        let buffer = self.kept.get_mut(index as usize).and_then(Option::take);
        // A work request still has it: the port brings it to the pool.
        let Some(buffer) = buffer else {
            return;
        };
        if self.kept_order.front() == Some(&index) {
            self.kept_order.pop_front();
        } else if let Some(place) = self.kept_order.iter().position(|it| *it == index) {
            self.kept_order.remove(place);
        }
        self.kept_views -= usize::from(self.views.owns(&buffer));
        self.give(buffer);
    }

    #[cold]
    fn give_up_kept(&mut self) -> Option<Buffer> {
        loop {
            let index = self.kept_order.pop_front()?;
            self.set_home(index, Home::Pool);
            let buffer = self.kept.get_mut(index as usize)?.take()?;
            if !self.views.owns(&buffer) {
                return Some(buffer);
            }
            // Giving up a view frees a token, and not a buffer.
            self.kept_views -= 1;
            self.give(buffer);
        }
    }

    /// Gives up all kept views. Memory that nobody else shares is free then, or can be written again.
    #[cold]
    pub(crate) fn give_up_views(&mut self) {
        for _ in 0..self.kept_order.len() {
            let Some(index) = self.kept_order.pop_front() else {
                break;
            };
            let place = self.kept.get_mut(index as usize);
            match place.and_then(|place| place.take_if(|it| self.views.owns(it))) {
                Some(view) => {
                    self.kept_views -= 1;
                    self.give(view);
                }
                None => self.kept_order.push_back(index),
            }
        }
    }

    /// How many views can still be made.
    pub(crate) fn views_available(&self) -> usize {
        self.views.available()
    }

    /// Whether a view of `lease` can be sent by this core.
    pub(crate) fn may_show(&self, lease: &SharedLease) -> bool {
        self.pool.shares_arena(lease)
    }

    /// A view of a shared lease, to send its bytes. `None` when no token is left.
    pub(crate) fn show(&mut self, lease: SharedLease) -> Option<Buffer> {
        self.views.show(lease)
    }

    /// Whether a lease is on memory of the application that this core can use.
    pub(crate) fn may_lend(&self, lease: &Lease) -> bool {
        self.pool.has_beside(lease)
    }

    /// A token for a lease on memory of the application. `None` when none is left.
    pub(crate) fn lend(&mut self, lease: Lease) -> Option<Buffer> {
        self.views.lend(lease)
    }

    /// Leases a whole buffer to the application.
    #[inline(always)]
    pub(crate) fn take_lease(&mut self) -> Option<Lease> {
        if !self.may_give(1) {
            return None;
        }
        let buffer = self.take()?;
        let bytes = buffer.capacity();
        self.pool.lease(buffer, 0, bytes)
    }

    /// A lease on the first `bytes` bytes of a buffer.
    pub(crate) fn lease(&mut self, buffer: Buffer, bytes: u32) -> Option<Lease> {
        if self.views.owns(&buffer) {
            let mut lease = self.views.end(buffer)?;
            lease.set_len(bytes as usize);
            return Some(lease);
        }
        self.pool.lease(buffer, 0, bytes)
    }

    /// Whether a buffer is of this pool, or one of its views.
    pub(crate) fn owns(&self, buffer: &Buffer) -> bool {
        self.pool.owns(buffer) || self.views.owns(buffer)
    }

    /// Whether the buffer of a lease is of this pool, and of no other of its arena.
    pub(crate) fn owns_lease(&self, lease: &Lease) -> bool {
        self.pool.owns_lease(lease)
    }

    /// Gives a buffer back, or a view.
    pub(crate) fn give(&mut self, buffer: Buffer) {
        self.set_home(buffer.index(), Home::Pool);
        if self.views.owns(&buffer) {
            self.views.give(buffer);
        } else {
            self.pool.give(buffer);
        }
    }

    /// Sets where the buffer `index` belongs when the port gives it back.
    pub(crate) fn set_home(&mut self, index: u32, home: Home) {
        if let Some(place) = self.homes.get_mut(index as usize) {
            *place = home;
        }
    }

    /// Gives `buffer` back. If a work request has it (`None`), the buffer `index` goes to the pool when it comes back,
    /// provided that it still belongs to `home`: it may have come back already and work for another call.
    #[inline(always)]
    pub(crate) fn take_home(&mut self, buffer: Option<Buffer>, index: u32, home: Home) {
        if let Some(buffer) = buffer {
            self.give(buffer);
        } else if self.homes.get(index as usize) == Some(&home) {
            self.set_home(index, Home::Pool);
        }
    }

    /// Where a buffer that the port gave back belongs.
    pub(crate) fn home(&self, buffer: &Buffer) -> Home {
        self.homes
            .get(buffer.index() as usize)
            .copied()
            .unwrap_or_default()
    }
}

impl Drop for BulkPool {
    fn drop(&mut self) {
        // No port uses what is kept; leases among it end.
        self.give_up_views();
    }
}

/// Ends a lease and gives its buffer back if it is of this pool; otherwise the drop of the lease does so.
pub(crate) fn give_lease(pool: &mut BulkPool, lease: Lease) {
    if !pool.owns_lease(&lease) {
        return;
    }
    if let Some((buffer, _, _)) = lease.into_buffer() {
        pool.give(buffer);
    }
}

/// As [`give_lease`], for a piece of a call; a shared one is dropped.
pub(crate) fn give_piece(pool: &mut BulkPool, piece: Piece) {
    if let Piece::Own(lease) = piece {
        give_lease(pool, lease);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use rpcrdma_fabric::memory::{Arena, ArenaOptions, HugePages, PoolShape};

    use super::*;

    /// Buffers, of which so many are for calls.
    pub(crate) fn pool(buffers: u32, for_calls: u32) -> BulkPool {
        let options = ArenaOptions {
            bytes: 1 << 20,
            huge_pages: HugePages::Never,
        };
        let mut arena = Arena::private(&options).expect("memory for a test");
        let shape = PoolShape {
            buffers,
            buffer_bytes: 4096,
            stride_bytes: 4096,
            align_bytes: 4096,
        };
        BulkPool::new(arena.pool(shape).expect("a pool"), for_calls, VIEWS)
    }

    const VIEWS: u32 = 4;

    /// What a reply that is kept shows, and nobody else has, is as free as what it is made of itself.
    #[test]
    fn buffers_shown_only_by_kept_replies_are_free_for_calls() {
        let mut pool = pool(2, 2);
        let shown: Vec<Buffer> = (0..2)
            .map(|_| {
                let lease = pool.take().and_then(|buffer| pool.lease(buffer, 8));
                pool.show(lease.expect("a buffer").share()).expect("a view")
            })
            .collect();
        assert!(!pool.has(1), "both are being sent");
        for (reply, view) in (0..).zip(shown) {
            pool.set_home(view.index(), Home::Kept { reply });
            pool.keep(view);
        }
        assert_eq!(pool.available(), 0);
        assert!(pool.has(2));
        assert!(pool.take().is_some() && pool.take().is_some() && pool.take().is_none());
        assert_eq!(pool.views_available(), VIEWS as usize);
    }

    /// What the application may hold for long it can have however few buffers calls have, and calls of
    /// peers find theirs beside it.
    #[test]
    fn buffers_that_are_kept_for_long_are_not_kept_back_from_it() {
        let mut pool = pool(104, 4);
        let held: Vec<Lease> = std::iter::from_fn(|| pool.take_lease()).collect();
        assert_eq!((held.len(), pool.available()), (103, 1));
        assert!(pool.has(1) && !pool.may_give(1));
        drop(held);
        assert_eq!(pool.available(), 104);
    }
}
