//! Visits every connection once in an interval.

use std::ops::Range;
use std::time::Duration;

use rpcrdma_fabric::clock::{Clock, Ticks};

/// Places of the table of connections visited in one iteration.
const VISITS_MAX: u32 = 16;

/// Schedules sweeps over the table of connections. A sweep visits all of them; the next one begins an interval after
/// its end. So two visits of a connection are at least an interval apart, and visits that a core missed because it did
/// not run are not repeated: a core that was stopped handles what arrived meanwhile before it judges its peers.
#[derive(Debug)]
pub(super) struct Sweep {
    interval: Ticks,
    /// When the next sweep begins, or since when one is due; never with an interval of zero.
    due: Ticks,
    /// The place at which the sweep continues.
    next: u32,
}

impl Sweep {
    pub(super) fn new(interval: Duration, clock: &Clock, now: Ticks) -> Self {
        let interval = match interval {
            Duration::ZERO => Ticks::MAX,
            interval => clock.ticks(interval),
        };
        Self {
            interval,
            due: now.saturating_add(interval),
            next: 0,
        }
    }

    /// When there are places to visit.
    pub(super) fn due(&self) -> Ticks {
        self.due
    }

    /// Whether there are places to visit.
    #[inline]
    pub(super) fn is_due(&self, now: Ticks) -> bool {
        now >= self.due
    }

    /// The places to visit in this iteration, out of `places`, and whether the sweep continues in the next.
    pub(super) fn advance(&mut self, now: Ticks, places: u32) -> (Range<u32>, bool) {
        let begin = self.next;
        let end = begin.saturating_add(VISITS_MAX).min(places);
        let is_over = end == places;
        if is_over {
            self.next = 0;
            self.due = now.saturating_add(self.interval);
        } else {
            self.next = end;
        }
        (begin..end, !is_over)
    }
}
