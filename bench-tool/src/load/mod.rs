//! The load of a run: connections, generators on the client's cores, and what they measured.

mod bulk;
mod generator;
pub(crate) mod idle;
pub(crate) mod intervals;
pub(crate) mod null_calls;
pub(crate) mod pace;
mod probe;
pub(crate) mod sizes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rpcrdma_control::{
    ConnectError, ConnectOptions, Connection, CoreChoice, Node, NodeConfig, PendingConnect,
    Provider,
};
use rpcrdma_engine::{CallRefused, CoreHandle, CounterSnapshot};
use rpcrdma_fabric::memory::{PageKind, PageReport};
use rpcrdma_protocol::v2::ReverseRequestSupport;
use rpcrdma_tuning::Loaded;

use self::bulk::BulkPlan;
pub(crate) use self::bulk::Draw;
use self::generator::{Generator, Measured, Plan, Shared, Work};
use self::idle::IdleProcesses;
use self::intervals::Collector;
use self::pace::Rate;
use crate::address::Address;
use crate::authentication::of_server;
use crate::bench_program::{self, ECHO, NULL};
use crate::commands::{Op, Placement};
use crate::exit::Failure;
use crate::fabric::{Fabric, Job};
use crate::histogram::LatencyHistogram;
use crate::report::per_call::PerCall;
use crate::report::timeline::{CoreTimeline, Timeline};
use crate::report::{Memory, RunResult};
use crate::run::config::{Limit, RunConfig, Server};
use crate::run::{Load, Watch};
use crate::sizing::{BulkNeed, Need};
use rpcrdma_doctor::Counted;

/// Connects that are under way at a time: enough to hide the other side's scheduling.
const CONNECTS_AT_ONCE: usize = 64;

/// How soon the end of a measurement is noticed.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// How long outstanding calls may take after the measurement.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// The load of a node's connections, on the fabric of the server's address.
#[derive(Debug, Default)]
pub(crate) struct NodeLoad;

impl Load for NodeLoad {
    fn measure(
        &mut self,
        config: &RunConfig,
        server: &Address,
        watch: &Watch,
    ) -> Result<RunResult, Failure> {
        let fabric =
            Fabric::to_connect(server, config.device.as_deref())?.delayed(config.slowed.delay)?;
        let loaded = profile(config, &fabric)?;
        let measure = Measure {
            config,
            server,
            fabric: &fabric,
            loaded: &loaded,
            watch,
        };
        fabric.run(&loaded.profile, measure)
    }
}

/// A measurement, on whatever fabric.
struct Measure<'a> {
    config: &'a RunConfig,
    server: &'a Address,
    fabric: &'a Fabric,
    loaded: &'a Loaded,
    watch: &'a Watch,
}

impl Job for Measure<'_> {
    type Output = RunResult;

    fn run<V: Provider>(self, provider: V) -> Result<RunResult, Failure> {
        let Self {
            config,
            server,
            fabric,
            loaded,
            watch,
        } = self;
        let address = server.to_string();
        let client = Client::start(provider, config, loaded, watch)?;
        let connections = connect_all(&client.node, &address, config, loaded, watch)?;
        let idle = IdleProcesses::start(&address, config)?;
        // Nothing is outstanding at any of these moments, so that what was counted between them
        // is of whole calls.
        let server_before = client.ask_server(&connections);
        let client_before = client.counters();
        let counted_before = counted(config, watch);
        client.hand_out(&connections, config.cores.len());
        let began = SystemTime::now() + config.warmup;
        let collectors = client.wait(config, watch)?;
        let disturbances = counted(config, watch).warnings_since(&counted_before);
        let client_counted = client.counters().since(&client_before);
        let server_after = client.ask_server(&connections);
        let pages = client.node.pages().to_vec();
        let shared = client.node.attributes().iter();
        let own_queues = shared.map(|it| it.shared_receive_queue).any(|it| !it);
        let lost: u32 = client
            .shared
            .iter()
            .map(|shared| shared.connections_lost())
            .sum();
        let Client { node, shared } = client;
        let generators = node.shutdown();
        let measured: Vec<Measured> = generators.into_iter().map(|it| it.measured).collect();
        let timeline = Timeline {
            interval: config.interval,
            began,
            cores: timelines(collectors, &shared, &measured, &config.cores),
        };
        let free = free_core(config);
        let payload_bytes: u64 = measured.iter().map(|core| core.payload_bytes).sum();
        let probe = idle.map(|idle| idle.probe(free)).transpose()?;
        let refused = measured.iter().find_map(|core| core.first_refusal);
        let mut result = result(measured, timeline, &pages, own_queues, loaded, fabric);
        result.warnings.extend(disturbances);
        result.server_counters = server_before
            .zip(server_after)
            .map(|(before, after)| probe::since(&after, &before));
        result.payload_bytes = config.bulk.map(|_| payload_bytes);
        let call_bytes = result.payload_bytes.map_or_else(
            || config.call_bytes(),
            |bytes| bytes / result.latency.count().max(1),
        );
        result.per_call = PerCall::new(
            &counts(&client_counted),
            result.server_counters.as_ref(),
            call_bytes,
            config.reverse,
        );
        result.placement = result.per_call.placement(config.op).to_owned();
        result.protocol = connections
            .first()
            .map_or(2, |connection| connection.version);
        result.server_identity = connections
            .first()
            .and_then(|connection| connection.identity.as_ref())
            .map(ToString::to_string);
        if let Some(probe) = probe {
            probe.report(&mut result);
        }
        // A call may be refused for its connection before the core has told that it is lost.
        let found_lost = refused == Some(CallRefused::UnknownConnection);
        let lost = lost.max(u32::from(found_lost));
        if lost > 0 {
            return Err(Failure::failed(format!(
                "{lost} of {} connections to {address} were lost during the run",
                config.connections
            ))
            .advice("look at the server's messages; it may have ended or been killed"));
        }
        match refused {
            Some(refused) => Err(cannot_call(refused, config)),
            None => Ok(result),
        }
    }
}

/// What the kernel has counted for the cores of both ends. Where they share one, each is the other's disturbance,
/// which the configuration says; then nothing is.
fn counted(config: &RunConfig, watch: &Watch) -> Counted {
    let server: &[usize] = match &config.server {
        Server::Own { cores, .. } => cores,
        Server::At(_) => &[],
    };
    if server.iter().any(|core| config.cores.contains(core)) {
        return Counted::default();
    }
    let own = Some(std::process::id());
    let processes: Vec<u32> = own.into_iter().chain(watch.server_process).collect();
    Counted::read(&[&config.cores, server].concat(), &processes)
}

/// Why no more calls could be made on a connection that is there still.
fn cannot_call(refused: CallRefused, config: &RunConfig) -> Failure {
    let failure = Failure::failed(format!("the calls cannot be made: {refused}"));
    let placement = config.bulk.map(|bulk| bulk.placement);
    match (refused, placement) {
        (CallRefused::NoPlacement, Some(Placement::Send)) => failure.advice(
            "both ends must place data by Sends: see `--profile` of both, or give --placement auto",
        ),
        (CallRefused::NoPlacement, _) => failure.advice(
            "RDMA needs a device with memory windows at this end; give --placement auto, which does without",
        ),
        (CallRefused::NotTaken, _) => {
            failure.advice("start the server with `bench-tool serve --reverse`, of the version that this is of")
        }
        (CallRefused::TooLong, _) if config.reverse => {
            failure.advice("give a smaller --size: in version 1 a call in the reverse direction has to fit one message")
        }
        (CallRefused::TooLong, _) => {
            failure.advice("give a smaller --size, fewer --operations, or --placement auto")
        }
        _ => failure.advice("look at the server's messages"),
    }
}

fn counts(counters: &CounterSnapshot) -> probe::Counts {
    let named = |(name, value): (&str, u64)| (name.to_owned(), value);
    counters.iter().map(named).collect()
}

fn profile(config: &RunConfig, fabric: &Fabric) -> Result<Loaded, Failure> {
    let cores = u32::try_from(config.cores.len()).unwrap_or(u32::MAX).max(1);
    let connections = config.connections.div_ceil(cores);
    let calls = connections
        .checked_mul(config.depth)
        .filter(|calls| *calls <= 1 << 16);
    let calls = calls.ok_or_else(|| {
        Failure::usage(format!(
            "{connections} connections with {} calls each are more than the 65536 calls that one core can have outstanding",
            config.depth
        ))
        .advice("lower --depth or --connections, or give --cores more of them")
    })?;
    Need {
        connections_per_core: Some(connections),
        credits: Some(config.credits()),
        payload_bytes: Some(config.size_bytes),
        bulk: BulkNeed {
            calls: config.bulk.map_or(0, |_| calls),
            payloads: config.bulk.map_or(1, |bulk| bulk.operations),
        },
        calls_per_core: Some(calls),
        cores,
        park: false,
    }
    .profile(&config.profile, fabric)
}

/// The client's node, with a generator on each core.
struct Client<V: Provider> {
    node: Node<V, Generator>,
    shared: Vec<Arc<Shared>>,
}

impl<V: Provider> Client<V> {
    fn start(
        provider: V,
        config: &RunConfig,
        loaded: &Loaded,
        watch: &Watch,
    ) -> Result<Self, Failure> {
        let cores: Vec<_> = config.cores.iter().copied().map(Some).collect();
        let mut node_config = NodeConfig::from_profile(&loaded.profile, cores);
        if config.reverse {
            node_config = node_config.with_reverse_calls(ReverseRequestSupport::Inline);
        }
        let shared: Vec<Arc<Shared>> = config.cores.iter().map(|_| Arc::default()).collect();
        let node = Node::start(provider, &node_config, |core| {
            Generator::new(
                plan(config, core),
                Arc::clone(&shared[core]),
                watch.stop.clone(),
                watch.progress.clone(),
                core,
            )
        })
        .map_err(|error| Failure::failed("the client could not be set up").because(error))?;
        Ok(Self { node, shared })
    }

    /// Gives each generator the connections of its core, which starts it.
    fn hand_out(&self, connections: &[Connection], cores: usize) {
        for core in 0..cores {
            let own = connections
                .iter()
                .filter(|connection| connection.core == core);
            self.shared[core].start(own.map(|connection| connection.key).collect());
        }
    }

    /// What all cores counted.
    fn counters(&self) -> CounterSnapshot {
        let all = self.node.cores().iter().map(CoreHandle::counters);
        all.reduce(|sum, core| sum.plus(&core)).unwrap_or_default()
    }

    /// What the server's cores counted; `None` where it does not say.
    fn ask_server(&self, connections: &[Connection]) -> Option<probe::Counts> {
        let first = connections.iter().find(|connection| connection.core == 0)?;
        self.shared.first()?.question.ask(first.key)
    }

    /// Waits for the end, and packs the histograms of the intervals until then.
    fn wait(&self, config: &RunConfig, watch: &Watch) -> Result<Vec<Collector>, Failure> {
        let mut collectors: Vec<Collector> =
            self.shared.iter().map(|_| Collector::default()).collect();
        let mut deadline = config
            .expected()
            .map(|expected| Instant::now() + expected + END_TIMEOUT);
        while !self.shared.iter().all(|shared| shared.is_finished()) {
            if watch.stop.is_asked() && deadline.is_none() {
                deadline = Some(Instant::now() + END_TIMEOUT);
            }
            if deadline.is_some_and(|deadline| Instant::now() > deadline) {
                return Err(Failure::failed(format!(
                    "calls were still outstanding {} s after the measurement",
                    END_TIMEOUT.as_secs()
                ))
                .advice("the server may be stopped (SIGSTOP) or overloaded"));
            }
            std::thread::sleep(LOOK_PERIOD);
            for (collector, shared) in collectors.iter_mut().zip(&self.shared) {
                collector.collect(&shared.intervals);
            }
        }
        Ok(collectors)
    }
}

/// A core that the load has left and that no core of the run's own server polls on.
fn free_core(config: &RunConfig) -> Option<usize> {
    let taken: &[usize] = match &config.server {
        Server::Own { cores, .. } => cores,
        Server::At(_) => &[],
    };
    config
        .cores
        .iter()
        .copied()
        .find(|core| !taken.contains(core))
}

/// The plan of client core number `core`: its share of rate and count.
fn plan(config: &RunConfig, core: usize) -> Plan {
    let (number, cores) = (core as u64, config.cores.len() as u64);
    let narrow = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    let rate = |calls_per_second| Rate::new(calls_per_second).share(narrow(number), narrow(cores));
    Plan {
        work: work(config, core),
        depth: config.depth,
        warmup: config.warmup,
        interval: config.interval,
        duration: match config.limit {
            Limit::Duration(duration) => Some(duration),
            Limit::Count(_) => None,
        },
        count: match config.limit {
            Limit::Duration(_) => None,
            Limit::Count(count) => Some(count / cores + u64::from(number < count % cores)),
        },
        rate: config.rate_per_s.map(rate),
    }
}

/// What the calls of client core number `core` do.
fn work(config: &RunConfig, core: usize) -> Work {
    let message = |procedure, payload_bytes| Work::Message {
        call: bench_program::call(procedure),
        payload_bytes,
    };
    let size_bytes = || usize::try_from(config.size_bytes).ok();
    match (config.bulk, config.op) {
        (_, op) if config.reverse => Work::Back {
            payload_bytes: u32::try_from(config.size_bytes)
                .ok()
                .filter(|_| op == Op::Echo),
        },
        (Some(bulk), _) => Work::Bulk(BulkPlan {
            read_percent: bulk.read_percent,
            payload_bytes: u32::try_from(config.size_bytes).unwrap_or(u32::MAX),
            sizes: config.sizes,
            operations: bulk.operations as usize,
            placement: match bulk.placement {
                Placement::Auto => rpcrdma_engine::Placement::Auto,
                Placement::Inline => rpcrdma_engine::Placement::Inline,
                Placement::Send => rpcrdma_engine::Placement::Send,
                Placement::Rdma => rpcrdma_engine::Placement::Rdma,
            },
            // The cores of one run do not all the same.
            seed: bulk.seed.wrapping_add(core as u64),
        }),
        (None, Op::Null) => message(NULL, None),
        (None, _) => message(ECHO, size_bytes()),
    }
}

/// Makes the connections of the run, core by core in turn.
fn connect_all<V: Provider>(
    node: &Node<V, Generator>,
    address: &str,
    config: &RunConfig,
    loaded: &Loaded,
    watch: &Watch,
) -> Result<Vec<Connection>, Failure> {
    let timeout = Duration::from_millis(u64::from(loaded.profile.connect_timeout_ms));
    let cores = config.cores.len();
    let count = config.connections as usize;
    let start = |index: usize| {
        let core = CoreChoice::Core(index % cores);
        let options = ConnectOptions {
            core,
            timeout,
            authentication: of_server(config.host.as_ref()),
            versions: config.protocol.versions(),
        };
        node.connect_start(address, options)
    };
    connect_many(count, start, watch).map_err(|(made, error)| {
        let failure = Failure::failed(if count == 1 {
            format!("cannot connect to {address}")
        } else {
            format!(
                "connection {} of {count} to {address} could not be made",
                made + 1
            )
        });
        failure.because(error)
    })
}

/// Makes `count` connections, some at a time. On failure tells how many were made.
fn connect_many(
    count: usize,
    start: impl Fn(usize) -> PendingConnect,
    watch: &Watch,
) -> Result<Vec<Connection>, (usize, ConnectError)> {
    let mut made = Vec::with_capacity(count);
    let mut pending = std::collections::VecDeque::with_capacity(CONNECTS_AT_ONCE);
    let mut started = 0;
    while made.len() < count && !watch.stop.is_asked() {
        while started < count && pending.len() < CONNECTS_AT_ONCE {
            pending.push_back(start(started));
            started += 1;
        }
        let Some(next) = pending.pop_front() else {
            break;
        };
        match next.wait() {
            Ok(connection) => made.push(connection),
            Err(error) => return Err((made.len(), error)),
        }
    }
    Ok(made)
}

/// What each core measured over time, its last interval included.
fn timelines(
    collectors: Vec<Collector>,
    shared: &[Arc<Shared>],
    measured: &[Measured],
    cores: &[usize],
) -> Vec<CoreTimeline> {
    let parts = collectors.into_iter().zip(shared).zip(measured).zip(cores);
    parts
        .map(|(((collector, shared), measured), core)| {
            collector.finish(
                &shared.intervals,
                &measured.latency,
                *core,
                measured.elapsed,
            )
        })
        .collect()
}

/// Puts together what the cores measured.
fn result(
    measured: Vec<Measured>,
    timeline: Timeline,
    pages: &[PageReport],
    own_queues: bool,
    loaded: &Loaded,
    fabric: &Fabric,
) -> RunResult {
    let mut latency = LatencyHistogram::new();
    for core in &timeline.cores {
        latency.merge(&core.total());
    }
    let mut counters: BTreeMap<String, u64> = BTreeMap::new();
    let (mut errors, mut mismatches, mut backlog, mut back_failed) = (0, 0, 0, 0);
    let (mut elapsed, mut interrupted, mut first_error) = (Duration::ZERO, false, None);
    for core in measured {
        errors += core.errors;
        mismatches += core.mismatches;
        backlog += core.backlog;
        back_failed += core.back_failed;
        elapsed = elapsed.max(core.elapsed);
        interrupted |= core.interrupted;
        first_error = first_error.or(core.first_error);
        for (name, value) in core.counters.iter().flat_map(|counters| counters.iter()) {
            *counters.entry(name.to_owned()).or_default() += value;
        }
    }
    let mut warnings: Vec<String> = pages
        .iter()
        .filter_map(|pages| pages.warning.clone())
        .collect();
    warnings.dedup();
    warnings.extend(crate::profile::warnings_here(loaded));
    if let Some(error) = first_error {
        warnings.push(format!("the first call that failed: {error}"));
    }
    if mismatches > 0 {
        errors += mismatches;
        warnings.push(format!("{mismatches} replies did not carry what was sent"));
    }
    if back_failed > 0 {
        errors += back_failed;
        warnings.push(format!(
            "{back_failed} calls of the server failed, or were answered with something else"
        ));
    }
    if backlog > 0 {
        warnings.push(format!(
            "the server could not keep up: {backlog} calls were due and could not be made before the end; \
             raise --depth or lower --rate"
        ));
    }
    RunResult {
        latency,
        timeline,
        payload_bytes: None,
        clock_read_ns: crate::floor::clock_read_ns(),
        errors,
        elapsed,
        interrupted,
        fabric: fabric.name().to_owned(),
        device: fabric.device().map(str::to_owned),
        protocol: 2,
        placement: "inline".to_owned(),
        profile: loaded.name.clone(),
        server_identity: None,
        counters,
        server_counters: None,
        per_call: PerCall::default(),
        memory: memory(pages, own_queues, loaded),
        warnings,
    }
}

fn memory(pages: &[PageReport], own_queues: bool, loaded: &Loaded) -> Memory {
    let core = NodeConfig::from_profile(&loaded.profile, Vec::new()).core;
    let receives = u64::from(core.receives_per_connection());
    let segments = u64::from(core.receive_segments() - 1);
    let placed = core
        .placement_pool()
        .map_or(0, |pool| segments * u64::from(pool.stride_bytes));
    let kind = pages.first().map_or("ordinary", |pages| match pages.kind {
        PageKind::Huge => "hugetlb",
        PageKind::Transparent => "transparent",
        PageKind::Ordinary => "ordinary",
    });
    Memory {
        page_bytes: pages.first().map_or(0, |pages| pages.page_bytes),
        kind: kind.to_owned(),
        registered_bytes: pages.iter().map(|pages| pages.arena_bytes).sum(),
        connection_bytes: receives * (u64::from(core.receive_pool().stride_bytes) + placed),
        receive_queues: if own_queues { "own" } else { "shared" },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_free_core_is_one_that_no_server_polls_on() {
        let mut config = crate::report::tests::config();
        for (cores, server, free) in [
            (vec![0], vec![1], Some(0)),
            (vec![0, 1, 2], vec![0, 1], Some(2)),
            (vec![0], vec![0], None),
        ] {
            config.cores = cores;
            config.server = Server::Own {
                fabric: crate::commands::OwnFabric::Shm,
                cores: server,
            };
            assert_eq!(free_core(&config), free);
        }
        config.server = Server::At("shm:elsewhere".parse().expect("an address"));
        assert_eq!(free_core(&config), Some(0));
    }
}
