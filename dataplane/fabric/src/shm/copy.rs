//! Copying bytes between mapped memories.

/// Copies `bytes` bytes.
///
/// # Safety
///
/// Both ranges are mapped, the target is writable and nobody else's, and they do not overlap. The
/// source may be changed by a peer meanwhile: then the bytes are any bytes, and the caller finds
/// out (a revoked record, a generation that went on) or has them checked by those who decode them.
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
    const STEP: usize = 32;
    if !(STEP..=256).contains(&bytes) {
        // SAFETY: as the caller promises.
        unsafe { copy_bytes(source, target, bytes) };
        return;
    }
    let step = |at: usize| {
        // SAFETY: `at + STEP` is at most `bytes`; no alignment is asked for.
        unsafe {
            let block = source.add(at).cast::<[u8; STEP]>().read_unaligned();
            target.add(at).cast::<[u8; STEP]>().write_unaligned(block);
        }
    };
    let mut at = 0;
    while at + STEP <= bytes {
        step(at);
        at += STEP;
    }
    // The rest overlaps what is copied already.
    step(bytes - STEP);
}
