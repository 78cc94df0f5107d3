//! The single-producer ring beside crossbeam's `ArrayQueue`: what an item costs on one thread, how
//! many pass between two threads, and how long there and back takes.

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use crossbeam_queue::ArrayQueue;
use rpcrdma_fabric::ring::spsc;

const CAPACITY: u32 = 1024;
const BATCH: u32 = 32;

/// As large as a submission of a call: what a core takes out of a ring in one poll.
type Item = [u64; 4];

/// Spins, but lets another thread run when the machine has fewer cores than the bench threads.
struct Backoff(u32);

impl Backoff {
    fn wait(&mut self) {
        self.0 = self.0.wrapping_add(1);
        if self.0.is_multiple_of(4096) {
            thread::yield_now();
        } else {
            spin_loop();
        }
    }
}

fn same_thread(c: &mut Criterion) {
    let mut group = c.benchmark_group("rings/same_thread");
    group.throughput(Throughput::Elements(1));
    group.bench_function("spsc", |b| {
        let (mut producer, mut consumer) = spsc::channel::<Item>(CAPACITY);
        b.iter(|| {
            let _full = producer.push(black_box([1; 4]));
            black_box(consumer.pop())
        });
    });
    group.bench_function("array_queue", |b| {
        let queue = ArrayQueue::<Item>::new(CAPACITY as usize);
        b.iter(|| {
            let _full = queue.push(black_box([1; 4]));
            black_box(queue.pop())
        });
    });
    group.throughput(Throughput::Elements(BATCH.into()));
    group.bench_function("spsc_drain_32", |b| {
        let (mut producer, mut consumer) = spsc::channel::<Item>(CAPACITY);
        b.iter(|| {
            for _ in 0..BATCH {
                let _full = producer.push(black_box([1; 4]));
            }
            for item in consumer.drain(BATCH) {
                black_box(item);
            }
        });
    });
    group.finish();
}

/// Time for `count` items from another thread to this one.
fn carry(
    count: u64,
    mut push: impl FnMut(Item) -> bool + Send + 'static,
    mut take: impl FnMut() -> u64,
) -> Duration {
    let feeder = thread::spawn(move || {
        let mut backoff = Backoff(0);
        for value in 0..count {
            while !push([value; 4]) {
                backoff.wait();
            }
        }
    });
    let start = Instant::now();
    let mut taken = 0;
    let mut backoff = Backoff(0);
    while taken < count {
        match take() {
            0 => backoff.wait(),
            more => taken += more,
        }
    }
    let elapsed = start.elapsed();
    feeder.join().expect("the feeding thread does not panic");
    elapsed
}

fn throughput(c: &mut Criterion) {
    let mut group = c.benchmark_group("rings/two_threads");
    group.throughput(Throughput::Elements(1));
    group.bench_function("spsc", |b| {
        b.iter_custom(|count| {
            let (mut producer, mut consumer) = spsc::channel::<Item>(CAPACITY);
            carry(
                count,
                move |item| producer.push(item).is_ok(),
                || consumer.pop().map(black_box).map_or(0, |_| 1),
            )
        });
    });
    group.bench_function("spsc_drain_32", |b| {
        b.iter_custom(|count| {
            let (mut producer, mut consumer) = spsc::channel::<Item>(CAPACITY);
            carry(
                count,
                move |item| producer.push(item).is_ok(),
                || consumer.drain(BATCH).map(black_box).map(|_| 1).sum(),
            )
        });
    });
    group.bench_function("array_queue", |b| {
        b.iter_custom(|count| {
            let queue = Arc::new(ArrayQueue::<Item>::new(CAPACITY as usize));
            let producer = Arc::clone(&queue);
            carry(
                count,
                move |item| producer.push(item).is_ok(),
                || queue.pop().map(black_box).map_or(0, |_| 1),
            )
        });
    });
    group.finish();
}

/// Time for `count` items to an echoing thread and back, one at a time.
fn there_and_back(
    count: u64,
    mut echo: impl FnMut() -> bool + Send + 'static,
    mut push: impl FnMut(Item),
    mut take: impl FnMut() -> bool,
) -> Duration {
    let echoing = thread::spawn(move || {
        let mut echoed = 0;
        let mut backoff = Backoff(0);
        while echoed < count {
            if echo() {
                echoed += 1;
            } else {
                backoff.wait();
            }
        }
    });
    let start = Instant::now();
    let mut backoff = Backoff(0);
    for value in 0..count {
        push([value; 4]);
        while !take() {
            backoff.wait();
        }
    }
    let elapsed = start.elapsed();
    echoing.join().expect("the echoing thread does not panic");
    elapsed
}

fn round_trip(c: &mut Criterion) {
    let mut group = c.benchmark_group("rings/round_trip");
    group.bench_function("spsc", |b| {
        b.iter_custom(|count| {
            let (mut there, mut arrived) = spsc::channel::<Item>(CAPACITY);
            let (mut back, mut returned) = spsc::channel::<Item>(CAPACITY);
            there_and_back(
                count,
                move || {
                    let item = arrived.pop();
                    item.is_some_and(|item| back.push(item).is_ok())
                },
                |item| {
                    let _full = there.push(item);
                },
                || returned.pop().map(black_box).is_some(),
            )
        });
    });
    group.bench_function("array_queue", |b| {
        b.iter_custom(|count| {
            let there = Arc::new(ArrayQueue::<Item>::new(CAPACITY as usize));
            let back = Arc::new(ArrayQueue::<Item>::new(CAPACITY as usize));
            let (arrived, returned) = (Arc::clone(&there), Arc::clone(&back));
            there_and_back(
                count,
                move || {
                    let item = arrived.pop();
                    item.is_some_and(|item| back.push(item).is_ok())
                },
                |item| {
                    let _full = there.push(item);
                },
                || returned.pop().map(black_box).is_some(),
            )
        });
    });
    group.finish();
}

criterion_group!(benches, same_thread, throughput, round_trip);
criterion_main!(benches);
