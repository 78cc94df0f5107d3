//! How queue pairs end, and that everything comes back.

use super::{Pair, pattern};
use rpcrdma_fabric::interface::{
    CompletionKind, Port as _, PostError, SendOptions, Status, WorkId,
};
use rpcrdma_fabric::verbs::objects_leaked;

/// Sends that nobody receives, signalled and not, staged and posted: all come back, once.
#[test]
fn everything_outstanding_is_flushed() {
    let mut pair = Pair::new();
    let available = pair.a.pool.available();
    let leaked = objects_leaked();
    // More than there are Receives, so that some are outstanding for sure.
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

/// A queue pair that is destroyed before its end gives everything back all the same, and its
/// name is used again with another generation.
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
        // What arrived before is in Receives that must be posted again.
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
