//! The set delay and the faults on demand.

use std::time::Duration;

use rpcrdma_fabric::interface::Status;
use rpcrdma_fabric::interface::prelude::*;

use super::super::harness::{Fault, Harness, PortOptions};
use super::super::world::{
    CLIENT, Link, READ, RECEIVE_SEGMENTS, SERVER, World, pattern, signalled,
};

/// The longest that there is. A delay begins by the clock of the port, so the cases hold that of the harness from before
/// a post until nothing may come too early any more.
// TIME: the harness sets its clock forward by these; nothing takes so long.
const DELAY: Duration = Duration::from_secs(10);
const ALMOST: Duration = Duration::from_secs(4);
const REST: Duration = Duration::from_secs(6);

const WAYS: [(usize, usize); 2] = [(CLIENT, SERVER), (SERVER, CLIENT)];

fn delayed<H: Harness>(harness: H) -> World<H> {
    let options = PortOptions {
        delay: DELAY,
        ..PortOptions::default()
    };
    World::with(harness, options)
}

/// A Send arrives one delay after it was posted, in both directions, and not before.
pub(in super::super) fn set_delay_is_one_way<H: Harness>(harness: H) {
    let mut world = delayed(harness);
    let link = world.connect();
    world.post_receives(4, &RECEIVE_SEGMENTS);
    let data = [pattern(1, 40), pattern(2, 5000)];
    world.turn();
    world.harness.hold();
    for (from, _) in WAYS {
        for data in &data {
            world.send(from, link, data);
        }
    }
    world.idle();
    world.harness.pass(ALMOST);
    world.idle();
    for (_, to) in WAYS {
        assert_eq!(world.sides[to].untaken().count(), 0, "it came too early");
    }
    world.harness.release();
    world.harness.pass(REST);
    for (_, to) in WAYS {
        for data in &data {
            world.expect(to, link, data);
        }
    }
    world.harness.pass(DELAY);
    world.finish();
}

/// An RDMA Read goes there and back.
pub(in super::super) fn set_delay_is_paid_twice_by_a_read<H: Harness>(harness: H) {
    let mut world = delayed(harness);
    let link = world.connect();
    let data = pattern(1, 5000);
    let window = world.expose(link, &data, READ);
    world.turn();
    world.harness.hold();
    let work = world.read(link, &[5000], window.remote());
    for step in [DELAY, ALMOST] {
        world.idle();
        world.harness.pass(step);
        world.idle();
        assert_eq!(world.client().untaken().count(), 0, "it came too early");
    }
    world.harness.release();
    world.harness.pass(REST);
    assert_eq!(world.finished(CLIENT, work), (Status::Success, data));
    world.harness.pass(DELAY);
    world.finish();
}

/// Many under way at a time, in order: the delay is latency, not bandwidth.
pub(in super::super) fn set_delay_keeps_the_order<H: Harness>(harness: H) {
    let mut world = delayed(harness);
    let link = world.connect();
    world.server().post_receives(16, &RECEIVE_SEGMENTS);
    world.turn();
    world.harness.hold();
    for seed in 0..16 {
        world.send_copied(CLIENT, link, &pattern(seed, 64));
    }
    world.idle();
    assert_eq!(world.server().untaken().count(), 0);
    world.harness.release();
    world.harness.pass(DELAY);
    for seed in 0..16 {
        world.expect(SERVER, link, &pattern(seed, 64));
    }
    world.harness.pass(DELAY);
    world.finish();
}

fn inject<H: Harness>(world: &mut World<H>, who: usize, link: Link, fault: Fault) {
    let port_event = world
        .harness
        .fault(link.queue_pairs[who], fault)
        .expect("the case needs faults");
    world.sides[who].port.handle_event(port_event);
}

/// A connection that is dropped ends on both sides, and its neighbour goes on.
pub(in super::super) fn a_dropped_connection_ends_both_sides<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    let other = world.connect();
    world.post_receives(8, &RECEIVE_SEGMENTS);
    for dropping in [CLIENT, SERVER] {
        let link = world.connect();
        world.works(link);
        inject(&mut world, dropping, link, Fault::DropConnection);
        world.both_ended(link);
        world.works(other);
    }
    world.finish();
}

/// The next work request ends as ordered, and with it the connection.
pub(in super::super) fn a_work_request_fails_on_demand<H: Harness>(harness: H) {
    let mut world = World::new(harness);
    world.post_receives(4, &RECEIVE_SEGMENTS);
    for status in [
        Status::RemoteAccess,
        Status::RetryExceeded,
        Status::Injected,
    ] {
        for registered in [false, true] {
            let link = world.connect();
            world.works(link);
            inject(&mut world, CLIENT, link, Fault::FailNextWork(status));
            let client = world.client();
            let work = client.name_work(link.queue_pairs[CLIENT]);
            if registered {
                client.send(link.queue_pairs[CLIENT], &[&[1; 3000]], signalled(work))
            } else {
                client.send_copied(link.queue_pairs[CLIENT], &[1; 30], signalled(work))
            }
            .expect("the work request is posted and then fails");
            assert_eq!(world.finished(CLIENT, work).0, status);
            world.ended(CLIENT, link);
            world.close(link);
        }
    }
    world.finish();
}

/// While the receiver is not ready nothing arrives, and afterwards everything does.
pub(in super::super) fn receiver_not_ready_on_demand<H: Harness>(harness: H) {
    let (mut world, link) = World::joined(harness);
    let polls = 50;
    inject(&mut world, SERVER, link, Fault::ReceiverNotReady { polls });
    let data = pattern(1, 900);
    world.send(CLIENT, link, &data);
    world.turn_of(CLIENT);
    for poll in 1..polls {
        assert_eq!(world.turn_of(SERVER), 0, "poll {poll} of {polls}");
        world.turn_of(CLIENT);
    }
    world.expect(SERVER, link, &data);
    world.works(link);
    world.finish();
}
