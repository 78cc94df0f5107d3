//! What a run reports: one value, shown as a table, as JSON, as a percentile distribution, as an interval log and as a page.

pub(crate) mod chart;
pub(crate) mod escape;
pub(crate) mod hgrm;
pub(crate) mod hlog;
pub(crate) mod knee;
pub(crate) mod origin;
pub(crate) mod output;
pub(crate) mod page;
pub(crate) mod per_call;
pub(crate) mod table;
pub(crate) mod timeline;
pub(crate) mod view;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use self::per_call::PerCall;
use self::timeline::{CoreFigures, IntervalFigures, Timeline};
use crate::floor::RoundTrip;
use crate::histogram::{LatencyHistogram, LatencySummary};
use crate::load::measured::Losses;
use crate::machine::Machine;
use crate::run::config::{RunConfig, Server};
use crate::workloads::bench::op::Op;
use crate::workloads::bench::sizes::Sizes;
use rpcrdma_units as units;

/// Name and number of the layout of a run's JSON. The number changes only when a key changes meaning or goes away.
pub(crate) const RUN_SCHEMA: &str = "rpcrdma.bench-tool.run/1";

/// What the load generator measured: all that a report needs beside the configuration.
#[derive(Clone, Debug)]
pub(crate) struct RunResult {
    /// Round-trip times of all calls that completed within the measured time, all cores merged.
    /// Closed loop: from posting the call. Open loop: from the moment at which the call was due.
    pub latency: LatencyHistogram,
    /// The same by core and interval.
    pub timeline: Timeline,
    /// Payload of these calls; `None` where each has as much as the configuration says.
    pub payload_bytes: Option<u64>,
    /// What one reading of the clock costs.
    pub clock_read_ns: f64,
    /// Calls that ended in an error, not in the histogram.
    pub errors: u64,
    /// The measured time, without the warm-up.
    pub elapsed: Duration,
    /// The end was asked for by a signal before the duration or the count was reached.
    pub interrupted: bool,
    /// Connections that were lost and made again.
    pub losses: Losses,
    /// The fabric that carried the calls: `shm` or `verbs`.
    pub fabric: String,
    /// The RDMA device; `None` on shm.
    pub device: Option<String>,
    /// Version of RPC-over-RDMA that was negotiated: 1 or 2.
    pub protocol: u32,
    /// How payload travelled: `inline`, `send`, `rdma` or `mixed`.
    pub placement: String,
    /// The tuning profile in force.
    pub profile: String,
    /// What the server proved to be; `None` without host authentication.
    pub server_identity: Option<String>,
    /// Counters of the measured time, summed over the client's cores. Names carry their unit.
    pub counters: BTreeMap<String, u64>,
    /// What the server's cores counted from before the first call until after the last one, for
    /// whomever; `None` where it does not tell.
    pub server_counters: Option<BTreeMap<String, u64>>,
    /// What a call took at both ends.
    pub per_call: PerCall,
    /// Registered memory of the client.
    pub memory: Memory,
    /// What a reader must know to trust the numbers, one sentence each.
    pub warnings: Vec<String>,
}

/// One of several sizes of payload.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct SizeShare {
    /// The size.
    pub bytes: u64,
    /// Of 100 operations, how many have it.
    pub share_percent: f64,
}

impl SizeShare {
    fn of(sizes: &Sizes) -> Vec<Self> {
        let shares = sizes.shares().map(|(bytes, share_percent)| Self {
            bytes,
            share_percent,
        });
        shares.collect()
    }
}

/// Registered memory, as it was really had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Memory {
    /// Size of the pages underneath.
    pub page_bytes: u64,
    /// What they are: `hugetlb`, `transparent` or `ordinary`.
    pub kind: String,
    /// How much was registered.
    pub registered_bytes: u64,
    /// How much of it each connection reserves: its receives.
    pub connection_bytes: u64,
    /// Whether the receives are `shared` by the connections of a core, or each has its `own` queue.
    pub receive_queues: &'static str,
}

/// The report of a run; its serialization is the stable JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// [`RUN_SCHEMA`].
    pub schema: &'static str,
    /// Version of the tool.
    pub version: &'static str,
    /// Git revision that it was built from, or `unknown`.
    pub revision: &'static str,
    /// The command line.
    pub command: String,
    /// Where it ran.
    pub machine: Machine,
    /// The clock that timed the calls.
    pub clock: String,
    /// What one reading of it costs.
    pub clock_read_ns: f64,
    /// See [`RunResult::fabric`].
    pub fabric: String,
    /// See [`RunResult::device`].
    pub device: Option<String>,
    /// `v1` or `v2`.
    pub protocol: String,
    /// See [`RunResult::placement`].
    pub placement: String,
    /// What `--placement` asked for; `None` for null and echo.
    pub placement_asked: Option<&'static str>,
    /// See [`RunResult::profile`].
    pub profile: String,
    /// The server's address; `None` when the run had a server of its own.
    pub connect: Option<String>,
    /// See [`RunResult::server_identity`].
    pub server_identity: Option<String>,
    /// The procedure called.
    pub op: &'static str,
    /// Who calls: the client, `forward`, or the server, `reverse`, which then measures too.
    pub direction: &'static str,
    /// Payload of one operation, each way that the procedure carries it.
    pub size_bytes: u64,
    /// The sizes that operations were drawn from; `None` where all have `size_bytes`, which is the largest otherwise.
    pub sizes: Option<Vec<SizeShare>>,
    /// Operations in one call.
    pub operations: u32,
    /// Of 100 operations, how many read; `None` for null and echo.
    pub read_percent: Option<u32>,
    /// What a mix was drawn from; `None` for what is no mix.
    pub seed: Option<u64>,
    /// One-way delay that was added to everything sent; nobody knows of one on the link.
    pub delay_ns: u64,
    /// Time for which the service of the run's own server kept its core busy in each call; nobody
    /// knows of another's.
    pub service_time_ns: u64,
    /// Calls outstanding per connection.
    pub depth: u32,
    /// Connections that carried calls.
    pub connections: u32,
    /// Connections beside them that stayed silent.
    pub idle_connections: u32,
    /// The client's polling cores.
    pub cores: Vec<usize>,
    /// The polling cores of the run's own server; `None` for a server elsewhere.
    pub server_cores: Option<Vec<usize>>,
    /// `closed` or `open`.
    #[serde(rename = "loop")]
    pub load_loop: &'static str,
    /// What `--rate` asked for; `None` in a closed loop.
    pub offered_rate_per_s: Option<u64>,
    /// Time before the measurement.
    pub warmup_s: f64,
    /// The measured time.
    pub duration_s: f64,
    /// The measured time was cut short by a signal.
    pub interrupted: bool,
    /// Calls that completed well in the measured time.
    pub calls: u64,
    /// Calls that ended in an error.
    pub errors: u64,
    /// See [`RunResult::losses`].
    #[serde(flatten)]
    pub losses: LossFigures,
    /// `calls` per second of the measured time.
    pub rate_per_s: f64,
    /// Payload of all operations, per second; an echo carries as much back.
    pub bandwidth_bytes_per_s: f64,
    /// Round-trip times.
    pub latency_ns: LatencySummary,
    /// The same, corrected for coordinated omission; `None` in an open loop, which measures it.
    pub latency_corrected_ns: Option<CorrectedLatency>,
    /// Length of an interval.
    pub interval_s: f64,
    /// All cores together, interval by interval.
    pub intervals: Vec<IntervalFigures>,
    /// Each of the client's cores.
    pub per_core: Vec<CoreFigures>,
    /// See [`RunResult::per_call`].
    pub per_call: PerCall,
    /// See [`RunResult::counters`].
    pub counters: BTreeMap<String, u64>,
    /// See [`RunResult::server_counters`].
    pub server_counters: Option<BTreeMap<String, u64>>,
    /// The machine's floor between the client's and the server's core; `None` where it could not be measured.
    pub floor: Option<FloorSummary>,
    /// See [`RunResult::memory`].
    pub memory: Memory,
    /// What a reader must know to trust the numbers.
    pub warnings: Vec<String>,
}

/// Round-trip times of a closed loop as callers would have met them that do not wait: see [`LatencyHistogram::corrected`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct CorrectedLatency {
    /// Nanoseconds between two calls of such a caller: the mean of each outstanding call of this run.
    pub expected_interval: u64,
    /// What they would have met.
    #[serde(flatten)]
    pub summary: LatencySummary,
}

impl CorrectedLatency {
    /// `None` of an open loop, and of a run without calls.
    ///
    /// `outstanding` calls of all connections together were under way during `elapsed`.
    pub(crate) fn new(
        latency: &LatencyHistogram,
        elapsed: Duration,
        outstanding: u64,
        is_open: bool,
    ) -> Option<Self> {
        let calls = u128::from(latency.count());
        if is_open || calls == 0 {
            return None;
        }
        let interval = elapsed.as_nanos() * u128::from(outstanding) / calls;
        let expected_interval = u64::try_from(interval).unwrap_or(u64::MAX).max(1);
        Some(Self {
            expected_interval,
            summary: latency.corrected(expected_interval).summary(),
        })
    }
}

/// Connections that were lost and made again, in a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct LossFigures {
    /// Connections that were lost.
    pub connections_lost: u64,
    /// Connections that took the place of lost ones.
    pub reconnects: u64,
    /// Calls that were in flight on lost connections, and were repeated.
    pub calls_lost: u64,
    /// The longest time from a loss to the connection that took its place, in seconds.
    pub longest_loss_s: f64,
}

impl From<Losses> for LossFigures {
    fn from(losses: Losses) -> Self {
        Self {
            connections_lost: losses.connections,
            reconnects: losses.reconnects,
            calls_lost: losses.calls,
            longest_loss_s: losses.longest.as_secs_f64(),
        }
    }
}

/// The floor of latency in a report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct FloorSummary {
    /// Median of the rounds' medians: one cache line each way, through a ring.
    pub round_trip_ns: u64,
    /// 99 of 100 were no slower.
    pub round_trip_ns_p99: u64,
    /// 999 of 1000 were no slower.
    pub round_trip_ns_p99_9: u64,
    /// The slowest.
    pub round_trip_ns_max: u64,
    /// The median of each round.
    pub round_trip_ns_p50_of_rounds: Vec<u64>,
    /// Round trips measured.
    pub round_trips: u64,
    /// The two cores.
    pub cores: [usize; 2],
    /// The run's median over `round_trip_ns`; `None` in a report of the floor alone.
    pub p50_ratio: Option<f64>,
}

impl FloorSummary {
    /// Summarizes a floor, and sets `p50_ns` of a run (if there is one) against it.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a ratio to three decimals")]
    pub(crate) fn new(floor: &RoundTrip, p50_ns: Option<u64>) -> Self {
        let floor_ns = floor.p50_ns();
        let ratio = |p50_ns: u64| (p50_ns as f64 / floor_ns as f64 * 1000.0).round() / 1000.0;
        Self {
            round_trip_ns: floor_ns,
            round_trip_ns_p99: floor.latency.percentile_ns(99.0),
            round_trip_ns_p99_9: floor.latency.percentile_ns(99.9),
            round_trip_ns_max: floor.latency.max_ns(),
            round_trip_ns_p50_of_rounds: floor.round_p50_ns.clone(),
            round_trips: floor.latency.count(),
            cores: floor.cores,
            p50_ratio: p50_ns.filter(|_| floor_ns > 0).map(ratio),
        }
    }
}

impl Report {
    /// Joins what was asked for, what was measured, and the machine's floor.
    #[must_use]
    pub(crate) fn new(
        config: &RunConfig,
        machine: &Machine,
        result: &RunResult,
        floor: Option<&RoundTrip>,
    ) -> Self {
        let latency_ns = result.latency.summary();
        let duration_s = result.elapsed.as_secs_f64();
        let per_s = |total| units::per_s(total, duration_s);
        let rate_per_s = per_s(latency_ns.count);
        let (connect, server_cores) = match &config.server {
            Server::Own { cores, .. } => (None, Some(cores.clone())),
            Server::At(address) => (Some(address.to_string()), None),
        };
        Self {
            schema: RUN_SCHEMA,
            version: crate::VERSION,
            revision: crate::REVISION,
            command: config.command.clone(),
            machine: machine.clone(),
            clock: crate::clock::source(),
            clock_read_ns: result.clock_read_ns,
            protocol: format!("v{}", result.protocol),
            connect,
            op: config.op.name(),
            direction: if config.reverse { "reverse" } else { "forward" },
            size_bytes: config.size_bytes,
            sizes: config.sizes.map(|sizes| SizeShare::of(&sizes)),
            operations: config.bulk.map_or(1, |bulk| bulk.operations),
            read_percent: config.bulk.map(|bulk| bulk.read_percent),
            seed: config
                .bulk
                .filter(|_| config.op == Op::Mix || config.sizes.is_some())
                .map(|bulk| bulk.seed),
            delay_ns: u64::try_from(config.slowed.delay.as_nanos()).unwrap_or(u64::MAX),
            service_time_ns: u64::try_from(config.slowed.service_time.as_nanos())
                .unwrap_or(u64::MAX),
            placement_asked: config.bulk.map(|bulk| bulk.placement.name()),
            depth: config.load.depth,
            connections: config.load.connections,
            idle_connections: config.idle_connections,
            cores: config.load.cores.clone(),
            server_cores,
            load_loop: if config.load.rate_per_s.is_some() {
                "open"
            } else {
                "closed"
            },
            offered_rate_per_s: config.load.rate_per_s,
            warmup_s: config.load.warmup.as_secs_f64(),
            duration_s,
            interrupted: result.interrupted,
            calls: latency_ns.count,
            errors: result.errors,
            losses: result.losses.into(),
            rate_per_s,
            bandwidth_bytes_per_s: per_s(
                result
                    .payload_bytes
                    .unwrap_or_else(|| latency_ns.count.saturating_mul(config.call_bytes())),
            ),
            floor: floor.map(|floor| FloorSummary::new(floor, Some(latency_ns.p50))),
            warnings: warnings(config, machine, result, rate_per_s),
            latency_ns,
            latency_corrected_ns: CorrectedLatency::new(
                &result.latency,
                result.elapsed,
                u64::from(config.load.depth) * u64::from(config.load.connections),
                config.load.rate_per_s.is_some(),
            ),
            fabric: result.fabric.clone(),
            device: result.device.clone(),
            placement: result.placement.clone(),
            profile: result.profile.clone(),
            server_identity: result.server_identity.clone(),
            interval_s: result.timeline.interval.as_secs_f64(),
            intervals: result.timeline.figures(),
            per_core: result.timeline.core_figures(),
            per_call: result.per_call.clone(),
            counters: result.counters.clone(),
            server_counters: result.server_counters.clone(),
            memory: result.memory.clone(),
        }
    }
}

/// A rate below this share of what was offered means that the open loop was not kept up with.
const OFFERED_SHARE_MIN: f64 = 0.95;

fn warnings(
    config: &RunConfig,
    machine: &Machine,
    result: &RunResult,
    rate_per_s: f64,
) -> Vec<String> {
    let mut warnings = config.warnings.clone();
    let pair = config.floor_cores();
    warnings.extend(machine.warnings(pair.as_ref().map_or(&[], |pair| pair.as_slice())));
    warnings.extend(result.warnings.iter().cloned());
    if result.interrupted {
        warnings
            .push("stopped by a signal: the report covers what was measured until then".to_owned());
    }
    warnings.extend(losses(&result.losses));
    warnings.extend(few_calls(result.latency.count()));
    warnings.extend(clock_share(result));
    warnings.extend(stretched(&result.timeline));
    warnings.extend(not_kept_up(config.load.rate_per_s, rate_per_s));
    warnings
}

/// Says that intervals have more calls than those of their time.
pub(crate) fn stretched(timeline: &Timeline) -> Option<String> {
    timeline.is_stretched().then(|| {
        "some intervals have calls of the next ones too: the machine was too busy to look after them, or there \
         were too many; give a longer --interval"
            .to_owned()
    })
}

/// Says that connections were lost and made again.
pub(crate) fn losses(losses: &Losses) -> Option<String> {
    (losses.connections > 0).then(|| {
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

/// Says that an open loop was not kept up with.
#[allow(clippy::cast_precision_loss, reason = "a rate")]
pub(crate) fn not_kept_up(offered: Option<u64>, rate_per_s: f64) -> Option<String> {
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

/// Percentiles that the table shows, and how many calls it takes until one of them lies above.
const CALLS_FOR: [(&str, u64); 4] = [
    ("p90", 10),
    ("p99", 100),
    ("p99.9", 1_000),
    ("p99.99", 10_000),
];

/// Which percentiles are nothing but the maximum.
pub(crate) fn few_calls(calls: u64) -> Option<String> {
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

/// The share of the median, in percent, above which the timing itself is in the figures.
const CLOCK_PERCENT_MAX: f64 = 10.0;

/// Whether reading the clock is a part of the latencies that counts. A core reads it once in every
/// poll, so twice in the time of a call at the least.
fn clock_share(result: &RunResult) -> Option<String> {
    let p50_ns = result.latency.percentile_ns(50.0);
    #[allow(clippy::cast_precision_loss, reason = "a share for people")]
    let percent = result.clock_read_ns * 200.0 / p50_ns.max(1) as f64;
    (p50_ns > 0 && percent > CLOCK_PERCENT_MAX).then(|| {
        format!(
            "reading the clock takes {:.1} ns, and two readings {percent:.0} % of the median: differences of that \
             size are the clock's; see `bench-tool doctor` for a clock source that costs less",
            result.clock_read_ns
        )
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::load::{Limit, LoadConfig};

    pub(crate) fn config() -> RunConfig {
        RunConfig {
            command: "bench-tool run --depth 1".to_owned(),
            server: Server::Own {
                fabric: crate::run::config::OwnFabric::Shm,
                cores: vec![1],
            },
            op: Op::Null,
            size_bytes: 0,
            sizes: None,
            bulk: None,
            reverse: false,
            protocol: crate::protocol::Protocol::Auto,
            slowed: crate::run::config::Slowed::default(),
            load: LoadConfig {
                depth: 1,
                connections: 1,
                cores: vec![0],
                rate_per_s: None,
                limit: Limit::Duration(Duration::from_secs(5)),
                warmup: Duration::from_millis(500),
                retry: Duration::ZERO,
                interval: Duration::from_secs(1),
                shows_intervals: false,
            },
            idle_connections: 0,
            device: None,
            profile: crate::sizing::ProfileChoice::default(),
            host: None,
            warnings: vec![],
        }
    }

    pub(crate) fn result() -> RunResult {
        let mut latency = LatencyHistogram::new();
        for index in 0..20_000 {
            latency.record(400 + index % 100);
        }
        latency.record(1_700_000);
        RunResult {
            latency,
            timeline: timeline::tests::timeline(),
            payload_bytes: None,
            clock_read_ns: 10.5,
            errors: 0,
            elapsed: Duration::from_secs(2),
            interrupted: false,
            losses: Losses::default(),
            fabric: "shm".to_owned(),
            device: None,
            protocol: 2,
            placement: "inline".to_owned(),
            profile: "shm".to_owned(),
            server_identity: None,
            counters: BTreeMap::from([
                ("calls_sent".to_owned(), 20_001),
                ("timeouts".to_owned(), 0),
            ]),
            server_counters: None,
            per_call: PerCall::default(),
            memory: Memory {
                page_bytes: 4096,
                kind: "ordinary".to_owned(),
                registered_bytes: 64 << 20,
                connection_bytes: 33 * 4160,
                receive_queues: "shared",
            },
            warnings: vec!["ordinary pages: there are no huge pages".to_owned()],
        }
    }

    pub(crate) fn floor() -> RoundTrip {
        let mut latency = LatencyHistogram::new();
        latency.record(220);
        RoundTrip {
            cores: [0, 1],
            latency,
            round_p50_ns: vec![220],
        }
    }

    pub(crate) fn report() -> Report {
        Report::new(&config(), &Machine::detect(), &result(), Some(&floor()))
    }

    #[test]
    fn the_keys_of_the_json_are_stable() {
        let value: serde_json::Value = serde_json::to_value(report()).unwrap();
        let object = value.as_object().unwrap();
        // A new key belongs into this list and into docs/bench-tool.md.
        let expected = "schema version revision command machine fabric device protocol placement profile op direction \
            size_bytes sizes depth connections cores duration_s calls errors rate_per_s \
            bandwidth_bytes_per_s latency_ns latency_corrected_ns counters floor memory warnings loop \
            idle_connections offered_rate_per_s clock clock_read_ns interrupted connect server_identity \
            server_cores warmup_s placement_asked operations read_percent seed delay_ns service_time_ns \
            per_call server_counters interval_s intervals per_core connections_lost reconnects calls_lost longest_loss_s";
        let sorted = |mut keys: Vec<String>| {
            keys.sort_unstable();
            keys
        };
        let words = |text: &str| text.split(' ').map(str::to_owned).collect();
        let found = object.keys().cloned().collect();
        assert_eq!(sorted(found), sorted(words(expected)));
        let keys = |name: &str| -> Vec<String> {
            value[name].as_object().unwrap().keys().cloned().collect()
        };
        for (object, expected) in [
            (
                "latency_ns",
                "count min mean stddev p50 p90 p99 p99_9 p99_99 max",
            ),
            (
                "memory",
                "page_bytes kind registered_bytes connection_bytes receive_queues",
            ),
        ] {
            assert_eq!(sorted(keys(object)), sorted(words(expected)), "{object}");
        }
        assert_eq!(value["floor"]["round_trip_ns"], 220);
        assert_eq!(value["schema"], RUN_SCHEMA);
        assert_eq!(value["protocol"], "v2");
        assert_eq!(value["loop"], "closed");
        assert!(value["device"].is_null() && value["offered_rate_per_s"].is_null());
    }

    #[test]
    fn rates_are_of_the_measured_time() {
        let mut config = config();
        (config.op, config.size_bytes) = (Op::Echo, 4096);
        let report = Report::new(&config, &Machine::detect(), &result(), Some(&floor()));
        assert_eq!(report.calls, 20_001);
        // One call at a time for 2 s: the longest one kept 16 others.
        let corrected = report.latency_corrected_ns.unwrap();
        assert_eq!(corrected.expected_interval, 99_995);
        assert_eq!(corrected.summary.count, 20_001 + 16);
        assert!((report.rate_per_s - 10_000.5).abs() < 1e-9);
        assert!((report.bandwidth_bytes_per_s - 10_000.5 * 4096.0).abs() < 1e-3);
        // The median of the result is 449 or 450, its bucket 449 at the least.
        let ratio = report.floor.unwrap().p50_ratio.unwrap();
        assert!((2.03..2.06).contains(&ratio), "{ratio}");
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

    #[test]
    fn a_clock_that_is_slow_beside_the_latencies_is_told() {
        let mut result = result();
        assert_eq!(clock_share(&result), None, "21 of 450 ns");
        result.clock_read_ns = 45.0;
        assert!(
            clock_share(&result)
                .unwrap()
                .contains("45.0 ns, and two readings 20 %")
        );
        result.latency = LatencyHistogram::new();
        assert_eq!(clock_share(&result), None, "of nothing");
    }

    #[test]
    fn doubt_is_said() {
        let has = |report: &Report, words: &str| report.warnings.iter().any(|w| w.contains(words));
        let mut open = config();
        open.load.rate_per_s = Some(1_000_000);
        let report = Report::new(&open, &Machine::detect(), &result(), None);
        assert!(has(&report, "offered 1.000 M/s"), "{:?}", report.warnings);
        assert!(has(&report, "ordinary pages"));
        assert_eq!(report.load_loop, "open");
        assert_eq!(report.latency_corrected_ns, None, "it was measured");
        assert!(report.floor.is_none());
        // Without a pair of cores nothing is said about one.
        let mut elsewhere = config();
        elsewhere.server = Server::At("shm:bench".parse().unwrap());
        let report = Report::new(&elsewhere, &Machine::detect(), &result(), None);
        assert!(!has(&report, "physical core"), "{:?}", report.warnings);
        let mut short = result();
        (short.interrupted, short.latency) = (true, LatencyHistogram::new());
        short.elapsed = Duration::ZERO;
        let report = Report::new(&config(), &Machine::detect(), &short, None);
        assert!(has(&report, "stopped by a signal") && has(&report, "no call completed"));
        assert!(report.rate_per_s == 0.0);
        assert!(serde_json::to_value(&report).is_ok());
    }
}
