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
    idle_since: Option<Ticks>,
}

impl Idle {
    pub(crate) fn new(policy: IdlePolicy, clock: &Clock) -> Self {
        let park_after = match policy {
            IdlePolicy::Park { after } => clock.ticks(after),
            IdlePolicy::Spin | IdlePolicy::Pause => Ticks::MAX,
        };
        Self {
            policy,
            park_after,
            idle_since: None,
        }
    }

    /// Rests after an iteration at `now`, according to the policy. True when it is time to park.
    #[inline]
    pub(crate) fn rest(&mut self, activity: Activity, now: Ticks) -> bool {
        if self.policy == IdlePolicy::Spin {
            return false;
        }
        if activity.is_busy() {
            self.idle_since = None;
            return false;
        }
        std::hint::spin_loop();
        let since = *self.idle_since.get_or_insert(now);
        now.saturating_sub(since) >= self.park_after
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

    #[test]
    fn parks_after_an_idle_time_without_a_break() {
        let clock = Clock::new();
        let after = clock.ticks(Duration::from_micros(10));
        let policy = IdlePolicy::Park {
            after: Duration::from_micros(10),
        };
        let mut idle = Idle::new(policy, &clock);
        assert!(!idle.rest(Activity::Idle, 1000));
        assert!(!idle.rest(Activity::Idle, 1000 + after - 1));
        assert!(!idle.rest(Activity::Busy, 1000 + after));
        assert!(!idle.rest(Activity::Idle, 1000 + after));
        assert!(idle.rest(Activity::Idle, 1000 + 2 * after));
        let mut spinning = Idle::new(IdlePolicy::Spin, &clock);
        assert!(!spinning.rest(Activity::Idle, 0) && !spinning.rest(Activity::Idle, Ticks::MAX));
    }
}
