//! What needs a look inside a core.

use std::time::Duration;

use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_protocol::connection::Versions;

use super::incoming::Stream;
use super::publish::Publisher;
use super::resources::Drain;
use super::waiting_receives::WaitingWork;
use crate::close_reason::{CloseReason, Owed};
use crate::config::CoreConfig;
use crate::connection::VISITS;
use crate::ledger::SENDERS_AT_A_TIME;
use crate::message::Use;
use crate::support::{ECHO, NEVER, NULL, Pair};

/// A held call is looked at when something comes free that it can wait for, so its core must not sleep then. It goes back
/// when its connection ends.
#[test]
fn a_core_does_not_sleep_when_a_held_call_can_go_on() {
    let mut pair = Pair::new(&CoreConfig::default());
    let (client, server) = pair.connect();
    pair.turns(20);
    let state = &mut pair.server.core.state;
    assert!(state.prepare_to_park(), "there is nothing to do");
    state.resources.port.unpark();
    state.resources.shared.end_park();
    let buffers = state.resources.messages.available();
    let message = state.resources.messages.take(server.index, Use::CallIn);
    let call = Stream::Message(message.expect("a buffer"));
    let (core, waiting_receives) = (&mut state.resources, &mut state.waiting_receives);
    waiting_receives.hold(core, server, 7, WaitingWork::Call(call));
    assert!(state.prepare_to_park(), "nothing has come free for it");
    state.resources.port.unpark();
    state.resources.shared.end_park();
    let other = state.resources.messages.take(server.index, Use::Answer);
    state.resources.messages.give(other.expect("a buffer"));
    assert!(!state.prepare_to_park(), "a buffer has come free");
    pair.client.core.application_mut().to_close.push(client);
    pair.until("it is closed", |pair| !pair.server.closed.is_empty());
    let state = &pair.server.core.state;
    let left = (
        state.waiting_receives.held(),
        state.resources.messages.available(),
    );
    assert_eq!(left, (0, buffers));
}

/// Otherwise it would look at the path half as often, and find that it is dead twice as late.
#[test]
fn core_whose_call_waits_wakes_up_to_look_at_its_path() {
    let mut pair = Pair::new(&CoreConfig::default());
    pair.has_other_path = true;
    let (client, _) = pair.connect();
    pair.turns(20);
    let wakes_after = |pair: &Pair| {
        let until = pair.client.core.sleeps_until(pair.now);
        Duration::from_nanos(pair.clock.nanos_between(pair.now, until))
    };
    let visit = CoreConfig::default().path_interval();
    assert!(wakes_after(&pair) > visit, "nothing waits");
    pair.client.app_mut().want(client, NEVER, &[], 1);
    pair.until("the call", |pair| pair.server.app().never.len() == 1);
    assert!(wakes_after(&pair) <= visit, "{:?}", wakes_after(&pair));
}

/// With more connections than send buffers are kept for, a reply may wait although its peer owes nothing.
#[test]
fn a_peer_owes_no_credits_while_there_is_no_send_buffer_for_its_reply() {
    let stall_timeout = Duration::from_secs(4);
    let mut pair = Pair::new(&CoreConfig {
        connections_max: SENDERS_AT_A_TIME + 1,
        message_bytes_max: 4096,
        keep_alive_interval: Duration::ZERO,
        stall_timeout,
        ..CoreConfig::default()
    });
    let (client, server) = pair.connect();
    pair.turns(20);
    let exhaust = |pair: &mut Pair, exhausts: bool| {
        let core = &mut pair.server.core.state.resources;
        let connection = core.connections.get_mut(server).expect("it is open");
        if exhausts {
            core.transmit.exhaust(connection);
        } else {
            core.transmit.restore(connection);
        }
    };
    exhaust(&mut pair, true);
    let application = pair.client.core.application_mut();
    // The results are too long for a form, by which a reply takes no buffer.
    application.want(client, ECHO, &[7; 1000], 1);
    for _ in 0..8 {
        pair.turns_exactly(20);
        pair.pass(stall_timeout / 4);
    }
    pair.turns_exactly(20);
    assert!(pair.client.core.application().result(1).is_none());
    assert_eq!(pair.server.handle.counters().awaiting_send_buffer, 1);
    assert_eq!(pair.server.closed, []);
    exhaust(&mut pair, false);
    pair.until("the reply", |pair| {
        pair.client.core.application().result(1).is_some()
    });
}

/// A probe of a version 1 connection that nobody acknowledges: no port reports the end of that peer. Probes that are
/// acknowledged are progress, however often one is sent.
#[test]
fn a_probe_that_is_not_acknowledged_ends_the_connection() {
    let stall_timeout = Duration::from_secs(4);
    let mut pair = Pair::new(&CoreConfig {
        keep_alive_interval: Duration::ZERO,
        stall_timeout,
        ..CoreConfig::default()
    });
    let key = pair.connect_with(Versions::One, Versions::Both);
    let quarters = |pair: &mut Pair, count| {
        for _ in 0..count {
            pair.pass(stall_timeout / 4);
            pair.turns(20);
        }
    };
    // A server that nobody calls is owed its first message.
    pair.client.core.application_mut().want(key, NULL, &[], 1);
    quarters(&mut pair, 20);
    assert_eq!(pair.client.closed, []);
    let probe = |pair: &mut Pair| {
        let connections = &mut pair.client.core.state.resources.connections;
        let connection = connections.get_mut(key).expect("it is open");
        connection.silence.is_probed = true;
        connection.queue_pair
    };
    // Each visit finds a probe that was just sent, because both sweeps are due in the same iteration.
    for _ in 0..20 {
        let queue_pair = probe(&mut pair);
        quarters(&mut pair, 1);
        let core = &mut pair.client.core.state.resources;
        core.probe_ended(queue_pair);
        assert_eq!(pair.client.closed, [], "each probe was acknowledged");
    }
    probe(&mut pair);
    quarters(&mut pair, 3);
    assert_eq!(pair.client.closed, [], "before its time");
    quarters(&mut pair, 3);
    let owed = Owed::Acknowledgement;
    let stalled_ms = 4000;
    let reason = CloseReason::PeerStalled { owed, stalled_ms };
    assert_eq!(pair.client.closed, [(key, reason)]);
}

/// What waits for a time is looked for when the first of all these times has come.
#[test]
fn an_iteration_is_due_at_the_first_of_all_times() {
    let (soon, late) = (Duration::from_secs(10), Duration::from_secs(3600));
    let publication = Duration::from_millis(100);
    for (first, within) in [soon, soon, soon, publication].into_iter().enumerate() {
        let time = |number| if number == first { soon } else { late };
        let mut pair = Pair::new(&CoreConfig {
            call_timeout: time(0),
            keep_alive_interval: time(1),
            stall_timeout: time(2) * u32::from(VISITS),
            ..CoreConfig::default()
        });
        pair.turns_exactly(1);
        let core = &mut pair.server.core;
        assert_eq!(core.state.due, core.state.next_due());
        let now = core.state.resources.now.max(core.clock.now());
        if within == soon {
            let later = now + core.clock.ticks(late);
            core.state.publisher = Publisher::new(&core.clock, later);
        }
        let latest = now + core.clock.ticks(within);
        assert!(core.state.next_due() <= latest, "{first}");
    }
}

/// A drain is looked at until it has ended, and so is what waits for a connection that was woken.
#[test]
fn a_drain_and_a_connection_that_was_woken_are_rare_work() {
    let mut pair = Pair::new(&CoreConfig::default());
    pair.connect();
    pair.turns(20);
    let state = &mut pair.server.core.state;
    assert!(!state.has_rare_work());
    state.resources.is_woken = true;
    assert!(state.has_rare_work());
    state.resources.is_woken = false;
    for (drain, is_looked_at) in [(Drain::Underway, true), (Drain::Done, false)] {
        state.resources.drain = drain;
        assert_eq!(state.has_rare_work(), is_looked_at);
    }
}

/// An end that serves keeps a credit for replies, where the window is large enough, and more where calls have
/// reserved more.
#[test]
fn calls_leave_the_credits_that_replies_need() {
    for (credits_per_connection, kept) in [(1, 0), (2, 0), (3, 1), (8, 1)] {
        let mut pair = Pair::new(&CoreConfig {
            credits_per_connection,
            ..CoreConfig::default()
        });
        let (client, server) = pair.connect();
        pair.turns(20);
        let ends = [
            (&mut pair.client.core, client, 0),
            (&mut pair.server.core, server, kept),
        ];
        for (core, key, kept) in ends {
            let connection = core
                .state
                .resources
                .connections
                .get_mut(key)
                .expect("it is open");
            let available = connection.protocol.credits_available();
            assert_ne!(available, 0);
            assert_eq!(connection.credits_for_calls(), available - kept);
            connection.replies_reserved = 2;
            let left = available.saturating_sub(2);
            assert_eq!(connection.credits_for_calls(), left);
        }
    }
}
