//! `bench-tool serve` as those who operate it meet it.
#![forbid(unsafe_code)]

mod cores;
mod faults;
#[path = "../support/json.rs"]
mod json;
mod limits;
mod load;
mod log;
mod metrics;
mod notify;
mod prometheus;
mod records;
mod retry;
mod unit;
#[path = "../support/usable.rs"]
mod usable;

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{ChildStderr, Command};

use rpcrdma_testkit::{Ended, PATIENCE, Running, command};
use rustix::process::Signal;

const BENCH_TOOL: &str = env!("CARGO_BIN_EXE_bench-tool");

/// A server, which ends with the test however that ends.
struct Server {
    process: Running,
    /// The line that says that it listens.
    line: String,
}

impl Server {
    /// Starts a server and waits until it listens.
    fn start(command: &mut Command) -> Self {
        let (process, line) = Running::listening(command);
        Self { process, line }
    }

    /// The page at `path` of its metrics' address: the head and the body.
    fn page(&self, path: &str) -> (String, String) {
        let metrics = self.line.split_once("(metrics at http://");
        let (_, url) = metrics.expect("metrics are served");
        let (host, _) = url.split_once('/').unwrap();
        page_at(host, path)
    }

    fn take_errors(&mut self) -> BufReader<ChildStderr> {
        self.process.errors.take().expect("nobody has them yet")
    }

    /// Asks for its end, which is a good one.
    #[track_caller]
    fn end(self) {
        self.process.end_by(Signal::TERM).check_code(0);
    }
}

/// The page at `path` of an address of metrics: the head and the body.
fn page_at(host: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// An address that no other test has.
fn address(what: &str) -> String {
    format!("shm:serve-{what}-{}", std::process::id())
}

/// `bench-tool serve` at `address`, with these arguments.
fn serve(address: &str, arguments: &str) -> Command {
    let mut command = command(BENCH_TOOL, &format!("serve --listen {address} {arguments}"));
    command.env_remove("NOTIFY_SOCKET");
    command
}

/// A client at `address`, with these arguments.
fn run(address: &str, arguments: &str) -> Ended {
    let line = format!("run --connect {address} --warmup 0 --quiet {arguments}");
    Ended::of(&mut command(BENCH_TOOL, &line))
}
