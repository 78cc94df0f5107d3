//! `bench-tool serve` as those who operate it meet it.
#![forbid(unsafe_code)]

mod cores;
mod faults;
mod limits;
mod log;
mod metrics;
mod notify;
mod prometheus;
mod unit;
#[path = "../support/usable.rs"]
mod usable;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

const BENCH_TOOL: &str = env!("CARGO_BIN_EXE_bench-tool");

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server, which ends with the test however that ends.
struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// The line that says that it listens.
    line: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts a server and waits until it listens. Its metrics are at any port.
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let server = Self {
            child,
            stdout,
            line,
        };
        assert!(server.line.starts_with("listening on "), "{}", server.line);
        server
    }

    /// What stands at `path` of its metrics' address: the head and the body.
    fn page(&self, path: &str) -> (String, String) {
        let (_, url) = self
            .line
            .split_once("(metrics at http://")
            .expect("metrics are served");
        let (host, _) = url.split_once('/').unwrap();
        let mut stream = TcpStream::connect(host).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Asks for its end; how it ended.
    fn end(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        self.child.wait().unwrap()
    }
}

/// An address that no other test has.
fn address(what: &str) -> String {
    format!("shm:serve-{what}-{}", std::process::id())
}

/// `bench-tool serve` at `address`, with these arguments.
fn serve(address: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(BENCH_TOOL);
    command.args(["serve", "--listen", address]).args(arguments);
    command.env_remove("NOTIFY_SOCKET");
    command
}

/// So many calls of a client.
fn run(address: &str, count: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(BENCH_TOOL);
    command
        .args(["run", "--connect", address, "--count", count])
        .args(["--warmup", "0", "--quiet"])
        .args(arguments);
    command.output().unwrap()
}
