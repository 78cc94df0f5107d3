//! `kill -9` of either process, at random and under load: the other one ends or goes on, soon and
//! with a clear error, and nothing is left behind.
//!
//! `RPCRDMA_KILLS` sets how often each side is killed; the default keeps a test run short.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use rpcrdma_testkit::{Running, command, until};
use rustix::process::Signal;

#[path = "support/patient.rs"]
mod patient;

use self::patient::PATIENT;

/// How often each side is killed when nobody says otherwise.
const KILLS_DEFAULT: u32 = 4;

fn kills() -> u32 {
    std::env::var("RPCRDMA_KILLS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(KILLS_DEFAULT)
}

/// Random enough, and different in every run: times of day do not matter to what is tested.
fn random_ms(low: u64, high: u64) -> Duration {
    use std::hash::{BuildHasher, Hasher};
    let number = std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish();
    Duration::from_millis(low + number % (high - low))
}

fn tool(line: &str) -> std::process::Command {
    command(env!("CARGO_BIN_EXE_bench-tool"), line)
}

fn open_files(process: &Running) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", process.id())).map_or(0, Iterator::count)
}

/// Cores for client and server: two different ones, where this process may use two.
fn cores() -> (String, String) {
    let usable = core_affinity::get_core_ids().unwrap();
    let mut usable: Vec<usize> = usable.into_iter().map(|core| core.id).collect();
    usable.sort_unstable();
    let (first, last) = (usable.first(), usable.last());
    let name = |core: Option<&usize>| core.expect("at least one core").to_string();
    (name(first), name(last))
}

/// A server that listens.
fn server(address: &str) -> Running {
    let line = format!("serve --listen {address} --cores {} {PATIENT}", cores().1);
    Running::listening(&mut tool(&line)).0
}

fn address(what: &str) -> String {
    format!("shm:kill-{what}-{}", std::process::id())
}

/// Names of this address in the system's table of Unix sockets.
fn names_left(address: &str) -> usize {
    let name = address.trim_start_matches("shm:");
    let table = std::fs::read_to_string("/proc/net/unix").expect("the table of sockets");
    table.lines().filter(|line| line.ends_with(name)).count()
}

fn load(address: &str) -> Running {
    let core = cores().0;
    Running::start(&mut tool(&format!(
        "run --connect {address} --cores {core} --depth 8 --connections 2 --op echo --size 8KiB --duration 10m \
         --warmup 0 --quiet {PATIENT}"
    )))
}

#[test]
fn a_server_outlives_clients_that_are_killed_and_keeps_nothing_of_them() {
    let address = address("clients");
    let server = server(&address);
    let before = open_files(&server);
    let core = cores().0;
    let line = format!("run --connect {address} --cores {core} --count 200 --quiet {PATIENT}");
    // `Running` has a deadline: a server that hangs fails the test.
    let check = || Running::start(&mut tool(&line)).end().check_code(0);
    check();
    for _ in 0..kills() {
        let victim = load(&address);
        // TIME: a moment that nobody knows: before, while or after it connects. What is checked holds at each of them.
        std::thread::sleep(random_ms(1, 250));
        victim.end_by(Signal::KILL);
        check();
    }
    // Connections close a moment after their clients ended, and the listener keeps its own name.
    until("files of dead clients are closed", || {
        (open_files(&server) == before && names_left(&address) == 1).then_some(())
    });
    server.end_by(Signal::TERM).check_code(0);
    assert_eq!(names_left(&address), 0);
}

#[test]
fn a_client_ends_with_a_clear_error_when_its_server_is_killed() {
    let mut slowest = Duration::ZERO;
    for _ in 0..kills() {
        let address = address("servers");
        let server = server(&address);
        let client = load(&address);
        // TIME: a moment that nobody knows: before, while or after it connects. What is checked holds at each of them.
        std::thread::sleep(random_ms(50, 400));
        server.signal(Signal::KILL);
        // TIME: it is printed, for people who look for slow ends, and not compared.
        let begin = Instant::now();
        let output = client.end();
        slowest = slowest.max(begin.elapsed());
        output.check_code(1);
        let reasons = [
            "lost",
            "closed the connection",
            "could not be made",
            "refused",
        ];
        let says_why = reasons.iter().any(|words| output.errors.contains(words));
        assert!(says_why, "{output}");
        output.check_errors(&[&address]);
        drop(server);
        assert_eq!(names_left(&address), 0, "nothing is left of the server");
    }
    println!("slowest end of a client after its server's death: {slowest:?}");
}

/// Two servers that know nothing of each other do for a load that leaves nothing behind with them.
#[test]
fn load_goes_on_at_the_other_address_when_a_server_is_killed() {
    let (first, second) = (address("first"), address("second"));
    let (killed, left) = (server(&first), server(&second));
    let before = open_files(&left);
    let name = second.trim_start_matches("shm:");
    let core = cores().0;
    let client = Running::start(&mut tool(&format!(
        "run --connect {first},{name} --cores {core} --connections 2 --duration 10m --warmup 0 --retry 10m --json - \
         --quiet {PATIENT}"
    )));
    let with_one = until("a connection at the second address", || {
        let now = open_files(&left);
        (now > before).then_some(now)
    });
    killed.end_by(Signal::KILL);
    until("the other connection at the second address", || {
        (open_files(&left) > with_one).then_some(())
    });
    let output = client.end_by(Signal::INT);
    let report: serde_json::Value = serde_json::from_str(&output.out).expect("a report");
    assert_eq!(report["connections_lost"], 1, "{output}");
    assert!(report["reconnects"].as_u64() >= Some(1), "{output}");
    let paths = serde_json::json!([
        {"address": first, "connections": 0},
        {"address": second, "connections": 2},
    ]);
    assert_eq!(report["paths"], paths, "{output}");
    left.end_by(Signal::TERM).check_code(0);
}

#[test]
fn the_server_of_a_run_that_is_killed_ends_too() {
    let run = Running::start(&mut tool("run --duration 10m --quiet"));
    let children = format!("/proc/{0}/task/{0}/children", run.id());
    let child: u32 = until("the run starts a server", || {
        let text = std::fs::read_to_string(&children).ok()?;
        text.split(' ').next()?.parse().ok()
    });
    // TIME: a moment that nobody knows: before, while or after the server listens. What is checked holds at each of them.
    std::thread::sleep(random_ms(1, 300));
    run.end_by(Signal::KILL);
    let line = format!("/proc/{child}/cmdline");
    until("the server ends with its run", || {
        let is_there = std::fs::read(&line).is_ok_and(|line| !line.is_empty());
        (!is_there).then_some(())
    });
}
