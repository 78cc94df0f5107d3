//! Chooses the form of a reply and the way of each of its results. `plan_reply` of the protocol decides, for calls with
//! chunk lists of either version and for transmission groups.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::plan::{
    ReplyFacts, ReplyForm, ReplyPlan, RequesterOffer, ResultWay, SenderMeans, plan_reply,
};
use rpcrdma_protocol::v2::rtr::rounded_up;

use super::Incoming;
use super::call::{
    IncomingCall, IncomingState, ListedTerms, PlannedReply, RpcReply, Target, WritePart,
};
use super::staying::insert_items;
use crate::bulk::directed::{ReplyResult, Results};
use crate::bulk::{BulkPart, NO_INDEX};
use crate::config::PADDING_BYTES;
use crate::core::group::{GroupItem, Way};
use crate::core::resources::Resources;
use crate::message::{MessagePool, Use};
use crate::responder::RPC_OFFSET;

impl Incoming {
    /// Takes the RPC reply to a call, and the results that the service attached to it.
    #[inline(always)]
    pub(super) fn take_reply<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut IncomingCall,
        reply: RpcReply,
    ) -> Result<(), TransportError> {
        call.state = IncomingState::Answering;
        call.deferral = None;
        call.reply = reply;
        if !call.is_group() {
            return self.plan_listed_reply(core, call);
        }
        if matches!(call.reply, RpcReply::Long(_)) {
            self.shorten_group_reply(core, call);
        }
        call.results.extend_from_slice(&core.reply.results);
        for item in &mut core.reply.attached {
            item.drain_into(&mut core.reply.pool, |part| call.group.parts.push(part));
        }
        Ok(())
    }

    /// Moves the stream of a group's reply into the slot if it fits into one Send: only replies in slots can be kept for
    /// a resend, and the message buffer is free then.
    #[cold]
    fn shorten_group_reply<P: Port>(&mut self, core: &mut Resources<P>, call: &mut IncomingCall) {
        let connection = core.connections.get(call.connection);
        let threshold = connection.map_or(0, |it| it.protocol.send_threshold_bytes() as usize);
        let before = RPC_OFFSET + call.returned_bytes();
        let room = threshold.min(call.reply_space.len()).saturating_sub(before);
        if call.rpc_reply().len() <= room {
            call.move_into_slot(&mut core.messages);
        }
    }

    /// Chooses the form of the reply to a call with this offer. `send_bytes_max` is the longest Send, `credits` the
    /// number of Sends that are possible.
    fn plan_reply<P: Port>(
        &self,
        core: &Resources<P>,
        call: &IncomingCall,
        results: &[ReplyResult],
        offer: RequesterOffer<'_>,
        send_bytes_max: u32,
        credits: u32,
    ) -> Result<ReplyPlan, TransportError> {
        let connection = core.connections.get(call.connection);
        let connection = connection.ok_or(TransportError::System)?;
        let protocol = &connection.protocol;
        let mut thresholds = core.config.thresholds;
        if credits == u32::MAX {
            // There are not enough buffers for the Reply chunk: the reply is sent in parts, if at all.
            thresholds.continued_bytes_max = u32::MAX;
        }
        let mut peer = connection.peer;
        if !call.is_group() {
            // In version 1 there is no such property: the size is a default, or comes from the
            // connection manager's private data.
            peer.receive_buffer_bytes = send_bytes_max;
        }
        plan_reply(&ReplyFacts {
            thresholds,
            stream_bytes: u32::try_from(call.rpc_reply().len()).unwrap_or(u32::MAX),
            results: &Results(results),
            offer,
            is_version_1: protocol.is_version_1(),
            may_reduce: call.is_group() || core.reply.may_reduce,
            means: SenderMeans {
                send_bytes_max,
                gather_entries_max: core.gather_entries_max(),
                padding_region_bytes: PADDING_BYTES,
                message_bytes_max: core.config.message_bytes_max,
                credits,
            },
            own: protocol.properties(),
            peer: &peer,
        })
    }

    /// Chooses the form of the reply to a call with chunk lists, and copies the items that stay in its stream.
    fn plan_listed_reply<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut IncomingCall,
    ) -> Result<(), TransportError> {
        if call.plan_listed_as_before(core) {
            return Ok(());
        }
        let connection = core.connections.get(call.connection);
        let connection = connection.ok_or(TransportError::System)?;
        let protocol = &connection.protocol;
        let stream_bytes = u32::try_from(call.rpc_reply().len()).unwrap_or(u32::MAX);
        let space_bytes = u32::try_from(call.reply_space.len()).unwrap_or(u32::MAX);
        let send_bytes_max = protocol.send_threshold_bytes().min(space_bytes);
        // An upper bound: each item splits the stream, and no buffer has bytes from both sides of an item.
        let buffers = core.reply.pool.buffers_for(stream_bytes) + core.reply.attached.len();
        let credits = if buffers > core.reply.pool.total() {
            u32::MAX
        } else if connection.has_backlog_of_replies() {
            0
        } else {
            protocol.credits_for_replies()
        };
        let lists = call.lists();
        let (writes, reply) = (lists.writes, lists.reply);
        let offer = RequesterOffer::Chunks { writes, reply };
        let plan = self.plan_reply(
            core,
            call,
            &core.reply.results,
            offer,
            send_bytes_max,
            credits,
        )?;
        let chunks = writes.count();
        call.remember_listed_plan(core, &plan);
        let written = plan.written_bytes(&Results(&core.reply.results));
        call.written.extend(written.into_iter().take(chunks));
        let copied_bytes = self.keep_in_stream(core, call, &plan)?;
        core.shared.counters.bulk_bytes_copied.add(copied_bytes);
        let mut attached = core.reply.attached.iter_mut();
        let results = core.reply.results.iter().enumerate();
        for (number, result) in results.filter(|(_, result)| result.is_attached) {
            let Some(item) = attached.next() else {
                break;
            };
            let target = match (plan.results.get(number), plan.form) {
                (Some(&ResultWay::Written { chunk }), _) => Target::Chunk(chunk),
                (_, ReplyForm::Long) => {
                    call.results.push(*result);
                    Target::Reply
                }
                // It stays in the stream, and was copied by `keep_in_stream`.
                _ => continue,
            };
            item.drain_into(&mut core.reply.pool, |part| {
                call.write_parts.push(WritePart::new(part, target));
            });
        }
        Ok(())
    }

    /// Copies the items of a reply that stay in its stream, if the reply is sent in messages. Returns how many bytes.
    fn keep_in_stream<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut IncomingCall,
        plan: &ReplyPlan,
    ) -> Result<u64, TransportError> {
        let (rpc_bytes, end) = (call.rpc_reply().len(), plan.stream_bytes as usize);
        let is_written = |way: Option<&ResultWay>| matches!(way, Some(ResultWay::Written { .. }));
        let stays = |result: usize| !is_written(plan.results.get(result));
        match plan.form {
            ReplyForm::Message { messages: 1 } => {
                call.move_into_slot(&mut core.messages);
                call.reply = RpcReply::Short(end);
                let space = call.reply_space.get_mut(..end).unwrap_or(&mut []);
                Ok(insert_items(space, rpc_bytes, &core.reply, stays))
            }
            ReplyForm::Message { .. } => {
                let mut message = match std::mem::take(&mut call.reply) {
                    RpcReply::Long(message) => message,
                    _ => {
                        let taken = core.messages.take(call.connection.index, Use::Answer);
                        debug_assert!(taken.is_some(), "a call is served only while one is free");
                        let mut message = taken.ok_or(TransportError::System)?;
                        let written = call.reply_space.get(..rpc_bytes).unwrap_or(&[]);
                        message.append(written);
                        debug_assert!(message.is_whole(), "it holds what one message does");
                        message
                    }
                };
                message.set_len(end);
                let space = message.space().get_mut(..end).unwrap_or(&mut []);
                let copied_bytes = insert_items(space, rpc_bytes, &core.reply, stays);
                call.reply = RpcReply::Long(message);
                Ok(copied_bytes)
            }
            ReplyForm::Long => {
                call.for_reply_chunk = Some(plan.stream_bytes);
                Ok(0)
            }
            ReplyForm::Group { .. } => Err(TransportError::System),
        }
    }

    /// Chooses the form of the reply to a call in a transmission group, and the way of each result.
    pub(super) fn plan_group_reply<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut IncomingCall,
    ) -> Result<(), TransportError> {
        let rpc_bytes = call.rpc_reply().len();
        if call.plan_as_before(rpc_bytes, core.properties_epoch) {
            return Ok(());
        }
        let connection = core.connections.get(call.connection);
        let (Some(connection), Some(request)) = (connection, call.arrival.request()) else {
            return Err(TransportError::System);
        };
        let offer = RequesterOffer::Directions {
            sets: request.directions,
            transmissions_max: request.response_transmissions_max,
        };
        let send_bytes_max = connection.protocol.properties().send_bytes_max;
        let credits = connection.protocol.credits_available();
        let plan = self.plan_reply(core, call, &call.results, offer, send_bytes_max, credits)?;
        let ReplyForm::Group { transmissions } = plan.form else {
            return Err(TransportError::System);
        };
        let count = request.directions.map(|set| set.items.len()).sum();
        let IncomingCall {
            results,
            group,
            write_parts,
            ..
        } = call;
        for direction in 0..count {
            let (result, way) = match plan.answer(direction) {
                Some((result, ResultWay::Placed { .. })) => (result, Way::Placed),
                Some((result, ResultWay::Written { .. })) => (result, Way::Explicit),
                Some((result, _)) => (result, Way::TooShort),
                None => (usize::MAX, Way::NoItem),
            };
            let given = results.get(result);
            // A displacement counts in the whole stream: also the items before it that left the stream.
            let before = results.iter().take(result).filter(|it| it.is_attached);
            let beside: u64 = before.clone().map(|it| rounded_up(it.bytes)).sum();
            let beside = u32::try_from(beside).unwrap_or(u32::MAX);
            let is_attached = given.is_some_and(|it| it.is_attached);
            let parts = is_attached.then(|| part_range(results, &group.parts, before.count()));
            let (first_part, parts) = parts.flatten().unwrap_or_default();
            group.items.push(GroupItem {
                displacement: given.map_or(0, |it| it.stream_offset.saturating_add(beside)),
                bytes: given.map_or(0, |it| it.bytes),
                way,
                first_part,
                parts,
            });
            if way == Way::Explicit {
                let own = group.parts.get_mut(first_part..first_part + parts);
                let target = Target::Chunk(direction);
                let written = own.into_iter().flatten();
                write_parts.extend(written.map(|part| to_be_written(part, target)));
            }
        }
        group.header_bytes = plan.header_bytes;
        group.stream_bytes = plan.stream_bytes;
        group.transmissions = transmissions;
        call.remember_plan(rpc_bytes, core.properties_epoch);
        Ok(())
    }
}

impl IncomingCall {
    /// Moves an RPC reply from its message buffer, which is given back, into the slot. The reply has to fit there.
    #[inline(always)]
    fn move_into_slot(&mut self, messages: &mut MessagePool) {
        match std::mem::take(&mut self.reply) {
            RpcReply::Long(message) => {
                let bytes = message.filled().len();
                if let Some(space) = self.reply_space.get_mut(..bytes) {
                    space.copy_from_slice(message.filled());
                }
                self.reply = RpcReply::Short(bytes);
                messages.give(message);
            }
            other => self.reply = other,
        }
    }

    /// Reuses the plan of the previous reply, if its inputs are equal.
    #[inline(always)]
    fn plan_as_before(&mut self, rpc_bytes: usize, properties_epoch: u64) -> bool {
        let Some(plan) = self.planned.as_ref().filter(|it| {
            (it.properties_epoch, it.rpc_bytes, it.parts)
                == (properties_epoch, rpc_bytes, self.group.parts.len())
                && it.result.as_slice() == self.results.as_slice()
        }) else {
            return false;
        };
        self.group.items.extend(plan.item);
        (self.group.header_bytes, self.group.stream_bytes) = (plan.header_bytes, plan.stream_bytes);
        self.group.transmissions = 1;
        true
    }

    /// The terms of the reply, if its plan may be reused: one message, no Reply chunk, at most one Write chunk, and at
    /// most one result, which is attached and fits the chunk.
    #[inline(always)]
    fn listed_terms<P: Port>(&self, core: &Resources<P>) -> Option<ListedTerms> {
        let lists = self.lists();
        let RpcReply::Short(rpc_bytes) = self.reply else {
            return None;
        };
        if lists.reply.is_some() || lists.writes.len() > 1 || !core.reply.may_reduce {
            return None;
        }
        let mut writes = lists.writes;
        let chunk = writes.next();
        let result = match (core.reply.results.as_slice(), chunk) {
            ([], _) => None,
            ([result], Some(chunk)) if result.is_attached => {
                let fits = result.bytes != 0 && chunk.total_bytes() >= u64::from(result.bytes);
                Some(fits.then_some(*result)?)
            }
            _ => return None,
        };
        Some(ListedTerms {
            properties_epoch: core.properties_epoch,
            connection: self.connection,
            rpc_bytes,
            segments: chunk.map(|chunk| chunk.len()),
            result,
        })
    }

    /// Reuses the previous plan if the terms are equal: the stream goes in the message, the result to the Write chunk.
    #[inline(always)]
    fn plan_listed_as_before<P: Port>(&mut self, core: &mut Resources<P>) -> bool {
        let before = self.planned_listed;
        if before.is_none() || self.listed_terms(core) != before {
            return false;
        }
        for (item, result) in core.reply.attached.iter_mut().zip(&core.reply.results) {
            self.written.push(result.bytes);
            item.drain_into(&mut core.reply.pool, |part| {
                self.write_parts
                    .push(WritePart::new(part, Target::Chunk(0)));
            });
        }
        true
    }

    /// Keeps the terms of a plan that [`Self::plan_listed_as_before`] can repeat.
    fn remember_listed_plan<P: Port>(&mut self, core: &Resources<P>, plan: &ReplyPlan) {
        let terms = self.listed_terms(core).filter(|terms| {
            let is_written = matches!(plan.results.first(), Some(ResultWay::Written { chunk: 0 }));
            // An unused chunk is returned with 0 bytes, which `plan_listed_as_before` would not note.
            let has_all = terms.result.is_some() == terms.segments.is_some();
            plan.form == ReplyForm::Message { messages: 1 }
                && has_all
                && is_written == terms.result.is_some()
        });
        self.planned_listed = terms;
    }

    /// Keeps the plan of a reply for the next one, if it depends on nothing but what is compared.
    fn remember_plan(&mut self, rpc_bytes: usize, properties_epoch: u64) {
        let group = &self.group;
        let is_simple = group.transmissions == 1
            && self.results.len() <= 1
            && group.items.len() <= 1
            && group.parts.len() <= 1
            && self.write_parts.is_empty();
        self.planned = is_simple.then(|| PlannedReply {
            properties_epoch,
            rpc_bytes,
            result: self.results.first().copied(),
            parts: group.parts.len(),
            item: group.items.first().copied(),
            header_bytes: group.header_bytes,
            stream_bytes: group.stream_bytes,
        });
    }
}

/// Takes a piece of a result out of the group, to be written.
fn to_be_written(part: &mut BulkPart, target: Target) -> WritePart {
    let taken = part.take();
    // The part stays as a mark of its place, but is not waited for.
    part.index = NO_INDEX;
    WritePart::new(taken, target)
}

/// The pieces of attached result `number`: the number of the first, and how many.
fn part_range(
    results: &[ReplyResult],
    parts: &[BulkPart],
    number: usize,
) -> Option<(usize, usize)> {
    let (mut first, mut count) = (0, 0);
    let attached = results.iter().filter(|it| it.is_attached);
    for result in attached.take(number + 1) {
        (first, count) = (first + count, 0);
        let mut bytes = 0;
        while bytes < result.bytes {
            bytes += parts.get(first + count)?.bytes;
            count += 1;
        }
    }
    Some((first, count))
}
