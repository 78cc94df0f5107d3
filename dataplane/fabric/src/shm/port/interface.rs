//! The calls of the interface.

use std::os::fd::{AsFd, BorrowedFd};

use super::super::files;
use super::super::link::{Notice, Seed};
use super::super::receive_queue::{ReceiveQueue, Taker};
use super::core::channel_mut;
use super::{BUSY_EXCHANGE_POLLS, Port};
use crate::clock::Ticks;
use crate::interface::{
    Access, Arrival, Attributes, CompletionBatch, Gather, PostError, QueuePairId, Receive,
    ReceiveQueueAttributes, ReceiveQueueId, RemoteAddress, RemoteKey, SendOptions, SetupError,
    Window, WorkId,
};
use crate::memory::{Buffer, Memory, PageReport, Pool, PoolShape};

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
        let taker = if self.attributes.shared_receive_queue {
            Taker::Any
        } else {
            Taker::Nobody
        };
        let queue = ReceiveQueue::new(attributes, taker);
        self.core.receive_queues.push(queue);
        self.staged.reserve(self.core.receive_queues.len());
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
        if !list
            .iter()
            .all(|buffer| self.core.memory.may_be_written(buffer))
        {
            return Err(SetupError::ForeignMemory);
        }
        let slot = receive_queue.make(list.into_iter());
        Ok(self.core.receive(usize::from(queue.0), slot))
    }

    #[inline]
    fn post_receive(&mut self, receive: Receive) -> Option<Receive> {
        let Some(receive_queue) = self.core.queue_of_mut(&receive) else {
            return Some(receive);
        };
        if receive_queue.stage(receive.slot) {
            self.staged.push(receive.queue.0);
        }
        None
    }

    #[inline]
    fn flush_receives(&mut self) {
        while let Some(number) = self.staged.pop() {
            if let Some(receive_queue) = self.core.receive_queues.get_mut(usize::from(number)) {
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
        let receive_queue = self.core.queue_of(receive)?;
        let buffer = receive_queue.segment(receive.slot, index)?;
        Some(self.core.memory.bytes(buffer))
    }

    fn replace_segment(
        &mut self,
        receive: &mut Receive,
        index: usize,
        fresh: Buffer,
    ) -> Result<Buffer, Buffer> {
        if !self.core.memory.may_be_written(&fresh) {
            return Err(fresh);
        }
        let receive_queue = self.core.queue_of_mut(receive);
        match receive_queue.and_then(|queue| queue.segment_mut(receive.slot, index)) {
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

    fn probe(&mut self, _: QueuePairId, _: WorkId) -> Result<(), PostError> {
        Err(PostError::Unsupported)
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
        self.core.windows.owns(window) && window.key == key
    }

    #[inline]
    fn flush_sends(&mut self) {
        while let Some(number) = self.dirty.pop() {
            if let Some(channel) = channel_mut(&mut self.channels, number) {
                channel.in_dirty = false;
                channel.end_burst();
                channel.ring_peer(&mut self.core.counters);
            }
        }
    }

    fn poll(&mut self, now: Ticks, batch: &mut CompletionBatch) -> bool {
        let busy = self.begin_poll(now, batch);
        while !batch.is_full()
            && let Some(arrival) = self.take_arrival()
        {
            self.core.push_arrival(&arrival, batch);
        }
        busy
    }

    #[inline]
    fn begin_poll(&mut self, now: Ticks, batch: &mut CompletionBatch) -> bool {
        self.leave_found();
        let poll = self.core.counters.polls + 1;
        self.core.counters.polls = poll;
        self.core.copy_budget = self.core.copy_bytes_per_poll;
        // What can wait comes first, so that nothing stands between a message of a hot channel and
        // whoever handles it.
        let mut busy = false;
        self.schedule.collect(&self.bell);
        let is_sweep = poll & self.sweep_mask == 0;
        if is_sweep || self.schedule.has_pending() {
            busy |= self.visit_some_cold(is_sweep, now, batch);
        }
        if self.core.has_own_work() {
            busy |= self.core.work_in_share(&mut self.channels, now, batch);
        }
        if !self.was_busy || poll.is_multiple_of(BUSY_EXCHANGE_POLLS) {
            busy |= self.core.exchange_progress(&mut self.channels);
        }
        let (any_hot, kept_back) = self.visit_hot(now, batch);
        busy |= any_hot;
        if self.core.has_own_work() {
            busy |= self.core.work_in_rest(&mut self.channels, now, batch);
        }
        batch.release(kept_back);
        self.core.not_ready_polls = self.core.not_ready_polls.saturating_sub(1);
        self.was_busy = busy;
        self.core.counters.polls_empty += u64::from(!busy);
        busy
    }

    #[inline]
    fn next_arrival(&mut self) -> Option<Arrival> {
        if self.found.is_used_up() {
            return None;
        }
        self.take_arrival()
    }

    #[inline]
    fn arrived(&self, arrival: &Arrival) -> &[u8] {
        self.core.inbox.message(arrival.bytes)
    }

    fn keep(&mut self, arrival: Arrival) -> Option<Receive> {
        self.core.keep_arrival(&arrival)
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

    /// Acknowledgements are words that wake nobody.
    fn waits_unnotified(&self) -> bool {
        !self.core.awaiting.is_empty()
    }

    fn unpark(&mut self) {
        self.core.windows.memory().set_parked(false);
        files::drain(self.event.as_fd());
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn receiver_not_ready(&self) -> u64 {
        self.core.counters.receiver_not_ready
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.core.counters.list()
    }
}
