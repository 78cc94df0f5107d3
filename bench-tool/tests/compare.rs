//! `bench-tool compare` as CI meets it: exit codes, files that are not what they should be, runs made in turns.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn compare(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bench-tool"))
        .arg("compare")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("ended by itself")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A file of runs with these medians, in nanoseconds.
struct Runs(PathBuf);

impl Runs {
    fn new(name: &str, p50s: &[u32]) -> Self {
        let runs = p50s.iter().map(|&p50| report(p50));
        Self::holding(name, &runs.collect::<Vec<_>>().join("\n"))
    }

    fn holding(name: &str, text: &str) -> Self {
        let file = format!("bench-tool-compare-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(file);
        fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
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
    let a = Runs::new("codes-a", &A);
    let slower = Runs::new("codes-slower", &A.map(|p50| p50 + 40));
    let single = Runs::new("codes-single", &[440]);
    #[rustfmt::skip]
    let cases = [
        (&[a.path(), a.path()][..], 0, "no difference beyond noise"),
        (&[a.path(), a.path(), "--fail-if", "p99+5%"], 0, "p99+5%: kept"),
        (&[a.path(), slower.path()], 0, "B is slower"),
        (
            &[
                a.path(),
                slower.path(),
                "--fail-if",
                "p50+5%",
                "--fail-if",
                "rate-50%",
            ],
            3,
            "p50+5%: EXCEEDED, beyond noise",
        ),
        (&[slower.path(), a.path(), "--fail-if", "p50+5%"], 0, "B is faster"),
        (&[a.path(), single.path(), "--fail-if", "p50+5%"], 4, "not beyond noise"),
    ];
    for (arguments, expected, words) in cases {
        let output = compare(arguments);
        assert_eq!(code(&output), expected, "{arguments:?}: {output:?}");
        assert!(
            text(&output.stdout).contains(words),
            "{arguments:?}: {output:?}"
        );
    }
}

#[test]
fn json_is_in_place_of_the_table() {
    let a = Runs::new("json-a", &A);
    let output = compare(&[a.path(), a.path(), "--json", "-", "--fail-if", "p999+1%"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["schema"], "rpcrdma.bench-tool.compare/1");
    assert_eq!(value["metrics"].as_array().unwrap().len(), 6);
    assert_eq!(value["verdict"], "no difference beyond noise");
    assert_eq!(value["thresholds"][0]["exceeded"], false);
}

#[test]
fn what_cannot_be_compared_is_named() {
    let a = Runs::new("bad-a", &A);
    let cut = Runs::holding("bad-cut", &report(400)[..90]);
    let other = Runs::holding("bad-other", r#"{"schema": "x", "fio version": "fio-3.33"}"#);
    let binary = Runs::holding("bad-binary", "\0\u{1}\u{2}");
    for file in [
        cut.path(),
        other.path(),
        binary.path(),
        "/nonexistent.json",
        "/",
    ] {
        let output = compare(&[a.path(), file]);
        assert_eq!(code(&output), 1, "{file}: {output:?}");
        assert!(text(&output.stderr).contains(file), "{output:?}");
        assert!(text(&output.stderr).contains("what to do"), "{output:?}");
        assert!(output.stdout.is_empty());
    }
    for arguments in [
        &["--runs", "2", "--", "run"][..],
        &["--", "run", "--", "--", "run"],
        &[a.path()],
        &["--runs", "0", "--", "run", "--", "run"],
    ] {
        assert_eq!(code(&compare(arguments)), 2, "{arguments:?}");
    }
}

#[test]
fn runs_are_made_in_turns() {
    let short = ["run", "--count", "200", "--warmup", "0"];
    let arguments = [
        &["--runs", "2", "--json", "-", "--"],
        &short[..],
        &["--"],
        &short,
        &["--depth", "2"],
    ];
    let output = compare(&arguments.concat());
    assert_eq!(code(&output), 0, "{output:?}");
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&value["a"]["runs"], &value["b"]["runs"]),
        (&2.into(), &2.into())
    );
    assert_eq!(value["differences"][0]["key"], "depth");
    let failing = compare(&["--runs", "1", "--", "run", "--size", "4", "--", "run"]);
    assert_eq!(code(&failing), 1, "{failing:?}");
    assert!(
        text(&failing.stderr).contains("run 1 of A failed"),
        "{failing:?}"
    );
    assert!(
        text(&failing.stderr).contains("null procedure"),
        "{failing:?}"
    );
}
