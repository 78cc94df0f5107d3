//! Sends a call whose memory is exposed, with its chunk lists.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::EncodeError;
use rpcrdma_protocol::chunks::{
    EncodeChunkLists, ReadSegment, write_read_list, write_reply_chunk, write_write_list,
};
use rpcrdma_protocol::v2::connection::{Direction, SendRefused};
use rpcrdma_protocol::xdr::Writer;

use super::Outgoing;
use super::call::{OutgoingCall, OutgoingState};
use super::lists::{OfferedSegment, Role};
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
        let invalidate = match call.segments.as_slice() {
            // With a single window, the peer's invalidation leaves nothing to invalidate here. If memory is
            // registered for the call instead of a window, the peer cannot invalidate its key.
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
        let encoded = transmit.encode_with_chunks(connection, heading, call, stream);
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
        if connection.unposted.is_some() {
            core.note_pending(key.index);
        }
        Step::Waits
    }
}

impl EncodeChunkLists for OutgoingCall {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        // The segments are in the order of the lists.
        let is_read = |segment: &&OfferedSegment| !segment.role.is_written();
        let reads = self.segments.iter().take_while(is_read);
        let mut rest = self.segments.get(reads.clone().count()..).unwrap_or(&[]);
        let reads = reads.map(|segment| ReadSegment {
            position: match segment.role {
                Role::Argument { position } => position,
                Role::Stream | Role::Result { .. } | Role::Reply => 0,
            },
            target: segment.target,
        });
        write_read_list(writer, reads)?;
        let chunks = (0..self.chunks).map(|chunk| {
            let role = Role::Result { chunk };
            let count = rest.iter().take_while(|it| it.role == role).count();
            let (of_chunk, behind) = rest.split_at(count);
            rest = behind;
            of_chunk.iter().map(|segment| segment.target)
        });
        write_write_list(writer, chunks)?;
        let reply = (!rest.is_empty()).then(|| rest.iter().map(|segment| segment.target));
        write_reply_chunk(writer, reply)
    }
}
