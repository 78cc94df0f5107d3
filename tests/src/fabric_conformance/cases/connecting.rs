//! The connection manager: private data, refusals, limits, names.

use std::time::Duration;

use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{
    ConnectionId, Manager, ManagerError, ManagerEvent, RejectReason, SetupError,
};

use super::super::harness::{Harness, PortOptions};
use super::super::world::{CLIENT, RECEIVE_SEGMENTS, SERVER, World, event_name, pattern};

/// Private data of every length that RDMA-CM takes on a request arrives as it was, both ways
/// (`request` and `accept` compare).
pub(in super::super) fn private_data_both_ways<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    for bytes in [0_u32, 1, 8, 36, 56] {
        let request = pattern(1, bytes);
        let reply = pattern(2, bytes);
        let connections = world.request(&request);
        let link = world.accept(connections, &reply);
        world.established(link);
        world.close(link);
    }
    world.finish();
}

/// Each side learns who the other is, and the same peer is the same each time.
pub(in super::super) fn the_peer_is_named<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    let mut seen = Vec::new();
    for _ in 0..2 {
        let address = world.address.clone();
        let client = world.client();
        client
            .manager
            .connect(&address, &client.handle, &[])
            .expect("the client connects");
        let ManagerEvent::ConnectRequest {
            connection, peer, ..
        } = world.event(SERVER, "a request")
        else {
            panic!("something else than a request");
        };
        assert!(!peer.name.is_empty());
        seen.push(peer);
        let server = world.server();
        server
            .manager
            .reject(connection, RejectReason::Draining, &[]);
        rejection(&mut world);
    }
    // The name may tell more than the key: which of its connections this is.
    assert_eq!(seen[0].key, seen[1].key);
    world.finish();
}

/// The reason and the private data of a rejection arrive, and the next request is welcome.
pub(in super::super) fn reject_with_reason<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    for reason in [
        RejectReason::ConnectionsExhausted,
        RejectReason::PeerLimit,
        RejectReason::Draining,
        RejectReason::VersionMismatch,
        RejectReason::NotPermitted,
        RejectReason::Other(0xFFFF_0001),
    ] {
        let connections = world.request(b"hello");
        world
            .server()
            .manager
            .reject(connections[SERVER], reason, b"not now");
        let expected = (connections[CLIENT], reason, b"not now".to_vec());
        assert_eq!(rejection(&mut world), expected);
        assert!(
            matches!(
                world.client().manager.confirm(connections[CLIENT]),
                Err(ManagerError::UnknownConnection)
            ),
            "a rejected connection is gone"
        );
    }
    let link = world.connect();
    world.post_receives(2, &RECEIVE_SEGMENTS);
    world.works(link);
    world.finish();
}

/// Waits until the client's request is rejected: which one, why, and what came with it.
fn rejection<H: Harness>(world: &mut World<H>) -> (ConnectionId, RejectReason, Vec<u8>) {
    match world.event(CLIENT, "the rejection") {
        ManagerEvent::Rejected {
            connection,
            reason,
            private_data,
        } => (connection, reason, private_data),
        other => panic!("{} instead of a rejection", event_name(&other)),
    }
}

/// How connecting to `address` fails: at once, or by an event.
fn failure<H: Harness>(world: &mut World<H>, address: &str) -> ManagerError {
    let client = world.client();
    match client.manager.connect(address, &client.handle, &[]) {
        Err(error) => error,
        Ok(expected) => match world.event(CLIENT, "the failure") {
            ManagerEvent::Failed { connection, error } => {
                assert_eq!(connection, expected);
                error
            }
            other => panic!("{} instead of a failure", event_name(&other)),
        },
    }
}

/// Nobody listens: the error says so and names the address.
pub(in super::super) fn connect_refused<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    let address = world.harness.fresh_address();
    let error = failure(&mut world, &address);
    assert!(matches!(error, ManagerError::Refused { .. }), "{error}");
    assert!(error.to_string().contains(&address), "{error}");
    world.finish();
}

/// What is no address is refused with what an address looks like, to connect and to listen.
pub(in super::super) fn a_malformed_address_is_refused<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    let error = failure(&mut world, H::malformed_address());
    assert!(matches!(error, ManagerError::BadAddress { .. }), "{error}");
    let error = world
        .server()
        .manager
        .listen(H::malformed_address())
        .expect_err("a malformed address is not listened on");
    assert!(matches!(error, ManagerError::BadAddress { .. }), "{error}");
    world.finish();
}

/// Two listeners of one name cannot be; when the first is gone the name is free.
pub(in super::super) fn name_in_use<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    let address = world.address.clone();
    let error = world
        .client()
        .manager
        .listen(&address)
        .expect_err("the server listens on it");
    assert!(matches!(error, ManagerError::InUse { .. }), "{error}");
    assert!(error.to_string().contains(&address), "{error}");
    let listener = world.listener;
    world.server().manager.close_listener(listener);
    let listener = world
        .client()
        .manager
        .listen(&address)
        .expect("the name is free");
    world.client().manager.close_listener(listener);
    world.finish();
}

/// Closing a listener refuses new connections and leaves those that are there alone.
pub(in super::super) fn a_closed_listener_is_gone_and_its_connections_stay<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let (listener, address) = (world.listener, world.address.clone());
    world.server().manager.close_listener(listener);
    let error = failure(&mut world, &address);
    assert!(matches!(error, ManagerError::Refused { .. }), "{error}");
    world.works(link);
    world.finish();
}

/// As many as a port is asked to hold, each with its own traffic.
pub(in super::super) fn many_connections<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    let count = world.client().port.attributes().queue_pairs_max.min(100);
    let links: Vec<_> = (0..count).map(|_| world.connect()).collect();
    world.post_receives(16, &RECEIVE_SEGMENTS);
    for round in 0..2 {
        for (link, index) in links.iter().zip(0_u64..) {
            let data = pattern(index * 2 + round, 300);
            world.send(CLIENT, *link, &data);
            world.expect(SERVER, *link, &data);
        }
    }
    world.finish();
}

/// A port that makes and ends connections for ever does not run out.
pub(in super::super) fn queue_pairs_are_used_again<H: Harness>(harness: H) {
    let options = PortOptions {
        queue_pairs: 4,
        ..PortOptions::default()
    };
    let mut world = World::with(harness, options);
    world.post_receives(4, &RECEIVE_SEGMENTS);
    for _ in 0..40 {
        let link = world.connect();
        world.works(link);
        world.close(link);
    }
    world.finish();
}

/// One connection too many is refused with a reason; the others go on, and a freed place serves.
pub(in super::super) fn queue_pairs_run_out<H: Harness>(harness: H) {
    let options = PortOptions {
        queue_pairs: 4,
        ..PortOptions::default()
    };
    let mut world = World::with(harness, options);
    let most = world.server().port.attributes().queue_pairs_max;
    assert_eq!(
        most,
        4 * H::RAILS,
        "the harness honours the number of queue pairs"
    );
    let links: Vec<_> = (0..4).map(|_| world.connect()).collect();
    world.post_receives(8, &RECEIVE_SEGMENTS);
    let address = world.address.clone();
    let client = world.client();
    match client.manager.connect(&address, &client.handle, &[]) {
        // The client's own port is full: it may say so at once, or when it prepares.
        Err(error) => assert!(
            matches!(error, ManagerError::Setup(SetupError::Limit { .. })),
            "{error}"
        ),
        Ok(_) => one_too_many(&mut world),
    }
    for link in &links {
        world.works(*link);
    }
    world.close(links[0]);
    let link = world.connect();
    world.works(link);
    world.finish();
}

/// A queue pair that was prepared for another port is not adopted, and harms no later one.
pub(in super::super) fn a_queue_pair_of_another_port_is_not_planted<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    let connections = world.request(&[]);
    let server = world.server();
    let seed = server
        .manager
        .prepare(connections[SERVER], &server.handle)
        .expect("the queue pair is prepared");
    let client = world.client();
    let refused = client
        .port
        .adopt_queue_pair(seed, client.queue)
        .expect_err("the queue pair of another port");
    assert!(refused.to_string().contains("another port"), "{refused}");
    world
        .server()
        .manager
        .reject(connections[SERVER], RejectReason::Draining, &[]);
    assert_eq!(rejection(&mut world).0, connections[CLIENT]);
    let link = world.connect();
    world.post_receives(2, &RECEIVE_SEGMENTS);
    world.works(link);
    world.finish();
}

/// A request beyond what both ports hold fails at the client, or is rejected by the server.
fn one_too_many<H: Harness>(world: &mut World<H>) {
    let first = world.until("a failure or a request", |world| {
        world.sides.iter_mut().find_map(|side| {
            side.manage(Duration::ZERO);
            side.events.pop_front()
        })
    });
    let connection = match first {
        ManagerEvent::Failed { error, .. } => {
            assert!(
                matches!(error, ManagerError::Setup(SetupError::Limit { .. })),
                "{error}"
            );
            return;
        }
        ManagerEvent::ConnectRequest { connection, .. } => connection,
        other => panic!("{} instead of a request", event_name(&other)),
    };
    let server = world.server();
    assert!(matches!(
        server.manager.prepare(connection, &server.handle),
        Err(SetupError::Limit { .. })
    ));
    server
        .manager
        .reject(connection, RejectReason::ConnectionsExhausted, &[]);
    assert_eq!(rejection(world).1, RejectReason::ConnectionsExhausted);
}

/// The client may send as soon as it has confirmed: the server's queue pair is adopted before.
pub(in super::super) fn a_send_before_established_arrives<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    world.server().post_receives(2, &RECEIVE_SEGMENTS);
    let connections = world.request(&[]);
    let link = world.accept(connections, &[]);
    let data = pattern(1, 5000);
    world.send(CLIENT, link, &data);
    world.client().port.flush_sends();
    world.established(link);
    world.expect(SERVER, link, &data);
    world.finish();
}

/// A wake ends a wait that would take an hour, even when it comes first.
pub(in super::super) fn a_waker_ends_a_wait<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    let wake = world.client().manager.waker();
    std::thread::spawn(move || wake());
    world.client().manage(Duration::from_secs(3600));
    let wake = world.client().manager.waker();
    wake();
    world.client().manage(Duration::from_secs(3600));
    world.finish();
}
