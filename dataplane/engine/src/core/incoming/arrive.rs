//! Transmission groups of peers' calls. The Receives of a group are kept until all of it is there: they were all granted
//! before, so that keeping them holds up nothing that the group needs.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::connection::Refusal;
use rpcrdma_protocol::v2::rtr::{Location, MessageItemView, ResponseItemView};

use super::call::IncomingState;
use crate::connection::GroupIn;
use crate::core::group::{FirstHeader, TransmissionNote};
use crate::core::held::HeldWork;
use crate::core::state::State;
use crate::core::step::Work;
use crate::message::Received;
use crate::rpc::ConnectionKey;

impl<P: Port> State<P> {
    /// A transmission of a peer's call has come: it is taken, or held behind those before it.
    pub(in crate::core) fn receive_request(
        &mut self,
        key: ConnectionKey,
        note: TransmissionNote,
        received: Received,
    ) {
        let may_begin = self.may_begin_incoming(key);
        let Some(connection) = self.connections.get_mut(key) else {
            return self.post_receive(received.receive);
        };
        connection.serves = true;
        let parts = &mut connection.calls_in.parts;
        if parts.any() || (note.is_first() && !may_begin) {
            let number = parts.number();
            let work = HeldWork::Transmission {
                received,
                note,
                number,
            };
            return self.hold(key, note.id.xid, work);
        }
        self.take_request(key, note, received);
    }

    /// Whether a transmission that was held may be taken: it is the next of its lane, and
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
        let parts = &connection.calls_in.parts;
        number == parts.first && (!note.is_first() || self.may_begin_incoming(key))
    }

    /// Takes a transmission of a peer's call.
    pub(in crate::core) fn take_request(
        &mut self,
        key: ConnectionKey,
        note: TransmissionNote,
        received: Received,
    ) {
        let index = if note.is_first() {
            match self.begin_request(key, &note, &received) {
                Ok(index) => index,
                Err(error) => {
                    self.pass_group(key, &note, received);
                    return self.refuse(key, Refusal::new(note.id.xid, error));
                }
            }
        } else {
            let connection = self.connections.get(key);
            match connection.and_then(|it| it.calls_in.slot_of_group(note.group)) {
                Some(index) => index,
                // Its first transmission was refused.
                None => return self.repost(key.index, received.receive),
            }
        };
        self.shared.counters.transmissions_received.increment();
        if let Some(connection) = self.connections.get_mut(key) {
            connection.calls_in.group = (!note.is_last()).then_some(GroupIn {
                slot: index,
                number: note.group,
            });
        }
        if let Some(call) = self.incoming.calls.get_mut(index) {
            call.arrival.receives.push(received);
            if note.is_last() {
                call.state = IncomingState::Placing;
                self.queue(Work::Incoming(index));
            }
        }
    }

    /// Takes a slot for the call that the first transmission of a group begins, and keeps credits for a reply of as many
    /// transmissions as it may have: its caller counts on them, and calls of ours use what is left beside them (RTR
    /// section 4.3).
    fn begin_request(
        &mut self,
        key: ConnectionKey,
        note: &TransmissionNote,
        received: &Received,
    ) -> Result<u32, TransportError> {
        let takes_chunks = self.takes_chunks(key);
        self.forget_taken_replies();
        let call = self.begin_incoming(key, note.id.xid);
        let mut call = call.ok_or(TransportError::System)?;
        let (receive, end) = (&received.receive, received.start);
        let counters = &self.shared.counters;
        let header = self.gathered.message(&self.port, receive, end, counters);
        let refusal = (!takes_chunks).then(|| refusal_of_memory(note.first, header));
        let begun = match refusal.flatten() {
            Some(error) => Err(error),
            None if call.arrival.begin(key, note.first, header) => Ok(call.index),
            None => Err(TransportError::System),
        };
        if begun.is_err() {
            self.end_incoming(call);
            return begun;
        }
        if !call.arrival.is_checked() {
            call.planned = None;
        }
        call.state = IncomingState::Arriving;
        call.reply_reserved = note.first.response_transmissions_max;
        if let Some(connection) = self.connections.get_mut(key) {
            connection.replies_reserved += call.reply_reserved;
        }
        self.incoming.calls.put(call.index, call);
        begun
    }
}

/// The error for a call that names memory of its caller on a connection whose calls have no chunks (-00 section 5.2.5).
/// It is the error for a call with chunks. `None` when the call names no memory.
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
