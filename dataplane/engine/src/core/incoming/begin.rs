//! Takes calls with chunks: each takes a slot, and is checked completely before any work request is posted for it.

use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::chunks::{ChunkFault, ChunkLimits, ChunkLists, PayloadPlace, check_call};
use rpcrdma_protocol::connection::{ChunksAt, chunks_of};
use rpcrdma_protocol::constants::READ_ENTRY_BYTES;
use rpcrdma_protocol::v2::{ReverseRequestSupport, TransportError};

use super::Incoming;
use super::call::{Chunk, IncomingCall, IncomingState, Stream};
use crate::bulk::{BULK_ITEMS_MAX, BULK_PARTS_MAX};
use crate::connection::Connection;
use crate::core::application::Application;
use crate::core::resources::Resources;
use crate::core::step::Steps;
use crate::core::waiting_receives::Chunked;
use crate::limits::HEADER_BYTES_MAX;
use crate::message::{MessageBuffer, Received};
use crate::responder::RPC_OFFSET;
use crate::rpc::ConnectionKey;

/// The most segments of a version 1 call, over all its lists. Linux offers up to 17 in one list, and as many again
/// in the Reply chunk of a long call.
const VERSION_1_SEGMENTS_MAX: u32 = 64;

/// Bytes kept for an RPC error in a reply that also returns the chunk lists.
const RPC_ERROR_ROOM: usize = 64;

impl Incoming {
    /// Whether a connection may have a slot for one more call.
    #[inline(always)]
    pub(in crate::core) fn may_begin_incoming<P: Port>(
        &self,
        core: &Resources<P>,
        key: ConnectionKey,
    ) -> bool {
        let connection = core.connections.get(key);
        !core.is_draining()
            && connection.is_none_or(|connection| self.may_begin(connection, key.index))
    }

    /// Takes a slot for a call that the core found now. The error is SYSTEM when none is free.
    pub(super) fn begin_incoming(
        &mut self,
        now: Ticks,
        key: ConnectionKey,
        xid: u32,
    ) -> Result<Box<IncomingCall>, TransportError> {
        let mut call = self.calls.begin().ok_or(TransportError::System)?;
        self.shares.take(key.index);
        (call.connection, call.xid, call.found_at) = (key, xid, now);
        Ok(call)
    }

    /// As [`Incoming::begin_incoming`], for a call with a transport header, which is kept in the slot with the word
    /// behind it. `chunks_at` is where its chunks are; `None` if the header does not decode. The error is SEGMENTS when
    /// the header has more segments than this end accepts.
    #[inline(always)]
    fn begin_with_header(
        &mut self,
        now: Ticks,
        key: ConnectionKey,
        xid: u32,
        header: &[u8],
        chunks_at: Option<ChunksAt>,
    ) -> Result<Box<IncomingCall>, TransportError> {
        let Some(chunks_at) = chunks_at.filter(|_| header.len() <= HEADER_BYTES_MAX) else {
            let max_segments = u32::try_from(HEADER_BYTES_MAX / READ_ENTRY_BYTES);
            let max_segments = max_segments.unwrap_or(u32::MAX);
            return Err(TransportError::Segments { max_segments });
        };
        let mut call = self.begin_incoming(now, key, xid)?;
        call.header.extend_from_slice(header);
        call.chunks_at = chunks_at;
        Ok(call)
    }

    /// Puts a call that came in one message into a slot.
    pub(in crate::core) fn begin_chunked<P: Port, A: Application>(
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
        let Received { start, end, .. } = received;
        let now = core.now;
        let message = core.received_bytes(&received);
        let header = message.get(..(start + 4).min(end)).unwrap_or(&[]);
        let call = match self.begin_with_header(now, key, xid, header, Some(chunks_at)) {
            Ok(call) => call,
            Err(error) => {
                core.repost(key.index, received.receive);
                return core.refuse(key, xid, error);
            }
        };
        // Nothing is behind the header: the whole call is in a Position-Zero Read chunk.
        if start == end {
            core.repost(key.index, received.receive);
            return self.check_chunks(
                core,
                application,
                call,
                Stream::Chunk,
                PayloadPlace::PositionZero,
            );
        }
        let length_bytes = u32::try_from(end - start).unwrap_or(u32::MAX);
        let place = PayloadPlace::Inline { length_bytes };
        self.check_chunks(core, application, call, Stream::Received(received), place);
    }

    /// As [`Incoming::begin_chunked`], for a call that was assembled from parts; its chunk lists came
    /// with the last of them.
    #[cold]
    pub(in crate::core) fn begin_assembled<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        key: ConnectionKey,
        xid: u32,
        message: MessageBuffer,
        header: &[u8],
    ) {
        let begun = match core.takes_chunks(key) {
            true => self.begin_with_header(core.now, key, xid, header, ChunksAt::find(header)),
            false => Err(refusal_of(&lists_of(header))),
        };
        match begun {
            Ok(call) => {
                let length_bytes = u32::try_from(message.filled().len()).unwrap_or(u32::MAX);
                let place = PayloadPlace::Inline { length_bytes };
                self.check_chunks(core, application, call, Stream::Message(message), place);
            }
            Err(error) => {
                core.messages.give(message);
                core.refuse(key, xid, error);
            }
        }
    }

    /// Checks the chunks of a call, and refuses it or begins to read them.
    #[inline(always)]
    fn check_chunks<P: Port, A: Application>(
        &mut self,
        core: &mut Resources<P>,
        application: &mut A,
        mut call: Box<IncomingCall>,
        stream: Stream,
        place: PayloadPlace,
    ) {
        call.stream = stream;
        match self.find_chunks(core, &mut call, place) {
            Ok(()) => {
                call.state = IncomingState::AwaitingBuffers;
                self.drive(core, application, call);
            }
            Err(error) => self.refuse_incoming(core, call, error),
        }
    }

    /// Notes the chunks of a call that are to be read.
    #[inline(always)]
    fn find_chunks<P: Port>(
        &self,
        core: &Resources<P>,
        call: &mut IncomingCall,
        place: PayloadPlace,
    ) -> Result<(), TransportError> {
        let pool = &core.reply.pool;
        let connection = core.connections.get(call.connection);
        let connection = connection.ok_or(TransportError::System)?;
        let limits = chunk_limits(connection, core.config.message_bytes_max);
        // The reply returns the lists, and needs room for at least an RPC error after them.
        let threshold = connection.protocol.send_threshold_bytes() as usize;
        let room = threshold.min(call.reply_space.len());
        let fits = RPC_OFFSET + call.returned_bytes() + RPC_ERROR_ROOM <= room;
        let mut chunks = [Chunk::default(); BULK_ITEMS_MAX + 1];
        let (mut count, mut buffers) = (0, 0);
        let lists = call.lists();
        let checked = check_call(&lists, place, &limits).map_err(ChunkFault::transport_error)?;
        let all = checked.position_zero().into_iter().chain(checked.chunks());
        for (place, chunk) in chunks.iter_mut().zip(all) {
            *place = Chunk {
                position: chunk.position,
                bytes: chunk.length_bytes,
            };
            count += 1;
            buffers += pool.buffers_for(chunk.length_bytes);
        }
        if !fits || buffers > pool.total().min(BULK_PARTS_MAX) {
            return Err(TransportError::System);
        }
        call.chunks.extend(chunks.into_iter().take(count));
        Ok(())
    }
}

impl<P: Port> Resources<P> {
    /// Whether calls of this peer may have chunks: only with bulk buffers, and in the reverse
    /// direction only if this end announced it (-00 section 5.2.5).
    pub(in crate::core) fn takes_chunks(&self, key: ConnectionKey) -> bool {
        let connection = self.connections.get(key).filter(|_| self.has_bulk);
        connection.is_some_and(|it| it.protocol.peer_calls() == ReverseRequestSupport::General)
    }

    /// The error for a call with chunks from an end that accepts none. `None` if the call offers only a Reply chunk,
    /// which may be left unused.
    pub(in crate::core) fn refusal_of_chunks(
        &mut self,
        received: &Received,
    ) -> Option<TransportError> {
        let lists = lists_of(self.received_bytes(received));
        let has_chunks = !lists.reads.is_empty() || !lists.writes.is_empty();
        has_chunks.then(|| refusal_of(&lists))
    }
}

/// The limits for the chunks of one call of a peer.
pub(super) fn chunk_limits(connection: &Connection, call_bytes_max: u32) -> ChunkLimits {
    let properties = connection.protocol.properties();
    let items_max = u32::try_from(BULK_ITEMS_MAX).unwrap_or(u32::MAX);
    // Version 1 announces no limits; these only bound the work.
    let (segments_max, segment_bytes_max) = if connection.protocol.is_version_1() {
        (VERSION_1_SEGMENTS_MAX, u32::MAX)
    } else {
        (properties.segment_count_max, properties.segment_bytes_max)
    };
    ChunkLimits {
        read_chunks_max: items_max,
        reads_position_zero: true,
        write_chunks_max: items_max,
        segments_max,
        segment_bytes_max,
        call_bytes_max,
    }
}

/// The chunk lists of a message that was decoded before.
fn lists_of(message: &[u8]) -> ChunkLists<'_> {
    chunks_of(message)
        .map(|chunks| chunks.lists)
        .unwrap_or_default()
}

/// The error of an end that accepts no chunks (-00 section 6.4.3). That no Write chunk is supported at all is said by
/// REPLY_RESOURCE: WRITE_CHUNKS cannot express it.
fn refusal_of(lists: &ChunkLists<'_>) -> TransportError {
    if lists.reads.is_empty() {
        TransportError::ReplyResource {
            length_needed_bytes: 0,
        }
    } else {
        TransportError::ReadChunks { max_chunks: 0 }
    }
}
