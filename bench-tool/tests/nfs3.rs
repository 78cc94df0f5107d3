//! `bench-tool serve --service nfs3` as a process.

#[path = "support/checkpoint.rs"]
mod checkpoint;

use std::io::{Read, Write};
use std::net::TcpStream;

use rpcrdma_testkit::{Ended, Folder, Running, command, until};
use rustix::process::Signal;
use serde_json::Value;

use self::checkpoint::report_in;

fn tool(line: &str) -> std::process::Command {
    command(env!("CARGO_BIN_EXE_bench-tool"), line)
}

/// Starts a server; it, and its address by TCP, which is that of MOUNT too.
fn start(arguments: &str) -> (Running, String) {
    let line = format!("serve --service nfs3 {arguments}");
    let (server, line) = Running::listening(&mut tool(&line));
    let (_, address) = line.split_once("tcp:").expect(&line);
    let end = address.find([' ', ')']).unwrap_or(address.len());
    (server, address[..end].to_owned())
}

/// A command that makes calls of a server by TCP.
fn calls(address: &str, arguments: &str) -> std::process::Command {
    let port = address.rsplit(':').next().unwrap();
    let line = format!("nfs --connect tcp:{address} --mount-port {port} --export /export");
    tool(&format!("{line} --warmup 0 {arguments}"))
}

/// Calls of a server by TCP, all of which succeed.
fn call(address: &str, arguments: &str) {
    Ended::of(&mut calls(address, arguments)).check_code(0);
}

/// A server by RPC-over-RDMA has its files on a core; calls by TCP are answered there.
#[test]
fn calls_by_tcp_reach_the_core_that_has_the_files() {
    let listen = format!("--listen shm:nfs3-{}", std::process::id());
    let (server, address) = start(&format!(
        "{listen} --mount-listen 127.0.0.1:0 --space 64MiB"
    ));
    call(
        &address,
        "--op mix --verify --size 4097 --file-size 100kB --count 100 --depth 4",
    );
    server.end_by(Signal::TERM).check_code(0);
}

#[test]
fn it_listens_answers_and_ends_when_it_is_told() {
    let (server, address) = start("--listen tcp:127.0.0.1:0");
    let octets = |words: &[u32]| -> Vec<u8> {
        let octets = words.iter().flat_map(|word| word.to_be_bytes());
        octets.collect()
    };
    let mut stream = TcpStream::connect(address).unwrap();
    // XID 1, a call of RPC version 2: program 100003, version 3, NULL; AUTH_NONE twice.
    let call = octets(&[0x8000_0028, 1, 0, 2, 100_003, 3, 0, 0, 0, 0, 0]);
    stream.write_all(&call).unwrap();
    let mut reply = [0; 28];
    stream.read_exact(&mut reply).unwrap();
    // XID 1, a reply, accepted, AUTH_NONE, SUCCESS.
    assert_eq!(reply[..], octets(&[0x8000_0018, 1, 1, 0, 0, 0, 0]));
    server.end_by(Signal::TERM).check_code(0);
}

#[test]
fn invalid_nfs3_serve_options_are_usage_errors_with_advice() {
    for (line, words) in [
        (
            "--service nfs3 --listen tcp:127.0.0.1:0 --cores 0",
            "--cores",
        ),
        ("--listen tcp:127.0.0.1:0", "--service nfs3"),
        ("--service nfs3 --listen tcp:localhost", "port"),
    ] {
        let output = Ended::of(&mut tool(&format!("serve {line}"))).with_code(2);
        output.check_errors(&[words]);
    }
}

/// What `bench-tool nfs` says of a server is true of this one: every byte is what was written.
#[test]
fn the_requester_finds_every_byte() {
    let (_server, address) = start("--listen tcp:127.0.0.1:0");
    for arguments in [
        "--op getattr --count 200 --depth 8",
        "--op read --size 65537 --file-size 3MiB --files 3 --count 200 --depth 8 --verify",
        "--op mix --size 4097 --file-size 1MiB --access random --count 500 --connections 3 --depth 4 --verify",
    ] {
        call(&address, arguments);
    }
}

/// As those of `run`: a server may answer none of them within the time.
#[test]
fn without_a_warm_up_the_first_calls_count_however_short_the_time_is() {
    let (_server, address) = start("--listen tcp:127.0.0.1:0");
    for load in ["--depth 3", "--depth 3 --rate 1000"] {
        call(&address, &format!("--op getattr --duration 1us {load}"));
    }
}

/// The threads of the connections record latencies, and another thread collects them: none is lost on the way.
#[test]
fn the_intervals_of_all_connections_have_all_calls() {
    let (_server, address) = start("--listen tcp:127.0.0.1:0");
    let folder = Folder::new("nfs3-intervals");
    let json = folder.path("run.json");
    let line = format!(
        "--op getattr --duration 10m --interval 100ms --connections 3 --depth 4 --checkpoint 200ms --json {json}"
    );
    let run = Running::start(&mut calls(&address, &line));
    // A thread has three spare histograms, and goes on in the fourth interval if nobody collects: it is run until there are
    // far more, however long the collecting thread is kept from it.
    until("ten intervals", || {
        let report = report_in(&json)?;
        (report["intervals"].as_array().unwrap().len() >= 10).then_some(())
    });
    run.end_by(Signal::INT).check_code(0);
    let report: Value = serde_json::from_str(&folder.read("run.json")).unwrap();
    let intervals = report["intervals"].as_array().unwrap();
    let sum: u64 = intervals
        .iter()
        .map(|it| it["calls"].as_u64().unwrap())
        .sum();
    assert!(sum > 0 && intervals.len() >= 10, "{report}");
    assert_eq!(report["calls"], sum);
    assert_eq!(report["latency_ns"]["count"], sum);
}
