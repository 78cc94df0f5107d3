// Two ports of shm in one thread, for the examples in this crate's documentation. Each takes this file
// in by `include!`, as a module of its own.

use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::{
    Access, Completion, CompletionBatch, Port as _, QueuePairId, ReceiveQueueAttributes,
    ReceiveQueueId, SendOptions, Window,
};
use rpcrdma_fabric::memory::{Arena, ArenaOptions, Buffer, HugePages, Pool, PoolShape};
use rpcrdma_fabric::shm;

const POOL: PoolShape = PoolShape {
    buffers: 64,
    buffer_bytes: 8192,
    stride_bytes: 8192,
    align_bytes: 64,
};

const QUEUE: ReceiveQueueAttributes = ReceiveQueueAttributes {
    depth: 16,
    segments_max: 1,
};

/// A port with what its core would hold.
pub struct End {
    pub port: shm::Port,
    pub handle: shm::PortHandle,
    pub pool: Pool,
    pub queue: ReceiveQueueId,
    pub id: QueuePairId,
}

impl End {
    /// Port `number` of this process, with eight posted Receives and no connection.
    pub fn new(number: u32) -> Self {
        let options = ArenaOptions {
            bytes: 64 * 8192,
            huge_pages: HugePages::Never,
        };
        let arena = Arena::shared(&options).expect("memory");
        let mut config = shm::PortConfig::new(number, arena, Clock::new());
        config.queue_pairs_max = 4;
        let (mut port, handle) = shm::Port::new(config).expect("a port");
        let mut pool = port.carve(POOL).expect("the arena has room");
        let queue = port.create_receive_queue(QUEUE).expect("a queue");
        for buffer in (0..8).map_while(|_| pool.take()) {
            let receive = port.create_receive(queue, &mut std::iter::once(buffer));
            port.post_receive(receive.expect("the queue has room"));
        }
        port.flush_receives();
        let id = QueuePairId {
            index: 0,
            generation: 0,
        };
        Self {
            port,
            handle,
            pool,
            queue,
            id,
        }
    }

    /// A buffer of the pool that begins with `bytes`.
    pub fn filled(&mut self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.pool.take().expect("a buffer is free");
        self.port.memory().bytes_mut(&mut buffer)[..bytes.len()].copy_from_slice(bytes);
        buffer
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.port.flush_receives();
        self.port.flush_sends();
        let mut batch = CompletionBatch::new();
        self.port.poll(0, &mut batch);
        completions.extend(batch.drain());
    }
}

/// Two ports that are joined by one queue pair.
pub fn ends() -> [End; 2] {
    let [mut a, mut b] = [0, 1].map(End::new);
    let queues = (a.queue, b.queue);
    let joined = shm::join(&mut a.port, &a.handle, &mut b.port, &b.handle, queues);
    (a.id, b.id) = joined.expect("both ports are fresh");
    [a, b]
}

/// Hands over what was posted and polls both ends, often enough for all of it to end: the
/// completions of each.
pub fn settle(a: &mut End, b: &mut End) -> [Vec<Completion>; 2] {
    let mut completions = [Vec::new(), Vec::new()];
    for _ in 0..256 {
        a.poll(&mut completions[0]);
        b.poll(&mut completions[1]);
    }
    completions
}

/// Exposes `bytes` of `a` to `b`, by a window that a Send has opened.
pub fn expose(a: &mut End, b: &mut End, bytes: &[u8], access: Access) -> Window {
    let (buffer, length_bytes) = (a.filled(bytes), u32::try_from(bytes.len()));
    let length_bytes = length_bytes.expect("few bytes");
    let window = a.port.bind_window(a.id, buffer, length_bytes, access);
    let word = a.filled(b"exposed");
    let options = SendOptions::default();
    let sent = a.port.post_send_copied(a.id, &word, 7, options);
    sent.expect("the queue has room");
    a.pool.give(word);
    settle(a, b);
    window.expect("a window is free")
}
