//! What ends a command, and what does not: signals, terminals that are lost, threads that cannot be started, its own file
//! that is replaced, and a server that is not there yet.

use std::fs::File;
use std::process::{Command, Stdio};

use super::*;
use crate::signal::signal_taken;

const CALLS: &str = "rpcrdma_load_calls_total{outcome=\"completed\"}";

/// A run of an hour; it, and the address of its metrics.
fn long_run(command: &mut Command) -> (Running, String) {
    let (run, at) = watched(command);
    until_at_least(&at, CALLS, 1.0);
    (run, at)
}

fn hour(json: &str) -> String {
    format!("run --duration 1h --warmup 0 {PATIENT} --metrics 127.0.0.1:0 --json {json}")
}

/// A shell says SIGHUP when an ssh connection is lost, and then the kernel does.
#[test]
fn lost_terminal_ends_a_run_with_its_report() {
    crate::hangup::let_programs_heed_it();
    let folder = Folder::new("hangup");
    let (run, _) = long_run(&mut command(BENCH_TOOL, &hour(&folder.path("run.json"))));
    signal_taken(&run, Signal::HUP);
    run.end_by(Signal::HUP).check_code(0);
    let value: Value = serde_json::from_str(&folder.read("run.json")).unwrap();
    assert_eq!(value["interrupted"], true);
}

#[test]
fn lost_terminal_ends_no_run_under_nohup() {
    let folder = Folder::new("nohup");
    let mut shell = command("sh", "-c");
    let line = hour(&folder.path("run.json"));
    shell.arg(format!("trap '' HUP; exec {BENCH_TOOL} {line}"));
    let (run, at) = long_run(&mut shell);
    signal_taken(&run, Signal::HUP);
    let before = watched::value(&at, CALLS);
    until_at_least(&at, CALLS, before + 1.0);
    run.end_by(Signal::TERM).check_code(0);
}

#[test]
fn report_is_written_also_when_nobody_is_left_to_print_to() {
    let folder = Folder::new("nobody");
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    for (name, line) in [
        ("run", "run --duration 20ms --warmup 0"),
        ("floor", "floor --quick"),
    ] {
        let json = folder.path(name);
        let line = format!("{line} --json {json}");
        let mut command = command(BENCH_TOOL, &line);
        // An error of standard error has no place where it could be said, and is no panic.
        let status = command.stdout(full()).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(1), "{line}");
        serde_json::from_str::<Value>(&folder.read(name)).unwrap();
    }
}

/// One thread fits into the memory that the process may have, and two do not.
#[test]
fn thread_that_cannot_be_started_is_an_error() {
    for line in ["floor --quick", "run --duration 20ms --warmup 0"] {
        let mut shell = command("sh", "-c");
        shell.env("RUST_MIN_STACK", (1_u64 << 30).to_string());
        shell.arg(format!("ulimit -v 1900000; exec {BENCH_TOOL} {line}"));
        let ended = Ended::of(&mut shell);
        ended.check_failed(1, &["a thread cannot be started", "ulimit -u"]);
    }
}

/// Each way in which the program starts itself. Its file has no name any more, as after an update.
#[test]
fn program_whose_file_was_replaced_starts_its_own_processes() {
    let folder = Folder::new("replaced");
    let copy = folder.path("bench-tool");
    std::fs::copy(BENCH_TOOL, &copy).unwrap();
    let file = File::open(&copy).unwrap();
    std::fs::remove_file(&copy).unwrap();
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
    let program = format!("/proc/{}/fd/{descriptor}", std::process::id());
    let run = format!("run --count 10 --warmup 0 {PATIENT} --set idle=park");
    for line in [
        format!("{run} --idle-connections 1"),
        format!("compare --runs 1 -- {run} -- {run}"),
        format!(
            "fleet --clients 1 -- {run} --connect shm:{}",
            nobody("replaced")
        ),
    ] {
        let ended = Ended::of(&mut command(&program, &line));
        let is_started = ended.code == Some(0) || ended.errors.contains("cannot connect");
        assert!(is_started, "{ended}");
    }
}

fn nobody(what: &str) -> String {
    format!("nobody-{what}-{}", std::process::id())
}

#[test]
fn run_waits_for_a_server_that_is_starting() {
    let address = format!("shm:{}", nobody("yet"));
    // Longer than the five seconds that it waits anyway: a machine may need them to start the server.
    let line =
        format!("run --connect {address} --count 10 --warmup 0 {PATIENT} --retry 4m --quiet");
    let run = Running::start(&mut command(BENCH_TOOL, &line));
    let line = format!("serve --listen {address} {PATIENT}");
    let (server, _) = Running::listening(&mut command(BENCH_TOOL, &line));
    run.end().check_code(0);
    server.end_by(Signal::TERM).check_code(0);
}
