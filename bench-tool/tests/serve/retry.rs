//! `run --retry`: connections that are lost under load, and what becomes of their calls.

use std::time::{Duration, Instant};

use rpcrdma_testkit::{PATIENCE, Running, command, until};
use rustix::process::Signal;
use serde_json::Value;

use crate::json::Json as _;
use crate::log::start;
use crate::prometheus::Page;
use crate::{BENCH_TOOL, Server, address, run, serve};

/// A client that makes calls until it is asked to end, and reports on standard output.
fn client(address: &str, arguments: &str) -> Running {
    let line = format!(
        "run --connect {address} --duration 10m --warmup 0 --interval 100ms --json - {arguments}"
    );
    Running::start(&mut command(BENCH_TOOL, &line))
}

fn number(report: &Value, key: &str) -> u64 {
    report[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key}: {report}"))
}

/// The server is killed, so that nothing of it can say that it goes, and another one takes its address.
#[test]
fn a_run_outlives_the_restart_of_its_server_and_says_what_was_lost() {
    const AWAY: Duration = Duration::from_millis(400);
    for (connections, load) in [
        (2, "--op echo --connections 2 --depth 4"),
        (1, "--op write --size 64KiB --depth 4 --rate 2k"),
    ] {
        let address = address("restart");
        let (server, mut log) = start(&address, "");
        let client = client(&address, &format!("{load} --retry 1m"));
        log.until("connection_ready");
        std::thread::sleep(AWAY);
        server.process.end_by(Signal::KILL);
        std::thread::sleep(AWAY);
        let (server, mut log) = start(&address, "");
        for _ in 0..connections {
            log.until("connection_ready");
        }
        std::thread::sleep(AWAY);
        let report = client.end_by(Signal::INT).json();
        server.end();
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
        // The calls that were repeated waited that long, and there were others behind them.
        let slowest_s = Duration::from_nanos(number(&report["latency_ns"], "max")).as_secs_f64();
        assert!(slowest_s >= longest_s / 2.0, "{slowest_s} {longest_s}");
        assert!(report["server_counters"].is_null(), "{report}");
        let intervals = report["intervals"].as_array().unwrap();
        let (last, busy) = (intervals.last().unwrap(), |it: &&Value| {
            number(it, "calls") > 0
        });
        assert!(busy(&last), "it goes on: {report}");
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
        let begin = Instant::now();
        let retried = format!("{load} --connections {connections} --retry 1m");
        let report = run(&address, &retried).json();
        assert_eq!(number(&report, "calls"), 3000, "{report}");
        assert_eq!(number(&report, "errors"), 0, "{report}");
        let lost = number(&report, "connections_lost");
        assert!(lost >= 4, "{report}");
        assert_eq!(number(&report, "reconnects"), lost, "{report}");
        assert!(number(&report, "calls_lost") >= lost, "{report}");
        assert!(begin.elapsed() < PATIENCE);
    }
    // Without it the first loss ends the run, as ever.
    run(&address, load).check_failed(1, &["1 of 1 connections", "--retry"]);
    server.end();
}

#[test]
fn a_server_that_stays_away_ends_the_run_in_the_time_that_was_given() {
    let address = address("away");
    let server = Server::start(&mut serve(&address, "--metrics 127.0.0.1:0"));
    let client = client(&address, "--retry 300ms");
    // The server has a connection before its client has: only a call shows that both have it.
    until("a call of the client", || {
        let page = Page::parse(&server.page("/metrics").1);
        (page.sum("rpcrdma_calls_total", "") > 0.0).then_some(())
    });
    drop(server);
    let words = format!("a connection to {address} was lost, and could not be made again");
    client.end().check_failed(1, &[&words]);
}
