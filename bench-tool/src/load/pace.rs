//! The schedule of an open loop: when each call is due.

use rpcrdma_fabric::clock::Ticks;

/// The call rate of an open loop, and which of its calls one part of the load makes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    /// Of all parts together.
    calls_per_second: u64,
    part: u64,
    parts: u64,
}

impl Rate {
    /// A rate in calls per second, at least 1.
    pub(crate) fn new(calls_per_second: u64) -> Self {
        Self {
            calls_per_second: calls_per_second.max(1),
            part: 0,
            parts: 1,
        }
    }

    /// In calls per second, of all parts together.
    pub(crate) const fn calls_per_second(self) -> u64 {
        self.calls_per_second
    }

    /// Every `parts`-th call, starting with number `part`. So the parts together make exactly the calls of the whole
    /// load, also with more parts than calls per second, and the parts do not all start their calls at the same time.
    pub(crate) fn share(self, part: u32, parts: u32) -> Self {
        Self {
            part: part.into(),
            parts: parts.max(1).into(),
            ..self
        }
    }
}

/// The schedule of an open loop: call number `n` of the whole load is due at `start + n / rate`, however late the
/// calls before it are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    start: Ticks,
    ticks_per_second: u64,
    rate: Rate,
    /// The number of the next call, counted over all parts.
    next: u64,
}

impl Pace {
    /// The schedule of one part from `start`.
    pub(crate) fn new(start: Ticks, ticks_per_second: u64, rate: Rate) -> Self {
        Self {
            start,
            ticks_per_second,
            rate,
            next: rate.part,
        }
    }

    /// When the next call is due.
    #[inline]
    pub(crate) fn due(&self) -> Ticks {
        // Whole seconds are added separately: `next * ticks_per_second` would overflow in a long run.
        let per_second = self.rate.calls_per_second;
        let (seconds, rest) = (self.next / per_second, self.next % per_second);
        let ticks = u128::from(rest) * u128::from(self.ticks_per_second) / u128::from(per_second);
        // The rest is less than one second in ticks, so the conversion cannot fail.
        let ticks = u64::try_from(ticks).unwrap_or(u64::MAX);
        self.start + seconds * self.ticks_per_second + ticks
    }

    /// The start of the next call if it is due by `now` and before `end`.
    #[inline]
    pub(crate) fn start(&self, now: Ticks, end: Ticks) -> Option<Ticks> {
        let due = self.due();
        (due <= now && due < end).then_some(due)
    }

    /// Moves to this part's next call.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.next += self.rate.parts;
    }

    /// The number of calls that are due by `now` and not made.
    pub(crate) fn behind(&self, now: Ticks) -> u64 {
        let elapsed = u128::from(now.saturating_sub(self.start));
        let due =
            elapsed * u128::from(self.rate.calls_per_second) / u128::from(self.ticks_per_second);
        let due = u64::try_from(due).unwrap_or(u64::MAX);
        due.saturating_sub(self.next).div_ceil(self.rate.parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock reading may already be after the end.
    #[test]
    fn a_call_that_is_due_at_the_end_is_not_made() {
        let mut pace = Pace::new(1000, 1_000_000, Rate::new(1000));
        assert_eq!(pace.start(999, 2000), None);
        assert_eq!(pace.start(1500, 2000), Some(1000));
        pace.advance();
        assert_eq!(pace.start(2500, 2001), Some(2000));
        assert_eq!(pace.start(2500, 2000), None);
    }

    #[test]
    fn calls_are_due_at_even_distances() {
        let mut pace = Pace::new(1_000, 3_000_000_000, Rate::new(1_000_000));
        for n in 0..5 {
            assert_eq!(pace.due(), 1_000 + n * 3_000);
            pace.advance();
        }
    }

    #[test]
    fn no_rounding_adds_up() {
        let mut pace = Pace::new(0, 2_445_000_000, Rate::new(7));
        for _ in 0..7_000 {
            pace.advance();
        }
        assert_eq!(pace.due(), 1_000 * 2_445_000_000);
    }

    #[test]
    fn the_backlog_is_what_was_due_and_not_made() {
        let mut pace = Pace::new(500, 1_000, Rate::new(10));
        assert_eq!(pace.behind(500), 0);
        assert_eq!(pace.behind(1_500), 10);
        pace.advance();
        assert_eq!(pace.behind(1_500), 9);
        assert_eq!(pace.behind(0), 0);
    }

    /// Also with more parts than calls per second.
    #[test]
    fn parts_make_the_calls_of_the_whole_and_no_others() {
        const PARTS: u32 = 64;
        let rate = Rate::new(20);
        let (mut whole, ends_at) = (Pace::new(7, 1_000, rate), 5_007);
        let mut wanted = Vec::new();
        while whole.due() < ends_at {
            wanted.push(whole.due());
            whole.advance();
        }
        assert_eq!(wanted.len(), 100);
        let parts = (0..PARTS).map(|part| Pace::new(7, 1_000, rate.share(part, PARTS)));
        let behind: u64 = parts.clone().map(|pace| pace.behind(ends_at)).sum();
        assert_eq!(behind, 100, "as many as are due");
        let mut made = Vec::new();
        for mut pace in parts {
            while pace.due() < ends_at {
                made.push(pace.due());
                pace.advance();
            }
            assert_eq!(pace.behind(ends_at), 0);
        }
        made.sort_unstable();
        assert_eq!(made, wanted);
    }
}
