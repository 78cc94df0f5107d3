//! Handles received messages of the extension RTR: transmission groups, and errors in them.

use super::Connection;
use super::event::{
    DiscardReason, Event, Transmission, TransmissionHeading, TransmissionPart, TransmissionRefusal,
    rpc_start_matches,
};
use super::phase::Phase;
use super::receive::{Handled, Raw, Sent};
use crate::constants::{RTR_TRANSMISSIONS_MAX, RTR_TRANSMIT_CONTINUE, V2_PREFIX_BYTES};
use crate::rpc::Direction;
use crate::v2::error::TransportError;
use crate::v2::header::CreditWord;
use crate::v2::rtr::item_checks::check_ranges;
use crate::v2::rtr::{
    Arrival, MessageItems, Mismatch, OutOfRange, Problem, ReceiveBufferStructure, ReportError,
    TransmissionId, TransmitContinue, TransmitRequestView, TransmitResponseView,
};
use crate::xdr::word;

/// Octets of the XID and the message type at the start of a payload stream.
const MESSAGE_START_BYTES: u32 = 8;

/// The first transmission of a group, of either kind.
struct First<'m> {
    id: TransmissionId,
    part: TransmissionPart<'m>,
    transmissions: u32,
    /// The most that we receive.
    transmissions_max: u32,
    arrival: Arrival,
}

impl Connection {
    /// The fast path of [`handle_transmission`](Self::handle_transmission): a first transmission with the header of the
    /// previous one in its direction, which is the only one of its group. `None`, without any change, for all others.
    #[inline(always)]
    #[must_use]
    pub fn handle_like_last(
        &mut self,
        head: &[u8],
        message_bytes: usize,
    ) -> Option<TransmissionHeading> {
        let words = head.first_chunk::<V2_PREFIX_BYTES>()?;
        let is_response = word(words, 4) != 0;
        let direction = Direction::of(is_response);
        let before = self.remembered.get(usize::from(is_response))?;
        let arrival = before.arrival;
        let lists = before.lists_of(head)?;
        let response_transmissions_max = before.response_transmissions_max;
        let header_number = before.number();
        let xid = word(words, 0);
        let begin = usize::try_from(arrival.header_bytes).ok()?;
        let stream_bytes = usize::try_from(arrival.stream_bytes).ok()?;
        let payload = head.get(begin..)?.get(..stream_bytes)?;
        let is_right = usize::try_from(arrival.message_bytes) == Ok(message_bytes)
            && self.phase == Phase::Established
            && self.inbound.is_idle()
            && self.group.is_idle()
            && self.calls.takes(direction)
            && rpc_start_matches(xid, direction, 0, payload);
        if !is_right || !self.credits.receive(CreditWord::from_word(word(words, 2))) {
            return None;
        }
        Some(TransmissionHeading {
            id: TransmissionId {
                xid,
                direction,
                sequence: 0,
            },
            transmissions: 1,
            arrival,
            lists: Some(lists),
            response_transmissions_max,
            header_number,
        })
    }

    pub(super) fn handle_transmit_request<'m>(
        &mut self,
        raw: Raw,
        body: TransmitRequestView<'m>,
        sent: Sent,
        message: &'m [u8],
    ) -> Handled<'m> {
        let first = First {
            id: raw.transmission(0),
            part: TransmissionPart::Request {
                items: body.items,
                directions: body.directions,
                response_transmissions_max: body.response_transmissions_max.max(1),
            },
            transmissions: body.transmissions,
            transmissions_max: self.transmissions_max(self.properties.request_transmissions_max),
            arrival: arrival(sent, body.stream_bytes),
        };
        self.handle_first(raw, &first, Direction::Call, message)
    }

    pub(super) fn handle_transmit_response<'m>(
        &mut self,
        raw: Raw,
        body: TransmitResponseView<'m>,
        sent: Sent,
        message: &'m [u8],
    ) -> Handled<'m> {
        let first = First {
            id: raw.transmission(0),
            part: TransmissionPart::Response { items: body.items },
            transmissions: body.transmissions,
            // The caller compares the number with what its call allowed.
            transmissions_max: self.transmissions_max(u32::MAX),
            arrival: arrival(sent, body.stream_bytes),
        };
        self.handle_first(raw, &first, Direction::Reply, message)
    }

    /// The most transmissions of a group that we receive.
    fn transmissions_max(&self, announced: u32) -> u32 {
        if !self.properties.rtr_support.has_continue() {
            return 1;
        }
        let most = u32::try_from(RTR_TRANSMISSIONS_MAX).unwrap_or(u32::MAX);
        announced.min(most)
    }

    fn handle_first<'m>(
        &mut self,
        raw: Raw,
        first: &First<'m>,
        direction: Direction,
        message: &'m [u8],
    ) -> Handled<'m> {
        let rest = Some(first.transmissions);
        let in_sequence = !self.inbound.is_idle();
        if raw.is_more || in_sequence || first.id.direction != direction {
            return self.refuse_group(raw, rest, TransportError::InvalFlag);
        }
        if !self.calls.takes(direction) {
            return self.refuse_group(raw, rest, TransportError::System);
        }
        if let Err(problem) = self.check_first(first) {
            self.group.refuse(first.id, rest);
            return Ok(report(first.id, None, problem, false));
        }
        let stream_bytes = first.arrival.stream_bytes;
        let is_last = first.transmissions == 1;
        let payload = first.arrival.payload(message);
        if stream_bytes > self.message_bytes_max {
            return self.drop_group(raw, rest, TransportError::System);
        }
        let is_complete = !is_last || stream_bytes >= MESSAGE_START_BYTES;
        if !is_complete || !rpc_start_matches(raw.xid, direction, 0, payload) {
            return self.drop_group(raw, rest, TransportError::BadXdr);
        }
        self.group
            .begin(first.id, first.transmissions, stream_bytes);
        if is_last {
            let [call, reply] = &mut self.remembered;
            let remembered = match direction {
                Direction::Call => call,
                Direction::Reply => reply,
            };
            remembered.remember(message, first.arrival, first.part);
        }
        Ok(Event::Transmission(Transmission {
            id: first.id,
            transmissions: first.transmissions,
            part: first.part,
            arrival: first.arrival,
            stream_offset: 0,
            payload,
        }))
    }

    /// Checks a first transmission on its own.
    fn check_first(&mut self, first: &First<'_>) -> Result<(), Problem> {
        if first.transmissions > first.transmissions_max {
            return Err(Problem::Continuation);
        }
        first.arrival.check_stream()?;
        let items = match first.part {
            TransmissionPart::Request {
                items, directions, ..
            } => {
                check_ranges(directions)?;
                items
            }
            TransmissionPart::Response { items } => items,
            TransmissionPart::Continue => MessageItems::default(),
        };
        self.expectations.check_items(
            items,
            first.transmissions,
            &self.properties.receive_structure(),
            first.arrival,
        )
    }

    pub(super) fn handle_transmit_continue<'m>(
        &mut self,
        raw: Raw,
        body: TransmitContinue,
        sent: Sent,
        message: &'m [u8],
    ) -> Handled<'m> {
        let id = raw.transmission(body.sequence);
        if raw.is_more || !self.inbound.is_idle() {
            return self.refuse(raw, TransportError::InvalFlag);
        }
        if self.group.is_rest(id) {
            self.group.proceed(body.sequence, 0);
            return Ok(Event::Discarded(DiscardReason::SequenceRest));
        }
        if !self.group.is_open() {
            return Ok(report(id, None, Problem::Continuation, false));
        }
        let expected = self.group.expected();
        if (expected.xid, expected.direction) != (id.xid, id.direction) {
            let mismatch = Mismatch {
                expected: expected.xid,
                current: id.xid,
            };
            let lead = Some(self.group.latest());
            let given_up = self.group.give_up(self.group.latest().sequence);
            return Ok(report(id, lead, Problem::Xid(mismatch), given_up));
        }
        if expected.sequence != id.sequence {
            let mismatch = Mismatch {
                expected: expected.sequence,
                current: id.sequence,
            };
            let lead = Some(self.group.latest());
            let given_up = self.group.give_up(id.sequence);
            return Ok(report(id, lead, Problem::Sequence(mismatch), given_up));
        }
        let arrival = arrival(sent, body.stream_bytes);
        let stream_offset = self.group.stream_bytes();
        let stream_bytes = stream_offset.saturating_add(arrival.stream_bytes);
        if let Err((problem, lead)) = self.check_continuation(id, arrival, stream_bytes) {
            let given_up = self.group.give_up(id.sequence);
            return Ok(report(id, lead, problem, given_up));
        }
        if stream_bytes > self.message_bytes_max {
            return self.drop_group(raw, None, TransportError::System);
        }
        let payload = arrival.payload(message);
        let at = usize::try_from(stream_offset).unwrap_or(usize::MAX);
        let is_complete = !self.group.ends_next() || stream_bytes >= MESSAGE_START_BYTES;
        if !is_complete || !rpc_start_matches(raw.xid, id.direction, at, payload) {
            return self.drop_group(raw, None, TransportError::BadXdr);
        }
        let transmissions = self.group.transmissions();
        self.group.proceed(id.sequence, stream_bytes);
        Ok(Event::Transmission(Transmission {
            id,
            transmissions,
            part: TransmissionPart::Continue,
            arrival,
            stream_offset,
            payload,
        }))
    }

    /// Checks an expected continuation. An error has the problem, and the transmission whose header it contradicts.
    fn check_continuation(
        &self,
        id: TransmissionId,
        arrival: Arrival,
        stream_bytes: u32,
    ) -> Result<(), (Problem, Option<TransmissionId>)> {
        arrival.check_stream().map_err(|problem| (problem, None))?;
        let lead = Some(self.group.first());
        let expectations = &self.expectations;
        expectations
            .check_arrival(id.sequence, &self.properties.receive_structure(), arrival)
            .map_err(|problem| (problem, lead))?;
        let missing = expectations.stream_bytes_least.saturating_sub(stream_bytes);
        if self.group.ends_next() && missing > 0 {
            let problem = Problem::StreamLength(OutOfRange {
                value: arrival.stream_bytes,
                min: arrival.stream_bytes.saturating_add(missing),
                max: u32::MAX,
            });
            return Err((problem, lead));
        }
        Ok(())
    }

    /// Handles a message inside a group that may not come there. It breaks the group, and is lost itself.
    pub(super) fn break_group<'m>(&mut self, raw: Raw, rest: Option<u32>) -> Handled<'m> {
        let lead = Some(self.group.latest());
        let problem = Problem::HeaderType(Mismatch {
            expected: RTR_TRANSMIT_CONTINUE,
            current: raw.header_type,
        });
        let given_up = self.give_up_group(raw, rest);
        // A sequence that this message would have begun is discarded as well.
        self.inbound.give_up(raw.xid, raw.continues());
        Ok(report(raw.transmission(0), lead, problem, given_up))
    }

    /// Gives up the open group because of this message, and discards the rest of it, or of the group that the
    /// message begins.
    pub(super) fn give_up_group(&mut self, raw: Raw, rest: Option<u32>) -> bool {
        // A continuation with a wrong header counts as the expected one.
        let passed = if raw.header_type == RTR_TRANSMIT_CONTINUE {
            self.group.expected()
        } else {
            self.group.latest()
        };
        let given_up = self.group.give_up(passed.sequence);
        let is_known = self.properties.rtr_support.has_header_type(raw.header_type);
        if is_known && raw.begins_group() {
            self.group.refuse(raw.transmission(0), rest);
        }
        given_up
    }

    /// As [`refuse`](Self::refuse), for a first transmission of so many.
    fn refuse_group<'m>(
        &mut self,
        raw: Raw,
        rest: Option<u32>,
        error: TransportError,
    ) -> Handled<'m> {
        let refused = self.refuse(raw, error);
        self.group.refuse(raw.transmission(0), rest);
        refused
    }

    /// As [`drop_payload`](Self::drop_payload), for a transmission; `rest` is how many the group has, if this is its
    /// first.
    fn drop_group<'m>(
        &mut self,
        raw: Raw,
        rest: Option<u32>,
        error: TransportError,
    ) -> Handled<'m> {
        if raw.is_response {
            self.give_up_group(raw, rest);
            let xid = raw.xid;
            return Ok(Event::Discarded(match error {
                TransportError::System => DiscardReason::ReplyTooLong { xid },
                _ => DiscardReason::ReplyMismatch { xid },
            }));
        }
        match rest {
            Some(_) => self.refuse_group(raw, rest, error),
            None => self.refuse(raw, error),
        }
    }

    /// Gives up the incoming group for the caller, after a transmission that is not the last: because a reply has more
    /// transmissions than its call allows ([`Problem::Continuation`]), or an item is wrong. The rest of the group is
    /// discarded.
    ///
    /// Returns the report for [`encode_report_error`](Self::encode_report_error), which need not be sent;
    /// `None` when no group is open.
    pub fn handle_group_refused(&mut self, problem: Problem) -> Option<ReportError> {
        let bad = self.group.latest();
        let given_up = self.group.give_up(bad.sequence);
        given_up.then_some(ReportError {
            bad,
            lead: None,
            problem,
        })
    }

    /// The structure of our receive buffers, with which
    /// [`placed_pieces`](crate::v2::rtr::placed_pieces) finds the items of a group.
    #[must_use]
    pub fn receive_structure(&self) -> ReceiveBufferStructure {
        self.properties.receive_structure()
    }

    /// The number of the header of the transmission of this direction that came last, if that was the only one of its group;
    /// 0 if it has none. Headers of a connection and a direction that have the same number differ only in XID and credits.
    #[must_use]
    pub fn header_number(&self, direction: Direction) -> u32 {
        let [call, reply] = &self.remembered;
        match direction {
            Direction::Call => call.number(),
            Direction::Reply => reply.number(),
        }
    }

    /// Whether a transmission group of the peer is being received.
    #[must_use]
    pub const fn is_group_open(&self) -> bool {
        self.group.is_open()
    }
}

impl Raw {
    fn transmission(self, sequence: u32) -> TransmissionId {
        TransmissionId {
            xid: self.xid,
            direction: Direction::of(self.is_response),
            sequence,
        }
    }
}

fn arrival(sent: Sent, stream_bytes: u32) -> Arrival {
    let octets = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    Arrival {
        header_bytes: octets(sent.header_bytes),
        stream_bytes,
        message_bytes: octets(sent.message_bytes),
    }
}

impl Arrival {
    /// The payload stream of a message that passed [`check_stream`](Self::check_stream).
    fn payload(self, message: &[u8]) -> &[u8] {
        let begin = usize::try_from(self.header_bytes).unwrap_or(usize::MAX);
        let bytes = usize::try_from(self.stream_bytes).unwrap_or(usize::MAX);
        message
            .get(begin..)
            .and_then(|behind| behind.get(..bytes))
            .unwrap_or_default()
    }
}

fn report<'m>(
    bad: TransmissionId,
    lead: Option<TransmissionId>,
    problem: Problem,
    group_given_up: bool,
) -> Event<'m> {
    Event::TransmissionRefused(TransmissionRefusal {
        report: ReportError { bad, lead, problem },
        group_given_up,
    })
}
