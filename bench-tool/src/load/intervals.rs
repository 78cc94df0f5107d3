//! Latencies, interval by interval: a core fills one histogram after the other, and the thread that
//! set the load up packs those that it has left. So a core of `run` records each call once (one of `nfs`
//! once more, by procedure; over the kernel's TCP the thread that records also packs), and when an
//! interval ends it takes an empty histogram from one queue and puts the full one into another.

use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use rpcrdma_fabric::clock::Ticks;

use crate::histogram::LatencyHistogram;
use crate::load::timeline::{CoreTimeline, INTERVALS_MAX, Interval};

/// Empty histograms beside the one that a core fills: the thread that empties them may be late by
/// as many intervals.
const SPARES: usize = 3;

/// A histogram on its way from a core.
#[derive(Debug)]
struct Full {
    interval: Interval,
    latency: LatencyHistogram,
}

/// The two queues between a core and the thread that empties its histograms.
#[derive(Debug)]
pub(crate) struct Exchange {
    full: ArrayQueue<Full>,
    empty: ArrayQueue<LatencyHistogram>,
}

impl Default for Exchange {
    fn default() -> Self {
        Self::with_spares(SPARES)
    }
}

impl Exchange {
    /// With so many spares, at least one. One is enough where the thread that records also collects.
    pub(crate) fn with_spares(spares: usize) -> Self {
        let exchange = Self {
            full: ArrayQueue::new(spares),
            empty: ArrayQueue::new(spares),
        };
        while exchange.empty.push(LatencyHistogram::new()).is_ok() {}
        exchange
    }
}

/// What a core records in.
#[derive(Debug)]
pub(crate) struct Recorder {
    latency: LatencyHistogram,
    /// The interval that it is of.
    interval: Interval,
    start: Ticks,
    length: Ticks,
    /// When the interval ends; never before the measurement has begun.
    until: Ticks,
}

impl Recorder {
    /// For intervals of `length` (above 0).
    pub(crate) fn new(length: Ticks) -> Self {
        Self {
            latency: LatencyHistogram::new(),
            interval: Interval::default(),
            start: 0,
            length: length.max(1),
            until: Ticks::MAX,
        }
    }

    /// The measurement begins.
    pub(crate) fn begin(&mut self, now: Ticks) {
        self.start = now;
        self.until = now.saturating_add(self.length);
    }

    /// Records `count` equal latencies, at least one. Allocates nothing.
    #[inline]
    pub(crate) fn record(&mut self, latency_ns: u64, count: u64) {
        self.latency.record_equal(latency_ns, count);
    }

    /// When [`Recorder::next`] is to be called.
    pub(crate) fn until(&self) -> Ticks {
        self.until
    }

    /// Goes on with the interval that `now` is in. Without an empty histogram this one goes on, and
    /// says so.
    #[cold]
    pub(crate) fn next(&mut self, now: Ticks, exchange: &Exchange) {
        let number = now.saturating_sub(self.start) / self.length;
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        if number >= INTERVALS_MAX {
            self.interval.is_stretched = true;
            self.until = Ticks::MAX;
            return;
        }
        let ended = u64::from(number) + 1;
        self.until = self.start.saturating_add(self.length.saturating_mul(ended));
        let Some(empty) = exchange.empty.pop() else {
            self.interval.is_stretched = true;
            return;
        };
        let latency = std::mem::replace(&mut self.latency, empty);
        let interval = std::mem::replace(&mut self.interval, Interval::new(number));
        // There is room for all histograms that there are beside the one in hand.
        let pushed = exchange.full.push(Full { interval, latency });
        debug_assert!(pushed.is_ok(), "room for every spare");
    }
}

/// What the thread that set a load up has of one core.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    timeline: CoreTimeline,
}

impl Collector {
    /// Packs the histograms that the core has left, and gives them back empty.
    pub(crate) fn collect(&mut self, exchange: &Exchange) {
        while let Some(Full {
            interval,
            mut latency,
        }) = exchange.full.pop()
        {
            self.timeline.push(interval, &latency);
            latency.clear();
            let pushed = exchange.empty.push(latency);
            debug_assert!(pushed.is_ok(), "room for every spare");
        }
    }

    /// The measurement is over: all that the core recorded, the last interval included.
    pub(crate) fn finish(
        mut self,
        exchange: &Exchange,
        last: &Recorder,
        core: usize,
        elapsed: Duration,
    ) -> CoreTimeline {
        self.collect(exchange);
        self.timeline.push(last.interval, &last.latency);
        self.timeline.core = core;
        self.timeline.elapsed = elapsed;
        self.timeline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Ticks = 1_000;

    fn begun(at: Ticks) -> (Recorder, Exchange) {
        let mut recorder = Recorder::new(LENGTH);
        assert_eq!(recorder.until(), Ticks::MAX, "nothing has begun");
        recorder.begin(at);
        (recorder, Exchange::default())
    }

    fn finished(collector: Collector, exchange: &Exchange, last: &Recorder) -> Vec<(u32, u64)> {
        let timeline = collector.finish(exchange, last, 0, Duration::from_secs(9));
        let intervals = timeline.intervals.iter();
        intervals
            .map(|(interval, latency)| (interval.number, latency.unpack().count()))
            .collect()
    }

    #[test]
    fn every_latency_is_in_the_interval_that_it_ended_in() {
        let (mut recorder, exchange) = begun(500);
        let mut collector = Collector::default();
        for (now, calls) in [(500, 2), (1_499, 1), (1_500, 4), (3_700, 8), (3_701, 16)] {
            if now >= recorder.until() {
                recorder.next(now, &exchange);
            }
            recorder.record(now, calls);
            collector.collect(&exchange);
        }
        // Nothing happened in the interval from 2,500 to 3,500.
        let expected = [(0, 3), (1, 4), (3, 24)];
        assert_eq!(finished(collector, &exchange, &recorder), expected);
    }

    #[test]
    fn a_collector_that_is_late_loses_nothing_and_it_shows() {
        let (mut recorder, exchange) = begun(0);
        for number in 0..10 {
            let now = number * LENGTH;
            if now >= recorder.until() {
                recorder.next(now, &exchange);
            }
            recorder.record(number, 1);
        }
        let timeline = Collector::default().finish(&exchange, &recorder, 0, Duration::ZERO);
        let counts: Vec<_> = timeline
            .intervals
            .iter()
            .map(|(it, latency)| (it.number, it.is_stretched, latency.unpack().count()))
            .collect();
        let expected = [(0, false, 1), (1, false, 1), (2, false, 1), (3, true, 7)];
        assert_eq!(counts, expected);
    }

    #[test]
    fn the_last_interval_that_is_kept_has_the_rest() {
        let (mut recorder, exchange) = begun(0);
        recorder.next(u64::from(INTERVALS_MAX) * LENGTH, &exchange);
        recorder.record(1, 1);
        assert_eq!(recorder.until(), Ticks::MAX);
        let expected = [(0, 1)];
        assert_eq!(
            finished(Collector::default(), &exchange, &recorder),
            expected
        );
    }
}
