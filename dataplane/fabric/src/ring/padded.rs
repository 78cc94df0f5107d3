//! Values that do not share a cache line with their neighbours.

use std::ops::{Deref, DerefMut};

/// A value alone on its cache lines.
///
/// 128 bytes, because x86-64 fetches lines in adjacent pairs: two values 64 bytes apart that are
/// written by two cores still slow each other down.
///
/// # Example
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use rpcrdma_fabric::ring::CachePadded;
///
/// // One word for each of two cores, so that neither slows the other down.
/// let calls = [0, 0].map(|zero| CachePadded::new(AtomicU64::new(zero)));
/// calls[1].fetch_add(5, Ordering::Relaxed);
/// assert_eq!(calls[1].load(Ordering::Relaxed), 5);
/// assert_eq!(size_of_val(&calls), 256);
/// ```
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CachePadded<T>(T);

impl<T> CachePadded<T> {
    /// Wraps `value`.
    pub const fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for CachePadded<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for CachePadded<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
