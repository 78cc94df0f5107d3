//! Pools of equal buffers, owned by one core.

use std::ops::Range;
use std::sync::Arc;

use super::site::{PoolShape, Site};
use super::{Buffer, Lease, Memory, SharedLease};
use crate::interface::SetupError;

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
        // No overflow: `first` lies within the mapping.
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        let site = Site::of_pool(memory, arena, first, shape);
        Ok(Self {
            site: Arc::new(site),
            free: (0..shape.buffers).rev().collect(),
        })
    }

    pub(super) fn end(&self) -> u64 {
        self.site.end()
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
    #[inline]
    #[must_use]
    pub fn owns_lease(&self, lease: &Lease) -> bool {
        lease.pool() == self.site.id
    }

    /// Whether the bytes of `lease` lie in the arena that this pool was carved from.
    #[must_use]
    pub fn shares_arena(&self, lease: &SharedLease) -> bool {
        lease.arena() == self.site.arena
    }

    /// Whether the bytes of `lease` are memory of the application, to which the arena of this pool was given access
    /// ([`Arena::attach`](super::Arena::attach)).
    #[inline]
    #[must_use]
    pub fn has_beside(&self, lease: &Lease) -> bool {
        self.site.memory.has_external(lease.arena())
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
            let Some(index) = self.site.next_returned() else {
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
