//! Decodes captures of RoCEv2 traffic. The events come in the order of completion. Messages are decoded like messages
//! in hex, separately for each connection; a reply also has the time since its call.

use std::time::Duration;

use crate::capture::{Counts, Event, Flow, Gap, Happened};
use rpcrdma_protocol::cm_private_data::PrivateData;

use crate::recent::Recent;

use super::captured::{Captured, Told, What, nanoseconds};
use super::conversation::Conversation;
use super::message::Decoded;
use super::round_trips::{Part, Place, RoundTrips, Sender};
use super::summary::{Collector, Seen, Summary};

/// Connections that are followed at the same time.
const CONVERSATIONS_MAX: usize = 8192;

/// The state that later events of the capture need.
#[derive(Default)]
pub(crate) struct Explained {
    /// The time of the first packet.
    pub(crate) start: Option<Duration>,
    /// The number of messages so far.
    pub(crate) messages: u64,
    /// By connection; by direction if the connection is unknown.
    conversations: Recent<(Option<u64>, Option<Flow>), Conversation, CONVERSATIONS_MAX>,
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
        let summary = collected.finish(name, &self.round_trips);
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
                let conversation = self.conversations.entry((connection, without));
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

fn told(private_data: &[u8]) -> Option<Told> {
    PrivateData::find(private_data).map(|found| Told {
        remote_invalidation: found.remote_invalidation,
        send_bytes: found.send_bytes,
        receive_bytes: found.receive_bytes,
    })
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
