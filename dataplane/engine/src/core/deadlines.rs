//! Closes connections of peers that stall. A peer that stops in the middle of something holds buffers and slots of a
//! core, and keep-alives do not show that. So a peer that owes something for longer than
//! [`stall_timeout`](crate::CoreConfig::stall_timeout) loses its connection.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::v2::connection::{Role, Unfinished};

use super::incoming::Incoming;
use super::incoming::IncomingState;
use super::resources::{Drain, Resources};
use super::sweep::Sweep;
use crate::close_reason::CloseReason;
use crate::connection::{Connection, Owing};

impl<P: Port> Resources<P> {
    /// Checks some connections if it is time. Returns whether more are due immediately.
    #[inline]
    pub(super) fn watch_debts(&mut self, sweep: &mut Sweep, incoming: &Incoming) -> bool {
        sweep.is_due(self.now) && self.visit_some(sweep, incoming)
    }

    #[cold]
    fn visit_some(&mut self, sweep: &mut Sweep, incoming: &Incoming) -> bool {
        // The slots first: they say which connections have a reply that waits.
        let slots = incoming.calls.len();
        let places = slots.saturating_add(self.config.connections_max);
        let (visits, more) = sweep.advance(self.now, places);
        for place in visits {
            match place.checked_sub(slots) {
                None => self.note_call(incoming, place),
                Some(index) => self.check_debts(incoming, index),
            }
        }
        more
    }

    /// Notes a call that is served in a slot, or whose reply waits there, for its connection, which is checked later in this sweep.
    /// A reply that waits for buffers of ours is no debt of the peer.
    fn note_call(&mut self, incoming: &Incoming, slot: u32) {
        use IncomingState::{Answering, Deferred, InParts, Reading, Ready};
        let slot = incoming.calls.get(slot);
        let served = slot.filter(|it| {
            matches!(it.state, Reading | Ready | Deferred | Answering | InParts)
                && it.for_reply_chunk.is_none()
        });
        let Some(call) = served else {
            return;
        };
        if let Some(connection) = self.connections.get_mut(call.connection) {
            connection.debts.has_call = true;
            connection.debts.is_answering |= call.state == Answering;
        }
    }

    fn check_debts(&mut self, incoming: &Incoming, index: u32) {
        let Some(connection) = self.connections.at(index).filter(|it| it.is_live()) else {
            return;
        };
        let is_answering = std::mem::take(&mut connection.debts.is_answering);
        let sends = self.transmit.sends_of(connection);
        let has_calls = std::mem::take(&mut connection.debts.has_call)
            || incoming.deferrals.has_call_of(index)
            || connection.calls.outstanding() != 0
            || connection.outbound.replies() != 0;
        let is_drained = self.drain != Drain::No && !has_calls;
        let (received, sent) = connection.protocol.messages_passed();
        let is_silent = connection.protocol.role() == Role::Server && received == 0;
        let reply_waits =
            connection.outbound.replies() != 0 || !connection.refusals.is_empty() || is_answering;
        let owing = Owing {
            first_message: is_silent,
            rest_of_message: unfinished_message(connection, is_drained),
            // With no Send in flight and a send buffer available, a waiting reply can only lack credits. Without
            // the last condition a peer would be blamed when other connections have all send buffers.
            credits: (reply_waits && sends.held == 0 && self.transmit.has_room(connection))
                .then_some(sent),
            receives: (sends.held != 0).then_some(sends.returned),
            acknowledgement: connection.silence.acknowledgement_owed(),
        };
        if let Some(owed) = connection.debts.visit(owing) {
            let stalled_ms =
                u32::try_from(self.config.stall_timeout.as_millis()).unwrap_or(u32::MAX);
            self.shared.counters.peers_stalled.increment();
            self.begin_close(index, CloseReason::PeerStalled { owed, stalled_ms });
        }
    }
}

/// The message that a peer has begun, if it is the peer's turn to continue it: the peer has credits, and no part of the
/// message waits at this end. While the core drains, and nothing else is under way on the connection, it is always the peer's
/// turn: calls that are not taken any more keep the credits that it would need, and the drain would wait for it without end.
fn unfinished_message(connection: &Connection, is_drained: bool) -> Option<Unfinished> {
    let is_its_turn = is_drained
        || (connection.protocol.credits().unconsumed() != 0 && !connection.open_lane_waits());
    connection
        .protocol
        .version_2()
        .unfinished()
        .filter(|_| is_its_turn)
}
