//! Levels (how full a core is) and poll times, which a core publishes for monitoring in addition to its
//! counters. Written by the core alone, read by any thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rpcrdma_fabric::clock::{Clock, Ticks};

use crate::counters::Counter;

macro_rules! levels {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// The levels of a core, in separate cache lines.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub(crate) struct Levels {
            $($name: AtomicU64,)*
        }

        /// The levels that a core published last, a few tenths of a second ago at most.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct LevelSnapshot {
            $($(#[doc = $doc])+ pub $name: u64,)*
        }

        impl LevelSnapshot {
            /// What each level means, in the order in which they are declared.
            pub const MEANINGS: &[&str] = &[$(concat!($($doc),+)),*];

            /// All levels by name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }

        impl Levels {
            pub(crate) fn publish(&self, levels: &LevelSnapshot) {
                $(self.$name.store(levels.$name, Ordering::Relaxed);)*
            }

            /// The levels that were published last.
            pub(crate) fn snapshot(&self) -> LevelSnapshot {
                LevelSnapshot { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

levels! {
    /// Connections of version 1.
    connections_version_1,
    /// Connections of version 2, and those whose version is not known yet.
    connections_version_2,
    /// Connections with messages that wait for a credit of the peer.
    connections_without_credit,
    /// Credits that peers of version 1 have for calls, used or not: what every reply grants.
    credits_granted_version_1,
    /// Credits that peers of version 2 hold: granted, and not used by messages that were handled.
    credits_granted_version_2,
    /// Credits that peers have granted and this end has not used.
    credits_available,
    /// Calls of ours that wait for their replies.
    calls_outstanding,
    /// Calls of peers that the application has deferred.
    calls_deferred,
    /// Calls of peers that wait in their Receives.
    calls_held,
    /// Receives posted on the shared receive queue; 0 where each connection has its own.
    receives_posted,
    /// Send buffers that are free.
    send_buffers_free,
    /// Send buffers, one for scratch not counted.
    send_buffers_total,
    /// Message buffers that are free.
    message_buffers_free,
    /// Message buffers.
    message_buffers_total,
    /// Bulk buffers that are free, or kept for a resend and given up on demand.
    bulk_buffers_free,
    /// Bulk buffers.
    bulk_buffers_total,
    /// Placement segments that are neither in a Receive nor leased.
    placement_segments_free,
    /// Placement segments that applications keep.
    placement_segments_leased,
    /// Memory windows that are bound, or whose invalidation is under way.
    windows_open,
}

/// The upper bounds of the buckets of [`PollTimes`], in nanoseconds.
const BOUNDS_NS: [u64; 16] = [
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
];

/// A histogram of replies, by the time that their calls spent on the core.
#[derive(Debug)]
pub(crate) struct PollTimes {
    clock: Clock,
    bounds: [Ticks; BOUNDS_NS.len()],
    /// The last bucket is for times beyond all bounds.
    replies: [Counter; BOUNDS_NS.len() + 1],
    /// The sum of these times.
    reply_ticks: Counter,
    /// The time of all polls that did something.
    busy_ticks: Counter,
}

impl PollTimes {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            bounds: BOUNDS_NS.map(|bound_ns| clock.ticks(Duration::from_nanos(bound_ns))),
            replies: Default::default(),
            reply_ticks: Counter::default(),
            busy_ticks: Counter::default(),
            clock,
        }
    }

    /// Records a poll that did something: it took `ticks`, and sent `replies` replies to calls that it found.
    #[inline]
    pub(crate) fn record(&self, ticks: Ticks, replies: u64) {
        self.busy_ticks.add(ticks);
        self.record_replies(ticks, replies);
    }

    /// Records `replies` replies to calls that were found `ticks` ago.
    #[inline]
    pub(crate) fn record_replies(&self, ticks: Ticks, replies: u64) {
        if replies != 0 {
            self.reply_ticks.add(ticks.saturating_mul(replies));
            let bounds = self.bounds.iter();
            let bucket = bounds.take_while(|bound| ticks > **bound).count();
            if let Some(bucket) = self.replies.get(bucket) {
                bucket.add(replies);
            }
        }
    }

    pub(crate) fn snapshot(&self) -> PollTimeSnapshot {
        let time = |ticks| Duration::from_nanos(self.clock.nanos_between(0, ticks));
        let bounds = BOUNDS_NS.map(|bound_ns| Some(Duration::from_nanos(bound_ns)));
        let replies = self.replies.iter().map(Counter::get);
        PollTimeSnapshot {
            replies: bounds.into_iter().chain([None]).zip(replies).collect(),
            reply_time: time(self.reply_ticks.get()),
            busy_time: time(self.busy_ticks.get()),
        }
    }
}

/// How long the polls of a core took, up to a recent moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PollTimeSnapshot {
    /// Replies by the time that their calls spent on the core. Each entry counts those up to its bound and beyond the
    /// previous one; the last has no bound. The time of a call that is answered in the poll that finds it is that of
    /// the poll. The time of a call that is deferred, or waits for bulk data, buffers or credits, ends with the poll
    /// that sends its reply. Time that a call waits in its Receive ([`LevelSnapshot::calls_held`]) comes before, and
    /// does not count.
    pub replies: Vec<(Option<Duration>, u64)>,
    /// The sum of these times.
    pub reply_time: Duration,
    /// The time of all polls that did something. Idle polls between two readings of the clock
    /// ([`Application::CLOCK_INTERVAL_POLLS`](crate::Application::CLOCK_INTERVAL_POLLS)) are counted
    /// with the poll that follows them.
    pub busy_time: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_counted_within_their_bounds() {
        let times = PollTimes::new(Clock::new());
        let one_us = times.clock.ticks(Duration::from_micros(1));
        times.record(one_us, 3);
        times.record(one_us + 1, 2);
        times.record(one_us, 0);
        times.record(times.clock.ticks(Duration::from_secs(2)), 1);
        let snapshot = times.snapshot();
        let of = |bound| {
            let mut buckets = snapshot.replies.iter();
            buckets
                .find(|bucket| bucket.0 == bound)
                .map(|bucket| bucket.1)
        };
        assert_eq!(of(Some(Duration::from_micros(1))), Some(3));
        assert_eq!(of(Some(Duration::from_micros(2))), Some(2));
        assert_eq!(of(None), Some(1), "what is beyond all bounds");
        let all: u64 = snapshot.replies.iter().map(|bucket| bucket.1).sum();
        assert_eq!(all, 6);
        // Five of one microsecond, one of two seconds; and three polls of one, one of two seconds.
        let near =
            |time: Duration, wanted: Duration| time.abs_diff(wanted) < Duration::from_millis(1);
        assert!(
            near(snapshot.reply_time, Duration::from_secs(2)),
            "{snapshot:?}"
        );
        assert!(
            near(snapshot.busy_time, Duration::from_secs(2)),
            "{snapshot:?}"
        );
    }

    #[test]
    fn bounds_rise() {
        assert!(BOUNDS_NS.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
