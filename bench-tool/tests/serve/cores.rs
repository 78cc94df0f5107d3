//! Several cores at each end. A machine of tests may have fewer processors than there are cores here, so that shares are
//! looked at, and not speed.

use rpcrdma_testkit::{Folder, Running, command, until};
use rustix::process::Signal;
use serde_json::Value;

use crate::checkpoint::report_in;
use crate::json::Json as _;
use crate::patient::PATIENT;
use crate::prometheus::Page;
use crate::usable::cores_usable;
use crate::{BENCH_TOOL, Server, address, run, serve};

/// Cores of each end.
const CORES: usize = 2;
/// A client core has four connections, and eight calls outstanding on each.
const CONNECTIONS: &str = "8";
const CONNECTIONS_PER_CORE: f64 = 4.0;
/// More than the 64 that are outstanding at a time: each slot is used again and again.
const CALLS: u32 = 20_000;

/// The processors that the cores of each end are pinned to; `None` where there are too few.
fn processors() -> Option<String> {
    let usable = cores_usable();
    let first: Vec<String> = usable.iter().take(CORES).map(ToString::to_string).collect();
    (first.len() == CORES).then(|| first.join(","))
}

fn metrics(server: &Server) -> Page {
    Page::parse(&server.page("/metrics").1)
}

/// Both ends have two cores on the same two processors, so that every core waits for others to give up its processor.
/// Each core of the server gets half of the connections; all calls are answered, each core of the client makes its half of
/// them, and none of the server's cores is left out.
#[test]
fn each_core_has_its_share() {
    let Some(processors) = processors() else {
        return;
    };
    let address = address("cores");
    let cores = format!("--cores {processors} --set idle=park");
    let server = Server::start(&mut serve(
        &address,
        &format!("{cores} --metrics 127.0.0.1:0"),
    ));
    let before = metrics(&server);
    let load = format!("--count {CALLS} --connections {CONNECTIONS} --depth 8 --json -");
    let result = run(&address, &format!("{cores} {load}")).json();

    // The client: every call is in the histogram of the core that made it, and each core made its half.
    assert_eq!(result["errors"], 0);
    assert_eq!(result["latency_ns"]["count"], CALLS);
    let per_core = result["per_core"].as_array().unwrap();
    let calls: Vec<_> = per_core.iter().map(|core| &core["calls"]).collect();
    assert_eq!(calls, [CALLS / 2; CORES]);

    // The server: its cores share the connections and the calls, and answer each of them.
    // A reply may be counted when its client already has it.
    let after = until("all replies are counted", || {
        let page = metrics(&server);
        let [calls, replies] =
            ["rpcrdma_calls_total", "rpcrdma_replies_total"].map(|it| page.sum(it, ""));
        (calls <= replies).then_some(page)
    });
    let since = |name: &str| -> Vec<f64> {
        let of_core = |core| {
            let label = format!("core=\"{core}\"");
            after.sum(name, &label) - before.sum(name, &label)
        };
        processors.split(',').map(of_core).collect()
    };
    assert_eq!(
        since("rpcrdma_connections_opened_total"),
        [CONNECTIONS_PER_CORE; CORES]
    );
    let calls = since("rpcrdma_calls_total");
    assert_eq!(calls, since("rpcrdma_replies_total"));
    let (all, half) = (f64::from(CALLS), f64::from(CALLS / 2));
    assert!(calls.iter().all(|calls| *calls >= half), "{calls:?}");
    // The first calls of all slots began before anything is measured, and the questions for its record and counters are
    // calls as well. What it says counts them in, as far as it had them.
    let sum: f64 = calls.iter().sum();
    assert!((all..=all + 64.0 + 3.0).contains(&sum), "{calls:?}");
    let said = result["server_counters"]["calls_received"].as_f64();
    assert!(
        said.is_some_and(|said| (all..=sum).contains(&said)),
        "{said:?} of {sum}"
    );
    server.end();
}

/// The same for a time: no core of the client is kept from its calls by another one. How a busy machine shares its
/// processors out is its own affair, so that the test waits for times in which it does so somehow evenly.
#[test]
fn no_core_starves() {
    let Some(processors) = processors() else {
        return;
    };
    let address = address("starves");
    let folder = Folder::new("starves");
    let json = folder.path("run.json");
    let cores = format!("--cores {processors} --set idle=park");
    let server = Server::start(&mut serve(&address, &cores));
    let load = format!("--duration 10m --warmup 0 --connections {CONNECTIONS} --depth 8 --quiet");
    let line = format!(
        "run --connect {address} {PATIENT} {cores} {load} --checkpoint 300ms --json {json}"
    );
    let run = Running::start(&mut command(BENCH_TOOL, &line));
    let calls = || -> Option<Vec<u64>> {
        let report = report_in(&json)?;
        let per_core = report["per_core"].as_array().unwrap().iter();
        let calls: Vec<u64> = per_core.map(|it| it["calls"].as_u64().unwrap()).collect();
        (calls.len() == CORES).then_some(calls)
    };
    let mut before = until("a checkpoint", calls);
    // It goes on all the time.
    for _ in 0..5 {
        before = until(
            "a time in which each core has an eighth of the calls",
            || {
                let now = calls()?;
                let made: Vec<u64> = now.iter().zip(&before).map(|(now, it)| now - it).collect();
                let all: u64 = made.iter().sum();
                let is_fair = all > 0 && made.iter().all(|made| *made >= all / 8 && *made > 0);
                is_fair.then_some(now)
            },
        );
    }
    run.end_by(Signal::INT).check_code(0);
    let report: Value = serde_json::from_str(&folder.read("run.json")).unwrap();
    assert_eq!(report["errors"], 0);
    server.end();
}
