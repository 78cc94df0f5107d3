//! Tests with peers in other processes: peers that die at each step, many peers at once, and peers of another user.
//!
//! A child process runs this test binary again. An environment variable names the part that it plays.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rpcrdma_testkit::{Wait, until};

use super::support::*;
use crate::interface::{Manager as _, ManagerEvent};
use crate::shm::manager::socket;

const PART: &str = "RPCRDMA_TEST_PART";
const ADDRESS: &str = "RPCRDMA_TEST_ADDRESS";

/// The command of a child that plays `part`. Its standard output is a pipe.
pub(super) fn child(part: &str, address: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "shm::manager::tests::children::play_a_part"])
        .args(["--nocapture", "--test-threads=1"])
        .env(PART, part)
        .env(ADDRESS, address)
        .stdout(Stdio::piped());
    command
}

/// Runs a part to its end, and checks that it succeeded.
pub(super) fn run_part(part: &str) {
    let status = child(part, &fresh_address())
        .stdout(Stdio::inherit())
        .status()
        .unwrap();
    assert!(status.success(), "the part {part} failed: {status}");
}

/// The entry point of the children, and no test. Without a part (in the parent) it does nothing.
#[test]
fn play_a_part() {
    let Ok(part) = std::env::var(PART) else {
        return;
    };
    let address = std::env::var(ADDRESS).unwrap();
    match part.split_once(' ') {
        Some(("client", step)) => client_that_dies(&address, step),
        Some(("server", step)) => server_that_dies(&address, step),
        Some(("crowd", count)) => crowd(&address, count.parse().unwrap()),
        None if part == "stranger-client" => stranger_client(&address),
        None if part == "stranger-server" => stranger_server(&address),
        None => super::limits::play(&part),
        Some(_) => panic!("unknown part {part}"),
    }
}

fn die() -> ! {
    let this = rustix::process::getpid();
    rustix::process::kill_process(this, rustix::process::Signal::KILL).unwrap();
    unreachable!("SIGKILL was survived")
}

fn client_that_dies(address: &str, step: &str) {
    let mut client = manager();
    let port = port(1);
    let asked = client.connect(address, &port, b"").unwrap();
    if step == "asked" {
        die();
    }
    expect_reply(&mut client);
    if step == "replied" {
        die();
    }
    let _seed = client.prepare(asked, &port).unwrap();
    if step == "prepared" {
        die();
    }
    client.confirm(asked).unwrap();
    die();
}

/// The server prints a line when it listens, because the parent connects then.
fn server_that_dies(address: &str, step: &str) {
    let mut server = manager();
    let port = port(1);
    server.listen(address).unwrap();
    println!("listening");
    if step == "listening" {
        // The server dies with a client in the backlog, so it accepts nothing.
        let name = socket::parse_address(address).unwrap();
        wait_for_backlog(&name);
        die();
    }
    let (accepted, ..) = expect_request(&mut server);
    if step == "requested" {
        die();
    }
    let _seed = server.prepare(accepted, &port).unwrap();
    if step == "prepared" {
        die();
    }
    server.accept(accepted, b"").unwrap();
    if step == "accepted" {
        die();
    }
    expect_established(&mut server);
    die();
}

/// Waits until a client has connected: `/proc/net/unix` then has two lines with the name of the listening socket.
fn wait_for_backlog(name: &str) {
    let ending = format!(".{name}");
    until("a client in the backlog", || {
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        let of_that_name = sockets.lines().filter(|line| line.ends_with(&ending));
        (of_that_name.count() > 1).then_some(())
    });
}

/// Waits until the child listens. The caller keeps the result, because a child fails when it prints to a closed pipe.
#[must_use]
fn wait_for_line(child: &mut Child) -> BufReader<ChildStdout> {
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("listening") {
        line.clear();
        let bytes = output.read_line(&mut line).unwrap();
        assert!(bytes > 0, "the child ended before it listened");
    }
    output
}

fn assert_killed(mut child: Child) {
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "{status}");
}

#[test]
fn clients_that_are_killed_at_each_step() {
    let mut server = manager();
    for step in ["asked", "replied", "prepared", "confirmed"] {
        let port = port(1);
        let address = fresh_address();
        let listener = server.listen(&address).unwrap();
        let child = child(&format!("client {step}"), &address).spawn().unwrap();
        let pid = child.id();
        let (accepted, _, peer, _) = expect_request(&mut server);
        assert_eq!(peer.key, u64::from(pid));
        if step != "asked" {
            let _seed = server.prepare(accepted, &port).unwrap();
            server.accept(accepted, b"").unwrap();
        }
        if step == "confirmed" {
            assert_eq!(expect_established(&mut server).0, accepted);
        }
        let (gone, port_event) = expect_disconnected(&mut server);
        assert_eq!(
            (gone, port_event.is_some()),
            (accepted, step != "asked"),
            "{step}"
        );
        assert_killed(child);
        server.close_listener(listener);
    }
    assert_eq!((server.connections.len(), server.half_open), (0, 0));
}

#[test]
fn servers_that_are_killed_at_each_step() {
    let mut client = manager();
    for step in [
        "listening",
        "requested",
        "prepared",
        "accepted",
        "established",
    ] {
        let port = port(1);
        let address = fresh_address();
        let mut child = child(&format!("server {step}"), &address).spawn().unwrap();
        let _output = wait_for_line(&mut child);
        let asked = client.connect(&address, &port, b"").unwrap();
        if matches!(step, "listening" | "requested" | "prepared") {
            let (failed, error) = expect_failed(&mut client);
            assert_eq!(failed, asked, "{step}");
            assert!(error.to_string().contains("died"), "{error}");
            assert_eq!(port.numbers.len(), 1);
        } else {
            assert_eq!(expect_reply(&mut client).0, asked);
            if step == "established" {
                let _seed = client.prepare(asked, &port).unwrap();
                client.confirm(asked).unwrap();
                assert_eq!(expect_established(&mut client).0, asked);
            }
            let (gone, port_event) = expect_disconnected(&mut client);
            assert_eq!((gone, port_event.is_some()), (asked, step == "established"));
        }
        assert_killed(child);
        // The dead server leaves nothing behind, so its name is free.
        let listener = client.listen(&address).unwrap();
        client.close_listener(listener);
    }
}

/// Makes `count` connections at once, checks that all are established, and waits until the server ends them.
fn crowd(address: &str, count: usize) {
    let mut client = manager();
    let port = port(u32::try_from(count).unwrap());
    for _ in 0..count {
        client.connect(address, &port, b"").unwrap();
    }
    let mut seeds = Vec::new();
    let (mut established, mut ended) = (0, 0);
    let mut events = Vec::new();
    while ended < count {
        wait_for_events(&mut client, &mut events, "the next step of the crowd");
        for event in events.drain(..) {
            match event {
                ManagerEvent::ConnectReply { connection, .. } => {
                    let mut seed = client.prepare(connection, &port).unwrap();
                    // A port drops the memory of a channel that it already has, and so does this test.
                    if !seeds.is_empty() {
                        seed.memory = None;
                    }
                    seeds.push(seed);
                    client.confirm(connection).unwrap();
                }
                ManagerEvent::Established { .. } => established += 1,
                ManagerEvent::Disconnected { .. } => ended += 1,
                ManagerEvent::Failed { error, .. } => panic!("failed: {error}"),
                other => panic!("{}", name(&other)),
            }
        }
    }
    assert_eq!(established, count);
    assert_eq!(
        client.channels.len(),
        1,
        "one pair of cores needs one channel"
    );
}

#[test]
fn a_crowd_of_processes_is_served_without_loss() {
    storm_of_processes(8, 64);
}

#[test]
fn four_thousand_connections_of_eight_processes() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    if limit.is_some_and(|limit| limit < 8192) {
        eprintln!("SKIPPED: 4096 connections need a hard limit of 8192 open files (ulimit -Hn)");
        return;
    }
    storm_of_processes(8, 512);
}

fn storm_of_processes(processes: usize, each: usize) {
    let mut server = manager();
    let all = processes * each;
    let port = port(u32::try_from(all).unwrap());
    let address = fresh_address();
    server.listen(&address).unwrap();
    let children: Vec<Child> = (0..processes)
        .map(|_| child(&format!("crowd {each}"), &address).spawn().unwrap())
        .collect();
    let mut peers: HashMap<u64, usize> = HashMap::new();
    let mut seeds = Vec::new();
    let mut standing = Vec::new();
    let mut events = Vec::new();
    while standing.len() < all {
        wait_for_events(&mut server, &mut events, "the next step of a crowd");
        for event in events.drain(..) {
            match event {
                ManagerEvent::ConnectRequest {
                    connection, peer, ..
                } => {
                    *peers.entry(peer.key).or_default() += 1;
                    seeds.push(server.prepare(connection, &port).unwrap());
                    server.accept(connection, b"").unwrap();
                }
                ManagerEvent::Established { connection, .. } => standing.push(connection),
                other => panic!("{}", name(&other)),
            }
        }
    }
    assert_eq!(peers.len(), processes);
    assert!(peers.values().all(|count| *count == each), "{peers:?}");
    assert_eq!(
        server.channels.len(),
        processes,
        "one channel for each pair of cores"
    );
    for connection in standing {
        server.disconnect(connection);
    }
    for child in children {
        let status = child.wait_with_output().unwrap().status;
        assert!(status.success(), "{status}");
    }
}

/// Whether this test can start a process of another user. Prints a message if it cannot.
fn can_be_another_user(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED {test}: only root can start a process of another user");
    }
    root
}

const NOBODY: u32 = 65534;

/// Connects to the name of a listener of root as another user. The kernel allows that, because abstract names have no
/// permissions.
fn stranger_client(full_name: &str) {
    assert_eq!(rustix::process::geteuid().as_raw(), NOBODY);
    let socket = raw_socket();
    let address = rustix::net::SocketAddrUnix::new_abstract_name(full_name.as_bytes()).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    let mut bytes = [0; 64];
    let (length, _) =
        rustix::net::recv(&socket, &mut bytes, rustix::net::RecvFlags::empty()).unwrap();
    // The rejection `not permitted`.
    assert_eq!(&bytes[..12], b"RSHM\x01\0\x04\0\x05\0\0\0");
    assert_eq!(length, 18);
}

/// Listens on a name of root as another user. The kernel allows that, because abstract names have no permissions.
fn stranger_server(full_name: &str) {
    assert_eq!(rustix::process::geteuid().as_raw(), NOBODY);
    let socket = raw_socket();
    let address = rustix::net::SocketAddrUnix::new_abstract_name(full_name.as_bytes()).unwrap();
    rustix::net::bind(&socket, &address).unwrap();
    rustix::net::listen(&socket, 1).unwrap();
    println!("listening");
    let accepted = rustix::net::accept(&socket).unwrap();
    // The client closes the connection without a message.
    let mut bytes = [0; 64];
    let received = rustix::net::recv(&accepted, &mut bytes, rustix::net::RecvFlags::empty());
    assert!(!matches!(received, Ok((length, _)) if length > 0));
}

fn raw_socket() -> std::os::fd::OwnedFd {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn full_name(address: &str) -> String {
    format!("rpcrdma-shm.0.{}", socket::parse_address(address).unwrap())
}

#[test]
fn clients_of_another_user_are_turned_away() {
    if !can_be_another_user("clients_of_another_user_are_turned_away") {
        return;
    }
    let (mut server, address) = listening(manager());
    let mut child = child("stranger-client", &full_name(&address))
        .uid(NOBODY)
        .spawn()
        .unwrap();
    let mut events = Vec::new();
    let wait = Wait::begin("the end of the client of another user");
    let status = loop {
        server.wait(Duration::from_millis(5), &mut events).unwrap();
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        wait.look(|| format!("{server:?}"));
    };
    assert!(status.success(), "{status}");
    assert!(events.is_empty());
    assert_eq!(server.counters.peers_not_permitted, 1);
}

#[test]
fn servers_of_another_user_are_not_trusted() {
    if !can_be_another_user("servers_of_another_user_are_not_trusted") {
        return;
    }
    let mut client = manager();
    let address = fresh_address();
    let mut child = child("stranger-server", &full_name(&address))
        .uid(NOBODY)
        .spawn()
        .unwrap();
    let _output = wait_for_line(&mut child);
    client.connect(&address, &port(1), b"secret").unwrap();
    let (_, error) = expect_failed(&mut client);
    let text = error.to_string();
    assert!(
        text.contains("user 65534") && text.contains("user 0"),
        "{text}"
    );
    assert!(child.wait().unwrap().success());
}
