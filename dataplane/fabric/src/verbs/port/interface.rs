//! The calls of the interface.

use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::super::bindings::ibv_wc;
use super::super::link::{Notice, Seed};
use super::super::shared_receive_queue::SharedReceiveQueue;
use super::super::work_request::RECEIVE_QUEUES_MAX;
use super::Port;
use super::receives::{ReceiveQueue, Taker};
use crate::clock::Ticks;
use crate::interface::{
    Access, Attributes, CompletionBatch, Gather, PostError, QueuePairId, REAP_MAX, Receive,
    ReceiveQueueAttributes, ReceiveQueueId, RemoteAddress, RemoteKey, SendOptions, SetupError,
    Window, WorkId,
};
use crate::memory::{Buffer, Memory, PageReport, Pool, PoolShape};

/// Polls between two looks at what the device told.
const EVENT_POLLS: u64 = 64;

impl Port {
    /// Whether a new receive queue would be within the limits.
    fn check_receive_queue(&self, attributes: ReceiveQueueAttributes) -> Result<(), SetupError> {
        let depths: u64 = self
            .receive_queues
            .iter()
            .map(|queue| u64::from(queue.attributes().depth))
            .sum();
        let depth = u64::from(attributes.depth);
        let limits = [
            (
                "Receives of a receive queue",
                depth,
                u64::from(self.attributes.receive_queue_depth_max),
            ),
            (
                "segments of a Receive",
                attributes.segments_max.into(),
                self.attributes.receive_segments_max.into(),
            ),
            (
                "Receives of all receive queues of a port",
                depths + depth,
                self.receives_max.into(),
            ),
            (
                "receive queues of a port",
                self.receive_queues.count() as u64 + 1,
                RECEIVE_QUEUES_MAX as u64,
            ),
        ];
        for (what, asked, limit) in limits {
            if asked > limit || asked == 0 {
                return Err(SetupError::Limit { what, asked, limit });
            }
        }
        Ok(())
    }

    fn new_taker(&self, attributes: ReceiveQueueAttributes) -> Result<Taker, SetupError> {
        if !self.shared.shares_receives {
            return Ok(Taker::QueuePair(u32::MAX));
        }
        let queue = Arc::new(SharedReceiveQueue::new(
            &self.shared.domain,
            attributes.depth,
            attributes.segments_max,
            self.shared.events.port,
        )?);
        self.shared.add_receive_queue(Arc::clone(&queue));
        Ok(Taker::Shared(queue))
    }
}

impl Port {
    /// Takes at most `room` completions of the device, and makes at most as many of ours. How
    /// many the device had.
    #[inline]
    fn reap(&mut self, room: usize, batch: &mut CompletionBatch) -> usize {
        let mut completions = [const { MaybeUninit::<ibv_wc>::uninit() }; REAP_MAX];
        let Ok(count) = self.completion_queue.poll(&mut completions, room) else {
            self.fail_everything();
            return 0;
        };
        for completion in completions.iter().take(count) {
            // SAFETY: the library wrote the first `count` of them.
            self.handle(unsafe { completion.assume_init_ref() }, batch);
        }
        count
    }
}

impl crate::interface::Port for Port {
    type Seed = Seed;
    type Notice = Notice;

    fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    fn memory(&self) -> &Memory {
        &self.memory
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
        self.check_receive_queue(attributes)?;
        let taker = self.new_taker(attributes)?;
        let key = self.region.local_key();
        let id = self.receive_queues.add(attributes, taker, key);
        self.staged.reserve(self.receive_queues.count());
        Ok(id)
    }

    fn create_receive(
        &mut self,
        queue: ReceiveQueueId,
        segments: &mut dyn Iterator<Item = Buffer>,
    ) -> Result<Receive, SetupError> {
        let list: Vec<Buffer> = segments.collect();
        let count = self.receive_queues.count() as u64;
        let Some(receive_queue) = self.receive_queues.get_mut(usize::from(queue.0)) else {
            return Err(SetupError::Limit {
                what: "receive queues of a port",
                asked: u64::from(queue.0) + 1,
                limit: count,
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
                receive_queue.made() as u64 + 1,
                attributes.depth,
            ),
        ];
        for (what, asked, limit) in limits {
            if asked > u64::from(limit) || asked == 0 {
                let limit = limit.into();
                return Err(SetupError::Limit { what, asked, limit });
            }
        }
        if !list.iter().all(|buffer| self.memory.may_be_written(buffer)) {
            return Err(SetupError::ForeignMemory);
        }
        Ok(receive_queue.make(list))
    }

    #[inline]
    fn post_receive(&mut self, receive: Receive) -> Option<Receive> {
        self.stage_receive(receive).err()
    }

    #[inline]
    fn flush_receives(&mut self) {
        if !self.staged.is_empty() {
            self.post_staged();
        }
    }

    fn receives_posted(&self, queue: ReceiveQueueId) -> u32 {
        let receive_queue = self.receive_queues.get(usize::from(queue.0));
        receive_queue.map_or(0, ReceiveQueue::posted)
    }

    #[inline]
    fn received(&self, receive: &Receive) -> &[u8] {
        self.received_segment(receive, 0).unwrap_or(&[])
    }

    #[inline]
    fn received_segment(&self, receive: &Receive, index: usize) -> Option<&[u8]> {
        let receive_queue = self.receive_queues.of(receive)?;
        let buffer = receive_queue.segment(receive.slot, index)?;
        Some(self.memory.bytes(buffer))
    }

    fn replace_segment(
        &mut self,
        receive: &mut Receive,
        index: usize,
        fresh: Buffer,
    ) -> Result<Buffer, Buffer> {
        if !self.memory.may_be_written(&fresh) {
            return Err(fresh);
        }
        match self.receive_queues.of_mut(receive) {
            Some(queue) => queue.replace(receive.slot, index, fresh),
            None => Err(fresh),
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

    fn probe(&mut self, queue_pair: QueuePairId, work: WorkId) -> Result<(), PostError> {
        self.post_probe(queue_pair, work)
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

    fn window_has_key(&self, window: &Window, key: RemoteKey) -> bool {
        self.owns_window(window) && window.key == key
    }

    #[inline]
    fn flush_sends(&mut self) {
        self.ring_doorbells();
    }

    #[inline]
    fn poll(&mut self, now: Ticks, batch: &mut CompletionBatch) -> bool {
        self.counters.polls += 1;
        let mut busy = !self.pending.is_empty() && self.push_pending(batch);
        let room = batch.room();
        let count = self.reap(room, batch);
        busy |= count > 0;
        if !self.gone.is_empty() && count < room {
            self.end_gone();
        }
        if !self.closing.is_empty() {
            busy |= self.go_on_closing(now, count < room, batch);
        }
        if self.counters.polls.is_multiple_of(EVENT_POLLS) && !self.shared.events.is_empty() {
            self.take_events();
        }
        self.counters.polls_empty += u64::from(!busy);
        busy
    }

    #[inline]
    fn next_returned(&mut self) -> Option<Buffer> {
        self.returned.pop()
    }

    fn disconnect(&mut self, queue_pair: QueuePairId) {
        self.disconnect_id(queue_pair, true);
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId) {
        self.destroy_id(queue_pair);
    }

    fn prepare_to_park(&mut self) -> bool {
        let quiet = self.closing.is_empty()
            && self.gone.is_empty()
            && self.pending.is_empty()
            && self.dirty.is_empty()
            && self.shared.events.is_empty();
        if !quiet {
            return false;
        }
        // An event that was asked for earlier would wake at once.
        self.completion_queue.clear_events();
        if self.completion_queue.request_event().is_err() {
            return false;
        }
        // What completed before the request raises no event.
        let mut batch = CompletionBatch::new();
        let count = self.reap(batch.room(), &mut batch);
        self.pending.extend(batch.drain());
        count == 0
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.completion_queue.descriptor()
    }

    fn unpark(&mut self) {
        self.completion_queue.clear_events();
    }

    fn receiver_not_ready(&self) -> u64 {
        self.counters.receiver_not_ready
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.counters.list()
    }
}
