//! The figures of reports, computed by a program in Python that knows nothing of this one: `figures.py` says how.
#![forbid(unsafe_code)]

use std::process::Command;

use rpcrdma_testkit::Ended;

#[test]
fn figures_of_runs_are_those_that_another_program_computes() {
    let mut python = Command::new("python3");
    python.args([
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/figures.py"),
        "tool",
        env!("CARGO_BIN_EXE_bench-tool"),
    ]);
    let ended = Ended::of(&mut python);
    ended.check_code(0);
    assert!(ended.out.contains("all figures agree"), "{ended}");
}
