//! How a call is sent, and what it offers for its reply.

mod group;
mod plain;
mod sums;

use core::fmt;

use super::{Demand, PlacedItems, SenderMeans, Thresholds, placed_bits};
use crate::constants::PLAN_ITEMS_MAX;
use crate::v2::plan::layout::{BulkItems, LayoutRequest};
use crate::v2::properties::Properties;
use crate::v2::rtr::{ReceiveBufferStructure, StreamRange};

/// A result that the reply may bring outside its stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedResult {
    /// The part of the call that asks for it (RTR section 7.4). Neighbours of one range make one set of directions.
    pub range: StreamRange,
    /// The most octets that it can have.
    pub bytes_max: u32,
}

/// The facts that a call is planned from.
#[derive(Debug)]
pub struct CallFacts<'a, I: ?Sized> {
    /// The caller's wish.
    pub demand: Demand,
    /// The thresholds of the profile.
    pub thresholds: Thresholds,
    /// Octets of the RPC call without its items.
    pub stream_bytes: u32,
    /// The items that may leave the stream, at most [`PLAN_ITEMS_MAX`].
    pub items: &'a I,
    /// Octets of the RPC reply at most, without the results below.
    pub reply_stream_bytes_max: u32,
    /// The results that may leave the stream of the reply, at most [`PLAN_ITEMS_MAX`].
    pub results: &'a [ExpectedResult],
    /// Our means to send.
    pub means: SenderMeans,
    /// Octets of one Send of plain version 2, which may be shorter than a gathered one.
    pub plain_send_bytes_max: u32,
    /// Whether a call that is continued over several messages can have chunks, which are in the last message.
    pub continues_with_chunks: bool,
    /// The most unused credits that the peer will ever have granted at one time: the high half of its credit word.
    pub credits_max: u32,
    /// Our own properties: what the responder may do.
    pub own: &'a Properties,
    /// The peer's properties.
    pub peer: &'a Properties,
    /// Read chunks that the peer serves, as far as we know.
    pub peer_read_chunks_max: u32,
    /// Write chunks that the peer serves, as far as we know.
    pub peer_write_chunks_max: u32,
    /// Memory windows for this call. With none, nothing is exposed; a reverse call to a peer that takes only inline
    /// messages (-00 section 5.2.5) has none.
    pub windows: u32,
    /// Octets of our memory that one window exposes at most, and of one buffer for results.
    pub window_bytes_max: u32,
    /// Octets of the longest reply that we assemble from several messages.
    pub reply_bytes_max: u32,
    /// Credits granted to the peer that no outstanding call has reserved (the sum of the reserves stays below the
    /// grant).
    pub reply_credits: u32,
}

/// How an item, or an expected result, is moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// In the payload stream. An expected result then has an empty Write chunk, if one that is not empty follows; in a
    /// Transmit Request, a direction of any type with a least length of `u32::MAX`.
    #[default]
    Inline,
    /// In targetable segments, by the Sends of the message.
    Placed,
    /// By explicit RDMA: a Read chunk of the call, a Write chunk for the reply.
    Explicit,
    /// For expected results only: by Send if it fits the transmissions that the reply may take, else by explicit RDMA.
    /// The responder, which knows the length, chooses.
    Choice,
    /// For expected results only: by Send below this length, by explicit RDMA from it on.
    BySize {
        /// Octets.
        explicit_from_bytes: u32,
    },
}

/// A direction for each item or result; `Inline` beyond the last.
pub type Directions = [Direction; PLAN_ITEMS_MAX];

const ALL_INLINE: Directions = [Direction::Inline; PLAN_ITEMS_MAX];

/// The form of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallForm {
    /// One RDMA2_MSG, or with more than one message a sequence of them; chunk lists are in the last.
    Message {
        /// How many.
        messages: u32,
    },
    /// RDMA2_NOMSG: the payload stream is in a Position-Zero Read chunk.
    Long,
    /// A Transmit Request and its continuations.
    Group {
        /// How many transmissions.
        transmissions: u32,
    },
}

/// What a call offers for its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyOffer {
    /// The direction of each result that is expected.
    pub directions: Directions,
    /// The least length of the directions of a Transmit Request, octets: a shorter result stays in the stream.
    pub minimum_bytes: u32,
    /// Octets of the Reply chunk; 0 is none.
    pub reply_chunk_bytes: u32,
    /// Transmissions that the reply to a Transmit Request may take: so many credits are reserved until it has arrived.
    pub transmissions_max: u32,
}

/// A call, planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallPlan {
    /// Its form.
    pub form: CallForm,
    /// How each item is moved: `Inline`, `Placed` or `Explicit`.
    pub items: Directions,
    /// Octets of its payload stream, with the items that stay in it.
    pub stream_bytes: u32,
    /// Octets of the header with all chunk lists; of a Transmit Request with empty lists of segment numbers.
    pub header_bytes: u32,
    /// Credits that are needed to begin. A group begins only with all of them.
    pub credits_needed: u32,
    /// Memory windows that the call takes.
    pub windows_needed: u32,
    /// The offer for the reply.
    pub reply: ReplyOffer,
}

impl CallPlan {
    const fn with_form(mut self, form: CallForm) -> Self {
        self.form = form;
        self
    }

    /// The items for the layout of a group.
    pub fn placed_items<'a, I: BulkItems + ?Sized>(&self, items: &'a I) -> PlacedItems<'a, I> {
        let placed = placed_bits(items.count(), |item| {
            direction(&self.items, item) == Direction::Placed
        });
        PlacedItems { items, placed }
    }

    /// The request for the layout of this plan's group. `structure` is the peer's.
    #[must_use]
    pub fn layout_request<'a, I: ?Sized>(
        &self,
        structure: &'a ReceiveBufferStructure,
        means: &SenderMeans,
        items: &'a PlacedItems<'a, I>,
    ) -> LayoutRequest<'a, PlacedItems<'a, I>> {
        LayoutRequest {
            structure,
            header_bytes: self.header_bytes,
            stream_bytes: self.stream_bytes,
            items,
            limits: means.limits(self.credits_needed),
        }
    }
}

/// Why a call is not made as the caller demanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallRefused {
    /// More than [`PLAN_ITEMS_MAX`] items or results.
    TooManyItems,
    /// The call, or its reply, is longer than any available means can carry.
    TooLong,
    /// Placement by Send was demanded, and an end does not support it, or not enough of it.
    NoSendPlacement,
    /// Explicit RDMA was demanded, and there are not enough windows, or more segments than the peer takes.
    NoExplicitRdma,
}

impl fmt::Display for CallRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooManyItems => "the call has too many items or results",
            Self::TooLong => "no means that there are can carry the call and its reply",
            Self::NoSendPlacement => "the items cannot be placed by Send",
            Self::NoExplicitRdma => "the items cannot go by explicit RDMA",
        })
    }
}

impl core::error::Error for CallRefused {}

/// Chooses how a call is sent and what it offers for its reply.
///
/// With [`Demand::Auto`], the first of these that is possible:
///
/// 1. without anything to be placed: one message, a continued one, or a long call, by the length of its stream;
/// 2. a transmission group, if items or results have a size to be placed by Send, and there are credits for the whole
///    group (RTR section 4.3: otherwise explicit RDMA);
/// 3. everything in the stream, if that is one message, and the longest reply is one too;
/// 4. explicit RDMA for all items and results longer than the threshold up to which they stay in the stream;
/// 5. everything in the stream, continued.
///
/// # Errors
/// [`CallRefused`].
pub fn plan_call<I: BulkItems + ?Sized>(facts: &CallFacts<'_, I>) -> Result<CallPlan, CallRefused> {
    let counts = [facts.items.count(), facts.results.len()];
    if counts.iter().any(|count| *count > PLAN_ITEMS_MAX) {
        return Err(CallRefused::TooManyItems);
    }
    let planner = Planner {
        facts,
        structure: facts.peer.receive_structure(),
        own_structure: facts.own.receive_structure(),
    };
    let lengths = (0..facts.items.count()).map(|item| facts.items.length_bytes(item));
    let is_bulk = lengths
        .chain(facts.results.iter().map(|result| result.bytes_max))
        .any(|length_bytes| length_bytes > 0);
    match facts.demand {
        Demand::Inline => planner.inline(),
        Demand::Send if !is_bulk => planner.inline(),
        Demand::Send => planner
            .group(facts.credits_max)
            .ok_or(CallRefused::NoSendPlacement),
        Demand::Rdma => planner.explicit(1).ok_or(CallRefused::NoExplicitRdma),
        Demand::Auto => planner
            // A call without a credit waits for one anyway.
            .group(facts.means.credits.max(1))
            .or_else(|| planner.short())
            .or_else(|| planner.explicit(facts.thresholds.inline_item_bytes_max.saturating_add(1)))
            .map_or_else(|| planner.inline(), Ok),
    }
}

/// The facts of one call, with the buffer structures that follow from them.
struct Planner<'a, I: ?Sized> {
    facts: &'a CallFacts<'a, I>,
    /// The peer's receive buffers, and our own.
    structure: ReceiveBufferStructure,
    own_structure: ReceiveBufferStructure,
}

fn has_memory(direction: Direction) -> bool {
    matches!(
        direction,
        Direction::Explicit | Direction::Choice | Direction::BySize { .. }
    )
}

fn direction(directions: &Directions, item: usize) -> Direction {
    directions.get(item).copied().unwrap_or_default()
}

fn directions(count: usize, choose: impl Fn(usize) -> Direction) -> Directions {
    core::array::from_fn(|item| {
        if item < count {
            choose(item)
        } else {
            Direction::Inline
        }
    })
}

fn bytes_max(results: &[ExpectedResult], result: usize) -> u32 {
    results.get(result).map_or(0, |expected| expected.bytes_max)
}
