//! Receive queues: Receives with their scatter lists, and the chains in which they are posted.

use std::sync::Arc;

use super::super::bindings::{ibv_recv_wr, ibv_sge};
use super::super::queue_pair::QueuePair;
use super::super::shared_receive_queue::SharedReceiveQueue;
use super::super::work_request::{Fixed, WorkName};
use crate::interface::{PortNumber, Receive, ReceiveQueueAttributes, ReceiveQueueId};
use crate::memory::Buffer;

const NONE: u32 = u32::MAX;

/// A Receive of the queue.
#[derive(Debug)]
struct Slot {
    segments: Vec<Buffer>,
    bytes: u32,
    generation: u16,
    posted: bool,
    next: u32,
}

/// The object of the device to which the Receives are posted.
#[derive(Debug)]
pub(super) enum Taker {
    /// A shared receive queue.
    Shared(Arc<SharedReceiveQueue>),
    /// The receive queue of the queue pair with this index; [`u32::MAX`] when none is adopted.
    QueuePair(u32),
}

/// The receive queues of a port.
#[derive(Debug)]
pub(super) struct ReceiveQueues {
    port: PortNumber,
    queues: Vec<ReceiveQueue>,
}

impl ReceiveQueues {
    /// An empty list, for the port with this number.
    pub(super) fn new(port: PortNumber) -> Self {
        Self {
            port,
            queues: Vec::new(),
        }
    }

    /// Adds a receive queue.
    pub(super) fn add(
        &mut self,
        attributes: ReceiveQueueAttributes,
        taker: Taker,
        local_key: u32,
    ) -> ReceiveQueueId {
        let id = ReceiveQueueId(u16::try_from(self.queues.len()).unwrap_or(u16::MAX));
        self.queues.push(ReceiveQueue::new(
            self.port, id, attributes, taker, local_key,
        ));
        id
    }

    pub(super) fn count(&self) -> usize {
        self.queues.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ReceiveQueue> {
        self.queues.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut ReceiveQueue> {
        self.queues.iter_mut()
    }

    /// The queue of this number.
    #[inline]
    pub(super) fn get(&self, number: usize) -> Option<&ReceiveQueue> {
        self.queues.get(number)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: usize) -> Option<&mut ReceiveQueue> {
        self.queues.get_mut(number)
    }

    /// The queue of a Receive; `None` for a Receive of another port. Its slot could be that of a
    /// Receive which is posted here and which the device is writing.
    #[inline]
    pub(super) fn of(&self, receive: &Receive) -> Option<&ReceiveQueue> {
        if receive.port != self.port {
            return None;
        }
        self.get(usize::from(receive.queue.0))
    }

    /// As [`ReceiveQueues::of`], mutable.
    #[inline]
    pub(super) fn of_mut(&mut self, receive: &Receive) -> Option<&mut ReceiveQueue> {
        if receive.port != self.port {
            return None;
        }
        self.get_mut(usize::from(receive.queue.0))
    }
}

/// A receive queue of a port.
#[derive(Debug)]
pub(super) struct ReceiveQueue {
    port: PortNumber,
    id: ReceiveQueueId,
    attributes: ReceiveQueueAttributes,
    pub(super) taker: Taker,
    slots: Vec<Slot>,
    requests: Fixed<ibv_recv_wr>,
    segments: Fixed<ibv_sge>,
    first_staged: u32,
    last_staged: u32,
    posted: u32,
    local_key: u32,
    /// Whether the device was asked for an event when few Receives are left.
    armed: bool,
}

impl ReceiveQueue {
    fn new(
        port: PortNumber,
        id: ReceiveQueueId,
        attributes: ReceiveQueueAttributes,
        taker: Taker,
        local_key: u32,
    ) -> Self {
        let depth = attributes.depth as usize;
        Self {
            port,
            id,
            attributes,
            taker,
            slots: Vec::with_capacity(depth),
            requests: Fixed::zeroed(depth),
            segments: Fixed::zeroed(depth * attributes.segments_max as usize),
            first_staged: NONE,
            last_staged: NONE,
            posted: 0,
            local_key,
            armed: false,
        }
    }

    pub(super) fn attributes(&self) -> ReceiveQueueAttributes {
        self.attributes
    }

    /// The number of Receives that were made for the queue.
    pub(super) fn made(&self) -> usize {
        self.slots.len()
    }

    /// Makes a Receive of `list`.
    pub(super) fn make(&mut self, list: Vec<Buffer>) -> Receive {
        let slot = u32::try_from(self.slots.len()).unwrap_or(NONE);
        let bytes = list.iter().map(Buffer::capacity).sum();
        self.slots.push(Slot {
            segments: list,
            bytes,
            generation: 0,
            posted: false,
            next: NONE,
        });
        self.token(slot)
    }

    /// The token of a Receive that is not posted.
    #[inline]
    fn token(&self, slot: u32) -> Receive {
        Receive {
            port: self.port,
            slot,
            queue: self.id,
        }
    }

    #[inline]
    pub(super) fn segment(&self, slot: u32, index: usize) -> Option<&Buffer> {
        self.slots.get(slot as usize)?.segments.get(index)
    }

    /// Exchanges a segment's buffer for another that is at least as large.
    pub(super) fn replace(
        &mut self,
        slot: u32,
        index: usize,
        fresh: Buffer,
    ) -> Result<Buffer, Buffer> {
        let Some(slot) = self.slots.get_mut(slot as usize) else {
            return Err(fresh);
        };
        match slot.segments.get_mut(index) {
            Some(place) if fresh.capacity() >= place.capacity() => {
                slot.bytes = slot.bytes - place.capacity() + fresh.capacity();
                Ok(std::mem::replace(place, fresh))
            }
            _ => Err(fresh),
        }
    }

    /// Receives that are posted and have not completed.
    #[inline]
    pub(super) fn posted(&self) -> u32 {
        self.posted
    }

    #[inline]
    pub(super) fn has_staged(&self) -> bool {
        self.first_staged != NONE
    }

    /// Sets the key of the Receives' memory, also of those that are staged, because a queue pair with another protection
    /// domain takes them. No Receive may be posted.
    pub(super) fn set_local_key(&mut self, local_key: u32) {
        if std::mem::replace(&mut self.local_key, local_key) == local_key {
            return;
        }
        let most = self.attributes.segments_max as usize;
        for place in 0..self.slots.len() * most {
            // SAFETY: within the array. No slot is posted, and the library copied those that were, so nothing else reads
            // it.
            unsafe { (*self.segments.at(place)).lkey = local_key };
        }
    }

    /// Stages a Receive: writes its work request and segments, and appends it to the chain. Returns
    /// whether it is the first of the chain.
    #[inline]
    pub(super) fn stage(&mut self, index: u32) -> bool {
        let is_first = !self.has_staged();
        let most = self.attributes.segments_max as usize;
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return false;
        };
        slot.generation = slot.generation.wrapping_add(1);
        slot.next = NONE;
        let first = index as usize * most;
        for (place, buffer) in slot.segments.iter().take(most).enumerate() {
            let segment = ibv_sge {
                addr: buffer.start().addr() as u64,
                length: buffer.capacity(),
                lkey: self.local_key,
            };
            // SAFETY: within the array. The slot is not posted, and the library copied it when it
            // was, so nothing else reads it.
            unsafe { *self.segments.at(first + place) = segment };
        }
        let name = WorkName::Receive {
            queue: self.id.0,
            slot: index,
            generation: slot.generation,
        };
        let request = ibv_recv_wr {
            wr_id: name.pack(),
            next: std::ptr::null_mut(),
            sg_list: self.segments.at(first),
            num_sge: i32::try_from(slot.segments.len().min(most)).unwrap_or(0),
        };
        // SAFETY: as above.
        unsafe { *self.requests.at(index as usize) = request };
        self.append(index);
        is_first
    }

    #[inline]
    fn append(&mut self, index: u32) {
        if self.first_staged == NONE {
            self.first_staged = index;
        } else {
            let next = self.requests.at(index as usize);
            // SAFETY: the request staged last, which the library does not have.
            unsafe { (*self.requests.at(self.last_staged as usize)).next = next };
            if let Some(last) = self.slots.get_mut(self.last_staged as usize) {
                last.next = index;
            }
        }
        self.last_staged = index;
    }

    /// Posts the staged Receives. Returns whether the device took all of them; the rest stays staged.
    pub(super) fn post(&mut self, owner: Option<&QueuePair>) -> bool {
        if self.first_staged == NONE {
            return true;
        }
        let first = self.requests.at(self.first_staged as usize);
        // SAFETY: the chain was built by `stage` and ends with null; its segments are buffers
        // that were moved into the slots, registered memory that nobody touches until the
        // Receives complete. `&mut self` is of the port of the queue pair.
        let result = unsafe {
            match (&self.taker, owner) {
                (Taker::Shared(queue), _) => queue.post(first),
                (Taker::QueuePair(_), Some(queue_pair)) => queue_pair.post_receives(first),
                (Taker::QueuePair(_), None) => return true,
            }
        };
        let bad = match result {
            Ok(()) => NONE,
            Err(bad) => self
                .requests
                .index_of(bad)
                .and_then(|index| u32::try_from(index).ok())
                .unwrap_or(self.first_staged),
        };
        while self.first_staged != bad {
            let Some(slot) = self.slots.get_mut(self.first_staged as usize) else {
                break;
            };
            slot.posted = true;
            self.posted += 1;
            self.first_staged = std::mem::replace(&mut slot.next, NONE);
        }
        if self.first_staged == NONE {
            self.last_staged = NONE;
        }
        bad == NONE
    }

    /// Takes a completed Receive out, with its capacity in bytes. `None` if no Receive of this
    /// generation is posted.
    #[inline]
    pub(super) fn take(&mut self, index: u32, generation: u16) -> Option<(Receive, u32)> {
        let slot = self.slots.get_mut(index as usize)?;
        if !slot.posted || slot.generation != generation {
            return None;
        }
        slot.posted = false;
        self.posted -= 1;
        let bytes = slot.bytes;
        Some((self.token(index), bytes))
    }

    /// Stages all posted Receives again, after their queue pair was destroyed or reset.
    pub(super) fn take_all_back(&mut self) {
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if std::mem::replace(&mut slot.posted, false) {
                self.posted -= 1;
                let _ = self.stage(u32::try_from(index).unwrap_or(NONE));
            }
        }
    }

    /// Asks the device for one event when few Receives are left. It is a diagnostic: if the device
    /// refuses, it is not asked again.
    pub(super) fn arm(&mut self) {
        let Taker::Shared(queue) = &self.taker else {
            return;
        };
        let depth = self.attributes.depth;
        if !self.armed && self.posted > depth / 2 && depth >= 8 {
            self.armed = true;
            let _ = queue.arm(depth / 8);
        }
    }

    /// The event came: it has to be requested again.
    pub(super) fn disarmed(&mut self) {
        self.armed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Arena, ArenaOptions, HugePages, PoolShape};

    /// The one receive queue of a port, with two Receives that are not posted.
    fn queues(arena: &mut Arena) -> (ReceiveQueues, [Receive; 2]) {
        let port = PortNumber::new().expect("few ports were made");
        let mut queues = ReceiveQueues::new(port);
        let attributes = ReceiveQueueAttributes {
            depth: 2,
            segments_max: 1,
        };
        let id = queues.add(attributes, Taker::QueuePair(u32::MAX), 7);
        let shape = PoolShape {
            buffers: 2,
            buffer_bytes: 64,
            stride_bytes: 64,
            align_bytes: 64,
        };
        let mut pool = arena.pool(shape).expect("the arena holds two");
        let queue = queues.get_mut(usize::from(id.0)).expect("just made");
        let receives = [(); 2].map(|()| queue.make(vec![pool.take().expect("two")]));
        (queues, receives)
    }

    fn arena() -> Arena {
        Arena::private(&ArenaOptions {
            bytes: 4096,
            huge_pages: HugePages::Never,
        })
        .expect("one page")
    }

    #[test]
    fn a_receive_leads_to_the_queue_of_its_own_port_alone() {
        let (mut arena, mut other_arena) = (arena(), arena());
        let (mut queues, [receive, _]) = queues(&mut arena);
        let (mut others, [foreign, _]) = self::queues(&mut other_arena);
        assert_eq!((receive.queue, receive.slot), (foreign.queue, foreign.slot));
        assert!(queues.of(&receive).is_some() && queues.of_mut(&receive).is_some());
        assert!(queues.of(&foreign).is_none() && queues.of_mut(&foreign).is_none());
        assert!(others.of(&receive).is_none() && others.of_mut(&receive).is_none());
        assert!(others.of(&foreign).is_some());
    }

    #[test]
    fn a_receive_that_completes_comes_back_as_the_token_that_was_posted() {
        let mut arena = arena();
        let (mut queues, [first, second]) = queues(&mut arena);
        let queue = queues.get_mut(0).expect("there is one");
        assert!(queue.stage(first.slot), "the first that is staged");
        assert!(!queue.stage(second.slot));
        let slot = &mut queue.slots[second.slot as usize];
        let generation = slot.generation;
        slot.posted = true;
        queue.posted = 1;
        let (back, bytes) = queue.take(second.slot, generation).expect("it was posted");
        assert_eq!(
            (back.port, back.queue, back.slot, bytes),
            (second.port, second.queue, second.slot, 64)
        );
        assert!(queue.take(second.slot, generation).is_none(), "once");
        assert!(queues.of(&back).is_some());
    }
}
