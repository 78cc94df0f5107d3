//! Calls that the server puts off: NFS3ERR_JUKEBOX asks the client to wait, and to ask again by a call of its own
//! (RFC 1813, section 2.6).

use std::collections::VecDeque;
use std::time::Duration;

use rpcrdma_fabric::clock::{Clock, Ticks};

use crate::nfs_client::workload::StepError;
use rpcrdma_nfs3::client::reply::ReplyError;
use rpcrdma_nfs3::wire::Status;

/// How long the client waits before it asks again.
pub(crate) const PAUSE: Duration = rpcrdma_nfs3::client::PUT_OFF_PAUSE;

/// What a call ends with that is not made again.
pub(crate) const NOT_AGAIN: StepError = StepError::Reply(ReplyError::Status(Status::Jukebox));

/// Whether an answer asks for patience.
pub(crate) fn is_put_off(error: &StepError) -> bool {
    *error == NOT_AGAIN
}

/// Calls that wait to be made again, and for how long they may.
#[derive(Debug)]
pub(crate) struct PutOff<C> {
    /// Each with when it is due; all wait equally long, so the first one is due first.
    waiting: VecDeque<(C, Ticks)>,
    pause: Ticks,
    /// How long after its start a call may be put off.
    patience: Ticks,
    /// How often a call was.
    count: u64,
}

impl<C: Copy> PutOff<C> {
    /// With room for `calls` calls, none of which waits longer than `patience`: with none, they fail at once.
    pub(crate) fn new(clock: &Clock, patience: Duration, calls: usize) -> Self {
        Self {
            waiting: VecDeque::with_capacity(calls),
            pause: clock.ticks(PAUSE),
            patience: clock.ticks(patience),
            count: 0,
        }
    }

    /// Puts a call off that began at `start`; whether it has time for that.
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

    /// A call that is to be made again now.
    #[inline]
    pub(crate) fn pop_due(&mut self, now: Ticks) -> Option<C> {
        match self.waiting.front() {
            Some((_, due)) if *due <= now => self.waiting.pop_front().map(|(call, _)| call),
            _ => None,
        }
    }

    /// Waits for nothing any more: the calls that did.
    pub(crate) fn end(&mut self) -> impl Iterator<Item = C> + '_ {
        self.patience = 0;
        self.waiting.drain(..).map(|(call, _)| call)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

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

    fn put_off(patience_ms: u64) -> PutOff<u32> {
        PutOff::new(&Clock::new(), Duration::from_millis(patience_ms), 4)
    }

    #[test]
    fn calls_wait_and_come_back_in_order() {
        let mut calls = put_off(1000);
        assert!(calls.push(1, 0, after(10)) && calls.push(2, 0, after(20)));
        assert_eq!(calls.pop_due(after(109)), None);
        assert_eq!(calls.pop_due(after(115)), Some(1));
        assert_eq!(calls.pop_due(after(115)), None);
        assert!(!calls.is_empty());
        assert_eq!(calls.pop_due(after(120)), Some(2));
        assert!(calls.is_empty());
        assert_eq!(calls.count(), 2);
    }

    #[test]
    fn patience_ends() {
        let mut calls = put_off(1000);
        assert!(calls.push(1, after(500), after(1399)));
        assert!(!calls.push(2, after(500), after(1401)), "since its start");
        assert!(!put_off(0).push(1, 0, 0), "there is none");
        assert_eq!(calls.end().collect::<Vec<_>>(), [1]);
        assert!(!calls.push(3, after(1400), after(1400)) && calls.is_empty());
    }

    #[test]
    fn one_status_alone_asks_for_it() {
        let status = |status| is_put_off(&StepError::Reply(ReplyError::Status(status)));
        assert!(status(Status::Jukebox) && !status(Status::Io));
        assert!(!is_put_off(&StepError::Short));
    }
}
