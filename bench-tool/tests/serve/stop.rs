//! A load that is stopped while its server is silent.

use std::time::Duration;

use rpcrdma_testkit::{Folder, command, until};
use rustix::process::Signal;
use serde_json::Value;

use crate::checkpoint::report_in;
use crate::patient::PATIENT;
use crate::watched::{until_at_least, value, watched};
use crate::{BENCH_TOOL, Server, address, serve};

const CALLS: &str = "rpcrdma_load_calls_total{outcome=\"completed\"}";

/// The loads last for ten minutes, and calls have 30 s and more. Each call that is given up counts once: as one that was not
/// answered.
#[test]
fn stopped_load_gives_up_calls_to_a_silent_server_after_a_grace() {
    let (folder, address) = (Folder::new("silent"), address("silent"));
    let bench = Server::start(&mut serve(&address, ""));
    let nfs = Server::start(&mut serve("tcp:127.0.0.1:0", "--service nfs3"));
    let tcp = nfs.line.split_whitespace().nth(2).expect("an address");
    let run = format!("run --connect {address} {PATIENT}");
    let loads = [
        format!("{run} --op echo --depth 4"),
        format!("{run} --through call --depth 2 --rate 500"),
        format!("nfs --connect {tcp} --export /export --op getattr --files 1 --depth 4"),
    ];
    let loads = loads.iter().enumerate().map(|(number, load)| {
        let json = folder.path(&format!("{number}.json"));
        let line = format!("{load} --duration 10m --warmup 0 --metrics 127.0.0.1:0 --json {json}");
        let (client, at) = watched(&mut command(BENCH_TOOL, &line));
        until_at_least(&at, CALLS, 1.0);
        (client, at, json)
    });
    let loads: Vec<_> = loads.collect();
    bench.process.signal(Signal::STOP);
    nfs.process.signal(Signal::STOP);
    for (_, at, _) in &loads {
        until("no call is answered", || {
            let before = value(at, CALLS);
            // TIME: a client that is kept from its calls for so long looks the same, and has fewer calls outstanding.
            std::thread::sleep(Duration::from_millis(400));
            (value(at, CALLS) <= before).then_some(())
        });
    }
    loads.iter().for_each(|it| it.0.signal(Signal::INT));
    let ended = loads.into_iter().map(|(client, _, json)| {
        let ended = client.end();
        ended.check_code(1);
        let report: Value = report_in(&json).expect("a report");
        let failure = report["failure"].as_str().expect("a failure");
        assert!(failure.ends_with("10 s after the stop request"), "{ended}");
        assert_eq!(
            (&report["errors"], &report["whole"]),
            (&0.into(), &false.into()),
            "{report}"
        );
        (ended, report)
    });
    let ended: Vec<_> = ended.collect();
    for closed in [&ended[0].1, &ended[2].1] {
        assert_eq!(closed["calls_unanswered"], 4, "{closed}");
    }
    // Its threads wait in their calls, and have no results.
    let open = &ended[1].1;
    let number = |key: &str| open[key].as_u64().expect(key);
    assert_eq!(
        number("calls") + number("calls_unanswered"),
        number("calls_due"),
        "{open}"
    );
    ended[2].0.check_errors(&["the files of this run are left"]);
}
