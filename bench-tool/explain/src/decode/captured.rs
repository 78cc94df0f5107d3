//! Decodes captures of RoCEv2 traffic. The events come in the order of completion. Messages are decoded like messages
//! in hex, separately for each connection; a reply also has the time since its call.

use std::collections::HashMap;
use std::time::Duration;

use crate::capture::{Counts, Event, Flow, Gap, Happened, RemoteAccess};
use rpcrdma_protocol::cm_private_data::PrivateData;
use serde::Serialize;

use super::conversation::Conversation;
use super::message::Decoded;
use super::round_trips::{Part, Place, RoundTrips, Sender};
use super::summary::{Collector, Seen, Summary};

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

fn told(private_data: &[u8]) -> Option<Told> {
    PrivateData::find(private_data).map(|found| Told {
        remote_invalidation: found.remote_invalidation,
        send_bytes: found.send_bytes,
        receive_bytes: found.receive_bytes,
    })
}

/// The state that later events of the capture need.
#[derive(Default)]
pub(crate) struct Explained {
    /// The time of the first packet.
    pub(crate) start: Option<Duration>,
    /// The number of messages so far.
    pub(crate) messages: u64,
    /// By connection; by direction if the connection is unknown.
    conversations: HashMap<(Option<u64>, Option<Flow>), Conversation>,
    /// The time of the last packet so far.
    pub(crate) end: Duration,
    round_trips: RoundTrips,
    collector: Option<Collector>,
}

impl Explained {
    /// The state at the start of a capture. With a number, the summary is collected, with so many of the slowest calls.
    pub(crate) fn new(slowest: Option<usize>) -> Self {
        Self {
            collector: slowest.map(Collector::new),
            ..Self::default()
        }
    }

    /// The summary, if it was collected.
    pub(crate) fn summary(self, name: &str, counts: Counts) -> Option<Summary> {
        let collected = self.collector?;
        let summary = collected.finish(name, &self.round_trips.unanswered());
        Some(summary.of_capture(counts, (self.start, self.end)))
    }

    /// Decodes the event.
    pub(crate) fn explain(&mut self, happened: Happened) -> Captured {
        let (flow, connection) = (happened.flow, happened.connection);
        let (began, ended) = (happened.began, happened.ended);
        let (first_packet, packet) = (happened.first_packet, happened.last_packet);
        let what = match happened.event {
            Event::Message(message) => {
                self.messages += 1;
                let without = flow.filter(|_| connection.is_none());
                let conversation = self.conversations.entry((connection, without)).or_default();
                let decoded = conversation.decode(&message.octets, None);
                let part = match (&decoded, flow) {
                    (Decoded::Right(message), Some(flow)) => {
                        let place = Place {
                            connection,
                            sender: Sender::Flow(flow),
                            first_packet,
                            began,
                        };
                        self.round_trips.message(message, place)
                    }
                    _ => Part::Other,
                };
                let round_trip = match part {
                    Part::Reply(call) => call.until(ended),
                    _ => None,
                };
                if let Some(collector) = &mut self.collector {
                    collector.message(Seen {
                        decoded: &decoded,
                        part,
                        flow,
                        connection,
                        last_packet: packet,
                        ended: Some(ended),
                    });
                }
                What::Message {
                    invalidated: message.invalidated,
                    immediate: message.immediate,
                    round_trip_ns: round_trip.map(nanoseconds),
                    decoded: Box::new(decoded),
                }
            }
            Event::Read(access) => What::Read(access.into()),
            Event::Write(access) => What::Write(access.into()),
            Event::ConnectRequest { port, private_data } => What::ConnectRequest {
                port,
                private_data: told(&private_data),
            },
            Event::ConnectReply { private_data } => What::ConnectReply {
                private_data: told(&private_data),
            },
            Event::ConnectReject {
                reason,
                private_data,
            } => What::ConnectReject {
                reason_number: reason,
                private_data: told(&private_data),
            },
            Event::Disconnect => What::Disconnect,
            Event::Gap(gap) => explain_gap(gap),
            Event::Damaged(reason) => What::Damaged { reason },
        };
        if let Some(collector) = &mut self.collector {
            collector.event(&what, flow);
        }
        Captured {
            packet,
            first_packet,
            time_ns: nanoseconds(ended),
            from: flow.map(|flow| flow.source.to_string()),
            to: flow.map(|flow| flow.destination.to_string()),
            queue_pair: flow.map(|flow| flow.queue_pair),
            connection,
            what,
            since_start: ended.saturating_sub(self.start.unwrap_or_default()),
        }
    }
}

pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn explain_gap(gap: Gap) -> What {
    let (packets, reason) = match gap {
        Gap::Missing(packets) => (Some(packets), MISSING),
        Gap::NoBeginning => (None, "the capture begins within a message"),
        Gap::NoEnd => (None, "a message has no end"),
        Gap::TooLong => (None, "a message is longer than this tool keeps"),
    };
    What::Gap { packets, reason }
}

const MISSING: &str = "packets are missing, as the numbers of the others show";
