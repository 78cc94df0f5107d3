//! The load of a run on a node: cores, connections, and their results.

use std::collections::BTreeMap;
use std::time::Duration;

use rpcrdma::Node;
use rpcrdma_control::{ConnectOptions, CoreView, Fabric, NodeConfig, ServerAddresses, Use};
use rpcrdma_doctor::Counted;
use rpcrdma_engine::{CallRefused, CounterSnapshot};
use rpcrdma_fabric::memory::{PageKind, PageReport};
use rpcrdma_protocol::v2::ReverseRequestSupport;
use rpcrdma_tuning::Loaded;
use rpcrdma_units::size;

use super::config::{RunConfig, Server};
use super::idle::IdleProcesses;
use super::{Load, server_report};
use crate::authentication::of_server;
use crate::bench_program::{self, ECHO, NULL};
use crate::exit::Failure;
use crate::load::Watch;
use crate::load::connections::Connections;
use crate::load::cores::LoadCores;
use crate::load::measure::Checkpoints;
use crate::load::measured::{Beginning, FabricCounts, Measured};
use crate::load::timeline::CoreTimeline;
use crate::machine::Machine;
use crate::profile::warnings_of_node;
use crate::record::Record;
use crate::report::figures::{PathFigures, Totals};
use crate::run::report::per_call::PerCall;
use crate::run::report::{Memory, RunResult};
use crate::run::through::{DISCONNECTED, Threads, Through};
use crate::signals::Stop;
use crate::sizing::{BulkNeed, Need};
use crate::workloads::bench::bulk::BulkPlan;
use crate::workloads::bench::op::{Op, Placement};
use crate::workloads::bench::{BACK_FAILED, BenchPlan, BenchWorkload, WRONG_REPLIES};

/// How long outstanding calls may take after the measurement.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// A load on the connections of a node, on the fabric of the server's address.
#[derive(Debug, Default)]
pub(crate) struct NodeLoad;

impl Load for NodeLoad {
    fn measure(
        &mut self,
        config: &RunConfig,
        server: &ServerAddresses,
        watch: &Watch,
        show: &mut dyn FnMut(&RunResult),
    ) -> Result<RunResult, Failure> {
        let fabric = Fabric::of(server.iter(), config.device.as_deref(), Use::Connect)?
            .delayed(config.slowed.delay)?;
        let loaded = profile(config, &fabric)?;
        let measure = Measure {
            config,
            server,
            fabric: &fabric,
            loaded: &loaded,
            watch,
            show,
        };
        measure.run()
    }
}

/// A measurement.
struct Measure<'a> {
    config: &'a RunConfig,
    server: &'a ServerAddresses,
    fabric: &'a Fabric,
    loaded: &'a Loaded,
    watch: &'a Watch,
    show: &'a mut dyn FnMut(&RunResult),
}

impl Measure<'_> {
    fn run(self) -> Result<RunResult, Failure> {
        let Self {
            config,
            server,
            fabric,
            loaded,
            watch,
            show,
        } = self;
        let address = server.to_string();
        let mut client = Client::start(fabric, config, loaded, server, watch)?;
        // Asked before anything else: a server with other limits takes no call of this run.
        let server_record = server_report::facts(&client.cores, &client.connections);
        check_limits(server_record.as_ref(), config)?;
        let idle = IdleProcesses::start(server, config)?;
        // No call is outstanding when the counters are read, so their differences are of whole calls.
        let server_before = client.ask_server();
        let client_before = client.counters();
        let fabric_before = client.fabric_counts();
        let counted_before = counted(config, watch);
        let shared = client.node.control().attributes().iter();
        let own_queues = shared.map(|it| it.shared_receive_queue).any(|it| !it);
        let pages = client.node.control().pages().to_vec();
        let client_record = Record::new(&Machine::detect(), &config.load.cores, loaded, fabric);
        let records = (client_record, server_record);
        let warnings = warnings_of_node(&client.node, loaded).cloned().collect();
        let ends = (loaded, fabric, &pages[..], own_queues, warnings);
        let mut show = |measured: Measured| {
            show(&result(&measured, config, &records, &ends));
        };
        let mut checkpoints = Checkpoints::new(config.load.checkpoint, &mut show);
        // Everything that takes time is done: the calls of a fleet begin right behind the gate.
        watch.gate.pass(&watch.progress, &watch.stop);
        let mut measured = client.measure(config, watch, &mut checkpoints);
        let disturbances = counted(config, watch).warnings_since(&counted_before);
        let client_counted = client.counters().since(&client_before);
        measured.fabric = client.fabric_counts().since(&fabric_before);
        // Threads do not read the counters of the cores when the measured time begins and ends.
        if config.through != Through::Core && measured.counters.is_none() {
            measured.counters = Some(client_counted);
        }
        // A lost connection may still be lost here: its calls went to other connections, or none were left. The
        // server's counters below need the first connection.
        if measured.failure.is_none() {
            let is_stopping = || watch.stop.is_asked();
            measured.failure = client.connections.restore(&client.cores, is_stopping).err();
        }
        measured.losses.merge(&client.connections.take_losses());
        measured.paths = client.paths(&measured);
        if measured.failure.is_none() && config.load.retry.is_zero() {
            let connections = config.load.connections as usize;
            measured.failure = measured.broken(connections, &address);
        }
        // With a connection lost for good, there may be nobody to ask, and the counters of a part are of no use.
        let server_after = match measured.failure {
            None => client.ask_server(),
            Some(_) => None,
        };
        let Client {
            threads,
            clients,
            node,
            connections,
            ..
        } = client;
        let first = connections.first().cloned();
        if measured.failure.is_some() {
            // Blocking calls end, for whose time-outs this process would wait.
            // WAIT: for less than the margin of `NodeHandle::drain`.
            let _ = node.drain(Duration::ZERO);
        }
        // Each client has the node, too.
        drop((threads, clients, connections));
        drop(node);
        // Only after the shutdown: the probe runs on a core of the load.
        let probe = idle.filter(|_| measured.failure.is_none());
        let probe = probe.map(|idle| idle.probe(free_core(config)));
        let probe = probe.and_then(|probe| {
            probe
                .map_err(|failure| measured.failure = Some(failure))
                .ok()
        });
        check(&mut measured, config)?;
        let mut result = result(&measured, config, &records, &ends);
        result.disturbed = !disturbances.is_empty();
        result.warnings.extend(disturbances);
        // After a lost connection the server may have restarted, and then its counters started again from 0.
        let both = server_before.zip(server_after);
        result.server_counters = both
            .filter(|_| measured.losses.connections == 0)
            .map(|(before, after)| server_report::since(&after, &before));
        let call_bytes = result.totals.payload_bytes / result.answered().max(1);
        result.per_call = PerCall::new(
            &counts(&client_counted),
            result.server_counters.as_ref(),
            call_bytes,
            config.reverse,
        );
        result.placement = result.per_call.placement(config.op).to_owned();
        if result.answered() == 0
            && let Some(bulk) = config.bulk.filter(|it| it.placement != Placement::Auto)
        {
            // Nothing travelled that could be counted.
            result.placement = bulk.placement.name().to_owned();
        }
        if let Some(first) = first {
            result.protocol = first.version;
            result.server_identity = first.identity.as_ref().map(ToString::to_string);
        }
        if let Some(probe) = probe {
            probe.report(&mut result);
        }
        Ok(result)
    }
}

/// Refuses payloads that the server has no room for.
fn check_limits(server: Option<&serde_json::Value>, config: &RunConfig) -> Result<(), Failure> {
    let limit = server.and_then(|it| it["limits"]["call_payload_bytes_max"].as_u64());
    let Some(limit) = limit.filter(|limit| config.call_bytes() > *limit) else {
        return Ok(());
    };
    let operations = config.bulk.map_or(1, |bulk| bulk.operations);
    let option = |bytes: u64| size(bytes).replace(' ', "");
    let many = match operations {
        1 => String::new(),
        many => format!(" --max-operations {many}"),
    };
    Err(Failure::usage(format!(
        "the server takes at most {} of payload in one call, and the calls of this run have {}",
        size(limit),
        size(config.call_bytes())
    ))
    .advice(format!(
        "start the server with `bench-tool serve --max-payload {}{many}`, or give --size {} at most",
        option(config.size_bytes),
        option(limit / u64::from(operations))
    )))
}

/// Rejects results of connections that refused their calls. If some calls were made, the results keep the failure.
fn check(measured: &mut Measured, config: &RunConfig) -> Result<(), Failure> {
    let Some(refused) = measured
        .first_refusal
        .filter(|_| measured.failure.is_none())
    else {
        return Ok(());
    };
    let failure = cannot_call(refused, config);
    let answered = |it: &CoreTimeline| it.total().count() - it.unanswered();
    if measured.timelines.iter().all(|it| answered(it) == 0) {
        return Err(failure);
    }
    measured.failure = Some(failure);
    Ok(())
}

/// The kernel's counters of disturbances on the cores of client and server. Empty if both share a core: then they
/// disturb each other, and the configuration already warns about that.
fn counted(config: &RunConfig, watch: &Watch) -> Counted {
    let server: &[usize] = match &config.server {
        Server::Own { cores, .. } => cores,
        Server::At(_) => &[],
    };
    if server.iter().any(|core| config.load.cores.contains(core)) {
        return Counted::default();
    }
    let own = Some(std::process::id());
    let processes: Vec<u32> = own.into_iter().chain(watch.server_process).collect();
    Counted::read(&[&config.load.cores, server].concat(), &processes)
}

/// The failure of a refusal on a connection that is not lost.
fn cannot_call(refused: CallRefused, config: &RunConfig) -> Failure {
    let failure = Failure::failed(format!("the calls cannot be made: {refused}"));
    let placement = config.bulk.map(|bulk| bulk.placement);
    match (refused, placement) {
        (CallRefused::NoPlacement, Some(Placement::Send)) => failure.advice(
            "client and server must place data by Sends: see `--profile` of both, or give --placement auto",
        ),
        (CallRefused::NoPlacement, _) => failure.advice(
            "RDMA needs a device with memory windows on the client; give --placement auto, which works without it",
        ),
        (CallRefused::NotTaken, _) => {
            failure.advice("start the server with `bench-tool serve --reverse`, of the same version as this program")
        }
        (CallRefused::TooLong, _) if config.reverse => {
            failure.advice("give a smaller --size: in version 1 a call in the reverse direction must fit into one message")
        }
        (CallRefused::TooLong, _) => {
            failure.advice("give a smaller --size, fewer --operations, or --placement auto")
        }
        _ => failure.advice("look at the server's messages"),
    }
}

fn counts(counters: &CounterSnapshot) -> server_report::Counts {
    let named = |(name, value): (&str, u64)| (name.to_owned(), value);
    counters.iter().map(named).collect()
}

/// Checks that the profile can be used with a server at this address.
pub(super) fn check_profile(config: &RunConfig, server: &ServerAddresses) -> Result<(), Failure> {
    let fabric = Fabric::of(server.iter(), config.device.as_deref(), Use::Connect)?;
    profile(config, &fabric).map(|_| ())
}

pub(super) fn profile(config: &RunConfig, fabric: &Fabric) -> Result<Loaded, Failure> {
    let cores = u32::try_from(config.load.cores.len())
        .unwrap_or(u32::MAX)
        .max(1);
    let carrying = config.load.connections.div_ceil(cores);
    // The one for questions to the server is on the first core.
    let connections = carrying + u32::from(config.through != Through::Core);
    let calls = config.calls(carrying).ok_or_else(|| {
        Failure::usage(format!(
            "{carrying} connections with {} calls each are more than the 65536 calls that one core can have outstanding",
            config.load.depth
        ))
        .advice("lower --depth or --connections, or give --cores more of them")
    })?;
    Need {
        connections_per_core: Some(connections),
        credits: Some(config.credits()),
        payload_bytes: Some(config.size_bytes),
        is_known: true,
        bulk: BulkNeed {
            calls: config.bulk.map_or(0, |_| calls),
            payloads: config.bulk.map_or(1, |bulk| bulk.operations),
        },
        calls_per_core: Some(calls),
        cores,
        park: false,
    }
    .profile_of_calls(&config.profile, fabric)
}

/// The client's node, with a generator on each core.
struct Client {
    // Declared before the node, so dropped before it: threads that call, and reconnecting, must end before the cores do.
    threads: Option<Threads>,
    clients: Vec<rpcrdma::Client>,
    connections: Connections,
    node: Node,
    cores: LoadCores<BenchWorkload>,
}

impl Client {
    /// Starts the cores and makes the connections.
    fn start(
        fabric: &Fabric,
        config: &RunConfig,
        loaded: &Loaded,
        server: &ServerAddresses,
        watch: &Watch,
    ) -> Result<Self, Failure> {
        let cores = LoadCores::new(&config.load.cores);
        let reverse = config.reverse;
        let node = Node::builder()
            .profile(loaded.profile.clone())
            .pinned(config.load.cores.iter().copied())
            .configure(move |config| match reverse {
                true => config.with_reverse_calls(ReverseRequestSupport::Inline),
                false => config,
            })
            .application(cores.generators())
            .start_on(fabric.clone())
            .map_err(|error| Failure::failed("the client could not be set up").because(error))?;
        let options = ConnectOptions {
            timeout: Duration::from_millis(u64::from(loaded.profile.connect_timeout_ms)),
            authentication: of_server(config.host.as_ref()),
            versions: config.protocol.versions(),
            ..ConnectOptions::default()
        };
        let count = match config.through {
            Through::Core => config.load.connections as usize,
            _ => 1,
        };
        // WAIT: see there.
        let connections = Connections::connect(
            &node,
            server,
            (count, cores.count()),
            &options,
            config.load.retry,
            &watch.stop,
        )?;
        let (threads, clients) = match config.through {
            Through::Core => (None, Vec::new()),
            through => {
                let clients = connect_clients(&node, server, config, &options, &watch.stop)?;
                let threads = Threads::start(through, &clients, config.load.depth)?;
                (Some(threads), clients)
            }
        };
        Ok(Self {
            threads,
            clients,
            connections,
            node,
            cores,
        })
    }

    fn measure(
        &mut self,
        config: &RunConfig,
        watch: &Watch,
        checkpoints: &mut Checkpoints<'_>,
    ) -> Measured {
        let workload = |part, _| BenchWorkload::new(plan(config, part));
        let cores = self.threads.as_ref().map_or(&self.cores, |it| &it.cores);
        let measured = cores.measure(
            &mut self.connections,
            workload,
            &config.load.amount(),
            END_TIMEOUT,
            watch,
            checkpoints,
        );
        let mut measured = measured.0;
        // In this order: a client that connects meanwhile counts twice, and not never.
        let lost = |it: &rpcrdma::Client| u64::from(!it.is_connected()) + it.reconnects();
        let lost: u64 = self.clients.iter().map(lost).sum();
        // The thread that lost its connection may know that before its client does.
        let lost = lost.max(u64::from(measured.errors.of(DISCONNECTED) > 0));
        measured.losses.connections += lost;
        measured
    }

    /// Where the connections that carry the calls are.
    fn paths(&self, measured: &Measured) -> Vec<PathFigures> {
        if self.threads.is_none() {
            return self.connections.paths(&measured.losses);
        }
        let at = self.clients.iter().flat_map(rpcrdma::Client::connected_at);
        let at: Vec<_> = at.flatten().collect();
        PathFigures::count(self.connections.addresses(), at.iter().map(String::as_str))
    }

    /// The counters of all cores, summed.
    fn counters(&self) -> CounterSnapshot {
        let all = self.node.control().cores().iter().map(CoreView::counters);
        all.reduce(|sum, core| sum.plus(&core)).unwrap_or_default()
    }

    /// The counters of the fabric.
    fn fabric_counts(&self) -> FabricCounts {
        FabricCounts::of(&self.node.metrics().snapshot())
    }

    /// The counters of the server's cores; `None` if the server does not report them.
    fn ask_server(&self) -> Option<server_report::Counts> {
        server_report::ask(&self.cores, &self.connections)
    }
}

/// The clients of threads that call through the library: one for each connection.
fn connect_clients(
    node: &Node,
    server: &ServerAddresses,
    config: &RunConfig,
    options: &ConnectOptions,
    stop: &Stop,
) -> Result<Vec<rpcrdma::Client>, Failure> {
    // A poller has places for its own calls.
    let depth = match config.through {
        Through::Poller => 1,
        _ => config.load.depth,
    };
    let connect = |number| {
        node.client()
            .core(number)
            .depth(depth)
            .connect_timeout(options.timeout)
            // A lost connection is an error of the load, as it is on a core, and no wait.
            .patience(Duration::ZERO)
            // No blocking call outlives the load that is given up.
            .timeout(END_TIMEOUT)
            .versions(options.versions)
            .authentication(options.authentication.clone())
            // WAIT: the time-out of its options.
            .connect(&server.beginning_at(number).to_string())
    };
    (0..config.load.connections as usize)
        .take_while(|_| !stop.is_asked())
        .map(connect)
        .collect::<Result<_, _>>()
        .map_err(|error| Failure::failed(format!("cannot connect to {server}")).because(error))
}

/// A core of the load on which the run's own server does not poll.
fn free_core(config: &RunConfig) -> Option<usize> {
    let taken: &[usize] = match &config.server {
        Server::Own { cores, .. } => cores,
        Server::At(_) => &[],
    };
    config
        .load
        .cores
        .iter()
        .copied()
        .find(|core| !taken.contains(core))
}

/// The calls of part number `part`.
fn plan(config: &RunConfig, part: u32) -> BenchPlan {
    let message = |procedure, payload_bytes| BenchPlan::Message {
        call: bench_program::call(procedure),
        payload_bytes,
    };
    let size_bytes = || usize::try_from(config.size_bytes).ok();
    match (config.bulk, config.op) {
        (_, op) if config.reverse => BenchPlan::Back {
            payload_bytes: u32::try_from(config.size_bytes)
                .ok()
                .filter(|_| op == Op::Echo),
        },
        (Some(bulk), _) => BenchPlan::Bulk(BulkPlan {
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
            // Each part has its own seed, so that the cores do not make identical sequences.
            seed: bulk.seed.wrapping_add(part.into()),
        }),
        (None, Op::Null) => message(NULL, None),
        (None, _) => message(ECHO, size_bytes()),
    }
}

/// Warnings about the memory's pages; equal ones of several cores appear once.
fn page_warnings(pages: &[PageReport]) -> Vec<String> {
    let warnings = pages.iter().filter_map(|pages| pages.warning.clone());
    let mut warnings: Vec<String> = warnings.collect();
    warnings.dedup();
    warnings
}

/// What is known of a client before its run: profile, fabric, pages, whether connections have own receive queues, and
/// what the node warns of.
type Ends<'a> = (&'a Loaded, &'a Fabric, &'a [PageReport], bool, Vec<String>);

/// The results that do not depend on the server's report.
fn result(
    measured: &Measured,
    config: &RunConfig,
    (client, server): &(Record, Option<serde_json::Value>),
    &(loaded, fabric, pages, own_queues, ref of_node): &Ends<'_>,
) -> RunResult {
    let counters = measured.counters.iter().flat_map(|it| it.iter());
    let counters = counters.map(|(name, value)| (name.to_owned(), value));
    let counters: BTreeMap<String, u64> = counters.chain(measured.fabric.0.clone()).collect();
    let mut warnings = page_warnings(pages);
    warnings.extend(crate::profile::warnings_here(loaded));
    warnings.extend(of_node.iter().cloned());
    let errors = &measured.errors;
    warnings.extend(measured.warnings());
    let (wrong, failed) = (errors.of(WRONG_REPLIES), errors.of(BACK_FAILED));
    if wrong > 0 {
        warnings.push(format!("{wrong} replies did not carry what was sent"));
    }
    if failed > 0 {
        warnings.push(format!(
            "{failed} calls of the server failed or got a wrong reply"
        ));
    }
    let began = measured
        .began
        .unwrap_or_else(|| Beginning::after(Duration::ZERO));
    let timeline = began.timeline(config.load.interval, measured);
    let latency = timeline.latency();
    let answered = latency.count() - timeline.unanswered();
    RunResult {
        client: client.clone(),
        server: server.clone(),
        disturbed: false,
        timeline,
        clock_read_ns: crate::floor::clock_read_ns(),
        totals: Totals {
            elapsed: measured.elapsed,
            interrupted: measured.interrupted,
            failure: measured.failure.clone(),
            due: measured.calls_due,
            errors: errors.total(),
            losses: measured.losses.clone(),
            paths: measured.paths.clone(),
            payload_bytes: config.payload_bytes(answered, measured.payload_bytes),
        },
        latency,
        fabric: fabric.name().to_owned(),
        device: fabric.devices().map(ToString::to_string),
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
        receive_queues: if own_queues { "own" } else { "shared" }.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_free_core_is_one_that_no_server_polls_on() {
        let mut config = crate::run::report::tests::config();
        for (cores, server, free) in [
            (vec![0], vec![1], Some(0)),
            (vec![0, 1, 2], vec![0, 1], Some(2)),
            (vec![0], vec![0], None),
        ] {
            config.load.cores = cores;
            config.server = Server::Own {
                fabric: crate::run::config::OwnFabric::Shm,
                cores: server,
            };
            assert_eq!(free_core(&config), free);
        }
        config.server = Server::At("shm:elsewhere".parse().expect("an address"));
        assert_eq!(free_core(&config), Some(0));
    }
}
