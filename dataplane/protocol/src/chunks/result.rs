//! Results in the memory of the requester: what is written to which segment, the lists that the reply returns, and the
//! requester's check of them (RFC 8166 sections 3.4.6 and 4.3).
//!
//! Both versions use this: neither writes round-up octets into a Write chunk, and a Reply chunk holds a payload stream,
//! whose length includes them.

use core::fmt;

use super::{
    EncodeChunkLists, ReadSegment, Segment, Segments, WriteList, write_read_list,
    write_reply_chunk, write_write_list,
};
use crate::constants::SEGMENT_BYTES;
use crate::error::EncodeError;
use crate::xdr::Writer;

/// A segment of a Write or Reply chunk, and the part of the data that goes there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilledSegment {
    /// The segment as the reply returns it: its length is the number of octets written to it.
    pub target: Segment,
    /// The octets of the data before it.
    pub from_bytes: u32,
}

/// Distributes data of a length over segments, in order, as a responder writes a result.
///
/// It yields every segment, in order: so the same walk gives the RDMA Writes (those whose length is not zero)
/// and the returned chunk. Data beyond the segments is [`left_bytes`](Fill::left_bytes); check before whether a chunk
/// is large enough.
#[derive(Clone, Debug)]
pub struct Fill<I> {
    segments: I,
    from_bytes: u32,
    left_bytes: u32,
}

impl<I: Iterator<Item = Segment>> Fill<I> {
    /// Data of `length_bytes` octets for these segments.
    pub fn new(segments: impl IntoIterator<IntoIter = I>, length_bytes: u32) -> Self {
        Self {
            segments: segments.into_iter(),
            from_bytes: 0,
            left_bytes: length_bytes,
        }
    }

    /// Octets for which no segment was found so far.
    #[must_use]
    pub const fn left_bytes(&self) -> u32 {
        self.left_bytes
    }
}

impl<I: Iterator<Item = Segment>> Iterator for Fill<I> {
    type Item = FilledSegment;

    fn next(&mut self) -> Option<FilledSegment> {
        let segment = self.segments.next()?;
        let length_bytes = segment.length_bytes.min(self.left_bytes);
        let from_bytes = self.from_bytes;
        self.from_bytes += length_bytes;
        self.left_bytes -= length_bytes;
        Some(FilledSegment {
            target: Segment {
                length_bytes,
                ..segment
            },
            from_bytes,
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.segments.size_hint()
    }
}

impl<I: ExactSizeIterator<Item = Segment>> ExactSizeIterator for Fill<I> {}

/// The chunk lists of a reply: those of the call, with the lengths that were written.
///
/// There is no Read list. Every Write chunk comes back with as many segments as it had: one that was not used has
/// lengths of zero, one without segments stays so (RFC 8166 sections 4.3.2.2 and 4.3.2.3).
#[derive(Clone, Copy, Debug, Default)]
pub struct ReturnedLists<'a> {
    /// The Write list of the call.
    pub writes: WriteList<'a>,
    /// Octets written to each Write chunk, in order. Chunks beyond the end were not used.
    pub written_bytes: &'a [u32],
    /// The Reply chunk of the call.
    pub reply: Option<Segments<'a>>,
    /// Octets written to the Reply chunk; 0 when it was not used.
    pub reply_bytes: u32,
}

impl ReturnedLists<'_> {
    /// Octets of the three lists when encoded.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        let chunk_bytes = |chunk: Segments<'_>| 4 + chunk.len() * SEGMENT_BYTES;
        let writes: usize = self.writes.map(|chunk| 4 + chunk_bytes(chunk)).sum();
        3 * 4 + writes + self.reply.map_or(0, chunk_bytes)
    }
}

impl EncodeChunkLists for ReturnedLists<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        let filled = |chunk, length_bytes| Fill::new(chunk, length_bytes).map(|part| part.target);
        let written_bytes = self.written_bytes.iter().copied();
        let lengths = written_bytes.chain(core::iter::repeat(0));
        write_read_list(writer, core::iter::empty::<ReadSegment>())?;
        let writes = self.writes.zip(lengths);
        write_write_list(
            writer,
            writes.map(|(chunk, length_bytes)| filled(chunk, length_bytes)),
        )?;
        write_reply_chunk(
            writer,
            self.reply.map(|chunk| filled(chunk, self.reply_bytes)),
        )
    }
}

/// Why a returned chunk does not match the one that the requester offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReturnedFault {
    /// It has more or fewer segments.
    SegmentCount,
    /// A handle or an offset is another.
    OtherMemory,
    /// A segment is longer than it was.
    TooLong,
    /// Octets follow a segment that was not filled.
    Gap,
}

impl fmt::Display for ReturnedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SegmentCount => "the returned chunk has another number of segments",
            Self::OtherMemory => "a returned segment names other memory",
            Self::TooLong => "a returned segment is longer than the one given",
            Self::Gap => "octets were written behind a segment that is not full",
        })
    }
}

impl core::error::Error for ReturnedFault {}

/// The requester's check of a chunk that a reply returns: the octets that were written, all of them at its beginning.
///
/// # Errors
/// [`ReturnedFault`]: the reply is dropped.
pub fn check_returned(
    given: impl IntoIterator<IntoIter: ExactSizeIterator<Item = Segment>>,
    returned: Segments<'_>,
) -> Result<u64, ReturnedFault> {
    let given = given.into_iter();
    if given.len() != returned.len() {
        return Err(ReturnedFault::SegmentCount);
    }
    let mut written_bytes = 0;
    let mut is_full_so_far = true;
    for (given, returned) in given.zip(returned) {
        if (given.handle, given.offset) != (returned.handle, returned.offset) {
            return Err(ReturnedFault::OtherMemory);
        }
        if returned.length_bytes > given.length_bytes {
            return Err(ReturnedFault::TooLong);
        }
        if returned.length_bytes > 0 && !is_full_so_far {
            return Err(ReturnedFault::Gap);
        }
        is_full_so_far &= returned.length_bytes == given.length_bytes;
        written_bytes += u64::from(returned.length_bytes);
    }
    Ok(written_bytes)
}
