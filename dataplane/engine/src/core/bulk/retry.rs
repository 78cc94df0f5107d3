//! A call of ours that a transport error refused is made once more, with the same XID and with what
//! the error asks for (-00 section 6.4.3): its windows are gone by then, and new ones are bound.
//!
//! What is tried, and in which order, stands in `offer_again`. `plan_call` of the protocol is for calls that have not begun: it
//! may put any item anywhere, while here the items are where the call took them, and only what holds them can change.

use rpcrdma_fabric::interface::Port;
use rpcrdma_fabric::memory::Memory;
use rpcrdma_protocol::constants::V2_HEADER_BYTES_WITHOUT_CHUNKS;
use rpcrdma_protocol::v2::TransportError;

use super::{push_fresh, push_part};
use crate::bulk::calls::{Answer, CALL_PARTS_MAX, CallSlot, CallStage, NO_INDEX};
use crate::bulk::lists::{Role, list_bytes};
use crate::bulk::{BULK_ITEMS_MAX, Bulk, BulkPool, Home, Work};
use crate::core::State;
use crate::placement::PlacementSegments;

/// What a call is to offer when it is made again.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct Offer {
    /// Bytes of each result, of which the first `chunks` have Write chunks.
    pub(in crate::core) chunk_bytes: [u32; BULK_ITEMS_MAX],
    pub(in crate::core) chunks: u8,
    /// Bytes of the Reply chunk; 0 for none.
    pub(in crate::core) reply_bytes: u32,
    /// How the items go.
    pub(in crate::core) items: OfferedItems,
    /// Segments that the peer serves in one call.
    pub(in crate::core) segments_max: u32,
}

/// How the items of a call go that is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum OfferedItems {
    /// In Read chunks.
    Chunks,
    /// To a Position-Zero Read chunk, with the rest of the call.
    LongCall,
    /// In the stream, which is continued.
    Inline,
}

impl<P: Port> State<P> {
    /// Makes a call again that `error` refused. False when that would change nothing, or there is
    /// no memory for it; the call ends with the error then.
    pub(super) fn retry_call(&mut self, index: u32, error: TransportError) -> bool {
        let Some(slot) = self.bulk.calls.get(index as usize) else {
            return false;
        };
        let Some(connection) = self.connections.get(slot.connection) else {
            return false;
        };
        let mut offer = Offer {
            chunk_bytes: slot.chunk_bytes,
            chunks: slot.chunks,
            reply_bytes: slot.reply_bytes,
            items: OfferedItems::Chunks,
            segments_max: connection.peer.segment_count_max,
        };
        let receive_bytes = connection.protocol.properties().receive_buffer_bytes;
        offer.mend(slot, error, receive_bytes) && self.offer_again(index, &offer)
    }

    /// Makes a call again with this offer, or, where that has too many segments or is too long for a
    /// message, with less of it: without memory for the reply, which is continued then, and at last
    /// in the stream, or as a long call. False when nothing of that can be.
    pub(in crate::core) fn offer_again(&mut self, index: u32, offer: &Offer) -> bool {
        let slot = self.bulk.calls.get(index as usize);
        let Some((slot, connection)) =
            slot.and_then(|slot| Some((slot, self.connections.get(slot.connection)?)))
        else {
            return false;
        };
        let threshold = connection.protocol.send_threshold_bytes() as usize;
        let threshold = threshold.min(self.config.send_buffer_bytes as usize);
        let segment_bytes = connection.peer.segment_bytes_max;
        let segment_bytes = segment_bytes
            .min(self.bulk.reply.pool.buffer_bytes())
            .max(1);
        let is_long = slot.is_long();
        let whole_reply = offer.reply_with_results(slot, 0);
        let may_be_continued = whole_reply <= self.config.message_bytes_max;
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
            let is_done_so = is_long && items != OfferedItems::Chunks;
            if (is_bare && number != 0 && !may_be_continued) || is_done_so {
                continue;
            }
            if items == OfferedItems::Inline {
                if self.make_inline(index) {
                    return true;
                }
                continue;
            }
            let offer = Offer { items, ..*offer };
            let memory = self.port.memory();
            let placement = &mut self.placement;
            let rebuilt = self
                .bulk
                .rebuild(index, &offer, memory, placement, segment_bytes);
            let Some(rebuilt) = rebuilt else {
                continue;
            };
            let Some(slot) = self.bulk.calls.get_mut(index as usize) else {
                return false;
            };
            let (header_bytes, segments) = rebuilt;
            let is_served = u32::try_from(segments).is_ok_and(|count| count <= offer.segments_max);
            if is_served && header_bytes + slot.stream_bytes <= threshold {
                slot.again = true;
                slot.stage = CallStage::Binding;
                slot.answer = Answer::None;
                self.shared.counters.bulk_calls_retried.increment();
                self.bulk.queue(Work::Call(index));
                return true;
            }
        }
        false
    }
}

impl Offer {
    /// Changes what `error` names. False when it leaves nothing to be tried. `receive_bytes` is the
    /// longest message that we receive.
    pub(in crate::core) fn mend(
        &mut self,
        slot: &CallSlot,
        error: TransportError,
        receive_bytes: u32,
    ) -> bool {
        let has_items = slot
            .parts
            .iter()
            .any(|part| matches!(part.role, Role::Argument { .. }));
        let is_long = slot.is_long();
        let count = |count: u32| u8::try_from(count).unwrap_or(u8::MAX);
        match error {
            // A call that is in a Position-Zero Read chunk already ends.
            TransportError::ReadChunks { .. } if has_items && !is_long => {
                self.items = OfferedItems::LongCall;
                true
            }
            // Further results come with the rest of the reply.
            TransportError::WriteChunks { max_chunks } if count(max_chunks) < self.chunks => {
                self.chunks = count(max_chunks);
                self.reply_bytes = self.reply_chunk_bytes(slot, receive_bytes);
                true
            }
            TransportError::Segments { max_segments }
                if usize::try_from(max_segments).is_ok_and(|most| most < slot.segments.len()) =>
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
            // No Write chunk is taken at all: the results come with the rest of the reply.
            TransportError::ReplyResource {
                length_needed_bytes: 0,
            } if self.chunks != 0 => {
                self.chunks = 0;
                self.reply_bytes = self.reply_with_results(slot, 0);
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

    /// Bytes of the RPC reply at most, with the results from number `first` on.
    fn reply_with_results(&self, slot: &CallSlot, first: u8) -> u32 {
        let results = self.chunk_bytes.iter().take(usize::from(slot.results));
        let results = results.skip(usize::from(first));
        results.fold(slot.rpc_reply_bytes_max, |sum, bytes| {
            sum.saturating_add(bytes.checked_next_multiple_of(4).unwrap_or(u32::MAX))
        })
    }

    /// Bytes of the Reply chunk for all that has no Write chunk; 0 where a message holds it.
    pub(in crate::core) fn reply_chunk_bytes(&self, slot: &CallSlot, receive_bytes: u32) -> u32 {
        let rpc_bytes = self.reply_with_results(slot, self.chunks);
        // The lists come back with one segment or more for each chunk.
        let lists = list_bytes(0, usize::from(self.chunks), slot.parts.len(), 0);
        let header_bytes = V2_HEADER_BYTES_WITHOUT_CHUNKS + lists;
        let header_bytes = u32::try_from(header_bytes).unwrap_or(u32::MAX);
        match rpc_bytes.saturating_add(header_bytes) > receive_bytes {
            true => rpc_bytes,
            false => 0,
        }
    }
}

impl Bulk {
    /// Gives a call the memory that `offer` says. The bytes of its transport header, and its
    /// segments; `None` when there are not enough buffers.
    pub(in crate::core) fn rebuild(
        &mut self,
        index: u32,
        offer: &Offer,
        memory: &Memory,
        placement: &mut PlacementSegments,
        segment_bytes: u32,
    ) -> Option<(usize, usize)> {
        let pool = &mut self.reply.pool;
        let slot = self.calls.get_mut(index as usize)?;
        slot.parts.retain_mut(|part| {
            let is_result = matches!(part.role, Role::Result { .. } | Role::Reply);
            if is_result && let Some(buffer) = part.buffer.take() {
                pool.give(buffer);
            }
            !is_result
        });
        slot.segments.clear();
        slot.chunks = offer.chunks;
        slot.chunk_bytes = offer.chunk_bytes;
        slot.reply_bytes = offer.reply_bytes;
        let chunks = offer.chunk_bytes.iter().take(usize::from(offer.chunks));
        let results: usize = chunks.clone().map(|&bytes| pool.buffers_for(bytes)).sum();
        let item_bytes = |part: &crate::bulk::calls::CallPart| part.bytes.next_multiple_of(4);
        let call_bytes = slot.parts.iter().map(item_bytes).sum::<u32>()
            + u32::try_from(slot.stream_bytes).ok()?;
        let is_long = offer.items == OfferedItems::LongCall;
        let long = if is_long { call_bytes } else { 0 };
        let buffers = results + pool.buffers_for(offer.reply_bytes) + pool.buffers_for(long);
        if !pool.may_give(buffers) || slot.parts.len() + buffers > CALL_PARTS_MAX {
            return None;
        }
        if is_long {
            put_into_stream(slot, pool, placement, memory);
        }
        for (&bytes, chunk) in chunks.zip(0_u8..) {
            push_fresh(slot, pool, Role::Result { chunk }, bytes);
        }
        push_fresh(slot, pool, Role::Reply, offer.reply_bytes);
        let (mut reads, mut writes, mut reply) = (0, 0, 0);
        for (part, number) in slot.parts.iter_mut().zip(0_u16..) {
            (part.invalidating, part.written_bytes) = (false, 0);
            let segments = part.bytes.div_ceil(segment_bytes) as usize;
            match part.role {
                Role::Stream | Role::Argument { .. } => reads += segments,
                Role::Result { .. } => writes += segments,
                Role::Reply => reply += segments,
            }
            let home = Home::Call {
                slot: index,
                part: number,
            };
            pool.set_home(part.index, home);
        }
        let lists = list_bytes(reads, usize::from(offer.chunks), writes, reply);
        Some((
            V2_HEADER_BYTES_WITHOUT_CHUNKS + lists,
            reads + writes + reply,
        ))
    }
}

/// Puts the items of a call back into its stream, and the stream into fresh buffers. There are
/// enough of them.
fn put_into_stream(
    slot: &mut CallSlot,
    pool: &mut BulkPool,
    placement: &mut PlacementSegments,
    memory: &Memory,
) {
    let items = slot.parts.len();
    let (mut taken, mut place) = (0, 0);
    let mut number = 0;
    while number < items {
        let Some(Role::Argument { position }) = slot.parts.get(number).map(|part| part.role) else {
            break;
        };
        let before = (position as usize).saturating_sub(place);
        append_stream(slot, pool, memory, taken..taken + before);
        taken += before;
        place += before;
        // The parts of one item follow each other.
        while let Some(part) = slot.parts.get_mut(number)
            && part.role == (Role::Argument { position })
            && number < items
        {
            let (bytes, part_index) = (part.bytes, part.index);
            let buffer = part.buffer.take();
            if let Some(buffer) = buffer {
                let content = memory.bytes(&buffer);
                append(
                    slot,
                    pool,
                    memory,
                    content.get(..bytes as usize).unwrap_or(&[]),
                );
                match part_index {
                    NO_INDEX => placement.give(buffer),
                    _ => pool.give(buffer),
                }
            }
            place += bytes as usize;
            number += 1;
        }
        let padding = place.next_multiple_of(4) - place;
        append(slot, pool, memory, [0; 3].get(..padding).unwrap_or(&[]));
        place += padding;
    }
    append_stream(slot, pool, memory, taken..slot.stream_bytes);
    slot.stream_bytes = 0;
    slot.parts.retain(|part| part.role == Role::Stream);
}

/// Appends a range of the stream without items.
fn append_stream(
    slot: &mut CallSlot,
    pool: &mut BulkPool,
    memory: &Memory,
    range: std::ops::Range<usize>,
) {
    let stream = std::mem::take(&mut slot.stream);
    append(slot, pool, memory, stream.get(range).unwrap_or(&[]));
    slot.stream = stream;
}

/// Appends bytes to the part that was begun last, and to fresh ones.
fn append(slot: &mut CallSlot, pool: &mut BulkPool, memory: &Memory, bytes: &[u8]) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let last = slot
            .parts
            .last_mut()
            .filter(|part| part.role == Role::Stream);
        if let Some(part) = last
            && let Some(buffer) = &mut part.buffer
        {
            let space = memory.bytes_mut(buffer);
            let space = space.get_mut(part.bytes as usize..).unwrap_or(&mut []);
            let count = space.len().min(rest.len());
            let (now, later) = rest.split_at(count);
            if let Some(space) = space.get_mut(..count) {
                space.copy_from_slice(now);
            }
            part.bytes += u32::try_from(count).unwrap_or(0);
            rest = later;
            if rest.is_empty() {
                return;
            }
        }
        let Some(buffer) = pool.take() else {
            debug_assert!(false, "the buffers were counted");
            return;
        };
        push_part(&mut slot.parts, Role::Stream, buffer, 0);
    }
}
