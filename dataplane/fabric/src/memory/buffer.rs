//! Buffers as tokens, and the memory that gives access to their bytes.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Mapping;
use crate::interface::Access;

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

    /// The number of the arena, or of the application's memory, that it lies in.
    #[inline]
    pub(crate) fn arena(&self) -> u32 {
        self.arena
    }

    /// Whether this is a token of [`super::Views`]: other holders may read its bytes, so nothing may write them.
    #[inline]
    #[must_use]
    pub fn is_view(&self) -> bool {
        self.pool & VIEWS != 0
    }

    /// The index within its pool, smaller than the pool's size.
    #[inline]
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }
}

/// Access to the bytes of one arena, for holders of its [`Buffer`]s, and to those of the application's memory that was
/// attached to it.
#[derive(Clone, Debug)]
pub struct Memory {
    mapping: Arc<Mapping>,
    arena: u32,
    /// The application's memory; usually none.
    external: Option<Arc<[External]>>,
}

/// Memory of the application, as part of a [`Memory`].
#[derive(Clone, Debug)]
pub(crate) struct External {
    /// Its unique number, in place of an arena's.
    pub(crate) arena: u32,
    pub(crate) mapping: Arc<Mapping>,
    /// Where peers that map it see it begin, in bytes from the start of the arena.
    pub(crate) offset: u64,
}

impl Memory {
    pub(super) fn new(mapping: Arc<Mapping>, arena: u32) -> Self {
        Self {
            mapping,
            arena,
            external: None,
        }
    }

    /// As this one, with memory of the application.
    pub(super) fn with(self, external: &[External]) -> Self {
        let external = (!external.is_empty()).then(|| external.into());
        Self { external, ..self }
    }

    /// The application's memory.
    pub(crate) fn external(&self) -> &[External] {
        self.external.as_deref().unwrap_or(&[])
    }

    /// Whether the memory with this number is the application's, and part of this one.
    #[cold]
    pub(super) fn has_external(&self, arena: u32) -> bool {
        self.external()
            .iter()
            .any(|external| external.arena == arena)
    }

    #[cold]
    fn external_offset_of(&self, buffer: &Buffer) -> u64 {
        let mut external = self.external().iter();
        let found = external.find(|it| it.arena == buffer.arena);
        found.map_or(u64::MAX, |external| {
            let start = external.mapping.start().addr();
            external.offset + (buffer.start.as_ptr().addr() - start) as u64
        })
    }

    /// The address of the byte at `offset`, as peers count it: in the arena, or in memory of the application.
    #[inline]
    pub(crate) fn place(&self, offset: u64) -> Option<NonNull<u8>> {
        if offset < self.mapping.touched_bytes() as u64 || self.external.is_none() {
            return self.mapping.place(offset);
        }
        self.external_place(offset)
    }

    /// Whether peers see memory of the application where this buffer is: it is in the part of the arena that they do
    /// not map.
    #[inline]
    pub(crate) fn is_hidden(&self, buffer: &Buffer) -> bool {
        self.external.is_some()
            && self.is_in_arena(buffer)
            && self.offset_of(buffer) >= self.mapping.touched_bytes() as u64
    }

    #[cold]
    fn external_place(&self, offset: u64) -> Option<NonNull<u8>> {
        // The last one that begins at the offset or before it.
        let mut external = self.external().iter().rev();
        let found = external.find(|it| it.offset <= offset)?;
        found.mapping.place(offset - found.offset)
    }

    /// Whether both are the same memory.
    #[inline]
    pub(super) fn is(&self, other: &Self) -> bool {
        self.arena == other.arena
    }

    /// Whether `buffer` belongs to this memory.
    #[inline]
    #[must_use]
    pub fn owns(&self, buffer: &Buffer) -> bool {
        self.is_in_arena(buffer) || self.has_external(buffer.arena)
    }

    /// Whether `buffer` lies in the arena, and not in memory of the application.
    #[inline]
    pub(crate) fn is_in_arena(&self, buffer: &Buffer) -> bool {
        buffer.arena == self.arena
    }

    /// Whether `buffer` belongs to this memory, and a device or a peer may write it.
    #[inline]
    pub(crate) fn may_be_written(&self, buffer: &Buffer) -> bool {
        self.owns(buffer) && !buffer.is_view()
    }

    /// Whether `buffer` belongs to this memory, and a peer may have this access to it: to a view, reading alone.
    #[inline]
    pub(crate) fn may_be_exposed(&self, buffer: &Buffer, access: Access) -> bool {
        self.owns(buffer) && !(access.remote_write && buffer.is_view())
    }

    /// The bytes of `buffer`.
    ///
    /// # Panics
    ///
    /// When the buffer is of another arena. That is a programming error, and the memory may be unmapped already.
    #[inline(always)]
    #[must_use]
    pub fn bytes<'a>(&'a self, buffer: &'a Buffer) -> &'a [u8] {
        assert!(self.owns(buffer), "a buffer of another arena");
        // SAFETY: `start..start+bytes` lies within the mapping (pools carve it so), or one of those of the
        // application, which `self` keeps mapped for 'a; the token is borrowed for 'a, and either the only one for these bytes
        // or a view of a lease that is shared, which nobody writes as long as there is a view: so
        // nothing in this process writes them; peers map the arena read-only (its seals).
        unsafe { std::slice::from_raw_parts(buffer.start.as_ptr(), buffer.bytes as usize) }
    }

    /// The bytes of `buffer`, to write.
    ///
    /// # Panics
    ///
    /// As [`Memory::bytes`], and when others may read the bytes ([`Buffer::is_view`]).
    #[inline(always)]
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

    /// Where `buffer` starts, in bytes from the start of the arena. Memory of the application has offsets behind it, at
    /// which peers that map both see it.
    #[inline]
    #[must_use]
    pub fn offset_of(&self, buffer: &Buffer) -> u64 {
        debug_assert!(self.owns(buffer), "a buffer of another arena");
        if !self.is_in_arena(buffer) {
            return self.external_offset_of(buffer);
        }
        (buffer.start.as_ptr().addr() - self.mapping.start().addr()) as u64
    }

    /// The mapping of the arena.
    #[must_use]
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}
