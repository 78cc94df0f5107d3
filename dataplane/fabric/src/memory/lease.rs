//! Leases: buffers that leave their core.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use super::site::Site;
use super::{Buffer, Memory, SharedLease};

/// Bytes in registered memory that outlive the call in which they arrived, or that a later call sends.
///
/// It is the only access to its bytes, so its holder may also write them. It keeps its arena alive and may be dropped
/// on any thread; dropping it returns the buffer to its pool by a ring that holds every buffer of that pool, so that
/// returning cannot fail. A block of the application's memory can be leased again immediately.
///
/// It cannot be cloned, so nobody reads what another holder writes:
///
/// ```compile_fail,E0599
/// # use rpcrdma_fabric::memory::Lease;
/// fn double(lease: &Lease) -> Lease {
///     lease.clone()
/// }
/// ```
///
/// A slice of it cannot outlive it, because the buffer is then used again:
///
/// ```compile_fail,E0505
/// # use rpcrdma_fabric::memory::Lease;
/// fn keep(lease: Lease) -> u8 {
///     let slice = &lease[..];
///     drop(lease);
///     slice[0]
/// }
/// ```
///
/// Its core cannot post a leased buffer:
///
/// ```compile_fail,E0382
/// # use rpcrdma_fabric::interface::Gather;
/// # use rpcrdma_fabric::memory::{Buffer, Pool};
/// fn both(pool: &mut Pool, buffer: Buffer, list: &mut Gather) {
///     let lease = pool.lease(buffer, 0, 64);
///     let _ = list.push(buffer, 0, 64);
/// }
/// ```
///
/// A Receive that was posted cannot be read, nor a segment taken out of it:
///
/// ```compile_fail,E0382
/// # use rpcrdma_fabric::interface::{Port, Receive};
/// # use rpcrdma_fabric::memory::Buffer;
/// fn late(port: &mut impl Port, mut receive: Receive, fresh: Buffer) {
///     port.post_receive(receive);
///     let _ = port.replace_segment(&mut receive, 1, fresh);
/// }
/// ```
///
/// It is small, so that lists of leases are cheap to move.
///
/// # Example
///
/// ```
/// use rpcrdma_fabric::memory::{Arena, ArenaOptions, HugePages, Lease, PoolShape};
///
/// let mut arena = Arena::shared(&ArenaOptions { bytes: 4096, huge_pages: HugePages::Never })?;
/// let shape = PoolShape { buffers: 2, buffer_bytes: 512, stride_bytes: 512, align_bytes: 64 };
/// let mut pool = arena.pool(shape)?;
/// let buffer = pool.take().expect("two");
/// let mut lease: Lease = pool.lease(buffer, 0, 5).expect("it lies within");
/// let disk = std::thread::spawn(move || lease.copy_from_slice(b"bytes"));
/// disk.join().expect("the thread ends, and the lease with it");
/// assert_eq!(pool.available(), 1);
/// assert_eq!(pool.reclaim(8), 1);
/// assert_eq!(pool.available(), 2);
/// # Ok::<(), rpcrdma_fabric::interface::SetupError>(())
/// ```
#[derive(Debug)]
pub struct Lease {
    site: Arc<Site>,
    /// The index of its buffer, or [`NO_BUFFER`].
    index: u32,
    offset: u32,
    bytes: u32,
}

/// The index of no buffer: the lease has ended.
const NO_BUFFER: u32 = u32::MAX;

impl Lease {
    /// A lease on a range that lies within the buffer, which is of the pool of `site`.
    pub(super) fn new(site: Arc<Site>, buffer: Buffer, offset: u32, bytes: u32) -> Self {
        Self {
            site,
            index: buffer.index,
            offset,
            bytes,
        }
    }

    /// Bytes from its start to the end of its buffer: what [`Lease::set_len`] takes at most.
    #[must_use]
    pub fn capacity(&self) -> usize {
        let buffer_bytes = self.site.shape.buffer_bytes;
        buffer_bytes.saturating_sub(self.offset) as usize
    }

    /// Sets its length to `bytes`, at most its capacity. The bytes do not change. Bytes after the former end may be
    /// from any earlier use of the buffer.
    pub fn set_len(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes.min(self.capacity())).unwrap_or(u32::MAX);
        self.bytes = bytes;
    }

    /// Where it begins in its buffer, in bytes.
    #[inline]
    #[must_use]
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// Whether its buffer belongs to `memory`, and so to the port of that memory. That of the application does, if the arena
    /// was given access to it ([`Arena::attach`](super::Arena::attach)).
    #[inline]
    #[must_use]
    pub fn is_of(&self, memory: &Memory) -> bool {
        memory.is(&self.site.memory) || memory.has_external(self.site.arena)
    }

    /// Whether it is on memory of the application ([`super::ExternalMemory`]).
    #[inline]
    #[must_use]
    pub fn is_external(&self) -> bool {
        self.site.blocks().is_some()
    }

    #[inline]
    pub(super) fn arena(&self) -> u32 {
        self.site.arena
    }

    /// A token for all of its bytes, with this pool and index. The caller keeps the lease, and does not use it, as long as
    /// there is the token.
    pub(super) fn token(&self, pool: u32, index: u32) -> Buffer {
        // SAFETY: the address lies within the mapping, which is nowhere null.
        let start = unsafe { NonNull::new_unchecked(self.start()) };
        Buffer {
            start,
            bytes: self.bytes,
            arena: self.site.arena,
            pool,
            index,
        }
    }

    /// Drops it while something may still use its bytes: its buffer never returns.
    pub(super) fn abandon(mut self) {
        self.index = NO_BUFFER;
    }

    /// The number of its buffer's pool.
    #[inline]
    pub(super) fn pool(&self) -> u32 {
        self.site.id
    }

    /// The address of its first byte, which lies within its buffer or at its end.
    fn start(&self) -> *mut u8 {
        let buffer = self.site.start_of(self.index);
        // SAFETY: the range was checked against the buffer when the lease was made.
        unsafe { buffer.as_ptr().add(self.offset as usize) }
    }

    /// Makes the lease read-only, so that several holders can read it.
    #[must_use]
    pub fn share(mut self) -> SharedLease {
        let index = std::mem::replace(&mut self.index, NO_BUFFER);
        SharedLease::first(Arc::clone(&self.site), index, self.offset, self.bytes)
    }

    /// Ends the lease and returns its buffer, with the offset and the length of the leased bytes. Call
    /// it on the lease's core, and post the buffer or give it back to its pool. The result is never
    /// `None` for a lease that a pool made.
    #[must_use]
    pub fn into_buffer(mut self) -> Option<(Buffer, u32, u32)> {
        let index = std::mem::replace(&mut self.index, NO_BUFFER);
        let buffer = (index != NO_BUFFER).then(|| self.site.buffer(index))?;
        Some((buffer, self.offset, self.bytes))
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the lease is borrowed mutably, so that no other slice of these
        // bytes can exist in this process.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.bytes as usize) }
    }
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies within the buffer, by the checks of `Pool::lease` and `set_len`,
        // and the buffer in the mapping, which `site` keeps mapped. The lease holds the only token
        // of the buffer, the pool having given it up, and is borrowed meanwhile, so nothing in
        // this process writes these bytes; peers map the arena read-only (its seals). The index is
        // that of a buffer: a lease without one ends in the function that takes it.
        unsafe { std::slice::from_raw_parts(self.start(), self.bytes as usize) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.index != NO_BUFFER {
            self.site.give_back(self.index);
        }
    }
}
