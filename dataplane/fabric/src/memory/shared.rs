//! Shared leases, which several holders can read.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::site::Site;
use super::{Buffer, Memory};

/// A range of a buffer that left its core, read by any number of holders.
///
/// It is made of a [`super::Lease`] ([`super::Lease::share`]). A clone, a slice, and a view each count; dropping the
/// last one, on any thread, returns the buffer to its pool. Nothing blocks: the count is one atomic word for each
/// buffer.
///
/// The holder of the only one may write ([`SharedLease::bytes_mut`]). Bytes that another holder or the device can still
/// read never change:
///
/// ```compile_fail,E0596
/// # use rpcrdma_fabric::memory::SharedLease;
/// fn write(lease: SharedLease) {
///     lease[0] = 1;
/// }
/// ```
pub struct SharedLease {
    site: Arc<Site>,
    index: u32,
    offset: u32,
    bytes: u32,
}

/// The most handles on one buffer. A program that leaks more is aborted, before the count can wrap.
const SHARERS_MAX: u32 = u32::MAX / 2;

impl SharedLease {
    /// The first handle on the buffer at `index`, for a range that lies within it. The caller has given
    /// up the only token of that buffer.
    pub(super) fn first(site: Arc<Site>, index: u32, offset: u32, bytes: u32) -> Self {
        let lease = Self {
            site,
            index,
            offset,
            bytes,
        };
        // Relaxed: other threads can reach the buffer only through this handle.
        lease.sharers().store(1, Ordering::Relaxed);
        lease
    }

    fn sharers(&self) -> &AtomicU32 {
        // In range: the site has one word for each of its buffers.
        &self.site.sharers[self.index as usize]
    }

    /// Where it begins in its buffer, in bytes.
    #[must_use]
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// Its whole buffer. Bytes outside of this range are from earlier uses.
    #[must_use]
    pub fn whole(mut self) -> Self {
        (self.offset, self.bytes) = (0, self.site.shape.buffer_bytes);
        self
    }

    /// The bytes `offset..offset + bytes` of this range; `None` if they exceed it.
    #[must_use]
    pub fn slice(&self, offset: u32, bytes: u32) -> Option<Self> {
        let end = offset.checked_add(bytes)?;
        if end > self.bytes {
            return None;
        }
        let mut slice = self.clone();
        slice.offset += offset;
        slice.bytes = bytes;
        Some(slice)
    }

    /// Extends the range by `offset..offset + bytes` of `whole`, if these bytes follow its own. Otherwise returns false
    /// and changes nothing.
    pub fn extend(&mut self, whole: &Self, offset: u32, bytes: u32) -> bool {
        let is_same = Arc::ptr_eq(&self.site, &whole.site) && self.index == whole.index;
        let lies_within = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= whole.bytes);
        let follows = self.offset + self.bytes == whole.offset.saturating_add(offset);
        if is_same && lies_within && follows {
            self.bytes += bytes;
        }
        is_same && lies_within && follows
    }

    /// Its bytes, to be written; `None` while there is another handle on any part of its buffer.
    #[must_use]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if !self.is_alone() {
            return None;
        }
        // SAFETY: the range lies within the buffer, as in `deref`. This is the only handle on the
        // buffer and is borrowed mutably, so that none can be made of it; the handles that there were
        // are gone, with all that was read through them, by the Acquire of `is_alone`.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.bytes as usize) })
    }

    /// Whether this is the only handle on its buffer. If so, further handles can only be made from this one.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        // Acquire: the partner is the Release by which other handles are dropped.
        self.sharers().load(Ordering::Acquire) == 1
    }

    /// The number of its buffer's pool, unique in this process.
    #[must_use]
    pub fn pool(&self) -> u32 {
        self.site.id
    }

    /// Whether its buffer belongs to `memory`, as [`super::Lease::is_of`].
    #[must_use]
    pub fn is_of(&self, memory: &Memory) -> bool {
        memory.is(&self.site.memory) || memory.has_external(self.site.arena)
    }

    pub(super) fn arena(&self) -> u32 {
        self.site.arena
    }

    /// A token for all of its bytes, with this pool and index. The caller keeps the lease as long as there is the token.
    pub(super) fn token(&self, pool: u32, index: u32) -> Buffer {
        Buffer {
            start: self.start(),
            bytes: self.bytes,
            arena: self.site.arena,
            pool,
            index,
        }
    }

    /// Drops it while something may still read its bytes: its buffer never returns.
    pub(super) fn abandon(self) {
        // Relaxed: as in `clone`.
        self.sharers().fetch_add(1, Ordering::Relaxed);
    }

    fn start(&self) -> NonNull<u8> {
        // SAFETY: the range lies within the buffer: it began as that of a lease or is all
        // of it, and `slice` and `extend` checked theirs.
        unsafe { self.site.start_of(self.index).add(self.offset as usize) }
    }
}

impl Clone for SharedLease {
    fn clone(&self) -> Self {
        // Relaxed: this handle keeps the buffer, so the count cannot reach zero in the meantime.
        if self.sharers().fetch_add(1, Ordering::Relaxed) > SHARERS_MAX {
            std::process::abort();
        }
        Self {
            site: Arc::clone(&self.site),
            ..*self
        }
    }
}

impl Drop for SharedLease {
    fn drop(&mut self) {
        // Release: the partners are the Acquire below and that of `is_alone`. What was read through this
        // handle was read before the bytes are written again.
        if self.sharers().fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        // Acquire: the partner is the Release of the handles that were dropped before. A load instead of
        // a fence, because the thread sanitizer does not support fences.
        self.sharers().load(Ordering::Acquire);
        self.site.give_back(self.index);
    }
}

impl Deref for SharedLease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies within the buffer, and the buffer in the mapping, which `site` keeps
        // mapped. The pool gave up the only token of the buffer for the first handle; with a second
        // handle nobody writes, and `bytes_mut` of this one borrows it. Peers map the arena
        // read-only (its seals).
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.bytes as usize) }
    }
}

impl fmt::Debug for SharedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            index,
            offset,
            bytes,
            ..
        } = self;
        write!(
            f,
            "SharedLease({bytes} bytes at {offset} of buffer {index})"
        )
    }
}
