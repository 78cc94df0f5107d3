//! Chunk lists that are wrong, and a peer that writes where it may no more.

use crate::support::bulk::{BulkApp, GIVE, Wanted, asking, bulk_config};
use crate::support::fabric::unless_skipped;
use crate::support::raw::{Attack, CREDIT, header, words};
use crate::support::{App, NULL, PROGRAM, VERSION};
use rpcrdma_engine::{CoreConfig, Placement};
use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{Gather, RemoteAddress, RemoteKey};
use rpcrdma_protocol::v2::ReverseRequestSupport;
use rpcrdma_protocol::v2::connection::Role;

fn config() -> CoreConfig {
    CoreConfig {
        connections_max: 2,
        bulk_buffers: 16,
        ..bulk_config()
    }
}

/// A null call with these chunk lists.
fn call(xid: u32, header_type: u32, lists: &[u32]) -> Vec<u8> {
    let prefix = [xid, 2, CREDIT, header_type, 0, 0];
    let rpc = [xid, 0, 2, PROGRAM, VERSION, NULL, 0, 0, 0, 0];
    let rpc = if header_type == 0 { &rpc[..] } else { &[] };
    [words(&prefix), words(lists), words(rpc)].concat()
}

/// Its reply where it has an item, if an empty one: the service knows no bulk data, and takes none for its arguments.
const GARBAGE: [u32; 6] = [2, 1, 0, 0, 0, 4];

/// Segments of a Read list: position, handle, length, offset.
fn reads(segments: &[[u32; 4]]) -> Vec<u32> {
    let entries = segments
        .iter()
        .flat_map(|[position, handle, length, offset]| {
            [1, *position, *handle, *length, 0, *offset]
        });
    entries.chain([0, 0, 0]).collect()
}

#[test]
fn wrong_lists_draw_the_error_that_names_them_and_nothing_is_read() {
    let mut attack = Attack::against(Role::Server, false, &config(), App::default());
    attack.agree();
    let many: Vec<_> = (0..9)
        .map(|chunk| [40 + 8 * chunk, 7, 4, 100 * chunk])
        .collect();
    let segments: Vec<_> = (0..17).map(|segment| [40, 7, 4, 100 * segment]).collect();
    let chunk = |count: u32| {
        let segments = (0..count).flat_map(|number| [9, 4, 0, 100 * number]);
        [0, 1, count]
            .into_iter()
            .chain(segments)
            .chain([0, 0])
            .collect::<Vec<_>>()
    };
    let bad_xdr = vec![2];
    let system = vec![10];
    let cases: Vec<(&str, Vec<u32>, Vec<u32>)> = vec![
        (
            "beyond the stream",
            reads(&[[44, 7, 4, 0]]),
            bad_xdr.clone(),
        ),
        (
            "inside another",
            reads(&[[36, 7, 8, 0], [40, 7, 8, 100]]),
            bad_xdr.clone(),
        ),
        ("unaligned", reads(&[[41, 7, 8, 0]]), bad_xdr.clone()),
        (
            "overlapping",
            reads(&[[40, 7, 8, 0], [40, 7, 8, 4]]),
            bad_xdr.clone(),
        ),
        ("two payloads", reads(&[[0, 7, 40, 0]]), bad_xdr),
        ("too many chunks", reads(&many), vec![5, 8]),
        ("too many segments", reads(&segments), vec![7, 16]),
        ("too many segments of results", chunk(17), vec![7, 16]),
        (
            "a segment too long",
            reads(&[[40, 7, 2 << 20, 0]]),
            system.clone(),
        ),
        (
            "more than there are buffers",
            {
                let segments: Vec<_> = (0..2).map(|it| [40, 7, 1 << 20, it << 21]).collect();
                reads(&segments)
            },
            system,
        ),
    ];
    for (xid, (what, lists, error)) in (2..).zip(cases) {
        attack.send(&call(xid, 0, &lists));
        let expected = [words(&[xid, 2, 0, 4, 1]), words(&error)].concat();
        assert_eq!(attack.take(), [expected], "{what}");
    }
    let counters = attack.victim.counters();
    assert_eq!((counters.rdma_reads, counters.calls_received), (0, 1));
    attack.assert_serves(50);
    assert_eq!(attack.victim.core.bulk_buffers_free(), 16);
}

#[test]
fn chunks_that_are_not_used_come_back_unused() {
    let mut attack = Attack::against(Role::Server, false, &config(), App::default());
    attack.agree();
    // A Read chunk without bytes, a Write chunk, an empty one, and a Reply chunk.
    let lists = [
        &[1, 40, 7, 0, 0, 5, 0][..],
        &[1, 1, 9, 100, 0, 6, 1, 0, 0],
        &[1, 1, 9, 100, 0, 200],
    ]
    .concat();
    attack.send(&call(2, 0, &lists));
    let returned = [
        &[0][..],
        &[1, 1, 9, 0, 0, 6, 1, 0, 0],
        &[1, 1, 9, 0, 0, 200],
    ]
    .concat();
    let head = [2, 2, 0, 0, 1, 0];
    let expected = [words(&head), words(&returned), words(&GARBAGE)].concat();
    assert_eq!(attack.take(), [expected]);
    assert_eq!(attack.victim.core.bulk_buffers_free(), 16);
}

/// -00 section 6.3.3.2: the handle to be invalidated is one of the call's. Another one is not touched, and the reply is a
/// plain Send; where it is one, this peer, which has no such window, learns it by the end of its connection.
#[test]
fn a_handle_that_is_none_of_the_calls_is_not_invalidated() {
    unless_skipped!("a_handle_that_is_none_of_the_calls_is_not_invalidated");
    for (handle, is_invalidated) in [(77, false), (7, true)] {
        let mut attack = Attack::against(Role::Server, false, &config(), App::default());
        attack.agree();
        let mut call = call(2, 0, &[1, 40, 7, 0, 0, 5, 0, 0, 0]);
        call[20..24].copy_from_slice(&u32::to_be_bytes(handle));
        attack.send(&call);
        for _ in 0..50 {
            attack.turns(20);
            if attack.raw.disconnected {
                break;
            }
        }
        assert_eq!(attack.raw.disconnected, is_invalidated, "handle {handle}");
        if !is_invalidated {
            let head = [2, 2, 0, 0, 1, 0, 0, 0, 0];
            let expected = [words(&head), words(&GARBAGE)].concat();
            assert_eq!(attack.take(), [expected]);
            attack.assert_serves(3);
        }
    }
}

#[test]
fn reads_that_the_requester_does_not_allow_cost_its_connection_alone() {
    unless_skipped!("reads_that_the_requester_does_not_allow_cost_its_connection_alone");
    let mut attack = Attack::against(Role::Server, false, &config(), App::default());
    attack.agree();
    attack.send(&call(2, 0, &reads(&[[40, 77, 5000, 0]])));
    attack.turns(30);
    assert!(attack.raw.disconnected, "the key names nothing");
    assert_eq!(attack.victim.closed.len(), 1);
    assert_eq!(attack.victim.core.bulk_buffers_free(), 16);
}

/// A server that calls, for results of so many bytes each, and the call as the peer gets it.
fn victim_that_calls(expected: &[u32]) -> (Attack<BulkApp>, Vec<u8>) {
    // Both ends take chunks in the reverse direction.
    let level = ReverseRequestSupport::General;
    let app = BulkApp::default();
    let mut attack = Attack::announcing(level, Role::Server, false, &config(), app);
    attack.raw.send(&crate::support::raw::null_call(1));
    attack.turns(10);
    attack.take();
    // Properties, so that the victim may call.
    let properties = [1, 5, 4, 2];
    attack.send(&[words(&header(2, 5, 0)[..5]), words(&properties)].concat());
    // Credits, so that one is left for it beside the one that is kept for replies.
    attack.send(&words(&header(0, 1, 0)));
    attack.send(&words(&header(0, 1, 0)));
    attack.turns(20);
    attack.take();
    let connection = attack.connection();
    attack.victim.app_mut().wanted.push_back(Wanted {
        args: asking(&[1]),
        expected: expected.to_vec(),
        ..Wanted::new(connection, GIVE, Placement::Rdma, 1)
    });
    attack.turns(20);
    let sent = attack.take().swap_remove(0);
    (attack, sent)
}

fn word_at(message: &[u8], index: usize) -> u32 {
    let bytes: [u8; 4] = message[4 * index..4 * index + 4]
        .try_into()
        .expect("a word");
    u32::from_be_bytes(bytes)
}

/// One handle can be invalidated with a reply. Where a call has several windows, some are left to be invalidated here
/// anyway, and so all are: which of them are gone does not depend on the peer.
#[test]
fn no_handle_is_to_be_invalidated_of_a_call_with_several_windows() {
    unless_skipped!("no_handle_is_to_be_invalidated_of_a_call_with_several_windows");
    for (expected, windows) in [(&[100][..], 1), (&[100, 100], 2), (&[70_000], 2)] {
        let (attack, sent) = victim_that_calls(expected);
        let counters = attack.victim.counters();
        assert_eq!(counters.windows_bound, windows);
        let handle = word_at(&sent, 5);
        assert_eq!(handle != 0, windows == 1, "{windows} windows: {handle}");
    }
}

/// The peer answers, and then writes to what the call had exposed.
#[test]
fn a_key_is_dead_when_its_call_has_ended() {
    unless_skipped!("a_key_is_dead_when_its_call_has_ended");
    let (mut attack, sent) = victim_that_calls(&[100]);
    let word = |index| word_at(&sent, index);
    let (xid, key) = (word(0), word(9));
    assert_eq!(
        (word(5), word(10)),
        (key, 100),
        "the handle may be invalidated"
    );
    let to = RemoteAddress {
        key: RemoteKey(key),
        offset: u64::from(word(11)) << 32 | u64::from(word(12)),
    };
    // The reply uses nothing and invalidates nothing.
    let reply = [xid, 2, CREDIT, 0, 1, 0, 0, 0, 0, xid, 1, 0, 0, 0, 0];
    attack.send(&words(&reply));
    attack.turns(10);
    assert!(matches!(attack.victim.app().result(1), Some(Ok(_))));
    let counters = attack.victim.counters();
    assert_eq!(counters.windows_invalidated_locally, 1);
    let mut list = Gather::new();
    let buffer = attack.raw.pool.take().expect("a buffer");
    list.push(buffer, 0, 8).expect("it lies within");
    let queue_pair = attack.raw.queue_pair.expect("planted");
    attack
        .raw
        .port
        .post_write(queue_pair, &mut list, to, None)
        .expect("posted");
    attack.turns(20);
    assert!(attack.raw.disconnected, "the write is refused");
    assert_eq!(attack.victim.core.bulk_buffers_free(), 16);
}
