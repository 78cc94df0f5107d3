//! Replies to calls that came as transmission groups.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::plan::{
    ReplyFacts, ReplyForm, RequesterOffer, ResultWay, SenderMeans, plan_reply,
};
use rpcrdma_protocol::v2::rtr::rounded_up;

use super::Step;
use super::send::Sending;
use crate::bulk::Work;
use crate::bulk::calls::NO_INDEX;
use crate::bulk::directed::Results;
use crate::bulk::group::{GroupItem, GroupPart, Way};
use crate::bulk::serves::{PlannedReply, RpcReply, ServeSlot, Target, WritePart};
use crate::config::PADDING_BYTES;
use crate::core::State;

impl<P: Port> State<P> {
    /// Takes over the items that a service attached to the reply to such a call.
    pub(in crate::core) fn take_directed(&mut self, index: u32) {
        let bulk = &mut self.bulk;
        let Some(slot) = bulk.serves.get_mut(index as usize) else {
            return;
        };
        slot.results.extend_from_slice(&bulk.reply.results);
        for item in &mut bulk.reply.attached {
            item.drain_into(&mut bulk.reply.pool, |buffer, offset, bytes| {
                slot.group.parts.push(GroupPart {
                    index: buffer.index(),
                    buffer: Some(buffer),
                    offset,
                    bytes,
                });
            });
        }
    }

    /// The next step of such a call that is being answered.
    pub(in crate::core) fn answer_group(&mut self, index: u32) -> Step {
        let work = Work::Serve(index);
        let is_planned = self
            .bulk
            .serves
            .get(index as usize)
            .is_some_and(|slot| slot.group.transmissions != 0);
        if !is_planned {
            let error = match self.plan_group_reply(index) {
                Ok(()) if self.is_group_sendable(work) => None,
                Ok(()) => Some(TransportError::System),
                Err(error) => Some(error),
            };
            if let Some(error) = error {
                self.refuse_serve(index, error);
                return Step::Waits;
            }
        }
        match self.post_writes(index) {
            Step::GoesOn => {}
            other => return other,
        }
        match self.send_group(work) {
            Sending::Waits(step) => step,
            Sending::Done => {
                self.count_served_reply(index);
                self.keep_reply(index);
                self.end_serve(index);
                Step::Waits
            }
            Sending::Impossible => {
                self.refuse_serve(index, TransportError::System);
                Step::Waits
            }
        }
    }

    /// Chooses how the reply and each of its results go.
    fn plan_group_reply(&mut self, index: u32) -> Result<(), TransportError> {
        let gather_entries_max = self.gather_entries_max();
        let told = self.told;
        let Some(slot) = self.bulk.serves.get_mut(index as usize) else {
            return Err(TransportError::System);
        };
        let Some(connection) = self.connections.get(slot.connection) else {
            return Err(TransportError::System);
        };
        let rpc_bytes = match &slot.reply {
            RpcReply::Short(bytes) => *bytes,
            RpcReply::Long(message) => message.filled().len(),
            RpcReply::None | RpcReply::InChunk(_) => 0,
        };
        if slot.plan_as_before(rpc_bytes, told) {
            return Ok(());
        }
        let Some(request) = slot.arrival.request() else {
            return Err(TransportError::System);
        };
        let own = connection.protocol.properties();
        let results = Results(&slot.results);
        let facts = ReplyFacts {
            thresholds: self.config.thresholds,
            stream_bytes: u32::try_from(rpc_bytes).unwrap_or(u32::MAX),
            results: &results,
            offer: RequesterOffer::Directions {
                sets: request.directions,
                transmissions_max: request.response_transmissions_max,
            },
            means: SenderMeans {
                send_bytes_max: own.send_bytes_max,
                gather_entries_max,
                padding_region_bytes: PADDING_BYTES,
                message_bytes_max: self.config.message_bytes_max,
                credits: connection.protocol.credits_available(),
            },
            own,
            peer: &connection.peer,
        };
        let plan = plan_reply(&facts)?;
        let ReplyForm::Group { transmissions } = plan.form else {
            return Err(TransportError::System);
        };
        let count = request.directions.map(|set| set.items.len()).sum();
        let ServeSlot {
            results,
            group,
            write_parts,
            ..
        } = slot;
        for direction in 0..count {
            let (result, way) = match plan.answer(direction) {
                Some((result, ResultWay::Placed { .. })) => (result, Way::Placed),
                Some((result, ResultWay::Written { .. })) => (result, Way::Explicit),
                Some((result, _)) => (result, Way::TooShort),
                None => (usize::MAX, Way::NoItem),
            };
            let given = results.get(result);
            // Items that left the stream before it: their bytes count.
            let before = results.iter().take(result).filter(|it| it.is_attached);
            let beside: u64 = before.clone().map(|it| rounded_up(it.bytes)).sum();
            let first_part = 0;
            group.items.push(GroupItem {
                displacement: given.map_or(0, |it| {
                    let beside = u32::try_from(beside).unwrap_or(u32::MAX);
                    it.stream_offset.saturating_add(beside)
                }),
                bytes: given.map_or(0, |it| it.bytes),
                way,
                first_part,
                parts: 0,
            });
            let attached = before.count();
            let is_attached = given.is_some_and(|it| it.is_attached);
            let parts = is_attached.then(|| part_range(results, &group.parts, attached));
            let Some((first_part, parts)) = parts.flatten() else {
                continue;
            };
            if let Some(item) = group.items.last_mut() {
                (item.first_part, item.parts) = (first_part, parts);
            }
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
        slot.remember_plan(rpc_bytes, told);
        Ok(())
    }
}

impl ServeSlot {
    /// Takes the plan of the reply before, if this one is alike.
    fn plan_as_before(&mut self, rpc_bytes: usize, told: u64) -> bool {
        let Some(plan) = self.planned.as_ref().filter(|it| {
            (it.told, it.rpc_bytes, it.parts) == (told, rpc_bytes, self.group.parts.len())
                && it.result.as_slice() == self.results.as_slice()
        }) else {
            return false;
        };
        self.group.items.extend(plan.item);
        (self.group.header_bytes, self.group.stream_bytes) = (plan.header_bytes, plan.stream_bytes);
        self.group.transmissions = 1;
        true
    }

    /// Keeps the plan of a reply for the next one, where it depends on nothing else.
    fn remember_plan(&mut self, rpc_bytes: usize, told: u64) {
        let group = &self.group;
        let is_simple = group.transmissions == 1
            && self.results.len() <= 1
            && group.items.len() <= 1
            && group.parts.len() <= 1
            && self.write_parts.is_empty();
        self.planned = is_simple.then(|| PlannedReply {
            told,
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
fn to_be_written(part: &mut GroupPart, target: Target) -> WritePart {
    WritePart {
        buffer: part.buffer.take(),
        index: std::mem::replace(&mut part.index, NO_INDEX),
        offset: part.offset,
        bytes: part.bytes,
        done: 0,
        target,
    }
}

/// The pieces of the attached result `number`: the first, and how many.
fn part_range(
    results: &[crate::bulk::directed::ReplyResult],
    parts: &[GroupPart],
    number: usize,
) -> Option<(usize, usize)> {
    let mut attached = results.iter().filter(|it| it.is_attached);
    let (mut first, mut at) = (0, 0);
    loop {
        let result = attached.next()?;
        let mut bytes = 0;
        let start = first;
        while bytes < result.bytes {
            bytes += parts.get(first)?.bytes;
            first += 1;
        }
        if at == number {
            return Some((start, first - start));
        }
        at += 1;
    }
}
