//! The results of a run, and its report.

pub(crate) mod per_call;
pub(crate) mod table;
mod view;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::per_call::PerCall;
use crate::floor::{FloorSummary, RoundTrip};
use crate::histogram::LatencyHistogram;
use crate::load::timeline::{CoreFigures, Timeline};
use crate::machine::Machine;
use crate::record::Record;
use crate::report::Word;
use crate::report::figures::{LoadFigures, Totals};
use crate::report::origin::Origin;
use crate::run::config::{RunConfig, Server};
use crate::workloads::bench::op::Op;
use crate::workloads::bench::sizes::Sizes;

/// Name and version of the JSON layout. The version changes only if a key changes its meaning or is removed.
pub(crate) const RUN_SCHEMA: &str = "rpcrdma.bench-tool.run/1";

/// The results of the load generator. With the configuration, this is everything that a report needs.
#[derive(Clone, Debug)]
pub(crate) struct RunResult {
    /// Round-trip times of all calls in the measured time, over all cores. Closed loop: counted from posting the
    /// call. Open loop: counted from its due time.
    pub latency: LatencyHistogram,
    /// The same times by core and interval.
    pub timeline: Timeline,
    /// The record of this end.
    pub client: Record,
    /// The record of the server, as it reports it; `None` if it does not.
    pub server: Option<serde_json::Value>,
    /// Totals of the load.
    pub totals: Totals,
    /// The cost of one clock reading in nanoseconds.
    pub clock_read_ns: f64,
    /// The fabric that carried the calls: `shm` or `verbs`.
    pub fabric: String,
    /// The RDMA device; `None` on shm.
    pub device: Option<String>,
    /// The negotiated version of RPC-over-RDMA: 1 or 2.
    pub protocol: u32,
    /// How payload travelled: `inline`, `send`, `rdma` or `mixed`.
    pub placement: String,
    /// The name of the tuning profile.
    pub profile: String,
    /// The server's authenticated identity; `None` without host authentication.
    pub server_identity: Option<String>,
    /// Counters of the measured time, summed over the client's cores. Names carry their unit.
    pub counters: BTreeMap<String, u64>,
    /// Counters of the server's cores, from before the first call until after the last one, over all of its clients;
    /// `None` if the server does not report them.
    pub server_counters: Option<BTreeMap<String, u64>>,
    /// Operations per call at client and server.
    pub per_call: PerCall,
    /// Registered memory of the client.
    pub memory: Memory,
    /// Whether the hypervisor, other work or the frequency disturbed it: `warnings` says how.
    pub disturbed: bool,
    /// Warnings that limit the trust in the numbers, one sentence each.
    pub warnings: Vec<String>,
}

impl RunResult {
    /// Calls that were answered.
    pub(crate) fn answered(&self) -> u64 {
        let unanswered = self.timeline.unanswered();
        self.latency.count().saturating_sub(unanswered)
    }
}

/// One of several sizes of payload.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SizeShare {
    /// The size.
    pub bytes: u64,
    /// Percentage of operations with this size.
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

/// Registered memory, as actually allocated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// Size of its pages.
    pub page_bytes: u64,
    /// Kind of its pages: `hugetlb`, `transparent` or `ordinary`.
    pub kind: String,
    /// Total size.
    pub registered_bytes: u64,
    /// Share that each connection reserves for its receives.
    pub connection_bytes: u64,
    /// `shared` if the connections of a core share one receive queue, `own` if each has its own.
    pub receive_queues: Word,
}

/// The report of a run. Its serialization is the JSON report, whose layout is stable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The program and command line that wrote it.
    #[serde(flatten)]
    pub origin: Origin,
    /// The machine that it ran on.
    pub machine: Machine,
    /// The clock that timed the calls.
    pub clock: String,
    /// The cost of one clock reading.
    pub clock_read_ns: f64,
    /// See [`RunResult::fabric`].
    pub fabric: String,
    /// See [`RunResult::device`].
    pub device: Option<String>,
    /// `v1` or `v2`.
    pub protocol: String,
    /// See [`RunResult::placement`].
    pub placement: String,
    /// The value of `--placement`; `None` for null and echo.
    pub placement_asked: Option<Word>,
    /// See [`RunResult::profile`].
    pub profile: String,
    /// The server's address; `None` if the run started its own server.
    pub connect: Option<String>,
    /// See [`RunResult::server_identity`].
    pub server_identity: Option<String>,
    /// The procedure called.
    pub op: Word,
    /// `forward` if the client calls; `reverse` if the server calls, which then also measures.
    pub direction: Word,
    /// Who made the calls: `core`, `poller`, `call` or `async`, as with `--through`.
    #[serde(default = "of_core")]
    pub through: Word,
    /// Payload of one operation; an echo carries it in both directions.
    pub size_bytes: u64,
    /// The sizes of a mix of sizes, whose largest is `size_bytes`; `None` if all operations have `size_bytes`.
    pub sizes: Option<Vec<SizeShare>>,
    /// Operations in one call.
    pub operations: u32,
    /// Percentage of operations that read; `None` for null and echo.
    pub read_percent: Option<u32>,
    /// Seed of the random sequence; `None` without a mix of operations or sizes.
    pub seed: Option<u64>,
    /// One-way delay that this tool added to every message; a delay on the link itself is not included.
    pub delay_ns: u64,
    /// Artificial service time of the run's own server in each call; a server elsewhere may have another.
    pub service_time_ns: u64,
    /// Options and results of the load.
    #[serde(flatten)]
    pub load: LoadFigures,
    /// Additional connections that stayed idle.
    pub idle_connections: u32,
    /// The polling cores of the run's own server; `None` for a server elsewhere.
    pub server_cores: Option<Vec<usize>>,
    /// Figures for each core of the client.
    pub per_core: Vec<CoreFigures>,
    /// See [`RunResult::per_call`].
    pub per_call: PerCall,
    /// See [`RunResult::counters`].
    pub counters: BTreeMap<String, u64>,
    /// See [`RunResult::server_counters`].
    pub server_counters: Option<BTreeMap<String, u64>>,
    /// See [`RunResult::client`].
    #[serde(default)]
    pub client: Option<Value>,
    /// See [`RunResult::server`].
    #[serde(default)]
    pub server: Option<Value>,
    /// The machine's floor between the client's and the server's core; `None` if it could not be measured.
    pub floor: Option<FloorSummary>,
    /// See [`RunResult::memory`].
    pub memory: Memory,
    /// See [`RunResult::disturbed`].
    #[serde(default)]
    pub disturbed: bool,
    /// Warnings that limit the trust in the numbers.
    pub warnings: Vec<String>,
}

impl Report {
    /// Combines configuration, results and the machine's floor.
    #[must_use]
    pub(crate) fn new(
        config: &RunConfig,
        machine: &Machine,
        result: &RunResult,
        floor: Option<&RoundTrip>,
    ) -> Self {
        let totals = &result.totals;
        let load = LoadFigures::new(&config.load, &result.latency, &result.timeline, totals);
        let (connect, server_cores) = match &config.server {
            Server::Own { cores, .. } => (None, Some(cores.clone())),
            Server::At(address) => (Some(address.to_string()), None),
        };
        Self {
            origin: Origin::new(RUN_SCHEMA, config.command.clone()),
            machine: machine.clone(),
            clock: crate::clock::source(),
            clock_read_ns: result.clock_read_ns,
            protocol: format!("v{}", result.protocol),
            connect,
            op: config.op.name().into(),
            direction: if config.reverse { "reverse" } else { "forward" }.into(),
            through: config.through.name().into(),
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
            placement_asked: config.bulk.map(|bulk| bulk.placement.name().into()),
            idle_connections: config.idle_connections,
            server_cores,
            floor: floor.map(|floor| FloorSummary::new(floor, Some(load.latency_ns.p50))),
            warnings: warnings(config, machine, result, &load),
            load,
            fabric: result.fabric.clone(),
            device: result.device.clone(),
            placement: result.placement.clone(),
            profile: result.profile.clone(),
            server_identity: result.server_identity.clone(),
            per_core: result.timeline.core_figures(),
            per_call: result.per_call.clone(),
            counters: result.counters.clone(),
            server_counters: result.server_counters.clone(),
            client: serde_json::to_value(&result.client).ok(),
            disturbed: result.disturbed,
            server: result.server.clone(),
            memory: result.memory.clone(),
        }
    }
}

/// What older reports, which do not say it, are of.
fn of_core() -> Word {
    "core".into()
}

fn warnings(
    config: &RunConfig,
    machine: &Machine,
    result: &RunResult,
    load: &LoadFigures,
) -> Vec<String> {
    let mut warnings = config.warnings.clone();
    let pair = config.floor_cores();
    warnings.extend(machine.warnings(pair.as_ref().map_or(&[], |pair| pair.as_slice())));
    warnings.extend(result.warnings.iter().cloned());
    warnings.extend(load.warnings(&result.totals, &result.timeline));
    warnings.extend(clock_share(result));
    warnings
}

/// Above this percentage of the median, the cost of the clock distorts the figures.
const CLOCK_PERCENT_MAX: f64 = 10.0;

/// A warning if clock readings are a large part of the latencies. A core reads the clock once in every poll, so at
/// least twice during a call.
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
#[path = "../../../tests/support/schema.rs"]
mod schema;

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::load::measured::Losses;
    use crate::load::{Limit, LoadConfig};
    use crate::run::through::Through;

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
            through: Through::Core,
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
                checkpoint: None,
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
            timeline: crate::load::timeline::tests::timeline(),
            client: Record::of_tcp(&Machine::detect(), &[0]),
            server: serde_json::to_value(Record::of_tcp(&Machine::detect(), &[1])).ok(),
            disturbed: false,
            clock_read_ns: 10.5,
            totals: Totals {
                elapsed: Duration::from_secs(2),
                interrupted: false,
                failure: None,
                due: None,
                errors: 0,
                losses: Losses::default(),
                paths: Vec::new(),
                payload_bytes: 0,
            },
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
                receive_queues: "shared".into(),
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
    fn reports_follow_the_published_schema() {
        let check =
            |report: &Report| schema::check("run-1.json", &serde_json::to_value(report).unwrap());
        check(&report()).unwrap();
        let mut nothing = result();
        nothing.latency = LatencyHistogram::new();
        nothing.totals.failure = Some(crate::exit::Failure::failed("the server is gone"));
        (nothing.server, nothing.device) = (None, Some("mlx5_0".to_owned()));
        nothing.timeline.cores.clear();
        let mut config = config();
        config.server = Server::At("shm:elsewhere".parse().unwrap());
        config.load.rate_per_s = Some(1_000);
        check(&Report::new(&config, &Machine::detect(), &nothing, None)).unwrap();
    }

    #[test]
    fn the_keys_of_the_json_are_stable() {
        let value: serde_json::Value = serde_json::to_value(report()).unwrap();
        let object = value.as_object().unwrap();
        // Add a new key to this list and to docs/bench-tool.md.
        let expected = "schema version revision command machine fabric device protocol placement profile op direction through \
            size_bytes sizes depth connections cores duration_s calls errors rate_per_s \
            bandwidth_bytes_per_s latency_ns histogram latency_corrected_ns counters floor memory warnings loop \
            idle_connections offered_rate_per_s clock clock_read_ns interrupted connect server_identity \
            server_cores warmup_s placement_asked operations read_percent seed delay_ns service_time_ns \
            per_call server_counters began client server disturbed interval_s intervals gaps per_core failure connections_lost reconnects calls_lost longest_loss_s \
            whole calls_due calls_unanswered";
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
        let mut result = result();
        result.totals.payload_bytes = config.payload_bytes(20_001, 7);
        let report = Report::new(&config, &Machine::detect(), &result, Some(&floor()));
        assert_eq!(report.load.calls, 20_001);
        // One call at a time for 2 s: the longest one kept 16 others.
        let corrected = report.load.latency_corrected_ns.unwrap();
        assert_eq!(corrected.expected_interval, 99_995);
        assert_eq!(corrected.summary.count, 20_001 + 16);
        assert!((report.load.rate_per_s - 10_000.5).abs() < 1e-9);
        assert!((report.load.bandwidth_bytes_per_s - 10_000.5 * 4096.0).abs() < 1e-3);
        // The median is in the bucket of 449 and 450.
        let ratio = report.floor.unwrap().p50_ratio.unwrap();
        assert!((2.03..2.06).contains(&ratio), "{ratio}");
    }

    #[test]
    fn clock_that_is_slow_for_the_latencies_is_reported() {
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
        assert_eq!(report.load.load_loop, "open");
        assert_eq!(report.load.latency_corrected_ns, None, "it was measured");
        assert!(report.floor.is_none());
        // Without a pair of cores nothing is said about one.
        let mut elsewhere = config();
        elsewhere.server = Server::At("shm:bench".parse().unwrap());
        let report = Report::new(&elsewhere, &Machine::detect(), &result(), None);
        assert!(!has(&report, "physical core"), "{:?}", report.warnings);
        let mut short = result();
        (short.totals.interrupted, short.latency) = (true, LatencyHistogram::new());
        short.totals.elapsed = Duration::ZERO;
        let report = Report::new(&config(), &Machine::detect(), &short, None);
        assert!(has(&report, "stopped by a signal") && has(&report, "no call completed"));
        assert!(report.load.rate_per_s == 0.0);
        assert!(serde_json::to_value(&report).is_ok());
    }
}
