//! The checks of a responder on the memory that a Transmit Request names for explicit RDMA (RTR sections 7.3 and 7.4),
//! before it moves anything. [`item_checks`](super::item_checks) has already checked that the memory holds the items,
//! and that displacements are right.

use super::directions::ResponseSets;
use super::items::{Location, MessageItems};
use super::stream::rounded_up;
use crate::chunks::{ChunkFault, ChunkLimits, check_memory};

/// Checks the memory of a Transmit Request: that of its items, which is read, and that of its directions, which is
/// written. The limits are those of chunk lists, except that a direction does not count as a Write chunk: most
/// directions are offered and not used, so their number is limited only by the number of segments.
///
/// # Errors
/// The first [`ChunkFault`] found.
pub fn check_explicit_memory(
    items: MessageItems<'_>,
    directions: ResponseSets<'_>,
    limits: &ChunkLimits,
) -> Result<(), ChunkFault> {
    let read = items.filter_map(|item| match item.location {
        Location::Explicit(segments) => Some((item.length_bytes, segments)),
        _ => None,
    });
    let written = directions.flat_map(|set| set.items);
    let written = written.filter_map(|item| item.location.segments().copied());
    let exceeds = |count: usize, most: u32| u32::try_from(count).map_or(true, |count| count > most);
    let read_segments: usize = read.clone().map(|(_, segments)| segments.len()).sum();
    let written_segments: usize = written.clone().map(|segments| segments.len()).sum();
    if exceeds(read_segments + written_segments, limits.segments_max) {
        return Err(ChunkFault::TooManySegments {
            segments_max: limits.segments_max,
        });
    }
    if exceeds(read.clone().count(), limits.read_chunks_max) {
        return Err(ChunkFault::TooManyReadChunks {
            chunks_max: limits.read_chunks_max,
        });
    }
    check_memory(read.clone().flat_map(|(_, segments)| segments), limits)?;
    check_memory(written.flatten(), limits)?;
    let read_bytes: u64 = read.map(|(bytes, _)| rounded_up(bytes)).sum();
    if read_bytes > u64::from(limits.call_bytes_max) {
        return Err(ChunkFault::CallTooLong);
    }
    Ok(())
}
