//! Leases that several holders read, and the tokens by which their bytes are posted.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Buffer;
use super::buffer::{VIEWS, unique_number};
use super::pool::Site;

/// A range of a buffer that left its core, to be read by as many as hold one of these.
///
/// It is made of a [`super::Lease`] ([`super::Lease::share`]). A clone, a slice, and a view each count;
/// the buffer goes back to its pool with the last, on whatever thread that is. Nobody waits for
/// anybody: what counts is one atomic word for each buffer.
///
/// Who holds the only one may write ([`SharedLease::bytes_mut`]). Bytes that somebody else can still
/// read, the device among them, never change:
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

/// Handles on one buffer at most: a program that forgets so many of them is ended.
const SHARERS_MAX: u32 = u32::MAX / 2;

impl SharedLease {
    /// The first handle on the buffer at `index`, for a range that lies within it. The token of that
    /// buffer, which was the only one, is given up for it.
    pub(super) fn first(site: Arc<Site>, index: u32, offset: u32, bytes: u32) -> Self {
        let lease = Self {
            site,
            index,
            offset,
            bytes,
        };
        // Relaxed: other threads get to know of the buffer by this handle alone.
        lease.sharers().store(1, Ordering::Relaxed);
        lease
    }

    fn sharers(&self) -> &AtomicU32 {
        // A handle is of a buffer of its site, and there is a word for each.
        &self.site.sharers[self.index as usize]
    }

    /// Where it begins in its buffer, in bytes.
    #[must_use]
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// All of its buffer, with what lies around this range: remains of whatever was there before.
    #[must_use]
    pub fn whole(mut self) -> Self {
        (self.offset, self.bytes) = (0, self.site.shape.buffer_bytes);
        self
    }

    /// The bytes of `offset..offset + bytes` of this range; `None` where that goes beyond it.
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

    /// Takes the bytes of `offset..offset + bytes` of `whole` in as well, if they follow its own. False,
    /// and it is as it was, when they do not.
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

    /// Its bytes, to be written; `None` while there is another handle on any of its buffer.
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

    /// Whether there is no other handle on its buffer. Another can come of this one alone.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        // Acquire: the partner is the Release by which other handles are dropped.
        self.sharers().load(Ordering::Acquire) == 1
    }

    /// The number of the pool that its buffer goes back to: no other pool of this process has it.
    #[must_use]
    pub fn pool(&self) -> u32 {
        self.site.id
    }

    pub(super) fn arena(&self) -> u32 {
        self.site.arena
    }

    fn start(&self) -> NonNull<u8> {
        // SAFETY: the range lies within the buffer: it began as that of a lease or is all
        // of it, and `slice` and `extend` checked theirs.
        unsafe { self.site.start_of(self.index).add(self.offset as usize) }
    }
}

impl Clone for SharedLease {
    fn clone(&self) -> Self {
        // Relaxed: there is a handle already, which keeps the buffer.
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
        // Acquire: the partner is the Release of the handles that went before. A load, and no fence, for
        // the thread sanitizer knows none.
        self.sharers().load(Ordering::Acquire);
        let returned = self.site.returns.push(self.index);
        debug_assert!(
            returned.is_ok(),
            "the return ring holds every buffer of its pool"
        );
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

/// Tokens for bytes that are shared: each is a [`Buffer`] that can be sent or written to a peer, and
/// that nobody can write. All are made at the start.
#[derive(Debug)]
pub struct Views {
    id: u32,
    /// The index of the first; further ones follow.
    first_index: u32,
    /// What the view of each place shows.
    shown: Box<[Option<SharedLease>]>,
    free: Vec<u32>,
}

impl Views {
    /// `views` places, whose tokens have indexes from `first_index` on.
    #[must_use]
    pub fn new(views: u32, first_index: u32) -> Self {
        Self {
            id: unique_number() | VIEWS,
            first_index,
            shown: (0..views).map(|_| None).collect(),
            free: (0..views).rev().collect(),
        }
    }

    /// How many there may be at a time.
    #[must_use]
    pub fn total(&self) -> usize {
        self.shown.len()
    }

    /// How many more can be made now.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// A token for all bytes of `lease`, which is kept as long as there is the token. `None`, and the
    /// lease ends, when no place is free.
    pub fn show(&mut self, lease: SharedLease) -> Option<Buffer> {
        let index = self.free.pop()?;
        let place = self.shown.get_mut(index as usize)?;
        let lease = place.insert(lease);
        Some(Buffer {
            start: lease.start(),
            bytes: lease.bytes,
            arena: lease.site.arena,
            pool: self.id,
            index: self.first_index + index,
        })
    }

    /// Whether `buffer` is a token of these.
    #[inline]
    #[must_use]
    pub fn owns(&self, buffer: &Buffer) -> bool {
        buffer.pool == self.id
    }

    /// Takes a token back: its share of the lease ends.
    ///
    /// # Panics
    ///
    /// When it is of others.
    pub fn give(&mut self, buffer: Buffer) {
        assert!(self.owns(&buffer), "a view of others");
        let index = buffer.index - self.first_index;
        if let Some(place) = self.shown.get_mut(index as usize) {
            *place = None;
            self.free.push(index);
        }
    }
}

impl Drop for Views {
    fn drop(&mut self) {
        // Tokens that are out can still be read by: what they show counts one more for good, so that
        // nobody gets to write it.
        for lease in self.shown.iter().flatten() {
            // Relaxed: as in `clone`.
            lease.sharers().fetch_add(1, Ordering::Relaxed);
        }
    }
}
