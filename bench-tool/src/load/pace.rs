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
        self.due_of(self.next)
    }

    #[inline]
    fn due_of(&self, number: u64) -> Ticks {
        // Whole seconds are added separately: `number * ticks_per_second` would overflow in a long run.
        let per_second = self.rate.calls_per_second;
        let (seconds, rest) = (number / per_second, number % per_second);
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

    /// Moves over this many calls of this part.
    pub(crate) fn skip(&mut self, calls: u64) {
        self.next += calls * self.rate.parts;
    }

    /// When the call is due that is `places` behind the next one of this part.
    pub(crate) fn due_after(&self, places: u64) -> Ticks {
        self.due_of(self.next + places * self.rate.parts)
    }

    /// The number of this part's calls that are due before `end` and not made.
    pub(crate) fn left(&self, end: Ticks) -> u64 {
        let left = self.first_from(end).saturating_sub(self.next);
        left.div_ceil(self.rate.parts)
    }

    /// The number of this part's calls that are due from `begin` on and before `end`, made or not.
    pub(crate) fn due_between(&self, begin: Ticks, end: Ticks) -> u64 {
        let before = |time| {
            let of_all = self.first_from(time).saturating_sub(self.rate.part);
            of_all.div_ceil(self.rate.parts)
        };
        before(end).saturating_sub(before(begin))
    }

    /// The number, over all parts, of the first call that is due at `time` or later.
    fn first_from(&self, time: Ticks) -> u64 {
        let elapsed = u128::from(time.saturating_sub(self.start));
        let first = elapsed * u128::from(self.rate.calls_per_second);
        let first = first.div_ceil(u128::from(self.ticks_per_second));
        u64::try_from(first).unwrap_or(u64::MAX)
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
    fn calls_left_are_due_before_the_end_and_not_made() {
        let mut pace = Pace::new(500, 1_000, Rate::new(10));
        assert_eq!(pace.left(500), 0);
        assert_eq!(pace.left(501), 1, "the one that is due at 500");
        assert_eq!(pace.left(1_500), 10);
        assert_eq!((pace.due_after(0), pace.due_after(9)), (500, 1_400));
        pace.advance();
        assert_eq!(pace.left(1_500), 9);
        assert_eq!(pace.due_after(8), 1_400);
        assert_eq!(pace.left(0), 0);
        assert_eq!(pace.due_between(600, 1_500), 9);
        assert_eq!(pace.due_between(601, 1_501), 9);
        assert_eq!(pace.due_between(1_500, 600), 0);
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
        let left: u64 = parts.clone().map(|pace| pace.left(ends_at)).sum();
        assert_eq!(left, 100, "as many as are due");
        let late = parts.clone().map(|pace| pace.due_between(1_007, ends_at));
        assert_eq!(late.sum::<u64>(), 80, "those of the last four seconds");
        let mut made = Vec::new();
        for mut pace in parts {
            while pace.due() < ends_at {
                made.push(pace.due());
                pace.advance();
            }
            assert_eq!(pace.left(ends_at), 0);
        }
        made.sort_unstable();
        assert_eq!(made, wanted);
    }
}
