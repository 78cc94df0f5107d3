//! Host authentication between nodes (-00 sections 5.2.6 and 10.4).

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rpcrdma_control::{
    Authentication, ConnectError, ConnectOptions, HostAuthentication, ListenOptions, PresharedKey,
    PresharedKeys,
};
use rpcrdma_engine::{AuthenticationFailure, HostIdentity};

use rpcrdma_testkit::Wait;

use crate::support::{Fabric, PATIENCE, PROGRAM, TestNode, assert_says, foreign, profile, start};

fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A host with a key of that name, 32 times the octet `digits`.
fn host(identity: &str, key: &str, digits: &str) -> Arc<dyn HostAuthentication> {
    let name = format!("rpcrdma-host-{}-{}", std::process::id(), number());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, format!("{key} {}\n", digits.repeat(32))).expect("a file for a test");
    let owner = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, owner).expect("its mode");
    let keys = PresharedKeys::read(&path).expect("good keys");
    std::fs::remove_file(&path).expect("it is there");
    let identity = HostIdentity::new(identity).expect("a good name");
    Arc::new(PresharedKey::new(identity, keys))
}

pub(super) fn server_host() -> Arc<dyn HostAuthentication> {
    host("the-server", "key", "5a")
}

pub(super) fn client_host() -> Arc<dyn HostAuthentication> {
    host("the-client", "key", "5a")
}

fn server<F: Fabric>(authentication: Authentication, timeout: Duration) -> (TestNode, String) {
    let (server, address) = (start::<F>(&profile(), 1), F::address());
    let options = ListenOptions {
        authentication,
        authentication_timeout: timeout,
        ..ListenOptions::default()
    };
    server
        .node
        .listen(&address, options)
        .expect("the name is free");
    (server, address)
}

pub(super) fn connecting(authentication: Authentication) -> ConnectOptions {
    ConnectOptions {
        timeout: PATIENCE,
        authentication,
        ..ConnectOptions::default()
    }
}

/// Connects in vain: the error. Nothing reached the service.
fn refused<F: Fabric>(
    server: &TestNode,
    address: &str,
    authentication: Authentication,
) -> ConnectError {
    let client = start::<F>(&profile(), 1);
    let error = client
        .node
        .connect(address, connecting(authentication))
        .expect_err("there is no authentication");
    server.wait_until("the end of the connection", |server| {
        let counters = server.node.cores()[0].counters();
        counters.connections_closed == counters.connections_planted
    });
    assert_eq!(server.node.cores()[0].counters().calls_received, 0);
    error
}

fn failure(error: &ConnectError) -> AuthenticationFailure {
    match error {
        ConnectError::Unauthenticated { failure, .. } => *failure,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn both_ends_learn_the_other_s_identity_and_calls_pass<F: Fabric>() {
    #[rustfmt::skip]
    let cases = [
        (Authentication::Required(client_host()), Authentication::Required(server_host())),
        (Authentication::Optional(client_host()), Authentication::Optional(server_host())),
    ];
    for (client_policy, server_policy) in cases {
        let (server, address) = server::<F>(server_policy, PATIENCE);
        let mut client = start::<F>(&profile(), 1);
        let connection = client
            .node
            .connect(&address, connecting(client_policy))
            .expect("both have the key");
        let identity = connection.identity.as_ref().map(HostIdentity::as_str);
        assert_eq!(identity, Some("the-server"));
        for size in [0, 64, 5000, 100_000] {
            let args = vec![7; size];
            client.assert_echo(&connection, &args);
        }
        assert_eq!(server.peers(), [Some("the-client".to_owned())]);
        assert_eq!(client.peers(), [Some("the-server".to_owned())]);
        for node in [&server, &client] {
            node.counts("authentications", 1);
            assert_eq!(node.control_counter("authentications_refused"), 0);
        }
    }
}

pub(crate) fn where_it_is_not_required_its_absence_is_no_error<F: Fabric>() {
    #[rustfmt::skip]
    let cases = [
        (Authentication::Fabric, Authentication::Optional(server_host())),
        (Authentication::Optional(client_host()), Authentication::None),
        (Authentication::Fabric, Authentication::None),
    ];
    for (client_policy, server_policy) in cases {
        let (server, address) = server::<F>(server_policy, PATIENCE);
        let mut client = start::<F>(&profile(), 1);
        let connection = client
            .node
            .connect(&address, connecting(client_policy))
            .expect("neither requires it");
        assert_eq!(connection.identity, None);
        client.assert_echo(&connection, b"here");
        assert_eq!((server.peers(), client.peers()), (vec![None], vec![None]));
    }
}

pub(crate) fn client_that_offers_nothing_learns_what_is_required<F: Fabric>() {
    let (server, address) = server::<F>(Authentication::Required(server_host()), PATIENCE);
    let error = refused::<F>(&server, &address, Authentication::Fabric);
    assert_eq!(failure(&error), AuthenticationFailure::RequiredByPeer);
    assert_says(&error, &[&address, "requires authentication"]);
    server.counts("authentications_refused", 1);
    assert!(server.peers().is_empty());
}

pub(crate) fn a_client_that_requires_it_refuses_a_server_without<F: Fabric>() {
    let (server, address) = server::<F>(Authentication::None, PATIENCE);
    let error = refused::<F>(&server, &address, Authentication::Required(client_host()));
    assert_eq!(failure(&error), AuthenticationFailure::NotOffered);
}

pub(crate) fn a_wrong_key_is_refused_by_either_end<F: Fabric>() {
    for policy in [Authentication::Required, Authentication::Optional] {
        let (server, address) = server::<F>(policy(server_host()), PATIENCE);
        let other_key = policy(host("the-client", "key", "5b"));
        let error = refused::<F>(&server, &address, other_key);
        assert_eq!(failure(&error), AuthenticationFailure::WrongProof);
        let other_name = policy(host("the-client", "another", "5a"));
        let error = refused::<F>(&server, &address, other_name);
        assert_eq!(failure(&error), AuthenticationFailure::RefusedByPeer);
        // The latter of the two.
        server.counts("authentications_refused", 1);
        let its_own_name = policy(server_host());
        let error = refused::<F>(&server, &address, its_own_name);
        assert_eq!(failure(&error), AuthenticationFailure::RefusedByPeer);
        assert!(server.peers().is_empty());
    }
}

pub(crate) fn a_peer_that_says_nothing_has_its_time<F: Fabric>() {
    // TIME: the peer says nothing ever, so no machine is too slow for it.
    let time = Duration::from_millis(200);
    let (server, address) = server::<F>(Authentication::Required(server_host()), time);
    let silent = foreign::connect::<F>(&address, None, foreign::nothing);
    server.wait_closed(1);
    server.counts("authentication_timeouts", 1);
    silent.stop();
}

/// A null call as the first message of a connection.
fn null_call() -> Vec<u8> {
    let words = [
        1,
        2,
        8 << 16 | 1,
        0,
        0,
        0,
        0,
        0,
        0,
        1,
        0,
        2,
        PROGRAM,
        1,
        0,
        0,
        0,
        0,
        0,
    ];
    words.into_iter().flat_map(u32::to_be_bytes).collect()
}

pub(crate) fn a_peer_that_calls_early_is_cut_off_before_any_service_sees_it<F: Fabric>() {
    let (server, address) = server::<F>(Authentication::Required(server_host()), PATIENCE);
    let wait = Wait::begin("a call before any identity");
    for times in 1.. {
        let early = foreign::connect_insisting::<F>(&address, null_call());
        server.wait_closed(times);
        early.stop();
        let counters = server.node.cores()[0].counters();
        assert_eq!((counters.calls_received, counters.replies_sent), (0, 0));
        if counters.messages_unauthenticated == 1 {
            break;
        }
        // Software iWARP sometimes ends a connection before it has brought a message.
        wait.look(|| format!("{counters:?}"));
    }
    // The listener goes on.
    let mut client = start::<F>(&profile(), 1);
    let options = connecting(Authentication::Required(client_host()));
    let connection = client
        .node
        .connect(&address, options)
        .expect("the right key");
    client.assert_echo(&connection, b"mine");
}

/// A peer that sends its properties without HOSTAUTH, and calls when it is answered, whatever the answer is.
fn call_at_once(_: &[u8]) -> Option<Vec<u8>> {
    Some(null_call())
}

pub(crate) fn a_peer_that_calls_although_it_was_refused_is_cut_off<F: Fabric>() {
    let (server, address) = server::<F>(Authentication::Required(server_host()), PATIENCE);
    let words: [u32; 6] = [0, 2, 8 << 16 | 1, 5, 0, 0];
    let properties: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
    let wait = Wait::begin("a call within the second that a refused peer has");
    for times in 1.. {
        let hostile = foreign::connect::<F>(&address, Some(properties.clone()), call_at_once);
        server.wait_closed(times);
        server.counts("authentications_refused", times);
        hostile.stop();
        let counters = server.node.cores()[0].counters();
        assert_eq!((counters.calls_received, counters.replies_sent), (0, 0));
        // It is 0 where the hostile peer was stopped for that second: it called by a connection that had ended.
        if counters.messages_unauthenticated == 1 {
            break;
        }
        wait.look(|| format!("{} calls were cut off", counters.messages_unauthenticated));
    }
}

pub(crate) fn a_peer_that_was_refused_and_stays_is_closed<F: Fabric>() {
    let (server, address) = server::<F>(Authentication::Required(server_host()), PATIENCE);
    let words: [u32; 6] = [0, 2, 8 << 16 | 1, 5, 0, 0];
    let properties = words.into_iter().flat_map(u32::to_be_bytes).collect();
    let stubborn = foreign::connect::<F>(&address, Some(properties), foreign::nothing);
    server.wait_closed(1);
    server.counts("authentications_refused", 1);
    assert_eq!(server.control_counter("authentication_timeouts"), 0);
    stubborn.stop();
}
