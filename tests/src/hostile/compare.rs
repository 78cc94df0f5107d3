//! What a connection says, in the words of the oracle.

use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::connection::{
    CloseReason, Connection, Direction, DiscardReason, Event, Transmission, TransmissionPart,
};
use rpcrdma_protocol::v2::{encode_error, encode_report_error};

use super::oracle::wire::{CONTINUE, REQUEST, RESPONSE};
use super::oracle::{Closed, Discarded, Verdict, View};
use crate::fuzz_targets::reference;

/// The words of a message.
fn words(message: &[u8]) -> Vec<u32> {
    let count = message.len() / 4;
    let all = (0..count).map(|index| reference::word(message, 4 * index));
    all.map(|word| word.expect("within the message")).collect()
}

/// Where a view begins in its message. An empty one begins wherever the message has it.
fn view(part: &[u8], message: &[u8]) -> View {
    let (part_range, range) = (part.as_ptr_range(), message.as_ptr_range());
    if part.is_empty() && !(range.start..=range.end).contains(&part_range.start) {
        return (0, 0);
    }
    assert!(
        range.start <= part_range.start && part_range.end <= range.end,
        "a view of octets that are not of the message"
    );
    (part_range.start.addr() - range.start.addr(), part.len())
}

/// The answer to a message that was refused, as it is sent; the connection is left as it is.
fn answer(
    connection: &Connection,
    encode: impl FnOnce(&mut Connection, &mut [u8]) -> usize,
) -> Vec<u32> {
    let mut space = [0; 128];
    let bytes = encode(&mut connection.clone(), &mut space);
    words(&space[..bytes])
}

/// Code and arguments of an error.
fn error_words(error: &TransportError) -> Vec<u32> {
    let mut space = [0; 64];
    let bytes = encode_error(&mut space, 0, error).expect("an error is short");
    words(&space[20..bytes])
}

fn discarded(reason: DiscardReason) -> Discarded {
    match reason {
        DiscardReason::Short => Discarded::Short,
        DiscardReason::SequenceBroken { xid } => Discarded::Broken(xid),
        DiscardReason::SequenceRest => Discarded::Rest,
        DiscardReason::ReplyMismatch { xid } => Discarded::Mismatch(xid),
        DiscardReason::ReplyTooLong { xid } => Discarded::TooLong(xid),
        DiscardReason::UnexpectedError => Discarded::UnexpectedError,
        DiscardReason::Over => Discarded::Over,
        DiscardReason::Unanswerable => panic!("version 1 alone discards for that reason"),
    }
}

fn closed(reason: CloseReason) -> Closed {
    match reason {
        CloseReason::OverSend => Closed::OverSend,
        CloseReason::OverGrant => Closed::OverGrant,
        CloseReason::VersionChanged => Closed::VersionChanged,
        CloseReason::BadReply(error) => Closed::BadReply(error_words(&error)),
        CloseReason::BadError => Closed::BadError,
        CloseReason::SpokeFirst => panic!("no connection here has an end that is silent"),
    }
}

/// The event that a message made, as a verdict.
///
/// # Panics
/// When a view is not of the message, or a refusal cannot be answered.
#[must_use]
pub(super) fn verdict(event: &Event<'_>, message: &[u8], connection: &Connection) -> Verdict {
    let (is_reply, xid, payload, chunks, handle) = match *event {
        Event::Call {
            xid,
            payload,
            chunks,
            invalidate_handle,
        } => (false, xid, payload, chunks, invalidate_handle),
        Event::Reply {
            xid,
            payload,
            chunks,
            invalidate_handle,
        } => (true, xid, payload, chunks, invalidate_handle),
        _ => return other(event, message, connection),
    };
    Verdict::Message {
        is_reply,
        xid,
        payload: view(payload, message),
        lists: reference::collected(&chunks),
        handle,
    }
}

fn other(event: &Event<'_>, message: &[u8], connection: &Connection) -> Verdict {
    match *event {
        Event::Fragment {
            direction,
            xid,
            offset,
            payload,
            last,
            chunks,
            invalidate_handle,
        } => Verdict::Fragment {
            is_reply: direction == Direction::Reply,
            xid,
            offset,
            payload: view(payload, message),
            is_last: last,
            lists: reference::collected(&chunks),
            handle: invalidate_handle,
        },
        Event::Properties { xid, .. } => Verdict::Properties { xid },
        Event::PropertiesFragment {
            xid,
            offset,
            bytes,
            last,
        } => Verdict::PropertiesPart {
            xid,
            offset,
            bytes: view(bytes, message),
            is_last: last,
        },
        Event::Credits => Verdict::Credits,
        Event::TransportError { xid, error } => Verdict::PeerError(xid, error_words(&error)),
        Event::Transmission(transmission) => transmitted(&transmission, message),
        Event::TransmissionRefused(refusal) => {
            let mut words = answer(connection, |connection, space| {
                let sent = connection.encode_report_error(space, &refusal.report);
                sent.expect("a report can be sent")
            });
            words[2] = 0;
            Verdict::ReportError(words, refusal.group_given_up)
        }
        Event::ErrorReported(report) => {
            let mut space = [0; 128];
            let bytes = encode_report_error(&mut space, Default::default(), &report);
            let bytes = bytes.expect("a report is short");
            Verdict::Reported(words(&space[20..bytes]))
        }
        Event::Discarded(reason) => Verdict::Discarded(discarded(reason)),
        Event::Refused(refusal) => {
            let words = answer(connection, |connection, space| {
                let sent = connection.encode_error(space, &refusal);
                sent.expect("an error can be sent")
            });
            Verdict::Refused(words, refusal.sequence_given_up)
        }
        Event::Close(reason) => Verdict::Closed(closed(reason)),
        Event::FellBack
        | Event::ApplicationMessage { .. }
        | Event::VersionMismatch { .. }
        | Event::Call { .. }
        | Event::Reply { .. } => {
            panic!("{event:?} is not expected here")
        }
    }
}

fn transmitted(transmission: &Transmission<'_>, message: &[u8]) -> Verdict {
    let (header_type, reply_count) = match transmission.part {
        TransmissionPart::Request {
            response_transmissions_max,
            ..
        } => (REQUEST, response_transmissions_max),
        TransmissionPart::Response { .. } => (RESPONSE, 0),
        TransmissionPart::Continue => (CONTINUE, 0),
    };
    Verdict::Transmission {
        header_type,
        xid: transmission.id.xid,
        sequence: transmission.id.sequence,
        count: transmission.transmissions,
        reply_count,
        offset: transmission.stream_offset,
        payload: view(transmission.payload, message),
    }
}
