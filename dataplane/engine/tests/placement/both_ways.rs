//! Groups in both directions of a connection, and what waits behind them: a message of one direction never waits for
//! one of the other.

use rpcrdma_engine::{CloseReason, Command, ConnectionKey, CoreConfig, Placement};
use rpcrdma_protocol::v2::rtr::RtrSupport;
use rpcrdma_protocol::v2::{self, Body};

use super::hostile::{
    Hall, NO_CREDIT, PAGE_BYTES, call_for_pages, call_of_for_pages, config, errors, good_call,
    next, reports, response, with_page,
};
use crate::support::bulk::{BulkApp, GIVE, HOLD, TAKE, Wanted, given, limited_bulk_pair};
use crate::support::fabric::{Limits, unless_skipped};
use crate::support::pattern;
use crate::support::raw::{Attack, CREDIT, error, message, null_call, words};

/// The connection that is under attack.
fn newest(attack: &Attack<BulkApp>) -> ConnectionKey {
    let planted = attack.victim.planted.last().expect("planted");
    *planted.as_ref().expect("planted")
}

/// Has the victim call its peer for this many bytes, and gives the XID of the call.
fn victim_calls(attack: &mut Attack<BulkApp>, bytes: u32) -> u32 {
    let wanted = Wanted::new(newest(attack), GIVE, Placement::Send, 1).asking(&[bytes]);
    attack.victim.app_mut().wanted.push_back(wanted);
    attack.turns(20);
    let refused = &attack.victim.app().refused;
    assert_eq!(*refused, []);
    let sent = attack.take();
    let group = sent.last().expect("the call");
    let header = v2::decode_with_rtr(group, RtrSupport::ALL).expect("what we send is right");
    assert!(
        matches!(header.body, Body::TransmitRequest(_)),
        "{header:?}"
    );
    header.prefix.xid
}

/// Answers the calls that the victim's application has deferred, each with results of these lengths.
fn answer_held(attack: &mut Attack<BulkApp>, lengths: &[u32]) {
    let application = attack.victim.app_mut();
    for token in application.held.drain(..) {
        application.later.push_back((token, lengths.to_vec(), 0));
    }
}

/// A server that has called its peer for two pages, and has no slot for the call 103, which is whole; with the XID of its
/// own call.
fn with_a_call_held() -> (Hall, u32) {
    let mut hall = Hall::of(&CoreConfig {
        bulk_calls: 1,
        ..config()
    });
    let attack = &mut hall.attack;
    let xid = victim_calls(attack, 8192);
    // The connection has one slot of its own, and one is shared.
    for held in [101, 102] {
        attack.send(&call_of_for_pages(HOLD, held, CREDIT, 1));
    }
    assert_eq!(attack.victim.app().held.len(), 2);
    attack.send(&good_call(103));
    (hall, xid)
}

/// The first transmission of two that answer that call, with its page.
fn first_of_two(xid: u32, page: &[u8]) -> Vec<u8> {
    let results = [xid, 1, 0, 0, 0, 0, 8192, 0xfeed];
    let two_pages = [1, 28, 8192, 2, 0, 2, 0, 1];
    with_page(response(xid, &two_pages, 2, &results), page)
}

/// A call waits, whole, for a slot. It is taken when the reply to a call of ours is half here.
#[test]
fn a_call_that_was_held_leaves_the_reply_that_arrives_alone() {
    let (mut hall, xid) = with_a_call_held();
    let attack = &mut hall.attack;
    let page = |number: usize| given(0, 8192)[number * PAGE_BYTES..][..PAGE_BYTES].to_vec();
    attack.send(&first_of_two(xid, &page(0)));
    let taken = |attack: &mut Attack<BulkApp>| attack.victim.app().taken.len();
    let before = taken(attack);
    answer_held(attack, &[4096]);
    attack.turns(20);
    assert_eq!(taken(attack), before + 1, "the call that was held");
    attack.send(&with_page(next(xid, 1, 1, &[]), &page(1)));
    let application = attack.victim.app();
    let Some(Ok((stream, items))) = application.result(1) else {
        panic!("it has ended: {:?}", application.ended);
    };
    assert_eq!(*stream, words(&[8192, 0xfeed]));
    assert!(*items == [given(0, 8192)]);
    let sent = attack.take();
    assert_eq!((reports(&sent), errors(&sent)), (vec![], vec![]));
    assert_eq!(attack.victim.closed, []);
    hall.assert_all_home("both directions");
}

/// A reply that breaks off is dropped, and not the call that is held, whole, before it.
#[test]
fn a_group_that_is_given_up_leaves_the_one_that_is_held_before_it() {
    let (mut hall, xid) = with_a_call_held();
    let attack = &mut hall.attack;
    attack.send(&first_of_two(xid, &[0; PAGE_BYTES]));
    // The reply breaks off: its second transmission is left out.
    attack.send(&with_page(next(xid, 1, 2, &[]), &[0; PAGE_BYTES]));
    let sent = attack.take();
    assert_eq!(reports(&sent).len(), 1, "{sent:?}");
    answer_held(attack, &[4096]);
    attack.turns(20);
    let taken = &attack.victim.app().taken;
    let expected = [words(&[21, 22]), pattern(PAGE_BYTES, 103)].concat();
    assert!(taken.last() == Some(&expected), "the call that was held");
    let replied = attack.take().len();
    assert_eq!(replied, 3, "each call has its reply");
}

/// A core that drains begins no more calls, and takes the replies that it waits for, in parts too.
#[test]
fn the_parts_of_a_reply_do_not_wait_behind_a_call_that_is_held() {
    let mut hall = Hall::new();
    let attack = &mut hall.attack;
    let wanted = Wanted {
        args: pattern(8, 1),
        ..Wanted::new(newest(attack), TAKE, Placement::Inline, 1)
    };
    attack.victim.app_mut().wanted.push_back(wanted);
    attack.turns(20);
    let sent = attack.take();
    let xid = u32::from_be_bytes(*sent[0].first_chunk().expect("a header"));
    attack.victim.command(Command::Drain);
    attack.turns(10);
    attack.send(&good_call(103));
    let part = |flags, words_of: &[u32]| message(xid, flags, words_of);
    attack.send(&part(3, &[xid, 1, 0, 0, 0, 0, 41]));
    attack.send(&part(1, &[42, 43]));
    let application = attack.victim.app();
    let Some(Ok((stream, _))) = application.result(1) else {
        panic!("it has ended: {:?}", application.ended);
    };
    assert_eq!(*stream, words(&[41, 42, 43]));
    assert_eq!(attack.victim.closed, []);
}

/// The credits for replies are reserved, a call of ours that was refused waits for others, and does not keep these
/// replies waiting.
#[test]
fn a_call_that_waits_for_credits_does_not_hold_up_the_replies_that_have_them() {
    const PAGES: u32 = 4;
    let mut hall = Hall::of(&CoreConfig {
        bulk_calls: 16,
        ..config()
    });
    let attack = &mut hall.attack;
    let xid = victim_calls(attack, 100);
    let key = newest(attack);
    let available = |attack: &Attack<BulkApp>| {
        let credits = attack.victim.core.credits(key).expect("it is there");
        credits.peer_granted_total.wrapping_sub(credits.sent_total)
    };
    let calls = available(attack).div_ceil(PAGES);
    for number in 0..calls {
        attack.send(&call_of_for_pages(HOLD, 101 + number, NO_CREDIT, PAGES));
    }
    let held = attack.victim.app().held.len();
    assert_eq!(held, calls as usize);
    // The form of the call was refused: it is made once more, without items, and finds no credit.
    let mut refusal = error(xid, &[9, 5000]);
    refusal[8..12].copy_from_slice(&NO_CREDIT.to_be_bytes());
    attack.send(&refusal);
    answer_held(attack, &[4096 * PAGES]);
    let whole = available(attack) / PAGES;
    attack.turns(300);
    let sent = attack.take();
    assert_eq!((reports(&sent), errors(&sent)), (vec![], vec![]));
    assert_eq!(
        sent.len(),
        (whole * PAGES) as usize,
        "as many as have credits"
    );
    let is_reply = |message: &Vec<u8>| message[..3] == [0; 3] && message[3] > 100;
    assert!(sent.iter().all(is_reply));
}

/// The second transmission of a reply waits for the first to leave its buffer, and the reply to another call waits behind
/// it. Nothing comes from the peer any more.
#[test]
fn a_reply_that_waits_behind_a_group_leaves_with_its_end() {
    unless_skipped!("a_reply_that_waits_behind_a_group_leaves_with_its_end");
    let mut hall = Hall::new();
    let attack = &mut hall.attack;
    attack.raw.send(&call_for_pages(101, 60 << 16 | 8, 2));
    // The peer has not looked at the first transmission yet.
    attack.victim_turns(10);
    attack.raw.send(&null_call(102));
    attack.victim_turns(10);
    attack.turns(40);
    let sent = attack.take();
    assert_eq!((reports(&sent), errors(&sent)), (vec![], vec![]));
    let xid = |message: &Vec<u8>| message[..4].to_vec();
    let xids: Vec<_> = sent.iter().map(xid).collect();
    let expected = [101_u32, 101, 102].map(|it| it.to_be_bytes().to_vec());
    assert_eq!(xids, expected);
}

/// The same behind a call of ours, which does not end with its last transmission.
#[test]
fn a_reply_that_waits_behind_a_group_of_a_call_leaves_with_its_end() {
    unless_skipped!("a_reply_that_waits_behind_a_group_of_a_call_leaves_with_its_end");
    let mut hall = Hall::new();
    let attack = &mut hall.attack;
    let wanted = Wanted {
        args: pattern(8, 1),
        items: vec![(8, pattern(2 * PAGE_BYTES, 1))],
        ..Wanted::new(newest(attack), TAKE, Placement::Send, 1)
    };
    attack.victim.app_mut().wanted.push_back(wanted);
    // The peer has not looked at the first transmission yet.
    attack.victim_turns(10);
    attack.raw.send(&null_call(102));
    attack.victim_turns(10);
    attack.turns(40);
    let sent = attack.take();
    let xid = |message: &Vec<u8>| message[..4].to_vec();
    let xids: Vec<_> = sent.iter().map(xid).collect();
    let call = xids.first().cloned().expect("the call");
    assert_eq!(xids, [call.clone(), call, 102_u32.to_be_bytes().to_vec()]);
}

/// What a Send has placed is sent on, finds the send queue full, and waits there when its connection is closed: the
/// segment goes back to where it came from.
#[test]
fn a_placed_item_that_waits_to_be_sent_on_comes_back_when_the_connection_closes() {
    unless_skipped!("a_placed_item_that_waits_to_be_sent_on_comes_back_when_the_connection_closes");
    let limits = Limits {
        windows: 24,
        send_queue_depth: 4,
    };
    let config = config();
    let mut pair = limited_bulk_pair(&config, &config, Some(limits));
    pair.client.properties = config.announced(pair.client.properties);
    pair.server.properties = config.announced(pair.server.properties);
    let (client, server) = pair.connect();
    pair.server.app_mut().keep = true;
    const ITEMS: usize = 6;
    for tag in (0..).take(ITEMS) {
        pair.client.app_mut().wanted.push_back(Wanted {
            args: pattern(8, tag),
            items: vec![(8, pattern(4096, tag))],
            ..Wanted::new(client, TAKE, Placement::Send, tag)
        });
    }
    pair.until("all calls", |pair| pair.client.app().ended.len() == ITEMS);
    assert_eq!(pair.server.app().kept.len(), ITEMS);
    for tag in (0..).take(ITEMS) {
        pair.server.app_mut().wanted.push_back(Wanted {
            args: pattern(8, tag),
            forwards: true,
            ..Wanted::new(server, TAKE, Placement::Send, tag)
        });
    }
    // The client takes nothing.
    pair.server_turns(20);
    let waiting = pair.server.counters().awaiting_send_slot;
    assert_ne!(waiting, 0, "the send queue is full");
    let reason = CloseReason::Local;
    pair.server.command(Command::Close {
        connection: server,
        reason,
    });
    pair.server_turns(20);
    pair.turns(100);
    let core = &mut pair.server.core;
    assert_eq!(core.placement_segments_leased(), 0);
    assert_eq!(core.bulk_buffers_free(), 96);
    assert_eq!(pair.server.app().disconnected.len(), 1);
}
