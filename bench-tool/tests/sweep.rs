//! `bench-tool sweep` from its command line to its files.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        let name = format!("bench-tool-sweep-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The exit status, standard output and standard error.
fn bench_tool(line: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench-tool"));
    let command = command.args(line.split(' ')).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn a_sweep_writes_what_was_asked_for() {
    let directory = Directory::new();
    let [svg, other, csv, json] = ["a.svg", "b.svg", "a.csv", "a.json"].map(|n| directory.file(n));
    let line =
        "sweep --op write --size 1k,4k --placement send,rdma --count 100 --warmup 0 --repeats 2";
    let (code, table, messages) =
        bench_tool(&format!("{line} --csv {csv} --json {json} --plot {svg}"));
    assert_eq!(code, Some(0), "{messages}");
    for words in ["medians of 2 runs", "placement", "rdma", "4 KiB"] {
        assert!(table.contains(words), "{words}:\n{table}");
    }
    let report: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(report["schema"], "rpcrdma.bench-tool.sweep/1");
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 8);
    assert!(
        runs.iter()
            .all(|run| run["calls"].as_u64() >= Some(100) && run["op"] == "write")
    );
    assert_eq!(fs::read_to_string(&csv).unwrap().lines().count(), 9);
    assert!(fs::read_to_string(&svg).unwrap().starts_with("<svg"));
    // What it wrote is several kinds of runs: nothing for one side of a comparison.
    let (code, _, messages) = bench_tool(&format!("compare {json} {json}"));
    assert_eq!(code, Some(1));
    assert!(messages.contains("no repeats of each other"), "{messages}");

    let line = "sweep --depth 1,2 --count 100 --warmup 0 --repeats 1 --quiet --json -";
    let (code, report, messages) = bench_tool(&format!("{line} --plot {other}"));
    assert_eq!(code, Some(0), "{messages}");
    assert!(serde_json::from_str::<serde_json::Value>(&report).is_ok());
    assert!(fs::read_to_string(&other).unwrap().starts_with("<svg"));
}

#[test]
fn what_cannot_be_swept_is_said_before_the_first_run() {
    for (line, words) in [
        ("--plot a.svg", "nothing to draw a line along"),
        ("--op null,write --size 4k", "null procedure"),
        ("--depth 1,2 --csv /nonexistent/a.csv", "/nonexistent/a.csv"),
        ("--json - --csv -", "standard output"),
    ] {
        let (code, table, messages) = bench_tool(&format!("sweep --duration 1h {line}"));
        assert!(matches!(code, Some(1 | 2)), "{line}: {messages}");
        assert!(messages.contains(words), "{line}: {messages}");
        assert!(table.is_empty());
    }
}
