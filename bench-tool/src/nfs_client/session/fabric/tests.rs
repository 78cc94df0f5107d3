//! Whole runs over shared memory against this tool's NFS service on a polling core.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;

use rpcrdma_control::{ListenOptions, Node, NodeConfig, ShmProvider};
use rpcrdma_engine::ring_client::{CallMessage, CallStatus, RingApplication};
use rpcrdma_engine::{Application, BulkArguments, ConnectionKey, Outcome, ReplyWriter, Request};
use rpcrdma_engine::{Call, CallError};
use rpcrdma_fabric::interface::PeerIdentity;
use rpcrdma_protocol::rpc::{AuthStatus, Program, Programs, RejectStatus};
use rpcrdma_testkit::{CheckWords as _, Seen, reach, until};

use super::*;
use crate::commands::tests::nfs_at;
use crate::load::gate::Gate;
use crate::machine::Machine;
use crate::nfs_client::files::FilesPlan;
use crate::nfs_client::report::{Outcome as RunOutcome, Report};
use crate::nfs_client::{Manner, Transport};
use crate::record::Record;
use crate::signals::Stop;
use crate::sizing::ProfileChoice;
use rpcrdma_nfs3::server::EXPORT;
use rpcrdma_nfs3::server::application::NfsApplication;
use rpcrdma_nfs3::server::{DATA_BYTES_MAX, Service};
use rpcrdma_nfs3::store::{HeapPages, Limits, Store};
use rpcrdma_nfs3::wire as nfs;
use rpcrdma_nfs3::wire::FileHandle;

/// A knob of both ends: an end that is kept from its work for seconds is not taken for dead.
const PATIENT: &str = "keep_alive_silent_ticks_max=255";

/// This tool's server, with a counter of its calls.
struct Server {
    application: NfsApplication<HeapPages>,
    /// Calls so far.
    calls: Arc<AtomicU64>,
    /// Calls behind this many are not made and have no answer.
    calls_max: u64,
    has_mount: bool,
}

impl Server {
    /// Notes a call; whether it is made.
    fn takes(&self) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed) < self.calls_max
    }

    fn store(&self) -> &Store<HeapPages> {
        self.application.service().store()
    }
}

impl Application for Server {
    fn programs(&self) -> Programs {
        match self.has_mount {
            true => self.application.programs(),
            false => Programs::new([Program::new(nfs::PROGRAM, [nfs::VERSION..=nfs::VERSION])]),
        }
    }

    fn opened(&mut self, connection: ConnectionKey, peer: &PeerIdentity) {
        self.application.opened(connection, peer);
    }

    fn call(&mut self, request: &Request<'_>, writer: &mut ReplyWriter<'_>) -> Outcome {
        match self.takes() {
            true => self.application.call(request, writer),
            false => unanswered(request),
        }
    }

    fn call_bulk(
        &mut self,
        request: &Request<'_>,
        items: &mut BulkArguments<'_>,
        writer: &mut ReplyWriter<'_>,
    ) -> Outcome {
        match self.takes() {
            true => self.application.call_bulk(request, items, writer),
            false => unanswered(request),
        }
    }
}

fn unanswered(request: &Request<'_>) -> Outcome {
    let _ = request.defer().expect("room for another deferred call");
    Outcome::Deferred
}

fn server() -> Server {
    let service = Service::new(HeapPages::new(64 << 20, 4096), Limits { files_max: 100 }, 8);
    Server {
        application: NfsApplication::new(service),
        calls: Arc::default(),
        calls_max: u64::MAX,
        has_mount: true,
    }
}

/// Starts a server that listens on shared memory.
fn serve(name: &str, server: Server) -> Node<Server> {
    let need = Need {
        connections_per_core: Some(8),
        credits: Some(16),
        payload_bytes: Some(DATA_BYTES_MAX.into()),
        bulk: BulkNeed {
            calls: 64,
            payloads: 1,
        },
        cores: 1,
        park: true,
        ..Need::default()
    };
    let choice = ProfileChoice {
        set: vec![PATIENT.to_owned()],
        ..ProfileChoice::default()
    };
    let profile = need.profile(&choice, &Fabric::SHM).unwrap().profile;
    let config = NodeConfig::from_profile(&profile, vec![None]);
    let mut server = Some(server);
    let provider = ShmProvider::from_profile(&profile);
    let node = Node::start(provider, &config, |_| server.take().unwrap()).unwrap();
    let address = format!("shm:{name}");
    node.listen(&address, ListenOptions::default()).unwrap();
    node
}

/// A name that no other test uses.
fn fresh_name() -> String {
    static NAMES: AtomicU32 = AtomicU32::new(0);
    let number = NAMES.fetch_add(1, Ordering::Relaxed);
    format!("nfs-session-{}-{number}", std::process::id())
}

fn root(server: &Server) -> FileHandle {
    server.store().handle(Store::<HeapPages>::ROOT).unwrap()
}

/// Runs a load against a new server.
fn run(line: &str) -> (serde_json::Value, Node<Server>) {
    let (name, server) = (fresh_name(), server());
    let node = serve(&name, server);
    (run_against(&name, line, &Stop::new()), node)
}

fn run_against(name: &str, line: &str, stop: &Stop) -> serde_json::Value {
    outcome_against(name, line, stop).unwrap()
}

fn outcome_against(name: &str, line: &str, stop: &Stop) -> Result<serde_json::Value, Failure> {
    watched_against(name, line, stop, None)
}

/// As [`outcome_against`], with someone who sees what was measured so far, several times in a second.
fn watched_against(
    name: &str,
    line: &str,
    stop: &Stop,
    see: Option<&mut dyn FnMut(&RunOutcome)>,
) -> Result<serde_json::Value, Failure> {
    let line = format!("--warmup 0 --set {PATIENT} {line}");
    let mut config = nfs_at(&format!("shm:{name}"), &line).unwrap();
    config.export = EXPORT.to_owned();
    config.load.checkpoint = see.is_some().then_some(Duration::from_millis(50));
    let machine = Machine::detect();
    config.load.cores = machine.cores_usable.iter().take(1).copied().collect();
    let fabric = Fabric::SHM;
    let loaded = profile(&config, &fabric).unwrap();
    let plan = FilesPlan {
        folder: "own".to_owned(),
        files: config.files,
        file_bytes: config.file_bytes,
        seed: config.seed,
    };
    let credential = Credential::new(0, 0, "test");
    let address: ServerAddresses = format!("shm:{name}").parse().unwrap();
    let mut session = FabricSession::connect(
        &fabric,
        &config,
        &credential,
        &address,
        &loaded,
        &Stop::new(),
    )
    .unwrap();
    let manner = Manner {
        config: &config,
        credential: &credential,
        quiet: true,
        stop,
        gate: &Gate::default(),
    };
    let transport = Transport::Fabric {
        fabric: "shm",
        device: None,
        version: session.version(),
        profile: loaded.name.clone(),
        warnings: Vec::new(),
        client: Box::new(Record::of_tcp(&machine, &[])),
    };
    let mut report = None;
    let mut nobody = |_: &RunOutcome| ();
    let see: &mut dyn FnMut(&RunOutcome) = match see {
        Some(see) => see,
        None => &mut nobody,
    };
    manner.run(&mut session, plan, transport, &mut |run| {
        let outcome = run.outcome_at(config.load.rate_per_s, see)?;
        report = Some(Report::new(&config, &machine, &outcome));
        Ok(())
    })?;
    Ok(serde_json::to_value(report.unwrap()).unwrap())
}

fn calls_of_intervals(report: &serde_json::Value) -> u64 {
    let intervals = report["intervals"].as_array().unwrap().iter();
    intervals.map(|it| it["calls"].as_u64().unwrap()).sum()
}

#[test]
fn every_interval_of_both_connections_is_reported() {
    let (name, server) = (fresh_name(), server());
    let _node = serve(&name, server);
    let (stop, busy) = (Stop::new(), AtomicUsize::new(0));
    let line = "--op getattr --duration 10m --interval 100ms --connections 2 --depth 2";
    let mut see = |outcome: &RunOutcome| {
        let figures = outcome.timeline.figures();
        let with_calls = figures.iter().filter(|it| it.calls > 0);
        busy.store(with_calls.count(), Ordering::Relaxed);
    };
    let report = std::thread::scope(|scope| {
        let run = scope.spawn(|| watched_against(&name, line, &stop, Some(&mut see)));
        // The thread that collects intervals may be kept from it, and intervals are then longer.
        wait_for_run("four intervals with calls", &run, || {
            busy.load(Ordering::Relaxed) >= 4
        });
        stop.ask();
        run.join().unwrap().unwrap()
    });
    let intervals = report["intervals"].as_array().unwrap();
    assert!(intervals.len() >= 4, "{report}");
    assert_eq!(calls_of_intervals(&report), report["calls"], "{report}");
    let busy = intervals.iter().filter(|it| it["calls"].as_u64() > Some(0));
    assert!(busy.count() >= 3, "{report}");
}

#[test]
fn every_op_goes_over_a_fabric_and_leaves_nothing() {
    #[rustfmt::skip]
    let cases = [
        ("--op null --count 300 --depth 4", "null"),
        ("--op getattr --count 300 --files 3", "getattr"),
        ("--op read --size 1 --file-size 99 --count 300 --depth 3 --verify", "read"),
        ("--op read --size 4097 --file-size 100000 --count 200 --access random --verify", "read"),
        ("--op write --size 5001 --file-size 100000 --count 200 --depth 7 --verify", "write"),
        ("--op write --size 1MiB --file-size 3MiB --files 2 --count 8 --stable file", "write"),
        ("--op read --size 1048573 --file-size 3MiB --files 2 --count 8 --depth 2 --verify", "read"),
    ];
    for (arguments, procedure) in cases {
        let (report, node) = run(arguments);
        assert_eq!(report["errors"], 0, "{arguments}: {report}");
        let calls = report["calls"].as_u64().unwrap();
        assert!(calls >= 8, "{arguments}: {calls}");
        assert_eq!(
            report["procedures"][procedure]["calls"], calls,
            "{arguments}"
        );
        assert_eq!(calls_of_intervals(&report), calls, "{arguments}");
        assert_eq!(
            (&report["blocks_wrong"], &report["transport"]),
            (&0.into(), &"shm".into())
        );
        let space = node.shutdown().remove(0).store().space();
        assert_eq!(space.free_bytes, space.total_bytes, "{arguments}");
    }
}

#[test]
fn both_versions_carry_data_beside_the_message() {
    let loads = [
        "--op write --size 64KiB --file-size 128KiB --files 2",
        "--op read --size 65537 --file-size 200000 --access random",
    ];
    for (protocol, load) in ["v1", "v2"]
        .iter()
        .flat_map(|it| loads.map(|load| (*it, load)))
    {
        let (report, node) = run(&format!(
            "{load} --count 100 --depth 4 --verify --protocol {protocol}"
        ));
        assert_eq!(
            (&report["errors"], &report["calls"]),
            (&0.into(), &100.into()),
            "{report}"
        );
        assert_eq!(report["protocol"], protocol);
        drop(node);
    }
}

#[test]
fn a_mix_on_several_connections_reads_what_it_writes() {
    let (report, node) = run(
        "--op mix --read-percent 30 --size 3000 --file-size 60000 --count 1500 --depth 5 --connections 3 \
         --access random --verify",
    );
    assert_eq!(
        (&report["errors"], &report["calls"]),
        (&0.into(), &1500.into()),
        "{report}"
    );
    let reads = report["procedures"]["read"]["calls"].as_u64().unwrap();
    assert!((330..570).contains(&reads), "{reads}");
    drop(node);
}

/// Waits for something that comes while a run goes on.
#[track_caller]
fn wait_for_run<T>(what: &str, run: &ScopedJoinHandle<'_, T>, is_there: impl Fn() -> bool) {
    reach(what, || {
        // What the run has done is looked at behind its end.
        let has_ended = run.is_finished();
        match is_there() {
            true => Seen::Reached(()),
            false if has_ended => Seen::Passed("the run has ended"),
            false => Seen::NotYet,
        }
    });
}

/// Waits until the server has received `more` further calls.
#[track_caller]
fn wait_for<T>(calls: &AtomicU64, more: u64, run: &ScopedJoinHandle<'_, T>) {
    wait_until(calls, calls.load(Ordering::Relaxed) + more, run);
}

/// Waits until the server has received `wanted` calls.
#[track_caller]
fn wait_until<T>(calls: &AtomicU64, wanted: u64, run: &ScopedJoinHandle<'_, T>) {
    wait_for_run("calls of a run", run, || {
        calls.load(Ordering::Relaxed) >= wanted
    });
}

#[test]
fn a_server_may_be_restarted_while_files_are_made() {
    let (name, mut server) = (fresh_name(), server());
    // In the middle of the files.
    server.calls_max = 40;
    let calls = Arc::clone(&server.calls);
    let node = serve(&name, server);
    let line = "--op getattr --files 90 --count 100 --retry 10m";
    let (report, node) = std::thread::scope(|scope| {
        let run = scope.spawn(|| run_against(&name, line, &Stop::new()));
        let mut node = node;
        wait_until(&calls, 41, &run);
        let mut server = node.shutdown().remove(0);
        let free = server.store().space().free_files;
        assert!((20..90).contains(&free), "in the middle: {free} are free");
        server.calls_max = u64::MAX;
        node = serve(&name, server);
        (run.join().unwrap(), node)
    });
    assert_eq!(
        (&report["errors"], &report["calls"]),
        (&0.into(), &100.into())
    );
    let space = node.shutdown().remove(0).store().space();
    assert_eq!(space.free_bytes, space.total_bytes, "nothing is left");
}

#[test]
fn a_server_that_is_restarted_is_connected_to_again_and_calls_in_flight_are_made_again() {
    for load in [
        "--op write --stable file --size 5001 --connections 2",
        "--op write --stable file --size 70000 --connections 3 --protocol v1",
    ] {
        let (name, server) = (fresh_name(), server());
        let calls = Arc::clone(&server.calls);
        let node = serve(&name, server);
        let stop = Stop::new();
        let line = format!(
            "{load} --file-size 1MiB --duration 10m --depth 4 --access random --verify --retry 10m"
        );
        let (report, node) = std::thread::scope(|scope| {
            let mut node = node;
            let run = scope.spawn(|| run_against(&name, &line, &stop));
            for _ in 0..2 {
                wait_for(&calls, 300, &run);
                let server = node.shutdown().remove(0);
                // TIME: the server is away for a while; however long, the run has its connections lost, and makes them again.
                std::thread::sleep(Duration::from_millis(50));
                node = serve(&name, server);
            }
            wait_for(&calls, 300, &run);
            stop.ask();
            (run.join().unwrap(), node)
        });
        assert_eq!(
            (&report["errors"], &report["blocks_wrong"]),
            (&0.into(), &0.into()),
            "{load}: {report}"
        );
        assert!(report["blocks_checked"].as_u64().unwrap() > 0, "{report}");
        // At least: a connection made while the server ends is lost again.
        let reconnects = report["reconnects"].as_u64().unwrap();
        assert!(reconnects >= 2, "{load}: {report}");
        let space = node.shutdown().remove(0).store().space();
        assert_eq!(space.free_bytes, space.total_bytes, "{load}");
    }
}

#[test]
fn verify_reads_back_in_blocks_of_the_written_size() {
    let (name, server) = (fresh_name(), server());
    let calls = Arc::clone(&server.calls);
    let node = serve(&name, server);
    let line = "--op write --size 1MiB --file-size 4MiB --files 1 --count 4 --verify";
    let report = run_against(&name, line, &Stop::new());
    assert_eq!(
        (&report["blocks_checked"], &report["blocks_wrong"]),
        (&4.into(), &0.into())
    );
    let calls = calls.load(Ordering::Relaxed);
    assert!(calls < 30, "{calls} calls for four blocks");
    drop(node);
}

#[test]
fn a_server_that_does_not_come_back_ends_the_run_in_the_time_that_was_given() {
    let (name, server) = (fresh_name(), server());
    let calls = Arc::clone(&server.calls);
    let node = serve(&name, server);
    let stop = Stop::new();
    let line = "--op read --size 4KiB --file-size 64KiB --files 1 --duration 10m --retry 300ms";
    let failure = std::thread::scope(|scope| {
        let run = scope.spawn(|| outcome_against(&name, line, &stop));
        wait_for(&calls, 100, &run);
        let _ = node.shutdown();
        run.join().unwrap().unwrap_err()
    });
    let text = failure.to_string();
    assert!(text.contains("could not be made again"), "{text}");
}

#[test]
fn server_on_shm_without_mount_is_an_error() {
    for protocol in ["v1", "v2"] {
        let (name, mut server) = (fresh_name(), server());
        server.has_mount = false;
        let _node = serve(&name, server);
        let line = format!("--op null --count 1 --protocol {protocol}");
        let failure = outcome_against(&name, &line, &Stop::new()).unwrap_err();
        failure.check_words(&[&format!("shm:{name} has no MOUNT version 3")]);
    }
}

#[test]
fn mount_is_served_on_the_fabric_and_looks_at_credentials() {
    let (name, server) = (fresh_name(), server());
    let expected = root(&server);
    let _server = serve(&name, server);
    let profile = Need {
        cores: 1,
        park: true,
        ..Need::default()
    };
    let profile = profile
        .profile(&ProfileChoice::default(), &Fabric::SHM)
        .unwrap()
        .profile;
    let (rings, mut clients) = RingApplication::new(1, 4);
    let mut rings = Some(rings);
    let config = NodeConfig::from_profile(&profile, vec![None]);
    let provider = ShmProvider::from_profile(&profile);
    let node = Node::start(provider, &config, |_| rings.take().unwrap()).unwrap();
    let connection = node
        .connect(&format!("shm:{name}"), ConnectOptions::default())
        .unwrap();
    let mut mount = |flavor, body: &[u8]| {
        let length = u32::try_from(EXPORT.len()).unwrap().to_be_bytes();
        let padding = &[0; 3][..EXPORT.len().next_multiple_of(4) - EXPORT.len()];
        let message = CallMessage {
            connection: connection.key,
            call: Call {
                program: mount::PROGRAM,
                version: mount::VERSION,
                procedure: 1,
            },
            credential: (flavor, body.to_vec()),
            args: [&length, EXPORT.as_bytes(), padding].concat(),
            results: Vec::with_capacity(200),
            ..CallMessage::default()
        };
        clients[0].submit(Box::new(message)).unwrap();
        let ended = until("the reply of MOUNT", || clients[0].complete());
        (ended.status, ended.results)
    };
    // A stamp, no name of a machine, user 1, group 1, no further groups.
    let sys = [0, 0, 1, 1, 0_u32].map(u32::to_be_bytes).concat();
    let (status, results) = mount(1, &sys);
    assert_eq!(status, CallStatus::Success);
    // Status 0, then a handle of so many octets.
    assert_eq!(results[..4], [0; 4]);
    assert_eq!(
        FileHandle::new(&results[8..][..results[7].into()]),
        Some(expected)
    );
    for (flavor, body, denied) in [
        (1, &[][..], AuthStatus::BAD_CREDENTIAL),
        (99, &[], AuthStatus::TOO_WEAK),
    ] {
        let denied = CallError::Denied(RejectStatus::AuthError(denied));
        assert_eq!(mount(flavor, body).0, CallStatus::Failed(denied));
    }
}
