//! Buffers as tokens, and the memory that gives access to their bytes.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Mapping;

/// Set in the pool number of tokens for shared, read-only bytes.
pub(super) const VIEWS: u32 = 1 << 31;

/// A number that no other arena or pool of this process has. It keeps a token of one from being accepted by another.
pub(super) fn unique_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A token for an exclusive piece of an arena. The [module](super) explains what this guarantees.
///
/// A buffer cannot be cloned:
///
/// ```compile_fail,E0599
/// # use rpcrdma_fabric::memory::Buffer;
/// fn double(buffer: &Buffer) -> Buffer {
///     buffer.clone()
/// }
/// ```
///
/// A slice cannot outlive its token, so that none is left when the buffer is given back:
///
/// ```compile_fail,E0505
/// # use rpcrdma_fabric::memory::{Buffer, Memory, Pool};
/// fn keep(memory: &Memory, pool: &mut Pool, buffer: Buffer) -> u8 {
///     let slice = memory.bytes(&buffer);
///     pool.give(buffer);
///     slice[0]
/// }
/// ```
///
/// Posting moves the buffer, so that posted memory cannot be read or written:
///
/// ```compile_fail,E0382
/// # use rpcrdma_fabric::interface::{Gather, Port, QueuePairId, SendOptions};
/// # use rpcrdma_fabric::memory::{Buffer, Memory};
/// fn post(port: &mut impl Port, to: QueuePairId, memory: &Memory, mut buffer: Buffer) {
///     let mut list = Gather::new();
///     let _ = list.push(buffer, 0, 64);
///     let _ = port.post_send(to, &mut list, SendOptions::default());
///     memory.bytes_mut(&mut buffer).fill(0);
/// }
/// ```
///
/// Nobody can read what is being written:
///
/// ```compile_fail,E0502
/// # use rpcrdma_fabric::memory::{Buffer, Memory};
/// fn both(memory: &Memory, buffer: &mut Buffer) -> u8 {
///     let writing = memory.bytes_mut(buffer);
///     let reading = memory.bytes(buffer);
///     writing[0] = 1;
///     reading[0]
/// }
/// ```
#[derive(Debug)]
#[must_use = "a buffer that is dropped is lost to its pool"]
pub struct Buffer {
    pub(super) start: NonNull<u8>,
    pub(super) bytes: u32,
    /// The arena's unique number, by which [`Memory`] knows its own.
    pub(super) arena: u32,
    /// The pool's unique number, and the index there.
    pub(super) pool: u32,
    pub(super) index: u32,
}

// SAFETY: a Buffer is the only token for its bytes (pools mint one per index, and take it back by
// value) or a token to read what nobody writes (`Views`), and it gives no access by itself: moving it
// to another thread moves that right.
unsafe impl Send for Buffer {}
// SAFETY: a shared reference to a Buffer gives no access but through Memory::bytes, which only
// reads; nobody can write while that reference exists, because writing takes `&mut Buffer`.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// The bytes that it holds.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.bytes
    }

    /// The first byte. Reading and writing through it needs the token, as [`Memory`] does.
    #[inline]
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Whether this is a token of [`super::Views`]: other holders may read its bytes, so nothing may write them.
    #[inline]
    #[must_use]
    pub fn is_view(&self) -> bool {
        self.pool & VIEWS != 0
    }

    /// The index within its pool, smaller than the pool's size.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }
}

/// Access to the bytes of one arena, for holders of its [`Buffer`]s.
#[derive(Clone, Debug)]
pub struct Memory {
    mapping: Arc<Mapping>,
    arena: u32,
}

impl Memory {
    pub(super) fn new(mapping: Arc<Mapping>, arena: u32) -> Self {
        Self { mapping, arena }
    }

    /// Whether both are the same memory.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.arena == other.arena
    }

    /// Whether `buffer` belongs to this memory.
    #[inline]
    #[must_use]
    pub fn owns(&self, buffer: &Buffer) -> bool {
        buffer.arena == self.arena
    }

    /// Whether `buffer` belongs to this memory, and a device or a peer may write it.
    #[inline]
    pub(crate) fn may_be_written(&self, buffer: &Buffer) -> bool {
        self.owns(buffer) && !buffer.is_view()
    }

    /// The bytes of `buffer`.
    ///
    /// # Panics
    ///
    /// When the buffer is of another arena. That is a programming error, and the memory may be unmapped already.
    #[inline]
    #[must_use]
    pub fn bytes<'a>(&'a self, buffer: &'a Buffer) -> &'a [u8] {
        assert!(self.owns(buffer), "a buffer of another arena");
        // SAFETY: `start..start+bytes` lies within the mapping (pools carve it so) which `self`
        // keeps mapped for 'a; the token is borrowed for 'a, and either the only one for these bytes
        // or a view of a lease that is shared, which nobody writes as long as there is a view: so
        // nothing in this process writes them; peers map the arena read-only (its seals).
        unsafe { std::slice::from_raw_parts(buffer.start.as_ptr(), buffer.bytes as usize) }
    }

    /// The bytes of `buffer`, to write.
    ///
    /// # Panics
    ///
    /// As [`Memory::bytes`], and when others may read the bytes ([`Buffer::is_view`]).
    #[inline]
    #[must_use]
    pub fn bytes_mut<'a>(&'a self, buffer: &'a mut Buffer) -> &'a mut [u8] {
        assert!(
            self.may_be_written(buffer),
            "a buffer of another arena, or a view"
        );
        // SAFETY: as in `bytes`; the token is no view, so the only one, and is borrowed mutably for
        // 'a, so that no other slice of these bytes can exist in this process.
        unsafe { std::slice::from_raw_parts_mut(buffer.start.as_ptr(), buffer.bytes as usize) }
    }

    /// Where `buffer` starts, in bytes from the start of the arena.
    #[inline]
    #[must_use]
    pub fn offset_of(&self, buffer: &Buffer) -> u64 {
        debug_assert!(self.owns(buffer), "a buffer of another arena");
        (buffer.start.as_ptr().addr() - self.mapping.start().addr()) as u64
    }

    /// The mapping of the arena.
    #[must_use]
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}
