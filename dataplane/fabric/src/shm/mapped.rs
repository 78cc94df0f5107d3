//! The memory of channel files and doorbells, mapped: raw pointers and atomics, bounds-checked.
//!
//! Memory that a peer writes is never behind a Rust reference, except its atomic words. It may change at
//! any time, so each value is read once and checked before it is used.
//!
//! A peer's channel file is mapped read-only. Loads of its words are Relaxed, because the contract of
//! `std::sync::atomic` allows no other atomic access to read-only memory. A fence after the load makes
//! it an Acquire, as that contract recommends.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::copy::{prefetch, prefetch_to_write, read_u32, read_u64, write_u32, write_u64};
use super::doorbell::BellMemory;
use super::record::{
    self, EXTENSION_BYTES, Extension, HEADER_BYTES, Header, LINE_BYTES, UNIT_BYTES,
};
use super::ring::RingMemory;
use crate::memory::Mapping;

/// The first page of a channel file: control line, the hot flag two lines on, and behind it what is written once.
pub(super) const CHANNEL_HEAD_BYTES: usize = 4096;
const CONTROL_OFFSET: usize = 0;
const HOT_OFFSET: usize = 128;
const OPEN_OFFSET: usize = 256;
const FORMS_OFFSET: usize = 260;
/// Bytes of a doorbell file: the summary, and the leaves two lines on.
pub(super) const DOORBELL_BYTES: usize = 4096;
const LEAVES_OFFSET: usize = 128;
/// The smallest and the largest ring, in bytes.
pub(super) const RING_BYTES_MIN: u32 = 8192;
pub(super) const RING_BYTES_MAX: u32 = 1 << 26;

/// Makes the preceding Relaxed load of `word` an Acquire, by a fence. `ThreadSanitizer` does not support
/// fences: for it, the macro loads the word again with Acquire, which the tests' writable mappings allow.
macro_rules! acquire {
    ($word:expr) => {
        if cfg!(sanitizer = "thread") {
            let _ = $word.load(Ordering::Acquire);
        } else {
            fence(Ordering::Acquire);
        }
    };
}

/// The head of a channel file: the owner's progress in the *other* direction.
#[derive(Debug)]
pub(super) struct ChannelHead {
    start: NonNull<u8>,
}

// SAFETY: the pointer is into a mapping that any thread may use, and that outlives `self` (the
// promise of `new`).
unsafe impl Send for ChannelHead {}

/// The progress of the receiver of a ring, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    /// Units that the sender may use again.
    pub(super) freed: u32,
    /// Units whose work succeeded, or whose failure was reported before.
    pub(super) acked: u32,
}

impl ChannelHead {
    /// The head of a channel file; `None` when the file is shorter.
    ///
    /// # Safety
    ///
    /// The mapping outlives what is returned.
    pub(super) unsafe fn new(mapping: &Mapping) -> Option<Self> {
        let start = NonNull::new(mapping.start())?;
        (mapping.bytes() >= CHANNEL_HEAD_BYTES).then_some(Self { start })
    }

    fn control(&self) -> &AtomicU64 {
        // SAFETY: within the mapping (checked in `new`), aligned, and only used as an atomic;
        // the mapping lives as long as `self`. Where it is read-only, as a peer's is, the word is
        // only loaded, and Relaxed.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(CONTROL_OFFSET).cast()) }
    }

    fn hot(&self) -> &AtomicU32 {
        // SAFETY: as in `control`.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(HOT_OFFSET).cast()) }
    }

    /// Marks our own file as used. False when it was used before: then its ring is not empty.
    pub(super) fn open(&self) -> bool {
        // SAFETY: as in `control`.
        let word = unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(OPEN_OFFSET).cast()) };
        // Relaxed: only one thread uses the word. It is in the file so that it outlives the channel.
        word.swap(1, Ordering::Relaxed) == 0
    }

    fn forms_word(&self) -> &AtomicU32 {
        // SAFETY: as in `control`.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(FORMS_OFFSET).cast()) }
    }

    /// Announces to the sender which forms we receive. Relaxed: nothing else depends on it, and a sender that does not
    /// see it yet sends octets.
    pub(super) fn announce_forms(&self, number: u32) {
        self.forms_word().store(number, Ordering::Relaxed);
    }

    /// The number of the forms that the receiver announced; zero for none.
    pub(super) fn forms(&self) -> u32 {
        self.forms_word().load(Ordering::Relaxed)
    }

    /// Reports to the sender how far its records were consumed.
    #[inline]
    pub(super) fn store_progress(&self, progress: Progress) {
        let word = u64::from(progress.freed) | u64::from(progress.acked) << 32;
        // SYNC POINT control: Release, so that all reading of the freed units, and the NAKs that
        // `acked` must not overtake, come before; partner of `load_progress`.
        self.control().store(word, Ordering::Release);
    }

    /// The progress that the receiver reported.
    #[inline]
    pub(super) fn load_progress(&self) -> Progress {
        let word = self.control().load(Ordering::Relaxed);
        // SYNC POINT control: Acquire, partner of `store_progress`.
        acquire!(self.control());
        let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
        Progress {
            freed: u32::from_le_bytes([a, b, c, d]),
            acked: u32::from_le_bytes([e, f, g, h]),
        }
    }

    /// Reports to the sender whether its ring is checked without a doorbell. Relaxed is enough: if a
    /// sender reads an old value and does not ring, the sweep finds its records.
    #[inline]
    pub(super) fn set_hot(&self, hot: bool) {
        self.hot().store(u32::from(hot), Ordering::Relaxed);
    }

    /// Whether the receiver checks the ring without a doorbell.
    #[inline]
    pub(super) fn is_hot(&self) -> bool {
        self.hot().load(Ordering::Relaxed) != 0
    }
}

/// The ring of a channel file. A copy in a function saves reading it again after each store into the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct MappedRing {
    start: NonNull<u8>,
    units: u32,
}

// SAFETY: the pointer is into a mapping that any thread may use, and that outlives `self` (the
// promise of `new`); the ends of the ring (Producer, Consumer) are each owned by one thread at a
// time.
unsafe impl Send for MappedRing {}

impl MappedRing {
    /// The ring after the head of a channel file; `None` if its size is not a power of two.
    ///
    /// # Safety
    ///
    /// The mapping outlives what is returned.
    pub(super) unsafe fn new(mapping: &Mapping) -> Option<Self> {
        let bytes = mapping.bytes().checked_sub(CHANNEL_HEAD_BYTES)?;
        let bytes = u32::try_from(bytes).ok()?;
        if !bytes.is_power_of_two() || !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes) {
            return None;
        }
        // SAFETY: the mapping is longer than the head.
        let start = unsafe { mapping.start().add(CHANNEL_HEAD_BYTES) };
        Some(Self {
            start: NonNull::new(start)?,
            units: bytes / UNIT_BYTES,
        })
    }

    /// The first byte of a unit.
    #[inline]
    pub(super) fn unit(&self, index: u32) -> *mut u8 {
        let index = index & (self.units - 1);
        // SAFETY: the masked index is smaller than the units of the mapping.
        unsafe { self.start.as_ptr().add((index * UNIT_BYTES) as usize) }
    }

    /// Prefetches the first line of a unit for reading.
    #[inline]
    pub(super) fn prefetch(&self, position: u32) {
        prefetch(self.unit(position));
    }

    /// Prefetches the `lines` lines after the first one of a unit for reading.
    #[inline]
    pub(super) fn prefetch_behind(&self, position: u32, lines: u32) {
        let unit = self.unit(position);
        for line in 1..=lines {
            prefetch(unit.wrapping_add((line * LINE_BYTES) as usize));
        }
    }

    /// Prefetches the first line of a unit for writing, and the second one if `lines_behind` is not zero.
    #[inline]
    pub(super) fn prefetch_to_write(&self, position: u32, lines_behind: u32) {
        let unit = self.unit(position);
        prefetch_to_write(unit);
        if lines_behind != 0 {
            prefetch_to_write(unit.wrapping_add(LINE_BYTES as usize));
        }
    }

    #[inline]
    fn word(&self, index: u32, word: usize) -> &AtomicU32 {
        debug_assert!(word < (HEADER_BYTES / 4) as usize);
        // SAFETY: within the unit, which lies within the mapping; aligned; these words are used
        // only as atomics by their reader, whose mapping may be read-only: it only loads them,
        // and Relaxed.
        unsafe { AtomicU32::from_ptr(self.unit(index).add(word * 4).cast()) }
    }

    /// Writes a header, without its sequence number, into our ring.
    #[inline]
    pub(super) fn write_header(&self, index: u32, header: Header) {
        self.word(index, 1)
            .store(header.destination, Ordering::Relaxed);
        self.word(index, 2).store(header.acked, Ordering::Relaxed);
        self.word(index, 3).store(header.shape(), Ordering::Relaxed);
    }

    /// Reads the last word of a header, once.
    #[inline]
    pub(super) fn read_shape(&self, index: u32) -> u32 {
        self.word(index, 3).load(Ordering::Relaxed)
    }

    /// Reads a header, without its sequence number, once.
    #[inline]
    pub(super) fn read_header(&self, index: u32) -> Header {
        Header::from_words(
            self.word(index, 1).load(Ordering::Relaxed),
            self.word(index, 2).load(Ordering::Relaxed),
            self.word(index, 3).load(Ordering::Relaxed),
        )
    }

    /// Writes the extension of a header, into our ring.
    pub(super) fn write_extension(&self, index: u32, extension: Extension) {
        let place = self.unit(index).wrapping_add(HEADER_BYTES as usize);
        // SAFETY: the extension lies within the unit, aligned; the unit is reserved for us.
        unsafe {
            write_u64(place, extension.not_before);
            write_u32(place.add(8), extension.invalidate);
            write_u32(place.add(12), 0);
        }
    }

    /// Reads the extension of a header, once.
    pub(super) fn read_extension(&self, index: u32) -> Extension {
        const { assert!(HEADER_BYTES + EXTENSION_BYTES <= UNIT_BYTES) };
        let place = self.unit(index).wrapping_add(HEADER_BYTES as usize);
        // SAFETY: within the unit, aligned; the peer may change it, so each word is read once.
        unsafe {
            Extension {
                not_before: read_u64(place),
                invalidate: read_u32(place.add(8)),
            }
        }
    }

    /// Marks the record at `index` of our ring as revoked, before its memory is used again.
    pub(super) fn revoke(&self, index: u32) {
        let word = self.word(index, 3);
        let shape = word.load(Ordering::Relaxed) | u32::from(record::FLAG_REVOKED) << 24;
        word.store(shape, Ordering::Relaxed);
        // SYNC POINT revoke: Release, so that no later write to the memory is seen before the
        // mark; partner of `is_revoked`.
        fence(Ordering::Release);
    }

    /// Whether the record at `index` was revoked before all bytes that were read until now.
    pub(super) fn is_revoked(&self, index: u32) -> bool {
        // SYNC POINT revoke: Acquire, partner of `revoke`: if the bytes that were copied are of
        // a later use of the memory, then the mark is seen.
        fence(Ordering::Acquire);
        self.read_header(index).flags & record::FLAG_REVOKED != 0
    }
}

impl RingMemory for MappedRing {
    #[inline]
    fn units(&self) -> u32 {
        self.units
    }

    #[inline]
    fn load_sequence(&self, index: u32) -> u32 {
        self.word(index, 0).load(Ordering::Relaxed)
    }

    #[inline]
    fn acquire_record(&self, index: u32) {
        // SYNC POINT record.
        acquire!(self.word(index, 0));
    }

    #[inline]
    fn publish(&self, index: u32, sequence: u32) {
        // SYNC POINT record.
        self.word(index, 0).store(sequence, Ordering::Release);
    }

    #[inline]
    fn clear_sequence(&self, index: u32) {
        self.word(index, 0).store(0, Ordering::Relaxed);
    }

    fn write_pad(&self, index: u32) {
        let header = Header {
            destination: 0,
            acked: 0,
            payload_bytes: 0,
            op: record::op::PAD,
            flags: 0,
        };
        self.write_header(index, header);
    }
}

/// A doorbell file: ours, or a peer's.
#[derive(Debug)]
pub(super) struct MappedBell {
    mapping: Arc<Mapping>,
}

impl MappedBell {
    /// The doorbell in a file whose size was checked.
    pub(super) fn new(mapping: Arc<Mapping>) -> Self {
        assert!(mapping.bytes() >= DOORBELL_BYTES);
        Self { mapping }
    }

    fn summary(&self) -> &AtomicU64 {
        // SAFETY: within the mapping (checked in `new`), aligned, only used as an atomic.
        unsafe { AtomicU64::from_ptr(self.mapping.start().cast()) }
    }

    fn leaf(&self, leaf: u32) -> &AtomicU64 {
        let offset = LEAVES_OFFSET + (leaf % 64) as usize * 8;
        // SAFETY: as in `summary`: 128 + 64 * 8 bytes lie within the file.
        unsafe { AtomicU64::from_ptr(self.mapping.start().add(offset).cast()) }
    }
}

impl BellMemory for MappedBell {
    #[inline]
    fn rung(&self) -> bool {
        self.summary().load(Ordering::Relaxed) != 0
    }

    #[inline]
    fn take_summary(&self) -> u64 {
        // SYNC POINT doorbell.
        self.summary().swap(0, Ordering::Acquire)
    }

    #[inline]
    fn take_leaf(&self, leaf: u32) -> u64 {
        // SYNC POINT leaf.
        self.leaf(leaf).swap(0, Ordering::Acquire)
    }

    #[inline]
    fn set_summary(&self, bits: u64) {
        // SYNC POINT doorbell.
        self.summary().fetch_or(bits, Ordering::Release);
    }

    #[inline]
    fn set_leaf(&self, leaf: u32, bits: u64) {
        // SYNC POINT leaf.
        self.leaf(leaf).fetch_or(bits, Ordering::Release);
    }
}
