//! Calls whose items, or the results they ask for, are placed by Send: Transmit Requests.

use super::sums::{AllResults, Cost};
use super::{
    CallFacts, CallForm, CallPlan, Direction, Directions, ExpectedResult, Planner, ReplyOffer,
    bytes_max, direction, directions, has_memory,
};
use crate::constants::{
    RTR_TRANSMIT_REQUEST_BYTES_LEAST, RTR_TRANSMIT_RESPONSE_BYTES_LEAST, SEGMENT_BYTES,
};
use crate::v2::plan::layout::{BulkItems, SendLimits};
use crate::v2::plan::policy::{Demand, PlacedItems, group_transmissions, placed_bits, stream_with};

impl<I: BulkItems + ?Sized> Planner<'_, I> {
    /// A transmission group of at most so many credits; `None` if nothing is to be placed, or it cannot be. With
    /// [`Demand::Auto`] the thresholds say what is placed, and explicit RDMA moves the longer items and results.
    pub(super) fn group(&self, credits: u32) -> Option<CallPlan> {
        let facts = self.facts;
        if !(facts.peer.rtr_support.has_request() && facts.own.rtr_support.has_request()) {
            return None;
        }
        let (least_bytes, most_bytes) = match facts.demand {
            Demand::Auto => (
                facts.thresholds.inline_item_bytes_max.saturating_add(1),
                facts.thresholds.send_placement_bytes_max,
            ),
            _ => (1, u32::MAX),
        };
        let can_place = self.structure.target_count() > 0;
        let items = directions(facts.items.count(), |item| {
            match facts.items.length_bytes(item) {
                length_bytes if length_bytes < least_bytes => Direction::Inline,
                length_bytes if can_place && length_bytes <= most_bytes => Direction::Placed,
                _ => Direction::Explicit,
            }
        });
        let can_be_placed = self.own_structure.target_count() > 0;
        let results = directions(facts.results.len(), |result| {
            match bytes_max(facts.results, result) {
                bytes_max if bytes_max < least_bytes => Direction::Inline,
                _ if !can_be_placed => Direction::Explicit,
                bytes_max if bytes_max <= most_bytes => Direction::Placed,
                _ => Direction::BySize {
                    explicit_from_bytes: most_bytes.saturating_add(1),
                },
            }
        });
        // If the longest results do not fit the transmissions that the reply may have, they are offered memory too:
        // their true lengths are not known here, and the responder chooses.
        let choice = results.map(|way| match way {
            Direction::Placed | Direction::BySize { .. } => Direction::Choice,
            other => other,
        });
        let has_placed = |results: &&Directions| items.iter().chain(*results).any(is_placed);
        let is_demanded = |results: &&Directions| {
            let by_rdma = items.iter().chain(*results).any(|way| has_memory(*way));
            !(by_rdma && facts.demand == Demand::Send)
        };
        [results, choice]
            .iter()
            .filter(has_placed)
            .filter(is_demanded)
            .find_map(|results| self.group_with(&items, results, least_bytes, credits))
    }

    fn group_with(
        &self,
        items: &Directions,
        results: &Directions,
        minimum_bytes: u32,
        credits: u32,
    ) -> Option<CallPlan> {
        let facts = self.facts;
        let cost = self.cost(items, results, 0)?;
        let response_transmissions = self.response_transmissions(results, minimum_bytes)?;
        let stream_bytes = self.stream_bytes(items)?;
        let header_bytes = request_header_bytes(facts, items, results, &cost)?;
        let placed = PlacedItems {
            items: facts.items,
            placed: placed_bits(facts.items.count(), |item| {
                direction(items, item) == Direction::Placed
            }),
        };
        let most = self.continued(facts.peer.request_transmissions_max);
        let limits = facts.means.limits(most.min(credits));
        let transmissions =
            group_transmissions(&self.structure, header_bytes, stream_bytes, &placed, limits)
                .ok()?;
        Some(CallPlan {
            form: CallForm::Group { transmissions },
            items: *items,
            stream_bytes,
            header_bytes,
            credits_needed: transmissions,
            windows_needed: cost.segments,
            reply: ReplyOffer {
                directions: *results,
                minimum_bytes,
                reply_chunk_bytes: 0,
                transmissions_max: response_transmissions,
            },
        })
    }

    /// A limit of transmissions: 1 if an end does not continue groups.
    fn continued(&self, transmissions_max: u32) -> u32 {
        let [own, peer] =
            [self.facts.own, self.facts.peer].map(|end| end.rtr_support.has_continue());
        if own && peer { transmissions_max } else { 1 }
    }

    /// The most transmissions that the reply can take: those of the longest reply that these directions permit. Its
    /// whole stream has to fit, because a Transmit Request has no Reply chunk.
    fn response_transmissions(&self, results: &Directions, minimum_bytes: u32) -> Option<u32> {
        let facts = self.facts;
        let stays = |result| direction(results, result) == Direction::Inline;
        let lengths = AllResults(facts.results);
        let stream_bytes = stream_with(facts.reply_stream_bytes_max, &lengths, stays)?;
        // A result shorter than its direction asks for goes into the stream.
        let short_bytes = (0..facts.results.len())
            .filter(|result| !stays(*result))
            .map(|result| bytes_max(facts.results, result).min(minimum_bytes.saturating_sub(1)))
            .try_fold(0_u32, |sum, bytes| {
                sum.checked_add(bytes.checked_next_multiple_of(4)?)
            })?;
        let stream_bytes = stream_bytes.checked_add(short_bytes)?;
        let answers_bytes: usize = (0..facts.results.len())
            .map(|result| match direction(results, result) {
                Direction::Inline => 12,
                Direction::Placed => 20,
                Direction::Explicit | Direction::Choice | Direction::BySize { .. } => {
                    let segments = self.segments(bytes_max(facts.results, result));
                    20_usize.saturating_add(segments.saturating_mul(SEGMENT_BYTES))
                }
            })
            .fold(RTR_TRANSMIT_RESPONSE_BYTES_LEAST, usize::saturating_add);
        let longest = LongestResults {
            results: facts.results,
            directions: results,
        };
        let placed = PlacedItems {
            items: &longest,
            placed: u32::MAX,
        };
        // The responder's gather list is not known. With a short one it sends more transmissions, or by other means.
        let limits = SendLimits {
            send_bytes_max: facts.peer.send_bytes_max,
            gather_entries_max: u32::MAX,
            padding_region_bytes: u32::MAX,
            transmissions_max: self
                .continued(facts.peer.response_transmissions_max)
                .min(facts.reply_credits),
        };
        let header_bytes = u32::try_from(answers_bytes).ok()?;
        group_transmissions(
            &self.own_structure,
            header_bytes,
            stream_bytes,
            &placed,
            limits,
        )
        .ok()
    }
}

fn is_placed(direction: &Direction) -> bool {
    matches!(
        direction,
        Direction::Placed | Direction::Choice | Direction::BySize { .. }
    )
}

/// A Transmit Request's header, with empty lists of segment numbers (RTR sections 7.3, 7.4 and 9.2).
fn request_header_bytes<I: BulkItems + ?Sized>(
    facts: &CallFacts<'_, I>,
    items: &Directions,
    results: &Directions,
    cost: &Cost,
) -> Option<u32> {
    let of_items: usize = (0..facts.items.count())
        .map(|item| match direction(items, item) {
            Direction::Placed => 20,
            Direction::Explicit => 16,
            _ => 0,
        })
        .sum();
    let (mut of_results, mut sets, mut range) = (0, 0, None);
    for (result, expected) in facts.results.iter().enumerate() {
        of_results += match direction(results, result) {
            Direction::Explicit | Direction::Choice => 12,
            Direction::BySize { .. } => 16,
            // A result that is to stay in the stream has the direction to be placed, with a least length that it does
            // not have.
            Direction::Placed | Direction::Inline => 8,
        };
        if range.replace(expected.range) != Some(expected.range) {
            sets += 1;
        }
    }
    let segments = cost.read_segments + cost.written_segments;
    let header_bytes = RTR_TRANSMIT_REQUEST_BYTES_LEAST
        + of_items
        + of_results
        + 12 * sets
        + SEGMENT_BYTES * segments;
    u32::try_from(header_bytes).ok()
}

/// The most octets of each result that the Sends of the reply bring.
struct LongestResults<'a> {
    results: &'a [ExpectedResult],
    directions: &'a Directions,
}

impl BulkItems for LongestResults<'_> {
    fn count(&self) -> usize {
        self.results.len()
    }

    fn length_bytes(&self, item: usize) -> u32 {
        let bytes_max = bytes_max(self.results, item);
        match direction(self.directions, item) {
            Direction::Placed => bytes_max,
            Direction::BySize {
                explicit_from_bytes,
            } => bytes_max.min(explicit_from_bytes.saturating_sub(1)),
            Direction::Inline | Direction::Explicit | Direction::Choice => 0,
        }
    }
}
