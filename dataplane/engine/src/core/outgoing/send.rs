//! A call whose memory is exposed is sent, with its chunk lists.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::v2::connection::{Direction, SendRefused};

use super::Outgoing;
use super::call::{OutgoingCall, OutgoingState};
use super::lists::OfferedLists;
use crate::core::resources::Resources;
use crate::core::step::Step;

impl Outgoing {
    /// Sends a call whose memory is exposed.
    pub(super) fn send_with_chunks<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut OutgoingCall,
    ) -> Step {
        let key = call.connection;
        let Some(connection) = core.connections.get_mut(key).filter(|it| it.is_live()) else {
            return Step::Waits;
        };
        let counters = &core.shared.counters;
        if !connection.can_call() {
            return call.wait.on_connection(&counters.awaiting_credit);
        }
        if !core.transmit.has_room(connection) {
            return call.wait.on(&counters.awaiting_send_buffer);
        }
        let lists = OfferedLists {
            segments: &call.segments,
            chunks: call.chunks,
        };
        let invalidate = match call.segments.as_slice() {
            // With one window alone nothing is left to be invalidated here. Where memory is
            // registered for the call instead, the peer cannot invalidate its key.
            [first, rest @ ..]
                if core.sends_with_invalidate && rest.iter().all(|it| it.part == first.part) =>
            {
                first.target.handle
            }
            _ => 0,
        };
        let heading = (call.xid, Direction::Call, invalidate);
        let stream = call.stream.get(..call.stream_bytes).unwrap_or(&[]);
        let transmit = &mut core.transmit;
        let encoded = transmit.encode_with_chunks(connection, heading, &lists, stream);
        let bytes = match encoded {
            Ok(bytes) => bytes,
            // The peer's sizes have changed since the call was planned.
            Err(SendRefused::TooLong | SendRefused::NoSpace | SendRefused::TooShort) => {
                return call.fails();
            }
            Err(_) => return Step::AwaitsConnection,
        };
        call.state = OutgoingState::Waiting;
        call.wait.ends();
        core.transmit
            .post_scratch(&mut core.port, connection, bytes, counters);
        if connection.stuck.is_some() {
            core.note_pending(key.index);
        }
        Step::Waits
    }
}
