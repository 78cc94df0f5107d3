//! Receives: the shared queue, receiver-not-ready, messages that do not fit.

use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{CompletionKind, ReceiveQueueAttributes, SetupError, Status};

use super::super::harness::Harness;
use super::super::world::{
    CLIENT, LARGE_BYTES, RECEIVE_SEGMENTS, SERVER, SMALL_BYTES, World, pattern,
};

/// One queue feeds all queue pairs, and each message names the one it came by.
pub(in super::super) fn shared_receive_queue_serves_many_queue_pairs<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    let links: Vec<_> = (0..8).map(|_| world.connect()).collect();
    world.server().post_receives(16, &RECEIVE_SEGMENTS);
    assert_eq!(world.server().posted(), 16);
    for round in 0..4_u64 {
        for (link, index) in links.iter().zip(0_u64..) {
            let data = pattern(round * 100 + index, 500);
            world.send(CLIENT, *link, &data);
        }
        let mut missing: Vec<_> = links.iter().zip(0_u64..).collect();
        while !missing.is_empty() {
            let arrival = world.arrival(SERVER);
            let position = missing
                .iter()
                .position(|(link, _)| link.queue_pairs[SERVER] == arrival.queue_pair)
                .expect("one message for each queue pair");
            let (_, index) = missing.remove(position);
            assert_eq!(arrival.data, pattern(round * 100 + index, 500));
        }
        assert_eq!(world.server().posted(), 8);
        world.server().repost();
        assert_eq!(world.server().posted(), 16);
    }
    world.finish();
}

/// First posted, first used: the sizes of the Receives tell them apart.
pub(in super::super) fn receives_are_used_in_the_order_they_were_posted<H: Harness>(harness: H) {
    let (mut world, link) = World::connected(harness);
    let server = world.server();
    server.post_receives(1, &[SMALL_BYTES]);
    server.post_receives(1, &[LARGE_BYTES]);
    server.post_receives(1, &[SMALL_BYTES]);
    for bytes in [SMALL_BYTES, LARGE_BYTES, SMALL_BYTES] {
        let data = pattern(1, bytes);
        world.send(CLIENT, link, &data);
        assert_eq!(world.arrival(SERVER).data, data);
    }
    world.finish();
}

/// A Send that meets no Receive waits for one; nothing is lost, nothing overtakes.
pub(in super::super) fn receiver_not_ready_stalls_then_delivers<H: Harness>(harness: H) {
    let (mut world, link) = World::connected(harness);
    let messages: Vec<_> = (0..5_u64).map(|seed| pattern(seed, 2000)).collect();
    let mut last = None;
    for data in &messages {
        last = Some(world.send_signalled(link, &[data]));
    }
    world.idle();
    assert_eq!(
        world.client().untaken().count(),
        0,
        "a Send that no Receive took is not done"
    );
    assert_eq!(world.server().untaken().count(), 0);
    for data in &messages {
        world.server().post_receives(1, &RECEIVE_SEGMENTS);
        assert_eq!(world.arrival(SERVER).data, *data);
    }
    let last = last.expect("five messages");
    assert_eq!(world.finished(CLIENT, last).0, Status::Success);
    world.finish();
}

/// A message longer than its Receive fails at both ends, and both queue pairs are in error.
pub(in super::super) fn message_longer_than_receive<H: Harness>(harness: H) {
    let (mut world, link) = World::connected(harness);
    world.server().post_receives(2, &[SMALL_BYTES]);
    let data = pattern(1, SMALL_BYTES + 1);
    let work = world.send_signalled(link, &[&data]);
    let arrival = world.arrival(SERVER);
    assert_eq!(arrival.status, Status::LocalLength);
    assert_eq!(arrival.queue_pair, link.queue_pairs[SERVER]);
    let (status, _) = world.finished(CLIENT, work);
    assert!(
        matches!(status, Status::RemoteOperation | Status::RemoteAccess)
            || World::<H>::may_leave_so(status),
        "{status:?}"
    );
    world.both_ended(link);
    if !world.server().has_own_queues() {
        assert_eq!(world.server().posted(), 1, "one Receive met the message");
    }
    world.finish();
}

/// Another connection on the same core does not notice.
pub(in super::super) fn a_failed_receive_harms_no_other_connection<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    let bad = world.connect();
    let good = world.connect();
    world.server().post_receives(4, &[SMALL_BYTES]);
    world.client().post_receives(4, &[SMALL_BYTES]);
    let long = pattern(1, LARGE_BYTES);
    let work = world.send_signalled(bad, &[&long]);
    let short = pattern(2, 200);
    world.send(CLIENT, good, &short);
    let (status, _) = world.finished(CLIENT, work);
    assert!(status != Status::Success || H::extras().done_when_sent);
    let mut arrivals = [world.arrival(SERVER), world.arrival(SERVER)];
    arrivals.sort_by_key(|arrival| arrival.status != Status::Success);
    assert_eq!(arrivals[0].queue_pair, good.queue_pairs[SERVER]);
    assert_eq!(arrivals[0].data, short);
    assert_eq!(arrivals[1].queue_pair, bad.queue_pairs[SERVER]);
    assert_eq!(arrivals[1].status, Status::LocalLength);
    world.server().repost();
    world.works(good);
    world.finish();
}

/// The data of a message is kept while its Receive, with a fresh buffer, is posted again.
pub(in super::super) fn a_segment_is_kept_and_replaced<H: Harness>(harness: H) {
    let (mut world, link) = World::connected(harness);
    world.server().post_receives(1, &RECEIVE_SEGMENTS);
    let first = pattern(1, SMALL_BYTES + 3000);
    world.send(CLIENT, link, &first);
    assert_eq!(world.arrival(SERVER).data, first);

    let server = world.server();
    let mut receive = server.idle_receives.pop().expect("the Receive came back");
    let small = server.buffer(SMALL_BYTES);
    let small = server
        .port
        .replace_segment(&mut receive, 1, small)
        .expect_err("a smaller buffer is refused");
    let small = server
        .port
        .replace_segment(&mut receive, 2, small)
        .expect_err("there is no such segment");
    server.give(small);
    let fresh = server.buffer(LARGE_BYTES);
    let kept = server
        .port
        .replace_segment(&mut receive, 1, fresh)
        .expect("a buffer of the same size");
    server.port.post_receive(receive);
    server.port.flush_receives();

    let second = pattern(2, SMALL_BYTES + 4000);
    world.send(CLIENT, link, &second);
    assert_eq!(world.arrival(SERVER).data, second);
    let server = world.server();
    assert!(
        server.port.memory().bytes(&kept)[..3000] == first[SMALL_BYTES as usize..],
        "the kept segment has changed"
    );
    server.give(kept);
    world.finish();
}

/// Making more Receives than the queue holds, or with more segments than it takes, is an error.
pub(in super::super) fn a_receive_queue_takes_no_more_than_it_holds<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    let server = world.server();
    let limits = server.port.attributes().clone();
    let queue = server
        .port
        .create_receive_queue(ReceiveQueueAttributes {
            depth: 2,
            segments_max: 2,
        })
        .expect("a small receive queue");
    let mut made = Vec::new();
    for _ in 0..2 * H::RAILS {
        let buffers = [server.buffer(64), server.buffer(64)];
        made.push(
            server
                .port
                .create_receive(queue, &mut buffers.into_iter())
                .expect("within the limits"),
        );
    }
    let mut third = vec![server.buffer(64)].into_iter();
    assert!(matches!(
        server.port.create_receive(queue, &mut third),
        Err(SetupError::Limit { .. })
    ));
    assert_eq!(server.port.receives_posted(queue), 0);
    for receive in made {
        assert_eq!(receive.queue(), queue);
        server.port.post_receive(receive);
    }
    server.port.flush_receives();
    // Without shared receive queues it is a queue pair that has them count.
    let counted = if limits.shared_receive_queue { 2 } else { 0 };
    assert_eq!(server.port.receives_posted(queue), counted);
    for (depth, segments_max) in [
        (limits.receive_queue_depth_max.saturating_add(1), 1),
        (1, limits.receive_segments_max.saturating_add(1)),
    ] {
        let attributes = ReceiveQueueAttributes {
            depth,
            segments_max,
        };
        assert!(matches!(
            server.port.create_receive_queue(attributes),
            Err(SetupError::Limit { .. })
        ));
    }
    // These Receives stay in the port: the reckoning at the end is about the other queue, and
    // buffers that a port keeps are not lost.
}

/// A staged Receive does not count before the flush, and counts at once after it.
pub(in super::super) fn receives_count_when_they_are_flushed<H: Harness>(harness: H) {
    let (mut world, link) = World::connected(harness);
    let server = world.server();
    let receives = [
        server.make_receive(&RECEIVE_SEGMENTS),
        server.make_receive(&RECEIVE_SEGMENTS),
    ];
    for receive in receives {
        server.port.post_receive(receive);
    }
    assert_eq!(server.posted(), 0, "staged, not posted");
    server.port.flush_receives();
    assert_eq!(server.posted(), 2);
    world.send_copied(CLIENT, link, &[5; 40]);
    let completion = world.completion(SERVER, "the message", |_| true);
    assert!(matches!(completion.kind, CompletionKind::Receive { .. }));
    assert_eq!(world.server().posted(), 1);
    world.server().arrival(completion);
    world.finish();
}

/// A Receive of another port names one that is posted here: nothing of it can be read or changed, it
/// is not posted, and it comes back.
pub(in super::super) fn a_receive_of_another_port_is_refused<H: Harness>(harness: H) {
    let (mut world, link) = World::connected(harness);
    world.client().post_receives(1, &RECEIVE_SEGMENTS);
    let mut receive = world.server().make_receive(&RECEIVE_SEGMENTS);
    let client = world.client();
    assert_eq!(receive.queue(), client.queue, "the same name in both ports");
    assert!(client.port.received(&receive).is_empty());
    for index in 0..RECEIVE_SEGMENTS.len() {
        assert_eq!(client.port.received_segment(&receive, index), None);
    }
    let fresh = client.buffer(LARGE_BYTES);
    let fresh = client
        .port
        .replace_segment(&mut receive, 1, fresh)
        .expect_err("the segment of another port's Receive");
    client.give(fresh);
    let receive = client
        .port
        .post_receive(receive)
        .expect("the Receive of another port comes back");
    client.port.flush_receives();
    assert_eq!(client.posted(), 1);

    // Nothing was lost: at its own port it takes a message, as the client's takes one.
    let server = world.server();
    assert!(!server.port.received(&receive).is_empty());
    let refused = server.port.post_receive(receive);
    assert!(refused.is_none(), "it is of this port");
    server.port.flush_receives();
    world.works(link);
    world.finish();
}
