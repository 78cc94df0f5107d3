//! A decoded message: the value for text and JSON. Its serialization is the stable JSON of `decode --json`.

use serde::Serialize;

use super::input::InputError;

/// The result of decoding a message.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Decoded {
    /// The header is valid.
    Right(Box<Message>),
    /// The header cannot be decoded, or contradicts itself or the message.
    Wrong(Wrong),
}

impl Decoded {
    /// Whether the message is wrong.
    #[must_use]
    pub(crate) const fn is_wrong(&self) -> bool {
        matches!(self, Self::Wrong(_))
    }

    /// The result for a line without a message in hex.
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

/// A message with a valid header.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Message {
    /// 1 or 2.
    pub(crate) version: u32,
    /// The transaction. A reply has the xid of its call.
    pub(crate) xid: u32,
    /// The credit word on the wire.
    pub(crate) credit: u32,
    /// Version 2: the low half of the credit word, the credits that the sender newly grants.
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
    /// Version 2, MSG and NOMSG: the handle that the responder may invalidate with its reply; 0 means none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inv_handle: Option<u32>,
    /// The Read list: memory that the receiver reads.
    pub(crate) read_list: Vec<ReadEntry>,
    /// The Write list: memory for results, one entry per chunk.
    pub(crate) write_list: Vec<Vec<Segment>>,
    /// The Reply chunk: memory for the whole reply.
    pub(crate) reply_chunk: Option<Vec<Segment>>,
    /// The transport error.
    pub(crate) error: Option<TransportError>,
    /// The properties of a CONNPROP. Null for other types, and for every part but the last of a continued CONNPROP.
    pub(crate) properties: Option<Vec<Property>>,
    /// The header of a transmission of the extension RTR.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) transmission: Option<Transmission>,
    /// The contents of a Report Error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reported: Option<Reported>,
    /// The length of the inline RPC payload, or of the payload stream of a transmission, in bytes; otherwise 0.
    pub(crate) payload_bytes: usize,
    /// The inline RPC header.
    pub(crate) rpc: Option<Rpc>,
    /// Further observations, for the text.
    #[serde(skip)]
    pub(crate) notes: Vec<Note>,
    /// The length of the transport header in bytes, for the text.
    #[serde(skip)]
    pub(crate) header_bytes: usize,
}

impl Message {
    /// Whether the message is a reply, if its header or its RPC header shows it.
    #[must_use]
    pub(crate) fn is_reply(&self) -> Option<bool> {
        match (&self.flags, &self.rpc) {
            (Some(flags), _) => Some(flags.contains(&"RESPONSE")),
            (None, Some(rpc)) => Some(rpc.direction == "reply"),
            // Only calls have Read lists, and only responders send errors.
            (None, None) if !self.read_list.is_empty() => Some(false),
            (None, None) if self.error.is_some() => Some(true),
            // The responder fetches a long call with the Read list, so a NOMSG without one is a long reply.
            (None, None) if self.header_type == "NOMSG" => Some(true),
            (None, None) => None,
        }
    }

    /// Whether the message has chunks.
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
    /// The number of transmissions of the group; a continuation does not have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) transmissions: Option<u32>,
    /// Requests: the largest number of transmissions of the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) response_transmissions_max: Option<u32>,
    /// The bulk data that is not in the payload stream.
    pub(crate) items: Vec<Item>,
    /// The directions for the bulk data of the reply.
    pub(crate) directions: Vec<DirectionSet>,
    /// The number of bytes after the payload stream: padding and placed bulk data.
    pub(crate) behind_bytes: usize,
}

/// An item of bulk data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Item {
    /// `explicit`, `placed`, `too_short` or `no_item`.
    pub(crate) location: &'static str,
    /// Its position in the whole message, in bytes.
    pub(crate) displacement: u32,
    /// The length in bytes.
    pub(crate) length: u32,
    /// Placed items: the offset in the first segment, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) offset: Option<u32>,
    /// Placed items: the numbers of the segments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) numbers: Vec<u32>,
    /// Explicit items: the memory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) segments: Vec<Segment>,
}

/// Directions for the bulk data that answers one range of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DirectionSet {
    /// The first byte of the range.
    pub(crate) begin: u32,
    /// The first byte after the range.
    pub(crate) end: u32,
    /// The directions, in the order of their use.
    pub(crate) items: Vec<Direction>,
}

/// The direction for one potential item of a reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Direction {
    /// `explicit`, `placed`, `choice` or `by_size`.
    pub(crate) location: &'static str,
    /// An item of fewer bytes stays inline.
    pub(crate) minimum: u32,
    /// `by_size`: an item of this many bytes or more is transferred by explicit RDMA.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) explicit_from: Option<u32>,
    /// The memory for explicit RDMA.
    pub(crate) segments: Vec<Segment>,
}

/// A Report Error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Reported {
    /// The number on the wire.
    pub(crate) code: u32,
    /// The name without prefix.
    pub(crate) name: &'static str,
    /// The transmission with the error.
    pub(crate) bad: TransmissionId,
    /// An earlier transmission that may have caused the error.
    pub(crate) lead: Option<TransmissionId>,
    /// BADHMT, BADOMT, BADSEQ, BADXID: the expected value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expected: Option<u32>,
    /// The received value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<u32>,
    /// BADOFF, BADTBSN, BADPL: the smallest valid value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min: Option<u32>,
    /// BADOFF, BADTBSN, BADPL: the largest valid value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max: Option<u32>,
    /// The error as a sentence, for the text.
    #[serde(skip)]
    pub(crate) sentence: String,
}

/// The identity of a transmission.
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
    /// The position of the data in the XDR stream; 0 means that the chunk holds the RPC message itself.
    pub(crate) position: u32,
    /// The rkey.
    pub(crate) handle: u32,
    /// The length in bytes.
    pub(crate) length: u32,
    /// The address.
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
    /// VERS: the lowest version that the sender of the error supports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) low: Option<u32>,
    /// VERS: the highest version that the sender of the error supports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) high: Option<u32>,
    /// READ_CHUNKS, WRITE_CHUNKS, SEGMENTS: the limit of the sender of the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max: Option<u32>,
    /// WRITE_RESOURCE: the number of the chunk that is too short, counted from 1; 0 means unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) chunk_index: Option<u32>,
    /// WRITE_RESOURCE, REPLY_RESOURCE: the necessary length in bytes; 0 means unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) length_needed: Option<u32>,
}

/// One property.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Property {
    /// The number on the wire.
    pub(crate) id: u32,
    /// The name without prefix, or `unknown`.
    pub(crate) name: &'static str,
    /// The value; null means the default value.
    pub(crate) value: PropertyValue,
}

/// The value of a property.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum PropertyValue {
    /// Data of length zero, which means the default value.
    Default,
    /// A number.
    Number(u32),
    /// Opaque data, as hex.
    Hex(String),
    /// The structure of receive buffers: runs of equal segments.
    Structure(Vec<BufferSegments>),
}

/// A run of equal segments of a receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct BufferSegments {
    /// The number of segments.
    pub(crate) count: u32,
    /// The length of a segment in bytes.
    pub(crate) length: u32,
    /// The alignment of a segment in bytes; 0 and 1 mean no alignment.
    pub(crate) align: u32,
    /// Whether a segment can receive bulk data.
    pub(crate) targetable: bool,
}

/// The inline RPC header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Rpc {
    /// `call` or `reply`.
    pub(crate) direction: &'static str,
    /// The program. A reply has that of its call; null if the call was not decoded before.
    pub(crate) program: Option<u32>,
    /// The version of the program, under the same condition.
    pub(crate) version: Option<u32>,
    /// The procedure, under the same condition.
    pub(crate) procedure: Option<u32>,
    /// The outcome of the call, for the text.
    #[serde(skip)]
    pub(crate) outcome: Option<&'static str>,
}

/// An observation that no field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// The payload continues in the next message of this xid.
    ContinuesInNext,
    /// The payload continues that of the previous message of this xid. This message therefore has no RPC header.
    ContinuesPrevious,
    /// The inline bytes do not start with an RPC header.
    PayloadIsNoRpc,
    /// ERR_VERS in the layout of version 1, although the version word is 2.
    Version1Layout,
    /// According to its xid, the message answers a call of this program, version and procedure.
    Answers([u32; 3]),
    /// The number of bytes after a header without payload. The receiver ignores them.
    IgnoredBytes(usize),
}

/// A wrong message.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Wrong {
    /// The line of the input, counted from 1; a message of a capture has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) line: Option<u64>,
    /// The first words, if the message has them.
    #[serde(flatten)]
    pub(crate) prefix: PartialPrefix,
    /// The position of the error in the message, in bytes from 0.
    pub(crate) error_at: usize,
    /// The error.
    pub(crate) reason: String,
    /// The word at that position, for the text.
    #[serde(skip)]
    pub(crate) word: Option<u32>,
    /// The answer of a receiver, for the text.
    #[serde(skip)]
    pub(crate) answer: Option<&'static str>,
}

/// The words that all versions share, if the message is long enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PartialPrefix {
    /// The version word.
    pub(crate) version: Option<u32>,
    /// The xid.
    pub(crate) xid: Option<u32>,
    /// The credit word.
    pub(crate) credit: Option<u32>,
}
