//! What the chunks of a call need: segments, windows, octets.

use super::{
    CallFacts, Direction, Directions, ExpectedResult, Planner, bytes_max, direction, has_memory,
};
use crate::v2::plan::layout::BulkItems;
use crate::v2::plan::policy::stream_with;

impl<I: BulkItems + ?Sized> Planner<'_, I> {
    /// Octets of a message of plain version 2 to the peer.
    pub(super) fn send_bytes_max(&self) -> u32 {
        let own = (self.facts.means.send_bytes_max).min(self.facts.plain_send_bytes_max);
        own.min(self.facts.peer.receive_buffer_bytes)
    }

    /// Octets of a message from the peer.
    pub(super) fn receive_bytes_max(&self) -> u32 {
        (self.facts.peer.send_bytes_max).min(self.facts.own.receive_buffer_bytes)
    }

    /// Octets of the payload stream, with the items that stay in it.
    pub(super) fn stream_bytes(&self, items: &Directions) -> Option<u32> {
        let stays = |item| direction(items, item) == Direction::Inline;
        stream_with(self.facts.stream_bytes, self.facts.items, stays)
    }

    /// Segments for so many octets of our memory: each window is cut into segments that the peer accepts.
    pub(super) fn segments(&self, length_bytes: u32) -> usize {
        let window_bytes = self.facts.window_bytes_max.max(1);
        let segment_bytes = segment_bytes_max(self.facts);
        let (full, rest) = (length_bytes / window_bytes, length_bytes % window_bytes);
        let segments = u64::from(full) * u64::from(window_bytes.div_ceil(segment_bytes))
            + u64::from(rest.div_ceil(segment_bytes));
        usize::try_from(segments).unwrap_or(usize::MAX)
    }

    /// Whether a call may expose so much: one window for each segment.
    pub(super) fn may_be(&self, segments: u32) -> bool {
        segments <= self.facts.peer.segment_count_max && segments <= self.facts.windows
    }

    /// What the chunks need; `None` if that is more than permitted.
    pub(super) fn cost(
        &self,
        items: &Directions,
        results: &Directions,
        reply_chunk_bytes: u32,
    ) -> Option<Cost> {
        let facts = self.facts;
        let read_segments = (0..facts.items.count())
            .filter(|item| direction(items, *item) == Direction::Explicit)
            .map(|item| facts.items.segments(item, segment_bytes_max(facts)))
            .map(|segments| usize::try_from(segments).unwrap_or(usize::MAX))
            .fold(0, usize::saturating_add);
        let written_segments = (0..facts.results.len())
            .filter(|result| has_memory(direction(results, *result)))
            .map(|result| self.segments(bytes_max(facts.results, result)))
            .fold(0, usize::saturating_add);
        let reply_segments = self.segments(reply_chunk_bytes);
        let segments = read_segments
            .checked_add(written_segments)?
            .checked_add(reply_segments)?;
        let segments = u32::try_from(segments)
            .ok()
            .filter(|segments| self.may_be(*segments))?;
        Some(Cost {
            read_segments,
            written_segments,
            reply_segments,
            segments,
        })
    }
}

/// What chunks need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub(super) read_segments: usize,
    pub(super) written_segments: usize,
    pub(super) reply_segments: usize,
    /// All of them; each takes a memory window.
    pub(super) segments: u32,
}

/// Octets of one segment of ours.
fn segment_bytes_max<I: ?Sized>(facts: &CallFacts<'_, I>) -> u32 {
    let most = facts.window_bytes_max.min(facts.peer.segment_bytes_max);
    most.max(1)
}

/// The results with their greatest lengths.
pub(super) struct AllResults<'a>(pub(super) &'a [ExpectedResult]);

impl BulkItems for AllResults<'_> {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn length_bytes(&self, item: usize) -> u32 {
        bytes_max(self.0, item)
    }
}
