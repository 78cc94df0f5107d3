//! A responder's checks of the chunk lists of a call, before it moves anything; and the order in which stream and
//! chunks form the XDR stream of the call.
//!
//! Both versions use this. Version 2 forbids round-up octets in a Read chunk, and version 1 permits them. That makes no
//! difference here: a chunk takes the same room in the stream with or without them. Only the upper-layer binding knows
//! whether the length is that of the item.

use core::fmt;

use super::{ChunkLists, ReadList, Segment};
use crate::v2::error::TransportError;

/// The limits of a responder for one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkLimits {
    /// Read chunks; the Position-Zero Read chunk is not counted.
    pub read_chunks_max: u32,
    /// Whether the call itself may be in a Position-Zero Read chunk.
    pub reads_position_zero: bool,
    /// Write chunks; the Reply chunk is not counted.
    pub write_chunks_max: u32,
    /// Segments over all lists, as announced by the property Maximum RDMA Segment Count (-00 section 5.2.4). The work
    /// of a check grows with its square.
    pub segments_max: u32,
    /// Octets of one segment, as announced by the property Maximum RDMA Segment Size (-00 section 5.2.3).
    pub segment_bytes_max: u32,
    /// Octets of the whole call: its payload stream, and its chunks with their round-up.
    pub call_bytes_max: u32,
}

/// Where the payload stream of a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadPlace {
    /// In the Send, or the Sends of a continued message: RDMA_MSG.
    Inline {
        /// Octets of the stream.
        length_bytes: u32,
    },
    /// In the Position-Zero Read chunk: RDMA_NOMSG.
    PositionZero,
}

/// Why chunk lists are refused. Nothing of the call was moved then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChunkFault {
    /// More Read chunks than are served.
    TooManyReadChunks {
        /// The most that are.
        chunks_max: u32,
    },
    /// A Position-Zero Read chunk, where none is served.
    PositionZeroRefused,
    /// More Write chunks than are served.
    TooManyWriteChunks {
        /// The most that are. If it is 0, the answer asks for a Reply chunk instead (-00 section 6.4.3).
        chunks_max: u32,
    },
    /// More segments than are served, over all lists.
    TooManySegments {
        /// The most that are.
        segments_max: u32,
    },
    /// A segment is longer than is served.
    SegmentTooLong,
    /// The call is longer than is served.
    CallTooLong,
    /// A segment reaches beyond the last address.
    SegmentWraps,
    /// Two segments to be read, or two to be written, share memory: the result would depend on the order.
    SegmentsOverlap,
    /// The payload stream is in the Send, but there is a Position-Zero Read chunk as well.
    TwoPayloads,
    /// The payload stream has to be read, but there is no Position-Zero Read chunk, or an empty one.
    NoPayload,
    /// A position is no multiple of four (RFC 8166 section 3.4.5).
    PositionUnaligned,
    /// A chunk begins inside another, or beyond the end of the stream.
    PositionMisplaced,
}

impl ChunkFault {
    /// The version 2 error that answers the call (-00 section 6.4.3). Version 1 answers all of them with ERR_CHUNK
    /// (RFC 8166 section 4.5.3).
    #[must_use]
    pub const fn transport_error(self) -> TransportError {
        match self {
            Self::TooManyReadChunks { chunks_max } => TransportError::ReadChunks {
                max_chunks: chunks_max,
            },
            Self::PositionZeroRefused => TransportError::ReadChunks { max_chunks: 0 },
            Self::TooManyWriteChunks { chunks_max: 0 } => TransportError::ReplyResource {
                length_needed_bytes: 0,
            },
            Self::TooManyWriteChunks { chunks_max } => TransportError::WriteChunks {
                max_chunks: chunks_max,
            },
            Self::TooManySegments { segments_max } => TransportError::Segments {
                max_segments: segments_max,
            },
            Self::SegmentTooLong | Self::CallTooLong => TransportError::System,
            Self::SegmentWraps
            | Self::SegmentsOverlap
            | Self::TwoPayloads
            | Self::NoPayload
            | Self::PositionUnaligned
            | Self::PositionMisplaced => TransportError::BadXdr,
        }
    }
}

impl fmt::Display for ChunkFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooManyReadChunks { .. } => "the call has too many Read chunks",
            Self::PositionZeroRefused => "a Position-Zero Read chunk is not served here",
            Self::TooManyWriteChunks { .. } => "the call has too many Write chunks",
            Self::TooManySegments { .. } => "the call has too many segments",
            Self::SegmentTooLong => "a segment is too long",
            Self::CallTooLong => "the call is too long",
            Self::SegmentWraps => "a segment reaches beyond the last address",
            Self::SegmentsOverlap => "two segments share memory",
            Self::TwoPayloads => "the payload is inline and in a Position-Zero Read chunk",
            Self::NoPayload => "the call has no payload",
            Self::PositionUnaligned => "a position is no multiple of four",
            Self::PositionMisplaced => "a position is inside a chunk or beyond the stream",
        })
    }
}

impl core::error::Error for ChunkFault {}

/// A call whose chunk lists were checked: a payload stream, and the Read chunks to insert into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallStream<'a> {
    reads: ReadList<'a>,
    place: PayloadPlace,
    stream_bytes: u32,
    total_bytes: u32,
}

/// Checks the chunk lists of a call.
///
/// Read chunks may be in any order, and the segments of one need not be consecutive: the position of each says where it
/// belongs (RFC 8166 section 3.4.5). Segments of no octets are legal everywhere.
///
/// # Errors
/// The first [`ChunkFault`] found.
pub fn check_call<'a>(
    lists: &ChunkLists<'a>,
    place: PayloadPlace,
    limits: &ChunkLimits,
) -> Result<CallStream<'a>, ChunkFault> {
    check_counts(lists, limits)?;
    check_segments(lists, limits)?;
    let stream_bytes = check_payload(lists.reads, place, limits)?;
    let total_bytes = check_positions(lists.reads, stream_bytes, limits)?;
    Ok(CallStream {
        reads: lists.reads,
        place,
        stream_bytes,
        total_bytes,
    })
}

fn check_counts(lists: &ChunkLists<'_>, limits: &ChunkLimits) -> Result<(), ChunkFault> {
    let exceeds = |count: usize, most: u32| u32::try_from(count).map_or(true, |count| count > most);
    let written: usize = lists.writes.map(|chunk| chunk.len()).sum();
    let segments = lists.reads.len() + written + lists.reply.map_or(0, |chunk| chunk.len());
    if exceeds(segments, limits.segments_max) {
        return Err(ChunkFault::TooManySegments {
            segments_max: limits.segments_max,
        });
    }
    if exceeds(lists.writes.len(), limits.write_chunks_max) {
        return Err(ChunkFault::TooManyWriteChunks {
            chunks_max: limits.write_chunks_max,
        });
    }
    // Each step of `ReadChunks` is a pass over the list: the limit bounds the number of passes.
    let most = usize::try_from(limits.read_chunks_max).unwrap_or(usize::MAX);
    if ReadChunks::beyond_zero(lists.reads).nth(most).is_some() {
        return Err(ChunkFault::TooManyReadChunks {
            chunks_max: limits.read_chunks_max,
        });
    }
    Ok(())
}

/// Checks every segment, and every pair of segments.
fn check_segments(lists: &ChunkLists<'_>, limits: &ChunkLimits) -> Result<(), ChunkFault> {
    check_memory(lists.reads.map(|read| read.target), limits)?;
    let reply = lists.reply.into_iter().flatten();
    check_memory(lists.writes.flatten().chain(reply), limits)
}

pub(crate) fn check_memory(
    segments: impl Iterator<Item = Segment> + Clone,
    limits: &ChunkLimits,
) -> Result<(), ChunkFault> {
    let mut rest = segments;
    while let Some(segment) = rest.next() {
        if segment.length_bytes > limits.segment_bytes_max {
            return Err(ChunkFault::SegmentTooLong);
        }
        if segment.length_bytes > 0 && last_address(segment).is_none() {
            return Err(ChunkFault::SegmentWraps);
        }
        if rest.clone().any(|other| shares_memory(segment, other)) {
            return Err(ChunkFault::SegmentsOverlap);
        }
    }
    Ok(())
}

/// The address of the last octet of a segment that has one.
fn last_address(segment: Segment) -> Option<u64> {
    let beyond_first = segment.length_bytes.checked_sub(1)?;
    segment.offset.checked_add(u64::from(beyond_first))
}

fn shares_memory(a: Segment, b: Segment) -> bool {
    let (Some(a_last), Some(b_last)) = (last_address(a), last_address(b)) else {
        return false;
    };
    a.handle == b.handle && a.offset <= b_last && b.offset <= a_last
}

/// Checks that the payload is in one place, and returns its octets.
fn check_payload(
    reads: ReadList<'_>,
    place: PayloadPlace,
    limits: &ChunkLimits,
) -> Result<u32, ChunkFault> {
    let stream_bytes = match place {
        PayloadPlace::Inline { .. } if reads.has_position_zero() => {
            return Err(ChunkFault::TwoPayloads);
        }
        PayloadPlace::Inline { length_bytes } => u64::from(length_bytes),
        PayloadPlace::PositionZero => match chunk_bytes(reads, 0) {
            0 => return Err(ChunkFault::NoPayload),
            _ if !limits.reads_position_zero => return Err(ChunkFault::PositionZeroRefused),
            length_bytes => length_bytes,
        },
    };
    within(stream_bytes, limits)
}

/// Checks that each chunk begins within the stream and not inside another chunk. Returns the octets of the whole call.
fn check_positions(
    reads: ReadList<'_>,
    stream_bytes: u32,
    limits: &ChunkLimits,
) -> Result<u32, ChunkFault> {
    if !reads.positions_are_aligned() {
        return Err(ChunkFault::PositionUnaligned);
    }
    let (mut place_bytes, mut taken_bytes) = (0_u64, 0_u64);
    for position in ReadChunks::beyond_zero(reads).positions() {
        let between = u64::from(position)
            .checked_sub(place_bytes)
            .ok_or(ChunkFault::PositionMisplaced)?;
        taken_bytes += between;
        if taken_bytes > u64::from(stream_bytes) {
            return Err(ChunkFault::PositionMisplaced);
        }
        let length_bytes = chunk_bytes(reads, position);
        place_bytes = u64::from(position) + length_bytes.next_multiple_of(4);
        within(place_bytes, limits)?;
    }
    within(place_bytes + u64::from(stream_bytes) - taken_bytes, limits)
}

fn within(length_bytes: u64, limits: &ChunkLimits) -> Result<u32, ChunkFault> {
    u32::try_from(length_bytes)
        .ok()
        .filter(|length_bytes| *length_bytes <= limits.call_bytes_max)
        .ok_or(ChunkFault::CallTooLong)
}

/// Octets of the chunk at `position`. At most `SEGMENTS_MAX` segments of 32-bit lengths: no sum wraps.
fn chunk_bytes(reads: ReadList<'_>, position: u32) -> u64 {
    reads
        .filter(|read| read.position == position)
        .map(|read| u64::from(read.target.length_bytes))
        .sum()
}

impl<'a> CallStream<'a> {
    /// Octets of the payload stream, without the chunks that go into it.
    #[must_use]
    pub const fn stream_bytes(&self) -> u32 {
        self.stream_bytes
    }

    /// Octets of the whole call: stream, chunks and round-up.
    #[must_use]
    pub const fn total_bytes(&self) -> u32 {
        self.total_bytes
    }

    /// The chunk with the payload stream; `None` if that came inline.
    #[must_use]
    pub fn position_zero(&self) -> Option<ReadChunk<'a>> {
        match self.place {
            PayloadPlace::Inline { .. } => None,
            PayloadPlace::PositionZero => Some(ReadChunk::of(self.reads, 0)),
        }
    }

    /// The Read chunks that go into the stream, by position; the Position-Zero Read chunk is not among them.
    #[must_use]
    pub const fn chunks(&self) -> ReadChunks<'a> {
        ReadChunks::beyond_zero(self.reads)
    }

    /// The XDR stream, piece by piece.
    #[must_use]
    pub const fn pieces(&self) -> StreamPieces<'a> {
        StreamPieces {
            chunks: self.chunks(),
            chunk: None,
            round_up_bytes: 0,
            place_bytes: 0,
            taken_bytes: 0,
            stream_bytes: self.stream_bytes,
        }
    }
}

/// A Read chunk of a call that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadChunk<'a> {
    /// Where its data belongs in the XDR stream.
    pub position: u32,
    /// Octets, over all its segments.
    pub length_bytes: u32,
    reads: ReadList<'a>,
}

impl<'a> ReadChunk<'a> {
    fn of(reads: ReadList<'a>, position: u32) -> Self {
        Self {
            position,
            // A checked call has no longer chunk.
            length_bytes: u32::try_from(chunk_bytes(reads, position)).unwrap_or(u32::MAX),
            reads,
        }
    }

    /// The memory to be read, in order, without segments of no octets.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + Clone + use<'a> {
        let position = self.position;
        self.reads
            .filter(move |read| read.position == position && read.target.length_bytes > 0)
            .map(|read| read.target)
    }
}

/// Read chunks in the order of their positions.
#[derive(Clone, Copy, Debug)]
pub struct ReadChunks<'a> {
    reads: ReadList<'a>,
    after: u32,
}

impl<'a> ReadChunks<'a> {
    const fn beyond_zero(reads: ReadList<'a>) -> Self {
        Self { reads, after: 0 }
    }

    fn next_position(&mut self) -> Option<u32> {
        let after = self.after;
        self.after = self
            .reads
            .map(|read| read.position)
            .filter(|position| *position > after)
            .min()?;
        Some(self.after)
    }

    fn positions(mut self) -> impl Iterator<Item = u32> + use<'a> {
        core::iter::from_fn(move || self.next_position())
    }
}

impl<'a> Iterator for ReadChunks<'a> {
    type Item = ReadChunk<'a>;

    fn next(&mut self) -> Option<ReadChunk<'a>> {
        self.next_position()
            .map(|position| ReadChunk::of(self.reads, position))
    }
}

impl core::iter::FusedIterator for ReadChunks<'_> {}

/// A piece of a call's XDR stream. Only a chunk may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamPiece {
    /// Octets of the payload stream.
    Stream {
        /// Where they begin in it.
        from_bytes: u32,
        /// How many.
        length_bytes: u32,
    },
    /// The data of a Read chunk.
    Chunk {
        /// Its position.
        position: u32,
        /// Its octets.
        length_bytes: u32,
    },
    /// Zeroes that round the chunk before up to a multiple of four.
    RoundUp {
        /// How many, from 1 to 3.
        length_bytes: u32,
    },
}

/// Yields the pieces of a call's XDR stream in order.
#[derive(Clone, Copy, Debug)]
pub struct StreamPieces<'a> {
    chunks: ReadChunks<'a>,
    /// Found, and not yet yielded: octets of the payload stream come before it.
    chunk: Option<ReadChunk<'a>>,
    round_up_bytes: u32,
    place_bytes: u32,
    taken_bytes: u32,
    stream_bytes: u32,
}

impl StreamPieces<'_> {
    fn take_stream(&mut self, length_bytes: u32) -> StreamPiece {
        let from_bytes = self.taken_bytes;
        self.taken_bytes += length_bytes;
        self.place_bytes += length_bytes;
        StreamPiece::Stream {
            from_bytes,
            length_bytes,
        }
    }
}

impl Iterator for StreamPieces<'_> {
    type Item = StreamPiece;

    fn next(&mut self) -> Option<StreamPiece> {
        let length_bytes = core::mem::take(&mut self.round_up_bytes);
        if length_bytes > 0 {
            self.place_bytes += length_bytes;
            return Some(StreamPiece::RoundUp { length_bytes });
        }
        let Some(chunk) = self.chunk.take().or_else(|| self.chunks.next()) else {
            let rest = self.stream_bytes - self.taken_bytes;
            return (rest > 0).then(|| self.take_stream(rest));
        };
        let between = chunk.position - self.place_bytes;
        if between > 0 {
            self.chunk = Some(chunk);
            return Some(self.take_stream(between));
        }
        self.place_bytes += chunk.length_bytes;
        self.round_up_bytes = chunk.length_bytes.wrapping_neg() & 3;
        Some(StreamPiece::Chunk {
            position: chunk.position,
            length_bytes: chunk.length_bytes,
        })
    }
}

impl core::iter::FusedIterator for StreamPieces<'_> {}
