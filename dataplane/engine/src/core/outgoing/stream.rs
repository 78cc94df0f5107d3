//! Builds the stream of a call, in the slot or in a Position-Zero Read chunk (RFC 8166 section 3.5.3). The latter is
//! for calls too long for one message whose items may not, or need not, leave the stream.

use std::ops::Range;

use rpcrdma_fabric::interface::Port;
use rpcrdma_fabric::memory::Memory;

use super::Outgoing;
use super::call::OutgoingCall;
use super::lists::Role;
use super::memo::Exposed;
use crate::bulk::{BulkPart, BulkPool};
use crate::core::resources::Resources;

impl Outgoing {
    /// Adds `stream` to the first `header_bytes` bytes of a call, which are in the slot: there, or, of a long call,
    /// with them in the Position-Zero Read chunk.
    pub(super) fn fill_stream<P: Port>(
        &mut self,
        core: &mut Resources<P>,
        slot: &mut OutgoingCall,
        exposed: &Exposed,
        header_bytes: usize,
        stream: &[u8],
    ) {
        let (pool, memory) = (&mut core.reply.pool, core.port.memory());
        let end = header_bytes + stream.len();
        if exposed.long_call {
            slot.append_from_stream(pool, memory, 0..header_bytes);
            slot.append(pool, memory, stream);
            core.shared.counters.bulk_bytes_copied.add(end as u64);
        } else if let Some(space) = slot.stream.get_mut(header_bytes..end) {
            space.copy_from_slice(stream);
            slot.stream_bytes = end;
        }
    }
}

impl OutgoingCall {
    /// Appends a range of the stream in the slot to the Position-Zero Read chunk.
    pub(super) fn append_from_stream(
        &mut self,
        pool: &mut BulkPool,
        memory: &Memory,
        range: Range<usize>,
    ) {
        let stream = std::mem::take(&mut self.stream);
        self.append(pool, memory, stream.get(range).unwrap_or(&[]));
        self.stream = stream;
    }

    /// Pads the Position-Zero Read chunk, which has `bytes` bytes, to a multiple of four.
    pub(super) fn pad(&mut self, pool: &mut BulkPool, memory: &Memory, bytes: &mut usize) {
        let padding = bytes.next_multiple_of(4) - *bytes;
        self.append(pool, memory, [0; 3].get(..padding).unwrap_or(&[]));
        *bytes += padding;
    }

    /// Appends bytes to the Position-Zero Read chunk: to its last part, and to new ones.
    pub(super) fn append(&mut self, pool: &mut BulkPool, memory: &Memory, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let last = self.parts.last_mut();
            if let Some(part) = last.filter(|part| part.role == Role::Stream)
                && let Some(buffer) = &mut part.buffer
            {
                let space = memory.bytes_mut(buffer).get_mut(part.bytes as usize..);
                let space = space.unwrap_or(&mut []);
                let (now, later) = rest.split_at(space.len().min(rest.len()));
                if let Some(space) = space.get_mut(..now.len()) {
                    space.copy_from_slice(now);
                }
                part.bytes += u32::try_from(now.len()).unwrap_or(0);
                rest = later;
                if rest.is_empty() {
                    return;
                }
            }
            let Some(buffer) = pool.take() else {
                debug_assert!(false, "the buffers were counted");
                return;
            };
            self.push_part(Role::Stream, BulkPart::new(buffer, 0, 0));
        }
    }
}
