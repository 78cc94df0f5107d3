//! `run --retry`: connections that are lost under load, and what becomes of their calls.

use std::process::Command;
use std::time::Duration;

use rpcrdma_testkit::{Ended, Folder, Running, command, until};
use rustix::process::Signal;
use serde_json::Value;

use crate::checkpoint::report_in;
use crate::json::Json as _;
use crate::log::start;
use crate::patient::PATIENT;
use crate::watched::{until_at_least, value, watched};
use crate::{BENCH_TOOL, Server, address, run, serve};

/// The command of a client that makes calls until it is asked to end, and serves its metrics.
fn client(address: &str, arguments: &str) -> Command {
    let line = format!(
        "run --connect {address} --duration 10m --warmup 0 {PATIENT} --interval 100ms --metrics 127.0.0.1:0 \
         {arguments}"
    );
    command(BENCH_TOOL, &line)
}

/// The samples of a client's metrics that say how far it is.
const CALLS: &str = "rpcrdma_load_calls_total{outcome=\"completed\"}";
const LOST: &str = "rpcrdma_load_connections_lost_total";

/// How long a client works, and how long its server is away when the client has noticed it.
const AWAY: Duration = Duration::from_millis(400);

fn number(report: &Value, key: &str) -> u64 {
    report[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key}: {report}"))
}

/// The server is killed, so that nothing of it can say that it goes, and another one takes its address.
#[test]
fn a_run_outlives_the_restart_of_its_server_and_says_what_was_lost() {
    for (connections, load) in [
        (2_u32, "--op echo --connections 2 --depth 4"),
        (1, "--op write --size 64KiB --depth 4 --rate 2k"),
    ] {
        let address = address("restart");
        let folder = Folder::new("restart");
        let json = folder.path("run.json");
        let (server, _log) = start(&address, "");
        let load = format!("{load} --retry 10m --checkpoint 200ms --json {json}");
        let (client, at) = watched(&mut client(&address, &load));
        until_at_least(&at, CALLS, 1.0);
        // TIME: it works for at least so long before it loses anything, which its report must say.
        std::thread::sleep(AWAY);
        // It is stopped first: when it is killed, calls wait for it.
        server.process.signal(Signal::STOP);
        until("no call is answered", || {
            let before = value(&at, CALLS);
            // TIME: a client that is kept from its calls for so long looks the same. Then it makes calls of the server that
            // is killed, and loses those.
            std::thread::sleep(AWAY);
            (value(&at, CALLS) <= before).then_some(())
        });
        server.process.end_by(Signal::KILL);
        until_at_least(&at, LOST, connections.into());
        // TIME: the server is away for at least so long, which the report must say.
        std::thread::sleep(AWAY);
        let (server, _log) = start(&address, "");
        let connections = u64::from(connections);
        let back = until("the connections are made again", || {
            report_in(&json).filter(|it| number(it, "reconnects") >= connections)
        });
        until("it goes on", || {
            report_in(&json).filter(|it| number(it, "calls") > number(&back, "calls"))
        });
        let ended = client.end_by(Signal::INT);
        let report = report_in(&json).unwrap();
        server.end();
        // Of an open loop a slow machine leaves calls that were due without an answer, and the run says so.
        let unanswered = report["calls_unanswered"].as_u64().unwrap_or(0);
        ended.check_code(i32::from(unanswered > 0));
        assert!(unanswered == 0 || load.contains("--rate"), "{report}");
        assert_eq!(number(&report, "connections"), connections);
        assert_eq!(number(&report, "errors"), 0, "{report}");
        // One that is made while the server begins may be lost once more.
        assert!(
            number(&report, "connections_lost") >= connections,
            "{report}"
        );
        assert!(number(&report, "reconnects") >= connections, "{report}");
        assert!(number(&report, "calls_lost") >= 1, "{report}");
        let longest_s = report["longest_loss_s"].as_f64().unwrap();
        assert!(longest_s >= AWAY.as_secs_f64() / 2.0, "{report}");
        let gaps = report["gaps"].as_array().unwrap();
        assert_eq!(gaps.len() as u64, number(&report, "reconnects"), "{report}");
        let of = |gap: &Value, key: &str| gap[key].as_f64().unwrap();
        let starts = gaps.iter().map(|it| of(it, "start_s"));
        assert!(starts.fold(f64::MAX, f64::min) > 0.1, "{report}");
        let lengths = gaps.iter().map(|it| of(it, "duration_s"));
        assert_eq!(lengths.fold(0.0, f64::max), longest_s, "{report}");
        // The calls that were repeated waited that long, and there were others behind them.
        let slowest_s = Duration::from_nanos(number(&report["latency_ns"], "max")).as_secs_f64();
        assert!(slowest_s >= longest_s / 2.0, "{slowest_s} {longest_s}");
        assert!(report["server_counters"].is_null(), "{report}");
        let ends = gaps
            .iter()
            .map(|it| of(it, "start_s") + of(it, "duration_s"));
        let last_s = ends.fold(0.0, f64::max);
        let mut intervals = report["intervals"].as_array().unwrap().iter();
        let goes_on = intervals
            .any(|it| number(it, "calls") > 0 && of(it, "start_s") + of(it, "duration_s") > last_s);
        assert!(goes_on, "{report}");
        let text = report["warnings"].to_string();
        assert!(text.contains("were lost and"), "{text}");
    }
}

/// Each of many Sends of the server loses its connection.
#[test]
fn calls_that_a_connection_took_with_it_are_repeated_and_none_is_missing() {
    let address = address("repeat");
    let server = Server::start(&mut serve(&address, "--fault disconnect:every=700"));
    let load = "--count 3000 --op echo --size 300 --depth 8 --json -";
    // Of two connections, one may be lost when the other has made the last calls: it is made again, too.
    for connections in [1, 2] {
        let line = format!(
            "run --connect {address} --warmup 0 --quiet {PATIENT} {load} --connections {connections} --retry 10m"
        );
        // `Running` has a limit: connections are made again as they are lost, and not when the retries are over.
        let report = Running::start(&mut command(BENCH_TOOL, &line)).end().json();
        assert_eq!(number(&report, "calls"), 3000, "{report}");
        assert_eq!(number(&report, "errors"), 0, "{report}");
        let lost = number(&report, "connections_lost");
        assert!(lost >= 4, "{report}");
        assert_eq!(number(&report, "reconnects"), lost, "{report}");
        assert!(number(&report, "calls_lost") >= lost, "{report}");
    }
    // Without it the first loss ends the run.
    let ended = run(&address, load).with_code(1);
    ended.check_errors(&["1 of 1 connections", "--retry"]);
    let report = broken(&ended);
    assert_eq!(number(&report, "connections_lost"), 1, "{report}");
    assert!((1..3000).contains(&number(&report, "calls")), "{report}");
    // So it does for threads that call through the library.
    for through in ["poller", "call", "async"] {
        let ended = run(&address, &format!("{load} --through {through}")).with_code(1);
        let report = broken(&ended);
        assert!(number(&report, "connections_lost") >= 1, "{report}");
        assert!((1..3000).contains(&number(&report, "calls")), "{report}");
        assert!(number(&report, "errors") >= 1, "{report}");
    }
    server.end();
}

/// The report of a run that broke off.
#[track_caller]
fn broken(ended: &Ended) -> Value {
    let report: Value = serde_json::from_str(&ended.out).expect("a report");
    let why = report["failure"].as_str().expect("a failure");
    ended.check_errors(&[why]);
    report
}

/// All files of a run are there when its server is killed in the middle, with the calls until then.
#[test]
fn a_run_that_loses_its_server_keeps_its_reports() {
    let address = address("lost");
    let (server, _log) = start(&address, "");
    let folder = Folder::new("lost");
    let [hgrm, hlog, html] = ["hgrm", "hlog", "html"].map(|it| folder.path(it));
    let files = format!("--hgrm {hgrm} --hlog {hlog} --html {html}");
    let load = format!("--connections 2 --depth 2 --json - {files}");
    let (client, at) = watched(&mut client(&address, &load));
    until_at_least(&at, CALLS, 1.0);
    server.process.end_by(Signal::KILL);
    let ended = client.end().with_code(1);
    ended.check_errors(&["2 of 2 connections", "were lost during the run"]);
    let report = broken(&ended);
    assert_eq!(number(&report, "connections_lost"), 2, "{report}");
    let calls = number(&report, "calls");
    assert!(
        calls > 0 && report["latency_ns"]["count"] == calls,
        "{report}"
    );
    assert!(report["duration_s"].as_f64().unwrap() < 300.0, "{report}");
    for (file, words) in [
        ("hgrm", "#[Max".to_owned()),
        ("hlog", "Interval_Max".to_owned()),
        ("html", "failed, and measured until then".to_owned()),
    ] {
        assert!(folder.read(file).contains(&words), "{file}");
    }
}

/// A run that is killed leaves the files of its last checkpoint.
#[test]
fn a_run_that_is_killed_leaves_its_last_checkpoint() {
    let address = address("checkpoint");
    let (server, _log) = start(&address, "");
    let folder = Folder::new("checkpoint");
    let [json, hgrm, hlog, html] = ["json", "hgrm", "hlog", "html"].map(|it| folder.path(it));
    let line = format!(
        "run --connect {address} --duration 10m --warmup 0 {PATIENT} --interval 100ms --checkpoint 200ms \
         --json {json} --hgrm {hgrm} --hlog {hlog} --html {html}"
    );
    let client = Running::start(&mut command(BENCH_TOOL, &line));
    let report = || report_in(&json);
    let calls = |it: &Value| number(it, "calls");
    let first = until("a checkpoint", || report().filter(|it| calls(it) > 0));
    let later = until("a later one", || {
        let intervals = |it: &Value| it["intervals"].as_array().unwrap().len();
        report().filter(|it| calls(it) > calls(&first) && intervals(it) >= 2)
    });
    client.end_by(Signal::KILL);
    let last = report().expect("the last checkpoint");
    assert!(calls(&last) >= calls(&later), "{last}");
    assert_eq!(last["latency_ns"]["count"], calls(&last));
    // Nobody takes it for a whole run.
    let why = last["failure"].as_str().unwrap_or_default();
    assert!(
        why.contains("checkpoint") && last["interrupted"] == true,
        "{last}"
    );
    let alone = format!("run --connect {address} --checkpoint 1s");
    for (files, words) in [("", "--json FILE"), ("--json -", "in place of -")] {
        let ended = Ended::of(&mut command(BENCH_TOOL, &format!("{alone} {files}")));
        ended.check_failed(2, &[words]);
    }
    assert!(last["intervals"].as_array().unwrap().len() >= 2, "{last}");
    for file in ["hgrm", "hlog", "html"] {
        assert!(!folder.read(file).is_empty(), "{file}");
    }
    server.end();
}

#[test]
fn a_server_that_stays_away_ends_the_run_in_the_time_that_was_given() {
    let address = address("away");
    let server = Server::start(&mut serve(&address, ""));
    let (client, at) = watched(&mut client(&address, "--json - --retry 300ms"));
    until_at_least(&at, CALLS, 1.0);
    drop(server);
    let words = format!("a connection to {address} was lost, and could not be made again");
    let ended = client.end().with_code(1);
    ended.check_errors(&[&words]);
    let report = broken(&ended);
    assert!(number(&report, "calls") > 0, "{report}");
    assert_eq!(number(&report, "connections_lost"), 1, "{report}");
}

#[test]
fn report_says_at_which_address_each_connection_is() {
    let (first, second) = (address("first"), address("second"));
    let both = format!("{first},{}", second.trim_start_matches("shm:"));
    let server = Server::start(&mut serve(&both, ""));
    let paths = serde_json::json!([
        {"address": first, "connections": 2},
        {"address": second, "connections": 1},
    ]);
    for through in ["core", "call"] {
        let load = format!("--count 100 --connections 3 --through {through} --json -");
        let report = run(&both, &load).json();
        assert_eq!(report["paths"], paths, "{through}");
    }
    let load = format!("run --connect {both} --warmup 0 {PATIENT} --count 100 --connections 3");
    let ended = Running::start(&mut command(BENCH_TOOL, &load)).end();
    let ended = ended.with_code(0);
    let line = format!("\npaths     2 connections at {first}, 1 at {second}\n");
    assert!(ended.out.contains(&line), "{ended}");
    let report = run(&first, "--count 100 --json -").json();
    assert!(report.get("paths").is_none(), "{report}");
    server.end();
}

/// Without `--retry` nobody knows which of the connections are lost.
#[test]
fn report_of_a_run_that_lost_a_connection_for_good_does_not_say_where_they_are() {
    const FAILED: &str = "rpcrdma_load_calls_total{outcome=\"failed\"}";
    let (lost, kept) = (address("lost"), address("kept"));
    let both = format!("{lost},{}", kept.trim_start_matches("shm:"));
    let folder = Folder::new("lost");
    let json = folder.path("run.json");
    let ((lost, _), (kept, _)) = (start(&lost, ""), start(&kept, ""));
    let load = format!("--connections 2 --json {json}");
    let (client, at) = watched(&mut client(&both, &load));
    until_at_least(&at, CALLS, 1.0);
    lost.process.end_by(Signal::KILL);
    until_at_least(&at, FAILED, 1.0);
    client.end_by(Signal::INT).check_code(1);
    let report = report_in(&json).unwrap();
    assert_eq!(number(&report, "connections_lost"), 1, "{report}");
    assert!(report.get("paths").is_none(), "{report}");
    kept.end();
}
