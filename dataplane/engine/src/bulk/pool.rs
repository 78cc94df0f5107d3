//! The bulk buffers of a core, and where each of them comes home to.

use std::collections::VecDeque;

use rpcrdma_fabric::memory::{Buffer, Lease, Pool};

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
    /// To the pool, which keeps it for the reply of this number as long as nobody needs it.
    Kept { reply: u32 },
}

/// The buffer is not kept any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GivenUp;

/// Dropped leases taken back before a buffer is taken.
const RECLAIMED_MAX: usize = 16;

/// Registered, page-aligned buffers of one size.
#[derive(Debug)]
pub(crate) struct BulkPool {
    pool: Pool,
    homes: Box<[Home]>,
    /// Buffers that calls of ours and the application leave to the calls of peers: else two cores
    /// that call each other with all they have wait for each other until their calls time out.
    kept_back: usize,
    /// Buffers kept for replies that were sent, by their index, and these in the order in which they
    /// are given up.
    kept: Box<[Option<Buffer>]>,
    kept_order: VecDeque<u32>,
}

impl BulkPool {
    pub(crate) fn new(pool: Pool) -> Self {
        let buffers = pool.shape().buffers as usize;
        Self {
            pool,
            homes: vec![Home::Pool; buffers].into_boxed_slice(),
            kept_back: (buffers / 4).min(super::ITEM_PARTS_MAX),
            kept: (0..buffers).map(|_| None).collect(),
            kept_order: VecDeque::with_capacity(buffers),
        }
    }

    /// Bytes of each buffer.
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
        self.homes.len()
    }

    /// Buffers that are free, with those of leases that were dropped, and those that are given up
    /// for others.
    pub(crate) fn available(&mut self) -> usize {
        self.pool.reclaim(self.homes.len());
        self.pool.available() + self.kept_order.len()
    }

    /// Whether a call of a peer can have `count` buffers.
    pub(crate) fn has(&mut self, count: usize) -> bool {
        self.pool.reclaim(RECLAIMED_MAX);
        self.pool.available() + self.kept_order.len() >= count || self.available() >= count
    }

    /// Whether a call of ours, or the application, can have `count` buffers.
    pub(crate) fn may_give(&mut self, count: usize) -> bool {
        count == 0 || self.has(count + self.kept_back)
    }

    /// Takes a buffer.
    pub(crate) fn take(&mut self) -> Option<Buffer> {
        let buffer = self.pool.take();
        if buffer.is_none() && self.pool.reclaim(RECLAIMED_MAX) != 0 {
            return self.pool.take();
        }
        buffer.or_else(|| self.give_up_kept())
    }

    /// Keeps a buffer for a reply, whose number its home says.
    pub(crate) fn keep(&mut self, buffer: Buffer) {
        let index = buffer.index();
        if let Some(place) = self.kept.get_mut(index as usize) {
            debug_assert!(place.is_none(), "a buffer is in one place");
            *place = Some(buffer);
            self.kept_order.push_back(index);
        }
    }

    /// Whether the buffer `index` is kept for this reply: its bytes, or `None` while it is on its way
    /// home. An error when it was given up.
    pub(crate) fn kept_for(&self, index: u32, reply: u32) -> Result<Option<&Buffer>, GivenUp> {
        let is_kept = self.homes.get(index as usize) == Some(&Home::Kept { reply });
        let buffer = self.kept.get(index as usize);
        match buffer.filter(|_| is_kept) {
            Some(buffer) => Ok(buffer.as_ref()),
            None => Err(GivenUp),
        }
    }

    /// Has the buffer `index` kept no longer for this reply.
    pub(crate) fn release(&mut self, index: u32, reply: u32) {
        if self.homes.get(index as usize) != Some(&Home::Kept { reply }) {
            return;
        }
        self.set_home(index, Home::Pool);
        let buffer = self.kept.get_mut(index as usize).and_then(Option::take);
        let Some(buffer) = buffer else {
            return;
        };
        if self.kept_order.front() == Some(&index) {
            self.kept_order.pop_front();
        } else if let Some(place) = self.kept_order.iter().position(|it| *it == index) {
            self.kept_order.remove(place);
        }
        self.pool.give(buffer);
    }

    #[cold]
    fn give_up_kept(&mut self) -> Option<Buffer> {
        let index = self.kept_order.pop_front()?;
        self.set_home(index, Home::Pool);
        self.kept.get_mut(index as usize)?.take()
    }

    /// Takes a buffer for the application, as long as it is.
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
        self.pool.lease(buffer, 0, bytes)
    }

    /// Whether a buffer is of this pool.
    pub(crate) fn owns(&self, buffer: &Buffer) -> bool {
        self.pool.owns(buffer)
    }

    /// Whether the buffer of a lease is of this pool, and of no other of its arena.
    pub(crate) fn owns_lease(&self, lease: &Lease) -> bool {
        self.pool.owns_lease(lease)
    }

    /// Gives a buffer back.
    pub(crate) fn give(&mut self, buffer: Buffer) {
        self.set_home(buffer.index(), Home::Pool);
        self.pool.give(buffer);
    }

    /// Where the port is to bring the buffer `index`.
    pub(crate) fn set_home(&mut self, index: u32, home: Home) {
        if let Some(place) = self.homes.get_mut(index as usize) {
            *place = home;
        }
    }

    /// As [`BulkPool::set_home`], if there is a buffer.
    pub(crate) fn set_home_of(&mut self, index: Option<u32>, home: Home) {
        if let Some(index) = index {
            self.set_home(index, home);
        }
    }

    /// Gives a buffer back that is here, and has the port bring the buffer `index` that is not, if
    /// it is still to come to `home`: it may have come, and be at work for another by now.
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
