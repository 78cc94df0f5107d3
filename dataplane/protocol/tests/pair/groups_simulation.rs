//! Two ends that send each other transmission groups: generated receive buffers, messages, delays and turns.
//!
//! A group holds its Receives until it is complete, as an end does that places without copying. Groups cross, run
//! down to the last credit, and where there are not enough credits the message goes as plain version 2. Every message
//! must come as it was, no message may come without a Receive, and nobody may wait for ever.

mod schedules;

use std::collections::{BTreeMap, VecDeque};

use proptest::collection::vec;
use proptest::prelude::*;
use rpcrdma_protocol::v2::connection::{
    Config, Connection, Direction, Event, Role, SendRefused, Transmission, TransmissionPart,
};
use rpcrdma_protocol::v2::plan::{Layout, LayoutRequest, Piece, SendLimits};
use rpcrdma_protocol::v2::rtr::{
    BufferSegment, EncodeItems, Location, MessageItem, MessageItems, ReceiveBufferStructure,
    RtrSupport, SegmentGroup, StreamPiece, TransmitRequest, TransmitResponse, VirtualStream,
    displacements, excised, placed_pieces, write_items,
};
use rpcrdma_protocol::v2::{self, Body, Prefix, Properties};
use rpcrdma_protocol::xdr::Writer;
use rpcrdma_protocol::{EncodeError, chunks::Segment};

use super::connections::rpc_message;
use super::world::{CLIENT, SERVER};

/// What one end is like.
#[derive(Clone, Debug)]
struct EndConfig {
    receive_reserve: u16,
    structure: ReceiveBufferStructure,
    request_transmissions_max: u32,
}

/// A message to be sent: octets that stay in the stream, and items that are cut out at these places of it.
#[derive(Clone, Debug)]
struct Shape {
    stream_bytes: usize,
    items: Vec<(u32, u32)>,
}

#[derive(Clone, Debug)]
struct Call {
    call: Shape,
    reply: Shape,
    response_transmissions_max: u32,
}

/// Items in the form that a sender has.
struct Items(Vec<MessageItem<[Segment; 0], Vec<u32>>>);

impl EncodeItems for Items {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        write_items(writer, self.0.iter().cloned())
    }
}

/// A message with its items apart.
struct Message {
    stream: Vec<u8>,
    cuts: Vec<(u32, u32)>,
    items: Vec<Vec<u8>>,
}

impl Message {
    fn new(xid: u32, direction: Direction, shape: &Shape) -> Self {
        let bytes = shape.stream_bytes;
        let items: Vec<Vec<u8>> = shape
            .items
            .iter()
            .enumerate()
            .map(|(index, (_, length))| {
                let salt = index + 1;
                let length = *length as usize;
                rpc_message(xid, direction, 8 + length, salt)[8..].to_vec()
            })
            .collect();
        Self {
            stream: rpc_message(xid, direction, bytes, 0),
            cuts: shape.items.clone(),
            items,
        }
    }

    /// As if nothing had been cut out.
    fn whole(&self) -> Vec<u8> {
        let mut whole = Vec::new();
        let mut from = 0;
        for ((at, _), item) in self.cuts.iter().zip(&self.items) {
            whole.extend(&self.stream[from..*at as usize]);
            from = *at as usize;
            whole.extend(item);
            whole.resize(whole.len().next_multiple_of(4), 0);
        }
        whole.extend(&self.stream[from..]);
        whole
    }
}

/// A transmission that is ready: octets of its stream, and all that follows the header.
type Ready = (u32, Vec<u8>);

struct Work {
    direction: Direction,
    xid: u32,
    message: Message,
    /// Of a call, what its reply may take; of a reply, what its call allowed.
    response_transmissions_max: u32,
    /// Octets that went as plain version 2.
    sent_bytes: usize,
}

struct End {
    connection: Connection,
    config: EndConfig,
    receives: usize,
    arrived: VecDeque<Vec<u8>>,
    /// Receives of the group that is not complete.
    held: usize,
    /// Receives that are posted again after so many turns.
    returning: VecDeque<u8>,
    link: VecDeque<Vec<u8>>,
    outbox: VecDeque<Work>,
    ready: VecDeque<Ready>,
    group: Vec<Vec<u8>>,
    reassembly: Vec<u8>,
    peer: Option<Properties>,
    calls: BTreeMap<u32, Call>,
    answered: usize,
    groups_sent: usize,
    transmissions_sent: usize,
    plain_sent: usize,
}

fn properties(config: &EndConfig) -> Properties {
    Properties {
        send_bytes_max: 1 << 20,
        receive_buffer_bytes: config.structure.length_bytes(),
        receive_buffer_structure: Some(config.structure),
        rtr_support: RtrSupport::ALL,
        request_transmissions_max: config.request_transmissions_max,
        response_transmissions_max: 64,
        ..Properties::default()
    }
}

impl End {
    fn new(role: Role, config: EndConfig) -> Self {
        let connection = Connection::new(&Config {
            role,
            receive_reserve: config.receive_reserve,
            properties: properties(&config),
            message_bytes_max: 1 << 20,
        });
        Self {
            connection,
            receives: usize::from(config.receive_reserve),
            config,
            arrived: VecDeque::new(),
            held: 0,
            returning: VecDeque::new(),
            link: VecDeque::new(),
            outbox: VecDeque::new(),
            ready: VecDeque::new(),
            group: Vec::new(),
            reassembly: Vec::new(),
            peer: None,
            calls: BTreeMap::new(),
            answered: 0,
            groups_sent: 0,
            transmissions_sent: 0,
            plain_sent: 0,
        }
    }

    fn is_idle(&self) -> bool {
        self.calls.is_empty()
            && self.outbox.is_empty()
            && self.ready.is_empty()
            && self.link.is_empty()
            && self.arrived.is_empty()
    }

    /// Handles one message that has come.
    fn handle(&mut self, peer_calls: &BTreeMap<u32, Call>, delay: u8) -> bool {
        let Some(message) = self.arrived.pop_front() else {
            return false;
        };
        match self.connection.handle_message(&message) {
            Event::Transmission(transmission) => {
                assert!(self.reassembly.is_empty());
                return self.take_transmission(transmission, &message, peer_calls, delay);
            }
            Event::Call { xid, payload, .. } => {
                let payload = payload.to_vec();
                self.take(Direction::Call, xid, &payload, peer_calls, 1);
            }
            Event::Reply { xid, payload, .. } => {
                let payload = payload.to_vec();
                self.take(Direction::Reply, xid, &payload, peer_calls, 1);
            }
            Event::Fragment {
                direction,
                xid,
                payload,
                last,
                ..
            } => {
                self.reassembly.extend_from_slice(payload);
                if last {
                    let whole = std::mem::take(&mut self.reassembly);
                    self.take(direction, xid, &whole, peer_calls, 1);
                }
            }
            Event::Properties { set, .. } => {
                let peer = set.properties();
                self.connection.handle_peer_properties(&peer);
                self.peer = Some(peer);
            }
            Event::Credits => {}
            other => panic!("both ends are right: {other:?}"),
        }
        self.returning.push_back(delay);
        true
    }

    fn take_transmission(
        &mut self,
        transmission: Transmission<'_>,
        message: &[u8],
        peer_calls: &BTreeMap<u32, Call>,
        delay: u8,
    ) -> bool {
        let limit = match transmission.id.direction {
            Direction::Call => self.config.request_transmissions_max,
            Direction::Reply => self.calls[&transmission.id.xid].response_transmissions_max,
        };
        assert!(transmission.transmissions <= limit, "as was allowed");
        let count = u32::try_from(self.group.len()).expect("few");
        assert_eq!(transmission.id.sequence, count, "in order");
        assert_eq!(
            matches!(transmission.part, TransmissionPart::Continue),
            count > 0
        );
        self.group.push(message.to_vec());
        self.held += 1;
        if !transmission.is_last() {
            return true;
        }
        let group = std::mem::take(&mut self.group);
        let (whole, allowed) = reassembled(&group, &self.config.structure);
        let id = transmission.id;
        for _ in 0..self.held {
            self.returning.push_back(delay);
        }
        self.held = 0;
        self.take(id.direction, id.xid, &whole, peer_calls, allowed);
        true
    }

    /// A whole message has come.
    fn take(
        &mut self,
        direction: Direction,
        xid: u32,
        whole: &[u8],
        peer_calls: &BTreeMap<u32, Call>,
        allowed: u32,
    ) {
        match direction {
            Direction::Call => {
                let call = &peer_calls[&xid];
                let expected = Message::new(xid, direction, &call.call).whole();
                assert!(whole == expected, "call {xid} came with other octets");
                self.outbox.push_back(Work {
                    direction: Direction::Reply,
                    xid,
                    message: Message::new(xid, Direction::Reply, &call.reply),
                    response_transmissions_max: allowed,
                    sent_bytes: 0,
                });
            }
            Direction::Reply => {
                let call = self.calls.remove(&xid).expect("this end made that call");
                let expected = Message::new(xid, direction, &call.reply).whole();
                assert!(whole == expected, "reply {xid} came with other octets");
                self.answered += 1;
            }
        }
    }

    /// Sends one message that uses a credit, if one can be sent.
    fn send(&mut self) -> bool {
        let mut space = vec![0; 64 * 1024];
        if let Some((stream_bytes, behind)) = self.ready.front() {
            let connection = &mut self.connection;
            match connection.encode_transmit_continue(&mut space, *stream_bytes, behind.len()) {
                Ok(header_bytes) => {
                    self.launch(header_bytes, &mut space);
                    return true;
                }
                Err(refused) => {
                    assert_eq!(refused, SendRefused::NoCredit);
                    // Only our own spare Receive can be waited for.
                    let credits = self.connection.credits();
                    assert!(credits.unused() >= self.connection.group_remaining());
                    return false;
                }
            }
        }
        if self.peer.is_none() || self.connection.credits_available() == 0 {
            return false;
        }
        let in_plain = self.outbox.front().is_some_and(|work| work.sent_bytes > 0);
        if !in_plain && self.begin_group(&mut space) {
            return true;
        }
        self.send_plain(&mut space)
    }

    /// Begins a group with the message that is next, if the credits cover it.
    fn begin_group(&mut self, space: &mut [u8]) -> bool {
        let (Some(work), Some(peer)) = (self.outbox.front(), self.peer) else {
            return false;
        };
        let structure = peer.receive_structure();
        let extents: Vec<_> = displacements(work.message.cuts.iter().copied()).collect();
        let lengths: Vec<u32> = extents.iter().map(|item| item.length_bytes).collect();
        let items = |numbers: &dyn Fn(usize) -> Vec<u32>| {
            let each = extents.iter().map(|item| MessageItem {
                displacement: item.displacement,
                length_bytes: item.length_bytes,
                location: Location::Placed {
                    offset_bytes: 0,
                    numbers: numbers(item.index),
                },
            });
            Items(each.collect())
        };
        let request = |items, transmissions, stream_bytes| TransmitRequest {
            items,
            directions: &[][..],
            transmissions,
            response_transmissions_max: work.response_transmissions_max,
            stream_bytes,
        };
        let response = |items, transmissions, stream_bytes| TransmitResponse {
            items,
            transmissions,
            stream_bytes,
        };
        let bare = items(&|_| Vec::new());
        let header_bytes = match work.direction {
            Direction::Call => {
                v2::encode_transmit_request(space, Prefix::default(), &request(bare, 1, 0))
            }
            Direction::Reply => {
                v2::encode_transmit_response(space, Prefix::default(), &response(bare, 1, 0))
            }
        };
        let most = match work.direction {
            Direction::Call => peer.request_transmissions_max,
            Direction::Reply => work.response_transmissions_max,
        };
        let layout = Layout::new(LayoutRequest {
            structure: &structure,
            header_bytes: u32::try_from(header_bytes.expect("space")).expect("short"),
            stream_bytes: u32::try_from(work.message.stream.len()).expect("short"),
            items: &lengths[..],
            limits: SendLimits {
                send_bytes_max: self.connection.send_threshold_bytes(),
                gather_entries_max: 64,
                padding_region_bytes: 1 << 20,
                transmissions_max: most.min(self.connection.credits_available()),
            },
        });
        let Ok(layout) = layout else {
            return false;
        };
        let mut ready: VecDeque<Ready> = layout
            .transmissions()
            .map(|transmission| {
                let pieces = transmission.pieces();
                (transmission.stream_bytes(), octets(&work.message, pieces))
            })
            .collect();
        let count = layout.transmission_count();
        let (stream_bytes, behind) = ready.front().expect("at least one").clone();
        let placed = items(&|item| layout.numbers(item).collect());
        let connection = &mut self.connection;
        let header_bytes = match work.direction {
            Direction::Call => connection.encode_transmit_request(
                space,
                work.xid,
                &request(placed, count, stream_bytes),
                behind.len(),
            ),
            Direction::Reply => connection.encode_transmit_response(
                space,
                work.xid,
                &response(placed, count, stream_bytes),
                behind.len(),
            ),
        };
        let header_bytes = header_bytes.expect("credits and limits were looked at");
        assert_eq!(header_bytes, layout.header_bytes() as usize);
        std::mem::swap(&mut self.ready, &mut ready);
        self.groups_sent += 1;
        self.outbox.pop_front();
        self.launch(header_bytes, space);
        true
    }

    /// Sends the header in `space` and what is ready behind it.
    fn launch(&mut self, header_bytes: usize, space: &mut [u8]) {
        let (_, behind) = self.ready.pop_front().expect("it was looked at");
        let mut message = space[..header_bytes].to_vec();
        message.extend(behind);
        self.link.push_back(message);
        self.transmissions_sent += 1;
        let left = u32::try_from(self.ready.len()).expect("few");
        assert_eq!(self.connection.group_remaining(), left);
    }

    fn send_plain(&mut self, space: &mut [u8]) -> bool {
        let Some(work) = self.outbox.front_mut() else {
            return false;
        };
        let whole = work.message.whole();
        let remaining = whole.len() - work.sent_bytes;
        let payload_bytes = self.connection.fragment_bytes(remaining);
        let more = payload_bytes < remaining;
        let header_bytes = self
            .connection
            .encode_message(space, work.xid, work.direction, more, payload_bytes)
            .expect("a credit is there");
        let mut message = space[..header_bytes].to_vec();
        message.extend(&whole[work.sent_bytes..][..payload_bytes]);
        work.sent_bytes += payload_bytes;
        if !more {
            self.outbox.pop_front();
            self.plain_sent += 1;
        }
        self.link.push_back(message);
        true
    }
}

/// What follows the header of a transmission. Padding is zero.
fn octets(message: &Message, pieces: impl Iterator<Item = Piece>) -> Vec<u8> {
    let mut octets = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Header { .. } => assert!(octets.is_empty()),
            Piece::Stream {
                from_bytes,
                length_bytes,
            } => octets.extend(&message.stream[from_bytes as usize..][..length_bytes as usize]),
            Piece::Padding { length_bytes } => {
                octets.resize(octets.len() + length_bytes as usize, 0);
            }
            Piece::Item {
                item,
                from_bytes,
                length_bytes,
            } => {
                let item = &message.items[item][from_bytes as usize..];
                octets.extend(&item[..length_bytes as usize]);
            }
        }
    }
    octets
}

/// The RPC message of a complete group, and what its reply may take.
fn reassembled(group: &[Vec<u8>], structure: &ReceiveBufferStructure) -> (Vec<u8>, u32) {
    let mut stream = Vec::new();
    let mut items = MessageItems::default();
    let mut allowed = 1;
    for message in group {
        let header = v2::decode_with_rtr(message, RtrSupport::ALL).expect("it was handled");
        let stream_bytes = match header.body {
            Body::TransmitRequest(body) => {
                items = body.items;
                allowed = body.response_transmissions_max;
                body.stream_bytes
            }
            Body::TransmitResponse(body) => {
                items = body.items;
                body.stream_bytes
            }
            Body::TransmitContinue(body) => body.stream_bytes,
            other => panic!("no transmission: {other:?}"),
        };
        stream.extend(&message[header.header_bytes..][..stream_bytes as usize]);
    }
    let stream_bytes = u32::try_from(stream.len()).expect("short");
    let mut whole = Vec::new();
    for piece in VirtualStream::new(stream_bytes, excised(items)).pieces() {
        match piece {
            StreamPiece::Stream {
                from_bytes,
                length_bytes,
            } => whole.extend(&stream[from_bytes as usize..][..length_bytes as usize]),
            StreamPiece::Item(extent) => {
                let item = items.clone().nth(extent.index).expect("it is there");
                let Location::Placed {
                    offset_bytes,
                    numbers,
                } = item.location
                else {
                    panic!("all are placed")
                };
                for piece in placed_pieces(structure, offset_bytes, numbers, item.length_bytes) {
                    let message = &group[piece.transmission as usize];
                    let octets = &message[piece.offset_bytes as usize..];
                    whole.extend(&octets[..piece.length_bytes as usize]);
                }
                whole.resize(whole.len().next_multiple_of(4), 0);
            }
        }
    }
    (whole, allowed)
}

struct World {
    ends: [End; 2],
    turns: Vec<u8>,
    turn: usize,
}

impl World {
    fn new(configs: [EndConfig; 2], calls: [Vec<Call>; 2], turns: Vec<u8>) -> Self {
        let [client, server] = configs;
        let mut ends = [
            End::new(Role::Client, client),
            End::new(Role::Server, server),
        ];
        for (end, calls) in ends.iter_mut().zip(calls) {
            for (xid, call) in (1..).zip(calls) {
                end.outbox.push_back(Work {
                    direction: Direction::Call,
                    xid,
                    message: Message::new(xid, Direction::Call, &call.call),
                    response_transmissions_max: call.response_transmissions_max,
                    sent_bytes: 0,
                });
                end.calls.insert(xid, call);
            }
        }
        Self {
            ends,
            turns,
            turn: 0,
        }
    }

    /// The pattern of turns; behind its end scattered by a hash of the count of turns. A pattern that only repeats,
    /// however shifted, can fall into step with the loop that asks for it, and one end then never has a turn.
    fn choice(&mut self) -> u8 {
        let round = self.turn / self.turns.len();
        let turn = self.turns[self.turn % self.turns.len()];
        self.turn += 1;
        if round == 0 {
            return turn;
        }
        let mut mixed = u64::try_from(self.turn).expect("few turns");
        for multiplier in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
            mixed = (mixed ^ (mixed >> 29)).wrapping_mul(multiplier);
        }
        turn ^ mixed.to_be_bytes()[0]
    }

    /// Runs until every call of both ends is answered.
    fn run(&mut self) {
        let mut space = vec![0; 4096];
        let bytes = self.ends[CLIENT]
            .connection
            .encode_properties(&mut space, 0)
            .expect("the implicit credit");
        self.ends[CLIENT].link.push_back(space[..bytes].to_vec());
        let mut server_has_spoken = false;
        let mut idle_turns = 0;
        while !self.ends.iter().all(End::is_idle) {
            let mut has_moved = false;
            for side in [CLIENT, SERVER] {
                has_moved |= self.deliver(side);
                has_moved |= self.repost(side);
                has_moved |= self.handle(side);
                if side == SERVER && !server_has_spoken && self.ends[SERVER].peer.is_some() {
                    let end = &mut self.ends[SERVER];
                    if let Ok(bytes) = end.connection.encode_properties(&mut space, 0) {
                        end.link.push_back(space[..bytes].to_vec());
                        server_has_spoken = true;
                    }
                }
                if side == CLIENT || server_has_spoken {
                    for _ in 0..self.choice() % 4 {
                        has_moved |= self.ends[side].send();
                        self.check();
                    }
                }
                let end = &mut self.ends[side];
                if end.connection.grant_due() {
                    let bytes = end.connection.encode_grant(&mut space).expect("it is due");
                    end.link.push_back(space[..bytes].to_vec());
                    has_moved = true;
                }
                self.check();
            }
            idle_turns = if has_moved { 0 } else { idle_turns + 1 };
            assert!(
                idle_turns < 2000,
                "stuck: {:?}",
                self.ends.each_ref().map(|end| (
                    end.connection.credits(),
                    end.outbox.len(),
                    end.ready.len()
                ))
            );
        }
    }

    fn deliver(&mut self, side: usize) -> bool {
        let most = self.choice() % 5;
        let [client, server] = &mut self.ends;
        let (receiver, sender) = if side == CLIENT {
            (client, server)
        } else {
            (server, client)
        };
        let mut has_moved = false;
        for _ in 0..most {
            let Some(message) = sender.link.pop_front() else {
                break;
            };
            assert!(receiver.receives > 0, "receiver not ready");
            let buffer_bytes = receiver.config.structure.length_bytes() as usize;
            assert!(message.len() <= buffer_bytes, "longer than the Receive");
            receiver.receives -= 1;
            receiver.arrived.push_back(message);
            has_moved = true;
        }
        has_moved
    }

    fn repost(&mut self, side: usize) -> bool {
        let end = &mut self.ends[side];
        let before = end.returning.len();
        for turns in &mut end.returning {
            *turns = turns.saturating_sub(1);
        }
        while end.returning.front() == Some(&0) {
            end.returning.pop_front();
            end.receives += 1;
            end.connection.handle_receives_posted(1);
        }
        end.returning.len() != before
    }

    fn handle(&mut self, side: usize) -> bool {
        let mut has_moved = false;
        for _ in 0..self.choice() % 4 {
            let delay = self.choice() % 8;
            let [client, server] = &mut self.ends;
            let (end, peer) = if side == CLIENT {
                (client, server)
            } else {
                (server, client)
            };
            has_moved |= end.handle(&peer.calls, delay);
            self.check();
        }
        has_moved
    }

    fn check(&self) {
        for (end, peer) in [
            (&self.ends[CLIENT], &self.ends[SERVER]),
            (&self.ends[SERVER], &self.ends[CLIENT]),
        ] {
            assert!(
                peer.link.len() <= end.receives,
                "the messages on their way do not find a Receive each"
            );
            let all = end.receives + end.arrived.len() + end.held + end.returning.len();
            assert_eq!(all, usize::from(end.config.receive_reserve));
            let left = u32::try_from(end.ready.len()).expect("few");
            assert!(
                end.connection.credits().unused() >= left,
                "a group has lost a credit"
            );
        }
    }
}
