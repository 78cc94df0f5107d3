//! `run --through`: calls that threads make through the library.

use crate::patient::PATIENT;
use crate::{bench_tool, run_of};

#[test]
fn threads_make_all_calls_by_every_way() {
    for (through, depth) in [("poller", 4), ("call", 2), ("async", 4)] {
        for work in ["", "--op echo --size 1000 --protocol v1"] {
            let report = run_of(&format!(
                "--through {through} --depth {depth} --connections 3 {work}"
            ));
            assert_eq!(report["through"], through);
            assert_eq!(
                (
                    &report["calls"],
                    &report["errors"],
                    &report["connections_lost"]
                ),
                (&300.into(), &0.into(), &0.into()),
                "{report}"
            );
            assert_eq!(report["latency_ns"]["count"], 300);
            // Those of the warm-up too, and what asks the server.
            let sent = report["counters"]["calls_sent"].as_u64();
            assert!(sent.is_some_and(|sent| sent >= 300), "{report}");
        }
    }
    assert_eq!(run_of("")["through"], "core");
}

#[test]
fn options_that_threads_cannot_do_are_refused() {
    for (words, says) in [
        ("--through poller --op read", "bulk data"),
        ("--through call --depth 600 --connections 2", "1200 threads"),
        ("--through async --reverse", "--reverse"),
        ("--through poller --retry 1s", "--retry"),
    ] {
        let refused = bench_tool(&format!("run {words}")).with_code(2);
        refused.check_errors(&[says]);
    }
    let output = bench_tool(&format!(
        "run --through call --count 50 --warmup 0 {PATIENT}"
    ))
    .with_code(0);
    let heading = "null by blocking calls of the library, ";
    assert!(output.out.starts_with(heading), "{output}");
}
