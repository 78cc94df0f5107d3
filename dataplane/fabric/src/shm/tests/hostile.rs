//! Records that no correct peer writes. Such a record ends its channel or its queue pair. It affects no other peer, and
//! nothing panics.

use super::*;
use crate::interface::prelude::*;
use crate::shm::channel::{Channel, Outgoing};
use crate::shm::link::QueuePairNumber;
use crate::shm::record::{Header, op};
use crate::shm::{PortEvent, PreparedQueuePair};

/// The end of the only channel at this port.
fn channel(end: &mut End) -> &mut Channel {
    end.port.channels_for_tests()[0].as_deref_mut().unwrap()
}

fn to(end: &End) -> QueuePairNumber {
    QueuePairNumber(end.id.index | end.id.generation << 16)
}

/// Publishes a record with this payload, valid or not.
fn publish(a: &mut End, b: &End, op: u8, payload: &[u8]) {
    publish_for(a, b, op, payload, 0);
}

/// As [`publish`], with the time before which the record must not be delivered.
fn publish_for(a: &mut End, b: &End, op: u8, payload: &[u8], not_before: u64) {
    let outgoing = Outgoing {
        destination: to(b),
        op,
        payload_bytes: u32::try_from(payload.len()).unwrap(),
        invalidate: None,
        not_before,
    };
    let mut counters = crate::shm::counters::Counters::default();
    let fill = |place: *mut u8, _| {
        // SAFETY: the record was reserved for this payload.
        unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), place, payload.len()) };
    };
    let published = channel(a).publish(outgoing, &mut counters, fill);
    assert!(published.is_some());
}

/// Overwrites the header of the first published record.
fn forge(a: &mut End, change: impl Fn(&mut Header)) {
    let ring = channel(a).producer.memory();
    let mut header = ring.read_header(0);
    change(&mut header);
    ring.write_header(0, header);
}

fn descriptor(pieces: &[(u64, u32)]) -> Vec<u8> {
    let piece = |(offset, bytes): &(u64, u32)| {
        let mut piece = offset.to_le_bytes().to_vec();
        piece.extend(bytes.to_le_bytes());
        piece.extend([0; 4]);
        piece
    };
    pieces.iter().flat_map(piece).collect()
}

const FLUSHED: (Status, What) = (Status::Flushed, What::Disconnected);

#[test]
fn records_of_a_wrong_shape_break_the_channel() {
    let huge: Vec<(u64, u32)> = vec![(0, 1 << 20); 32];
    let cases: Vec<(u8, Vec<u8>)> = vec![
        (0, vec![]),
        (77, vec![1, 2, 3]),
        (op::NAK, vec![1, 2, 3]),
        (op::WRITE, vec![0; 15]),
        (op::WRITE, vec![0; 16]),
        (op::WRITE, vec![0; 17]),
        (op::SEND_PULLED, vec![]),
        (op::SEND_PULLED, vec![0; 15]),
        (op::SEND_PULLED, vec![0; 17]),
        (op::SEND_PULLED, vec![0; 33 * 16]),
        (op::SEND_PULLED, descriptor(&[(8 << 20, 1)])),
        (op::SEND_PULLED, descriptor(&[(u64::MAX, 1)])),
        (op::SEND_PULLED, descriptor(&[(0, u32::MAX)])),
        (op::SEND_PULLED, descriptor(&[(0, 8 << 20), (8 << 20, 1)])),
        (op::SEND_HEADED, vec![]),
        (op::SEND_HEADED, vec![0; 15]),
        (op::SEND_HEADED, descriptor(&[(0, 1)])),
        (op::SEND_HEADED, descriptor(&[(0, 16)])),
        (op::SEND_HEADED, descriptor(&[(0, 17)])),
        (op::SEND_HEADED, descriptor(&[(0, u32::MAX)])),
        (op::SEND_HEADED, descriptor(&[(0, 0), (8 << 20, 1)])),
        (op::SEND_HEADED, vec![0; 33 * 16]),
        (op::SEND_PACKED, vec![0; 47]),
        (op::SEND_PACKED, vec![0; 113]),
    ];
    for (op, payload) in cases {
        let (mut a, mut b) = pair();
        b.send(b"out", signalled(1)).unwrap();
        publish(&mut a, &b, op, &payload);
        let expected = [(Status::Flushed, What::Sent(1)), FLUSHED];
        assert_eq!(told(b.settle()), expected, "{op} {payload:?}");
        assert_eq!(b.counter("channels_broken"), 1);
        assert_eq!(b.posted(), DEPTH);
        a.settle();
    }
    // The message is too long, but within the arena, so only this queue pair ends.
    let (mut a, mut b) = pair();
    publish(&mut a, &b, op::SEND_PULLED, &descriptor(&huge));
    let expected = [(Status::LocalLength, What::Received(vec![], None)), FLUSHED];
    assert_eq!(told(b.settle()), expected);
    assert_eq!(b.counter("channels_broken"), 0);
}

#[test]
fn a_head_is_what_the_record_holds_and_no_more() {
    for head in [0, 1, 8, 300] {
        let (mut a, mut b) = pair();
        let mut payload = descriptor(&[(u64::MAX, head)]);
        payload.extend((0..head).map(|byte| u8::try_from(byte % 251).unwrap()));
        publish(&mut a, &b, op::SEND_HEADED, &payload);
        let message = payload[16..].to_vec();
        let received = What::Received(message, None);
        assert_eq!(told(b.settle()), [(Status::Success, received)]);
    }
}

#[test]
fn a_record_beyond_the_ring_and_an_endless_pad_break_the_channel() {
    let changes: [fn(&mut Header); 3] = [
        |header| header.payload_bytes = u16::MAX,
        |header| header.op = op::PAD,
        |header| header.payload_bytes = 8192 - 15,
    ];
    for change in changes {
        let (mut a, mut b) = pair();
        a.send(b"x", SendOptions::default()).unwrap();
        forge(&mut a, change);
        assert_eq!(told(b.settle()), [FLUSHED]);
        assert_eq!(b.counter("channels_broken"), 1);
    }
}

/// The last unit of the ring has room for no message of more than 112 bytes.
#[test]
fn a_short_record_beyond_the_ring_breaks_the_channel() {
    let (mut a, mut b) = pair();
    for sent in 1..=64 {
        a.send(&[1; 112], SendOptions::default()).unwrap();
        if sent < 64 {
            let expected = What::Received(vec![1; 112], None);
            assert_eq!(told(b.settle()), [(Status::Success, expected)]);
            a.settle();
        }
    }
    let ring = channel(&mut a).producer.memory();
    let header = Header {
        payload_bytes: 113,
        ..ring.read_header(63)
    };
    ring.write_header(63, header);
    assert_eq!(told(b.settle()), [FLUSHED]);
    assert_eq!(b.counter("channels_broken"), 1);
}

#[test]
fn a_mask_of_any_blocks_leads_to_some_message() {
    for mask in 0..=u8::MAX {
        let (mut a, mut b) = pair();
        a.send(&[1; 48], SendOptions::default()).unwrap();
        forge(&mut a, |header| {
            header.payload_bytes = 112;
            header.flags = mask;
        });
        let events = told(b.settle());
        assert!(
            matches!(&events[..], [(Status::Success, What::Received(message, None))]
                if message.len() == 112 && message.iter().all(|byte| *byte <= 1)),
            "{mask:#x}: {events:?}"
        );
    }
}

#[test]
fn an_acknowledgement_of_what_was_never_written_is_ignored() {
    for acked in [1, 64, 1 << 31, u32::MAX] {
        let (mut a, mut b) = pair();
        b.send(b"out", signalled(1)).unwrap();
        a.send(b"x", SendOptions::default()).unwrap();
        forge(&mut a, |header| header.acked = acked);
        let events = told(b.settle());
        let received = (Status::Success, What::Received(b"x".to_vec(), None));
        // One unit was written, so 1 is plausible.
        let sent = (Status::Success, What::Sent(1));
        let expected = if acked == 1 {
            vec![received, sent]
        } else {
            vec![received]
        };
        assert_eq!(events, expected, "{acked}");
    }
}

/// Of four records, only those count as acknowledged that the peer acknowledges. The first two are not signalled.
#[test]
fn an_acknowledgement_is_of_no_record_behind_it() {
    for acked in 0..=4 {
        let (mut a, mut b) = pair();
        b.send(b"out", SendOptions::default()).unwrap();
        b.send(b"out", SendOptions::default()).unwrap();
        b.send(b"out", signalled(1)).unwrap();
        b.send(b"out", signalled(2)).unwrap();
        a.send(b"x", SendOptions::default()).unwrap();
        forge(&mut a, |header| header.acked = acked);
        let mut events = told(b.settle());
        let received = (Status::Success, What::Received(b"x".to_vec(), None));
        assert_eq!(events.remove(0), received);
        let sent: Vec<_> = (1..=u64::from(acked).saturating_sub(2))
            .map(|number| (Status::Success, What::Sent(number)))
            .collect();
        assert_eq!(events, sent, "{acked}");
    }
}

#[test]
fn a_failure_report_of_a_record_that_nobody_waits_for_ends_the_queue_pair_alone() {
    let (mut a, mut b) = pair();
    b.send(b"out", signalled(1)).unwrap();
    publish(&mut a, &b, op::NAK, &[9, 9, 9, 9, 1, 0, 0, 0]);
    assert_eq!(
        told(b.settle()),
        [(Status::Flushed, What::Sent(1)), FLUSHED]
    );
    assert_eq!(b.counter("channels_broken"), 0);
}

#[test]
fn a_peer_cannot_reach_another_channels_queue_pairs() {
    let mut b = End::new(0, |_| {});
    let mut ends: Vec<_> = (1..=2)
        .map(|number| {
            let mut a = End::new(number, |_| {});
            let ids = joined(&mut a, &mut b);
            a.id = ids.0;
            (a, ids.1)
        })
        .collect();
    b.id = ends[0].1;
    let intruder = &mut ends[1].0;
    publish(intruder, &b, op::SEND, b"for somebody else");
    publish(intruder, &b, op::DISCONNECT, &[]);
    assert_eq!(told(b.settle()), []);
    assert_eq!(b.counter("records_stale"), 2);
}

/// Ports wake each other through a socket that hostile peers hold too. They can fill it and make it blocking, but no wake-up
/// waits for that.
#[test]
fn a_peer_cannot_block_who_wakes_it() {
    let (mut a, mut b) = pair();
    b.settle();
    assert!(b.port.prepare_to_park());
    let woken = &b.handle.files.event;
    rustix::io::ioctl_fionbio(woken, false).unwrap();
    let flags = rustix::net::SendFlags::DONTWAIT;
    while rustix::net::send(woken, &[0; 4096], flags).is_ok() {}
    while rustix::net::send(woken, &[0], flags).is_ok() {}
    // If the flag of the socket decided, this call would block for ever.
    a.send(b"wake", SendOptions::default()).unwrap();
    assert_eq!(a.counter("wakes"), 1);
    b.port.unpark();
    assert_eq!(b.settle().len(), 1);
    a.send(b"no wake", SendOptions::default()).unwrap();
    assert_eq!(a.counter("wakes"), 1, "b does not sleep");
}

/// A call drains a bounded number of wake-ups, and the rest wakes the port again.
#[test]
fn a_flood_of_wakes_is_drained_a_bounded_part_at_a_time() {
    let (_a, mut b) = pair();
    let woken = &b.handle.files.event;
    let flags = rustix::net::SendFlags::DONTWAIT;
    while rustix::net::send(woken, &[0; 4096], flags).is_ok() {}
    let before = readable_bytes(&b);
    b.port.unpark();
    let after = readable_bytes(&b);
    assert!(after > 0 && after < before, "{before} {after}");
}

fn readable_bytes(end: &End) -> u64 {
    rustix::io::ioctl_fionread(end.port.event()).unwrap()
}

#[test]
fn a_record_for_the_far_future_breaks_the_channel() {
    let clock = Clock::new();
    let second = clock.ticks_per_second();
    let now = clock.now();
    for not_before in [now + 30 * second, now + 3600 * second, u64::MAX] {
        let (mut a, mut b) = pair();
        b.now = now;
        publish_for(&mut a, &b, op::SEND, b"late", not_before);
        assert_eq!(told(b.settle()), [FLUSHED]);
        assert_eq!(b.counter("channels_broken"), 1);
    }
}

#[test]
fn a_record_within_the_largest_delay_waits_also_for_a_clock_that_was_read_long_ago() {
    let clock = Clock::new();
    let second = clock.ticks_per_second();
    let now = clock.now();
    // Shortly after the start of a machine the clock is near zero, so the subtraction saturates.
    for read_at in [now, now.saturating_sub(3600 * second)] {
        let (mut a, mut b) = pair();
        b.now = read_at;
        publish_for(&mut a, &b, op::SEND, b"in time", now + 10 * second);
        assert_eq!(told(b.settle()), []);
        b.now = now + 10 * second;
        let received = What::Received(b"in time".to_vec(), None);
        assert_eq!(told(b.settle()), [(Status::Success, received)]);
    }
}

/// The queue pair of a dead peer ends, even if its last record is delayed for long.
#[test]
fn a_dead_peer_does_not_keep_its_channel_open() {
    let clock = Clock::new();
    let ten_seconds = 10 * clock.ticks_per_second();
    for ahead in [0, ten_seconds, u64::MAX] {
        let (mut a, mut b) = pair();
        b.now = clock.now();
        let not_before = b.now.saturating_add(ahead);
        publish_for(&mut a, &b, op::SEND, b"last words", not_before);
        let local = to(&b);
        b.port.handle_event(PortEvent::PeerGone { local });
        drop(a);
        let mut events = told(b.settle());
        b.now += ten_seconds;
        events.extend(told(b.settle()));
        assert_eq!(events.last(), Some(&FLUSHED), "{ahead}");
        assert!(b.port.prepare_to_park());
    }
}

#[test]
fn a_peer_that_takes_no_reports_loses_its_channel_when_too_many_wait() {
    let most = 8;
    let mut a = End::new(0, |_| {});
    let mut b = End::new(1, |config| config.queue_pairs_max = most);
    let joint = Joint::new(&a.port, &a.handle, &b.port, &b.handle).unwrap();
    (a.id, b.id) = connect(&mut a, &mut b, &joint);
    while b.send(&[1; 64], SendOptions::default()).is_ok() {}
    let mut end_another = |b: &mut End| {
        let (at_a, at_b) = connect(&mut a, b, &joint);
        b.port.disconnect(at_b);
        let events = b.settle();
        b.port.destroy_queue_pair(at_b);
        a.port.destroy_queue_pair(at_a);
        (at_b, events)
    };
    for _ in 0..most {
        let (id, events) = end_another(&mut b);
        assert_eq!(
            events.iter().map(|event| event.id).collect::<Vec<_>>(),
            [id]
        );
    }
    assert_eq!(b.counter("reports_delayed"), u64::from(most));
    assert_eq!(b.counter("channels_broken"), 0);
    let (_, events) = end_another(&mut b);
    assert_eq!(b.counter("channels_broken"), 1);
    let ended = events
        .iter()
        .filter(|event| event.what == What::Disconnected);
    assert_eq!(ended.count(), 2, "the first queue pair too: {events:?}");
    let (_, prepared): (PreparedQueuePair, PreparedQueuePair) =
        joint.prepared_pair(&a.handle, &b.handle).unwrap();
    assert!(
        b.port.adopt_queue_pair(prepared, b.queue).is_err(),
        "the channel is given up"
    );
}

/// Records that are not written by the fast path count too, and only once.
#[test]
fn a_burst_is_what_is_written_between_two_flushes() {
    let (mut a, mut b) = pair();
    let buffer = a.filled(&[1; 112]);
    for _ in 0..100 {
        for bytes in [20, 112] {
            let options = SendOptions::default();
            a.port
                .post_send_copied(a.id, &buffer, bytes, options)
                .unwrap();
        }
        a.port.flush_sends();
        assert_eq!(channel(&mut a).forecast.burst_units, 2);
        b.settle();
        a.settle();
    }
    a.give(buffer);
}
