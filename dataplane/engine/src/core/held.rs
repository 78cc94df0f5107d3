//! What waits in its Receive, or with the buffer that it was put together in.

use super::group::TransmissionNote;
use super::incoming::Stream;
use super::rare::Part;
use crate::message::Received;
use crate::rpc::ConnectionKey;

/// Something that waits.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) connection: ConnectionKey,
    pub(super) xid: u32,
    /// Placement segments of its Receive that are to be leased: so many spares must be there first.
    pub(super) segments: usize,
    pub(super) work: HeldWork,
}

/// What it is.
#[derive(Debug)]
pub(super) enum HeldWork {
    /// A call without chunks.
    Call(Stream),
    /// A call with chunks in its Receive.
    Chunked(Received),
    /// A part of a message.
    Part {
        received: Received,
        part: Part,
        /// Its place among the parts of its lane.
        number: u32,
    },
    /// A transmission of a peer's call.
    Transmission {
        received: Received,
        note: TransmissionNote,
        /// Its place among the parts of its lane.
        number: u32,
    },
}
