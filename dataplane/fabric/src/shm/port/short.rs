//! The hot path in both directions: a Send of few bytes, without extension, in one unit of the
//! ring, and where its zeroes allow it in one line.
//!
//! Whatever is out of the ordinary in the least is left to [`Core::visit`](super::core::Core) and
//! [`Channel::publish`], before anything was changed.

use super::super::channel::{Channel, Target};
use super::super::copy::{copy_block, copy_from};
use super::super::link::QueuePairNumber;
use super::super::packed;
use super::super::queue_pair::State;
use super::super::record::{FIRST_LINE_BYTES, Header, SHORT_BYTES_MAX, op};
use super::core::Core;
use super::inbound::push_receive;
use crate::interface::{CompletionBatch, Status};
use crate::memory::Buffer;

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
            let Some(index) = consumer.peek() else {
                end.drained = true;
                break;
            };
            let ring = consumer.memory();
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
            let Some((slot, place)) = receive_queue.take_for(SHORT_BYTES_MAX) else {
                break;
            };
            let payload = header.payload(ring.unit(index));
            // SAFETY: a short record lies within one unit of the peer's mapped ring; the Receive
            // was posted, so its first buffer is the port's alone, and has room for the longest.
            unsafe {
                if header.op == op::SEND_PACKED {
                    packed::unpack(payload, header.flags, bytes as usize, place);
                } else {
                    copy_from::<0>(payload, place, bytes as usize);
                }
            }
            push_receive(
                batch,
                id,
                Status::Success,
                self.receive(queue, slot),
                bytes,
                None,
            );
            consumer.advance(1);
            acked = header.acked;
            bytes_copied += u64::from(bytes);
            end.taken += 1;
        }
        if end.taken != 0 {
            channel.stalled = false;
            self.counters.records_in += u64::from(end.taken);
            self.counters.bytes_copied += bytes_copied;
            self.acknowledge(channel, acked);
        }
        end
    }
}

impl Channel {
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
        let Some(index) = self.producer.reserve_one() else {
            return false;
        };
        let Some(header) = self.short_header(destination, bytes) else {
            return false;
        };
        let ring = self.producer.memory();
        let payload = header.payload(ring.unit(index)).cast_mut();
        let (source, bytes) = (source.start(), bytes as usize);
        self.producer.clear_next(1);
        // SAFETY: the buffer is borrowed and holds `bytes` bytes, of which `short_header` checked
        // the number; the unit is reserved for us, and has room for them.
        let header = unsafe {
            if let Some(mask) = packed::mask_of(source, bytes) {
                packed::pack(source, mask, bytes, payload);
                Header {
                    op: op::SEND_PACKED,
                    flags: mask,
                    ..header
                }
            } else {
                // The receiver looks at the first line of the record all the time, and takes it
                // away from us with each look: what lies behind it is written first.
                copy_from::<{ FIRST_LINE_BYTES as usize }>(source, payload, bytes);
                copy_block::<{ FIRST_LINE_BYTES as usize }>(source, payload);
                header
            }
        };
        self.producer.memory().write_header(index, header);
        self.told_acked = header.acked;
        self.producer.publish(1);
        true
    }
}
