//! Receive queues, adopting and destroying queue pairs, and events of the connection manager. These are control
//! operations: they may unmap and allocate. They do not map memory of a peer, because the peer decides its size.

use std::sync::Arc;

use super::super::channel::{Channel, Gone};
use super::super::doorbell::CHANNELS_MAX;
use super::super::files::CheckedPeer;
use super::super::link::{PortEvent, PreparedQueuePair, QueuePairNumber};
use super::super::queue_pair::{Facts, State};
use super::super::receive_queue::{ReceiveQueue, Taker};
use super::Port;
use super::core::{Shapes, channel_mut};
use crate::interface::{
    Attributes, Forms, PortSetup, QueuePairId, Receive, ReceiveQueueAttributes, ReceiveQueueId,
    SetupError,
};
use crate::memory::{Buffer, Memory, PageReport, Pool, PoolShape};

impl PortSetup for Port {
    type PreparedQueuePair = PreparedQueuePair;

    type PortEvent = PortEvent;

    fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    fn memory(&self) -> &Memory {
        &self.core.memory
    }

    fn carve(&mut self, shape: PoolShape) -> Result<Pool, SetupError> {
        self.arena.pool(shape)
    }

    fn carve_untouched(&mut self, shape: PoolShape) -> Result<Option<Pool>, SetupError> {
        self.arena.untouched_pool(shape)
    }

    fn page_report(&self) -> &PageReport {
        self.arena.report()
    }

    fn set_forms(&mut self, forms: Forms) {
        self.core.shapes = Shapes::new(&forms);
        self.core.forms = forms;
    }

    fn create_receive_queue(
        &mut self,
        attributes: ReceiveQueueAttributes,
    ) -> Result<ReceiveQueueId, SetupError> {
        let own = &self.attributes;
        SetupError::check_limits(&[
            (
                "Receives of a receive queue",
                attributes.depth.into(),
                own.receive_queue_depth_max.into(),
            ),
            (
                "segments of a Receive",
                attributes.segments_max.into(),
                own.receive_segments_max.into(),
            ),
        ])?;
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
        let made = receive_queue.made().into();
        let attributes = receive_queue.attributes();
        attributes.check_receive(made, &list, &self.core.memory)?;
        let slot = receive_queue.make(list.into_iter());
        Ok(self.core.receive(usize::from(queue.0), slot))
    }

    fn adopt_queue_pair(
        &mut self,
        prepared: PreparedQueuePair,
        queue: ReceiveQueueId,
    ) -> Result<QueuePairId, SetupError> {
        if !prepared.number.is_of(&self.numbers) {
            return Err(wrong("queue pair was made for another port"));
        }
        // No event reports that a prepared queue pair was dropped, so unused channels are searched here.
        self.forget_unused();
        let receive_queue = usize::from(queue.0);
        match self.core.receive_queues.get(receive_queue) {
            None => return Err(wrong("receive queue does not exist")),
            Some(entry) if !entry.takes_another() => {
                return Err(wrong(
                    "receive queue serves a queue pair already, and the port has no shared ones",
                ));
            }
            Some(_) => {}
        }
        let id = prepared.local().id();
        match self.core.queue_pairs.get(id.index as usize) {
            None => {
                return Err(SetupError::Limit {
                    what: "queue pairs of a port",
                    asked: u64::from(id.index) + 1,
                    limit: self.core.queue_pairs.len() as u64,
                });
            }
            Some(queue_pair) if queue_pair.state != State::Vacant => {
                return Err(wrong("number names a queue pair that is in use"));
            }
            Some(_) => {}
        }
        let number = self.find_or_open(&prepared)?;
        let state = if prepared.memory.is_some() {
            State::Connected
        } else {
            State::Accepting
        };
        let PreparedQueuePair {
            number: own_number,
            remote,
            channel: hold,
            memory,
            ..
        } = prepared;
        let local = own_number.number();
        // Dropped before `attach`: if that fails, `forget_unused` must drop the channel, which any
        // further reference would keep.
        drop(hold);
        if let Some(memory) = memory
            && let Err(error) = self.attach(number, memory)
        {
            self.forget_unused();
            return Err(error);
        }
        let Some(channel) = channel_mut(&mut self.channels, number) else {
            return Err(wrong("channel does not exist"));
        };
        channel.admit_queue_pair();
        self.staged.retain(|staged| *staged != queue.0);
        if let Some(entry) = self.core.receive_queues.get_mut(receive_queue) {
            entry.begin(id.index);
        }
        // `destroy_queue_pair` returns the number to the stock.
        own_number.keep();
        if let Some(queue_pair) = self.core.queue_pairs.get_mut(id.index as usize) {
            let facts = Facts {
                state,
                local,
                remote,
                channel: number,
                receive_queue,
                fail_next: None,
            };
            queue_pair.begin(&mut self.core.checked, facts);
        }
        Ok(id)
    }

    fn handle_event(&mut self, port_event: PortEvent) {
        match port_event {
            PortEvent::Established { local, memory } => self.establish(local, memory),
            PortEvent::PeerGone { local } => self.peer_gone(local),
            PortEvent::Inject(fault) => self.inject_fault(fault),
        }
    }

    fn disconnect(&mut self, queue_pair: QueuePairId) {
        if let Some(index) = self.core.index_of_id(queue_pair) {
            self.disconnect_index(index);
        }
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId) {
        let Some(index) = self.core.index_of_id(queue_pair) else {
            return;
        };
        let Some(queue_pair) = self.core.queue_pairs.get(index as usize) else {
            return;
        };
        let number = queue_pair.channel;
        if let Some(channel) = channel_mut(&mut self.channels, number) {
            // Called before `Disconnected`, the queue pair still has work requests: their buffers are
            // returned, but no completion is reported.
            self.core.abandon(channel, index);
            let local = self.core.queue_pairs[index as usize].local;
            if channel.pull.queue_pair == local {
                self.core.drop_pull(channel);
            }
            channel.gone.retain(|gone| gone.queue_pair != local);
            channel.queue_pairs -= 1;
        }
        let queue_pair = &mut self.core.queue_pairs[index as usize];
        while queue_pair.windows != super::super::key_table::NONE {
            let first = queue_pair.windows;
            if let Some(buffer) = self.core.windows.end(&mut queue_pair.windows, first) {
                self.core.returned.push(buffer);
            }
        }
        let local = queue_pair.local;
        if let Some(receive_queue) = self.core.receive_queues.get_mut(queue_pair.receive_queue) {
            receive_queue.end(index);
        }
        queue_pair.begin(&mut self.core.checked, Facts::VACANT);
        self.forget_unused();
        // The stock has room for every number of the port.
        let _ = self.numbers.push(local.next_generation());
    }
}

impl Port {
    /// The number of the queue pair's channel. Opens the channel for its first queue pair.
    fn find_or_open(&mut self, prepared: &PreparedQueuePair) -> Result<u32, SetupError> {
        let number = prepared.doorbell_number;
        if number >= CHANNELS_MAX {
            return Err(SetupError::Limit {
                what: "channels of a port",
                asked: u64::from(number) + 1,
                limit: u64::from(CHANNELS_MAX),
            });
        }
        if let Some(channel) = channel_mut(&mut self.channels, number) {
            let same = channel.is_of(&prepared.channel) && channel.identity == prepared.peer;
            if !same || channel.broken {
                return Err(wrong("channel number is in use by another channel"));
            }
            return Ok(number);
        }
        let queue_pairs_max = self.core.queue_pairs.len();
        let file = Arc::clone(&prepared.channel);
        let mut channel = Channel::new(number, prepared.peer, file, queue_pairs_max)?;
        channel.set_forms(self.core.forms.number);
        let index = number as usize;
        if self.channels.len() <= index {
            self.channels.resize_with(index + 1, || None);
        }
        self.channels[index] = Some(Box::new(channel));
        self.schedule.open(&mut self.channels, number);
        let count = self.schedule.live_count();
        self.core.untold.reserve(count);
        self.core.awaiting.reserve(count);
        self.dirty.reserve(count);
        Ok(number)
    }

    /// Gives the peer's memory to a channel that does not have it yet.
    fn attach(&mut self, number: u32, memory: CheckedPeer) -> Result<(), SetupError> {
        let Some(channel) = channel_mut(&mut self.channels, number) else {
            return Err(wrong("channel does not exist"));
        };
        if let Some(peer) = &channel.peer {
            if peer.shares_channel(&memory) {
                return Ok(());
            }
            return Err(wrong(
                "channel differs from the one in use: connect again after that one is closed",
            ));
        }
        channel.peer = Some(memory);
        // A doorbell that the peer rang before this was taken without effect, so visit the channel now.
        self.schedule.mark(number);
        Ok(())
    }

    fn establish(&mut self, local: QueuePairNumber, memory: CheckedPeer) {
        let Some(index) = self.core.index_of(local) else {
            return;
        };
        let Some(queue_pair) = self.core.queue_pairs.get_mut(index as usize) else {
            return;
        };
        if queue_pair.state != State::Accepting {
            return;
        }
        let number = queue_pair.channel;
        queue_pair.change(&mut self.core.checked, |it| it.state = State::Connected);
        if self.attach(number, memory).is_err() {
            // The peer passed the file of another channel, so the connection cannot work.
            self.disconnect_index(index);
        }
    }

    fn peer_gone(&mut self, local: QueuePairNumber) {
        let Some(index) = self.core.index_of(local) else {
            return;
        };
        let Some(queue_pair) = self.core.queue_pairs.get(index as usize) else {
            return;
        };
        let number = queue_pair.channel;
        let Some(channel) = channel_mut(&mut self.channels, number) else {
            return;
        };
        if channel.peer.is_none() {
            self.core.fail(channel, index, None);
            return;
        }
        let from = channel.consumed();
        channel.gone.push(Gone {
            queue_pair: local,
            from,
        });
        self.schedule.mark(number);
    }

    /// Ends all queue pairs of a channel, because its peer broke the rules of the ring, or does not read our reports.
    #[cold]
    pub(super) fn break_channel(&mut self, number: u32) {
        let Some(channel) = channel_mut(&mut self.channels, number) else {
            return;
        };
        if channel.broken {
            return;
        }
        (channel.broken, channel.is_refused) = (true, true);
        channel.gone.clear();
        self.core.drop_pull(channel);
        self.core.counters.channels_broken += 1;
        for index in 0..self.core.queue_pairs.len() {
            if self.core.queue_pairs[index].channel == number {
                let index = u32::try_from(index).unwrap_or(u32::MAX);
                self.disconnect_index(index);
            }
        }
    }

    /// The lowest free channel number.
    pub(in super::super) fn free_channel(&self) -> u32 {
        let free = self.channels.iter().position(Option::is_none);
        u32::try_from(free.unwrap_or(self.channels.len())).unwrap_or(CHANNELS_MAX)
    }

    /// Drops the channels without a queue pair, except those that a prepared queue pair holds. The next adopted or destroyed
    /// queue pair checks these again.
    fn forget_unused(&mut self) {
        let mut place = 0;
        while let Some(number) = self.schedule.live(place) {
            if self.forget_if_unused(number) {
                self.schedule.close(number);
                self.core.untold.retain(|entry| *entry != number);
                self.core.awaiting.retain(|entry| *entry != number);
                self.dirty.retain(|entry| *entry != number);
                self.found.forget(number);
            } else {
                place += 1;
            }
        }
    }

    fn forget_if_unused(&mut self, number: u32) -> bool {
        let Some(place) = self.channels.get_mut(number as usize) else {
            return true;
        };
        if place
            .as_ref()
            .is_some_and(|channel| channel.queue_pairs > 0)
        {
            return false;
        }
        let Some(channel) = place.take() else {
            return true;
        };
        *place = channel.end();
        place.is_none()
    }
}

fn wrong(what: &str) -> SetupError {
    SetupError::Peer { what: what.into() }
}
