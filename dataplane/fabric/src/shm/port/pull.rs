//! Pulls bytes from a peer's arena: long Sends into a Receive, RDMA Writes into our own windows.
//!
//! A pull can take several polls, because it moves at most what is left of the poll's copy budget. The descriptor is read
//! once, when the pull begins, and checked against the peer's arena. What can change between polls (the queue pair, the
//! window, a revocation by the sender) is checked in each of them.

use super::super::channel::{Channel, Pull, Target};
use super::super::copy::{copy_small, read_u32, read_u64};
use super::super::key_table::place;
use super::super::record::{FLAG_REVOKED, Header, PIECE_BYTES, Piece, WRITE_BYTES, op};
use super::core::Core;
use super::inbound::{Step, payload, push_receive};
use crate::interface::{CompletionBatch, RemoteKey, Status};

impl Core {
    #[inline(always)]
    pub(super) fn receive_pulled(
        &mut self,
        channel: &mut Channel,
        index: u32,
        header: Header,
        queue_pair: u32,
        invalidate: Option<RemoteKey>,
        batch: &mut CompletionBatch,
    ) -> Step {
        if header.flags & FLAG_REVOKED != 0 {
            return self.end_at_gap(channel, queue_pair);
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

    pub(super) fn write_window(
        &mut self,
        channel: &mut Channel,
        index: u32,
        header: Header,
        queue_pair: u32,
        batch: &mut CompletionBatch,
    ) -> Step {
        if header.flags & FLAG_REVOKED != 0 {
            return self.end_at_gap(channel, queue_pair);
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

    /// Continues a pull, within the copy budget of this poll.
    pub(super) fn go_on_pulling(
        &mut self,
        channel: &mut Channel,
        batch: &mut CompletionBatch,
    ) -> Step {
        let number = channel.pull.queue_pair;
        let Some(queue_pair) = self.addressee(channel, number) else {
            // The queue pair has failed since the pull began, so the message is dropped.
            self.drop_pull(channel);
            self.counters.records_stale += 1;
            return Step::Done;
        };
        let total = channel.pull.pieces.total();
        let count = self.copy_budget.min(total - channel.pull.done);
        if self.pull_some(channel, queue_pair, count).is_err() {
            self.drop_pull(channel);
            self.refuse(channel, queue_pair, Status::RemoteAccess);
            return Step::Done;
        }
        channel.pull.done += count;
        self.copy_budget -= count;
        self.counters.bytes_pulled += u64::from(count);
        if channel.pull.done < total {
            return Step::Later;
        }
        self.finish_pulling(channel, queue_pair, total, batch);
        Step::Done
    }

    /// Copies the next `count` bytes, which are not more than what is left.
    fn pull_some(&self, channel: &Channel, queue_pair: u32, count: u32) -> Result<(), ()> {
        let Pull {
            target,
            index,
            done,
            pieces,
            ..
        } = &channel.pull;
        let peer = channel.peer.as_ref().ok_or(())?;
        let sources = pieces.ranges_from(*done).map(|piece| {
            let source = if piece.in_record {
                let offset = usize::try_from(piece.offset).ok()?;
                let record = peer.consumer.memory().unit(*index);
                record.wrapping_add(offset).cast_const()
            } else {
                place(&peer.arena, piece.offset)?.as_ptr().cast_const()
            };
            Some((source, piece.bytes))
        });
        match *target {
            Target::Nothing => Err(()),
            Target::Receive { queue, slot, .. } => {
                let receive_queue = self.receive_queues.get(queue).ok_or(())?;
                let targets = receive_queue.places_from(slot, *done);
                // SAFETY: the sources were checked against the peer's mapped arena, or its record, when the
                // pieces were read, and the record is not freed before the pull ends. The target is a posted
                // Receive, whose buffers belong to the port.
                unsafe { copy_between(sources, targets, count) }
            }
            Target::Window { key, offset } => {
                // Checked in each poll, because the window may have ended since the last one.
                let (at, left) = (offset + u64::from(*done), pieces.total() - done);
                let at = self.windows.writable(key, queue_pair, at, left);
                let to = self.memory.place(at.map_err(|_| ())?).ok_or(())?;
                // SAFETY: the sources as above. The target is a bound window with `left` bytes from there on, within
                // our arena or memory of the application, whose buffer belongs to the port.
                unsafe { copy_between(sources, std::iter::once((to.as_ptr(), left)), count) }
            }
        }
    }

    fn finish_pulling(
        &mut self,
        channel: &mut Channel,
        queue_pair: u32,
        bytes: u32,
        batch: &mut CompletionBatch,
    ) {
        let revoked = channel
            .peer
            .as_ref()
            .is_none_or(|peer| peer.consumer.memory().is_revoked(channel.pull.index));
        if revoked {
            self.drop_pull(channel);
            self.end_at_gap(channel, queue_pair);
            return;
        }
        let target = std::mem::replace(&mut channel.pull.target, Target::Nothing);
        if let Target::Receive {
            queue,
            slot,
            invalidated,
        } = target
        {
            let id = self.queue_pairs[queue_pair as usize].id();
            let receive = self.receive(queue, slot);
            push_receive(batch, id, Status::Success, receive, bytes, invalidated);
        }
    }

    /// Puts the queue pair in error, because the peer's is in error and has revoked the memory of a record. Later records
    /// must not arrive after the missing one.
    #[cold]
    fn end_at_gap(&mut self, channel: &mut Channel, queue_pair: u32) -> Step {
        self.fail(channel, queue_pair, None);
        Step::Done
    }

    /// Ends a pull without a completion, and posts its Receive again.
    pub(super) fn drop_pull(&mut self, channel: &mut Channel) {
        if let Target::Receive { queue, slot, .. } = channel.pull.target
            && let Some(receive_queue) = self.receive_queues.get_mut(queue)
        {
            receive_queue.put_back(slot);
        }
        channel.pull.target = Target::Nothing;
    }
}

/// Copies `bytes` bytes from one list of ranges to another. Fails if either is too short, or a source is `None`.
///
/// # Safety
///
/// As [`copy_small`], for every source with every target.
#[inline]
unsafe fn copy_between(
    mut sources: impl Iterator<Item = Option<(*const u8, u32)>>,
    mut targets: impl Iterator<Item = (*mut u8, u32)>,
    bytes: u32,
) -> Result<(), ()> {
    let (mut target, mut room) = (std::ptr::null_mut::<u8>(), 0_u32);
    let mut left = bytes;
    while left != 0 {
        let (mut source, there) = sources.next().flatten().ok_or(())?;
        let mut there = there.min(left);
        left -= there;
        while there != 0 {
            if room == 0 {
                (target, room) = targets.next().ok_or(())?;
            }
            let count = there.min(room);
            // SAFETY: as the caller promises: no more than is left of both ranges.
            unsafe { copy_small(source, target, count as usize) };
            source = source.wrapping_add(count as usize);
            target = target.wrapping_add(count as usize);
            there -= count;
            room -= count;
        }
    }
    Ok(())
}

/// Reads the gather list of a descriptor, from `skip` bytes into the payload, into the channel's pull.
/// Returns false if it is malformed.
#[inline(always)]
fn read_pieces(channel: &mut Channel, index: u32, header: Header, skip: u32) -> bool {
    let Some(peer) = &channel.peer else {
        return false;
    };
    let Some(bytes) = u32::from(header.payload_bytes).checked_sub(skip) else {
        return false;
    };
    let list = payload(peer.consumer.memory(), index, header).wrapping_add(skip as usize);
    let arena_bytes = peer.arena.bytes() as u64;
    let pieces = &mut channel.pull.pieces;
    pieces.clear();
    let (first, bytes) = if header.op != op::SEND_HEADED {
        (0, bytes)
    } else if bytes < PIECE_BYTES {
        return false;
    } else {
        // SAFETY: the first piece lies within the payload, as below; its word is read once.
        let head_bytes = unsafe { read_u32(list.add(8)) };
        let Some(bytes) = bytes.checked_sub(head_bytes) else {
            return false;
        };
        let offset = u64::from(header.payload_offset() + bytes);
        let head = Piece {
            offset,
            bytes: head_bytes,
            in_record: true,
        };
        // The head is the end of the payload.
        if !pieces.push(head, offset + u64::from(head_bytes)) {
            return false;
        }
        (1, bytes)
    };
    if bytes == 0 || !bytes.is_multiple_of(PIECE_BYTES) {
        return false;
    }
    (first..bytes / PIECE_BYTES).all(|number| {
        let place = list.wrapping_add((number * PIECE_BYTES) as usize);
        // SAFETY: `bytes` bytes behind `list` lie within the record, which `work_off` checked to
        // lie within the mapped ring; aligned; each word is read once.
        let piece = unsafe {
            Piece {
                offset: read_u64(place),
                bytes: read_u32(place.add(8)),
                in_record: false,
            }
        };
        pieces.push(piece, arena_bytes)
    })
}

/// Reads the key and the offset of an RDMA Write.
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
