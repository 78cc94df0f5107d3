//! What the service manager is told.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::mpsc::{Receiver, channel};

use rpcrdma_testkit::{Ended, PATIENCE};

use crate::{Server, address, serve};

/// What a service manager gets, and what it is named in `$NOTIFY_SOCKET`. As one does, it reads all the time: a socket
/// holds few messages, and what it has no room for is lost.
fn manager(what: &str) -> (Receiver<String>, String) {
    let name = format!("rpcrdma-manager-{what}-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let socket = UnixDatagram::bind_addr(&address).unwrap();
    let (messages, received) = channel();
    std::thread::spawn(move || {
        let mut bytes = [0; 1024];
        while let Ok(count) = socket.recv(&mut bytes) {
            let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
            if messages.send(text).is_err() {
                break;
            }
        }
    });
    (received, format!("@{name}"))
}

/// All messages up to the first that begins with `begin`; that one is the last.
fn until(manager: &Receiver<String>, begin: &str) -> Vec<String> {
    let mut told: Vec<String> = Vec::new();
    while told.last().is_none_or(|text| !text.starts_with(begin)) {
        told.push(manager.recv_timeout(PATIENCE).expect(begin));
    }
    told
}

#[test]
fn readiness_liveness_and_the_end_are_reported() {
    let (manager, name) = manager("life");
    let address = address("notify");
    let mut command = serve(&address, "");
    command.env("NOTIFY_SOCKET", name);
    command
        .env("WATCHDOG_USEC", "600000")
        .env_remove("WATCHDOG_PID");
    let server = Server::start(&mut command);
    let told = until(&manager, "READY=1\n");
    let status = format!("STATUS=listening on {address}");
    assert!(told.last().unwrap().contains(&status), "{told:?}");
    for _ in 0..3 {
        until(&manager, "WATCHDOG=1");
    }
    server.end();
    until(&manager, "STOPPING=1\n");
}

#[test]
fn the_watchdog_of_another_process_is_not_ours() {
    let (manager, name) = manager("other");
    let mut command = serve(&address("other"), "");
    command.env("NOTIFY_SOCKET", name);
    command
        .env("WATCHDOG_USEC", "1000")
        .env("WATCHDOG_PID", "1");
    Server::start(&mut command).end();
    let told = until(&manager, "STOPPING=1");
    assert!(
        told.iter().all(|text| !text.starts_with("WATCHDOG")),
        "{told:?}"
    );
}

#[test]
fn impossible_notify_socket_is_an_error() {
    let mut command = serve(&address("nowhere"), "");
    let output = Ended::of(command.env("NOTIFY_SOCKET", "x".repeat(200))).with_code(1);
    output.check_errors(&["NOTIFY_SOCKET"]);
}
