//! `bench-tool compare` as CI meets it: exit codes, files that are not what they should be, runs made in turns.

use rpcrdma_testkit::{Ended, Folder, command};

#[path = "support/json.rs"]
mod json;
#[path = "support/patient.rs"]
mod patient;

use self::json::Json as _;
use self::patient::PATIENT;

fn compare(arguments: &str) -> Ended {
    let line = format!("compare {arguments}");
    Ended::of(&mut command(env!("CARGO_BIN_EXE_bench-tool"), &line))
}

/// A file of runs with these medians, in nanoseconds; its path.
fn runs(folder: &Folder, name: &str, p50s: &[u32]) -> String {
    let runs: Vec<String> = p50s.iter().map(|p50| report(*p50)).collect();
    folder.write(name, runs.join("\n"))
}

fn report(p50: u32) -> String {
    let (mean, tail, rate) = (p50 + 9, p50 * 2, 1_000_000_000 / p50);
    format!(
        r#"{{"schema": "rpcrdma.bench-tool.run/1", "op": "null", "rate_per_s": {rate}, "latency_ns": {{"count": 99,
        "mean": {mean}, "p50": {p50}, "p90": {p50}, "p99": {tail}, "p99_9": {tail}}}}}"#
    )
}

const A: [u32; 7] = [400, 402, 399, 401, 405, 398, 403];

#[test]
fn thresholds_have_exit_codes_of_their_own() {
    let folder = Folder::new("compare-codes");
    let a = runs(&folder, "a", &A);
    let slower = runs(&folder, "slower", &A.map(|p50| p50 + 40));
    let single = runs(&folder, "single", &[440]);
    for (files, options, expected, words) in [
        ([&a, &a], "", 0, "no difference beyond noise"),
        ([&a, &a], "--fail-if p99+5%", 0, "p99+5%: kept"),
        ([&a, &slower], "", 0, "B is slower"),
        (
            [&a, &slower],
            "--fail-if p50+5% --fail-if rate-50%",
            3,
            "p50+5%: EXCEEDED, beyond noise",
        ),
        ([&slower, &a], "--fail-if p50+5%", 0, "B is faster"),
        ([&a, &single], "--fail-if p50+5%", 4, "not beyond noise"),
    ] {
        let [a, b] = files;
        let output = compare(&format!("{a} {b} {options}")).with_code(expected);
        output.check_out(&[words]);
    }
}

#[test]
fn json_is_in_place_of_the_table() {
    let folder = Folder::new("compare-json");
    let a = runs(&folder, "a", &A);
    let value = compare(&format!("{a} {a} --json - --fail-if p999+1%")).json();
    assert_eq!(value["schema"], "rpcrdma.bench-tool.compare/1");
    assert_eq!(value["metrics"].as_array().unwrap().len(), 6);
    assert_eq!(value["verdict"], "no difference beyond noise");
    assert_eq!(value["thresholds"][0]["exceeded"], false);
}

#[test]
fn compare_names_the_file_it_cannot_use() {
    let folder = Folder::new("compare-bad");
    let a = runs(&folder, "a", &A);
    for file in [
        folder.write("cut", &report(400)[..90]),
        folder.write("other", r#"{"schema": "x", "fio version": "fio-3.33"}"#),
        folder.write("binary", "\0\u{1}\u{2}"),
        "/nonexistent.json".to_owned(),
        "/".to_owned(),
    ] {
        compare(&format!("{a} {file}")).check_failed(1, &[&file, "what to do"]);
    }
    for arguments in [
        "--runs 2 -- run",
        "-- run -- -- run",
        &a,
        "--runs 0 -- run -- run",
    ] {
        compare(arguments).check_code(2);
    }
}

#[test]
fn runs_are_made_in_turns() {
    let short = format!("run --count 200 --warmup 0 {PATIENT}");
    let value = compare(&format!(
        "--runs 2 --json - -- {short} -- {short} --depth 2"
    ))
    .json();
    assert_eq!(value["a"]["runs"], 2);
    assert_eq!(value["b"]["runs"], 2);
    assert_eq!(value["differences"][0]["key"], "depth");
    let failing = compare("--runs 1 -- run --size 4 -- run").with_code(1);
    failing.check_errors(&["run 1 of A failed", "null procedure"]);
}
