//! Short Sends as they leave: Sends of few bytes, without extension, in adjacent units of the ring, and where
//! their zeroes allow it in one line. The other end is in [`arrivals`](super::arrivals).
//!
//! To fetch a line from another processor takes as long as hundreds of instructions, so lines are asked for
//! early and together. The sender asks for the lines of a whole burst when it writes the first record; it
//! expects as many units as the last burst had.
//!
//! Every unusual case is left to [`Channel::publish`], before anything was changed.

use super::super::channel::Channel;
use super::super::copy::{copy_block, copy_bytes, copy_from};
use super::super::link::QueuePairNumber;
use super::super::packed;
use super::super::record::{
    FIRST_LINE_BYTES, HEADER_BYTES, Header, LINE_BYTES, PACKED_BYTES_MAX, SHORT_BYTES_MIN, op,
};
use crate::memory::Buffer;

/// The bytes of a payload in the first line of its record.
const FIRST_LINE: usize = FIRST_LINE_BYTES as usize;
/// Units of a burst that are asked for at once, at most. 16 and 64 are as quick (`docs/performance.md`).
const BURST_UNITS_MAX: u32 = 32;
/// Beyond this many bytes the call into the C library costs less than copying by blocks.
const COPIED_BY_BLOCKS_MAX: usize = 256;

impl Channel {
    /// Asks for the lines of a burst, of as many units as the last one, with its first record of `units` units.
    #[inline]
    fn ask_for_burst(&self, units: u32) {
        if self.in_dirty {
            return;
        }
        let (tail, ring) = (self.producer.tail(), self.producer.memory());
        // Only lines that the receiver has read: requesting others would take them away from it.
        let expected = self.forecast.burst_units.min(BURST_UNITS_MAX);
        for unit in units..expected.min(self.producer.known_room()) {
            ring.prefetch_to_write(tail.wrapping_add(unit), self.forecast.sent_lines_behind);
        }
    }

    /// Publishes the first `bytes` bytes of `source`, which holds as many, as a Send to
    /// `destination`. False, and nothing was done, when it is not for this path, or there is no
    /// room that is known of.
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
        let ring = self.producer.memory();
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
                // The receiver polls the first line of the record, and each poll takes it away from our cache: the
                // bytes behind it are written first.
                if bytes <= COPIED_BY_BLOCKS_MAX {
                    copy_from::<FIRST_LINE>(source, payload, bytes);
                } else {
                    let behind = (source.add(FIRST_LINE), payload.add(FIRST_LINE));
                    copy_bytes(behind.0, behind.1, bytes - FIRST_LINE);
                }
                copy_block::<FIRST_LINE>(source, payload);
                self.forecast.sent_lines_behind = lines_behind(header.payload_bytes.into());
                header
            }
        };
        self.producer.memory().write_header(index, header);
        self.told_acked = header.acked;
        self.producer.publish(units);
        true
    }
}

/// The lines behind the first one of the record of a message of `bytes` bytes.
#[inline]
pub(super) fn lines_behind(bytes: u32) -> u32 {
    (HEADER_BYTES + bytes - 1) / LINE_BYTES
}
