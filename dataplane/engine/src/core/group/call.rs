//! Calls of ours as transmission groups.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::constants::REPLY_HEADER_BYTES_WITHOUT_AUTH;
use rpcrdma_protocol::rpc::CallHeader;
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::plan::layout::BulkItems;
use rpcrdma_protocol::v2::plan::{
    CallFacts, CallForm, CallPlan, Demand, Direction, ExpectedResult, SenderMeans, plan_call,
};
use rpcrdma_protocol::v2::rtr::StreamRange;

use super::Step;
use super::send::Sending;
use crate::application::{CallRefused, CallTag, ConnectionKey};
use crate::bulk::calls::{Answer, CALL_PARTS_MAX, CallDirection, CallStage, NO_INDEX};
use crate::bulk::group::{GroupItem, GroupPart, Way};
use crate::bulk::lists::Role;
use crate::bulk::{BULK_ITEMS_MAX, BulkCall, ITEM_PARTS_MAX, Placement, Work, give_lease};
use crate::config::PADDING_BYTES;
use crate::core::State;
use crate::core::bulk::{push_fresh, push_part};

/// The items of a call, as a plan counts them.
pub(in crate::core) struct Items<'a, 'c>(pub(in crate::core) &'a BulkCall<'c>);

impl BulkItems for Items<'_, '_> {
    fn count(&self) -> usize {
        self.0.items().len()
    }

    fn length_bytes(&self, item: usize) -> u32 {
        self.0.items().get(item).map_or(0, |item| item.bytes)
    }

    fn gather_entries(&self, item: usize, from_bytes: u32, length_bytes: u32) -> u32 {
        let end = from_bytes.saturating_add(length_bytes) as usize;
        let mut at = 0;
        let parts = self.0.parts_of(item).filter(|part| {
            let start = at;
            at += part.len();
            (from_bytes as usize).max(start) < end.min(at)
        });
        u32::try_from(parts.count()).unwrap_or(u32::MAX)
    }

    fn segments(&self, item: usize, segment_bytes_max: u32) -> u32 {
        let segments = self.0.parts_of(item).map(|part| {
            let bytes = u32::try_from(part.len()).unwrap_or(u32::MAX);
            bytes.div_ceil(segment_bytes_max.max(1))
        });
        segments.sum()
    }
}

impl<P: Port> State<P> {
    /// Plans a call as a transmission group; `None` where it goes by other means.
    pub(in crate::core) fn plan_group(
        &self,
        key: ConnectionKey,
        call: &BulkCall<'_>,
        rpc_header_bytes: usize,
        may_expose: bool,
    ) -> Result<Option<CallPlan>, CallRefused> {
        if let Some(plan) = self.remembered_plan(key, call, rpc_header_bytes) {
            return Ok(Some(*plan));
        }
        let Some(connection) = self.connections.get(key) else {
            return Err(CallRefused::UnknownConnection);
        };
        let demand = match call.placement {
            Placement::Auto => Demand::Auto,
            Placement::Send => Demand::Send,
            Placement::Inline | Placement::Rdma => return Ok(None),
        };
        let none = match demand {
            Demand::Send => Err(CallRefused::NoPlacement),
            _ => Ok(None),
        };
        let (Some(config), true) = (self.config.placement, connection.places_by_send()) else {
            return none;
        };
        let own = connection.protocol.properties();
        let stream_bytes = rpc_header_bytes + call.args.len();
        let reply_bytes = REPLY_HEADER_BYTES_WITHOUT_AUTH + call.results_bytes_max;
        let (Ok(stream_bytes), Ok(reply_stream_bytes_max)) =
            (u32::try_from(stream_bytes), u32::try_from(reply_bytes))
        else {
            return Err(CallRefused::TooLong);
        };
        let mut results = [ExpectedResult::default(); BULK_ITEMS_MAX];
        for (place, expected) in results.iter_mut().zip(call.expected()) {
            *place = ExpectedResult {
                range: range_of(expected, rpc_header_bytes),
                bytes_max: expected.bytes_max,
            };
        }
        let results = results.get(..call.expected().len()).unwrap_or(&[]);
        let group_max = connection.group_transmissions_max();
        let parts_max = u32::try_from(CALL_PARTS_MAX).unwrap_or(u32::MAX);
        let windows_left = self.bulk.windows_max.saturating_sub(self.bulk.windows_open);
        let mut thresholds = self.config.thresholds;
        // A result is handed over in no more pieces.
        let pieces_max = u32::try_from(ITEM_PARTS_MAX).unwrap_or(u32::MAX);
        thresholds.send_placement_bytes_max = thresholds
            .send_placement_bytes_max
            .min(config.segment_bytes.saturating_mul(pieces_max));
        let reply_credits = connection
            .reply_credits()
            .min(self.config.messages_leased_at_once());
        let facts = CallFacts {
            demand,
            thresholds,
            stream_bytes,
            items: &Items(call),
            reply_stream_bytes_max,
            results,
            means: SenderMeans {
                send_bytes_max: own.send_bytes_max,
                gather_entries_max: self.gather_entries_max(),
                padding_region_bytes: PADDING_BYTES,
                message_bytes_max: self.config.message_bytes_max,
                credits: connection.credits_for_calls().min(group_max),
            },
            plain_send_bytes_max: own.send_bytes_max,
            continues_with_chunks: false,
            credits_max: group_max,
            own,
            peer: &connection.peer,
            peer_read_chunks_max: u32::MAX,
            peer_write_chunks_max: u32::MAX,
            windows: if may_expose {
                windows_left.min(parts_max)
            } else {
                0
            },
            window_bytes_max: self.bulk.reply.pool.buffer_bytes(),
            reply_bytes_max: self.config.message_bytes_max,
            reply_credits,
        };
        let plan = match plan_call(&facts) {
            Ok(plan) => plan,
            Err(_) if demand == Demand::Send && reply_credits < connection_half(connection) => {
                // When replies have come, there are more.
                return Err(CallRefused::NoCredit);
            }
            Err(_) => return none,
        };
        if !matches!(plan.form, CallForm::Group { .. }) {
            // Nothing to be placed, or not to advantage.
            return Ok(None);
        }
        let stream_max = self.bulk.calls.first().map_or(0, |slot| slot.stream.len());
        if plan.stream_bytes as usize > stream_max {
            return none;
        }
        Ok(Some(plan))
    }

    /// Accepts a call that is planned as a group.
    pub(in crate::core) fn start_group_call(
        &mut self,
        key: ConnectionKey,
        header: &CallHeader<'_>,
        call: &mut BulkCall<'_>,
        tag: CallTag,
        plan: &CallPlan,
    ) -> Result<(), CallRefused> {
        let windows = plan.windows_needed as usize;
        let pool = &mut self.bulk.reply.pool;
        let fresh = call.expected().iter().zip(plan.reply.directions);
        let fresh = fresh
            .filter(|(_, way)| has_memory(*way))
            .map(|(expected, _)| pool.buffers_for(expected.bytes_max))
            .sum();
        let has_room = pool.may_give(fresh)
            && self.bulk.has_call()
            && self.bulk.windows_open as usize + windows <= self.bulk.windows_max as usize;
        let index = has_room.then(|| self.bulk.take_call()).flatten();
        let Some(index) = index else {
            self.shared.counters.calls_refused_no_slot.increment();
            return Err(CallRefused::NoSlot);
        };
        self.remember_plan(key, call, header.encoded_bytes(), plan);
        self.fill_group(index, header, call, plan);
        if let Some(slot) = self.bulk.calls.get_mut(index as usize) {
            (slot.connection, slot.tag, slot.xid) = (key, tag, header.xid);
            slot.stage = match windows {
                0 => CallStage::Sending,
                _ => CallStage::Binding,
            };
        }
        self.begin_call(key, tag, index);
        if let Some(connection) = self.connections.get_mut(key) {
            connection.reply_transmissions_extra += plan.reply.transmissions_max.saturating_sub(1);
        }
        self.bulk.queue(Work::Call(index));
        Ok(())
    }

    /// Puts a call into its slot: what stays in the stream is copied there, what is placed keeps its
    /// buffers.
    fn fill_group(
        &mut self,
        index: u32,
        header: &CallHeader<'_>,
        call: &mut BulkCall<'_>,
        plan: &CallPlan,
    ) {
        let bulk = &mut self.bulk;
        let Some(slot) = bulk.calls.get_mut(index as usize) else {
            return;
        };
        let rpc_header_bytes = header.encode(&mut slot.stream).unwrap_or(0);
        let mut end = rpc_header_bytes;
        let mut append = |stream: &mut [u8], bytes: &[u8]| {
            if let Some(space) = stream.get_mut(end..end + bytes.len()) {
                space.copy_from_slice(bytes);
            }
            end += bytes.len();
            end
        };
        let (items, count) = (call.items, call.item_count);
        let args = call.args;
        let (mut args_at, mut beside_bytes) = (0, 0_usize);
        let mut leases = call.drain();
        for (item, way) in items.iter().take(count).zip(plan.items) {
            let before = args.get(args_at..item.args_offset).unwrap_or(&[]);
            args_at = item.args_offset;
            let stream_at = append(&mut slot.stream, before);
            let displacement = u32::try_from(stream_at + beside_bytes).unwrap_or(u32::MAX);
            let padded = (item.bytes as usize).next_multiple_of(4);
            let first_part = slot.group.parts.len();
            for lease in leases.by_ref().take(item.parts) {
                if way == Direction::Inline {
                    append(&mut slot.stream, &lease);
                    self.shared
                        .counters
                        .bulk_bytes_copied
                        .add(lease.len() as u64);
                }
                if way == Direction::Inline || lease.is_empty() {
                    give_lease(&mut bulk.reply.pool, lease);
                    continue;
                }
                let is_bulk = bulk.reply.pool.owns_lease(&lease);
                let Some((buffer, offset, bytes)) = lease.into_buffer() else {
                    continue;
                };
                let part_index = if is_bulk { buffer.index() } else { NO_INDEX };
                if way == Direction::Placed {
                    slot.group.parts.push(GroupPart {
                        index: part_index,
                        buffer: Some(buffer),
                        offset,
                        bytes,
                    });
                } else {
                    let position = displacement;
                    push_part(&mut slot.parts, Role::Argument { position }, buffer, bytes);
                    if let Some(part) = slot.parts.last_mut() {
                        part.index = part_index;
                    }
                }
            }
            if way == Direction::Inline {
                let padding = padded - item.bytes as usize;
                append(&mut slot.stream, [0; 3].get(..padding).unwrap_or(&[]));
                continue;
            }
            beside_bytes += padded;
            slot.group.items.push(GroupItem {
                displacement,
                bytes: item.bytes,
                way: match way {
                    Direction::Placed => Way::Placed,
                    _ => Way::Explicit,
                },
                first_part,
                parts: slot.group.parts.len() - first_part,
            });
        }
        drop(leases);
        slot.stream_bytes = append(&mut slot.stream, args.get(args_at..).unwrap_or(&[]));
        let rpc_reply_bytes = REPLY_HEADER_BYTES_WITHOUT_AUTH + call.results_bytes_max;
        slot.rpc_reply_bytes_max = u32::try_from(rpc_reply_bytes).unwrap_or(u32::MAX);
        for (expected, way) in call.expected().iter().zip(plan.reply.directions) {
            let chunk = slot.chunks;
            if let Some(bytes) = slot.chunk_bytes.get_mut(usize::from(chunk)) {
                *bytes = expected.bytes_max;
            }
            slot.chunks += 1;
            if has_memory(way) {
                let role = Role::Result { chunk };
                push_fresh(slot, &mut bulk.reply.pool, role, expected.bytes_max);
            }
            slot.directions.push(CallDirection {
                range: range_of(expected, rpc_header_bytes),
                way,
                bytes_max: expected.bytes_max,
                displacement: None,
            });
        }
        slot.results = slot.chunks;
        slot.minimum_bytes = plan.reply.minimum_bytes;
        slot.reply_transmissions_max = plan.reply.transmissions_max.max(1);
        slot.group.header_bytes = plan.header_bytes;
        slot.group.stream_bytes = plan.stream_bytes;
        if let CallForm::Group { transmissions } = plan.form {
            slot.group.transmissions = transmissions;
        }
        debug_assert_eq!(slot.stream_bytes, plan.stream_bytes as usize);
        self.set_homes(index);
    }

    /// Sends a call that is a transmission group.
    pub(in crate::core) fn send_group_call(&mut self, index: u32) -> Step {
        match self.send_group(Work::Call(index)) {
            Sending::Waits(step) => step,
            Sending::Done => {
                if let Some(slot) = self.bulk.calls.get_mut(index as usize) {
                    slot.stage = CallStage::Waiting;
                    if let Answer::Refused(_) = slot.answer {
                        slot.stage = CallStage::AwaitingInvalidation;
                        return Step::GoesOn;
                    }
                }
                Step::Waits
            }
            Sending::Impossible => {
                self.forget_group_turn(index);
                // A list of pieces that is too long, say: plain version 2 has other means.
                self.end_bulk_call(index, Answer::Refused(TransportError::System));
                Step::Waits
            }
        }
    }

    /// A call that waited for the credits of its group does not any more.
    pub(in crate::core) fn forget_group_turn(&mut self, index: u32) {
        let slot = self.bulk.calls.get(index as usize);
        let connection = slot.and_then(|slot| self.connections.get_mut(slot.connection));
        if let Some(connection) = connection
            && connection.group_first == Some(index)
        {
            connection.group_first = None;
        }
    }
}

/// The credits that a reply can have when no other call waits for one.
fn connection_half(connection: &crate::connection::Connection) -> u32 {
    (connection.protocol.credits().window / 2).max(1)
}

/// Where in the call that stands which asks for a result; an empty range is the whole call.
fn range_of(expected: &crate::bulk::ExpectedResult, rpc_header_bytes: usize) -> StreamRange {
    let asked = &expected.request_range;
    if asked.is_empty() {
        return StreamRange {
            begin: 0,
            end: u32::MAX,
        };
    }
    let before = u32::try_from(rpc_header_bytes).unwrap_or(u32::MAX);
    StreamRange {
        begin: asked.start.saturating_add(before),
        end: asked.end.saturating_add(before),
    }
}

fn has_memory(way: Direction) -> bool {
    matches!(
        way,
        Direction::Explicit | Direction::Choice | Direction::BySize { .. }
    )
}
