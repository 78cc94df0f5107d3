//! The slot of a peer's call with chunks or in a transmission group, and its states.

use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;
use rpcrdma_fabric::memory::{Buffer, Lease};
use rpcrdma_protocol::chunks::{ChunkLists, Fill, ReturnedLists, Segment, Segments};
use rpcrdma_protocol::connection::ChunksAt;
use rpcrdma_protocol::constants::PLAN_ITEMS_MAX;
use rpcrdma_protocol::v2::header::Chunks;
use rpcrdma_protocol::v2::rtr::{Location, MessageItemView};

use crate::bulk::directed::{OpenDirection, ReplyResult};
use crate::bulk::{ArgumentItem, BULK_ITEMS_MAX, BULK_PARTS_MAX, BulkPart};
use crate::core::group::{Group, GroupArrival, GroupItem};
use crate::core::receives::Gathered;
use crate::core::step::Wait;
use crate::counters::Counters;
use crate::limits::{HEADER_BYTES_MAX, LANDINGS_MAX};
use crate::message::MessageBuffer;
use crate::message::Received;
use crate::rpc::{ConnectionKey, DeferId};

/// The most pieces of a reply that are written: those of its items, and those of its stream between them.
pub(crate) const WRITE_PARTS_MAX: usize = 2 * BULK_PARTS_MAX + 2 * BULK_ITEMS_MAX;

/// The most pieces of items that a service gets with one call: those placed by Sends, and those read by RDMA.
pub(super) const LENT_PARTS_MAX: usize = LANDINGS_MAX + BULK_PARTS_MAX;

/// The state of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum IncomingState {
    /// Nobody uses the slot.
    #[default]
    Free,
    /// Its transmission group is incomplete.
    Arriving,
    /// Its items were placed by Sends, and wait for spare placement segments that replace theirs in the Receives.
    Placing,
    /// Its chunks wait for buffers to read them into.
    AwaitingBuffers,
    /// Its chunks are being read.
    Reading,
    /// It waits to be served.
    Ready,
    /// Its service will answer later.
    Deferred,
    /// Its results are being written, or its reply sent.
    Answering,
    /// Its reply is being sent in parts.
    InParts,
}

/// Where the stream of a call, or of a reply, is.
#[derive(Debug, Default)]
pub(crate) enum Stream {
    /// In its Position-Zero Read chunk.
    #[default]
    Chunk,
    /// In its Receive.
    Received(Received),
    /// In a message buffer.
    Message(MessageBuffer),
}

impl Stream {
    /// As [`Stream::bytes`], while the message is handled that was copied together last.
    pub(in crate::core) fn sorted_bytes<'a, P: Port>(
        &'a self,
        gathered: &'a Gathered,
        port: &'a P,
    ) -> &'a [u8] {
        match self {
            Self::Received(Received {
                receive,
                start,
                end,
            }) => {
                let segment = port.received(receive).get(*start..*end);
                segment.unwrap_or_else(|| gathered.range(*start..*end))
            }
            Self::Message(message) => message.filled(),
            Self::Chunk => &[],
        }
    }

    /// Its bytes; none of a stream in a chunk, which the call has in its read buffers.
    #[inline(always)]
    pub(in crate::core) fn bytes<'a, P: Port>(
        &'a self,
        gathered: &'a mut Gathered,
        port: &'a P,
        counters: &Counters,
    ) -> &'a [u8] {
        match self {
            Self::Received(Received {
                receive,
                start,
                end,
            }) => gathered
                .message(port, receive, *end, counters)
                .get(*start..)
                .unwrap_or(&[]),
            Self::Message(message) => message.filled(),
            Self::Chunk => &[],
        }
    }
}

/// A chunk that is read: its position in the message, and its length.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chunk {
    pub(crate) position: u32,
    pub(crate) bytes: u32,
}

/// How far the RDMA Reads of a call were posted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadCursor {
    pub(crate) chunk: usize,
    pub(crate) segment: usize,
    pub(crate) segment_done: u32,
    pub(crate) part: usize,
    pub(crate) part_done: u32,
    /// Posted Reads that have not succeeded. A failed one stays counted, so that its call is never served.
    pub(crate) in_flight: u32,
}

/// The memory of the caller that a piece of a reply is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// This Write chunk, or the memory of this direction of a Transmit Request.
    Chunk(usize),
    /// The Reply chunk.
    Reply,
}

/// A piece of a reply that is to be written.
#[derive(Debug)]
pub(crate) struct WritePart {
    /// `None` while an RDMA Write has it.
    pub(crate) buffer: Option<Buffer>,
    pub(crate) index: u32,
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
    pub(crate) done: u32,
    pub(crate) target: Target,
}

impl WritePart {
    pub(crate) fn new(part: BulkPart, target: Target) -> Self {
        Self {
            buffer: part.buffer,
            index: part.index,
            offset: part.offset,
            bytes: part.bytes,
            done: 0,
            target,
        }
    }
}

/// How far the RDMA Writes of a reply were posted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WriteCursor {
    pub(crate) part: usize,
    pub(crate) segment: usize,
    pub(crate) segment_done: u32,
}

/// The RPC reply to a call, without the results in its Write chunks.
#[derive(Debug, Default)]
pub(crate) enum RpcReply {
    /// There is none yet.
    #[default]
    None,
    /// It is in the slot: so many bytes.
    Short(usize),
    /// It is too long for one message, or was when its service wrote it.
    Long(MessageBuffer),
    /// It is written to the Reply chunk: so many bytes.
    InChunk(u32),
}

impl RpcReply {
    /// Its stream; `space` is that of its slot.
    pub(crate) fn stream<'a>(&'a self, space: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Short(bytes) => space.get(..*bytes).unwrap_or(&[]),
            Self::Long(message) => message.filled(),
            Self::None | Self::InChunk(_) => &[],
        }
    }
}

/// The plan of a reply with at most one result that was sent as one transmission without RDMA Writes: its inputs,
/// except the header of its call, and its result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedReply {
    /// The properties epoch: it changes with the properties of any peer.
    pub(crate) properties_epoch: u64,
    pub(crate) rpc_bytes: usize,
    pub(crate) result: Option<ReplyResult>,
    pub(crate) parts: usize,
    pub(crate) item: Option<GroupItem>,
    pub(crate) header_bytes: u32,
    pub(crate) stream_bytes: u32,
}

/// The inputs of the plan for a one-message reply to a call with chunk lists. A reply with equal inputs reuses the
/// plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListedTerms {
    /// The properties epoch: it changes with the properties of any peer.
    pub(crate) properties_epoch: u64,
    pub(crate) connection: ConnectionKey,
    pub(crate) rpc_bytes: usize,
    /// Segments of the Write chunk; `None` without a Write chunk.
    pub(crate) segments: Option<usize>,
    /// The result that is written to the chunk.
    pub(crate) result: Option<ReplyResult>,
}

/// A call of a peer.
#[derive(Debug, Default)]
pub(crate) struct IncomingCall {
    /// The index of its slot.
    pub(crate) index: u32,
    /// How often the slot was used before.
    pub(crate) generation: u32,
    pub(crate) state: IncomingState,
    pub(crate) connection: ConnectionKey,
    pub(crate) xid: u32,
    /// When the core found it.
    pub(crate) found_at: Ticks,
    /// The transport header, and the first word behind it.
    pub(crate) header: Vec<u8>,
    /// Where its chunks are in the header.
    pub(crate) chunks_at: ChunksAt,
    pub(crate) stream: Stream,
    /// The chunks, or the items of a transmission group, that have to be read, by position.
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) read_parts: Vec<BulkPart>,
    pub(crate) reads: ReadCursor,
    pub(crate) deferral: Option<DeferId>,
    /// Bytes of the call before its arguments, once it was served.
    pub(crate) arguments_at: u32,
    /// Whether items of its reply may leave the stream; known once it was served.
    pub(crate) may_reduce: bool,
    pub(crate) write_parts: Vec<WritePart>,
    pub(crate) writes: WriteCursor,
    /// Bytes of the result in each Write chunk.
    pub(crate) written: Vec<u32>,
    pub(crate) reply: RpcReply,
    /// Bytes of a reply that has to be moved to the Reply chunk, with the items that stay in its stream; `None` once it
    /// is there.
    pub(crate) for_reply_chunk: Option<u32>,
    pub(crate) reply_space: Box<[u8]>,
    /// Transmissions that its reply may take, if it came as a transmission group.
    pub(crate) reply_reserved: u32,
    /// The call, if it came as a transmission group.
    pub(crate) arrival: GroupArrival,
    /// Its items, and the pieces that Sends placed.
    pub(crate) items: Vec<ArgumentItem>,
    pub(crate) leases: Vec<Option<Lease>>,
    /// The result of the service for each direction.
    pub(crate) results: Vec<ReplyResult>,
    /// The plan of the previous reply, if that call had the same header.
    pub(crate) planned: Option<PlannedReply>,
    /// The terms of the previous reply to a call with chunk lists.
    pub(crate) planned_listed: Option<ListedTerms>,
    /// The reply, when it is sent as a transmission group.
    pub(crate) group: Group,
    /// It may take bulk buffers: for its chunks, or for its results.
    pub(in crate::core) has_buffers: bool,
    pub(in crate::core) wait: Wait,
}

impl IncomingCall {
    pub(crate) fn new(index: u32, reply_bytes: u32) -> Self {
        Self {
            index,
            header: Vec::with_capacity(HEADER_BYTES_MAX),
            chunks: Vec::with_capacity(BULK_ITEMS_MAX + 1),
            read_parts: Vec::with_capacity(BULK_PARTS_MAX + BULK_ITEMS_MAX + 1),
            may_reduce: true,
            write_parts: Vec::with_capacity(WRITE_PARTS_MAX),
            written: Vec::with_capacity(BULK_ITEMS_MAX),
            reply_space: vec![0; reply_bytes as usize].into_boxed_slice(),
            arrival: GroupArrival::new(true),
            items: Vec::with_capacity(BULK_ITEMS_MAX),
            leases: Vec::with_capacity(LENT_PARTS_MAX),
            results: Vec::with_capacity(PLAN_ITEMS_MAX),
            group: Group::new(),
            ..Self::default()
        }
    }

    /// Makes the slot free. Its buffers must have been taken out.
    #[inline(always)]
    pub(crate) fn reset(&mut self) {
        debug_assert!(self.read_parts.iter().all(|part| part.buffer.is_none()));
        debug_assert!(self.write_parts.iter().all(|part| part.buffer.is_none()));
        // Late completions and answers of deferred calls name the old generation.
        self.generation = self.generation.wrapping_add(1);
        self.state = IncomingState::Free;
        self.header.clear();
        self.chunks_at = ChunksAt::default();
        self.stream = Stream::Chunk;
        self.chunks.clear();
        self.read_parts.clear();
        self.reads = ReadCursor::default();
        self.deferral = None;
        self.write_parts.clear();
        self.writes = WriteCursor::default();
        self.written.clear();
        self.reply = RpcReply::None;
        self.for_reply_chunk = None;
        self.reply_reserved = 0;
        self.arrival.end();
        self.items.clear();
        self.leases.clear();
        self.results.clear();
        self.group.reset();
        self.has_buffers = false;
        self.wait.ends();
    }

    /// The stream of the RPC reply, if it is in the slot or in a message buffer.
    #[inline(always)]
    pub(crate) fn rpc_reply(&self) -> &[u8] {
        self.reply.stream(&self.reply_space)
    }

    /// The directions of a call that came as a transmission group.
    pub(crate) fn directions(&self) -> Option<&[OpenDirection]> {
        self.is_group().then_some(&self.arrival.directions)
    }

    /// Whether it came as a transmission group, and is answered as one.
    pub(crate) fn is_group(&self) -> bool {
        self.arrival.is_some()
    }

    /// The chunks of the transport header; none without one.
    fn header_chunks(&self) -> Chunks<'_> {
        self.chunks_at.chunks(&self.header)
    }

    /// The chunk lists.
    pub(crate) fn lists(&self) -> ChunkLists<'_> {
        self.header_chunks().lists
    }

    /// The segment to be read next. Moves the cursor to it.
    #[inline(always)]
    pub(crate) fn next_read(&mut self) -> Option<Segment> {
        loop {
            let chunk = *self.chunks.get(self.reads.chunk)?;
            match self.read_segment(chunk, self.reads.segment) {
                Some(segment) if self.reads.segment_done < segment.length_bytes => {
                    return Some(segment);
                }
                Some(_) => self.reads.segment += 1,
                None => (self.reads.chunk, self.reads.segment) = (self.reads.chunk + 1, 0),
            }
            self.reads.segment_done = 0;
        }
    }

    /// Segment `number` of a chunk that is to be read.
    fn read_segment(&self, chunk: Chunk, number: usize) -> Option<Segment> {
        if !self.is_group() {
            let lists = self.lists();
            let mut reads = lists.reads.filter(|it| it.position == chunk.position);
            return reads.nth(number).map(|segment| segment.target);
        }
        let is_it = |item: &MessageItemView<'_>| {
            let is_explicit = matches!(item.location, Location::Explicit(_));
            is_explicit && (item.displacement, item.length_bytes) == (chunk.position, chunk.bytes)
        };
        let Location::Explicit(segments) = self.arrival.items().find(is_it)?.location else {
            return None;
        };
        // The caller's memory may be longer than its item: only the part with the item is read.
        let filled = Fill::new(segments, chunk.bytes).nth(number);
        filled.map(|filled| filled.target)
    }

    /// The memory of the caller that `target` means.
    #[inline(always)]
    pub(crate) fn written_segments(&self, target: Target) -> Option<Segments<'_>> {
        match (target, self.arrival.request()) {
            (Target::Reply, _) => self.lists().reply,
            (Target::Chunk(chunk), None) => self.lists().writes.nth(chunk),
            (Target::Chunk(direction), Some(request)) => {
                let mut directions = request.directions.flat_map(|set| set.items);
                directions.nth(direction)?.location.segments().copied()
            }
        }
    }

    /// The lists as the reply returns them, with `reply_bytes` bytes in the Reply chunk.
    #[inline(always)]
    pub(crate) fn returned(&self, reply_bytes: u32) -> ReturnedLists<'_> {
        let lists = self.lists();
        ReturnedLists {
            writes: lists.writes,
            written_bytes: &self.written,
            reply: lists.reply,
            reply_bytes,
        }
    }

    /// The bytes that these lists add to a header with empty lists.
    #[inline(always)]
    pub(crate) fn returned_bytes(&self) -> usize {
        if self.is_group() {
            return self.arrival.response_header_bytes;
        }
        self.returned(0).encoded_bytes() - EMPTY_LISTS_BYTES
    }

    /// Whether the call or its reply moves anything by chunks.
    pub(crate) fn uses_chunks(&self) -> bool {
        let is_long = matches!(self.reply, RpcReply::InChunk(_));
        is_long || !self.lists().reads.is_empty() || self.written.iter().any(|&bytes| bytes != 0)
    }

    /// The key that the requester wants to be invalidated with the reply, if its call has that key
    /// (-00 section 6.3.3.2); in version 1 the only key of the call (RFC 8797).
    #[inline(always)]
    pub(crate) fn invalidate_key(&self) -> Option<u32> {
        let chunks = self.header_chunks();
        let key = chunks.inv_handle;
        let lists = chunks.lists;
        let mut handles = lists
            .reads
            .map(|segment| segment.target.handle)
            .chain(lists.writes.flatten().map(|segment| segment.handle))
            .chain(lists.reply.into_iter().flatten().map(|it| it.handle));
        (key != 0 && handles.any(|handle| handle == key)).then_some(key)
    }
}

/// The marks of three empty lists.
const EMPTY_LISTS_BYTES: usize = 12;
