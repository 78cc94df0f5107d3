//! Chunk lists: what versions 1 and 2 share (RFC 8166 sections 3.4 and 4.3, -00 section 6.3.3).
//!
//! Decoding walks the lists once, checks every mark and count, and keeps byte ranges of the message. The iterators
//! then read segments from those ranges on demand: nothing is allocated, and an item that is not used costs nothing.
//! Empty lists, the common case, cost three word compares.
//!
//! A responder calls [`check_call`] before it moves anything, and gets a [`CallStream`]. It uses [`Fill`] and
//! [`ReturnedLists`] for results. The requester checks returned chunks with [`check_returned`].

mod call;
mod result;

use core::borrow::Borrow;

use crate::constants::{READ_ENTRY_BYTES, SEGMENT_BYTES, SEGMENTS_MAX, WRITE_CHUNKS_MAX};
use crate::error::{DecodeError, EncodeError, Reason};
use crate::xdr::{Reader, Writer};

pub(crate) use call::check_memory;
pub use call::{
    CallStream, ChunkFault, ChunkLimits, PayloadPlace, ReadChunk, ReadChunks, StreamPiece,
    StreamPieces, check_call,
};
pub use result::{Fill, FilledSegment, ReturnedFault, ReturnedLists, check_returned};

/// A range of the peer's memory that RDMA may reach (RFC 8166 section 3.4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Segment {
    /// The rkey or steering tag.
    pub handle: u32,
    /// Octets. Zero is legal: nothing is moved.
    pub length_bytes: u32,
    /// The address, or an offset that the peer chose: its meaning is up to the peer.
    pub offset: u64,
}

/// A segment of the Read list (RFC 8166 section 3.4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReadSegment {
    /// Where the chunk's data belongs in the XDR stream, in octets. Consecutive segments of one position are one
    /// chunk; position zero is the message itself.
    pub position: u32,
    /// The memory to read.
    pub target: Segment,
}

impl Segment {
    #[inline]
    fn from_words(words: &[u8; SEGMENT_BYTES]) -> Self {
        let [
            h0,
            h1,
            h2,
            h3,
            l0,
            l1,
            l2,
            l3,
            o0,
            o1,
            o2,
            o3,
            o4,
            o5,
            o6,
            o7,
        ] = *words;
        Self {
            handle: u32::from_be_bytes([h0, h1, h2, h3]),
            length_bytes: u32::from_be_bytes([l0, l1, l2, l3]),
            offset: u64::from_be_bytes([o0, o1, o2, o3, o4, o5, o6, o7]),
        }
    }

    #[inline]
    fn write(self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        let [h0, h1, h2, h3] = self.handle.to_be_bytes();
        let [l0, l1, l2, l3] = self.length_bytes.to_be_bytes();
        let [o0, o1, o2, o3, o4, o5, o6, o7] = self.offset.to_be_bytes();
        writer.write_array([
            h0, h1, h2, h3, l0, l1, l2, l3, o0, o1, o2, o3, o4, o5, o6, o7,
        ])
    }
}

/// The segments of a Write or Reply chunk, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segments<'a> {
    /// A multiple of `SEGMENT_BYTES`.
    bytes: &'a [u8],
}

impl Segments<'_> {
    /// The sum of the lengths, in octets.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.map(|segment| u64::from(segment.length_bytes)).sum()
    }
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        let (words, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(Segment::from_words(words))
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.bytes.len() / SEGMENT_BYTES;
        (count, Some(count))
    }
}

impl ExactSizeIterator for Segments<'_> {}
impl core::iter::FusedIterator for Segments<'_> {}

/// The Read list, segment by segment, in the order of the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadList<'a> {
    /// A multiple of `READ_ENTRY_BYTES`, without the final mark.
    bytes: &'a [u8],
}

impl ReadList<'_> {
    /// Whether the list is absent.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether a Position-Zero Read chunk is in the list: the call itself, or a part of it, has to be read.
    #[must_use]
    pub fn has_position_zero(&self) -> bool {
        self.into_iter().any(|segment| segment.position == 0)
    }

    /// Whether every position is a multiple of four, as positions in an XDR stream are.
    #[must_use]
    pub fn positions_are_aligned(&self) -> bool {
        self.into_iter()
            .all(|segment| segment.position.is_multiple_of(4))
    }

    /// The number of Read chunks: runs of consecutive segments of one position (RFC 8166 section 3.4.5).
    #[must_use]
    pub fn chunk_count(&self) -> usize {
        let mut previous = None;
        self.into_iter()
            .filter(|segment| previous.replace(segment.position) != Some(segment.position))
            .count()
    }
}

impl Iterator for ReadList<'_> {
    type Item = ReadSegment;

    #[inline]
    fn next(&mut self) -> Option<ReadSegment> {
        let (entry, rest) = self.bytes.split_first_chunk::<READ_ENTRY_BYTES>()?;
        let [_, _, _, _, p0, p1, p2, p3, target @ ..] = entry;
        self.bytes = rest;
        Some(ReadSegment {
            position: u32::from_be_bytes([*p0, *p1, *p2, *p3]),
            target: Segment::from_words(target),
        })
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.bytes.len() / READ_ENTRY_BYTES;
        (count, Some(count))
    }
}

impl ExactSizeIterator for ReadList<'_> {}
impl core::iter::FusedIterator for ReadList<'_> {}

/// The Write list, chunk by chunk. A chunk may be empty: it has no segments (RFC 8166 section 4.3.2.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteList<'a> {
    /// Entries as in the header, without the final mark.
    bytes: &'a [u8],
    chunk_count: usize,
}

impl WriteList<'_> {
    /// Whether the list is absent.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl<'a> Iterator for WriteList<'a> {
    type Item = Segments<'a>;

    #[inline]
    fn next(&mut self) -> Option<Segments<'a>> {
        // The mark, then the chunk. Neither fails on a list that was decoded.
        let (_mark, chunk) = self.bytes.split_first_chunk::<4>()?;
        let mut reader = Reader::new(chunk);
        let segments = read_segments(&mut reader).ok()?;
        self.bytes = reader.rest();
        self.chunk_count -= 1;
        Some(segments)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.chunk_count, Some(self.chunk_count))
    }
}

impl ExactSizeIterator for WriteList<'_> {}
impl core::iter::FusedIterator for WriteList<'_> {}

/// The three chunk lists of a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkLists<'a> {
    /// The memory that the responder has to read.
    pub reads: ReadList<'a>,
    /// The memory to which the responder writes results.
    pub writes: WriteList<'a>,
    /// Where the responder may write the reply itself.
    pub reply: Option<Segments<'a>>,
}

impl<'a> ChunkLists<'a> {
    /// Whether there is neither a Read list, nor a Write list, nor a Reply chunk.
    #[inline]
    #[must_use]
    pub const fn are_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty() && self.reply.is_none()
    }

    /// Reads the three lists and checks them.
    ///
    /// # Errors
    /// `Truncated`, `InvalidBoolean`, `TooManySegments`, `TooManyWriteChunks`.
    pub fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let reads = read_read_list(reader)?;
        let writes = read_write_list(reader)?;
        let reply = if reader.read_bool()? {
            Some(read_segments(reader)?)
        } else {
            None
        };
        Ok(Self {
            reads,
            writes,
            reply,
        })
    }
}

/// The places of the chunk lists in a decoded message. With them, the lists of a copy of the message can be read
/// without decoding it again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListSpans {
    reads: Span,
    writes: Span,
    write_chunks: usize,
    reply: Option<Span>,
}

/// Octets of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Span {
    from: usize,
    bytes: usize,
}

impl Span {
    #[inline]
    fn of(self, message: &[u8]) -> &[u8] {
        message
            .get(self.from..self.from + self.bytes)
            .unwrap_or_default()
    }
}

impl ListSpans {
    /// As [`ChunkLists::decode`], from a reader of the whole message.
    ///
    /// # Errors
    /// As [`ChunkLists::decode`].
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let reads_at = reader.position();
        Ok(Self::of(&ChunkLists::decode(reader)?, reads_at))
    }

    /// The places of `lists`, which were decoded from a message whose Read list begins at octet `reads_at`.
    #[must_use]
    pub(crate) fn of(lists: &ChunkLists<'_>, reads_at: usize) -> Self {
        /// Octets of a mark that says whether a list continues, and of a count of segments.
        const WORD: usize = 4;
        let reads = Span {
            from: reads_at,
            bytes: lists.reads.bytes.len(),
        };
        let writes = Span {
            from: reads.from + reads.bytes + WORD,
            bytes: lists.writes.bytes.len(),
        };
        let reply = lists.reply.map(|segments| Span {
            from: writes.from + writes.bytes + 3 * WORD,
            bytes: segments.bytes.len(),
        });
        Self {
            reads,
            writes,
            write_chunks: lists.writes.chunk_count,
            reply,
        }
    }

    /// The lists in `message`, which is the decoded message, or a copy of it that includes the lists.
    #[inline]
    #[must_use]
    pub fn lists<'m>(&self, message: &'m [u8]) -> ChunkLists<'m> {
        ChunkLists {
            reads: ReadList {
                bytes: self.reads.of(message),
            },
            writes: WriteList {
                bytes: self.writes.of(message),
                chunk_count: self.write_chunks,
            },
            reply: self.reply.map(|span| Segments {
                bytes: span.of(message),
            }),
        }
    }
}

/// Chunk lists that can be written into a header.
pub trait EncodeChunkLists {
    /// Writes the Read list, the Write list and the Reply chunk, with their marks.
    ///
    /// # Errors
    /// `NoSpace`; `TooLong` when a list is longer than a decoder of ours would accept.
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError>;
}

/// Received lists are written unchanged.
impl EncodeChunkLists for ChunkLists<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        write_read_list(writer, self.reads)?;
        write_write_list(writer, self.writes)?;
        write_reply_chunk(writer, self.reply)
    }
}

/// Chunk lists to be encoded, from slices of the caller.
///
/// Other lists, such as the returned Write list with its new lengths, implement [`EncodeChunkLists`] with
/// [`write_read_list`], [`write_write_list`] and [`write_reply_chunk`], from any iterators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkListsRepr<'a> {
    /// The Read list.
    pub reads: &'a [ReadSegment],
    /// The Write list, a slice of segments for each chunk.
    pub writes: &'a [&'a [Segment]],
    /// The Reply chunk.
    pub reply: Option<&'a [Segment]>,
}

impl ChunkListsRepr<'_> {
    /// Octets of the three lists when encoded.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        let chunk_bytes = |segments: &[Segment]| 4 + segments.len() * SEGMENT_BYTES;
        let writes: usize = self.writes.iter().map(|chunk| 4 + chunk_bytes(chunk)).sum();
        3 * 4 + self.reads.len() * READ_ENTRY_BYTES + writes + self.reply.map_or(0, chunk_bytes)
    }
}

impl EncodeChunkLists for ChunkListsRepr<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        write_read_list(writer, self.reads.iter().copied())?;
        write_write_list(
            writer,
            self.writes.iter().map(|chunk| chunk.iter().copied()),
        )?;
        write_reply_chunk(writer, self.reply.map(|chunk| chunk.iter().copied()))
    }
}

/// Writes a Read list and its final mark.
///
/// # Errors
/// `NoSpace`; `TooLong` beyond `SEGMENTS_MAX`.
pub fn write_read_list(
    writer: &mut Writer<'_>,
    segments: impl IntoIterator<Item = ReadSegment>,
) -> Result<(), EncodeError> {
    for (index, segment) in segments.into_iter().enumerate() {
        if index == SEGMENTS_MAX {
            return Err(EncodeError::TooLong);
        }
        writer.write_bool(true)?;
        writer.write_u32(segment.position)?;
        segment.target.write(writer)?;
    }
    writer.write_bool(false)
}

/// Writes a Write list and its final mark.
///
/// # Errors
/// `NoSpace`; `TooLong` beyond `WRITE_CHUNKS_MAX` chunks, or `SEGMENTS_MAX` segments in one.
pub fn write_write_list<C>(
    writer: &mut Writer<'_>,
    chunks: impl IntoIterator<Item = C>,
) -> Result<(), EncodeError>
where
    C: IntoIterator<Item = Segment>,
    C::IntoIter: ExactSizeIterator,
{
    for (index, chunk) in chunks.into_iter().enumerate() {
        if index == WRITE_CHUNKS_MAX {
            return Err(EncodeError::TooLong);
        }
        writer.write_bool(true)?;
        write_segments(writer, chunk)?;
    }
    writer.write_bool(false)
}

/// Writes a Reply chunk, or the mark that says that there is none.
///
/// # Errors
/// `NoSpace`; `TooLong` beyond `SEGMENTS_MAX` segments.
pub fn write_reply_chunk<C>(writer: &mut Writer<'_>, chunk: Option<C>) -> Result<(), EncodeError>
where
    C: IntoIterator<Item = Segment>,
    C::IntoIter: ExactSizeIterator,
{
    writer.write_bool(chunk.is_some())?;
    chunk.map_or(Ok(()), |segments| write_segments(writer, segments))
}

pub(crate) fn write_segments<C>(writer: &mut Writer<'_>, segments: C) -> Result<(), EncodeError>
where
    C: IntoIterator<Item: Borrow<Segment>>,
    C::IntoIter: ExactSizeIterator,
{
    let segments = segments.into_iter();
    if segments.len() > SEGMENTS_MAX {
        return Err(EncodeError::TooLong);
    }
    writer.write_count(segments.len())?;
    for segment in segments {
        segment.borrow().write(writer)?;
    }
    Ok(())
}

fn read_read_list<'a>(reader: &mut Reader<'a>) -> Result<ReadList<'a>, DecodeError> {
    let start = *reader;
    let mut count = 0;
    loop {
        let entry = *reader;
        if !reader.read_bool()? {
            break;
        }
        if count == SEGMENTS_MAX {
            return Err(entry.error(Reason::TooManySegments));
        }
        reader.read_bytes(READ_ENTRY_BYTES - 4)?;
        count += 1;
    }
    Ok(ReadList {
        bytes: start
            .rest()
            .get(..count * READ_ENTRY_BYTES)
            .unwrap_or_default(),
    })
}

fn read_write_list<'a>(reader: &mut Reader<'a>) -> Result<WriteList<'a>, DecodeError> {
    let start = *reader;
    let mut chunk_count = 0;
    let end = loop {
        let entry = *reader;
        if !reader.read_bool()? {
            break entry.position();
        }
        if chunk_count == WRITE_CHUNKS_MAX {
            return Err(entry.error(Reason::TooManyWriteChunks));
        }
        read_segments(reader)?;
        chunk_count += 1;
    };
    let bytes = start
        .rest()
        .get(..end - start.position())
        .unwrap_or_default();
    Ok(WriteList { bytes, chunk_count })
}

pub(crate) fn read_segments<'a>(reader: &mut Reader<'a>) -> Result<Segments<'a>, DecodeError> {
    let count_field = *reader;
    let count = usize::try_from(reader.read_u32()?).unwrap_or(usize::MAX);
    if count > SEGMENTS_MAX {
        return Err(count_field.error(Reason::TooManySegments));
    }
    Ok(Segments {
        bytes: reader.read_bytes(count * SEGMENT_BYTES)?,
    })
}
