//! How a reply is sent, with the offer of its call.

use super::{
    HEADER_BYTES, PlacedItems, SenderMeans, Thresholds, V1_HEADER_BYTES, group_transmissions,
    messages, placed_bits, rounded_up, stream_with,
};
use crate::chunks::{ReturnedLists, Segments, WriteList};
use crate::constants::{
    PLAN_ITEMS_MAX, RTR_ITEMS_MAX, RTR_TRANSMIT_RESPONSE_BYTES_LEAST, SEGMENT_BYTES,
};
use crate::v2::error::TransportError;
use crate::v2::plan::layout::{BulkItems, LayoutRequest};
use crate::v2::properties::Properties;
use crate::v2::rtr::{ReceiveBufferStructure, ResponseItemView, ResponseLocation, ResponseSets};

/// The results of a call that may leave the stream of its reply, in the order of the stream.
pub trait ReplyItems: BulkItems {
    /// A position in the call by which the directions for the result are found, for example that of the operation
    /// which asked for it (RTR section 7.4). Plain version 2 does not use it.
    fn request_position(&self, item: usize) -> u32 {
        let _ = item;
        0
    }
}

/// Results of these lengths, each in one part, of a call of one operation.
impl ReplyItems for [u32] {}

/// The offer of the call for its reply.
#[derive(Clone, Copy, Debug)]
pub enum RequesterOffer<'a> {
    /// The lists of an RDMA2_MSG or RDMA2_NOMSG.
    Chunks {
        /// Its Write list.
        writes: WriteList<'a>,
        /// Its Reply chunk.
        reply: Option<Segments<'a>>,
    },
    /// The directions of a Transmit Request.
    Directions {
        /// The directions.
        sets: ResponseSets<'a>,
        /// How many transmissions the reply may take; 0 counts as 1.
        transmissions_max: u32,
    },
}

/// The facts that a reply is planned from.
#[derive(Debug)]
pub struct ReplyFacts<'a, I: ?Sized> {
    /// The thresholds of the profile.
    pub thresholds: Thresholds,
    /// Octets of the RPC reply without the results below.
    pub stream_bytes: u32,
    /// The results that may leave the stream. Those from number [`PLAN_ITEMS_MAX`] on stay in it.
    pub results: &'a I,
    /// The offer of the call.
    pub offer: RequesterOffer<'a>,
    /// The call came in version 1: its reply has one message.
    pub is_version_1: bool,
    /// Results may leave the stream: no security service protects it as one whole (RFC 8166 section 8.2.2).
    pub may_reduce: bool,
    /// Our means to send.
    pub means: SenderMeans,
    /// Our own properties.
    pub own: &'a Properties,
    /// The requester's properties.
    pub peer: &'a Properties,
}

/// How a result is moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ResultWay {
    /// In the payload stream.
    #[default]
    Inline,
    /// In the payload stream, because it is shorter than direction `direction` demands.
    TooShort {
        /// Which direction, counted through all sets.
        direction: usize,
    },
    /// In targetable segments, as direction `direction` permits.
    Placed {
        /// Which direction, counted through all sets.
        direction: usize,
    },
    /// By RDMA Write, into Write chunk or direction `chunk`.
    Written {
        /// Which Write chunk; of a Transmit Request, which direction, counted through all sets.
        chunk: usize,
    },
}

impl ResultWay {
    const fn stays(self) -> bool {
        matches!(self, Self::Inline | Self::TooShort { .. })
    }
}

/// The form of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplyForm {
    /// One RDMA2_MSG, or with more than one message a sequence of them; the lists are in the last.
    Message {
        /// How many.
        messages: u32,
    },
    /// RDMA2_NOMSG: the payload stream is written to the Reply chunk.
    Long,
    /// A Transmit Response and its continuations.
    Group {
        /// How many transmissions.
        transmissions: u32,
    },
}

/// A reply, planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyPlan {
    /// Its form.
    pub form: ReplyForm,
    /// How each result is moved.
    pub results: [ResultWay; PLAN_ITEMS_MAX],
    /// Octets of its payload stream, with the results that stay in it.
    pub stream_bytes: u32,
    /// Octets of the header with all lists; of a Transmit Response with empty lists of segment numbers.
    pub header_bytes: u32,
    /// Credits that are needed to begin. A group waits for all of them: the requester keeps them in reserve.
    pub credits_needed: u32,
}

impl ReplyPlan {
    /// The octets written to each Write chunk of a plain call, for [`ReturnedLists`].
    pub fn written_bytes<I: BulkItems + ?Sized>(&self, results: &I) -> [u32; PLAN_ITEMS_MAX] {
        core::array::from_fn(|chunk| match self.results.get(chunk) {
            // A result has the number of its Write chunk: `plan_plain` pairs them in order.
            Some(ResultWay::Written { .. }) => results.length_bytes(chunk),
            _ => 0,
        })
    }

    /// The result that uses direction `direction`, and how it is moved; `None` if no result does.
    #[must_use]
    pub fn answer(&self, direction: usize) -> Option<(usize, ResultWay)> {
        let met = |way: &ResultWay| match *way {
            ResultWay::Inline => None,
            ResultWay::TooShort { direction } | ResultWay::Placed { direction } => Some(direction),
            ResultWay::Written { chunk } => Some(chunk),
        };
        let ways = self.results.iter().copied().enumerate();
        ways.into_iter()
            .find(|(_, way)| met(way) == Some(direction))
    }

    /// The results for the layout of a group.
    pub fn placed_items<'a, I: BulkItems + ?Sized>(&self, results: &'a I) -> PlacedItems<'a, I> {
        placed_items(results, &self.results)
    }

    /// The request for the layout of this plan's group. `structure` is the requester's.
    #[must_use]
    pub fn layout_request<'a, I: ?Sized>(
        &self,
        structure: &'a ReceiveBufferStructure,
        means: &SenderMeans,
        results: &'a PlacedItems<'a, I>,
    ) -> LayoutRequest<'a, PlacedItems<'a, I>> {
        LayoutRequest {
            structure,
            header_bytes: self.header_bytes,
            stream_bytes: self.stream_bytes,
            items: results,
            limits: means.limits(self.credits_needed),
        }
    }
}

/// Chooses how a reply is sent.
///
/// To a plain call (-00 section 6.5): each result is written into its Write chunk. The rest is inline if it fits,
/// continued if there are credits for all of it, in the Reply chunk, or else continued as credits come. If a Write
/// chunk is too small, its result and those after it stay in the stream. Version 1 has no continuation, and there a
/// Write chunk that is too small is an error (RFC 8166 section 4.5.3).
///
/// To a Transmit Request: each result is moved as its direction says. If the group would have more transmissions than
/// requester and responder agreed to, results whose direction offers memory are written there instead.
///
/// # Errors
/// The error that answers the call if no form is possible: WRITE_RESOURCE with the first chunk or direction that is
/// too small, REPLY_RESOURCE with the length of the stream, SYSTEM if not even the lists fit a message.
pub fn plan_reply<I: ReplyItems + ?Sized>(
    facts: &ReplyFacts<'_, I>,
) -> Result<ReplyPlan, TransportError> {
    match facts.offer {
        RequesterOffer::Chunks { writes, reply } => plan_plain(facts, writes, reply),
        RequesterOffer::Directions {
            sets,
            transmissions_max,
        } => plan_group(facts, sets, transmissions_max),
    }
}

// ---- Version 1 and plain version 2 ----

fn plan_plain<I: ReplyItems + ?Sized>(
    facts: &ReplyFacts<'_, I>,
    writes: WriteList<'_>,
    reply: Option<Segments<'_>>,
) -> Result<ReplyPlan, TransportError> {
    let mut results = [ResultWay::Inline; PLAN_ITEMS_MAX];
    let mut too_small = None;
    let ways = results.iter_mut().take(facts.results.count());
    for (chunk, (way, segments)) in ways.zip(writes).enumerate() {
        if !facts.may_reduce {
            break;
        }
        let length_bytes = facts.results.length_bytes(chunk);
        // A chunk without segments forces its result inline (RFC 8166 section 4.3.2.3).
        if segments.len() == 0 {
            continue;
        }
        if segments.total_bytes() < u64::from(length_bytes) {
            if facts.is_version_1 {
                return Err(write_resource(chunk, length_bytes));
            }
            // Results are matched with chunks by their order. If this chunk stayed empty and the next one were filled,
            // the requester could take the next result for this one.
            too_small = Some((chunk, length_bytes));
            break;
        }
        *way = ResultWay::Written { chunk };
    }

    let header_bytes = match facts.is_version_1 {
        true => V1_HEADER_BYTES,
        false => HEADER_BYTES,
    };
    let header_bytes =
        plain_header_bytes(header_bytes, writes, reply).ok_or(TransportError::System)?;
    let send_bytes_max = (facts.means.send_bytes_max).min(facts.peer.receive_buffer_bytes);
    if header_bytes > send_bytes_max {
        return Err(TransportError::System);
    }
    let stream_bytes = stream_with(facts.stream_bytes, facts.results, |result| {
        way_of(&results, result).stays()
    })
    .ok_or(TransportError::System)?;
    let form = plain_form(facts, reply, stream_bytes, header_bytes, send_bytes_max);
    let Some(form) = form else {
        return Err(match too_small {
            Some((chunk, length_needed_bytes)) => write_resource(chunk, length_needed_bytes),
            None => TransportError::ReplyResource {
                length_needed_bytes: stream_bytes,
            },
        });
    };
    Ok(ReplyPlan {
        form,
        results,
        stream_bytes,
        header_bytes,
        credits_needed: 1,
    })
}

fn plain_form<I: ?Sized>(
    facts: &ReplyFacts<'_, I>,
    reply: Option<Segments<'_>>,
    stream_bytes: u32,
    header_bytes: u32,
    send_bytes_max: u32,
) -> Option<ReplyForm> {
    let messages = messages(stream_bytes, header_bytes, send_bytes_max).filter(|messages| {
        let continues = !facts.is_version_1 && stream_bytes <= facts.means.message_bytes_max;
        *messages == 1 || continues
    });
    let fits_reply_chunk =
        reply.is_some_and(|chunk| chunk.total_bytes() >= u64::from(stream_bytes));
    let is_at_once = messages.is_some_and(|messages| {
        let is_preferred = stream_bytes <= facts.thresholds.continued_bytes_max;
        messages == 1 || (is_preferred && messages <= facts.means.credits)
    });
    if fits_reply_chunk && !is_at_once {
        return Some(ReplyForm::Long);
    }
    messages.map(|messages| ReplyForm::Message { messages })
}

/// Octets of the header of a plain reply, which returns the lists of the call; with empty lists it has `least_bytes`.
fn plain_header_bytes(
    least_bytes: u32,
    writes: WriteList<'_>,
    reply: Option<Segments<'_>>,
) -> Option<u32> {
    let lists = ReturnedLists {
        writes,
        reply,
        ..ReturnedLists::default()
    };
    let empty = ReturnedLists::default().encoded_bytes();
    u32::try_from(lists.encoded_bytes() - empty)
        .ok()?
        .checked_add(least_bytes)
}

// ---- Round-trip reduction ----

fn plan_group<I: ReplyItems + ?Sized>(
    facts: &ReplyFacts<'_, I>,
    sets: ResponseSets<'_>,
    transmissions_max: u32,
) -> Result<ReplyPlan, TransportError> {
    let structure = facts.peer.receive_structure();
    let continues = facts.peer.rtr_support.has_continue() && facts.own.rtr_support.has_continue();
    let limit = match continues {
        true => (transmissions_max.max(1)).min(facts.own.response_transmissions_max),
        false => 1,
    };
    // The second round writes to memory what the first one placed by Send, where the call offers memory for it.
    for prefers_send in [true, false] {
        let results = directed(facts, sets, prefers_send)?;
        let placed = placed_items(facts.results, &results);
        let stream_bytes = stream_with(facts.stream_bytes, facts.results, |result| {
            way_of(&results, result).stays()
        });
        let (Some(stream_bytes), Some(header_bytes)) =
            (stream_bytes, group_header_bytes(sets, &results))
        else {
            break;
        };
        let limits = facts.means.limits(limit);
        let laid_out = group_transmissions(&structure, header_bytes, stream_bytes, &placed, limits);
        if let Ok(transmissions) = laid_out {
            return Ok(ReplyPlan {
                form: ReplyForm::Group { transmissions },
                results,
                stream_bytes,
                header_bytes,
                credits_needed: transmissions,
            });
        }
    }
    // The requester sends the call again as a plain one, with a Reply chunk that holds all of the reply.
    let whole: u64 = (0..facts.results.count())
        .map(|result| rounded_up(facts.results.length_bytes(result)))
        .sum();
    let length_needed_bytes = u32::try_from(whole + u64::from(facts.stream_bytes)).unwrap_or(0);
    Err(TransportError::ReplyResource {
        length_needed_bytes,
    })
}

/// How each result is moved, by its direction. Results outside every range, and those for which their set has no
/// direction left, stay in the stream.
fn directed<I: ReplyItems + ?Sized>(
    facts: &ReplyFacts<'_, I>,
    sets: ResponseSets<'_>,
    prefers_send: bool,
) -> Result<[ResultWay; PLAN_ITEMS_MAX], TransportError> {
    let mut results = [ResultWay::Inline; PLAN_ITEMS_MAX];
    let mut first_direction = 0;
    for set in sets {
        let count = set.items.len();
        let is_in_range = |result: &usize| {
            let position = facts.results.request_position(*result);
            (set.range.begin..set.range.end).contains(&position)
        };
        let met = (0..facts.results.count().min(PLAN_ITEMS_MAX)).filter(is_in_range);
        for (index, (result, item)) in met.zip(set.items).enumerate() {
            let length_bytes = facts.results.length_bytes(result);
            let chosen = choose(
                &item,
                length_bytes,
                first_direction + index,
                prefers_send,
                facts.thresholds.send_placement_bytes_max,
            )?;
            if let Some(way) = results.get_mut(result) {
                *way = chosen;
            }
        }
        first_direction += count;
    }
    Ok(results)
}

/// How a result of this length is moved under this direction (RTR sections 6.2 and 7.4, tables 1 and 2).
fn choose(
    item: &ResponseItemView<'_>,
    length_bytes: u32,
    direction: usize,
    prefers_send: bool,
    send_placement_bytes_max: u32,
) -> Result<ResultWay, TransportError> {
    // An empty result is never placed.
    if length_bytes < item.minimum_bytes.max(1) {
        return Ok(ResultWay::TooShort { direction });
    }
    let fits = |segments: &Segments<'_>| segments.total_bytes() >= u64::from(length_bytes);
    let written = ResultWay::Written { chunk: direction };
    let placed = ResultWay::Placed { direction };
    Ok(match item.location {
        ResponseLocation::Placed => placed,
        ResponseLocation::Choice(segments) => {
            let by_send = prefers_send && length_bytes <= send_placement_bytes_max;
            if by_send || !fits(&segments) {
                placed
            } else {
                written
            }
        }
        ResponseLocation::BySize {
            explicit_from_bytes,
            segments,
        } if length_bytes < explicit_from_bytes => {
            if prefers_send || !fits(&segments) {
                placed
            } else {
                written
            }
        }
        ResponseLocation::Explicit(segments) | ResponseLocation::BySize { segments, .. } => {
            if !fits(&segments) {
                return Err(write_resource(direction, length_bytes));
            }
            written
        }
    })
}

/// Octets of a Transmit Response's header, with empty lists of segment numbers: an item for each direction. `None` if
/// there are more items than a message may have.
fn group_header_bytes(
    sets: ResponseSets<'_>,
    results: &[ResultWay; PLAN_ITEMS_MAX],
) -> Option<u32> {
    let directions = sets.flat_map(|set| set.items);
    if directions.clone().count() > RTR_ITEMS_MAX {
        return None;
    }
    let answer = |direction: usize, item: &ResponseItemView<'_>| {
        let is_written = results.contains(&ResultWay::Written { chunk: direction });
        let is_placed = results.contains(&ResultWay::Placed { direction });
        match item.location.segments() {
            Some(segments) if is_written => 4 + SEGMENT_BYTES * segments.len(),
            _ if is_placed => 8,
            _ => 0,
        }
    };
    let items: usize = directions
        .enumerate()
        .map(|(direction, item)| 12 + answer(direction, &item))
        .sum();
    u32::try_from(RTR_TRANSMIT_RESPONSE_BYTES_LEAST + items).ok()
}

// ---- Both ----

fn write_resource(chunk: usize, length_needed_bytes: u32) -> TransportError {
    TransportError::WriteResource {
        chunk_index: u32::try_from(chunk + 1).unwrap_or(0),
        length_needed_bytes,
    }
}

fn way_of(results: &[ResultWay; PLAN_ITEMS_MAX], result: usize) -> ResultWay {
    results.get(result).copied().unwrap_or_default()
}

fn placed_items<'a, I: BulkItems + ?Sized>(
    results: &'a I,
    ways: &[ResultWay; PLAN_ITEMS_MAX],
) -> PlacedItems<'a, I> {
    let placed = placed_bits(results.count(), |result| {
        matches!(way_of(ways, result), ResultWay::Placed { .. })
    });
    PlacedItems {
        items: results,
        placed,
    }
}
