//! Calls and replies between two cores.

use crate::support::fabric::{some_of, unless_skipped};
use crate::support::{App, ECHO, FILL, LATER, NEVER, NULL, Pair, pattern};
use rpcrdma_engine::{CallError, CoreConfig};

fn config() -> CoreConfig {
    CoreConfig {
        connections_max: 4,
        credits_per_connection: 8,
        message_buffers: 8,
        calls_outstanding_max: 64,
        deferred_max: 16,
        ..CoreConfig::default()
    }
}

#[test]
fn a_null_call_and_its_reply() {
    let mut pair = Pair::new(&config());
    let (client, server) = pair.connect();
    assert_eq!(pair.ask(client, NULL, &[], 7), Ok(Vec::new()));
    assert_eq!(pair.client.app().connected, [client]);
    assert_eq!(pair.server.app().connected, [server]);
    let counters = pair.server.counters();
    assert_eq!((counters.calls_received, counters.replies_sent), (1, 1));
    assert_eq!(pair.client.counters().replies_received, 1);
}

/// Calls that arrive together are taken as many at a time as the core was made for.
#[test]
fn a_poll_takes_as_many_completions_as_it_may() {
    const CALLS: u64 = 8;
    for most in [1, 3] {
        let server = CoreConfig {
            reap_batch: most,
            ..config()
        };
        let mut pair = Pair::with(&config(), &server, App::default(), App::default());
        let (client, _) = pair.connect();
        for tag in 0..CALLS {
            let application = pair.client.app_mut();
            application.want(client, NULL, &[], tag);
        }
        let taken = |pair: &Pair| pair.server.counters().completions;
        let mut before = taken(&pair);
        pair.until("the replies", |pair| {
            let now = taken(pair);
            assert!(
                now - before <= u64::from(most),
                "{} of {most}",
                now - before
            );
            before = now;
            let app = pair.client.app();
            (0..CALLS).all(|tag| app.result(tag).is_some())
        });
    }
}

/// Sizes around every border: words, copied and registered Sends, one message and several, and
/// what a message buffer holds.
fn sizes() -> Vec<usize> {
    let mut sizes = vec![0, 4, 8, 100, 512, 940, 944, 948, 952, 984, 988];
    sizes.extend((4000..4100).step_by(4));
    sizes.extend([
        8000,
        8100,
        8116,
        8120,
        8124,
        8160,
        12_180,
        65_536,
        100_000,
        1 << 20,
    ]);
    sizes
}

#[test]
fn echoes_of_all_sizes_both_ways() {
    let mut pair = Pair::new(&config());
    let (client, server) = pair.connect();
    for (tag, size) in (0..).zip(sizes()) {
        let bytes = pattern(size, tag);
        pair.client.app_mut().want(client, ECHO, &bytes, tag);
        pair.server.app_mut().want(server, ECHO, &bytes, tag);
        pair.until("both replies", |pair| {
            let done = |app: &App| app.result(tag).is_some();
            done(pair.client.app()) && done(pair.server.app())
        });
        for app in [pair.client.app(), pair.server.app()] {
            assert!(app.result(tag) == Some(&Ok(bytes.clone())), "{size} bytes");
        }
    }
}

#[test]
fn more_calls_at_once_than_credits_and_buffers() {
    let mut pair = Pair::new(&config());
    let (client, server) = pair.connect();
    let count = 300_u64;
    for tag in 0..count {
        let size = [0, 40, 3000, 5000, 20_000][usize::try_from(tag % 5).expect("small")];
        let procedure = if tag % 3 == 0 { LATER } else { ECHO };
        let bytes = pattern(size, tag);
        pair.client.app_mut().want(client, procedure, &bytes, tag);
        pair.server.app_mut().want(server, procedure, &bytes, tag);
    }
    let expected = usize::try_from(count).expect("small");
    pair.until_ended(expected, expected);
    for app in [pair.client.app(), pair.server.app()] {
        for tag in 0..count {
            let size = [0, 40, 3000, 5000, 20_000][usize::try_from(tag % 5).expect("small")];
            assert!(
                app.result(tag) == Some(&Ok(pattern(size, tag))),
                "call {tag}"
            );
        }
    }
    let counters = pair.client.counters();
    assert!(
        counters.calls_refused_no_credit > 0,
        "the test is about scarcity"
    );
}

#[test]
fn one_credit_is_enough() {
    let scarce = CoreConfig {
        credits_per_connection: 1,
        ..config()
    };
    let mut pair = Pair::new(&scarce);
    let (client, server) = pair.connect();
    for tag in 0..20 {
        let bytes = pattern(if tag % 4 == 0 { 10_000 } else { 64 }, tag);
        pair.client.app_mut().want(client, ECHO, &bytes, tag);
        pair.server.app_mut().want(server, ECHO, &bytes, tag);
    }
    pair.until_ended(20, 20);
    for app in [pair.client.app(), pair.server.app()] {
        assert!(app.ended.iter().all(|(_, result)| result.is_ok()));
    }
}

#[test]
fn rpc_errors_come_back_as_what_they_are() {
    let mut pair = Pair::new(&config());
    let (client, _) = pair.connect();
    let app = pair.client.app_mut();
    app.want(client, 99, &[], 1);
    app.want(client, NULL, &[], 2);
    app.wanted[1].call.program += 1;
    app.want(client, NULL, &[], 3);
    app.wanted[2].call.version += 1;
    app.want(client, FILL, &[], 4);
    app.want(client, FILL, &(64_u32 << 20).to_be_bytes(), 5);
    pair.until("all replies", |pair| pair.client.app().ended.len() == 5);
    let app = pair.client.app();
    assert_eq!(app.result(1), Some(&Err(CallError::ProcedureUnavailable)));
    assert_eq!(app.result(2), Some(&Err(CallError::ProgramUnavailable)));
    let mismatch = CallError::ProgramMismatch { low: 1, high: 1 };
    assert_eq!(app.result(3), Some(&Err(mismatch)));
    assert_eq!(app.result(4), Some(&Err(CallError::GarbageArgs)));
    // Longer than a message may be.
    assert_eq!(app.result(5), Some(&Err(CallError::SystemError)));
    let counters = pair.server.counters();
    assert_eq!(counters.rpc_errors_sent, 5);
    assert_eq!(counters.replies_too_long, 1);
}

#[test]
fn as_many_calls_are_deferred_as_there_is_room_for() {
    let mut pair = Pair::new(&CoreConfig {
        deferred_max: 4,
        ..config()
    });
    let (client, _) = pair.connect();
    // One place is its own.
    for tag in 0..7 {
        pair.client.app_mut().want(client, NEVER, &[], tag);
    }
    pair.until("two errors", |pair| pair.client.app().ended.len() == 2);
    for (_, result) in &pair.client.app().ended {
        assert_eq!(*result, Err(CallError::SystemError));
    }
    assert_eq!(pair.server.app().never.len(), 5);
    assert_eq!(pair.server.counters().deferred, 5);
}

#[test]
fn deferred_replies_come_in_any_order() {
    let mut pair = Pair::new(&config());
    let (client, _) = pair.connect();
    pair.server.app_mut().backwards = true;
    for tag in 0..8 {
        pair.client
            .app_mut()
            .want(client, LATER, &pattern(64, tag), tag);
    }
    pair.until("all replies", |pair| pair.client.app().ended.len() == 8);
    let app = pair.client.app();
    for tag in 0..8 {
        assert_eq!(app.result(tag), Some(&Ok(pattern(64, tag))));
    }
}

/// Each end is requester and responder of long and short messages, with the fewest message buffers
/// and credits there can be: everything waits for everything, and all of it gets its turn.
#[test]
fn the_scarcest_resources_hold_up_calls_and_fail_none() {
    for (seed, credits) in some_of([(1, 3), (2, 3), (3, 4), (4, 5), (5, 8)]) {
        let scarce = CoreConfig {
            connections_max: 4,
            credits_per_connection: credits,
            message_buffers: 4,
            send_buffers: 2,
            message_bytes_max: 80_000,
            deferred_max: 64,
            ..config()
        };
        let mut pair = Pair::new(&scarce);
        let connections: Vec<_> = (0..4).map(|_| pair.connect()).collect();
        let sizes = pattern(240, seed);
        let size = |tag: u64| {
            let at = usize::try_from(tag).expect("small");
            [0, 64, 2000, 5000, 30_000, 76_000][usize::from(sizes[at]) % 6]
        };
        for tag in 0..240 {
            let (client, server) = connections[usize::try_from(tag % 4).expect("small")];
            let procedure = if tag % 5 == 0 { LATER } else { ECHO };
            let bytes = pattern(size(tag), tag);
            pair.client.app_mut().want(client, procedure, &bytes, tag);
            pair.server.app_mut().want(server, procedure, &bytes, tag);
        }
        pair.until("all replies", |pair| {
            assert_eq!(pair.server.app().refused, []);
            pair.client.app().ended.len() == 240 && pair.server.app().ended.len() == 240
        });
        for side in [&pair.client, &pair.server] {
            for tag in 0..240 {
                let result = side.app().result(tag);
                assert!(result == Some(&Ok(pattern(size(tag), tag))), "call {tag}");
            }
            assert_eq!(side.core.message_buffers_in_use(), 0);
            assert!(
                side.counters().awaiting_message_buffer > 0,
                "they are scarce"
            );
        }
    }
}

/// The way to a peer that does not poll fills up before its credits are used up. What was encoded
/// for it is kept, in order, and goes out later; another peer's calls are not held up.
#[test]
fn a_full_send_queue_is_waited_for() {
    unless_skipped!("a_full_send_queue_is_waited_for");
    let wide = CoreConfig {
        connections_max: 2,
        credits_per_connection: 200,
        calls_outstanding_max: 400,
        send_buffers: 8,
        ..config()
    };
    let mut pair = Pair::new(&wide);
    let (first, server_first) = pair.connect();
    let (second, _) = pair.connect();
    // Long enough to fill the ring, short enough to be copied into it; the last are not.
    let size = |tag: u64| if tag % 10 == 9 { 3000 } else { 900 };
    for tag in 0..300 {
        let connection = if tag % 2 == 0 { first } else { second };
        let args = pattern(size(tag), tag);
        pair.client.app_mut().want(connection, ECHO, &args, tag);
        pair.server.app_mut().want(server_first, ECHO, &args, tag);
    }
    for _ in 0..50 {
        pair.now += 1000;
        let _ = pair.client.core.iterate_at(pair.now);
    }
    assert!(
        pair.client.counters().awaiting_send_slot > 0,
        "the way is full"
    );
    for _ in 0..50 {
        pair.now += 1000;
        let _ = pair.server.core.iterate_at(pair.now);
    }
    assert!(
        pair.server.counters().awaiting_send_slot > 0,
        "the way back as well"
    );
    pair.until_ended(300, 300);
    for app in [pair.client.app(), pair.server.app()] {
        for tag in 0..300 {
            assert!(
                app.result(tag) == Some(&Ok(pattern(size(tag), tag))),
                "call {tag}"
            );
        }
    }
}
