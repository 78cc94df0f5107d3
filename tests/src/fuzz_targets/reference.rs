//! A reference decoder, as plain as can be: it copies everything into vectors and shares no code with the decoder of
//! `rpcrdma-protocol`. Offsets are indices, and `None` is "not valid".

pub mod v2;

pub use v2::take_lists;

/// A segment: handle, length, offset.
pub type Segment = (u32, u32, u64);

/// Chunk lists in vectors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lists {
    /// Position and segment of each entry of the Read list.
    pub reads: Vec<(u32, Segment)>,
    /// The segments of each chunk of the Write list.
    pub writes: Vec<Vec<Segment>>,
    /// The segments of the Reply chunk.
    pub reply: Option<Vec<Segment>>,
}

/// The word at octet `at`.
#[must_use]
pub fn word(message: &[u8], at: usize) -> Option<u32> {
    let octets = message.get(at..at.checked_add(4)?)?;
    Some(
        octets
            .iter()
            .fold(0, |word, octet| (word << 8) | u32::from(*octet)),
    )
}

/// Reads the word at `at` and moves on.
pub fn take(message: &[u8], at: &mut usize) -> Option<u32> {
    let word = word(message, *at)?;
    *at += 4;
    Some(word)
}

/// Reads variable-length opaque data and its padding at `at`, and moves on.
pub fn take_opaque(message: &[u8], at: &mut usize, bytes_max: usize) -> Option<Vec<u8>> {
    let length = usize::try_from(take(message, at)?).ok()?;
    let padded = length.div_ceil(4) * 4;
    if length > bytes_max || message.len() - *at < padded {
        return None;
    }
    let data = message[*at..*at + length].to_vec();
    *at += padded;
    Some(data)
}

/// The lists of the decoder under test, in the same form; its iterators must agree with their own lengths.
///
/// # Panics
/// When they do not.
#[must_use]
pub fn collected(lists: &rpcrdma_protocol::chunks::ChunkLists<'_>) -> Lists {
    let chunk = |segments: rpcrdma_protocol::chunks::Segments<'_>| {
        let all: Vec<Segment> = segments
            .map(|segment| (segment.handle, segment.length_bytes, segment.offset))
            .collect();
        assert_eq!(all.len(), segments.len());
        assert_eq!(
            segments.total_bytes(),
            all.iter().map(|segment| u64::from(segment.1)).sum::<u64>()
        );
        all
    };
    let reads: Vec<(u32, Segment)> = lists
        .reads
        .map(|read| {
            (
                read.position,
                (
                    read.target.handle,
                    read.target.length_bytes,
                    read.target.offset,
                ),
            )
        })
        .collect();
    assert_eq!(reads.len(), lists.reads.len());
    let writes: Vec<Vec<Segment>> = lists.writes.map(chunk).collect();
    assert_eq!(writes.len(), lists.writes.len());
    let collected = Lists {
        reads,
        writes,
        reply: lists.reply.map(chunk),
    };
    assert_eq!(lists.are_empty(), collected == Lists::default());
    collected
}
