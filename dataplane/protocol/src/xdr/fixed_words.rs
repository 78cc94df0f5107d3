//! Words at fixed places of fixed-size arrays, for the hot paths.
//!
//! The index is a constant at every call. So the compiler checks the bounds, and a word is one load or store.

/// Word number `index`.
#[inline]
pub(crate) const fn word<const N: usize>(words: &[u8; N], index: usize) -> u32 {
    let at = 4 * index;
    u32::from_be_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]])
}

/// Stores word number `index`.
#[inline]
pub(crate) const fn put_word<const N: usize>(words: &mut [u8; N], index: usize, value: u32) {
    let at = 4 * index;
    [words[at], words[at + 1], words[at + 2], words[at + 3]] = value.to_be_bytes();
}
