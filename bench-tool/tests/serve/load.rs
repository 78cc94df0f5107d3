//! Metrics of loads while they go on: of a run, and of a fleet with its clients.

use std::process::Command;

use rpcrdma_testkit::{Running, command, until};
use rustix::process::{Pid, Signal, kill_process};

use crate::page::page_at;
use crate::patient::PATIENT;
use crate::prometheus::Page;
use crate::watched::watched;
use crate::{BENCH_TOOL, Server, address, serve};

/// A command that makes calls, and where its metrics are.
struct Load {
    process: Running,
    at: String,
}

impl Load {
    fn start(command: &mut Command) -> Self {
        let (mut process, at) = watched(command);
        let mut errors = process.errors.take().expect("nobody has them yet");
        // What follows is read, so that the command never waits for it.
        std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
        Self { process, at }
    }

    fn page(&self) -> Page {
        let (head, body) = page_at(&self.at, "/metrics");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        Page::parse(&body)
    }

    /// The page, once it fulfils a condition.
    fn page_with(&self, what: &str, is_wanted: impl Fn(&Page) -> bool) -> Page {
        until(what, || {
            let page = self.page();
            is_wanted(&page).then_some(page)
        })
    }
}

fn value(page: &Page, sample: &str) -> f64 {
    page.samples.get(sample).copied().unwrap_or(0.0)
}

/// What a fleet of one client of this server shows, with all its families.
pub(crate) fn page_of_a_fleet(address: &str) -> Page {
    let line = format!(
        "fleet --metrics 127.0.0.1:0 --clients 1 --json - -- run --connect {address} {PATIENT} --set idle=park \
         --duration 10m --warmup 0 --rate 1k --depth 4 --interval 100ms"
    );
    let load = Load::start(&mut command(BENCH_TOOL, &line));
    let latency = "rpcrdma_load_latency_seconds_count{client=\"0\",host=\"localhost\"}";
    let page = load.page_with("latencies", |page| value(page, latency) > 0.0);
    load.process.end_by(Signal::INT).check_code(0);
    page
}

#[test]
fn a_run_shows_its_calls_while_it_makes_them() {
    let line = format!(
        "run --metrics 127.0.0.1:0 --op echo --size 100 --rate 2k --depth 8 --duration 10m --warmup 1s {PATIENT} \
         --interval 100ms"
    );
    let load = Load::start(&mut command(BENCH_TOOL, &line));
    let measuring = |page: &Page| value(page, "rpcrdma_load_latency_seconds_count") > 0.0;
    let before = load.page_with("the first interval", measuring);
    assert_eq!(value(&before, "rpcrdma_load_info{command=\"run\"}"), 1.0);
    assert_eq!(
        value(&before, "rpcrdma_load_state{state=\"measuring\"}"),
        1.0
    );
    assert_eq!(
        value(&before, "rpcrdma_load_target_calls_per_second"),
        2_000.0
    );
    let calls = |page: &Page| value(page, "rpcrdma_load_calls_total{outcome=\"completed\"}");
    let latencies = |page: &Page| value(page, "rpcrdma_load_latency_seconds_count");
    let after = load.page_with("more calls", |page| {
        calls(page) > calls(&before) && latencies(page) > latencies(&before)
    });
    before.check_growth(&after);
    // Latencies are those of whole intervals, without the warm-up.
    assert!(latencies(&after) < calls(&after));
    assert!(value(&after, "rpcrdma_load_latency_seconds_sum") > 0.0);
    assert_eq!(
        value(&after, "rpcrdma_load_payload_bytes_total"),
        calls(&after) * 100.0
    );
    // Calls that were due have no answer if the machine is too busy for this rate. The run says so and fails, as it should.
    let ended = load.process.end_by(Signal::INT);
    if ended.code != Some(0) {
        ended.check_code(1);
        assert!(ended.to_string().contains("not answered"), "{ended}");
    }
}

#[test]
fn a_fleet_shows_every_client_and_those_that_it_lost() {
    let address = address("fleet");
    let server = Server::start(&mut serve(&address, "--set idle=park"));
    let line = format!(
        "fleet --metrics 127.0.0.1:0 --clients 2 --json - -- run --connect {address} {PATIENT} --set idle=park \
         --duration 10m --warmup 0 --rate 1k --depth 4 --interval 100ms"
    );
    let load = Load::start(&mut command(BENCH_TOOL, &line));
    let of = |client: u32, outcome: &str| {
        format!(
            "rpcrdma_load_calls_total{{client=\"{client}\",host=\"localhost\",outcome=\"{outcome}\"}}"
        )
    };
    // The states are shown behind the figures.
    let before = load.page_with("calls of both clients, which run", |page| {
        let has_calls = |client: &u32| value(page, &of(*client, "completed")) > 0.0;
        let running = value(page, "rpcrdma_fleet_clients{state=\"running\"}");
        [0, 1].iter().all(has_calls) && running == 2.0
    });
    assert_eq!(
        before.sum("rpcrdma_load_target_calls_per_second", ""),
        1_000.0
    );
    assert_eq!(before.sum("rpcrdma_fleet_client_lost", ""), 0.0);
    let file = format!("/proc/{0}/task/{0}/children", load.process.id());
    let agents = std::fs::read_to_string(file).unwrap();
    let first = agents.split_whitespace().next().unwrap().parse().unwrap();
    kill_process(Pid::from_raw(first).unwrap(), Signal::KILL).unwrap();
    // Latencies are shown behind the calls: those of an interval, once it is over.
    let latencies = "rpcrdma_load_latency_seconds_count{client=\"1\",host=\"localhost\"}";
    let after = load.page_with("the loss", |page| {
        value(page, "rpcrdma_fleet_clients{state=\"lost\"}") > 0.0
            && value(page, &of(1, "completed")) > value(&before, &of(1, "completed"))
            && value(page, latencies) > 0.0
    });
    let lost = "rpcrdma_fleet_client_lost{client=\"0\",host=\"localhost\"}";
    assert_eq!(
        (
            value(&after, lost),
            after.sum("rpcrdma_fleet_client_lost", "")
        ),
        (1.0, 1.0)
    );
    before.check_growth(&after);
    load.process.end_by(Signal::INT).check_code(1);
    server.end();
}
