//! When calls are due.

use rpcrdma_fabric::clock::Ticks;

/// The schedule of an open loop: call number `n` is due at `start + n / rate`, whatever happened to
/// the calls before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    start: Ticks,
    ticks_per_second: u64,
    calls_per_second: u64,
    next: u64,
}

impl Pace {
    /// A schedule of `calls_per_second` (at least 1) from `start` on.
    pub(crate) fn new(start: Ticks, ticks_per_second: u64, calls_per_second: u64) -> Self {
        Self {
            start,
            ticks_per_second,
            calls_per_second: calls_per_second.max(1),
            next: 0,
        }
    }

    /// When the next call is due.
    #[inline]
    pub(crate) fn due(&self) -> Ticks {
        // Whole seconds apart, so that the product fits for any length of run.
        let seconds = self.next / self.calls_per_second;
        let rest = self.next % self.calls_per_second;
        let ticks = u128::from(rest) * u128::from(self.ticks_per_second)
            / u128::from(self.calls_per_second);
        // The rest is below a second of ticks.
        let ticks = u64::try_from(ticks).unwrap_or(u64::MAX);
        self.start + seconds * self.ticks_per_second + ticks
    }

    /// When the next call starts, if it is due by `now`, and before `end`.
    #[inline]
    pub(crate) fn start(&self, now: Ticks, end: Ticks) -> Option<Ticks> {
        let due = self.due();
        (due <= now && due < end).then_some(due)
    }

    /// The call that was due has been made.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.next += 1;
    }

    /// Calls that were due by `now` and have not been made.
    pub(crate) fn behind(&self, now: Ticks) -> u64 {
        let elapsed = u128::from(now.saturating_sub(self.start));
        let due = elapsed * u128::from(self.calls_per_second) / u128::from(self.ticks_per_second);
        u64::try_from(due)
            .unwrap_or(u64::MAX)
            .saturating_sub(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end may have passed since the clock was read that tells of it.
    #[test]
    fn a_call_that_is_due_at_the_end_is_not_made() {
        let mut pace = Pace::new(1000, 1_000_000, 1000);
        assert_eq!(pace.start(999, 2000), None);
        assert_eq!(pace.start(1500, 2000), Some(1000));
        pace.advance();
        assert_eq!(pace.start(2500, 2001), Some(2000));
        assert_eq!(pace.start(2500, 2000), None);
    }

    #[test]
    fn calls_are_due_at_even_distances() {
        let mut pace = Pace::new(1_000, 3_000_000_000, 1_000_000);
        for n in 0..5 {
            assert_eq!(pace.due(), 1_000 + n * 3_000);
            pace.advance();
        }
    }

    #[test]
    fn no_rounding_adds_up() {
        let mut pace = Pace::new(0, 2_445_000_000, 7);
        for _ in 0..7_000 {
            pace.advance();
        }
        assert_eq!(pace.due(), 1_000 * 2_445_000_000);
    }

    #[test]
    fn the_backlog_is_what_was_due_and_not_made() {
        let mut pace = Pace::new(500, 1_000, 10);
        assert_eq!(pace.behind(500), 0);
        assert_eq!(pace.behind(1_500), 10);
        pace.advance();
        assert_eq!(pace.behind(1_500), 9);
        assert_eq!(pace.behind(0), 0);
    }
}
