//! Calls with bulk data: by RDMA Read and Write, inline, and where they cannot be.

use std::time::Duration;

use crate::support::bulk::{
    BulkPair, GIVE, GIVE_BARE, GIVE_LATER, GIVE_LONG, GIVE_SHARED, HOLD, TAKE, Wanted, asking,
    assert_results, bulk_config, bulk_pair, given, limited_bulk_pair,
};
use crate::support::fabric::{Limits, rounds, some_of, unless_skipped};
use crate::support::pattern;
use rpcrdma_engine::{CallError, CallRefused, CloseReason, Command, CoreConfig, Placement};
use rpcrdma_protocol::v2::ReverseRequestSupport;

/// Sizes around every border: words, buffers, segments.
fn sizes() -> [usize; 14] {
    [
        1,
        2,
        3,
        4,
        5,
        900,
        4095,
        4096,
        4097,
        65_535,
        65_536,
        65_537,
        300_001,
        (1 << 20) + 3,
    ]
}

#[test]
fn items_are_read_whatever_their_size() {
    unless_skipped!("items_are_read_whatever_their_size");
    let mut pair = bulk_pair(&bulk_config(), &bulk_config());
    let (connection, _) = pair.connect();
    let mut tag = 0;
    for size in sizes() {
        for placement in [Placement::Rdma, Placement::Auto] {
            tag += 1;
            let wanted = Wanted::new(connection, TAKE, placement, tag);
            pair.run_whole(wanted.around(pattern(size, tag)));
            pair.all_home();
        }
    }
    let counters = pair.server.counters();
    assert!(counters.rdma_reads >= 14);
    assert_eq!(counters.bulk_bytes_copied, 0, "what is read is not copied");
    let client = pair.client.counters();
    assert_eq!(
        client.windows_bound,
        client.windows_invalidated_remotely + client.windows_invalidated_locally
    );
    assert!(client.windows_invalidated_remotely >= 9, "single windows");
    assert!(client.windows_invalidated_locally >= 16, "the others");
}

/// The caller keeps what it sends, and sends it again.
#[test]
fn shared_items_are_sent_twice_from_where_they_are() {
    unless_skipped!("shared_items_are_sent_twice_from_where_they_are");
    let mut pair = bulk_pair(&bulk_config(), &bulk_config());
    let (connection, _) = pair.connect();
    let mut tag = 0;
    for placement in [Placement::Rdma, Placement::Auto, Placement::Inline] {
        let inline_max = bulk_config().message_bytes_max as usize - 1000;
        let sizes = sizes().into_iter();
        for size in sizes.filter(|&size| placement != Placement::Inline || size < inline_max) {
            tag += 2;
            let wanted = Wanted::new(connection, TAKE, placement, tag);
            let wanted = wanted.around(pattern(size, tag));
            pair.run_whole_twice(wanted.with_item(pattern(333, tag)), tag + 1);
            pair.all_home();
        }
    }
    let read = pair.server.counters().rdma_reads;
    assert!(read >= 4 * 14, "{read} reads");
}

#[test]
fn results_are_written_whatever_their_size() {
    let mut pair = bulk_pair(&bulk_config(), &bulk_config());
    let (connection, _) = pair.connect();
    let mut tag = 0;
    for size in sizes() {
        for procedure in [GIVE, GIVE_LATER, GIVE_SHARED] {
            tag += 1;
            let bytes = u32::try_from(size).expect("small");
            let wanted = Wanted {
                placement: Placement::Rdma,
                tag,
                ..Wanted::one_result(connection, procedure, bytes)
            };
            let (results, items) = pair.run(wanted);
            assert!(items == [given(0, bytes)], "{size} bytes");
            assert_eq!(results[..4], bytes.to_be_bytes());
            assert_eq!(results.len(), 8, "the item is not in the stream");
            pair.all_home();
        }
    }
    let counters = pair.server.counters();
    assert!(counters.rdma_writes >= 28);
    assert_eq!(counters.bulk_bytes_copied, 0);
}

#[test]
fn a_result_without_a_word_before_it_comes_behind_the_verifier() {
    let mut pair = bulk_pair(&bulk_config(), &bulk_config());
    let (connection, _) = pair.connect();
    let wanted = Wanted {
        placement: Placement::Rdma,
        ..Wanted::one_result(connection, GIVE_BARE, 5000)
    };
    let (results, items) = pair.run(wanted);
    assert!(items == [given(0, 5000)] && results.is_empty());
    pair.all_home();
}

/// Every combination of items, results, a long call and a long reply.
#[test]
fn every_combination_of_lists() {
    unless_skipped!("every_combination_of_lists");
    let mut pair = bulk_pair(&bulk_config(), &bulk_config());
    let (connection, _) = pair.connect();
    for (tag, number) in (1..).zip(some_of(0..3 * 3 * 2 * 4)) {
        let (items, results) = (number / 24, number / 8 % 3);
        let long_call = number / 4 % 2 == 1;
        let long_reply: u32 = [0, 1000, 12_000, 60_000][number % 4];
        let lengths = [5000, 70_001];
        let mut asked = vec![long_reply / 4];
        asked.extend_from_slice(&lengths[..results]);
        let mut args = asking(&asked);
        if long_call {
            args.extend_from_slice(&pattern(70_000, tag));
        }
        let ends = [
            (args.len() - 4, pattern(333, 1)),
            (args.len(), pattern(80_002, 2)),
        ];
        let wanted = Wanted {
            args,
            items: ends[..items].to_vec(),
            expected: lengths[..results].to_vec(),
            results_bytes_max: long_reply as usize + 100,
            ..Wanted::new(connection, GIVE_LONG, Placement::Rdma, tag)
        };
        let (stream, got) = pair.run_whole(wanted);
        let expected: Vec<_> = (0..results).map(|it| given(it, lengths[it])).collect();
        assert!(got == expected, "call {tag}");
        assert_eq!(stream.len(), long_reply as usize + 4 * results + 4);
        pair.all_home();
    }
    let counters = pair.server.counters();
    assert!(counters.fragments_sent > 0, "replies in parts");
}

/// The largest segment that the server takes is its own choice (-00 section 5.2.3): what a client offers is no longer.
#[test]
fn segments_are_no_longer_than_the_peer_takes() {
    unless_skipped!("segments_are_no_longer_than_the_peer_takes");
    let mut pair = bulk_pair(&bulk_config(), &bulk_config());
    pair.server.properties.segment_bytes_max = 8192;
    let (connection, _) = pair.connect();
    let args = asking(&[30_000]);
    let wanted = Wanted {
        items: vec![(args.len(), pattern(20_000, 1))],
        args,
        expected: vec![30_000],
        results_bytes_max: 100,
        ..Wanted::new(connection, GIVE, Placement::Rdma, 1)
    };
    let (_, items) = pair.run(wanted);
    assert!(items == [given(0, 30_000)]);
    let client = pair.client.counters();
    assert_eq!((client.errors_received, client.bulk_calls_retried), (0, 0));
    pair.all_home();
}

/// A call that needs all buffers is served in its turn, though calls that need one each never end.
#[test]
fn a_call_for_many_buffers_is_not_passed_by_calls_for_few() {
    const SMALL_CALLS: u64 = 200;
    unless_skipped!("a_call_for_many_buffers_is_not_passed_by_calls_for_few");
    let server = CoreConfig {
        bulk_buffers: 4,
        ..bulk_config()
    };
    let client = CoreConfig {
        credits_per_connection: 32,
        ..bulk_config()
    };
    let mut pair = bulk_pair(&client, &server);
    let (connection, _) = pair.connect();
    let wanted = |bytes, tag| Wanted {
        args: vec![0; 4],
        items: vec![(4, pattern(bytes, tag))],
        ..Wanted::new(connection, TAKE, Placement::Rdma, tag)
    };
    let application = pair.client.app_mut();
    application
        .wanted
        .extend((1..5).map(|tag| wanted(60_000, tag)));
    application.wanted.push_back(wanted(250_000, 0));
    let rest = (5..=SMALL_CALLS).map(|tag| wanted(60_000, tag));
    application.wanted.extend(rest);
    pair.until("the large call is served", |pair| {
        pair.client.app().result(0).is_some()
    });
    let before_it = pair.client.app().ended.len();
    assert!(before_it < 40, "{before_it} calls were served before it");
    pair.until("all calls are served", |pair| {
        pair.client.app().ended.len() as u64 == SMALL_CALLS + 1
    });
    let ended = &pair.client.app().ended;
    assert!(ended.iter().all(|(_, ending)| ending.is_ok()));
    pair.turns(50);
    assert_eq!(pair.server.core.bulk_buffers_free(), 4);
}

#[test]
fn a_core_that_drains_makes_no_calls_with_bulk_data() {
    let mut pair = bulk_pair(&bulk_config(), &bulk_config());
    let (connection, _) = pair.connect();
    pair.client.command(Command::Drain);
    pair.until("it has drained", |pair| pair.client.drained == 1);
    let placements = [Placement::Rdma, Placement::Auto, Placement::Inline];
    let application = pair.client.app_mut();
    for (placement, tag) in placements.into_iter().zip(1..) {
        application.wanted.push_back(Wanted {
            placement,
            tag,
            ..Wanted::one_result(connection, GIVE, 5000)
        });
    }
    pair.turns(20);
    let refused = [1, 2, 3].map(|tag| (tag, CallRefused::Draining));
    assert_eq!(pair.client.app().refused, refused);
    assert_eq!(pair.client.counters().calls_sent, 0);
    pair.all_home();
}

#[test]
fn inline_items_are_in_the_stream() {
    let mut pair = bulk_pair(&bulk_config(), &bulk_config());
    let (connection, _) = pair.connect();
    for (tag, size) in (1..).zip([1, 4, 1000, 5000, 300_001]) {
        let bytes = u32::try_from(size).expect("small");
        let (results, items) = pair.run_whole(Wanted {
            args: [asking(&[bytes]), vec![1; 8]].concat(),
            items: vec![(12, pattern(size, tag))],
            expected: vec![bytes],
            ..Wanted::new(connection, GIVE, Placement::Inline, tag)
        });
        assert!(items.is_empty());
        assert_results(&results, &items, &[bytes]);
        pair.all_home();
    }
    assert_eq!(pair.client.counters().windows_bound, 0);
}

#[test]
fn kept_items_are_registered_memory_and_return_on_drop() {
    unless_skipped!("kept_items_are_registered_memory_and_return_on_drop");
    let mut pair = bulk_pair(&bulk_config(), &bulk_config());
    let (connection, _) = pair.connect();
    pair.server.app_mut().keep = true;
    pair.client.app_mut().keep = true;
    for tag in 1..5 {
        let wanted = Wanted::new(connection, GIVE, Placement::Rdma, tag)
            .asking(&[100_000])
            .with_item(pattern(70_000, tag));
        pair.run(wanted);
        pair.all_home();
    }
    for side in [&mut pair.client, &mut pair.server] {
        let memory = rpcrdma_fabric::interface::PortSetup::memory(side.core.port()).clone();
        let kept = std::mem::take(&mut side.app_mut().kept);
        assert_eq!(kept.len(), 4);
        let start = memory.mapping().start().addr();
        let end = start + memory.mapping().bytes();
        for part in kept.iter().flat_map(|item| item.parts()) {
            let place = part.as_ptr().addr();
            assert!(part.is_of(&memory) && (start..end).contains(&place));
            assert_eq!(place % 4096, 0, "items begin on pages");
        }
        // On another thread: the memory is nobody's but the item's.
        std::thread::spawn(move || drop(kept))
            .join()
            .expect("dropped");
    }
    pair.all_home();
}

/// Calls of many sizes, both ways at once: all of them succeed, and every buffer comes back.
fn many_calls(pair: &mut BulkPair) {
    let (client, server) = pair.connect();
    let count = u64::try_from(rounds(60)).expect("small");
    for tag in 0..count {
        for (side, connection) in [(&mut pair.client, client), (&mut pair.server, server)] {
            let bytes = [0_u32, 70_000, 300_000][usize::try_from(tag % 3).expect("small")];
            let items = if tag % 2 == 0 {
                vec![(asking(&[bytes]).len(), pattern(200_000, tag))]
            } else {
                Vec::new()
            };
            side.app_mut().wanted.push_back(Wanted {
                args: asking(&[bytes]),
                items,
                expected: if bytes == 0 { vec![] } else { vec![bytes] },
                results_bytes_max: 100,
                ..Wanted::new(
                    connection,
                    [GIVE_LATER, GIVE_SHARED, GIVE]
                        [usize::try_from(tag % 5).expect("small").min(2)],
                    Placement::Rdma,
                    tag,
                )
            });
        }
    }
    pair.until("all replies", |pair| {
        let done = |app: &crate::support::bulk::BulkApp| app.ended.len() as u64 == count;
        done(pair.client.app()) && done(pair.server.app())
    });
    for side in [&pair.client, &pair.server] {
        assert!(side.app().refused.is_empty());
        for tag in 0..count {
            let ended = side.app().result(tag).expect("ended");
            let (_, items) = ended.as_ref().expect("it succeeds");
            let bytes = [0_u32, 70_000, 300_000][usize::try_from(tag % 3).expect("small")];
            let expected = if bytes == 0 {
                vec![]
            } else {
                vec![given(0, bytes)]
            };
            assert!(*items == expected, "call {tag}");
        }
    }
    pair.all_home();
}

#[test]
fn many_calls_at_once_with_few_buffers_and_slots() {
    unless_skipped!("many_calls_at_once_with_few_buffers_and_slots");
    let few = CoreConfig {
        bulk_calls: 3,
        read_depth_max: 2,
        ..bulk_config()
    };
    let mut pair = bulk_pair(&few, &few);
    many_calls(&mut pair);
    let counters = pair.server.counters();
    assert!(
        counters.awaiting_read_depth > 0,
        "the test is about scarcity"
    );
}

#[test]
fn many_calls_at_once_with_few_windows_and_a_short_send_queue() {
    unless_skipped!("many_calls_at_once_with_few_windows_and_a_short_send_queue");
    let few = CoreConfig {
        bulk_calls: 4,
        ..bulk_config()
    };
    let limits = Limits {
        windows: 16,
        send_queue_depth: 2,
    };
    let mut pair = limited_bulk_pair(&few, &few, Some(limits));
    many_calls(&mut pair);
    for side in [&pair.client, &pair.server] {
        let counters = side.counters();
        assert!(
            counters.calls_refused_no_slot > 0,
            "for want of windows and slots"
        );
        assert!(counters.awaiting_send_slot > 0, "for want of room to post");
    }
}

/// The smallest windows carry calls and replies of all forms, as long as one end calls.
#[test]
fn windows_of_a_single_credit_carry_bulk_data_both_ways() {
    unless_skipped!("windows_of_a_single_credit_carry_bulk_data_both_ways");
    let sizes = [4, 40, 5000, 150_001];
    for (client, server) in some_of([(1, 1), (1, 2), (2, 1), (2, 2), (8, 1), (1, 8)]) {
        let [client, server] = [client, server].map(|credits_per_connection| CoreConfig {
            credits_per_connection,
            ..bulk_config()
        });
        let mut pair = bulk_pair(&client, &server);
        let (connection, _) = pair.connect();
        let mut tag = 0;
        for placement in [Placement::Inline, Placement::Auto, Placement::Rdma] {
            for procedure in [GIVE, GIVE_LATER] {
                for size in sizes {
                    tag += 1;
                    let bytes = u32::try_from(size).expect("small");
                    let args = asking(&[bytes]);
                    let wanted = Wanted {
                        items: vec![(args.len(), pattern(size, tag))],
                        args,
                        expected: vec![bytes],
                        results_bytes_max: 100,
                        ..Wanted::new(connection, procedure, placement, tag)
                    };
                    pair.client.app_mut().wanted.push_back(wanted);
                }
            }
        }
        let all = usize::try_from(tag).expect("small");
        pair.until("all replies", |pair| pair.client.app().ended.len() == all);
        let app = pair.client.app();
        assert!(app.ended.iter().all(|(_, ending)| ending.is_ok()));
        pair.all_home();
    }
}

#[test]
fn a_core_without_bulk_buffers_refuses_to_call_so_and_refuses_chunks() {
    let none = CoreConfig {
        bulk_buffers: 0,
        ..bulk_config()
    };
    let mut pair = bulk_pair(&bulk_config(), &none);
    let (client, server) = pair.connect();
    let wanted = |connection, tag| Wanted {
        args: vec![0; 4],
        items: vec![(4, pattern(5000, 1))],
        ..Wanted::new(connection, TAKE, Placement::Rdma, tag)
    };
    pair.server.app_mut().wanted.push_back(Wanted {
        items: Vec::new(),
        ..wanted(server, 1)
    });
    pair.until("the refusal", |pair| !pair.server.app().refused.is_empty());
    assert_eq!(pair.server.app().refused, [(1, CallRefused::NoBulk)]);
    let results = |placement, tag| Wanted {
        args: asking(&[1000]),
        expected: vec![9000],
        ..Wanted::new(client, GIVE_LONG, placement, tag)
    };
    // Without Write chunks the results come with the rest of the reply.
    let (stream, items) = pair.run(results(Placement::Rdma, 2));
    assert_eq!((stream.len(), items.len()), (4004, 0));
    assert_eq!(pair.client.counters().bulk_calls_retried, 1);
    // Neither a Read chunk nor a long call is read, so the item comes in the stream.
    pair.run(wanted(client, 3));
    let counters = pair.server.counters();
    assert_eq!(counters.errors_sent_read_chunks, 2, "and so is a long call");
    assert_eq!(pair.client.counters().bulk_calls_retried, 3);
    // From then on no memory is exposed to that peer.
    let (stream, items) = pair.run(results(Placement::Auto, 4));
    assert_eq!((stream.len(), items.len()), (4004, 0));
    assert_eq!(pair.client.counters().bulk_calls_retried, 3);
    let app = pair.client.app_mut();
    app.wanted.push_back(results(Placement::Rdma, 5));
    pair.until("the refusal", |pair| !pair.client.app().refused.is_empty());
    let app = pair.client.app();
    assert_eq!(app.refused, [(5, CallRefused::NoPlacement)]);
    pair.turns(50);
    assert_eq!(pair.client.core.bulk_buffers_free(), 96);
}

#[test]
fn a_call_that_is_never_answered_ends_and_then_its_connection() {
    unless_skipped!("a_call_that_is_never_answered_ends_and_then_its_connection");
    let config = CoreConfig {
        call_timeout: Duration::from_secs(1),
        keep_alive_interval: Duration::ZERO,
        ..bulk_config()
    };
    let mut pair = bulk_pair(&config, &config);
    let (connection, _) = pair.connect();
    pair.client.app_mut().wanted.push_back(
        Wanted::new(connection, HOLD, Placement::Rdma, 1)
            .asking(&[70_000])
            .with_item(pattern(70_000, 1)),
    );
    pair.until("the call is served", |pair| {
        !pair.server.app().held.is_empty()
    });
    let free = pair.client.core.bulk_buffers_free();
    assert!(free < 96);
    pair.pass(Duration::from_millis(1100));
    pair.turns(300);
    assert_eq!(pair.client.app().result(1), Some(&Err(CallError::TimedOut)));
    assert_eq!(
        pair.client.core.bulk_buffers_free(),
        free,
        "the peer may reach its memory still"
    );
    assert!(pair.client.app().disconnected.is_empty());
    pair.pass(Duration::from_millis(1100));
    pair.until("the connection ends", |pair| {
        !pair.client.app().disconnected.is_empty()
    });
    assert_eq!(
        pair.client.app().disconnected,
        [CloseReason::CallUnanswered]
    );
    pair.all_home();
}

#[test]
fn a_late_reply_gives_the_memory_of_its_call_back() {
    unless_skipped!("a_late_reply_gives_the_memory_of_its_call_back");
    let config = CoreConfig {
        call_timeout: Duration::from_secs(1),
        keep_alive_interval: Duration::ZERO,
        ..bulk_config()
    };
    let mut pair = bulk_pair(&config, &config);
    let (connection, _) = pair.connect();
    pair.client.app_mut().wanted.push_back(
        Wanted::new(connection, GIVE_LATER, Placement::Rdma, 1)
            .asking(&[70_000])
            .with_item(pattern(70_000, 1)),
    );
    pair.until("the call is served", |pair| {
        !pair.server.app().later.is_empty()
    });
    pair.server.app_mut().later[0].2 = u32::MAX;
    pair.pass(Duration::from_millis(1100));
    pair.until("the end of the call", |pair| {
        pair.client.app().result(1).is_some()
    });
    pair.server.app_mut().later[0].2 = 1;
    pair.until("the late reply", |pair| {
        pair.client.counters().late_replies == 1
    });
    assert_eq!(pair.client.app().result(1), Some(&Err(CallError::TimedOut)));
    pair.all_home();
    assert!(pair.client.app().disconnected.is_empty());
}

/// The connection ends after every number of turns there is in a call: each buffer comes back.
#[test]
fn a_disconnect_at_any_moment_gives_every_buffer_back() {
    let config = CoreConfig {
        read_depth_max: 2,
        ..bulk_config()
    };
    for (round, turns) in (0..40).step_by(40 / rounds(40)).enumerate() {
        let mut pair = bulk_pair(&config, &config);
        let (connection, server) = pair.connect();
        pair.client.app_mut().shares = round % 4 >= 2;
        for (tag, procedure) in (0..).zip([GIVE, GIVE_LATER, GIVE_LONG, GIVE_SHARED]) {
            pair.client.app_mut().wanted.push_back(Wanted {
                args: asking(&[30_000, 300_000]),
                items: vec![(12, pattern(400_000, tag))],
                expected: vec![300_000],
                results_bytes_max: 60_000,
                ..Wanted::new(connection, procedure, Placement::Rdma, tag)
            });
        }
        pair.turns_exactly(turns);
        let side = if round % 2 == 0 {
            (&pair.client.handle, connection)
        } else {
            (&pair.server.handle, server)
        };
        side.0
            .send(Command::Close {
                connection: side.1,
                reason: CloseReason::Local,
            })
            .expect("the mailbox has room");
        pair.until("both ends are told", |pair| {
            pair.client.closed.len() == 1 && pair.server.closed.len() == 1
        });
        // Deferred calls are answered into the void.
        pair.turns(20);
        let client = pair.client.app();
        assert_eq!(
            client.ended.len() + client.refused.len() + client.wanted.len(),
            4
        );
        let shared: Vec<_> = client.shared.keys().copied().collect();
        for tag in shared {
            pair.end_shares(tag, &[(12, pattern(400_000, tag))]);
        }
        pair.all_home();
    }
}

/// A server may expose memory to a client only as far as the client said that it takes such calls.
#[test]
fn calls_in_the_reverse_direction_have_chunks_only_where_the_client_takes_them() {
    let mut pair = bulk_pair(&bulk_config(), &bulk_config());
    pair.client.properties.reverse_requests = ReverseRequestSupport::Inline;
    let (_, server) = pair.connect();
    for (tag, placement) in [(1, Placement::Rdma), (2, Placement::Auto)] {
        let wanted = Wanted::new(server, GIVE, placement, tag).asking(&[70_000]);
        pair.server.app_mut().wanted.push_back(wanted);
    }
    pair.until("both calls end", |pair| {
        let app = pair.server.app();
        app.refused.len() == 1 && app.result(2).is_some()
    });
    let app = pair.server.app();
    assert_eq!(app.refused, [(1, CallRefused::NoPlacement)]);
    let (results, items) = app
        .result(2)
        .and_then(|it| it.as_ref().ok())
        .expect("served");
    assert!(items.is_empty() && results.len() > 70_000, "in the stream");
    assert_eq!(pair.server.counters().windows_bound, 0);
    pair.all_home();
}
