//! One side of the suite's connections: a port with its manager and its pools, and the books on
//! all that it posted.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{
    Access, Attributes, Completion, CompletionBatch, CompletionKind, ConnectionId, Gather, Manager,
    ManagerEvent, PostError, QueuePairId, Receive, ReceiveQueueAttributes, ReceiveQueueId,
    RemoteAddress, RemoteKey, SendOptions, Status, Window, WorkId,
};
use rpcrdma_fabric::memory::{Buffer, Lease, Pool, PoolShape};

use super::harness::{Harness, PortHandleOf, PortOptions};

/// Segments of a Receive, unless a case wants something else: an inline segment and a large one.
pub(super) const RECEIVE_SEGMENTS: [u32; 2] = [SMALL_BYTES, LARGE_BYTES];
pub(super) const SMALL_BYTES: u32 = 1024;
pub(super) const LARGE_BYTES: u32 = 64 << 10;
pub(super) const HUGE_BYTES: u32 = 1 << 20;
const RECEIVE_QUEUE_DEPTH: u32 = 128;

/// The attributes that the provider's ports have by default.
pub(super) fn attributes<H: Harness>() -> Attributes {
    let (port, _) = H::new().port(PortOptions::default());
    port.attributes().clone()
}

/// Bytes that show where they belong.
pub(super) fn pattern(seed: u64, bytes: u32) -> Vec<u8> {
    rpcrdma_testkit::pattern(bytes as usize, seed)
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
    pub(super) receives_made: usize,
    buffers_in_receives: [usize; 3],
    pub(super) completions: VecDeque<Completion>,
    pub(super) events: VecDeque<ManagerEvent<H::Port>>,
    /// Whether buffers that come back are kept here instead of going to their pools.
    pub(super) keep_returned: bool,
    pub(super) returned: Vec<Buffer>,
    /// Signalled work that has not completed.
    pub(super) outstanding: HashMap<WorkId, QueuePairId>,
    next_work: u64,
    /// Queue pairs of which `Disconnected` was seen.
    pub(super) ended: HashSet<QueuePairId>,
    /// Connections of which the manager reported the end.
    pub(super) disconnected: HashSet<ConnectionId>,
}

impl<H: Harness> Side<H> {
    pub(super) fn new(harness: &mut H, options: PortOptions) -> Self {
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

    /// A lease on the first `bytes` bytes of a buffer. [`Side::reclaim`] brings the buffer back when it has ended.
    pub(super) fn lease(&mut self, buffer: Buffer, bytes: u32) -> Lease {
        let mut pools = self.pools.iter_mut();
        let pool = pools.find(|pool| pool.owns(&buffer)).expect("its pool");
        pool.lease(buffer, 0, bytes).expect("it lies within")
    }

    /// Takes the buffers of leases that have ended.
    pub(super) fn reclaim(&mut self) {
        for pool in &mut self.pools {
            pool.reclaim(pool.shape().buffers as usize);
        }
    }

    pub(super) fn give(&mut self, buffer: Buffer) {
        self.pools
            .iter_mut()
            .find(|pool| pool.owns(&buffer))
            .expect("a buffer of one of the pools")
            .give(buffer);
    }

    /// Writes over all buffers that are in their pools: who still reads them gets nonsense.
    pub(super) fn scribble(&mut self) {
        for pool in &mut self.pools {
            let buffers: Vec<Buffer> = std::iter::from_fn(|| pool.take()).collect();
            for mut buffer in buffers {
                self.port.memory().bytes_mut(&mut buffer).fill(0xEE);
                pool.give(buffer);
            }
        }
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
        // Those of other rails than the last, where no message comes.
        for _ in 1..H::RAILS {
            let buffer = self.buffer(SMALL_BYTES);
            self.buffers_in_receives[Self::class(SMALL_BYTES)] += 1;
            let of_other = self
                .port
                .create_receive(self.queue, &mut std::iter::once(buffer))
                .expect("a Receive within the queue's limits");
            self.port.post_receive(of_other);
        }
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
            CompletionKind::Receive { .. } => {
                if completion.status == Status::Flushed && self.has_own_queues() {
                    return self.post_for_the_next(completion);
                }
                None
            }
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

    /// Whether each queue pair takes a receive queue of its own.
    pub(super) fn has_own_queues(&self) -> bool {
        !self.port.attributes().shared_receive_queue
    }

    /// A Receive that was posted for a queue pair which ended: it waits for the next one.
    fn post_for_the_next(&mut self, completion: Completion) {
        if let CompletionKind::Receive { receive, .. } = completion.kind {
            self.port.post_receive(receive);
        }
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
                    mut port_event,
                } => {
                    if let Some(port_event) = port_event.take() {
                        self.port.handle_event(port_event);
                    }
                    self.events.push_back(ManagerEvent::Established {
                        connection,
                        port_event,
                    });
                }
                ManagerEvent::Disconnected {
                    connection,
                    port_event,
                } => {
                    if let Some(port_event) = port_event {
                        self.port.handle_event(port_event);
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

    /// Exposes a buffer that begins with `data` to the peer of `queue_pair`. The cases tell the
    /// peer past the fabric, so the binding does not wait for a Send behind which it would be.
    pub(super) fn expose(
        &mut self,
        queue_pair: QueuePairId,
        data: &[u8],
        access: Access,
    ) -> Window {
        let buffer = self.buffer_with(data);
        let bound = self
            .port
            .bind_window(queue_pair, buffer, length(data), access);
        self.port.flush_sends();
        match bound {
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
    pub(super) fn missing(&self) -> [usize; 3] {
        std::array::from_fn(|class| {
            let pool = &self.pools[class];
            pool.shape().buffers as usize - pool.available() - self.buffers_in_receives[class]
        })
    }

    /// Gives back what was kept, and what completions hold that no case took.
    pub(super) fn clear(&mut self) {
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
