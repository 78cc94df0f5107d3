//! Converts messages of the extension RTR from the views of the protocol crate into the values of the output.

use rpcrdma_protocol::v2;
use rpcrdma_protocol::v2::rtr::{
    Location, MessageItems, Problem, ReportError, ResponseLocation, ResponseSets,
};

use super::convert::segments;
use super::message::{Direction, DirectionSet, Item, Reported, Transmission, TransmissionId};

/// The header of a transmission, and the length of its payload stream in octets; `None` for other messages.
pub(crate) fn transmission(body: &v2::Body<'_>) -> Option<(Transmission, u32)> {
    let bare = Transmission {
        sequence: 0,
        transmissions: None,
        response_transmissions_max: None,
        items: Vec::new(),
        directions: Vec::new(),
        behind_bytes: 0,
    };
    Some(match body {
        v2::Body::TransmitRequest(request) => (
            Transmission {
                transmissions: Some(request.transmissions),
                response_transmissions_max: Some(request.response_transmissions_max),
                items: items(request.items),
                directions: directions(request.directions),
                ..bare
            },
            request.stream_bytes,
        ),
        v2::Body::TransmitResponse(response) => (
            Transmission {
                transmissions: Some(response.transmissions),
                items: items(response.items),
                ..bare
            },
            response.stream_bytes,
        ),
        v2::Body::TransmitContinue(next) => (
            Transmission {
                sequence: next.sequence,
                ..bare
            },
            next.stream_bytes,
        ),
        _ => return None,
    })
}

fn items(items: MessageItems<'_>) -> Vec<Item> {
    items
        .map(|item| {
            let (location, offset, numbers, segments) = match item.location {
                Location::Explicit(all) => ("explicit", None, Vec::new(), segments(all)),
                Location::Placed {
                    offset_bytes,
                    numbers,
                } => ("placed", Some(offset_bytes), numbers.collect(), Vec::new()),
                Location::TooShort => ("too_short", None, Vec::new(), Vec::new()),
                Location::NoItem => ("no_item", None, Vec::new(), Vec::new()),
            };
            Item {
                location,
                displacement: item.displacement,
                length: item.length_bytes,
                offset,
                numbers,
                segments,
            }
        })
        .collect()
}

fn directions(sets: ResponseSets<'_>) -> Vec<DirectionSet> {
    let direction = |item: v2::rtr::ResponseItemView<'_>| {
        let (location, explicit_from) = match item.location {
            ResponseLocation::Explicit(_) => ("explicit", None),
            ResponseLocation::Choice(_) => ("choice", None),
            ResponseLocation::BySize {
                explicit_from_bytes,
                ..
            } => ("by_size", Some(explicit_from_bytes)),
            ResponseLocation::Placed => ("placed", None),
        };
        Direction {
            location,
            minimum: item.minimum_bytes,
            explicit_from,
            segments: item
                .location
                .segments()
                .map_or_else(Vec::new, |all| segments(*all)),
        }
    };
    sets.map(|set| DirectionSet {
        begin: set.range.begin,
        end: set.range.end,
        items: set.items.map(direction).collect(),
    })
    .collect()
}

/// The contents of a Report Error.
pub(crate) fn reported(report: &ReportError) -> Reported {
    let name = match report.problem {
        Problem::HeaderType(_) => "BADHMT",
        Problem::OptionalType(_) => "BADOMT",
        Problem::Continuation => "BADCONT",
        Problem::Sequence(_) => "BADSEQ",
        Problem::Xid(_) => "BADXID",
        Problem::Offset(_) => "BADOFF",
        Problem::SegmentNumber(_) => "BADTBSN",
        Problem::StreamLength(_) => "BADPL",
    };
    let (expected, value, min, max) = match report.problem {
        Problem::HeaderType(found)
        | Problem::OptionalType(found)
        | Problem::Sequence(found)
        | Problem::Xid(found) => (Some(found.expected), Some(found.current), None, None),
        Problem::Continuation => (None, None, None, None),
        Problem::Offset(found) | Problem::SegmentNumber(found) | Problem::StreamLength(found) => {
            (None, Some(found.value), Some(found.min), Some(found.max))
        }
    };
    Reported {
        code: report.problem.code(),
        name,
        bad: id(report.bad),
        lead: report.lead.map(id),
        expected,
        value,
        min,
        max,
        sentence: report.problem.to_string(),
    }
}

fn id(id: v2::rtr::TransmissionId) -> TransmissionId {
    TransmissionId {
        xid: id.xid,
        direction: match id.direction {
            v2::Direction::Call => "call",
            v2::Direction::Reply => "reply",
        },
        sequence: id.sequence,
    }
}
