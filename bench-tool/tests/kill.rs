//! `kill -9` of either process, at random and under load: the other one ends or goes on, soon and
//! with a clear error, and nothing is left behind.
//!
//! `RPCRDMA_KILLS` sets how often each side is killed; the default keeps a test run short.
#![forbid(unsafe_code)]

#[path = "support/usable.rs"]
mod usable;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How often each side is killed when nobody says otherwise.
const KILLS_DEFAULT: u32 = 4;

/// How long anything may take before the test fails. The times that matter are printed; a loaded
/// machine must not fail the test.
const PATIENCE: Duration = Duration::from_secs(120);

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

fn tool(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench-tool"));
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A process that is killed when the test ends in whatever way.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn start(arguments: &[&str]) -> Self {
        Self(tool(arguments).spawn().expect("the tool starts"))
    }

    fn pid(&self) -> Pid {
        let raw = i32::try_from(self.0.id()).expect("a process number");
        Pid::from_raw(raw).expect("not zero")
    }

    fn kill(&self) {
        kill_process(self.pid(), Signal::KILL).expect("it is ours");
    }

    /// Waits for its end; the output, and how long it took.
    fn end(mut self) -> (Output, Duration) {
        let begin = Instant::now();
        while self.0.try_wait().expect("it is ours").is_none() {
            assert!(
                begin.elapsed() < PATIENCE,
                "process {} did not end",
                self.0.id()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        let took = begin.elapsed();
        let mut output = Output {
            status: self.0.wait().expect("it has ended"),
            stdout: Vec::new(),
            stderr: Vec::new(),
        };
        if let Some(out) = &mut self.0.stdout {
            out.read_to_end(&mut output.stdout).expect("its output");
        }
        if let Some(err) = &mut self.0.stderr {
            err.read_to_end(&mut output.stderr).expect("its messages");
        }
        (output, took)
    }

    fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.0.id())).map_or(0, Iterator::count)
    }
}

/// Cores for client and server: two different ones, where this process may use two.
fn cores() -> (String, String) {
    let usable = usable::cores_usable();
    let (first, last) = (usable.first(), usable.last());
    let name = |core: Option<&usize>| core.expect("at least one core").to_string();
    (name(first), name(last))
}

/// A server that listens.
fn server(address: &str) -> Process {
    let mut server = Process::start(&["serve", "--listen", address, "--cores", &cores().1]);
    let mut line = String::new();
    let out = server.0.stdout.as_mut().expect("its output is piped");
    BufReader::new(out)
        .read_line(&mut line)
        .expect("it says when it is ready");
    assert!(line.starts_with("listening on "), "{line}");
    server
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

fn load(address: &str) -> Process {
    let core = cores().0;
    let arguments = [
        "run",
        "--connect",
        address,
        "--cores",
        &core,
        "--depth",
        "8",
        "--connections",
        "2",
        "--op",
        "echo",
        "--size",
        "8KiB",
        "--duration",
        "60s",
        "--warmup",
        "0",
        "--quiet",
    ];
    Process::start(&arguments)
}

#[test]
fn a_server_outlives_clients_that_are_killed_and_keeps_nothing_of_them() {
    let address = address("clients");
    let server = server(&address);
    let before = server.open_files();
    let core = cores().0;
    let check = || {
        let arguments = [
            "run",
            "--connect",
            &address,
            "--cores",
            &core,
            "--count",
            "200",
            "--quiet",
        ];
        let (output, _) = Process::start(&arguments).end();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    check();
    for _ in 0..kills() {
        let victim = load(&address);
        std::thread::sleep(random_ms(1, 250));
        victim.kill();
        let _ = victim.end();
        check();
    }
    // Connections close a moment after their clients ended.
    let begin = Instant::now();
    while server.open_files() != before {
        assert!(
            begin.elapsed() < PATIENCE,
            "files of dead clients are left open: {} instead of {before}",
            server.open_files()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(names_left(&address), 1, "the listener's own name");
    kill_process(server.pid(), Signal::TERM).expect("it is ours");
    let (output, _) = server.end();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(names_left(&address), 0);
}

#[test]
fn a_client_ends_with_a_clear_error_when_its_server_is_killed() {
    let mut slowest = Duration::ZERO;
    for _ in 0..kills() {
        let address = address("servers");
        let server = server(&address);
        let client = load(&address);
        std::thread::sleep(random_ms(50, 400));
        server.kill();
        let (output, took) = client.end();
        slowest = slowest.max(took);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(
            message.contains("lost")
                || message.contains("closed the connection")
                || message.contains("could not be made")
                || message.contains("refused"),
            "{message}"
        );
        assert!(message.contains(&address), "it names the server: {message}");
        drop(server);
        assert_eq!(names_left(&address), 0, "nothing is left of the server");
    }
    println!("slowest end of a client after its server's death: {slowest:?}");
}

#[test]
fn the_server_of_a_run_that_is_killed_ends_too() {
    let run = Process::start(&["run", "--duration", "60s", "--quiet"]);
    let children = format!("/proc/{0}/task/{0}/children", run.0.id());
    let begin = Instant::now();
    let child = loop {
        let text = std::fs::read_to_string(&children).unwrap_or_default();
        if let Some(pid) = text
            .split(' ')
            .next()
            .and_then(|pid| pid.parse::<u32>().ok())
        {
            break pid;
        }
        assert!(begin.elapsed() < PATIENCE, "the run started no server");
        std::thread::sleep(Duration::from_millis(2));
    };
    std::thread::sleep(random_ms(1, 300));
    run.kill();
    let _ = run.end();
    let begin = Instant::now();
    let proc = format!("/proc/{child}/cmdline");
    while std::fs::read(&proc).is_ok_and(|line| !line.is_empty()) {
        assert!(begin.elapsed() < PATIENCE, "the server outlived its run");
        std::thread::sleep(Duration::from_millis(5));
    }
}
