//! How full a core is, and how long its polls take: what it publishes beside its counters, for
//! whoever watches it. Written by the core alone, read by anybody.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rpcrdma_fabric::clock::{Clock, Ticks};

use crate::counters::Counter;

macro_rules! levels {
    ($($(#[$meta:meta])* $name:ident,)*) => {
        /// The levels of a core, in cache lines of their own.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub(crate) struct Levels {
            $($name: AtomicU64,)*
        }

        /// The levels of a core as it published them last, some tenths of a second ago at most.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct LevelSnapshot {
            $($(#[$meta])* pub $name: u64,)*
        }

        impl Levels {
            pub(crate) fn publish(&self, levels: &LevelSnapshot) {
                $(self.$name.store(levels.$name, Ordering::Relaxed);)*
            }

            /// The levels as they were published last.
            pub(crate) fn snapshot(&self) -> LevelSnapshot {
                LevelSnapshot { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

levels! {
    /// Connections of version 1.
    connections_version_1,
    /// Connections of version 2, those that have not told their version yet included.
    connections_version_2,
    /// Connections with messages that wait for a credit of the peer.
    connections_without_credit,
    /// Credits that peers of version 1 have for calls, used or not: what every reply grants.
    credits_granted_version_1,
    /// Credits that peers of version 2 have, and have not used in messages that were handled.
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
    /// Bulk buffers that are free, and those that would be given up for others.
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

/// Replies by how long their calls were on the core.
#[derive(Debug)]
pub(crate) struct PollTimes {
    clock: Clock,
    bounds: [Ticks; BOUNDS_NS.len()],
    /// The last one is for what is beyond all bounds.
    replies: [Counter; BOUNDS_NS.len() + 1],
    /// These times, in sum.
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

    /// A poll took so long that did something, and sent so many replies to calls that it found.
    #[inline]
    pub(crate) fn record(&self, ticks: Ticks, replies: u64) {
        self.busy_ticks.add(ticks);
        self.record_replies(ticks, replies);
    }

    /// So many replies were sent to calls that were found so long ago.
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

/// How long the polls of a core took, as of a moment not long ago.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PollTimeSnapshot {
    /// Replies by how long their calls were on the core: those within the bound and beyond the one
    /// before; the last one has no bound. For a call that is answered in the poll that finds it that is
    /// the time of the poll, and for one that is deferred, or waits for bulk data, buffers or credits, the time
    /// from that poll to the one that sends its reply. What a call waits for in its Receive comes before
    /// ([`LevelSnapshot::calls_held`]).
    pub replies: Vec<(Option<Duration>, u64)>,
    /// These times, in sum.
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
