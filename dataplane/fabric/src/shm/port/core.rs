//! The parts of a port other than its channels, and the steps that all its parts use.

use std::collections::VecDeque;

use super::super::channel::{Channel, Report};
use super::super::counters::Counters;
use super::super::key_table::{Holder, Windows};
use super::super::link::QueuePairNumber;
use super::super::queue_pair::{Checked, QueuePair, State};
use super::super::receive_queue::ReceiveQueue;
use super::super::record::FORM_HEADER_BYTES_MAX;
use super::super::work::{Kind, Works};
use super::inbox::Inbox;
use crate::clock::{Clock, Ticks};
use crate::interface::{
    FORM_WORDS_MAX, FormShape, Forms, PortNumber, QueuePairId, Receive, ReceiveQueueId, Status,
};
use crate::memory::{Buffer, Memory};

/// The channels of a port, by their number among the bits of its doorbell.
pub(super) type Channels = Vec<Option<Box<Channel>>>;

/// The channel of this number.
#[inline]
pub(super) fn channel_mut(channels: &mut Channels, number: u32) -> Option<&mut Channel> {
    channels.get_mut(number as usize)?.as_deref_mut()
}

/// The shapes of forms, by number.
#[derive(Debug)]
pub(super) struct Shapes([FormShape; FORMS_MAX]);

/// The most forms of a port.
const FORMS_MAX: usize = 8;

impl Shapes {
    /// # Panics
    /// When a shape cannot be one: the forms are wrong.
    pub(super) fn new(forms: &Forms) -> Self {
        assert!(
            forms.shapes.len() <= FORMS_MAX,
            "a port has at most eight forms"
        );
        for shape in forms.shapes {
            let has_words = matches!(usize::from(shape.words), 1 | FORM_WORDS_MAX);
            let header_bytes = 1..=FORM_HEADER_BYTES_MAX;
            assert!(
                has_words && header_bytes.contains(&shape.header_bytes.into()) && forms.number != 0,
                "a form has one word or four, and headers"
            );
        }
        let mut shapes = [FormShape {
            words: 0,
            header_bytes: 0,
        }; FORMS_MAX];
        for (place, shape) in shapes.iter_mut().zip(forms.shapes) {
            *place = *shape;
        }
        Self(shapes)
    }

    /// The shape of the form of this number, if there is one.
    #[inline]
    pub(super) fn get(&self, form: u8) -> Option<FormShape> {
        let shape = *self.0.get(usize::from(form))?;
        (shape.words != 0).then_some(shape)
    }
}

/// Everything of a port that is not a channel.
#[derive(Debug)]
pub(super) struct Core {
    /// The port's number, which its tokens carry.
    pub(super) number: PortNumber,
    pub(super) memory: Memory,
    pub(super) queue_pairs: Vec<QueuePair>,
    pub(super) checked: Checked,
    pub(super) receive_queues: Vec<ReceiveQueue>,
    pub(super) windows: Windows,
    pub(super) works: Works,
    /// Queue pairs with something to complete.
    pub(super) ready: VecDeque<u32>,
    /// Queue pairs with RDMA Reads under way.
    pub(super) readers: VecDeque<u32>,
    /// Channels whose latest progress was not reported to the peer.
    pub(super) untold: Vec<u32>,
    /// Channels with work requests that wait for an acknowledgement.
    pub(super) awaiting: VecDeque<u32>,
    pub(super) returned: Vec<Buffer>,
    /// The short message that was taken last.
    pub(super) inbox: Box<Inbox>,
    /// The forms by which messages are carried, and their shapes.
    pub(super) forms: Forms,
    pub(super) shapes: Shapes,
    pub(super) counters: Counters,
    pub(super) clock: Clock,
    pub(super) delay: Ticks,
    /// How far ahead a record of a peer may set the time of its delivery.
    pub(super) not_before_ahead_max: Ticks,
    /// Work requests outstanding per queue pair.
    pub(super) send_queue_depth_max: u32,
    pub(super) copy_bytes_per_poll: u32,
    /// The part of it that is left in this poll.
    pub(super) copy_budget: u32,
    /// Polls for which the port behaves as if no Receive were posted (an injected fault).
    pub(super) not_ready_polls: u32,
}

impl Core {
    /// The earliest time of delivery for a record that is written now; zero without a delay.
    #[inline]
    pub(super) fn not_before(&self) -> Ticks {
        if self.delay == 0 {
            return 0;
        }
        self.clock.now().saturating_add(self.delay).max(1)
    }

    /// The token of a Receive that completed, or was made.
    #[inline]
    pub(super) fn receive(&self, queue: usize, slot: u32) -> Receive {
        Receive {
            port: self.number,
            slot,
            // The conversion loses nothing: `create_receive_queue` limits the number to 16 bits.
            queue: ReceiveQueueId(u16::try_from(queue).unwrap_or(u16::MAX)),
        }
    }

    /// The receive queue of a Receive of this port.
    #[inline]
    pub(super) fn queue_of(&self, receive: &Receive) -> Option<&ReceiveQueue> {
        if receive.port != self.number {
            return None;
        }
        self.receive_queues.get(usize::from(receive.queue.0))
    }

    /// As [`Core::queue_of`], mutable.
    #[inline]
    pub(super) fn queue_of_mut(&mut self, receive: &Receive) -> Option<&mut ReceiveQueue> {
        if receive.port != self.number {
            return None;
        }
        self.receive_queues.get_mut(usize::from(receive.queue.0))
    }

    /// The index of the queue pair of this number, while it is in use in this generation.
    #[inline]
    pub(super) fn index_of(&self, number: QueuePairNumber) -> Option<u32> {
        let index = number.id().index;
        let queue_pair = self.queue_pairs.get(index as usize)?;
        (queue_pair.local == number && queue_pair.state != State::Vacant).then_some(index)
    }

    /// The index of the queue pair with this id, while it is in use.
    #[inline]
    pub(super) fn index_of_id(&self, id: QueuePairId) -> Option<u32> {
        let queue_pair = self.queue_pairs.get(id.index as usize)?;
        (queue_pair.id() == id && queue_pair.state != State::Vacant).then_some(id.index)
    }

    /// Puts a queue pair on the list `ready`, unless it is in it.
    #[inline]
    pub(super) fn mark_ready(&mut self, index: u32) {
        if let Some(queue_pair) = self.queue_pairs.get_mut(index as usize)
            && !queue_pair.in_ready
        {
            queue_pair.in_ready = true;
            self.ready.push_back(index);
        }
    }

    /// Puts a queue pair on the list `readers`, unless it is in it.
    pub(super) fn mark_reader(&mut self, index: u32) {
        if let Some(queue_pair) = self.queue_pairs.get_mut(index as usize)
            && !queue_pair.in_readers
        {
            queue_pair.in_readers = true;
            self.readers.push_back(index);
        }
    }

    /// Puts a channel on the list `awaiting`, unless it is in it.
    #[inline]
    pub(super) fn mark_awaiting(&mut self, channel: &mut Channel) {
        if !channel.in_awaiting {
            channel.in_awaiting = true;
            self.awaiting.push_back(channel.number);
        }
    }

    /// Puts a channel on the list `untold` if it has progress to report, unless it is in it.
    #[inline]
    pub(super) fn mark_untold(&mut self, channel: &mut Channel) {
        if !channel.in_untold && channel.has_untold() {
            channel.in_untold = true;
            self.untold.push(channel.number);
        }
    }

    /// Puts a queue pair in error: outstanding work is flushed, and then `Disconnected` is reported. The peer gets
    /// `report`.
    pub(super) fn fail(&mut self, channel: &mut Channel, index: u32, report: Option<Report>) {
        let not_before = self.not_before();
        let Some(queue_pair) = self.queue_pairs.get_mut(index as usize) else {
            return;
        };
        if !matches!(queue_pair.state, State::Accepting | State::Connected) {
            return;
        }
        queue_pair.change(&mut self.checked, |it| it.state = State::Error);
        if let Some(receive_queue) = self.receive_queues.get_mut(queue_pair.receive_queue) {
            receive_queue.fail(index);
        }
        if let Some(report) = report {
            channel.report(queue_pair.remote, report, not_before, &mut self.counters);
        }
        self.mark_ready(index);
    }

    /// Handles the peer's acknowledgement of our records before position `acked`.
    #[inline]
    pub(super) fn acknowledge(&mut self, channel: &mut Channel, acked: u32) {
        if channel.accept_acked(acked) && !channel.unacked.is_empty() {
            self.complete_acked(channel);
        }
    }

    fn complete_acked(&mut self, channel: &mut Channel) {
        while let Some(first) = channel.unacked.first() {
            let position = self.works.get(first).position;
            if !channel.is_acked(position) {
                return;
            }
            self.end_unacked(channel, first, Status::Success);
        }
    }

    /// Ends a work request that waited for the peer's acknowledgement.
    pub(super) fn end_unacked(&mut self, channel: &mut Channel, work: u32, status: Status) {
        self.works.stop_awaiting(&mut channel.unacked, work);
        let entry = self.works.get_mut(work);
        entry.ended = Some(status);
        let (kind, index) = (entry.kind, entry.queue_pair);
        let is_silent = entry.signalled.is_none() && status == Status::Success;
        let queue_pair = &mut self.queue_pairs[index as usize];
        if kind == Kind::Write {
            queue_pair.writes_unacked -= 1;
        }
        // One without a completion ends here, if it is the first of its queue pair.
        let is_first = queue_pair.works.first() == Some(work);
        if !is_silent || !is_first || queue_pair.is_down() {
            return self.mark_ready(index);
        }
        self.give_buffers_back(work);
        self.release(index);
        let next = self.queue_pairs[index as usize].works.first();
        if next.is_some_and(|it| self.works.get(it).ended.is_some()) {
            self.mark_ready(index);
        }
    }

    /// The holder of a window of this queue pair.
    pub(super) fn holder(queue_pair: &QueuePair) -> Holder {
        Holder {
            channel: queue_pair.channel,
            queue_pair: queue_pair.remote.0,
        }
    }
}
