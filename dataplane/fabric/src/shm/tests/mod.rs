//! Tests of the provider with two ports in one thread, so that a test determines the order of all steps.

mod any_records;
mod delivery;
mod drawn;
mod external;
mod failure;
mod fairness;
mod forms;
mod hostile;
mod lifecycle;
pub(super) mod peer_memory;
mod rdma;
mod receive_queues;
mod stress;

use super::{Joint, Port, PortConfig, PortHandle, join};
use crate::clock::Clock;
use crate::interface::prelude::*;
use crate::interface::{
    Arrival, Completion, CompletionBatch, CompletionKind, Gather, QueuePairId, Receive,
    ReceiveQueueAttributes, ReceiveQueueId, SendOptions, Status, WorkId,
};
use crate::memory::{Arena, ArenaOptions, Buffer, HugePages, Pool, PoolShape};

/// The number of Receives of each end.
pub(super) const DEPTH: u32 = 16;
/// The sizes of the first and the second segment of each Receive.
pub(super) const FIRST_BYTES: u32 = 1024;
pub(super) const SECOND_BYTES: u32 = 65_536;

/// A port with the objects that its core holds.
pub(super) struct End {
    pub(super) port: Port,
    pub(super) handle: PortHandle,
    pub(super) small: Pool,
    pub(super) large: Pool,
    pub(super) queue: ReceiveQueueId,
    pub(super) id: QueuePairId,
    pub(super) now: u64,
    polls: u32,
}

impl End {
    pub(super) fn new(number: u32, change: impl Fn(&mut PortConfig)) -> Self {
        let options = ArenaOptions {
            bytes: 8 << 20,
            huge_pages: HugePages::Never,
        };
        let arena = Arena::shared(&options).unwrap();
        let mut config = PortConfig::new(number, arena, Clock::new());
        config.queue_pairs_max = 32;
        config.windows_max = 16;
        config.work_requests_max = 96;
        config.channel_ring_bytes = 8192;
        change(&mut config);
        let (mut port, handle) = Port::new(config).unwrap();
        let shape = |buffers, bytes| PoolShape {
            buffers,
            buffer_bytes: bytes,
            stride_bytes: bytes,
            align_bytes: 4096,
        };
        let small = port.carve(shape(64, FIRST_BYTES)).unwrap();
        let large = port.carve(shape(64, SECOND_BYTES)).unwrap();
        let attributes = ReceiveQueueAttributes {
            depth: DEPTH,
            segments_max: 2,
        };
        let queue = port.create_receive_queue(attributes).unwrap();
        let mut end = Self {
            port,
            handle,
            small,
            large,
            queue,
            id: QueuePairId {
                index: 0,
                generation: 0,
            },
            now: 0,
            polls: 0,
        };
        for _ in 0..DEPTH {
            let receive = end.make_receive();
            end.port.post_receive(receive);
        }
        end.port.flush_receives();
        end
    }

    fn make_receive(&mut self) -> Receive {
        let list = [self.small.take().unwrap(), self.large.take().unwrap()];
        let queue = self.queue;
        self.port
            .create_receive(queue, &mut list.into_iter())
            .unwrap()
    }

    /// Polls once, and returns the completions. The ways alternate between calls: all messages in the batch, messages
    /// read in the memory of the port, and messages kept in a Receive.
    pub(super) fn poll(&mut self) -> Vec<Event> {
        let mut batch = CompletionBatch::new();
        self.polls += 1;
        let mut events = Vec::new();
        if self.polls.is_multiple_of(2) {
            self.port.poll(self.now, &mut batch);
        } else {
            self.port.begin_poll(self.now, &mut batch);
            self.take_batch(&mut batch, &mut events);
            while let Some(arrival) = self.port.next_arrival() {
                events.push(self.take_arrival(arrival));
            }
        }
        self.take_batch(&mut batch, &mut events);
        self.port.flush_receives();
        self.port.flush_sends();
        events
    }

    fn take_batch(&mut self, batch: &mut CompletionBatch, events: &mut Vec<Event>) {
        let completions: Vec<_> = batch.drain().collect();
        events.extend(completions.into_iter().map(|c| self.event(c)));
    }

    fn take_arrival(&mut self, arrival: Arrival) -> Event {
        let Arrival {
            queue_pair, bytes, ..
        } = arrival;
        let mut message = self.port.arrived(&arrival).to_vec();
        if let Some(formed) = arrival.formed() {
            let mut whole = vec![0; bytes as usize];
            let unfolded = (forms::FORMS.unfold)(formed, &message, &mut whole);
            assert_eq!(unfolded, Some(whole.len()));
            message = whole;
        }
        assert_eq!(message.len(), bytes as usize);
        if self.polls % 4 == 1 {
            let receive = self.port.keep(arrival).expect("it is the last one");
            let kept = self.port.received(&receive)[..bytes as usize].to_vec();
            assert_eq!(std::mem::replace(&mut message, kept.clone()), kept);
            self.port.post_receive(receive);
        }
        Event {
            id: queue_pair,
            status: Status::Success,
            what: What::Received(message, None),
        }
    }

    /// Polls 256 times, which is enough for all outstanding work of a test.
    pub(super) fn settle(&mut self) -> Vec<Event> {
        (0..256).flat_map(|_| self.poll()).collect()
    }

    pub(super) fn event(&mut self, completion: Completion) -> Event {
        let Completion {
            queue_pair,
            status,
            kind,
        } = completion;
        let what = match kind {
            CompletionKind::Receive {
                receive,
                bytes,
                invalidated,
            } => {
                let mut message = self.port.received(&receive).to_vec();
                message.extend(self.port.received_segment(&receive, 1).unwrap());
                message.truncate(bytes as usize);
                self.port.post_receive(receive);
                What::Received(message, invalidated.map(|key| key.0))
            }
            CompletionKind::Send(work) => What::Sent(work.0),
            CompletionKind::Write(work) => What::Written(work.0),
            CompletionKind::Read(work, mut list) => {
                let mut bytes = Vec::new();
                for (buffer, offset, count) in list.iter() {
                    let range = *offset as usize..(*offset + *count) as usize;
                    bytes.extend_from_slice(&self.port.memory().bytes(buffer)[range]);
                }
                while let Some((buffer, _, _)) = list.pop() {
                    self.give(buffer);
                }
                What::Read(work.0, bytes)
            }
            CompletionKind::Invalidated(work, window) => {
                What::Invalidated(work.0, window.remote().key.0)
            }
            CompletionKind::Disconnected => What::Disconnected,
        };
        Event {
            id: queue_pair,
            status,
            what,
        }
    }

    pub(super) fn give(&mut self, buffer: Buffer) {
        if self.small.owns(&buffer) {
            self.small.give(buffer);
        } else {
            self.large.give(buffer);
        }
    }

    /// Gives the returned buffers to their pools, and returns their number.
    pub(super) fn reclaim(&mut self) -> usize {
        let mut count = 0;
        while let Some(buffer) = self.port.next_returned() {
            self.give(buffer);
            count += 1;
        }
        count
    }

    /// A large buffer that starts with `bytes`.
    pub(super) fn filled(&mut self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.large.take().unwrap();
        self.port.memory().bytes_mut(&mut buffer)[..bytes.len()].copy_from_slice(bytes);
        buffer
    }

    /// Sends by copy.
    pub(super) fn send(
        &mut self,
        bytes: &[u8],
        options: SendOptions,
    ) -> Result<(), crate::interface::PostError> {
        let buffer = self.filled(bytes);
        let count = u32::try_from(bytes.len()).unwrap();
        let id = self.id;
        let result = self.port.post_send_copied(id, &buffer, count, options);
        self.give(buffer);
        self.port.flush_sends();
        result
    }

    /// Sends from registered memory: one segment for each of `parts`.
    pub(super) fn send_list(
        &mut self,
        parts: &[&[u8]],
        options: SendOptions,
    ) -> Result<(), crate::interface::PostError> {
        let mut list = self.list(parts);
        let id = self.id;
        let result = self.port.post_send(id, &mut list, options);
        while let Some((buffer, _, _)) = list.pop() {
            self.give(buffer);
        }
        self.port.flush_sends();
        result
    }

    /// A gather list of one segment for each of `parts`. The offsets in the buffers are 0, 3, 6 and so on.
    pub(super) fn list(&mut self, parts: &[&[u8]]) -> Gather {
        let mut list = Gather::new();
        for (number, part) in parts.iter().enumerate() {
            let offset = number * 3;
            let mut bytes = vec![0xee; offset];
            bytes.extend_from_slice(part);
            let buffer = self.filled(&bytes);
            let (offset, count) = (u32::try_from(offset), u32::try_from(part.len()));
            list.push(buffer, offset.unwrap(), count.unwrap()).unwrap();
        }
        list
    }

    pub(super) fn counter(&self, name: &str) -> u64 {
        let counters = self.port.counters();
        counters.iter().find(|(n, _)| *n == name).unwrap().1
    }

    pub(super) fn posted(&self) -> u32 {
        self.port.receives_posted(self.queue)
    }
}

/// A completion in a form that tests can compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) id: QueuePairId,
    pub(super) status: Status,
    pub(super) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    Received(Vec<u8>, Option<u32>),
    Sent(u64),
    Written(u64),
    Read(u64, Vec<u8>),
    Invalidated(u64, u32),
    Disconnected,
}

/// The statuses and contents of completions, without their queue pairs.
pub(super) fn told(events: Vec<Event>) -> Vec<(Status, What)> {
    events.into_iter().map(|e| (e.status, e.what)).collect()
}

pub(super) fn signalled(work: u64) -> SendOptions {
    SendOptions {
        signalled: Some(WorkId(work)),
        invalidate: None,
    }
}

/// `bytes` bytes that depend on `seed` and on their position.
pub(super) fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at * 31 + at / 256 + seed * 7) % 251).unwrap();
    (0..bytes).map(byte).collect()
}

/// One more queue pair between two ports, on a channel that nothing else uses.
pub(super) fn joined(a: &mut End, b: &mut End) -> (QueuePairId, QueuePairId) {
    let queues = (a.queue, b.queue);
    join(&mut a.port, &a.handle, &mut b.port, &b.handle, queues).unwrap()
}

/// Two joined ports.
pub(super) fn pair() -> (End, End) {
    pair_with(|_| {})
}

pub(super) fn pair_with(change: impl Fn(&mut PortConfig)) -> (End, End) {
    let (mut a, mut b) = (End::new(0, &change), End::new(1, &change));
    let ids = joined(&mut a, &mut b);
    (a.id, b.id) = ids;
    (a, b)
}

/// Two ports and the files of a channel between them, which has no queue pair yet.
pub(super) fn unjoined() -> (End, End, Joint) {
    let (a, b) = (End::new(0, |_| {}), End::new(1, |_| {}));
    let joint = Joint::new(&a.port, &a.handle, &b.port, &b.handle).unwrap();
    (a, b, joint)
}

/// One more queue pair between two ports, on a channel of its own or on that of `joint`.
pub(super) fn connect(a: &mut End, b: &mut End, joint: &Joint) -> (QueuePairId, QueuePairId) {
    let queues = (a.queue, b.queue);
    joint
        .connect(&mut a.port, &a.handle, &mut b.port, &b.handle, queues)
        .unwrap()
}
