//! Calls of plain version 2: in the stream, continued, with chunks, or long.

use super::sums::{AllResults, Cost};
use super::{
    ALL_INLINE, CallForm, CallPlan, CallRefused, Direction, Directions, Planner, ReplyOffer,
    bytes_max, direction, directions, has_memory,
};
use crate::constants::{READ_ENTRY_BYTES, SEGMENT_BYTES};
use crate::v2::plan::layout::BulkItems;
use crate::v2::plan::policy::{Demand, HEADER_BYTES, messages, stream_with};

impl<I: BulkItems + ?Sized> Planner<'_, I> {
    /// Items and results of at least `least_bytes` in chunks; `None` if that is not possible.
    pub(super) fn explicit(&self, least_bytes: u32) -> Option<CallPlan> {
        let facts = self.facts;
        let by_length = |length_bytes: u32| {
            if length_bytes < least_bytes {
                Direction::Inline
            } else {
                Direction::Explicit
            }
        };
        let items = directions(facts.items.count(), |item| {
            by_length(facts.items.length_bytes(item))
        });
        let results = directions(facts.results.len(), |result| {
            by_length(bytes_max(facts.results, result))
        });
        // A peer refuses a call with more chunks than it serves: then all items, or all results, stay in the stream.
        let served = |directions: Directions, most: u32| {
            let explicit = directions.iter().filter(|way| **way == Direction::Explicit);
            let is_served = u32::try_from(explicit.count()).is_ok_and(|count| count <= most);
            if is_served { directions } else { ALL_INLINE }
        };
        let items = served(items, facts.peer_read_chunks_max);
        let results = served(results, facts.peer_write_chunks_max);
        self.plain(&items, &results, facts.demand == Demand::Rdma)
    }

    pub(super) fn inline(&self) -> Result<CallPlan, CallRefused> {
        self.plain(&ALL_INLINE, &ALL_INLINE, false)
            .ok_or(CallRefused::TooLong)
    }

    /// One message without chunks, whose reply is one too; `None` if that is not possible.
    pub(super) fn short(&self) -> Option<CallPlan> {
        let plan = self.plain(&ALL_INLINE, &ALL_INLINE, false)?;
        let is_one = plan.form == CallForm::Message { messages: 1 };
        (is_one && self.is_short_reply(&ALL_INLINE)?).then_some(plan)
    }

    /// A message of plain version 2, with these chunks.
    fn plain(
        &self,
        items: &Directions,
        results: &Directions,
        prefers_chunks: bool,
    ) -> Option<CallPlan> {
        let facts = self.facts;
        let may_expose = facts.windows > 0 && facts.demand != Demand::Inline;
        let stream_bytes = self.stream_bytes(items)?;
        let reply_chunks = self.reply_chunks(results, prefers_chunks, may_expose)?;
        let (reply_chunk_bytes, cost) = reply_chunks.into_iter().flatten().find_map(|bytes| {
            let cost = self.cost(items, results, bytes)?;
            Some((bytes, cost))
        })?;
        let header_bytes = plain_header_bytes(results, &cost)?;
        let plan = CallPlan {
            form: CallForm::Long,
            items: *items,
            stream_bytes,
            header_bytes,
            credits_needed: 1,
            windows_needed: cost.segments,
            reply: ReplyOffer {
                directions: *results,
                minimum_bytes: 0,
                reply_chunk_bytes,
                transmissions_max: 1,
            },
        };
        let may_be_continued = stream_bytes <= facts.means.message_bytes_max
            && (facts.continues_with_chunks || cost.segments == 0);
        let in_messages = messages(stream_bytes, header_bytes, self.send_bytes_max())
            .filter(|messages| *messages == 1 || may_be_continued);
        let as_messages =
            in_messages.map(|messages| plan.with_form(CallForm::Message { messages }));
        let is_preferred = match in_messages {
            Some(1) => true,
            Some(_) => !prefers_chunks && stream_bytes <= facts.thresholds.continued_bytes_max,
            None => false,
        };
        if is_preferred || !may_expose {
            return as_messages;
        }
        self.long(plan, &cost).or(as_messages)
    }

    /// The plan with its stream in a Position-Zero Read chunk, if there are windows and segments for it.
    fn long(&self, mut plan: CallPlan, cost: &Cost) -> Option<CallPlan> {
        let pieces = self.segments(plan.stream_bytes);
        let segments = cost.segments.checked_add(u32::try_from(pieces).ok()?)?;
        let entries_bytes = u32::try_from(pieces.checked_mul(READ_ENTRY_BYTES)?).ok()?;
        plan.windows_needed = segments;
        plan.header_bytes = plan.header_bytes.checked_add(entries_bytes)?;
        let fits = self.may_be(segments) && plan.header_bytes <= self.send_bytes_max();
        fits.then_some(plan)
    }

    /// Octets of the Reply chunk to offer, 0 for none, in the order of preference; `None` if the reply cannot be sent
    /// in any form.
    fn reply_chunks(
        &self,
        results: &Directions,
        prefers_chunks: bool,
        may_expose: bool,
    ) -> Option<[Option<u32>; 2]> {
        let facts = self.facts;
        let stays = |result| direction(results, result) == Direction::Inline;
        let lengths = AllResults(facts.results);
        let stream_bytes = stream_with(facts.reply_stream_bytes_max, &lengths, stays)?;
        let is_short = self.is_short_reply(results)?;
        let none = (is_short || stream_bytes <= facts.reply_bytes_max).then_some(0);
        let is_preferred = prefers_chunks || stream_bytes > facts.thresholds.continued_bytes_max;
        let chunk = (may_expose && !is_short).then_some(stream_bytes);
        Some(match none {
            Some(_) if !is_preferred => [none, None],
            _ => [chunk, none],
        })
    }

    /// Whether the longest reply is one message; `None` if it cannot be sent in any form.
    fn is_short_reply(&self, results: &Directions) -> Option<bool> {
        let stays = |result| direction(results, result) == Direction::Inline;
        let lengths = AllResults(self.facts.results);
        let stream_bytes = stream_with(self.facts.reply_stream_bytes_max, &lengths, stays)?;
        let returned = self.cost(&ALL_INLINE, results, 0)?;
        let message_bytes = plain_header_bytes(results, &returned)?.checked_add(stream_bytes);
        Some(message_bytes.is_some_and(|bytes| bytes <= self.receive_bytes_max()))
    }
}

/// Write chunks of a plain call: up to the last one that is not empty. A result is found by the place of its chunk.
fn write_chunks(results: &Directions) -> usize {
    let last = results.iter().rposition(|direction| has_memory(*direction));
    last.map_or(0, |last| last + 1)
}

/// A header with all its lists (-00 section 6.3.3).
fn plain_header_bytes(results: &Directions, cost: &Cost) -> Option<u32> {
    let reply = match cost.reply_segments {
        0 => 0,
        segments => 4 + segments * SEGMENT_BYTES,
    };
    let lists = cost.read_segments * READ_ENTRY_BYTES
        + write_chunks(results) * 8
        + cost.written_segments * SEGMENT_BYTES
        + reply;
    u32::try_from(lists).ok()?.checked_add(HEADER_BYTES)
}
