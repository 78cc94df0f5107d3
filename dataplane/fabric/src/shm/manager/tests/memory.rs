//! Tests of the memory of peers, which the manager maps or refuses.

use std::os::fd::OwnedFd;

use super::support::*;
use crate::interface::{Manager as _, ManagerError};
use crate::interface::{ManagerEvent, SetupError};
use crate::shm::PortEvent;
use crate::shm::manager::{Manager, ManagerOptions};
use crate::shm::tests::peer_memory::{held, sparse_file, whole_file};

const BYTES: u64 = 64 << 20;

fn refused(manager: &Manager) -> u64 {
    let counters = manager.counters();
    let is_named = |(name, _): &&(&str, u64)| *name == "peers_memory_refused";
    counters.iter().find(is_named).unwrap().1
}

fn manager_of(options: ManagerOptions) -> Manager {
    Manager::with_options(ManagerOptions {
        handshake_timeout: NEVER,
        ..options
    })
    .unwrap()
}

/// Connects a client to a server with this arena, which the client refuses. Returns the error of the client.
fn client_meets(arena: OwnedFd, options: ManagerOptions) -> ManagerError {
    let (mut server, address) = listening(manager());
    let mut client = manager_of(options);
    let (client_port, server_port) = (port(1), port_with_arena(1, arena));
    let asked = client.connect(&address, &client_port, b"").unwrap();
    let (accepted, ..) = expect_request(&mut server);
    let _seed = server.prepare(accepted, &server_port).unwrap();
    server.accept(accepted, b"").unwrap();
    let (failed, error) = expect_failed(&mut client);
    assert_eq!((failed, refused(&client)), (asked, 1));
    assert_eq!(client_port.numbers.len(), 1, "the number is free again");
    error
}

/// Connects a client with this arena to a server, which refuses it: it ends the connection and reports that to the core.
fn server_meets(arena: OwnedFd, options: ManagerOptions) {
    let (mut server, address) = listening(manager_of(options));
    let mut client = manager();
    let (client_port, server_port) = (port_with_arena(1, arena), port(1));
    let asked = client.connect(&address, &client_port, b"").unwrap();
    let (accepted, ..) = expect_request(&mut server);
    let seed = server.prepare(accepted, &server_port).unwrap();
    server.accept(accepted, b"").unwrap();
    expect_reply(&mut client);
    let _seed = client.prepare(asked, &client_port).unwrap();
    client.confirm(asked).unwrap();
    let (gone, port_event) = expect_disconnected(&mut server);
    assert_eq!((gone, refused(&server)), (accepted, 1));
    assert!(matches!(port_event, Some(PortEvent::PeerGone { local }) if local == seed.local()));
    assert_eq!(server.half_open, 0);
    expect_established(&mut client);
    assert_eq!(expect_disconnected(&mut client).0, asked);
}

#[test]
fn a_peer_with_a_sparse_arena_is_refused_at_no_cost() {
    let arena = sparse_file(BYTES);
    let error = client_meets(arena.try_clone().unwrap(), ManagerOptions::default());
    let ManagerError::Setup(SetupError::Peer { what }) = &error else {
        panic!("{error}");
    };
    assert!(what.contains("has holes"), "{what}");
    assert_eq!(held(&arena), 0);
    server_meets(arena.try_clone().unwrap(), ManagerOptions::default());
    assert_eq!(held(&arena), 0);
}

#[test]
fn a_peer_whose_arena_is_beyond_the_limit_is_refused_with_what_to_do() {
    let small = ManagerOptions {
        peer_arena_bytes_max: 1 << 20,
        ..ManagerOptions::default()
    };
    let error = client_meets(whole_file(2 << 20), small).to_string();
    assert!(
        error.contains("2097152") && error.contains("1048576"),
        "{error}"
    );
    assert!(error.contains("peer_arena_mib_max"), "{error}");
    server_meets(whole_file(2 << 20), small);
}

/// The limit holds for any number of connections and ports of a peer.
#[test]
fn the_memory_of_all_peers_together_has_a_limit() {
    // The memory of one port is an arena of 1 MiB and less than 64 KiB of other files, so the limit has room for one.
    let mut client = manager_of(ManagerOptions {
        peer_memory_bytes_max: 2 << 20,
        ..ManagerOptions::default()
    });
    let (mut server, address) = listening(manager());
    let client_port = port(8);
    let ports = [(); 2].map(|()| port_with_arena(8, whole_file(1 << 20)));
    let mut standing = Vec::new();
    for _ in 0..3 {
        standing.push(establish(
            (&mut client, &client_port),
            (&mut server, &ports[0]),
            &address,
        ));
    }
    let ask = |client: &mut Manager, server: &mut Manager| {
        client.connect(&address, &client_port, b"").unwrap();
        let (accepted, ..) = expect_request(server);
        let seed = server.prepare(accepted, &ports[1]).unwrap();
        server.accept(accepted, b"").unwrap();
        seed
    };
    let _seed = ask(&mut client, &mut server);
    let error = expect_failed(&mut client).1.to_string();
    assert!(error.contains("peer_memory_mib_max"), "{error}");
    assert!(matches!(
        next(&mut server),
        ManagerEvent::Disconnected { .. }
    ));
    // The memory of the first port is released, so there is room for the second.
    drop(standing);
    let _seed = ask(&mut client, &mut server);
    expect_reply(&mut client);
}
