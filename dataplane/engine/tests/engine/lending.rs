//! Receives that connections share, and which busy ones are lent.

use std::time::Duration;

use rpcrdma_engine::{ConnectionKey, CoreConfig};
use rpcrdma_protocol::connection::Versions;
use rpcrdma_protocol::v2::connection::{CreditView, Role};

use crate::support::raw::{Attack, header, null_call, words};
use crate::support::{App, ECHO, Form, LATER, NULL, Pair, pattern};

/// Longer than a core takes between two sweeps.
const SWEEP: Duration = Duration::from_millis(150);

/// Connections of 16 credits each, of which two are sure, and Receives for `shared` more.
fn config(shared: u32) -> CoreConfig {
    CoreConfig {
        connections_max: 4,
        credits_per_connection: 16,
        receives_shared: shared,
        message_buffers: 8,
        calls_outstanding_max: 64,
        ..CoreConfig::default()
    }
}

fn of_server(pair: &Pair, server: ConnectionKey) -> CreditView {
    let credits = pair.server.core.credits(server);
    credits.expect("it is open")
}

fn sweep(pair: &mut Pair) {
    pair.pass(SWEEP);
    pair.turns_exactly(8);
}

/// Makes so many calls on each of the connections, and waits for the replies.
fn make_calls(pair: &mut Pair, clients: &[ConnectionKey], count: usize) {
    let before = pair.client.app().ended.len();
    let all = before + count * clients.len();
    let turns = clients.iter().cycle();
    for (tag, client) in (before..all).zip(turns) {
        let tag = u64::try_from(tag).expect("few");
        let application = pair.client.app_mut();
        application.want(*client, NULL, &[], tag);
    }
    pair.until("all replies", |pair| pair.client.app().ended.len() == all);
    let ended = &pair.client.app().ended;
    assert!(ended.iter().all(|(_, result)| result.is_ok()));
}

/// With one receive queue for each connection, all have equal parts and nothing is lent.
fn has_own_queues() -> bool {
    matches!(crate::FORM, Form::OwnQueues)
}

#[test]
fn a_busy_connection_is_lent_receives_and_gives_them_back_as_it_uses_them() {
    let mut pair = Pair::new(&config(20));
    let [one, other] = [pair.connect(), pair.connect()];
    if has_own_queues() {
        // Twelve guaranteed Receives and twenty others, for four connections.
        let credits = of_server(&pair, one.1);
        assert_eq!((credits.limit, credits.receives_reserved), (7, 8));
        return;
    }
    for connection in [one, other] {
        let credits = of_server(&pair, connection.1);
        assert_eq!((credits.limit, credits.window), (2, 16));
        assert_eq!(credits.receives_reserved, 3);
    }
    // One alone has all that it may have after a single sweep.
    make_calls(&mut pair, &[one.0], 40);
    sweep(&mut pair);
    assert_eq!(of_server(&pair, one.1).limit, 16);
    assert_eq!(of_server(&pair, other.1).limit, 2);
    assert_eq!(pair.server.counters().receives_lent, 14);

    // Two have equal parts of what is shared, however much the first had.
    for _ in 0..4 {
        make_calls(&mut pair, &[one.0, other.0], 40);
        sweep(&mut pair);
    }
    let limits = [one, other].map(|it| of_server(&pair, it.1).limit);
    assert_eq!(limits, [12, 12]);

    // Those that fall silent keep what they were granted, and no more is granted of it.
    for _ in 0..8 {
        sweep(&mut pair);
    }
    let idle = of_server(&pair, one.1);
    assert_eq!(
        (idle.limit, idle.receives_reserved),
        (2, idle.unconsumed() + 1)
    );
    assert!(
        idle.unconsumed() > 6,
        "it kept half of its credits or more: {idle:?}"
    );
    while of_server(&pair, one.1).unconsumed() > 2 {
        let before = of_server(&pair, one.1).unconsumed();
        make_calls(&mut pair, &[one.0], 1);
        assert_eq!(of_server(&pair, one.1).unconsumed(), before - 1);
        sweep(&mut pair);
    }
    sweep(&mut pair);
    assert_eq!(of_server(&pair, one.1).receives_reserved, 3);

    // And what it gave back is there for the other.
    make_calls(&mut pair, &[other.0], 40);
    sweep(&mut pair);
    assert_eq!(of_server(&pair, other.1).limit, 16);
}

#[test]
fn lent_receives_are_free_when_their_connection_ends() {
    for round in 0..6 {
        let mut pair = Pair::new(&config(14));
        let first = pair.connect();
        make_calls(&mut pair, &[first.0], 40);
        sweep(&mut pair);
        let lent = of_server(&pair, first.1).receives_reserved;
        let application = pair.client.app_mut();
        application.want(first.0, LATER, &pattern(300, 7), 1000);
        application.want(first.0, ECHO, &pattern(30_000, 7), 1001);
        pair.turns_exactly(round);
        pair.client.app_mut().to_close.push(first.0);
        pair.until("the end of it", |pair| pair.server.closed.len() == 1);
        pair.client.app_mut().ended.clear();
        let second = pair.connect();
        make_calls(&mut pair, &[second.0], 40);
        for _ in 0..2 {
            sweep(&mut pair);
            make_calls(&mut pair, &[second.0], 40);
        }
        assert_eq!(of_server(&pair, second.1).receives_reserved, lent);
    }
}

/// Two credits are enough for long calls, long replies and deferred replies while no Receive is free to be lent.
#[test]
fn two_credits_carry_everything() {
    let mut pair = Pair::new(&config(1));
    let connections = [pair.connect(), pair.connect(), pair.connect()];
    let mut tag = 0;
    for (client, _) in connections {
        for (procedure, bytes) in [
            (ECHO, 9),
            (LATER, 300),
            (ECHO, 30_000),
            (LATER, 9000),
            (ECHO, 60_000),
        ] {
            tag += 1;
            let args = pattern(bytes, 5);
            let application = pair.client.app_mut();
            application.want(client, procedure, &args, tag);
        }
    }
    pair.until("all replies", |pair| pair.client.app().ended.len() == 15);
    for tag in 1..=15 {
        let result = pair.client.app().result(tag);
        assert!(
            matches!(result, Some(Ok(bytes)) if !bytes.is_empty()),
            "call {tag}: {result:?}"
        );
    }
    for (_, server) in connections {
        let credits = of_server(&pair, server);
        assert!(
            credits.limit <= if has_own_queues() { 2 } else { 3 },
            "{credits:?}"
        );
    }
    assert_eq!(pair.server.counters().receiver_not_ready, 0);
}

/// A version 1 grant holds as long as its connection: it is raised, and never lowered.
#[test]
fn a_version_1_connection_keeps_what_it_is_lent() {
    if has_own_queues() {
        return;
    }
    let mut pair = Pair::new(&config(20));
    let client = pair.connect_with(Versions::One, Versions::Both);
    let granted = |pair: &mut Pair| {
        sweep(pair);
        pair.server.handle.levels().credits_granted_version_1
    };
    make_calls(&mut pair, &[client], 1);
    // One of three Receives is spare, and one is for replies in the reverse direction.
    assert_eq!(granted(&mut pair), 1);
    make_calls(&mut pair, &[client], 40);
    sweep(&mut pair);
    assert_eq!(granted(&mut pair), 15);
    for _ in 0..4 {
        sweep(&mut pair);
    }
    assert_eq!(granted(&mut pair), 15);
    make_calls(&mut pair, &[client], 40);
    assert_eq!(pair.server.counters().receiver_not_ready, 0);
}

/// A peer may use all its lent credits for calls that are refused, for example because their replies are too long, and
/// grant the credits for the errors later.
#[test]
fn peer_gets_as_many_error_messages_as_it_has_credits() {
    let mut attack = Attack::against(Role::Server, false, &config(20), App::default());
    attack.agree();
    for xid in 2..42 {
        attack.send(&null_call(xid));
    }
    attack.pass(SWEEP);
    attack.send(&null_call(42));
    attack.take();
    let credits = attack.victim.core.credits(attack.connection());
    let wrong = credits.expect("it is open").unconsumed();
    assert_eq!(wrong, if has_own_queues() { 7 } else { 16 });
    for xid in 0..wrong {
        let mut message = words(&header(xid, 2, 0));
        // Nothing is granted, of at most 60.
        message[8..12].copy_from_slice(&[0, 60, 0, 0]);
        attack.send(&message);
    }
    attack.turns(20);
    assert_eq!(attack.victim.closed, []);
    attack.send(&words(&[0, 2, 60 << 16 | wrong, 1, 0, 0, 0, 0, 0]));
    let errors = |attack: &Attack| attack.victim.counters().errors_sent_inval_htype;
    attack.until("an error for each message", |attack| {
        errors(attack) >= u64::from(wrong)
    });
    attack.turns(20);
    assert_eq!(errors(&attack), u64::from(wrong));
}
