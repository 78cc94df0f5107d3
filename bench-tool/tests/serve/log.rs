//! The log, and the end of a server as it tells of it.

use std::io::{BufRead, BufReader, Lines};
use std::process::ChildStderr;

use rpcrdma_testkit::{Running, command};
use serde_json::Value;

use crate::patient::PATIENT;
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

pub(crate) fn start(address: &str, arguments: &str) -> (Server, Log) {
    let log = "--log-format json --log-level info";
    let mut server = Server::start(&mut serve(address, &format!("{log} {arguments}")));
    let log = Log(server.take_errors().lines());
    (server, log)
}

#[test]
fn connections_and_the_end_are_logged() {
    let address = address("log");
    let (server, mut log) = start(&address, "--max-connections 1");
    let listening = log.until("listening");
    assert_eq!(listening["address"], address);
    assert_eq!(listening["clients"], "processes of this user");
    run(&address, "--count 10").check_code(0);
    let ready = log.until("connection_ready");
    assert_eq!(ready["version"], 2);
    let closed = log.until("connection_closed");
    assert_eq!(closed["connection"], ready["connection"]);
    assert_eq!(closed["level"], "info", "{closed}");
    assert!(closed["messages_received"].as_u64().unwrap() >= 10);
    let refused = run(&address, "--count 10 --idle-connections 1");
    assert_ne!(refused.code, Some(0));
    let rejected = log.until("connection_rejected");
    assert_eq!(rejected["level"], "warn");
    assert_eq!(rejected["reason"], "all its connections are taken");
    server.end();
    log.until("draining");
    log.until("ended");
    assert!(log.next().is_none(), "the end is the last");
}

/// A server that is told to end in the midst of calls has answered all that it took: nothing was
/// handed to the service and left without its reply.
#[test]
fn no_call_is_lost_in_a_drain() {
    let address = address("drain");
    for operation in ["--op echo", "--op write --size 64KiB"] {
        // Either end may be kept from its work, and the drain is not to end before.
        let patient = "--metrics 127.0.0.1:0 --set drain_timeout_ms=240000";
        let (server, mut log) = start(&address, patient);
        let run = format!(
            "run --connect {address} --duration 10m --warmup 0 --depth 8 --quiet {PATIENT}"
        );
        let client = Running::start(&mut command(BENCH_TOOL, &format!("{run} {operation}")));
        // The first asks for the server's counters.
        server.until_calls(10.0);
        server.end();
        let closed = log.until("connection_closed");
        assert_eq!(closed["reason"], "closed from this side");
        let ended = log.until("ended");
        assert_eq!(ended["calls"], ended["replies"], "{ended}");
        assert!(ended["calls"].as_u64().unwrap() > 0, "{ended}");
        // The client is told so, rather than to wait for its time to be over.
        let client = client.end().with_code(1);
        client.check_errors(&["were lost during the run"]);
    }
}
