//! Values that do not share a cache line with their neighbours.

use std::ops::Deref;

/// A value alone on its cache lines.
///
/// 128 bytes, because x86-64 fetches lines in adjacent pairs: two values 64 bytes apart that are
/// written by two cores still slow each other down.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(T);

impl<T> CachePadded<T> {
    /// Wraps `value`.
    pub(crate) const fn new(value: T) -> Self {
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
