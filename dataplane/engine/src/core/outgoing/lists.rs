//! The segments that a call of ours offers.

use rpcrdma_protocol::chunks::Segment;
use rpcrdma_protocol::constants::{READ_ENTRY_BYTES, SEGMENT_BYTES};

/// The purpose of a segment of a call of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It holds the call itself: the Position-Zero Read chunk.
    Stream,
    /// It holds an item of the call, which belongs at this position of the message.
    Argument { position: u32 },
    /// It takes result `chunk`.
    Result { chunk: u8 },
    /// It takes the reply itself.
    Reply,
}

impl Role {
    /// Whether the peer writes to it.
    pub(crate) fn is_written(self) -> bool {
        matches!(self, Self::Result { .. } | Self::Reply)
    }
}

/// A segment that a call offers. A call keeps them in the order of [`Role`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfferedSegment {
    pub(crate) role: Role,
    pub(crate) target: Segment,
    /// The part of the call that has its memory.
    pub(crate) part: u16,
}

/// The segments of a chunk, which are consecutive.
pub(crate) fn segments_of(segments: &[OfferedSegment], role: Role) -> &[OfferedSegment] {
    let is_of = |segment: &OfferedSegment| segment.role == role;
    let Some(first) = segments.iter().position(is_of) else {
        return &[];
    };
    let rest = segments.get(first..).unwrap_or(&[]);
    let end = rest.iter().position(|segment| !is_of(segment));
    rest.get(..end.unwrap_or(rest.len())).unwrap_or(&[])
}

/// The targets of the segments of a chunk.
pub(crate) fn targets_of(
    segments: &[OfferedSegment],
    role: Role,
) -> impl ExactSizeIterator<Item = Segment> {
    let segments = segments_of(segments, role).iter();
    segments.map(|segment| segment.target)
}

/// Octets that chunk lists add to a header with empty lists.
pub(crate) fn list_bytes(reads: usize, chunks: usize, writes: usize, reply: usize) -> usize {
    let reply_count = if reply == 0 { 0 } else { 4 };
    reads * READ_ENTRY_BYTES + chunks * 8 + (writes + reply) * SEGMENT_BYTES + reply_count
}
