//! Buffers as tokens, and the memory that gives access to their bytes.

use std::ptr::NonNull;
use std::sync::Arc;

use super::Mapping;

/// A token for an exclusive piece of an arena. See the [module](super) for what that buys.
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
// value), and it gives no access by itself: moving it to another thread moves the exclusive right.
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

    /// The index within its pool, smaller than the pool's size.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }
}

/// Access to the bytes of one arena, for whoever holds a [`Buffer`] of it.
#[derive(Clone, Debug)]
pub struct Memory {
    mapping: Arc<Mapping>,
    arena: u32,
}

impl Memory {
    pub(super) fn new(mapping: Arc<Mapping>, arena: u32) -> Self {
        Self { mapping, arena }
    }

    /// Whether `buffer` belongs to this memory.
    #[inline]
    #[must_use]
    pub fn owns(&self, buffer: &Buffer) -> bool {
        buffer.arena == self.arena
    }

    /// The bytes of `buffer`.
    ///
    /// # Panics
    ///
    /// When the buffer is of another arena: that is a programming error, and going on would read
    /// memory that may be gone.
    #[inline]
    #[must_use]
    pub fn bytes<'a>(&'a self, buffer: &'a Buffer) -> &'a [u8] {
        assert!(self.owns(buffer), "a buffer of another arena");
        // SAFETY: `start..start+bytes` lies within the mapping (pools carve it so) which `self`
        // keeps mapped for 'a; the token is the only one for these bytes and is borrowed for 'a,
        // so nothing in this process writes them; peers map the arena read-only (its seals).
        unsafe { std::slice::from_raw_parts(buffer.start.as_ptr(), buffer.bytes as usize) }
    }

    /// The bytes of `buffer`, to write.
    ///
    /// # Panics
    ///
    /// As [`Memory::bytes`].
    #[inline]
    #[must_use]
    pub fn bytes_mut<'a>(&'a self, buffer: &'a mut Buffer) -> &'a mut [u8] {
        assert!(self.owns(buffer), "a buffer of another arena");
        // SAFETY: as in `bytes`; the token is borrowed mutably for 'a, so that no other slice of
        // these bytes can exist in this process.
        unsafe { std::slice::from_raw_parts_mut(buffer.start.as_ptr(), buffer.bytes as usize) }
    }

    /// Where `buffer` starts, in bytes from the start of the arena.
    #[inline]
    #[must_use]
    pub fn offset_of(&self, buffer: &Buffer) -> u64 {
        debug_assert!(self.owns(buffer), "a buffer of another arena");
        (buffer.start.as_ptr().addr() - self.mapping.start().addr()) as u64
    }

    /// The mapping behind it.
    #[must_use]
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}
