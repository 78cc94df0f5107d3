//! What saves time with tables that are larger than the caches, and changes nothing else.

use std::mem::MaybeUninit;

use rustix::mm::{Advice, madvise};

use super::pages::HUGE_PAGE_BYTES;
use crate::shm::{prefetch, prefetch_to_write};

/// The bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Asks for the lines of the first `bytes` bytes of a value, which is used soon. It saves the wait for memory, and changes
/// nothing else.
#[inline]
pub fn fetch_ahead<T>(value: &T, bytes: usize) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    for at in (0..bytes.min(size_of::<T>())).step_by(LINE_BYTES) {
        prefetch(start.wrapping_add(at));
    }
}

/// Asks for the lines of a value, which another processor wrote last and this one writes soon. With them come both the bytes and
/// the right to write them, which would cost a second way to the other processor.
#[inline]
pub fn fetch_to_write<T>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    for at in (0..size_of::<T>()).step_by(LINE_BYTES) {
        prefetch_to_write(start.wrapping_add(at));
    }
}

/// Asks the kernel for hugepages behind a place that nothing was written to yet, as far as it covers whole ones. A walk through the
/// page tables for nearly each access to a large table takes as long as the access.
pub fn prefer_hugepages<T>(place: &mut [MaybeUninit<T>]) {
    let page_bytes = usize::try_from(HUGE_PAGE_BYTES).unwrap_or(usize::MAX);
    let start = place.as_mut_ptr().cast::<u8>();
    let skipped = start.align_offset(page_bytes);
    let bytes = size_of_val(place).saturating_sub(skipped) / page_bytes * page_bytes;
    if bytes == 0 {
        return;
    }
    // SAFETY: the range is within `place`. The advice changes the pages behind it, and no byte that was written.
    let advised = unsafe {
        madvise(
            start.wrapping_add(skipped).cast(),
            bytes,
            Advice::LinuxHugepage,
        )
    };
    // A kernel without them: the table is as slow as without the advice.
    let _ = advised;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_for_many_values_has_hugepages_where_the_machine_gives_them() {
        const BYTES: usize = 8 << 20;
        let mut values: Vec<u8> = Vec::with_capacity(BYTES);
        prefer_hugepages(values.spare_capacity_mut());
        values.resize(BYTES, 7);
        fetch_ahead(&values, usize::MAX);
        fetch_to_write(&values);
        assert!(values.iter().all(|value| *value == 7));
        let start = values.as_ptr().addr();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_within = false;
        let advised = maps.lines().any(|line| {
            if let Some((range, _)) = line.split_once(' ')
                && let Some((first, end)) = range.split_once('-')
                && let (Ok(first), Ok(end)) = (
                    usize::from_str_radix(first, 16),
                    usize::from_str_radix(end, 16),
                )
            {
                is_within = (first..end).contains(&(start + BYTES / 2));
            }
            is_within && line.starts_with("VmFlags:") && line.split(' ').any(|flag| flag == "hg")
        });
        let has_them = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        assert_eq!(advised, has_them, "the kernel was asked");
        // Less than a hugepage, and nothing.
        prefer_hugepages(Vec::<u64>::with_capacity(100).spare_capacity_mut());
        prefer_hugepages(Vec::<u64>::new().spare_capacity_mut());
    }
}
