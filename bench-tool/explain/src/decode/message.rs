//! What a message says: one value for text and JSON. Its serialization is the stable JSON of `decode --json`.

use serde::Serialize;

use super::input::InputError;

/// A message, right or wrong.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Decoded {
    /// The header could be decoded.
    Right(Box<Message>),
    /// It could not, or contradicts itself.
    Wrong(Wrong),
}

impl Decoded {
    /// True for a wrong message.
    #[must_use]
    pub(crate) const fn is_wrong(&self) -> bool {
        matches!(self, Self::Wrong(_))
    }

    /// For a line that is not even hex.
    #[must_use]
    pub(crate) fn from_input_error(error: &InputError, line: u64) -> Self {
        Self::Wrong(Wrong {
            line: Some(line),
            prefix: PartialPrefix::default(),
            error_at: error.at,
            reason: error.reason.to_string(),
            word: None,
            answer: None,
        })
    }
}

/// A message whose header is right.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Message {
    /// 1 or 2.
    pub(crate) version: u32,
    /// The transaction: a reply has that of its call.
    pub(crate) xid: u32,
    /// The credit word as it stands on the wire.
    pub(crate) credit: u32,
    /// Version 2: the low half of the credit word, credits newly granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) credit_granted: Option<u16>,
    /// Version 2: the high half of the credit word, the most that the sender will ever have granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) credit_maximum: Option<u16>,
    /// `MSG`, `NOMSG`, `MSGP`, `DONE`, `ERROR` or `CONNPROP`; of the extension RTR, `TRANSMIT_REQUEST`,
    /// `TRANSMIT_RESPONSE`, `TRANSMIT_CONTINUE` or `REPORT_ERROR`.
    #[serde(rename = "type")]
    pub(crate) header_type: &'static str,
    /// Version 2: the flags that are set, `RESPONSE` and `MORE`. Version 1 has no flags: null.
    pub(crate) flags: Option<Vec<&'static str>>,
    /// Version 2, MSG and NOMSG: the handle that the responder may invalidate with its reply; 0 is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inv_handle: Option<u32>,
    /// Memory that the receiver shall read.
    pub(crate) read_list: Vec<ReadEntry>,
    /// Memory for results, chunk by chunk.
    pub(crate) write_list: Vec<Vec<Segment>>,
    /// Memory for the whole reply.
    pub(crate) reply_chunk: Option<Vec<Segment>>,
    /// The transport error.
    pub(crate) error: Option<TransportError>,
    /// The properties of a CONNPROP; null for other types, and for all parts but the last of a continued one.
    pub(crate) properties: Option<Vec<Property>>,
    /// What the header of a transmission of the extension RTR says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) transmission: Option<Transmission>,
    /// What a Report Error says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reported: Option<Reported>,
    /// Bytes behind the header: inline RPC payload, or 0. Of a transmission, its payload stream.
    pub(crate) payload_bytes: usize,
    /// The RPC header, where one is inside.
    pub(crate) rpc: Option<Rpc>,
    /// What is worth knowing beside it, for the text.
    #[serde(skip)]
    pub(crate) notes: Vec<Note>,
    /// Bytes of the transport header, for the text.
    #[serde(skip)]
    pub(crate) header_bytes: usize,
}

impl Message {
    /// Who sent the message, where the header itself shows it.
    #[must_use]
    pub(crate) fn is_reply(&self) -> Option<bool> {
        match (&self.flags, &self.rpc) {
            (Some(flags), _) => Some(flags.contains(&"RESPONSE")),
            (None, Some(rpc)) => Some(rpc.direction == "reply"),
            // Only calls have Read lists, only responders send errors.
            (None, None) if !self.read_list.is_empty() => Some(false),
            (None, None) if self.error.is_some() => Some(true),
            // A long call comes by its Read list; without one it can only be a long reply.
            (None, None) if self.header_type == "NOMSG" => Some(true),
            (None, None) => None,
        }
    }

    /// Whether memory of its sender is told of in chunks.
    #[must_use]
    pub(crate) fn has_chunks(&self) -> bool {
        !self.read_list.is_empty() || !self.write_list.is_empty() || self.reply_chunk.is_some()
    }
}

/// A transmission of the extension RTR.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Transmission {
    /// Its place in its group, counted from 0.
    pub(crate) sequence: u32,
    /// How many transmissions the group has; a continuation does not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) transmissions: Option<u32>,
    /// Of a request: how many the reply may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) response_transmissions_max: Option<u32>,
    /// The bulk data that was taken out of the message.
    pub(crate) items: Vec<Item>,
    /// What is asked of the bulk data of the reply.
    pub(crate) directions: Vec<DirectionSet>,
    /// Bytes behind the payload stream: padding and placed bulk data.
    pub(crate) behind_bytes: usize,
}

/// An item of bulk data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Item {
    /// `explicit`, `placed`, `too_short` or `no_item`.
    pub(crate) location: &'static str,
    /// Bytes of the message before it, as if nothing had been taken out.
    pub(crate) displacement: u32,
    /// Bytes.
    pub(crate) length: u32,
    /// Placed: bytes of its first segment before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) offset: Option<u32>,
    /// Placed: the numbers of its segments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) numbers: Vec<u32>,
    /// Explicit: its memory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) segments: Vec<Segment>,
}

/// Directions for the bulk data that answers one range of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DirectionSet {
    /// The first byte of the range.
    pub(crate) begin: u32,
    /// The first byte behind it.
    pub(crate) end: u32,
    /// The directions, in the order in which they are used up.
    pub(crate) items: Vec<Direction>,
}

/// What is asked of one potential item of a reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Direction {
    /// `explicit`, `placed`, `choice` or `by_size`.
    pub(crate) location: &'static str,
    /// Bytes below which the item stays inline.
    pub(crate) minimum: u32,
    /// By size: bytes from which on it goes by explicit RDMA.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) explicit_from: Option<u32>,
    /// The memory that is offered.
    pub(crate) segments: Vec<Segment>,
}

/// A Report Error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Reported {
    /// The number on the wire.
    pub(crate) code: u32,
    /// Its name without prefix.
    pub(crate) name: &'static str,
    /// The transmission on which it was found.
    pub(crate) bad: TransmissionId,
    /// An earlier one that may have led to it.
    pub(crate) lead: Option<TransmissionId>,
    /// BADHMT, BADOMT, BADSEQ, BADXID: what was expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expected: Option<u32>,
    /// The value that came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<u32>,
    /// BADOFF, BADTBSN, BADPL: the least that it may be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min: Option<u32>,
    /// BADOFF, BADTBSN, BADPL: the most that it may be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max: Option<u32>,
    /// The error as a sentence, for the text.
    #[serde(skip)]
    pub(crate) sentence: String,
}

/// One transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct TransmissionId {
    /// Its xid.
    pub(crate) xid: u32,
    /// `call` or `reply`.
    pub(crate) direction: &'static str,
    /// Its place in its group.
    pub(crate) sequence: u32,
}

/// One entry of the Read list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ReadEntry {
    /// Where in the XDR stream the data belongs; 0 is the RPC message itself.
    pub(crate) position: u32,
    /// The rkey.
    pub(crate) handle: u32,
    /// Bytes.
    pub(crate) length: u32,
    /// The address behind the rkey.
    pub(crate) offset: u64,
}

/// One segment of a Write or Reply chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Segment {
    /// The rkey.
    pub(crate) handle: u32,
    /// Bytes.
    pub(crate) length: u32,
    /// The address behind the rkey.
    pub(crate) offset: u64,
}

/// A transport error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct TransportError {
    /// The number on the wire.
    pub(crate) code: u32,
    /// Its name without the prefix of its version, or `unknown`.
    pub(crate) name: &'static str,
    /// VERS: the lowest version that the sender supports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) low: Option<u32>,
    /// VERS: the highest version that the sender supports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) high: Option<u32>,
    /// READ_CHUNKS, WRITE_CHUNKS, SEGMENTS: the most that the sender takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max: Option<u32>,
    /// WRITE_RESOURCE: the chunk that is too small, counted from 1; 0 is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) chunk_index: Option<u32>,
    /// WRITE_RESOURCE, REPLY_RESOURCE: bytes needed; 0 is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) length_needed: Option<u32>,
}

/// One property.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Property {
    /// The number on the wire.
    pub(crate) id: u32,
    /// Its name without prefix, or `unknown`.
    pub(crate) name: &'static str,
    /// The value of a property that is a number; null says "the default".
    pub(crate) value: PropertyValue,
}

/// The value of a property.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum PropertyValue {
    /// Data of length zero: the default value.
    Default,
    /// A number.
    Number(u32),
    /// Opaque data, as hex.
    Hex(String),
    /// How receive buffers are made: runs of segments that are alike.
    Structure(Vec<BufferSegments>),
}

/// Segments of a receive buffer that are alike and follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct BufferSegments {
    /// How many.
    pub(crate) count: u32,
    /// Bytes of each.
    pub(crate) length: u32,
    /// The alignment of their addresses in bytes; 0 and 1 are none.
    pub(crate) align: u32,
    /// Whether bulk data may be put there.
    pub(crate) targetable: bool,
}

/// The RPC header inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Rpc {
    /// `call` or `reply`.
    pub(crate) direction: &'static str,
    /// Of a reply: known when its call was seen before.
    pub(crate) program: Option<u32>,
    /// Of the program; of a reply: as above.
    pub(crate) version: Option<u32>,
    /// As above.
    pub(crate) procedure: Option<u32>,
    /// What became of the call, for the text.
    #[serde(skip)]
    pub(crate) outcome: Option<&'static str>,
}

/// What is worth knowing beside the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// The payload goes on in the next message of this xid.
    ContinuesInNext,
    /// The payload goes on from the message before of this xid, which has no RPC header therefore.
    ContinuesPrevious,
    /// The inline bytes do not begin with an RPC header.
    PayloadIsNoRpc,
    /// ERR_VERS in the layout of version 1, though the version word is 2.
    Version1Layout,
    /// By its xid, this answers the call of this program, version and procedure.
    Answers([u32; 3]),
    /// Bytes behind a header that has no payload: ignored by the receiver.
    IgnoredBytes(usize),
}

/// A message that is wrong.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Wrong {
    /// The line of the input, counted from 1; a message of a capture has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) line: Option<u64>,
    /// What could be read before the error.
    #[serde(flatten)]
    pub(crate) prefix: PartialPrefix,
    /// The byte of the message at which it is wrong, counted from 0.
    pub(crate) error_at: usize,
    /// What is wrong there.
    pub(crate) reason: String,
    /// The word that stands there, for the text.
    #[serde(skip)]
    pub(crate) word: Option<u32>,
    /// How a receiver answers it, for the text.
    #[serde(skip)]
    pub(crate) answer: Option<&'static str>,
}

/// The words that all versions share, as far as they are there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PartialPrefix {
    /// The version word.
    pub(crate) version: Option<u32>,
    /// The xid.
    pub(crate) xid: Option<u32>,
    /// The credit word.
    pub(crate) credit: Option<u32>,
}
