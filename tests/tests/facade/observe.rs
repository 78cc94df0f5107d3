//! What exporters and tracing tools see of a node.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use prometheus_client::registry::Registry;
use rpcrdma::DeviceLevels;
use rpcrdma::prelude::*;
use rpcrdma_testkit::{Ended, command, until};
use tracing_subscriber::fmt::format::FmtSpan;

use super::{ECHO, address, builder, echo};

/// Calls once.
fn call_once() -> (Server, Client) {
    let server = echo(&address());
    let client = builder();
    let client = client.connect(server.address()).expect("it listens");
    let mut answer = client.request(ECHO).opaque(b"ping").call();
    let results = answer.as_mut().expect("it answers").results().opaque();
    assert_eq!(results, Ok(b"ping".as_slice()));
    (server, client)
}

#[test]
fn a_registry_of_prometheus_has_all_metrics_with_their_meanings() {
    let (server, _client) = call_once();
    let is_counted = |metric: &rpcrdma::Metric| {
        metric.core.is_none() && metric.name == "connections_ready" && metric.value == 1
    };
    // The control thread counts a connection after it is ready, and calls may be faster.
    until("the count of the connection", || {
        let metrics = server.metrics().values();
        metrics.iter().any(is_counted).then_some(())
    });
    until("the connection of the device", || {
        let devices = server.metrics().snapshot().devices;
        (devices.first()?.connections == 1).then_some(())
    });
    let mut registry = Registry::default();
    registry.register_collector(Box::new(server.metrics()));
    let mut page = String::new();
    prometheus_client::encoding::text::encode(&mut page, &registry).expect("it is text");
    for line in [
        "# HELP rpcrdma_calls_received Calls of peers that were handed to the application.",
        "# TYPE rpcrdma_calls_received counter",
        "rpcrdma_calls_received_total{core=\"0\"} 1",
        "# TYPE rpcrdma_level_calls_outstanding gauge",
        "rpcrdma_level_calls_outstanding{core=\"0\"} 0",
        "rpcrdma_control_connections_ready_total 1",
        "# HELP rpcrdma_port_records_in Records processed, without pads.",
        "rpcrdma_port_polls_total{core=\"0\"} ",
        "# HELP rpcrdma_manager_connections_established Connections established.",
        "rpcrdma_manager_connections_established_total 1",
        "# HELP rpcrdma_device_links_up Ports of the device with an active link.",
        "rpcrdma_device_links_up{device=\"shm\"} 1",
        "rpcrdma_device_connections{device=\"shm\"} 1",
    ] {
        assert!(
            page.lines().any(|it| it.starts_with(line)),
            "{line} in:\n{page}"
        );
    }
    let families = page.lines().filter(|line| line.starts_with("# TYPE "));
    let of_devices = DeviceLevels::ALL.len();
    assert_eq!(
        families.count(),
        server.metrics().values().len() + of_devices
    );
}

#[test]
fn counters_of_the_fabric_are_among_the_metrics() {
    let (server, _client) = call_once();
    for (name, of_core) in [("records_in", true), ("connections_established", false)] {
        until(name, || {
            let values = server.metrics().values();
            let found = values.iter().find(|metric| {
                metric.is_of_fabric && metric.name == name && metric.core.is_some() == of_core
            });
            (found.expect("it is listed").value > 0).then_some(())
        });
    }
    assert_eq!(server.metrics().total("handshakes_malformed"), Some(0));
}

/// Keeps what is written to it.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .expect("no writer panics")
            .extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn calls_are_spans_at_both_ends_and_connections_are_events() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing::Level::DEBUG)
        .with_span_events(FmtSpan::CLOSE);
    let writer = log.clone();
    let subscriber = subscriber.with_writer(move || writer.clone()).finish();
    tracing::subscriber::set_global_default(subscriber).expect("no other test sets one");
    let (server, client) = call_once();
    let missing = Procedure::new(ECHO.program, ECHO.version, 99);
    client
        .request(missing)
        .call()
        .expect_err("there is no such procedure");
    drop((client, server));
    let log = String::from_utf8(log.0.lock().expect("no writer panics").clone());
    let log = log.expect("it is text");
    for words in [
        &["INFO", "connected", "address=", "shm:"][..],
        &["DEBUG", "serve{", "procedure=1", "xid="],
        &[
            "DEBUG",
            "call{",
            "procedure=1",
            "args_bytes=8",
            "results_bytes=8",
        ],
        &["DEBUG", "call{", "procedure=99", "error=Failed("],
    ] {
        let has_all = |line: &str| words.iter().all(|word| line.contains(word));
        assert!(log.lines().any(has_all), "{words:?} in:\n{log}");
    }
}

#[test]
fn a_program_has_probes_at_calls_and_services() {
    let this = std::env::current_exe().expect("it has a path");
    let mut readelf = command("readelf", "--notes --wide");
    let ended = Ended::of(readelf.arg(this));
    ended.check_code(0);
    let notes = ended.out;
    let lines: Vec<_> = notes.lines().map(str::trim).collect();
    for probe in ["call_begin", "call_end", "serve_begin", "serve_end"] {
        let name = format!("Name: {probe}");
        let mut pairs = lines.windows(2);
        let has = pairs.any(|two| two[0].ends_with("Provider: rpcrdma") && two[1] == name);
        assert!(has, "{probe} in:\n{notes}");
    }
}

/// Some counters and levels have one name: what came in all, and how much there is now.
#[test]
fn a_counter_and_a_level_of_one_name_are_two_values() {
    let (server, client) = call_once();
    let metrics = server.metrics();
    // The core publishes them a few times a second.
    until("the levels", || {
        (metrics.level("receives_posted") > Some(0)).then_some(())
    });
    drop((client, server));
    // The node has ended: nothing changes any more.
    let mut values = metrics.values();
    values.retain(|it| !it.is_of_fabric);
    let sum = |name, is_counter| {
        let of_name = values
            .iter()
            .filter(|it| it.core.is_some() && (it.name, it.is_counter) == (name, is_counter));
        of_name.map(|it| it.value).reduce(|sum, value| sum + value)
    };
    let mut shared = 0;
    for metric in values.iter().filter(|it| it.core.is_some()) {
        let (counter, level) = (sum(metric.name, true), sum(metric.name, false));
        assert_eq!(metrics.total(metric.name), counter.or(level), "{metric:?}");
        assert_eq!(metrics.level(metric.name), level, "{metric:?}");
        shared += usize::from(counter.is_some() && level > Some(0));
    }
    assert!(shared > 0, "such as receives_posted");
}
