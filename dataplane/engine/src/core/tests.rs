//! Calls that wait for spare placement segments, with what is leased taken by the test.

use std::time::Duration;

use rpcrdma_fabric::interface::{CompletionBatch, CompletionKind, Port};
use rpcrdma_fabric::memory::Lease;
use rpcrdma_protocol::connection::Versions;
use rpcrdma_protocol::v2::connection::Event;

use super::held::HeldWork;
use super::incoming::Stream;
use crate::close_reason::{CloseReason, Owed};
use crate::config::CoreConfig;
use crate::message::Received;
use crate::placement::{NotLeased, PlacementConfig};
use crate::rpc::ConnectionKey;
use crate::support::{ECHO, NULL, Pair, Side, pattern};

const INLINE_BYTES: u32 = 100;
/// The header without chunks, and what stands before the arguments of a call.
const BEFORE_ARGS_BYTES: u32 = 36 + 40;
const SPARES: u32 = 2;
const CREDITS: u16 = 3;

fn config() -> CoreConfig {
    CoreConfig {
        connections_max: 1,
        credits_per_connection: CREDITS,
        message_buffers: 4,
        calls_outstanding_max: 16,
        placement: Some(PlacementConfig {
            inline_segment_bytes: INLINE_BYTES,
            segments: 1,
            segment_bytes: 4096,
            spares: SPARES,
        }),
        ..CoreConfig::default()
    }
}

/// The call that arrived, with the XID, in the hands of the test.
struct Arrived {
    xid: u32,
    received: Received,
}

/// Polls the port of a core in the core's place, until a call has come.
fn next_call(pair: &mut Pair, key: ConnectionKey) -> Arrived {
    let mut batch = CompletionBatch::new();
    for _ in 0..10_000 {
        pair.now += pair.clock.ticks(Duration::from_micros(1));
        let _ = pair.client.core.iterate_at(pair.now);
        let state = &mut pair.server.core.state;
        state.port.poll(pair.now, &mut batch);
        for completion in batch.drain() {
            let CompletionKind::Receive { receive, bytes, .. } = completion.kind else {
                panic!("{completion:?}");
            };
            let counters = &state.shared.counters;
            let end = bytes as usize;
            let message = state.gathered.message(&state.port, &receive, end, counters);
            let connection = state.connections.get_mut(key).expect("it is open");
            match connection.protocol.handle_message(message) {
                Event::Call { xid, payload, .. } => {
                    let start = end - payload.len();
                    let received = Received {
                        receive,
                        start,
                        end,
                    };
                    return Arrived { xid, received };
                }
                Event::Credits => state.repost(key.index, receive),
                other => panic!("{other:?}"),
            }
        }
    }
    panic!("no call comes");
}

/// Leases what lies in the placement segment of a call that came.
fn lease(side: &mut Side, arrived: &mut Arrived) -> Result<Lease, NotLeased> {
    let state = &mut side.core.state;
    let received = &mut arrived.received;
    let end = u32::try_from(received.end).expect("small");
    let bytes = end - INLINE_BYTES;
    let receive = &mut received.receive;
    state.placement.lease(&mut state.port, receive, 0, 0, bytes)
}

fn posted(side: &Side) -> u32 {
    let state = &side.core.state;
    state
        .port
        .receives_posted(state.queues.of(0).expect("the first place"))
}

/// Credits that the client has.
fn unused(pair: &Pair, client: ConnectionKey) -> u32 {
    let credits = pair.client.core.credits(client);
    credits.expect("it is open").unused()
}

/// What lies in a segment stays as it came while the Receive is posted and filled again. When all
/// spares are out, calls wait in their Receives, which are neither posted nor granted; each goes on
/// when leases have come back, from whatever thread, and nothing is lost.
#[test]
fn calls_wait_for_placement_segments_in_their_receives() {
    let mut pair = Pair::new(&config());
    let (client, server) = pair.connect();
    pair.turns(20);
    let all = config().receives();
    assert_eq!(posted(&pair.server), all);

    // As many calls as there are spares, whose bytes are kept.
    let args = |tag| pattern(700, tag);
    let mut kept = Vec::new();
    for tag in 0..u64::from(SPARES) {
        let application = pair.client.core.application_mut();
        application.want(client, ECHO, &args(tag), tag);
        let mut arrived = next_call(&mut pair, server);
        let lease = lease(&mut pair.server, &mut arrived).expect("a spare is there");
        let from = (INLINE_BYTES - BEFORE_ARGS_BYTES) as usize;
        assert!(*lease == args(tag)[from..], "the bytes of the segment");
        kept.push(lease);
        let state = &mut pair.server.core.state;
        state.repost(server.index, arrived.received.receive);
    }
    pair.turns(20);
    assert_eq!(posted(&pair.server), all, "each was posted again at once");
    assert_eq!(pair.server.core.state.placement.spares(), 0);

    // As many more as the client has credits for: each needs a segment.
    let first = u64::from(SPARES);
    let last = first + u64::from(CREDITS);
    for tag in first..last {
        assert!(unused(&pair, client) > 0, "call {tag}");
        let application = pair.client.core.application_mut();
        application.want(client, ECHO, &args(tag), tag);
        let mut arrived = next_call(&mut pair, server);
        let refused = lease(&mut pair.server, &mut arrived).expect_err("no spare is left");
        assert_eq!(refused, NotLeased::NoSpare);
        let Arrived { xid, received } = arrived;
        let state = &mut pair.server.core.state;
        state.hold_for_segments(server, xid, HeldWork::Call(Stream::Received(received)), 1);
        // What is posted still is granted.
        pair.turns(20);
    }
    pair.turns(100);
    let counters = pair.server.handle.counters();
    assert_eq!(counters.awaiting_placement_segment, u64::from(CREDITS));
    assert_eq!(counters.awaiting_message_buffer, 0);
    assert_eq!(pair.server.core.application().calls, 0, "all of them wait");
    assert_eq!(posted(&pair.server), all - u32::from(CREDITS));
    let credits = pair.server.core.credits(server).expect("it is open");
    assert_eq!((credits.unconsumed(), credits.owed), (0, 0));
    assert_eq!(unused(&pair, client), 0, "nothing was granted");
    assert!(!pair.server.core.state.prepare_to_park(), "there is work");

    // One lease is let go of on another thread: then all go on, for none of them takes it.
    let (one, rest) = (kept.pop(), kept);
    std::thread::spawn(move || drop(one))
        .join()
        .expect("a drop does not panic");
    pair.until("the calls are answered", |pair| {
        pair.client.core.application().ended.len() == usize::from(CREDITS)
    });
    for tag in first..last {
        let result = pair.client.core.application().result(tag);
        assert!(result == Some(&Ok(args(tag))), "call {tag}");
    }
    pair.turns(20);
    assert_eq!(posted(&pair.server), all);
    assert_eq!(pair.server.core.state.placement.leased(), 1);
    assert_eq!(pair.server.handle.counters().segments_returned, 1);
    let from = (INLINE_BYTES - BEFORE_ARGS_BYTES) as usize;
    assert!(*rest[0] == args(0)[from..], "as it came");
    drop(rest);
    pair.turns(2);
    let placement = &pair.server.core.state.placement;
    assert_eq!(
        (placement.leased(), placement.spares()),
        (0, SPARES as usize)
    );
}

/// A connection that ends gives back the Receives of calls that waited for segments.
#[test]
fn calls_that_wait_for_segments_end_with_their_connection() {
    let mut pair = Pair::new(&config());
    for _ in 0..3 {
        let (client, server) = pair.connect();
        pair.turns(20);
        let mut kept = Vec::new();
        for tag in 0..u64::from(CREDITS) {
            let application = pair.client.core.application_mut();
            application.want(client, ECHO, &pattern(700, tag), tag);
            let mut arrived = next_call(&mut pair, server);
            match lease(&mut pair.server, &mut arrived) {
                Ok(lease) => kept.push(lease),
                Err(refused) => assert_eq!(refused, NotLeased::NoSpare),
            }
            let Arrived { xid, received } = arrived;
            let state = &mut pair.server.core.state;
            let needed = SPARES as usize;
            state.hold_for_segments(
                server,
                xid,
                HeldWork::Call(Stream::Received(received)),
                needed,
            );
            pair.turns(20);
        }
        assert_eq!(kept.len(), SPARES as usize);
        pair.client.core.application_mut().to_close.push(client);
        let closed = pair.server.closed.len();
        pair.until("it is closed", |pair| {
            pair.server.closed.len() > closed && pair.client.closed.len() > closed
        });
        pair.client.core.application_mut().ended.clear();
        assert_eq!(posted(&pair.server), config().receives());
        assert_eq!(pair.server.core.application().calls, 0);
        // Leases outlive the connection.
        assert_eq!(pair.server.core.state.placement.leased(), kept.len());
        drop(kept);
        pair.turns(2);
        assert_eq!(pair.server.core.state.placement.leased(), 0);
    }
}

/// The probe of a version 1 connection that nobody acknowledges: no port tells the end of that peer.
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
    let state = &mut pair.client.core.state;
    let connection = state.connections.get_mut(key).expect("it is open");
    connection.silence.is_probed = true;
    quarters(&mut pair, 3);
    assert_eq!(pair.client.closed, [], "before its time");
    quarters(&mut pair, 3);
    let owed = Owed::Acknowledgement;
    let stalled_ms = 4000;
    let reason = CloseReason::PeerStalled { owed, stalled_ms };
    assert_eq!(pair.client.closed, [(key, reason)]);
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
            let connection = core.state.connections.get_mut(key).expect("it is open");
            let available = connection.protocol.credits_available();
            assert_ne!(available, 0);
            assert_eq!(connection.credits_for_calls(), available - kept);
            connection.replies_reserved = 2;
            let left = available.saturating_sub(2);
            assert_eq!(connection.credits_for_calls(), left);
        }
    }
}
