//! Receive queues, adopting and destroying queue pairs, and events of the manager and the device.
//! These are control operations: they may call the kernel.

use std::sync::Arc;

use super::super::events::{AsyncEvent, DeviceEvent};
use super::super::link::PortEvent;
use super::super::queue_pair::PreparedQueuePair;
use super::super::registrations::OwnDomain;
use super::super::shared_receive_queue::SharedReceiveQueue;
use super::super::work_request::RECEIVE_QUEUES_MAX;
use super::Port;
use super::queue_pairs::{Entry, State};
use super::receive_queue::Taker;
use super::window_table;
use crate::interface::{
    Attributes, PortSetup, QueuePairId, Receive, ReceiveQueueAttributes, ReceiveQueueId,
    SetupError, Status,
};
use crate::memory::{Buffer, Memory, PageReport, Pool, PoolShape};

impl PortSetup for Port {
    type PreparedQueuePair = PreparedQueuePair;

    type PortEvent = PortEvent;

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
        let made = receive_queue.made() as u64;
        let attributes = receive_queue.attributes();
        attributes.check_receive(made, &list, &self.memory)?;
        Ok(receive_queue.make(list))
    }

    fn adopt_queue_pair(
        &mut self,
        prepared: PreparedQueuePair,
        queue: ReceiveQueueId,
    ) -> Result<QueuePairId, SetupError> {
        let PreparedQueuePair {
            queue_pair,
            initiator_depth,
            established,
        } = prepared;
        let number = usize::from(queue.0);
        let id = queue_pair.id();
        if !queue_pair.is_of(&self.shared) {
            return Err(wrong("queue pair was made for another port"));
        }
        match self.queue_pairs.get(id.index) {
            Some(entry) if entry.state == State::Vacant => {}
            _ => return Err(wrong("queue pair has the name of one that is in use")),
        }
        let Some(receive_queue) = self.receive_queues.get_mut(number) else {
            return Err(wrong("receive queue does not exist"));
        };
        if queue_pair.has_own_receive_queue() {
            match &mut receive_queue.taker {
                Taker::QueuePair(owner) if *owner == u32::MAX => *owner = id.index,
                _ => {
                    return Err(wrong(
                        "receive queue serves a queue pair already, and the device has no shared \
                         ones",
                    ));
                }
            }
            let own = queue_pair.own_domain();
            let keys = own.map_or(self.local_keys, OwnDomain::local_keys);
            receive_queue.set_local_key(keys.arena);
        } else if !queue_pair.draws_from(queue) {
            return Err(wrong(
                "receive queue is not the one that the queue pair was made to draw from",
            ));
        }
        self.queue_pairs.adopt_queue_pair(Entry {
            state: if established {
                State::Connected
            } else {
                State::Accepting
            },
            id,
            receive_queue: number,
            local_keys: queue_pair
                .own_domain()
                .map_or(self.local_keys, OwnDomain::local_keys),
            read_depth: u32::from(initiator_depth).min(self.attributes.read_depth_max),
            device: Some(queue_pair),
            // The index may still be in `dirty` from its previous queue pair.
            in_dirty: self
                .queue_pairs
                .get(id.index)
                .is_some_and(|entry| entry.in_dirty),
            ..Entry::vacant()
        });
        self.staged.retain(|staged| *staged != queue.0);
        if !self.post_receives(number) {
            self.staged.push(queue.0);
        }
        Ok(id)
    }

    fn handle_event(&mut self, port_event: PortEvent) {
        match port_event {
            PortEvent::Established(id) => {
                if let Some(index) = self.queue_pairs.index_of_id(id)
                    && let Some(entry) = self.queue_pairs.get_mut(index)
                    && entry.state == State::Accepting
                {
                    entry.state = State::Connected;
                }
            }
            // The error state waits until the completion queue is empty (`end_gone`), so that the
            // peer's last messages are delivered.
            PortEvent::PeerGone(id) => {
                if let Some(index) = self.queue_pairs.index_of_id(id) {
                    self.gone.push(index);
                }
            }
        }
    }

    fn disconnect(&mut self, id: QueuePairId) {
        if let Some(index) = self.queue_pairs.index_of_id(id) {
            self.begin_error(index, true);
        }
    }

    fn destroy_queue_pair(&mut self, id: QueuePairId) {
        let Some(index) = self.queue_pairs.index_of_id(id) else {
            return;
        };
        self.gone.retain(|other| *other != index);
        self.closing.retain(|other| *other != index);
        self.forget_marker(index);
        let Some(entry) = self.queue_pairs.get_mut(index) else {
            return;
        };
        // Called before `Disconnected`, the queue pair still has work requests: their buffers are
        // returned, but no completion is reported.
        let (mut works, mut waiting) = (entry.works, entry.reads_waiting);
        let receive_queue = entry.receive_queue;
        let head = std::mem::replace(&mut entry.windows, window_table::NONE);
        if let Some(device) = &entry.device
            && (entry.state != State::Flushed || !works.is_empty())
        {
            let _ = device.reset();
        }
        // Windows go first: some devices keep a queue pair that has windows.
        self.windows_end(index, head);
        drop(self.queue_pairs.remove(index));
        while let Some(work) = self
            .works
            .pop(&mut works)
            .or_else(|| self.works.pop(&mut waiting))
        {
            if let Some(completion) = self.end_work(index, work, Status::Flushed) {
                self.keep_buffers(completion);
            }
        }
        if let Some(queue) = self.receive_queues.get_mut(receive_queue)
            && let Taker::QueuePair(owner) = &mut queue.taker
        {
            *owner = u32::MAX;
            queue.take_all_back();
        }
    }
}

impl Port {
    /// Checks a new receive queue against the limits.
    fn check_receive_queue(&self, attributes: ReceiveQueueAttributes) -> Result<(), SetupError> {
        let depths: u64 = self
            .receive_queues
            .iter()
            .map(|queue| u64::from(queue.attributes().depth))
            .sum();
        let depth = u64::from(attributes.depth);
        SetupError::check_limits(&[
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
        ])
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

    /// Puts the queue pairs in error whose peers have gone. Called when the completion queue was
    /// empty: no message of theirs is left.
    #[cold]
    pub(super) fn end_gone(&mut self) {
        while let Some(index) = self.gone.pop() {
            self.begin_error(index, false);
        }
    }

    /// Returns the buffers of a completion that is not reported.
    fn keep_buffers(&mut self, completion: crate::interface::Completion) {
        if let crate::interface::CompletionKind::Read(_, mut list) = completion.kind {
            while let Some((buffer, _, _)) = list.pop() {
                self.returned.push(buffer);
            }
        }
    }

    /// Ends all windows of a list.
    pub(super) fn windows_end(&mut self, _queue_pair: u32, mut head: u32) {
        while head != window_table::NONE {
            let first = head;
            match self.windows.end(&mut head, first) {
                Some(buffer) => self.returned.push(buffer),
                None => break,
            }
        }
    }

    /// Puts all queue pairs in error, because the device or a queue of the port has failed.
    #[cold]
    pub(super) fn fail_everything(&mut self) {
        self.counters.device_fatal_events += 1;
        for index in 0..self.queue_pairs.count() {
            self.begin_error(index, true);
        }
    }

    /// Handles the events of the device.
    #[cold]
    pub(super) fn take_events(&mut self) {
        while let Some(event) = self.shared.events.pop() {
            self.take_event(event);
        }
    }

    /// Does what the table of events says. The match has no wildcard, so that a new event is not forgotten.
    fn take_event(&mut self, event: AsyncEvent) {
        let number = event.queue_pair.unwrap_or(u32::MAX);
        match event.kind {
            DeviceEvent::DeviceFatal
            | DeviceEvent::CompletionQueueError
            | DeviceEvent::ReceiveQueueFatal => self.fail_everything(),
            DeviceEvent::QueuePairFatal
            | DeviceEvent::QueuePairRequest
            | DeviceEvent::QueuePairAccess => {
                self.counters.queue_pair_fatal_events += 1;
                if let Some(index) = self.queue_pairs.index_of_number(number) {
                    self.begin_error(index, true);
                }
            }
            DeviceEvent::LastReceive => {
                let index = self.queue_pairs.index_of_number(number);
                if let Some(entry) = index.and_then(|index| self.queue_pairs.get_mut(index)) {
                    entry.last_receive = true;
                }
            }
            DeviceEvent::Communicating => {
                let index = self.queue_pairs.index_of_number(number);
                if let Some(entry) = index.and_then(|index| self.queue_pairs.get_mut(index))
                    && entry.state == State::Accepting
                {
                    entry.state = State::Connected;
                }
            }
            DeviceEvent::ReceiveLimit => {
                self.counters.receive_limit_events += 1;
                for queue in self.receive_queues.iter_mut() {
                    queue.disarmed();
                }
            }
            // No connection ends here: the manager knows which of them can go on by another device. For the others the device
            // retries, and a connection that stays dead fails when its retries run out.
            DeviceEvent::PortDown => self.counters.port_down_events += 1,
            DeviceEvent::PortUp => self.counters.port_up_events += 1,
            DeviceEvent::SendQueueDrained
            | DeviceEvent::PathMigrated
            | DeviceEvent::PathMigrationFailed
            | DeviceEvent::LidChanged
            | DeviceEvent::PartitionKeysChanged
            | DeviceEvent::SubnetManagerChanged
            | DeviceEvent::ClientReregister
            | DeviceEvent::AddressesChanged
            | DeviceEvent::WorkQueueFatal
            | DeviceEvent::SpeedChanged
            | DeviceEvent::Unknown => {}
        }
    }
}

fn wrong(what: &str) -> SetupError {
    SetupError::System {
        doing: format!("a queue pair could not be adopted: its {what}"),
        source: std::io::ErrorKind::InvalidInput.into(),
    }
}
