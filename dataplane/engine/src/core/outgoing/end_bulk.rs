//! Ends calls of ours with bulk data. After the reply has arrived, every window is invalidated before the memory that
//! it exposed is read: until then the peer could change the bytes.

use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;
use rpcrdma_fabric::memory::{Buffer, Memory};

use super::Outgoing;
use super::call::{Answer, CallPart, OutgoingCall, OutgoingState};
use super::lists::Role;
use crate::bulk::{BulkPart, BulkReply, BulkResult, Home, NO_INDEX, start_of};
use crate::core::application::Application;
use crate::core::incoming::Stream;
use crate::core::resources::Resources;
use crate::core::step::Step;
use crate::counters::Counters;
use crate::message::Use;
use crate::requester::read_reply;
use crate::rpc::{CallError, ConnectionKey};

impl Outgoing {
    /// Ends the call in a slot if it has its answer and nothing of it is exposed any more. This does not wait for the
    /// next step of the call: later in the same poll its time limit may pass, or its connection end.
    pub(in crate::core) fn finish_if_home<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        index: u32,
    ) {
        let call = self.calls.get(index);
        let may_finish = call.is_some_and(|call| {
            call.state == OutgoingState::AwaitingInvalidation && call.is_home()
        });
        let call = may_finish.then(|| self.calls.take(index));
        if let Some(mut call) = call.flatten() {
            match self.finish_outgoing(core, application, &mut call) {
                Step::Ends => return self.end_outgoing(core, call),
                Step::GoesOn | Step::Again | Step::AwaitsConnection => self.calls.queue(index),
                Step::Waits => {}
            }
            self.calls.put(index, call);
        }
    }

    /// Makes a call again, or reports its end to the application. Nothing of the call may be exposed any more.
    pub(super) fn finish_outgoing<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        call: &mut OutgoingCall,
    ) -> Step {
        let key = call.connection;
        if let Some(error) = call.refusal() {
            if let Some(connection) = core.connections.get_mut(key) {
                connection.remember_refusal(error, call.is_long());
                core.forget_plans();
            }
            // A call may have become long by a refusal. The form in the stream is the last, so that this ends.
            let may_change = !call.again || call.is_long_and_unread(error);
            if !call.notified && may_change || matches!(call.answer, Answer::Refused(_)) {
                // A second attempt sends the same items: their buffers must be back.
                if call.awaits_items() || call.group.parts.iter().any(BulkPart::is_away) {
                    return Step::Waits;
                }
                if !call.notified && may_change && self.make_again(core, call, error) {
                    return Step::GoesOn;
                }
            }
            call.answer = Answer::Error(CallError::Transport(error));
        }
        if let Some(connection) = core.connections.get_mut(key) {
            self.requester
                .end_bulk(call.xid, key, &mut connection.calls);
            let extra = call.reply_transmissions_max.saturating_sub(1);
            connection.reply_transmissions_extra -= extra;
        }
        if call.notified {
            core.shared.counters.late_replies.increment();
        }
        match std::mem::take(&mut call.answer) {
            Answer::Stream(stream) => {
                self.take_results(core, call);
                self.deliver_reply(core, application, call, stream);
            }
            Answer::Long => self.finish_long(core, application, call),
            Answer::Error(error) if !call.notified => {
                application.completed_bulk(call.tag, key, Err(error), core.now);
            }
            Answer::Error(_) | Answer::Refused(_) | Answer::None => {}
        }
        core.note_if_pending(key.index);
        Step::Ends
    }

    #[inline(always)]
    fn deliver_reply<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        call: &OutgoingCall,
        stream: Stream,
    ) {
        let counters = &core.shared.counters;
        let message = stream.bytes(&mut core.gathered, &core.port, counters);
        let results = &mut self.results;
        deliver_message(application, call, message, results, counters, core.now);
        core.give_stream(call.connection, stream);
    }

    /// Ends a call whose reply is in its Reply chunk.
    fn finish_long<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        call: &mut OutgoingCall,
    ) {
        self.take_results(core, call);
        if call.notified {
            return;
        }
        let (memory, counters) = (core.port.memory(), &core.shared.counters);
        let parts = call.parts.iter().filter(|part| part.role == Role::Reply);
        let mut written_parts = parts.filter(|part| part.written_bytes != 0).peekable();
        let first = written_parts.next();
        // In one part it is read where it is; otherwise it is copied together.
        if written_parts.peek().is_none() {
            let message = first.map_or(&[][..], |part| written(memory, part));
            let results = &mut self.results;
            return deliver_message(application, call, message, results, counters, core.now);
        }
        let message = core.messages.take(call.connection.index, Use::ReplyIn);
        if let Some(mut message) = message {
            for part in first.into_iter().chain(written_parts) {
                let bytes = written(memory, part);
                counters.bulk_bytes_copied.add(bytes.len() as u64);
                message.append(bytes);
            }
            if message.is_whole() {
                return self.deliver_reply(core, application, call, Stream::Message(message));
            }
            core.messages.give(message);
        }
        let error = Err(CallError::ReplyTooLong);
        application.completed_bulk(call.tag, call.connection, error, core.now);
    }

    /// Makes leases of the bytes that the peer wrote to the Write chunks of a call.
    #[inline(always)]
    fn take_results<P: Port>(&mut self, core: &mut Resources<P>, call: &mut OutgoingCall) {
        let (pool, all) = (&mut core.reply.pool, &mut self.results);
        all.clear();
        let count = if call.chunks == 0 { 0 } else { call.results };
        all.extend((0..count).map(|_| BulkResult::default()));
        if call.notified {
            return;
        }
        for part in call.parts.iter_mut().filter(|it| it.written_bytes != 0) {
            let Role::Result { chunk } = part.role else {
                continue;
            };
            let Some(result) = all.get_mut(usize::from(chunk)) else {
                continue;
            };
            let lease = part.buffer.take().and_then(|buffer| {
                pool.set_home(part.index, Home::Pool);
                pool.lease(buffer, part.written_bytes)
            });
            let counters = &core.shared.counters;
            counters.bulk_bytes_received.add(part.written_bytes.into());
            if let Some(lease) = lease {
                // A chunk has no more parts than an item.
                let _ = result.item.push(lease);
            }
        }
        for (direction, lease) in call.placed.drain(..) {
            if let Some(result) = all.get_mut(direction) {
                // It fits: the call asked for results of no more pieces.
                let _ = result.item.push(lease);
            }
        }
        for (result, direction) in all.iter_mut().zip(&call.directions) {
            result.displacement = direction.displacement;
        }
    }

    /// Gives back what a call still holds, and frees its slot.
    pub(in crate::core) fn end_outgoing<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        mut call: Box<OutgoingCall>,
    ) {
        self.forget_group_turn(core, &call);
        self.forget_response(core, &mut call);
        if let Answer::Stream(stream) = std::mem::take(&mut call.answer) {
            core.give_stream(call.connection, stream);
        }
        for result in &mut self.results {
            for part in result.item.drain() {
                core.end_lease(part);
            }
        }
        self.results.clear();
        let (pool, slot) = (&mut core.reply.pool, call.index);
        let mut give = |buffer: &mut Option<Buffer>, index, home| match buffer.take() {
            Some(buffer) if index == NO_INDEX => core.placement.give(buffer),
            buffer => pool.take_home(buffer, index, home),
        };
        for (piece, part) in call.parts.iter_mut().zip(0..) {
            give(&mut piece.buffer, piece.index, Home::Call { slot, part });
        }
        for (piece, part) in call.group.parts.iter_mut().zip(0..) {
            let home = Home::CallGroup { slot, part };
            give(&mut piece.buffer, piece.index, home);
        }
        let windows_open = &mut self.windows_open;
        *windows_open = windows_open.saturating_sub(call.windows);
        self.shares.give(call.connection.index, call.buffers);
        call.reset();
        self.calls.give(slot, call);
    }

    /// Frees the slots of all calls of a closing connection. Their windows end with its queue pair, which then returns
    /// their buffers to the pool. The requester notifies the application.
    pub(in crate::core) fn close_outgoing<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        key: ConnectionKey,
    ) {
        for index in 0..self.calls.len() {
            let call = self.calls.get(index);
            let is_of = |it: &OutgoingCall| it.state != OutgoingState::Free && it.connection == key;
            if call.is_some_and(is_of)
                && let Some(call) = self.calls.take(index)
            {
                self.end_outgoing(core, call);
            }
        }
    }
}

impl OutgoingCall {
    /// The error with which the peer refused it.
    fn refusal(&self) -> Option<rpcrdma_protocol::v2::TransportError> {
        match self.answer {
            Answer::Refused(error) | Answer::Error(CallError::Transport(error)) => Some(error),
            _ => None,
        }
    }
}

/// Hands a reply to the application, unless the call has timed out and the application knows that.
fn deliver_message<A: Application>(
    application: &mut A,
    call: &OutgoingCall,
    message: &[u8],
    items: &mut [BulkResult],
    counters: &Counters,
    now: Ticks,
) {
    if call.notified {
        return;
    }
    counters.replies_received.increment();
    let result = read_reply(message).map(|reply| BulkReply { reply, items });
    application.completed_bulk(call.tag, call.connection, result, now);
}

/// The bytes that the peer wrote to a part.
fn written<'a>(memory: &'a Memory, part: &'a CallPart) -> &'a [u8] {
    start_of(memory, part.buffer.as_ref(), part.written_bytes)
}
