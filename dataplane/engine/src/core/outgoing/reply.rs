//! Takes the reply to a call with bulk data: in one message, in the Reply chunk, or assembled from parts.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::chunks::{ChunkLists, Fill, Segments, check_returned};
use rpcrdma_protocol::connection::{ChunksAt, chunks_of};

use super::Outgoing;
use super::call::{Answer, CallPart, OutgoingCall, OutgoingState};
use super::lists::{OfferedSegment, Role, segments_of};
use crate::core::application::Application;
use crate::core::incoming::Stream;
use crate::core::resources::Resources;
use crate::core::step::Steps;
use crate::core::waiting_receives::Chunked;
use crate::message::{MessageBuffer, Received};
use crate::requester::Ended;
use crate::rpc::{CallError, ConnectionKey};

impl Outgoing {
    /// Takes the reply to a call with bulk data, in its Receive. `chunks_at` is `None` for a reply without chunks.
    #[inline(never)]
    pub(in crate::core) fn receive_bulk_reply<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        key: ConnectionKey,
        index: u32,
        received: Received,
        chunks_at: Option<ChunksAt>,
    ) {
        // The message may have brought credits that other calls wait for.
        core.note_if_pending(key.index);
        let lists = chunks_at.map_or(ChunkLists::default(), |at| {
            let (gathered, counters) = (&mut core.gathered, &core.shared.counters);
            let message = gathered.message(&core.port, &received.receive, received.end, counters);
            at.chunks(message).lists
        });
        let is_long = received.start == received.end;
        let call = self.calls.get_mut(index);
        let right = call.and_then(|call| call.note_returned(Some(lists), is_long));
        let answer = match right {
            Some(true) if !is_long => Answer::Stream(Stream::Received(received)),
            right => {
                core.repost(key.index, received.receive);
                match right {
                    Some(true) => Answer::Long,
                    Some(false) => Answer::Error(CallError::BadReply),
                    None => return core.shared.counters.unmatched_replies.increment(),
                }
            }
        };
        if let Some(call) = self.calls.get_mut(index) {
            let _ = call.answered(answer);
            self.drive_at(core, application, index);
        }
    }

    /// Takes a reply with chunks, in its Receive.
    #[cold]
    #[inline(never)]
    pub(in crate::core) fn receive_chunked_reply<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        key: ConnectionKey,
        xid: u32,
        chunked: Chunked,
    ) {
        let Chunked {
            received,
            chunks_at,
        } = chunked;
        let ended = self.take_end(core, xid, key);
        if let Ended::Bulk(index) = ended {
            return self.receive_bulk_reply(
                core,
                application,
                key,
                index,
                received,
                Some(chunks_at),
            );
        }
        core.repost(key.index, received.receive);
        // The call offered no chunks, so none can come back.
        self.report_end(core, application, key, ended, Err(CallError::BadReply));
        core.note_if_pending(key.index);
    }

    /// Takes the reply to a call with bulk data that was assembled from parts. Chunk lists, if any, came with the
    /// last part.
    pub(in crate::core) fn end_bulk_assembled<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        index: u32,
        message: MessageBuffer,
        header: &[u8],
    ) {
        let lists = match header.is_empty() {
            true => Some(ChunkLists::default()),
            false => chunks_of(header).map(|chunks| chunks.lists),
        };
        let call = self.calls.get_mut(index);
        let right = call.and_then(|call| call.note_returned(lists, false));
        if right == Some(true) {
            return self.end_bulk_call(index, Answer::Stream(Stream::Message(message)));
        }
        core.messages.give(message);
        match right {
            Some(_) => self.end_bulk_call(index, Answer::Error(CallError::BadReply)),
            None => core.shared.counters.unmatched_replies.increment(),
        }
    }

    /// Ends a call with bulk data without a reply.
    #[cold]
    pub(in crate::core) fn end_bulk_with_error<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        index: u32,
        error: CallError,
    ) {
        let call = self.calls.get(index);
        if call.is_some_and(|call| call.state == OutgoingState::Waiting) {
            self.end_bulk_call(index, Answer::Error(error));
        } else {
            core.shared.counters.unmatched_replies.increment();
        }
    }

    /// Notes the answer of a call, whose windows are invalidated next.
    pub(in crate::core) fn end_bulk_call(&mut self, index: u32, answer: Answer) {
        if let Some(call) = self.calls.get_mut(index) {
            let _ = call.answered(answer);
            self.calls.queue(index);
        }
    }
}

impl OutgoingCall {
    /// Notes what was written to the chunks of the call according to the lists of its reply (`None` if they do not
    /// decode). `None` when the call does not wait for a reply; false when the reply is wrong.
    #[inline(always)]
    fn note_returned(&mut self, lists: Option<ChunkLists<'_>>, is_long: bool) -> Option<bool> {
        if self.state != OutgoingState::Waiting {
            return None;
        }
        let is_whole = lists.is_some();
        let lists = lists.unwrap_or_default();
        let count = lists.writes.len();
        // A responder that has nothing to write may leave the list out.
        let mut right = is_whole && (count == usize::from(self.chunks) || count == 0);
        let (segments, parts) = (&self.segments, &mut self.parts);
        let mut note = |role, returned| note_written(segments, parts, role, returned).is_some();
        for (returned, chunk) in lists.writes.zip(0_u8..) {
            right = right && note(Role::Result { chunk }, returned);
        }
        let reply_bytes = lists.reply.map_or(0, |chunk| chunk.total_bytes());
        if let Some(returned) = lists.reply {
            right = right && note(Role::Reply, returned);
        }
        // A reply is either in the message or in the Reply chunk (RFC 8166 section 4.3.2).
        Some(right && (reply_bytes != 0) == is_long)
    }
}

/// Notes how much was written to the memory for `role`, according to the returned segments. Returns the bytes; `None`
/// when the segments are not those that were offered.
pub(super) fn note_written(
    segments: &[OfferedSegment],
    parts: &mut [CallPart],
    role: Role,
    returned: Segments<'_>,
) -> Option<u32> {
    let offered = segments_of(segments, role);
    let targets = offered.iter().map(|segment| segment.target);
    let written = check_returned(targets.clone(), returned).ok()?;
    let written = u32::try_from(written).ok()?;
    for (segment, filled) in offered.iter().zip(Fill::new(targets, written)) {
        if let Some(part) = parts.get_mut(usize::from(segment.part)) {
            part.written_bytes += filled.target.length_bytes;
        }
    }
    Some(written)
}
