//! Memory windows of type 2.

use std::ptr::NonNull;
use std::sync::Arc;

use super::bindings::{self, ibv_mw};
use super::errno::{done, failed, made};
use super::leaked;
use super::memory_region::MemoryRegion;
use crate::interface::SetupError;

/// A memory window. A work request binds it to a range of a region of its domain and to a queue pair; one
/// invalidation, ours or the peer's, ends the binding.
#[derive(Debug)]
pub(crate) struct MemoryWindow {
    raw: NonNull<ibv_mw>,
    /// The key of the last binding. The upper 24 bits name the window and stay the same; we choose the lower 8 bits. A key
    /// therefore becomes valid again after 256 bindings of its window.
    key: u32,
    /// The region that it is mostly bound to, which keeps the domain. The port frees its windows before all regions.
    _region: Arc<MemoryRegion>,
}

// SAFETY: calls that take a window may be made from any thread.
unsafe impl Send for MemoryWindow {}

impl MemoryWindow {
    pub(crate) fn new(region: &Arc<MemoryRegion>) -> Result<Self, SetupError> {
        let domain = region.domain();
        // SAFETY: a protection domain that the region keeps alive.
        let raw = made(|| unsafe { bindings::alloc_window(domain.raw()) })
            .map_err(failed("the device refused a memory window"))?;
        Ok(Self {
            raw,
            // SAFETY: the window that was just made.
            key: unsafe { raw.as_ref() }.rkey,
            _region: Arc::clone(region),
        })
    }

    /// The key of the last binding.
    #[inline]
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// The key of the next binding. It differs from the last one, so that a key that a peer kept does
    /// not open the window.
    #[inline]
    pub(crate) fn next_key(&mut self) -> u32 {
        let tag = self.key.wrapping_add(1) & 0xff;
        self.key = self.key & !0xff | tag;
        self.key
    }

    /// Stores the last key in the library's object, after the binding was posted.
    #[inline]
    pub(crate) fn note_bound(&mut self) {
        // SAFETY: the window lives, and is used by the owning port alone.
        unsafe { (*self.raw.as_ptr()).rkey = self.key };
    }

    #[inline]
    pub(crate) fn raw(&self) -> *mut ibv_mw {
        self.raw.as_ptr()
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        // SAFETY: from `ibv_alloc_mw`, given back only here.
        leaked(
            "memory window",
            done(unsafe { bindings::ibv_dealloc_mw(self.raw()) }),
        );
    }
}
