//! Sends arrive whole, in order and exactly once.

use proptest::prelude::*;

use super::*;
use crate::interface::prelude::*;
use crate::interface::{PostError, RemoteKey};
use crate::shm::record::op;
use crate::shm::ring::{RingMemory, sequence_of};
use crate::shm::{Fault, PortEvent};

/// The arrivals of one poll. None is kept.
fn arrivals(end: &mut End) -> Vec<Arrival> {
    let mut batch = CompletionBatch::new();
    end.port.begin_poll(end.now, &mut batch);
    let port = &mut end.port;
    let arrivals = std::iter::from_fn(|| port.next_arrival()).collect();
    assert!(batch.is_empty());
    arrivals
}

#[test]
fn the_last_arrival_alone_can_be_kept() {
    let (mut a, mut b) = pair();
    for seed in 0..2 {
        a.send(&pattern(seed, 64), SendOptions::default()).unwrap();
    }
    let [first, last] = arrivals(&mut b).try_into().expect("both are there");
    assert!(b.port.keep(first).is_none(), "its bytes are gone");
    assert_eq!(b.port.arrived(&last), pattern(1, 64));
    assert_eq!(b.posted(), DEPTH, "no Receive is taken by what is read");
    let kept = b.port.keep(last).expect("it is the last one");
    assert_eq!(b.port.received(&kept)[..64], pattern(1, 64));
    assert_eq!(b.posted(), DEPTH - 1);
    b.port.post_receive(kept);
}

#[test]
fn queue_pair_of_the_next_arrival_is_named() {
    let (mut a, mut b, joint) = unjoined();
    let mut pairs: Vec<_> = (0..3).map(|_| connect(&mut a, &mut b, &joint)).collect();
    // On another channel, which a poll looks at after the first one.
    pairs.push(joined(&mut a, &mut b));
    for (seed, at) in [0, 2, 3, 1, 1].into_iter().enumerate() {
        a.id = pairs[at].0;
        a.send(&pattern(seed, 64), SendOptions::default()).unwrap();
    }
    let mut batch = CompletionBatch::new();
    b.port.begin_poll(b.now, &mut batch);
    // The next poll finds it.
    a.send(&pattern(5, 64), SendOptions::default()).unwrap();
    let mut named = Vec::new();
    while let Some(arrival) = b.port.next_arrival() {
        named.push((arrival.queue_pair.index, b.port.arrives_next()));
    }
    let index = |at: usize| pairs[at].1.index;
    let expected = [0, 2, 1, 1, 3].map(index);
    let next = expected[1..].iter().copied().map(Some).chain([None]);
    assert_eq!(named, expected.into_iter().zip(next).collect::<Vec<_>>());
    assert_eq!(b.port.arrives_next(), None);
}

#[test]
fn messages_of_a_channel_that_is_dropped_are_not_taken_from_the_next() {
    let (mut a, mut b) = pair();
    a.send(&pattern(0, 64), SendOptions::default()).unwrap();
    let mut batch = CompletionBatch::new();
    b.port.begin_poll(b.now, &mut batch);
    b.port.destroy_queue_pair(b.id);
    let ids = joined(&mut a, &mut b);
    (a.id, b.id) = ids;
    a.send(&pattern(1, 64), SendOptions::default()).unwrap();
    assert!(b.port.next_arrival().is_none(), "no poll has found it");
    let [arrival] = arrivals(&mut b).try_into().expect("the next one does");
    assert_eq!(b.port.arrived(&arrival), pattern(1, 64));
}

#[test]
fn a_message_waits_for_its_receive_in_the_ring() {
    let (mut a, mut b) = pair();
    let mut kept = Vec::new();
    for seed in 0..DEPTH as usize {
        a.send(&pattern(seed, 64), SendOptions::default()).unwrap();
        let [arrival] = arrivals(&mut b).try_into().expect("one is there");
        kept.extend(b.port.keep(arrival));
    }
    assert_eq!(b.posted(), 0);
    a.send(&pattern(99, 64), SendOptions::default()).unwrap();
    assert!(arrivals(&mut b).is_empty());
    for receive in kept {
        b.port.post_receive(receive);
    }
    b.port.flush_receives();
    let received = What::Received(pattern(99, 64), None);
    assert_eq!(told(b.poll()), [(Status::Success, received)]);
}

/// A caller reads the clock before the poll, so a later message must not come with the arrivals of that poll.
#[test]
fn message_after_a_poll_began_is_left_to_the_next_poll() {
    let (mut a, mut b) = pair();
    a.send(&pattern(0, 64), SendOptions::default()).unwrap();
    // The poll counts this message as an arrival, but it is of another kind.
    a.send(&[1], SendOptions::default()).unwrap();
    let mut batch = CompletionBatch::new();
    b.port.begin_poll(0, &mut batch);
    a.send(&[2], SendOptions::default()).unwrap();
    assert!(b.port.next_arrival().is_some());
    assert!(b.port.next_arrival().is_none());
    assert!(batch.is_empty());
    b.port.begin_poll(0, &mut batch);
    assert_eq!(batch.drain().count(), 2, "in the very next poll");
}

/// No reply of the receiver carries an acknowledgement, so the port has to send one.
#[test]
fn message_read_in_place_is_acknowledged_to_its_sender() {
    let (mut a, mut b) = pair();
    a.send(&pattern(0, 64), signalled(1)).unwrap();
    assert_eq!(told(a.settle()), []);
    assert_eq!(arrivals(&mut b).len(), 1);
    (0..8).for_each(|_| assert!(arrivals(&mut b).is_empty()));
    assert_eq!(told(a.settle()), [(Status::Success, What::Sent(1))]);
}

/// Messages of `bytes` bytes with few or many bytes that are not zero.
fn sparse(bytes: usize) -> Vec<Vec<u8>> {
    let places: [&[usize]; 5] = [&[], &[0], &[1, 17, 33], &[0, 40, 44], &[0, 16, 32, 47]];
    let with = |places: &[usize]| {
        let mut message = vec![0; bytes];
        for at in places {
            message[*at] = 7;
            message[bytes - 1 - at] = 9;
        }
        message
    };
    places.into_iter().map(with).collect()
}

#[test]
fn short_messages_full_of_zeroes_arrive_whole() {
    let (mut a, mut b) = pair();
    for message in (48..=120).flat_map(sparse) {
        a.send(&message, SendOptions::default()).unwrap();
        let expected = What::Received(message, None);
        assert_eq!(told(b.settle()), [(Status::Success, expected)]);
        a.settle();
    }
}

#[test]
fn a_packed_message_arrives_whole_by_the_long_way_too() {
    for bytes in [48, 60, 76, 112] {
        let (mut a, mut b) = pair();
        let message = [vec![1; 32], vec![0; bytes - 33], vec![2]].concat();
        // The first message finds no Receive, and the messages behind it must not overtake it.
        let fault = Fault::ReceiverNotReady { polls: 2 };
        b.port.handle_event(PortEvent::Inject(fault));
        for _ in 0..3 {
            a.send(&message, SendOptions::default()).unwrap();
        }
        let channel = a.port.channels_for_tests()[0].as_deref_mut().unwrap();
        assert_eq!(channel.producer.memory().read_header(0).op, op::SEND_PACKED);
        assert_eq!(told(b.poll()), []);
        let expected = (Status::Success, What::Received(message, None));
        assert_eq!(told(b.settle()), vec![expected; 3]);
        assert_eq!(b.counter("receiver_not_ready"), 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Each unit of a message but the first holds the sequence number of a record of one of the next laps.
    #[test]
    fn messages_that_look_like_records_arrive_whole(
        messages in proptest::collection::vec((1_usize..=1024, 1_u32..4, 0_u32..3), 1..200),
    ) {
        let (mut a, mut b) = pair();
        let mut sent = Vec::new();
        let mut received = Vec::new();
        let note = |received: &mut Vec<_>, events| {
            for (_, what) in told(events) {
                if let What::Received(message, None) = what {
                    received.push(message);
                }
            }
        };
        for (bytes, laps, polls) in messages {
            let channel = a.port.channels_for_tests()[0].as_deref_mut().unwrap();
            let (tail, capacity) = (channel.producer.tail(), channel.producer.memory().units());
            let units = u32::try_from((16 + bytes).div_ceil(128)).unwrap();
            let to_end = capacity - (tail & (capacity - 1));
            let start = if units > to_end { tail + to_end } else { tail };
            let mut message = pattern(bytes, bytes);
            for unit in 1..units {
                let number = sequence_of(start + unit + laps * capacity).to_le_bytes();
                let at = unit as usize * 128 - 16;
                for (place, byte) in message[at..].iter_mut().zip(number) {
                    *place = byte;
                }
            }
            if a.send(&message, SendOptions::default()).is_ok() {
                sent.push(message);
            }
            for _ in 0..polls {
                note(&mut received, b.poll());
            }
            a.poll();
        }
        note(&mut received, b.settle());
        prop_assert_eq!(received, sent);
        prop_assert_eq!(b.counter("channels_broken"), 0);
    }
}

#[test]
fn gathered_sends_of_every_kind_arrive_whole() {
    let (mut a, mut b) = pair();
    let whole = pattern(1, 66_000);
    for cuts in [
        vec![1],
        vec![100, 200],
        vec![1000, 24],
        vec![1000, 25],
        vec![200, 5000],
        vec![256, 9, 5000],
        vec![1024, 1, 1],
        vec![0, 5000, 0],
        vec![65_000, 1000],
        vec![30_000; 2],
    ] {
        let mut at = 0;
        let parts: Vec<&[u8]> = cuts
            .iter()
            .map(|bytes| {
                at += bytes;
                &whole[at - bytes..at]
            })
            .collect();
        a.send_list(&parts, signalled(7)).unwrap();
        let received = What::Received(whole[..at].to_vec(), None);
        assert_eq!(told(b.settle()), [(Status::Success, received)], "{cuts:?}");
        assert_eq!(told(a.settle()), [(Status::Success, What::Sent(7))]);
        assert_eq!(a.reclaim(), parts.len());
    }
    assert_eq!(a.large.available(), 64 - DEPTH as usize);
}

/// Short messages are counted before the port knows whether they can be taken; others are examined one by one.
#[test]
fn without_a_receive_the_channel_stalls_and_goes_on() {
    for bytes in [1, 64] {
        let (mut a, mut b) = pair();
        for number in 0..20 {
            let message = pattern(number, bytes);
            a.send(&message, SendOptions::default()).unwrap();
        }
        // The test takes all Receives and posts none of them again.
        let (mut kept, mut batch) = (Vec::new(), CompletionBatch::new());
        for poll in 0..20 {
            let busy = b.port.poll(0, &mut batch);
            assert!(!busy || poll < 5, "nothing is done while it waits");
            kept.extend(batch.drain());
        }
        assert_eq!(kept.len(), DEPTH as usize);
        assert_eq!(b.counter("receiver_not_ready"), 1, "once for a stall");
        for completion in kept {
            b.event(completion);
        }
        assert_eq!(b.posted(), 0, "staged Receives do not count yet");
        b.port.flush_receives();
        assert_eq!(b.posted(), DEPTH);
        let rest: Vec<_> = (16..20)
            .map(|number| What::Received(pattern(number, bytes), None))
            .map(|what| (Status::Success, what))
            .collect();
        assert_eq!(told(b.settle()), rest);
        assert_eq!(b.counter("receiver_not_ready"), 1);
    }
}

#[test]
fn a_full_ring_refuses_and_recovers() {
    let (mut a, mut b) = pair();
    let mut posted = 0;
    while a.send(&[9; 100], SendOptions::default()).is_ok() {
        posted += 1;
    }
    // The ring has 64 units. Each record takes one, and one stays free.
    assert_eq!(posted, 63);
    assert_eq!(a.counter("queue_full"), 1);
    assert_eq!(b.settle().len(), 63);
    assert_eq!(a.send(&[9; 100], SendOptions::default()), Ok(()));
}

#[test]
fn a_queue_pair_beyond_the_table_is_unknown() {
    let (mut a, _b) = pair();
    a.id.index = 9999;
    let refused = a.send(&[1], SendOptions::default());
    assert_eq!(refused, Err(PostError::UnknownQueuePair));
}

#[test]
fn an_unknown_key_to_invalidate_ends_both_queue_pairs() {
    let (mut a, mut b) = pair();
    let options = SendOptions {
        signalled: Some(WorkId(1)),
        invalidate: Some(RemoteKey(1234)),
    };
    a.send(b"x", options).unwrap();
    assert_eq!(told(b.settle()), [(Status::Flushed, What::Disconnected)]);
    let expected = [
        (Status::RemoteAccess, What::Sent(1)),
        (Status::Flushed, What::Disconnected),
    ];
    assert_eq!(told(a.settle()), expected);
    assert_eq!(b.posted(), DEPTH, "the Receive is posted as before");
}
