//! Polling the completion queue, and parking until it has an entry.

use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use super::super::bindings::ibv_wc;
use super::Port;
use crate::clock::Ticks;
use crate::interface::{CompletionBatch, Counted, PortPoll, REAP_MAX};

/// Polls between two checks of the device's events. They are rare, so a check in each poll would only
/// cost time.
const EVENT_POLLS: u64 = 64;

impl PortPoll for Port {
    #[inline]
    fn poll(&mut self, now: Ticks, batch: &mut CompletionBatch) -> bool {
        self.counters.polls += 1;
        let mut busy = !self.pending.is_empty() && self.push_pending(batch);
        let room = batch.room();
        let count = self.reap(room, batch);
        busy |= count > 0;
        if !self.gone.is_empty() && count < room {
            self.end_gone();
        }
        if !self.closing.is_empty() {
            busy |= self.go_on_closing(now, count < room, batch);
        }
        if self.counters.polls.is_multiple_of(EVENT_POLLS) && !self.shared.events.is_empty() {
            self.take_events();
        }
        self.counters.polls_empty += u64::from(!busy);
        busy
    }

    fn prepare_to_park(&mut self) -> bool {
        let quiet = self.closing.is_empty()
            && self.gone.is_empty()
            && self.pending.is_empty()
            && self.dirty.is_empty()
            && self.shared.events.is_empty();
        if !quiet {
            return false;
        }
        // An event that was requested earlier would end the sleep immediately.
        self.completion_queue.clear_events();
        if self.completion_queue.request_event().is_err() {
            return false;
        }
        // What completed before the request raises no event.
        let mut batch = CompletionBatch::new();
        let count = self.reap(batch.room(), &mut batch);
        self.pending.extend(batch.drain());
        count == 0
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.completion_queue.descriptor()
    }

    fn unpark(&mut self) {
        self.completion_queue.clear_events();
    }

    fn receiver_not_ready(&self) -> u64 {
        self.counters.receiver_not_ready
    }

    fn each_counter(&self, each: &mut dyn FnMut(Counted)) {
        self.counters.each(each);
    }
}

impl Port {
    /// Handles at most `room` completions of the device. Returns how many there were; fewer than
    /// `room` means that the completion queue is empty.
    #[inline]
    fn reap(&mut self, room: usize, batch: &mut CompletionBatch) -> usize {
        let mut completions = [const { MaybeUninit::<ibv_wc>::uninit() }; REAP_MAX];
        let Ok(count) = self.completion_queue.poll(&mut completions, room) else {
            self.fail_everything();
            return 0;
        };
        for completion in completions.iter().take(count) {
            // SAFETY: the library wrote the first `count` of them.
            self.handle(unsafe { completion.assume_init_ref() }, batch);
        }
        count
    }
}
