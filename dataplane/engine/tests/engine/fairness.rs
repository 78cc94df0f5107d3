//! Peers that take what they can and finish nothing, and one beside them that behaves.

use std::time::Duration;

use crate::support::bulk::{BulkApp, TAKE, bulk_config};
use crate::support::raw::{Attack, CREDIT, message, null_call, words};
use crate::support::{App, NULL, PROGRAM, VERSION};
use rpcrdma_engine::{
    Application, CloseReason, ConnectionKey, CoreConfig, IdlePolicy, Owed, PlacementConfig,
};
use rpcrdma_fabric::interface::QueuePairId;
use rpcrdma_protocol::v2::ReverseRequestSupport;
use rpcrdma_protocol::v2::connection::{Config, Connection, Role};

/// Connections of peers that misbehave.
const HOSTILE: usize = 4;

/// Grants nothing, of at most 60.
const NO_CREDIT: u32 = 60 << 16;

const LIMIT: Duration = Duration::from_secs(40);

/// Few slots to share, and peers that nobody takes for dead.
fn config() -> CoreConfig {
    CoreConfig {
        connections_max: 5,
        bulk_buffers: 16,
        bulk_calls: 2,
        keep_alive_interval: Duration::ZERO,
        stall_timeout: LIMIT,
        ..bulk_config()
    }
}

/// A null call with a Read chunk of no bytes: it takes a slot, and nothing is read.
fn chunked_call(xid: u32, credit: u32) -> Vec<u8> {
    let lists = [1, 40, 7, 0, 0, 5, 0, 0, 0];
    let rpc = [xid, 0, 2, PROGRAM, VERSION, NULL, 0, 0, 0, 0];
    [
        words(&[xid, 2, credit, 0, 0, 0]),
        words(&lists),
        words(&rpc),
    ]
    .concat()
}

/// Grants so many credits, and nothing else.
fn grant(credits: u32) -> Vec<u8> {
    words(&[0, 2, NO_CREDIT | credits, 1, 0, 0, 0, 0, 0])
}

/// The XIDs of the messages that came since the last time, grants apart; none of them is an error.
fn answered<A: Application>(attack: &mut Attack<A>) -> Vec<u32> {
    let taken = attack.take();
    let xid = |message: &Vec<u8>| {
        assert_ne!(message[12..16], [0, 0, 0, 4], "{message:?}");
        let (xid, _) = message.split_first_chunk::<4>().expect("a header");
        u32::from_be_bytes(*xid)
    };
    taken.iter().map(xid).collect()
}

/// Agrees on version 2 by telling the victim's own properties.
fn exchange_properties<A: Application>(attack: &mut Attack<A>) {
    let mut client = Connection::new(&Config {
        role: Role::Client,
        receive_reserve: 60,
        properties: attack.victim.properties,
        message_bytes_max: 20_000,
    });
    let mut message = [0; 1024];
    let bytes = client.encode_properties(&mut message, 0);
    attack.send(&message[..bytes.expect("it fits")]);
    attack.turns(10);
    assert_eq!(answered(attack), [0], "the properties of the other end");
}

/// Connects once more; the connection, and the queue pair of the attacker.
fn connect<A: Application>(attack: &mut Attack<A>) -> (ConnectionKey, QueuePairId) {
    attack.connect(false);
    let key = attack.victim.planted.last().expect("planted");
    let key = *key.as_ref().expect("there is room");
    (key, attack.raw.queue_pair.expect("planted"))
}

/// Four connections each of which holds all the slots that it gets, and grants no credit.
fn occupied(calls: u32) -> (Attack, Vec<(ConnectionKey, QueuePairId)>) {
    occupied_of(&config(), calls)
}

/// The same, of a core with this configuration.
fn occupied_of(config: &CoreConfig, calls: u32) -> (Attack, Vec<(ConnectionKey, QueuePairId)>) {
    let mut attack = Attack::against(Role::Server, false, config, App::default());
    let first = (attack.connection(), attack.raw.queue_pair.expect("planted"));
    let mut connections = vec![first];
    for number in 0..HOSTILE {
        if number != 0 {
            connections.push(connect(&mut attack));
        }
        attack.send(&null_call(1));
        assert_eq!(answered(&mut attack), [1]);
        // One may be answered still.
        for xid in 2..2 + calls {
            attack.send(&chunked_call(xid, NO_CREDIT));
        }
        assert_eq!(answered(&mut attack), [2]);
    }
    (attack, connections)
}

#[test]
fn peers_that_are_never_answered_leave_a_slot_to_every_other() {
    let (mut attack, connections) = occupied(6);
    // Each has its own, and one or two have what is shared: the others wait in their Receives.
    let served = attack.victim.app().calls;
    let most = 2 * HOSTILE as u64 + HOSTILE as u64 + 2;
    assert!(served <= most, "{served} of at most {most}");
    connect(&mut attack);
    attack.send(&null_call(1));
    for xid in 2..20 {
        attack.send(&chunked_call(xid, CREDIT));
        assert_eq!(answered(&mut attack).last(), Some(&xid));
    }
    assert!(attack.victim.closed.is_empty());
    // They were held up by themselves alone: with credits their calls are answered as well.
    for (_, queue_pair) in connections {
        attack.raw.queue_pair = Some(queue_pair);
        attack.send(&grant(8));
        attack.turns(20);
        let mut xids = answered(&mut attack);
        xids.sort_unstable();
        assert_eq!(xids, (3..8).collect::<Vec<_>>());
    }
}

/// What cannot go on until a peer grants credits costs no polls.
#[test]
fn a_core_sleeps_while_peers_grant_nothing_for_their_replies() {
    let config = CoreConfig {
        idle: IdlePolicy::Park {
            after: Duration::ZERO,
            awake_percent: 100,
        },
        ..config()
    };
    let (attack, _) = occupied_of(&config, 6);
    attack.sleeps("while nobody grants anything");
}

#[test]
fn peers_that_grant_nothing_for_their_replies_are_left_in_time() {
    let (mut attack, connections) = occupied(3);
    connect(&mut attack);
    attack.send(&null_call(1));
    assert_eq!(answered(&mut attack), [1]);
    // One of them grants something now and then, and is kept as long as it does.
    attack.raw.queue_pair = Some(connections[0].1);
    for quarter in 0..4 {
        attack.pass(LIMIT / 4);
        assert!(attack.victim.closed.is_empty());
        if quarter % 2 == 1 {
            attack.send(&grant(1));
            assert_eq!(answered(&mut attack).len(), 1);
        }
    }
    attack.pass(LIMIT / 4);
    let mut closed = attack.victim.closed.clone();
    closed.sort_by_key(|(key, _)| key.index);
    let reason = CloseReason::PeerStalled {
        owed: Owed::Credits,
        stalled_ms: 40_000,
    };
    let expected: Vec<_> = connections[1..]
        .iter()
        .map(|&(key, _)| (key, reason))
        .collect();
    assert_eq!(closed, expected);
    assert_eq!(attack.victim.counters().peers_stalled, 3);
    assert_eq!(attack.victim.core.bulk_buffers_free(), 16);
}

#[test]
fn a_continued_message_that_is_never_finished_costs_its_connection() {
    let mut attack = Attack::against(Role::Server, false, &config(), App::default());
    attack.agree();
    let rpc = [2, 0, 2, PROGRAM, VERSION, NULL, 0, 0, 0, 0];
    attack.send(&message(2, 2, &rpc));
    assert_eq!(attack.victim.core.message_buffers_in_use(), 1);
    // A word now and then does not help.
    for _ in 0..4 {
        attack.pass(LIMIT / 4);
        assert!(attack.victim.closed.is_empty());
        attack.send(&message(2, 2, &[0]));
    }
    attack.pass(LIMIT / 4);
    let reason = CloseReason::PeerStalled {
        owed: Owed::RestOfMessage,
        stalled_ms: 40_000,
    };
    let said = "the peer owed the rest of a message for 40000 ms";
    assert_eq!(reason.to_string(), said);
    attack.assert_closed(reason);
    assert_eq!(attack.victim.core.message_buffers_in_use(), 0);
}

#[test]
fn messages_that_are_finished_cost_nothing_however_long_they_go_on() {
    let mut attack = Attack::against(Role::Server, false, &config(), App::default());
    attack.agree();
    for xid in 2..20 {
        let rpc = [xid, 0, 2, PROGRAM, VERSION, NULL, 0, 0, 0, 0];
        attack.send(&message(xid, 2, &rpc));
        attack.pass(LIMIT / 4);
        attack.pass(LIMIT / 4);
        attack.send(&message(xid, 0, &[0]));
        assert_eq!(answered(&mut attack), [xid]);
        attack.pass(LIMIT / 4);
    }
    assert!(attack.victim.closed.is_empty());
}

/// The last part of a call with chunk lists waits for a slot, as a call of one message does.
#[test]
fn a_call_in_parts_waits_for_a_slot() {
    let mut attack = Attack::against(Role::Server, false, &config(), App::default());
    attack.agree();
    // One is answered, and two take the slots that a peer without credits may have.
    for xid in 2..5 {
        attack.send(&chunked_call(xid, NO_CREDIT));
    }
    assert_eq!(answered(&mut attack), [2]);
    let whole = chunked_call(5, NO_CREDIT);
    let (rpc, header) = (&whole[60..], &whole[..60]);
    let first = words(&[5, 2, NO_CREDIT, 0, 2, 0, 0, 0, 0]);
    attack.send(&[&first, &rpc[..20]].concat());
    attack.send(&[header, &rpc[20..]].concat());
    attack.turns(20);
    assert_eq!(answered(&mut attack), [0_u32; 0]);
    attack.send(&grant(8));
    attack.turns(20);
    let mut xids = answered(&mut attack);
    xids.sort_unstable();
    assert_eq!(xids, [3, 4, 5]);
    assert_eq!(attack.victim.counters().errors_sent_system, 0);
    assert_eq!(attack.victim.core.message_buffers_in_use(), 0);
}

const REQUEST: u32 = 0x5254_5201;

/// The first of two transmissions, or of one.
fn transmission(xid: u32, transmissions: u32) -> Vec<u8> {
    let rpc = [xid, 0, 2, PROGRAM, VERSION, TAKE, 0, 0, 0, 0];
    // No items, no directions, so many transmissions, one reserved for the reply, and the stream.
    let header = [xid, 2, CREDIT, REQUEST, 0, 0, 0, transmissions, 1, 40];
    [words(&header), words(&rpc)].concat()
}

#[test]
fn groups_that_are_never_finished_leave_a_slot_to_every_other_and_end_in_time() {
    let config = CoreConfig {
        placement: Some(PlacementConfig {
            inline_segment_bytes: 1024,
            segments: 1,
            segment_bytes: 4096,
            spares: 8,
        }),
        bulk_calls: 1,
        ..config()
    };
    let level = ReverseRequestSupport::default();
    let mut attack = Attack::placing(level, Role::Server, &config, BulkApp::default());
    let mut hostile = vec![attack.connection()];
    for number in 0..HOSTILE {
        if number != 0 {
            hostile.push(connect(&mut attack).0);
        }
        exchange_properties(&mut attack);
        attack.send(&transmission(2, 2));
        assert_eq!(answered(&mut attack), [0_u32; 0], "it waits for the rest");
    }
    let (_, behaved) = connect(&mut attack);
    exchange_properties(&mut attack);
    for xid in 2..20 {
        attack.send(&transmission(xid, 1));
        assert_eq!(answered(&mut attack).last(), Some(&xid));
    }
    attack.pass(LIMIT / 4);
    for _ in 0..4 {
        assert!(attack.victim.closed.is_empty());
        attack.pass(LIMIT / 4);
    }
    let mut closed = attack.victim.closed.clone();
    closed.sort_by_key(|(key, _)| key.index);
    let reason = CloseReason::PeerStalled {
        owed: Owed::RestOfMessage,
        stalled_ms: 40_000,
    };
    let expected: Vec<_> = hostile.iter().map(|&key| (key, reason)).collect();
    assert_eq!(closed, expected);
    // Where each has Receives of its own, many are flushed.
    attack.turns(200);
    attack.raw.queue_pair = Some(behaved);
    attack.send(&transmission(20, 1));
    assert_eq!(answered(&mut attack), [20]);
    // What their groups lay in is posted again.
    let credits = attack
        .victim
        .core
        .credits(attack.victim.planted[4].clone().expect("planted"));
    assert!(credits.is_some_and(|credits| credits.receives_posted >= 8));
}
