//! The end of a connection: what is outstanding completes once, and both sides learn of it.

use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{
    Completion, CompletionKind, Manager, PostError, RemoteAddress, RemoteKey, SendOptions, Status,
};
use rpcrdma_testkit::Wait;

use super::super::harness::{Harness, PortOptions};
use super::super::world::{
    CLIENT, HUGE_BYTES, LARGE_BYTES, READ, RECEIVE_SEGMENTS, SERVER, Side, WRITE, World, pattern,
    signalled,
};

/// Whoever closes gets everything back without the peer's help: the peer may be stopped.
pub(in super::super) fn flush_on_disconnect<H: Harness>(harness: H) {
    let (mut world, link) = World::connected(harness);
    // No Receive is posted, so nothing can be acknowledged.
    let messages: Vec<_> = [100_u32, 5000, LARGE_BYTES, 10]
        .iter()
        .map(|bytes| pattern(1, *bytes))
        .collect();
    let works: Vec<_> = messages
        .iter()
        .map(|data| world.send_signalled(link, &[data]))
        .collect();
    world.idle();
    world.client().port.disconnect(link.queue_pairs[CLIENT]);
    let mut flushed = Vec::new();
    let wait = Wait::begin("the end without the peer");
    while !world.client().ended.contains(&link.queue_pairs[CLIENT]) {
        wait.look(|| format!("{flushed:?}"));
        world.turn_of(CLIENT);
        while let Some(completion) = world.client().take_completion(|_| true) {
            match completion.kind {
                CompletionKind::Send(work) => {
                    assert_eq!(completion.status, Status::Flushed);
                    flushed.push(work);
                }
                CompletionKind::Disconnected => {}
                other => panic!("{other:?} where Sends are flushed"),
            }
        }
    }
    assert_eq!(flushed, works, "flushed in the order of the posts");

    // The buffers are ours again, and the peer must not look into them any more.
    world.client().scribble();
    // What the peer still takes from the connection is whole and in order, without a gap.
    world.server().post_receives(8, &RECEIVE_SEGMENTS);
    world.ended(SERVER, link);
    let arrived = arrivals(world.server());
    assert!(
        messages.starts_with(&arrived),
        "{} messages arrived, and not the first ones",
        arrived.len()
    );
    world.finish();
}

/// The sender takes its memory back while the peer is in the middle of it: neither the message
/// nor anything behind it arrives, and nobody acts on a Write that is half done.
pub(in super::super) fn flush_in_the_middle_of_a_transfer<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    world.server().post_receives(2, &[HUGE_BYTES]);
    for writing in [false, true] {
        let link = world.connect();
        let queue_pair = link.queue_pairs[CLIENT];
        let data = pattern(1, HUGE_BYTES);
        if writing {
            let window = world.expose(link, &vec![0; data.len()], WRITE);
            world.client().write(queue_pair, &[&data], window.remote());
        } else {
            world.client().send_signalled(queue_pair, &[&data]);
        }
        world
            .client()
            .send_copied(queue_pair, b"behind", SendOptions::default())
            .expect("there is room for a small Send");
        world.turn_of(CLIENT);
        for _ in 0..3 {
            world.turn_of(SERVER);
        }
        world.client().port.disconnect(queue_pair);
        let wait = Wait::begin("the end without the peer");
        while !world.client().ended.contains(&queue_pair) {
            wait.look(String::new);
            world.turn_of(CLIENT);
        }
        world.client().scribble();
        world.ended(SERVER, link);
        let arrived = arrivals(world.server());
        // A provider whose device moves the bytes may have been faster than the end.
        let sent = [data.clone(), b"behind".to_vec()];
        let sent = &sent[usize::from(writing)..];
        assert!(sent.starts_with(&arrived), "a gap, or nonsense, arrived");
        world.server().keep_returned = true;
        world.close(link);
        world.until("the buffer of the window", |world| {
            (!writing || !world.server().returned.is_empty()).then_some(())
        });
        let server = world.server();
        if let Some(buffer) = server.returned.pop() {
            let written = server.port.memory().bytes(&buffer)[..data.len()] == data;
            assert!(
                written || arrived.is_empty(),
                "the message behind a Write arrived, the Write did not"
            );
            server.give(buffer);
        }
        server.keep_returned = false;
        server.repost();
    }
    world.finish();
}

/// The messages that came and were not taken; what failed does not count.
fn arrivals<H: Harness>(side: &mut Side<H>) -> Vec<Vec<u8>> {
    let is_receive =
        |completion: &Completion| matches!(completion.kind, CompletionKind::Receive { .. });
    let mut arrived = Vec::new();
    while let Some(completion) = side.take_completion(is_receive) {
        let arrival = side.arrival(completion);
        if arrival.status == Status::Success {
            arrived.push(arrival.data);
        }
    }
    arrived
}

/// With work of every kind under way on both sides, each piece completes once, then comes
/// `Disconnected` (the suite's bookkeeping refuses anything else), wherever the end falls.
pub(in super::super) fn disconnect_completes_everything_once<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    world.post_receives(8, &[LARGE_BYTES]);
    for turns in 0..16 {
        let link = world.connect();
        for who in [CLIENT, SERVER] {
            for bytes in [64_u32, 3000, 50_000, 700] {
                let data = pattern(turns, bytes);
                world.sides[who].send_signalled(link.queue_pairs[who], &[&data]);
            }
        }
        for _ in 0..turns {
            world.turn_of(SERVER);
            world.turn_of(CLIENT);
        }
        let closing = if turns % 2 == 0 { CLIENT } else { SERVER };
        world.sides[closing]
            .port
            .disconnect(link.queue_pairs[closing]);
        world.both_ended(link);
        world.close(link);
        for side in &mut world.sides {
            side.take_everything();
            side.repost();
        }
    }
    world.finish();
}

/// One side's port closes; the other learns of it, and what it had under way is flushed.
pub(in super::super) fn peer_disconnect_seen<H: Harness>(harness: H) {
    let (mut world, link) = World::connected(harness);
    let work = world.send_signalled(link, &[&[1; 5000]]);
    world.idle();
    world.server().port.disconnect(link.queue_pairs[SERVER]);
    let (status, _) = world.finished(CLIENT, work);
    assert!(
        matches!(
            status,
            Status::Flushed | Status::RetryExceeded | Status::RemoteOperation
        ),
        "{status:?}"
    );
    world.ended(CLIENT, link);
    world.finish();
}

/// A probe succeeds while the peer is there, before and after messages, and the peer notices nothing; or the port has
/// no probes.
pub(in super::super) fn a_probe_disturbs_no_peer_that_is_there<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    for _ in 0..2 {
        for who in [CLIENT, SERVER] {
            let queue_pair = link.queue_pairs[who];
            let work = world.sides[who].name_work(queue_pair);
            match world.sides[who].port.probe(queue_pair, work) {
                Ok(()) => assert_eq!(world.finished(who, work).0, Status::Success),
                Err(error) => {
                    assert_eq!(error, PostError::Unsupported);
                    world.sides[who].forget_work(work);
                }
            }
        }
        world.idle();
        for side in &mut world.sides {
            assert_eq!(side.untaken().count(), 0);
        }
        world.works(link);
    }
    world.finish();
}

/// The end is seen although a message waits for a Receive that never comes.
pub(in super::super) fn peer_end_seen_without_receives<H: Harness>(harness: H) {
    let (mut world, link) = World::connected(harness);
    for bytes in [100_u32, 5000] {
        let data = pattern(1, bytes);
        world.send(CLIENT, link, &data);
    }
    world.idle();
    world.client().port.disconnect(link.queue_pairs[CLIENT]);
    world.ended(CLIENT, link);
    world.client().manager.disconnect(link.connections[CLIENT]);
    world.ended(SERVER, link);
    world.finish();
}

/// One side's manager ends the connection, as the death of its process would; the other side's
/// manager reports it, and its queue pair ends.
pub(in super::super) fn manager_disconnect_seen<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    world.works(link);
    world.server().manager.disconnect(link.connections[SERVER]);
    world.until("the manager's report", |world| {
        world
            .client()
            .disconnected
            .contains(&link.connections[CLIENT])
            .then_some(())
    });
    world.ended(CLIENT, link);
    world.finish();
}

/// After the end nothing is posted, and the caller keeps its buffers.
pub(in super::super) fn post_after_error_refused<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    world.server().port.disconnect(link.queue_pairs[SERVER]);
    for who in [CLIENT, SERVER] {
        world.ended(who, link);
        let queue_pair = link.queue_pairs[who];
        let side = &mut world.sides[who];
        let work = side.name_work(queue_pair);
        assert_eq!(
            side.send(queue_pair, &[&[1; 100]], signalled(work)),
            Err(PostError::NotConnected)
        );
        assert_eq!(
            side.send_copied(queue_pair, &[1; 10], signalled(work)),
            Err(PostError::NotConnected)
        );
        side.forget_work(work);
    }
    world.finish();
}

/// A name that is used no more names nothing, even when its index is used again.
pub(in super::super) fn a_destroyed_queue_pair_is_unknown<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    let old = world.connect();
    world.close(old);
    for _ in 0..4 {
        let link = world.connect();
        for who in [CLIENT, SERVER] {
            assert_ne!(old.queue_pairs[who], link.queue_pairs[who]);
            let side = &mut world.sides[who];
            assert_eq!(
                side.send(old.queue_pairs[who], &[&[1; 100]], SendOptions::default()),
                Err(PostError::UnknownQueuePair)
            );
            // Both are without effect on whoever has the index now.
            side.port.disconnect(old.queue_pairs[who]);
            side.port.destroy_queue_pair(old.queue_pairs[who]);
            side.post_receives(2, &RECEIVE_SEGMENTS);
        }
        world.works(link);
        world.close(link);
    }
    world.finish();
}

/// What was sent to a queue pair that is gone does not reach the one that has its index now.
pub(in super::super) fn late_message_of_an_old_connection_is_dropped<H: Harness>(harness: H) {
    let options = |queue_pairs| PortOptions {
        queue_pairs,
        ..PortOptions::default()
    };
    let mut world = World::with_each(harness, [options(3), options(2)]);
    // What joins the two cores stays, because another connection uses it.
    let other = world.connect();
    let old = world.connect();
    world.stopped[CLIENT] = true;
    world.leave(SERVER, old);
    let late = pattern(1, 200);
    let work = world.send_signalled(old, &[&late]);
    world.client().port.flush_sends();
    let new = world.connect();
    assert_eq!(
        new.queue_pairs[SERVER].index, old.queue_pairs[SERVER].index,
        "the index is used again"
    );
    world.post_receives(4, &RECEIVE_SEGMENTS);
    world.idle();
    assert_eq!(world.server().untaken().count(), 1, "the old Disconnected");
    world.stopped[CLIENT] = false;
    assert_ne!(world.finished(CLIENT, work).0, Status::Success);
    world.ended(CLIENT, old);
    world.works(new);
    world.works(other);
    world.forget(old);
    world.leave(CLIENT, old);
    world.finish();
}

/// Work that stands behind a failed one is flushed, although it may have been done.
pub(in super::super) fn work_behind_a_failure_is_flushed<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let queue_pair = link.queue_pairs[CLIENT];
    let data = pattern(1, HUGE_BYTES);
    let window = world.expose(link, &data, READ);
    let good = window.remote();
    let wrong = RemoteAddress {
        key: RemoteKey(good.key.0 ^ 0x10),
        ..good
    };
    let client = world.client();
    let works = [
        // So long that the Sends may be done first.
        client.read(queue_pair, &[HUGE_BYTES], good),
        client.read(queue_pair, &[2000], wrong),
        client.send_signalled(queue_pair, &[&[1; 100]]),
        client.send_signalled(queue_pair, &[&[2; 3000]]),
        client.read(queue_pair, &[2000], good),
    ];
    // Whatever comes from the server may say that it has the Sends.
    for _ in 0..4 {
        world.turn();
        let server = world.server();
        let sent = server.send_copied(link.queue_pairs[SERVER], &[3; 16], SendOptions::default());
        // It may have seen the failure already.
        assert!(
            matches!(sent, Ok(()) | Err(PostError::NotConnected)),
            "{sent:?}"
        );
    }
    let statuses = works.map(|work| world.finished(CLIENT, work).0);
    assert_eq!(
        statuses,
        [
            Status::Success,
            Status::RemoteAccess,
            Status::Flushed,
            Status::Flushed,
            Status::Flushed
        ]
    );
    world.ended(CLIENT, link);
    world.finish();
}

/// The others on the same cores go on.
pub(in super::super) fn an_ended_connection_harms_no_other<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    let links: Vec<_> = (0..4).map(|_| world.connect()).collect();
    world.post_receives(16, &RECEIVE_SEGMENTS);
    for (index, ending) in links.iter().copied().enumerate() {
        for other in &links[index..] {
            world.works(*other);
        }
        world.send_signalled(ending, &[&[1; 2000]]);
        world.server().port.disconnect(ending.queue_pairs[SERVER]);
        for other in &links[index + 1..] {
            let data = pattern(index as u64, 3000);
            world.send(SERVER, *other, &data);
            world.expect(CLIENT, *other, &data);
        }
        for who in [CLIENT, SERVER] {
            world.ended(who, ending);
            world.sides[who].take_everything();
            world.sides[who].repost();
        }
    }
    world.finish();
}

/// Reads that are under way come back with their buffers.
pub(in super::super) fn reads_are_flushed<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let data = pattern(1, LARGE_BYTES);
    let window = world.expose(link, &data, READ);
    let depth = world.client().port.attributes().read_depth_max.min(4);
    let works: Vec<_> = (0..depth)
        .map(|_| world.read(link, &[LARGE_BYTES], window.remote()))
        .collect();
    world.client().port.disconnect(link.queue_pairs[CLIENT]);
    for work in works {
        let (status, read) = world.finished(CLIENT, work);
        match status {
            Status::Success => assert!(read == data),
            status => assert_eq!(status, Status::Flushed),
        }
    }
    world.ended(CLIENT, link);
    world.finish();
}
