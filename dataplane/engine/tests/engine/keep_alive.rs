//! Keep-alive: what passes between ends that have nothing to say, and what becomes of a peer that
//! stands still.

use std::time::Duration;

use crate::TestFabric;
use crate::support::fabric::Fabric;
use crate::support::{ECHO, NEVER, Pair};
use rpcrdma_engine::{CallError, CloseReason, CoreConfig, CounterSnapshot};
use rpcrdma_protocol::connection::Versions;

const INTERVAL: Duration = Duration::from_secs(1);

fn config() -> CoreConfig {
    CoreConfig {
        connections_max: 2,
        credits_per_connection: 8,
        message_buffers: 4,
        call_timeout: Duration::from_secs(1_000_000),
        keep_alive_interval: INTERVAL,
        keep_alive_silent_ticks_max: 3,
        ..CoreConfig::default()
    }
}

/// An interval passes, and then both ends do all that there is to do. The message that the client sends at its tick arrives
/// before the tick of the server. The order matters: an end that received something since its last message sends at this
/// tick, and otherwise at the next one.
fn interval(pair: &mut Pair) {
    pair.pass_first_at_the_client(INTERVAL);
    pair.turns(20);
}

/// An interval passes at the client, and the server stands still.
fn interval_of_the_client(pair: &mut Pair) {
    pair.pass_at_the_client(INTERVAL);
    pair.client_turns(20);
}

fn counters(pair: &Pair) -> [CounterSnapshot; 2] {
    [&pair.client.handle, &pair.server.handle].map(|handle| handle.counters())
}

fn echo(pair: &mut Pair, tag: u64) {
    let connection = pair.client.ready[0];
    assert_eq!(pair.ask(connection, ECHO, &[7; 8], tag), Ok(vec![7; 8]));
}

#[test]
fn ends_with_nothing_to_say_speak_at_every_second_tick_and_stay_connected() {
    let mut pair = Pair::new(&config());
    pair.connect();
    // The first tick finds that properties were exchanged.
    interval(&mut pair);
    let mut sent = vec![counters(&pair).map(|counters| counters.keep_alives_sent)];
    assert_eq!(sent, [[0, 0]]);
    for _ in 0..30 {
        interval(&mut pair);
        sent.push(counters(&pair).map(|counters| counters.keep_alives_sent));
    }
    for side in 0..2 {
        for ticks in sent.windows(3) {
            let [before, one, two] = [0, 1, 2].map(|tick: usize| ticks[tick][side]);
            assert!(
                one <= before + 1 && two <= one + 1,
                "one in a tick: {sent:?}"
            );
            assert!(two > before, "one in two ticks: {sent:?}");
        }
    }
    echo(&mut pair, 1);
    let [client, server] = counters(&pair);
    assert_eq!((client.peers_silent, server.peers_silent), (0, 0));
    assert_eq!(client.grants_received, server.grants_sent);
}

#[test]
fn connection_with_calls_sends_no_keep_alive() {
    let mut pair = Pair::new(&config());
    pair.connect();
    for tag in 0..10 {
        echo(&mut pair, tag);
        interval(&mut pair);
    }
    let sent = counters(&pair).map(|counters| counters.keep_alives_sent);
    assert_eq!(sent, [0, 0]);
}

#[test]
fn a_peer_that_stands_still_is_found_at_the_set_tick() {
    let mut pair = Pair::new(&config());
    let (client, _) = pair.connect();
    let app = pair.client.app_mut();
    app.want(client, NEVER, &[], 1);
    pair.until("the call", |pair| pair.server.app().never.len() == 1);
    // In the second of them both ends send a keep-alive.
    interval(&mut pair);
    interval(&mut pair);
    // One tick that still heard of the peer, and two of silence.
    for _ in 0..3 {
        interval_of_the_client(&mut pair);
        let app = pair.client.app();
        assert!(app.disconnected.is_empty() && app.ended.is_empty());
    }
    interval_of_the_client(&mut pair);
    let reason = CloseReason::PeerSilent { silent_ms: 3000 };
    assert_eq!(reason.to_string(), "the peer was silent for 3000 ms");
    let app = pair.client.app();
    assert_eq!(app.disconnected, [(client, reason)]);
    assert_eq!(app.result(1), Some(&Err(CallError::Disconnected)));
    assert_eq!(pair.client.closed, [(client, reason)]);
    assert_eq!(pair.client.counters().peers_silent, 1);
    // When it goes on it learns that the connection is gone.
    pair.until("the end", |pair| pair.server.closed.len() == 1);
    assert_eq!(pair.server.closed[0].1, CloseReason::Peer);
}

#[test]
fn a_peer_that_stands_still_for_less_keeps_its_connection() {
    let mut pair = Pair::new(&config());
    pair.connect();
    for tag in 0..5 {
        interval(&mut pair);
        interval(&mut pair);
        // One tick that still heard of the peer, and two of silence.
        for _ in 0..3 {
            interval_of_the_client(&mut pair);
        }
        echo(&mut pair, tag);
    }
    assert!(pair.client.closed.is_empty() && pair.server.closed.is_empty());
}

/// A server that has not answered the first message is sent a probe at each tick, where the port has probes; one that has
/// answered is sent none. Software iWARP may have left that message unread.
#[test]
fn a_server_that_has_not_answered_is_probed_at_each_tick() {
    for versions in [Versions::Two, Versions::One] {
        let mut pair = Pair::new(&config());
        pair.plant_with(versions, Versions::Both);
        if versions == Versions::One {
            pair.until("the client is ready", |pair| !pair.client.ready.is_empty());
            let client = pair.client.ready[0];
            pair.client.app_mut().want(client, ECHO, &[7; 8], 0);
        }
        pair.client_turns(20);
        for ticks in 1..3 {
            interval_of_the_client(&mut pair);
            let probes = if TestFabric::HAS_PROBES { ticks } else { 0 };
            assert_eq!(pair.client.counters().probes_sent, probes, "{versions:?}");
        }
        pair.until("the answer", |pair| !pair.client.ready.is_empty());
        echo(&mut pair, 1);
        let before = pair.client.counters().probes_sent;
        interval(&mut pair);
        interval(&mut pair);
        assert_eq!(pair.client.counters().probes_sent, before, "{versions:?}");
        assert_eq!(pair.server.counters().probes_sent, 0);
        assert!(pair.client.closed.is_empty() && pair.server.closed.is_empty());
    }
}

/// A core that did not run ticks once when it goes on, and not for every interval that it missed.
#[test]
fn stalled_core_does_not_take_its_peers_for_dead() {
    let mut pair = Pair::new(&config());
    pair.connect();
    for tag in 0..5 {
        pair.pass(INTERVAL * 1000);
        pair.turns(20);
        echo(&mut pair, tag);
    }
    assert!(pair.client.closed.is_empty() && pair.server.closed.is_empty());
}

#[test]
fn without_an_interval_no_silence_ends_a_connection() {
    let mut pair = Pair::new(&CoreConfig {
        keep_alive_interval: Duration::ZERO,
        ..config()
    });
    pair.connect();
    for _ in 0..100 {
        interval_of_the_client(&mut pair);
    }
    echo(&mut pair, 1);
    let [client, server] = counters(&pair);
    assert_eq!((client.keep_alives_sent, server.keep_alives_sent), (0, 0));
}

/// However many connections are due, one iteration serves a few.
#[test]
fn many_connections_are_ticked_a_few_at_a_time() {
    const CONNECTIONS: u64 = 40;
    let mut pair = Pair::new(&CoreConfig {
        connections_max: 40,
        keep_alive_silent_ticks_max: 255,
        ..config()
    });
    for _ in 0..CONNECTIONS {
        pair.connect();
    }
    interval(&mut pair);
    pair.pass(INTERVAL);
    let mut sent = 0;
    for _ in 0..20 {
        let _ = pair.client.core.iterate_at(pair.now);
        let before = std::mem::replace(&mut sent, pair.client.counters().keep_alives_sent);
        assert!(sent - before <= 16, "{} in one iteration", sent - before);
    }
    assert_eq!(sent, CONNECTIONS);
    // Each of them counts for itself.
    interval(&mut pair);
    assert!(pair.client.closed.is_empty() && pair.server.closed.is_empty());
}

#[test]
fn fewer_silent_ticks_than_two_live_ends_may_have_are_refused() {
    let few = CoreConfig {
        keep_alive_silent_ticks_max: 2,
        ..config()
    };
    let pair = Pair::new(&config());
    let error = few
        .validate(
            &rpcrdma_fabric::interface::PortSetup::attributes(pair.client.core.port()).clone(),
        )
        .expect_err("two are too few");
    assert!(error.to_string().contains("silent ticks"), "{error}");
}
