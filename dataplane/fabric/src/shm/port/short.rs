//! The hot path in both directions: a Send of few bytes, without extension, in adjacent units of
//! the ring, and where its zeroes allow it in one line.
//!
//! To fetch a line from another processor takes as long as hundreds of instructions, so lines are asked for
//! early and together. The receiver asks for as many lines as the last message took before it looks at the
//! first one. The sender asks for the lines of a whole burst when it writes the first record; it expects
//! as many units as the last burst had.
//!
//! Whatever is out of the ordinary in the least is left to [`Core::visit`](super::core::Core) and
//! [`Channel::publish`], before anything was changed.

use super::super::channel::{Channel, Target};
use super::super::copy::{copy_block, copy_bytes, copy_from, copy_small};
use super::super::link::QueuePairNumber;
use super::super::packed;
use super::super::queue_pair::State;
use super::super::record::{
    FIRST_LINE_BYTES, HEADER_BYTES, Header, LINE_BYTES, PACKED_BYTES_MAX, SHORT_BYTES_MIN, op,
};
use super::core::Core;
use super::inbound::push_receive;
use crate::interface::{CompletionBatch, Status};
use crate::memory::Buffer;

/// What of a payload lies in the first line of its record.
const FIRST_LINE: usize = FIRST_LINE_BYTES as usize;
/// Units of a burst that are asked for at once, at most. 16 and 64 are as quick (`docs/performance.md`).
const BURST_UNITS_MAX: u32 = 32;
/// After a visit that found so many records, the receiver asks for the line of the next record as it takes one.
const BURST_RECORDS_MIN: u32 = 4;
/// Beyond this many bytes the call into the C library costs less than copying by blocks.
const COPIED_BY_BLOCKS_MAX: usize = 256;

/// What [`Core::take_short`] came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// Messages received.
    pub(super) taken: u32,
    /// Nothing is published behind them.
    pub(super) drained: bool,
}

impl Core {
    /// Receives the short Sends at the head of the ring, up to the first record that is anything
    /// else, or cannot be received now.
    #[inline]
    pub(super) fn take_short(
        &mut self,
        channel: &mut Channel,
        batch: &mut CompletionBatch,
    ) -> Taken {
        let mut end = Taken::default();
        let Some(peer) = &mut channel.peer else {
            return end;
        };
        let consumer = &mut peer.consumer;
        if channel.pull.target != Target::Nothing || self.not_ready_polls != 0 {
            return end;
        }
        let mut acked = channel.acked;
        let mut bytes_copied = 0;
        while !batch.is_full() {
            let forecast = &mut channel.forecast;
            let ring = consumer.memory();
            ring.prefetch_behind(consumer.head(), forecast.received_lines_behind);
            let Some(index) = consumer.peek() else {
                end.drained = true;
                break;
            };
            let header = ring.read_header(index);
            let Some(bytes) = header.short_bytes() else {
                break;
            };
            // A peer reaches only its own queue pairs, whatever numbers it invents.
            let number = QueuePairNumber(header.destination);
            let id = number.id();
            let Some(queue_pair) = self.queue_pairs.get(id.index as usize) else {
                break;
            };
            if queue_pair.local != number
                || queue_pair.channel != channel.number
                || !matches!(queue_pair.state, State::Connected | State::Accepting)
            {
                break;
            }
            let queue = queue_pair.receive_queue;
            let Some(receive_queue) = self.receive_queues.get_mut(queue) else {
                break;
            };
            let units = header.units();
            if units > consumer.to_end(index) {
                break;
            }
            let Some((slot, place)) = receive_queue.take_for(bytes.max(PACKED_BYTES_MAX)) else {
                break;
            };
            let payload = header.payload(ring.unit(index));
            // SAFETY: the units of the record lie within the peer's mapped ring; the Receive was
            // posted, so its first buffer is the port's alone, and has room for the bytes, and for
            // the longest that are packed.
            unsafe {
                if header.op == op::SEND_PACKED {
                    packed::unpack(payload, header.flags, bytes as usize, place);
                    forecast.received_lines_behind = 0;
                } else {
                    copy_small(payload, place, bytes as usize);
                    forecast.received_lines_behind = lines_behind(bytes);
                }
            }
            if forecast.received_many {
                ring.prefetch(consumer.head().wrapping_add(units));
            }
            push_receive(
                batch,
                id,
                Status::Success,
                self.receive(queue, slot),
                bytes,
                None,
            );
            consumer.advance(units);
            acked = header.acked;
            bytes_copied += u64::from(bytes);
            end.taken += 1;
        }
        if end.taken != 0 {
            channel.forecast.received_many = end.taken >= BURST_RECORDS_MIN;
            channel.stalled = false;
            self.counters.records_in += u64::from(end.taken);
            self.counters.bytes_copied += bytes_copied;
            self.acknowledge(channel, acked);
        }
        end
    }
}

impl Channel {
    /// Asks for the lines of a burst, of as many units as the last one, with its first record of `units` units.
    #[inline]
    fn ask_for_burst(&self, units: u32) {
        if self.in_dirty {
            return;
        }
        let (tail, ring) = (self.producer.tail(), self.producer.memory());
        // What the receiver has not read is not taken away from it.
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
                // The receiver looks at the first line of the record all the time, and takes it
                // away from us with each look: what lies behind it is written first.
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
fn lines_behind(bytes: u32) -> u32 {
    (HEADER_BYTES + bytes - 1) / LINE_BYTES
}
