//! The doorbell: how a sender notifies a core that does not poll its channel.
//!
//! There is a leaf bit for each channel, and a summary bit for each word of leaves. The sender sets the leaf first, then
//! the summary; the receiver takes the summary first, then the leaves. In this order a leaf bit cannot be missed: the
//! take that sees its summary bit, or a later one, sees it. Any peer can set any bit, so a bit is only a hint to check
//! the channel.

/// Channels that one port may have.
pub(super) const CHANNELS_MAX: u32 = 64 * 64;

/// The words of a doorbell.
pub(super) trait BellMemory {
    /// Whether the summary is not zero (no ordering).
    fn rung(&self) -> bool;
    /// Takes the summary. SYNC POINT doorbell: Acquire, partner of `set_summary`.
    fn take_summary(&self) -> u64;
    /// Takes a leaf. SYNC POINT leaf: Acquire, partner of `set_leaf`.
    fn take_leaf(&self, leaf: u32) -> u64;
    /// Sets bits of the summary. SYNC POINT doorbell: Release, partner of `take_summary`.
    fn set_summary(&self, bits: u64);
    /// Sets bits of a leaf. SYNC POINT leaf: Release, partner of `take_leaf`.
    fn set_leaf(&self, leaf: u32, bits: u64);
}

/// Rings for channel `number`. Sets both words even if the summary bit is set already, because the
/// receiver may be taking that bit now.
#[inline]
pub(super) fn ring(bell: &impl BellMemory, number: u32) {
    let number = number % CHANNELS_MAX;
    bell.set_leaf(number / 64, 1 << (number % 64));
    bell.set_summary(1 << (number / 64));
}

/// Channels that a poll has to check.
#[derive(Debug)]
pub(super) struct Pending {
    summary: u64,
    leaves: [u64; 64],
}

impl Pending {
    pub(super) fn new() -> Self {
        Self {
            summary: 0,
            leaves: [0; 64],
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.summary == 0
    }

    /// Takes the bits that were rung.
    #[inline]
    pub(super) fn collect(&mut self, bell: &impl BellMemory) {
        let mut summary = bell.take_summary();
        while summary != 0 {
            let leaf = summary.trailing_zeros();
            summary &= summary - 1;
            let bits = bell.take_leaf(leaf);
            if let Some(word) = self.leaves.get_mut(leaf as usize) {
                *word |= bits;
                self.summary |= u64::from(*word != 0) << leaf;
            }
        }
    }

    /// Marks channel `number`.
    #[inline]
    pub(super) fn mark(&mut self, number: u32) {
        let leaf = number / 64;
        if let Some(word) = self.leaves.get_mut(leaf as usize) {
            *word |= 1 << (number % 64);
            self.summary |= 1 << leaf;
        }
    }

    /// Takes the next marked channel: the first at or after `from`, else the first of all.
    pub(super) fn take_next(&mut self, from: u32) -> Option<u32> {
        if self.summary == 0 {
            return None;
        }
        let first = (from / 64) % 64;
        // Bits of the first leaf before `from` come last: the search finds them when it starts again
        // at zero.
        let word = self.leaves[first as usize] & (u64::MAX << (from % 64));
        let (leaf, bits) = if word != 0 {
            (first, word)
        } else {
            let behind = self.summary & u64::MAX.checked_shl(first + 1).unwrap_or(0);
            let leaf = if behind != 0 {
                behind.trailing_zeros()
            } else {
                self.summary.trailing_zeros()
            };
            (leaf, self.leaves[leaf as usize])
        };
        let bit = bits.trailing_zeros();
        let word = &mut self.leaves[leaf as usize];
        *word &= !(1 << bit);
        if *word == 0 {
            self.summary &= !(1 << leaf);
        }
        Some(leaf * 64 + bit)
    }
}
