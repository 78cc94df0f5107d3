//! Receives: posting them, and reading what arrived in them.

use super::super::receive_queue::ReceiveQueue;
use super::Port;
use crate::interface::{PortReceives, Receive, ReceiveQueueId};
use crate::memory::Buffer;

impl PortReceives for Port {
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
}
