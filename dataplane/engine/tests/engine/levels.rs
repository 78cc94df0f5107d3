//! What a core publishes for whoever watches it.

use std::time::Duration;

use rpcrdma_engine::{CoreConfig, LevelSnapshot};
use rpcrdma_protocol::connection::Versions;

use crate::support::{ECHO, LATER, NEVER, Pair, pattern};

/// Longer than a core takes between two publications.
const LONG_ENOUGH: Duration = Duration::from_millis(150);

fn config() -> CoreConfig {
    CoreConfig {
        connections_max: 40,
        credits_per_connection: 8,
        message_buffers: 8,
        calls_outstanding_max: 16,
        deferred_max: 16,
        ..CoreConfig::default()
    }
}

/// The levels of the server after a while.
fn levels(pair: &mut Pair) -> LevelSnapshot {
    pair.pass(LONG_ENOUGH);
    pair.turns_exactly(20);
    pair.server.handle.levels()
}

#[test]
fn levels_and_messages_are_of_the_versions_that_are_spoken() {
    for (versions, of_version_1) in [(Versions::One, true), (Versions::Two, false)] {
        let mut pair = Pair::new(&config());
        let key = pair.connect_with(versions, Versions::Both);
        let app = pair.client.app_mut();
        app.want(key, ECHO, &pattern(200, 1), 1);
        pair.until("the reply", |pair| pair.client.app().result(1).is_some());
        let levels = levels(&mut pair);
        let of_version = |one: u64, two: u64| if of_version_1 { (one, two) } else { (two, one) };
        let connections = (levels.connections_version_1, levels.connections_version_2);
        assert_eq!(of_version(connections.0, connections.1), (1, 0));
        let granted = of_version(
            levels.credits_granted_version_1,
            levels.credits_granted_version_2,
        );
        assert!(granted.0 != 0 && granted.1 == 0, "{levels:?}");
        assert_eq!(levels.connections_without_credit, 0);
        // Those that all share, and four for each connection.
        assert_eq!(levels.message_buffers_total, 8 + 4 * 40);
        assert!(levels.message_buffers_free <= 8 + 4 * 40 && levels.send_buffers_free != 0);
        assert!(levels.send_buffers_free <= levels.send_buffers_total);

        let counters = pair.server.counters();
        let received = of_version(
            counters.messages_received_version_1,
            counters.messages_received_version_2,
        );
        let sent = of_version(
            counters.messages_sent_version_1,
            counters.messages_sent_version_2,
        );
        assert!(received.0 >= 1 && sent.0 >= 1, "{counters}");
        assert_eq!((received.1, sent.1), (0, 0), "{counters}");
        // The arguments and the results passed, with headers around them.
        assert!(counters.message_bytes_received > 200 && counters.message_bytes_sent > 200);
        let bytes_in = of_version(
            counters.message_bytes_received_version_1,
            counters.message_bytes_received_version_2,
        );
        let bytes_out = of_version(
            counters.message_bytes_sent_version_1,
            counters.message_bytes_sent_version_2,
        );
        assert_eq!(bytes_in, (counters.message_bytes_received, 0));
        assert_eq!(bytes_out, (counters.message_bytes_sent, 0));
        let calls = of_version(
            counters.calls_received_version_1,
            counters.calls_received_version_2,
        );
        assert_eq!(calls, (counters.calls_received, 0));
        assert_eq!(counters.receiver_not_ready, 0);
    }
}

/// What passed over a connection counts when it has ended between two visits, too.
#[test]
fn messages_of_connections_that_ended_count() {
    let mut pair = Pair::new(&config());
    let (client, _) = pair.connect();
    let app = pair.client.app_mut();
    app.want(client, ECHO, &pattern(200, 1), 1);
    pair.until("the reply", |pair| pair.client.app().result(1).is_some());
    assert_eq!(pair.server.counters().messages_received_version_2, 0);
    let close = rpcrdma_engine::Command::Close {
        connection: client,
        reason: rpcrdma_engine::CloseReason::Local,
    };
    pair.client.command(close);
    pair.until("the end of the connection", |pair| {
        pair.server.counters().connections_closed == 1
    });
    let counters = pair.server.counters();
    assert!(counters.messages_received_version_2 >= 1, "{counters}");
    assert!(counters.messages_sent_version_2 >= 1, "{counters}");
}

#[test]
fn calls_that_are_deferred_show_until_they_are_answered() {
    let mut pair = Pair::new(&config());
    let (client, _) = pair.connect();
    let before = levels(&mut pair);
    assert_eq!(before.calls_deferred, 0);
    let app = pair.client.app_mut();
    app.want(client, LATER, &[], 1);
    pair.until("the reply", |pair| pair.client.app().result(1).is_some());
    assert_eq!(levels(&mut pair).calls_deferred, 0);
    let app = pair.client.app_mut();
    app.want(client, NEVER, &[], 2);
    pair.until("the call", |pair| pair.server.app().never.len() == 1);
    assert_eq!(levels(&mut pair).calls_deferred, 1);
    let times = pair.server.handle.poll_times();
    let replies: u64 = times.replies.iter().map(|bucket| bucket.1).sum();
    assert_eq!(replies, pair.server.counters().replies_sent);
    assert!(times.busy_time > Duration::ZERO);
}

/// A call is on the core from the poll that finds it to the one that answers it.
#[test]
fn deferred_call_is_reported_with_its_duration() {
    let mut pair = Pair::new(&config());
    let (client, _) = pair.connect();
    let app = pair.client.app_mut();
    app.want(client, NEVER, &[], 1);
    pair.until("the call is deferred", |pair| {
        !pair.server.app().never.is_empty()
    });
    pair.pass(LONG_ENOUGH);
    let app = pair.server.app_mut();
    let token = app.never.pop().expect("it was deferred");
    app.deferred.push_back((token, Vec::new(), 1));
    pair.until("the reply", |pair| pair.client.app().result(1).is_some());
    pair.turns_exactly(20);
    let times = pair.server.handle.poll_times();
    assert!(times.reply_time >= LONG_ENOUGH, "{times:?}");
    let is_long = |bucket: &&(Option<Duration>, u64)| bucket.0.is_none_or(|it| it >= LONG_ENOUGH);
    let long: u64 = times.replies.iter().filter(is_long).map(|it| it.1).sum();
    let all: u64 = times.replies.iter().map(|it| it.1).sum();
    assert_eq!((long, all), (1, 1), "{times:?}");
}
