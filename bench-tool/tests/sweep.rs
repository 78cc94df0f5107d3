//! `bench-tool sweep` from its command line to its files.

use rpcrdma_testkit::{Ended, Folder, command};
use serde_json::Value;

#[path = "support/json.rs"]
mod json;
#[path = "support/patient.rs"]
mod patient;

use self::json::Json as _;
use self::patient::PATIENT;

fn bench_tool(line: &str) -> Ended {
    Ended::of(&mut command(env!("CARGO_BIN_EXE_bench-tool"), line))
}

#[test]
fn a_sweep_writes_what_was_asked_for() {
    let folder = Folder::new("sweep");
    let [svg, other, csv, json] = ["a.svg", "b.svg", "a.csv", "a.json"].map(|it| folder.path(it));
    let line = "sweep --op write --size 1k,4k --placement send,rdma --count 100 --warmup 0 --repeats 2 \
                --repeat-disturbed 0";
    let files = format!("--csv {csv} --json {json} --plot {svg}");
    let sweep = bench_tool(&format!("{line} {PATIENT} {files}")).with_code(0);
    sweep.check_out(&[
        "medians of 2 runs",
        "placement",
        "rdma",
        "4 KiB",
        "p50 spread",
    ]);
    let report: Value = serde_json::from_str(&folder.read("a.json")).unwrap();
    assert_eq!(report["schema"], "rpcrdma.bench-tool.sweep/1");
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 8);
    let is_whole = |run: &Value| run["calls"].as_u64() >= Some(100) && run["op"] == "write";
    assert!(runs.iter().all(is_whole));
    assert_eq!(folder.read("a.csv").lines().count(), 9);
    let chart = folder.read("a.svg");
    assert!(chart.starts_with("<svg") && chart.contains("class=\"range s1\""));
    let compared = bench_tool(&format!("compare {json} {json}")).with_code(0);
    compared.check_out(&["A  8 runs  ", "\n\nsize 4 KiB, rdma\n", "too few runs"]);

    let line = "sweep --depth 1,2 --count 100 --warmup 0 --repeats 1 --quiet --json -";
    let _report = bench_tool(&format!("{line} {PATIENT} --plot {other}")).json();
    assert!(folder.read("b.svg").starts_with("<svg"));
}

#[test]
fn invalid_sweep_fails_before_its_first_run() {
    for (line, words) in [
        ("--plot a.svg", "nothing to draw a line along"),
        ("--op null,write --size 4k", "null procedure"),
        ("--depth 1,2 --csv /nonexistent/a.csv", "/nonexistent/a.csv"),
        ("--json - --csv -", "standard output"),
    ] {
        let output = bench_tool(&format!("sweep --duration 1h {line}"));
        assert!(matches!(output.code, Some(1 | 2)), "{output}");
        output.check_errors(&[words]);
        assert!(output.out.is_empty(), "{output}");
    }
}
