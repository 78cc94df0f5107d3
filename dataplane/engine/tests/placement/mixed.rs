//! Calls of which some items and results are placed by Sends, and others are moved by RDMA.

use super::calls::{placing_config, placing_pair};
use crate::support::bulk::{
    BulkApp, BulkPair, GIVE, GIVE_LATER, GIVE_LONG, Wanted, asking, assert_results, given,
    limited_bulk_pair,
};
use crate::support::fabric::{Limits, rounds, some_of, unless_skipped};
use crate::support::pattern;
use rpcrdma_engine::{CloseReason, Command, CoreConfig, CounterSnapshot, Placement};
use rpcrdma_protocol::v2::Properties;
use rpcrdma_protocol::v2::plan::Thresholds;
use rpcrdma_protocol::v2::rtr::{BufferSegment, ReceiveBufferStructure, SegmentGroup};

/// The longest item that Sends place.
const PLACED_BYTES_MAX: u32 = 20_000;

/// Cores that place what is short and move what is long.
fn mixing_config(segments: u32, segment_bytes: u32) -> CoreConfig {
    let config = placing_config(segments, segment_bytes, 128);
    CoreConfig {
        thresholds: Thresholds {
            send_placement_bytes_max: PLACED_BYTES_MAX,
            ..config.thresholds
        },
        ..config
    }
}

/// A call of [`GIVE`] or a relative, with an item of each of these lengths at the end of its arguments.
fn mixed(procedure: u32, items: &[usize], results: &[u32], expected: &[u32]) -> Wanted {
    let args = asking(results);
    let items = items.iter().zip(1_u64..);
    Wanted {
        procedure,
        items: items
            .map(|(&bytes, seed)| (args.len(), pattern(bytes, seed)))
            .collect(),
        args,
        expected: expected.to_vec(),
        results_bytes_max: 100,
        ..Wanted::default()
    }
}

fn counters(pair: &BulkPair) -> (CounterSnapshot, CounterSnapshot) {
    (pair.client.counters(), pair.server.counters())
}

/// What is short is placed, what is long is read and written, in one call and in any order, and all of it comes as
/// it was.
#[test]
fn items_and_results_of_one_call_go_both_ways() {
    unless_skipped!("items_and_results_of_one_call_go_both_ways");
    for (segments, segment_bytes) in some_of([(1, 65_536), (4, 4096), (2, 16_384)]) {
        let config = mixing_config(segments, segment_bytes);
        let mut pair = placing_pair(&config, &config);
        let (connection, _) = pair.connect();
        let lengths: [&[u32]; 6] = [
            &[4096, 200_001],
            &[200_001, 4096, 3],
            &[20_000, 20_001],
            &[70_000, 5, 70_001],
            &[9000],
            &[130_000],
        ];
        let mut tag = 0;
        for items in lengths {
            for results in lengths {
                for procedure in [GIVE, GIVE_LATER] {
                    if procedure == GIVE_LATER && segments != 1 {
                        continue;
                    }
                    tag += 1;
                    let items: Vec<_> = items.iter().map(|&bytes| bytes as usize).collect();
                    let wanted = Wanted {
                        connection,
                        tag,
                        ..mixed(procedure, &items, results, results)
                    };
                    let before = counters(&pair);
                    let (stream, beside) = pair.run_whole(wanted);
                    assert_results(&stream, &beside, results);
                    pair.all_home();
                    let after = counters(&pair);
                    let (client, server) = (after.0.since(&before.0), after.1.since(&before.1));
                    let sum = |way: &dyn Fn(&u32) -> bool| -> u64 {
                        let items = items
                            .iter()
                            .map(|&bytes| u32::try_from(bytes).expect("small"));
                        items.filter(|it| way(it)).map(u64::from).sum()
                    };
                    let placed = |bytes: &u32| (513..=PLACED_BYTES_MAX).contains(bytes);
                    let moved = |bytes: &u32| *bytes > PLACED_BYTES_MAX;
                    let is_group = client.transmissions_sent > 0;
                    assert_eq!(server.bulk_bytes_in, sum(&moved), "call {tag}");
                    if is_group {
                        assert_eq!(server.bulk_bytes_placed, sum(&placed), "call {tag}");
                    }
                    let moved_back = results
                        .iter()
                        .filter(|it| moved(it))
                        .map(|&it| u64::from(it));
                    assert_eq!(server.bulk_bytes_out, moved_back.sum::<u64>(), "call {tag}");
                    assert_eq!(client.bulk_calls_retried, 0, "call {tag}");
                    let gone =
                        client.windows_invalidated_locally + client.windows_invalidated_remotely;
                    assert_eq!(client.windows_bound, gone, "call {tag}");
                }
            }
        }
        let (client, server) = counters(&pair);
        assert!(client.transmissions_sent > 0 && server.transmissions_sent > 0);
        assert!(server.bulk_bytes_placed > 0 && client.bulk_bytes_placed > 0);
    }
}

/// A result of which only the most is known is directed by its size: short it is placed, long it is written.
#[test]
fn results_are_directed_by_their_size() {
    let config = mixing_config(1, 65_536);
    let mut pair = placing_pair(&config, &config);
    let (connection, _) = pair.connect();
    for (bytes, tag) in [(100, 1), (4096, 2), (20_000, 3), (20_001, 4), (1 << 20, 5)] {
        let before = counters(&pair);
        let wanted = Wanted {
            connection,
            tag,
            ..mixed(GIVE, &[], &[bytes], &[1 << 20])
        };
        let (stream, beside) = pair.run(wanted);
        assert_results(&stream, &beside, &[bytes]);
        let after = counters(&pair);
        let (client, server) = (after.0.since(&before.0), after.1.since(&before.1));
        assert_eq!(client.transmissions_sent, 1);
        let (placed, written) = match bytes {
            // Below the least length of the direction: it stays in the stream.
            0..=512 => (0, 0),
            513..=PLACED_BYTES_MAX => (bytes, 0),
            _ => (0, bytes),
        };
        assert_eq!(client.bulk_bytes_placed, u64::from(placed));
        assert_eq!(server.bulk_bytes_out, u64::from(written));
        assert_eq!(client.windows_bound, 16, "1 MiB was offered");
        assert_eq!(client.windows_invalidated_locally, 16);
        pair.all_home();
    }
}

/// Where the transmissions of the reply may not bring a result, the responder has the choice.
#[test]
fn results_beyond_the_transmissions_of_a_reply_are_the_responders_choice() {
    let config = placing_config(1, 4096, 128);
    let mut pair = placing_pair(&config, &config);
    pair.server.properties.response_transmissions_max = 2;
    let (connection, _) = pair.connect();
    for (results, tag) in [
        ([3000, 100_000], 1),
        ([3000, 10], 2),
        ([4096, 4096], 3),
        ([100_000, 4096], 4),
    ] {
        let before = counters(&pair);
        let wanted = Wanted {
            connection,
            tag,
            ..mixed(GIVE, &[2000], &results, &[100_000, 100_000])
        };
        let (stream, beside) = pair.run(wanted);
        assert_results(&stream, &beside, &results);
        let after = counters(&pair);
        let (client, server) = (after.0.since(&before.0), after.1.since(&before.1));
        // One Send brings a page: what is longer, and all that goes with it, is written.
        let total: u32 = results.iter().sum();
        let (placed, written) = match total {
            3010 => (3000, 0),
            _ => (0, total),
        };
        assert_eq!(client.bulk_bytes_placed, placed, "call {tag}");
        assert_eq!(server.bulk_bytes_out, u64::from(written), "call {tag}");
        assert_eq!(server.transmissions_sent, 1, "call {tag}");
        assert_eq!(client.bulk_calls_retried, 0);
        pair.all_home();
    }
}

/// A reply whose stream is longer than its call has allowed for is asked for again, and results that were too long
/// for their memory get more.
#[test]
fn call_is_retried_when_its_reply_or_results_do_not_fit() {
    unless_skipped!("call_is_retried_when_its_reply_or_results_do_not_fit");
    let config = mixing_config(1, 4096);
    let mut pair = placing_pair(&config, &config);
    let (connection, _) = pair.connect();
    let wanted = Wanted {
        connection,
        tag: 1,
        ..mixed(
            GIVE_LONG,
            &[4000, 30_000],
            &[20_000, 4096, 30_000],
            &[4096, 30_000],
        )
    };
    let (_, items) = pair.run(wanted);
    assert!(items == [given(0, 4096), given(1, 30_000)]);
    let wanted = Wanted {
        connection,
        tag: 2,
        ..mixed(GIVE, &[4000, 30_000], &[4096, 60_000], &[4096, 30_000])
    };
    let (stream, items) = pair.run(wanted);
    assert_results(&stream, &items, &[4096, 60_000]);
    assert_eq!(items[1].len(), 60_000, "it came beside the stream");
    let (client, server) = counters(&pair);
    assert_eq!(client.bulk_calls_retried, 2);
    let refused = (
        server.errors_sent_reply_resource,
        server.errors_sent_write_resource,
    );
    assert_eq!(refused, (1, 1));
    pair.all_home();
}

/// Calls of all kinds at once, from both ends, with little of everything: all of them succeed.
#[test]
fn many_calls_of_all_kinds_with_few_windows_and_a_short_send_queue() {
    unless_skipped!("many_calls_of_all_kinds_with_few_windows_and_a_short_send_queue");
    let config = CoreConfig {
        bulk_calls: 4,
        read_depth_max: 2,
        ..mixing_config(1, 4096)
    };
    let limits = Limits {
        windows: 24,
        send_queue_depth: 4,
    };
    let mut pair = limited_bulk_pair(&config, &config, Some(limits));
    pair.client.properties = config.announced(pair.client.properties);
    pair.server.properties = config.announced(pair.server.properties);
    let (client, server) = pair.connect();
    let kinds: [&[u32]; 5] = [&[], &[3000], &[3000, 70_000], &[300_000, 5], &[9000, 9000]];
    let results_of = |tag: u64| kinds[usize::try_from(tag % 5).expect("small")];
    let count = u64::try_from(rounds(200).min(50)).expect("small");
    for tag in 0..count {
        for (side, connection) in [(&mut pair.client, client), (&mut pair.server, server)] {
            let items = kinds[usize::try_from(tag / 5 % 5).expect("small")];
            let items: Vec<_> = items.iter().map(|&bytes| bytes as usize).collect();
            let procedure = if tag % 7 == 0 { GIVE_LATER } else { GIVE };
            side.app_mut().wanted.push_back(Wanted {
                connection,
                tag,
                ..mixed(procedure, &items, results_of(tag), results_of(tag))
            });
        }
    }
    pair.until("all replies", |pair| {
        let done = |app: &BulkApp| app.ended.len() as u64 == count;
        done(pair.client.app()) && done(pair.server.app())
    });
    for side in [&pair.client, &pair.server] {
        assert!(side.app().refused.is_empty());
        for tag in 0..count {
            let ended = side.app().result(tag).expect("ended");
            let (stream, items) = ended.as_ref().expect("it succeeds");
            assert_results(stream, items, results_of(tag));
        }
        let counters = side.counters();
        assert!(counters.bulk_bytes_placed > 0 && counters.bulk_bytes_in > 0);
        assert!(
            counters.awaiting_read_depth > 0,
            "the test is about scarcity"
        );
    }
    pair.all_home();
}

#[test]
fn a_disconnect_at_any_moment_gives_every_buffer_back() {
    let config = CoreConfig {
        read_depth_max: 2,
        ..mixing_config(1, 4096)
    };
    for turns in some_of(0..40) {
        let mut pair = placing_pair(&config, &config);
        let (connection, server) = pair.connect();
        for (tag, procedure) in (0..).zip([GIVE, GIVE_LATER, GIVE]) {
            pair.client.app_mut().wanted.push_back(Wanted {
                connection,
                tag,
                ..mixed(
                    procedure,
                    &[9000, 100_000],
                    &[9000, 100_000],
                    &[9000, 100_000],
                )
            });
        }
        pair.turns_exactly(turns);
        let side = if turns % 2 == 0 {
            (&pair.client.handle, connection)
        } else {
            (&pair.server.handle, server)
        };
        let close = Command::Close {
            connection: side.1,
            reason: CloseReason::Local,
        };
        side.0.send(close).expect("the mailbox has room");
        pair.until("both ends are told", |pair| {
            pair.client.closed.len() == 1 && pair.server.closed.len() == 1
        });
        pair.turns(20);
        let client = pair.client.app();
        let told = client.ended.len() + client.refused.len() + client.wanted.len();
        assert_eq!(told, 3);
        pair.all_home();
    }
}

/// Placement by RDMA that was asked for stays in plain version 2, as does what both ends would only read.
#[test]
fn placement_demanded_by_the_caller_is_used() {
    unless_skipped!("placement_demanded_by_the_caller_is_used");
    let config = mixing_config(1, 65_536);
    let mut pair = placing_pair(&config, &config);
    let (connection, _) = pair.connect();
    for (placement, tag) in [
        (Placement::Rdma, 1),
        (Placement::Send, 2),
        (Placement::Inline, 3),
    ] {
        let before = counters(&pair);
        let wanted = Wanted {
            connection,
            placement,
            tag,
            ..mixed(GIVE, &[9000, 100_000], &[9000, 100_000], &[9000, 100_000])
        };
        let (stream, items) = pair.run_whole(wanted);
        assert_results(&stream, &items, &[9000, 100_000]);
        let after = counters(&pair);
        let server = after.1.since(&before.1);
        let moved = (server.bulk_bytes_in, server.bulk_bytes_out);
        let (read, placed) = match placement {
            Placement::Rdma => (109_000, 0),
            Placement::Send => (0, 109_000),
            _ => (0, 0),
        };
        assert_eq!(moved, (read, read), "{placement:?}");
        assert_eq!(server.bulk_bytes_placed, placed, "{placement:?}");
        pair.all_home();
    }
}

/// The client's receive buffers as the server takes them to be: two segments for one of twice their length.
fn halves(client: Properties) -> Properties {
    let segment = |count, length_bytes, is_targetable| SegmentGroup {
        count,
        segment: BufferSegment {
            length_bytes,
            align_bytes: 0,
            is_targetable,
        },
    };
    let halves = [segment(1, 1024, false), segment(2, 4096, true)];
    Properties {
        receive_buffer_structure: ReceiveBufferStructure::new(&halves).ok(),
        ..client
    }
}

/// A reply that its requester finds wrong is sent again, as plain version 2: the call is not served twice.
#[test]
fn a_reply_that_is_found_wrong_is_sent_again() {
    unless_skipped!("a_reply_that_is_found_wrong_is_sent_again");
    // No more than a connection has room for complaints.
    let config = CoreConfig {
        bulk_calls: 4,
        ..mixing_config(1, 8192)
    };
    let mut pair = placing_pair(&config, &config);
    pair.server.mishears = Some(halves);
    let (connection, _) = pair.connect();
    let lengths: [&[u32]; 4] = [
        &[4096, 4096],
        &[4096, 3001, 30_000],
        &[30_001, 4096, 4096],
        &[3, 4000, 700, 4095],
    ];
    let mut tag = 0;
    for procedure in [GIVE, GIVE_LATER] {
        for results in lengths {
            tag += 1;
            let before = counters(&pair);
            let wanted = Wanted {
                connection,
                tag,
                ..mixed(procedure, &[2000, 40_000], results, results)
            };
            let (stream, items) = pair.run(wanted);
            let lengths: Vec<_> = items.iter().map(Vec::len).collect();
            assert!(items.iter().all(Vec::is_empty), "{results:?}: {lengths:?}");
            assert_results(&stream, &items, results);
            pair.all_home();
            let after = counters(&pair);
            let (client, server) = (after.0.since(&before.0), after.1.since(&before.1));
            assert_eq!(
                (client.group_errors_sent, server.group_errors_received),
                (1, 1)
            );
            assert_eq!((server.bulk_replies_resent, server.calls_received), (1, 1));
            assert_eq!(client.bulk_calls_retried, 0);
        }
    }
    // Many at once, and their reports among them.
    for tag in 100..140 {
        let wanted = Wanted {
            connection,
            tag,
            ..mixed(GIVE, &[], &[4096, 4096], &[4096, 4096])
        };
        pair.client.app_mut().wanted.push_back(wanted);
    }
    for tag in 100..140 {
        pair.until("the reply", |pair| pair.client.app().result(tag).is_some());
        let ended = pair.client.app().result(tag).expect("ended");
        let (stream, items) = ended.as_ref().expect("it succeeds");
        assert_results(stream, items, &[4096, 4096]);
    }
    let (client, server) = counters(&pair);
    assert_eq!(server.bulk_replies_resent, client.group_errors_sent);
    assert_eq!(server.calls_received, 48);
    pair.all_home();
}
