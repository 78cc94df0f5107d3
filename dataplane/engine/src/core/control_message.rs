//! Decides what to do about messages other than whole RPC messages without chunks: parts, properties, grants, errors,
//! and wrong messages.

use rpcrdma_protocol::constants::V2_PREFIX_BYTES;
use rpcrdma_protocol::v2::connection::{Direction, DiscardReason, Event, Refusal};
use rpcrdma_protocol::v2::rtr::ReportError;
use rpcrdma_protocol::v2::{PropertySet, TransportError};

use crate::application_messages::PeerProperties;
use crate::close_reason::CloseReason;
use crate::connection::{Assembled, Connection, Taken};
use crate::counters::Counters;
use crate::handle::PROPERTY_BYTES_MAX;
use crate::message::{MessageBuffer, MessagesOf};
use crate::rpc::CallError;

/// What remains to be done about a message. Most of it is done after its Receive is posted again.
pub(super) enum Action {
    /// Nothing.
    Done,
    /// A part of a message has to wait, in its Receive, for a message buffer or a slot.
    HoldPart(Part),
    /// The last part of an RPC message arrived.
    Assembled {
        direction: Direction,
        xid: u32,
        message: MessageBuffer,
    },
    /// The peer's properties are for the control plane.
    Properties(Box<[u8]>),
    /// A call of ours ends with an error.
    EndCall { xid: u32, error: CallError },
    /// The peer refused what we sent with this XID.
    PeerError { xid: u32, error: TransportError },
    /// The message is answered with a transport error.
    Refuse(Refusal),
    /// A transmission of the peer is answered with a Report Error.
    Report(ReportError),
    /// The peer reported an error about a transmission of ours.
    PeerReport(ReportError),
    /// The message whose parts arrive now is given up, for this reason.
    GiveUp(GivenUp),
    /// A message for the application, in its Receive.
    Application(Heading),
    /// The connection uses version 1 from now on.
    FellBack,
    /// The server does not speak our version.
    VersionMismatch { low: u32, high: u32 },
    /// The connection has to be closed.
    Close(CloseReason),
}

/// Why a message that arrives in parts is given up.
pub(super) enum GivenUp {
    /// A part is missing. If the message is a reply, its call ends.
    Broken,
    /// The message is refused with a transport error.
    Refused(Refusal),
    /// The message is a reply, and its call ends with this error.
    Reply { xid: u32, error: CallError },
}

/// The header of a message of an application's header type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heading {
    pub(super) header_type: u32,
    pub(super) xid: u32,
    pub(super) is_answer: bool,
}

/// A part of a message, without its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) what: Assembled,
    pub(super) xid: u32,
    /// Where it belongs; 0 begins a message.
    pub(super) offset: u32,
    /// Whether the message ends with it.
    pub(super) last: bool,
    /// The number of the message among those of its lane.
    pub(super) message: u32,
    /// Whether the chunk lists of the message came with it.
    pub(super) has_chunks: bool,
}

impl Part {
    /// Whether it completes a call with chunks, which takes a slot.
    pub(super) fn takes_slot(&self) -> bool {
        self.has_chunks && self.what == Assembled::Message(Direction::Call)
    }
}

/// The action for any message other than a whole RPC message. `kept_header` gets the header of the last part of a
/// message that has chunk lists, for use while the message is handled. The last part of a call with such lists waits
/// unless `has_slot`.
#[cold]
#[inline(never)]
pub(super) fn classify_control(
    connection: &mut Connection,
    messages: &mut MessagesOf<'_>,
    counters: &Counters,
    kept_header: &mut Vec<u8>,
    has_slot: bool,
    event: Event<'_>,
    message: &[u8],
) -> Action {
    match event {
        // The caller has handled these.
        Event::Call { .. } | Event::Reply { .. } | Event::Transmission(_) => Action::Done,
        Event::Fragment {
            direction,
            xid,
            offset,
            payload,
            last,
            chunks,
            ..
        } => {
            let part = Part {
                has_chunks: !chunks.are_empty(),
                what: Assembled::Message(direction),
                xid,
                offset,
                last,
                message: 0,
            };
            let part = note_part(connection, part);
            if part.takes_slot() && !has_slot {
                return Action::HoldPart(part);
            }
            keep_header(kept_header, part, message, payload.len());
            handle_part(connection, messages, counters, part, payload)
        }
        Event::PropertiesFragment {
            xid,
            offset,
            bytes,
            last,
        } => {
            let part = Part {
                has_chunks: false,
                what: Assembled::Properties,
                xid,
                offset,
                last,
                message: 0,
            };
            let part = note_part(connection, part);
            handle_part(connection, messages, counters, part, bytes)
        }
        Event::Properties { xid, .. } => {
            note_window(connection, message);
            let body = message.get(V2_PREFIX_BYTES..).unwrap_or(&[]);
            take_properties(connection, xid, body)
        }
        Event::Credits => {
            note_window(connection, message);
            counters.grants_received.increment();
            Action::Done
        }
        Event::TransportError { xid, error } => Action::PeerError { xid, error },
        Event::FellBack => Action::FellBack,
        Event::VersionMismatch { low, high } => Action::VersionMismatch { low, high },
        Event::TransmissionRefused(refusal) => Action::Report(refusal.report),
        Event::ErrorReported(report) => {
            counters.group_errors_received.increment();
            Action::PeerReport(report)
        }
        Event::ApplicationMessage {
            header_type,
            xid,
            is_response,
            ..
        } => {
            note_window(connection, message);
            Action::Application(Heading {
                header_type,
                xid,
                is_answer: is_response,
            })
        }
        Event::Discarded(reason) => discard(counters, reason),
        Event::Refused(refusal) if refusal.sequence_given_up => {
            Action::GiveUp(GivenUp::Refused(refusal))
        }
        Event::Refused(refusal) => Action::Refuse(refusal),
        Event::Close(reason) => Action::Close(CloseReason::Protocol(reason)),
    }
}

/// Keeps the header of a part, with the word behind it, if it has chunk lists.
pub(super) fn keep_header(kept: &mut Vec<u8>, part: Part, message: &[u8], payload_bytes: usize) {
    kept.clear();
    if part.has_chunks {
        let header_bytes = message.len().saturating_sub(payload_bytes);
        let bytes = message.get(..header_bytes + 4).unwrap_or(message);
        // A header longer than any that we accept is cut off, cannot be decoded, and so is refused.
        kept.extend(bytes.iter().take(kept.capacity()));
    }
}

/// Numbers the message of a part that arrived, and notes whether more of it is to come.
fn note_part(connection: &mut Connection, part: Part) -> Part {
    let lane = part.what.lane();
    connection.open_in = (!part.last).then_some(lane);
    let parts = &mut connection.lane_mut(lane).parts;
    let message = parts.number_message(part.offset);
    Part { message, ..part }
}

/// Takes a part that arrived, unless earlier parts wait or there is no buffer.
fn handle_part(
    connection: &mut Connection,
    messages: &mut MessagesOf<'_>,
    counters: &Counters,
    part: Part,
    bytes: &[u8],
) -> Action {
    let begins_without_buffer = part.offset == 0 && !messages.has_room(part.what.purpose());
    if connection.lane(part.what.lane()).parts.any() || begins_without_buffer {
        return Action::HoldPart(part);
    }
    take_part(connection, messages, counters, part, bytes)
}

/// Appends a part to the earlier ones of its message.
pub(super) fn take_part(
    connection: &mut Connection,
    messages: &mut MessagesOf<'_>,
    counters: &Counters,
    part: Part,
    bytes: &[u8],
) -> Action {
    let Part {
        what,
        xid,
        offset,
        last,
        message,
        ..
    } = part;
    counters.fragments_received.increment();
    counters.fragment_bytes_copied.add(bytes.len() as u64);
    connection.serves |= what == Assembled::Message(Direction::Call);
    let lane = connection.lane_mut(what.lane());
    lane.parts.assembling = message;
    let taken = lane
        .reassembly
        .take_part(messages, what, xid, offset, bytes, last);
    match (taken, what) {
        (Taken::Incomplete, _) => Action::Done,
        (Taken::Complete(message), Assembled::Message(direction)) => Action::Assembled {
            direction,
            xid,
            message,
        },
        (Taken::Complete(message), Assembled::Properties) => {
            let action = match PropertySet::decode(message.filled()) {
                Ok(_) => take_properties(connection, xid, message.filled()),
                Err(_) => Action::Refuse(Refusal::new(xid, TransportError::BadXdr)),
            };
            messages.pool.give(message);
            action
        }
        (Taken::NoRoom, Assembled::Message(Direction::Reply)) => {
            counters.reassemblies_refused.increment();
            let error = CallError::ReplyTooLong;
            Action::EndCall { xid, error }
        }
        (Taken::NoRoom, Assembled::Message(Direction::Call) | Assembled::Properties) => {
            counters.reassemblies_refused.increment();
            Action::Refuse(Refusal::new(xid, TransportError::System))
        }
    }
}

/// Notes the most unused credits that the peer will ever have granted at one time: the high half of the credit word
/// (-00 section 4.3.1.1) of a valid message.
fn note_window(connection: &mut Connection, message: &[u8]) {
    const CREDIT_WORD_OFFSET: usize = 8;
    let word = message.get(CREDIT_WORD_OFFSET..).unwrap_or(&[]);
    if let Some(maximum) = word.first_chunk() {
        connection.peer_window = u16::from_be_bytes(*maximum);
    }
}

/// Hands a property set to the control plane, one at a time.
fn take_properties(connection: &mut Connection, xid: u32, set: &[u8]) -> Action {
    if connection.awaits_control {
        // The peer did not wait for the answer to its last set. One set at a time also bounds what
        // the control plane has to keep.
        return Action::Close(CloseReason::PropertiesUnawaited);
    }
    if set.len() > PROPERTY_BYTES_MAX {
        return Action::Refuse(Refusal::new(xid, TransportError::System));
    }
    connection.awaits_control = true;
    note_unknown(connection, set);
    Action::Properties(set.into())
}

/// Keeps the unknown properties of a peer's first set for the application. It gets them when the connection is ready.
fn note_unknown(connection: &mut Connection, set: &[u8]) {
    if connection.peer_properties.is_none()
        && let Ok(set) = PropertySet::decode(set)
    {
        connection.peer_properties = Some(PeerProperties::of(&set));
    }
}

fn discard(counters: &Counters, reason: DiscardReason) -> Action {
    let reply = |xid, error| Action::GiveUp(GivenUp::Reply { xid, error });
    match reason {
        DiscardReason::Short => {
            counters.messages_discarded_short.increment();
            Action::Done
        }
        DiscardReason::SequenceBroken { .. } => {
            counters.messages_discarded_short.increment();
            Action::GiveUp(GivenUp::Broken)
        }
        DiscardReason::ReplyMismatch { xid } => {
            counters.messages_discarded.increment();
            reply(xid, CallError::BadReply)
        }
        DiscardReason::ReplyTooLong { xid } => {
            counters.messages_discarded.increment();
            reply(xid, CallError::ReplyTooLong)
        }
        DiscardReason::SequenceRest
        | DiscardReason::UnexpectedError
        | DiscardReason::Unanswerable
        | DiscardReason::Over => {
            counters.messages_discarded.increment();
            Action::Done
        }
    }
}
