//! Turns packets into events: connection setup and end, whole messages, RDMA Reads and Writes, and gaps in the
//! capture.
//!
//! The messages of the connection manager show which two queue pairs form a connection. If the capture starts after
//! them, the sequence numbers show it: one end acknowledges what the other end sends.

mod event;
mod stream;

use std::net::IpAddr;

use crate::capture::container::Packet;
use crate::capture::frame::{self, Datagram, Frame};
use crate::capture::manager::{self, End, ManagerMessage};
use crate::capture::roce::{self, GENERAL_SERVICES_QUEUE_PAIR, Operation, RocePacket};
use crate::recent::Recent;
pub use event::{Event, Flow, Gap, Happened, Message, RemoteAccess};
use stream::{Arrival, Segment, Stream};

/// Directions of connections that are followed at the same time. Each packet of a capture can be of another one, so what is
/// kept of them is limited; those without a packet for the longest time are forgotten.
const FLOWS_MAX: usize = 8192;
/// Directions that a packet begins at most. Room for them is made before the packet is read, and is none of those that are
/// followed.
const NEW_MAX: usize = 2;

/// Bytes of packets that wait in all directions together, for an earlier packet or for the end of their message. Directions without
/// a packet for the longest time are forgotten before there are more. One direction alone is limited by what it may hold.
const WAITING_BYTES_MAX: usize = 256 << 20;

/// Requests for connections that may wait for their answers.
const ASKED_MAX: usize = 4096;

/// The numbers of packets by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets of RoCEv2.
    pub roce: u64,
    /// Other packets, which are skipped.
    pub other: u64,
    /// Packets of RoCEv2 that came before: retransmissions.
    pub again: u64,
    /// Packets that could not be read.
    pub damaged: u64,
    /// Directions of connections that were forgotten, because there were too many others, or too much waited in all of them. If one goes on, it counts as a new
    /// connection.
    pub forgotten: u64,
}

/// A connection request without an answer yet.
#[derive(Clone, Copy, Debug)]
struct Asked {
    end: End,
    path_mtu: u32,
}

/// The state of all connections of a capture.
#[derive(Debug)]
pub struct Traffic {
    streams: Recent<Flow, Stream, { FLOWS_MAX + NEW_MAX }>,
    /// By the address of the requesting end, and its communication ID.
    asked: Recent<(IpAddr, u32), Asked, ASKED_MAX>,
    connections: u64,
    counts: Counts,
    /// Bytes of packets that wait in all directions, and the most that may.
    waiting_bytes: usize,
    waiting_bytes_max: usize,
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            streams: Recent::default(),
            asked: Recent::default(),
            connections: 0,
            counts: Counts::default(),
            waiting_bytes: 0,
            waiting_bytes_max: WAITING_BYTES_MAX,
        }
    }
}

impl Traffic {
    /// Takes the next packet, and returns the events that it completes, behind those of directions that are forgotten for it.
    pub fn packet(&mut self, packet: &Packet) -> Vec<Happened> {
        let mut all = self.make_room();
        all.append(&mut self.take(packet));
        all
    }

    /// Forgets directions if there are too many, or too much waits in them. Returns their last events.
    fn make_room(&mut self) -> Vec<Happened> {
        let mut all = ended(self.streams.make_room(NEW_MAX));
        while self.waiting_bytes > self.waiting_bytes_max {
            let streams = self.streams.iter();
            self.waiting_bytes = streams.map(|(_, stream)| stream.waiting_bytes()).sum();
            if self.waiting_bytes <= self.waiting_bytes_max {
                break;
            }
            let forgotten = self.streams.forget_older();
            if forgotten.is_empty() {
                break;
            }
            all.append(&mut ended(forgotten));
        }
        all
    }

    fn take(&mut self, packet: &Packet) -> Vec<Happened> {
        let datagram = match frame::read(packet.link, &packet.octets) {
            Frame::Roce(datagram) => datagram,
            Frame::Other => {
                self.counts.other += 1;
                return Vec::new();
            }
            Frame::Damaged(reason) => return self.damaged(packet, reason),
        };
        let Some(roce) = roce::read(datagram.octets) else {
            return self.damaged(packet, "the packet is shorter than its headers");
        };
        self.counts.roce += 1;
        let flow = Flow {
            source: datagram.source,
            destination: datagram.destination,
            queue_pair: roce.queue_pair,
        };
        match roce.operation {
            Operation::Datagram { .. } if roce.queue_pair == GENERAL_SERVICES_QUEUE_PAIR => {
                self.managed(packet, datagram, flow, roce.payload)
            }
            Operation::Datagram { .. } | Operation::Other(_) => Vec::new(),
            Operation::Acknowledge => self.acknowledged(flow, roce.sequence),
            Operation::ReadResponse(part) => {
                let happened = self.acknowledged(flow, roce.sequence);
                if !part.ends() {
                    self.learn_mtu(flow, roce.payload.len());
                }
                happened
            }
            // The refusal of a number acknowledges all packets before it.
            Operation::Refuse { .. } => {
                let before = stream::before(roce.sequence);
                self.acknowledged(flow, before)
            }
            Operation::Send { part, .. } | Operation::Write { part, .. } => {
                if !part.ends() {
                    self.learn_mtu(flow, roce.payload.len());
                }
                self.streamed(packet, flow, &roce)
            }
            Operation::Read(_) | Operation::Atomic => self.streamed(packet, flow, &roce),
        }
    }

    /// Ends all directions, and returns the events of packets that waited and of messages without an end.
    pub fn finish(&mut self) -> Vec<Happened> {
        let flows = self.streams.iter().map(|(flow, _)| *flow);
        let mut flows: Vec<Flow> = flows.collect();
        // The order of a hash map differs between runs; the output must not.
        flows.sort();
        let streams = flows.into_iter();
        let streams = streams.filter_map(|flow| Some((flow, self.streams.remove(&flow)?)));
        ended(streams.collect())
    }

    /// The numbers of packets by kind, so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            forgotten: self.streams.forgotten(),
            ..self.counts
        }
    }

    fn damaged(&mut self, packet: &Packet, reason: &'static str) -> Vec<Happened> {
        self.counts.damaged += 1;
        vec![at(packet, None, None, Event::Damaged(reason))]
    }

    fn streamed(&mut self, packet: &Packet, flow: Flow, roce: &RocePacket<'_>) -> Vec<Happened> {
        let stream = self.streams.entry(flow);
        let before = stream.waiting_bytes();
        let arrived = stream.arrives(&Arrival::new(packet, roce));
        // What is given up elsewhere stays in the sum until that is counted anew.
        self.waiting_bytes += stream.waiting_bytes();
        self.waiting_bytes = self.waiting_bytes.saturating_sub(before);
        let Some(segments) = arrived else {
            self.counts.again += 1;
            return Vec::new();
        };
        let connection = self.connection_of(flow);
        happened(flow, connection, segments)
    }

    /// The number of the connection of a direction. A direction without one takes that of its peer, or a new one.
    fn connection_of(&mut self, flow: Flow) -> Option<u64> {
        let peer = self.streams.get(&flow)?.peer;
        let of_peer = peer.and_then(|peer| self.streams.get(&peer)?.connection);
        let stream = self.streams.get_mut(&flow)?;
        if stream.connection.is_none() {
            stream.connection = of_peer.or_else(|| {
                self.connections += 1;
                Some(self.connections)
            });
        }
        stream.connection
    }

    /// A packet of `flow` acknowledges the packets of the other direction up to this sequence number.
    fn acknowledged(&mut self, flow: Flow, sequence: u32) -> Vec<Happened> {
        self.streams.entry(flow);
        let Some(peer) = self.peer_of(flow, sequence) else {
            return Vec::new();
        };
        let Some(stream) = self.streams.get_mut(&peer) else {
            return Vec::new();
        };
        let segments = stream.acknowledged(sequence);
        let connection = stream.connection;
        happened(peer, connection, segments)
    }

    /// The other direction of the connection. If the capture does not hold the connection setup, this is the only
    /// direction between the two addresses that recently sent a packet with the acknowledged number; `None` if several
    /// did.
    fn peer_of(&mut self, flow: Flow, sequence: u32) -> Option<Flow> {
        if let Some(known) = self.streams.get(&flow)?.peer {
            return Some(known);
        }
        let mut candidates = self.streams.iter().filter(|(other, stream)| {
            (other.source, other.destination) == (flow.destination, flow.source)
                && stream.peer.is_none()
                && stream.has_lately_sent(sequence)
        });
        let peer = *candidates.next()?.0;
        let is_only = candidates.next().is_none();
        drop(candidates);
        if !is_only {
            return None;
        }
        self.pair(flow, peer);
        Some(peer)
    }

    fn pair(&mut self, flow: Flow, peer: Flow) {
        let connection = self.streams.get(&peer).and_then(|stream| stream.connection);
        let mtu = [flow, peer]
            .iter()
            .filter_map(|flow| self.streams.get(flow))
            .map(|stream| stream.path_mtu)
            .max();
        for (one, other) in [(flow, peer), (peer, flow)] {
            if let Some(stream) = self.streams.get_mut(&one) {
                stream.peer = Some(other);
                stream.connection = connection.or(stream.connection);
                stream.path_mtu = mtu.unwrap_or_default();
            }
        }
    }

    /// Takes the path MTU from a packet: every packet of a message but the last has the length of the path MTU.
    fn learn_mtu(&mut self, flow: Flow, payload_bytes: usize) {
        let mtu = u32::try_from(payload_bytes).unwrap_or_default();
        let stream = self.streams.entry(flow);
        stream.path_mtu = mtu;
        if let Some(peer) = stream.peer
            && let Some(stream) = self.streams.get_mut(&peer)
        {
            stream.path_mtu = mtu;
        }
    }

    /// Handles a message of the connection manager.
    fn managed(
        &mut self,
        packet: &Packet,
        datagram: Datagram<'_>,
        flow: Flow,
        payload: &[u8],
    ) -> Vec<Happened> {
        let Some(message) = manager::read(payload) else {
            return Vec::new();
        };
        let mut all = Vec::new();
        let (connection, event) = match message {
            ManagerMessage::Request {
                end,
                port,
                path_mtu,
                private_data,
            } => {
                let asked = Asked { end, path_mtu };
                self.asked.insert((datagram.source, end.id), asked);
                let private_data = private_data.to_vec();
                (None, Event::ConnectRequest { port, private_data })
            }
            ManagerMessage::Reply {
                end,
                peer_id,
                private_data,
            } => {
                let asked = self.asked.remove(&(datagram.destination, peer_id));
                let connection = asked.and_then(|asked| {
                    all = self.begin_connection(datagram.destination, datagram.source, asked, end);
                    self.connection_of(Flow {
                        queue_pair: asked.end.queue_pair,
                        ..flow
                    })
                });
                let private_data = private_data.to_vec();
                (connection, Event::ConnectReply { private_data })
            }
            ManagerMessage::Reject {
                peer_id,
                reason,
                private_data,
            } => {
                self.asked.remove(&(datagram.destination, peer_id));
                let private_data = private_data.to_vec();
                let event = Event::ConnectReject {
                    reason,
                    private_data,
                };
                (None, event)
            }
            ManagerMessage::DisconnectRequest => (None, Event::Disconnect),
            ManagerMessage::ReadyToUse
            | ManagerMessage::DisconnectReply
            | ManagerMessage::Other(_) => return Vec::new(),
        };
        all.push(at(packet, Some(flow), connection, event));
        all
    }

    /// Connects two queue pairs. Earlier connections of queue pairs with these numbers end, and their last events are
    /// returned: a device uses the numbers again.
    fn begin_connection(
        &mut self,
        asker: IpAddr,
        granter: IpAddr,
        asked: Asked,
        granted: End,
    ) -> Vec<Happened> {
        let to_granter = Flow {
            source: asker,
            destination: granter,
            queue_pair: granted.queue_pair,
        };
        let to_asker = Flow {
            source: granter,
            destination: asker,
            queue_pair: asked.end.queue_pair,
        };
        let ids = (asked.end.id, granted.id);
        let is_known = |stream: &Stream| stream.ids == Some(ids);
        if self.streams.get(&to_granter).is_some_and(is_known) {
            // The reply is a retransmission. New streams would lose the state of the connection.
            return Vec::new();
        }
        self.connections += 1;
        let mut left = Vec::new();
        for (flow, peer, first_sequence) in [
            (to_granter, to_asker, granted.first_sequence),
            (to_asker, to_granter, asked.end.first_sequence),
        ] {
            let mut stream = Stream::beginning_with(first_sequence);
            stream.connection = Some(self.connections);
            stream.peer = Some(peer);
            stream.ids = Some(ids);
            stream.path_mtu = asked.path_mtu;
            if let Some(mut earlier) = self.streams.insert(flow, stream) {
                let segments = earlier.finish();
                left.extend(happened(flow, earlier.connection, segments));
            }
        }
        left
    }
}

/// The last events of directions.
fn ended(streams: Vec<(Flow, Stream)>) -> Vec<Happened> {
    let ended = streams.into_iter().map(|(flow, mut stream)| {
        let segments = stream.finish();
        happened(flow, stream.connection, segments)
    });
    ended.flatten().collect()
}

/// Adds the direction and the connection to events.
fn happened(flow: Flow, connection: Option<u64>, segments: Vec<Segment>) -> Vec<Happened> {
    segments
        .into_iter()
        .map(|segment| Happened {
            flow: Some(flow),
            connection,
            first_packet: segment.first_packet,
            last_packet: segment.last_packet,
            began: segment.began,
            ended: segment.ended,
            event: segment.event,
        })
        .collect()
}

/// An event of a single packet.
fn at(packet: &Packet, flow: Option<Flow>, connection: Option<u64>, event: Event) -> Happened {
    Happened {
        flow,
        connection,
        first_packet: packet.number,
        last_packet: packet.number,
        began: packet.time,
        ended: packet.time,
        event,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::container::LinkType;
    use crate::capture::roce::Part;

    /// The first packets of messages whose last ones never come, each of another direction.
    #[test]
    fn bytes_that_wait_are_limited_over_all_directions() {
        const PAYLOAD: usize = 4096;
        let limit = 64 * PAYLOAD;
        let mut traffic = Traffic {
            waiting_bytes_max: limit,
            ..Traffic::default()
        };
        let packet = Packet {
            number: 1,
            time: std::time::Duration::ZERO,
            link: LinkType::Ethernet,
            octets: Vec::new(),
        };
        let flow_of = |queue_pair| Flow {
            source: IpAddr::from([10, 0, 0, 1]),
            destination: IpAddr::from([10, 0, 0, 2]),
            queue_pair,
        };
        let send = |part, queue_pair, sequence, payload| RocePacket {
            queue_pair,
            sequence,
            operation: Operation::Send {
                part,
                immediate: None,
                invalidated: None,
            },
            payload,
        };
        let payload = [7; PAYLOAD];
        let mut gaps = 0;
        let mut messages = 0;
        for number in 0..1000 {
            for happened in traffic.make_room() {
                gaps += usize::from(happened.event == Event::Gap(Gap::NoEnd));
            }
            // A direction that goes on is not forgotten: its messages stay whole.
            let (own, forged) = (flow_of(1), flow_of(1000 + number));
            for (part, sequence) in [(Part::First, 2 * number), (Part::Last, 2 * number + 1)] {
                let happened = traffic.streamed(&packet, own, &send(part, 1, sequence, &payload));
                messages += happened.len();
            }
            traffic.streamed(
                &packet,
                forged,
                &send(Part::First, forged.queue_pair, 0, &payload),
            );
            let waits: usize = traffic
                .streams
                .iter()
                .map(|(_, it)| it.waiting_bytes())
                .sum();
            assert!(waits <= limit + 2 * PAYLOAD, "{waits} bytes wait");
        }
        assert!(gaps > 900, "{gaps} were given up, and reported");
        assert_eq!(messages, 1000);
    }
}
