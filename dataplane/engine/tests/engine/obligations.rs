//! What one peer may take of a core, and for how long it may owe something: others are served meanwhile.

use std::time::Duration;

use rpcrdma_engine::{CloseReason, Command, CoreConfig, IdlePolicy, Owed};
use rpcrdma_protocol::cm_private_data::PrivateData;
use rpcrdma_protocol::connection::Versions;
use rpcrdma_protocol::v2::ReverseRequestSupport;
use rpcrdma_protocol::v2::connection::Role;

use crate::support::fabric::unless_skipped;
use crate::support::raw::{Attack, CREDIT, null_call, null_reply, words};
use crate::support::{App, FILL, LATER, NEVER, NULL, PROGRAM, Pair, VERSION};

const LIMIT: Duration = Duration::from_secs(40);

fn config() -> CoreConfig {
    CoreConfig {
        connections_max: 18,
        send_buffers: 32,
        message_buffers: 8,
        keep_alive_interval: Duration::ZERO,
        stall_timeout: LIMIT,
        ..CoreConfig::default()
    }
}

/// Grants nothing, of at most 1000.
const NO_CREDIT: u32 = 1000 << 16;

fn call_with_credit(xid: u32, credit: u32, procedure: u32, args: &[u32]) -> Vec<u8> {
    let header = [xid, 2, credit, 0, 0, 0, 0, 0, 0];
    let rpc = [xid, 0, 2, PROGRAM, VERSION, procedure, 0, 0, 0, 0];
    [words(&header), words(&rpc), words(args)].concat()
}

fn stalled(owed: Owed) -> CloseReason {
    CloseReason::PeerStalled {
        owed,
        stalled_ms: 40_000,
    }
}

/// Time passes until a deadline is seen to be missed, with a neighbour that is served all the while.
fn pass_with_a_neighbour(attack: &mut Attack, xid: u32) {
    for quarter in 0..5 {
        attack.pass(LIMIT / 4);
        // Where each connection has Receives of its own, those of the closed ones are flushed.
        attack.turns(200);
        attack.assert_serves(xid + quarter);
    }
}

/// A peer that calls at most so often, and takes no replies: of more bytes than are copied, so that each keeps a send
/// buffer.
fn deaf(version: u32, calls_max: u32) -> Attack {
    deaf_to(&config(), version, calls_max)
}

/// The same, of a core with this configuration.
fn deaf_to(config: &CoreConfig, version: u32, calls_max: u32) -> Attack {
    let level = ReverseRequestSupport::None;
    let role = Role::Server;
    let mut attack = Attack::speaking(Versions::Both, level, role, config, App::default());
    attack.agree();
    let threshold = PrivateData {
        send_bytes: 4096,
        receive_bytes: 4096,
        ..PrivateData::default()
    };
    attack.victim.terms.own = threshold;
    attack.victim.terms.peer = threshold;
    attack.connect_deaf();
    for xid in 0..calls_max {
        let call = match (version, xid) {
            (1, _) => {
                let header = [xid, 1, 32, 0, 0, 0, 0];
                let rpc = [xid, 0, 2, PROGRAM, VERSION, FILL, 0, 0, 0, 0, 3000];
                [words(&header), words(&rpc)].concat()
            }
            // It grants what it does not post.
            (_, 0) => call_with_credit(xid, NO_CREDIT | 900, FILL, &[3000]),
            (..) => call_with_credit(xid, NO_CREDIT, FILL, &[3000]),
        };
        let before = attack.victim.app().calls;
        attack.send_deaf(&call);
        // It stays within its credits: its calls wait now.
        if attack.victim.app().calls == before {
            break;
        }
    }
    attack
}

#[test]
fn a_peer_that_posts_no_receives_leaves_the_others_their_sends_and_is_left_in_time() {
    unless_skipped!(
        "a_peer_that_posts_no_receives_leaves_the_others_their_sends_and_is_left_in_time"
    );
    for version in [1, 2] {
        let mut attack = deaf(version, 300);
        let levels = |attack: &mut Attack| {
            attack.pass(Duration::from_millis(200));
            attack.victim.handle.levels()
        };
        // What is left is what the others are guaranteed, and one for a grant or an error to this peer.
        assert_eq!(levels(&mut attack).send_buffers_free, 2 * 17 + 1);
        attack.send(&call_with_credit(5000, CREDIT, FILL, &[3000]));
        let came = attack.take();
        assert_eq!(
            came.len(),
            1,
            "a neighbour's reply of the same size goes out"
        );
        attack.assert_serves(5001);
        pass_with_a_neighbour(&mut attack, 5002);
        let deaf = *attack.victim.planted[1].as_ref().expect("planted");
        assert_eq!(attack.victim.closed, [(deaf, stalled(Owed::Receives))]);
        attack.assert_serves(6000);
    }
}

#[test]
fn peers_that_take_no_replies_leave_a_message_buffer_to_every_other() {
    let mut attack = Attack::against(Role::Server, false, &config(), App::default());
    for number in 0..16 {
        if number != 0 {
            attack.connect(false);
        }
        for xid in 1..5 {
            attack.send(&call_with_credit(xid, 60 << 16, NULL, &[]));
        }
    }
    attack.take();
    attack.connect(false);
    attack.send(&null_call(77));
    assert_eq!(attack.take(), [null_reply(77)]);
    pass_with_a_neighbour(&mut attack, 78);
    let closed = attack.victim.closed.iter();
    let reasons: Vec<_> = closed.map(|(_, reason)| *reason).collect();
    assert_eq!(reasons, [stalled(Owed::Credits); 16]);
    assert_eq!(attack.victim.core.message_buffers_in_use(), 0);
}

#[test]
fn a_peer_that_connects_and_never_speaks_is_left_in_time() {
    let mut attack = Attack::against(Role::Server, false, &config(), App::default());
    let silent = attack.connection();
    attack.connect(false);
    attack.agree();
    for quarter in 0..4 {
        attack.assert_serves(2 + quarter);
        assert_eq!(attack.victim.closed, []);
        attack.pass(LIMIT / 4);
    }
    attack.pass(LIMIT / 4);
    assert_eq!(
        attack.victim.closed,
        [(silent, stalled(Owed::FirstMessage))]
    );
}

#[test]
fn a_connection_leaves_places_for_deferred_calls_to_others() {
    let mut pair = Pair::new(&CoreConfig {
        deferred_max: 20,
        ..config()
    });
    let (greedy, _) = pair.connect();
    let (other, _) = pair.connect();
    for tag in 0..60 {
        let application = pair.client.app_mut();
        application.want(greedy, NEVER, &[], 1000 + tag);
    }
    pair.turns(500);
    let failed = |it: &&(u64, _)| matches!(it, (_, Err(_)));
    let ended: Vec<(u64, Result<(), ()>)> = (pair.client.app().ended.iter())
        .map(|(tag, result)| (*tag, result.as_ref().map(|_| ()).map_err(|_| ())))
        .collect();
    let refused = ended.iter().filter(failed).count();
    assert_eq!(
        refused,
        60 - 21,
        "there are places for 20, and one of its own"
    );
    let application = pair.client.app_mut();
    application.want(other, LATER, &[0; 8], 1);
    pair.turns(100);
    let result = pair.client.app().result(1);
    assert_eq!(result, Some(&Ok(vec![0; 8])));
}

/// A call with a Read chunk, of a peer that grants a credit with each: it has paid for the errors.
fn with_an_unservable_chunk(xid: u32) -> Vec<u8> {
    let lists = [1, 40, 7, 0, 0, 5, 0, 0, 0];
    let rpc = [xid, 0, 2, PROGRAM, VERSION, NULL, 0, 0, 0, 0];
    [
        words(&[xid, 2, CREDIT, 0, 0, 0]),
        words(&lists),
        words(&rpc),
    ]
    .concat()
}

#[test]
fn a_burst_of_refused_calls_with_credits_for_their_errors_keeps_the_connection() {
    let mut attack = Attack::against(Role::Server, false, &config(), App::default());
    attack.agree();
    for xid in 2..10 {
        attack.raw.send(&with_an_unservable_chunk(xid));
    }
    attack.turns(20);
    assert_eq!(attack.victim.closed, []);
    let mut refused: Vec<_> = attack.take().iter().map(|it| it[3]).collect();
    refused.sort_unstable();
    assert_eq!(refused, (2..10).collect::<Vec<_>>());
    attack.assert_serves(10);
}

#[test]
fn a_core_has_drained_when_its_peer_has_taken_the_replies() {
    unless_skipped!("a_core_has_drained_when_its_peer_has_taken_the_replies");
    let mut attack = deaf(2, 3);
    attack.victim.command(Command::Drain);
    attack.turns(50);
    assert_eq!(attack.victim.drained, 0, "replies are under way");
    let deaf = *attack.victim.planted[1].as_ref().expect("planted");
    attack.victim.close(deaf);
    attack.turns(50);
    assert_eq!(attack.victim.drained, 1);
}

#[test]
fn a_core_that_drains_takes_no_new_calls() {
    let mut pair = Pair::new(&config());
    let (connection, _) = pair.connect();
    let mut tag = 0;
    let mut more = |pair: &mut Pair| {
        for _ in 0..4 {
            tag += 1;
            let application = pair.client.app_mut();
            application.want(connection, LATER, &[0; 8], tag);
        }
        pair.turn_with_all_that_was_sent();
    };
    for _ in 0..50 {
        more(&mut pair);
    }
    pair.server.command(Command::Drain);
    let before = pair.server.counters().calls_received;
    for _ in 0..500 {
        more(&mut pair);
    }
    let taken = pair.server.counters().calls_received - before;
    assert!(taken <= 8, "{taken} new calls were taken");
    assert_eq!(pair.server.drained, 1);
}

/// As [`config`], of a core that sleeps as soon as there is nothing to do.
fn sleepy() -> CoreConfig {
    CoreConfig {
        idle: IdlePolicy::Park {
            after: Duration::ZERO,
            awake_percent: 100,
        },
        ..config()
    }
}

/// What cannot go on until a peer does something costs no polls.
#[test]
fn a_core_sleeps_while_peers_take_nothing() {
    unless_skipped!("a_core_sleeps_while_peers_take_nothing");
    let served = |calls: &[u32]| {
        let mut attack = Attack::against(Role::Server, false, &sleepy(), App::default());
        for xid in calls {
            attack.send(&call_with_credit(*xid, NO_CREDIT, NULL, &[]));
        }
        attack
    };
    served(&[1]).sleeps("after a call that was answered");
    served(&[1, 2, 3, 4]).sleeps("with replies without credits");
    deaf_to(&sleepy(), 1, 300).sleeps("without Receives, version 1");
    deaf_to(&sleepy(), 2, 300).sleeps("without Receives, version 2");
}
