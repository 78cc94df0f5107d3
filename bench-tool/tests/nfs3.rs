//! `bench-tool serve --service nfs3` as a process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

const BENCH_TOOL: &str = env!("CARGO_BIN_EXE_bench-tool");

/// A server, ended with the test however that ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server by RPC-over-RDMA has its files on a core; calls by TCP are answered there.
#[test]
fn calls_by_tcp_reach_the_core_that_has_the_files() {
    let name = format!("shm:nfs3-{}", std::process::id());
    let mut server = Command::new(BENCH_TOOL)
        .args(["serve", "--service", "nfs3", "--listen", &name])
        .args(["--mount-listen", "127.0.0.1:0", "--space", "64MiB"])
        .stdout(Stdio::piped())
        .spawn()
        .map(Server)
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(server.0.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let address = line.split("tcp:").nth(1).expect(&line).trim_end();
    let address = address.trim_end_matches(')');
    let port = address.rsplit(':').next().unwrap();
    let output = Command::new(BENCH_TOOL)
        .args([
            "nfs",
            "--connect",
            &format!("tcp:{address}"),
            "--mount-port",
            port,
        ])
        .args([
            "--export", "/export", "--warmup", "0", "--op", "mix", "--verify",
        ])
        .args([
            "--size",
            "4097",
            "--file-size",
            "100kB",
            "--count",
            "100",
            "--depth",
            "4",
        ])
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}");
    kill_process(Pid::from_child(&server.0), Signal::TERM).unwrap();
    assert_eq!(server.0.wait().unwrap().code(), Some(0));
}

/// Starts a server; it, and where it listens.
fn start() -> (Server, String) {
    let mut server = Command::new(BENCH_TOOL)
        .args(["serve", "--service", "nfs3", "--listen", "tcp:127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .map(Server)
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(server.0.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let address = line.strip_prefix("listening on tcp:").expect(&line);
    let address = address.split(' ').next().unwrap().to_owned();
    (server, address)
}

#[test]
fn it_listens_answers_and_ends_when_it_is_told() {
    let (mut server, address) = start();
    let mut stream = TcpStream::connect(address).unwrap();
    // XID 1, a call of RPC version 2: program 100003, version 3, NULL; AUTH_NONE twice.
    let words = [0x8000_0028, 1, 0, 2, 100_003, 3, 0, 0, 0, 0, 0_u32];
    let call: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    stream.write_all(&call).unwrap();
    let mut reply = [0; 28];
    stream.read_exact(&mut reply).unwrap();
    // XID 1, a reply, accepted, AUTH_NONE, SUCCESS.
    let words = [0x8000_0018, 1, 1, 0, 0, 0, 0_u32];
    let expected: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    assert_eq!(reply[..], expected);
    kill_process(Pid::from_child(&server.0), Signal::TERM).unwrap();
    assert_eq!(server.0.wait().unwrap().code(), Some(0));
}

#[test]
fn what_cannot_be_obeyed_is_a_usage_error_that_says_what_to_do() {
    for (line, words) in [
        (
            "--service nfs3 --listen tcp:127.0.0.1:0 --cores 0",
            "--cores",
        ),
        ("--listen tcp:127.0.0.1:0", "--service nfs3"),
        ("--service nfs3 --listen tcp:localhost", "port"),
    ] {
        let output = Command::new(BENCH_TOOL)
            .arg("serve")
            .args(line.split(' '))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.contains(words), "{line}: {message}");
    }
}

/// What `bench-tool nfs` says of a server is true of this one: every byte is what was written.
#[test]
fn the_requester_finds_every_byte() {
    let (_server, address) = start();
    let port = address.rsplit(':').next().unwrap();
    for line in [
        "--op getattr --count 200 --depth 8",
        "--op read --size 65537 --file-size 3MiB --files 3 --count 200 --depth 8 --verify",
        "--op mix --size 4097 --file-size 1MiB --access random --count 500 --connections 3 --depth 4 --verify",
    ] {
        let output = Command::new(BENCH_TOOL)
            .args([
                "nfs",
                "--connect",
                &format!("tcp:{address}"),
                "--mount-port",
                port,
            ])
            .args(["--export", "/export", "--warmup", "0"])
            .args(line.split(' '))
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {message}");
    }
}
