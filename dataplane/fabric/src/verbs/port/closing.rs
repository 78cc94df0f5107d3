//! The end of a queue pair: the error state, the flush of its work requests, and `Disconnected`.

use super::super::bindings::ibv_wr_opcode;
use super::super::queue_pair::QueuePair;
use super::Port;
use super::queue_pairs::State;
use super::receive_queue::Taker;
use super::works::Kind;
use crate::clock::Ticks;
use crate::interface::{Completion, CompletionBatch, CompletionKind, Status};

impl Port {
    /// Puts a queue pair in the error state, unless it is in it. The outstanding work requests are
    /// flushed, and then `Disconnected` is reported. With `tell` the manager is notified, which
    /// disconnects the peer.
    #[cold]
    pub(super) fn begin_error(&mut self, index: u32, tell: bool) {
        let Some(entry) = self.queue_pairs.get_mut(index) else {
            return;
        };
        if !matches!(entry.state, State::Accepting | State::Connected) {
            return;
        }
        entry.state = State::Error;
        entry.error_since = None;
        // A device that refuses this flushes nothing either. `flush_timeout` covers that case.
        let failed = entry
            .device
            .as_ref()
            .is_some_and(|device| device.fail().is_ok());
        let (id, posted) = (entry.id, entry.posted);
        if failed && posted > 0 && !self.flushes_at_once {
            self.post_marker(index);
        }
        self.closing.push(index);
        if tell {
            self.shared.tell_closing(id);
        }
    }

    /// Posts the marker: a work behind all others of a queue pair in error, which the device flushes.
    /// No device reports unsignalled works that were done before the error. The flushed marker shows
    /// that all works before it are done. Without room for a marker, `flush_timeout` ends the wait.
    fn post_marker(&mut self, index: u32) {
        let Some(work) = self.works.take(index, Kind::Send, None) else {
            return;
        };
        self.works.request(work, ibv_wr_opcode::IBV_WR_SEND);
        self.works.ask_completion(work);
        let request = self.works.address(work);
        let posted = self.queue_pairs.get_mut(index).is_some_and(|entry| {
            // SAFETY: a chain of one work request, whose `next` is null and which has no segments. `&mut self` is the port.
            let post = |device: &QueuePair| unsafe { device.post(request) }.is_ok();
            let posted = entry.device.as_ref().is_some_and(post);
            if posted {
                entry.marker = Some(work);
            }
            posted
        });
        if posted {
            self.counters.markers_posted += 1;
        } else {
            self.works.release(work);
        }
    }

    /// Returns whether `work` is the marker of the queue pair. If so, ends all works posted before it.
    #[inline]
    pub(super) fn end_marker(
        &mut self,
        index: u32,
        work: u32,
        batch: &mut CompletionBatch,
    ) -> bool {
        let is_marker = self
            .queue_pairs
            .get(index)
            .is_some_and(|entry| entry.marker == Some(work));
        if is_marker {
            self.end_marked(index, batch);
        }
        is_marker
    }

    #[cold]
    fn end_marked(&mut self, index: u32, batch: &mut CompletionBatch) {
        self.forget_marker(index);
        while let Some(entry) = self.queue_pairs.get_mut(index)
            && entry.posted > 0
            && let Some(first) = self.works.pop(&mut entry.works)
        {
            entry.posted -= 1;
            // Success, because the device has already completed each work that was not done.
            if let Some(completion) = self.end_work(index, first, Status::Success) {
                self.push(batch, completion);
            }
        }
    }

    /// Releases the marker of a queue pair. A later completion of it counts as stale.
    pub(super) fn forget_marker(&mut self, index: u32) {
        if let Some(entry) = self.queue_pairs.get_mut(index)
            && let Some(marker) = entry.marker.take()
        {
            self.works.release(marker);
        }
    }

    /// Advances the end of all queue pairs in error. `empty` says that the completion queue was empty
    /// in this poll. Returns whether something was done.
    #[cold]
    pub(super) fn go_on_closing(
        &mut self,
        now: Ticks,
        empty: bool,
        batch: &mut CompletionBatch,
    ) -> bool {
        let mut busy = false;
        let mut place = 0;
        while let Some(index) = self.closing.get(place).copied() {
            if batch.is_full() {
                return true;
            }
            if self.close_step(index, now, empty, batch) {
                busy = true;
                self.closing.swap_remove(place);
            } else {
                place += 1;
            }
        }
        busy
    }

    /// Advances the end of one queue pair. Returns whether it is complete.
    fn close_step(
        &mut self,
        index: u32,
        now: Ticks,
        empty: bool,
        batch: &mut CompletionBatch,
    ) -> bool {
        let Some(entry) = self.queue_pairs.get_mut(index) else {
            return true;
        };
        if entry.state != State::Error {
            return true;
        }
        // Whether a whole poll after the error state was set found the completion queue empty.
        let flushed = self.flushes_at_once && empty && entry.error_since.is_some();
        let since = *entry.error_since.get_or_insert(now);
        let waited = now.saturating_sub(since);
        let own_posted = match self.receive_queues.get(entry.receive_queue) {
            Some(queue) if matches!(queue.taker, Taker::QueuePair(_)) => Some(queue.posted()),
            _ => None,
        };
        if entry.posted > 0 || own_posted.is_some_and(|posted| posted > 0) {
            if flushed {
                self.take_back(index);
            } else if waited >= self.flush_timeout {
                self.counters.flush_timeouts += 1;
                self.take_back(index);
            }
            return false;
        }
        if !self.flush_staged(index, batch) {
            return false;
        }
        let Some(entry) = self.queue_pairs.get_mut(index) else {
            return true;
        };
        // The Receives of an own receive queue were counted above. For a shared one only the device
        // knows that no Receive follows; its event may overtake a completion, so the completion queue
        // must be empty as well.
        let quiet = own_posted.is_some() || entry.last_receive;
        if !quiet && waited < self.last_receive_timeout {
            return false;
        }
        if !empty || !self.pending.is_empty() {
            return false;
        }
        let completion = Completion {
            queue_pair: entry.id,
            status: entry.end_status(),
            kind: CompletionKind::Disconnected,
        };
        if batch.push(completion).is_err() {
            return false;
        }
        entry.state = State::Flushed;
        if own_posted.is_none() {
            if entry.last_receive {
                self.counters.last_receive_events += 1;
            } else {
                self.counters.last_receive_timeouts += 1;
            }
        }
        true
    }

    /// Completes the works that were never posted: staged ones, and RDMA Reads that wait. Returns
    /// whether none is left.
    fn flush_staged(&mut self, index: u32, batch: &mut CompletionBatch) -> bool {
        loop {
            if batch.is_full() {
                return false;
            }
            let Some(entry) = self.queue_pairs.get_mut(index) else {
                return true;
            };
            entry.first_staged = None;
            let work = self.works.pop(&mut entry.works);
            let Some(work) = work.or_else(|| self.works.pop(&mut entry.reads_waiting)) else {
                return true;
            };
            if let Some(completion) = self.end_work(index, work, Status::Flushed) {
                self.push(batch, completion);
            }
        }
    }

    /// Takes all work requests back from a device that flushes nothing more. The reset ends its use of
    /// the buffers.
    fn take_back(&mut self, index: u32) {
        self.forget_marker(index);
        let Some(entry) = self.queue_pairs.get_mut(index) else {
            return;
        };
        if let Some(device) = &entry.device
            && device.reset().is_err()
        {
            // The device may still use the buffers, so none can be returned while the queue pair
            // exists: destroy it now.
            let head = std::mem::replace(&mut entry.windows, super::window_table::NONE);
            self.windows_end(index, head);
            if let Some(entry) = self.queue_pairs.get_mut(index) {
                entry.device = None;
            }
        }
        let Some(entry) = self.queue_pairs.get_mut(index) else {
            return;
        };
        entry.posted = 0;
        if let Some(queue) = self.receive_queues.get_mut(entry.receive_queue)
            && matches!(queue.taker, Taker::QueuePair(_))
        {
            queue.take_all_back();
        }
    }
}
