//! The course of a load: warm-up, measurement, end; and when the next call is due.

use std::time::Duration;

use rpcrdma_fabric::clock::{Clock, Ticks};

use std::sync::Arc;

use super::Amount;
use crate::load::intervals::{Exchange, Recorder};
use crate::load::pace::Pace;
use crate::run::config::Limit;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Calls are made and not counted, until the time.
    Warmup(Ticks),
    /// Calls are counted, until the time or the count.
    Measuring(Ticks),
    /// No new calls; the outstanding ones come back.
    Ending,
}

/// The course of one part of a load. It is told of calls made and ended, and tells whether to make the next.
#[derive(Debug)]
pub(crate) struct Course {
    clock: Clock,
    phase: Phase,
    pace: Option<Pace>,
    limit: Limit,
    /// Set while and after measuring: calls that started before are not counted.
    measured_start: Option<Ticks>,
    /// Calls made since then, and those of them that ended, well or not.
    started: u64,
    ended: u64,
    last_end: Ticks,
    elapsed: Duration,
    backlog: u64,
    /// All latencies, interval by interval, and where full histograms go.
    recorder: Recorder,
    exchange: Arc<Exchange>,
}

impl Course {
    pub(crate) fn new(clock: Clock, amount: &Amount, now: Ticks, exchange: Arc<Exchange>) -> Self {
        let pace = |rate| Pace::new(now, clock.ticks_per_second(), rate);
        Self {
            phase: Phase::Warmup(now.saturating_add(clock.ticks(amount.warmup))),
            pace: amount.rate.map(pace),
            limit: amount.limit,
            measured_start: None,
            started: 0,
            ended: 0,
            last_end: now,
            elapsed: Duration::ZERO,
            backlog: 0,
            recorder: Recorder::new(clock.ticks(amount.interval)),
            exchange,
            clock,
        }
    }

    /// Goes on as time and counts say.
    pub(crate) fn advance(&mut self, now: Ticks) {
        match self.phase {
            Phase::Warmup(until) if now >= until => {
                self.measured_start = Some(now);
                self.recorder.begin(now);
                self.phase = Phase::Measuring(match self.limit {
                    Limit::Duration(time) => now.saturating_add(self.clock.ticks(time)),
                    Limit::Count(_) => Ticks::MAX,
                });
            }
            Phase::Measuring(until) if now >= until || self.is_enough() => self.end(now),
            Phase::Measuring(_) if now >= self.recorder.until() => {
                self.recorder.next(now, &self.exchange);
            }
            Phase::Warmup(_) | Phase::Measuring(_) | Phase::Ending => {}
        }
    }

    fn is_enough(&self) -> bool {
        matches!(self.limit, Limit::Count(count) if self.ended >= count)
    }

    /// Makes no more calls.
    pub(crate) fn end(&mut self, now: Ticks) {
        if self.phase != Phase::Ending {
            self.backlog = self.pace.map_or(0, |pace| pace.behind(now));
            self.elapsed = self.since_start(now);
            self.phase = Phase::Ending;
        }
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.phase == Phase::Ending
    }

    fn since_start(&self, now: Ticks) -> Duration {
        let start = self.measured_start.unwrap_or(now);
        Duration::from_nanos(self.clock.nanos_between(start, now))
    }

    /// If a call may be made now, when it started: now in a closed loop, when it was due in an open one.
    pub(crate) fn due(&self, now: Ticks) -> Option<Ticks> {
        if self.phase == Phase::Ending {
            return None;
        }
        if let Limit::Count(count) = self.limit
            && self.started >= count
        {
            return None;
        }
        match self.pace {
            None => Some(now),
            Some(pace) => (pace.due() <= now).then_some(pace.due()),
        }
    }

    /// When the next call of an open loop is due.
    pub(crate) fn next_due(&self) -> Option<Ticks> {
        let is_ending = self.phase == Phase::Ending;
        self.pace.filter(|_| !is_ending).map(|pace| pace.due())
    }

    /// How long nothing is due, at most `longest`.
    pub(crate) fn idle_for(&self, now: Ticks, longest: Duration) -> Duration {
        self.next_due().map_or(longest, |due| {
            Duration::from_nanos(self.clock.nanos_between(now, due)).min(longest)
        })
    }

    /// A call was made that started at `start`.
    pub(crate) fn made(&mut self, start: Ticks) {
        if let Some(pace) = &mut self.pace {
            pace.advance();
        }
        self.started += u64::from(self.is_measured(start));
    }

    fn is_measured(&self, start: Ticks) -> bool {
        self.measured_start.is_some_and(|begin| start >= begin)
    }

    /// A call ended well; its latency if it counts.
    pub(crate) fn ended(&mut self, start: Ticks, now: Ticks) -> Option<u64> {
        if !self.is_measured(start) {
            return None;
        }
        self.ended += 1;
        self.last_end = now;
        let latency_ns = self.clock.nanos_between(start, now);
        self.recorder.record(latency_ns, 1);
        Some(latency_ns)
    }

    /// A call ended in an error.
    pub(crate) fn failed(&mut self, start: Ticks) {
        self.ended += u64::from(self.is_measured(start));
    }

    /// The measured time, to the end of the last call that counts: a stall at the end is neither lost nor called
    /// speed.
    pub(crate) fn elapsed(&self) -> Duration {
        self.elapsed.max(self.since_start(self.last_end))
    }

    /// The interval that is not in the exchange: the last one.
    pub(crate) fn into_recorder(self) -> Recorder {
        self.recorder
    }

    /// Calls that were due by the end and were not made.
    pub(crate) fn backlog(&self) -> u64 {
        self.backlog
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::pace::Rate;

    fn course(limit: Limit, rate_per_s: Option<u64>) -> (Course, Ticks) {
        let clock = Clock::new();
        let amount = Amount {
            depth: 1,
            warmup: Duration::from_secs(1),
            limit,
            rate: rate_per_s.map(Rate::new),
            patience: Duration::ZERO,
            interval: Duration::from_secs(1),
        };
        let second = clock.ticks_per_second();
        (Course::new(clock, &amount, 0, Arc::default()), second)
    }

    /// Ticks are no whole nanoseconds.
    fn is_about(time: Duration, seconds: u64) -> bool {
        time.abs_diff(Duration::from_secs(seconds)) < Duration::from_micros(1)
    }

    #[test]
    fn calls_count_from_the_end_of_the_warm_up() {
        let (mut course, second) = course(Limit::Duration(Duration::from_secs(2)), None);
        course.advance(second - 1);
        assert_eq!(course.due(second - 1), Some(second - 1));
        course.made(second - 1);
        course.advance(second);
        assert_eq!(course.ended(second - 1, second + 5), None, "of the warm-up");
        course.made(second);
        let latency = course.ended(second, 2 * second).unwrap();
        assert!(
            (999_999_000..=1_000_001_000).contains(&latency),
            "{latency}"
        );
        course.advance(3 * second - 1);
        assert!(!course.is_ending());
        course.advance(3 * second);
        assert!(course.is_ending() && course.due(3 * second).is_none());
        assert!(is_about(course.elapsed(), 2));
        course.ended(second, 6 * second);
        assert!(is_about(course.elapsed(), 5), "to the last call");
    }

    #[test]
    fn a_count_is_made_and_no_more() {
        let (mut course, second) = course(Limit::Count(2), None);
        course.advance(second);
        for _ in 0..2 {
            course.made(course.due(second + 1).unwrap());
        }
        assert_eq!(course.due(second + 1), None);
        for later in 0..2 {
            course.advance(second + 2 + later);
            assert!(!course.is_ending());
            course.failed(second + 1);
        }
        course.advance(second + 5);
        assert!(course.is_ending());
    }

    #[test]
    fn an_open_loop_starts_when_calls_are_due_and_tells_what_it_left() {
        let (mut course, second) = course(Limit::Duration(Duration::from_secs(1)), Some(10));
        assert_eq!(course.due(0), Some(0));
        course.made(0);
        assert_eq!(course.due(second / 20), None);
        let idle = course.idle_for(second / 20, Duration::from_secs(1));
        assert!((49..=50).contains(&idle.as_millis()), "{idle:?}");
        assert_eq!(course.idle_for(0, Duration::from_millis(1)).as_millis(), 1);
        assert_eq!(
            course.due(second / 2),
            Some(second / 10),
            "late, and since then"
        );
        course.advance(second);
        course.advance(2 * second);
        assert_eq!(course.backlog(), 19);
    }
}
