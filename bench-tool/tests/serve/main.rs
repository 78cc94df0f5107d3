//! `bench-tool serve` as those who operate it meet it.
#![forbid(unsafe_code)]

#[path = "../support/checkpoint.rs"]
mod checkpoint;
mod cores;
mod faults;
#[path = "../support/hangup.rs"]
mod hangup;
#[path = "../support/json.rs"]
mod json;
mod limits;
mod load;
mod log;
mod metrics;
mod notify;
#[path = "../support/page.rs"]
mod page;
#[path = "../support/patient.rs"]
mod patient;
mod prometheus;
mod records;
mod retry;
mod stop;
mod unit;
#[path = "../support/usable.rs"]
mod usable;
#[path = "../support/watched.rs"]
mod watched;

use std::io::BufReader;
use std::process::{ChildStderr, Command};

use rpcrdma_testkit::{Ended, Running, command, until};
use rustix::process::Signal;

use self::page::page_at;
use self::patient::PATIENT;
use self::prometheus::Page;

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

    /// Waits until clients have made more calls than `count`. A server has a connection before its client has it: only
    /// calls show that both have it.
    fn until_calls(&self, count: f64) {
        until("calls of the clients", || {
            let page = Page::parse(&self.page("/metrics").1);
            (page.sum("rpcrdma_calls_total", "") > count).then_some(())
        });
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

/// An address that no other test has.
fn address(what: &str) -> String {
    format!("shm:serve-{what}-{}", std::process::id())
}

/// `bench-tool serve` at `address`, with these arguments.
fn serve(address: &str, arguments: &str) -> Command {
    // A server on TCP has no such knobs.
    let patient = match address.starts_with("shm:") {
        true => PATIENT,
        false => "",
    };
    let line = format!("serve --listen {address} {patient} {arguments}");
    let mut command = command(BENCH_TOOL, &line);
    command.env_remove("NOTIFY_SOCKET");
    command
}

/// A client at `address`, with these arguments.
fn run(address: &str, arguments: &str) -> Ended {
    let line = format!("run --connect {address} --warmup 0 --quiet {PATIENT} {arguments}");
    Ended::of(&mut command(BENCH_TOOL, &line))
}
