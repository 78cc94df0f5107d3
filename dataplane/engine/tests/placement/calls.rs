//! Calls and replies with placed items, of all sizes and in both directions.

use crate::support::bulk::{
    BulkPair, GIVE, GIVE_LATER, GIVE_LONG, GIVE_SHARED, TAKE, Wanted, asking, assert_results,
    bulk_config, bulk_pair, given,
};
use crate::support::fabric::unless_skipped;
use crate::support::pattern;
use rpcrdma_fabric::interface::ReceiveQueueId;
use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_protocol::v2::plan::Thresholds;

use rpcrdma_engine::{CoreConfig, Placement, PlacementConfig};

/// Cores whose receive buffers have placement segments.
pub(crate) fn placing_config(segments: u32, segment_bytes: u32, spares: u32) -> CoreConfig {
    CoreConfig {
        credits_per_connection: 32,
        placement: Some(PlacementConfig {
            inline_segment_bytes: 1024,
            segments,
            segment_bytes,
            spares,
        }),
        thresholds: Thresholds {
            send_placement_bytes_max: 1 << 20,
            ..bulk_config().thresholds
        },
        ..bulk_config()
    }
}

/// Two such cores, which tell each other so.
pub(crate) fn placing_pair(client: &CoreConfig, server: &CoreConfig) -> BulkPair {
    let mut pair = bulk_pair(client, server);
    pair.client.properties = client.announced(pair.client.properties);
    pair.server.properties = server.announced(pair.server.properties);
    pair
}

fn sizes() -> [usize; 14] {
    [
        1, 2, 3, 4, 5, 900, 4095, 4096, 4097, 65_535, 65_536, 65_537, 300_001, 1_000_003,
    ]
}

#[test]
fn items_are_placed_whatever_their_size() {
    let config = placing_config(1, 65_536, 64);
    let mut pair = placing_pair(&config, &config);
    let (connection, _) = pair.connect();
    for (size, tag) in sizes().into_iter().zip(1..) {
        let wanted = Wanted::new(connection, TAKE, Placement::Send, tag);
        pair.run_whole(wanted.around(pattern(size, tag)));
        pair.all_home();
    }
    let server = pair.server.counters();
    assert_eq!((server.rdma_reads, server.bulk_bytes_copied), (0, 0));
    assert_eq!(
        server.bulk_bytes_placed,
        sizes().iter().sum::<usize>() as u64
    );
    assert_eq!(pair.client.counters().windows_bound, 0);
}

/// The caller keeps what it sends, and sends it again.
#[test]
fn shared_items_are_placed_twice_from_where_they_are() {
    unless_skipped!("shared_items_are_placed_twice_from_where_they_are");
    let config = placing_config(1, 65_536, 64);
    let mut pair = placing_pair(&config, &config);
    let (connection, _) = pair.connect();
    for (size, tag) in sizes().into_iter().zip((2..).step_by(2)) {
        let wanted = Wanted::new(connection, TAKE, Placement::Send, tag);
        pair.run_whole_twice(wanted.around(pattern(size, tag)), tag + 1);
        pair.all_home();
    }
    let client = pair.client.counters();
    assert_eq!((client.windows_bound, client.bulk_bytes_copied), (0, 0));
}

/// Has results of all sizes placed, by these procedures; behind each group all buffers are home.
fn have_results_placed(groups: &[&[u32]]) {
    let config = placing_config(1, 65_536, 64);
    let mut pair = placing_pair(&config, &config);
    let (connection, _) = pair.connect();
    let mut tag = 0;
    for (size, group) in sizes()
        .into_iter()
        .flat_map(|size| groups.iter().map(move |it| (size, it)))
    {
        let bytes = u32::try_from(size).expect("small");
        for procedure in *group {
            tag += 1;
            let wanted = Wanted {
                placement: Placement::Send,
                tag,
                ..Wanted::one_result(connection, *procedure, bytes)
            };
            let (results, items) = pair.run(wanted);
            assert!(items == [given(0, bytes)], "{size} bytes");
            assert_eq!(results[..4], bytes.to_be_bytes());
            assert_eq!(results.len(), 8, "the item is not in the stream");
        }
        pair.all_home();
    }
    let server = pair.server.counters();
    assert_eq!((server.rdma_writes, server.bulk_bytes_copied), (0, 0));
    assert_eq!(pair.client.counters().windows_bound, 0);
}

#[test]
fn results_are_placed_whatever_their_size() {
    have_results_placed(&[&[GIVE], &[GIVE_LATER]]);
}

/// A requester may say which of its arguments ask for a result: whether the answer comes at once or later,
/// the result is one of these, and is placed.
#[test]
fn results_of_a_part_of_the_arguments_are_placed_also_when_they_come_later() {
    let config = placing_config(1, 65_536, 64);
    let mut pair = placing_pair(&config, &config);
    let (connection, _) = pair.connect();
    for (procedure, tag) in [(GIVE, 1), (GIVE_LATER, 2)] {
        let wanted = Wanted {
            request_range: 0..4,
            placement: Placement::Send,
            tag,
            ..Wanted::one_result(connection, procedure, 65_536)
        };
        let (results, items) = pair.run(wanted);
        assert!(items == [given(0, 65_536)], "procedure {procedure}");
        assert_eq!(results.len(), 8, "the item is not in the stream");
    }
    let server = pair.server.counters();
    assert_eq!((server.rdma_writes, server.bulk_bytes_copied), (0, 0));
    pair.all_home();
}

/// Results whose pieces the service shares are placed as others are, and kept for a second try no longer.
#[test]
fn shared_results_are_placed_and_come_home() {
    unless_skipped!("shared_results_are_placed_and_come_home");
    // The calls behind it have their requester grant the credits for the first reply again.
    have_results_placed(&[&[GIVE_SHARED, GIVE, GIVE, GIVE]]);
}

/// The segments of the peer decide how long a Send may be, not those of our own: an end that has
/// little memory for what it receives places as much as another.
#[test]
fn an_end_with_short_segments_fills_long_ones() {
    let long = placing_config(1, 65_536, 64);
    let short = CoreConfig {
        thresholds: Thresholds {
            send_placement_bytes_max: 65_536,
            ..long.thresholds
        },
        ..placing_config(1, 4096, 64)
    };
    let mut pair = placing_pair(&long, &short);
    let (connection, _) = pair.connect();
    let wanted = Wanted::new(connection, GIVE, Placement::Send, 1).asking(&[65_536]);
    let (_, items) = pair.run(wanted);
    assert!(items == [given(0, 65_536)]);
    let server = pair.server.counters();
    assert_eq!((server.rdma_writes, server.bulk_bytes_copied), (0, 0));
    pair.all_home();
}

/// Several items and several results at once, in segments of all sizes; what is short stays in the
/// stream.
#[test]
fn several_items_and_results_with_continuation() {
    unless_skipped!("several_items_and_results_with_continuation");
    for (segments, segment_bytes) in [(1, 65_536), (4, 4096), (2, 16_384)] {
        let config = placing_config(segments, segment_bytes, 128);
        let mut pair = placing_pair(&config, &config);
        let (connection, _) = pair.connect();
        let mut tag = 0;
        for placement in [Placement::Send, Placement::Auto] {
            for lengths in [
                vec![4096, 3, 5000],
                vec![100, 9000, 70_000],
                vec![0, 1, 4096, 4096],
            ] {
                tag += 1;
                let args = asking(&lengths);
                let ends = args.len();
                let wanted = Wanted {
                    args,
                    items: vec![
                        (ends - 4, pattern(5001, 1)),
                        (ends, pattern(30, 2)),
                        (ends, pattern(12_288, 3)),
                    ],
                    expected: lengths.iter().map(|bytes| bytes.max(&1) + 10).collect(),
                    results_bytes_max: 100,
                    ..Wanted::new(connection, GIVE, placement, tag)
                };
                let (results, items) = pair.run_whole(wanted);
                assert_results(&results, &items, &lengths);
                pair.all_home();
            }
        }
        let server = pair.server.counters();
        assert_eq!((server.rdma_reads, server.rdma_writes), (0, 0));
        assert!(server.transmissions_received >= 6);
    }
}

/// What a service and a caller keep starves those that come after, and loses none of them.
#[test]
fn calls_and_replies_wait_for_placement_segments() {
    let config = placing_config(1, 4096, 2);
    let mut pair = placing_pair(&config, &config);
    let (connection, server) = pair.connect();
    pair.server.app_mut().keep = true;
    pair.client.app_mut().keep = true;
    for tag in 0..12 {
        let wanted = Wanted {
            args: asking(&[4096]),
            items: if tag % 2 == 0 {
                vec![(8, pattern(4096, tag))]
            } else {
                Vec::new()
            },
            expected: if tag % 2 == 0 { Vec::new() } else { vec![4096] },
            results_bytes_max: 100,
            ..Wanted::new(
                connection,
                if tag % 2 == 0 { TAKE } else { GIVE },
                Placement::Send,
                tag,
            )
        };
        pair.client.app_mut().wanted.push_back(wanted);
    }
    for _ in 0..40 {
        pair.turns(100);
        for (side, key) in [(&mut pair.client, connection), (&mut pair.server, server)] {
            // What waits keeps its Receives, and none of them is granted.
            let credits = side.core.credits(key).expect("it is open");
            let posted = side.core.port().receives_posted(ReceiveQueueId(0));
            assert!(posted >= credits.unconsumed(), "{posted}: {credits:?}");
            // Dropped elsewhere, and not in their order.
            let kept = &mut side.app_mut().kept;
            if !kept.is_empty() {
                let item = kept.remove(0);
                std::thread::spawn(move || drop(item))
                    .join()
                    .expect("a drop does not panic");
            }
        }
    }
    for tag in 0..12 {
        let ended = pair.client.app().result(tag);
        assert!(ended.is_some_and(|it| it.is_ok()), "call {tag}: {ended:?}");
    }
    pair.all_home();
    let waited = |counters: rpcrdma_engine::CounterSnapshot| counters.awaiting_placement_segment;
    assert!(waited(pair.server.counters()) > 0);
    assert!(waited(pair.client.counters()) > 0);
}

/// A peer that speaks plain version 2 is called so; to ask for placement is refused.
#[test]
fn a_peer_without_the_extension_is_called_in_plain_version_2() {
    unless_skipped!("a_peer_without_the_extension_is_called_in_plain_version_2");
    let config = placing_config(1, 65_536, 64);
    let mut pair = bulk_pair(&config, &bulk_config());
    pair.client.properties = config.announced(pair.client.properties);
    let (connection, _) = pair.connect();
    let wanted = |by, tag| Wanted::new(connection, TAKE, by, tag).around(pattern(100_000, 3));
    pair.run(wanted(Placement::Auto, 1));
    assert_eq!(pair.server.counters().bulk_bytes_in, 100_000);
    let application = pair.client.app_mut();
    application.wanted.push_back(wanted(Placement::Send, 2));
    pair.turns(10);
    let refused = &pair.client.app().refused;
    assert_eq!(*refused, [(2, rpcrdma_engine::CallRefused::NoPlacement)]);
    assert_eq!(pair.client.counters().transmissions_sent, 0);
}

/// A placed write of 4 KiB costs its responder one Receive: nothing is read, registered or copied,
/// and the service gets the page that the Send arrived in.
#[test]
fn a_placed_write_costs_its_responder_one_receive() {
    let config = placing_config(1, 4096, 8);
    let mut pair = placing_pair(&config, &config);
    let (connection, _) = pair.connect();
    pair.turns(100);
    pair.server.app_mut().keep = true;
    let before = (pair.client.counters(), pair.server.counters());
    let wanted = Wanted::new(connection, TAKE, Placement::Auto, 1);
    pair.run_whole(wanted.around(pattern(4096, 3)));
    let kept = pair.server.app_mut().kept.pop();
    let item = kept.expect("it was kept");
    let page = item.parts().next().expect("one piece");
    assert!(page[..] == pattern(4096, 3)[..]);
    assert_eq!(page.as_ptr() as usize % 4096, 0);
    let server = pair.server.counters().since(&before.1);
    assert_eq!(
        (
            server.calls_received,
            server.replies_sent,
            server.receives_posted
        ),
        (1, 1, 1)
    );
    assert_eq!(
        (server.segments_leased, server.bulk_bytes_placed),
        (1, 4096)
    );
    let moved = server.rdma_reads + server.rdma_writes + server.windows_bound;
    let copied = server.bulk_bytes_copied + server.messages_gathered + server.fragments_received;
    assert_eq!((moved, copied), (0, 0));
    let client = pair.client.counters().since(&before.0);
    assert_eq!(
        (client.transmissions_sent, client.bulk_bytes_copied),
        (1, 0)
    );
    assert_eq!(client.windows_bound, 0);
    drop(item);
    pair.all_home();
}

/// A reply that is longer than its call has allowed is asked for again, in plain version 2.
#[test]
fn a_reply_beyond_what_was_reserved_is_asked_for_again() {
    unless_skipped!("a_reply_beyond_what_was_reserved_is_asked_for_again");
    let config = placing_config(1, 4096, 64);
    let mut pair = placing_pair(&config, &config);
    let (connection, _) = pair.connect();
    let words = 5000;
    let wanted = Wanted {
        args: asking(&[words, 4096]),
        items: vec![(12, pattern(4000, 9))],
        expected: vec![4096],
        results_bytes_max: 100,
        ..Wanted::new(connection, GIVE_LONG, Placement::Send, 1)
    };
    let (results, items) = pair.run(wanted);
    let bytes: usize = results.len() + items.iter().map(Vec::len).sum::<usize>();
    assert!(bytes >= 4 * words as usize + 4 + 4096 + 4);
    assert!(items.iter().flatten().eq(given(0, 4096).iter()));
    let client = pair.client.counters();
    assert_eq!((client.bulk_calls_retried, client.errors_received), (1, 1));
    let server = pair.server.counters();
    assert_eq!(server.errors_sent_reply_resource, 1);
    pair.all_home();
}
