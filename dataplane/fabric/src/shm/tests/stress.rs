//! Two threads exchange messages of random sizes by random operations. Every byte arrives, in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use rpcrdma_testkit::{Random, Wait};

use super::*;
use crate::interface::PostError;
use crate::interface::prelude::*;
use crate::shm::ChannelFile;
use crate::shm::mapped::{ChannelHead, MappedRing, Progress};
use crate::shm::record::{Header, op};
use crate::shm::ring::{Consumer, Producer};

/// The size of message `number` in a direction.
fn size(number: usize, direction: u64) -> usize {
    let mut random = Random(number as u64 ^ direction << 32);
    match random.below(8) {
        0..=4 => random.below(300),
        5 | 6 => random.below(1025),
        _ => 1025 + random.below(20_000),
    }
}

/// Sends and receives `count` messages in each direction.
fn run(mut end: End, direction: u64, count: usize, finished: &AtomicBool, other: &AtomicBool) {
    let (mut sent, mut received) = (0, 0);
    loop {
        for _ in 0..4 {
            if sent == count || end.large.available() < 3 {
                break;
            }
            let message = pattern(sent, size(sent, direction));
            let options = if sent % 3 == 0 {
                signalled(sent as u64)
            } else {
                SendOptions::default()
            };
            let posted = if message.len() > 1024 {
                let cut = message.len() / 3;
                end.send_list(&[&message[..cut], &message[cut..]], options)
            } else {
                end.send(&message, options)
            };
            match posted {
                Ok(()) => sent += 1,
                Err(PostError::QueueFull) => break,
                Err(error) => panic!("{error}"),
            }
        }
        for event in end.poll() {
            assert_eq!(event.status, Status::Success);
            if let What::Received(message, None) = event.what {
                let expected = pattern(received, size(received, direction ^ 1));
                assert_eq!(message.len(), expected.len(), "message {received}");
                assert!(message == expected, "message {received}");
                received += 1;
            }
        }
        end.reclaim();
        let all = sent == count && received == count && end.large.available() == 64 - 16;
        if all {
            finished.store(true, Ordering::Release);
            if other.load(Ordering::Acquire) {
                return;
            }
        }
        thread::yield_now();
    }
}

#[test]
fn two_threads_exchange_messages_of_every_size() {
    let count = if cfg!(debug_assertions) { 3000 } else { 30_000 };
    let (a, b) = pair();
    let flags = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
    let threads = [(a, 0), (b, 1)].map(|(end, which)| {
        let flags = Arc::clone(&flags);
        thread::spawn(move || {
            run(end, which as u64, count, &flags[which], &flags[1 - which]);
        })
    });
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn a_window_is_never_read_after_it_ended() {
    // The owner binds a window, fills its buffer with one value, ends the window and fills the buffer with another value.
    // A reader that succeeds has seen only the first value.
    let (mut a, mut b) = pair_with(|config| config.copy_bytes_per_poll = 4096);
    let reads = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&reads);
    let window = {
        let buffer = b.filled(&[1; 65_536]);
        let access = crate::interface::Access {
            remote_read: true,
            remote_write: false,
        };
        b.port.bind_window(b.id, buffer, 65_536, access).unwrap()
    };
    let remote = window.remote();
    let reader = thread::spawn(move || {
        'outer: loop {
            let mut list = Gather::new();
            let buffer = a.large.take().unwrap();
            list.push(buffer, 0, 65_536).unwrap();
            if a.port.post_read(a.id, list, remote, WorkId(0)).is_err() {
                break;
            }
            loop {
                for event in a.poll() {
                    match event.what {
                        What::Read(_, bytes) if event.status == Status::Success => {
                            assert!(bytes.iter().all(|byte| *byte == 1));
                            counted.fetch_add(1, Ordering::Relaxed);
                            continue 'outer;
                        }
                        What::Read(..) => break 'outer,
                        _ => {}
                    }
                }
            }
        }
    });
    // The reader is at its work when the window ends.
    let wait = Wait::begin("some reads");
    while reads.load(Ordering::Relaxed) < 4 {
        wait.look(|| format!("{reads:?}"));
        assert!(!reader.is_finished(), "no read fails before the end");
        b.poll();
        thread::yield_now();
    }
    b.port.invalidate_window(window, WorkId(1)).unwrap();
    let mut buffer = b.port.next_returned().unwrap();
    b.port.memory().bytes_mut(&mut buffer).fill(2);
    let wait = Wait::begin("the end of the read that met no window");
    while !reader.is_finished() {
        wait.look(String::new);
        b.poll();
        thread::yield_now();
    }
    reader.join().unwrap();
}

/// Both ends use one mapping of a record ring. With separate mappings a race checker would not see that both ends access
/// the same memory.
#[test]
fn a_ring_through_one_mapping_is_free_of_races() {
    let count = 20_000_u32;
    let (_file, mapping) = ChannelFile::create(8192).unwrap();
    // SAFETY: the mapping lives until the end of the test, behind both threads.
    let ends = unsafe {
        (
            MappedRing::new(&mapping).unwrap(),
            MappedRing::new(&mapping).unwrap(),
            ChannelHead::new(&mapping).unwrap(),
            ChannelHead::new(&mapping).unwrap(),
        )
    };
    let (writing, reading, asking, telling) = ends;
    let units = |number: u32| number % 5 + 1;
    thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let mut producer = Producer::new(writing);
            for number in 0..count {
                let index = loop {
                    let _ = producer.set_freed(asking.load_progress().freed);
                    match producer.reserve(units(number)) {
                        Some(index) => break index,
                        None => thread::yield_now(),
                    }
                };
                let header = Header {
                    destination: number,
                    acked: 0,
                    payload_bytes: 0,
                    op: op::SEND,
                    flags: 0,
                };
                producer.memory().write_header(index, header);
                for unit in 0..units(number) {
                    let place = producer.memory().unit(index + unit).wrapping_add(16);
                    // SAFETY: within a unit that is reserved.
                    unsafe {
                        place
                            .cast::<[u8; 112]>()
                            .write([number.to_le_bytes()[0]; 112]);
                    };
                }
                producer.publish(units(number));
            }
        });
        let reader = scope.spawn(move || {
            let mut consumer = Consumer::new(reading);
            let mut number = 0;
            while number < count {
                let Some(index) = consumer.peek() else {
                    thread::yield_now();
                    continue;
                };
                let header = consumer.memory().read_header(index);
                if header.op == op::PAD {
                    consumer.advance(consumer.to_end(index));
                } else {
                    assert_eq!(header.destination, number);
                    for unit in 0..units(number) {
                        let place = consumer.memory().unit(index + unit).wrapping_add(16);
                        // SAFETY: within a unit of the mapping, published and not freed yet.
                        let bytes = unsafe { place.cast::<[u8; 112]>().read() };
                        assert_eq!(bytes, [number.to_le_bytes()[0]; 112]);
                    }
                    consumer.advance(units(number));
                    number += 1;
                }
                let head = consumer.head();
                telling.store_progress(Progress {
                    freed: head,
                    acked: head,
                });
            }
        });
        // A scope signals its end by atomics of the standard library, which a race checker does not see. The joins are
        // explicit, because the mapping of the next test may be at the same addresses.
        writer.join().unwrap();
        reader.join().unwrap();
    });
}
