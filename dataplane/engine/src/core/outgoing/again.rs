//! Makes a call of ours once more that the peer refused with a transport error: with the same XID, and with the changes
//! that the error asks for (-00 section 6.4.3). Its windows are invalidated by then, and new ones are bound.
//!
//! `offer_again` has the forms that are tried, in order. `plan_call` of the protocol cannot be used: it plans new calls
//! and may place each item freely, while here the items are in the memory that the first attempt used.

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::constants::V2_HEADER_BYTES_WITHOUT_CHUNKS;
use rpcrdma_protocol::v2::TransportError;

use super::Outgoing;
use super::call::{
    Answer, CALL_PARTS_MAX, CALL_SEGMENTS_MAX, CallPart, OutgoingCall, OutgoingState,
};
use super::lists::{Role, list_bytes};
use crate::bulk::{BULK_ITEMS_MAX, NO_INDEX};
use crate::connection::Connection;
use crate::core::resources::Resources;

/// The chunks that a call offers when it is made again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    /// Bytes of each result, of which the first `chunks` have Write chunks.
    pub(super) chunk_bytes: [u32; BULK_ITEMS_MAX],
    pub(super) chunks: u8,
    /// Bytes of the Reply chunk; 0 for none.
    pub(super) reply_bytes: u32,
    /// How the items are sent.
    pub(super) items: OfferedItems,
    /// The most segments that the peer serves in one call.
    pub(super) segments_max: u32,
}

/// How the items are sent when a call is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfferedItems {
    /// In Read chunks.
    Chunks,
    /// In a Position-Zero Read chunk, with the rest of the call.
    LongCall,
    /// In the stream, which may take several messages.
    Inline,
}

impl Outgoing {
    /// Makes a call again that was refused with `error`. False when nothing would be different, or there is
    /// no memory for it; the call ends with the error then.
    pub(super) fn make_again<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut OutgoingCall,
        error: TransportError,
    ) -> bool {
        if matches!(call.answer, Answer::Refused(_)) {
            self.forget_response(core, call);
        }
        if !call.has_items() || call.group.parts.iter().any(|part| part.buffer.is_none()) {
            return false;
        }
        if matches!(call.answer, Answer::Refused(_)) {
            return self.make_plain(core, call, error);
        }
        let Some(connection) = core.connections.get(call.connection) else {
            return false;
        };
        if call.is_long_and_unread(error) && !connection.protocol.is_version_1() {
            return self.make_inline(core, call);
        }
        let mut offer = Offer::before(call, connection);
        let receive_bytes = connection.protocol.properties().receive_buffer_bytes;
        call.keeps_stream()
            && offer.mend(call, error, receive_bytes)
            && self.offer_again(core, call, &offer)
    }

    /// Makes a call again with this offer. If that has too many segments, or a header too long for a message, it tries
    /// with less: without memory for the reply, which comes in parts then; with the items in the stream; as a long call.
    /// False when none of these is possible.
    pub(super) fn offer_again<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut OutgoingCall,
        offer: &Offer,
    ) -> bool {
        let Some(connection) = core.connections.get(call.connection) else {
            return false;
        };
        let threshold = connection.protocol.send_threshold_bytes() as usize;
        let threshold = threshold.min(core.config.send_buffer_bytes as usize);
        let segment_bytes = connection.peer.segment_bytes_max;
        let is_long = call.is_long();
        let whole_reply = offer.reply_with_results(call, 0);
        let may_be_continued = whole_reply <= core.config.message_bytes_max;
        let without_memory = Offer {
            chunks: 0,
            reply_bytes: 0,
            ..*offer
        };
        let candidates = [
            (offer, offer.items),
            (&without_memory, offer.items),
            (&without_memory, OfferedItems::Inline),
            (offer, OfferedItems::LongCall),
        ];
        for (number, (offer, items)) in candidates.into_iter().enumerate() {
            let is_bare = offer.chunks == 0 && offer.reply_bytes == 0;
            // A long call has its items in its stream already.
            let is_done_so = is_long && items != OfferedItems::Chunks;
            if (is_bare && number != 0 && !may_be_continued) || is_done_so {
                continue;
            }
            if items == OfferedItems::Inline {
                if self.make_inline(core, call) {
                    return true;
                }
                continue;
            }
            let offer = Offer { items, ..*offer };
            let Some((header_bytes, segments)) = self.rebuild(core, call, &offer, segment_bytes)
            else {
                continue;
            };
            let is_served = segments <= CALL_SEGMENTS_MAX
                && u32::try_from(segments).is_ok_and(|count| count <= offer.segments_max);
            if is_served && header_bytes + call.stream_bytes <= threshold {
                call.again = true;
                call.state = OutgoingState::Binding;
                call.answer = Answer::None;
                core.shared.counters.bulk_calls_retried.increment();
                return true;
            }
        }
        false
    }

    /// Gives a call the memory for `offer`. Returns the bytes of its transport header and the number of its
    /// segments; `None` when there are not enough buffers.
    fn rebuild<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        call: &mut OutgoingCall,
        offer: &Offer,
        segment_bytes: u32,
    ) -> Option<(usize, usize)> {
        let pool = &mut core.reply.pool;
        let segment_bytes = segment_bytes.min(pool.buffer_bytes()).max(1);
        call.give_results_back(pool);
        call.chunks = offer.chunks;
        call.chunk_bytes = offer.chunk_bytes;
        call.reply_bytes = offer.reply_bytes;
        let chunks = offer.chunk_bytes.iter().take(usize::from(offer.chunks));
        let results: usize = chunks.clone().map(|&bytes| pool.buffers_for(bytes)).sum();
        let item_bytes = |part: &CallPart| part.bytes.next_multiple_of(4);
        let call_bytes = call.parts.iter().map(item_bytes).sum::<u32>()
            + u32::try_from(call.stream_bytes).ok()?;
        let is_long = offer.items == OfferedItems::LongCall;
        let long = if is_long { call_bytes } else { 0 };
        let buffers = results + pool.buffers_for(offer.reply_bytes) + pool.buffers_for(long);
        if !pool.may_give(buffers) || call.parts.len() + buffers > CALL_PARTS_MAX {
            return None;
        }
        if is_long {
            self.put_into_stream(core, call);
        }
        let pool = &mut core.reply.pool;
        for (&bytes, chunk) in chunks.zip(0_u8..) {
            call.push_fresh(pool, Role::Result { chunk }, bytes);
        }
        call.push_fresh(pool, Role::Reply, offer.reply_bytes);
        call.set_homes(pool);
        let (mut reads, mut writes, mut reply) = (0, 0, 0);
        for part in &mut call.parts {
            (part.invalidating, part.written_bytes) = (false, 0);
            let segments = part.bytes.div_ceil(segment_bytes) as usize;
            match part.role {
                Role::Stream | Role::Argument { .. } => reads += segments,
                Role::Result { .. } => writes += segments,
                Role::Reply => reply += segments,
            }
        }
        let lists = list_bytes(reads, usize::from(offer.chunks), writes, reply);
        let header_bytes = V2_HEADER_BYTES_WITHOUT_CHUNKS + lists;
        Some((header_bytes, reads + writes + reply))
    }

    /// Copies the stream of a call, with its items in their places, into new buffers for a Position-Zero Read chunk. The
    /// caller has checked that there are enough.
    fn put_into_stream<P: Port>(&mut self, core: &mut Resources<P>, call: &mut OutgoingCall) {
        let (pool, memory) = (&mut core.reply.pool, core.port.memory());
        let (mut taken, mut place, mut position_before) = (0, 0, None);
        // The new parts of the stream are appended behind those of the items.
        for number in 0..call.parts.len() {
            let part = call.parts.get_mut(number);
            let Some(part) = part.filter(|it| matches!(it.role, Role::Argument { .. })) else {
                break;
            };
            let (role, index, bytes) = (part.role, part.index, part.bytes as usize);
            let buffer = part.buffer.take();
            if position_before.replace(role) != Some(role)
                && let Role::Argument { position } = role
            {
                call.pad(pool, memory, &mut place);
                let before = (position as usize).saturating_sub(place);
                call.append_from_stream(pool, memory, taken..taken + before);
                (taken, place) = (taken + before, place + before);
            }
            if let Some(buffer) = buffer {
                let content = memory.bytes(&buffer).get(..bytes);
                call.append(pool, memory, content.unwrap_or(&[]));
                match index {
                    NO_INDEX => core.placement.give(buffer),
                    _ => pool.give(buffer),
                }
            }
            place += bytes;
        }
        call.pad(pool, memory, &mut place);
        call.append_from_stream(pool, memory, taken..call.stream_bytes);
        call.stream_bytes = 0;
        call.parts.retain(|part| part.role == Role::Stream);
    }
}

impl Offer {
    /// The offer of the first attempt.
    pub(super) fn before(call: &OutgoingCall, connection: &Connection) -> Self {
        Self {
            chunk_bytes: call.chunk_bytes,
            chunks: call.chunks,
            reply_bytes: call.reply_bytes,
            items: OfferedItems::Chunks,
            segments_max: connection.peer.segment_count_max,
        }
    }

    /// Changes the offer as `error` asks. False when the error leaves nothing to try. `receive_bytes` is the
    /// longest message that this end receives.
    pub(super) fn mend(
        &mut self,
        call: &OutgoingCall,
        error: TransportError,
        receive_bytes: u32,
    ) -> bool {
        let has_items = call
            .parts
            .iter()
            .any(|part| matches!(part.role, Role::Argument { .. }));
        let is_long = call.is_long();
        let count = |count: u32| u8::try_from(count).unwrap_or(u8::MAX);
        match error {
            // A call that is a Position-Zero Read chunk already cannot do with fewer.
            TransportError::ReadChunks { .. } if has_items && !is_long => {
                self.items = OfferedItems::LongCall;
                true
            }
            // The other results come with the rest of the reply.
            TransportError::WriteChunks { max_chunks } if count(max_chunks) < self.chunks => {
                self.chunks = count(max_chunks);
                self.reply_bytes = self.reply_chunk_bytes(call, receive_bytes);
                true
            }
            TransportError::Segments { max_segments }
                if usize::try_from(max_segments).is_ok_and(|most| most < call.segments.len()) =>
            {
                self.segments_max = self.segments_max.min(max_segments);
                true
            }
            TransportError::WriteResource {
                chunk_index,
                length_needed_bytes,
            } => {
                let chunk = usize::try_from(chunk_index).ok();
                let chunk = chunk.and_then(|it| it.checked_sub(1));
                let chunk = chunk.filter(|chunk| *chunk < usize::from(self.chunks));
                match chunk.and_then(|chunk| self.chunk_bytes.get_mut(chunk)) {
                    Some(bytes) if length_needed_bytes > *bytes => {
                        *bytes = length_needed_bytes;
                        true
                    }
                    _ => false,
                }
            }
            // The peer uses no Write chunks at all: the results come with the rest of the reply.
            TransportError::ReplyResource {
                length_needed_bytes: 0,
            } if self.chunks != 0 => {
                self.chunks = 0;
                self.reply_bytes = self.reply_with_results(call, 0);
                true
            }
            TransportError::ReplyResource {
                length_needed_bytes,
            } if length_needed_bytes > self.reply_bytes => {
                self.reply_bytes = length_needed_bytes;
                true
            }
            _ => false,
        }
    }

    /// The most bytes of the RPC reply, with the results from number `first` on.
    fn reply_with_results(&self, call: &OutgoingCall, first: u8) -> u32 {
        let results = self.chunk_bytes.iter().take(usize::from(call.results));
        let results = results.skip(usize::from(first));
        results.fold(call.rpc_reply_bytes_max, |sum, bytes| {
            sum.saturating_add(bytes.checked_next_multiple_of(4).unwrap_or(u32::MAX))
        })
    }

    /// Bytes of a Reply chunk for everything without a Write chunk; 0 if one message holds it.
    pub(super) fn reply_chunk_bytes(&self, call: &OutgoingCall, receive_bytes: u32) -> u32 {
        let rpc_bytes = self.reply_with_results(call, self.chunks);
        // The reply returns the lists, with at least one segment for each chunk.
        let lists = list_bytes(0, usize::from(self.chunks), call.parts.len(), 0);
        let header_bytes = V2_HEADER_BYTES_WITHOUT_CHUNKS + lists;
        let header_bytes = u32::try_from(header_bytes).unwrap_or(u32::MAX);
        match rpc_bytes.saturating_add(header_bytes) > receive_bytes {
            true => rpc_bytes,
            false => 0,
        }
    }
}
