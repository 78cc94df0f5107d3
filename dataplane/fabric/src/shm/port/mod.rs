//! A port of the `shm` provider: one core's channels, queue pairs, receive queues and windows.

mod complete;
mod core;
mod fault;
mod inbound;
mod lifecycle;
mod post;
mod schedule;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_queue::ArrayQueue;

use self::core::{Channels, Core, channel_mut};
use self::post::MESSAGE_BYTES_MAX;
use self::schedule::Schedule;
use super::counters::Counters;
use super::doorbell::BellMemory;
use super::files;
use super::key_table::Windows;
use super::link::{CoreIdentity, Notice, PortFiles, PortHandle, QueuePairNumber, Seed};
use super::mapped::MappedBell;
use super::queue_pair::QueuePair;
use super::receive_queue::ReceiveQueue;
use super::record::{DESCRIPTOR_BYTES_MAX, EXTENSION_BYTES, HEADER_BYTES, UNIT_BYTES};
use super::work::Works;
use crate::clock::{Clock, Ticks};
use crate::interface::{
    Access, Attributes, CompletionBatch, Gather, PostError, QueuePairId, Receive,
    ReceiveQueueAttributes, ReceiveQueueId, RemoteAddress, SEGMENTS_MAX, SendOptions, SetupError,
    Window, WorkId,
};
use crate::memory::{Arena, Buffer, Memory, PageReport, Pool, PoolShape};

/// Polls after which progress is exchanged with peers although there is other work.
const BUSY_EXCHANGE_POLLS: u64 = 64;
/// Cold channels that one poll looks at.
const COLD_VISITS_PER_POLL: u32 = 8;

/// What a port is made with.
#[derive(Debug)]
pub struct PortConfig {
    /// The port's number within its process.
    pub port: u32,
    /// The registered memory; pools are carved from it before or after.
    pub arena: Arena,
    /// Bytes of the ring in each channel file of this port; a power of two from 8192.
    pub channel_ring_bytes: u32,
    /// Bytes up to which a Send goes through the ring; above, it is pulled by the receiver.
    pub inline_bytes_max: u32,
    /// Bytes that one poll pulls at most.
    pub copy_bytes_per_poll: u32,
    /// Channels that are looked at in every poll; at most 64.
    pub hot_channels_max: u32,
    /// One cold channel is looked at in so many polls; rounded up to a power of two.
    pub cold_sweep_polls: u32,
    /// Queue pairs; at most 65536.
    pub queue_pairs_max: u32,
    /// Memory windows; rounded up to a power of two.
    pub windows_max: u32,
    /// Work requests outstanding per queue pair.
    pub send_queue_depth_max: u32,
    /// Work requests outstanding on the whole port that are signalled or hold buffers.
    pub work_requests_max: u32,
    /// How long a delivery takes, one way; zero for as fast as can be.
    pub delay: Duration,
    /// The clock whose readings [`crate::interface::Port::poll`] gets.
    pub clock: Clock,
}

impl PortConfig {
    /// The usual sizes, for a port with this memory.
    #[must_use]
    pub fn new(port: u32, arena: Arena, clock: Clock) -> Self {
        Self {
            port,
            arena,
            channel_ring_bytes: 32_768,
            inline_bytes_max: 1024,
            copy_bytes_per_poll: 65_536,
            hot_channels_max: 8,
            cold_sweep_polls: 16,
            queue_pairs_max: 1024,
            windows_max: 1024,
            send_queue_depth_max: 256,
            work_requests_max: 1024,
            delay: Duration::ZERO,
            clock,
        }
    }

    fn check(&self) -> Result<(), SetupError> {
        files::check_ring_bytes(self.channel_ring_bytes)?;
        let descriptor = HEADER_BYTES + EXTENSION_BYTES + DESCRIPTOR_BYTES_MAX;
        let limits = [
            (
                "bytes of a Send through the ring",
                self.inline_bytes_max,
                // A record, the pad before it and the cleared word behind it always fit.
                (self.channel_ring_bytes / 4).max(descriptor) - 2 * UNIT_BYTES,
            ),
            ("hot channels of a port", self.hot_channels_max, 64),
            ("queue pairs of a port", self.queue_pairs_max, 1 << 16),
            (
                "work requests of a port",
                self.work_requests_max,
                u32::MAX >> 1,
            ),
        ];
        for (what, asked, limit) in limits {
            if asked > limit {
                return Err(SetupError::Limit {
                    what,
                    asked: asked.into(),
                    limit: limit.into(),
                });
            }
        }
        Ok(())
    }
}

/// A port. See [`crate::interface::Port`] for the order of the calls.
#[derive(Debug)]
pub struct Port {
    core: Core,
    channels: Channels,
    schedule: Schedule,
    bell: MappedBell,
    event: Arc<PortFiles>,
    numbers: Arc<ArrayQueue<QueuePairNumber>>,
    /// Channels that were sent on since the last flush.
    dirty: Vec<u32>,
    attributes: Attributes,
    inline_bytes_max: u32,
    sweep_mask: u64,
    arena: Arena,
}

impl Port {
    /// Makes a port, and the handle by which the connection manager makes queue pairs for it.
    ///
    /// # Errors
    ///
    /// When a size is beyond its limit, or the system refuses memory or descriptors.
    pub fn new(config: PortConfig) -> Result<(Self, PortHandle), SetupError> {
        config.check()?;
        let (keys_file, keys) = files::create_key_table(config.windows_max)?;
        let (doorbell_file, bell) = files::create_doorbell()?;
        let files = Arc::new(PortFiles {
            arena: duplicate(config.arena.file().ok_or_else(private_arena)?)?,
            keys: keys_file,
            doorbell: doorbell_file,
            event: files::create_event()?,
        });
        let count = config.queue_pairs_max.max(1);
        let numbers = Arc::new(ArrayQueue::new(count as usize));
        for index in 0..count {
            let index = u16::try_from(index).unwrap_or(u16::MAX);
            let _ = numbers.push(QueuePairNumber::new(index, 1));
        }
        let handle = PortHandle {
            identity: CoreIdentity::of_this_process(config.port),
            files: Arc::clone(&files),
            numbers: Arc::clone(&numbers),
            channel_ring_bytes: config.channel_ring_bytes,
        };
        let port = Self {
            attributes: attributes(&config),
            core: new_core(&config, Windows::new(keys)),
            channels: Vec::new(),
            schedule: Schedule::new(config.hot_channels_max.max(1) as usize),
            bell,
            event: files,
            numbers,
            dirty: Vec::new(),
            inline_bytes_max: config.inline_bytes_max,
            sweep_mask: u64::from(config.cold_sweep_polls.max(1).next_power_of_two()) - 1,
            arena: config.arena,
        };
        Ok((port, handle))
    }

    /// Looks at one channel. Whether something was done.
    #[inline]
    fn visit(&mut self, number: u32, now: Ticks, batch: &mut CompletionBatch) -> bool {
        let Some(channel) = channel_mut(&mut self.channels, number) else {
            return false;
        };
        if channel.broken {
            return false;
        }
        let visit = self.core.visit(channel, now, batch);
        if visit.busy && channel.hot {
            channel.last_active = self.core.counters.polls;
        } else if visit.again && !channel.hot {
            self.schedule.mark(number);
        }
        if visit.broken {
            self.break_channel(number);
        }
        visit.busy
    }

    /// Looks at the cold channels that were rung for. Whether something was done.
    fn visit_pending(&mut self, now: Ticks, batch: &mut CompletionBatch) -> bool {
        let mut busy = false;
        for _ in 0..COLD_VISITS_PER_POLL {
            if batch.is_full() {
                break;
            }
            let Some(number) = self.schedule.take_pending() else {
                break;
            };
            self.core.counters.doorbells_in += 1;
            busy |= self.visit_cold(number, now, batch);
        }
        busy
    }

    fn visit_cold(&mut self, number: u32, now: Ticks, batch: &mut CompletionBatch) -> bool {
        if channel_mut(&mut self.channels, number).is_none_or(|channel| channel.hot) {
            return false;
        }
        let busy = self.visit(number, now, batch);
        if busy {
            let poll = self.core.counters.polls;
            let moved = self
                .schedule
                .note_cold_work(&mut self.channels, number, poll);
            self.core.counters.promotions += u64::from(moved.promoted);
            self.core.counters.demotions += u64::from(moved.demoted);
        }
        busy
    }

    /// What is done now and then: a cold channel is looked at, a sleeping hot one made cold.
    fn upkeep(&mut self, now: Ticks, batch: &mut CompletionBatch) -> bool {
        let poll = self.core.counters.polls;
        let moved = self.schedule.cool_down(&mut self.channels, poll);
        self.core.counters.demotions += u64::from(moved.demoted);
        match self.schedule.next_to_sweep(&mut self.channels) {
            Some(number) if !batch.is_full() => {
                self.core.counters.sweeps += 1;
                self.visit_cold(number, now, batch)
            }
            _ => false,
        }
    }
}

fn private_arena() -> SetupError {
    SetupError::System {
        doing: "a port of shm needs a shared arena, which its peers can map".into(),
        source: std::io::ErrorKind::InvalidInput.into(),
    }
}

fn duplicate(file: &OwnedFd) -> Result<OwnedFd, SetupError> {
    file.try_clone().map_err(|source| SetupError::System {
        doing: "a descriptor could not be duplicated".into(),
        source,
    })
}

fn attributes(config: &PortConfig) -> Attributes {
    Attributes {
        provider: "shm",
        device: format!("shm port {}", config.port),
        queue_pairs_max: config.queue_pairs_max.max(1),
        receive_queue_depth_max: 1 << 20,
        receive_segments_max: u32::try_from(SEGMENTS_MAX).unwrap_or(u32::MAX),
        send_segments_max: u32::try_from(SEGMENTS_MAX).unwrap_or(u32::MAX),
        send_queue_depth_max: config.send_queue_depth_max,
        inline_bytes_max: config.inline_bytes_max,
        message_bytes_max: MESSAGE_BYTES_MAX,
        read_depth_max: config.send_queue_depth_max,
        windows_max: config.windows_max.max(1).next_power_of_two(),
        shared_receive_queue: true,
        send_with_invalidate: true,
    }
}

fn new_core(config: &PortConfig, windows: Windows) -> Core {
    let queue_pairs = config.queue_pairs_max.max(1) as usize;
    let works = config.work_requests_max as usize;
    let held = works * SEGMENTS_MAX + config.windows_max as usize;
    Core {
        memory: config.arena.memory(),
        queue_pairs: (0..queue_pairs).map(|_| QueuePair::vacant()).collect(),
        receive_queues: Vec::new(),
        windows,
        works: Works::new(config.work_requests_max),
        ready: VecDeque::with_capacity(queue_pairs),
        readers: VecDeque::with_capacity(queue_pairs),
        untold: Vec::new(),
        awaiting: VecDeque::new(),
        returned: Vec::with_capacity(held),
        counters: Counters::default(),
        clock: config.clock.clone(),
        delay: config.clock.ticks(config.delay),
        send_queue_depth_max: config.send_queue_depth_max,
        copy_bytes_per_poll: config.copy_bytes_per_poll.max(1),
        copy_budget: 0,
        not_ready_polls: 0,
    }
}

impl crate::interface::Port for Port {
    type Seed = Seed;
    type Notice = Notice;

    fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    fn memory(&self) -> &Memory {
        &self.core.memory
    }

    fn carve(&mut self, shape: PoolShape) -> Result<Pool, SetupError> {
        self.arena.pool(shape)
    }

    fn page_report(&self) -> &PageReport {
        self.arena.report()
    }

    fn create_receive_queue(
        &mut self,
        attributes: ReceiveQueueAttributes,
    ) -> Result<ReceiveQueueId, SetupError> {
        let limits = [
            (
                "Receives of a receive queue",
                attributes.depth,
                self.attributes.receive_queue_depth_max,
            ),
            (
                "segments of a Receive",
                attributes.segments_max,
                self.attributes.receive_segments_max,
            ),
        ];
        for (what, asked, limit) in limits {
            if asked > limit || asked == 0 {
                return Err(SetupError::Limit {
                    what,
                    asked: asked.into(),
                    limit: limit.into(),
                });
            }
        }
        let asked = self.core.receive_queues.len();
        let id = u16::try_from(asked).map_err(|_| SetupError::Limit {
            what: "receive queues of a port",
            asked: asked as u64,
            limit: u16::MAX.into(),
        })?;
        self.core.receive_queues.push(ReceiveQueue::new(attributes));
        Ok(ReceiveQueueId(id))
    }

    fn create_receive(
        &mut self,
        queue: ReceiveQueueId,
        segments: &mut dyn Iterator<Item = Buffer>,
    ) -> Result<Receive, SetupError> {
        let list: Vec<Buffer> = segments.collect();
        let Some(receive_queue) = self.core.receive_queues.get_mut(usize::from(queue.0)) else {
            return Err(SetupError::Limit {
                what: "receive queues of a port",
                asked: u64::from(queue.0) + 1,
                limit: self.core.receive_queues.len() as u64,
            });
        };
        let attributes = receive_queue.attributes();
        let limits = [
            (
                "segments of a Receive",
                list.len() as u64,
                attributes.segments_max,
            ),
            (
                "Receives of a receive queue",
                u64::from(receive_queue.made()) + 1,
                attributes.depth,
            ),
        ];
        for (what, asked, limit) in limits {
            if asked > u64::from(limit) || asked == 0 {
                let limit = limit.into();
                return Err(SetupError::Limit { what, asked, limit });
            }
        }
        if !list.iter().all(|buffer| self.core.memory.owns(buffer)) {
            return Err(SetupError::ForeignMemory);
        }
        let slot = receive_queue.make(list.into_iter());
        Ok(Receive { queue, slot })
    }

    #[inline]
    fn post_receive(&mut self, receive: Receive) {
        let queue = usize::from(receive.queue.0);
        if let Some(receive_queue) = self.core.receive_queues.get_mut(queue) {
            receive_queue.stage(receive);
        }
    }

    #[inline]
    fn flush_receives(&mut self) {
        for receive_queue in &mut self.core.receive_queues {
            if receive_queue.has_staged() {
                receive_queue.flush();
            }
        }
    }

    fn receives_posted(&self, queue: ReceiveQueueId) -> u32 {
        let receive_queue = self.core.receive_queues.get(usize::from(queue.0));
        receive_queue.map_or(0, ReceiveQueue::posted)
    }

    #[inline]
    fn received(&self, receive: &Receive) -> &[u8] {
        self.received_segment(receive, 0).unwrap_or(&[])
    }

    #[inline]
    fn received_segment(&self, receive: &Receive, index: usize) -> Option<&[u8]> {
        let receive_queue = self.core.receive_queues.get(usize::from(receive.queue.0))?;
        let buffer = receive_queue.segment(receive.slot, index)?;
        Some(self.core.memory.bytes(buffer))
    }

    fn replace_segment(
        &mut self,
        receive: &mut Receive,
        index: usize,
        fresh: Buffer,
    ) -> Result<Buffer, Buffer> {
        let queue = usize::from(receive.queue.0);
        if !self.core.memory.owns(&fresh) {
            return Err(fresh);
        }
        let place = self
            .core
            .receive_queues
            .get_mut(queue)
            .and_then(|receive_queue| receive_queue.segment_mut(receive.slot, index));
        match place {
            Some(place) if fresh.capacity() >= place.capacity() => {
                Ok(std::mem::replace(place, fresh))
            }
            _ => Err(fresh),
        }
    }

    fn plant(&mut self, seed: Seed, queue: ReceiveQueueId) -> Result<QueuePairId, SetupError> {
        self.plant_seed(seed, queue)
    }

    fn notice(&mut self, notice: Notice) {
        self.take_notice(notice);
    }

    #[inline]
    fn post_send_copied(
        &mut self,
        queue_pair: QueuePairId,
        source: &Buffer,
        bytes: u32,
        options: SendOptions,
    ) -> Result<(), PostError> {
        self.send_copied(queue_pair, source, bytes, options)
    }

    fn post_send(
        &mut self,
        queue_pair: QueuePairId,
        list: &mut Gather,
        options: SendOptions,
    ) -> Result<(), PostError> {
        self.send_gathered(queue_pair, list, options)
    }

    fn post_read(
        &mut self,
        queue_pair: QueuePairId,
        list: Gather,
        from: RemoteAddress,
        work: WorkId,
    ) -> Result<(), (PostError, Gather)> {
        self.read(queue_pair, list, from, work)
    }

    fn post_write(
        &mut self,
        queue_pair: QueuePairId,
        list: &mut Gather,
        to: RemoteAddress,
        signalled: Option<WorkId>,
    ) -> Result<(), PostError> {
        self.write(queue_pair, list, to, signalled)
    }

    fn bind_window(
        &mut self,
        queue_pair: QueuePairId,
        buffer: Buffer,
        bytes: u32,
        access: Access,
    ) -> Result<Window, (PostError, Buffer)> {
        self.bind(queue_pair, buffer, bytes, access)
    }

    fn invalidate_window(
        &mut self,
        window: Window,
        work: WorkId,
    ) -> Result<(), (PostError, Window)> {
        self.invalidate(window, work)
    }

    fn close_window(&mut self, window: Window) -> Result<Buffer, Window> {
        self.close(window)
    }

    #[inline]
    fn flush_sends(&mut self) {
        while let Some(number) = self.dirty.pop() {
            if let Some(channel) = channel_mut(&mut self.channels, number) {
                channel.in_dirty = false;
                channel.ring_peer(&mut self.core.counters);
            }
        }
    }

    #[inline]
    fn poll(&mut self, now: Ticks, batch: &mut CompletionBatch) -> bool {
        self.core.counters.polls += 1;
        self.core.copy_budget = self.core.copy_bytes_per_poll;
        let poll = self.core.counters.polls;
        let mut busy = false;
        let mut place = 0;
        while let Some(number) = self.schedule.hot(place) {
            busy |= self.visit(number, now, batch);
            place += 1;
        }
        self.schedule.collect(&self.bell);
        if self.schedule.has_pending() {
            busy |= self.visit_pending(now, batch);
        }
        if poll & self.sweep_mask == 0 {
            busy |= self.upkeep(now, batch);
        }
        if !self.core.ready.is_empty() {
            busy |= self.core.complete_ready(&mut self.channels, batch);
        }
        if !self.core.readers.is_empty() {
            busy |= self.core.go_on_reading(&mut self.channels, now);
        }
        if !busy || poll.is_multiple_of(BUSY_EXCHANGE_POLLS) {
            busy |= self.core.exchange_progress(&mut self.channels);
        }
        self.core.not_ready_polls = self.core.not_ready_polls.saturating_sub(1);
        self.core.counters.polls_empty += u64::from(!busy);
        busy
    }

    #[inline]
    fn next_returned(&mut self) -> Option<Buffer> {
        self.core.returned.pop()
    }

    fn disconnect(&mut self, queue_pair: QueuePairId) {
        if let Some(index) = self.core.index_of_id(queue_pair) {
            self.disconnect_index(index);
        }
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId) {
        if let Some(index) = self.core.index_of_id(queue_pair) {
            self.destroy_index(index);
        }
    }

    fn prepare_to_park(&mut self) -> bool {
        self.core.windows.memory().set_parked(true);
        let idle = self.is_idle();
        if !idle {
            self.core.windows.memory().set_parked(false);
        }
        idle
    }

    fn unpark(&mut self) {
        self.core.windows.memory().set_parked(false);
        files::drain(self.event.event.as_fd());
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.event.event.as_fd()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.core.counters.list()
    }
}

impl Port {
    /// Whether nothing is to be done that nobody would wake us for.
    fn is_idle(&mut self) -> bool {
        let core = &self.core;
        if self.schedule.has_pending() || self.bell.rung() {
            return false;
        }
        // What waits for acknowledgements waits for words that wake nobody.
        if !core.ready.is_empty() || !core.readers.is_empty() || !core.awaiting.is_empty() {
            return false;
        }
        if !core.untold.is_empty() {
            return false;
        }
        let mut place = 0;
        while let Some(number) = self.schedule.hot(place) {
            let peer = channel_mut(&mut self.channels, number).and_then(|c| c.peer.as_ref());
            if peer.is_some_and(|peer| peer.consumer.peek().is_some()) {
                return false;
            }
            place += 1;
        }
        true
    }
}

#[cfg(test)]
impl Port {
    /// The channels, to write what no port would.
    pub(in crate::shm) fn channels_for_tests(
        &mut self,
    ) -> &mut [Option<Box<super::channel::Channel>>] {
        &mut self.channels
    }
}
