//! One end of shm connections, for tests with several processes: a port with its manager, that
//! answers, verifies and keeps the books.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{
    Completion, CompletionBatch, CompletionKind, ConnectionId, Gather, Manager, ManagerEvent,
    PostError, QueuePairId, ReceiveQueueAttributes, ReceiveQueueId, SendOptions, Status, WorkId,
};
use rpcrdma_fabric::memory::{Arena, ArenaOptions, HugePages, Pool, PoolShape};
use rpcrdma_fabric::shm;
use rpcrdma_testkit::Wait;

/// Bytes of every buffer: the longest message of these tests.
pub const BUFFER_BYTES: u32 = 4096;
/// How long a peer may be silent in a handshake.
// TIME: a day is longer than any test may run, so no slow machine ends a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// The bytes of message number `number` of a stream: every word tells where it belongs.
#[must_use]
pub fn message(stream: u64, number: u64, bytes: u32) -> Vec<u8> {
    let head = stream << 32 | number;
    (0_u64..)
        .flat_map(|word| (head ^ word.wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_le_bytes())
        .take(bytes as usize)
        .collect()
}

/// A manager that gives no peer up: the processors of a test machine have other work as well.
///
/// # Panics
///
/// When the system has no descriptors for it.
#[must_use]
pub fn patient_manager() -> shm::Manager {
    shm::Manager::with_options(shm::ManagerOptions {
        handshake_timeout: HANDSHAKE_TIMEOUT,
        ..shm::ManagerOptions::default()
    })
    .expect("a manager")
}

/// How large a peer is.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// The port's number within its process.
    pub port: u32,
    /// Buffers for Sends.
    pub sends: u32,
    /// Receives, all of which are posted.
    pub receives: u32,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Channels that are polled without a doorbell.
    pub hot_channels: u32,
}

/// A port, its manager, its buffers and its books.
pub struct Peer {
    /// The port.
    pub port: shm::Port,
    handle: shm::PortHandle,
    /// Its connection manager.
    pub manager: shm::Manager,
    /// The clock of the port.
    pub clock: Clock,
    /// Buffers for Sends.
    pub pool: Pool,
    queue: ReceiveQueueId,
    sizes: Sizes,
    /// Connections that stand, and their queue pairs.
    pub connections: HashMap<ConnectionId, QueuePairId>,
    /// Messages that arrived, whole, and were not taken.
    pub arrivals: VecDeque<(QueuePairId, Vec<u8>)>,
    /// Signalled Sends under way.
    outstanding: HashMap<WorkId, QueuePairId>,
    next_work: u64,
    /// How Sends ended that did not succeed.
    pub failures: Vec<(QueuePairId, Status)>,
    /// Queue pairs of which `Disconnected` came, and when.
    pub ended: HashMap<QueuePairId, Instant>,
    /// Connections of which the manager reported the end.
    pub lost: HashSet<ConnectionId>,
}

impl Peer {
    /// A peer with its Receives posted.
    ///
    /// # Panics
    ///
    /// When the machine lacks the memory.
    #[must_use]
    pub fn new(sizes: Sizes) -> Self {
        let clock = Clock::new();
        let buffers = sizes.sends + sizes.receives;
        let arena = Arena::shared(&ArenaOptions {
            bytes: u64::from(buffers) * u64::from(BUFFER_BYTES),
            huge_pages: HugePages::Never,
        })
        .expect("an arena of ordinary pages");
        let mut config = shm::PortConfig::new(sizes.port, arena, clock.clone());
        config.queue_pairs_max = sizes.queue_pairs;
        config.windows_max = 16;
        config.hot_channels_max = sizes.hot_channels;
        let (mut port, handle) = shm::Port::new(config).expect("a port of moderate size");
        let mut pool = port
            .carve(PoolShape {
                buffers,
                buffer_bytes: BUFFER_BYTES,
                stride_bytes: BUFFER_BYTES,
                align_bytes: 4096,
            })
            .expect("the arena is as large as the pool");
        let queue = port
            .create_receive_queue(ReceiveQueueAttributes {
                depth: sizes.receives,
                segments_max: 1,
            })
            .expect("a receive queue of moderate size");
        for _ in 0..sizes.receives {
            let receive = port
                .create_receive(queue, &mut pool.take().into_iter())
                .expect("a Receive of one segment");
            port.post_receive(receive);
        }
        port.flush_receives();
        Self {
            port,
            handle,
            manager: patient_manager(),
            clock,
            pool,
            queue,
            sizes,
            connections: HashMap::new(),
            arrivals: VecDeque::new(),
            outstanding: HashMap::new(),
            next_work: 0,
            failures: Vec::new(),
            ended: HashMap::new(),
            lost: HashSet::new(),
        }
    }

    /// Connects to a listener; returns when the connection stands.
    ///
    /// # Panics
    ///
    /// When it cannot be made.
    pub fn connect(&mut self, address: &str) -> QueuePairId {
        let connection = self
            .manager
            .connect(address, &self.handle, &[])
            .expect("the listener is there");
        let wait = Wait::begin("a connection");
        while !self.connections.contains_key(&connection) {
            wait.look(|| format!("to {address}: {:?}", self.manager));
            self.manage(Duration::from_millis(50));
        }
        self.connections[&connection]
    }

    /// Lets the manager work: accepts what asks, goes on with what was asked for, and hands the
    /// port what it must know.
    ///
    /// # Panics
    ///
    /// When a handshake breaks.
    pub fn manage(&mut self, timeout: Duration) {
        let mut events = Vec::new();
        self.manager
            .wait(timeout, &mut events)
            .expect("the manager waits");
        for event in events {
            self.handle_event(event);
        }
    }

    fn handle_event(&mut self, event: ManagerEvent<shm::Port>) {
        match event {
            ManagerEvent::ConnectRequest { connection, .. } => {
                self.adopt_queue_pair(connection);
                // The peer may be gone already, which the manager reports.
                let _gone = self.manager.accept(connection, &[]);
            }
            ManagerEvent::ConnectReply { connection, .. } => {
                self.adopt_queue_pair(connection);
                self.manager
                    .confirm(connection)
                    .expect("the handshake goes on");
            }
            ManagerEvent::Established { port_event, .. } => {
                if let Some(port_event) = port_event {
                    self.port.handle_event(port_event);
                }
            }
            ManagerEvent::Disconnected {
                connection,
                port_event,
            } => {
                if let Some(port_event) = port_event {
                    self.port.handle_event(port_event);
                }
                self.lost.insert(connection);
            }
            ManagerEvent::Rejected { reason, .. } => panic!("rejected: {reason}"),
            ManagerEvent::Failed { error, .. } => panic!("no connection: {error}"),
            ManagerEvent::ListenerLost { .. }
            | ManagerEvent::ListenerRestored { .. }
            | ManagerEvent::LinkDown { .. } => {
                panic!("shm has no device to lose")
            }
        }
    }

    fn adopt_queue_pair(&mut self, connection: ConnectionId) {
        let seed = self
            .manager
            .prepare(connection, &self.handle)
            .expect("a queue pair is free");
        let queue_pair = self
            .port
            .adopt_queue_pair(seed, self.queue)
            .expect("it is planted");
        self.connections.insert(connection, queue_pair);
    }

    /// Sends `data`, copied, unsignalled.
    ///
    /// # Errors
    ///
    /// As [`post_send_copied`](rpcrdma_fabric::interface::PortSends::post_send_copied).
    pub fn send_copied(&mut self, queue_pair: QueuePairId, data: &[u8]) -> Result<(), PostError> {
        let (buffer, bytes) = self.filled(data).ok_or(PostError::QueueFull)?;
        let result = self
            .port
            .post_send_copied(queue_pair, &buffer, bytes, SendOptions::default());
        self.pool.give(buffer);
        result
    }

    /// Sends `data` from registered memory, signalled.
    ///
    /// # Errors
    ///
    /// As [`post_send`](rpcrdma_fabric::interface::PortSends::post_send).
    pub fn send_registered(
        &mut self,
        queue_pair: QueuePairId,
        data: &[u8],
    ) -> Result<(), PostError> {
        let mut list = self.gathered(data).ok_or(PostError::QueueFull)?;
        let work = WorkId(self.next_work);
        self.next_work += 1;
        let options = SendOptions {
            signalled: Some(work),
            invalidate: None,
        };
        let result = self.port.post_send(queue_pair, &mut list, options);
        if result.is_ok() {
            self.outstanding.insert(work, queue_pair);
        }
        while let Some((buffer, _, _)) = list.pop() {
            self.pool.give(buffer);
        }
        result
    }

    fn filled(&mut self, data: &[u8]) -> Option<(rpcrdma_fabric::memory::Buffer, u32)> {
        let mut buffer = self.pool.take()?;
        self.port.memory().bytes_mut(&mut buffer)[..data.len()].copy_from_slice(data);
        let bytes = u32::try_from(data.len()).expect("messages fit a buffer");
        Some((buffer, bytes))
    }

    /// A gather list with `data` in one buffer.
    pub fn gathered(&mut self, data: &[u8]) -> Option<Gather> {
        let (buffer, bytes) = self.filled(data)?;
        let mut list = Gather::new();
        list.push(buffer, 0, bytes).ok()?;
        Some(list)
    }

    /// A buffer that begins with `data`, and its length.
    pub fn buffer_with(&mut self, data: &[u8]) -> Option<rpcrdma_fabric::memory::Buffer> {
        self.filled(data).map(|(buffer, _)| buffer)
    }

    /// Flushes, polls once, and keeps the books. Returns the completions that came.
    pub fn turn(&mut self) -> usize {
        self.port.flush_receives();
        self.port.flush_sends();
        let now = self.clock.now();
        let mut batch = CompletionBatch::new();
        self.port.poll(now, &mut batch);
        let count = batch.len();
        for completion in batch.drain() {
            self.note(completion);
        }
        while let Some(buffer) = self.port.next_returned() {
            self.pool.give(buffer);
        }
        count
    }

    /// Takes a completion into the books; its Receive is posted again.
    ///
    /// # Panics
    ///
    /// When it is of no posted work, or comes after `Disconnected`.
    pub fn note(&mut self, completion: Completion) {
        let queue_pair = completion.queue_pair;
        assert!(
            !self.ended.contains_key(&queue_pair),
            "{completion:?} after Disconnected"
        );
        match completion.kind {
            CompletionKind::Receive { receive, bytes, .. } => {
                if completion.status == Status::Success {
                    let data = self.port.received(&receive)[..bytes as usize].to_vec();
                    self.arrivals.push_back((queue_pair, data));
                } else {
                    self.failures.push((queue_pair, completion.status));
                }
                self.port.post_receive(receive);
            }
            CompletionKind::Send(work) => {
                assert_eq!(self.outstanding.remove(&work), Some(queue_pair));
                if completion.status != Status::Success {
                    self.failures.push((queue_pair, completion.status));
                }
            }
            CompletionKind::Disconnected => {
                assert!(
                    !self.outstanding.values().any(|of| *of == queue_pair),
                    "a Send never completed"
                );
                // TIME: the tests print it, and compare it with nothing.
                self.ended.insert(queue_pair, Instant::now());
            }
            other => panic!("{other:?} was never asked for"),
        }
    }

    /// Forgets the connections that have ended, on both levels.
    ///
    /// # Panics
    ///
    /// When a connection was reported as lost and its queue pair has not ended.
    pub fn bury(&mut self) {
        for connection in std::mem::take(&mut self.lost) {
            let queue_pair = self.connections.remove(&connection);
            let queue_pair = queue_pair.expect("a connection is lost once");
            self.ended
                .remove(&queue_pair)
                .expect("its queue pair has ended");
            self.port.destroy_queue_pair(queue_pair);
            self.manager.disconnect(connection);
        }
    }

    /// The queue pairs whose peers are there, as far as is known here.
    pub fn living(&self) -> impl Iterator<Item = QueuePairId> + '_ {
        self.connections
            .values()
            .copied()
            .filter(|queue_pair| !self.ended.contains_key(queue_pair))
    }

    /// The counters of the port, for waits that are too long.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("{:?}", self.port.counters())
    }

    /// Holds the books against what must be when nothing is under way.
    ///
    /// # Panics
    ///
    /// When a buffer, a Receive or a completion is missing.
    pub fn reckon(&self) {
        assert!(self.outstanding.is_empty(), "Sends that never completed");
        let free = self.pool.available();
        assert_eq!(free, self.sizes.sends as usize, "buffers of Sends");
        let posted = self.port.receives_posted(self.queue);
        assert_eq!(posted, self.sizes.receives, "Receives that are posted");
    }
}
