//! Where equal buffers lie.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use crossbeam_queue::ArrayQueue;

use super::blocks::Blocks;
use super::buffer::unique_number;
use super::{Buffer, Memory};

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

/// The place of equal buffers in memory. Their pool, or the application's memory that they divide, shares it with the
/// leases on them.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) memory: Memory,
    pub(super) arena: u32,
    pub(super) id: u32,
    /// Bytes of the mapping before the first buffer.
    first: usize,
    pub(super) shape: PoolShape,
    returns: Returns,
    /// The number of handles on each buffer with a shared lease.
    pub(super) sharers: Box<[AtomicU32]>,
}

/// Where the buffers of dropped leases go, on any thread.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "sites are few, and another pointer would cost each return"
)]
enum Returns {
    /// Back to a pool, which takes their indexes on its core. The ring has room for every buffer of the pool.
    Ring(ArrayQueue<u32>),
    /// To any thread that leases the block next: memory of the application.
    Blocks(Blocks),
}

impl Site {
    /// The place of a pool's buffers, from `first` bytes into the mapping on. The caller has checked that all of them lie
    /// within it.
    pub(super) fn of_pool(memory: Memory, arena: u32, first: usize, shape: PoolShape) -> Self {
        let returns = ArrayQueue::new(shape.buffers.max(1) as usize);
        Self::new(memory, arena, first, shape, Returns::Ring(returns))
    }

    /// The place of the blocks that memory of the application is divided into, all of the mapping.
    pub(super) fn of_application(memory: Memory, arena: u32, shape: PoolShape) -> Self {
        let blocks = Blocks::new(shape.buffers as usize);
        Self::new(memory, arena, 0, shape, Returns::Blocks(blocks))
    }

    fn new(memory: Memory, arena: u32, first: usize, shape: PoolShape, returns: Returns) -> Self {
        Self {
            memory,
            arena,
            id: unique_number(),
            first,
            shape,
            returns,
            sharers: (0..shape.buffers).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// The flags of its blocks, if it is memory of the application.
    #[inline]
    pub(super) fn blocks(&self) -> Option<&Blocks> {
        match &self.returns {
            Returns::Ring(_) => None,
            Returns::Blocks(blocks) => Some(blocks),
        }
    }

    /// Ends the lease on the buffer at `index`. Its holder calls this, once, on any thread.
    #[inline]
    pub(super) fn give_back(&self, index: u32) {
        match &self.returns {
            Returns::Ring(ring) => {
                let returned = ring.push(index);
                debug_assert!(
                    returned.is_ok(),
                    "the return ring holds every buffer of its pool"
                );
            }
            Returns::Blocks(blocks) => blocks.give(index),
        }
    }

    /// The next buffer that came back to its pool.
    #[inline]
    pub(super) fn next_returned(&self) -> Option<u32> {
        match &self.returns {
            Returns::Ring(ring) => ring.pop(),
            Returns::Blocks(_) => None,
        }
    }

    /// Bytes of the mapping before the end of the last buffer.
    pub(super) fn end(&self) -> u64 {
        let Self { first, shape, .. } = self;
        *first as u64 + u64::from(shape.buffers) * u64::from(shape.stride_bytes)
    }

    /// The address of the buffer at `index`, one of its pool.
    #[inline]
    pub(super) fn start_of(&self, index: u32) -> NonNull<u8> {
        debug_assert!(index < self.shape.buffers, "no such buffer");
        let offset = self.first + index as usize * self.shape.stride_bytes as usize;
        // SAFETY: the caller of `new` checked that all buffers lie within the mapping; so the sum stays within it, which is
        // nowhere null.
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
