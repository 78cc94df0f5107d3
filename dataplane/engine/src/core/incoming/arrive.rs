//! Collects the transmission groups of peers' calls. The Receives of a group are kept until the group is complete. This
//! cannot block the group: the peer had credits for all of its transmissions before it began.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::rtr::{Location, MessageItemView, ResponseItemView};

use super::Incoming;
use super::call::{IncomingCall, IncomingState};
use crate::core::application::Application;
use crate::core::group::{FirstHeader, TransmissionNote};
use crate::core::resources::Resources;
use crate::core::step::Steps;
use crate::message::Received;
use crate::rpc::ConnectionKey;

impl Incoming {
    /// Whether a held transmission may be taken: it is the next of its lane, and its call has, or can get, a slot.
    pub(in crate::core) fn may_take_request<P: Port>(
        &self,
        core: &Resources<P>,
        key: ConnectionKey,
        note: &TransmissionNote,
        number: u32,
    ) -> bool {
        let Some(connection) = core.connections.get(key) else {
            return true;
        };
        let parts = &connection.calls_in.parts;
        number == parts.first && (!note.is_first() || self.may_begin_incoming(core, key))
    }

    /// Takes a transmission of a peer's call.
    #[inline(always)]
    pub(in crate::core) fn take_request<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        key: ConnectionKey,
        note: &TransmissionNote,
        received: Received,
    ) {
        let mut call = if note.is_first() {
            match self.begin_request(core, key, note, &received) {
                Ok(call) => call,
                Err(error) => {
                    core.pass_group(key, note, received);
                    return core.refuse(key, note.id.xid, error);
                }
            }
        } else {
            let connection = core.connections.get(key);
            let index = connection.and_then(|it| it.calls_in.slot_of_group(note.group));
            match index.and_then(|it| self.calls.take(it)) {
                Some(call) => call,
                // Its first transmission was refused.
                None => return core.repost(key.index, received.receive),
            }
        };
        core.note_taken(key, note, call.index);
        call.arrival.receives.push(received);
        if note.is_last() {
            call.state = IncomingState::Placing;
            self.drive(core, application, call);
        } else {
            self.calls.put(call.index, call);
        }
    }

    /// Takes a slot for the call that the first transmission of a group begins, and reserves credits for all
    /// transmissions that its reply may have: the caller relies on them, and calls of ours use only what is left (RTR
    /// section 4.3).
    #[inline(always)]
    fn begin_request<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        key: ConnectionKey,
        note: &TransmissionNote,
        received: &Received,
    ) -> Result<Box<IncomingCall>, TransportError> {
        let takes_chunks = core.takes_chunks(key);
        self.forget_taken_replies(core);
        let mut call = self.begin_incoming(core.now, key, note.id.xid)?;
        let (receive, end) = (&received.receive, received.start);
        let counters = &core.shared.counters;
        let (port, gathered) = (&core.port, &mut core.gathered);
        let mut refusal = None;
        if !takes_chunks {
            let header = gathered.message(port, receive, end, counters);
            refusal = refusal_of_memory(note.first, header);
        }
        if refusal.is_none() {
            let has_begun = call.arrival.begin(key, note.first, || {
                gathered.message(port, receive, end, counters)
            });
            refusal = (!has_begun).then_some(TransportError::System);
        }
        if let Some(error) = refusal {
            self.end_incoming(core, call);
            return Err(error);
        }
        // A plan for the reply is valid only with the header that it was made for.
        if !call.arrival.is_checked() {
            call.planned = None;
        }
        call.state = IncomingState::Arriving;
        call.reply_reserved = note.first.response_transmissions_max;
        if let Some(connection) = core.connections.get_mut(key) {
            connection.replies_reserved += call.reply_reserved;
        }
        Ok(call)
    }
}

/// The error for a group call that names memory of its caller, on a connection whose calls may not have chunks (-00
/// section 5.2.5): the same error as for a call with chunks. `None` when the call names no memory.
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
