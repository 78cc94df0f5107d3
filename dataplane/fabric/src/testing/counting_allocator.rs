//! An allocator that counts its calls by each thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator with a counter of calls. A test sets it as `#[global_allocator]` and can
/// then assert that some code allocates nothing and frees nothing.
#[derive(Debug)]
pub struct CountingAllocator;

thread_local! {
    /// Allocations, reallocations and frees of this thread. It is initialised by a constant and has no
    /// destructor, because either could call the allocator.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

impl CountingAllocator {
    /// Allocations, reallocations and frees by the calling thread until now.
    #[must_use]
    pub fn calls() -> u64 {
        CALLS.with(Cell::get)
    }

    fn count() {
        CALLS.with(|calls| calls.set(calls.get() + 1));
    }
}

// SAFETY: every method passes its arguments on to the system's allocator, which keeps the
// contract; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Self::count();
        // SAFETY: the pointer came from `alloc` or `realloc` here, and so from the system's
        // allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        Self::count();
        // SAFETY: as for `dealloc`; the caller vouches for the new size.
        unsafe { System.realloc(pointer, layout, new_bytes) }
    }
}
