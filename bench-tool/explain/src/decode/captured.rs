//! The events of a capture as `decode` shows them. Their serialization is the stable JSON.

use std::time::Duration;

use crate::capture::RemoteAccess;
use serde::Serialize;

use super::message::Decoded;

/// An event of a capture. Its serialization is the stable JSON of `decode --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Captured {
    /// The number of its last packet, counted from 1 like in Wireshark.
    pub(crate) packet: u64,
    /// The number of its first packet.
    pub(crate) first_packet: u64,
    /// The time of its last packet, in nanoseconds since 1970.
    pub(crate) time_ns: u64,
    /// The address of its sender.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<String>,
    /// The address of its receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) to: Option<String>,
    /// The queue pair of its receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queue_pair: Option<u32>,
    /// The number of the connection, counted from 1 in the order of appearance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connection: Option<u64>,
    /// The event.
    #[serde(flatten)]
    pub(crate) what: What,
    /// The time since the first packet of the capture, for the text.
    #[serde(skip)]
    pub(crate) since_start: Duration,
}

/// An event of a capture.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(crate) enum What {
    /// A message.
    Message {
        /// The handle that the device of its receiver invalidates.
        #[serde(skip_serializing_if = "Option::is_none")]
        invalidated: Option<u32>,
        /// Its immediate data.
        #[serde(skip_serializing_if = "Option::is_none")]
        immediate: Option<u32>,
        /// Replies: the time from the first packet of the call to the last packet of the reply, in nanoseconds.
        #[serde(skip_serializing_if = "Option::is_none")]
        round_trip_ns: Option<u64>,
        /// The decoded message.
        #[serde(flatten)]
        decoded: Box<Decoded>,
    },
    /// An RDMA Read from the memory of the receiver.
    Read(Memory),
    /// An RDMA Write into the memory of the receiver.
    Write(Memory),
    /// One end requests a connection.
    ConnectRequest {
        /// The port of RDMA-CM.
        #[serde(skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
        /// The decoded private data (RFC 8797); null if it has another format.
        private_data: Option<Told>,
    },
    /// The other end accepts the request.
    ConnectReply {
        /// The decoded private data (RFC 8797); null if it has another format.
        private_data: Option<Told>,
    },
    /// The other end rejects the request.
    ConnectReject {
        /// The reason of the connection manager; 28 is a rejection by the application.
        reason_number: u16,
        /// The decoded private data (RFC 8797); null if it has another format.
        private_data: Option<Told>,
    },
    /// One end closes a connection.
    Disconnect,
    /// A part of the traffic is missing; at least one message is lost.
    Gap {
        /// The number of missing packets, if the sequence numbers show it.
        #[serde(skip_serializing_if = "Option::is_none")]
        packets: Option<u32>,
        /// The kind of the gap in words.
        reason: &'static str,
    },
    /// A packet that cannot be read.
    Damaged {
        /// The fault of the packet.
        reason: &'static str,
    },
}

impl What {
    /// Whether the event is an error. A capture may start or end within a message, so a gap without a number of
    /// packets is no error.
    pub(crate) fn is_wrong(&self) -> bool {
        match self {
            Self::Message { decoded, .. } => decoded.is_wrong(),
            Self::Gap { packets, .. } => packets.is_some(),
            Self::Damaged { .. } => true,
            _ => false,
        }
    }
}

/// Memory of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Memory {
    /// The rkey.
    pub(crate) handle: u32,
    /// The length in bytes.
    pub(crate) length: u32,
    /// The address.
    pub(crate) offset: u64,
}

/// The private data of an end (RFC 8797).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Told {
    /// Whether the sender supports remote invalidation.
    pub(crate) remote_invalidation: bool,
    /// The inline threshold of the sender for messages that it sends, in bytes.
    pub(crate) send_bytes: u32,
    /// The inline threshold of the sender for messages that it receives, in bytes.
    pub(crate) receive_bytes: u32,
}

impl From<RemoteAccess> for Memory {
    fn from(access: RemoteAccess) -> Self {
        Self {
            handle: access.key,
            length: access.length,
            offset: access.address,
        }
    }
}

pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
