//! Two ports that are joined, and what a case does with them.
//!
//! Everything runs in the thread of the test: a *turn* lets each side flush, poll, and now and then
//! look at its connection manager. Waiting is in turns until something is the case; the deadline
//! is far out, so that a loaded machine fails nothing.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::{
    Access, Attributes, Completion, CompletionBatch, CompletionKind, ConnectionId, Gather,
    ListenerId, Manager, ManagerEvent, Port, PostError, QueuePairId, Receive,
    ReceiveQueueAttributes, ReceiveQueueId, RemoteAddress, RemoteKey, SendOptions, Status, Window,
    WorkId,
};
use rpcrdma_fabric::memory::{Buffer, Pool, PoolShape};

use super::harness::{Harness, PortHandleOf, PortOptions};

/// The side that connects.
pub(super) const CLIENT: usize = 0;
/// The side that listens.
pub(super) const SERVER: usize = 1;

/// Segments of a Receive, unless a case wants something else: an inline segment and a large one.
pub(super) const RECEIVE_SEGMENTS: [u32; 2] = [SMALL_BYTES, LARGE_BYTES];
pub(super) const SMALL_BYTES: u32 = 1024;
pub(super) const LARGE_BYTES: u32 = 64 << 10;
pub(super) const HUGE_BYTES: u32 = 1 << 20;
const RECEIVE_QUEUE_DEPTH: u32 = 128;

/// Far beyond what anything here takes, even on a machine that does other things.
const DEADLINE: Duration = Duration::from_secs(60);
/// A manager makes system calls, so it is asked only now and then.
const TURNS_PER_MANAGER_WAIT: u32 = 16;

/// The attributes that the provider's ports have by default.
pub(super) fn attributes<H: Harness>() -> Attributes {
    let (port, _) = H::new().port(PortOptions::default());
    port.attributes().clone()
}

/// Bytes that tell where they belong: of another seed or length they are others.
pub(super) fn pattern(seed: u64, bytes: u32) -> Vec<u8> {
    let mut state = seed
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .wrapping_add(u64::from(bytes));
    (0..bytes)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            state.to_le_bytes()[7]
        })
        .collect()
}

/// A message that arrived, or a Receive that failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) queue_pair: QueuePairId,
    pub(super) status: Status,
    /// What arrived; empty unless the status is success.
    pub(super) data: Vec<u8>,
    pub(super) invalidated: Option<RemoteKey>,
}

/// A connection, by the names that both sides have for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) queue_pairs: [QueuePairId; 2],
    pub(super) connections: [ConnectionId; 2],
}

/// A port with its manager and its pools.
pub(super) struct Side<H: Harness> {
    pub(super) port: H::Port,
    pub(super) handle: PortHandleOf<H>,
    pub(super) manager: H::Manager,
    pub(super) queue: ReceiveQueueId,
    /// Of all sizes, smallest first.
    pools: [Pool; 3],
    /// Receives that are neither posted nor in flight, and how many there are in all.
    pub(super) idle_receives: Vec<Receive>,
    receives_made: usize,
    buffers_in_receives: [usize; 3],
    completions: VecDeque<Completion>,
    pub(super) events: VecDeque<ManagerEvent<H::Port>>,
    /// Whether buffers that come back are kept here instead of going to their pools.
    pub(super) keep_returned: bool,
    pub(super) returned: Vec<Buffer>,
    /// Signalled work that has not completed.
    outstanding: HashMap<WorkId, QueuePairId>,
    next_work: u64,
    /// Queue pairs of which `Disconnected` was seen.
    pub(super) ended: HashSet<QueuePairId>,
    /// Connections of which the manager reported the end.
    pub(super) disconnected: HashSet<ConnectionId>,
}

impl<H: Harness> Side<H> {
    fn new(harness: &mut H, options: PortOptions) -> Self {
        let (mut port, handle) = harness.port(options);
        let mut pool = |buffers, buffer_bytes, align_bytes| {
            port.carve(PoolShape {
                buffers,
                buffer_bytes,
                stride_bytes: buffer_bytes,
                align_bytes,
            })
            .expect("the arena holds the pools of the suite")
        };
        let pools = [
            pool(256, SMALL_BYTES, 64),
            pool(48, LARGE_BYTES, 4096),
            pool(3, HUGE_BYTES, 4096),
        ];
        let segments_max = port.attributes().receive_segments_max;
        let queue = port
            .create_receive_queue(ReceiveQueueAttributes {
                depth: RECEIVE_QUEUE_DEPTH.min(port.attributes().receive_queue_depth_max),
                segments_max,
            })
            .expect("a receive queue within the device's limits");
        Self {
            port,
            handle,
            manager: harness.manager(),
            queue,
            pools,
            idle_receives: Vec::new(),
            receives_made: 0,
            buffers_in_receives: [0; 3],
            completions: VecDeque::new(),
            events: VecDeque::new(),
            keep_returned: false,
            returned: Vec::new(),
            outstanding: HashMap::new(),
            next_work: 1,
            ended: HashSet::new(),
            disconnected: HashSet::new(),
        }
    }

    /// The index of the smallest pool whose buffers hold `bytes`.
    fn class(bytes: u32) -> usize {
        [SMALL_BYTES, LARGE_BYTES, HUGE_BYTES]
            .iter()
            .position(|size| bytes <= *size)
            .expect("a size that the suite has buffers of")
    }

    /// A buffer of at least `bytes` bytes, cleared.
    pub(super) fn buffer(&mut self, bytes: u32) -> Buffer {
        let mut buffer = self.pools[Self::class(bytes)]
            .take()
            .expect("the suite has enough buffers");
        self.port.memory().bytes_mut(&mut buffer).fill(0);
        buffer
    }

    /// A buffer that begins with `data`.
    pub(super) fn buffer_with(&mut self, data: &[u8]) -> Buffer {
        let mut buffer = self.buffer(length(data));
        self.port.memory().bytes_mut(&mut buffer)[..data.len()].copy_from_slice(data);
        buffer
    }

    pub(super) fn give(&mut self, buffer: Buffer) {
        self.pools
            .iter_mut()
            .find(|pool| pool.owns(&buffer))
            .expect("a buffer of one of the pools")
            .give(buffer);
    }

    /// A list with one buffer for each part.
    pub(super) fn gather(&mut self, parts: &[&[u8]]) -> Gather {
        let mut list = Gather::new();
        for part in parts {
            let buffer = self.buffer_with(part);
            list.push(buffer, 0, length(part)).expect("the part fits");
        }
        list
    }

    /// A list of cleared buffers, to read into.
    pub(super) fn scatter(&mut self, lengths: &[u32]) -> Gather {
        let mut list = Gather::new();
        for bytes in lengths {
            let buffer = self.buffer(*bytes);
            list.push(buffer, 0, *bytes).expect("the part fits");
        }
        list
    }

    /// The bytes that a list names.
    pub(super) fn bytes_of(&self, list: &Gather) -> Vec<u8> {
        list.iter()
            .flat_map(|(buffer, offset, bytes)| {
                let range = *offset as usize..(*offset + *bytes) as usize;
                self.port.memory().bytes(buffer)[range].iter().copied()
            })
            .collect()
    }

    pub(super) fn give_list(&mut self, mut list: Gather) {
        while let Some((buffer, _, _)) = list.pop() {
            self.give(buffer);
        }
    }

    /// Makes Receives and posts them.
    pub(super) fn post_receives(&mut self, count: usize, segments: &[u32]) {
        for _ in 0..count {
            let receive = self.make_receive(segments);
            self.port.post_receive(receive);
        }
        self.port.flush_receives();
    }

    pub(super) fn make_receive(&mut self, segments: &[u32]) -> Receive {
        let buffers: Vec<Buffer> = segments.iter().map(|bytes| self.buffer(*bytes)).collect();
        for bytes in segments {
            self.buffers_in_receives[Self::class(*bytes)] += 1;
        }
        self.receives_made += 1;
        self.port
            .create_receive(self.queue, &mut buffers.into_iter())
            .expect("a Receive within the queue's limits")
    }

    /// Posts the Receives that came back.
    pub(super) fn repost(&mut self) {
        for receive in self.idle_receives.drain(..) {
            self.port.post_receive(receive);
        }
        self.port.flush_receives();
    }

    pub(super) fn posted(&self) -> u32 {
        self.port.receives_posted(self.queue)
    }

    /// A name for signalled work, which is to complete once.
    pub(super) fn name_work(&mut self, queue_pair: QueuePairId) -> WorkId {
        let work = WorkId(self.next_work);
        self.next_work += 1;
        self.outstanding.insert(work, queue_pair);
        work
    }

    /// A post that asked for this name was refused.
    pub(super) fn forget_work(&mut self, work: WorkId) {
        self.outstanding
            .remove(&work)
            .expect("a name that was given");
    }

    /// Sends `data`, copied at once, unsignalled.
    pub(super) fn send_copied(
        &mut self,
        queue_pair: QueuePairId,
        data: &[u8],
        options: SendOptions,
    ) -> Result<(), PostError> {
        let mut buffer = self.buffer_with(data);
        let result = self
            .port
            .post_send_copied(queue_pair, &buffer, length(data), options);
        // The bytes are copied at once, or not at all: what happens to them now must not show.
        self.port.memory().bytes_mut(&mut buffer).fill(0xDD);
        self.give(buffer);
        result
    }

    /// Sends one message of `parts` from registered memory. A refused list comes back to its pools.
    pub(super) fn send(
        &mut self,
        queue_pair: QueuePairId,
        parts: &[&[u8]],
        options: SendOptions,
    ) -> Result<(), PostError> {
        let mut list = self.gather(parts);
        let result = self.port.post_send(queue_pair, &mut list, options);
        assert_eq!(list.len(), if result.is_ok() { 0 } else { parts.len() });
        self.give_list(list);
        result
    }

    /// Sends from registered memory, signalled.
    pub(super) fn send_signalled(&mut self, queue_pair: QueuePairId, parts: &[&[u8]]) -> WorkId {
        let work = self.name_work(queue_pair);
        self.send(queue_pair, parts, signalled(work))
            .expect("the Send is posted");
        work
    }

    /// Reads `lengths` from the peer.
    pub(super) fn read(
        &mut self,
        queue_pair: QueuePairId,
        lengths: &[u32],
        from: RemoteAddress,
    ) -> WorkId {
        let work = self.name_work(queue_pair);
        let list = self.scatter(lengths);
        if let Err((error, _)) = self.port.post_read(queue_pair, list, from, work) {
            panic!("an RDMA Read is refused: {error}");
        }
        work
    }

    /// Writes `parts` to the peer, signalled.
    pub(super) fn write(
        &mut self,
        queue_pair: QueuePairId,
        parts: &[&[u8]],
        to: RemoteAddress,
    ) -> WorkId {
        let work = self.name_work(queue_pair);
        let mut list = self.gather(parts);
        self.port
            .post_write(queue_pair, &mut list, to, Some(work))
            .expect("the RDMA Write is posted");
        assert!(list.is_empty());
        work
    }

    /// Flushes and polls once; returns how many completions came.
    pub(super) fn turn(&mut self, now: Ticks) -> usize {
        self.port.flush_receives();
        self.port.flush_sends();
        let mut batch = CompletionBatch::new();
        self.port.poll(now, &mut batch);
        let count = batch.len();
        for completion in batch.drain() {
            self.note(completion);
        }
        while let Some(buffer) = self.port.next_returned() {
            if self.keep_returned {
                self.returned.push(buffer);
            } else {
                self.give(buffer);
            }
        }
        count
    }

    /// Keeps a completion, and holds it against what may complete.
    pub(super) fn note(&mut self, completion: Completion) {
        let queue_pair = completion.queue_pair;
        assert!(
            !self.ended.contains(&queue_pair),
            "{completion:?} comes after the queue pair's Disconnected"
        );
        let work = match &completion.kind {
            CompletionKind::Send(work)
            | CompletionKind::Read(work, _)
            | CompletionKind::Write(work)
            | CompletionKind::Invalidated(work, _) => Some(*work),
            CompletionKind::Receive { .. } => None,
            CompletionKind::Disconnected => {
                let left: Vec<_> = self
                    .outstanding
                    .iter()
                    .filter(|(_, of)| **of == queue_pair)
                    .collect();
                assert!(left.is_empty(), "{left:?} never completed");
                self.ended.insert(queue_pair);
                None
            }
        };
        if let Some(work) = work {
            let of = self.outstanding.remove(&work);
            assert_eq!(of, Some(queue_pair), "{completion:?} is of no posted work");
        }
        self.completions.push_back(completion);
    }

    /// Lets the manager work, and hands what it tells the port to the port.
    pub(super) fn manage(&mut self, timeout: Duration) {
        let mut events = Vec::new();
        self.manager
            .wait(timeout, &mut events)
            .expect("the manager waits");
        for event in events {
            match event {
                ManagerEvent::Established {
                    connection,
                    mut notice,
                } => {
                    if let Some(notice) = notice.take() {
                        self.port.notice(notice);
                    }
                    self.events
                        .push_back(ManagerEvent::Established { connection, notice });
                }
                ManagerEvent::Disconnected { connection, notice } => {
                    if let Some(notice) = notice {
                        self.port.notice(notice);
                    }
                    self.disconnected.insert(connection);
                }
                other => self.events.push_back(other),
            }
        }
    }

    /// Takes the first completion that `wanted` says yes to.
    pub(super) fn take_completion(
        &mut self,
        mut wanted: impl FnMut(&Completion) -> bool,
    ) -> Option<Completion> {
        let index = self.completions.iter().position(&mut wanted)?;
        self.completions.remove(index)
    }

    /// Drops all completions, and gives back what they hold.
    pub(super) fn take_everything(&mut self) {
        while let Some(completion) = self.completions.pop_front() {
            match completion.kind {
                CompletionKind::Receive { receive, .. } => self.idle_receives.push(receive),
                CompletionKind::Read(_, list) => self.give_list(list),
                _ => {}
            }
        }
    }

    /// Completions that came and were not taken.
    pub(super) fn untaken(&self) -> impl Iterator<Item = &Completion> {
        self.completions.iter()
    }

    /// Exposes a buffer that begins with `data` to the peer of `queue_pair`.
    pub(super) fn expose(
        &mut self,
        queue_pair: QueuePairId,
        data: &[u8],
        access: Access,
    ) -> Window {
        let buffer = self.buffer_with(data);
        match self
            .port
            .bind_window(queue_pair, buffer, length(data), access)
        {
            Ok(window) => window,
            Err((error, _)) => panic!("a window is not bound: {error}"),
        }
    }

    /// Reads a Receive's completion; the Receive becomes idle.
    pub(super) fn arrival(&mut self, completion: Completion) -> Arrival {
        let CompletionKind::Receive {
            receive,
            bytes,
            invalidated,
        } = completion.kind
        else {
            panic!("{completion:?} is no Receive");
        };
        let mut data = Vec::new();
        let mut index = 0;
        while completion.status == Status::Success && data.len() < bytes as usize {
            let segment = self
                .port
                .received_segment(&receive, index)
                .expect("no more arrives than the segments hold");
            let take = segment.len().min(bytes as usize - data.len());
            data.extend_from_slice(&segment[..take]);
            index += 1;
        }
        if let Some(first) = data.first() {
            assert_eq!(self.port.received(&receive).first(), Some(first));
        }
        self.idle_receives.push(receive);
        Arrival {
            queue_pair: completion.queue_pair,
            status: completion.status,
            data,
            invalidated,
        }
    }

    /// Buffers that are in their pools.
    pub(super) fn buffers_available(&self) -> usize {
        self.pools.iter().map(Pool::available).sum()
    }

    /// The buffers that are neither in the pools nor in Receives.
    fn missing(&self) -> [usize; 3] {
        std::array::from_fn(|class| {
            let pool = &self.pools[class];
            pool.shape().buffers as usize - pool.available() - self.buffers_in_receives[class]
        })
    }

    /// Gives back what was kept, and what completions hold that no case took.
    fn clear(&mut self) {
        while let Some(buffer) = self.returned.pop() {
            self.give(buffer);
        }
        self.take_everything();
    }
}

/// The peer may read.
pub(super) const READ: Access = Access {
    remote_read: true,
    remote_write: false,
};
/// The peer may write.
pub(super) const WRITE: Access = Access {
    remote_read: false,
    remote_write: true,
};

/// The length of `data`, which is one of the suite's own.
pub(super) fn length(data: &[u8]) -> u32 {
    u32::try_from(data.len()).expect("a length that the suite chose")
}

/// Signalled, nothing else.
pub(super) fn signalled(work: WorkId) -> SendOptions {
    SendOptions {
        signalled: Some(work),
        ..SendOptions::default()
    }
}

/// Two sides and a harness.
pub(super) struct World<H: Harness> {
    pub(super) harness: H,
    pub(super) sides: [Side<H>; 2],
    pub(super) address: String,
    pub(super) listener: ListenerId,
    links: Vec<Link>,
    turns: u32,
}

impl<H: Harness> World<H> {
    /// Two ports of default size, of which one listens.
    pub(super) fn new(harness: H) -> Self {
        Self::with(harness, PortOptions::default())
    }

    /// Two ports, of which one listens.
    pub(super) fn with(mut harness: H, options: PortOptions) -> Self {
        let client = Side::new(&mut harness, options);
        let mut server = Side::new(&mut harness, options);
        let address = harness.fresh_address();
        let listener = server
            .manager
            .listen(&address)
            .expect("the server listens on a fresh address");
        Self {
            harness,
            sides: [client, server],
            address,
            listener,
            links: Vec::new(),
            turns: 0,
        }
    }

    /// Two ports, joined by one connection, with Receives posted at both.
    pub(super) fn joined(harness: H) -> (Self, Link) {
        let mut world = Self::new(harness);
        let link = world.connect();
        for side in &mut world.sides {
            side.post_receives(16, &RECEIVE_SEGMENTS);
        }
        (world, link)
    }

    pub(super) fn client(&mut self) -> &mut Side<H> {
        &mut self.sides[CLIENT]
    }

    pub(super) fn server(&mut self) -> &mut Side<H> {
        &mut self.sides[SERVER]
    }

    /// One turn of one side, without its manager.
    pub(super) fn turn_of(&mut self, who: usize) -> usize {
        let now = self.harness.now();
        self.sides[who].turn(now)
    }

    /// One turn of both sides.
    pub(super) fn turn(&mut self) {
        self.turn_of(CLIENT);
        self.turn_of(SERVER);
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_MANAGER_WAIT) {
            for side in &mut self.sides {
                side.manage(Duration::ZERO);
            }
        }
    }

    /// So many turns: for what must not happen. What would be wrong would show at once.
    pub(super) fn idle(&mut self) {
        for _ in 0..8 * TURNS_PER_MANAGER_WAIT {
            self.turn();
        }
    }

    /// Turns until `done` yields something.
    pub(super) fn until<R>(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Self) -> Option<R>,
    ) -> R {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(result) = done(self) {
                return result;
            }
            if Instant::now() >= deadline {
                for (name, side) in ["client", "server"].iter().zip(&self.sides) {
                    eprintln!("{name}: {:?}\n{:?}", side.completions, side.port.counters());
                }
                panic!("{what}: nothing of the kind after {DEADLINE:?}");
            }
            self.turn();
        }
    }

    /// Waits for a completion that `wanted` says yes to.
    pub(super) fn completion(
        &mut self,
        who: usize,
        what: &str,
        mut wanted: impl FnMut(&Completion) -> bool,
    ) -> Completion {
        self.until(what, |world| world.sides[who].take_completion(&mut wanted))
    }

    /// Waits for the next Receive to complete.
    pub(super) fn arrival(&mut self, who: usize) -> Arrival {
        let completion = self.completion(who, "a message", |completion| {
            matches!(completion.kind, CompletionKind::Receive { .. })
        });
        self.sides[who].arrival(completion)
    }

    /// Waits for the next message and holds it against what was sent; posts its Receive again.
    pub(super) fn expect(&mut self, who: usize, queue_pair: QueuePairId, data: &[u8]) {
        let arrival = self.arrival(who);
        assert_eq!(arrival.status, Status::Success);
        assert_eq!(arrival.queue_pair, queue_pair);
        assert_eq!(arrival.invalidated, None);
        assert!(
            arrival.data == data,
            "{} bytes arrived, other than the {} that were sent",
            arrival.data.len(),
            data.len()
        );
        self.sides[who].repost();
    }

    /// Waits for the signalled work to complete; gives its buffers back and says how it ended,
    /// with what was read.
    pub(super) fn finished(&mut self, who: usize, work: WorkId) -> (Status, Vec<u8>) {
        let completion =
            self.completion(who, "signalled work", |completion| match &completion.kind {
                CompletionKind::Send(of)
                | CompletionKind::Write(of)
                | CompletionKind::Read(of, _)
                | CompletionKind::Invalidated(of, _) => *of == work,
                _ => false,
            });
        let side = &mut self.sides[who];
        let mut data = Vec::new();
        if let CompletionKind::Read(_, list) = completion.kind {
            data = side.bytes_of(&list);
            side.give_list(list);
        }
        (completion.status, data)
    }

    /// Takes a window away from the peer and returns its buffer.
    pub(super) fn reclaim(&mut self, who: usize, link: Link, window: Window) -> Buffer {
        let side = &mut self.sides[who];
        let work = side.name_work(link.queue_pairs[who]);
        side.keep_returned = true;
        if let Err((error, _)) = side.port.invalidate_window(window, work) {
            panic!("a window is not invalidated: {error}");
        }
        assert_eq!(self.finished(who, work).0, Status::Success);
        let buffer = self.until("the buffer of the window", |world| {
            world.sides[who].returned.pop()
        });
        self.sides[who].keep_returned = false;
        buffer
    }

    /// The work was refused by the peer, and the connection is over on both sides.
    pub(super) fn refused(&mut self, who: usize, link: Link, work: WorkId) {
        assert_eq!(self.finished(who, work).0, Status::RemoteAccess);
        for who in [CLIENT, SERVER] {
            self.ended(who, link.queue_pairs[who]);
        }
    }

    /// Waits until the queue pair has ended.
    pub(super) fn ended(&mut self, who: usize, queue_pair: QueuePairId) {
        self.until("the end of the connection", |world| {
            world.sides[who].ended.contains(&queue_pair).then_some(())
        });
    }

    /// Sends a message each way and takes it, to see that the connection works.
    pub(super) fn works(&mut self, link: Link) {
        for (from, to) in [(CLIENT, SERVER), (SERVER, CLIENT)] {
            let data = pattern(u64::from(link.queue_pairs[from].index) + 7, 100);
            self.sides[from]
                .send(link.queue_pairs[from], &[&data], SendOptions::default())
                .expect("the connection takes a Send");
            self.expect(to, link.queue_pairs[to], &data);
        }
    }

    /// Waits for an event of a manager.
    pub(super) fn event(&mut self, who: usize, what: &str) -> ManagerEvent<H::Port> {
        self.until(what, |world| {
            for side in &mut world.sides {
                side.manage(Duration::ZERO);
            }
            world.sides[who].events.pop_front()
        })
    }

    /// Starts a connection and takes the request: what both sides call it.
    pub(super) fn request(&mut self, private_data: &[u8]) -> [ConnectionId; 2] {
        let address = self.address.clone();
        let client = self.client();
        let from = client
            .manager
            .connect(&address, &client.handle, private_data)
            .expect("the client connects to the server's address");
        match self.event(SERVER, "a request") {
            ManagerEvent::ConnectRequest {
                connection,
                listener,
                private_data: arrived,
                ..
            } => {
                assert_eq!(arrived, private_data);
                assert_eq!(listener, self.listener);
                [from, connection]
            }
            other => panic!("{} instead of a request", event_name(&other)),
        }
    }

    /// Prepares and plants the queue pair of a connection.
    pub(super) fn plant(&mut self, who: usize, connection: ConnectionId) -> QueuePairId {
        let side = &mut self.sides[who];
        let seed = side
            .manager
            .prepare(connection, &side.handle)
            .expect("the queue pair is prepared");
        side.port
            .plant(seed, side.queue)
            .expect("the queue pair is planted")
    }

    /// Accepts a request and brings the client to the same point.
    pub(super) fn accept(&mut self, connections: [ConnectionId; 2], private_data: &[u8]) -> Link {
        let server = self.plant(SERVER, connections[SERVER]);
        self.server()
            .manager
            .accept(connections[SERVER], private_data)
            .expect("the server accepts");
        match self.event(CLIENT, "the reply") {
            ManagerEvent::ConnectReply {
                connection,
                private_data: arrived,
                ..
            } => {
                assert_eq!(connection, connections[CLIENT]);
                assert_eq!(arrived, private_data);
            }
            other => panic!("{} instead of a reply", event_name(&other)),
        }
        let client = self.plant(CLIENT, connections[CLIENT]);
        self.client()
            .manager
            .confirm(connections[CLIENT])
            .expect("the client confirms");
        let link = Link {
            queue_pairs: [client, server],
            connections,
        };
        self.links.push(link);
        link
    }

    /// Waits until both managers say that the connection stands.
    pub(super) fn established(&mut self, link: Link) {
        for who in [CLIENT, SERVER] {
            match self.event(who, "an established connection") {
                ManagerEvent::Established { connection, .. } => {
                    assert_eq!(connection, link.connections[who]);
                }
                other => panic!("{} instead of Established", event_name(&other)),
            }
        }
    }

    /// Makes a connection, through all steps of both managers.
    pub(super) fn connect(&mut self) -> Link {
        let connections = self.request(&[]);
        let link = self.accept(connections, &[]);
        self.established(link);
        link
    }

    /// Closes a connection on both sides and forgets it.
    pub(super) fn close(&mut self, link: Link) {
        self.links
            .retain(|other| other.connections != link.connections);
        for who in [CLIENT, SERVER] {
            if !self.sides[who].ended.contains(&link.queue_pairs[who]) {
                self.sides[who].port.disconnect(link.queue_pairs[who]);
            }
        }
        for who in [CLIENT, SERVER] {
            self.ended(who, link.queue_pairs[who]);
            let side = &mut self.sides[who];
            side.port.destroy_queue_pair(link.queue_pairs[who]);
            side.manager.disconnect(link.connections[who]);
        }
    }

    /// Closes what is open, and reckons: everything has completed, everything is back.
    pub(super) fn finish(mut self) {
        for link in std::mem::take(&mut self.links) {
            self.close(link);
        }
        self.idle();
        for (name, side) in ["client", "server"].into_iter().zip(&mut self.sides) {
            side.clear();
            assert!(
                side.outstanding.is_empty(),
                "{name}: {:?} never completed",
                side.outstanding
            );
            assert_eq!(
                side.missing(),
                [0; 3],
                "{name}: buffers that never came back, by size"
            );
            assert_eq!(
                side.receives_made,
                side.idle_receives.len() + side.posted() as usize,
                "{name}: Receives that were lost"
            );
        }
    }
}

/// The name of an event, for messages.
pub(super) fn event_name<P: Port>(event: &ManagerEvent<P>) -> String {
    match event {
        ManagerEvent::ConnectRequest { .. } => "ConnectRequest".to_owned(),
        ManagerEvent::ConnectReply { .. } => "ConnectReply".to_owned(),
        ManagerEvent::Established { .. } => "Established".to_owned(),
        ManagerEvent::Rejected { reason, .. } => format!("Rejected ({reason})"),
        ManagerEvent::Failed { error, .. } => format!("Failed ({error})"),
        ManagerEvent::Disconnected { .. } => "Disconnected".to_owned(),
    }
}
