//! Memory windows: their keys, their invalidation, and their number.

use std::collections::HashSet;

use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{
    CompletionKind, PostError, RemoteKey, SendOptions, Status, Window,
};

use rpcrdma_fabric::memory::Views;

use super::super::harness::{Harness, PortOptions};
use super::super::world::{
    CLIENT, Link, READ, RECEIVE_SEGMENTS, SERVER, SMALL_BYTES, WRITE, World, pattern,
};

/// Sends a message that takes `key` away at the peer.
fn invalidating(key: RemoteKey) -> SendOptions {
    SendOptions {
        invalidate: Some(key),
        ..SendOptions::default()
    }
}

/// The peer takes the window away with its Send: the Receive says so, the key is dead, and the
/// buffer is back at once.
pub(in super::super) fn send_with_invalidate<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    for registered in [false, true] {
        let kept = pattern(1, 500);
        let window = world.expose(link, &kept, WRITE);
        let key = window.remote().key;
        let window = world
            .server()
            .port
            .close_window(window)
            .expect_err("a bound window is not closed");
        let data = pattern(2, 700);
        let client = world.client();
        if registered {
            client.send(link.queue_pairs[CLIENT], &[&data], invalidating(key))
        } else {
            client.send_copied(link.queue_pairs[CLIENT], &data[..40], invalidating(key))
        }
        .expect("a Send With Invalidate");
        let arrival = world.arrival(SERVER);
        assert_eq!(arrival.status, Status::Success);
        assert_eq!(arrival.data, data[..if registered { 700 } else { 40 }]);
        assert_eq!(arrival.invalidated, Some(key));
        let server = world.server();
        assert!(server.port.window_has_key(&window, key));
        let buffer = server
            .port
            .close_window(window)
            .expect("the peer has invalidated the window");
        server.repost();
        world.give_unchanged(SERVER, buffer, &kept);
    }
    // The key that went last is dead.
    let window = world.expose(link, &[1; 64], WRITE);
    let remote = window.remote();
    world
        .client()
        .send_copied(link.queue_pairs[CLIENT], &[], invalidating(remote.key))
        .expect("a Send With Invalidate");
    assert_eq!(world.arrival(SERVER).invalidated, Some(remote.key));
    let buffer = world
        .server()
        .port
        .close_window(window)
        .expect("the peer has invalidated the window");
    let work = world.write(link, &[&[9; 64]], remote);
    world.refused(CLIENT, link, work);
    world.give_unchanged(SERVER, buffer, &[1; 64]);
    world.finish();
}

/// Who may not use a key may not take it away either.
pub(in super::super) fn invalidate_foreign_key_fails<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    let owner = world.connect();
    let other = world.connect();
    world.server().post_receives(4, &[SMALL_BYTES]);
    let data = pattern(1, 300);
    let window = world.expose(owner, &data, READ);
    let client = world.client();
    let work = client.name_work(other.queue_pairs[CLIENT]);
    let options = SendOptions {
        signalled: Some(work),
        invalidate: Some(window.remote().key),
    };
    client
        .send_copied(other.queue_pairs[CLIENT], &[1; 32], options)
        .expect("the Send is posted");
    let (status, _) = world.finished(CLIENT, work);
    assert!(status != Status::Success || H::extras().invalidates_late);
    world.both_ended(other);
    let window = world
        .server()
        .port
        .close_window(window)
        .expect_err("the window is bound as before");
    world.reads(owner, &window, &data);
    world.finish();
}

/// A key that nobody gave out cannot be invalidated, and asking costs the connection.
pub(in super::super) fn invalidate_unknown_key_fails<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let client = world.client();
    let work = client.name_work(link.queue_pairs[CLIENT]);
    let options = SendOptions {
        signalled: Some(work),
        invalidate: Some(RemoteKey(0x1234_5678)),
    };
    client
        .send_copied(link.queue_pairs[CLIENT], &[1; 32], options)
        .expect("the Send is posted");
    let (status, _) = world.finished(CLIENT, work);
    assert!(status != Status::Success || H::extras().invalidates_late);
    world.both_ended(link);
    let good = world
        .server()
        .untaken()
        .filter(|completion| completion.status == Status::Success)
        .filter(|completion| matches!(completion.kind, CompletionKind::Receive { .. }))
        .count();
    assert_eq!(good, 0, "the message is not delivered");
    world.finish();
}

/// A local invalidation completes once, with the buffer, and leaves room for the next window.
pub(in super::super) fn local_invalidate_once<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let available = world.server().buffers_available();
    for seed in 0..300 {
        let data = pattern(seed, 100);
        let window = world.expose(link, &data, READ);
        let buffer = world.reclaim(SERVER, link, window);
        world.give_unchanged(SERVER, buffer, &data);
    }
    assert_eq!(world.server().buffers_available(), available);
    assert_eq!(world.server().untaken().count(), 0);
    world.works(link);
    world.finish();
}

/// Keys neither repeat nor follow each other, so that a peer cannot guess the next from the last.
pub(in super::super) fn keys_are_not_predictable<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let count = world.server().port.attributes().windows_max.min(64);
    let keys: Vec<u32> = (0..count)
        .map(|_| {
            let window = world.expose(link, &[0; 64], READ);
            window.remote().key.0
        })
        .collect();
    let distinct: HashSet<_> = keys.iter().collect();
    assert_eq!(distinct.len(), keys.len(), "two windows share a key");
    let steps: HashSet<u32> = keys
        .windows(2)
        .map(|pair| pair[1].wrapping_sub(pair[0]))
        .collect();
    assert!(
        steps.len() * 4 >= keys.len() * 3,
        "{} keys are only {} different steps apart: {keys:#x?}",
        keys.len(),
        steps.len()
    );
    world.finish();
}

/// When no window is free the buffer comes back with the reason, and a freed one serves.
pub(in super::super) fn windows_run_out_and_come_back<H: Harness>(harness: H) {
    let options = PortOptions {
        windows: 16,
        ..PortOptions::default()
    };
    let mut world = World::with(harness, options);
    let link = world.connect();
    let most = world.server().port.attributes().windows_max;
    assert!(most <= 200, "the harness honours the number of windows");
    let mut windows = Vec::new();
    for _ in 0..most {
        windows.push(world.expose(link, &[0; 64], READ));
    }
    let server = world.server();
    let buffer = server.buffer(64);
    let Err((error, buffer)) = server
        .port
        .bind_window(link.queue_pairs[SERVER], buffer, 64, READ)
    else {
        panic!("one window more than there are");
    };
    assert_eq!(error, PostError::NoWindow);
    server.give(buffer);
    let window = windows.pop().expect("windows are bound");
    world.take_back(SERVER, link, window);
    drop(world.expose(link, &[0; 64], READ));
    world.finish();
}

/// A window does not reach beyond its buffer, nor onto a queue pair that is not there.
pub(in super::super) fn a_window_longer_than_its_buffer_is_refused<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let foreign = world.client().buffer(64);
    let server = world.server();
    let buffer = server.buffer(SMALL_BYTES);
    let Err((error, buffer)) =
        server
            .port
            .bind_window(link.queue_pairs[SERVER], buffer, SMALL_BYTES + 1, READ)
    else {
        panic!("a window longer than its buffer");
    };
    assert_eq!(error, PostError::TooLong);
    let mut stranger = link.queue_pairs[SERVER];
    stranger.generation = stranger.generation.wrapping_add(1);
    let Err((error, buffer)) = server.port.bind_window(stranger, buffer, 64, READ) else {
        panic!("a window on a queue pair that is not there");
    };
    assert_eq!(error, PostError::UnknownQueuePair);
    server.give(buffer);
    let Err((error, foreign)) =
        server
            .port
            .bind_window(link.queue_pairs[SERVER], foreign, 64, READ)
    else {
        panic!("a window on another port's memory");
    };
    assert_eq!(error, PostError::ForeignMemory);
    world.client().give(foreign);
    world.finish();
}

/// Bytes that several holders read can be read by a peer, and not be written. The holders keep them.
pub(in super::super) fn a_view_is_exposed_to_be_read_alone<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let data = pattern(3, 500);
    let server = world.server();
    let buffer = server.buffer_with(&data);
    let shared = server.lease(buffer, 500).share();
    let mut views = Views::new(1, 0);
    // From anywhere in its buffer.
    let slice = shared.slice(3, 400).expect("it lies within");
    let view = views.show(slice).expect("a free view");
    let bound = server
        .port
        .bind_window(link.queue_pairs[SERVER], view, 400, WRITE);
    let Err((error, view)) = bound else {
        panic!("a view that a peer may write");
    };
    assert_eq!(error, PostError::ForeignMemory);
    let bound = server
        .port
        .bind_window(link.queue_pairs[SERVER], view, 400, READ);
    server.port.flush_sends();
    let window = bound.map_err(|(error, _)| error).expect("it may be read");
    world.reads(link, &window, &data[3..403]);
    let view = world.reclaim(SERVER, link, window);
    views.give(view);
    assert!(shared.is_alone() && *shared == *data);
    drop(shared);
    world.server().reclaim();
    world.finish();
}

/// Destroying a queue pair ends its windows: the buffers are back, and the keys are dead for a
/// queue pair that takes its place.
pub(in super::super) fn windows_end_with_their_queue_pair<H: Harness>(harness: H) {
    let (mut world, link) = World::connected(harness);
    let available = world.server().buffers_available();
    let windows: Vec<_> = (0..8)
        .map(|_| world.expose(link, &[7; 64], WRITE))
        .collect();
    world.close(link);
    world.until("the buffers of the windows", |world| {
        (world.server().buffers_available() == available).then_some(())
    });
    for window in windows {
        let next = world.connect();
        let work = world.write(next, &[&[1; 64]], window.remote());
        world.refused(CLIENT, next, work);
        world.close(next);
    }
    world.finish();
}

/// Two joined ports with one window each, so that a token of one names the window of the other, and
/// the two windows, bound.
fn with_one_window_each<H: Harness>(
    harness: H,
    data: &[Vec<u8>; 2],
) -> (World<H>, Link, [Window; 2]) {
    let options = PortOptions {
        windows: 1,
        ..PortOptions::default()
    };
    let mut world = World::with(harness, options);
    let link = world.connect();
    world.post_receives(2, &RECEIVE_SEGMENTS);
    let windows = [CLIENT, SERVER]
        .map(|who| world.sides[who].expose(link.queue_pairs[who], &data[who], READ));
    (world, link, windows)
}

/// Only the port that bound a window ends it.
pub(in super::super) fn a_window_of_another_port_is_refused<H: Harness>(harness: H) {
    let data = [pattern(1, 300), pattern(2, 300)];
    let (mut world, link, [kept, window]) = with_one_window_each(harness, &data);
    let key = window.remote().key;
    let client = world.client();
    assert!(!client.port.window_has_key(&window, key));
    let work = client.name_work(link.queue_pairs[CLIENT]);
    let Err((error, window)) = client.port.invalidate_window(window, work) else {
        panic!("the window of another port is invalidated");
    };
    assert_eq!(error, PostError::ForeignMemory);
    client.forget_work(work);
    let window = client
        .port
        .close_window(window)
        .expect_err("the window of another port");
    assert!(world.server().port.window_has_key(&window, key));
    for (who, window) in [(CLIENT, kept), (SERVER, window)] {
        let buffer = world.reclaim(who, link, window);
        world.give_unchanged(who, buffer, &data[who]);
    }
    world.works(link);
    world.finish();
}

/// Nor does another port give out the buffer of a window that its peer has invalidated.
pub(in super::super) fn an_ended_window_of_another_port_is_refused<H: Harness>(harness: H) {
    let data = [pattern(1, 300), pattern(2, 300)];
    let (mut world, link, windows) = with_one_window_each(harness, &data);
    for (from, to) in [(CLIENT, SERVER), (SERVER, CLIENT)] {
        let key = windows[to].remote().key;
        world.sides[from]
            .send_copied(link.queue_pairs[from], &[1; 32], invalidating(key))
            .expect("a Send With Invalidate");
        assert_eq!(world.arrival(to).invalidated, Some(key));
        world.sides[to].repost();
    }
    for ((own, other), window) in [(CLIENT, SERVER), (SERVER, CLIENT)]
        .into_iter()
        .zip(windows)
    {
        let window = world.sides[other]
            .port
            .close_window(window)
            .expect_err("the window of another port");
        let own_port = &mut world.sides[own].port;
        let buffer = own_port.close_window(window).expect("its peer ended it");
        world.give_unchanged(own, buffer, &data[own]);
    }
    world.finish();
}
