//! Completes our own work requests after they are acknowledged, read, failed or flushed.

use super::super::channel::{Channel, Report};
use super::super::copy::copy_bytes;
use super::super::key_table::{Holder, place};
use super::super::queue_pair::State;
use super::super::work::{Kind, Work};
use super::core::{Channels, Core, channel_mut};
use super::inbound::push_receive;
use crate::clock::Ticks;
use crate::interface::{Completion, CompletionBatch, CompletionKind, QueuePairId, Status};

/// Work requests that one poll retires at most. The batch is not enough of a limit, because some yield no
/// completion. Those that end with an acknowledgement, and yield none, come on top.
const FLUSHED_PER_POLL: u32 = 64;
/// Queue pairs whose RDMA Reads one poll continues.
const READERS_PER_POLL: usize = 4;
/// Channels whose acknowledgements one poll reads.
const AWAITING_PER_POLL: usize = 8;

impl Core {
    /// Whether there is something to complete, or to read.
    #[inline]
    pub(super) fn has_own_work(&self) -> bool {
        !self.ready.is_empty() | !self.readers.is_empty()
    }

    /// Completes ended work requests and continues RDMA Reads, within their share of the poll. Returns
    /// whether something was done.
    #[inline(never)]
    pub(super) fn work_in_share(
        &mut self,
        channels: &mut Channels,
        now: Ticks,
        batch: &mut CompletionBatch,
    ) -> bool {
        // Another bit of the counter than for cold channels, so that every combination of roundings occurs.
        let kept = self.keep_half(batch, self.counters.polls >> 1);
        let mut busy = self.complete_ready(channels, batch);
        busy |= self.go_on_reading(channels, now, true);
        self.give_rest(batch, &kept);
        busy
    }

    /// As [`Core::work_in_share`], but with all that is left of the poll.
    #[inline(never)]
    pub(super) fn work_in_rest(
        &mut self,
        channels: &mut Channels,
        now: Ticks,
        batch: &mut CompletionBatch,
    ) -> bool {
        let busy = self.complete_ready(channels, batch);
        self.go_on_reading(channels, now, false) || busy
    }

    /// Completes ended work requests of all queue pairs. Returns whether something was done.
    fn complete_ready(&mut self, channels: &mut Channels, batch: &mut CompletionBatch) -> bool {
        let mut budget = FLUSHED_PER_POLL;
        let mut busy = false;
        for _ in 0..self.ready.len() {
            if batch.is_full() || budget == 0 {
                return true;
            }
            let Some(index) = self.ready.pop_front() else {
                break;
            };
            busy = true;
            let number = self.queue_pairs[index as usize].channel;
            let finished = match channel_mut(channels, number) {
                Some(channel) => self.complete_queue_pair(channel, index, batch, &mut budget),
                None => true,
            };
            if finished {
                self.queue_pairs[index as usize].in_ready = false;
            } else {
                self.ready.push_back(index);
            }
        }
        busy
    }

    /// Completes ended work requests of one queue pair, in the order of posting. Returns whether nothing is
    /// left to complete now.
    fn complete_queue_pair(
        &mut self,
        channel: &mut Channel,
        index: u32,
        batch: &mut CompletionBatch,
        budget: &mut u32,
    ) -> bool {
        while let Some(first) = self.queue_pairs[index as usize].works.first() {
            let queue_pair = &self.queue_pairs[index as usize];
            let work = self.works.get(first);
            let status = match work.ended {
                Some(status) => status,
                None if queue_pair.is_down() => Status::Flushed,
                None => return true,
            };
            let status = match status {
                Status::Success if queue_pair.failed => Status::Flushed,
                other => other,
            };
            if *budget == 0 || (reports(work) && batch.is_full()) {
                return false;
            }
            *budget -= 1;
            self.retire(channel, index, first);
            let queue_pair = &mut self.queue_pairs[index as usize];
            queue_pair.failed |= status != Status::Success;
            let id = queue_pair.id();
            if let Some(completion) = completion_of(self.works.get_mut(first), id, status) {
                let pushed = batch.push(completion);
                debug_assert!(pushed.is_ok(), "there was room");
            }
            self.release(index);
        }
        if !self.flush_receives_of(channel, index, batch) {
            return false;
        }
        let queue_pair = &mut self.queue_pairs[index as usize];
        if queue_pair.state == State::Error {
            let completion = Completion {
                queue_pair: queue_pair.id(),
                status: Status::Flushed,
                kind: CompletionKind::Disconnected,
            };
            if batch.push(completion).is_err() {
                return false;
            }
            queue_pair.change(&mut self.checked, |it| it.state = State::Flushed);
        }
        true
    }

    /// If the queue pair is in error, flushes the Receives that are posted only for it. Returns whether none
    /// is left.
    fn flush_receives_of(
        &mut self,
        channel: &mut Channel,
        index: u32,
        batch: &mut CompletionBatch,
    ) -> bool {
        let queue_pair = &self.queue_pairs[index as usize];
        let (id, queue) = (queue_pair.id(), queue_pair.receive_queue);
        if queue_pair.state != State::Error {
            return true;
        }
        if channel.pull.queue_pair == queue_pair.local {
            // The rest of the message is never pulled, so its Receive is posted again and flushed below.
            self.drop_pull(channel);
        }
        while !batch.is_full() {
            let receive_queue = self.receive_queues.get_mut(queue);
            let Some(slot) = receive_queue.and_then(|queue| queue.take_flushed(index)) else {
                return true;
            };
            let receive = self.receive(queue, slot);
            push_receive(batch, id, Status::Flushed, receive, 0, None);
        }
        false
    }

    /// Takes a work request off the lists in which it waits, and returns its buffers.
    fn retire(&mut self, channel: &mut Channel, index: u32, first: u32) {
        let work = self.works.get(first);
        if work.unacked {
            if work.kind == Kind::Read {
                let reads = &mut self.queue_pairs[index as usize].reads;
                self.works.stop_awaiting(reads, first);
            } else {
                if work.pulled {
                    channel.revoke(work.position);
                }
                self.works.stop_awaiting(&mut channel.unacked, first);
            }
        }
        self.give_buffers_back(first);
    }

    /// Returns the buffers of a work request.
    pub(super) fn give_buffers_back(&mut self, work: u32) {
        while let Some((buffer, _, _)) = self.works.get_mut(work).list.pop() {
            self.returned.push(buffer);
        }
    }

    /// Frees the first work request of a queue pair.
    #[inline(always)]
    pub(super) fn release(&mut self, index: u32) {
        let queue_pair = &mut self.queue_pairs[index as usize];
        self.works.release_first(&mut queue_pair.works);
        self.works.uncount(&mut queue_pair.outstanding);
    }

    /// Ends the work requests of a queue pair without completions.
    pub(super) fn abandon(&mut self, channel: &mut Channel, index: u32) {
        while let Some(first) = self.queue_pairs[index as usize].works.first() {
            self.retire(channel, index, first);
            let work = self.works.get_mut(first);
            let mut list = std::mem::take(&mut work.read.list);
            work.window = None;
            while let Some((buffer, _, _)) = list.pop() {
                self.returned.push(buffer);
            }
            self.release(index);
        }
    }

    /// Continues RDMA Reads. `is_share` says whether the first of them has the whole share of RDMA Reads.
    /// Returns whether something was done.
    fn go_on_reading(&mut self, channels: &mut Channels, now: Ticks, is_share: bool) -> bool {
        let mut busy = false;
        for _ in 0..self.readers.len().min(READERS_PER_POLL) {
            if self.copy_budget == 0 {
                break;
            }
            let Some(index) = self.readers.pop_front() else {
                break;
            };
            let had_all = is_share && !busy;
            let number = self.queue_pairs[index as usize].channel;
            if let Some(channel) = channel_mut(channels, number) {
                busy |= self.read_some(channel, index, now);
            }
            let queue_pair = &mut self.queue_pairs[index as usize];
            if queue_pair.reads.is_empty() || queue_pair.is_down() {
                queue_pair.in_readers = false;
            } else if self.copy_budget == 0 && !had_all {
                self.readers.push_front(index);
            } else {
                self.readers.push_back(index);
            }
        }
        busy
    }

    /// Continues the first RDMA Read of a queue pair. Returns whether something was done.
    fn read_some(&mut self, channel: &mut Channel, index: u32, now: Ticks) -> bool {
        let queue_pair = &self.queue_pairs[index as usize];
        let Some(first) = queue_pair.reads.first() else {
            return false;
        };
        let work = self.works.get(first);
        let blocked = queue_pair.is_down()
            || work.read.not_before > now
            || (queue_pair.writes_unacked > 0 && !channel.is_acked(work.position));
        if blocked {
            return false;
        }
        match self.copy_read(channel, index, first) {
            Ok(count) => {
                let work = self.works.get_mut(first);
                work.read.done += count;
                self.copy_budget -= count;
                self.counters.bytes_pulled += u64::from(count);
                if work.read.done == work.read.bytes {
                    self.end_read(index, first, Status::Success);
                }
            }
            Err(()) => {
                self.counters.reads_refused += 1;
                self.end_read(index, first, Status::RemoteAccess);
                self.fail(channel, index, Some(Report::Disconnect));
            }
        }
        true
    }

    fn end_read(&mut self, index: u32, work: u32, status: Status) {
        let reads = &mut self.queue_pairs[index as usize].reads;
        self.works.stop_awaiting(reads, work);
        self.works.get_mut(work).ended = Some(status);
        self.mark_ready(index);
    }

    /// Copies a part of an RDMA Read, within the budget. Fails if the peer's key table does not allow it
    /// before the copy, or no longer allows it after the copy.
    fn copy_read(&self, channel: &Channel, index: u32, work: u32) -> Result<u32, ()> {
        let queue_pair = &self.queue_pairs[index as usize];
        let read = &self.works.get(work).read;
        let peer = channel.peer.as_ref().ok_or(())?;
        let holder = Holder {
            channel: peer.doorbell_number,
            queue_pair: queue_pair.local.0,
        };
        let grant = peer.keys.find(read.from.key).ok_or(())?;
        let from = grant
            .readable(holder, read.from.offset, read.bytes)
            .ok_or(())?;
        let mut done = read.done;
        let most = self.copy_budget.min(read.bytes - read.done);
        while done - read.done < most {
            let (to, room) = read.at(done).ok_or(())?;
            let count = room.min(most - (done - read.done));
            let offset = from + u64::from(done);
            let source = place(&peer.arena, offset).ok_or(())?;
            let end = offset + u64::from(count);
            if end > peer.arena.bytes() as u64 {
                return Err(());
            }
            // SAFETY: the source lies within the peer's mapped arena. That was checked above, because the
            // peer can write anything into its key table. The target is a buffer that was moved into the
            // work request.
            unsafe { copy_bytes(source.as_ptr(), to, count as usize) };
            done += count;
        }
        if peer.keys.still_holds(&grant) {
            Ok(done - read.done)
        } else {
            Err(())
        }
    }

    /// Whether there is progress to report, or to ask for.
    #[inline]
    pub(super) fn has_progress(&self) -> bool {
        !self.untold.is_empty() | !self.awaiting.is_empty()
    }

    /// Reports our progress to peers and reads theirs. The poll does it when it is idle, and now and then
    /// when it is busy.
    #[inline(never)]
    pub(super) fn exchange_progress(&mut self, channels: &mut Channels) -> bool {
        while let Some(number) = self.untold.pop() {
            if let Some(channel) = channel_mut(channels, number) {
                channel.in_untold = false;
                if channel.has_untold() {
                    channel.tell();
                }
            }
        }
        let mut busy = false;
        for _ in 0..self.awaiting.len().min(AWAITING_PER_POLL) {
            let Some(number) = self.awaiting.pop_front() else {
                break;
            };
            let Some(channel) = channel_mut(channels, number) else {
                continue;
            };
            busy |= self.ask_progress(channel);
            if channel.unacked.is_empty() {
                channel.in_awaiting = false;
            } else {
                self.awaiting.push_back(number);
            }
        }
        busy
    }

    /// Reads the progress in a peer's control line. It is used only if the peer's ring is empty
    /// afterwards, because a report of a failure in the ring must be handled before.
    fn ask_progress(&mut self, channel: &mut Channel) -> bool {
        let Some(peer) = &channel.peer else {
            return false;
        };
        let progress = peer.head.load_progress();
        if peer.consumer.peek().is_some() {
            return false;
        }
        let before = channel.acked;
        self.acknowledge(channel, progress.acked);
        channel.acked != before
    }
}

/// Whether a work request yields a completion.
fn reports(work: &Work) -> bool {
    work.signalled.is_some()
}

fn completion_of(work: &mut Work, queue_pair: QueuePairId, status: Status) -> Option<Completion> {
    let id = work.signalled?;
    let kind = match work.kind {
        Kind::Send => CompletionKind::Send(id),
        Kind::Write => CompletionKind::Write(id),
        Kind::Read => CompletionKind::Read(id, std::mem::take(&mut work.read.list)),
        Kind::Invalidate => CompletionKind::Invalidated(id, work.window.take()?),
    };
    Some(Completion {
        queue_pair,
        status,
        kind,
    })
}
