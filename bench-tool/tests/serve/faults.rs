//! `--fault`: what a server injects, as its clients, its log and its metrics tell.

use rpcrdma_testkit::Ended;
use serde_json::Value;

use crate::log::{Log, start};
use crate::prometheus::Page;
use crate::{address, run, serve};

/// How a client fared at a server with faults, and how often each of them struck.
struct Fared {
    client: Ended,
    /// The report of the client, if it wrote one.
    report: Value,
    /// In the order of the arguments.
    times: Vec<u64>,
}

/// Has a client with the arguments `client` make calls of a server with `faults` and the arguments `serve`. What the
/// server says of them is the same in its first line, its metrics and its log.
fn fared(what: &str, faults: &[&str], serve: &str, client: &str) -> Fared {
    let address = address(what);
    let options: String = faults.iter().map(|it| format!(" --fault {it}")).collect();
    let options = format!("--metrics 127.0.0.1:0 {options} {serve}");
    let (server, mut log) = start(&address, &options);
    let injects = format!("(injects {})", faults.join(" and "));
    assert!(server.line.contains(&injects), "{}", server.line);
    let client = run(&address, &format!("{client} --json -"));
    let (_, page) = server.page("/metrics");
    let page = Page::parse(&page);
    server.end();
    for fault in faults {
        let on = log.until("fault_on");
        let wanted = (&(*fault).into(), &"warn".into());
        assert_eq!((&on["fault"], &on["level"]), wanted);
    }
    let times = faults.iter();
    let times = times.map(|fault| injected(&mut log, &page, fault));
    Fared {
        times: times.collect(),
        report: serde_json::from_str(&client.out).unwrap_or_default(),
        client,
    }
}

/// How often a fault struck, as the end of the log says, and the metrics before.
fn injected(log: &mut Log, page: &Page, fault: &str) -> u64 {
    let event = log.until("fault_injected");
    assert_eq!(
        (&event["fault"], &event["level"]),
        (&fault.into(), &"warn".into())
    );
    let times = event["times"].as_u64().unwrap();
    let label = format!("fault={fault:?}");
    let counted = page.sum("rpcrdma_faults_injected_total", &label);
    // What strikes at the end of a connection may come behind the metrics.
    assert!(counted > 0.0 || times == 0, "{page:#?}");
    assert!(
        counted <= f64::from(u32::try_from(times).unwrap()),
        "{page:#?}"
    );
    times
}

#[test]
fn calls_that_are_struck_are_errors_and_the_same_ones_in_each_run() {
    let drawn = || {
        let faults = ["error-reply:one-in=8,after=3,seed=5"];
        let fared = fared("faults-drawn", &faults, "", "--count 200");
        fared.client.check_code(1);
        let (report, times) = (fared.report, fared.times[0]);
        assert_eq!(report["errors"], times);
        assert_eq!(report["calls"], 200 - times);
        assert_eq!(report["server_counters"]["rpc_errors_sent"], times);
        times
    };
    let times = drawn();
    assert!((5..=60).contains(&times), "{times}");
    assert_eq!(times, drawn());
}

#[test]
fn a_reply_that_is_dropped_is_a_timeout_of_its_client() {
    let faults = ["drop-reply:every=10,times=2"];
    // TIME: both wait at the same time, and so long that no other call is late where a thread is stopped for seconds.
    let hasty = "--count 30 --depth 8 --set call_timeout_ms=20000";
    let fared = fared("faults-drop", &faults, "", hasty);
    fared.client.check_code(1);
    assert_eq!(fared.times, [2]);
    let report = fared.report;
    assert_eq!(
        (&report["errors"], &report["calls"]),
        (&2.into(), &28.into())
    );
    assert_eq!(report["counters"]["timeouts"], 2);
}

#[test]
fn a_connection_that_is_lost_or_refused_ends_the_run() {
    let far = "--count 100 --size 64KiB --placement rdma";
    let lost = "connections to";
    for (fault, client, words) in [
        (
            "disconnect:after=20,times=1",
            "--count 100".to_owned(),
            lost,
        ),
        (
            "fail-read:after=3,times=1",
            format!("{far} --op write"),
            lost,
        ),
        (
            "fail-write:after=3,times=1",
            format!("{far} --op read"),
            lost,
        ),
        (
            "refuse-connect:times=1",
            "--count 10".to_owned(),
            "all its connections are taken",
        ),
    ] {
        let fared = fared("faults-lost", &[fault], "", &client);
        fared.client.check_code(1);
        assert_eq!(fared.times, [1], "{fault}");
        fared.client.check_errors(&[words]);
    }
}

#[test]
fn messages_and_receives_that_are_late_make_calls_slow() {
    const LATE_NS: u64 = 20_000_000;
    let late = fared(
        "faults-delay",
        &["delay-message:for=20ms"],
        "",
        "--count 10",
    );
    late.client.check_code(0);
    assert!(late.report["latency_ns"]["min"].as_u64() >= Some(LATE_NS));
    // Some calls find a Receive, those behind them wait for one that was posted late.
    let few = "--max-connections 1 --credits 2";
    let stalled = fared(
        "faults-late",
        &["late-receive:for=20ms"],
        few,
        "--count 1000",
    );
    stalled.client.check_code(0);
    assert!(stalled.times[0] >= 1000, "{}", stalled.times[0]);
    let duration = stalled.report["duration_s"].as_f64();
    assert!(duration >= Some(0.2), "{duration:?}");
}

/// Faults are for whichever service is served by RPC-over-RDMA.
#[test]
fn an_nfs_server_injects_faults() {
    let fault = "drop-reply:every=7";
    let arguments = format!("--service nfs3 --fault {fault}");
    let (server, mut log) = start(&address("faults-nfs"), &arguments);
    let injects = format!("(injects {fault})");
    assert!(server.line.contains(&injects), "{}", server.line);
    assert_eq!(log.until("fault_on")["fault"], fault);
    server.end();
    assert_eq!(log.until("fault_injected")["times"], 0);
}

#[test]
fn a_fault_that_cannot_be_is_refused_before_anything_is_served() {
    let tcp = "tcp:127.0.0.1:0";
    for (listen, faults, words) in [
        ("shm:x", "--fault drop", "drop-reply, error-reply"),
        ("shm:x", "--fault drop-reply:evry=3", "every=N or one-in=N"),
        ("shm:x", "--fault delay-message", "delay-message:for=10ms"),
        (
            tcp,
            "--fault drop-reply",
            "has no effect on tcp:127.0.0.1:0",
        ),
        (
            "shm:x",
            "--fault disconnect --fault disconnect:every=1",
            "--fault disconnect is given twice",
        ),
    ] {
        let arguments = format!("--service nfs3 {faults}");
        Ended::of(&mut serve(listen, &arguments)).check_failed(2, &[words]);
    }
}

#[test]
fn help_has_every_fault() {
    let help = Ended::of(&mut serve("shm:x", "--help"));
    help.check_out(&rpcrdma_control::FaultKind::ALL.map(|kind| kind.name()));
}
