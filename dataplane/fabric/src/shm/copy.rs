//! Copies of bytes between mapped memories, and accesses to the words of records.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Reads a word once; a peer may change it at any time.
///
/// # Safety
///
/// `place` is mapped and aligned to 4 bytes.
#[inline]
pub(super) unsafe fn read_u32(place: *const u8) -> u32 {
    // SAFETY: as the caller promises; nobody but atomics touches the word while it is read. The
    // mapping may be read-only, where Relaxed loads of up to 8 bytes are allowed.
    unsafe { AtomicU32::from_ptr(place.cast_mut().cast()) }.load(Ordering::Relaxed)
}

/// Reads a word once; a peer may change it at any time.
///
/// # Safety
///
/// `place` is mapped and aligned to 8 bytes.
#[inline]
pub(super) unsafe fn read_u64(place: *const u8) -> u64 {
    // SAFETY: as in `read_u32`.
    unsafe { AtomicU64::from_ptr(place.cast_mut().cast()) }.load(Ordering::Relaxed)
}

/// Writes a word of a record that is not published yet.
///
/// # Safety
///
/// `place` is mapped, writable and aligned to 4 bytes.
#[inline]
pub(super) unsafe fn write_u32(place: *mut u8, value: u32) {
    // SAFETY: as the caller promises.
    unsafe { AtomicU32::from_ptr(place.cast()) }.store(value, Ordering::Relaxed);
}

/// Writes a word of a record that is not published yet.
///
/// # Safety
///
/// `place` is mapped, writable and aligned to 8 bytes.
#[inline]
pub(super) unsafe fn write_u64(place: *mut u8, value: u64) {
    // SAFETY: as the caller promises.
    unsafe { AtomicU64::from_ptr(place.cast()) }.store(value, Ordering::Relaxed);
}

/// Prefetches the line of an address for reading. Any address is allowed.
#[inline]
pub(crate) fn prefetch(place: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch changes nothing that a program can see, and never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Prefetches the line of an address for writing. Any address is allowed.
#[inline]
pub(crate) fn prefetch_to_write(place: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in `prefetch`. For a plain x86-64 target the hint of the standard library becomes a
    // prefetch for reading. Processors that do not know this instruction ignore it.
    unsafe {
        std::arch::asm!("prefetchw [{0}]", in(reg) place, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Copies `bytes` bytes.
///
/// # Safety
///
/// Both ranges are mapped, the target is writable and used by nobody else, and they do not overlap. A
/// peer may change the source during the copy. The copied bytes are arbitrary then: the caller detects
/// it (by a revoked record or a new generation), or the bytes are checked when they are decoded.
#[inline]
pub(super) unsafe fn copy_bytes(source: *const u8, target: *mut u8, bytes: usize) {
    // SAFETY: as the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(source, target, bytes) };
}

/// Copies a short message: as [`copy_bytes`], but without the call into the C library up to
/// 256 bytes, which costs as much as the copy.
///
/// # Safety
///
/// As [`copy_bytes`].
#[inline]
pub(super) unsafe fn copy_small(source: *const u8, target: *mut u8, bytes: usize) {
    // SAFETY: as the caller promises, for each part of the ranges. A block that ends at the end of the
    // range is no longer than the range.
    unsafe {
        if bytes > 256 {
            copy_bytes(source, target, bytes);
        } else if bytes > 128 {
            copy_ends::<128>(source, target, bytes);
        } else if bytes > 64 {
            copy_ends::<64>(source, target, bytes);
        } else if bytes > 32 {
            copy_ends::<32>(source, target, bytes);
        } else if bytes >= 16 {
            copy_ends::<16>(source, target, bytes);
        } else if bytes >= 8 {
            copy_ends::<8>(source, target, bytes);
        } else if bytes >= 4 {
            copy_ends::<4>(source, target, bytes);
        } else {
            for at in 0..bytes {
                copy_block::<1>(source.add(at), target.add(at));
            }
        }
    }
}

/// Copies `bytes` bytes as two blocks of `BLOCK`, of which the second ends at `bytes`.
///
/// # Safety
///
/// As [`copy_bytes`] for `bytes` bytes, of which there are `BLOCK` to twice as many.
#[inline(always)]
unsafe fn copy_ends<const BLOCK: usize>(source: *const u8, target: *mut u8, bytes: usize) {
    // SAFETY: as the caller promises: both blocks lie within the range.
    unsafe {
        copy_block::<BLOCK>(source, target);
        let last = bytes - BLOCK;
        copy_block::<BLOCK>(source.add(last), target.add(last));
    }
}

/// As [`copy_small`], but the first bytes come last.
///
/// # Safety
///
/// As [`copy_bytes`].
// Always: it is few instructions for the octets of a short message.
#[inline(always)]
pub(super) unsafe fn copy_backwards(source: *const u8, target: *mut u8, bytes: usize) {
    // SAFETY: as the caller promises, for each block: all but the first begin behind byte 0, and end within the range.
    unsafe {
        if !(16..=256).contains(&bytes) {
            return copy_small(source, target, bytes);
        }
        let mut end = bytes;
        while end > 16 {
            end -= 16;
            copy_block::<16>(source.add(end), target.add(end));
        }
        copy_block::<16>(source, target);
    }
}

/// Copies a block whose size is known.
///
/// # Safety
///
/// As [`copy_bytes`].
#[inline]
pub(super) unsafe fn copy_block<const BYTES: usize>(source: *const u8, target: *mut u8) {
    // SAFETY: as the caller promises; blocks of bytes need no alignment.
    unsafe {
        let block = source.cast::<[u8; BYTES]>().read();
        target.cast::<[u8; BYTES]>().write(block);
    }
}
