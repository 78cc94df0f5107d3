//! Latencies per interval. A core fills one histogram per interval; the thread that started the load packs the full
//! ones.
//!
//! At the end of an interval the core takes an empty histogram from one queue and puts the full one into another. So
//! it records each call only once, and never allocates or packs. One exception: `nfs` records each call a second
//! time, by procedure.

use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use rpcrdma_fabric::clock::Ticks;

use crate::histogram::LatencyHistogram;
use crate::load::measured::Measured;
use crate::load::timeline::{CoreTimeline, INTERVALS_MAX, Interval};
use crate::progress::Progress;

/// Spare histograms, in addition to the one that the core fills: the collecting thread may be late by so many
/// intervals.
const SPARES: usize = 3;

/// A full histogram on its way to the collector.
#[derive(Debug)]
struct Full {
    interval: Interval,
    latency: LatencyHistogram,
}

/// The two queues between a core and the collecting thread.
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
    /// An exchange with `spares` spare histograms, at least one.
    pub(crate) fn with_spares(spares: usize) -> Self {
        let exchange = Self {
            full: ArrayQueue::new(spares),
            empty: ArrayQueue::new(spares),
        };
        while exchange.empty.push(LatencyHistogram::new()).is_ok() {}
        exchange
    }
}

/// Records the latencies of one core in its current interval.
#[derive(Debug)]
pub(crate) struct Recorder {
    latency: LatencyHistogram,
    /// The interval that `latency` belongs to.
    interval: Interval,
    start: Ticks,
    length: Ticks,
    /// When the interval ends; `Ticks::MAX` until the measurement begins.
    until: Ticks,
}

impl Recorder {
    /// A recorder for intervals of `length`, above 0.
    pub(crate) fn new(length: Ticks) -> Self {
        Self {
            latency: LatencyHistogram::new(),
            interval: Interval::default(),
            start: 0,
            length: length.max(1),
            until: Ticks::MAX,
        }
    }

    /// Starts the first interval.
    pub(crate) fn begin(&mut self, now: Ticks) {
        self.start = now;
        self.until = now.saturating_add(self.length);
    }

    /// Records `count` equal latencies, at least one. Allocates nothing.
    #[inline]
    pub(crate) fn record(&mut self, latency_ns: u64, count: u64) {
        self.latency.record_equal(latency_ns, count);
    }

    /// When to call [`Recorder::next`].
    pub(crate) fn until(&self) -> Ticks {
        self.until
    }

    /// Starts the interval that contains `now`. If no empty histogram is left, or after [`INTERVALS_MAX`] intervals,
    /// the current interval continues and is marked as stretched.
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
        // `full` has room for every spare, and the one in hand replaces a spare: the push cannot fail.
        let pushed = exchange.full.push(Full { interval, latency });
        debug_assert!(pushed.is_ok(), "room for every spare");
    }
}

/// Collects the full histograms of one core; belongs to the thread that started the load.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    timeline: CoreTimeline,
    /// Gets the latencies too; `None` in tests.
    progress: Option<Progress>,
}

impl Collector {
    /// The collector of the core with this number, for a load with this progress.
    pub(crate) fn new(core: usize, progress: &Progress) -> Self {
        let mut collector = Self {
            progress: Some(progress.clone()),
            ..Self::default()
        };
        collector.timeline.core = core;
        collector
    }

    fn push(&mut self, interval: Interval, latency: &LatencyHistogram) {
        self.timeline.push(interval, latency);
        if let Some(progress) = &self.progress {
            progress.measured(latency);
        }
    }

    /// Packs the full histograms and returns them empty to the core.
    pub(crate) fn collect(&mut self, exchange: &Exchange) {
        while let Some(Full {
            interval,
            mut latency,
        }) = exchange.full.pop()
        {
            self.push(interval, &latency);
            latency.clear();
            let pushed = exchange.empty.push(latency);
            debug_assert!(pushed.is_ok(), "room for every spare");
        }
    }

    /// Returns everything that the core recorded, including the last interval and the waits of `part` that were in vain. The
    /// measurement is over.
    pub(crate) fn finish(
        &mut self,
        exchange: &Exchange,
        last: &Recorder,
        part: &mut Measured,
    ) -> CoreTimeline {
        self.collect(exchange);
        self.push(last.interval, &last.latency);
        self.close(part)
    }

    /// How many calls have been answered in the intervals that are over.
    pub(crate) fn answered(&self) -> u64 {
        self.timeline.total().count()
    }

    /// As [`Collector::finish`], of what is collected.
    pub(crate) fn close(&mut self, part: &mut Measured) -> CoreTimeline {
        let mut timeline = std::mem::take(&mut self.timeline);
        timeline.elapsed = part.elapsed;
        timeline.slots = part.slots;
        if let Some(waits) = part.unanswered.take() {
            timeline.unanswered = Some(waits.pack());
            if let Some(progress) = &self.progress {
                progress.measured(&waits);
            }
        }
        timeline
    }

    /// The intervals of length `interval` that are over. The core may still record the next one.
    pub(crate) fn so_far(&self, interval: Duration) -> Measured {
        let mut timeline = self.timeline.clone();
        let last = timeline.intervals.last();
        timeline.elapsed = last.map_or(Duration::ZERO, |(last, _)| interval * (last.number + 1));
        Measured {
            elapsed: timeline.elapsed,
            timelines: vec![timeline],
            ..Measured::default()
        }
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

    fn finished(mut collector: Collector, exchange: &Exchange, last: &Recorder) -> Vec<(u32, u64)> {
        let timeline = collector.finish(exchange, last, &mut Measured::default());
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
        let timeline = Collector::default().finish(&exchange, &recorder, &mut Measured::default());
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
