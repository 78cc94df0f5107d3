//! Converts the views of the protocol crate into the values of the output.

use rpcrdma_protocol::chunks::{ChunkLists, Segments};
use rpcrdma_protocol::rpc::{AcceptStatus, RejectStatus, ReplyBody};
use rpcrdma_protocol::{v1, v2};

use super::message::{
    BufferSegments, Message, Property, PropertyValue, ReadEntry, Rpc, Segment, TransportError,
};

pub(crate) fn set_lists(message: &mut Message, lists: &ChunkLists<'_>) {
    message.read_list = lists
        .reads
        .map(|entry| ReadEntry {
            position: entry.position,
            handle: entry.target.handle,
            length: entry.target.length_bytes,
            offset: entry.target.offset,
        })
        .collect();
    message.write_list = lists.writes.map(segments).collect();
    message.reply_chunk = lists.reply.map(segments);
}

pub(crate) fn segments(segments: Segments<'_>) -> Vec<Segment> {
    segments
        .map(|segment| Segment {
            handle: segment.handle,
            length: segment.length_bytes,
            offset: segment.offset,
        })
        .collect()
}

pub(crate) const fn rpc(
    direction: &'static str,
    called: Option<[u32; 3]>,
    outcome: Option<&'static str>,
) -> Rpc {
    match called {
        Some([program, version, procedure]) => Rpc {
            direction,
            program: Some(program),
            version: Some(version),
            procedure: Some(procedure),
            outcome,
        },
        None => Rpc {
            direction,
            program: None,
            version: None,
            procedure: None,
            outcome,
        },
    }
}

/// The outcome of a call that was executed.
pub(crate) const EXECUTED: &str = "executed";

pub(crate) const fn outcome(body: &ReplyBody<'_>) -> &'static str {
    match body {
        ReplyBody::Accepted {
            status: AcceptStatus::Success,
            ..
        } => EXECUTED,
        ReplyBody::Accepted {
            status: AcceptStatus::ProgUnavail,
            ..
        } => "the program is not there",
        ReplyBody::Accepted {
            status: AcceptStatus::ProgMismatch { .. },
            ..
        } => "the program is not there in this version",
        ReplyBody::Accepted {
            status: AcceptStatus::ProcUnavail,
            ..
        } => "the procedure is not there",
        ReplyBody::Accepted {
            status: AcceptStatus::GarbageArgs,
            ..
        } => "the arguments could not be decoded",
        ReplyBody::Accepted {
            status: AcceptStatus::SystemErr,
            ..
        } => "the server failed",
        ReplyBody::Denied(RejectStatus::RpcMismatch { .. }) => "denied: RPC version not supported",
        ReplyBody::Denied(RejectStatus::AuthError(_)) => "denied: not authenticated",
    }
}

const fn error(code: u32, name: &'static str) -> TransportError {
    TransportError {
        code,
        name,
        low: None,
        high: None,
        max: None,
        chunk_index: None,
        length_needed: None,
    }
}

pub(crate) const fn versions_error(name: &'static str, low: u32, high: u32) -> TransportError {
    TransportError {
        low: Some(low),
        high: Some(high),
        ..error(1, name)
    }
}

pub(crate) const fn error_v1(found: v1::TransportError) -> TransportError {
    match found {
        v1::TransportError::Vers { low, high } => versions_error("VERS", low, high),
        v1::TransportError::Chunk => error(2, "CHUNK"),
        v1::TransportError::Unknown { code } => error(code, "unknown"),
    }
}

pub(crate) const fn error_v2(found: v2::TransportError) -> TransportError {
    use v2::TransportError as E;
    let code = found.code();
    match found {
        E::Vers(v2::ErrVers { low, high }) => versions_error("VERS", low, high),
        E::BadXdr => error(code, "BAD_XDR"),
        E::InvalHtype => error(code, "INVAL_HTYPE"),
        E::InvalFlag => error(code, "INVAL_FLAG"),
        E::ReadChunks { max_chunks } => TransportError {
            max: Some(max_chunks),
            ..error(code, "READ_CHUNKS")
        },
        E::WriteChunks { max_chunks } => TransportError {
            max: Some(max_chunks),
            ..error(code, "WRITE_CHUNKS")
        },
        E::Segments { max_segments } => TransportError {
            max: Some(max_segments),
            ..error(code, "SEGMENTS")
        },
        E::WriteResource {
            chunk_index,
            length_needed_bytes,
        } => TransportError {
            chunk_index: Some(chunk_index),
            length_needed: Some(length_needed_bytes),
            ..error(code, "WRITE_RESOURCE")
        },
        E::ReplyResource {
            length_needed_bytes,
        } => TransportError {
            length_needed: Some(length_needed_bytes),
            ..error(code, "REPLY_RESOURCE")
        },
        E::System => error(code, "SYSTEM"),
        E::Unknown { code } => error(code, "unknown"),
    }
}

pub(crate) fn property(property: v2::Property<'_>) -> Property {
    use v2::Property as P;
    let number = |value: Option<u32>| value.map_or(PropertyValue::Default, PropertyValue::Number);
    let (name, value) = match property {
        P::SendSizeMax(value) => ("SBSIZ", number(value)),
        P::ReceiveBufferSize(value) => ("RBSIZ", number(value)),
        P::SegmentSizeMax(value) => ("RSSIZ", number(value)),
        P::SegmentCountMax(value) => ("RCSIZ", number(value)),
        P::ReverseRequestSupport(value) => ("BRS", number(value)),
        P::HostAuthentication(value) => (
            "HOSTAUTH",
            value.map_or(PropertyValue::Default, |data| PropertyValue::Hex(hex(data))),
        ),
        P::RtrSupport(value) => ("RTRSUPP", number(value)),
        P::ReceiveBufferStructure(value) => (
            "RBSTRUCT",
            value.map_or(PropertyValue::Default, |structure| {
                PropertyValue::Structure(buffer_structure(&structure))
            }),
        ),
        P::RequestReceiveLimit(value) => ("REQRXLIM", number(value)),
        P::ResponseSendLimit(value) => ("RESPSXLIM", number(value)),
        P::Unknown { data, .. } => ("unknown", PropertyValue::Hex(hex(data))),
    };
    Property {
        id: property.id(),
        name,
        value,
    }
}

fn buffer_structure(structure: &v2::rtr::ReceiveBufferStructure) -> Vec<BufferSegments> {
    let groups = structure.groups().iter();
    groups
        .map(|group| BufferSegments {
            count: group.count,
            length: group.segment.length_bytes,
            align: group.segment.align_bytes,
            targetable: group.segment.is_targetable,
        })
        .collect()
}

fn hex(data: &[u8]) -> String {
    use std::fmt::Write as _;
    data.iter()
        .fold(String::with_capacity(2 * data.len()), |mut text, byte| {
            // `write!` to a string returns no error.
            let _ = write!(text, "{byte:02x}");
            text
        })
}
