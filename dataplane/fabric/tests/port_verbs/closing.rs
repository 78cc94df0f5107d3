//! Tests of the end of queue pairs: every buffer and work is returned.

use std::time::Duration;

use super::{Pair, is_iwarp, pattern, skips};
use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{Access, CompletionKind, PostError, SendOptions, Status, WorkId};
use rpcrdma_fabric::verbs::objects_leaked;

/// Sends without a receiver (signalled or not, staged or posted) are all returned, each once.
#[test]
fn everything_outstanding_is_flushed() {
    let mut pair = Pair::new();
    let available = pair.a.pool.available();
    let leaked = objects_leaked();
    // More than there are Receives, so that some are certainly outstanding.
    for number in 0..40 {
        let data = pattern(1, 2000);
        let mut list = pair.a.gather(&[&data]);
        let options = SendOptions {
            signalled: (number % 3 == 0).then_some(WorkId(number)),
            invalidate: None,
        };
        pair.a
            .port
            .post_send(pair.a_id, &mut list, options)
            .expect("room");
        if number == 30 {
            pair.a.port.flush_sends();
        }
    }
    pair.a.port.disconnect(pair.a_id);
    let error = pair.a.gather(&[&[1]]);
    let mut list = error;
    assert_eq!(
        pair.a
            .port
            .post_send(pair.a_id, &mut list, SendOptions::default()),
        Err(PostError::NotConnected)
    );
    while let Some((buffer, _, _)) = list.pop() {
        pair.a.pool.give(buffer);
    }
    pair.b.port.disconnect(pair.b_id);
    pair.ended();
    assert_eq!(pair.a.pool.available(), available);
    let statuses: Vec<Status> = pair
        .a
        .completions
        .iter()
        .filter(|completion| matches!(completion.kind, CompletionKind::Send(_)))
        .map(|completion| completion.status)
        .collect();
    assert_eq!(statuses.len(), 14, "0, 3, … 39");
    assert_eq!(statuses.last(), Some(&Status::Flushed));
    assert!(
        statuses.is_sorted_by_key(|status| *status == Status::Flushed),
        "what was done came first: {statuses:?}"
    );
    assert_eq!(pair.a.counter("flush_timeouts"), 0, "the count was exact");
    pair.a.port.destroy_queue_pair(pair.a_id);
    pair.b.port.destroy_queue_pair(pair.b_id);
    drop(pair);
    assert_eq!(objects_leaked(), leaked, "the device took everything back");
}

/// The device flushes no completed unsignalled Sends. Their end is reported all the same, without waiting for the
/// time limit.
#[test]
fn completed_unsignalled_sends_do_not_delay_the_end() {
    let mut pair = Pair::new();
    for round in 0..5 {
        let data = pattern(round, 40);
        let buffer = pair.a.buffer_with(&data);
        pair.a
            .port
            .post_send_copied(pair.a_id, &buffer, 40, SendOptions::default())
            .expect("room");
        pair.a.pool.give(buffer);
        assert_eq!(pair.arrival().1, data);
    }
    assert_eq!(pair.a.counter("works_signalled"), 0);
    pair.a.port.disconnect(pair.a_id);
    pair.b.port.disconnect(pair.b_id);
    pair.ended();
    assert_eq!(pair.a.counter("flush_timeouts"), 0);
    // Software iWARP flushes everything before a marker can be posted.
    assert_eq!(pair.a.counter("markers_posted"), u64::from(!is_iwarp()));
}

/// A probe detects a peer that has vanished without a message, and does not disturb a live peer: its Receives stay
/// posted.
#[test]
fn a_probe_finds_a_peer_that_is_gone() {
    if skips("a_probe_finds_a_peer_that_is_gone") {
        return;
    }
    let mut pair = Pair::new();
    for round in 0..3 {
        pair.a.port.probe(pair.a_id, WorkId(round)).expect("room");
        assert_eq!(pair.finished(WorkId(round)).0, Status::Success);
    }
    assert!(pair.a.completions.is_empty() && pair.b.completions.is_empty());
    assert_eq!(pair.b.port.receives_posted(pair.b.queue), super::RECEIVES);
    pair.b.port.destroy_queue_pair(pair.b_id);
    // TIME: turns in which nothing may come. A device that is slower still hides a fault, and never makes one.
    for _ in 0..100 {
        pair.a.turn();
    }
    assert!(pair.a.completions.is_empty(), "nobody asked");
    pair.a.port.probe(pair.a_id, WorkId(3)).expect("room");
    assert_eq!(pair.finished(WorkId(3)).0, Status::RetryExceeded);
    let status = pair.until("the end", |pair| {
        let is_end = |it: &&rpcrdma_fabric::interface::Completion| {
            matches!(it.kind, CompletionKind::Disconnected)
        };
        let mut completions = pair.a.completions.iter();
        completions.find(is_end).map(|it| it.status)
    });
    assert_eq!(status, Status::RetryExceeded);
}

/// A queue pair that is destroyed before its end also returns everything, and its id is used again with another
/// generation.
#[test]
fn a_queue_pair_is_destroyed_in_mid_flight() {
    let mut pair = Pair::with(|config| config.queue_pairs_max = 1);
    let leaked = objects_leaked();
    for round in 0..20 {
        let available = pair.a.pool.available();
        for _ in 0..30 {
            let mut list = pair.a.gather(&[&[7; 100]]);
            pair.a
                .port
                .post_send(pair.a_id, &mut list, SendOptions::default())
                .expect("room");
        }
        pair.a.port.flush_sends();
        let (old_a, old_b) = (pair.a_id, pair.b_id);
        pair.a.port.destroy_queue_pair(old_a);
        pair.b.port.destroy_queue_pair(old_b);
        pair.a.turn();
        assert_eq!(pair.a.pool.available(), available, "round {round}");
        let queues = (pair.a.queue, pair.b.queue);
        (pair.a_id, pair.b_id) = super::join(
            &mut pair.a.port,
            &pair.a.handle,
            &mut pair.b.port,
            &pair.b.handle,
            queues,
        )
        .expect("the only name is free again");
        assert_eq!(pair.a_id.index, old_a.index);
        assert_ne!(pair.a_id.generation, old_a.generation);
        // Messages that arrived before hold Receives, which must be posted again.
        pair.b.turn();
        while let Some(completion) = super::take_receive(&mut pair.b) {
            if let CompletionKind::Receive { receive, .. } = completion.kind {
                pair.b.port.post_receive(receive);
            }
        }
    }
    drop(pair);
    assert_eq!(objects_leaked(), leaked, "the device took everything back");
}

/// If the device does not flush in time, the queue pair is reset. Later completions of the device belong to forgotten
/// works.
#[test]
fn a_queue_pair_that_does_not_flush_is_reset() {
    // TIME: no time at all, so it is over on every machine.
    let mut pair = Pair::with(|config| config.flush_timeout = Duration::ZERO);
    for round in 0..10 {
        let available = pair.a.pool.available();
        let mut list = pair.a.gather(&[&[3; 3000]]);
        for number in 0..30 {
            let options = SendOptions {
                signalled: Some(WorkId(number)),
                invalidate: None,
            };
            let posted = pair.a.port.post_send(pair.a_id, &mut list, options);
            posted.expect("room");
            list = pair.a.gather(&[&[3; 3000]]);
        }
        while let Some((buffer, _, _)) = list.pop() {
            pair.a.pool.give(buffer);
        }
        pair.a.port.flush_sends();
        pair.a.port.disconnect(pair.a_id);
        pair.b.port.disconnect(pair.b_id);
        pair.ended();
        let sends = |completion: &&rpcrdma_fabric::interface::Completion| {
            matches!(completion.kind, CompletionKind::Send(_))
        };
        assert_eq!(pair.a.completions.iter().filter(sends).count(), 30);
        assert_eq!(pair.a.pool.available(), available, "round {round}");
        pair.a.port.destroy_queue_pair(pair.a_id);
        pair.b.port.destroy_queue_pair(pair.b_id);
        pair.a.completions.clear();
        while let Some(completion) = super::take_receive(&mut pair.b) {
            if let CompletionKind::Receive { receive, .. } = completion.kind {
                pair.b.port.post_receive(receive);
            }
        }
        pair.b.completions.clear();
        let queues = (pair.a.queue, pair.b.queue);
        (pair.a_id, pair.b_id) = super::join(
            &mut pair.a.port,
            &pair.a.handle,
            &mut pair.b.port,
            &pair.b.handle,
            queues,
        )
        .expect("another queue pair");
    }
    let data = pattern(9, 500);
    let mut list = pair.a.gather(&[&data]);
    pair.a
        .port
        .post_send(pair.a_id, &mut list, SendOptions::default())
        .expect("room");
    assert_eq!(pair.arrival(), (Status::Success, data, None));
}

/// A port that is dropped while work is outstanding leaves nothing in the device.
#[test]
fn a_port_is_dropped_in_mid_flight() {
    let leaked = objects_leaked();
    for first in [0, 1] {
        let mut pair = Pair::new();
        let buffer = pair.b.buffer_with(&[1; 64]);
        let access = Access {
            remote_read: true,
            remote_write: true,
        };
        let window = pair.b.port.bind_window(pair.b_id, buffer, 64, access);
        let from = window.expect("a window").remote();
        pair.b.port.flush_sends();
        for number in 0..20 {
            let mut list = pair.a.gather(&[&[7; 100]]);
            pair.a
                .port
                .post_send(pair.a_id, &mut list, SendOptions::default())
                .expect("room");
            let list = pair.a.gather(&[&[0; 64]]);
            let read = pair.a.port.post_read(pair.a_id, list, from, WorkId(number));
            let refused = read.map_err(|(error, _)| error);
            let expected = if is_iwarp() {
                Err(PostError::Unsupported)
            } else {
                Ok(())
            };
            assert_eq!(refused, expected);
        }
        pair.a.port.flush_sends();
        let Pair { a, b, .. } = pair;
        if first == 0 {
            drop(a);
            drop(b);
        } else {
            drop(b);
            drop(a);
        }
    }
    assert_eq!(objects_leaked(), leaked, "the device took everything back");
}
