//! How calls and connections end.

use std::time::Duration;

use crate::TestFabric;
use crate::support::fabric::{Fabric, unless_skipped};
use crate::support::{ECHO, LATER, NEVER, NULL, Pair, client, pattern};
use rpcrdma_engine::{CallError, CallRefused, CloseReason, Command, ConnectionKey, CoreConfig};
use rpcrdma_fabric::interface::PeerIdentity;
use rpcrdma_protocol::connection::Terms;
use rpcrdma_protocol::v2::connection::Role;
use rpcrdma_testkit::Wait;

fn config() -> CoreConfig {
    CoreConfig {
        connections_max: 2,
        credits_per_connection: 8,
        message_buffers: 4,
        calls_outstanding_max: 16,
        deferred_max: 16,
        call_timeout: Duration::from_secs(10),
        ..CoreConfig::default()
    }
}

#[test]
fn a_call_without_a_reply_times_out_and_its_late_reply_is_dropped() {
    let mut pair = Pair::new(&config());
    let (client, _) = pair.connect();
    pair.client.app_mut().want(client, NEVER, &[], 1);
    pair.until("the call", |pair| pair.server.app().never.len() == 1);
    pair.pass(Duration::from_millis(9_900));
    pair.turns(20);
    assert!(pair.client.app().ended.is_empty(), "not before its time");
    pair.pass(Duration::from_millis(300));
    pair.until("the timeout", |pair| !pair.client.app().ended.is_empty());
    assert_eq!(pair.client.app().result(1), Some(&Err(CallError::TimedOut)));
    // Others go on, and the late reply is nobody's.
    let token = pair.server.app_mut().never.pop().expect("one");
    pair.server
        .app_mut()
        .deferred
        .push_back((token, vec![1; 8], 0));
    assert_eq!(pair.ask(client, ECHO, &[2; 8], 2), Ok(vec![2; 8]));
    pair.turns(10);
    let counters = pair.client.counters();
    assert_eq!((counters.timeouts, counters.late_replies), (1, 1));
    assert_eq!(counters.unmatched_replies, 0);
}

/// A server that answers nothing keeps what slots there are, but for one of each other connection; and only until the
/// calls time out.
#[test]
fn a_server_that_never_answers_leaves_slots_to_calls_to_others() {
    let mut pair = Pair::new(&CoreConfig {
        calls_outstanding_max: 2,
        ..config()
    });
    let (deaf, _) = pair.connect();
    let (other, _) = pair.connect();
    let app = pair.client.app_mut();
    for tag in 0..4 {
        app.want(deaf, NEVER, &[], tag);
    }
    pair.until("all slots but one", |pair| {
        pair.server.app().never.len() == 3
    });
    pair.turns(50);
    let app = pair.client.app_mut();
    assert_eq!(app.wanted.len(), 1, "no slot is free for it");
    for tag in 10..12 {
        app.want(other, NULL, &[], tag);
    }
    pair.until("the replies of the other", |pair| {
        pair.client.app().ended.len() == 2
    });
    assert_eq!(pair.client.app().wanted.len(), 1);
    pair.pass(Duration::from_secs(11));
    // Calls that time out at one time may be found in several polls.
    pair.until("the timeouts, and the call that waited", |pair| {
        let ended = pair.client.app().ended.len();
        ended == 5 && pair.server.app().never.len() == 4
    });
    assert_eq!(pair.client.counters().timeouts, 3);
}

/// Each way a connection can be ended, with calls in every state: on the wire, deferred, waiting
/// for credits in parts, and being put together.
fn end_in_mid_call(how: impl FnOnce(&mut Pair, ConnectionKey, ConnectionKey)) -> Pair {
    let mut pair = Pair::new(&config());
    let (client, server) = pair.connect();
    let (other_client, _) = pair.connect();
    let app = pair.client.app_mut();
    for tag in 0..4 {
        app.want(client, NEVER, &[0; 16], tag);
    }
    app.want(client, ECHO, &pattern(1_000_000, 4), 4);
    pair.server
        .app_mut()
        .want(server, ECHO, &pattern(1_000_000, 5), 5);
    // The calls that are deferred come first. Of the long ones a few parts are on their way then.
    pair.until("the calls", |pair| pair.server.app().never.len() == 4);
    pair.turns_exactly(8);
    how(&mut pair, client, server);
    pair.until("both ends know", |pair| {
        pair.client.closed.len() == 1 && pair.server.closed.len() == 1
    });
    let app = pair.client.app();
    for tag in 0..5 {
        assert!(
            app.result(tag) == Some(&Err(CallError::Disconnected)),
            "call {tag}"
        );
    }
    let server_result = pair.server.app().result(5);
    assert!(server_result == Some(&Err(CallError::Disconnected)));
    assert_eq!(app.disconnected.len(), 1);
    assert_eq!(pair.server.app().disconnected.len(), 1);
    // The other connection does not notice, and what the core held is free again.
    let bytes = pattern(300_000, 6);
    for tag in 6..12 {
        assert!(pair.ask(other_client, ECHO, &bytes, tag) == Ok(bytes.clone()));
    }
    // Answers to calls of a connection that is gone are dropped.
    while let Some(token) = pair.server.app_mut().never.pop() {
        pair.server
            .app_mut()
            .deferred
            .push_back((token, Vec::new(), 0));
    }
    pair.until("the answers", |pair| pair.server.app().deferred.is_empty());
    assert_eq!(pair.server.counters().deferred_dropped, 4);
    // And its place can be taken.
    let (again, _) = pair.connect();
    assert_eq!(again.index, client.index);
    assert_ne!(again.generation, client.generation);
    assert!(pair.ask(again, ECHO, &bytes, 20) == Ok(bytes));
    pair
}

#[test]
fn closed_by_the_client_application() {
    let pair = end_in_mid_call(|pair, client, _| {
        pair.client.app_mut().to_close.push(client);
    });
    assert_eq!(pair.client.closed[0].1, CloseReason::Local);
    assert_eq!(pair.server.closed[0].1, CloseReason::Peer);
}

#[test]
fn closed_by_the_servers_control_plane() {
    let pair = end_in_mid_call(|pair, _, server| {
        pair.server.close(server);
    });
    assert_eq!(pair.client.closed[0].1, CloseReason::Peer);
    assert_eq!(pair.server.closed[0].1, CloseReason::Local);
}

#[test]
fn calls_end_once_when_both_ends_close() {
    end_in_mid_call(|pair, client, server| {
        pair.client.app_mut().to_close.push(client);
        pair.server.app_mut().to_close.push(server);
    });
}

#[test]
fn a_link_that_breaks() {
    unless_skipped!("a_link_that_breaks");
    end_in_mid_call(|pair, _, _| {
        pair.client.tell(Some(TestFabric::broken_link()));
    });
}

#[test]
fn connections_beyond_the_reserve_are_refused_with_a_reason() {
    let mut pair = Pair::new(&config());
    pair.connect();
    pair.connect();
    pair.adopt_queue_pair();
    pair.until("the answers", |pair| {
        pair.client.planted.len() == 3 && pair.server.planted.len() == 3
    });
    let refused = pair.client.planted[2]
        .as_ref()
        .expect_err("no receives for a third");
    assert_eq!(
        refused,
        "connections: 3 asked for, the device takes at most 2"
    );
}

/// What a call of a connection that it was not told of would do is in the application of all these tests. Of a
/// connection that is refused nothing is told.
#[test]
fn application_learns_the_identity_of_its_peer() {
    let mut pair = Pair::new(&config());
    let (_, first) = pair.connect();
    let (_, second) = pair.connect();
    pair.adopt_queue_pair();
    pair.until("the third is refused", |pair| {
        pair.server.planted.len() == 3
    });
    let opened = &pair.server.app_mut().opened;
    assert_eq!(*opened, [(first, client(1)), (second, client(2))]);
}

/// The control thread comes late: it takes no notice before all connections were adopted, and none
/// before all were closed. Nothing is refused for that.
#[test]
fn notices_that_nobody_took_yet_refuse_no_connection_within_the_reserve() {
    unless_skipped!("notices_that_nobody_took_yet_refuse_no_connection_within_the_reserve");
    const CONNECTIONS: usize = 100;
    let mut pair = Pair::new(&CoreConfig {
        connections_max: 100,
        credits_per_connection: 1,
        mailbox_depth: 1,
        ..config()
    });
    for round in 0..4 {
        let mut seeds = Vec::new();
        for token in 0..100 {
            let [client_prepared, server_prepared] = pair.prepared_pair();
            seeds.push(client_prepared);
            pair.server.command(Command::Adopt {
                token,
                prepared: server_prepared,
                role: Role::Server,
                peer: PeerIdentity::default(),
                properties: pair.server.properties,
                terms: Terms::default(),
                credits_max: u16::MAX,
                guarded: false,
                has_other_path: false,
            });
            let _ = pair.server.core.iterate_at(pair.now);
        }
        pair.server.control();
        let planted: Vec<_> = pair
            .server
            .planted
            .drain(..)
            .collect::<Result<_, _>>()
            .expect("all are within the reserve");
        assert_eq!(planted.len(), CONNECTIONS);
        for connection in planted {
            let reason = CloseReason::Local;
            pair.server.command(Command::Close { connection, reason });
            let _ = pair.server.core.iterate_at(pair.now);
        }
        drop(seeds);
        for _ in 0..CONNECTIONS {
            let _ = pair.server.core.iterate_at(pair.now);
        }
        pair.server.control();
        assert_eq!(pair.server.closed.len(), (round + 1) * CONNECTIONS);
    }
}

#[test]
fn calls_wait_for_the_exchange_of_properties() {
    let mut pair = Pair::new(&config());
    pair.server.ignore_properties = true;
    pair.adopt_queue_pair();
    pair.turns(50);
    let client = *pair.client.planted[0].as_ref().expect("planted");
    pair.client.app_mut().want(client, NULL, &[], 1);
    pair.turns(2);
    assert_eq!(pair.client.app().refused, [(1, CallRefused::NotReady)]);
    assert_eq!(pair.server.counters().awaiting_control, 1);
}

#[test]
fn a_drain_finishes_what_is_outstanding_and_takes_nothing_new() {
    let mut pair = Pair::new(&config());
    let (client, _) = pair.connect();
    let app = pair.client.app_mut();
    app.want(client, LATER, &[3; 8], 1);
    app.want(client, ECHO, &pattern(100_000, 2), 2);
    app.want(client, NEVER, &[], 3);
    pair.until("all are on their way", |pair| {
        pair.client.app().wanted.is_empty()
    });
    pair.client.command(Command::Drain);
    pair.server.command(Command::Drain);
    pair.turns(2);
    pair.client.app_mut().want(client, NULL, &[], 4);
    pair.until("both replies", |pair| pair.client.app().ended.len() == 2);
    pair.turns(20);
    assert_eq!(pair.client.app().refused, [(4, CallRefused::Draining)]);
    assert_eq!(
        (pair.client.drained, pair.server.drained),
        (0, 0),
        "one call is open"
    );
    let token = pair.server.app_mut().never.pop().expect("deferred");
    pair.server
        .app_mut()
        .deferred
        .push_back((token, Vec::new(), 0));
    pair.until("both drained", |pair| {
        pair.client.drained == 1 && pair.server.drained == 1
    });
    pair.turns(20);
    assert_eq!(
        (pair.client.drained, pair.server.drained),
        (1, 1),
        "told once"
    );
    assert_eq!(pair.client.app().result(3), Some(&Ok(Vec::new())));
}

#[test]
fn a_stopped_core_ends_its_calls_and_tells_its_peer() {
    let mut pair = Pair::new(&config());
    let (client, _) = pair.connect();
    pair.client.app_mut().want(client, NEVER, &[], 1);
    pair.turns(5);
    pair.client.handle.stop();
    let Pair {
        client: side,
        mut server,
        mut joint,
        mut now,
        clock,
        ..
    } = pair;
    let app = side.core.run().expect("it is not pinned");
    assert_eq!(app.result(1), Some(&Err(CallError::Disconnected)));
    assert_eq!(app.disconnected, [(client, CloseReason::Stopped)]);
    let wait = Wait::begin("its peer learns of it");
    while server.closed.is_empty() {
        wait.look(|| server.counters().to_string());
        now += clock.ticks(TestFabric::TURN_AT_WORK).max(1);
        server.iterate(now);
        let [_, told] = TestFabric::port_events(&mut joint, &side.port, &server.port);
        server.tell(told);
        TestFabric::work();
    }
    assert_eq!(server.closed.len(), 1);
    assert_eq!(server.closed[0].1, CloseReason::Peer);
}

#[test]
fn a_core_cannot_be_pinned_to_a_processor_that_does_not_exist() {
    let pair = Pair::new(&CoreConfig {
        cpu: Some(100_000),
        ..config()
    });
    let error = pair.client.core.run().expect_err("no such processor");
    assert!(error.to_string().contains("processor 100000"), "{error}");
}

/// What waits in the mailbox holds nothing up: there may be more of it than the core takes while it stops.
#[test]
fn a_core_stops_with_a_full_mailbox_and_keeps_no_command() {
    let pair = Pair::new(&config());
    let handle = pair.client.handle.clone();
    let fill = || (0..100_000).find(|_| handle.send(Command::Drain).is_err());
    assert!(fill().is_some(), "the mailbox has an end");
    handle.stop();
    let taken = handle.counters().commands;
    let _application = pair.client.core.run().expect("it is not pinned");
    assert_eq!(handle.counters().commands, taken, "none was taken");
    assert!(handle.has_ended());
    assert_eq!(fill(), None, "a core that has ended keeps none");
}
