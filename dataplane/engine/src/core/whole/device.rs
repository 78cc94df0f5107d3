//! A port of shared memory that reports to its core as an RDMA device does.
//!
//! Shared memory reports what has ended in the next poll, and the end of a connection together with the work that failed.
//! A device reports in its own time, many works at once, and the end of a connection when everything that it flushed has been
//! reported. What is late, and how late, is drawn ([`Late`]). The promises of the interface hold all the same: the
//! works of a queue pair are reported in order, and so are its Receives, and nothing of it comes behind its
//! [`CompletionKind::Disconnected`].

use std::collections::VecDeque;

use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::{
    Access, Arrival, Completion, CompletionBatch, CompletionKind, Formed, Gather, PortPoll,
    PortReceives, PortSends, PortSetup, PortWindows, PostError, QueuePairId, RemoteAddress,
    SendOptions, Window, WorkId,
};
use rpcrdma_fabric::memory::Buffer;

use super::step::Late;
use crate::support::TestPort;

/// How late a device reports, and what it has no room for.
#[derive(Clone, Copy, Debug)]
struct Lateness {
    /// Works, messages, and buffers of Sends are reported at each of so many polls.
    works_every: u64,
    receives_every: u64,
    buffers_every: u64,
    /// Polls between the last completion of a queue pair and its end.
    ends: u64,
    /// The order of queue pairs whose completions are reported in one poll.
    order: u32,
    /// So many works find the send queue full.
    full: u32,
}

impl Lateness {
    const NONE: Self = Self {
        works_every: 1,
        receives_every: 1,
        buffers_every: 1,
        ends: 0,
        order: 0,
        full: 0,
    };

    /// Whether all is reported as it comes.
    fn is_none(&self) -> bool {
        (self.works_every, self.receives_every, self.ends, self.order) == (1, 1, 0, 0)
    }
}

/// What has ended, and in which poll.
#[derive(Debug)]
struct Ended {
    poll: u64,
    completion: Completion,
}

pub(super) struct Device {
    pub(super) port: TestPort,
    lateness: Lateness,
    polls: u64,
    /// What is to be reported later, in the order in which it came.
    kept: Vec<Ended>,
    /// What is to be reported in this poll, or as soon as there is room.
    due: VecDeque<Completion>,
    /// Buffers that are to be returned later, and those that are returned now.
    buffers_kept: Vec<Buffer>,
    buffers_due: Vec<Buffer>,
}

impl Device {
    pub(super) fn new(port: TestPort) -> Self {
        Self {
            port,
            lateness: Lateness::NONE,
            polls: 0,
            kept: Vec::new(),
            due: VecDeque::new(),
            buffers_kept: Vec::new(),
            buffers_due: Vec::new(),
        }
    }

    /// How it reports from now on.
    pub(super) fn set(&mut self, late: Late) {
        let lateness = &mut self.lateness;
        match late {
            Late::Nothing => self.lateness = Lateness::NONE,
            Late::Works { every } => lateness.works_every = every.into(),
            Late::Receives { every } => lateness.receives_every = every.into(),
            Late::Buffers { every } => lateness.buffers_every = every.into(),
            Late::Ends { polls } => lateness.ends = polls.into(),
            Late::Order(order) => lateness.order = order,
            Late::Full { posts } => lateness.full = posts,
        }
    }

    /// Keeps back what came, and reports what is due.
    fn report(&mut self, batch: &mut CompletionBatch) {
        let (poll, lateness) = (self.polls, self.lateness);
        let came = batch.drain();
        self.kept
            .extend(came.map(|completion| Ended { poll, completion }));
        let is_open = |every: u64| poll.is_multiple_of(every);
        let (works, receives) = (
            is_open(lateness.works_every),
            is_open(lateness.receives_every),
        );
        // Queue pairs of which something is kept back, by their bits.
        let mut waiting = 0_u64;
        let due = self.kept.extract_if(.., |ended| {
            let bit = 1 << ended.completion.queue_pair.index;
            let is_due = match ended.completion.kind {
                CompletionKind::Receive { .. } => receives,
                CompletionKind::Disconnected if waiting & bit != 0 => {
                    ended.poll = poll;
                    false
                }
                CompletionKind::Disconnected => poll - ended.poll >= lateness.ends,
                _ => works,
            };
            waiting |= if is_due { 0 } else { bit };
            is_due
        });
        let mut due: Vec<_> = due.map(|ended| ended.completion).collect();
        // Within a queue pair they stay in order.
        due.sort_by_key(|completion| completion.queue_pair.index ^ lateness.order);
        self.due.extend(due);
        while !batch.is_full() {
            let Some(completion) = self.due.pop_front() else {
                break;
            };
            if matches!(completion.kind, CompletionKind::Disconnected) {
                // All that it had is done with.
                self.buffers_due.append(&mut self.buffers_kept);
            }
            batch.push(completion).expect("there is room");
        }
    }

    /// Takes the buffers that came back, and returns them all when it is time.
    fn take_buffers(&mut self) {
        while let Some(buffer) = self.port.next_returned() {
            self.buffers_kept.push(buffer);
        }
        if self.polls.is_multiple_of(self.lateness.buffers_every) {
            self.buffers_due.append(&mut self.buffers_kept);
        }
    }

    /// Whether all is reported as it comes, and nothing was kept back.
    fn is_prompt(&self) -> bool {
        self.lateness.is_none() && self.kept.is_empty() && self.due.is_empty()
    }

    /// Whether a work finds no place in its send queue.
    fn is_full(&mut self) -> bool {
        let is_full = self.lateness.full != 0;
        self.lateness.full -= u32::from(is_full);
        is_full
    }
}

impl PortSetup for Device {
    type PreparedQueuePair = <TestPort as PortSetup>::PreparedQueuePair;
    type PortEvent = <TestPort as PortSetup>::PortEvent;

    rpcrdma_testkit::pass_on! {
        attributes memory carve carve_untouched page_report set_forms create_receive_queue create_receive
        adopt_queue_pair handle_event disconnect destroy_queue_pair
    }
}

impl PortReceives for Device {
    rpcrdma_testkit::pass_on! {
        post_receive flush_receives receives_posted received received_segment replace_segment
    }
}

impl PortSends for Device {
    rpcrdma_testkit::pass_on! {
        probe oldest_work flush_sends
    }

    fn post_send_copied(
        &mut self,
        queue_pair: QueuePairId,
        source: &Buffer,
        bytes: u32,
        options: SendOptions,
    ) -> Result<(), PostError> {
        if self.is_full() {
            return Err(PostError::QueueFull);
        }
        self.port
            .post_send_copied(queue_pair, source, bytes, options)
    }

    /// A message that is not posted goes as octets, which find the send queue full.
    fn post_formed(&mut self, queue_pair: QueuePairId, formed: &Formed, rest: [&[u8]; 2]) -> bool {
        self.lateness.full == 0 && self.port.post_formed(queue_pair, formed, rest)
    }

    fn post_send(
        &mut self,
        queue_pair: QueuePairId,
        list: &mut Gather,
        options: SendOptions,
    ) -> Result<(), PostError> {
        if self.is_full() {
            return Err(PostError::QueueFull);
        }
        self.port.post_send(queue_pair, list, options)
    }

    fn post_read(
        &mut self,
        queue_pair: QueuePairId,
        list: Gather,
        from: RemoteAddress,
        work: WorkId,
    ) -> Result<(), (PostError, Gather)> {
        if self.is_full() {
            return Err((PostError::QueueFull, list));
        }
        self.port.post_read(queue_pair, list, from, work)
    }

    fn post_write(
        &mut self,
        queue_pair: QueuePairId,
        list: &mut Gather,
        to: RemoteAddress,
        signalled: Option<WorkId>,
    ) -> Result<(), PostError> {
        if self.is_full() {
            return Err(PostError::QueueFull);
        }
        self.port.post_write(queue_pair, list, to, signalled)
    }

    fn next_returned(&mut self) -> Option<Buffer> {
        self.buffers_due.pop()
    }
}

impl PortWindows for Device {
    rpcrdma_testkit::pass_on! {
        close_window window_has_key
    }

    fn bind_window(
        &mut self,
        queue_pair: QueuePairId,
        buffer: Buffer,
        bytes: u32,
        access: Access,
    ) -> Result<Window, (PostError, Buffer)> {
        if self.is_full() {
            return Err((PostError::QueueFull, buffer));
        }
        self.port.bind_window(queue_pair, buffer, bytes, access)
    }

    fn invalidate_window(
        &mut self,
        window: Window,
        work: WorkId,
    ) -> Result<(), (PostError, Window)> {
        if self.is_full() {
            return Err((PostError::QueueFull, window));
        }
        self.port.invalidate_window(window, work)
    }
}

impl PortPoll for Device {
    rpcrdma_testkit::pass_on! {
        arrived keep waits_unnotified event unpark receiver_not_ready counters
    }

    fn poll(&mut self, now: Ticks, batch: &mut CompletionBatch) -> bool {
        self.polls += 1;
        let moved = self.port.poll(now, batch);
        self.take_buffers();
        if self.is_prompt() {
            return moved;
        }
        self.report(batch);
        moved || !batch.is_empty()
    }

    /// Messages are left to [`Device::next_arrival`] while nothing is late.
    fn begin_poll(&mut self, now: Ticks, batch: &mut CompletionBatch) -> bool {
        if !self.is_prompt() {
            return self.poll(now, batch);
        }
        self.polls += 1;
        let moved = self.port.begin_poll(now, batch);
        self.take_buffers();
        moved
    }

    fn next_arrival(&mut self) -> Option<Arrival> {
        if !self.is_prompt() {
            return None;
        }
        self.port.next_arrival()
    }

    /// What is reported late is found by polls, and by no event.
    fn prepare_to_park(&mut self) -> bool {
        let reports_later = !self.kept.is_empty() || !self.due.is_empty();
        let returns_later = !self.buffers_kept.is_empty() || !self.buffers_due.is_empty();
        !reports_later && !returns_later && self.port.prepare_to_park()
    }
}
