//! The log, and the end of a server as it tells of it.

use std::io::{BufRead, BufReader, Lines};
use std::process::{ChildStderr, Command, Stdio};

use serde_json::Value;

use crate::{BENCH_TOOL, Server, address, run, serve};

/// The log of a server, as JSON.
pub(crate) struct Log(Lines<BufReader<ChildStderr>>);

impl Log {
    fn next(&mut self) -> Option<Value> {
        let line = self.0.next()?.unwrap();
        let event: Value = serde_json::from_str(&line).expect(&line);
        let time = event["time"].as_str().expect(&line);
        assert!(
            time.len() == 24 && time.starts_with("20") && time.ends_with('Z'),
            "{line}"
        );
        assert!(
            event["level"].is_string() && event["event"].is_string(),
            "{line}"
        );
        Some(event)
    }

    pub(crate) fn until(&mut self, name: &str) -> Value {
        loop {
            let event = self
                .next()
                .unwrap_or_else(|| panic!("the log ends before {name}"));
            if event["event"] == name {
                return event;
            }
        }
    }
}

pub(crate) fn start(address: &str, arguments: &[&str]) -> (Server, Log) {
    let mut command = serve(address, &["--log-format", "json", "--log-level", "info"]);
    let mut server = Server::start(command.args(arguments).stderr(Stdio::piped()));
    let log = BufReader::new(server.child.stderr.take().unwrap()).lines();
    (server, Log(log))
}

#[test]
fn connections_and_the_end_are_logged() {
    let address = address("log");
    let (server, mut log) = start(&address, &["--max-connections", "1"]);
    let listening = log.until("listening");
    assert!(listening["address"].as_str().unwrap().starts_with(&address));
    assert!(run(&address, "10", &[]).status.success());
    let ready = log.until("connection_ready");
    assert_eq!(ready["version"], 2);
    let closed = log.until("connection_closed");
    assert_eq!(closed["connection"], ready["connection"]);
    assert_eq!(closed["level"], "info", "{closed}");
    assert!(closed["messages_received"].as_u64().unwrap() >= 10);
    assert!(
        !run(&address, "10", &["--idle-connections", "1"])
            .status
            .success()
    );
    let rejected = log.until("connection_rejected");
    assert_eq!(rejected["level"], "warn");
    assert_eq!(rejected["reason"], "all its connections are taken");
    assert_eq!(server.end().code(), Some(0));
    log.until("draining");
    log.until("ended");
    assert!(log.next().is_none(), "the end is the last");
}

/// A server that is told to end in the midst of calls has answered all that it took: nothing was
/// handed to the service and left without its reply.
#[test]
fn no_call_is_lost_in_a_drain() {
    let address = address("drain");
    for operation in [&["--op", "echo"][..], &["--op", "write", "--size", "64KiB"]] {
        let (server, mut log) = start(&address, &[]);
        let mut client = Command::new(BENCH_TOOL);
        client
            .args(["run", "--connect", &address, "--duration", "100s"])
            .args(["--warmup", "0", "--depth", "8", "--quiet"])
            .args(operation);
        let client = client
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        log.until("connection_ready");
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert_eq!(server.end().code(), Some(0));
        let closed = log.until("connection_closed");
        assert_eq!(closed["reason"], "closed from this side");
        let ended = log.until("ended");
        assert_eq!(ended["calls"], ended["replies"], "{ended}");
        assert!(ended["calls"].as_u64().unwrap() > 0, "{ended}");
        // The client is told so, rather than to wait for its time to be over.
        let output = client.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.contains("were lost during the run"), "{message}");
    }
}
