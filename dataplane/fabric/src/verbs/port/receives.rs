//! Receives: posting them, and reading what arrived in them.

use super::Port;
use super::receive_queue::{ReceiveQueue, Taker};
use crate::interface::{PortReceives, Receive, ReceiveQueueId};
use crate::memory::Buffer;

impl PortReceives for Port {
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
}

impl Port {
    /// Stages a Receive on its queue. Returns a Receive of another port as the error.
    #[inline]
    pub(super) fn stage_receive(&mut self, receive: Receive) -> Result<(), Receive> {
        let Some(queue) = self.receive_queues.of_mut(&receive) else {
            return Err(receive);
        };
        if queue.stage(receive.slot) {
            self.staged.push(receive.queue.0);
        }
        Ok(())
    }

    /// Posts the staged Receives of all queues. Those that the device refused are tried again with the
    /// next flush.
    #[inline]
    pub(super) fn post_staged(&mut self) {
        let mut place = 0;
        while let Some(number) = self.staged.get(place).copied() {
            if self.post_receives(usize::from(number)) {
                self.staged.swap_remove(place);
            } else {
                place += 1;
            }
        }
    }

    /// Posts the staged Receives of one queue. Returns false when the device refused some. Receives
    /// whose queue pair is missing or in error stay staged until the next one is adopted.
    pub(super) fn post_receives(&mut self, number: usize) -> bool {
        let Some(queue) = self.receive_queues.get_mut(number) else {
            return true;
        };
        let owner = match queue.taker {
            Taker::Shared(_) => None,
            Taker::QueuePair(index) => match self.queue_pairs.get(index) {
                Some(entry) if !entry.is_down() => entry.device.as_ref(),
                _ => return true,
            },
        };
        self.counters.doorbells_receive += 1;
        let all_posted = queue.post(owner);
        if !all_posted {
            self.counters.posts_refused += 1;
        }
        queue.arm();
        all_posted
    }
}
