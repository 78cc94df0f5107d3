//! What an idle poll and a message cost a core that has many channels. A core looks at hot channels in each poll; the
//! sender on a cold channel rings a doorbell.
//!
//! `cargo run --release -p rpcrdma-fabric --example channels -- [CHANNELS...]`
//!
//! One server and CHANNELS clients, each with a channel to the server, run in one thread. In a round each client sends one
//! message, the server takes all of them, and each client looks for its acknowledgement once. The times are those of the
//! quickest round.

use std::time::Instant;

use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{
    CompletionBatch, CompletionKind, QueuePairId, ReceiveQueueAttributes, ReceiveQueueId,
    SendOptions,
};
use rpcrdma_fabric::memory::{Arena, ArenaOptions, Buffer, HugePages, PoolShape};
use rpcrdma_fabric::shm::{Port, PortConfig, PortHandle, join};

const BUFFER_BYTES: u32 = 4096;
const MESSAGE_BYTES: u32 = 48;
const REPEATS: usize = 7;
/// Polls until all hot channels of an idle port but one have gone cold.
const SLEEP_POLLS: u32 = 2_000_000;

/// A port with a buffer to send from.
struct End {
    port: Port,
    handle: PortHandle,
    queue: ReceiveQueueId,
    message: Buffer,
}

impl End {
    fn new(number: u32, queue_pairs: u32, clock: &Clock) -> Self {
        // A Receive for each peer, and the message.
        let buffers = queue_pairs + 1;
        let arena = Arena::shared(&ArenaOptions {
            bytes: u64::from(buffers) * u64::from(BUFFER_BYTES),
            huge_pages: HugePages::Never,
        })
        .expect("memory for the arena");
        let usual = PortConfig::new(number, arena, clock.clone());
        let (mut port, handle) = Port::new(PortConfig {
            queue_pairs_max: queue_pairs,
            windows_max: 1,
            work_requests_max: usual.work_requests_max.max(4 * queue_pairs),
            ..usual
        })
        .expect("a port");
        let shape = PoolShape {
            buffers,
            buffer_bytes: BUFFER_BYTES,
            stride_bytes: BUFFER_BYTES,
            align_bytes: BUFFER_BYTES,
        };
        let mut pool = port.carve(shape).expect("the arena has room");
        let queue = ReceiveQueueAttributes {
            depth: queue_pairs,
            segments_max: 1,
        };
        let queue = port.create_receive_queue(queue).expect("a queue");
        let message = pool.take().expect("a buffer for the message");
        while let Some(buffer) = pool.take() {
            let receive = port.create_receive(queue, &mut std::iter::once(buffer));
            port.post_receive(receive.expect("the queue has room"));
        }
        port.flush_receives();
        Self {
            port,
            handle,
            queue,
            message,
        }
    }

    /// Polls once. How many messages came.
    fn poll(&mut self, batch: &mut CompletionBatch) -> usize {
        self.port.poll(0, batch);
        let mut came = 0;
        while let Some((_, receive, _)) = batch.take_message() {
            self.port.post_receive(receive);
            came += 1;
        }
        while let Some(completion) = batch.take() {
            if let CompletionKind::Receive { receive, .. } = completion.kind {
                self.port.post_receive(receive);
                came += 1;
            }
        }
        self.port.flush_receives();
        self.port.flush_sends();
        came
    }

    fn send(&mut self, queue_pair: QueuePairId) {
        let options = SendOptions::default();
        let sent = self
            .port
            .post_send_copied(queue_pair, &self.message, MESSAGE_BYTES, options);
        sent.expect("the ring has room");
        self.port.flush_sends();
    }
}

/// One message of each client. Not inlined, so that its instructions can be counted.
#[inline(never)]
fn round(server: &mut End, clients: &mut [(End, QueuePairId)], batch: &mut CompletionBatch) {
    for (client, queue_pair) in clients.iter_mut() {
        client.send(*queue_pair);
    }
    let mut missing = clients.len();
    while missing != 0 {
        missing -= server.poll(batch);
    }
    for (client, _) in clients.iter_mut() {
        client.poll(batch);
    }
}

/// Polls in which nothing comes. Not inlined, so that its instructions can be counted.
#[inline(never)]
fn idle(server: &mut End, polls: u32, batch: &mut CompletionBatch) {
    for _ in 0..polls {
        server.poll(batch);
    }
}

/// The least nanoseconds of one of `count` things that `work` does.
fn least_ns(count: u32, mut work: impl FnMut()) -> f64 {
    let mut least = f64::MAX;
    for _ in 0..REPEATS {
        let start = Instant::now();
        work();
        least = least.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(count));
    }
    least
}

fn main() {
    let clock = Clock::new();
    let mut counts: Vec<u32> = std::env::args()
        .skip(1)
        .map(|text| text.parse().expect("a number of channels"))
        .collect();
    if counts.is_empty() {
        counts = vec![1, 4, 8, 16, 64, 256, 1024];
    }
    println!("channels  idle poll  asleep  a message: of all channels, of the first alone");
    for channels in counts {
        let mut server = End::new(0, channels, &clock);
        let mut clients: Vec<(End, QueuePairId)> = Vec::new();
        for number in 1..=channels {
            let mut client = End::new(number, 1, &clock);
            let queues = (client.queue, server.queue);
            let (port, handle) = (&mut server.port, &server.handle);
            let joined = join(&mut client.port, &client.handle, port, handle, queues);
            clients.push((client, joined.expect("a channel").0));
        }
        let batch = &mut CompletionBatch::new();
        let rounds = (200_000 / channels).max(100);
        let mut message_ns = |clients: &mut [(End, QueuePairId)], server: &mut End| {
            let messages = rounds * u32::try_from(clients.len()).expect("few channels");
            least_ns(messages, || {
                for _ in 0..rounds {
                    round(server, clients, batch);
                }
            })
        };
        let all_ns = message_ns(&mut clients, &mut server);
        let idle_ns = least_ns(4_000, || {
            idle(&mut server, 4_000, &mut CompletionBatch::new());
        });
        idle(&mut server, SLEEP_POLLS, &mut CompletionBatch::new());
        let asleep_ns = least_ns(100_000, || {
            idle(&mut server, 100_000, &mut CompletionBatch::new());
        });
        let one_ns = message_ns(&mut clients[..1], &mut server);
        println!(
            "{channels:8}  {idle_ns:6.1} ns  {asleep_ns:3.1} ns  {all_ns:19.1} ns  {one_ns:14.1} ns"
        );
    }
}
