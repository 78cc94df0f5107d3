//! Ports that report no shared receive queues.

use super::*;
use crate::interface::SetupError;
use crate::interface::prelude::*;

fn own_queues(config: &mut PortConfig) {
    config.own_receive_queues = true;
}

#[test]
fn a_queue_of_its_own_serves_one_queue_pair_at_a_time() {
    let (mut a, mut b) = (End::new(0, own_queues), End::new(1, own_queues));
    assert!(!a.port.attributes().shared_receive_queue);
    assert_eq!(b.posted(), 0, "nobody takes them yet");
    let joint = Joint::new(&a.port, &a.handle, &b.port, &b.handle).unwrap();
    (a.id, b.id) = connect(&mut a, &mut b, &joint);
    assert_eq!(b.posted(), DEPTH);

    let free = b.handle.numbers.len();
    let (_, second) = joint.prepared_pair(&a.handle, &b.handle).unwrap();
    let refused = b.port.adopt_queue_pair(second, b.queue).unwrap_err();
    assert!(matches!(&refused, SetupError::Peer { what } if what.contains("serves a queue pair")));
    assert_eq!(b.handle.numbers.len(), free, "its number is free again");

    a.send(&pattern(1, 700), signalled(1)).unwrap();
    let received = What::Received(pattern(1, 700), None);
    assert_eq!(told(b.settle()), [(Status::Success, received)]);
}

#[test]
fn receives_are_flushed_and_wait_for_the_next_queue_pair() {
    let (mut a, mut b) = (End::new(0, own_queues), End::new(1, own_queues));
    let joint = Joint::new(&a.port, &a.handle, &b.port, &b.handle).unwrap();
    for round in 0..20 {
        (a.id, b.id) = connect(&mut a, &mut b, &joint);
        assert_eq!((a.posted(), b.posted()), (DEPTH, DEPTH));
        a.send(&pattern(round, 300), SendOptions::default())
            .unwrap();
        a.settle();
        // The connection ends when half of a long message has arrived.
        if round % 2 == 1 {
            a.send_list(&[&pattern(round, 60_000)], SendOptions::default())
                .unwrap();
        }
        let mut events = b.poll();
        a.port.disconnect(a.id);
        b.port.disconnect(b.id);
        events.extend(b.settle());
        let ended = events.pop().unwrap();
        assert_eq!((ended.id, ended.what), (b.id, What::Disconnected));
        let flushed = events.iter().filter(|it| it.status == Status::Flushed);
        let flushed = u32::try_from(flushed.count()).unwrap();
        let arrived = u32::try_from(events.len()).unwrap() - flushed;
        // The Receives of arrived messages were posted again before or after the end.
        assert!(flushed + arrived >= DEPTH && flushed <= DEPTH, "{flushed}");
        assert_eq!(b.posted(), 0, "the queue pair takes nothing any more");
        a.settle();
        a.port.destroy_queue_pair(a.id);
        b.port.destroy_queue_pair(b.id);
        a.reclaim();
    }
}

/// If a queue pair is destroyed before its end, its Receives stay in the queue.
#[test]
fn receives_of_a_queue_pair_that_did_not_end_are_kept() {
    let (mut a, mut b) = (End::new(0, own_queues), End::new(1, own_queues));
    let joint = Joint::new(&a.port, &a.handle, &b.port, &b.handle).unwrap();
    for _ in 0..4 {
        (a.id, b.id) = connect(&mut a, &mut b, &joint);
        assert_eq!(b.posted(), DEPTH);
        b.port.destroy_queue_pair(b.id);
        a.settle();
        a.port.disconnect(a.id);
        a.settle();
        a.port.destroy_queue_pair(a.id);
    }
}
