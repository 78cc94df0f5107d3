//! Several cores at each end. A machine of tests may have fewer processors than there are cores here, so that shares are
//! looked at, and not speed.

use rpcrdma_testkit::{Ended, command};

use crate::json::Json as _;
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
    let after = metrics(&server);
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

/// The same for a time: no core of the client is kept from its calls by another one.
#[test]
fn no_core_starves() {
    let Some(processors) = processors() else {
        return;
    };
    let address = address("starves");
    let cores = format!("--cores {processors} --set idle=park");
    let server = Server::start(&mut serve(&address, &cores));
    let load = format!("--duration 2s --connections {CONNECTIONS} --depth 8 --quiet --json -");
    let line = format!("run --connect {address} {cores} {load}");
    let result = Ended::of(&mut command(BENCH_TOOL, &line)).json();
    assert_eq!(result["errors"], 0);
    let all = result["latency_ns"]["count"].as_u64().unwrap();
    let per_core = result["per_core"].as_array().unwrap();
    assert_eq!(per_core.len(), CORES);
    for core in per_core {
        // Half, if the system shares the processors out evenly.
        let calls = core["calls"].as_u64().unwrap();
        assert!(calls >= all / 8, "{calls} of {all}");
        // It goes on all the time.
        let intervals = core["intervals"].as_array().unwrap();
        let idle = intervals.iter().filter(|it| it["calls"] == 0).count();
        assert_eq!(idle, 0, "{intervals:?}");
    }
    server.end();
}
