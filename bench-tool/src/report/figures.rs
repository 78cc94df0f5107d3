//! The part of a report that all loads share.

use std::fmt::{self, Write as _};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Word;
use crate::date::rfc3339;
use crate::exit::Failure;
use crate::histogram::{LatencyHistogram, LatencySummary, null_without_calls};
use crate::load::LoadConfig;
use crate::load::measured::Losses;
use crate::load::timeline::{Gap, IntervalFigures, Timeline, expected_interval};
use crate::report::whole::Account;
use rpcrdma_units as units;

/// Options and results of a load, with the keys that the JSON of all loads has.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct LoadFigures {
    /// Calls outstanding per connection.
    pub depth: u32,
    /// Connections that carried calls.
    pub connections: u32,
    /// The client's cores.
    pub cores: Vec<usize>,
    /// `closed` or `open`.
    #[serde(rename = "loop")]
    pub load_loop: Word,
    /// The value of `--rate`; `None` in a closed loop.
    pub offered_rate_per_s: Option<u64>,
    /// When the measurement began, in UTC (RFC 3339).
    pub began: String,
    /// Time before the measurement.
    pub warmup_s: f64,
    /// The measured time.
    pub duration_s: f64,
    /// Whether the measurement ended before its limit.
    pub interrupted: bool,
    /// Why the run failed although it has results: connections were lost, or calls never ended. `None` for a whole run.
    pub failure: Option<String>,
    /// Whether it is a whole load: see [`Account`]. `None` in the report of an earlier version.
    pub whole: Option<bool>,
    /// Calls that succeeded in the measured time.
    pub calls: u64,
    /// Calls that were due in the measured time, by the schedule alone; `None` in a closed loop.
    pub calls_due: Option<u64>,
    /// Calls without an answer: they are in the histogram with the time that they had waited.
    pub calls_unanswered: u64,
    /// Calls that ended in an error.
    pub errors: u64,
    /// Lost and replaced connections.
    #[serde(flatten)]
    pub losses: LossFigures,
    /// `calls` divided by `duration_s`.
    pub rate_per_s: f64,
    /// Payload of all operations per second; an echo carries the same amount back.
    pub bandwidth_bytes_per_s: f64,
    /// Round-trip times of `calls`, and waits of `calls_unanswered`.
    #[serde(with = "null_without_calls")]
    pub latency_ns: LatencySummary,
    /// The histogram of the round-trip times: see [`LatencyHistogram::encode`].
    pub histogram: String,
    /// Round-trip times corrected for coordinated omission; `None` in an open loop, which has none.
    pub latency_corrected_ns: Option<CorrectedLatency>,
    /// Length of an interval.
    pub interval_s: f64,
    /// Figures for each interval.
    pub intervals: Vec<IntervalFigures>,
    /// When connections were lost, and for how long.
    pub gaps: Vec<Gap>,
    /// Where the connections were at the end, if the server has several addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathFigures>,
}

/// One of several addresses of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PathFigures {
    /// The address.
    pub address: String,
    /// Connections that were at it at the end.
    pub connections: u32,
}

impl PathFigures {
    /// Of each of a server's `addresses`, with the address of each connection that is there; empty for a server with one.
    pub(crate) fn count<'a>(
        addresses: &[String],
        connected_at: impl Iterator<Item = &'a str> + Clone,
    ) -> Vec<Self> {
        let path = |address: &String| {
            let here = connected_at.clone().filter(|it| it == address).count();
            Self {
                address: address.clone(),
                connections: u32::try_from(here).unwrap_or(u32::MAX),
            }
        };
        let is_alone = addresses.len() < 2;
        addresses.iter().filter(|_| !is_alone).map(path).collect()
    }

    /// The sum over several loads; empty if one of them does not have them.
    pub(crate) fn sum<'a>(loads: impl Iterator<Item = &'a [Self]> + Clone) -> Vec<Self> {
        let mut sum: Vec<Self> = Vec::new();
        if loads.clone().any(<[_]>::is_empty) {
            return sum;
        }
        for path in loads.flatten() {
            match sum.iter_mut().find(|it| it.address == path.address) {
                Some(same) => same.connections = same.connections.saturating_add(path.connections),
                None => sum.push(path.clone()),
            }
        }
        sum
    }
}

/// Totals of a load, without its latencies.
#[derive(Clone, Debug)]
pub(crate) struct Totals {
    /// The measured time.
    pub elapsed: Duration,
    /// Whether it ended before its limit.
    pub interrupted: bool,
    /// Why the load broke off, or lost connections for good.
    pub failure: Option<Failure>,
    /// Calls that were due in the measured time; `None` in a closed loop.
    pub due: Option<u64>,
    /// Calls that ended in an error.
    pub errors: u64,
    /// Lost and replaced connections.
    pub losses: Losses,
    /// Where the connections were at the end.
    pub paths: Vec<PathFigures>,
    /// Payload of the successful calls in bytes.
    pub payload_bytes: u64,
}

impl LoadFigures {
    /// Combines options and results.
    #[must_use]
    pub(crate) fn new(
        config: &LoadConfig,
        latency: &LatencyHistogram,
        timeline: &Timeline,
        totals: &Totals,
    ) -> Self {
        let duration_s = totals.elapsed.as_secs_f64();
        let is_open = config.rate_per_s.is_some();
        let calls_unanswered = timeline.unanswered();
        let calls = latency.count().saturating_sub(calls_unanswered);
        let slots = u64::from(config.depth) * u64::from(config.connections);
        let interval_ns = expected_interval(totals.elapsed, slots, calls);
        let corrected = || {
            let by_core = timeline.corrected();
            by_core.unwrap_or_else(|| latency.corrected(interval_ns))
        };
        let figures = Self {
            depth: config.depth,
            connections: config.connections,
            cores: config.cores.clone(),
            load_loop: if is_open { "open" } else { "closed" }.into(),
            offered_rate_per_s: config.rate_per_s,
            began: rfc3339(timeline.began),
            warmup_s: config.warmup.as_secs_f64(),
            duration_s,
            interrupted: totals.interrupted,
            failure: totals.failure.as_ref().map(Failure::problem),
            whole: None,
            calls,
            calls_due: totals.due,
            calls_unanswered,
            errors: totals.errors,
            losses: (&totals.losses).into(),
            rate_per_s: units::per_s(calls, duration_s),
            bandwidth_bytes_per_s: units::per_s(totals.payload_bytes, duration_s),
            latency_ns: latency.summary(),
            histogram: latency.encode(),
            latency_corrected_ns: CorrectedLatency::new(interval_ns, (!is_open).then(corrected)),
            interval_s: timeline.interval.as_secs_f64(),
            intervals: timeline.figures(),
            gaps: timeline.gaps.clone(),
            paths: totals.paths.clone(),
        };
        figures.judged()
    }

    /// What became of its calls. A fleet adds its clients that failed.
    pub(crate) fn account(&self) -> Account<'_> {
        Account {
            calls: self.calls,
            errors: self.errors,
            due: self.calls_due,
            unanswered: self.calls_unanswered,
            interrupted: self.interrupted,
            failure: self.failure.as_deref(),
            clients_failed: 0,
        }
    }

    /// Says whether it is whole.
    pub(crate) fn judged(mut self) -> Self {
        self.whole = Some(self.account().is_whole());
        self
    }

    /// The histogram of the round-trip times; `None` in the report of an earlier version.
    pub(crate) fn latency(&self) -> Option<LatencyHistogram> {
        LatencyHistogram::decode(&self.histogram, &self.latency_ns.exact()).ok()
    }

    /// The fact of when it began, for a page.
    pub(crate) fn began_fact(&self) -> Option<(&'static str, String)> {
        (!self.began.is_empty()).then(|| ("measurement began", self.began.clone()))
    }

    /// `closed loop, depth 8, 2 connections`.
    #[must_use]
    pub(crate) fn shape(&self) -> String {
        let connections = plural(self.connections, "connection", "connections");
        format!(
            "{} loop, depth {}, {connections}",
            self.load_loop, self.depth
        )
    }

    /// Where the connections are: `3 connections at rdma:10.0.0.1:20049, 1 at rdma:10.0.1.1:20049`. `None` for a server with one
    /// address.
    pub(crate) fn paths_fact(&self) -> Option<(&'static str, String)> {
        let (first, others) = self.paths.split_first()?;
        let connections = plural(first.connections, "connection", "connections");
        let first = format!("{connections} at {}", first.address);
        let all = others.iter().fold(first, |text, it| {
            let connections = units::count(it.connections.into());
            format!("{text}, {connections} at {}", it.address)
        });
        Some(("paths", all))
    }

    /// The line of the table with that.
    pub(crate) fn write_paths(&self, text: &mut String) -> fmt::Result {
        match self.paths_fact() {
            Some((name, paths)) => writeln!(text, "{name:<9} {paths}"),
            None => Ok(()),
        }
    }

    /// `closed loop` or `open loop at 200 k/s`.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    pub(crate) fn loop_text(&self) -> String {
        match self.offered_rate_per_s {
            Some(offered) => format!("open loop at {}", units::rate(offered as f64)),
            None => "closed loop".to_owned(),
        }
    }

    /// `5 s after 500 ms of warm-up`.
    #[must_use]
    pub(crate) fn time_text(&self) -> String {
        let (measured, warmup) = (seconds(self.duration_s), seconds(self.warmup_s));
        format!("{measured} after {warmup} of warm-up")
    }

    /// Warnings that apply to any load.
    #[must_use]
    pub(crate) fn warnings(&self, totals: &Totals, timeline: &Timeline) -> Vec<String> {
        let broken = self.failure.as_ref();
        let broken = broken.map(|why| format!("the report covers what was measured: {why}"));
        let interrupted = (self.interrupted && broken.is_none()).then(|| {
            "stopped by a signal: the report covers what was measured until then".to_owned()
        });
        let all = [
            broken,
            interrupted,
            losses(&totals.losses),
            self.unanswered(),
            few_calls(self.calls),
            stretched(timeline),
            not_kept_up(self.offered_rate_per_s, self.rate_per_s),
        ];
        all.into_iter().flatten().collect()
    }

    /// Those of [`LoadFigures::warnings`] that sums of several loads have too.
    pub(crate) fn warnings_of_sums(&self) -> impl Iterator<Item = String> {
        let all = [
            self.unanswered(),
            few_calls(self.calls),
            not_kept_up(self.offered_rate_per_s, self.rate_per_s),
        ];
        all.into_iter().flatten()
    }

    /// Warns about calls without an answer.
    fn unanswered(&self) -> Option<String> {
        let unanswered = self.account().unanswered_text()?;
        Some(format!(
            "{unanswered}: the latencies have the time that each had waited, which is less than what it would have taken"
        ))
    }

    /// Whether the loop is open, so that latencies count from the due time.
    #[must_use]
    pub(crate) const fn is_open(&self) -> bool {
        self.offered_rate_per_s.is_some()
    }
}

/// A time for people. An invalid time, which a saved report can have, is shown as zero.
pub(crate) fn seconds(seconds: f64) -> String {
    units::duration(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// `1 core`, `2 cores`.
#[must_use]
pub(crate) fn plural(number: u32, one: &str, many: &str) -> String {
    let name = if number == 1 { one } else { many };
    format!("{} {name}", units::count(number.into()))
}

/// Round-trip times of a closed loop as seen by callers that do not wait for replies: see
/// [`LatencyHistogram::corrected`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CorrectedLatency {
    /// Nanoseconds between two calls of such a caller, over all of them: the mean time of one slot for one call.
    pub expected_interval: u64,
    /// The corrected times.
    #[serde(flatten)]
    pub summary: LatencySummary,
}

impl CorrectedLatency {
    /// Of a corrected histogram; `None` without one, and without calls. Of several cores or clients, each is corrected by its
    /// own interval, and `expected_interval` is that of all together.
    pub(crate) fn new(expected_interval: u64, corrected: Option<LatencyHistogram>) -> Option<Self> {
        let summary = corrected?.summary();
        (summary.count > 0).then_some(Self {
            expected_interval,
            summary,
        })
    }
}

/// Lost and replaced connections in a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct LossFigures {
    /// Connections that were lost.
    pub connections_lost: u64,
    /// Connections that replaced lost ones.
    pub reconnects: u64,
    /// Calls that were outstanding on lost connections and were repeated.
    pub calls_lost: u64,
    /// The longest time from a loss to the replacement, in seconds.
    pub longest_loss_s: f64,
}

impl From<&Losses> for LossFigures {
    fn from(losses: &Losses) -> Self {
        Self {
            connections_lost: losses.connections,
            reconnects: losses.reconnects,
            calls_lost: losses.calls,
            longest_loss_s: losses.longest.as_secs_f64(),
        }
    }
}

/// Below this share of the offered rate, the path did not keep up with the open loop.
pub(super) const OFFERED_SHARE_MIN: f64 = 0.95;

/// Warns about intervals that contain calls of later ones.
fn stretched(timeline: &Timeline) -> Option<String> {
    timeline.is_stretched().then(|| {
        "some intervals have calls of the next ones too: the machine was too busy to look after them, or there \
         were too many; give a longer --interval"
            .to_owned()
    })
}

/// Warns about lost connections. Those of a run that does not replace them are a failure, which is said elsewhere.
fn losses(losses: &Losses) -> Option<String> {
    (losses.reconnects > 0).then(|| {
        format!(
            "{} connections were lost and {} made again, the slowest after {}: {} calls that were in flight were \
             repeated, with their waits in the latencies",
            units::count(losses.connections),
            units::count(losses.reconnects),
            units::duration(losses.longest),
            units::count(losses.calls)
        )
    })
}

/// Warns about an open loop above the path's capacity.
#[allow(clippy::cast_precision_loss, reason = "a rate")]
fn not_kept_up(offered: Option<u64>, rate_per_s: f64) -> Option<String> {
    let offered = offered? as f64;
    (rate_per_s < offered * OFFERED_SHARE_MIN).then(|| {
        format!(
            "only {} of the offered {} completed: the load is above what this path carries, and latencies \
             grow with the length of the run",
            units::rate(rate_per_s),
            units::rate(offered)
        )
    })
}

/// Percentiles in the table, each with the number of calls from which at least one call is above it.
const CALLS_FOR: [(&str, u64); 4] = [
    ("p90", 10),
    ("p99", 100),
    ("p99.9", 1_000),
    ("p99.99", 10_000),
];

/// Warns about percentiles that are only the maximum, because there are too few calls.
fn few_calls(calls: u64) -> Option<String> {
    if calls == 0 {
        let what = "no call completed in the measured time: the latencies are empty";
        return Some(what.to_owned());
    }
    let missing: Vec<_> = CALLS_FOR
        .iter()
        .filter(|(_, needed)| calls < *needed)
        .collect();
    let (_, needed) = missing.last()?;
    let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
    Some(format!(
        "only {} calls, too few for {}: each is the maximum or close to it; measure for longer, {} calls at least",
        units::count(calls),
        names.join(" and "),
        units::count(*needed)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_several_loads_are_added_up_by_address_if_all_have_them() {
        let path = |address: &str, connections| PathFigures {
            address: address.to_owned(),
            connections,
        };
        let one = [path("shm:a", 2), path("shm:b", 1)];
        let other = [path("shm:b", 3), path("shm:c", 4)];
        let sum = PathFigures::sum([&one[..], &other].into_iter());
        let all = [path("shm:a", 2), path("shm:b", 4), path("shm:c", 4)];
        assert_eq!(sum, all);
        let with_none = PathFigures::sum([&one[..], &[]].into_iter());
        assert_eq!(with_none, []);
    }

    #[test]
    fn percentiles_that_are_the_maximum_are_named() {
        let text = few_calls(999).unwrap();
        let words = "only 999 calls, too few for p99.9 and p99.99: ";
        assert!(text.contains(words), "{text}");
        assert!(text.ends_with("10,000 calls at least"), "{text}");
        assert!(
            few_calls(9)
                .unwrap()
                .contains("p90 and p99 and p99.9 and p99.99")
        );
        assert_eq!(few_calls(10_000), None);
    }
}
