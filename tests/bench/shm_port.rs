//! What a message and an idle poll cost, without the way between two cores: both ports in one
//! thread.

use criterion::{Criterion, criterion_group, criterion_main};
use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{
    CompletionBatch, CompletionKind, QueuePairId, ReceiveQueueAttributes, ReceiveQueueId,
    SendOptions,
};
use rpcrdma_fabric::memory::{Arena, ArenaOptions, HugePages, Pool, PoolShape};
use rpcrdma_fabric::shm::{Joint, Port, PortConfig, PortHandle, join};

struct End {
    port: Port,
    handle: PortHandle,
    pool: Pool,
    queue: ReceiveQueueId,
}

fn end(number: u32, clock: &Clock) -> End {
    let options = ArenaOptions {
        bytes: 1 << 20,
        huge_pages: HugePages::Never,
    };
    let arena = Arena::shared(&options).expect("memory");
    let mut config = PortConfig::new(number, arena, clock.clone());
    config.queue_pairs_max = 4200;
    config.work_requests_max = 4 * config.queue_pairs_max;
    let (mut port, handle) = Port::new(config).expect("a port");
    let shape = PoolShape {
        buffers: 128,
        buffer_bytes: 1024,
        stride_bytes: 1024 + 128,
        align_bytes: 4096,
    };
    let mut pool = port.carve(shape).expect("a pool");
    let attributes = ReceiveQueueAttributes {
        depth: 64,
        segments_max: 1,
    };
    let queue = port.create_receive_queue(attributes).expect("a queue");
    for _ in 0..64 {
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

fn pair(clock: &Clock) -> (End, End, QueuePairId) {
    let (mut a, mut b) = (end(0, clock), end(1, clock));
    let queues = (a.queue, b.queue);
    let ids = join(&mut a.port, &a.handle, &mut b.port, &b.handle, queues).expect("joined");
    (a, b, ids.0)
}

fn exchange(a: &mut End, b: &mut End, id: QueuePairId, bytes: u32, count: u32) -> u64 {
    let mut batch = CompletionBatch::new();
    let buffer = a.pool.take().expect("a buffer");
    for _ in 0..count {
        let posted = a
            .port
            .post_send_copied(id, &buffer, bytes, SendOptions::default());
        posted.expect("there is room");
    }
    a.port.flush_sends();
    a.pool.give(buffer);
    let mut sum = 0;
    for _ in 0..count.div_ceil(8) {
        b.port.poll(0, &mut batch);
        for completion in batch.drain() {
            if let CompletionKind::Receive { receive, .. } = completion.kind {
                sum += u64::from(b.port.received(&receive)[0]);
                b.port.post_receive(receive);
            }
        }
        b.port.flush_receives();
    }
    sum
}

fn messages(criterion: &mut Criterion) {
    let clock = Clock::new();
    for bytes in [100, 1024] {
        let (mut a, mut b, id) = pair(&clock);
        criterion.bench_function(&format!("shm message of {bytes} bytes"), |bencher| {
            bencher.iter(|| exchange(&mut a, &mut b, id, bytes, 1));
        });
        criterion.bench_function(&format!("shm 8 messages of {bytes} bytes"), |bencher| {
            bencher.iter(|| exchange(&mut a, &mut b, id, bytes, 8));
        });
    }
}

fn idle(criterion: &mut Criterion) {
    let clock = Clock::new();
    let mut batch = CompletionBatch::new();
    let (mut a, _b, _) = pair(&clock);
    criterion.bench_function("shm idle poll, 1 channel", |bencher| {
        bencher.iter(|| a.port.poll(0, &mut batch));
    });
    let mut a = end(0, &clock);
    let mut others: Vec<End> = (1..=8).map(|number| end(number, &clock)).collect();
    for other in &mut others {
        let joint = Joint::new(&a.port, &a.handle, &other.port, &other.handle).expect("files");
        let queues = (a.queue, other.queue);
        for _ in 0..512 {
            joint
                .connect(
                    &mut a.port,
                    &a.handle,
                    &mut other.port,
                    &other.handle,
                    queues,
                )
                .expect("joined");
        }
    }
    criterion.bench_function("shm idle poll, 8 channels, 4096 queue pairs", |bencher| {
        bencher.iter(|| a.port.poll(0, &mut batch));
    });
}

criterion_group!(benches, messages, idle);
criterion_main!(benches);
