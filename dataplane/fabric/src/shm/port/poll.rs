//! Polling: the order in which channels are checked, and parking while there is nothing to do.

use std::os::fd::{AsFd, BorrowedFd};

use super::super::channel::Target;
use super::super::doorbell::BellMemory;
use super::super::files;
use super::Port;
use super::core::channel_mut;
use crate::clock::Ticks;
use crate::interface::{Arrival, CompletionBatch, Counted, PortPoll, Receive};
use crate::memory::fetch_ahead;

/// Polls after which progress is exchanged with peers even if there is other work; a power of two.
pub(super) const BUSY_EXCHANGE_POLLS: u64 = 64;
/// Cold channels with a doorbell that one poll visits at most.
const COLD_VISITS_PER_POLL: u32 = 8;

impl PortPoll for Port {
    fn poll(&mut self, now: Ticks, batch: &mut CompletionBatch) -> bool {
        let busy = self.begin_poll(now, batch);
        while !batch.is_full()
            && let Some(arrival) = self.take_arrival()
        {
            self.core.push_arrival(&arrival, batch);
        }
        busy
    }

    #[inline]
    fn begin_poll(&mut self, now: Ticks, batch: &mut CompletionBatch) -> bool {
        self.found.end();
        let poll = self.core.counters.polls + 1;
        self.core.counters.polls = poll;
        self.core.copy_budget = self.core.copy_bytes_per_poll;
        // Hot channels come last, so that the caller handles their messages right after they are found.
        let mut busy = self.has_rare_work(poll) && self.do_rare_work(poll, now, batch);
        busy |= self.visit_hot(now, batch);
        if self.core.has_own_work() | (self.core.not_ready_polls != 0) {
            busy |= self.end_rarely(now, batch);
        }
        self.was_busy = busy;
        if !busy {
            self.core.counters.polls_empty += 1;
        }
        busy
    }

    // Always: where an arrival is handled, it stays in registers.
    #[inline(always)]
    fn next_arrival(&mut self) -> Option<Arrival> {
        self.take_arrival()
    }

    fn arrives_next(&self) -> Option<u32> {
        let found = &self.found;
        let number = match found.here {
            0 => found.channels.get(found.next)?.0,
            _ => found.number,
        };
        let channel = self.channels.get(number as usize)?.as_ref()?;
        let index = channel.next_destination()?;
        if let Some(queue_pair) = self.core.queue_pairs.get(index as usize) {
            fetch_ahead(queue_pair, size_of_val(queue_pair));
        }
        Some(index)
    }

    #[inline]
    fn arrived(&self, arrival: &Arrival) -> &[u8] {
        self.core.inbox.message(arrival.held_bytes)
    }

    fn keep(&mut self, arrival: Arrival) -> Option<Receive> {
        self.core.keep_arrival(&arrival)
    }

    fn prepare_to_park(&mut self) -> bool {
        self.core.windows.memory().set_parked(true);
        let idle = self.is_idle();
        if !idle {
            self.core.windows.memory().set_parked(false);
        }
        idle
    }

    /// Acknowledgements are plain stores, which wake nobody, so the core has to poll for them.
    fn waits_unnotified(&self) -> bool {
        !self.core.awaiting.is_empty()
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn unpark(&mut self) {
        self.core.windows.memory().set_parked(false);
        files::drain(self.event.as_fd());
    }

    fn receiver_not_ready(&self) -> u64 {
        self.core.counters.receiver_not_ready
    }

    fn each_counter(&self, each: &mut dyn FnMut(Counted)) {
        self.core.counters.each(each);
    }
}

impl Port {
    /// Whether a poll does more than check the hot channels. The lists of such work are asked themselves, by one test for
    /// all of them: there is no flag for them, which somebody could forget to set.
    #[inline]
    fn has_rare_work(&self, poll: u64) -> bool {
        let core = &self.core;
        let has_work = self.bell.rung() | self.schedule.has_pending() | core.has_own_work();
        has_work || poll & self.rare_mask == 0 || (!self.was_busy && core.has_progress())
    }

    /// Does what comes before the hot channels. Returns whether something was done.
    #[inline(never)]
    fn do_rare_work(&mut self, poll: u64, now: Ticks, batch: &mut CompletionBatch) -> bool {
        let mut busy = false;
        self.schedule.collect(&self.bell);
        let is_sweep = poll & self.sweep_mask == 0;
        if is_sweep || self.schedule.has_pending() {
            busy |= self.visit_some_cold(is_sweep, now, batch);
        }
        if self.core.has_own_work() {
            busy |= self.core.work_in_share(&mut self.channels, now, batch);
        }
        if !self.was_busy || poll.is_multiple_of(BUSY_EXCHANGE_POLLS) {
            busy |= self.core.exchange_progress(&mut self.channels);
        }
        busy
    }

    /// Ends a poll with own work, or in which no Receive seems to be posted. Returns whether something was done.
    #[inline(never)]
    fn end_rarely(&mut self, now: Ticks, batch: &mut CompletionBatch) -> bool {
        let kept_back = self.found.left;
        batch.keep_back(kept_back);
        let busy = self.core.work_in_rest(&mut self.channels, now, batch);
        batch.release(kept_back);
        self.core.not_ready_polls = self.core.not_ready_polls.saturating_sub(1);
        busy
    }

    /// Visits one channel. Returns whether something was done.
    #[inline]
    pub(super) fn visit(&mut self, number: u32, now: Ticks, batch: &mut CompletionBatch) -> bool {
        let Some(channel) = channel_mut(&mut self.channels, number) else {
            return false;
        };
        if channel.broken {
            return false;
        }
        let visit = self.core.visit(channel, now, batch);
        channel.is_refused = channel.stalled || channel.pull.target != Target::Nothing;
        if visit.is_busy() && channel.hot {
            channel.last_active = self.core.counters.polls;
        } else if visit.is_again() && !channel.hot {
            self.schedule.mark(number);
        }
        if visit.is_broken() {
            self.break_channel(number);
        }
        visit.is_busy()
    }

    /// Checks the hot channels, in the order of the module [`share`](super::share). Returns whether something was done.
    #[inline]
    fn visit_hot(&mut self, now: Ticks, batch: &mut CompletionBatch) -> bool {
        let (mut busy, mut place) = (false, 0);
        while let Some(number) = self.schedule.hot(place) {
            if self.look_at(number, now, batch) {
                busy = true;
                if self.found.room(batch) == 0 || self.core.copy_budget == 0 {
                    self.end_hot(place, now, batch);
                    break;
                }
            }
            place += 1;
        }
        busy
    }

    /// The hot channel at this place has used up the batch or the copy budget. If only the budget is used
    /// up, the channels after it are still checked, because short messages need no budget.
    #[inline(never)]
    fn end_hot(&mut self, used_at: usize, now: Ticks, batch: &mut CompletionBatch) {
        let mut place = used_at + 1;
        while self.found.room(batch) != 0
            && let Some(number) = self.schedule.hot(place)
        {
            self.look_at(number, now, batch);
            place += 1;
        }
        let poll = self.core.counters.polls;
        let was_active = |place| {
            let number = self.schedule.hot(place).unwrap_or(u32::MAX);
            channel_mut(&mut self.channels, number).is_some_and(|c| c.last_active == poll)
        };
        let had_all = !(0..used_at).any(was_active);
        self.schedule.begin_hot_at(used_at + usize::from(had_all));
    }

    /// Visits cold channels, within their share of the poll: in a sweep the one whose turn it is, and those
    /// with a doorbell. Returns whether something was done.
    #[inline(never)]
    fn visit_some_cold(&mut self, is_sweep: bool, now: Ticks, batch: &mut CompletionBatch) -> bool {
        let swept = if is_sweep { self.upkeep() } else { None };
        if swept.is_none() && !self.schedule.has_pending() {
            return false;
        }
        // Sweeps come in even polls, in which cold channels get the larger half.
        let kept = self.core.keep_half(batch, self.core.counters.polls + 1);
        let mut busy = false;
        if let Some(number) = swept {
            if self.core.is_used_up(batch) {
                self.schedule.mark(number);
            }
            busy = self.visit_cold(number, now, batch);
        }
        let mut next_first = None;
        for _ in 0..COLD_VISITS_PER_POLL {
            if batch.is_full() {
                break;
            }
            let Some(number) = self.schedule.take_pending() else {
                break;
            };
            self.core.counters.doorbells_in += 1;
            let had_all = !busy;
            busy |= self.visit_cold(number, now, batch);
            if next_first.is_none() && self.core.is_used_up(batch) {
                next_first = Some(number + u32::from(had_all));
            }
        }
        if let Some(number) = next_first {
            self.schedule.begin_pending_at(number);
        }
        self.core.give_rest(batch, &kept);
        busy
    }

    fn visit_cold(&mut self, number: u32, now: Ticks, batch: &mut CompletionBatch) -> bool {
        if channel_mut(&mut self.channels, number).is_none_or(|channel| channel.hot) {
            return false;
        }
        let busy = self.visit(number, now, batch);
        if busy {
            let poll = self.core.counters.polls;
            let moved = self
                .schedule
                .note_cold_work(&mut self.channels, number, poll);
            self.core.counters.promotions += u64::from(moved.promoted);
            self.core.counters.demotions += u64::from(moved.demoted);
        }
        busy
    }

    /// Makes a quiet hot channel cold, and finds the cold channel whose turn it is in this sweep.
    fn upkeep(&mut self) -> Option<u32> {
        let poll = self.core.counters.polls;
        let moved = self.schedule.cool_down(&mut self.channels, poll);
        self.core.counters.demotions += u64::from(moved.demoted);
        let swept = self.schedule.next_to_sweep(&mut self.channels);
        self.core.counters.sweeps += u64::from(swept.is_some());
        swept
    }

    /// Whether the core may park: it has no work now, apart from what `waits_unnotified` reports.
    fn is_idle(&mut self) -> bool {
        let core = &self.core;
        if self.schedule.has_pending() || self.bell.rung() {
            return false;
        }
        if !self.found.is_empty() {
            return false;
        }
        if !core.ready.is_empty() || !core.readers.is_empty() || !core.untold.is_empty() {
            return false;
        }
        let mut place = 0;
        while let Some(number) = self.schedule.hot(place) {
            // The records of a broken channel are never processed.
            let channel = channel_mut(&mut self.channels, number).filter(|channel| !channel.broken);
            if channel.as_ref().is_some_and(|channel| channel.is_visited) {
                return false;
            }
            let peer = channel.and_then(|channel| channel.peer.as_ref());
            if peer.is_some_and(|peer| peer.consumer.peek().is_some()) {
                return false;
            }
            place += 1;
        }
        true
    }
}
