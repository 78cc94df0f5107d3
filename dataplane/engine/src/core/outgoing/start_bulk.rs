//! Starts a call with bulk data: accepts it and puts it into a slot, or leaves it unchanged.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::constants::REPLY_HEADER_BYTES_WITHOUT_AUTH;
use rpcrdma_protocol::rpc::CallHeader;
use rpcrdma_protocol::v2::connection::Direction;

use super::Outgoing;
use super::call::{OutgoingCall, OutgoingState};
use super::lists::Role;
use super::memo::Exposed;
use super::plan::Plan;
use crate::bulk::{BulkCall, BulkPart, BulkPool, give_piece};
use crate::connection::OutgoingMessage;
use crate::core::resources::Resources;
use crate::core::step::{Step, Steps};
use crate::message::{MessageBuffer, Use};
use crate::rpc::{CallRefused, CallTag, ConnectionKey};

/// What a call that may start takes.
pub(in crate::core) struct Start {
    plan: Plan,
    xid: u32,
    buffers: u32,
    windows: usize,
}

impl Outgoing {
    /// Checks everything that a call needs, before anything is taken out of it.
    pub(in crate::core) fn check_bulk_call<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        key: ConnectionKey,
        call: &BulkCall<'_>,
    ) -> Result<Start, CallRefused> {
        if core.is_draining() {
            return Err(CallRefused::Draining);
        }
        let plan = self.plan_outgoing(core, key, call)?;
        let group = self.group_plan(key, &plan);
        let (buffers, windows) = plan.needs(call, group, &core.reply.pool);
        let connection = core.connections.get(key);
        let xid = connection.and_then(|it| self.requester.next_xid(&it.calls));
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let open = count(core.connections.in_use());
        let taken = count(buffers);
        let is_whole = matches!(plan, Plan::Inline | Plan::Stream(_));
        let has_room = self.has_room(count(windows))
            && self.shares.may_take(key.index, taken, open)
            && core.reply.pool.may_give(buffers)
            && call.needs_no_more_views_than(core.reply.pool.views_available())
            && (!is_whole || core.messages.has_room(key.index, Use::CallOut));
        let counters = &core.shared.counters;
        let (Some(xid), true) = (xid, has_room) else {
            counters.calls_refused_no_slot.increment();
            return Err(CallRefused::NoSlot);
        };
        if matches!(plan, Plan::Inline) {
            let rpc_bytes = call.header(xid).encoded_bytes() + call.whole_args_bytes();
            self.check_inline(core, key, rpc_bytes)?;
        }
        Ok(Start {
            plan,
            xid,
            buffers: taken,
            windows,
        })
    }

    /// Accepts a call with bulk data, or leaves it unchanged and returns an error.
    pub(in crate::core) fn start_bulk_call<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        key: ConnectionKey,
        call: &mut BulkCall<'_>,
        tag: CallTag,
    ) -> Result<(), CallRefused> {
        let Start {
            plan,
            xid,
            buffers: taken,
            windows,
        } = self.check_bulk_call(core, key, call)?;
        let header = call.header(xid);
        let message = match &plan {
            Plan::Inline | Plan::Stream(_) => {
                let message = core.messages.take(key.index, Use::CallOut);
                let mut message = message.ok_or(CallRefused::NoSlot)?;
                self.write_whole(core, &mut message, &header, call);
                Some(message)
            }
            Plan::Chunks(_) | Plan::GroupAsBefore | Plan::Group => None,
        };
        let Some(mut slot) = self.calls.begin() else {
            message.into_iter().for_each(|it| core.messages.give(it));
            return Err(CallRefused::NoSlot);
        };
        (slot.connection, slot.tag, slot.xid) = (key, tag, xid);
        slot.buffers = taken;
        self.shares.take(key.index, taken);
        slot.state = match windows {
            0 => OutgoingState::Sending,
            _ => OutgoingState::Binding,
        };
        match (plan, message) {
            (Plan::Inline, Some(message)) => {
                slot.state = OutgoingState::Waiting;
                if !core.queue_message(key, OutgoingMessage::new(xid, Direction::Call, message)) {
                    self.shares.give(key.index, taken);
                    slot.reset();
                    self.calls.give(slot.index, slot);
                    return Err(CallRefused::NoSlot);
                }
            }
            (Plan::Stream(exposed), Some(message)) => {
                self.fill_stream(core, &mut slot, &exposed, 0, message.filled());
                core.messages.give(message);
                slot.push_reply_chunk(exposed.reply_bytes, &mut core.reply.pool);
            }
            (Plan::Chunks(exposed), _) => {
                self.fill_chunks(core, &mut slot, &header, call, &exposed);
                slot.push_reply_chunk(exposed.reply_bytes, &mut core.reply.pool);
            }
            (plan @ (Plan::GroupAsBefore | Plan::Group), _) => {
                if let Some(plan) = self.group_plan(key, &plan) {
                    slot.fill_group(core, &header, call, plan);
                }
            }
            (Plan::Inline | Plan::Stream(_), None) => {}
        }
        // Items that are still in the call were copied.
        if !call.parts.is_empty() {
            for piece in call.drain() {
                give_piece(&mut core.reply.pool, piece);
            }
        }
        if !call.targets.is_empty() {
            call.targets.clear();
        }
        slot.set_homes(&mut core.reply.pool);
        if let Some(connection) = core.connections.get_mut(key) {
            connection.reply_transmissions_extra += slot.reply_transmissions_max.saturating_sub(1);
            let (calls, now) = (&mut connection.calls, core.now);
            self.requester.begin(key, calls, tag, now, Some(slot.index));
        }
        core.shared.counters.calls_sent.increment();
        // Sent now if it can be, as a call without bulk data. Windows are bound when the application has made its calls:
        // until then it can make others that wait for theirs.
        let step = match slot.state {
            OutgoingState::Sending => self.step_to_send(core, &mut slot),
            OutgoingState::Binding => Step::Again,
            _ => Step::Waits,
        };
        self.leave(core, slot, step);
        Ok(())
    }

    /// Checks that a call of `rpc_bytes` bytes can be queued, to be sent in one message or in parts.
    fn check_inline<P: Port>(
        &self,
        core: &Resources<P>,
        key: ConnectionKey,
        rpc_bytes: usize,
    ) -> Result<(), CallRefused> {
        if rpc_bytes > core.config.message_bytes_max as usize {
            return Err(CallRefused::TooLong);
        }
        let connection = core.connections.get(key);
        let connection = connection.ok_or(CallRefused::UnknownConnection)?;
        if !connection.can_call() {
            core.shared.counters.calls_refused_no_credit.increment();
            return Err(CallRefused::NoCredit);
        }
        Ok(())
    }

    /// Writes a whole call, with its items in their places. The caller has checked that it fits.
    fn write_whole<P: Port>(
        &self,
        core: &Resources<P>,
        message: &mut MessageBuffer,
        header: &CallHeader<'_>,
        call: &BulkCall<'_>,
    ) {
        let header_bytes = header.encode(message.space()).unwrap_or(0);
        message.set_len(header_bytes);
        let items = call.items().iter().enumerate();
        let items = items.map(|(number, item)| {
            let parts = call.parts_of(number);
            (item.args_offset, parts.iter().map(|part| &**part))
        });
        let copied_bytes = message.weave(call.args, items);
        core.shared.counters.bulk_bytes_copied.add(copied_bytes);
    }

    /// Puts a call, and the memory that it exposes, into its slot.
    fn fill_chunks<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        slot: &mut OutgoingCall,
        header: &CallHeader<'_>,
        call: &mut BulkCall<'_>,
        exposed: &Exposed,
    ) {
        let header_bytes = header.encode(&mut slot.stream).unwrap_or(0);
        self.fill_stream(core, slot, exposed, header_bytes, call.args);
        let pool = &mut core.reply.pool;
        let mut before = header_bytes;
        let mut pieces = call.parts.drain(..);
        for item in &call.items {
            let position = u32::try_from(before + item.args_offset).unwrap_or(u32::MAX);
            let pieces = pieces.by_ref().take(item.parts);
            for part in pieces.filter_map(|piece| BulkPart::of_piece(pool, piece)) {
                // `plan_outgoing` has checked that it starts at the start of its buffer.
                slot.push_part(Role::Argument { position }, part);
            }
            before += (item.bytes as usize).next_multiple_of(4);
        }
        drop(pieces);
        call.items.clear();
        if call.targets.is_empty() {
            for result in &call.expected {
                slot.push_result(result.bytes_max, true, pool);
            }
        } else {
            slot.push_results_with_targets(call, pool);
        }
        let rpc_reply_bytes =
            REPLY_HEADER_BYTES_WITHOUT_AUTH.saturating_add(call.results_bytes_max);
        slot.rpc_reply_bytes_max = u32::try_from(rpc_reply_bytes).unwrap_or(u32::MAX);
    }
}

impl OutgoingCall {
    /// Takes memory for a reply of `bytes` bytes.
    fn push_reply_chunk(&mut self, bytes: u32, pool: &mut BulkPool) {
        self.push_fresh(pool, Role::Reply, bytes);
        self.reply_bytes = bytes;
    }

    /// Expects the results of a call that brings memory for some of them.
    #[cold]
    fn push_results_with_targets(&mut self, call: &mut BulkCall<'_>, pool: &mut BulkPool) {
        let mut targets = call.targets.drain(..).peekable();
        for (number, result) in call.expected.iter().enumerate() {
            let has_target = targets.peek().is_some_and(|(of, _)| *of == number);
            self.push_result(result.bytes_max, !has_target, pool);
            while let Some((_, lease)) = targets.next_if(|(of, _)| *of == number) {
                if let Some(part) = BulkPart::of_lease(pool, lease) {
                    self.push_target(part);
                }
            }
        }
    }

    /// Gives the result that was expected last a piece of memory.
    fn push_target(&mut self, part: BulkPart) {
        let chunk = self.chunks - 1;
        self.push_part(Role::Result { chunk }, part);
    }

    /// Expects one more result of at most `bytes` bytes, with memory for it or without.
    #[inline(always)]
    pub(super) fn push_result(&mut self, bytes: u32, has_memory: bool, pool: &mut BulkPool) {
        let chunk = self.chunks;
        if let Some(place) = self.chunk_bytes.get_mut(usize::from(chunk)) {
            *place = bytes;
        }
        self.chunks += 1;
        self.results = self.chunks;
        if has_memory {
            self.push_fresh(pool, Role::Result { chunk }, bytes);
        }
    }
}
