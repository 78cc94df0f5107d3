//! `bench-tool nfs` against servers that are right, and against servers that are not.

#[path = "../support/checkpoint.rs"]
mod checkpoint;
#[path = "../support/json.rs"]
mod json;
mod server;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::Command;

use rpcrdma_testkit::{Ended, Folder, Running, until};
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
use rustix::process::Signal;
use serde_json::Value;

use self::checkpoint::report_in;
use self::json::Json as _;
use self::server::{Fault, Server};

/// A run with the files of `server`.
fn command(server: &Server, arguments: &str) -> Command {
    let place = format!("--connect {} --export /export", server.address());
    let line = format!("nfs {place} --warmup 0 {arguments}");
    rpcrdma_testkit::command(env!("CARGO_BIN_EXE_bench-tool"), &line)
}

fn nfs(server: &Server, arguments: &str) -> Ended {
    Ended::of(&mut command(server, arguments))
}

fn check_nothing_left(server: &Server) {
    assert_eq!(server.names(), Vec::<String>::new());
}

/// The JSON of a run that must succeed, and leave nothing on the server.
fn report(server: &Server, arguments: &str) -> Value {
    let report = nfs(server, &format!("{arguments} --json -")).json();
    check_nothing_left(server);
    report
}

/// The same for a run that has so many calls, none of which fails.
fn report_of_calls(server: &Server, arguments: &str, calls: u64) -> Value {
    let report = report(server, &format!("{arguments} --count {calls}"));
    assert_eq!(report["errors"], 0, "{arguments}");
    assert_eq!(report["calls"], calls, "{arguments}");
    report
}

/// A run that must fail, and leaves nothing on the server either.
fn failure(server: &Server, arguments: &str) -> Ended {
    let failed = nfs(server, arguments).with_code(1);
    check_nothing_left(server);
    failed
}

/// A run that is asked to stop when `is_time`, leaves nothing, and says that it was interrupted; how it ended, and its
/// report.
fn interrupted(server: &Server, arguments: &str, is_time: impl Fn() -> bool) -> (Ended, Value) {
    let line = format!("{arguments} --json -");
    let run = Running::start(&mut command(server, &line));
    until("a run is under way", || is_time().then_some(()));
    let ended = run.end_by(Signal::INT);
    check_nothing_left(server);
    let report: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(report["interrupted"], true, "{ended}");
    (ended, report)
}

#[test]
fn every_op_at_odd_sizes_is_right_to_the_last_byte() {
    let server = Server::start(Fault::None);
    #[rustfmt::skip]
    let cases = [
        ("--op null --count 300 --depth 4", "null"),
        ("--op getattr --count 300 --files 3", "getattr"),
        ("--op getattr --count 50 --files 0", "getattr"),
        ("--op read --size 1 --file-size 99 --count 300 --depth 3 --verify", "read"),
        ("--op read --size 4097 --file-size 100000 --count 300 --access random --verify", "read"),
        ("--op write --size 5001 --file-size 100000 --count 300 --depth 7 --verify", "write"),
        ("--op write --size 1MiB --file-size 3MiB --files 2 --count 12 --stable file --verify", "write"),
        ("--op read --size 1048573 --file-size 3MiB --files 2 --count 12 --depth 2 --verify", "read"),
    ];
    for (arguments, procedure) in cases {
        let report = report(&server, arguments);
        assert_eq!(report["errors"], 0, "{arguments}");
        let calls = report["calls"].as_u64().unwrap();
        assert!(calls >= 12, "{arguments}: {calls}");
        assert_eq!(
            report["procedures"][procedure]["calls"], calls,
            "{arguments}"
        );
        assert_eq!(report["blocks_wrong"], 0);
        if procedure == "write" {
            assert!(
                report["blocks_checked"].as_u64().unwrap() > 0,
                "{arguments}"
            );
        }
    }
}

#[test]
fn a_mix_reads_what_it_writes_on_several_connections() {
    let server = Server::start(Fault::None);
    let report = report_of_calls(
        &server,
        "--op mix --read-percent 30 --size 3000 --file-size 60000 --depth 5 --connections 3 --access random --verify",
        2000,
    );
    let reads = report["procedures"]["read"]["calls"].as_u64().unwrap();
    assert!((450..750).contains(&reads), "{reads}");
    assert!(report["bandwidth_bytes_per_s"].as_f64().unwrap() > 0.0);
}

#[test]
fn an_open_loop_makes_its_calls_when_they_are_due() {
    let server = Server::start(Fault::None);
    let report = report(&server, "--op null --rate 500 --duration 1s --depth 64");
    let calls = report["calls"].as_u64().unwrap();
    assert!(calls <= 501, "{calls}");
    assert_eq!(report["loop"], "open");
}

#[test]
fn reports_go_to_the_files_that_a_run_has() {
    let server = Server::start(Fault::None);
    let folder = Folder::new("nfs-reports");
    let [json, hlog, html, knee] =
        ["a.json", "a.hlog", "a.html", "knee.html"].map(|name| folder.path(name));
    let run =
        "--op read --connections 2 --duration 10m --interval 100ms --intervals --checkpoint 200ms";
    let line = format!("{run} --json {json} --hlog {hlog} --html {html}");
    let run = Running::start(&mut command(&server, &line));
    until("three intervals", || {
        let report = report_in(&json)?;
        (report["intervals"].as_array().unwrap().len() >= 3).then_some(())
    });
    run.end_by(Signal::INT).check_code(0);
    check_nothing_left(&server);
    let report: Value = serde_json::from_str(&folder.read("a.json")).unwrap();
    let intervals = report["intervals"].as_array().unwrap();
    let calls = intervals.iter().map(|it| it["calls"].as_u64().unwrap());
    let calls: u64 = calls.sum();
    assert!(intervals.len() >= 3 && report["calls"] == calls, "{report}");
    let log = folder.read("a.hlog");
    let head = "#[Histogram log format version 1.3]\n";
    assert!(log.starts_with(head), "{log}");
    assert_eq!(folder.read("a.html").matches("<figure>").count(), 3);

    let run = "--to-knee --op getattr --duration 50ms --json -";
    let output = nfs(&server, &format!("{run} --html {knee}"));
    let json = output.json();
    assert_eq!(json["schema"], "rpcrdma.bench-tool.knee/1");
    assert_eq!(json["closed_loop"]["schema"], "rpcrdma.bench-tool.nfs/1");
    assert_eq!(json["steps"].as_array().unwrap().len(), 13);
    assert_eq!(json["steps"][11]["share_percent"], 100);
    output.check_errors(&["knee"]);
    assert!(folder.read("knee.html").contains("Latency against rate"));
    check_nothing_left(&server);
}

#[test]
fn a_server_that_is_wrong_is_found_out() {
    #[rustfmt::skip]
    let cases = [
        (Fault::Content, "--op read --count 50", "wrong_content"),
        (Fault::Content, "--op write --count 50 --verify", "do not hold what was written"),
        (Fault::Stale, "--op getattr --count 50", "nfs3err_stale"),
        (Fault::Trailing, "--op getattr --count 50", "malformed_replies"),
        (Fault::Truncated, "--op read --count 50", "malformed_replies"),
        (Fault::LessStable, "--op write --stable file --count 50", "writes_less_stable"),
    ];
    for (fault, arguments, words) in cases {
        let output = failure(&Server::start(fault), arguments);
        output.check_errors(&["what to do"]);
        output.check_out(&[words]);
    }
}

#[test]
fn messages_that_are_no_replies_to_its_calls_are_ignored() {
    let server = Server::start(Fault::Talkative);
    report_of_calls(&server, "--op getattr --depth 4", 200);
}

#[test]
fn reply_that_cannot_be_decoded_ends_only_its_call() {
    let server = Server::start(Fault::Unknown);
    let output = failure(&server, "--op getattr --depth 4 --count 100");
    output.check_out(&["malformed_replies 10"]);
    output.check_errors(&["90 completed"]);
}

#[test]
fn a_refusal_says_what_to_do() {
    for (fault, words) in [
        (Fault::NotExported, ["MNT3ERR_ACCES", "insecure"]),
        (Fault::ReadOnly, ["NFS3ERR_ROFS", "read-write"]),
        (Fault::NoSpace, ["NFS3ERR_NOSPC", "--file-size"]),
    ] {
        failure(&Server::start(fault), "--op read --count 5").check_errors(&words);
    }
    let server = Server::start(Fault::None);
    let output = nfs(&server, "--op read --size 2MiB --count 5").with_code(2);
    output.check_errors(&["--size 1MiB"]);
}

#[test]
fn less_than_was_asked_for_is_reported_and_no_error() {
    let server = Server::start(Fault::Short);
    for op in ["read", "write"] {
        let arguments = format!("--op {op} --size 5000 --count 50 --verify");
        let report = report(&server, &arguments);
        assert_eq!(report["short_transfers"], 50, "{op}");
        assert_eq!(report["procedures"][op]["payload_bytes"], 50 * 2500);
        assert!(report["warnings"].to_string().contains("moved less"));
    }
}

#[test]
fn a_connection_that_is_lost_ends_the_run_or_is_made_again() {
    let server = Server::start(Fault::Cut);
    let lost = failure(&server, "--op write --count 400 --depth 4");
    lost.check_errors(&["was lost", "--retry"]);
    let (_, came_again) = *server.failed().last().expect("it was cut");
    assert!(!came_again, "the run has ended");
    let report = report_of_calls(&server, "--op write --depth 4 --verify --retry 10m", 400);
    assert!(report["reconnects"].as_u64().unwrap() >= 1, "{report}");
    let (xid, came_again) = *server.failed().last().expect("it was cut");
    assert!(came_again, "the call {xid:#x} was made under another XID");
}

/// The server that takes each connection and closes it immediately is left, after the time that `--retry` says or a signal.
#[test]
fn server_that_closes_each_connection_is_left_in_time() {
    let server = Server::start(Fault::Closing);
    let arguments = "--op write --depth 4 --connections 2 --duration 10m --retry";
    let left = nfs(&server, &format!("{arguments} 1s")).with_code(1);
    // What was sent to it meanwhile makes a reset of the close.
    left.check_errors(&["was lost"]);
    let server = Server::start(Fault::Closing);
    let mut command = command(&server, &format!("{arguments} 10m --json -"));
    let run = Running::start(&mut command);
    until("some connections are closed", || {
        (server.closed() >= 10).then_some(())
    });
    let ended = run.end_by(Signal::INT).with_code(1);
    let report: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(report["interrupted"], true, "{ended}");
}

#[test]
fn preparation_and_cleanup_survive_lost_replies_with_retry() {
    let arguments = "--op mix --count 40 --depth 4 --verify";
    let lost = nfs(&Server::start(Fault::Fickle), arguments);
    assert_eq!(lost.code, Some(1), "a connection is lost");
    let server = Server::start(Fault::Fickle);
    let report = report(&server, &format!("{arguments} --retry 10m"));
    assert_eq!(report["errors"], 0);
    assert_eq!(report["blocks_wrong"], 0);
    // FSINFO, MKDIR, CREATE, LOOKUP, SETATTR, COMMIT, READ, REMOVE and RMDIR.
    assert_eq!(server.failed().len(), 9);
}

#[test]
fn a_call_that_is_put_off_is_told_or_made_again_as_another() {
    for op in ["getattr", "read", "write"] {
        let arguments = format!("--op {op} --depth 4 --files 1");
        let server = Server::start(Fault::Busy);
        let output = nfs(&server, &format!("{arguments} --count 40")).with_code(1);
        let told = [&*output.out, &output.errors].concat().to_ascii_lowercase();
        assert!(told.contains("nfs3err_jukebox"), "{output}");
        // Another server: the XIDs of two runs may be the same.
        let server = Server::start(Fault::Busy);
        let report = report_of_calls(&server, &format!("{arguments} --retry 10m"), 40);
        assert!(report["put_off"].as_u64().unwrap() >= 4, "{report}");
        assert!(report["latency_ns"]["max"].as_u64().unwrap() >= 100_000_000);
        let same = server.failed().iter().filter(|it| it.1).count();
        assert_eq!(same, 0, "XIDs of their own");
    }
}

#[test]
fn a_signal_ends_calls_that_are_put_off_for_ever() {
    let server = Server::start(Fault::Stuck);
    let arguments = "--op write --depth 4 --duration 10m --retry 10m";
    let is_stuck = || server.failed().len() >= 12;
    let (ended, report) = interrupted(&server, arguments, is_stuck);
    ended.check_code(1);
    assert_eq!(report["errors_by_name"]["nfs3err_jukebox"], 4);
}

#[test]
fn a_changed_verifier_says_that_the_server_was_restarted() {
    let server = Server::start(Fault::Verifier);
    let report = report(&server, "--op write --count 50 --verify");
    assert!(report["verifier_changes"].as_u64().unwrap() >= 1);
    assert_eq!(report["blocks_checked"], 0, "lost by right");
    assert!(report["warnings"].to_string().contains("restarted"));
}

#[test]
fn a_signal_ends_it_in_good_order() {
    let server = Server::start(Fault::None);
    let is_writing = || server.writes() >= 20;
    let (ended, _) = interrupted(&server, "--op write --duration 10m", is_writing);
    ended.check_code(0);
}

#[test]
fn mountd_that_is_not_there_is_named_with_its_port() {
    let server = Server::start(Fault::None);
    // Nobody else can listen on a port that this test has, and it does not.
    let taken = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&taken, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = SocketAddrV4::try_from(getsockname(&taken).unwrap())
        .unwrap()
        .port();
    let output = nfs(&server, &format!("--mount-port {port}")).with_code(1);
    output.check_errors(&[&format!("mountd on 127.0.0.1 port {port}")]);
}

#[test]
fn mount_is_asked_elsewhere_only_if_the_server_has_none_with_nfs() {
    let server = Server::start(Fault::NoMount);
    let unknown = nfs(&server, "").with_code(1);
    // The port mapper of this machine was asked, if there is one.
    assert!(!unknown.errors.contains(&server.address()), "{unknown}");
    // As with a Linux server: MOUNT has its own port.
    let mountd = Server::start(Fault::None);
    let port = format!("--mount-port {}", mountd.port());
    report_of_calls(&server, &format!("--op write {port}"), 20);
    assert_eq!((mountd.mounts(), mountd.writes()), (2, 0));
    let absent = format!("--mount-port {}", server.port());
    let absent = nfs(&server, &absent).with_code(1);
    absent.check_errors(&["has no MOUNT version 3"]);
    // With NFS, and not at the port mapper.
    report_of_calls(&mountd, "--op write", 20);
    assert_eq!(mountd.mounts(), 4);
}
