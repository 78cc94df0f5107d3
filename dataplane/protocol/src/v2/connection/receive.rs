//! Handles received messages.

use super::continued_messages::Kind;
use super::event::{
    CloseReason, DiscardReason, Event, Refusal, Role, WholeMessage, rpc_start_matches,
};
use super::phase::{Phase, PhaseEvent};
use super::{Connection, VERSIONS_SUPPORTED};
use crate::chunks::ChunkLists;
use crate::common::CommonPrefix;
use crate::constants::{
    CONNPROP_BYTES_MAX, OTHER_VERSION_BYTES_LEAST, RDMA_ERROR, RDMA2_CONNPROP, RDMA2_ERROR,
    RDMA2_F_MORE, RDMA2_F_RESPONSE, RDMA2_MSG, RDMA2_NOMSG, RPCRDMA_VERSION_1, RPCRDMA_VERSION_2,
    RTR_REPORT_ERROR, RTR_TRANSMIT_REQUEST, RTR_TRANSMIT_RESPONSE, SEGMENTS_MAX,
    V1_ERROR_BYTES_LEAST, V1_HEADER_BYTES_WITHOUT_CHUNKS, V2_HEADER_BYTES_WITHOUT_CHUNKS,
    V2_MSG_BYTES_LEAST, V2_PREFIX_BYTES, WRITE_CHUNKS_MAX,
};
use crate::error::DecodeError;
use crate::rpc::Direction;
use crate::v2::error::{self, ErrVers, TransportError};
use crate::v2::header::{self, Body, Chunks, CreditWord, Flags, Header};
use crate::v2::properties::PropertySet;
use crate::v2::rtr::{TransmitRequest, TransmitResponse};
use crate::xdr::{Reader, word};

pub(super) type Handled<'m> = Result<Event<'m>, CloseReason>;

/// The words of a version 2 message that can be read even if the rest is wrong.
#[derive(Clone, Copy)]
pub(super) struct Raw {
    pub(super) xid: u32,
    pub(super) header_type: u32,
    pub(super) is_response: bool,
    pub(super) is_more: bool,
    /// It is an RDMA2_NOMSG of 36 octets without chunks and handle: an asynchronous grant, whatever its flags are.
    is_grant: bool,
}

impl Raw {
    fn new(prefix: CommonPrefix, message: &[u8]) -> Self {
        // A message too short to have flags may have been anything. Assume that a sequence continues, so that
        // its rest is discarded.
        let flags = message
            .first_chunk::<V2_PREFIX_BYTES>()
            .map_or(RDMA2_F_MORE, |words| word(words, 4));
        let is_bare = message.len() == V2_HEADER_BYTES_WITHOUT_CHUNKS
            && message.iter().skip(V2_PREFIX_BYTES).all(|&byte| byte == 0);
        Self {
            xid: prefix.xid,
            header_type: prefix.header_type,
            is_response: flags & RDMA2_F_RESPONSE != 0,
            is_more: flags & RDMA2_F_MORE != 0,
            is_grant: prefix.header_type == RDMA2_NOMSG && is_bare,
        }
    }

    /// Whether it is the first transmission of a group.
    pub(super) fn begins_group(self) -> bool {
        matches!(
            self.header_type,
            RTR_TRANSMIT_REQUEST | RTR_TRANSMIT_RESPONSE
        )
    }

    /// Whether it may come inside a transmission group.
    fn stands_apart(self) -> bool {
        self.is_grant || matches!(self.header_type, RDMA2_ERROR | RTR_REPORT_ERROR)
    }

    /// The kind of sequence that continues after this message.
    pub(super) fn continues(self) -> Option<Kind> {
        match self.header_type {
            RDMA2_MSG if self.is_more => Some(Kind::Message(Direction::of(self.is_response))),
            RDMA2_CONNPROP if self.is_more => Some(Kind::Properties),
            _ => None,
        }
    }
}

/// The sizes of a message: its header, and all of it.
#[derive(Clone, Copy)]
pub(super) struct Sent {
    pub(super) header_bytes: usize,
    pub(super) message_bytes: usize,
}

/// Octets up to and with the message type of an RPC message that follows an RDMA2_MSG header without chunks.
const WHOLE_MESSAGE_BYTES_LEAST: usize = V2_HEADER_BYTES_WITHOUT_CHUNKS + RPC_START_BYTES;

/// Octets of an RPC message up to and with its message type.
const RPC_START_BYTES: usize = 8;

impl Connection {
    /// Handles one received Send. Sends have to be passed complete and in order.
    ///
    /// Every message uses a Receive, even a wrong one; the credits that it used or granted are accounted here.
    #[inline]
    pub fn handle_message<'m>(&mut self, message: &'m [u8]) -> Event<'m> {
        let Some(whole) = self.handle_whole_message(message) else {
            return self.handle_transmission(message, message.len());
        };
        let none = Chunks {
            inv_handle: whole.invalidate_handle,
            lists: ChunkLists::default(),
        };
        whole_message(whole.direction, whole.xid, whole.payload, none)
    }

    /// As [`handle_message`](Self::handle_message), for a transmission of the extension RTR of `message_bytes` octets
    /// of which the first are in `head`: at least header and payload stream
    /// ([`transmission_head_bytes`](crate::v2::transmission_head_bytes)). Items need not be in one piece with
    /// them.
    #[inline(never)]
    pub fn handle_transmission<'m>(&mut self, head: &'m [u8], message_bytes: usize) -> Event<'m> {
        match self.handle_like_last(head, message_bytes) {
            Some(heading) => Event::Transmission(heading.transmission(head)),
            None => self.handle_any(head, message_bytes),
        }
    }

    /// The hot path of [`handle_message`](Self::handle_message): a valid whole RPC message without chunks. `None`,
    /// without any change, for all other messages, which then go to that function.
    #[inline]
    pub fn handle_whole_message<'m>(&mut self, message: &'m [u8]) -> Option<WholeMessage<'m>> {
        let words = message.first_chunk::<WHOLE_MESSAGE_BYTES_LEAST>()?;
        // Compared in wire order, so that only words that are used are converted. One OR of all deviations
        // costs one branch.
        let wire = |index| word(words, index).to_be();
        let flags = wire(4);
        let deviation = (wire(1) ^ RPCRDMA_VERSION_2.to_be())
            | (wire(3) ^ RDMA2_MSG.to_be())
            | (flags & !RDMA2_F_RESPONSE.to_be())
            | wire(6)
            | wire(7)
            | wire(8)
            | (wire(9) ^ wire(0))
            | (wire(10) ^ flags);
        let direction = Direction::of(flags != 0);
        if deviation != 0 || !self.takes_whole(direction) {
            return None;
        }
        if !self.credits.receive(CreditWord::from_word(word(words, 2))) {
            return None;
        }
        let (_, payload) = message.split_at(V2_HEADER_BYTES_WITHOUT_CHUNKS);
        Some(WholeMessage {
            direction,
            xid: word(words, 0),
            payload,
            invalidate_handle: word(words, 5),
        })
    }

    /// As [`handle_whole_message`](Self::handle_whole_message), for a message of a [form](crate::form) with this credit word,
    /// whose Receive counts as posted again. `false`, without any change, if it is not to be taken so.
    #[inline]
    #[must_use]
    pub fn handle_form(&mut self, direction: Direction, credit: u32) -> bool {
        let credit = CreditWord::from_word(credit);
        self.takes_whole(direction) && self.credits.receive_reposted(credit)
    }

    /// Notes that the Receive of a message of a form is not posted again yet.
    pub fn handle_form_kept(&mut self) {
        let taken = self.credits.take_receive();
        debug_assert!(taken.is_ok(), "it counts as posted");
    }

    /// Whether a whole RPC message may come now: versions are agreed, and no sequence or group is open.
    #[inline]
    fn takes_whole(&self, direction: Direction) -> bool {
        let is_between = self.inbound.is_idle() && self.group.is_idle();
        is_between && self.calls.takes(direction) && self.phase == Phase::Established
    }

    /// The fast path of [`handle_message`](Self::handle_message) for a valid whole RPC message with chunks whose
    /// payload stream is in the message. `None`, without any change, for all other messages, which then go to that
    /// function.
    #[must_use]
    pub fn handle_chunked_message<'m>(&mut self, message: &'m [u8]) -> Option<Event<'m>> {
        let words = message.first_chunk::<V2_MSG_BYTES_LEAST>()?;
        let wire = |index| word(words, index).to_be();
        let flags = wire(4);
        let deviation = (wire(1) ^ RPCRDMA_VERSION_2.to_be())
            | (wire(3) ^ RDMA2_MSG.to_be())
            | (flags & !RDMA2_F_RESPONSE.to_be());
        let direction = Direction::of(flags != 0);
        if deviation != 0 || !self.takes_whole(direction) {
            return None;
        }
        let mut reader = Reader::new(message.get(V2_PREFIX_BYTES + 4..)?);
        let lists = ChunkLists::decode(&mut reader).ok()?;
        let (xid, payload) = (word(words, 0), reader.rest());
        let is_right = !lists.are_empty()
            && !lists.reads.has_position_zero()
            && lists_are_legal(direction, &lists)
            && payload.len() >= RPC_START_BYTES
            && rpc_start_matches(xid, direction, 0, payload);
        if !is_right || !self.credits.receive(CreditWord::from_word(word(words, 2))) {
            return None;
        }
        let chunks = Chunks {
            inv_handle: word(words, 5),
            lists,
        };
        Some(whole_message(direction, xid, payload, chunks))
    }

    #[inline(never)]
    fn handle_any<'m>(&mut self, message: &'m [u8], message_bytes: usize) -> Event<'m> {
        self.handle_checked(message, message_bytes)
            .unwrap_or_else(|reason| {
                self.phase = self.phase.next(PhaseEvent::Fatal).unwrap_or(Phase::Closed);
                Event::Close(reason)
            })
    }

    fn handle_checked<'m>(&mut self, message: &'m [u8], message_bytes: usize) -> Handled<'m> {
        if self.phase.is_over() {
            return Ok(Event::Discarded(DiscardReason::Over));
        }
        self.credits.take_receive()?;
        let Some(prefix) = CommonPrefix::peek(message) else {
            self.credits.consume()?;
            return Ok(self.discard_short(None));
        };
        if self.role == Role::Client {
            let unanswered = self.phase == Phase::ClientWaiting;
            if let Some(versions) = error::err_vers_in_version_1_layout(message, unanswered) {
                return self.mismatch(versions);
            }
        }
        if prefix.version != RPCRDMA_VERSION_2 {
            return self.handle_other_version(prefix, message.len());
        }
        let raw = Raw::new(prefix, message);
        if raw.is_grant {
            self.hear_uncounted();
        } else {
            self.credits.consume()?;
        }
        // Even if the message is wrong otherwise: the peer has counted these credits as granted.
        if raw.header_type != RDMA2_ERROR {
            self.credits.apply(CreditWord::from_word(prefix.credit))?;
        }
        let decoded = header::decode_with_rtr(message, self.properties.rtr_support);
        if let Err(wrong) = decoded
            && error::refusal(wrong) == error::Refusal::Discard
        {
            return Ok(self.discard_short(Some(raw)));
        }
        if raw.header_type == RDMA2_ERROR {
            return self.handle_error(decoded);
        }
        self.advance(PhaseEvent::PeerSpoke)?;
        match decoded {
            Err(_) if self.header_types.has(raw.header_type) => {
                self.handle_application_message(raw, message)
            }
            Err(wrong) => self.refuse(raw, answer(wrong)),
            Ok(header) => self.handle_body(raw, header, message, message_bytes),
        }
    }

    fn handle_body<'m>(
        &mut self,
        raw: Raw,
        header: Header<'m>,
        message: &'m [u8],
        message_bytes: usize,
    ) -> Handled<'m> {
        if !self.group.is_idle() && !raw.stands_apart() {
            match header.body {
                Body::TransmitContinue(_) => {}
                Body::TransmitRequest(TransmitRequest { transmissions, .. })
                | Body::TransmitResponse(TransmitResponse { transmissions, .. })
                    if self.group.is_open() =>
                {
                    return self.break_group(raw, Some(transmissions));
                }
                _ if self.group.is_open() => return self.break_group(raw, None),
                _ => self.group.pass_other(),
            }
        }
        let header_bytes = header.header_bytes;
        let sent = Sent {
            header_bytes,
            message_bytes,
        };
        match header.body {
            Body::Nomsg(_) if raw.is_grant => {
                if raw.is_more {
                    return self.refuse(raw, TransportError::InvalFlag);
                }
                Ok(Event::Credits)
            }
            Body::Nomsg(chunks) => self.handle_long_message(raw, chunks),
            Body::Msg(chunks) => {
                let payload = message.get(header_bytes..).unwrap_or_default();
                self.handle_payload(raw, chunks, payload)
            }
            Body::Connprop(body) => self.handle_properties(raw, body),
            Body::Error(_) => self.handle_error(Ok(header)),
            Body::TransmitRequest(body) => self.handle_transmit_request(raw, body, sent, message),
            Body::TransmitResponse(body) => self.handle_transmit_response(raw, body, sent, message),
            Body::TransmitContinue(body) => self.handle_transmit_continue(raw, body, sent, message),
            Body::ReportError(report) => {
                if raw.is_more || !self.inbound.is_idle() {
                    return self.refuse(raw, TransportError::InvalFlag);
                }
                Ok(Event::ErrorReported(report))
            }
        }
    }

    // ---- Versions ----

    fn mismatch<'m>(&mut self, versions: ErrVers) -> Handled<'m> {
        self.advance(PhaseEvent::VersionRefused)?;
        Ok(Event::VersionMismatch {
            low: versions.low,
            high: versions.high,
        })
    }

    /// Handles a version other than 2. A server without an agreed version answers which ones it supports.
    fn handle_other_version<'m>(&mut self, prefix: CommonPrefix, bytes: usize) -> Handled<'m> {
        let is_error = prefix.header_type == RDMA_ERROR;
        let least = match (prefix.version, is_error) {
            (RPCRDMA_VERSION_1, true) => V1_ERROR_BYTES_LEAST,
            (RPCRDMA_VERSION_1, false) => V1_HEADER_BYTES_WITHOUT_CHUNKS,
            _ => OTHER_VERSION_BYTES_LEAST,
        };
        self.hear_uncounted();
        if self.phase != Phase::ServerStart {
            self.credits.consume()?;
        }
        if bytes < least {
            return Ok(Event::Discarded(DiscardReason::Short));
        }
        self.advance(PhaseEvent::OtherVersion)?;
        if is_error {
            return Ok(Event::Discarded(DiscardReason::UnexpectedError));
        }
        Ok(Event::Refused(Refusal {
            xid: prefix.xid,
            version: prefix.version,
            error: TransportError::Vers(VERSIONS_SUPPORTED),
            sequence_given_up: false,
        }))
    }

    // ---- Errors of the peer ----

    fn handle_error<'m>(&mut self, decoded: Result<Header<'m>, DecodeError>) -> Handled<'m> {
        self.advance(PhaseEvent::PeerError)?;
        let header = decoded.map_err(|_| CloseReason::BadError)?;
        let Body::Error(error) = header.body else {
            return Err(CloseReason::BadError);
        };
        if header.prefix.flags.is_more() {
            return Err(CloseReason::BadError);
        }
        match (self.phase, error) {
            (Phase::ServerStart, _) => Ok(Event::Discarded(DiscardReason::UnexpectedError)),
            (Phase::ClientWaiting, TransportError::Vers(versions)) => self.mismatch(versions),
            _ => Ok(Event::TransportError {
                xid: header.prefix.xid,
                error,
            }),
        }
    }

    // ---- RPC messages ----

    fn handle_payload<'m>(
        &mut self,
        raw: Raw,
        chunks: Chunks<'m>,
        payload: &'m [u8],
    ) -> Handled<'m> {
        let direction = Direction::of(raw.is_response);
        let kind = Kind::Message(direction);
        if !self.inbound.fits(kind, raw.xid) {
            return self.refuse(raw, TransportError::InvalFlag);
        }
        if self.inbound.is_discarding() {
            self.inbound.accept(kind, raw.xid, 0, raw.is_more);
            return Ok(Event::Discarded(DiscardReason::SequenceRest));
        }
        if !self.calls.takes(direction) {
            return self.refuse(raw, TransportError::System);
        }
        if raw.is_more && !chunks.lists.are_empty() {
            return self.refuse(raw, TransportError::InvalFlag);
        }
        let position_zero = chunks.lists.reads.has_position_zero();
        if position_zero || !lists_are_legal(direction, &chunks.lists) {
            return self.refuse(raw, TransportError::BadXdr);
        }
        let offset = self.inbound.received_bytes();
        let end = u32::try_from(payload.len())
            .ok()
            .and_then(|bytes| offset.checked_add(bytes))
            .unwrap_or(u32::MAX);
        let is_whole = offset == 0 && !raw.is_more;
        if end > self.message_bytes_max && !is_whole {
            return self.drop_payload(raw, TransportError::System);
        }
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        let is_complete =
            raw.is_more || usize::try_from(end).unwrap_or(usize::MAX) >= RPC_START_BYTES;
        if !is_complete || !rpc_start_matches(raw.xid, direction, at, payload) {
            return self.drop_payload(raw, TransportError::BadXdr);
        }
        if is_whole {
            return Ok(whole_message(direction, raw.xid, payload, chunks));
        }
        self.inbound.accept(kind, raw.xid, end, raw.is_more);
        Ok(Event::Fragment {
            direction,
            xid: raw.xid,
            offset,
            payload,
            last: !raw.is_more,
            chunks: chunks.lists,
            invalidate_handle: if raw.is_more { 0 } else { chunks.inv_handle },
        })
    }

    /// Handles RDMA2_NOMSG with an RPC message, which can neither be continued nor end a sequence.
    fn handle_long_message<'m>(&mut self, raw: Raw, chunks: Chunks<'m>) -> Handled<'m> {
        let direction = Direction::of(raw.is_response);
        if raw.is_more || !self.inbound.is_idle() {
            return self.refuse(raw, TransportError::InvalFlag);
        }
        if !self.calls.takes(direction) {
            return self.refuse(raw, TransportError::System);
        }
        let has_message = match direction {
            Direction::Call => chunks.lists.reads.has_position_zero(),
            Direction::Reply => chunks.lists.reply.is_some(),
        };
        if !has_message || !lists_are_legal(direction, &chunks.lists) {
            return self.refuse(raw, TransportError::BadXdr);
        }
        Ok(whole_message(direction, raw.xid, &[], chunks))
    }

    // ---- Properties ----

    fn handle_properties<'m>(&mut self, raw: Raw, body: &'m [u8]) -> Handled<'m> {
        if !self.inbound.fits(Kind::Properties, raw.xid) {
            return self.refuse(raw, TransportError::InvalFlag);
        }
        if self.inbound.is_discarding() {
            self.inbound
                .accept(Kind::Properties, raw.xid, 0, raw.is_more);
            return Ok(Event::Discarded(DiscardReason::SequenceRest));
        }
        let offset = self.inbound.received_bytes();
        let end = usize::try_from(offset)
            .ok()
            .and_then(|offset| offset.checked_add(body.len()))
            .filter(|&end| end <= CONNPROP_BYTES_MAX)
            .and_then(|end| u32::try_from(end).ok());
        let Some(end) = end else {
            return self.refuse(raw, TransportError::System);
        };
        if self.inbound.is_idle() && !raw.is_more {
            return match PropertySet::decode(body) {
                Ok(set) => Ok(Event::Properties { xid: raw.xid, set }),
                Err(_) => self.refuse(raw, TransportError::BadXdr),
            };
        }
        self.inbound
            .accept(Kind::Properties, raw.xid, end, raw.is_more);
        Ok(Event::PropertiesFragment {
            xid: raw.xid,
            offset,
            bytes: body,
            last: !raw.is_more,
        })
    }

    // ---- Header types of the application ----

    fn handle_application_message<'m>(&mut self, raw: Raw, message: &'m [u8]) -> Handled<'m> {
        let Some((words, body)) = message.split_first_chunk::<V2_PREFIX_BYTES>() else {
            return Ok(self.discard_short(Some(raw)));
        };
        if Flags::from_word(word(words, 4)).is_none() {
            return self.refuse(raw, TransportError::InvalFlag);
        }
        if self.group.is_open() {
            return self.break_group(raw, None);
        }
        if !self.group.is_idle() {
            self.group.pass_other();
        }
        if raw.is_more || !self.inbound.is_idle() {
            return self.refuse(raw, TransportError::InvalFlag);
        }
        Ok(Event::ApplicationMessage {
            header_type: raw.header_type,
            xid: raw.xid,
            is_response: raw.is_response,
            body,
        })
    }

    // ---- Messages that are not delivered ----

    /// Handles a wrong message: a responder, and any receiver of CONNPROP, answers it; a requester closes.
    pub(super) fn refuse<'m>(&mut self, raw: Raw, error: TransportError) -> Handled<'m> {
        let given_up = if raw.is_grant {
            None
        } else {
            self.inbound.give_up(raw.xid, raw.continues())
        };
        let group_direction = self.group.expected().direction;
        // `None`: if a group begins with this message, the number of its transmissions is not known.
        let group_given_up = !raw.stands_apart() && self.give_up_group(raw, None);
        let is_reply = raw.is_response && raw.header_type != RDMA2_CONNPROP && !raw.is_grant;
        let ends_reply = matches!(given_up, Some((_, Kind::Message(Direction::Reply))))
            || (group_given_up && group_direction == Direction::Reply);
        if is_reply || ends_reply {
            return Err(CloseReason::BadReply(error));
        }
        Ok(Event::Refused(Refusal {
            xid: raw.xid,
            version: RPCRDMA_VERSION_2,
            error,
            sequence_given_up: given_up.is_some() || group_given_up,
        }))
    }

    /// Handles a message with a valid header and a wrong payload: a call is answered, a reply dropped.
    fn drop_payload<'m>(&mut self, raw: Raw, error: TransportError) -> Handled<'m> {
        if !raw.is_response {
            return self.refuse(raw, error);
        }
        let xid = raw.xid;
        self.inbound.give_up(xid, raw.continues());
        Ok(Event::Discarded(match error {
            TransportError::System => DiscardReason::ReplyTooLong { xid },
            _ => DiscardReason::ReplyMismatch { xid },
        }))
    }

    /// Handles a message below its least size. `raw` is `None` when not even its type is known.
    fn discard_short<'m>(&mut self, raw: Option<Raw>) -> Event<'m> {
        let apart = |raw: Raw| raw.stands_apart() || raw.header_type == RDMA2_NOMSG;
        if self.group.is_open() && !raw.is_some_and(apart) {
            let lost = self.group.expected();
            self.group.give_up(lost.sequence);
            return Event::Discarded(DiscardReason::SequenceBroken { xid: lost.xid });
        }
        let stands_apart =
            raw.is_some_and(|raw| matches!(raw.header_type, RDMA2_ERROR | RDMA2_NOMSG));
        let Some((xid, kind)) = self.inbound.in_progress().filter(|_| !stands_apart) else {
            return Event::Discarded(DiscardReason::Short);
        };
        // Its payload is missing: the rest of the sequence cannot be used.
        let continues = match raw {
            Some(raw) if !raw.is_more => None,
            _ => Some(kind),
        };
        self.inbound.give_up(xid, continues);
        Event::Discarded(DiscardReason::SequenceBroken { xid })
    }
}

/// The rules for the lists of every call and reply (RFC 8166 sections 3.4.5 and 4.3): positions are those of XDR
/// items, and a reply has no Read list.
fn lists_are_legal(direction: Direction, lists: &ChunkLists<'_>) -> bool {
    match direction {
        Direction::Call => lists.reads.positions_are_aligned(),
        Direction::Reply => lists.reads.is_empty(),
    }
}

#[inline]
fn whole_message<'m>(
    direction: Direction,
    xid: u32,
    payload: &'m [u8],
    chunks: Chunks<'m>,
) -> Event<'m> {
    let (chunks, invalidate_handle) = (chunks.lists, chunks.inv_handle);
    match direction {
        Direction::Call => Event::Call {
            xid,
            payload,
            chunks,
            invalidate_handle,
        },
        Direction::Reply => Event::Reply {
            xid,
            payload,
            chunks,
            invalidate_handle,
        },
    }
}

/// The transport error for a header that does not decode. Short messages and other versions were handled before.
fn answer(wrong: DecodeError) -> TransportError {
    let limit = |limit: usize| u32::try_from(limit).unwrap_or(u32::MAX);
    match error::refusal(wrong) {
        error::Refusal::InvalHtype => TransportError::InvalHtype,
        error::Refusal::InvalFlag => TransportError::InvalFlag,
        error::Refusal::WriteChunks => TransportError::WriteChunks {
            max_chunks: limit(WRITE_CHUNKS_MAX),
        },
        error::Refusal::Segments => TransportError::Segments {
            max_segments: limit(SEGMENTS_MAX),
        },
        error::Refusal::BadXdr | error::Refusal::Vers | error::Refusal::Discard => {
            TransportError::BadXdr
        }
    }
}
