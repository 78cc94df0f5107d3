//! The ring against a `VecDeque`, and against time: two threads, wrapped positions, leaks.

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;

use super::{Consumer, Producer, channel};

#[derive(Clone, Debug)]
enum Op {
    Push(u16),
    Pop,
    /// Drain at most `count_max`, of which the iterator is asked for `taken`.
    Drain {
        count_max: u32,
        taken: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => any::<u16>().prop_map(Op::Push),
        2 => Just(Op::Pop),
        1 => (0_u32..10, 0_usize..10).prop_map(|(count_max, taken)| Op::Drain { count_max, taken }),
    ]
}

/// A ring whose positions start just before they wrap, so that every test crosses 2^32.
fn channel_at<T: Send>(capacity: u32, position: u32) -> (Producer<T>, Consumer<T>) {
    let (mut producer, mut consumer) = channel(capacity);
    producer.tail = position;
    producer.head_seen = position;
    consumer.head = position;
    consumer.tail_seen = position;
    for end in [&producer.shared.tail, &producer.shared.head] {
        end.store(position, crate::sync::atomic::Ordering::Relaxed);
    }
    (producer, consumer)
}

proptest! {
    #[test]
    fn behaves_like_a_bounded_deque(
        ops in prop::collection::vec(op(), 0..64),
        capacity_log2 in 0_u32..5,
        before_wrap in 0_u32..16,
    ) {
        let capacity = 1_u32 << capacity_log2;
        let (mut producer, mut consumer) = channel_at(capacity, u32::MAX - before_wrap);
        let mut oracle: VecDeque<Box<u16>> = VecDeque::new();
        for op in ops {
            match op {
                Op::Push(value) => {
                    let result = producer.push(Box::new(value));
                    if oracle.len() == capacity as usize {
                        prop_assert_eq!(result, Err(Box::new(value)));
                    } else {
                        prop_assert_eq!(result, Ok(()));
                        oracle.push_back(Box::new(value));
                    }
                }
                Op::Pop => prop_assert_eq!(consumer.pop(), oracle.pop_front()),
                Op::Drain { count_max, taken } => {
                    let expected_len = oracle.len().min(count_max as usize);
                    let mut drain = consumer.drain(count_max);
                    prop_assert_eq!(drain.len(), expected_len);
                    for _ in 0..taken.min(expected_len) {
                        prop_assert_eq!(drain.next(), oracle.pop_front());
                    }
                    if taken > expected_len {
                        prop_assert_eq!(drain.next(), None);
                    }
                }
            }
            prop_assert_eq!(producer.len() as usize, oracle.len());
            prop_assert_eq!(consumer.len() as usize, oracle.len());
            prop_assert_eq!(producer.is_empty(), oracle.is_empty());
            prop_assert_eq!(consumer.is_empty(), oracle.is_empty());
        }
    }

    #[test]
    fn drops_what_is_left_once(
        pushed in 0_usize..12,
        popped in 0_usize..12,
        producer_first: bool,
    ) {
        let (mut producer, mut consumer) = channel_at(8, u32::MAX - 3);
        let item = Arc::new(());
        for _ in 0..pushed {
            let _full = producer.push(Arc::clone(&item));
        }
        for _ in 0..popped {
            let _empty = consumer.pop();
        }
        let left = pushed.min(8).saturating_sub(popped);
        prop_assert_eq!(Arc::strong_count(&item), 1 + left);
        if producer_first {
            drop(producer);
            prop_assert!(consumer.is_abandoned());
            prop_assert_eq!(Arc::strong_count(&item), 1 + left);
            drop(consumer);
        } else {
            drop(consumer);
            prop_assert!(producer.is_abandoned());
            prop_assert_eq!(Arc::strong_count(&item), 1 + left);
            drop(producer);
        }
        prop_assert_eq!(Arc::strong_count(&item), 1);
    }
}

#[test]
fn carries_everything_in_order_between_threads() {
    let count: u64 = if cfg!(miri) { 300 } else { 100_000 };
    let (mut producer, mut consumer) = channel_at::<Box<u64>>(8, u32::MAX - 5);
    let feeder = std::thread::spawn(move || {
        for value in 0..count {
            let mut item = Box::new(value);
            while let Err(back) = producer.push(item) {
                item = back;
                std::thread::yield_now();
            }
        }
    });
    let mut expected = 0;
    loop {
        // The order matters: an end that is seen before an empty ring is a real end.
        let ended = consumer.is_abandoned();
        let before = expected;
        if expected % 3 == 0 {
            for item in consumer.drain(5) {
                assert_eq!(*item, expected);
                expected += 1;
            }
        } else if let Some(item) = consumer.pop() {
            assert_eq!(*item, expected);
            expected += 1;
        }
        if before == expected {
            if ended {
                break;
            }
            std::thread::yield_now();
        }
    }
    assert_eq!(expected, count);
    feeder.join().expect("the feeding thread does not panic");
}

#[test]
fn slots_are_free_only_when_the_drain_ends() {
    let (mut producer, mut consumer) = channel(2);
    assert_eq!(producer.push(1), Ok(()));
    assert_eq!(producer.push(2), Ok(()));
    let mut drain = consumer.drain(2);
    assert_eq!(drain.next(), Some(1));
    assert_eq!(producer.push(3), Err(3), "the slot is not given free yet");
    drop(drain);
    assert_eq!(producer.push(3), Ok(()));
    assert_eq!(consumer.drain(9).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn a_leaked_drain_loses_no_item_and_frees_no_item_twice() {
    let item = Arc::new(());
    let (mut producer, mut consumer) = channel(2);
    for _ in 0..2 {
        producer.push(Arc::clone(&item)).expect("there is room");
    }
    let mut drain = consumer.drain(1);
    drop(drain.next());
    #[expect(clippy::mem_forget, reason = "leaking the iterator is what is tested")]
    std::mem::forget(drain);
    assert_eq!(producer.push(Arc::clone(&item)), Err(Arc::clone(&item)));
    drop(consumer.pop());
    assert_eq!(Arc::strong_count(&item), 1);
    assert_eq!(producer.push(Arc::clone(&item)), Ok(()));
    drop(producer);
    drop(consumer);
    assert_eq!(Arc::strong_count(&item), 1);
}

#[test]
#[should_panic(expected = "power of two")]
fn a_capacity_that_is_no_power_of_two_is_refused() {
    let _ = channel::<u8>(3);
}

#[test]
#[should_panic(expected = "power of two")]
fn a_capacity_of_zero_is_refused() {
    let _ = channel::<u8>(0);
}
