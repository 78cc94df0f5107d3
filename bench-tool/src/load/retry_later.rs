//! Calls that the server asks to repeat later, as NFS does with NFS3ERR_JUKEBOX (RFC 1813, section 2.6). Each
//! repetition is a new call.

use std::collections::VecDeque;
use std::time::Duration;

use rpcrdma_fabric::clock::{Clock, Ticks};

/// The pause before a repetition.
const PAUSE: Duration = Duration::from_millis(100);

/// Calls that wait for their repetition, up to a limit from their start.
#[derive(Debug)]
pub(crate) struct RetryLater<C> {
    /// Each call with its due time. All pauses are equal, so the queue is in the order of the due times.
    waiting: VecDeque<(C, Ticks)>,
    pause: Ticks,
    /// The longest time from the first start of a call to its last repetition.
    patience: Ticks,
    /// How many repetitions were accepted.
    count: u64,
}

impl<C: Copy> RetryLater<C> {
    /// Room for `calls` calls. A call is repeated until `patience` after its start; with zero, never.
    pub(crate) fn new(patience: Duration, calls: usize) -> Self {
        let clock = Clock::new();
        Self {
            waiting: VecDeque::with_capacity(calls),
            pause: clock.ticks(PAUSE),
            patience: clock.ticks(patience),
            count: 0,
        }
    }

    /// Queues a call that started at `start`. Returns false if its patience ends before the pause does.
    #[cold]
    pub(crate) fn push(&mut self, call: C, start: Ticks, now: Ticks) -> bool {
        let due = now.saturating_add(self.pause);
        if due > start.saturating_add(self.patience) {
            return false;
        }
        self.waiting.push_back((call, due));
        self.count += 1;
        true
    }

    /// The next call whose pause is over.
    #[inline]
    pub(crate) fn pop_due(&mut self, now: Ticks) -> Option<C> {
        match self.waiting.front() {
            Some((_, due)) if *due <= now => self.waiting.pop_front().map(|(call, _)| call),
            _ => None,
        }
    }

    /// Accepts no more calls and returns those that wait.
    pub(crate) fn end(&mut self) -> impl Iterator<Item = C> + '_ {
        self.patience = 0;
        self.waiting.drain(..).map(|(call, _)| call)
    }

    /// The number of calls that wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// When the first of them is due.
    pub(crate) fn next_due(&self) -> Option<Ticks> {
        self.waiting.front().map(|(_, due)| *due)
    }

    /// How many repetitions were accepted.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(milliseconds: u64) -> Ticks {
        Clock::new().ticks(Duration::from_millis(milliseconds))
    }

    fn later(patience_ms: u64) -> RetryLater<u32> {
        RetryLater::new(Duration::from_millis(patience_ms), 4)
    }

    #[test]
    fn calls_wait_and_come_back_in_order() {
        let mut calls = later(1000);
        assert!(calls.push(1, 0, after(10)) && calls.push(2, 0, after(20)));
        assert_eq!(calls.pop_due(after(109)), None);
        assert_eq!(calls.pop_due(after(115)), Some(1));
        assert_eq!(calls.pop_due(after(115)), None);
        assert_eq!(calls.len(), 1);
        assert_eq!(calls.next_due(), Some(after(20) + after(100)));
        assert_eq!(calls.pop_due(after(120)), Some(2));
        assert_eq!((calls.len(), calls.next_due()), (0, None));
        assert_eq!(calls.count(), 2);
    }

    #[test]
    fn patience_ends() {
        let mut calls = later(1000);
        assert!(calls.push(1, after(500), after(1399)));
        assert!(!calls.push(2, after(500), after(1401)), "since its start");
        assert!(!later(0).push(1, 0, 0), "there is none");
        assert_eq!(calls.end().collect::<Vec<_>>(), [1]);
        assert!(!calls.push(3, after(1400), after(1400)) && calls.len() == 0);
    }
}
