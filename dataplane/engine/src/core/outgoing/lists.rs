//! The chunk lists that a call of ours offers.

use rpcrdma_protocol::EncodeError;
use rpcrdma_protocol::chunks::{
    EncodeChunkLists, ReadSegment, Segment, write_read_list, write_reply_chunk, write_write_list,
};
use rpcrdma_protocol::constants::{READ_ENTRY_BYTES, SEGMENT_BYTES};
use rpcrdma_protocol::xdr::Writer;

/// What a segment of a call of ours is for.
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

/// A segment that a call offers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfferedSegment {
    pub(crate) role: Role,
    pub(crate) target: Segment,
    /// The part of the call that it lies in.
    pub(crate) part: u16,
}

/// The lists of a call of ours. The segments stand in the order of [`Role`].
pub(crate) struct OfferedLists<'a> {
    pub(crate) segments: &'a [OfferedSegment],
    /// Write chunks.
    pub(crate) chunks: u8,
}

impl OfferedLists<'_> {
    fn of(&self, role: Role) -> &[OfferedSegment] {
        segments_of(self.segments, role)
    }
}

/// The segments of a chunk, which stand together.
pub(crate) fn segments_of(segments: &[OfferedSegment], role: Role) -> &[OfferedSegment] {
    let is_of = |segment: &OfferedSegment| segment.role == role;
    let Some(first) = segments.iter().position(is_of) else {
        return &[];
    };
    let rest = segments.get(first..).unwrap_or(&[]);
    let end = rest.iter().position(|segment| !is_of(segment));
    rest.get(..end.unwrap_or(rest.len())).unwrap_or(&[])
}

impl EncodeChunkLists for OfferedLists<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        let reads = self.segments.iter().filter_map(|segment| {
            let position = match segment.role {
                Role::Stream => 0,
                Role::Argument { position } => position,
                Role::Result { .. } | Role::Reply => return None,
            };
            let target = segment.target;
            Some(ReadSegment { position, target })
        });
        write_read_list(writer, reads)?;
        let chunks = (0..self.chunks).map(|chunk| Targets(self.of(Role::Result { chunk }).iter()));
        write_write_list(writer, chunks)?;
        let reply = self.of(Role::Reply);
        write_reply_chunk(writer, (!reply.is_empty()).then(|| Targets(reply.iter())))
    }
}

/// The targets of segments.
pub(crate) struct Targets<'a>(pub(crate) std::slice::Iter<'a, OfferedSegment>);

impl Iterator for Targets<'_> {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        self.0.next().map(|segment| segment.target)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Targets<'_> {}

/// Octets that chunk lists take beside the marks of empty ones.
pub(crate) fn list_bytes(reads: usize, chunks: usize, writes: usize, reply: usize) -> usize {
    let reply_count = if reply == 0 { 0 } else { 4 };
    reads * READ_ENTRY_BYTES + chunks * 8 + (writes + reply) * SEGMENT_BYTES + reply_count
}
