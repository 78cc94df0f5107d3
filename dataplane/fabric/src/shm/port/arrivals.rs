//! Receives short Sends: Sends of few bytes, without extension, in adjacent units of the ring.
//!
//! [`PortPoll::begin_poll`] counts the short Sends at the heads of the hot rings and leaves them there. The caller then
//! takes one after the other. Each is copied into the same buffer, the inbox, which stays in the cache. So most of them
//! need no Receive and no completion, and a reply leaves before the next call is copied. A message is taken only while a
//! Receive is posted for it, so that the caller can always keep it.
//!
//! The receiver prefetches as many lines as the last message had, before it reads the first line.
//!
//! An unusual case goes to [`Core::visit`](super::core::Core) before anything is changed.
//!
//! [`PortPoll::begin_poll`]: crate::interface::PortPoll::begin_poll

use super::super::channel::{Channel, Target};
use super::super::copy::{copy_small, read_u64};
use super::super::link::QueuePairNumber;
use super::super::packed;
use super::super::queue_pair::{Receiving, State};
use super::super::record::{
    FORM_WORD_BYTES, FORMED_BYTES_MAX, HEADER_BYTES, Header, SHORT_BYTES_MAX, op,
};
use super::Port;
use super::core::{Core, channel_mut};
use super::inbound::{Visit, push_receive};
use super::short::lines_behind;
use crate::clock::Ticks;
use crate::interface::{Arrival, CompletionBatch, FormShape, Formed, Receive, Status};

/// The records at the head of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Head {
    /// A number of short Sends, at least one.
    Short(usize),
    /// Another record, or a state that needs the general path.
    Other,
    /// No record.
    Nothing,
}

impl FormShape {
    /// The bytes of the words in a payload.
    #[inline]
    pub(super) const fn words_bytes(self) -> usize {
        (self.words as u32 * FORM_WORD_BYTES) as usize
    }

    /// The bytes of a message with a payload of so many bytes. `None` if its words are not there, or it is longer than one in a
    /// short record.
    #[inline]
    pub(super) fn message_bytes(self, payload_bytes: u32) -> Option<u32> {
        let words_bytes = u32::from(self.words) * FORM_WORD_BYTES;
        let behind_bytes = payload_bytes.checked_sub(words_bytes)?;
        (payload_bytes <= FORMED_BYTES_MAX).then_some(u32::from(self.header_bytes) + behind_bytes)
    }
}

/// Reads the words of a form, each once.
///
/// # Safety
///
/// `payload` is that of a record in a mapped ring, whose first line it does not leave. A peer may change it meanwhile.
#[inline(always)]
pub(super) unsafe fn read_words(payload: *const u8, form: u8, shape: FormShape) -> Formed {
    // SAFETY: as the caller promises: the words of any form are in the first line.
    let word = |number: u32| unsafe { read_u64(payload.add((number * FORM_WORD_BYTES) as usize)) };
    let words = match shape.words {
        1 => [word(0), 0, 0, 0],
        _ => [word(0), word(1), word(2), word(3)],
    };
    Formed {
        form,
        count: shape.words,
        words,
    }
}

impl Core {
    /// Counts the short Sends at the head of the ring, at most `most`. It checks only the header of the first one;
    /// [`Core::take_short`] checks each of them.
    #[inline]
    fn count_short(&self, channel: &mut Channel, most: usize) -> Head {
        let Some(peer) = &channel.peer else {
            return Head::Nothing;
        };
        debug_assert_eq!(channel.pull.target, Target::Nothing);
        if self.not_ready_polls != 0 || most == 0 {
            return Head::Other;
        }
        let (consumer, forecast) = (&peer.consumer, &channel.forecast);
        let ring = consumer.memory();
        let first = consumer.head();
        ring.prefetch_behind(first, forecast.received_lines_behind);
        let Some(index) = consumer.peek() else {
            return Head::Nothing;
        };
        let shape = ring.read_shape(index);
        let [low, high, op, _] = shape.to_le_bytes();
        // Whoever takes a formed one checks its length.
        let bytes = match op {
            op::SEND_FORMED => u16::from_le_bytes([low, high]).into(),
            _ => match Header::from_words(0, 0, shape).short_bytes() {
                Some(bytes) => bytes,
                None => return Head::Other,
            },
        };
        // Assumes that the next ones have the same length. Their positions are then known, and their lines are prefetched
        // before this record is read.
        let units = Header::short_units(bytes);
        let mut position = first;
        let mut count = 1;
        while count < most {
            position = position.wrapping_add(units);
            if !consumer.is_published(position) {
                break;
            }
            ring.prefetch_behind(position, forecast.received_lines_behind);
            count += 1;
        }
        if count == most {
            // The next poll begins at this position.
            ring.prefetch(position.wrapping_add(units));
        }
        Head::Short(count)
    }

    /// Moves the record at the head of the ring into the inbox, if it is a short Send that can be received.
    // Always: where this is called, an arrival stays in registers.
    #[inline(always)]
    pub(super) fn take_short(&mut self, channel: &mut Channel) -> Option<Arrival> {
        let consumer = &mut channel.peer.as_mut()?.consumer;
        let index = consumer.peek()?;
        let ring = *consumer.memory();
        let header = ring.read_header(index);
        // The key has the channel: a peer does not reach the queue pairs of others.
        let key = Receiving::key(channel.number, header.destination);
        if self.checked.receiving.key != key
            && !self.check_receiving(channel.number, header.destination)
        {
            return None;
        }
        let queue = self.checked.receiving.queue;
        let payload_bytes = u32::from(header.payload_bytes);
        let units = Header::short_units(payload_bytes);
        // One unit always ends within the ring.
        if units != 1 && units > consumer.to_end(index) {
            return None;
        }
        let receives = self.receive_queues.get(queue)?;
        let payload = ring.unit(index).wrapping_add(HEADER_BYTES as usize);
        let (bytes, held_bytes, formed);
        if header.op == op::SEND_FORMED {
            let shape = self.shapes.get(header.flags)?;
            bytes = shape.message_bytes(payload_bytes)?;
            if !receives.has_for(bytes) {
                return None;
            }
            held_bytes = bytes - u32::from(shape.header_bytes);
            // SAFETY: the units of the record lie within the peer's mapped ring, and `message_bytes` checked the bytes; the words
            // of a form are in the first line of the record. The inbox is ours, and has room for the longest message that is short.
            unsafe {
                if held_bytes != 0 {
                    let place = self.inbox.bytes.as_mut_ptr();
                    copy_small(payload.add(shape.words_bytes()), place, held_bytes as usize);
                }
                formed = read_words(payload, header.flags, shape);
            }
            channel.forecast.received_lines_behind = lines_behind(payload_bytes);
        } else {
            bytes = header.short_bytes()?;
            if !receives.has_for(bytes) {
                return None;
            }
            (held_bytes, formed) = (bytes, Formed::NONE);
            // SAFETY: the units of the record lie within the peer's mapped ring, and `short_bytes` checked the bytes.
            channel.forecast.received_lines_behind =
                unsafe { self.copy_octets(payload, header, bytes) };
        }
        consumer.advance(units);
        channel.short_acked = header.acked;
        self.counters.records_in += 1;
        self.counters.bytes_copied += u64::from(held_bytes);
        Some(Arrival {
            queue_pair: self.checked.receiving.id,
            bytes,
            held_bytes,
            number: self.counters.records_in,
            formed,
        })
    }

    /// Checks whether the queue pair `destination` may receive from a channel, and remembers it.
    #[inline(never)]
    fn check_receiving(&mut self, channel: u32, destination: u32) -> bool {
        let local = QueuePairNumber(destination);
        let id = local.id();
        let Some(queue_pair) = self.queue_pairs.get(id.index as usize) else {
            return false;
        };
        let is_open = queue_pair.local == local
            && queue_pair.channel == channel
            && matches!(queue_pair.state, State::Connected | State::Accepting);
        if is_open {
            let queue = queue_pair.receive_queue;
            let key = Receiving::key(channel, destination);
            self.checked.receiving = Receiving { key, id, queue };
        }
        is_open
    }

    /// Copies the octets of a short Send, plain or packed, into the inbox. Returns the lines of its record after the first one.
    ///
    /// # Safety
    ///
    /// The record lies within the peer's mapped ring, and `bytes` is what `short_bytes` of its header returned.
    #[inline(never)]
    unsafe fn copy_octets(&mut self, payload: *const u8, header: Header, bytes: u32) -> u32 {
        let place = self.inbox.bytes.as_mut_ptr();
        // SAFETY: as the caller promises; the inbox is ours, and has room for the longest message that is short.
        unsafe {
            if header.op == op::SEND_PACKED {
                packed::unpack(payload, header.flags, bytes as usize, place);
                return 0;
            }
            copy_small(payload, place, bytes as usize);
        }
        lines_behind(bytes)
    }

    /// Moves the message in the inbox into a Receive.
    pub(super) fn keep_arrival(&mut self, arrival: &Arrival) -> Option<Receive> {
        // The inbox has another message, or none, once another record was taken.
        if self.counters.records_in != arrival.number {
            return None;
        }
        let index = self.index_of_id(arrival.queue_pair)?;
        let queue = self.queue_pairs.get(index as usize)?.receive_queue;
        let bytes = arrival.bytes.min(SHORT_BYTES_MAX);
        let (slot, place) = self.receive_queues.get_mut(queue)?.take_for(bytes)?;
        let inbox = &self.inbox;
        match arrival.formed() {
            Some(formed) => {
                let behind = inbox.message(arrival.held_bytes);
                // SAFETY: the Receive was posted, so its first buffer belongs to the port alone, and no slice of it exists. It has
                // room for the bytes, and is mapped memory, of which every byte has a value.
                let message = unsafe { std::slice::from_raw_parts_mut(place, bytes as usize) };
                let unfolded = (self.forms.unfold)(formed, behind, message);
                if unfolded != Some(bytes as usize) {
                    debug_assert!(false, "a form has one length");
                    self.receive_queues.get_mut(queue)?.put_back(slot);
                    return None;
                }
            }
            // SAFETY: as above; the inbox holds as many bytes.
            None => unsafe { copy_small(inbox.bytes.as_ptr(), place, bytes as usize) },
        }
        Some(self.receive(queue, slot))
    }

    /// Receives the short Sends at the head of the ring, each into a Receive.
    pub(super) fn receive_short(
        &mut self,
        channel: &mut Channel,
        batch: &mut CompletionBatch,
    ) -> Visit {
        let mut visit = Visit::IDLE;
        if channel.pull.target != Target::Nothing || self.not_ready_polls != 0 {
            return visit;
        }
        while !batch.is_full()
            && let Some(arrival) = self.take_short(channel)
        {
            self.push_arrival(&arrival, batch);
            visit = Visit::BUSY;
        }
        if visit.is_busy() {
            channel.stalled = false;
            self.acknowledge(channel, channel.short_acked);
        }
        visit
    }

    /// Moves the message in the inbox into a Receive and appends its completion to the batch, which has room.
    pub(super) fn push_arrival(&mut self, arrival: &Arrival, batch: &mut CompletionBatch) {
        let kept = self.keep_arrival(arrival);
        debug_assert!(kept.is_some(), "there was a Receive for it a moment ago");
        if let Some(receive) = kept {
            let Arrival {
                queue_pair, bytes, ..
            } = *arrival;
            push_receive(batch, queue_pair, Status::Success, receive, bytes, None);
        }
    }
}

impl Port {
    /// Checks a hot channel. Leaves its short Sends for [`Port::take_arrival`]. Returns whether it had work.
    #[inline]
    pub(super) fn look_at(&mut self, number: u32, now: Ticks, batch: &mut CompletionBatch) -> bool {
        let Some(mut channel) = channel_mut(&mut self.channels, number) else {
            return false;
        };
        // This comes late on purpose: by now most replies have acknowledged the messages that were found, and no extra store is
        // needed.
        if std::mem::take(&mut channel.is_visited) && !channel.is_settled() {
            self.leave_unsettled(number);
            match channel_mut(&mut self.channels, number) {
                Some(again) => channel = again,
                None => return false,
            }
        }
        if channel.is_refused {
            return self.visit_within(number, now, batch);
        }
        match self.core.count_short(channel, self.found.room(batch)) {
            Head::Short(count) => {
                channel.last_active = self.core.counters.polls;
                channel.is_visited = true;
                self.found.channels.push((number, count));
                self.found.left += count;
                true
            }
            Head::Nothing if !channel.has_rare_work() => false,
            Head::Nothing | Head::Other => self.visit_within(number, now, batch),
        }
    }

    /// Takes the next short Send that the last poll found.
    ///
    /// If [`Core::take_short`] refuses the next record of a channel, the channel waits for the next poll. There it gets its
    /// share of the batch, and no record that arrived after this poll counts as one that was found by it.
    #[inline(always)]
    pub(super) fn take_arrival(&mut self) -> Option<Arrival> {
        let found = &mut self.found;
        while found.left != 0 {
            if found.here == 0 && !found.turn() {
                debug_assert!(false, "each that is left is of a channel");
                break;
            }
            if let Some(channel) = channel_mut(&mut self.channels, found.number) {
                if let Some(arrival) = self.core.take_short(channel) {
                    found.here -= 1;
                    found.left -= 1;
                    return Some(arrival);
                }
                channel.is_refused = true;
            }
            found.left -= std::mem::take(&mut found.here);
        }
        None
    }

    /// Visits a channel on the general path, without the places of the batch that are kept for the short messages that were
    /// found. Returns whether something was done.
    #[inline(never)]
    fn visit_within(&mut self, number: u32, now: Ticks, batch: &mut CompletionBatch) -> bool {
        let kept_back = self.found.left;
        batch.keep_back(kept_back);
        let busy = self.visit(number, now, batch);
        batch.release(kept_back);
        busy
    }

    /// Ends the visit to a channel on which an earlier poll found short messages. Those that were not taken stay in its ring.
    #[inline(never)]
    fn leave_unsettled(&mut self, number: u32) {
        let Some(channel) = channel_mut(&mut self.channels, number) else {
            return;
        };
        let acked = channel.short_acked;
        self.core.acknowledge(channel, acked);
        if self.core.leave(channel, Visit::BUSY).is_broken() {
            self.break_channel(number);
        }
    }
}
