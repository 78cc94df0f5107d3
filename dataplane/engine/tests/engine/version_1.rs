//! Calls of version 1 (RFC 8166): inline, with chunks, in the reverse direction, and what neither holds.

use std::time::Duration;

use rpcrdma_engine::{CallError, CallRefused, CloseReason, CoreConfig, Placement};
use rpcrdma_protocol::connection::Versions;
use rpcrdma_protocol::constants::RPCSEC_GSS;
use rpcrdma_protocol::v2::connection::{CloseReason as ProtocolReason, Role};
use rpcrdma_protocol::v2::{ReverseRequestSupport, TransportError};

use crate::TestFabric;
use crate::support::bulk::{
    BulkApp, GIVE, GIVE_LATER, GIVE_LONG, GIVE_SHARED, TAKE, Wanted, asking, bulk_config,
    bulk_pair, given,
};
use crate::support::fabric::{Fabric as _, unless_skipped};
use crate::support::raw::{Attack, words};
use crate::support::{App, ECHO, FILL, LATER, NEVER, NULL, PROGRAM, Pair, VERSION, pattern};

#[test]
fn ends_of_both_versions_agree_on_one() {
    use Versions::{Both, One, Two};
    for (client, server, version_1) in [
        (One, One, true),
        (One, Both, true),
        (Both, One, true),
        (Both, Both, false),
        (Both, Two, false),
        (Two, Both, false),
    ] {
        let mut pair = Pair::new(&CoreConfig::default());
        let key = pair.connect_with(client, server);
        let args = pattern(40, 1);
        let ended = pair.ask(key, ECHO, &args, 1);
        assert_eq!(ended, Ok(args), "{client:?} {server:?}");
        assert_eq!(pair.client.app().connected, [key]);
        assert_eq!(pair.client.version_1, version_1);
        assert_eq!(pair.server.version_1, version_1);
        let app = pair.server.app();
        assert_eq!(app.connected.len(), 1, "it is told of the connection once");
    }
    // Versions that nobody has in common: the connection ends.
    let mut pair = Pair::new(&CoreConfig::default());
    pair.plant_with(Two, One);
    pair.until("the end", |pair| !pair.client.closed.is_empty());
    assert_eq!(pair.client.mismatched.len(), 1);
}

/// Every size that a message holds, to the last byte, and none beyond.
#[test]
fn inline_calls_go_up_to_the_threshold() {
    let mut pair = Pair::new(&CoreConfig::default());
    let key = pair.connect_with(Versions::One, Versions::Both);
    // Headers of 28 and 40 bytes before the arguments, of 28 and 24 before the results.
    let (most_args, most_results) = (4096 - 28 - 40, 4096 - 28 - 24);
    let mut tag = 0;
    for bytes in [
        0,
        4,
        1000,
        most_args - 12,
        most_args - 8,
        most_args - 4,
        most_args,
    ] {
        for procedure in [NULL, ECHO, LATER] {
            tag += 1;
            let args = pattern(bytes, tag);
            let ended = pair.ask(key, procedure, &args, tag);
            let expected = if procedure == NULL { Vec::new() } else { args };
            assert_eq!(ended, Ok(expected), "{bytes} bytes");
        }
    }
    let too_long = pattern(most_args + 4, 1);
    pair.client.app_mut().want(key, ECHO, &too_long, 900);
    pair.turns(10);
    let app = pair.client.app();
    assert_eq!(app.refused, [(900, CallRefused::TooLong)]);
    for (bytes, fits) in [
        (most_results - 12, true),
        (most_results - 4, true),
        (most_results, true),
        (most_results + 4, false),
        (50_000, false),
    ] {
        tag += 1;
        let asked = u32::try_from(bytes).expect("small").to_be_bytes();
        match pair.ask(key, FILL, &asked, tag) {
            Ok(results) => assert!(fits && results.len() == bytes, "{bytes}"),
            // ERR_CHUNK: the call brought no Reply chunk.
            Err(error) => {
                assert!(!fits, "{bytes}");
                assert_eq!(error, CallError::Transport(TransportError::BadXdr));
            }
        }
    }
    // And the connection is none the worse.
    assert!(pair.ask(key, NULL, &[], 901).is_ok());
    assert!(pair.client.closed.is_empty() && pair.server.closed.is_empty());
}

/// Many calls at once use the credits that there are, and wait for others.
#[test]
fn more_calls_than_credits_are_all_answered() {
    let config = CoreConfig {
        credits_per_connection: 4,
        ..CoreConfig::default()
    };
    let mut pair = Pair::new(&config);
    let key = pair.connect_with(Versions::One, Versions::One);
    for tag in 0..200 {
        let procedure = if tag % 3 == 0 { LATER } else { ECHO };
        let args = pattern(64, tag);
        pair.client.app_mut().want(key, procedure, &args, tag);
    }
    pair.until("all replies", |pair| pair.client.app().ended.len() == 200);
    for tag in 0..200 {
        let result = pair.client.app().result(tag);
        assert_eq!(result, Some(&Ok(pattern(64, tag))));
    }
    assert_eq!(pair.server.counters().protocol_violations, 0);
    assert_eq!(pair.server.counters().grants_sent, 0);
}

/// Read chunks of one and of several segments, with and without round-up bytes that nobody sends.
#[test]
fn items_are_read_from_read_chunks() {
    unless_skipped!("items_are_read_from_read_chunks");
    let mut pair = bulk_pair(&bulk_config(), &bulk_config());
    let connection = pair.connect_with(Versions::One, Versions::Both);
    for (size, tag) in [1, 3, 4, 5, 4096, 65_537, 300_001, 1 << 20]
        .into_iter()
        .zip(1..)
    {
        let wanted = Wanted::new(connection, TAKE, Placement::Rdma, tag);
        pair.run_whole(wanted.around(pattern(size, tag)));
        pair.all_home();
    }
    let (client, server) = (pair.client.counters(), pair.server.counters());
    assert!(server.rdma_reads >= 8);
    assert!(client.windows_invalidated_remotely >= 5, "single windows");
    assert_eq!(
        client.windows_bound,
        client.windows_invalidated_remotely + client.windows_invalidated_locally
    );
}

/// Several Read chunks at different positions, and several Write chunks, in one call.
#[test]
fn calls_have_several_chunks_of_each_kind() {
    unless_skipped!("calls_have_several_chunks_of_each_kind");
    let mut pair = bulk_pair(&bulk_config(), &bulk_config());
    let connection = pair.connect_with(Versions::One, Versions::One);
    pair.run_whole(Wanted {
        args: pattern(16, 5),
        items: vec![
            (4, pattern(5001, 1)),
            (8, pattern(70_000, 2)),
            (16, pattern(4, 3)),
        ],
        ..Wanted::new(connection, TAKE, Placement::Rdma, 1)
    });
    let lengths = [70_001, 3, 8192];
    for (procedure, tag) in [(GIVE, 2), (GIVE_LATER, 3), (GIVE_SHARED, 4)] {
        let wanted = Wanted {
            args: asking(&lengths),
            expected: lengths.iter().map(|bytes| bytes + 5).collect(),
            results_bytes_max: 100,
            ..Wanted::new(connection, procedure, Placement::Rdma, tag)
        };
        let (results, items) = pair.run(wanted);
        let bytes = 4 + 4 * lengths.len();
        assert_eq!(results.len(), bytes, "the items are not in the stream");
        for (index, &bytes) in lengths.iter().enumerate() {
            assert!(items[index] == given(index, bytes), "result {index}");
        }
        pair.all_home();
    }
}

/// A Write chunk that is too small for its result: ERR_CHUNK (RFC 8166 section 4.5.3). One that is not used comes back.
#[test]
fn write_chunks_that_do_not_fit_end_the_call() {
    let mut pair = bulk_pair(&bulk_config(), &bulk_config());
    let connection = pair.connect_with(Versions::One, Versions::One);
    let wanted = |lengths: &[u32], expected: &[u32], tag| Wanted {
        args: asking(lengths),
        expected: expected.to_vec(),
        results_bytes_max: 100,
        ..Wanted::new(connection, GIVE, Placement::Rdma, tag)
    };
    let refused = Err(CallError::Transport(TransportError::BadXdr));
    assert_eq!(pair.ending(wanted(&[5000], &[4999], 1)), refused);
    let (_, items) = pair.run(wanted(&[], &[4999], 2));
    assert_eq!(items, [Vec::<u8>::new()]);
    let (_, items) = pair.run(wanted(&[0, 7], &[100, 100], 3));
    assert_eq!(items, [Vec::new(), given(1, 7)]);
    pair.all_home();
    assert_eq!(pair.client.counters().bulk_calls_retried, 0);
}

/// Long calls go to a Position-Zero Read chunk, long replies to the Reply chunk, alone and with items.
#[test]
fn long_calls_and_replies_go_to_chunks() {
    unless_skipped!("long_calls_and_replies_go_to_chunks");
    let mut pair = bulk_pair(&bulk_config(), &bulk_config());
    let connection = pair.connect_with(Versions::One, Versions::Both);
    let mut tag = 0;
    for bytes in [4100, 40_000, 100_000] {
        for item in [None, Some(pattern(70_001, 9))] {
            tag += 1;
            pair.run_whole(Wanted {
                args: pattern(bytes, tag),
                items: item.into_iter().map(|item| (8, item)).collect(),
                ..Wanted::new(connection, TAKE, Placement::Auto, tag)
            });
            pair.all_home();
        }
        tag += 1;
        let words = u32::try_from(bytes / 4).expect("small");
        let wanted = Wanted {
            args: asking(&[words, 5000]),
            expected: vec![5000],
            results_bytes_max: bytes + 100,
            ..Wanted::new(connection, GIVE_LONG, Placement::Auto, tag)
        };
        let (results, items) = pair.run(wanted);
        assert!(results.len() > bytes, "{} of {bytes}", results.len());
        assert!(items == [given(0, 5000)], "{bytes} bytes");
        pair.all_home();
    }
    assert!(pair.server.counters().rdma_writes >= 3);
    assert_eq!(pair.client.counters().fragments_received, 0);
}

/// A core keeps a quarter of its bulk buffers for the calls of peers: a call that needs one of these would wait for ever.
#[test]
fn calls_that_need_memory_kept_for_peers_are_refused() {
    unless_skipped!("calls_that_need_memory_kept_for_peers_are_refused");
    let small = CoreConfig {
        bulk_buffers: 8,
        ..bulk_config()
    };
    let mut pair = bulk_pair(&small, &bulk_config());
    let connection = pair.connect_with(Versions::One, Versions::Both);
    let long = |pieces: usize, tag| Wanted {
        args: pattern(pieces * 65_536 - 100, tag),
        ..Wanted::new(connection, TAKE, Placement::Auto, tag)
    };
    pair.run_whole(long(6, 1));
    for (pieces, tag) in [(7, 7), (8, 8), (9, 9)] {
        pair.client.app_mut().wanted.push_back(long(pieces, tag));
    }
    pair.until("the refusals", |pair| pair.client.app().refused.len() == 3);
    let expected = [7, 8, 9].map(|tag| (tag, CallRefused::TooLong));
    assert_eq!(pair.client.app().refused, expected);
    assert_eq!(pair.client.core.bulk_buffers_free(), 8);
}

/// A reply that fits inline leaves the Reply chunk unused (RFC 8166 section 4.3).
#[test]
fn short_replies_leave_the_reply_chunk_unused() {
    let mut pair = bulk_pair(&bulk_config(), &bulk_config());
    let connection = pair.connect_with(Versions::One, Versions::Both);
    let wanted = Wanted {
        args: pattern(12, 5),
        results_bytes_max: 50_000,
        ..Wanted::new(connection, TAKE, Placement::Auto, 1)
    };
    let (results, _) = pair.run(wanted);
    assert_eq!(results, 12_u32.to_be_bytes());
    assert_ne!(pair.client.counters().windows_bound, 0);
    assert_eq!(pair.client.counters().windows_invalidated_remotely, 0);
    assert_eq!(pair.server.counters().rdma_writes, 0);
    pair.all_home();
}

/// RFC 8167: calls of the server to the client, beside those of the client, with credits of their own.
#[test]
fn both_ends_call_each_other() {
    let mut pair = Pair::new(&CoreConfig::default());
    for side in [&mut pair.client.properties, &mut pair.server.properties] {
        side.reverse_requests = ReverseRequestSupport::General;
    }
    let client = pair.connect_with(Versions::One, Versions::Both);
    pair.client.app_mut().want(client, NULL, &[], 1000);
    pair.until("the server is ready", |pair| !pair.server.ready.is_empty());
    let server = pair.server.ready[0];
    for tag in 0..100 {
        let args = pattern(100, tag);
        pair.client.app_mut().want(client, ECHO, &args, tag);
        pair.server.app_mut().want(server, LATER, &args, tag);
    }
    pair.until_ended(101, 100);
    for tag in 0..100 {
        let expected = Ok(pattern(100, tag));
        for app in [pair.client.app(), pair.server.app()] {
            assert_eq!(app.result(tag), Some(&expected));
        }
    }
}

/// Without the word of the upper layer a server calls nobody.
#[test]
fn reverse_calls_need_to_be_enabled() {
    let mut pair = Pair::new(&CoreConfig::default());
    for side in [&mut pair.client.properties, &mut pair.server.properties] {
        side.reverse_requests = ReverseRequestSupport::None;
    }
    let client = pair.connect_with(Versions::One, Versions::One);
    pair.client.app_mut().want(client, NULL, &[], 1);
    pair.until("the server is ready", |pair| !pair.server.ready.is_empty());
    let server = pair.server.ready[0];
    pair.server.app_mut().want(server, NULL, &[], 2);
    pair.turns(10);
    let app = pair.server.app();
    assert_eq!(app.refused, [(2, CallRefused::NotTaken)]);
}

/// What RPCSEC_GSS protects is one whole (RFC 8166 section 8.2.2): items go in the stream of a long call, results in that
/// of a long reply. So they do where the caller wants them inline.
#[test]
fn streams_that_are_not_reduced_go_to_chunks_whole() {
    unless_skipped!("streams_that_are_not_reduced_go_to_chunks_whole");
    let mut pair = bulk_pair(&bulk_config(), &bulk_config());
    let connection = pair.connect_with(Versions::One, Versions::Both);
    let integrity: Vec<u8> = [1_u32, 0, 7, 2, 0]
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .collect();
    let credentials = [
        (RPCSEC_GSS, integrity, Placement::Auto),
        (0, Vec::new(), Placement::Inline),
    ];
    let mut tag = 0;
    for (flavor, body, placement) in credentials {
        pair.client.app_mut().credential = (flavor, body);
        for size in [5, 3000, 5000, 70_001] {
            tag += 1;
            let wanted = Wanted::new(connection, TAKE, placement, tag);
            pair.run_whole(wanted.around(pattern(size, 3)));
            pair.all_home();
            tag += 1;
            let bytes = u32::try_from(size).expect("small");
            let wanted = Wanted::new(connection, GIVE, placement, tag).asking(&[bytes]);
            let (results, items) = pair.run(wanted);
            assert_eq!(items, Vec::<Vec<u8>>::new());
            assert!(results[4..4 + size] == given(0, bytes), "{size} bytes");
            pair.all_home();
        }
    }
    // It cannot be forced.
    let wanted = Wanted::new(connection, GIVE, Placement::Rdma, 999).asking(&[5000]);
    let app = pair.client.app_mut();
    app.credential = (RPCSEC_GSS, vec![0; 20]);
    app.wanted.push_back(wanted);
    pair.turns(10);
    let refused = &pair.client.app().refused;
    assert_eq!(*refused, [(999, CallRefused::NoPlacement)]);
}

/// A null call of version 1 with these lists, in words.
fn null_call_with(xid: u32, header_type: u32, lists: &[u32]) -> Vec<u8> {
    let mut all = vec![xid, 1, 32, header_type];
    all.extend(lists);
    all.extend([xid, 0, 2, PROGRAM, VERSION, NULL, 0, 0, 0, 0]);
    words(&all)
}

/// A Write chunk of so many segments, with its mark; `length_bytes` each.
fn write_chunk(segments: u32, length_bytes: u32) -> Vec<u32> {
    let mut chunk = vec![1, segments];
    for segment in 0..segments {
        chunk.extend([700 + segment, length_bytes, 5, segment * 4096]);
    }
    chunk
}

/// Linux offers Write chunks of up to 17 segments, the last for round-up octets; others offer empty ones, which ask for
/// the result in the stream. All come back as they were, with lengths of zero where nothing was written.
#[test]
fn unused_and_empty_write_chunks_come_back_as_they_were() {
    let app = App::default();
    let level = ReverseRequestSupport::Inline;
    let mut attack = Attack::speaking(Versions::Both, level, Role::Server, &bulk_config(), app);
    let mut lists = vec![0];
    lists.extend(write_chunk(17, 4096));
    lists.extend(write_chunk(0, 0));
    lists.extend([0, 0]);
    attack.send(&null_call_with(9, 0, &lists));
    attack.turns(20);
    let mut expected = vec![9, 1, 0, 0, 0];
    expected.extend(write_chunk(17, 0));
    expected.extend(write_chunk(0, 0));
    expected.extend([0, 0]);
    expected.extend([9, 1, 0, 0, 0, 0]);
    assert_eq!(attack.take(), [words(&expected)]);
}

/// A reply that fits inline returns the Reply chunk unused (RFC 8166 section 4.3): also one that is just too long for the
/// space that is kept before a reply for the longer header of version 2.
#[test]
fn an_inline_reply_returns_the_reply_chunk_whatever_its_size() {
    let app = App::default();
    let level = ReverseRequestSupport::None;
    let mut attack = Attack::speaking(Versions::One, level, Role::Server, &bulk_config(), app);
    // The threshold is 1024; 28 bytes are the header's, 20 the Reply chunk's, 24 the RPC header's.
    for bytes in [8_u32, 940, 944, 948, 952] {
        let lists = [0, 0, 1, 1, 700, 4096, 5, 64];
        let mut call = vec![bytes, 1, 32, 0];
        call.extend(lists);
        call.extend([bytes, 0, 2, PROGRAM, VERSION, FILL, 0, 0, 0, 0, bytes]);
        attack.send(&words(&call));
        attack.turns(20);
        let mut reply = vec![bytes, 1, 0, 0, 0, 0, 1, 1, 700, 0, 5, 64];
        reply.extend([bytes, 1, 0, 0, 0, 0]);
        reply.extend((0..bytes / 4).map(|_| 0x0102_0304));
        assert!(attack.take() == [words(&reply)], "{bytes} bytes");
    }
    assert_eq!(attack.victim.counters().rdma_writes, 0);
}

/// A call that RPCSEC_GSS protects has its results in the stream of the reply, though it offers a Write chunk: nothing
/// is written by RDMA, at once or later.
#[test]
fn results_that_are_protected_are_not_reduced() {
    let level = ReverseRequestSupport::None;
    let app = BulkApp::default();
    let mut attack = Attack::speaking(Versions::One, level, Role::Server, &bulk_config(), app);
    for (xid, procedure, service) in [(1, GIVE, 2), (2, GIVE_LATER, 2), (3, GIVE, 3)] {
        let mut call = vec![xid, 1, 32, 0, 0];
        call.extend(write_chunk(1, 4096));
        call.extend([0, 0]);
        call.extend([xid, 0, 2, PROGRAM, VERSION, procedure]);
        call.extend([RPCSEC_GSS, 20, 1, 0, 7, service, 0, 0, 0]);
        attack.send(&[words(&call), asking(&[100])].concat());
        attack.turns(20);
        let mut header = vec![xid, 1, 0, 0, 0];
        header.extend(write_chunk(1, 0));
        header.extend([0, 0, xid, 1, 0, 0, 0, 0, 100]);
        let expected = [words(&header), given(0, 100), words(&[0xfeed])].concat();
        assert!(attack.take() == [expected], "service {service}");
    }
    assert_eq!(attack.victim.counters().rdma_writes, 0);
}

/// A peer that is silent for as many ticks as a dead one would be is sent a probe again and again, where the port has
/// probes; each is acknowledged, so that the connection stays. A peer that calls is sent none.
#[test]
fn a_silent_peer_is_probed() {
    let interval = Duration::from_secs(1);
    let mut pair = Pair::new(&CoreConfig {
        keep_alive_interval: interval,
        keep_alive_silent_ticks_max: 3,
        stall_timeout: 4 * interval,
        ..CoreConfig::default()
    });
    let key = pair.connect_with(Versions::One, Versions::Both);
    for tag in 0..9 {
        assert!(pair.ask(key, NULL, &[], tag).is_ok());
        pair.pass(interval);
        pair.turns(30);
    }
    for side in [&pair.client, &pair.server] {
        assert_eq!(side.counters().probes_sent, 0);
    }
    for _ in 0..18 {
        pair.pass(interval);
        pair.turns(30);
    }
    for side in [&pair.client, &pair.server] {
        let probes = side.counters().probes_sent;
        let expected = if TestFabric::HAS_PROBES { 5..=6 } else { 0..=0 };
        assert!(expected.contains(&probes), "{probes}");
        assert!(side.closed.is_empty());
    }
}

/// A Linux client does not count calls whose tasks were killed. So there may be more of them than were granted, up to
/// twice as many: a window that was killed, and a new one.
#[test]
fn calls_beyond_the_grant_are_served_and_counted() {
    let config = CoreConfig {
        deferred_max: 64,
        ..bulk_config()
    };
    let level = ReverseRequestSupport::None;
    let app = App::default();
    let mut attack = Attack::speaking(Versions::One, level, Role::Server, &config, app);
    attack.send(&null_call_with(1, 0, &[0, 0, 0]));
    attack.turns(20);
    let granted = attack.raw.got[0][8..12].try_into().expect("four");
    let granted = u32::from_be_bytes(granted);
    let call = |xid| {
        let header = [xid, 1, 32, 0, 0, 0, 0];
        let rpc = [xid, 0, 2, PROGRAM, VERSION, NEVER, 0, 0, 0, 0];
        [words(&header), words(&rpc)].concat()
    };
    for xid in 2..2 + 2 * granted {
        attack.send(&call(xid));
    }
    attack.pass(Duration::from_secs(1));
    assert_eq!(attack.victim.closed, []);
    let counters = attack.victim.counters();
    assert_eq!(counters.calls_received, 1 + 2 * u64::from(granted));
    assert_eq!(counters.calls_beyond_grant, u64::from(granted));
    attack.send(&call(1000));
    attack.assert_closed(CloseReason::Protocol(ProtocolReason::OverSend));
}

/// What a responder does not serve is ERR_CHUNK, with the grant of the connection, and the next call is served.
#[test]
fn lists_that_are_not_served_are_answered_with_err_chunk() {
    let app = App::default();
    let level = ReverseRequestSupport::Inline;
    let mut attack = Attack::speaking(Versions::One, level, Role::Server, &bulk_config(), app);
    let with_writes = |segments, length_bytes| {
        let mut lists = vec![0];
        lists.extend(write_chunk(segments, length_bytes));
        lists.extend([0, 0]);
        lists
    };
    let read = |position, length_bytes| vec![1, position, 7, length_bytes, 0, 64, 0, 0, 0];
    let cases = [
        ("more segments than are taken", 0, with_writes(65, 16)),
        ("segments that share memory", 0, {
            let mut lists = with_writes(2, 16);
            (lists[7], lists[10]) = (700, 0);
            lists
        }),
        (
            "a Position-Zero Read chunk beside a payload",
            0,
            read(0, 64),
        ),
        ("a Position beyond the stream", 0, read(4000, 64)),
        ("an unaligned Position", 0, read(41, 64)),
        ("more than is served", 0, read(40, u32::MAX)),
        ("no payload", 1, vec![0, 0, 0]),
        ("RDMA_MSGP", 2, vec![0, 0, 0]),
    ];
    for ((what, header_type, lists), xid) in cases.iter().zip(100..) {
        attack.send(&null_call_with(xid, *header_type, lists));
        attack.turns(20);
        let answer = words(&[xid, 1, 8, 4, 2]);
        let got = std::mem::take(&mut attack.raw.got);
        // Reverse calls have their share of the nine Receives, where they are enabled.
        let mut expected = answer;
        expected[11] = got[0][11];
        assert_eq!(got, [expected], "{what}");
        assert!(got[0][11] > 0, "{what}: never a grant of zero");
        attack.send(&null_call_with(50, 0, &[0, 0, 0]));
        attack.turns(20);
        let reply = words(&[50, 1, 0, 0, 0, 0, 0, 50, 1, 0, 0, 0, 0]);
        assert_eq!(attack.take(), [reply], "{what}");
    }
}

/// RFC 8167 section 5.3 lets an end refuse chunks in the reverse direction. This one does, whatever it takes in version 2,
/// and takes the next call, with or without a Reply chunk that it does not need.
#[test]
fn chunks_of_reverse_calls_are_answered_with_err_chunk() {
    let mut write = vec![0];
    write.extend(write_chunk(1, 4096));
    write.extend([0, 0]);
    let long_call = words(&[2, 1, 32, 1, 1, 0, 7, 64, 0, 64, 0, 0, 0]);
    let calls = [
        (
            "a Read chunk",
            null_call_with(2, 0, &[1, 40, 7, 64, 0, 64, 0, 0, 0]),
        ),
        ("a Write chunk", null_call_with(2, 0, &write)),
        ("a Position-Zero Read chunk", long_call),
    ];
    let reply = words(&[3, 1, 0, 0, 0, 0, 0, 3, 1, 0, 0, 0, 0]);
    for level in [
        ReverseRequestSupport::Inline,
        ReverseRequestSupport::General,
    ] {
        let app = App::default();
        let mut attack = Attack::speaking(Versions::One, level, Role::Client, &bulk_config(), app);
        for (what, call) in &calls {
            attack.send(call);
            attack.turns(20);
            let refused = words(&[2, 1, 0, 4, 2]);
            assert_eq!(attack.take(), [refused], "{level:?}: {what}");
            for lists in [&[0, 0, 0][..], &[0, 0, 1, 1, 7, 4096, 5, 0]] {
                attack.send(&null_call_with(3, 0, lists));
                attack.turns(20);
                assert_eq!(attack.take(), [reply.as_slice()], "{level:?}: {what}");
            }
        }
        let counters = attack.victim.counters();
        assert_eq!((counters.rdma_reads, counters.rdma_writes), (0, 0));
        assert_eq!(attack.victim.app().calls, 6);
    }
}

#[test]
fn arguments_that_do_not_parse_are_garbage() {
    let mut pair = Pair::new(&CoreConfig::default());
    let key = pair.connect_with(Versions::One, Versions::Both);
    let ended = pair.ask(key, FILL, &[], 1);
    assert_eq!(ended, Err(CallError::GarbageArgs));
}

/// Nothing tells a slow peer from a dead one, and no keep-alive is sent: a call whose time is up ends its connection.
#[test]
fn a_call_that_is_never_answered_ends_its_connection() {
    let config = CoreConfig {
        call_timeout: Duration::from_secs(1),
        keep_alive_interval: Duration::from_millis(100),
        keep_alive_silent_ticks_max: 3,
        ..CoreConfig::default()
    };
    let mut pair = Pair::new(&config);
    let key = pair.connect_with(Versions::One, Versions::Both);
    // The first reply brings the credits for more than one call.
    for (procedure, tag) in [(NULL, 2), (NEVER, 1), (NULL, 3)] {
        pair.client.app_mut().want(key, procedure, &[], tag);
        pair.turns(20);
    }
    let app = pair.client.app();
    assert!(app.result(2).is_some() && app.result(3).is_some());
    for _ in 0..9 {
        pair.pass(Duration::from_millis(100));
        pair.turns(50);
    }
    assert!(pair.client.closed.is_empty() && pair.server.closed.is_empty());
    pair.pass(Duration::from_millis(200));
    pair.until("the end", |pair| !pair.client.closed.is_empty());
    let app = pair.client.app();
    assert_eq!(app.result(1), Some(&Err(CallError::TimedOut)));
    assert_eq!(app.disconnected, [(key, CloseReason::CallUnanswered)]);
    assert_eq!(pair.server.counters().grants_sent, 0);
    assert_eq!(pair.server.counters().peers_silent, 0);
}
