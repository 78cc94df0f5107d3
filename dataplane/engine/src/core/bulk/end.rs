//! The end of calls of ours with bulk data: when the reply is there every window goes before anybody
//! looks at what it exposed.

use rpcrdma_fabric::interface::{Port, PostError, Status, Window, WorkId};
use rpcrdma_fabric::memory::{Buffer, Memory};
use rpcrdma_protocol::chunks::{Fill, Segments, check_returned};
use rpcrdma_protocol::connection::chunks_of;

use super::{Step, end_lease, lists_of};
use crate::application::{Application, CallError, CloseReason, ConnectionKey};
use crate::bulk::calls::{Answer, CallPart, CallSlot, CallStage, NO_INDEX};
use crate::bulk::group::GroupPart;
use crate::bulk::lists::{Role, segments_of};
use crate::bulk::{Bulk, BulkReply, BulkResult, Home, Work, slot_of, work_id};
use crate::core::{Received, State};
use crate::message::{MessageBuffer, Use};
use crate::requester::{Ended, read_reply};

impl<P: Port> State<P> {
    /// The reply to a call with bulk data is there, in its Receive.
    #[inline(never)]
    pub(in crate::core) fn receive_bulk_reply(
        &mut self,
        key: ConnectionKey,
        index: u32,
        received: Received,
    ) {
        // It may have brought the credits that others wait for.
        self.note_if_pending(key.index);
        let counters = &self.shared.counters;
        let message = self
            .gathered
            .message(&self.port, &received.receive, received.end, counters);
        let is_long = received.start == received.end;
        let right = self.bulk.note_returned(index, message, is_long);
        let Some(right) = right else {
            self.shared.counters.unmatched_replies.increment();
            return self.repost(key.index, received.receive);
        };
        if right && !is_long {
            return self.end_bulk_call(index, Answer::Received(received));
        }
        self.repost(key.index, received.receive);
        let answer = if right {
            Answer::Long
        } else {
            Answer::Error(CallError::BadReply)
        };
        self.end_bulk_call(index, answer);
    }

    /// A reply with chunks is there, in its Receive.
    #[cold]
    #[inline(never)]
    pub(in crate::core) fn receive_chunked_reply<A: Application>(
        &mut self,
        application: &mut A,
        key: ConnectionKey,
        xid: u32,
        received: Received,
    ) {
        let ended = self.requester.end(xid, key);
        if let Ended::Bulk(index) = ended {
            return self.receive_bulk_reply(key, index, received);
        }
        self.repost(key.index, received.receive);
        // The call offered no chunks, so none can come back.
        self.tell_end(application, key, ended, Err(CallError::BadReply));
        self.note_if_pending(key.index);
    }

    /// The reply to a call with bulk data was put together from parts; chunk lists came with the
    /// last of them, if at all.
    pub(in crate::core) fn end_bulk_assembled(&mut self, index: u32, message: MessageBuffer) {
        let header = std::mem::take(&mut self.bulk.assembled_header);
        let right = self.bulk.note_returned(index, &header, false);
        self.bulk.assembled_header = header;
        let answer = match right {
            Some(true) => Answer::Message(message),
            Some(false) => {
                self.messages.give(message);
                Answer::Error(CallError::BadReply)
            }
            None => {
                self.shared.counters.unmatched_replies.increment();
                return self.messages.give(message);
            }
        };
        self.end_bulk_call(index, answer);
    }

    /// A call with bulk data ends without a reply.
    #[cold]
    pub(in crate::core) fn end_bulk_with_error(&mut self, index: u32, error: CallError) {
        if self.is_awaiting_answer(index) {
            self.end_bulk_call(index, Answer::Error(error));
        } else {
            self.shared.counters.unmatched_replies.increment();
        }
    }

    /// The port gave back a buffer that is none for Sends.
    #[inline(never)]
    pub(in crate::core) fn bulk_returned<A: Application>(
        &mut self,
        application: &mut A,
        buffer: Buffer,
    ) {
        if !self.bulk.reply.pool.owns(&buffer) {
            return self.placement.give(buffer);
        }
        match self.bulk.reply.pool.home(&buffer) {
            Home::Pool => self.bulk.give(buffer),
            Home::Call { slot, part } => self.buffer_home(application, slot, part, buffer),
            Home::Reply { slot, part } => self.written_part(slot, part, buffer),
            Home::Kept { .. } => self.bulk.reply.pool.keep(buffer),
            home => self.group_buffer_home(home, buffer),
        }
    }

    /// The call has its answer: now its windows go.
    pub(in crate::core) fn end_bulk_call(&mut self, index: u32, answer: Answer) {
        if let Some(slot) = self.bulk.calls.get_mut(index as usize) {
            slot.answer = answer;
            slot.stage = CallStage::AwaitingInvalidation;
            self.bulk.queue(Work::Call(index));
        }
    }

    /// Whether a call waits for its answer.
    pub(in crate::core) fn is_awaiting_answer(&self, index: u32) -> bool {
        self.bulk
            .calls
            .get(index as usize)
            .is_some_and(|slot| slot.stage == CallStage::Waiting)
    }

    /// Takes what a call exposed away from the peer: once for each window, unless the peer did.
    pub(super) fn take_windows_away<A: Application>(
        &mut self,
        application: &mut A,
        index: u32,
    ) -> Step {
        let bulk = &mut self.bulk;
        let Some(slot) = bulk.calls.get_mut(index as usize) else {
            return Step::Waits;
        };
        let counters = &self.shared.counters;
        let work = work_id(index, slot.generation);
        let mut step = Step::Waits;
        for part in slot.parts.iter_mut().filter(|part| !part.invalidating) {
            let Some(window) = part.window.take() else {
                continue;
            };
            let left = match self.port.close_window(window) {
                Ok(buffer) => {
                    part.buffer = Some(buffer);
                    slot.windows -= 1;
                    bulk.windows_open -= 1;
                    counters.windows_invalidated_remotely.increment();
                    continue;
                }
                Err(window) => self.port.invalidate_window(window, work),
            };
            match left {
                Ok(()) => part.invalidating = true,
                Err((PostError::QueueFull, window)) => {
                    part.window = Some(window);
                    step = Step::Again;
                    break;
                }
                // The queue pair is in error, and its end is the window's.
                Err((_, window)) => part.window = Some(window),
            }
        }
        if step == Step::Again && !std::mem::replace(&mut slot.counted, true) {
            counters.awaiting_send_slot.increment();
        }
        if slot.is_home() {
            self.finish_bulk_call(application, index);
        }
        step
    }

    /// A window was invalidated here.
    #[cold]
    pub(in crate::core) fn window_ended<A: Application>(
        &mut self,
        application: &mut A,
        status: Status,
        work: WorkId,
        window: Window,
    ) {
        let (index, generation) = slot_of(work);
        let slot = self.bulk.calls.get_mut(index as usize);
        let Some(slot) = slot.filter(|slot| slot.generation == generation) else {
            // Its connection is closing, and the call is gone.
            return;
        };
        drop(window);
        if status != Status::Success {
            return;
        }
        self.shared.counters.windows_invalidated_locally.increment();
        slot.windows = slot.windows.saturating_sub(1);
        self.bulk.windows_open = self.bulk.windows_open.saturating_sub(1);
        if slot.is_home() {
            self.finish_bulk_call(application, index);
        }
    }

    /// A buffer that a call exposed is back.
    pub(in crate::core) fn buffer_home<A: Application>(
        &mut self,
        application: &mut A,
        index: u32,
        part: u16,
        buffer: Buffer,
    ) {
        let slot = self.bulk.calls.get_mut(index as usize);
        let place = slot.and_then(|slot| slot.parts.get_mut(usize::from(part)));
        match place {
            Some(place) if place.buffer.is_none() && place.index == buffer.index() => {
                place.buffer = Some(buffer);
            }
            _ => return self.bulk.give(buffer),
        }
        let is_home =
            self.bulk.calls.get(index as usize).is_some_and(|slot| {
                slot.stage == CallStage::AwaitingInvalidation && slot.is_home()
            });
        if is_home {
            self.finish_bulk_call(application, index);
        }
    }

    /// Nothing of a call is exposed any more: it is tried again, or its end is told.
    fn finish_bulk_call<A: Application>(&mut self, application: &mut A, index: u32) {
        let Some(slot) = self.bulk.calls.get_mut(index as usize) else {
            return;
        };
        if slot.stage != CallStage::AwaitingInvalidation {
            return;
        }
        let (key, tag, xid, told) = (slot.connection, slot.tag, slot.xid, slot.told);
        if let Answer::Refused(error) | Answer::Error(CallError::Transport(error)) = slot.answer
            && let Some(connection) = self.connections.get_mut(key)
        {
            connection.remember_refusal(error, slot.is_long());
        }
        if let Answer::Refused(error) = slot.answer {
            if slot.awaits_items() || slot.group.parts.iter().any(GroupPart::is_away) {
                return;
            }
            if !told && !slot.again && self.rebuild_plain(index, error) {
                return;
            }
            if let Some(slot) = self.bulk.calls.get_mut(index as usize) {
                slot.answer = Answer::Error(CallError::Transport(error));
                slot.again = true;
            }
        }
        let Some(slot) = self.bulk.calls.get_mut(index as usize) else {
            return;
        };
        if let Answer::Error(CallError::Transport(error)) = slot.answer
            && !told
            && !slot.again
        {
            if slot.awaits_items() {
                return;
            }
            if slot.has_items() && self.retry_call(index, error) {
                return;
            }
        }
        let Some(slot) = self.bulk.calls.get_mut(index as usize) else {
            return;
        };
        let answer = std::mem::take(&mut slot.answer);
        // The slot stays taken, so that its buffers have a home, until the application has seen
        // them; but nothing finishes it twice.
        slot.stage = CallStage::Waiting;
        self.requester.end_bulk(xid, key);
        let extra = self.bulk.calls.get(index as usize);
        let extra = extra.map_or(0, |slot| slot.reply_transmissions_max.saturating_sub(1));
        if let Some(connection) = self.connections.get_mut(key) {
            connection.calls_outstanding -= 1;
            connection.reply_transmissions_extra -= extra;
        }
        if told {
            self.shared.counters.late_replies.increment();
        }
        match answer {
            Answer::Received(received) => {
                self.take_results(index);
                let counters = &self.shared.counters;
                let message =
                    self.gathered
                        .message(&self.port, &received.receive, received.end, counters);
                let message = message.get(received.start..).unwrap_or(&[]);
                if !told {
                    self.shared.counters.replies_received.increment();
                    let result = read_reply(message).map(|reply| BulkReply {
                        reply,
                        items: &mut self.bulk.results,
                    });
                    application.completed_bulk(tag, key, result, self.now);
                }
                self.repost(key.index, received.receive);
            }
            Answer::Message(message) => {
                self.take_results(index);
                if !told {
                    self.shared.counters.replies_received.increment();
                    let result = read_reply(message.filled()).map(|reply| BulkReply {
                        reply,
                        items: &mut self.bulk.results,
                    });
                    application.completed_bulk(tag, key, result, self.now);
                }
                self.messages.give(message);
            }
            Answer::Long => self.finish_long(application, index),
            Answer::Error(error) if !told => {
                application.completed_bulk(tag, key, Err(error), self.now);
            }
            Answer::Error(_) | Answer::Refused(_) | Answer::None => {}
        }
        self.release_call(index);
        self.note_if_pending(key.index);
    }

    /// The end of a call whose reply is in its Reply chunk.
    fn finish_long<A: Application>(&mut self, application: &mut A, index: u32) {
        self.take_results(index);
        let Some(slot) = self.bulk.calls.get_mut(index as usize) else {
            return;
        };
        let (key, tag, told) = (slot.connection, slot.tag, slot.told);
        if told {
            return;
        }
        let memory = self.port.memory();
        let mut pieces = slot.parts.iter().filter(|part| part.role == Role::Reply);
        let single = match (pieces.next(), pieces.next()) {
            (Some(first), second) if second.is_none_or(|part| part.written_bytes == 0) => {
                Some(first)
            }
            _ => None,
        };
        if let Some(part) = single {
            self.shared.counters.replies_received.increment();
            let result = read_reply(written(memory, part)).map(|reply| BulkReply {
                reply,
                items: &mut self.bulk.results,
            });
            return application.completed_bulk(tag, key, result, self.now);
        }
        let Some(mut message) = self.messages.take(Use::ReplyIn) else {
            let error = Err(CallError::ReplyTooLong);
            return application.completed_bulk(tag, key, error, self.now);
        };
        let parts = slot.parts.iter().filter(|part| part.role == Role::Reply);
        let is_whole = parts.fold(true, |is_whole, part| {
            self.shared
                .counters
                .bulk_bytes_copied
                .add(part.written_bytes.into());
            is_whole && message.append(written(memory, part)).is_ok()
        });
        let result = if is_whole {
            self.shared.counters.replies_received.increment();
            read_reply(message.filled()).map(|reply| BulkReply {
                reply,
                items: &mut self.bulk.results,
            })
        } else {
            Err(CallError::ReplyTooLong)
        };
        application.completed_bulk(tag, key, result, self.now);
        self.messages.give(message);
    }

    /// Makes leases of what the peer wrote to the Write chunks of a call.
    fn take_results(&mut self, index: u32) {
        let bulk = &mut self.bulk;
        let Some(slot) = bulk.calls.get_mut(index as usize) else {
            return;
        };
        bulk.results.clear();
        let results = if slot.chunks == 0 { 0 } else { slot.results };
        for _ in 0..results {
            bulk.results.push(BulkResult::default());
        }
        if slot.told {
            return;
        }
        for part in &mut slot.parts {
            let Role::Result { chunk } = part.role else {
                continue;
            };
            let Some(result) = bulk.results.get_mut(usize::from(chunk)) else {
                continue;
            };
            if part.written_bytes == 0 {
                continue;
            }
            let lease = part.buffer.take().and_then(|buffer| {
                bulk.reply.pool.set_home(part.index, Home::Pool);
                bulk.reply.pool.lease(buffer, part.written_bytes)
            });
            self.shared
                .counters
                .bulk_bytes_received
                .add(part.written_bytes.into());
            if let Some(lease) = lease {
                // A chunk has no more parts than an item.
                let _ = result.item.push(lease);
            }
        }
        for (direction, lease) in slot.placed.drain(..) {
            if let Some(result) = bulk.results.get_mut(direction) {
                // It was asked for with no more than fit.
                let _ = result.item.push(lease);
            }
        }
        for (result, direction) in bulk.results.iter_mut().zip(&slot.directions) {
            result.displacement = direction.displacement;
        }
    }

    /// Gives back what a call still holds, and frees its slot.
    fn release_call(&mut self, index: u32) {
        self.forget_group_turn(index);
        self.forget_arrival(index);
        let (bulk, counters) = (&mut self.bulk, &self.shared.counters);
        for result in &mut bulk.results {
            for part in result.item.drain() {
                end_lease(&mut bulk.reply.pool, &mut self.placement, part, counters);
            }
        }
        bulk.results.clear();
        let Some(slot) = bulk.calls.get_mut(index as usize) else {
            return;
        };
        for (part, number) in slot.parts.iter_mut().zip(0..) {
            let home = Home::Call {
                slot: index,
                part: number,
            };
            match part.buffer.take() {
                Some(buffer) if part.index == NO_INDEX => self.placement.give(buffer),
                buffer => bulk.reply.pool.take_home(buffer, part.index, home),
            }
        }
        for (part, number) in slot.group.parts.iter_mut().zip(0..) {
            let home = Home::CallGroup {
                slot: index,
                part: number,
            };
            match part.buffer.take() {
                Some(buffer) if part.index == NO_INDEX => self.placement.give(buffer),
                buffer => bulk.reply.pool.take_home(buffer, part.index, home),
            }
        }
        bulk.windows_open = bulk.windows_open.saturating_sub(slot.windows);
        bulk.free_call(index);
    }

    /// Calls of ours whose time is up.
    #[cold]
    pub(in crate::core) fn bulk_timeouts<A: Application>(&mut self, application: &mut A) {
        while let Some((index, again)) = self.bulk.timeouts.pop() {
            let Some(slot) = self.bulk.calls.get_mut(index as usize) else {
                continue;
            };
            let (key, tag) = (slot.connection, slot.tag);
            if again {
                // The peer may still write to what the call exposed: only the end of the queue
                // pair takes that away for sure.
                self.begin_close(key.index, CloseReason::CallUnanswered);
                continue;
            }
            self.shared.counters.timeouts.increment();
            slot.told = true;
            let is_unsent = slot.group.sent == 0;
            if is_unsent && matches!(slot.stage, CallStage::Binding | CallStage::Sending) {
                // Nobody knows of it.
                slot.stage = CallStage::AwaitingInvalidation;
                self.bulk.queue(Work::Call(index));
            }
            application.completed_bulk(tag, key, Err(CallError::TimedOut), self.now);
        }
    }

    /// Lets go of all calls of a closing connection: their windows end with its queue pair, and
    /// their buffers come home then. The requester tells the application.
    pub(in crate::core) fn close_bulk_calls(&mut self, key: ConnectionKey) {
        for index in 0..u32::try_from(self.bulk.calls.len()).unwrap_or(0) {
            let slot = self.bulk.calls.get_mut(index as usize);
            let Some(slot) = slot.filter(|it| it.stage != CallStage::Free && it.connection == key)
            else {
                continue;
            };
            let answer = std::mem::take(&mut slot.answer);
            match answer {
                Answer::Received(received) => self.repost(key.index, received.receive),
                Answer::Message(message) => self.messages.give(message),
                Answer::None | Answer::Long | Answer::Error(_) | Answer::Refused(_) => {}
            }
            self.release_call(index);
        }
    }
}

/// The bytes that the peer wrote to a part.
fn written<'a>(memory: &'a Memory, part: &'a CallPart) -> &'a [u8] {
    let bytes = part.buffer.as_ref().map_or(&[][..], |it| memory.bytes(it));
    bytes.get(..part.written_bytes as usize).unwrap_or(&[])
}

impl Bulk {
    /// Notes what a reply says was written to the chunks of its call. `None` when the call does
    /// not wait for one; false when the reply is wrong.
    pub(in crate::core) fn note_returned(
        &mut self,
        index: u32,
        message: &[u8],
        is_long: bool,
    ) -> Option<bool> {
        let slot = self.calls.get_mut(index as usize)?;
        if slot.stage != CallStage::Waiting {
            return None;
        }
        let is_whole = message.is_empty() || chunks_of(message).is_some();
        let lists = lists_of(message);
        let CallSlot {
            segments,
            parts,
            chunks,
            ..
        } = slot;
        let mut note = |role: Role, returned: Segments<'_>| {
            let offered = segments_of(segments, role);
            let targets = offered.iter().map(|segment| segment.target);
            let written = check_returned(targets.clone(), returned);
            let Some(written) = written.ok().and_then(|bytes| u32::try_from(bytes).ok()) else {
                return false;
            };
            for (segment, filled) in offered.iter().zip(Fill::new(targets, written)) {
                if let Some(part) = parts.get_mut(usize::from(segment.part)) {
                    part.written_bytes += filled.target.length_bytes;
                }
            }
            true
        };
        let count = lists.writes.len();
        // A responder that has nothing to write may leave the list out.
        let mut right = is_whole && (count == usize::from(*chunks) || count == 0);
        for (returned, chunk) in lists.writes.zip(0_u8..) {
            right = right && note(Role::Result { chunk }, returned);
        }
        let reply_bytes = lists.reply.map_or(0, |chunk| chunk.total_bytes());
        if let Some(returned) = lists.reply {
            right = right && note(Role::Reply, returned);
        }
        // The reply is in one place (RFC 8166 section 4.3.2).
        Some(right && (reply_bytes != 0) == is_long)
    }
}
