//! Messages that lie in several segments of their Receives (RTR sections 4.2 and 9.2).

use crate::support::{ECHO, LATER, NULL, Pair, pattern};
use rpcrdma_engine::{CoreConfig, PlacementConfig};

/// Bytes of a null call, and of the reply to it: the header without chunks and the RPC message.
const NULL_CALL_BYTES: u32 = 36 + 40;
const NULL_REPLY_BYTES: u32 = 36 + 24;

/// With segments so short that seven of them make a buffer of 4096 bytes.
const SHORT_SEGMENT_BYTES: u32 = 580;

fn config(inline_segment_bytes: u32, segments: u32, segment_bytes: u32) -> CoreConfig {
    CoreConfig {
        connections_max: 1,
        credits_per_connection: 4,
        message_buffers: 4,
        message_bytes_max: 20_000,
        calls_outstanding_max: 16,
        placement: Some(PlacementConfig {
            inline_segment_bytes,
            segments,
            segment_bytes,
            spares: segments,
        }),
        ..CoreConfig::default()
    }
}

fn gathered(pair: &Pair) -> (u64, u64) {
    (
        pair.client.counters().messages_gathered,
        pair.server.counters().messages_gathered,
    )
}

/// The first segment ends at every octet of header and RPC message. What it holds whole is read
/// where it lies; all else is put together, and means the same.
#[test]
fn a_message_crosses_segments_at_every_offset() {
    for inline in 1..=NULL_CALL_BYTES + 12 {
        let mut pair = Pair::new(&config(inline, 1, 4096));
        let (client, _) = pair.connect();
        pair.turns(10);
        let before = gathered(&pair);
        pair.client.app_mut().want(client, NULL, &[], 1);
        pair.until("the reply", |pair| !pair.client.app().ended.is_empty());
        let after = gathered(&pair);
        let crossed = |bytes| u64::from(bytes > inline);
        assert_eq!(after.1 - before.1, crossed(NULL_CALL_BYTES), "{inline}");
        assert_eq!(after.0 - before.0, crossed(NULL_REPLY_BYTES), "{inline}");
        assert_eq!(pair.client.app().result(1), Some(&Ok(Vec::new())));
    }
}

/// The last segment of a message ends at every word of its arguments, and longer messages come in
/// parts that cross segments, too.
#[test]
fn a_message_ends_at_every_offset_of_its_segments() {
    let mut pair = Pair::new(&config(100, 7, SHORT_SEGMENT_BYTES));
    let (client, _) = pair.connect();
    let sizes: Vec<usize> = (0..4300).step_by(4).chain([5000, 16_000]).collect();
    for (tag, size) in (1..).zip(&sizes) {
        let procedure = if tag % 3 == 0 { LATER } else { ECHO };
        let args = pattern(*size, tag);
        pair.client.app_mut().want(client, procedure, &args, tag);
    }
    pair.until("all replies", |pair| {
        pair.client.app().ended.len() == sizes.len()
    });
    for (tag, size) in (1..).zip(&sizes) {
        let result = pair.client.app().result(tag);
        assert!(result == Some(&Ok(pattern(*size, tag))), "{size} bytes");
    }
    let (client, server) = gathered(&pair);
    assert!(client > 300 && server > 300, "{client} and {server}");
    assert!(pair.server.counters().fragments_received > 0);
}

/// Parts and calls that wait for a message buffer wait in their Receives, across segments, too.
#[test]
fn messages_waiting_across_segments_arrive_intact() {
    let scarce = CoreConfig {
        credits_per_connection: 12,
        message_buffers: 1,
        send_buffers: 1,
        deferred_max: 64,
        ..config(90, 7, SHORT_SEGMENT_BYTES)
    };
    let mut pair = Pair::new(&scarce);
    let (client, server) = pair.connect();
    for tag in 0..120 {
        let args = pattern(
            [10, 400, 9000][usize::try_from(tag % 3).expect("small")],
            tag,
        );
        // What is answered later keeps others waiting.
        let procedure = if tag % 2 == 0 { ECHO } else { LATER };
        for (side, connection) in [(&mut pair.client, client), (&mut pair.server, server)] {
            side.app_mut().want(connection, procedure, &args, tag);
        }
    }
    pair.until_ended(120, 120);
    let waited = [&pair.client, &pair.server].map(|side| side.counters().awaiting_message_buffer);
    assert!(
        waited.iter().sum::<u64>() > 0,
        "they are scarce: {waited:?}"
    );
    for side in [&pair.client, &pair.server] {
        for tag in 0..120 {
            let size = [10, 400, 9000][usize::try_from(tag % 3).expect("small")];
            let result = side.app().result(tag);
            assert!(result == Some(&Ok(pattern(size, tag))), "call {tag}");
        }
    }
}
