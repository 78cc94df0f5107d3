//! Transmissions of peers: the Receives of a group are kept until all of it is there. They were all
//! granted before, so that keeping them holds up nothing that the group needs.

use rpcrdma_fabric::interface::{Port, Receive};
use rpcrdma_protocol::constants::RTR_TRANSMISSIONS_MAX;
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::connection::{Direction, Refusal, Transmission, TransmissionPart};
use rpcrdma_protocol::v2::rtr::{
    Arrival, Location, MessageItemView, Problem, ResponseItemView, TransmissionId,
};

use crate::application::{Application, CallError, ConnectionKey};
use crate::bulk::arrival::{FirstHeader, Needs};
use crate::bulk::calls::CallStage;
use crate::bulk::{Home, Work};
use crate::connection::GroupIn;
use crate::core::held::HeldWork;
use crate::core::{Received, State};
use crate::message::Use;
use crate::requester::Ended;

/// A transmission, apart from its bytes.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct TransmissionNote {
    pub(in crate::core) id: TransmissionId,
    transmissions: u32,
    arrival: Arrival,
    first: FirstHeader,
}

impl TransmissionNote {
    pub(in crate::core) fn new(transmission: &Transmission<'_>) -> Self {
        // More than that no reply takes.
        let most = u32::try_from(RTR_TRANSMISSIONS_MAX).unwrap_or(u32::MAX);
        let reply_transmissions_max = match transmission.part {
            TransmissionPart::Request {
                response_transmissions_max,
                ..
            } => response_transmissions_max,
            TransmissionPart::Response { .. } | TransmissionPart::Continue => 0,
        };
        Self {
            id: transmission.id,
            transmissions: transmission.transmissions,
            arrival: transmission.arrival,
            first: FirstHeader {
                lists: transmission.part.lists(),
                response_transmissions_max: reply_transmissions_max.clamp(1, most),
            },
        }
    }

    fn is_first(&self) -> bool {
        self.id.sequence == 0
    }

    fn is_last(&self) -> bool {
        self.id.sequence + 1 == self.transmissions
    }

    /// The Receive, with the range of it that is payload stream.
    fn received(&self, receive: Receive) -> Received {
        let start = self.arrival.header_bytes as usize;
        Received {
            receive,
            start,
            end: start + self.arrival.stream_bytes as usize,
        }
    }
}

impl<P: Port> State<P> {
    /// A transmission has come.
    pub(in crate::core) fn receive_transmission<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        note: TransmissionNote,
        receive: Receive,
    ) {
        let received = note.received(receive);
        match note.id.direction {
            Direction::Reply => self.take_response(application, key, note, received),
            Direction::Call => {
                let Some(connection) = self.connections.get_mut(key) else {
                    return self.post_receive(received.receive);
                };
                connection.serves = true;
                let may_begin = self.may_begin_serve(key);
                let Some(connection) = self.connections.get_mut(key) else {
                    return self.post_receive(received.receive);
                };
                if connection.parts.any() || (note.is_first() && !may_begin) {
                    let number = connection.parts.next;
                    connection.parts.next = number.wrapping_add(1);
                    let work = HeldWork::Transmission {
                        received,
                        note,
                        number,
                    };
                    return self.hold(key, note.id.xid, work);
                }
                self.take_request(key, note, received);
            }
        }
        self.note_if_pending(key.index);
    }

    /// Whether a transmission that was held may be taken: it is the next of its connection, and
    /// its call has a slot.
    pub(in crate::core) fn may_take_request(
        &self,
        key: ConnectionKey,
        note: &TransmissionNote,
        number: u32,
    ) -> bool {
        let Some(connection) = self.connections.get(key) else {
            return true;
        };
        number == connection.parts.first && (!note.is_first() || self.may_begin_serve(key))
    }

    /// Takes a transmission of a peer's call.
    pub(in crate::core) fn take_request(
        &mut self,
        key: ConnectionKey,
        note: TransmissionNote,
        received: Received,
    ) {
        let index = if note.is_first() {
            let takes_chunks = self.takes_chunks(key);
            self.forget_taken_replies();
            let counters = &self.shared.counters;
            let (receive, end) = (&received.receive, received.start);
            let header = self.gathered.message(&self.port, receive, end, counters);
            let refusal = (!takes_chunks).then(|| refusal_of_memory(note.first, header));
            let begun = match refusal.flatten() {
                Some(error) => Err(error),
                None => self.bulk.begin_group(key, note.id.xid, note.first, header),
            };
            match begun {
                Ok(index) => {
                    self.note_found(index);
                    self.reserve_reply(key, index, note.first.response_transmissions_max);
                    index
                }
                Err(error) => {
                    if let Some(connection) = self.connections.get_mut(key) {
                        connection
                            .protocol
                            .handle_group_refused(Problem::Continuation);
                    }
                    self.repost(key.index, received.receive);
                    return self.refuse(key, Refusal::new(note.id.xid, error));
                }
            }
        } else {
            match self.connections.get(key).and_then(|it| it.group_in) {
                Some(GroupIn::Serve(index)) => index,
                _ => return self.repost(key.index, received.receive),
            }
        };
        self.shared.counters.transmissions_received.increment();
        if let Some(connection) = self.connections.get_mut(key) {
            connection.group_in = (!note.is_last()).then_some(GroupIn::Serve(index));
        }
        if let Some(slot) = self.bulk.serves.get_mut(index as usize) {
            slot.arrival.receives.push(received);
            if note.is_last() {
                self.bulk.queue(Work::Serve(index));
            }
        }
    }

    /// Keeps credits for a reply of so many transmissions: its caller counts on them, and calls of
    /// ours use what is left beside them (RTR section 4.3).
    fn reserve_reply(&mut self, key: ConnectionKey, index: u32, transmissions: u32) {
        let slot = self.bulk.serves.get_mut(index as usize);
        if let (Some(slot), Some(connection)) = (slot, self.connections.get_mut(key)) {
            slot.reply_reserved = transmissions;
            connection.replies_reserved += transmissions;
        }
    }

    /// Takes a transmission of the reply to a call of ours.
    fn take_response<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        note: TransmissionNote,
        received: Received,
    ) {
        let index = if note.is_first() {
            match self.requester.end(note.id.xid, key) {
                Ended::Bulk(index) if self.awaits_group(index, note.transmissions) => index,
                Ended::Bulk(_) | Ended::Unknown => {
                    self.shared.counters.unmatched_replies.increment();
                    return self.pass_group(key, received);
                }
                ended => {
                    // The call was not a transmission group, so that its reply is none.
                    self.pass_group(key, received);
                    return self.tell_end(application, key, ended, Err(CallError::BadReply));
                }
            }
        } else {
            match self.connections.get(key).and_then(|it| it.group_in) {
                Some(GroupIn::Call(index)) => index,
                _ => return self.repost(key.index, received.receive),
            }
        };
        self.shared.counters.transmissions_received.increment();
        if let Some(connection) = self.connections.get_mut(key) {
            connection.group_in = (!note.is_last()).then_some(GroupIn::Call(index));
        }
        let counters = &self.shared.counters;
        let Some(slot) = self.bulk.calls.get_mut(index as usize) else {
            return self.repost(key.index, received.receive);
        };
        if note.is_first() {
            let (receive, end) = (&received.receive, received.start);
            let header = self.gathered.message(&self.port, receive, end, counters);
            // Without a header the reply is wrong.
            let _ = slot.arrival.begin(key, note.first, header);
        }
        slot.arrival.receives.push(received);
        if note.is_last() {
            slot.stage = CallStage::Placing;
            self.bulk.queue(Work::Call(index));
        }
    }

    /// Whether a call waits for a reply of so many transmissions.
    fn awaits_group(&self, index: u32, transmissions: u32) -> bool {
        self.bulk.calls.get(index as usize).is_some_and(|slot| {
            slot.stage == CallStage::Waiting
                && slot.is_group()
                && slot.arrival.receives.is_empty()
                && transmissions <= slot.reply_transmissions_max
        })
    }

    /// Passes over a group that nobody waits for, of which this is the first transmission.
    fn pass_group(&mut self, key: ConnectionKey, received: Received) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection
                .protocol
                .handle_group_refused(Problem::Continuation);
        }
        self.repost(key.index, received.receive);
    }

    /// The group that a peer was sending is given up: it broke off, or was wrong.
    #[cold]
    pub(in crate::core) fn drop_group_in(&mut self, key: ConnectionKey) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let group = connection.group_in.take();
        match group {
            Some(GroupIn::Serve(index)) => self.end_serve(index),
            Some(GroupIn::Call(index)) => self.forget_arrival(index),
            None => {}
        }
        self.drop_held_group(key);
    }

    /// Gives back the Receives of a reply to a call of ours.
    pub(in crate::core) fn forget_arrival(&mut self, index: u32) {
        while let Some(slot) = self.bulk.calls.get_mut(index as usize)
            && let Some(received) = slot.arrival.receives.pop()
        {
            let key = slot.connection;
            self.repost_of(key, received.receive);
        }
        if let Some(slot) = self.bulk.calls.get_mut(index as usize) {
            slot.arrival.end();
        }
    }

    /// Posts a Receive again that belonged to a connection which may be gone.
    pub(in crate::core) fn repost_of(&mut self, key: ConnectionKey, receive: Receive) {
        if self.connections.get(key).is_some() {
            self.repost(key.index, receive);
        } else {
            self.post_receive(receive);
        }
    }

    /// Whether a group can be taken out of its Receives now: there is a buffer to join its payload
    /// stream in, if that lies in several Receives, spares for all that is leased, and bulk buffers
    /// for what is copied. What is missing is counted once.
    pub(super) fn can_take(&mut self, needs: Needs, purpose: Use, counted: bool) -> bool {
        let counters = &self.shared.counters;
        let missing = if needs.carriers > 1 && !self.messages.has_room(purpose) {
            &counters.awaiting_message_buffer
        } else if needs.leases > self.placement.spares() {
            &counters.awaiting_placement_segment
        } else if needs.copies != 0 && !self.bulk.reply.pool.has(needs.copies) {
            &counters.awaiting_bulk_buffer
        } else {
            return true;
        };
        if !counted {
            missing.increment();
        }
        false
    }

    /// A buffer of which a Send took bytes is back.
    pub(in crate::core) fn group_buffer_home(
        &mut self,
        home: Home,
        buffer: rpcrdma_fabric::memory::Buffer,
    ) {
        let (group, part, work) = match home {
            Home::CallGroup { slot, part } => {
                let group = self.bulk.calls.get_mut(slot as usize);
                (group.map(|it| &mut it.group), part, Work::Call(slot))
            }
            Home::ReplyGroup { slot, part } => {
                let group = self.bulk.serves.get_mut(slot as usize);
                (group.map(|it| &mut it.group), part, Work::Serve(slot))
            }
            Home::Pool | Home::Call { .. } | Home::Reply { .. } | Home::Kept { .. } => {
                return self.bulk.give(buffer);
            }
        };
        let place = group.and_then(|group| group.parts.get_mut(usize::from(part)));
        match place {
            Some(place) if place.buffer.is_none() && place.index == buffer.index() => {
                place.buffer = Some(buffer);
                self.bulk.queue(work);
            }
            _ => self.bulk.give(buffer),
        }
    }
}

/// What a call is told that names memory of its caller, where calls have no chunks (-00 section
/// 5.2.5): what chunks in its place would be told. `None` when it names none.
#[cold]
fn refusal_of_memory(first: FirstHeader, header: &[u8]) -> Option<TransportError> {
    let lists = first.lists?;
    let directions = lists.directions(header)?;
    let is_explicit = |item: MessageItemView<'_>| matches!(item.location, Location::Explicit(_));
    if lists.items(header).any(is_explicit) {
        return Some(TransportError::ReadChunks { max_chunks: 0 });
    }
    let has_memory = |item: ResponseItemView<'_>| {
        let segments = item.location.segments();
        segments.is_some_and(|segments| segments.len() != 0)
    };
    let offers_memory = directions.flat_map(|set| set.items).any(has_memory);
    offers_memory.then_some(TransportError::ReplyResource {
        length_needed_bytes: 0,
    })
}
