//! Connecting, losing the connection, and ending.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rpcrdma::Authentication;
use rpcrdma::prelude::*;
use rpcrdma_testkit::{CheckWords as _, until};

use crate::tcp::listening;
use crate::{ECHO, PATIENCE, PROGRAM, address, block_on, builder, connect, echo, profile, soon};

#[test]
fn connect_to_nobody_names_the_address_and_the_reason() {
    let at = address();
    // TIME: there is a reason when the first attempt has ended, after less than a millisecond. On a machine that takes longer
    // the client has more time in the next round.
    let mut time = Duration::from_millis(500);
    loop {
        let error = builder().connect_timeout(time).connect(&at).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotConnected);
        let text = error.to_string();
        assert!(text.contains(&at), "{text}");
        if text.contains("nobody listens") {
            break;
        }
        assert!(time < PATIENCE, "{text}");
        time *= 4;
    }
}

/// Services are made when the memory of their core is.
#[test]
fn taken_address_is_found_before_a_server_takes_memory() {
    struct Nothing;
    impl Service for Nothing {
        fn call(&mut self, _: &mut Incoming<'_>, _: &mut Reply<'_, '_>) -> Result<(), Refusal> {
            Ok(())
        }
    }
    let first = Server::builder()
        .profile(profile())
        .procedure(ECHO, |_, _| Ok(()));
    let (first, _) = listening(first);
    let [at, tcp] = first.addresses() else {
        panic!("{:?}", first.addresses())
    };
    for (listen, also) in [(at, "tcp:127.0.0.1:0"), (&address(), tcp.as_str())] {
        let made = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&made);
        let second = Server::builder().program(PROGRAM, 1..=1, move |_core| {
            count.fetch_add(1, Ordering::Relaxed);
            Nothing
        });
        let second = second.authentication(Authentication::None).also_at(also);
        let error = second.listen(listen).unwrap_err();
        error.check_words(&["is in use", "choose another "]);
        assert_eq!(made.load(Ordering::Relaxed), 0, "{listen} {also}");
    }
}

#[test]
fn addresses_are_checked() {
    for bad in ["echo", "tcp:localhost:1", ""] {
        assert_eq!(
            Client::connect(bad).unwrap_err().kind(),
            ErrorKind::Address,
            "{bad}"
        );
    }
    let node = Node::builder().profile(profile()).start("shm:any").unwrap();
    let error = node
        .listen("rdma:0.0.0.0:0", Authentication::Fabric)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Address);
}

#[test]
fn knobs_go_on_top_of_the_profile_and_are_checked() {
    let node = |assignment| {
        let builder = Node::builder().profile(profile()).knob(assignment);
        builder.start("shm:any")
    };
    let node_with = node("connections_max=3").unwrap();
    assert_eq!(node_with.profile().connections_max, 3);
    assert_eq!(node_with.profile().bulk_buffers, profile().bulk_buffers);
    for (wrong, said) in [
        ("connections=3", "connections_max"),
        ("connections_max=0", "program"),
    ] {
        let error = node(wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[test]
fn a_client_that_does_not_wait_calls_when_the_server_is_there() {
    let at = address();
    let client = builder().reconnect(soon());
    let client = client.connect_later(&at).unwrap();
    assert!(!client.is_connected());
    let _server = echo(&at);
    let mut answer = client.request(ECHO).opaque(b"late").call().unwrap();
    assert_eq!(answer.results().opaque().unwrap(), b"late");
}

#[test]
fn a_client_connects_again_and_calls_wait_for_it() {
    let at = address();
    let first = echo(&at);
    let client = builder().reconnect(soon());
    let client = client.connect(&at).unwrap();
    client.request(ECHO).opaque(b"one").call().unwrap();
    drop(first);
    until("the loss of the connection", || {
        (!client.is_connected()).then_some(())
    });
    // Sent while there is no server: nothing of it was executed, so it waits.
    let mut waiting = client.request(ECHO).opaque(b"two").call_async();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let polled = std::pin::Pin::new(&mut waiting).poll(&mut context);
    assert!(polled.is_pending());
    let _second = echo(&at);
    let mut answer = block_on(waiting).unwrap();
    assert_eq!(answer.results().opaque().unwrap(), b"two");
    assert_eq!(client.reconnects(), 1);
}

#[test]
fn calls_without_a_connection_end_in_time() {
    let at = address();
    let server = echo(&at);
    let mut profile = profile();
    // TIME: the call waits that long in vain on every machine.
    profile.call_timeout_ms = 200;
    let client = builder().profile(profile).reconnect(soon());
    let client = client.timeout(PATIENCE).connect(&at).unwrap();
    drop(server);
    // A call that still met the old connection would be lost with it, or time out before the loss is noticed.
    until("the loss of the connection", || {
        (!client.is_connected()).then_some(())
    });
    let error = client.request(ECHO).call().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotConnected, "{error}");
    assert!(!client.is_connected());
}

#[test]
fn a_client_that_is_dropped_closes_its_connections_on_a_shared_node() {
    let at = address();
    let server = echo(&at);
    let node = Node::builder().profile(profile()).start(&at).unwrap();
    for _ in 0..10 {
        // Four connections at most: the fifth needs that those before were closed.
        let client = node
            .client()
            .connect_timeout(PATIENCE)
            .connect(&at)
            .unwrap();
        client.request(ECHO).opaque(b"x").call().unwrap();
    }
    assert!(server.metrics().total("calls_received") >= Some(10));
}

#[test]
fn calls_fail_when_the_node_ends() {
    let at = address();
    let _server = echo(&at);
    let client = connect(&at);
    let drained = client.node().drain(PATIENCE).unwrap();
    assert!(drained.complete);
    let error = client.request(ECHO).call().unwrap_err();
    let kind = error.kind();
    assert!(
        matches!(
            kind,
            ErrorKind::ShuttingDown | ErrorKind::NotConnected | ErrorKind::Disconnected
        ),
        "{error}"
    );
}

#[test]
fn a_server_and_a_client_share_a_node() {
    let at = address();
    let node = Node::builder()
        .profile(profile())
        .procedure(ECHO, |call, reply| {
            reply.opaque(call.args().opaque()?);
            Ok(())
        });
    let node = node.start(&at).unwrap();
    node.listen(&at, Authentication::Fabric).unwrap();
    let client = node
        .client()
        .connect_timeout(PATIENCE)
        .connect(&at)
        .unwrap();
    let mut answer = client.request(ECHO).opaque(b"self").call().unwrap();
    assert_eq!(answer.results().opaque().unwrap(), b"self");
}

/// A limit that is later than the clock can say is no limit.
#[test]
fn any_duration_is_a_time_limit() {
    let at = address();
    let _server = echo(&at);
    let client = builder().connect_timeout(Duration::MAX);
    let client = client.timeout(Duration::MAX).patience(Duration::MAX);
    let client = client.connect(&at).unwrap();
    client.request(ECHO).opaque(b"x").call().unwrap();
    drop(client.buffers().wait(1, Duration::MAX).unwrap());
    assert!(client.node().drain(Duration::MAX).unwrap().complete);
}
