//! `--fault`: what a server injects, as its clients, its log and its metrics tell.

use std::process::Output;

use serde_json::Value;

use crate::log::{Log, start};
use crate::prometheus::Page;
use crate::{address, run, serve};

/// How a client fared at a server with faults, and how often each of them struck.
struct Fared {
    code: Option<i32>,
    /// What the client says when it fails.
    message: String,
    /// The report of the client, if it wrote one.
    report: Value,
    /// In the order of the arguments.
    times: Vec<u64>,
}

/// Has a client make calls of a server with `faults`. What the server says of them is the same in its first line, its
/// metrics and its log.
fn fared(what: &str, faults: &[&str], serve: &[&str], count: &str, client: &[&str]) -> Fared {
    let address = address(what);
    let mut arguments = vec!["--metrics", "127.0.0.1:0"];
    arguments.extend(faults.iter().flat_map(|fault| ["--fault", fault]));
    arguments.extend(serve);
    let (server, mut log) = start(&address, &arguments);
    let injects = format!("(injects {})", faults.join(" and "));
    assert!(server.line.contains(&injects), "{}", server.line);
    let output = run(&address, count, &[client, &["--json", "-"]].concat());
    let (_, page) = server.page("/metrics");
    let page = Page::parse(&page);
    assert_eq!(server.end().code(), Some(0));
    for fault in faults {
        let on = log.until("fault_on");
        let wanted = (&(*fault).into(), &"warn".into());
        assert_eq!((&on["fault"], &on["level"]), wanted);
    }
    let times = faults.iter();
    let times = times.map(|fault| injected(&mut log, &page, fault));
    let times = times.collect();
    let Output {
        status,
        stdout,
        stderr,
    } = output;
    Fared {
        code: status.code(),
        message: String::from_utf8(stderr).unwrap(),
        report: serde_json::from_slice(&stdout).unwrap_or_default(),
        times,
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

const NULL: &[&str] = &[];

#[test]
fn calls_that_are_struck_are_errors_and_the_same_ones_in_each_run() {
    let drawn = || {
        let faults = ["error-reply:one-in=8,after=3,seed=5"];
        let fared = fared("faults-drawn", &faults, &[], "200", NULL);
        assert_eq!(fared.code, Some(1), "{}", fared.message);
        assert_eq!(fared.report["errors"], fared.times[0]);
        assert_eq!(fared.report["calls"], 200 - fared.times[0]);
        assert_eq!(
            fared.report["server_counters"]["rpc_errors_sent"],
            fared.times[0]
        );
        fared.times[0]
    };
    let times = drawn();
    assert!((5..=60).contains(&times), "{times}");
    assert_eq!(times, drawn());
}

#[test]
fn a_reply_that_is_dropped_is_a_timeout_of_its_client() {
    let faults = ["drop-reply:every=10,times=2"];
    let hasty = ["--set", "call_timeout_ms=1500"];
    let fared = fared("faults-drop", &faults, &[], "30", &hasty);
    assert_eq!(
        (fared.code, fared.times),
        (Some(1), vec![2]),
        "{}",
        fared.message
    );
    assert_eq!(
        (&fared.report["errors"], &fared.report["calls"]),
        (&2.into(), &28.into())
    );
    assert_eq!(fared.report["counters"]["timeouts"], 2);
}

#[test]
fn a_connection_that_is_lost_ends_the_run() {
    for (fault, operation) in [
        ("disconnect:after=20,times=1", NULL),
        ("fail-read:after=3,times=1", &["--op", "write"]),
        ("fail-write:after=3,times=1", &["--op", "read"]),
    ] {
        let far = ["--size", "64KiB", "--placement", "rdma"];
        let client = match operation {
            [] => operation.to_vec(),
            _ => [operation, &far].concat(),
        };
        let fared = fared("faults-lost", &[fault], &[], "100", &client);
        assert_eq!((fared.code, fared.times), (Some(1), vec![1]), "{fault}");
        let words = "connections to";
        assert!(fared.message.contains(words), "{fault}: {}", fared.message);
    }
}

#[test]
fn a_connect_that_is_refused_is_told_with_a_reason() {
    let fared = fared(
        "faults-refuse",
        &["refuse-connect:times=1"],
        &[],
        "10",
        NULL,
    );
    assert_eq!((fared.code, fared.times), (Some(1), vec![1]));
    let words = "all its connections are taken";
    assert!(fared.message.contains(words), "{}", fared.message);
}

#[test]
fn messages_and_receives_that_are_late_make_calls_slow() {
    const LATE_NS: u64 = 20_000_000;
    let late = fared("faults-delay", &["delay-message:for=20ms"], &[], "10", NULL);
    assert_eq!(late.code, Some(0), "{}", late.message);
    assert!(late.report["latency_ns"]["min"].as_u64() >= Some(LATE_NS));
    // Some calls find a Receive, those behind them wait for one that was posted late.
    let few = ["--max-connections", "1", "--credits", "2"];
    let faults = ["late-receive:for=20ms"];
    let stalled = fared("faults-late", &faults, &few, "1000", NULL);
    assert_eq!(stalled.code, Some(0), "{}", stalled.message);
    assert!(stalled.times[0] >= 1000, "{}", stalled.times[0]);
    let duration = stalled.report["duration_s"].as_f64();
    assert!(duration >= Some(0.2), "{duration:?}");
}

/// Faults are for whichever service is served by RPC-over-RDMA.
#[test]
fn an_nfs_server_injects_faults() {
    let address = address("faults-nfs");
    let arguments = ["--service", "nfs3", "--mount-listen", "127.0.0.1:0"];
    let arguments = [&arguments[..], &["--fault", "drop-reply:every=7"]].concat();
    let (server, mut log) = start(&address, &arguments);
    assert!(
        server.line.contains("(injects drop-reply:every=7)"),
        "{}",
        server.line
    );
    assert_eq!(log.until("fault_on")["fault"], "drop-reply:every=7");
    assert_eq!(server.end().code(), Some(0));
    assert_eq!(log.until("fault_injected")["times"], 0);
}

#[test]
fn a_fault_that_cannot_be_is_refused_before_anything_is_served() {
    for (listen, fault, words) in [
        ("shm:x", "drop", "drop-reply, error-reply"),
        ("shm:x", "drop-reply:evry=3", "every=N or one-in=N"),
        ("shm:x", "delay-message", "delay-message:for=10ms"),
        (
            "tcp:127.0.0.1:0",
            "drop-reply",
            "says nothing of tcp:127.0.0.1:0",
        ),
    ] {
        let arguments = ["--service", "nfs3", "--fault", fault];
        let output = serve(listen, &arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{fault}");
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(words), "{fault}: {message}");
        assert!(output.stdout.is_empty(), "{fault}");
    }
}

#[test]
fn a_fault_that_is_given_twice_is_refused() {
    let arguments = ["--fault", "disconnect", "--fault", "disconnect:every=1"];
    let output = serve("shm:x", &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.contains("--fault disconnect is given twice"),
        "{message}"
    );
}

#[test]
fn help_has_every_fault() {
    let output = serve("shm:x", &["--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    for kind in rpcrdma_control::FaultKind::ALL {
        assert!(help.contains(kind.name()), "{help}");
    }
}
