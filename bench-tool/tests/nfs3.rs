//! `bench-tool serve --service nfs3` as a process.

#[path = "support/checkpoint.rs"]
mod checkpoint;

use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;

use rpcrdma_testkit::{CheckWords as _, Ended, Folder, Running, command, until};
use rustix::process::Signal;
use serde_json::Value;

use self::checkpoint::report_in;

fn tool(line: &str) -> std::process::Command {
    command(env!("CARGO_BIN_EXE_bench-tool"), line)
}

/// Starts a server; it, and the line that it prints.
fn started(arguments: &str) -> (Running, String) {
    let line = format!("serve --service nfs3 --space 64MiB {arguments}");
    Running::listening(&mut tool(&line))
}

/// The address by TCP in the line of a server; `None` if there is none.
fn tcp_address(line: &str) -> Option<&str> {
    let (_, address) = line.split_once("tcp:")?;
    address.split_whitespace().next()
}

/// Starts a server; it, and its address by TCP.
fn start(arguments: &str) -> (Running, String) {
    let (server, line) = started(arguments);
    let address = tcp_address(&line).expect(&line).to_owned();
    (server, address)
}

/// A name on shm that no other test has.
fn shm(name: &str) -> String {
    format!("shm:nfs3-{name}-{}", std::process::id())
}

/// A command that makes calls of a server at `connect`.
fn calls_at(connect: &str, arguments: &str) -> std::process::Command {
    let line = format!("nfs --connect {connect} --export /export --warmup 0 {arguments}");
    tool(&line)
}

/// A command that makes calls of a server by TCP.
fn calls(address: &str, arguments: &str) -> std::process::Command {
    calls_at(&format!("tcp:{address}"), arguments)
}

/// Calls of a server by TCP, all of which succeed.
fn call(address: &str, arguments: &str) {
    Ended::of(&mut calls(address, arguments)).check_code(0);
}

const MIX: &str = "--op mix --verify --size 4097 --file-size 100kB --count 100 --depth 4";

/// The TCP sockets that a process listens on.
fn tcp_listeners(process_id: u32) -> usize {
    let process = format!("/proc/{process_id}");
    let files = std::fs::read_dir(format!("{process}/fd")).unwrap();
    let targets = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    let own: Vec<String> = targets.map(|it| it.display().to_string()).collect();
    let tables = ["tcp", "tcp6"].map(|table| {
        // Without IPv6 there is no table of it.
        std::fs::read_to_string(format!("{process}/net/{table}")).unwrap_or_default()
    });
    let sockets = tables.iter().flat_map(|table| table.lines().skip(1));
    let listening = sockets.filter(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // The fourth column is the state, TCP_LISTEN; the tenth the inode.
        words[3] == "0A" && own.contains(&format!("socket:[{}]", words[9]))
    });
    listening.count()
}

/// A server by RPC-over-RDMA has its files on a core; calls by TCP are answered there. The Linux client calls so too: MOUNT
/// by TCP, and NFS by RPC-over-RDMA.
#[test]
fn calls_by_tcp_reach_the_core_that_has_the_files() {
    let at = shm("tcp");
    let (server, line) = started(&format!("--listen {at} --mount-listen 127.0.0.1:0"));
    let address = tcp_address(&line).expect(&line);
    line.check_words(&[
        &format!("listening on {at} for processes of this user"),
        &format!("and on tcp:{address} for anybody who reaches it"),
        "mountproto=tcp,nolock 127.0.0.1:/export",
    ]);
    assert_eq!(tcp_listeners(server.id()), 1);
    call(address, MIX);
    let (_, port) = address.rsplit_once(':').unwrap();
    let mount_port = format!("--mount-port {port} {MIX}");
    Ended::of(&mut calls_at(&at, &mount_port)).check_code(0);
    server.end_by(Signal::TERM).check_code(0);
}

/// A server with keys serves clients that prove one, and nobody else: the key file guards MOUNT and NFS alike.
#[test]
fn server_with_keys_listens_on_no_tcp_port() {
    let folder = Folder::new("nfs3-keys");
    let keys = folder.write("keys", format!("lab {}\n", "5a".repeat(32)));
    std::fs::set_permissions(&keys, Permissions::from_mode(0o600)).unwrap();
    let at = shm("keys");
    let keys = format!("--psk-file {keys}");
    let (server, line) = started(&format!("--listen {at} {keys} --identity server"));
    assert_eq!(tcp_address(&line), None, "{line}");
    line.check_words(&[&format!("{at} for hosts with a key of --psk-file")]);
    assert_eq!(tcp_listeners(server.id()), 0);
    let stranger = Ended::of(&mut calls_at(&at, MIX)).with_code(1);
    stranger.check_errors(&["requires authentication"]);
    let known = format!("{keys} --identity client {MIX}");
    Ended::of(&mut calls_at(&at, &known)).check_code(0);
    let around = format!("{keys} --identity client --mount-port 1");
    Ended::of(&mut calls_at(&at, &around)).check_failed(2, &["--mount-port", "--psk-file"]);
    server.end_by(Signal::TERM).check_code(0);
    let tcp = "--listen tcp:127.0.0.1:0".to_owned();
    let mount = format!("--listen {at} --mount-listen 127.0.0.1:0");
    for (option, listen) in [("--listen", tcp), ("--mount-listen", mount)] {
        let line = format!("serve --service nfs3 {listen} {keys} --identity server");
        let refused = Ended::of(&mut tool(&line)).with_code(2);
        let words = format!("{option} tcp:127.0.0.1:0 is not possible with --psk-file");
        refused.check_errors(&[&words, "what to do"]);
    }
}

#[test]
fn our_client_mounts_over_shm_without_any_tcp_port() {
    let at = shm("alone");
    let (server, line) = started(&format!("--listen {at}"));
    assert_eq!(tcp_address(&line), None, "{line}");
    assert_eq!(tcp_listeners(server.id()), 0);
    for protocol in ["v1", "v2"] {
        let line = format!("{MIX} --protocol {protocol}");
        Ended::of(&mut calls_at(&at, &line)).check_code(0);
    }
    let nowhere = format!("nfs --connect {at} --export /nowhere");
    Ended::of(&mut tool(&nowhere)).check_failed(1, &["MNT3ERR_NOENT", "--export"]);
    server.end_by(Signal::TERM).check_code(0);
}

#[test]
fn program_listens_answers_and_ends_on_request() {
    let (server, line) = started("--listen tcp:127.0.0.1:0 --metrics 127.0.0.1:0");
    let address = tcp_address(&line).expect(&line);
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
    // The metrics count the call, and a stray reply, which has no answer.
    stream.write_all(&reply).unwrap();
    let (_, metrics) = line.split_once("http://").expect(&line);
    let (metrics, _) = metrics.split_once('/').expect(&line);
    let counted =
        |event, count| format!("rpcrdma_control_events_total{{event=\"{event}\"}} {count}\n");
    until("a page with both messages", || {
        let mut page = TcpStream::connect(metrics).unwrap();
        page.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        page.read_to_string(&mut text).unwrap();
        let counts = [counted("tcp_calls", 1), counted("tcp_messages_ignored", 1)];
        counts
            .iter()
            .all(|count| text.contains(count))
            .then_some(())
    });
    server.end_by(Signal::TERM).check_code(0);
}

/// The second server asks for more memory than any machine has.
#[test]
fn taken_address_is_found_before_a_server_takes_memory() {
    let name = shm("taken");
    let line = format!("--listen {name} --mount-listen 127.0.0.1:0");
    let (_server, tcp) = start(&line);
    for listen in [
        format!("--listen {name}"),
        format!("--listen {name}-other --mount-listen {tcp}"),
        format!("--listen tcp:{tcp}"),
    ] {
        let line = format!("serve --service nfs3 --space 64TiB {listen}");
        let ended = Ended::of(&mut tool(&line)).with_code(1);
        ended.check_errors(&["cannot listen on", "is in use", "choose another "]);
    }
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
        (
            "--service nfs3 --listen tcp:127.0.0.1:0 --mount-listen 127.0.0.1:0",
            "--mount-listen",
        ),
        ("--listen shm:x --mount-listen 127.0.0.1:0", "nfs3"),
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
