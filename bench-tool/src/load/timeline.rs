//! Results over time: the latencies of each core in each interval, and figures derived from them.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::histogram::{LatencyHistogram, LatencySummary, PackedHistogram, null_without_calls};
use rpcrdma_units::per_s;

/// Upper bound of the number of intervals, which bounds the memory; the last interval takes the rest of a longer run.
pub(crate) const INTERVALS_MAX: u32 = 10_000;

/// The interval of a histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interval {
    /// From 0.
    pub number: u32,
    /// Whether it also contains calls of later intervals.
    pub is_stretched: bool,
}

impl Interval {
    /// Exactly interval `number`.
    #[must_use]
    pub(crate) const fn new(number: u32) -> Self {
        Self {
            number,
            is_stretched: false,
        }
    }
}

/// The intervals of one core, in order. Intervals in which no call ended may be missing.
#[derive(Clone, Debug, Default)]
pub(crate) struct CoreTimeline {
    /// The core.
    pub core: usize,
    /// Its measured time.
    pub elapsed: Duration,
    /// The calls that it can have outstanding; 0 if that is not known.
    pub slots: u64,
    /// The latencies of each interval.
    pub intervals: Vec<(Interval, PackedHistogram)>,
    /// How long calls without an answer had waited when they were given up; they ended in no interval. `None` if there
    /// are none.
    pub unanswered: Option<PackedHistogram>,
}

impl CoreTimeline {
    /// Adds the core's next interval.
    pub(crate) fn push(&mut self, interval: Interval, latency: &LatencyHistogram) {
        self.intervals.push((interval, latency.pack()));
    }

    /// The latencies of all intervals, and the waits in vain, in one histogram.
    #[must_use]
    pub(crate) fn total(&self) -> LatencyHistogram {
        let ended = self.intervals.iter().map(|(_, latency)| latency);
        merge(ended.chain(&self.unanswered))
    }

    /// How many calls were not answered.
    #[must_use]
    pub(crate) fn unanswered(&self) -> u64 {
        let waits = self.unanswered.as_ref();
        waits.map_or(0, |waits| waits.unpack().count())
    }

    /// The latencies of interval `number`.
    #[must_use]
    pub(crate) fn interval(&self, number: u32) -> LatencyHistogram {
        let of_it = |(interval, _): &&(Interval, _)| interval.number == number;
        let parts = self.intervals.iter().filter(of_it);
        merge(parts.map(|(_, latency)| latency))
    }
}

fn merge<'a>(parts: impl Iterator<Item = &'a PackedHistogram>) -> LatencyHistogram {
    parts.fold(LatencyHistogram::new(), |mut all, part| {
        all.merge(&part.unpack());
        all
    })
}

/// Nanoseconds between two calls of a caller that does not wait for replies, at least 1: the mean time of one slot for one
/// call, where `slots` carried `calls` calls. 0 without calls.
pub(crate) fn expected_interval(elapsed: Duration, slots: u64, calls: u64) -> u64 {
    let interval = (elapsed.as_nanos() * u128::from(slots)).checked_div(u128::from(calls));
    interval.map_or(0, |it| u64::try_from(it).unwrap_or(u64::MAX).max(1))
}

/// Start, counted from the start of the measurement, and length.
type Span = (Duration, Duration);

/// The results of all cores over time.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    /// Length of an interval; the last one may be shorter or longer.
    pub interval: Duration,
    /// Wall-clock time of the start of the measurement.
    pub began: SystemTime,
    /// One entry for each core of the client.
    pub cores: Vec<CoreTimeline>,
    /// When a connection was lost and not yet replaced, in the order of the losses.
    pub gaps: Vec<Gap>,
}

/// A time during which a connection was lost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Gap {
    /// When the connection was lost, counted from the start of the measurement.
    pub start_s: f64,
    /// How long it took to replace it.
    pub duration_s: f64,
}

impl Timeline {
    /// The intervals of all cores, merged and in order: start and length, number, latencies. Intervals without calls
    /// are included, and the last one ends with the measurement.
    pub(crate) fn merged(&self) -> impl Iterator<Item = (Span, u32, LatencyHistogram)> + use<'_> {
        let mut packed: BTreeMap<u32, Vec<&PackedHistogram>> = BTreeMap::new();
        for (interval, latency) in self.all() {
            packed.entry(interval.number).or_default().push(latency);
        }
        let last = packed.last_key_value().map(|(number, _)| *number);
        let elapsed = self.elapsed();
        let numbers = last.into_iter().flat_map(|last| 0..=last);
        numbers.map(move |number| {
            let start = self.interval * number;
            let length = if last == Some(number) {
                elapsed.saturating_sub(start)
            } else {
                self.interval
            };
            let parts = packed.get(&number).into_iter().flatten().copied();
            ((start, length), number, merge(parts))
        })
    }

    /// The latencies of all cores and intervals, and the waits in vain, in one histogram.
    #[must_use]
    pub(crate) fn latency(&self) -> LatencyHistogram {
        let unanswered = self
            .cores
            .iter()
            .filter_map(|core| core.unanswered.as_ref());
        merge(self.all().map(|(_, latency)| latency).chain(unanswered))
    }

    /// How many calls were not answered.
    #[must_use]
    pub(crate) fn unanswered(&self) -> u64 {
        self.cores.iter().map(CoreTimeline::unanswered).sum()
    }

    /// All latencies corrected for coordinated omission, each core's by the interval of its callers. `None` if the slots of
    /// a core are not known.
    #[must_use]
    pub(crate) fn corrected(&self) -> Option<LatencyHistogram> {
        if self.cores.is_empty() || self.cores.iter().any(|core| core.slots == 0) {
            return None;
        }
        let mut all = LatencyHistogram::new();
        for core in &self.cores {
            let latency = core.total();
            let calls = latency.count().saturating_sub(core.unanswered());
            let interval_ns = expected_interval(core.elapsed, core.slots, calls);
            all.merge(&latency.corrected(interval_ns));
        }
        Some(all)
    }

    /// The longest measured time of any core.
    #[must_use]
    pub(crate) fn elapsed(&self) -> Duration {
        let elapsed = self.cores.iter().map(|core| core.elapsed).max();
        elapsed.unwrap_or_default()
    }

    /// Whether any interval also contains calls of later ones.
    #[must_use]
    pub(crate) fn is_stretched(&self) -> bool {
        self.all().any(|(interval, _)| interval.is_stretched)
    }

    /// Figures for each interval, over all cores.
    #[must_use]
    pub(crate) fn figures(&self) -> Vec<IntervalFigures> {
        self.merged()
            .map(|(span, _, latency)| IntervalFigures::new(span, &latency))
            .collect()
    }

    /// The figures of each core.
    #[must_use]
    pub(crate) fn core_figures(&self) -> Vec<CoreFigures> {
        self.cores
            .iter()
            .map(|core| {
                let alone = Self {
                    cores: vec![core.clone()],
                    gaps: Vec::new(),
                    ..*self
                };
                let latency_ns = core.total().summary();
                let calls = latency_ns.count - core.unanswered();
                CoreFigures {
                    core: core.core,
                    calls,
                    rate_per_s: per_s(calls, core.elapsed.as_secs_f64()),
                    latency_ns,
                    intervals: alone.figures(),
                }
            })
            .collect()
    }

    fn all(&self) -> impl Iterator<Item = &(Interval, PackedHistogram)> {
        self.cores.iter().flat_map(|core| &core.intervals)
    }
}

/// One interval in the report.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct IntervalFigures {
    /// Its start, counted from the start of the measurement.
    pub start_s: f64,
    /// Its length.
    pub duration_s: f64,
    /// Calls that ended in this interval.
    pub calls: u64,
    /// `calls` divided by `duration_s`.
    pub rate_per_s: f64,
    /// Their round-trip times; `None` if no call ended.
    pub latency_ns: Option<IntervalLatency>,
}

impl IntervalFigures {
    fn new((start, length): Span, latency: &LatencyHistogram) -> Self {
        let duration_s = length.as_secs_f64();
        Self {
            start_s: start.as_secs_f64(),
            duration_s,
            calls: latency.count(),
            rate_per_s: per_s(latency.count(), duration_s),
            latency_ns: (latency.count() > 0).then(|| IntervalLatency {
                p50: latency.percentile_ns(50.0),
                p99: latency.percentile_ns(99.0),
                max: latency.max_ns(),
            }),
        }
    }
}

/// Round-trip times of an interval in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IntervalLatency {
    /// The median.
    pub p50: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The largest value, exact.
    pub max: u64,
}

/// One core of the client in the report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CoreFigures {
    /// The core.
    pub core: usize,
    /// Calls that completed on this core.
    pub calls: u64,
    /// `calls` divided by the core's measured time.
    pub rate_per_s: f64,
    /// Their round-trip times; null in JSON without calls.
    #[serde(with = "null_without_calls")]
    pub latency_ns: LatencySummary,
    /// Figures for each interval.
    pub intervals: Vec<IntervalFigures>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Two cores for 2.5 s: the second core is idle in the second interval.
    pub(crate) fn timeline() -> Timeline {
        let core = |core, intervals: &[(u32, u64, u64)]| {
            let mut timeline = CoreTimeline {
                core,
                elapsed: Duration::from_millis(2_500),
                ..CoreTimeline::default()
            };
            for &(number, calls, latency_ns) in intervals {
                let mut latency = LatencyHistogram::new();
                (0..calls).for_each(|_| latency.record(latency_ns));
                timeline.push(Interval::new(number), &latency);
            }
            timeline
        };
        Timeline {
            interval: Duration::from_secs(1),
            began: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
            cores: vec![
                core(2, &[(0, 100, 500), (1, 200, 600), (2, 50, 700)]),
                core(3, &[(0, 100, 1_000), (2, 50, 2_000)]),
            ],
            gaps: Vec::new(),
        }
    }

    #[test]
    fn intervals_are_of_all_cores_together() {
        let figures = timeline().figures();
        let starts: Vec<_> = figures
            .iter()
            .map(|it| (it.start_s, it.duration_s))
            .collect();
        assert_eq!(starts, [(0.0, 1.0), (1.0, 1.0), (2.0, 0.5)]);
        let calls: Vec<_> = figures.iter().map(|it| (it.calls, it.rate_per_s)).collect();
        assert_eq!(calls, [(200, 200.0), (200, 200.0), (100, 200.0)]);
        let latencies: Vec<_> = figures.iter().map(|it| it.latency_ns.unwrap()).collect();
        let expected = [(500, 1_000, 1_000), (600, 600, 600), (700, 2_000, 2_000)]
            .map(|(p50, p99, max)| IntervalLatency { p50, p99, max });
        assert_eq!(latencies, expected);
    }

    #[test]
    fn each_core_has_figures_of_its_own() {
        let cores = timeline().core_figures();
        assert_eq!((cores[0].core, cores[0].calls), (2, 350));
        assert_eq!((cores[1].core, cores[1].calls), (3, 150));
        assert!((cores[0].rate_per_s - 140.0).abs() < 1e-9);
        assert_eq!(cores[1].intervals.len(), 3);
        let nothing = &cores[1].intervals[1];
        assert_eq!((nothing.calls, nothing.latency_ns), (0, None));
        assert_eq!(cores[1].latency_ns.max, 2_000);
    }

    #[test]
    fn each_core_is_corrected_for_omission_by_its_own_interval() {
        let core = |calls: u64, latency_ns: u64| {
            let mut latency = LatencyHistogram::new();
            latency.record_equal(latency_ns, calls);
            let mut timeline = CoreTimeline {
                elapsed: Duration::from_secs(1),
                slots: 1,
                ..CoreTimeline::default()
            };
            timeline.push(Interval::new(0), &latency);
            timeline
        };
        let mut all = Timeline {
            cores: vec![core(10_000, 100_000), core(100, 10_000_000)],
            ..timeline()
        };
        // No core had a stall: by one interval for both, each call of the slow one would count 50 times.
        assert_eq!(all.corrected().unwrap().count(), 10_100);
        all.cores[1].push(Interval::new(1), &core(1, 30_000_000).total());
        // The interval is 9.9 ms: two more calls would have come in the stall.
        assert_eq!(all.corrected().unwrap().count(), 10_100 + 1 + 2);
        all.cores[1].slots = 0;
        assert!(all.corrected().is_none());
    }

    #[test]
    fn waits_in_vain_are_in_the_latencies_and_no_calls() {
        let mut timeline = timeline();
        let mut waits = LatencyHistogram::new();
        waits.record_equal(5_000_000, 7);
        timeline.cores[1].unanswered = Some(waits.pack());
        assert_eq!(
            (timeline.unanswered(), timeline.latency().count()),
            (7, 507)
        );
        assert_eq!(timeline.latency().max_ns(), 5_000_000);
        let calls: u64 = timeline.figures().iter().map(|it| it.calls).sum();
        assert_eq!(calls, 500);
        let cores = timeline.core_figures();
        assert_eq!((cores[1].calls, cores[1].latency_ns.count), (150, 157));
        assert_eq!(cores[1].latency_ns.max, 5_000_000);
    }

    #[test]
    fn a_run_without_calls_has_no_intervals() {
        let nothing = Timeline {
            cores: vec![],
            ..timeline()
        };
        assert_eq!(
            (nothing.figures(), nothing.core_figures()),
            (vec![], vec![])
        );
    }
}
