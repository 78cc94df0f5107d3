//! Tests of memory windows, and of registration for a call on devices without windows.

use super::{Pair, pattern, skips};
use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{
    Access, CompletionKind, PostError, RemoteAddress, SendOptions, Status, WorkId,
};
use rpcrdma_fabric::verbs::WithoutWindows;

const WRITE: Access = Access {
    remote_read: false,
    remote_write: true,
};

fn expose(pair: &mut Pair, data: &[u8]) -> rpcrdma_fabric::interface::Window {
    let bytes = u32::try_from(data.len()).expect("few bytes");
    let buffer = pair.b.buffer_with(data);
    let window = pair.b.port.bind_window(pair.b_id, buffer, bytes, WRITE);
    pair.b.port.flush_sends();
    window.expect("a window")
}

fn write(pair: &mut Pair, data: &[u8], to: RemoteAddress, work: u64) -> Status {
    let mut list = pair.a.gather(&[data]);
    pair.a
        .port
        .post_write(pair.a_id, &mut list, to, Some(WorkId(work)))
        .expect("room");
    pair.finished(WorkId(work)).0
}

/// Bind, write and invalidate many times: every binding has another key.
#[test]
fn a_window_is_bound_again_and_again() {
    let mut pair = Pair::with(|config| config.windows_max = 2);
    let mut keys = std::collections::HashSet::new();
    for round in 0..100 {
        let window = expose(&mut pair, &[0; 64]);
        keys.insert(window.remote().key);
        let data = pattern(7, 64);
        assert_eq!(
            write(&mut pair, &data, window.remote(), round),
            Status::Success
        );
        let work = WorkId(1000 + round);
        pair.b
            .port
            .invalidate_window(window, work)
            .expect("it is bound");
        pair.until("the invalidation", |pair| {
            super::take_work(&mut pair.b, work).map(|(status, _)| {
                assert_eq!(status, Status::Success);
            })
        });
    }
    assert_eq!(keys.len(), 100, "a key was used twice");
}

/// A window that the peer has invalidated is closed without a work request, and cannot be invalidated again.
#[test]
fn the_peer_invalidates_once() {
    if skips("the_peer_invalidates_once") {
        return;
    }
    let mut pair = Pair::new();
    for _ in 0..20 {
        let window = expose(&mut pair, &[5; 64]);
        let key = window.remote().key;
        let buffer = pair.a.buffer_with(&[1; 8]);
        let options = SendOptions {
            signalled: None,
            invalidate: Some(key),
        };
        pair.a
            .port
            .post_send_copied(pair.a_id, &buffer, 8, options)
            .expect("room");
        pair.a.pool.give(buffer);
        assert_eq!(pair.arrival(), (Status::Success, vec![1; 8], Some(key)));
        let (error, window) = pair
            .b
            .port
            .invalidate_window(window, WorkId(9))
            .expect_err("it is invalidated already");
        assert_eq!(error, PostError::NoWindow);
        let buffer = pair.b.port.close_window(window).expect("it is not bound");
        assert_eq!(pair.b.port.memory().bytes(&buffer)[..64], [5; 64]);
        pair.b.pool.give(buffer);
    }
}

/// A key works only on the queue pair of its window, although all share a protection domain.
#[test]
fn a_key_of_another_queue_pair_is_refused() {
    if skips("a_key_of_another_queue_pair_is_refused") {
        return;
    }
    let mut pair = Pair::new();
    let queues = (pair.a.queue, pair.b.queue);
    let (other_a, other_b) = super::join(
        &mut pair.a.port,
        &pair.a.handle,
        &mut pair.b.port,
        &pair.b.handle,
        queues,
    )
    .expect("another queue pair");
    let window = expose(&mut pair, &[0; 64]);
    let good = (pair.a_id, pair.b_id);
    (pair.a_id, pair.b_id) = (other_a, other_b);
    assert_eq!(
        write(&mut pair, &[1; 64], window.remote(), 1),
        Status::RemoteAccess
    );
    (pair.a_id, pair.b_id) = good;
    assert_eq!(
        write(&mut pair, &[2; 64], window.remote(), 2),
        Status::Success
    );
}

/// On a device without windows, the memory is registered for the call, and the registration ends with the call.
#[test]
fn a_registration_stands_for_a_window() {
    let mut pair = Pair::with(|config| {
        config.without_windows = WithoutWindows::RegisterAnyway;
    });
    assert!(!pair.b.port.attributes().send_with_invalidate);
    let window = expose(&mut pair, &[0; 64]);
    let remote = window.remote();
    assert_eq!(write(&mut pair, &[3; 64], remote, 1), Status::Success);
    let available = pair.b.pool.available();
    pair.b
        .port
        .invalidate_window(window, WorkId(2))
        .expect("it is registered");
    pair.until("the end of the registration", |pair| {
        pair.b.completions.iter().find_map(|completion| {
            matches!(completion.kind, CompletionKind::Invalidated(WorkId(2), _)).then_some(())
        })
    });
    assert_eq!(pair.b.pool.available(), available + 1);
    let status = write(&mut pair, &[4; 64], remote, 3);
    pair.refused(status);
}

/// If memory is registered for calls and no receive queue is shared, each queue pair has its own protection domain.
/// All its work uses its own keys, and so does the work of the next queue pair in its place.
#[test]
fn queue_pairs_have_protection_domains_of_their_own() {
    let apart = |config: &mut rpcrdma_fabric::verbs::PortConfig| {
        config.own_receive_queues = true;
        config.without_windows = WithoutWindows::RegisterAnyway;
    };
    let mut pair = Pair::with(apart);
    for round in 0..3 {
        // Three lengths for three methods: inside the work request, from the memory for copies, and from the arena.
        for bytes in [40, 1000, 4000] {
            let data = pattern(round, bytes);
            if bytes <= 1000 {
                let buffer = pair.a.buffer_with(&data);
                let bytes = u32::try_from(bytes).expect("few");
                let options = SendOptions::default();
                let sent = pair
                    .a
                    .port
                    .post_send_copied(pair.a_id, &buffer, bytes, options);
                sent.expect("room");
                pair.a.pool.give(buffer);
            } else {
                let mut list = pair.a.gather(&[&data]);
                let options = SendOptions::default();
                let sent = pair.a.port.post_send(pair.a_id, &mut list, options);
                sent.expect("room");
            }
            assert_eq!(pair.arrival(), (Status::Success, data, None));
        }
        let window = expose(&mut pair, &[0; 64]);
        let data = pattern(9, 64);
        assert_eq!(write(&mut pair, &data, window.remote(), 1), Status::Success);
        if pair.a.port.attributes().read_depth_max != 0 {
            let buffer = pair.b.buffer_with(&data);
            let readable = Access {
                remote_read: true,
                remote_write: false,
            };
            let source = pair.b.port.bind_window(pair.b_id, buffer, 64, readable);
            let source = source.expect("a registration");
            let target = pair.a.gather(&[&[0; 64]]);
            pair.a
                .port
                .post_read(pair.a_id, target, source.remote(), WorkId(2))
                .expect("room");
            let (status, list) = pair.finished(WorkId(2));
            assert_eq!(status, Status::Success);
            let mut list = list.expect("it comes back");
            let (buffer, ..) = list.pop().expect("one segment");
            assert_eq!(pair.a.port.memory().bytes(&buffer)[..64], data);
            pair.a.pool.give(buffer);
        }
        // The next queue pair is adopted on the same receive queue, for which the Receives are posted again.
        pair.a.port.disconnect(pair.a_id);
        pair.b.port.disconnect(pair.b_id);
        pair.ended();
        pair.a.port.destroy_queue_pair(pair.a_id);
        pair.b.port.destroy_queue_pair(pair.b_id);
        for end in [&mut pair.a, &mut pair.b] {
            for completion in end.completions.drain(..) {
                if let CompletionKind::Receive { receive, .. } = completion.kind {
                    end.port.post_receive(receive);
                }
            }
        }
        let queues = (pair.a.queue, pair.b.queue);
        let (a, b) = (&mut pair.a, &mut pair.b);
        (pair.a_id, pair.b_id) =
            super::join(&mut a.port, &a.handle, &mut b.port, &b.handle, queues)
                .expect("another queue pair");
    }
}
