//! Pulling bytes from a peer's arena: long Sends into a Receive, RDMA Writes into our own windows.
//!
//! A pull is resumable: it moves at most what the poll has left of its budget. Descriptors are
//! read once, when the pull begins, and checked against the peer's arena; whatever can change
//! meanwhile (the queue pair, the window, the sender's mind) is asked anew each time.

use super::super::channel::{Channel, Pull, Target};
use super::super::copy::{copy_small, read_u32, read_u64};
use super::super::key_table::place;
use super::super::record::{FLAG_REVOKED, Header, PIECE_BYTES, Piece, WRITE_BYTES, op};
use super::core::Core;
use super::inbound::{Step, payload, push_receive};
use crate::interface::{CompletionBatch, RemoteKey, Status};

impl Core {
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

    /// Moves bytes from the peer's arena, as many as this poll may.
    pub(super) fn go_on_pulling(
        &mut self,
        channel: &mut Channel,
        batch: &mut CompletionBatch,
    ) -> Step {
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
            index,
            done,
            pieces,
            ..
        } = &channel.pull;
        let peer = channel.peer.as_ref().ok_or(())?;
        let piece = pieces.at(*done).ok_or(())?;
        let source = if piece.in_record {
            let offset = usize::try_from(piece.offset).map_err(|_| ())?;
            let record = peer.consumer.memory().unit(*index);
            record.wrapping_add(offset).cast_const()
        } else {
            place(&peer.arena, piece.offset).ok_or(())?.as_ptr()
        };
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
        // SAFETY: the source was checked against the peer's mapped arena, or its record, when the
        // pieces were read, and the record is not given back before; the target is a posted Receive, or a bound window within our arena, whose buffers
        // are the port's alone.
        unsafe { copy_small(source, to, count as usize) };
        Ok(count)
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

    /// The peer's queue pair took its memory back, which it does when it is in error: what it
    /// published behind that must not arrive past the gap.
    #[cold]
    fn end_at_gap(&mut self, channel: &mut Channel, queue_pair: u32) -> Step {
        self.fail(channel, queue_pair, None);
        Step::Done
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
        // It ends with the payload.
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
