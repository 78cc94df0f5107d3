//! Which blocks of the application's memory are leased: a flag for each, so that leases are taken and dropped on any thread
//! without a lock.

#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};

/// One flag for each block.
#[derive(Debug)]
pub(super) struct Blocks(Box<[AtomicBool]>);

impl Blocks {
    /// Flags for so many blocks, of which none is leased.
    pub(super) fn new(blocks: usize) -> Self {
        Self((0..blocks).map(|_| AtomicBool::new(false)).collect())
    }

    /// Takes a block: false if somebody has it, `None` if there is no such block.
    #[inline]
    pub(super) fn take(&self, index: usize) -> Option<bool> {
        // SYNC POINT block: Acquire, partner of `give`. What the last holder did with the bytes was done before.
        let was_taken = self.0.get(index)?.swap(true, Ordering::Acquire);
        Some(!was_taken)
    }

    /// Gives a block back. Only its holder calls this, once.
    #[inline]
    pub(super) fn give(&self, index: u32) {
        let flag = self.0.get(index as usize);
        debug_assert!(flag.is_some(), "no such block");
        if let Some(flag) = flag {
            // SYNC POINT block: Release, partner of `take` and `leased`.
            flag.store(false, Ordering::Release);
        }
    }

    /// How many are taken.
    pub(super) fn leased(&self) -> usize {
        // SYNC POINT block: Acquire, partner of `give`: the application may access a block that is seen free here, if it
        // keeps others from leasing it.
        let taken = self.0.iter().filter(|flag| flag.load(Ordering::Acquire));
        taken.count()
    }
}
