//! Every interleaving of a few operations, with loom's memory model.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p rpcrdma-fabric --release loom`.

use loom::thread;

use super::channel;
use crate::sync::Arc;

/// Five items through two slots: every slot is used again, so that both hand-overs are explored.
#[test]
fn items_arrive_once_and_in_order() {
    loom::model(|| {
        let (mut producer, mut consumer) = channel::<Box<u32>>(2);
        let feeder = thread::spawn(move || {
            let mut next = 0;
            // A push may fail; bounded attempts keep the number of interleavings finite.
            for _ in 0..5 {
                if producer.push(Box::new(next)).is_ok() {
                    next += 1;
                }
            }
            next
        });
        let mut received = Vec::new();
        for _ in 0..3 {
            received.extend(consumer.pop().map(|item| *item));
        }
        let pushed = feeder.join().unwrap();
        while let Some(item) = consumer.pop() {
            received.push(*item);
        }
        assert_eq!(received, (0..pushed).collect::<Vec<_>>());
    });
}

#[test]
fn a_batch_frees_its_slots_together() {
    loom::model(|| {
        let (mut producer, mut consumer) = channel::<Box<u32>>(2);
        let feeder = thread::spawn(move || {
            (0..4)
                .filter(|value| producer.push(Box::new(*value)).is_ok())
                .collect::<Vec<_>>()
        });
        let mut received = Vec::new();
        for _ in 0..2 {
            received.extend(consumer.drain(2).map(|item| *item));
        }
        let pushed = feeder.join().unwrap();
        received.extend(consumer.drain(2).map(|item| *item));
        assert_eq!(received, pushed);
    });
}

/// Whoever drops last frees what is left, exactly once.
#[test]
fn what_is_left_is_dropped_once() {
    loom::model(|| {
        let item = Arc::new(());
        let (mut producer, mut consumer) = channel::<Arc<()>>(2);
        let held = Arc::clone(&item);
        let feeder = thread::spawn(move || {
            let _full = producer.push(Arc::clone(&held));
            let _full = producer.push(held);
        });
        let first = consumer.pop();
        drop(consumer);
        feeder.join().unwrap();
        assert_eq!(Arc::strong_count(&item), 1 + usize::from(first.is_some()));
    });
}

/// An empty ring after a seen end means that everything has arrived.
#[test]
fn the_end_comes_after_the_last_item() {
    loom::model(|| {
        let (mut producer, mut consumer) = channel::<u32>(2);
        let feeder = thread::spawn(move || {
            producer.push(7).unwrap();
        });
        let ended = consumer.is_abandoned();
        let item = consumer.pop();
        assert!(!ended || item == Some(7), "the end overtook the item");
        feeder.join().unwrap();
    });
}
