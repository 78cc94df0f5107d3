//! `run --reverse`: calls of the server, by the connections of its client.

use crate::patient::PATIENT;
use crate::{bench_tool, run_of, server};

#[test]
fn a_server_calls_its_client_in_either_version() {
    for protocol in ["v1", "v2"] {
        for words in [
            "",
            "--depth 5 --connections 3",
            "--op echo --size 1000 --depth 2",
            "--op echo --size 0",
        ] {
            let report = run_of(&format!("--reverse --protocol {protocol} {words}"));
            assert_eq!(report["protocol"], protocol);
            assert_eq!(report["direction"], "reverse");
            assert_eq!(
                (&report["calls"], &report["errors"]),
                (&300.into(), &0.into())
            );
            assert_eq!(report["latency_ns"]["count"], 300);
            assert!(report["latency_ns"]["min"].as_u64().unwrap() > 0);
            // Both ends say who called, in the warm-up too.
            let calls = report["per_call"]["calls"].as_u64().unwrap();
            assert!(calls > 300, "{calls}");
            assert_eq!(report["server_counters"]["replies_received"], calls);
            // For every 64 of them the client asked once.
            let asked = report["server_counters"]["calls_received"]
                .as_u64()
                .unwrap();
            assert!(asked < calls / 2, "{asked} calls for {calls}");
        }
    }
    let report = run_of("");
    assert_eq!(report["direction"], "forward");
    assert_eq!(report["counters"]["calls_received"], 0);
}

#[test]
fn the_table_says_who_called() {
    let output =
        bench_tool(&format!("run --reverse --count 100 --warmup 0 {PATIENT}")).with_code(0);
    let heading = "null in the reverse direction (the server calls, and measures)";
    assert!(output.out.starts_with(heading), "{output}");
}

#[test]
fn payloads_of_several_messages_go_back_in_version_2_alone() {
    let words = "--reverse --op echo --size 100000 --protocol";
    let report = run_of(&format!("{words} v2"));
    assert_eq!(
        (&report["calls"], &report["errors"]),
        (&300.into(), &0.into())
    );
    let output = bench_tool(&format!("run --quiet {PATIENT} {words} v1")).with_code(1);
    output.check_errors(&["longer than a message may be", "a smaller --size"]);
}

#[test]
fn a_server_that_is_not_ready_to_call_is_status_1_and_says_how_it_would_be() {
    let address = format!("shm:not-reverse-{}", std::process::id());
    let (server, _) = server(&address, "");
    for protocol in ["v1", "v2"] {
        let line =
            format!("run --reverse --quiet --connect {address} --protocol {protocol} {PATIENT}");
        let output = bench_tool(&line).with_code(1);
        output.check_errors(&[
            "takes no calls from the server",
            "bench-tool serve --reverse",
        ]);
    }
    server.end().check_code(0);
}
