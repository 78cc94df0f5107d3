//! What a responder has to make of the chunk lists of a call, and a requester of those of a reply.

use crate::fuzz_targets::reference::{Lists, Segment};

/// What a responder serves.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// Read chunks beside the Position-Zero Read chunk.
    pub read_chunks: usize,
    /// Whether a Position-Zero Read chunk is served.
    pub position_zero: bool,
    /// Write chunks.
    pub write_chunks: usize,
    /// Segments of all lists.
    pub segments: usize,
    /// Octets of a segment.
    pub segment_bytes: u32,
    /// Octets of the call.
    pub call_bytes: u64,
}

/// A piece of the XDR stream of a call: octets of the payload stream from one of them on, a chunk, or round-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Payload stream.
    Stream(u64, u64),
    /// The chunk at a position.
    Chunk(u64, u64),
    /// Zeroes.
    Zeroes(u64),
}

/// The answer to lists that are not served: name of the fault, code and arguments.
pub type Refused = (&'static str, Vec<u32>);

/// The first address behind a segment.
fn end(segment: &Segment) -> u128 {
    u128::from(segment.2) + u128::from(segment.1)
}

fn wraps(segment: &Segment) -> bool {
    segment.1 > 0 && end(segment) > 1 << 64
}

/// Whether two segments have an octet in common. One that wraps is told by that alone.
fn share(a: &Segment, b: &Segment) -> bool {
    let have_octets = a.1 > 0 && b.1 > 0 && !wraps(a) && !wraps(b);
    have_octets && a.0 == b.0 && u128::from(a.2) < end(b) && u128::from(b.2) < end(a)
}

fn check_memory(segments: &[Segment], served: &Served) -> Result<(), Refused> {
    for (index, segment) in segments.iter().enumerate() {
        if segment.1 > served.segment_bytes {
            return Err(("SegmentTooLong", vec![10]));
        }
        if wraps(segment) {
            return Err(("SegmentWraps", vec![2]));
        }
        if segments[index + 1..]
            .iter()
            .any(|other| share(segment, other))
        {
            return Err(("SegmentsOverlap", vec![2]));
        }
    }
    Ok(())
}

/// Checks the lists of a call whose payload is inline, in so many octets, or in its Position-Zero Read chunk. Gives
/// the pieces of its stream and its length.
///
/// # Errors
/// The first fault, in the order: counts, memory, payload, positions, length.
pub fn check_call(
    lists: &Lists,
    inline_bytes: Option<u64>,
    served: &Served,
) -> Result<(Vec<Piece>, u64), Refused> {
    let narrow = |count: usize| u32::try_from(count).expect("few");
    let written = lists.writes.iter().chain(lists.reply.as_ref());
    let written: Vec<Segment> = written.flatten().copied().collect();
    if lists.reads.len() + written.len() > served.segments {
        return Err(("TooManySegments", vec![7, narrow(served.segments)]));
    }
    if lists.writes.len() > served.write_chunks {
        return Err(match served.write_chunks {
            0 => ("TooManyWriteChunks", vec![9, 0]),
            most => ("TooManyWriteChunks", vec![6, narrow(most)]),
        });
    }
    let mut positions: Vec<u32> = lists.reads.iter().map(|read| read.0).collect();
    positions.sort_unstable();
    positions.dedup();
    let has_zero = positions.first() == Some(&0);
    positions.retain(|position| *position > 0);
    if positions.len() > served.read_chunks {
        return Err(("TooManyReadChunks", vec![5, narrow(served.read_chunks)]));
    }
    let read: Vec<Segment> = lists.reads.iter().map(|read| read.1).collect();
    check_memory(&read, served)?;
    check_memory(&written, served)?;
    let chunk_bytes = |position: u32| -> u64 {
        let chunk = lists.reads.iter().filter(|read| read.0 == position);
        chunk.map(|read| u64::from(read.1.1)).sum()
    };
    let stream_bytes = match inline_bytes {
        Some(_) if has_zero => return Err(("TwoPayloads", vec![2])),
        Some(bytes) => bytes,
        None if chunk_bytes(0) == 0 => return Err(("NoPayload", vec![2])),
        None if !served.position_zero => return Err(("PositionZeroRefused", vec![5, 0])),
        None => chunk_bytes(0),
    };
    let too_long = Err(("CallTooLong", vec![10]));
    if stream_bytes > served.call_bytes {
        return too_long;
    }
    if positions.iter().any(|position| position % 4 != 0) {
        return Err(("PositionUnaligned", vec![2]));
    }
    let (mut pieces, mut at, mut taken) = (Vec::new(), 0_u64, 0_u64);
    for position in positions {
        let between = i128::from(position) - i128::from(at);
        if between < 0 || between > i128::from(stream_bytes - taken) {
            return Err(("PositionMisplaced", vec![2]));
        }
        let between = u64::try_from(between).expect("not negative");
        if between > 0 {
            pieces.push(Piece::Stream(taken, between));
            taken += between;
        }
        let bytes = chunk_bytes(position);
        pieces.push(Piece::Chunk(u64::from(position), bytes));
        let round_up = bytes.div_ceil(4) * 4 - bytes;
        if round_up > 0 {
            pieces.push(Piece::Zeroes(round_up));
        }
        at = u64::from(position) + bytes + round_up;
        if at > served.call_bytes {
            return too_long;
        }
    }
    if stream_bytes > taken {
        pieces.push(Piece::Stream(taken, stream_bytes - taken));
    }
    let total = at + stream_bytes - taken;
    if total > served.call_bytes {
        return too_long;
    }
    Ok((pieces, total))
}

/// Checks a chunk that comes back; gives the octets that were written to it.
///
/// # Errors
/// The name of the first fault.
pub fn check_returned(given: &[Segment], returned: &[Segment]) -> Result<u64, &'static str> {
    if given.len() != returned.len() {
        return Err("SegmentCount");
    }
    let mut is_over = false;
    let mut written = 0;
    for (given, returned) in given.iter().zip(returned) {
        if given.0 != returned.0 || given.2 != returned.2 {
            return Err("OtherMemory");
        }
        if returned.1 > given.1 {
            return Err("TooLong");
        }
        if is_over && returned.1 > 0 {
            return Err("Gap");
        }
        is_over |= returned.1 < given.1;
        written += u64::from(returned.1);
    }
    Ok(written)
}
