//! Working off the records that a peer published.
//!
//! Whatever stands in a record may be wrong or hostile. It is read once, and checked against
//! what was mapped; a record whose shape is wrong costs the channel, and nobody else anything.

use super::super::channel::{Channel, Pull, Report, Target};
use super::super::copy::{copy_bytes, copy_small, read_u32, read_u64};
use super::super::key_table::place;
use super::super::link::QueuePairNumber;
use super::super::mapped::MappedRing;
use super::super::queue_pair::State;
use super::super::record::{
    Extension, FLAG_EXTENDED, FLAG_INVALIDATE, FLAG_REVOKED, Header, PIECE_BYTES, Piece, Pieces,
    WRITE_BYTES, op, status_from,
};
use super::super::ring::distance;
use super::core::Core;
use crate::clock::Ticks;
use crate::interface::{
    Completion, CompletionBatch, CompletionKind, QueuePairId, Receive, ReceiveQueueId, RemoteKey,
    Status,
};

/// Records that one visit to a channel works off at most: some yield no completion.
const RECORDS_PER_VISIT: u32 = 64;

/// What a visit to a channel came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Visit {
    /// Something was done.
    pub(super) busy: bool,
    /// There is more to do, although nobody will ring for it.
    pub(super) again: bool,
    /// The peer broke the rules of the ring.
    pub(super) broken: bool,
}

/// What became of the record at the head.
enum Step {
    /// It is done: go on behind it.
    Done,
    /// There is no Receive for it.
    Stalled,
    /// It goes on in the next poll.
    Later,
    /// It is wrong.
    Broken,
}

impl Core {
    /// Works off what the peer of `channel` published, within the bounds of one poll.
    #[inline]
    pub(super) fn visit(
        &mut self,
        channel: &mut Channel,
        now: Ticks,
        batch: &mut CompletionBatch,
    ) -> Visit {
        let mut visit = Visit::default();
        for _ in 0..RECORDS_PER_VISIT {
            if batch.is_full() {
                visit.again = true;
                break;
            }
            let Some(peer) = &channel.peer else {
                return visit;
            };
            let Some(index) = peer.consumer.peek() else {
                channel.stalled = false;
                self.leave(channel, true, &mut visit);
                return visit;
            };
            let (step, units) = self.work_off(channel, index, now, batch);
            match step {
                Step::Done => {
                    visit.busy = true;
                    channel.stalled = false;
                    if let Some(peer) = &mut channel.peer {
                        peer.consumer.advance(units);
                    }
                }
                Step::Stalled => {
                    self.note_stall(channel);
                    visit.again = true;
                    break;
                }
                Step::Later => {
                    visit.again = true;
                    visit.busy |= channel.pull.target != Target::Nothing;
                    break;
                }
                Step::Broken => {
                    visit.broken = true;
                    return visit;
                }
            }
        }
        visit.again = true;
        self.leave(channel, false, &mut visit);
        visit
    }

    /// What remains to be done at the end of a visit; `drained` when the ring was found empty.
    #[inline]
    fn leave(&mut self, channel: &mut Channel, drained: bool, visit: &mut Visit) {
        if channel.has_reports() {
            let not_before = self.not_before();
            channel.flush_reports(not_before, &mut self.counters);
            visit.again |= channel.has_reports();
        }
        if !channel.gone.is_empty() {
            self.flush_gone(channel, drained);
            visit.again |= !channel.gone.is_empty();
        }
        if visit.busy {
            let units = channel.inbound_units();
            if channel.untold_units() >= units / 4 {
                channel.tell();
            }
            self.mark_untold(channel);
        }
    }

    #[cold]
    fn note_stall(&mut self, channel: &mut Channel) {
        if !channel.stalled {
            channel.stalled = true;
            self.counters.receiver_not_ready += 1;
        }
    }

    /// Flushes the queue pairs whose peer is gone, once all that it published is worked off, or
    /// cannot be.
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

    /// Works on the record at `index`. Also returns the units that it takes.
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
        ring.prefetch_second_line(index);
        let header = ring.read_header(index);
        let to_end = peer.consumer.to_end(index);
        let units = header.units();
        if header.op == op::PAD {
            // A pad of a whole ring would never end.
            let step = if index == 0 { Step::Broken } else { Step::Done };
            return (step, to_end);
        }
        if units > to_end {
            return (Step::Broken, units);
        }
        let extension = if header.flags & FLAG_EXTENDED == 0 {
            Extension::default()
        } else {
            ring.read_extension(index)
        };
        if extension.not_before > now {
            return (Step::Later, units);
        }
        self.acknowledge(channel, header.acked);
        let step = self.execute(channel, index, header, extension, batch);
        if !matches!(step, Step::Stalled | Step::Broken) {
            self.counters.records_in += 1;
        }
        (step, units)
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
            op::SEND => self.receive_copied(channel, index, header, queue_pair, invalidate, batch),
            op::SEND_PULLED => {
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

    /// The queue pair that a record of `channel` is for, when it can still receive.
    #[inline]
    fn addressee(&self, channel: &Channel, number: QueuePairNumber) -> Option<u32> {
        let index = number.id().index;
        let queue_pair = self.queue_pairs.get(index as usize)?;
        // A peer reaches only its own queue pairs, whatever numbers it invents.
        let good = queue_pair.local == number
            && queue_pair.channel == channel.number
            && matches!(queue_pair.state, State::Connected | State::Accepting);
        good.then_some(index)
    }

    /// Takes a Receive for a message of `bytes` bytes, and invalidates the key that came along.
    /// Fails the queue pair when either cannot be.
    #[inline]
    fn take_receive(
        &mut self,
        channel: &mut Channel,
        queue_pair: u32,
        bytes: u32,
        invalidate: Option<RemoteKey>,
        batch: &mut CompletionBatch,
    ) -> Result<(usize, u32), Step> {
        let id = self.queue_pairs[queue_pair as usize].id();
        let queue = self.queue_pairs[queue_pair as usize].receive_queue;
        if self.not_ready_polls > 0 {
            return Err(Step::Stalled);
        }
        let receive_queue = &mut self.receive_queues[queue];
        let Some(slot) = receive_queue.take() else {
            return Err(Step::Stalled);
        };
        let first = receive_queue.segment(slot, 0).map_or(0, |b| b.capacity());
        if bytes > first && u64::from(bytes) > receive_queue.capacity(slot) {
            // As on an InfiniBand RC queue pair: a length error here, a remote operation error
            // at the sender, and both queue pairs end.
            let receive = receive(queue, slot);
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

    /// The record at the head cannot be done: both queue pairs end, and the peer learns why.
    #[cold]
    fn refuse(&mut self, channel: &mut Channel, queue_pair: u32, status: Status) {
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
        let bytes = u32::from(header.payload_bytes);
        let (queue, slot) = match self.take_receive(channel, queue_pair, bytes, invalidate, batch) {
            Ok(taken) => taken,
            Err(step) => return step,
        };
        let Some(peer) = &channel.peer else {
            return Step::Broken;
        };
        let source = payload(peer.consumer.memory(), index, header);
        let receive_queue = &self.receive_queues[queue];
        match receive_queue.segment(slot, 0) {
            Some(first) if first.capacity() >= bytes => {
                // SAFETY: `visit` checked that the record lies within the peer's mapped ring; the
                // Receive was posted, so its buffer is the port's alone and has the room.
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
        let id = self.queue_pairs[queue_pair as usize].id();
        let receive = receive(queue, slot);
        push_receive(batch, id, Status::Success, receive, bytes, invalidate);
        Step::Done
    }

    fn receive_pulled(
        &mut self,
        channel: &mut Channel,
        index: u32,
        header: Header,
        queue_pair: u32,
        invalidate: Option<RemoteKey>,
        batch: &mut CompletionBatch,
    ) -> Step {
        if header.flags & FLAG_REVOKED != 0 {
            return Step::Done;
        }
        if !read_pieces(channel, index, header, 0) {
            return Step::Broken;
        }
        let bytes = channel.pull.pieces.total();
        let (queue, slot) = match self.take_receive(channel, queue_pair, bytes, invalidate, batch) {
            Ok(taken) => taken,
            Err(step) => return step,
        };
        let target = Target::Receive {
            queue,
            slot,
            invalidated: invalidate,
        };
        self.begin_pulling(channel, index, header, queue_pair, target);
        self.go_on_pulling(channel, batch)
    }

    fn write_window(
        &mut self,
        channel: &mut Channel,
        index: u32,
        header: Header,
        queue_pair: u32,
        batch: &mut CompletionBatch,
    ) -> Step {
        if header.flags & FLAG_REVOKED != 0 {
            return Step::Done;
        }
        let Some((key, offset)) = read_write(channel, index, header) else {
            return Step::Broken;
        };
        if !read_pieces(channel, index, header, WRITE_BYTES) {
            return Step::Broken;
        }
        let bytes = channel.pull.pieces.total();
        let allowed = self.windows.writable(key, queue_pair, offset, bytes);
        if allowed.is_err() {
            self.refuse(channel, queue_pair, Status::RemoteAccess);
            return Step::Done;
        }
        let target = Target::Window { key, offset };
        self.begin_pulling(channel, index, header, queue_pair, target);
        self.go_on_pulling(channel, batch)
    }

    fn begin_pulling(
        &mut self,
        channel: &mut Channel,
        index: u32,
        header: Header,
        queue_pair: u32,
        target: Target,
    ) {
        let pull = &mut channel.pull;
        pull.target = target;
        pull.queue_pair = self.queue_pairs[queue_pair as usize].local;
        pull.index = index;
        pull.units = header.units();
        pull.done = 0;
    }

    /// Moves bytes from the peer's arena, as many as this poll may.
    fn go_on_pulling(&mut self, channel: &mut Channel, batch: &mut CompletionBatch) -> Step {
        let number = channel.pull.queue_pair;
        let Some(queue_pair) = self.addressee(channel, number) else {
            // The queue pair failed meanwhile: the message never arrived.
            self.drop_pull(channel);
            self.counters.records_stale += 1;
            return Step::Done;
        };
        let total = channel.pull.pieces.total();
        while channel.pull.done < total {
            if self.copy_budget == 0 {
                return Step::Later;
            }
            match self.pull_piece(channel, queue_pair) {
                Ok(0) | Err(_) => {
                    let status = Status::RemoteAccess;
                    self.drop_pull(channel);
                    self.refuse(channel, queue_pair, status);
                    return Step::Done;
                }
                Ok(count) => {
                    channel.pull.done += count;
                    self.copy_budget -= count;
                    self.counters.bytes_pulled += u64::from(count);
                }
            }
        }
        self.finish_pulling(channel, queue_pair, total, batch);
        Step::Done
    }

    /// Copies the next contiguous piece, within the budget.
    fn pull_piece(&self, channel: &Channel, queue_pair: u32) -> Result<u32, ()> {
        let Pull {
            target,
            done,
            pieces,
            ..
        } = &channel.pull;
        let peer = channel.peer.as_ref().ok_or(())?;
        let piece = pieces.at(*done).ok_or(())?;
        let source = place(&peer.arena, piece.offset).ok_or(())?;
        let left = pieces.total() - done;
        let (to, room) = match *target {
            Target::Nothing => return Err(()),
            Target::Receive { queue, slot, .. } => {
                let receive_queue = self.receive_queues.get(queue).ok_or(())?;
                receive_queue.at(slot, *done).ok_or(())?
            }
            Target::Window { key, offset } => {
                // Asked anew each time: the window may have ended since.
                let at = offset + u64::from(*done);
                let at = self
                    .windows
                    .writable(key, queue_pair, at, left)
                    .map_err(|_| ())?;
                let to = place(self.memory.mapping(), at).ok_or(())?;
                (to.as_ptr(), left)
            }
        };
        let count = piece.bytes.min(room).min(self.copy_budget);
        // SAFETY: the source was checked against the peer's mapped arena when the pieces were
        // read; the target is a posted Receive, or a bound window within our arena, whose buffers
        // are the port's alone.
        unsafe { copy_bytes(source.as_ptr(), to, count as usize) };
        Ok(count)
    }

    fn finish_pulling(
        &mut self,
        channel: &mut Channel,
        queue_pair: u32,
        bytes: u32,
        batch: &mut CompletionBatch,
    ) {
        let Target::Receive {
            queue,
            slot,
            invalidated,
        } = channel.pull.target
        else {
            channel.pull.target = Target::Nothing;
            return;
        };
        let revoked = channel
            .peer
            .as_ref()
            .is_none_or(|peer| peer.consumer.memory().is_revoked(channel.pull.index));
        if revoked {
            self.drop_pull(channel);
            return;
        }
        channel.pull.target = Target::Nothing;
        let id = self.queue_pairs[queue_pair as usize].id();
        let receive = receive(queue, slot);
        push_receive(batch, id, Status::Success, receive, bytes, invalidated);
    }

    /// Ends a pull without a completion: its Receive is posted as before.
    pub(super) fn drop_pull(&mut self, channel: &mut Channel) {
        if let Target::Receive { queue, slot, .. } = channel.pull.target
            && let Some(receive_queue) = self.receive_queues.get_mut(queue)
        {
            receive_queue.put_back(slot);
        }
        channel.pull.target = Target::Nothing;
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
        // Acknowledged up to the failed record: what is first in the list is it, if anybody waits
        // for it.
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
fn payload(ring: &MappedRing, index: u32, header: Header) -> *const u8 {
    ring.unit(index)
        .wrapping_add(header.payload_offset() as usize)
        .cast_const()
}

/// Reads the gather list of a descriptor, which begins `skip` bytes into the payload, into the
/// channel's pull. False when it is wrong.
fn read_pieces(channel: &mut Channel, index: u32, header: Header, skip: u32) -> bool {
    let Some(peer) = &channel.peer else {
        return false;
    };
    let Some(bytes) = u32::from(header.payload_bytes).checked_sub(skip) else {
        return false;
    };
    if bytes == 0 || !bytes.is_multiple_of(PIECE_BYTES) {
        return false;
    }
    let list = payload(peer.consumer.memory(), index, header).wrapping_add(skip as usize);
    let arena_bytes = peer.arena.bytes() as u64;
    channel.pull.pieces.clear();
    (0..bytes / PIECE_BYTES).all(|number| {
        let place = list.wrapping_add((number * PIECE_BYTES) as usize);
        // SAFETY: `bytes` bytes behind `list` lie within the record, which `work_off` checked to
        // lie within the mapped ring; aligned; each word is read once.
        let piece = unsafe {
            Piece {
                offset: read_u64(place),
                bytes: read_u32(place.add(8)),
            }
        };
        let pieces: &mut Pieces = &mut channel.pull.pieces;
        pieces.push(piece, arena_bytes)
    })
}

/// Reads where an RDMA Write goes.
fn read_write(channel: &Channel, index: u32, header: Header) -> Option<(RemoteKey, u64)> {
    let peer = channel.peer.as_ref()?;
    if u32::from(header.payload_bytes) < WRITE_BYTES {
        return None;
    }
    let place = payload(peer.consumer.memory(), index, header);
    // SAFETY: the payload is at least this long, within the mapped ring; aligned; read once.
    let (offset, key) = unsafe { (read_u64(place), read_u32(place.add(8))) };
    Some((RemoteKey(key), offset))
}

#[inline]
fn receive(queue: usize, slot: u32) -> Receive {
    // Receive queues are numbered by 16 bits (`create_receive_queue`).
    let queue = ReceiveQueueId(u16::try_from(queue).unwrap_or(u16::MAX));
    Receive { queue, slot }
}

#[inline]
fn push_receive(
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
