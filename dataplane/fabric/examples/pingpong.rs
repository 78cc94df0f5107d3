//! Round trips and rate of two ports on two pinned cores, beside the floor of the same run: one line
//! each way that rotates through 64 slots.
//!
//! `cargo run --release -p rpcrdma-fabric --example pingpong -- [BYTES [CORE CORE [REPEATS]]]`
//!
//! The ports are of shm; with a device named in `RDMA_DEVICE` they are of
//! that device, and half a round trip is what `ib_send_lat` prints. `RDMA_INLINE_BYTES` says up to
//! how many bytes a Send travels in its work request (220 by default, as there). A device is slower
//! than shm, so `ROUNDS` and `CALLS` say how much is done.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::{
    CompletionBatch, CompletionKind, Port, PostError, QueuePairId, ReceiveQueueAttributes,
    ReceiveQueueId, SendOptions,
};
use rpcrdma_fabric::memory::{Arena, ArenaOptions, Buffer, HugePages, Pool, PoolShape};
use rpcrdma_fabric::shm;
use rpcrdma_fabric::verbs;

const SLOTS: usize = 64;
const ROUNDS: u32 = 200_000;
const WARMUP: u32 = 20_000;
const CALLS: u32 = 1_000_000;

#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).expect("the core exists");
}

/// A number of the environment.
fn setting(name: &str, default: u32) -> u32 {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

fn percentile(sorted: &[u64], per_mille: usize) -> u64 {
    sorted[(sorted.len() * per_mille / 1000).min(sorted.len() - 1)]
}

/// Round-trip times in ticks of one line each way.
fn floor(cores: [usize; 2], clock: &Clock) -> Vec<u64> {
    let lines = || -> Arc<Vec<Line>> { Arc::new((0..SLOTS).map(|_| Line::default()).collect()) };
    let (there, back) = (lines(), lines());
    let rounds = setting("ROUNDS", ROUNDS);
    let (warmup, count) = (WARMUP.min(rounds / 10) as usize, rounds as usize);
    let rounds = count + warmup;
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
    let mut times = Vec::with_capacity(count);
    for round in 1..=rounds {
        let (slot, value) = (round % SLOTS, round as u64);
        let start = clock.now();
        there[slot].0.store(value, Ordering::Release);
        while back[slot].0.load(Ordering::Acquire) != value {
            std::hint::spin_loop();
        }
        if round > warmup {
            times.push(clock.now() - start);
        }
    }
    echo.join().expect("the echo thread ends");
    times.sort_unstable();
    times
}

struct End<P> {
    port: P,
    pool: Pool,
    queue: ReceiveQueueId,
}

/// Two ports of shm, joined.
fn shm_pair(clock: &Clock) -> [(End<shm::Port>, QueuePairId); 2] {
    let made = [0, 1].map(|number| {
        let arena = Arena::shared(&arena_options()).expect("memory");
        let config = shm::PortConfig::new(number, arena, clock.clone());
        let (port, handle) = shm::Port::new(config).expect("a port");
        (end(port), handle)
    });
    let [(mut a, a_handle), (mut b, b_handle)] = made;
    let queues = (a.queue, b.queue);
    let joined = shm::join(&mut a.port, &a_handle, &mut b.port, &b_handle, queues);
    let (a_id, b_id) = joined.expect("joined");
    [(a, a_id), (b, b_id)]
}

/// Two ports of an RDMA device, joined.
fn verbs_pair(clock: &Clock, device: &str) -> [(End<verbs::Port>, QueuePairId); 2] {
    let made = [0, 1].map(|_| {
        let arena = Arena::private(&arena_options()).expect("memory");
        let config = verbs::PortConfig {
            device: Some(device.to_owned()),
            queue_pairs_max: 1,
            work_requests_max: 1024,
            device_inline_bytes_max: setting("RDMA_INLINE_BYTES", 220),
            ..verbs::PortConfig::new(arena, clock.clone())
        };
        let (port, handle) = verbs::Port::new(config).expect("a port");
        (end(port), handle)
    });
    let [(mut a, a_handle), (mut b, b_handle)] = made;
    let queues = (a.queue, b.queue);
    let joined = verbs::join(&mut a.port, &a_handle, &mut b.port, &b_handle, queues);
    let (a_id, b_id) = joined.expect("joined");
    [(a, a_id), (b, b_id)]
}

fn arena_options() -> ArenaOptions {
    ArenaOptions {
        bytes: 8 << 20,
        huge_pages: HugePages::Prefer,
    }
}

/// A port with a pool and 512 posted Receives.
fn end<P: Port>(mut port: P) -> End<P> {
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
    End { port, pool, queue }
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(word)
}

fn send<P: Port>(
    port: &mut P,
    id: QueuePairId,
    buffer: &mut Buffer,
    bytes: u32,
    value: u64,
) -> bool {
    port.memory().bytes_mut(buffer)[..8].copy_from_slice(&value.to_le_bytes());
    match port.post_send_copied(id, buffer, bytes, SendOptions::default()) {
        Ok(()) => true,
        Err(PostError::QueueFull) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Sends, however full the queue is: what completes meanwhile is only our own Sends, because no
/// more calls are outstanding than there are places.
fn answer<P: Port>(port: &mut P, id: QueuePairId, buffer: &mut Buffer, bytes: u32, value: u64) {
    while !send(port, id, buffer, bytes, value) {
        port.flush_sends();
    }
}

/// Echoes until told to stop.
fn serve<P: Port>(
    mut end: End<P>,
    id: QueuePairId,
    bytes: u32,
    stop: &AtomicBool,
    clock: &Clock,
) -> End<P> {
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
                answer(&mut end.port, id, &mut buffer, bytes, value);
            }
        }
        end.port.flush_receives();
        end.port.flush_sends();
    }
    end.pool.give(buffer);
    end
}

struct Caller<P> {
    end: End<P>,
    id: QueuePairId,
    bytes: u32,
    clock: Clock,
    now: u64,
}

impl<P: Port> Caller<P> {
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
        let rounds = setting("ROUNDS", ROUNDS);
        let warmup = WARMUP.min(rounds / 10);
        let mut times = Vec::with_capacity(rounds as usize);
        for round in 1..=rounds + warmup {
            let value = u64::from(round);
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
            if round > warmup {
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
        let calls = u64::from(setting("CALLS", CALLS));
        let start = self.clock.now();
        while done < calls {
            while sent - done < depth
                && sent < calls
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
    let device = std::env::var("RDMA_DEVICE").ok();
    for _ in 0..*arguments.get(3).unwrap_or(&5) {
        let base = floor(cores, &clock);
        match &device {
            None => measure(shm_pair(&clock), bytes, cores, &clock, &base),
            Some(device) => measure(verbs_pair(&clock, device), bytes, cores, &clock, &base),
        }
    }
}

/// Round trips and rates between two ends, printed.
fn measure<P: Port>(
    pair: [(End<P>, QueuePairId); 2],
    bytes: u32,
    cores: [usize; 2],
    clock: &Clock,
    base: &[u64],
) {
    let [(a, a_id), (b, b_id)] = pair;
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
         M calls/s at depth 1/8/32/64: {:.4} {:.4} {:.4} {:.4}",
        nanos(base, 500),
        nanos(&times, 500),
        nanos(&times, 990),
        nanos(&times, 999),
        nanos(&times, 500) as f64 / nanos(base, 500) as f64,
        rates[0],
        rates[1],
        rates[2],
        rates[3],
    );
    drop(served);
}
