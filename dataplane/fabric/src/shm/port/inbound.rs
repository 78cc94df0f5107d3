//! Processing the records that a peer published.
//!
//! Every field of a record may be wrong or hostile. It is read once, and checked against what was mapped; a malformed
//! record breaks its channel, and affects nothing else.

use super::super::channel::{Channel, Report, Target};
use super::super::copy::{copy_bytes, copy_small, read_u32};
use super::super::link::QueuePairNumber;
use super::super::mapped::MappedRing;
use super::super::packed;
use super::super::queue_pair::State;
use super::super::record::{
    Extension, FLAG_INVALIDATE, Header, PACKED_BYTES_MAX, SHORT_BYTES_MAX, op, status_from,
};
use super::super::ring::distance;
use super::arrivals::read_words;
use super::core::Core;
use crate::clock::Ticks;
use crate::interface::{
    Completion, CompletionBatch, CompletionKind, QueuePairId, Receive, RemoteKey, Status,
};

/// The most records that one visit to a channel processes. The batch is not enough of a limit: some records yield no
/// completion.
const RECORDS_PER_VISIT: u32 = 64;

/// The result of a visit to a channel, as bits that stay in a register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Visit(u8);

impl Visit {
    /// Nothing was done.
    pub(super) const IDLE: Self = Self(0);
    /// Something was done.
    pub(super) const BUSY: Self = Self(1);
    /// More is left to do, for which no doorbell will ring.
    pub(super) const AGAIN: Self = Self(2);
    /// The peer broke the rules of the ring, or does not read our reports.
    const BROKEN: Self = Self(4);
    /// The ring was found empty.
    const DRAINED: Self = Self(8);

    #[inline]
    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[inline]
    fn and_if(self, condition: bool, other: Self) -> Self {
        if condition { self.and(other) } else { self }
    }

    #[inline]
    fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    #[inline]
    pub(super) fn is_busy(self) -> bool {
        self.has(Self::BUSY)
    }

    #[inline]
    pub(super) fn is_again(self) -> bool {
        self.has(Self::AGAIN)
    }

    #[inline]
    pub(super) fn is_broken(self) -> bool {
        self.has(Self::BROKEN)
    }
}

/// The result for the record at the head.
pub(super) enum Step {
    /// It is processed: continue with the next one.
    Done,
    /// No Receive is posted for it.
    Stalled,
    /// The next poll continues it.
    Later,
    /// It is malformed.
    Broken,
}

impl Core {
    /// Processes the records of the peer of `channel`, within the bounds of one poll.
    #[inline]
    pub(super) fn visit(
        &mut self,
        channel: &mut Channel,
        now: Ticks,
        batch: &mut CompletionBatch,
    ) -> Visit {
        let short = self.receive_short(channel, batch);
        let any = self.visit_any(channel, now, batch);
        self.leave(channel, short.and(any))
    }

    /// Ends a visit: handles reports and gone peers, and reports our progress.
    #[inline]
    pub(super) fn leave(&mut self, channel: &mut Channel, mut visit: Visit) -> Visit {
        if channel.has_rare_work() {
            let drained = visit.has(Visit::DRAINED);
            visit = visit.and(self.leave_rarely(channel, drained));
        }
        if visit.is_busy() {
            if channel.untold_units() >= channel.inbound_units() / 4 {
                channel.tell();
            } else {
                self.mark_untold(channel);
            }
        }
        visit
    }

    /// Processes records of any kind.
    #[inline(never)]
    pub(super) fn visit_any(
        &mut self,
        channel: &mut Channel,
        now: Ticks,
        batch: &mut CompletionBatch,
    ) -> Visit {
        let mut visit = Visit::IDLE;
        for _ in 0..RECORDS_PER_VISIT {
            if batch.is_full() {
                break;
            }
            let Some(peer) = &channel.peer else {
                return visit;
            };
            let Some(index) = peer.consumer.peek() else {
                channel.stalled = false;
                return visit.and(Visit::DRAINED);
            };
            let (step, units) = self.work_off(channel, index, now, batch);
            match step {
                Step::Done => {
                    visit = visit.and(Visit::BUSY);
                    channel.stalled = false;
                    if let Some(peer) = &mut channel.peer {
                        peer.consumer.advance(units);
                    }
                }
                Step::Stalled => {
                    self.note_stall(channel);
                    break;
                }
                Step::Later => {
                    visit = visit.and_if(channel.pull.target != Target::Nothing, Visit::BUSY);
                    break;
                }
                Step::Broken => return visit.and(Visit::BROKEN),
            }
        }
        visit.and(Visit::AGAIN)
    }

    #[cold]
    fn leave_rarely(&mut self, channel: &mut Channel, drained: bool) -> Visit {
        if channel.overrun {
            return Visit::BROKEN;
        }
        let mut visit = Visit::IDLE;
        if channel.has_reports() {
            let not_before = self.not_before();
            channel.flush_reports(not_before, &mut self.counters);
            visit = visit.and_if(channel.has_reports(), Visit::AGAIN);
        }
        if !channel.gone.is_empty() {
            self.flush_gone(channel, drained);
            visit = visit.and_if(!channel.gone.is_empty(), Visit::AGAIN);
        }
        visit
    }

    #[cold]
    fn note_stall(&mut self, channel: &mut Channel) {
        if !channel.stalled {
            channel.stalled = true;
            self.counters.receiver_not_ready += 1;
        }
    }

    /// Flushes the queue pairs whose peer has closed or died, once its records are processed, or cannot be.
    #[cold]
    fn flush_gone(&mut self, channel: &mut Channel, drained: bool) {
        let head = channel.consumed();
        let units = channel.inbound_units();
        let mut kept = 0;
        while let Some(gone) = channel.gone.get(kept).copied() {
            if drained || channel.stalled || distance(gone.from, head) >= units {
                channel.gone.swap_remove(kept);
                if let Some(index) = self.index_of(gone.queue_pair) {
                    self.fail(channel, index, None);
                }
            } else {
                kept += 1;
            }
        }
    }

    /// Processes the record at `index`. Also returns its units.
    #[inline]
    fn work_off(
        &mut self,
        channel: &mut Channel,
        index: u32,
        now: Ticks,
        batch: &mut CompletionBatch,
    ) -> (Step, u32) {
        if channel.pull.target != Target::Nothing {
            return (self.go_on_pulling(channel, batch), channel.pull.units);
        }
        let Some(peer) = &channel.peer else {
            return (Step::Broken, 0);
        };
        let ring = peer.consumer.memory();
        let header = ring.read_header(index);
        let to_end = peer.consumer.to_end(index);
        let units = header.units();
        if header.op == op::PAD {
            // A pad at the start of the ring is as long as the ring, so it would be processed endlessly.
            let step = if index == 0 { Step::Broken } else { Step::Done };
            return (step, to_end);
        }
        if units > to_end {
            return (Step::Broken, units);
        }
        let extension = if header.is_extended() {
            ring.read_extension(index)
        } else {
            Extension::default()
        };
        if extension.not_before > now {
            return (self.put_off(extension.not_before, now), units);
        }
        channel.short_acked = header.acked;
        self.acknowledge(channel, header.acked);
        let step = self.execute(channel, index, header, extension, batch);
        if !matches!(step, Step::Stalled | Step::Broken) {
            self.counters.records_in += 1;
        }
        (step, units)
    }

    /// The step for a record that is not due `now`: it waits. If its time is further ahead than the delay of any port, it is
    /// malformed: it would keep its channel open after the peer has died.
    #[inline(never)]
    fn put_off(&self, not_before: Ticks, now: Ticks) -> Step {
        let is_too_far = |now: Ticks| not_before - now > self.not_before_ahead_max;
        // A thread that was stopped polls with an old reading of the clock, from which newer records seem far ahead, so
        // the clock is read again.
        if is_too_far(now) && is_too_far(self.clock.now().min(not_before)) {
            Step::Broken
        } else {
            Step::Later
        }
    }

    #[inline]
    fn execute(
        &mut self,
        channel: &mut Channel,
        index: u32,
        header: Header,
        extension: Extension,
        batch: &mut CompletionBatch,
    ) -> Step {
        let number = QueuePairNumber(header.destination);
        let Some(queue_pair) = self.addressee(channel, number) else {
            self.counters.records_stale += 1;
            return Step::Done;
        };
        let invalidate =
            (header.flags & FLAG_INVALIDATE != 0).then_some(RemoteKey(extension.invalidate));
        match header.op {
            op::SEND_PACKED => self.receive_packed(channel, index, header, queue_pair, batch),
            op::SEND_FORMED => self.receive_formed(channel, index, header, queue_pair, batch),
            op::SEND => self.receive_copied(channel, index, header, queue_pair, invalidate, batch),
            op::SEND_PULLED | op::SEND_HEADED => {
                self.receive_pulled(channel, index, header, queue_pair, invalidate, batch)
            }
            op::WRITE => self.write_window(channel, index, header, queue_pair, batch),
            op::NAK => self.handle_nak(channel, index, header, queue_pair),
            op::DISCONNECT => {
                self.fail(channel, queue_pair, None);
                Step::Done
            }
            _ => Step::Broken,
        }
    }

    /// The queue pair of `channel` with this number, if it can still receive.
    #[inline]
    pub(super) fn addressee(&self, channel: &Channel, number: QueuePairNumber) -> Option<u32> {
        let index = number.id().index;
        let queue_pair = self.queue_pairs.get(index as usize)?;
        // The check of the channel keeps a peer from reaching the queue pairs of others.
        let good = queue_pair.local == number
            && queue_pair.channel == channel.number
            && matches!(queue_pair.state, State::Connected | State::Accepting);
        good.then_some(index)
    }

    /// Takes a Receive for a message of `bytes` bytes, and invalidates the key of its record. Puts the queue
    /// pair in error if the message is too long or the key cannot be invalidated.
    #[inline(always)]
    pub(super) fn take_receive(
        &mut self,
        channel: &mut Channel,
        queue_pair: u32,
        bytes: u32,
        invalidate: Option<RemoteKey>,
        batch: &mut CompletionBatch,
    ) -> Result<(usize, u32), Step> {
        let queue = self.queue_pairs[queue_pair as usize].receive_queue;
        if self.not_ready_polls > 0 {
            return Err(Step::Stalled);
        }
        let receive_queue = &mut self.receive_queues[queue];
        let Some(slot) = receive_queue.take() else {
            return Err(Step::Stalled);
        };
        if !receive_queue.holds(slot, bytes) {
            // As on an InfiniBand RC queue pair: a length error here, a remote operation error
            // at the sender, and both queue pairs end.
            let receive = self.receive(queue, slot);
            let id = self.queue_pairs[queue_pair as usize].id();
            push_receive(batch, id, Status::LocalLength, receive, 0, None);
            self.refuse(channel, queue_pair, Status::RemoteOperation);
            return Err(Step::Done);
        }
        if let Some(key) = invalidate
            && self.windows.invalidate_remotely(key, queue_pair).is_err()
        {
            self.receive_queues[queue].put_back(slot);
            self.refuse(channel, queue_pair, Status::RemoteAccess);
            return Err(Step::Done);
        }
        Ok((queue, slot))
    }

    /// Refuses the record at the head: both queue pairs end, and the peer gets the status.
    #[cold]
    pub(super) fn refuse(&mut self, channel: &mut Channel, queue_pair: u32, status: Status) {
        let position = channel.consumed();
        self.fail(channel, queue_pair, Some(Report::Nak { position, status }));
    }

    #[inline]
    fn receive_copied(
        &mut self,
        channel: &mut Channel,
        index: u32,
        header: Header,
        queue_pair: u32,
        invalidate: Option<RemoteKey>,
        batch: &mut CompletionBatch,
    ) -> Step {
        let Some(peer) = &channel.peer else {
            return Step::Broken;
        };
        let source = payload(peer.consumer.memory(), index, header);
        self.receive_from(source, channel, header, queue_pair, invalidate, batch)
    }

    /// Receives a packed Send that [`Core::take_short`] could not take.
    #[cold]
    fn receive_packed(
        &mut self,
        channel: &mut Channel,
        index: u32,
        header: Header,
        queue_pair: u32,
        batch: &mut CompletionBatch,
    ) -> Step {
        let (Some(peer), Some(bytes)) = (&channel.peer, header.short_bytes()) else {
            return Step::Broken;
        };
        let source = payload(peer.consumer.memory(), index, header);
        let mut message = [0; PACKED_BYTES_MAX as usize];
        // SAFETY: `short_bytes` checked the bytes, and the record lies within the peer's mapped
        // ring; the message is ours.
        unsafe { packed::unpack(source, header.flags, bytes as usize, message.as_mut_ptr()) };
        self.receive_from(message.as_ptr(), channel, header, queue_pair, None, batch)
    }

    /// Receives a formed Send that [`Core::take_short`] could not take.
    #[cold]
    fn receive_formed(
        &mut self,
        channel: &mut Channel,
        index: u32,
        header: Header,
        queue_pair: u32,
        batch: &mut CompletionBatch,
    ) -> Step {
        let (Some(peer), Some(shape)) = (&channel.peer, self.shapes.get(header.flags)) else {
            return Step::Broken;
        };
        let Some(bytes) = shape.message_bytes(header.payload_bytes.into()) else {
            return Step::Broken;
        };
        let source = payload(peer.consumer.memory(), index, header);
        let mut behind = [0; SHORT_BYTES_MAX as usize];
        let behind_bytes = (bytes - u32::from(shape.header_bytes)) as usize;
        // SAFETY: `message_bytes` checked the bytes, and the record lies within the peer's mapped ring; `behind` is
        // ours, and has room for the longest message that is short.
        let formed = unsafe {
            copy_small(
                source.add(shape.words_bytes()),
                behind.as_mut_ptr(),
                behind_bytes,
            );
            read_words(source, header.flags, shape)
        };
        let mut message = [0; SHORT_BYTES_MAX as usize];
        let behind = behind.get(..behind_bytes).unwrap_or(&[]);
        if (self.forms.unfold)(&formed, behind, &mut message) != Some(bytes as usize) {
            return Step::Broken;
        }
        let header = Header {
            payload_bytes: u16::try_from(bytes).unwrap_or(u16::MAX),
            ..header
        };
        self.receive_from(message.as_ptr(), channel, header, queue_pair, None, batch)
    }

    /// Receives the message at `source`, where the header's number of bytes can be read.
    #[inline]
    fn receive_from(
        &mut self,
        source: *const u8,
        channel: &mut Channel,
        header: Header,
        queue_pair: u32,
        invalidate: Option<RemoteKey>,
        batch: &mut CompletionBatch,
    ) -> Step {
        let bytes = u32::from(header.payload_bytes);
        let (queue, slot) = match self.take_receive(channel, queue_pair, bytes, invalidate, batch) {
            Ok(taken) => taken,
            Err(step) => return step,
        };
        let receive_queue = &self.receive_queues[queue];
        match receive_queue.segment(slot, 0) {
            Some(first) if first.capacity() >= bytes => {
                // SAFETY: the callers have `bytes` bytes at `source`; the Receive was posted, so its
                // buffer is the port's alone and has the room.
                unsafe { copy_small(source, first.start(), bytes as usize) };
            }
            _ => {
                let mut done = 0;
                while done < bytes {
                    let Some((to, room)) = receive_queue.at(slot, done) else {
                        break;
                    };
                    let count = room.min(bytes - done);
                    // SAFETY: as above; `at` gives places within posted buffers.
                    unsafe { copy_bytes(source.wrapping_add(done as usize), to, count as usize) };
                    done += count;
                }
            }
        }
        self.counters.bytes_copied += u64::from(bytes);
        // The queue pair was found by this number, so the id is its own.
        let id = QueuePairNumber(header.destination).id();
        let receive = self.receive(queue, slot);
        push_receive(batch, id, Status::Success, receive, bytes, invalidate);
        Step::Done
    }

    #[cold]
    fn handle_nak(
        &mut self,
        channel: &mut Channel,
        index: u32,
        header: Header,
        queue_pair: u32,
    ) -> Step {
        let Some(peer) = &channel.peer else {
            return Step::Broken;
        };
        if header.payload_bytes != 8 {
            return Step::Broken;
        }
        let source = payload(peer.consumer.memory(), index, header);
        // SAFETY: the record of this length lies within the peer's mapped ring, aligned; read
        // once, since the peer may change it.
        let (position, code) = unsafe { (read_u32(source), read_u32(source.add(4))) };
        self.counters.naks_in += 1;
        // All records before the failed one are acknowledged. So its work request, if it has one, is the
        // first of the list.
        if let Some(first) = channel.unacked.first()
            && self.works.get(first).position == position
            && self.works.get(first).queue_pair == queue_pair
        {
            self.end_unacked(channel, first, status_from(code));
        }
        self.fail(channel, queue_pair, None);
        Step::Done
    }
}

/// The payload of a record.
#[inline]
pub(super) fn payload(ring: &MappedRing, index: u32, header: Header) -> *const u8 {
    ring.unit(index)
        .wrapping_add(header.payload_offset() as usize)
        .cast_const()
}

#[inline]
pub(super) fn push_receive(
    batch: &mut CompletionBatch,
    queue_pair: QueuePairId,
    status: Status,
    receive: Receive,
    bytes: u32,
    invalidated: Option<RemoteKey>,
) {
    let completion = Completion {
        queue_pair,
        status,
        kind: CompletionKind::Receive {
            receive,
            bytes,
            invalidated,
        },
    };
    let pushed = batch.push(completion);
    debug_assert!(
        pushed.is_ok(),
        "a visit goes on only with room in the batch"
    );
}
