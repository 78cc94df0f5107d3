//! Visiting every connection once in an interval.

use std::ops::Range;
use std::time::Duration;

use rpcrdma_fabric::clock::{Clock, Ticks};

/// Places of the table of connections visited in one iteration.
const VISITS_MAX: u32 = 16;

/// When the connections are visited next. One sweep over the table visits them all; the next one
/// begins an interval after its end. So two visits of a connection are never closer to each other
/// than the interval, and those that a core missed because it did not run are not made up for: a
/// core that was stopped itself hears what came in the meantime before it judges its peers.
#[derive(Debug)]
pub(super) struct Sweep {
    interval: Ticks,
    /// When the next sweep begins, or since when one is due; never with an interval of zero.
    due: Ticks,
    /// The place that the sweep goes on with.
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

    /// Whether there are places to visit.
    #[inline]
    pub(super) fn is_due(&self, now: Ticks) -> bool {
        now >= self.due
    }

    /// The places to visit in this iteration, of so many, and whether more are to follow at once.
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
