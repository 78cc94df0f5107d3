//! The end of queue pairs: the order of completions, and the return of buffers.

use super::*;
use crate::interface::PostError;
use crate::interface::prelude::*;
use crate::shm::{PortEvent, QueuePairNumber};

fn number(id: QueuePairId) -> QueuePairNumber {
    QueuePairNumber(id.index | id.generation << 16)
}

const FLUSHED: (Status, What) = (Status::Flushed, What::Disconnected);

#[test]
fn disconnecting_flushes_both_ends_in_order() {
    let (mut a, mut b) = pair();
    a.send(b"before", signalled(1)).unwrap();
    a.send_list(&[&[1; 3000]], signalled(2)).unwrap();
    a.send_list(&[&[2; 3000]], SendOptions::default()).unwrap();
    b.send(b"other way", signalled(3)).unwrap();
    a.port.disconnect(a.id);
    let expected = [
        (Status::Flushed, What::Sent(1)),
        (Status::Flushed, What::Sent(2)),
        FLUSHED,
    ];
    assert_eq!(told(a.settle()), expected);
    assert_eq!(a.reclaim(), 2);
    assert_eq!(
        a.port
            .post_send_copied(a.id, &a.large.take().unwrap(), 1, signalled(9)),
        Err(PostError::NotConnected)
    );
    // Messages that were copied before the end arrive. Revoked ones do not.
    let expected = [
        (Status::Success, What::Received(b"before".to_vec(), None)),
        (Status::Flushed, What::Sent(3)),
        FLUSHED,
    ];
    assert_eq!(told(b.settle()), expected);
    assert_eq!(b.posted(), DEPTH);
    assert_eq!(told(a.settle()), [], "told once");
}

/// The message is copied, or pulled from registered memory.
#[test]
fn a_message_longer_than_its_receive_ends_both_queue_pairs() {
    for copied in [true, false] {
        let (mut a, mut b) = pair();
        let attributes = ReceiveQueueAttributes {
            depth: 1,
            segments_max: 1,
        };
        let queue = b.port.create_receive_queue(attributes).unwrap();
        let tiny = PoolShape {
            buffers: 1,
            buffer_bytes: 16,
            stride_bytes: 16,
            align_bytes: 16,
        };
        let tiny = b.port.carve(tiny).unwrap().take();
        let receive = b.port.create_receive(queue, &mut tiny.into_iter()).unwrap();
        b.port.post_receive(receive);
        b.port.flush_receives();
        b.queue = queue;
        (a.id, b.id) = joined(&mut a, &mut b);
        if copied {
            a.send(&[1; 17], signalled(2)).unwrap();
        } else {
            a.send_list(&[&[1; 3000]], signalled(2)).unwrap();
        }
        let mut batch = CompletionBatch::new();
        b.port.poll(0, &mut batch);
        let first = batch.drain().next().unwrap();
        assert_eq!(first.status, Status::LocalLength);
        assert!(matches!(
            first.kind,
            CompletionKind::Receive { bytes: 0, .. }
        ));
        a.send(b"after", signalled(3)).unwrap();
        b.settle();
        let expected = [
            (Status::RemoteOperation, What::Sent(2)),
            (Status::Flushed, What::Sent(3)),
            FLUSHED,
        ];
        assert_eq!(told(a.settle()), expected);
    }
}

#[test]
fn an_acknowledgement_does_not_overtake_a_failure() {
    // The reverse ring is full, so the failure cannot be reported. Later records must not be acknowledged before it.
    let (mut a, mut b) = pair();
    while b.send(&[0; 100], SendOptions::default()).is_ok() {}
    a.send(b"good", signalled(1)).unwrap();
    let options = SendOptions {
        signalled: Some(WorkId(2)),
        invalidate: Some(crate::interface::RemoteKey(5)),
    };
    a.send(b"bad", options).unwrap();
    a.send(b"after", signalled(3)).unwrap();
    let events = told(b.settle());
    assert_eq!(
        events,
        [
            (Status::Success, What::Received(b"good".to_vec(), None)),
            FLUSHED
        ]
    );
    assert_eq!(b.counter("reports_delayed"), 1);
    // After `a` has drained the ring, the control line may acknowledge the records before the failure.
    let events = told(a.settle());
    let works: Vec<_> = events
        .into_iter()
        .filter(|(_, what)| !matches!(what, What::Received(..)))
        .collect();
    b.settle();
    let mut rest = works;
    rest.extend(told(a.settle()));
    let expected = [
        (Status::Success, What::Sent(1)),
        (Status::RemoteAccess, What::Sent(2)),
        (Status::Flushed, What::Sent(3)),
        FLUSHED,
    ];
    assert_eq!(rest, expected);
}

#[test]
fn acknowledgements_stop_at_each_of_several_failures_that_wait() {
    let (mut a, mut b, joint) = unjoined();
    let ids: Vec<_> = (0..4).map(|_| connect(&mut a, &mut b, &joint)).collect();
    b.id = ids[3].1;
    while b.send(&[0; 100], SendOptions::default()).is_ok() {}
    let invalidate = Some(crate::interface::RemoteKey(5));
    for (work, (id, invalidate)) in [(0, invalidate), (1, None), (2, invalidate)]
        .into_iter()
        .enumerate()
    {
        a.id = ids[id].0;
        let signalled = Some(WorkId(work as u64));
        let options = SendOptions {
            signalled,
            invalidate,
        };
        a.send(b"x", options).unwrap();
    }
    b.settle();
    // A report of another kind comes between the reports of failed records.
    b.port.disconnect(ids[3].1);
    b.settle();
    assert_eq!(b.counter("reports_delayed"), 3);
    let mut events = a.settle();
    b.settle();
    events.extend(a.settle());
    let status_of = |work| {
        let is_it = |event: &&Event| event.what == What::Sent(work);
        events.iter().find(is_it).map(|event| event.status)
    };
    let expected = [Status::RemoteAccess, Status::Success, Status::RemoteAccess];
    assert_eq!([0, 1, 2].map(status_of), expected.map(Some));
}

#[test]
fn a_message_that_is_being_pulled_is_dropped_when_its_sender_ends() {
    let (mut a, mut b) = pair_with(|config| config.copy_bytes_per_poll = 1000);
    a.send_list(&[&[1; 5000]], SendOptions::default()).unwrap();
    b.poll();
    assert_eq!(b.posted(), DEPTH - 1);
    a.port.disconnect(a.id);
    a.settle();
    assert_eq!(a.reclaim(), 1, "the memory is a's again while b reads it");
    assert_eq!(told(b.settle()), [FLUSHED]);
    assert_eq!(b.posted(), DEPTH);
}

#[test]
fn a_peer_that_is_gone_is_drained_then_flushed() {
    let (mut a, mut b) = pair();
    for number in 0..12_u8 {
        a.send(&[number], SendOptions::default()).unwrap();
    }
    b.send(b"x", signalled(1)).unwrap();
    b.port.handle_event(PortEvent::PeerGone {
        local: number(b.id),
    });
    let events = told(b.settle());
    assert_eq!(events.len(), 14);
    for (number, event) in events[..12].iter().enumerate() {
        let message = vec![u8::try_from(number).unwrap()];
        assert_eq!(*event, (Status::Success, What::Received(message, None)));
    }
    assert_eq!(events[12..], [(Status::Flushed, What::Sent(1)), FLUSHED]);
}

#[test]
fn a_peer_that_is_gone_does_not_wait_for_a_receive() {
    let (mut a, mut b) = pair();
    for _ in 0..20 {
        a.send(&[1], SendOptions::default()).unwrap();
    }
    let mut batch = CompletionBatch::new();
    let mut kept = Vec::new();
    for _ in 0..10 {
        b.port.poll(0, &mut batch);
        kept.extend(batch.drain());
    }
    assert_eq!(b.posted(), 0);
    b.port.handle_event(PortEvent::PeerGone {
        local: number(b.id),
    });
    assert_eq!(told(b.settle()), [FLUSHED]);
}

#[test]
fn a_destroyed_queue_pair_gives_its_number_back_and_hears_nothing() {
    let (mut a, mut b, joint) = unjoined();
    let (first, second) = (
        connect(&mut a, &mut b, &joint),
        connect(&mut a, &mut b, &joint),
    );
    let free = b.handle.numbers.len();
    // `a` continues to send to a queue pair that `b` has destroyed.
    b.port.disconnect(first.1);
    b.settle();
    b.port.destroy_queue_pair(first.1);
    assert_eq!(b.handle.numbers.len(), free + 1);
    a.id = first.0;
    a.send(b"late", SendOptions::default()).unwrap();
    a.id = second.0;
    a.send(b"good", SendOptions::default()).unwrap();
    let events = b.settle();
    assert_eq!(events.len(), 1);
    assert_eq!(
        (events[0].id, &events[0].what),
        (second.1, &What::Received(b"good".to_vec(), None))
    );
    assert_eq!(b.counter("records_stale"), 1);
    let numbers: Vec<_> = std::iter::from_fn(|| b.handle.numbers.pop()).collect();
    let again = QueuePairId {
        generation: first.1.generation + 1,
        ..first.1
    };
    assert_eq!(numbers.last().map(|number| number.id()), Some(again));
}

#[test]
fn flushes_of_many_works_are_spread_over_polls() {
    let (mut a, _b) = pair();
    for work in 0..40 {
        a.send(&[0], signalled(work)).unwrap();
    }
    a.port.disconnect(a.id);
    let mut works = Vec::new();
    for _ in 0..6 {
        let events = a.poll();
        assert!(events.len() <= 8);
        works.extend(events);
    }
    let sent = |event: &Event| match event.what {
        What::Sent(work) => Some(work),
        _ => None,
    };
    assert_eq!(
        works.iter().filter_map(sent).collect::<Vec<_>>(),
        (0..40).collect::<Vec<_>>()
    );
    assert_eq!(works.last().unwrap().what, What::Disconnected);
}

#[test]
fn works_and_depth_are_limited() {
    let (mut a, mut b) = pair_with(|config| config.send_queue_depth_max = 4);
    for work in 0..4 {
        a.send(&[0], signalled(work)).unwrap();
    }
    assert_eq!(a.send(&[0], signalled(4)), Err(PostError::QueueFull));
    assert_eq!(
        a.send(&[0], SendOptions::default()),
        Ok(()),
        "needs no place"
    );
    b.settle();
    a.settle();
    assert_eq!(a.send(&[0], signalled(4)), Ok(()));
}
