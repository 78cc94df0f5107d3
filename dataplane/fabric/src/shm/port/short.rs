//! Sends short messages: Sends of few bytes, without extension, in adjacent units of the ring. A message with enough
//! zeroes takes a single line. The module [`arrivals`](super::arrivals) is the other end.
//!
//! Fetching a cache line from another processor takes as long as hundreds of instructions, so lines are prefetched early
//! and together. When the sender writes the first record of a burst, it prefetches the lines of the whole burst. It
//! expects as many units as the last burst had.
//!
//! An unusual case goes to [`Channel::publish`] before anything is changed.

use super::super::channel::Channel;
use super::super::copy::{copy_backwards, copy_block, copy_small, write_u64};
use super::super::link::QueuePairNumber;
use super::super::mapped::MappedRing;
use super::super::packed;
use super::super::record::{
    FIRST_LINE_BYTES, FORM_WORD_BYTES, FORMED_BYTES_MAX, HEADER_BYTES, Header, LINE_BYTES,
    PACKED_BYTES_MAX, SHORT_BYTES_MIN, op,
};
use super::super::ring::RingMemory;
use crate::interface::Formed;
use crate::memory::Buffer;

/// The bytes of a payload in the first line of its record.
const FIRST_LINE: usize = FIRST_LINE_BYTES as usize;
/// The most units of a burst that are prefetched together. 16 and 64 are as fast (`docs/performance.md`).
const BURST_UNITS_MAX: u32 = 32;
/// Fewer bytes behind the first line are copied with some of the line: that costs less than to sort their number.
const COPIED_BEHIND_MIN: usize = 16;

impl Channel {
    /// Prefetches the lines of a burst when its first record, of `units` units, is written.
    #[inline]
    fn ask_for_burst(&self, units: u32) {
        if !self.in_dirty && self.forecast.burst_units > units {
            self.ask_for_all(units);
        }
    }

    #[inline(never)]
    fn ask_for_all(&self, units: u32) {
        let (tail, ring) = (self.producer.tail(), self.producer.memory());
        // Only lines that the receiver has finished with: prefetching others would take them from its cache.
        let expected = self.forecast.burst_units.min(BURST_UNITS_MAX);
        for unit in units..expected.min(self.producer.known_room()) {
            ring.prefetch_to_write(tail.wrapping_add(unit), self.forecast.sent_lines_behind);
        }
    }

    /// Publishes a message of a form to `destination`, with `rest` behind its headers. The peer [takes
    /// forms](Channel::takes_forms). Returns false, and changes nothing, if the message is not a short one, or no room is known.
    #[inline(always)]
    pub(super) fn publish_formed(
        &mut self,
        destination: QueuePairNumber,
        formed: &Formed,
        [first, second]: [&[u8]; 2],
    ) -> bool {
        debug_assert!(matches!(formed.count, 1 | 4), "as `set_forms` checked");
        let words_bytes = usize::from(formed.count) * FORM_WORD_BYTES as usize;
        let second_at = words_bytes + first.len();
        let bytes = second_at + second.len();
        if bytes > FORMED_BYTES_MAX as usize {
            return false;
        }
        let payload_bytes = u16::try_from(bytes).unwrap_or(u16::MAX);
        let units = Header::short_units(payload_bytes.into());
        let Some(index) = self.producer.reserve_here(units) else {
            return false;
        };
        let header = Header {
            destination: destination.0,
            acked: self.ackable(),
            payload_bytes,
            op: op::SEND_FORMED,
            flags: formed.form,
        };
        self.ask_for_burst(units);
        let ring = *self.producer.memory();
        let payload = ring.unit(index).wrapping_add(HEADER_BYTES as usize);
        // SAFETY: the units are reserved for us, and have room for the words and for both parts behind them; the payload
        // begins 16-byte aligned.
        unsafe {
            // Backwards, since the first line is written last: the receiver polls it, and each poll takes it from our cache.
            if !second.is_empty() {
                copy_backwards(second.as_ptr(), payload.add(second_at), second.len());
            }
            if !first.is_empty() {
                copy_backwards(first.as_ptr(), payload.add(words_bytes), first.len());
            }
            let word = |number: usize| payload.add(number * FORM_WORD_BYTES as usize);
            write_u64(word(0), formed.words[0]);
            if formed.count > 1 {
                write_u64(word(1), formed.words[1]);
                write_u64(word(2), formed.words[2]);
                write_u64(word(3), formed.words[3]);
            }
        }
        self.forecast.sent_lines_behind = lines_behind(payload_bytes.into());
        self.publish_header(ring, index, header, units);
        true
    }

    /// Publishes a short record, whose payload is written.
    #[inline(always)]
    fn publish_header(&mut self, ring: MappedRing, index: u32, header: Header, units: u32) {
        ring.write_header(index, header);
        self.told_acked = header.acked;
        ring.publish(index, self.producer.pass(units));
    }

    /// Publishes the first `bytes` bytes of `source`, which holds as many, as a Send to `destination`.
    /// Returns false, and changes nothing, if the message is not a short one, or no room is known.
    #[inline]
    pub(super) fn publish_short(
        &mut self,
        destination: QueuePairNumber,
        source: &Buffer,
        bytes: u32,
    ) -> bool {
        let Some(header) = self.short_header(destination, bytes) else {
            return false;
        };
        let units = header.units();
        let Some(index) = self.producer.reserve_here(units) else {
            return false;
        };
        self.ask_for_burst(units);
        let ring = *self.producer.memory();
        let payload = header.payload(ring.unit(index)).cast_mut();
        let is_packable = (SHORT_BYTES_MIN..=PACKED_BYTES_MAX).contains(&bytes);
        let (source, bytes) = (source.start(), bytes as usize);
        // SAFETY: the buffer is borrowed and holds `bytes` bytes, of which `short_header` checked
        // the number; the units are reserved for us, and have room for them.
        let header = unsafe {
            let mask = if is_packable {
                packed::mask_of(source, bytes)
            } else {
                None
            };
            if let Some(mask) = mask {
                packed::pack(source, mask, bytes, payload);
                self.forecast.sent_lines_behind = 0;
                Header {
                    op: op::SEND_PACKED,
                    flags: mask,
                    ..header
                }
            } else {
                // The first line is written last: the receiver polls it, and each poll takes it from our cache.
                let behind = FIRST_LINE.min(bytes - COPIED_BEHIND_MIN);
                copy_small(source.add(behind), payload.add(behind), bytes - behind);
                copy_block::<FIRST_LINE>(source, payload);
                self.forecast.sent_lines_behind = lines_behind(header.payload_bytes.into());
                header
            }
        };
        self.publish_header(ring, index, header, units);
        true
    }
}

/// The lines after the first one, in the record of a message of `bytes` bytes.
#[inline]
pub(super) fn lines_behind(bytes: u32) -> u32 {
    (HEADER_BYTES + bytes - 1) / LINE_BYTES
}
