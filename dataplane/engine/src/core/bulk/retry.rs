//! A call of ours that a transport error refused is made once more, with the same XID and with what
//! the error asks for (-00 section 6.4.3): its windows are gone by then, and new ones are bound.

use rpcrdma_fabric::interface::Port;
use rpcrdma_fabric::memory::Memory;
use rpcrdma_protocol::constants::V2_HEADER_BYTES_WITHOUT_CHUNKS;
use rpcrdma_protocol::v2::TransportError;

use super::{push_fresh, push_part};
use crate::bulk::calls::{CALL_PARTS_MAX, CallSlot, CallStage};
use crate::bulk::lists::{Role, list_bytes};
use crate::bulk::{BULK_ITEMS_MAX, Bulk, BulkPool, Home, Work};
use crate::core::State;

/// What a call is to offer when it is made again.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct Offer {
    /// Bytes of each Write chunk, as many as there are.
    pub(in crate::core) chunk_bytes: [u32; BULK_ITEMS_MAX],
    pub(in crate::core) chunks: u8,
    /// Bytes of the Reply chunk; 0 for none.
    pub(in crate::core) reply_bytes: u32,
    /// Whether the items go to a Position-Zero Read chunk with the rest of the call.
    pub(in crate::core) long_call: bool,
}

impl<P: Port> State<P> {
    /// Makes a call again that `error` refused. False when that would change nothing, or there is
    /// no memory for it; the call ends with the error then.
    pub(super) fn retry_call(&mut self, index: u32, error: TransportError) -> bool {
        let Some(slot) = self.bulk.calls.get(index as usize) else {
            return false;
        };
        let Some(offer) = offer_after(slot, error) else {
            return false;
        };
        let Some(connection) = self.connections.get(slot.connection) else {
            return false;
        };
        let threshold = connection.protocol.send_threshold_bytes() as usize;
        let threshold = threshold.min(self.config.send_buffer_bytes as usize);
        let segments_max = connection.peer.segment_count_max as usize;
        let segment_bytes = connection.peer.segment_bytes_max.max(1);
        let rebuilt = self
            .bulk
            .rebuild(index, &offer, self.port.memory(), segment_bytes);
        let Some((header_bytes, segments)) = rebuilt else {
            return false;
        };
        let Some(slot) = self.bulk.calls.get_mut(index as usize) else {
            return false;
        };
        if header_bytes + slot.stream_bytes > threshold || segments > segments_max {
            return false;
        }
        slot.again = true;
        slot.stage = CallStage::Binding;
        self.shared.counters.bulk_calls_retried.increment();
        self.bulk.queue(Work::Call(index));
        true
    }
}

/// What a refused call is to offer; `None` when the error leaves nothing to be tried.
fn offer_after(slot: &CallSlot, error: TransportError) -> Option<Offer> {
    let has_items = slot
        .parts
        .iter()
        .any(|part| matches!(part.role, Role::Argument { .. }));
    let is_long = slot.parts.iter().any(|part| part.role == Role::Stream);
    let mut offer = Offer {
        chunk_bytes: slot.chunk_bytes,
        chunks: slot.chunks,
        reply_bytes: slot.reply_bytes,
        long_call: false,
    };
    match error {
        // A call that is in a Position-Zero Read chunk already ends.
        TransportError::ReadChunks { max_chunks: 0 } if has_items && !is_long => {
            offer.long_call = true;
        }
        TransportError::WriteResource {
            chunk_index,
            length_needed_bytes,
        } => {
            let chunk = usize::try_from(chunk_index).ok()?.checked_sub(1)?;
            let bytes = offer.chunk_bytes.get_mut(chunk)?;
            if chunk >= usize::from(offer.chunks) || length_needed_bytes <= *bytes {
                return None;
            }
            *bytes = length_needed_bytes;
        }
        // No Write chunk is taken at all: the results come with the rest of the reply.
        TransportError::ReplyResource {
            length_needed_bytes: 0,
        } if offer.chunks != 0 => {
            let results = offer.chunk_bytes.iter().take(usize::from(offer.chunks));
            offer.reply_bytes = results.fold(slot.rpc_reply_bytes_max, |sum, bytes| {
                sum.saturating_add(bytes.checked_next_multiple_of(4).unwrap_or(u32::MAX))
            });
            offer.chunks = 0;
        }
        TransportError::ReplyResource {
            length_needed_bytes,
        } if length_needed_bytes > offer.reply_bytes => {
            offer.reply_bytes = length_needed_bytes;
        }
        _ => return None,
    }
    Some(offer)
}

impl Bulk {
    /// Gives a call the memory that `offer` says. The bytes of its transport header, and its
    /// segments; `None` when there are not enough buffers.
    pub(in crate::core) fn rebuild(
        &mut self,
        index: u32,
        offer: &Offer,
        memory: &Memory,
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
        let long = if offer.long_call { call_bytes } else { 0 };
        let buffers = results + pool.buffers_for(offer.reply_bytes) + pool.buffers_for(long);
        if !pool.may_give(buffers) || slot.parts.len() + buffers > CALL_PARTS_MAX {
            return None;
        }
        if offer.long_call {
            put_into_stream(slot, pool, memory);
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
fn put_into_stream(slot: &mut CallSlot, pool: &mut BulkPool, memory: &Memory) {
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
            let bytes = part.bytes;
            let buffer = part.buffer.take();
            if let Some(buffer) = buffer {
                let content = memory.bytes(&buffer);
                append(
                    slot,
                    pool,
                    memory,
                    content.get(..bytes as usize).unwrap_or(&[]),
                );
                pool.give(buffer);
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
