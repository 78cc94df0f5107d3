//! The idle policy: spin, pause, or sleep.

use std::os::fd::AsFd;
use std::time::Duration;

use rpcrdma_fabric::clock::{Clock, Ticks};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::config::IdlePolicy;
use crate::rpc::Activity;

#[derive(Debug)]
pub(crate) struct Idle {
    policy: IdlePolicy,
    park_after: Ticks,
    awake_percent: Ticks,
    idle_since: Option<Ticks>,
    /// How long the core may stay awake without work from [`Idle::idle_since`] on. It grows with time, by the share that the
    /// policy gives, and shrinks by what the core stays awake: a token bucket as deep as [`Idle::park_after`].
    allowance: Ticks,
    /// When the allowance last grew.
    allowed_at: Ticks,
}

impl Idle {
    pub(crate) fn new(policy: IdlePolicy, clock: &Clock) -> Self {
        let (park_after, awake_percent) = match policy {
            IdlePolicy::Park {
                after,
                awake_percent,
            } => (clock.ticks(after), awake_percent),
            IdlePolicy::Spin | IdlePolicy::Pause => (Ticks::MAX, 100),
        };
        Self {
            policy,
            park_after,
            awake_percent: awake_percent.into(),
            idle_since: None,
            allowance: park_after,
            allowed_at: 0,
        }
    }

    /// Rests after an iteration at `now`, according to the policy. True when it is time to park.
    #[inline]
    pub(crate) fn rest(&mut self, activity: Activity, now: Ticks) -> bool {
        if self.policy == IdlePolicy::Spin {
            return false;
        }
        if activity.is_busy() {
            if let Some(since) = self.idle_since.take() {
                // What it slept counts as well: it parks with nothing left.
                self.allowance = self.allowance.saturating_sub(now.saturating_sub(since));
            }
            return false;
        }
        std::hint::spin_loop();
        let since = match self.idle_since {
            Some(since) => since,
            None => self.begin(now),
        };
        now.saturating_sub(since) >= self.allowance
    }

    /// The core has no work from `now` on.
    fn begin(&mut self, now: Ticks) -> Ticks {
        self.idle_since = Some(now);
        if self.awake_percent >= 100 {
            self.allowance = self.park_after;
        } else {
            let earned = now
                .saturating_sub(self.allowed_at)
                .saturating_mul(self.awake_percent)
                / 100;
            self.allowance = self.allowance.saturating_add(earned).min(self.park_after);
            self.allowed_at = now;
        }
        now
    }
}

/// Sleeps until one of the descriptors is readable, for `time_max` at most, which is less than a second. Returns
/// whether one is.
pub(crate) fn sleep(fabric: &impl AsFd, wake: &impl AsFd, time_max: Duration) -> bool {
    let time_max = Timespec {
        tv_sec: 0,
        tv_nsec: time_max.subsec_nanos().into(),
    };
    let mut events = [
        PollFd::new(fabric, PollFlags::IN),
        PollFd::new(wake, PollFlags::IN),
    ];
    // An interruption or any other failure only shortens the sleep: the core does another iteration.
    rustix::event::poll(&mut events, Some(&time_max)).is_ok_and(|readable| readable != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stays awake 10 us at a time, for a share of its time.
    fn parking(awake_percent: u32, clock: &Clock) -> Idle {
        let after = Duration::from_micros(10);
        let policy = IdlePolicy::Park {
            after,
            awake_percent,
        };
        Idle::new(policy, clock)
    }

    #[test]
    fn parks_after_an_idle_time_without_a_break() {
        let clock = Clock::new();
        let after = clock.ticks(Duration::from_micros(10));
        let mut idle = parking(100, &clock);
        assert!(!idle.rest(Activity::Idle, 1000));
        assert!(!idle.rest(Activity::Idle, 1000 + after - 1));
        assert!(!idle.rest(Activity::Busy, 1000 + after));
        assert!(!idle.rest(Activity::Idle, 1000 + after));
        assert!(idle.rest(Activity::Idle, 1000 + 2 * after));
        let mut spinning = Idle::new(IdlePolicy::Spin, &clock);
        assert!(!spinning.rest(Activity::Idle, 0) && !spinning.rest(Activity::Idle, Ticks::MAX));
    }

    /// Work comes every 20 us, and a core that may stay awake 10 us at a time, but no more than a tenth of its time.
    #[test]
    fn stays_awake_for_its_share_of_the_time() {
        let clock = Clock::new();
        let us = |count| clock.ticks(Duration::from_micros(count));
        let mut idle = parking(10, &clock);
        let (mut awake, mut parks) = (0, 0);
        for round in 1..=1000 {
            let begin = us(20 * round);
            assert!(!idle.rest(Activity::Busy, begin));
            // Until it parks, and until the next work comes, whichever is first.
            let mut at = 1;
            while at < 20 && !idle.rest(Activity::Idle, begin + us(at)) {
                at += 1;
            }
            awake += at - 1;
            parks += u32::from(at < 20);
        }
        assert_eq!(parks, 1000);
        // 2 us of 20, and what the bucket held in the beginning.
        assert!((1900..=2110).contains(&awake), "{awake} us");
    }

    /// After a long sleep a core stays awake as long as it may at most, and not longer.
    #[test]
    fn a_long_sleep_earns_no_more_than_one_time_awake() {
        let clock = Clock::new();
        let us = |count| clock.ticks(Duration::from_micros(count));
        let mut idle = parking(10, &clock);
        assert!(!idle.rest(Activity::Busy, us(1_000_000)));
        assert!(!idle.rest(Activity::Idle, us(1_000_000)));
        assert!(!idle.rest(Activity::Idle, us(1_000_009)));
        assert!(idle.rest(Activity::Idle, us(1_000_010)));
    }
}
