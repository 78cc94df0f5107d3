//! What the service manager is told.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::{PATIENCE, Server, address, serve};

/// A service manager, and what it is named in `$NOTIFY_SOCKET`.
fn manager(what: &str) -> (UnixDatagram, String) {
    let name = format!("rpcrdma-manager-{what}-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let socket = UnixDatagram::bind_addr(&address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    (socket, format!("@{name}"))
}

/// The next message that begins so; what else is told until then does not matter.
fn until(manager: &UnixDatagram, begin: &str) -> String {
    loop {
        let mut bytes = [0; 1024];
        let count = manager.recv(&mut bytes).expect(begin);
        let text = std::str::from_utf8(&bytes[..count]).unwrap();
        if text.starts_with(begin) {
            return text.to_owned();
        }
    }
}

#[test]
fn readiness_life_and_the_end_are_told() {
    let (manager, name) = manager("life");
    let address = address("notify");
    let mut command = serve(&address, &[]);
    command.env("NOTIFY_SOCKET", name);
    command
        .env("WATCHDOG_USEC", "600000")
        .env_remove("WATCHDOG_PID");
    let server = Server::start(&mut command);
    let ready = until(&manager, "READY=1\n");
    assert!(
        ready.contains(&format!("STATUS=listening on {address}")),
        "{ready}"
    );
    for _ in 0..3 {
        until(&manager, "WATCHDOG=1");
    }
    assert_eq!(server.end().code(), Some(0));
    until(&manager, "STOPPING=1\n");
}

#[test]
fn the_watchdog_of_another_process_is_not_ours() {
    let (manager, name) = manager("other");
    let mut command = serve(&address("other"), &[]);
    command.env("NOTIFY_SOCKET", name);
    command
        .env("WATCHDOG_USEC", "1000")
        .env("WATCHDOG_PID", "1");
    let server = Server::start(&mut command);
    assert_eq!(server.end().code(), Some(0));
    let mut bytes = [0; 1024];
    let mut told = Vec::new();
    while told
        .last()
        .is_none_or(|text: &String| !text.starts_with("STOPPING=1"))
    {
        let count = manager.recv(&mut bytes).unwrap();
        told.push(String::from_utf8_lossy(&bytes[..count]).into_owned());
    }
    assert!(
        told.iter().all(|text| !text.starts_with("WATCHDOG")),
        "{told:?}"
    );
}

#[test]
fn a_socket_that_cannot_be_is_told() {
    let mut command = serve(&address("nowhere"), &[]);
    let output = command
        .env("NOTIFY_SOCKET", "x".repeat(200))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("NOTIFY_SOCKET"), "{message}");
}
