//! Calls of ours as transmission groups.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::constants::REPLY_HEADER_BYTES_WITHOUT_AUTH;
use rpcrdma_protocol::rpc::CallHeader;
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::connection::Connection as Protocol;
use rpcrdma_protocol::v2::connection::{Direction as MessageDirection, SendRefused};
use rpcrdma_protocol::v2::plan::{CallForm, CallPlan, Direction};
use rpcrdma_protocol::v2::rtr::TransmitRequest;

use super::Outgoing;
use super::call::{Answer, CallDirection, OutgoingCall, OutgoingState};
use super::lists::{Role, targets_of};
use super::plan::{has_memory, range_of};
use crate::bulk::{BulkCall, BulkPart, Home, give_piece};
use crate::connection::Connection;
use crate::core::group::{
    Body, Group, GroupItem, GroupItems, GroupSender, LaidOut, Sending, Shape, Way,
};
use crate::core::resources::Resources;
use crate::core::step::{Step, Wait};
use crate::rpc::ConnectionKey;

impl Outgoing {
    /// Sends a call that is a transmission group.
    pub(super) fn send_group_call<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut OutgoingCall,
    ) -> Step {
        let laid_out = self.laid_out.of_mut(call.connection);
        match core.send_group(call, laid_out) {
            Sending::Waits(step) => step,
            Sending::Done if matches!(call.answer, Answer::Refused(_)) => {
                call.state = OutgoingState::AwaitingInvalidation;
                Step::GoesOn
            }
            Sending::Done => {
                call.state = OutgoingState::Waiting;
                Step::Waits
            }
            // For example, its gather list is too long. Plain version 2 may be able to send it.
            Sending::Impossible => {
                self.forget_group_turn(core, call);
                call.answered(Answer::Refused(TransportError::System))
            }
        }
    }

    /// Gives up the turn of a call that waited for the credits of its group, and wakes the calls behind it.
    pub(super) fn forget_group_turn<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &OutgoingCall,
    ) {
        let connection = core.connections.get_mut(call.connection);
        let first = connection.and_then(|it| it.group_first.take_if(|first| *first == call.index));
        if first.is_some() {
            core.wake(call.connection.index);
        }
    }
}

impl OutgoingCall {
    /// Puts a call into the slot: items that stay in the stream are copied there, the others keep their
    /// buffers.
    #[inline(always)]
    pub(super) fn fill_group<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        header: &CallHeader<'_>,
        call: &mut BulkCall<'_>,
        plan: &CallPlan,
    ) {
        let (pool, counters) = (&mut core.reply.pool, &core.shared.counters);
        let rpc_header_bytes = header.encode(&mut self.stream).unwrap_or(0);
        self.stream_bytes = rpc_header_bytes;
        let args = call.args;
        let (mut args_at, mut beside_bytes) = (0, 0_usize);
        let mut pieces = call.parts.drain(..);
        for (item, way) in call.items.iter().zip(&plan.items) {
            self.extend_stream(args.get(args_at..item.args_offset).unwrap_or(&[]));
            args_at = item.args_offset;
            let position = u32::try_from(self.stream_bytes + beside_bytes).unwrap_or(u32::MAX);
            let padded = (item.bytes as usize).next_multiple_of(4);
            let pieces = pieces.by_ref().take(item.parts);
            if *way == Direction::Inline {
                for piece in pieces {
                    self.extend_stream(&piece);
                    counters.bulk_bytes_copied.add(piece.len() as u64);
                    give_piece(pool, piece);
                }
                let padding = padded - item.bytes as usize;
                self.extend_stream([0; 3].get(..padding).unwrap_or(&[]));
                continue;
            }
            let first_part = self.group.parts.len();
            for part in pieces.filter_map(|piece| BulkPart::of_piece(pool, piece)) {
                match way {
                    Direction::Placed => self.group.parts.push(part),
                    _ => self.push_part(Role::Argument { position }, part),
                }
            }
            beside_bytes += padded;
            self.group.items.push(GroupItem {
                displacement: position,
                bytes: item.bytes,
                way: match way {
                    Direction::Placed => Way::Placed,
                    _ => Way::Explicit,
                },
                first_part,
                parts: self.group.parts.len() - first_part,
            });
        }
        drop(pieces);
        call.items.clear();
        self.extend_stream(args.get(args_at..).unwrap_or(&[]));
        debug_assert_eq!(self.stream_bytes, plan.stream_bytes as usize);
        let rpc_reply_bytes =
            REPLY_HEADER_BYTES_WITHOUT_AUTH.saturating_add(call.results_bytes_max);
        self.rpc_reply_bytes_max = u32::try_from(rpc_reply_bytes).unwrap_or(u32::MAX);
        for (expected, way) in call.expected().iter().zip(&plan.reply.directions) {
            self.push_result(expected.bytes_max, has_memory(*way), pool);
            self.directions.push(CallDirection {
                range: range_of(expected, rpc_header_bytes),
                way: *way,
                bytes_max: expected.bytes_max,
                displacement: None,
            });
        }
        self.minimum_bytes = plan.reply.minimum_bytes;
        self.reply_transmissions_max = plan.reply.transmissions_max.max(1);
        self.group.header_bytes = plan.header_bytes;
        self.group.stream_bytes = plan.stream_bytes;
        if let CallForm::Group { transmissions } = plan.form {
            self.group.transmissions = transmissions;
        }
    }

    /// Appends bytes to the stream in the slot, which has room for them.
    fn extend_stream(&mut self, bytes: &[u8]) {
        let end = self.stream_bytes + bytes.len();
        if let Some(space) = self.stream.get_mut(self.stream_bytes..end) {
            space.copy_from_slice(bytes);
        }
        self.stream_bytes = end;
    }
}

impl GroupSender for OutgoingCall {
    fn key(&self) -> ConnectionKey {
        self.connection
    }

    fn group(&mut self) -> (&mut Group, &[u8]) {
        let stream = self.stream.get(..self.stream_bytes);
        (&mut self.group, stream.unwrap_or(&[]))
    }

    fn is_behind_others(&self, connection: &Connection) -> bool {
        connection.has_backlog()
    }

    /// Only the first waiting group gets credits: otherwise short calls could keep a long group waiting for ever.
    fn credits(&self, connection: &mut Connection) -> u32 {
        let first = *connection.group_first.get_or_insert(self.index);
        match first == self.index {
            true => connection.credits_for_calls(),
            false => 0,
        }
    }

    fn begun(&mut self, connection: &mut Connection) {
        connection.group_first.take_if(|first| *first == self.index);
        self.wait.ends();
    }

    fn home(&self, part: u16) -> Home {
        let slot = self.index;
        Home::CallGroup { slot, part }
    }

    fn wait(&mut self) -> &mut Wait {
        &mut self.wait
    }

    fn heading(&self) -> (u32, MessageDirection) {
        (self.xid, MessageDirection::Call)
    }

    #[inline(always)]
    fn body(&self, shape: Shape) -> Option<Body> {
        let direction = match self.directions.as_slice() {
            [] => None,
            [direction] if !has_memory(direction.way) => Some(*direction),
            _ => return None,
        };
        Some(Body {
            shape,
            displacement: self.group.items.first().map(|item| item.displacement),
            direction,
            minimum_bytes: self.minimum_bytes,
            reply_transmissions_max: self.reply_transmissions_max,
        })
    }

    fn encode_first(
        &self,
        protocol: &mut Protocol,
        out: &mut [u8],
        laid_out: &LaidOut,
    ) -> Result<usize, SendRefused> {
        let segments = |_: usize, item: GroupItem| {
            let position = item.displacement;
            targets_of(&self.segments, Role::Argument { position })
        };
        let request = TransmitRequest {
            items: GroupItems {
                group: &self.group,
                laid_out,
                segments,
            },
            directions: self,
            transmissions: self.group.transmissions,
            response_transmissions_max: self.reply_transmissions_max,
            stream_bytes: laid_out.stream_bytes,
        };
        protocol.encode_transmit_request(out, self.xid, &request, laid_out.behind_bytes)
    }
}
