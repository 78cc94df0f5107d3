//! Pools of equal buffers, owned by one core.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crossbeam_queue::ArrayQueue;

use super::buffer::unique_number;
use super::{Buffer, Lease, Memory, SharedLease};
use crate::interface::SetupError;

/// The number, size and place of a pool's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolShape {
    /// The number of buffers.
    pub buffers: u32,
    /// The size of each buffer in bytes.
    pub buffer_bytes: u32,
    /// Bytes from the start of one buffer to the start of the next; at least `buffer_bytes`. A value
    /// slightly above a power of two spreads the first lines of the buffers over the cache's sets.
    pub stride_bytes: u32,
    /// Alignment of the first buffer's address in bytes, rounded up to a power of two.
    pub align_bytes: u32,
}

/// The place of a pool's buffers in memory. The pool and its leases share it.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) memory: Memory,
    pub(super) arena: u32,
    pub(super) id: u32,
    /// Bytes of the mapping before the first buffer.
    first: usize,
    pub(super) shape: PoolShape,
    /// The indexes of buffers whose leases were dropped. It has room for every buffer of the pool.
    pub(super) returns: ArrayQueue<u32>,
    /// The number of handles on each buffer with a shared lease.
    pub(super) sharers: Box<[AtomicU32]>,
}

impl Site {
    /// The address of the buffer at `index`, one of its pool.
    #[inline]
    pub(super) fn start_of(&self, index: u32) -> NonNull<u8> {
        debug_assert!(index < self.shape.buffers, "no such buffer");
        let offset = self.first + index as usize * self.shape.stride_bytes as usize;
        // SAFETY: indexes come from `carve` alone, which checked that all buffers lie within the
        // mapping; so the sum stays within it, which is nowhere null.
        unsafe {
            let start = self.memory.mapping().start();
            NonNull::new_unchecked(start.add(offset))
        }
    }

    /// The token of the buffer at `index`, made only by the holder of that index: the pool's list of free ones, or a
    /// lease.
    #[inline]
    pub(super) fn buffer(&self, index: u32) -> Buffer {
        Buffer {
            start: self.start_of(index),
            bytes: self.shape.buffer_bytes,
            arena: self.arena,
            pool: self.id,
            index,
        }
    }
}

/// Buffers of one size, handed out last in, first out, because the last one returned is most likely in the cache.
#[derive(Debug)]
pub struct Pool {
    site: Arc<Site>,
    free: Vec<u32>,
}

impl Pool {
    /// Carves a pool from `room`, a range of the mapping that lies within it.
    pub(super) fn carve(
        memory: Memory,
        arena: u32,
        room: Range<u64>,
        shape: PoolShape,
    ) -> Result<Self, SetupError> {
        let stride = shape.stride_bytes.max(shape.buffer_bytes);
        let shape = PoolShape {
            stride_bytes: stride,
            ..shape
        };
        let start = memory.mapping().start().addr() as u64;
        // A size that overflows 64 bits exceeds any mapping, so it fails the check below.
        let (first, end) = place_of(start, room.start, shape).unwrap_or((0, u64::MAX));
        if end > room.end {
            return Err(SetupError::Limit {
                what: "arena bytes",
                asked: end,
                limit: room.end,
            });
        }
        let site = Site {
            memory,
            arena,
            id: unique_number(),
            // No overflow: `first` lies within the mapping.
            first: usize::try_from(first).unwrap_or(usize::MAX),
            shape,
            returns: ArrayQueue::new(shape.buffers.max(1) as usize),
            sharers: (0..shape.buffers).map(|_| AtomicU32::new(0)).collect(),
        };
        Ok(Self {
            site: Arc::new(site),
            free: (0..shape.buffers).rev().collect(),
        })
    }

    pub(super) fn end(&self) -> u64 {
        let Site { first, shape, .. } = &*self.site;
        *first as u64 + u64::from(shape.buffers) * u64::from(shape.stride_bytes)
    }

    /// Takes the buffer that was returned last.
    #[inline]
    pub fn take(&mut self) -> Option<Buffer> {
        let index = self.free.pop()?;
        Some(self.site.buffer(index))
    }

    /// Gives a buffer back.
    ///
    /// # Panics
    ///
    /// When it is of another pool, which is a programming error that would hand the same bytes
    /// out twice.
    #[inline]
    pub fn give(&mut self, buffer: Buffer) {
        assert_eq!(buffer.pool, self.site.id, "a buffer of another pool");
        self.free.push(buffer.index);
    }

    /// Whether `buffer` is of this pool.
    #[inline]
    #[must_use]
    pub fn owns(&self, buffer: &Buffer) -> bool {
        buffer.pool == self.site.id
    }

    /// Whether `lease` is on a buffer of this pool.
    #[must_use]
    pub fn owns_lease(&self, lease: &Lease) -> bool {
        lease.pool() == self.site.id
    }

    /// Whether the bytes of `lease` lie in the arena that this pool was carved from.
    #[must_use]
    pub fn shares_arena(&self, lease: &SharedLease) -> bool {
        lease.arena() == self.site.arena
    }

    /// Buffers that can be taken now.
    #[inline]
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// The shape that it was made with.
    #[must_use]
    pub fn shape(&self) -> PoolShape {
        self.site.shape
    }

    /// Turns a buffer into a lease of `bytes` bytes from `offset`, which may leave the core. Returns
    /// `None`, and the buffer to the pool, when the range does not lie within the buffer.
    pub fn lease(&mut self, buffer: Buffer, offset: u32, bytes: u32) -> Option<Lease> {
        assert_eq!(buffer.pool, self.site.id, "a buffer of another pool");
        let fits = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= buffer.capacity());
        if !fits {
            self.give(buffer);
            return None;
        }
        Some(Lease::new(Arc::clone(&self.site), buffer, offset, bytes))
    }

    /// Takes back at most `count` buffers of dropped leases; returns their number.
    pub fn reclaim(&mut self, count: usize) -> usize {
        let mut came = 0;
        while came < count {
            let Some(index) = self.site.returns.pop() else {
                break;
            };
            self.free.push(index);
            came += 1;
        }
        came
    }
}

/// The start of the first buffer and the end of the last one, as offsets in a mapping at address `start`, for a pool that
/// is carved after the first `next` bytes. `None` on an overflow of 64 bits.
fn place_of(start: u64, next: u64, shape: PoolShape) -> Option<(u64, u64)> {
    // The address is aligned, and not the offset: the alignment may exceed a page, to which mappings are aligned.
    let align = u64::from(shape.align_bytes.max(1)).next_power_of_two();
    let first = start.checked_add(next)?.checked_next_multiple_of(align)? - start;
    // Cannot overflow: two factors of 32 bits each.
    let bytes = u64::from(shape.buffers) * u64::from(shape.stride_bytes);
    Some((first, first.checked_add(bytes)?))
}
