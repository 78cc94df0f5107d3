//! A call of a peer with chunks, or in a transmission group, and the states that it goes through.

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

/// Pieces of a reply that are written, at most: those of its items, and between them those of its stream.
pub(crate) const WRITE_PARTS_MAX: usize = 2 * BULK_PARTS_MAX + 2 * BULK_ITEMS_MAX;

/// Pieces of the items that a service is lent for one call: those that Sends have placed, and those that were read.
pub(super) const LENT_PARTS_MAX: usize = LANDINGS_MAX + BULK_PARTS_MAX;

/// How far a call has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum IncomingState {
    /// Nobody uses the slot.
    #[default]
    Free,
    /// The rest of its transmission group has not come.
    Arriving,
    /// Its items were placed by Sends, and wait for spare placement segments to take their places.
    Placing,
    /// Its chunks wait for buffers to be read into.
    AwaitingBuffers,
    /// Its chunks are read.
    Reading,
    /// It waits to be served.
    Ready,
    /// Its service will answer later.
    Deferred,
    /// Its results are written, and its reply is sent.
    Answering,
    /// Its reply leaves in parts.
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
    /// Its bytes, where they are known to be.
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

/// A chunk that is read: where it belongs, and how long it is.
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
    /// Those posted that have not succeeded: one that fails stays among them.
    pub(crate) in_flight: u32,
}

/// Where a piece of a reply is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// To this Write chunk, or what this direction of a Transmit Request offers.
    Chunk(usize),
    /// To the Reply chunk.
    Reply,
}

/// A piece of a reply that is to be written.
#[derive(Debug)]
pub(crate) struct WritePart {
    /// Away while an RDMA Write takes a part of it.
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

/// The RPC reply to a call, without what its Write chunks take.
#[derive(Debug, Default)]
pub(crate) enum RpcReply {
    /// There is none so far.
    #[default]
    None,
    /// It stands in the slot, so many bytes.
    Short(usize),
    /// It is too long for one message, or was when its service wrote it.
    Long(MessageBuffer),
    /// It is written to the Reply chunk, so many bytes.
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

/// A reply of at most one result, which went as one transmission and was not written: all that its
/// plan depends on beside the header of its call, and what it came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedReply {
    /// What the ends had told of themselves.
    pub(crate) properties_epoch: u64,
    pub(crate) rpc_bytes: usize,
    pub(crate) result: Option<ReplyResult>,
    pub(crate) parts: usize,
    pub(crate) item: Option<GroupItem>,
    pub(crate) header_bytes: u32,
    pub(crate) stream_bytes: u32,
}

/// The inputs of the plan for a one-message reply to a call with chunk lists. A reply with equal inputs reuses the plan.
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
    /// Of its slot.
    pub(crate) index: u32,
    /// How often the slot was used before.
    pub(crate) generation: u32,
    pub(crate) state: IncomingState,
    pub(crate) connection: ConnectionKey,
    pub(crate) xid: u32,
    /// When it was found.
    pub(crate) found_at: Ticks,
    /// The transport header, and the first word behind it.
    pub(crate) header: Vec<u8>,
    /// Where its chunks stand in it.
    pub(crate) chunks_at: ChunksAt,
    pub(crate) stream: Stream,
    /// The chunks to be read, or the items of a transmission group that are, by position.
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) read_parts: Vec<BulkPart>,
    pub(crate) reads: ReadCursor,
    pub(crate) deferral: Option<DeferId>,
    /// Bytes of the call before its arguments, once it was served.
    pub(crate) arguments_at: u32,
    /// Whether items of its reply may leave the stream, likewise.
    pub(crate) may_reduce: bool,
    pub(crate) write_parts: Vec<WritePart>,
    pub(crate) writes: WriteCursor,
    /// Bytes of the result in each Write chunk.
    pub(crate) written: Vec<u32>,
    pub(crate) reply: RpcReply,
    /// Bytes of the reply that is to go to the Reply chunk, with the items that stay in its stream, until it is there.
    pub(crate) for_reply_chunk: Option<u32>,
    pub(crate) reply_space: Box<[u8]>,
    /// Transmissions that its reply may take, when it came as a transmission group.
    pub(crate) reply_reserved: u32,
    /// The call, when it came as a transmission group.
    pub(crate) arrival: GroupArrival,
    /// Its items, and the pieces of those that Sends have placed.
    pub(crate) items: Vec<ArgumentItem>,
    pub(crate) leases: Vec<Option<Lease>>,
    /// What the service made of each direction.
    pub(crate) results: Vec<ReplyResult>,
    /// How the reply to the call before went, when that came with the same header.
    pub(crate) planned: Option<PlannedReply>,
    /// The terms of the previous reply to a call with chunk lists.
    pub(crate) planned_listed: Option<ListedTerms>,
    /// The reply, when it is sent as a transmission group.
    pub(crate) group: Group,
    /// It may have bulk buffers: it is read, was served, or is answered.
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
    pub(crate) fn reset(&mut self) {
        debug_assert!(self.read_parts.iter().all(|part| part.buffer.is_none()));
        debug_assert!(self.write_parts.iter().all(|part| part.buffer.is_none()));
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

    /// The stream of the RPC reply, as far as it stands in the slot or in a message buffer.
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

    /// The segment that is to be read next, from where the cursor stands.
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
        // The memory may be longer than the item in it.
        let filled = Fill::new(segments, chunk.bytes).nth(number);
        filled.map(|filled| filled.target)
    }

    /// The memory that this part of the reply is written to.
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

    /// The lists as the reply returns them, with so many bytes of it in the Reply chunk.
    pub(crate) fn returned(&self, reply_bytes: u32) -> ReturnedLists<'_> {
        let lists = self.lists();
        ReturnedLists {
            writes: lists.writes,
            written_bytes: &self.written,
            reply: lists.reply,
            reply_bytes,
        }
    }

    /// The bytes that these lists take in the header beside the marks of empty ones.
    pub(crate) fn returned_bytes(&self) -> usize {
        if self.is_group() {
            return self.arrival.response_header_bytes;
        }
        self.returned(0).encoded_bytes() - EMPTY_LISTS_BYTES
    }

    /// Whether the reply brings anything by chunks, or the call did.
    pub(crate) fn uses_chunks(&self) -> bool {
        let is_long = matches!(self.reply, RpcReply::InChunk(_));
        is_long || !self.lists().reads.is_empty() || self.written.iter().any(|&bytes| bytes != 0)
    }

    /// The key that the requester asks to be invalidated with the reply, if it is one of those of
    /// its call (-00 section 6.3.3.2); in version 1 the only key of the call (RFC 8797).
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
