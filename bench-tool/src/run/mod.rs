//! `bench-tool run`: floor, server, load, floor again, report. The load is behind the trait [`Load`].

pub(crate) mod config;
pub(crate) mod idle;
pub(crate) mod node_load;
pub(crate) mod own_server;
pub(crate) mod report;
mod server_report;
pub(crate) mod through;

use std::time::Duration;

use rpcrdma_control::{Address, Fabric, ServerAddresses};

use self::config::{OwnFabric, RunConfig, Server};
use self::own_server::{OwnServer, START_TIMEOUT, Stopped};
use self::report::{Report, RunResult, table};
use crate::children::OWN_PROGRAM;
use crate::exit::Failure;
use crate::floor::{RoundTrip, round_trip};
use crate::load::Watch;
use crate::load::gate::Gate;
use crate::machine::Machine;
use crate::progress::{Progress, ProgressLine};
use crate::report::climb::climb;
use crate::report::finish::{put, put_checkpoint, put_knee};
use crate::report::output::Outputs;
use crate::signals::Stop;
use rpcrdma_doctor::format_cores;

/// Length of one floor round.
const FLOOR_ROUND: Duration = Duration::from_millis(60);

/// Number of floor rounds before a run, and again after it.
const FLOOR_ROUNDS: usize = 2;

/// The load generator.
pub(crate) trait Load {
    /// Connects, warms up, measures, and closes its connections.
    ///
    /// An early end by [`Watch::stop`] is not an error; the result is marked as interrupted. Nor is the loss of the
    /// server: the result covers what was measured, with [`Totals::failure`](crate::report::figures::Totals).
    /// `show` gets the results so far at the checkpoints of the configuration.
    ///
    /// # Errors
    /// If the server cannot be reached or takes no call: a failure with the address and advice.
    fn measure(
        &mut self,
        config: &RunConfig,
        server: &ServerAddresses,
        watch: &Watch,
        show: &mut dyn FnMut(&RunResult),
    ) -> Result<RunResult, Failure>;
}

/// A load that passes a gate between its connections and its first call.
pub(crate) struct Gated<'a, L> {
    pub(crate) gate: &'a Gate,
    pub(crate) load: &'a mut L,
}

impl<L: Load> Load for Gated<'_, L> {
    fn measure(
        &mut self,
        config: &RunConfig,
        server: &ServerAddresses,
        watch: &Watch,
        show: &mut dyn FnMut(&RunResult),
    ) -> Result<RunResult, Failure> {
        let watch = Watch {
            gate: self.gate.clone(),
            ..watch.clone()
        };
        self.load.measure(config, server, &watch, show)
    }
}

/// Measures once and writes the report.
///
/// # Errors
/// A server that does not start, a load that fails, a report that cannot be written, and failed calls (after the
/// report).
pub(crate) fn execute(
    config: &RunConfig,
    machine: &Machine,
    outputs: &Outputs,
    load: &mut impl Load,
) -> Result<(), Failure> {
    let show = &mut |result: &RunResult| {
        let report = Report::new(config, machine, result, None);
        put_checkpoint(&report, (&result.latency, &result.timeline), outputs);
    };
    let stop = Stop::on_signals()?;
    let (result, floor) = measure(config, outputs.is_quiet(), stop, load, show)?;
    let report = Report::new(config, machine, &result, floor.as_ref());
    let table = table::text(&report, config.load.shows_intervals);
    let measured = (&result.latency, &result.timeline);
    let failure = result.totals.failure.as_ref();
    put(&report, &table, measured, outputs, failure, ERRORS_ADVICE)
}

const ERRORS_ADVICE: &str = "the counters of the report say which errors; --json has all of them";

/// Measures at rising rates up to the knee, each step with a new server and floor, and writes the report. What the
/// machine disturbed is measured again, up to `repeats` times.
///
/// # Errors
/// Those of [`execute`].
pub(crate) fn to_knee(
    config: &RunConfig,
    machine: &Machine,
    outputs: &Outputs,
    repeats: u32,
    load: &mut impl Load,
) -> Result<(), Failure> {
    let stop = Stop::on_signals()?;
    let (report, failure) = climb(&stop, repeats, |rate_per_s| {
        let mut config = config.clone();
        config.load.rate_per_s = rate_per_s;
        let quiet = outputs.is_quiet();
        let (result, floor) = measure(&config, quiet, stop.clone(), load, &mut |_| {})?;
        let report = Report::new(&config, machine, &result, floor.as_ref());
        Ok((report, result.totals.failure))
    })?;
    put_knee(&report, outputs, failure, ERRORS_ADVICE)
}

/// Measures between the two halves of the floor. The run's own server polls on one of the floor's cores, so the floor
/// is measured before it starts and after it ends.
pub(crate) fn measure(
    config: &RunConfig,
    quiet: bool,
    stop: Stop,
    load: &mut impl Load,
    show: &mut dyn FnMut(&RunResult),
) -> Result<(RunResult, Option<RoundTrip>), Failure> {
    let mut floor = floor_rounds(config, None)?;
    let (own, address) = match &config.server {
        Server::Own { fabric, cores } => {
            let own = start_server(config, *fabric, cores)?;
            let address = own.address().parse().map_err(|error| {
                Failure::failed("the run's own server listens on an address that cannot be read")
                    .because(Box::<dyn std::error::Error + Send + Sync>::from(error))
            })?;
            (Some(own), address)
        }
        Server::At(address) => (None, address.clone()),
    };
    let call_bytes = config.sizes.is_none().then(|| config.call_bytes());
    let watch = Watch {
        stop,
        progress: Progress::new(config.parts()).with_call_bytes(call_bytes),
        server_process: own.as_ref().map(OwnServer::process_id),
        gate: Gate::default(),
    };
    let line = ProgressLine::start(
        &watch.progress,
        config.load.limit.expected(config.load.warmup),
        quiet,
    );
    let result = load.measure(config, &address, &watch, show);
    drop(line);
    // Stop the server first, but report the load's failure: a failure of the server at its stop is only a
    // consequence, unless something killed it.
    let stopped = own.map_or(Ok(()), OwnServer::stop).err();
    let (cause, consequence) = match stopped {
        Some(Stopped { failure, is_cause }) if is_cause => (Some(failure), None),
        stopped => (None, stopped.map(|it| it.failure)),
    };
    let mut result = result.map_err(|failure| cause.clone().unwrap_or(failure))?;
    // What is measured is reported, whatever fails after it.
    let failure = &mut result.totals.failure;
    *failure = cause.or(failure.take()).or(consequence);
    // The user who stops a run does not want to wait for the floor.
    if !watch.stop.is_asked() && failure.is_none() {
        match floor_rounds(config, floor.clone()) {
            Ok(all) => floor = all,
            Err(error) => *failure = Some(error),
        }
    }
    Ok((result, floor))
}

fn floor_rounds(
    config: &RunConfig,
    before: Option<RoundTrip>,
) -> Result<Option<RoundTrip>, Failure> {
    let Some(cores) = config.floor_cores() else {
        return Ok(None);
    };
    let mut floor = before;
    for _ in 0..FLOOR_ROUNDS {
        let round = round_trip(cores, FLOOR_ROUND)?;
        match &mut floor {
            Some(floor) => floor.merge(&round),
            None => floor = Some(round),
        }
    }
    Ok(floor)
}

fn start_server(
    config: &RunConfig,
    fabric: OwnFabric,
    cores: &[usize],
) -> Result<OwnServer, Failure> {
    let listen = match fabric {
        OwnFabric::Shm => Address::Shm(format!("bench-run-{}", std::process::id())),
        OwnFabric::Rdma => Fabric::own_rdma_address(config.device.as_deref())?,
    };
    let listen = ServerAddresses::from(listen);
    // A profile that cannot be used is the client's failure: the server would only repeat it.
    node_load::check_profile(config, &listen)?;
    OwnServer::start(
        OWN_PROGRAM,
        &server_arguments(config, &listen, cores)?,
        START_TIMEOUT,
    )
}

/// Upper bound of the registered payload memory for each core of the run's own server. A call that finds no free
/// memory waits.
const SERVER_BULK_BYTES: u64 = 256 << 20;

/// The server has memory for at least this many calls, even if they need more than [`SERVER_BULK_BYTES`].
const SERVER_BULK_CALLS_LEAST: u64 = 32;

/// Number of bulk calls that each core of the run's own server has memory for.
fn server_bulk_calls(config: &RunConfig, cores: &[usize]) -> u64 {
    if config.bulk.is_none() {
        return 0;
    }
    let cores = u64::try_from(cores.len()).unwrap_or(1).max(1);
    let calls = u64::from(config.connections()).div_ceil(cores) * u64::from(config.load.depth);
    // Twice: a call may arrive while the payload of the call before it is still being sent.
    let wanted = calls.saturating_mul(2);
    let fitting = SERVER_BULK_BYTES / config.call_bytes().max(1);
    wanted.min(fitting.max(SERVER_BULK_CALLS_LEAST)).min(65_535)
}

/// The command line of the run's own server.
fn server_arguments(
    config: &RunConfig,
    listen: &ServerAddresses,
    cores: &[usize],
) -> Result<Vec<String>, Failure> {
    let connections = config.connections().saturating_add(config.idle_connections);
    let mut arguments = vec![
        "serve".to_owned(),
        "--listen".to_owned(),
        listen.to_string(),
        "--cores".to_owned(),
        format_cores(cores),
        "--max-connections".to_owned(),
        connections.min(65_536).to_string(),
        "--credits".to_owned(),
        config.credits().to_string(),
        "--max-payload".to_owned(),
        config.size_bytes.max(1).to_string(),
        "--bulk-calls".to_owned(),
        server_bulk_calls(config, cores).to_string(),
        "--max-operations".to_owned(),
        config.bulk.map_or(1, |bulk| bulk.operations).to_string(),
        "--exit-with-stdin".to_owned(),
    ];
    arguments.extend(config.reverse.then(|| "--reverse".to_owned()));
    arguments.extend(config.slowed.arguments());
    arguments.extend(config.profile.arguments());
    if let Some(device) = &config.device {
        arguments.extend(["--device".to_owned(), device.clone()]);
    }
    if let Some(host) = &config.host {
        arguments.extend(host.server_arguments()?);
    }
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::tests as commands;
    use crate::run::config::Slowed;
    use crate::run::report::tests::{config, result};
    use rpcrdma_testkit::{CheckWords, Folder};

    /// A load that returns the given result immediately.
    struct Given(Option<Result<RunResult, Failure>>);

    impl Load for Given {
        fn measure(
            &mut self,
            _: &RunConfig,
            server: &ServerAddresses,
            watch: &Watch,
            _: &mut dyn FnMut(&RunResult),
        ) -> Result<RunResult, Failure> {
            assert_eq!(server.to_string(), "shm:elsewhere");
            assert!(watch.progress.core(0).is_some());
            self.0.take().unwrap()
        }
    }

    /// Runs a command line with this load.
    fn execute_run(line: &str, result: Option<Result<RunResult, Failure>>) -> Result<(), Failure> {
        let args = commands::run(&format!("bench-tool run --connect shm:elsewhere {line}"));
        commands::execute_run(&args, "test".to_owned(), &mut Given(result))
    }

    fn run_with(line: &str, result: Result<RunResult, Failure>) -> Result<(), Failure> {
        execute_run(&format!("--quiet {line}"), Some(result))
    }

    #[test]
    fn a_run_writes_all_files() {
        let folder = Folder::new("run-files");
        let [json, hgrm, hlog, html] = ["json", "hgrm", "hlog", "html"].map(|it| folder.path(it));
        let line = format!("--json {json} --hgrm {hgrm} --hlog {hlog} --html {html}");
        run_with(&line, Ok(result())).unwrap();
        let value: serde_json::Value = serde_json::from_str(&folder.read("json")).unwrap();
        assert_eq!(value["calls"], 20_001);
        assert_eq!(value["connect"], "shm:elsewhere");
        assert!(value["floor"].is_null());
        let hgrm = folder.read("hgrm");
        hgrm.check_words(&["#[Max     =  1700000.000"]);
        for (file, begin) in [
            ("html", "<!DOCTYPE html>"),
            ("hlog", "#[Histogram log format version 1.3]\n"),
        ] {
            let text = folder.read(file);
            assert!(text.starts_with(begin), "{text}");
        }
    }

    #[test]
    fn errors_and_silence_fail_the_run_after_the_report() {
        let mut errors = result();
        errors.totals.errors = 7;
        let failure = run_with("", Ok(errors)).unwrap_err();
        failure.check_words(&["7 calls ended in an error"]);
        let mut nothing = result();
        nothing.latency = crate::histogram::LatencyHistogram::new();
        let failure = run_with("", Ok(nothing)).unwrap_err();
        failure.check_words(&["no call completed"]);
    }

    #[test]
    fn the_failure_of_the_load_is_the_failure_of_the_run() {
        let failure = run_with("", Err(Failure::failed("connection lost"))).unwrap_err();
        assert_eq!(failure.to_string(), "connection lost");
    }

    #[test]
    fn a_run_that_broke_off_is_reported_and_fails() {
        let folder = Folder::new("run-broken");
        let path = folder.path("json");
        let mut broken = result();
        broken.totals.failure = Some(Failure::failed("the server is gone"));
        let failure = run_with(&format!("--json {path}"), Ok(broken)).unwrap_err();
        assert_eq!(failure.to_string(), "the server is gone");
        let value: serde_json::Value = serde_json::from_str(&folder.read("json")).unwrap();
        assert_eq!(value["calls"], 20_001);
        assert_eq!(value["failure"], "the server is gone");
        let words = "the report covers what was measured: the server is gone";
        assert!(value["warnings"].to_string().contains(words), "{value}");
    }

    #[test]
    fn outputs_are_checked_before_anything_runs() {
        for line in [
            "--json /nonexistent/a.json",
            "--hgrm /",
            "--json - --hgrm -",
            "--json - --hlog -",
        ] {
            assert!(execute_run(line, None).is_err(), "{line}");
        }
    }

    #[test]
    fn the_own_server_gets_room_for_all_connections() {
        let mut config = config();
        (config.load.connections, config.idle_connections) = (4, 4096);
        config.profile.profile = Some("shm".to_owned());
        config.profile.set = vec!["reap_batch=4".to_owned()];
        let arguments = server_arguments(&config, &"shm:x".parse().unwrap(), &[2, 3]).unwrap();
        let serve = commands::serve(&arguments);
        assert_eq!(serve.listen.to_string(), "shm:x");
        assert_eq!(serve.device, None);
        assert_eq!(serve.max_connections, Some(4100));
        assert_eq!(serve.cores.unwrap().0, [2, 3]);
        assert_eq!(serve.profile.choice(), config.profile);
        assert!(serve.exit_with_stdin);
        assert_eq!(serve.bulk_calls, Some(0));
        assert_eq!(serve.slowed.slowed(), Slowed::default());
    }

    #[test]
    fn both_ends_of_a_run_have_memory_for_messages_of_its_load_and_no_more() {
        let mut config = config();
        (config.size_bytes, config.load.connections) = (0, 10_000);
        (config.load.depth, config.bulk) = (1, None);
        let address: ServerAddresses = "shm:x".parse().unwrap();
        let sizes = |config: &RunConfig| {
            let core = crate::machine::cores_usable()[0];
            let arguments = server_arguments(config, &address, &[core]).unwrap();
            let serve = commands::serve(&arguments).config(&address).unwrap();
            let server = serve.need.profile(&serve.profile, &Fabric::SHM).unwrap();
            let client = node_load::profile(config, &Fabric::SHM).unwrap();
            [server, client].map(|it| it.profile.reassembly_guaranteed_bytes() >> 20)
        };
        assert_eq!(sizes(&config), [625; 2], "MiB");
        config.size_bytes = 1 << 20;
        assert!(sizes(&config).iter().all(|it| *it > 40_000));
    }

    #[test]
    fn the_own_server_gets_memory_for_payloads_and_the_delay() {
        let mut config = config();
        (
            config.load.depth,
            config.load.connections,
            config.size_bytes,
        ) = (8, 4, 1 << 20);
        config.slowed.delay = Duration::from_micros(50);
        config.slowed.service_time = Duration::from_nanos(40);
        config.bulk = Some(crate::run::config::BulkConfig {
            operations: 2,
            read_percent: 50,
            seed: 1,
            placement: crate::workloads::bench::op::Placement::Auto,
        });
        let arguments = server_arguments(&config, &"shm:x".parse().unwrap(), &[2, 3]).unwrap();
        let serve = commands::serve(&arguments);
        assert_eq!(
            serve.bulk_calls,
            Some(32),
            "two connections a core, twice eight calls"
        );
        assert_eq!(
            (serve.max_payload, serve.max_operations),
            (Some(1 << 20), 2)
        );
        assert_eq!(serve.slowed.slowed(), config.slowed);
        config.size_bytes = 64 << 20;
        assert_eq!(server_bulk_calls(&config, &[2]), 32, "not all at once");
    }
}
