//! A cell whose accesses the model checker can watch.
//!
//! Loom finds data races only in cells of its own, so the rings reach their slots through this
//! one, which is loom's under `--cfg loom` and a bare pointer otherwise.

/// A slot of a ring. Access is through raw pointers; the ring argues why it is exclusive.
#[derive(Debug)]
pub(super) struct Slot<T>(
    #[cfg(loom)] loom::cell::UnsafeCell<T>,
    #[cfg(not(loom))] std::cell::UnsafeCell<T>,
);

impl<T> Slot<T> {
    pub(super) fn new(value: T) -> Self {
        #[cfg(loom)]
        return Self(loom::cell::UnsafeCell::new(value));
        #[cfg(not(loom))]
        return Self(std::cell::UnsafeCell::new(value));
    }

    /// Calls `access` with a pointer to the value. Loom reports it when anybody else accesses the
    /// value without being ordered before or after this call.
    #[inline]
    pub(super) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        #[cfg(loom)]
        return self.0.with_mut(access);
        #[cfg(not(loom))]
        return access(self.0.get());
    }
}
