//! Round trips and rate of two shm ports on two pinned cores, beside the floor of the same run:
//! one line each way that rotates through 64 slots.
//!
//! `cargo run --release -p rpcrdma-fabric --example pingpong -- [BYTES [CORE CORE [REPEATS]]]`

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::{
    CompletionBatch, CompletionKind, Port as _, PostError, QueuePairId, ReceiveQueueAttributes,
    ReceiveQueueId, SendOptions,
};
use rpcrdma_fabric::memory::{Arena, ArenaOptions, Buffer, HugePages, Pool, PoolShape};
use rpcrdma_fabric::shm::{Port, PortConfig, PortHandle, join};

const SLOTS: usize = 64;
const ROUNDS: usize = 200_000;
const WARMUP: usize = 20_000;
const RATE_CALLS: u64 = 1_000_000;

#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).expect("the core exists");
}

fn percentile(sorted: &[u64], per_mille: usize) -> u64 {
    sorted[(sorted.len() * per_mille / 1000).min(sorted.len() - 1)]
}

/// Round-trip times in ticks of one line each way.
fn floor(cores: [usize; 2], clock: &Clock) -> Vec<u64> {
    let lines = || -> Arc<Vec<Line>> { Arc::new((0..SLOTS).map(|_| Line::default()).collect()) };
    let (there, back) = (lines(), lines());
    let rounds = ROUNDS + WARMUP;
    let echo = {
        let (there, back) = (Arc::clone(&there), Arc::clone(&back));
        thread::spawn(move || {
            pin(cores[1]);
            for round in 1..=rounds {
                let (slot, round) = (round % SLOTS, round as u64);
                while there[slot].0.load(Ordering::Acquire) != round {
                    std::hint::spin_loop();
                }
                back[slot].0.store(round, Ordering::Release);
            }
        })
    };
    pin(cores[0]);
    let mut times = Vec::with_capacity(ROUNDS);
    for round in 1..=rounds {
        let (slot, value) = (round % SLOTS, round as u64);
        let start = clock.now();
        there[slot].0.store(value, Ordering::Release);
        while back[slot].0.load(Ordering::Acquire) != value {
            std::hint::spin_loop();
        }
        if round > WARMUP {
            times.push(clock.now() - start);
        }
    }
    echo.join().expect("the echo thread ends");
    times.sort_unstable();
    times
}

struct End {
    port: Port,
    handle: PortHandle,
    pool: Pool,
    queue: ReceiveQueueId,
}

fn end(number: u32, clock: &Clock) -> End {
    let options = ArenaOptions {
        bytes: 8 << 20,
        huge_pages: HugePages::Prefer,
    };
    let arena = Arena::shared(&options).expect("memory");
    let config = PortConfig::new(number, arena, clock.clone());
    let (mut port, handle) = Port::new(config).expect("a port");
    let shape = PoolShape {
        buffers: 1024,
        buffer_bytes: 1024,
        stride_bytes: 1024 + 128,
        align_bytes: 4096,
    };
    let mut pool = port.carve(shape).expect("a pool");
    let attributes = ReceiveQueueAttributes {
        depth: 512,
        segments_max: 2,
    };
    let queue = port.create_receive_queue(attributes).expect("a queue");
    for _ in 0..512 {
        let buffer = pool.take().expect("a buffer");
        let receive = port.create_receive(queue, &mut std::iter::once(buffer));
        port.post_receive(receive.expect("a Receive"));
    }
    port.flush_receives();
    End {
        port,
        handle,
        pool,
        queue,
    }
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(word)
}

fn send(port: &mut Port, id: QueuePairId, buffer: &mut Buffer, bytes: u32, value: u64) -> bool {
    port.memory().bytes_mut(buffer)[..8].copy_from_slice(&value.to_le_bytes());
    match port.post_send_copied(id, buffer, bytes, SendOptions::default()) {
        Ok(()) => true,
        Err(PostError::QueueFull) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Echoes until told to stop.
fn serve(mut end: End, id: QueuePairId, bytes: u32, stop: &AtomicBool, clock: &Clock) -> End {
    let mut batch = CompletionBatch::new();
    let mut buffer = end.pool.take().expect("a buffer");
    while !stop.load(Ordering::Relaxed) {
        end.port.poll(clock.now(), &mut batch);
        if batch.is_empty() {
            std::hint::spin_loop();
            continue;
        }
        for completion in batch.drain() {
            if let CompletionKind::Receive { receive, .. } = completion.kind {
                let value = word(end.port.received(&receive));
                end.port.post_receive(receive);
                while !send(&mut end.port, id, &mut buffer, bytes, value) {}
            }
        }
        end.port.flush_receives();
        end.port.flush_sends();
    }
    end.pool.give(buffer);
    end
}

struct Caller {
    end: End,
    id: QueuePairId,
    bytes: u32,
    clock: Clock,
    now: u64,
}

impl Caller {
    /// Takes replies; calls `each` with the value and the time. One clock read for a poll.
    fn reap(&mut self, batch: &mut CompletionBatch, mut each: impl FnMut(u64, u64)) {
        self.end.port.poll(self.now, batch);
        self.now = self.clock.now();
        if batch.is_empty() {
            std::hint::spin_loop();
            return;
        }
        for completion in batch.drain() {
            if let CompletionKind::Receive { receive, .. } = completion.kind {
                each(word(self.end.port.received(&receive)), self.now);
                self.end.port.post_receive(receive);
            }
        }
        self.end.port.flush_receives();
    }

    fn latency(&mut self) -> Vec<u64> {
        let mut batch = CompletionBatch::new();
        let mut buffer = self.end.pool.take().expect("a buffer");
        let mut times = Vec::with_capacity(ROUNDS);
        for round in 1..=ROUNDS + WARMUP {
            let value = round as u64;
            let start = self.now;
            while !send(&mut self.end.port, self.id, &mut buffer, self.bytes, value) {}
            self.end.port.flush_sends();
            let mut done = None;
            while done.is_none() {
                self.reap(&mut batch, |reply, time| {
                    assert_eq!(reply, value);
                    done = Some(time);
                });
            }
            if round > WARMUP {
                times.push(done.unwrap_or(start) - start);
            }
        }
        self.end.pool.give(buffer);
        times.sort_unstable();
        times
    }

    /// Millions of calls in a second, at `depth` calls outstanding.
    fn rate(&mut self, depth: u64) -> f64 {
        let mut batch = CompletionBatch::new();
        let mut buffer = self.end.pool.take().expect("a buffer");
        let (mut sent, mut done) = (0, 0);
        let start = self.clock.now();
        while done < RATE_CALLS {
            while sent - done < depth
                && sent < RATE_CALLS
                && send(&mut self.end.port, self.id, &mut buffer, self.bytes, sent)
            {
                sent += 1;
            }
            self.end.port.flush_sends();
            self.reap(&mut batch, |value, _| {
                assert_eq!(value, done);
                done += 1;
            });
        }
        let ticks = self.clock.now() - start;
        self.end.pool.give(buffer);
        done as f64 / self.clock.nanos_between(0, ticks) as f64 * 1000.0
    }
}

fn main() {
    let arguments: Vec<usize> = std::env::args()
        .skip(1)
        .map(|argument| argument.parse().expect("a number"))
        .collect();
    let bytes = u32::try_from(*arguments.first().unwrap_or(&100)).expect("few bytes");
    let cores = [
        *arguments.get(1).unwrap_or(&0),
        *arguments.get(2).unwrap_or(&1),
    ];
    let clock = Clock::new();
    for _ in 0..*arguments.get(3).unwrap_or(&5) {
        let base = floor(cores, &clock);
        let (mut a, mut b) = (end(0, &clock), end(1, &clock));
        let queues = (a.queue, b.queue);
        let (a_id, b_id) =
            join(&mut a.port, &a.handle, &mut b.port, &b.handle, queues).expect("joined");
        let stop = Arc::new(AtomicBool::new(false));
        let ready = Arc::new(Barrier::new(2));
        let server = {
            let (stop, ready, clock) = (Arc::clone(&stop), Arc::clone(&ready), clock.clone());
            thread::spawn(move || {
                pin(cores[1]);
                ready.wait();
                serve(b, b_id, bytes, &stop, &clock)
            })
        };
        pin(cores[0]);
        ready.wait();
        let mut caller = Caller {
            end: a,
            id: a_id,
            bytes,
            clock: clock.clone(),
            now: 0,
        };
        let times = caller.latency();
        let rates = [1, 8, 32, 64].map(|depth| caller.rate(depth));
        stop.store(true, Ordering::Relaxed);
        let served = server.join().expect("the server ends");
        let nanos = |times: &[u64], per_mille| clock.nanos_between(0, percentile(times, per_mille));
        println!(
            "{bytes} bytes: floor p50 {} ns; round trip p50 {} p99 {} p99.9 {} ns ({:.2} x floor); \
             M calls/s at depth 1/8/32/64: {:.2} {:.2} {:.2} {:.2}",
            nanos(&base, 500),
            nanos(&times, 500),
            nanos(&times, 990),
            nanos(&times, 999),
            nanos(&times, 500) as f64 / nanos(&base, 500) as f64,
            rates[0],
            rates[1],
            rates[2],
            rates[3],
        );
        drop(served);
    }
}
