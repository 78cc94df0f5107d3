//! Leases on placement segments, on a port without a core.

use std::sync::mpsc;

use rpcrdma_engine::placement_segments::{NotLeased, PlacementSegments};
use rpcrdma_engine::{CoreConfig, PlacementConfig};
use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{
    CompletionBatch, CompletionKind, Gather, QueuePairId, Receive, ReceiveQueueAttributes,
    ReceiveQueueId, SendOptions,
};
use rpcrdma_fabric::memory::{Pool, PoolShape};
use rpcrdma_fabric::shm;

use crate::support::{pattern, port};

const INLINE_BYTES: u32 = 64;
const SEGMENT_BYTES: u32 = 512;
const SEGMENTS: usize = 2;
const RECEIVES: u32 = 4;
const SPARES: usize = 3;

struct End {
    port: shm::Port,
    handle: shm::PortHandle,
    queue: ReceiveQueueId,
    segments: PlacementSegments,
    send: Pool,
}

fn shape(buffers: u32, bytes: u32) -> PoolShape {
    PoolShape {
        buffers,
        buffer_bytes: bytes,
        stride_bytes: bytes,
        align_bytes: 4096,
    }
}

impl End {
    fn new(number: u32, clock: &Clock) -> Self {
        let (mut port, handle) = port(number, &CoreConfig::default(), clock);
        let spares = u32::try_from(SPARES + SEGMENTS * RECEIVES as usize).expect("small");
        let mut inline = port.carve(shape(RECEIVES, INLINE_BYTES)).expect("room");
        let pool = port.carve(shape(spares, SEGMENT_BYTES)).expect("room");
        let mut segments = PlacementSegments::new(pool);
        let send = port.carve(shape(4, 2048)).expect("room");
        let attributes = ReceiveQueueAttributes {
            depth: RECEIVES,
            segments_max: 1 + u32::try_from(SEGMENTS).expect("small"),
        };
        let queue = port.create_receive_queue(attributes).expect("a queue");
        for _ in 0..RECEIVES {
            let placed = (0..SEGMENTS).filter_map(|_| segments.take_for_receive());
            let mut list = inline.take().into_iter().chain(placed);
            let receive = port.create_receive(queue, &mut list).expect("a Receive");
            port.post_receive(receive);
        }
        port.flush_receives();
        Self {
            port,
            handle,
            queue,
            segments,
            send,
        }
    }
}

/// One message of `bytes` bytes: the Receive that it came in.
fn pass(from: &mut End, id: QueuePairId, to: &mut End, bytes: &[u8]) -> Receive {
    let mut buffer = from.send.take().expect("a send buffer");
    from.port.memory().bytes_mut(&mut buffer)[..bytes.len()].copy_from_slice(bytes);
    let mut list = Gather::new();
    let count = u32::try_from(bytes.len()).expect("small");
    list.push(buffer, 0, count).expect("it fits");
    from.port
        .post_send(id, &mut list, SendOptions::default())
        .expect("room");
    let mut batch = CompletionBatch::new();
    for _ in 0..10_000 {
        from.port.flush_sends();
        from.port.poll(0, &mut batch);
        while let Some(buffer) = from.port.next_returned() {
            from.send.give(buffer);
        }
        to.port.flush_receives();
        to.port.poll(0, &mut batch);
        if let Some(completion) = batch.drain().next() {
            let CompletionKind::Receive { receive, .. } = completion.kind else {
                panic!("{completion:?}");
            };
            return receive;
        }
    }
    panic!("nothing arrives");
}

fn joined() -> (End, End, QueuePairId) {
    let clock = Clock::new();
    let (mut a, mut b) = (End::new(0, &clock), End::new(1, &clock));
    let queues = (a.queue, b.queue);
    let (id, _) =
        shm::join(&mut a.port, &a.handle, &mut b.port, &b.handle, queues).expect("a queue pair");
    (a, b, id)
}

/// Messages come and go through the same Receives while what was leased of earlier ones is kept
/// and dropped on other threads: each lease shows what it was made of, and no segment is lost.
#[test]
fn leases_keep_their_bytes_and_segments_come_back() {
    let (mut a, mut b, id) = joined();
    assert_eq!((b.segments.spares(), b.segments.leased()), (SPARES, 0));
    let (give, take) = mpsc::channel();
    let (tell_scarce, scarce) = mpsc::channel();
    let holder = std::thread::spawn(move || {
        // It keeps all until the spares have run out, which a quick thread would never let happen.
        scarce.recv().expect("they run out");
        for (round, lease, expected) in take {
            let (lease, expected): (rpcrdma_fabric::memory::Lease, Vec<u8>) = (lease, expected);
            assert!(*lease == *expected, "round {round}");
            if round % 3 == 0 {
                std::thread::yield_now();
            }
        }
    });
    let mut waited = 0;
    for round in 0..2000_u64 {
        let data = pattern(64 + 512 + 300, round);
        let mut receive = pass(&mut a, id, &mut b, &data);
        for (segment, offset, bytes) in [(1, 0, 300), (0, 7, 500)] {
            let from = 64 + 512 * segment + offset as usize;
            let expected = data[from..from + bytes as usize].to_vec();
            let lease = loop {
                let port = &mut b.port;
                match b.segments.lease(port, &mut receive, segment, offset, bytes) {
                    Ok(lease) => break lease,
                    Err(refused) => assert_eq!(refused, NotLeased::NoSpare),
                }
                if waited == 0 {
                    tell_scarce.send(()).expect("it listens");
                }
                waited += 1;
                std::thread::yield_now();
                b.segments.reclaim();
            };
            assert_eq!(b.segments.leased() + b.segments.spares(), SPARES);
            give.send((round, lease, expected)).expect("it listens");
        }
        b.port.post_receive(receive);
        b.segments.reclaim();
    }
    drop(give);
    assert!(waited > 0, "spares are scarce");
    holder.join().expect("every lease showed its bytes");
    while b.segments.leased() > 0 {
        assert!(b.segments.reclaim() > 0, "dropped, and not come back");
    }
    assert_eq!(b.segments.spares(), SPARES);
}

#[test]
fn ranges_that_are_not_there_are_refused_and_cost_nothing() {
    let (mut a, mut b, id) = joined();
    let data = pattern(1000, 1);
    let mut receive = pass(&mut a, id, &mut b, &data);
    for (segment, offset, bytes) in [
        (SEGMENTS, 0, 1),
        (usize::MAX, 0, 1),
        (0, 0, SEGMENT_BYTES + 1),
        (0, SEGMENT_BYTES, 1),
        (1, u32::MAX, 2),
    ] {
        let refused = b
            .segments
            .lease(&mut b.port, &mut receive, segment, offset, bytes);
        assert_eq!(refused.map(drop), Err(NotLeased::NoSuchRange), "{segment}");
        assert_eq!((b.segments.spares(), b.segments.leased()), (SPARES, 0));
    }
    // The bytes are as they were.
    let segment = b.port.received_segment(&receive, 2).expect("it is there");
    assert!(segment[..1000 - 576] == data[576..]);
    let none = PlacementSegments::default().lease(&mut b.port, &mut receive, 0, 0, 1);
    assert_eq!(none.map(drop), Err(NotLeased::NoSuchRange));
}

/// However many leases are dropped at once, an iteration takes a bounded number back.
#[test]
fn segments_are_taken_back_a_few_at_a_time() {
    let clock = Clock::new();
    let (mut port, _) = port(0, &CoreConfig::default(), &clock);
    let pool = port.carve(shape(100, 64)).expect("room");
    let queue = port
        .create_receive_queue(ReceiveQueueAttributes {
            depth: 1,
            segments_max: 2,
        })
        .expect("a queue");
    let mut segments = PlacementSegments::new(pool);
    let list = [segments.take_for_receive(), segments.take_for_receive()];
    let mut receive = port
        .create_receive(queue, &mut list.into_iter().flatten())
        .expect("a Receive");
    let leases: Vec<_> = (0..98)
        .map(|_| segments.lease(&mut port, &mut receive, 0, 0, 64))
        .collect();
    assert!(leases.iter().all(Result::is_ok));
    assert_eq!(segments.reclaim(), 0, "all are kept");
    drop(leases);
    let mut rounds = 0;
    while segments.leased() > 0 {
        let came = segments.reclaim();
        assert!((1..=16).contains(&came), "{came} at once");
        rounds += 1;
    }
    assert_eq!((rounds, segments.spares()), (7, 98));
}

/// Too few spares, or segments that no buffer can have, are refused when the core is made.
#[test]
fn a_configuration_that_cannot_work_is_refused() {
    let clock = Clock::new();
    let (port, _) = port(0, &CoreConfig::default(), &clock);
    let good = PlacementConfig {
        inline_segment_bytes: 512,
        segments: 2,
        segment_bytes: 2048,
        spares: 2,
    };
    let validate = |placement| {
        let config = CoreConfig {
            placement: Some(placement),
            ..CoreConfig::default()
        };
        config.validate(port.attributes())
    };
    assert!(validate(good).is_ok());
    #[rustfmt::skip]
    let cases = [
        (PlacementConfig { spares: 1, ..good }, "placement spares"),
        (PlacementConfig { segments: 0, spares: 0, ..good }, "receive buffer"),
        (PlacementConfig { segment_bytes: 0, ..good }, "receive buffer"),
        (PlacementConfig { inline_segment_bytes: 0, ..good }, "no octets"),
        (PlacementConfig { inline_segment_bytes: 8, segment_bytes: 400, ..good }, "receive buffer bytes"),
        (PlacementConfig { segments: 40, spares: 40, ..good }, "segments"),
        (PlacementConfig { segment_bytes: u32::MAX, ..good }, "longer"),
    ];
    for (bad, why) in cases {
        let refused = validate(bad).expect_err(why).to_string();
        assert!(refused.contains(why), "{bad:?}: {refused}");
    }
}
