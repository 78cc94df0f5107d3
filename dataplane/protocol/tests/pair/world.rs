//! The model: two ends, two in-order links, counted Receives, simulated time.

use std::collections::{BTreeMap, VecDeque};

use rpcrdma_protocol::chunks::ChunkLists;
use rpcrdma_protocol::v2::connection::{
    Config, Connection, Direction, DiscardReason, Event, Phase, Refusal, Role, Tick,
};
use rpcrdma_protocol::v2::properties::write_property_set;
use rpcrdma_protocol::v2::{Properties, Property, TransportError};
use rpcrdma_protocol::xdr::Writer;

use super::connections::rpc_message;
use super::wire::{self, is_counted, words_of};

/// Units of time between keep-alive ticks: longer than anything else in the model takes.
pub(crate) const TICK_INTERVAL: u64 = 2000;
/// A model that makes no progress for so long, with work left, is stuck.
const STUCK_AFTER: u64 = 3 * TICK_INTERVAL;
/// The same without ticks: a little more than the longest chain of delays.
const STUCK_AFTER_WITHOUT_TICKS: u64 = 1200;

/// What is done to a call on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    None,
    /// The XID at the start of the RPC message is another one.
    RpcXid,
    /// The RPC message type is that of a reply.
    RpcMessageType,
    /// The mark of the Read list is neither 0 nor 1.
    ReadListMark,
    /// A reserved flag is set.
    ReservedFlag,
    /// The header type is not known.
    HeaderType,
    /// The second message of the sequence has another XID.
    SequenceXid,
}

/// Something that an end wants to do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Task {
    Call {
        call_bytes: usize,
        reply_bytes: usize,
        damage: Damage,
    },
    /// Send our properties; with host authentication octets in as many messages as that takes.
    Properties { host_authentication_bytes: usize },
    /// Do nothing at all for a while: neither handle messages nor send.
    Sleep { duration: u64 },
    /// Send no asynchronous grants for a while.
    WithholdGrants { duration: u64 },
    /// Let the peer have so many credits, more or fewer than before.
    LimitCredits { limit: u16 },
    /// The connection breaks; both ends connect again and send what was not answered again.
    Break,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct EndConfig {
    pub(crate) receive_reserve: u16,
    pub(crate) send_bytes_max: u32,
    pub(crate) receive_buffer_bytes: u32,
    pub(crate) message_bytes_max: u32,
}

#[derive(Debug)]
enum OutgoingKind {
    Message(Direction),
    Properties,
    PropertiesParts,
}

#[derive(Debug)]
struct Outgoing {
    kind: OutgoingKind,
    xid: u32,
    bytes: Vec<u8>,
    sent_bytes: usize,
    parts: usize,
    damage: Damage,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    call_bytes: usize,
    reply_bytes: usize,
    damage: Damage,
}

/// A Receive whose message was handled, and which is posted again later.
struct Returning {
    at: u64,
    counted: bool,
}

pub(crate) struct End {
    pub(crate) connection: Connection,
    config: EndConfig,
    role: Role,
    /// Receives that are posted and not taken.
    receives: usize,
    /// Messages that took a Receive and were not handled yet.
    arrived: VecDeque<Vec<u8>>,
    returning: VecDeque<Returning>,
    link: VecDeque<(u64, Vec<u8>)>,
    outbox: VecDeque<Outgoing>,
    refusals: VecDeque<Refusal>,
    reassembly: Vec<u8>,
    property_bytes: Vec<u8>,
    /// Calls of this end that are not answered.
    calls: BTreeMap<u32, Call>,
    next_xid: u32,
    asleep_until: u64,
    withholding_until: u64,
    pub(crate) answered: usize,
    pub(crate) refused: usize,
    pub(crate) properties_received: usize,
}

impl End {
    fn new(role: Role, config: EndConfig) -> Self {
        Self {
            connection: connection(role, config),
            config,
            role,
            receives: usize::from(config.receive_reserve),
            arrived: VecDeque::new(),
            returning: VecDeque::new(),
            link: VecDeque::new(),
            outbox: VecDeque::new(),
            refusals: VecDeque::new(),
            reassembly: Vec::new(),
            property_bytes: Vec::new(),
            calls: BTreeMap::new(),
            next_xid: 1,
            asleep_until: 0,
            withholding_until: 0,
            answered: 0,
            refused: 0,
            properties_received: 0,
        }
    }

    fn reconnect(&mut self) {
        self.connection = connection(self.role, self.config);
        self.receives = usize::from(self.config.receive_reserve);
        self.arrived.clear();
        self.returning.clear();
        self.link.clear();
        self.outbox.clear();
        self.refusals.clear();
        self.reassembly.clear();
        self.property_bytes.clear();
        for (xid, call) in self.calls.clone() {
            self.push_call(xid, call);
        }
    }

    fn push_call(&mut self, xid: u32, call: Call) {
        self.outbox.push_back(Outgoing {
            kind: OutgoingKind::Message(Direction::Call),
            xid,
            bytes: rpc_message(xid, Direction::Call, call.call_bytes, call.reply_bytes),
            sent_bytes: 0,
            parts: 0,
            damage: call.damage,
        });
    }

    fn is_idle(&self) -> bool {
        self.calls.is_empty()
            && self.outbox.is_empty()
            && self.refusals.is_empty()
            && self.link.is_empty()
            && self.arrived.is_empty()
            && self.returning.is_empty()
    }

    /// One event of a received message. `peer_limit` tells the model what the peer can put together.
    fn act(&mut self, event: Event<'_>, peer_calls: &mut BTreeMap<u32, Call>) {
        match event {
            Event::Call { xid, payload, .. } => self.take_call(xid, payload, peer_calls),
            Event::Reply { xid, payload, .. } => self.take_reply(xid, payload),
            Event::Fragment {
                direction,
                xid,
                offset,
                payload,
                last,
                ..
            } => {
                if offset == 0 {
                    self.reassembly.clear();
                }
                assert_eq!(self.reassembly.len(), offset as usize, "parts are in order");
                self.reassembly.extend_from_slice(payload);
                assert!(self.reassembly.len() <= self.config.message_bytes_max as usize);
                if last {
                    let message = std::mem::take(&mut self.reassembly);
                    match direction {
                        Direction::Call => self.take_call(xid, &message, peer_calls),
                        Direction::Reply => self.take_reply(xid, &message),
                    }
                }
            }
            Event::Properties { set, .. } => {
                self.take_properties(&set.properties());
            }
            Event::PropertiesFragment {
                offset,
                bytes,
                last,
                ..
            } => {
                assert_eq!(self.property_bytes.len(), offset as usize);
                self.property_bytes.extend_from_slice(bytes);
                if last {
                    let bytes = std::mem::take(&mut self.property_bytes);
                    let set = rpcrdma_protocol::v2::PropertySet::decode(&bytes)
                        .expect("the set was encoded by us");
                    self.take_properties(&set.properties());
                }
            }
            Event::Credits => {}
            Event::TransportError { xid, .. } => {
                // Of a damaged XID there is no call.
                if let Some(call) = self.calls.remove(&xid) {
                    assert!(
                        call.damage != Damage::None || call.call_bytes > 4000,
                        "call {xid} was refused without reason: {call:?}"
                    );
                    self.refused += 1;
                }
            }
            Event::Refused(refusal) => {
                if refusal.sequence_given_up {
                    self.reassembly.clear();
                    // The error may carry the damaged XID: the call that it belonged to is known to the model.
                    peer_calls.retain(|_, call| call.damage != Damage::SequenceXid);
                }
                self.refusals.push_back(refusal);
            }
            Event::Discarded(DiscardReason::SequenceRest) => {}
            Event::Discarded(DiscardReason::ReplyTooLong { xid }) => {
                self.reassembly.clear();
                let call = self.calls.remove(&xid).expect("the call was ours");
                assert!(call.reply_bytes > self.config.message_bytes_max as usize);
                self.refused += 1;
            }
            Event::Discarded(reason) => panic!("unexpected discard: {reason:?}"),
            Event::Transmission(_) | Event::TransmissionRefused(_) | Event::ErrorReported(_) => {
                panic!("nobody has announced the extension: {event:?}")
            }
            Event::ApplicationMessage { .. } => panic!("no application has registered any"),
            Event::VersionMismatch { .. } | Event::FellBack => panic!("both ends speak version 2"),
            Event::Close(reason) => panic!("unexpected close: {reason}"),
        }
    }

    fn take_call(&mut self, xid: u32, message: &[u8], peer_calls: &BTreeMap<u32, Call>) {
        let call = peer_calls.get(&xid).expect("the peer made this call");
        let expected = rpc_message(xid, Direction::Call, call.call_bytes, call.reply_bytes);
        assert!(message == expected, "call {xid} came with other bytes");
        self.outbox.push_back(Outgoing {
            kind: OutgoingKind::Message(Direction::Reply),
            xid,
            bytes: rpc_message(xid, Direction::Reply, call.reply_bytes, 0),
            sent_bytes: 0,
            parts: 0,
            damage: Damage::None,
        });
    }

    fn take_reply(&mut self, xid: u32, message: &[u8]) {
        let call = self.calls.remove(&xid).expect("this end made that call");
        let expected = rpc_message(xid, Direction::Reply, call.reply_bytes, 0);
        assert!(message == expected, "reply {xid} came with other bytes");
        self.answered += 1;
    }

    fn take_properties(&mut self, properties: &Properties) {
        self.properties_received += 1;
        self.connection.handle_peer_properties(properties);
    }

    /// Writes at most one message that uses a credit.
    fn send_one(&mut self) -> Option<Vec<u8>> {
        if self.outbox.is_empty() && self.refusals.is_empty() {
            return None;
        }
        if self.connection.credits_available() == 0 {
            let mut space = [0; 64];
            assert!(
                self.outbox.front().is_none_or(|next| {
                    let direction = Direction::Call;
                    self.connection
                        .encode_message(&mut space, next.xid, direction, false, 4)
                        .is_err()
                }),
                "nothing can be sent without a credit"
            );
            return None;
        }
        let mut space = vec![0; 16 * 1024];
        if let Some(refusal) = self.refusals.front() {
            let bytes = self
                .connection
                .encode_error(&mut space, refusal)
                .expect("a credit is there");
            self.refusals.pop_front();
            space.truncate(bytes);
            return Some(space);
        }
        let next = self.outbox.front_mut()?;
        let remaining = next.bytes.len() - next.sent_bytes;
        let (header_bytes, payload_bytes) = match next.kind {
            OutgoingKind::Message(direction) => {
                let payload_bytes = self.connection.fragment_bytes(remaining);
                let more = payload_bytes < remaining;
                let header_bytes = self
                    .connection
                    .encode_message(&mut space, next.xid, direction, more, payload_bytes)
                    .expect("credit, threshold and sequence were looked at");
                (header_bytes, payload_bytes)
            }
            OutgoingKind::Properties => {
                let bytes = self
                    .connection
                    .encode_properties(&mut space, next.xid)
                    .expect("a credit is there");
                (bytes, 0)
            }
            OutgoingKind::PropertiesParts => {
                let room = self.connection.send_threshold_bytes() as usize - 20;
                let more = remaining > room;
                let payload_bytes = if more { room - 4 } else { remaining };
                let header_bytes = self
                    .connection
                    .encode_properties_part(&mut space, next.xid, more, payload_bytes)
                    .expect("credit, threshold and sequence were looked at");
                (header_bytes, payload_bytes)
            }
        };
        let payload = &next.bytes[next.sent_bytes..next.sent_bytes + payload_bytes];
        space[header_bytes..header_bytes + payload_bytes].copy_from_slice(payload);
        space.truncate(header_bytes + payload_bytes);
        wire::damage(&mut space, next.damage, next.parts);
        next.sent_bytes += payload_bytes;
        next.parts += 1;
        if next.sent_bytes == next.bytes.len() {
            self.outbox.pop_front();
            assert!(!self.connection.sequence_open());
        }
        Some(space)
    }
}

fn connection(role: Role, config: EndConfig) -> Connection {
    Connection::new(&Config {
        role,
        receive_reserve: config.receive_reserve,
        properties: Properties {
            send_bytes_max: config.send_bytes_max,
            receive_buffer_bytes: config.receive_buffer_bytes,
            ..Properties::default()
        },
        message_bytes_max: config.message_bytes_max,
    })
}

/// Delays, one after the other, over and over.
pub(crate) struct Delays {
    values: Vec<u8>,
    next: usize,
}

impl Delays {
    fn next(&mut self) -> u64 {
        if self.values.is_empty() {
            return 1;
        }
        self.next = (self.next + 1) % self.values.len();
        u64::from(self.values[self.next])
    }
}

/// Which end: the client is 0, the server 1.
pub(crate) const CLIENT: usize = 0;
pub(crate) const SERVER: usize = 1;

pub(crate) struct World {
    pub(crate) ends: [End; 2],
    now: u64,
    last_progress: u64,
    delays: Delays,
    ticks: bool,
    tasks: VecDeque<(u64, usize, Task)>,
    pub(crate) breaks: usize,
}

impl World {
    /// `tasks`: when, by which end, what; in order of time. With `ticks` keep-alives are sent.
    pub(crate) fn new(
        client: EndConfig,
        server: EndConfig,
        delays: Vec<u8>,
        ticks: bool,
        mut tasks: Vec<(u64, usize, Task)>,
    ) -> Self {
        tasks.sort_by_key(|(at, ..)| *at);
        Self {
            ends: [
                End::new(Role::Client, client),
                End::new(Role::Server, server),
            ],
            now: 0,
            last_progress: 0,
            delays: Delays {
                values: delays,
                next: 0,
            },
            ticks,
            tasks: tasks.into(),
            breaks: 0,
        }
    }

    /// Runs until all work is done. Panics when a rule is broken, or when nothing goes on though work is left.
    pub(crate) fn run(&mut self) {
        let patience = if self.ticks {
            STUCK_AFTER
        } else {
            STUCK_AFTER_WITHOUT_TICKS
        };
        while !(self.tasks.is_empty() && self.ends.iter().all(End::is_idle)) {
            self.step();
            if self.last_progress != self.now {
                self.skip_idle_time();
            }
            let waited = self.now - self.last_progress;
            assert!(
                waited < patience || !self.tasks.is_empty(),
                "stuck: {:?}",
                self.ends.each_ref().map(|end| (
                    end.connection.clone(),
                    end.outbox.len(),
                    end.calls.len()
                ))
            );
        }
    }

    pub(crate) fn step(&mut self) {
        self.now += 1;
        self.start_tasks();
        for side in [CLIENT, SERVER] {
            self.deliver(side);
            self.check();
            self.repost(side);
            self.check();
            if self.ends[side].asleep_until > self.now {
                continue;
            }
            self.handle(side);
            self.check();
            self.send(side);
            self.check();
            if self.ticks && self.now.is_multiple_of(TICK_INTERVAL) {
                self.tick(side);
                self.check();
            }
        }
    }

    /// Nothing happened: the next moment is the one before something is due.
    fn skip_idle_time(&mut self) {
        let next_tick = (self.now / TICK_INTERVAL + 1) * TICK_INTERVAL;
        let due = self
            .ends
            .iter()
            .flat_map(|end| {
                [
                    end.link.front().map(|(at, _)| *at),
                    end.returning.front().map(|returning| returning.at),
                    Some(end.asleep_until),
                    Some(end.withholding_until),
                ]
            })
            .flatten()
            .chain(self.tasks.front().map(|(at, ..)| *at))
            .filter(|&at| at > self.now);
        let next = due.chain([next_tick]).min().expect("there is a tick");
        self.now = next - 1;
    }

    fn start_tasks(&mut self) {
        while let Some(&(at, side, task)) = self.tasks.front() {
            if at > self.now {
                return;
            }
            self.tasks.pop_front();
            self.last_progress = self.now;
            let now = self.now;
            let end = &mut self.ends[side];
            match task {
                Task::Call {
                    call_bytes,
                    reply_bytes,
                    damage,
                } => {
                    let xid = end.next_xid;
                    end.next_xid += 1;
                    let call = Call {
                        call_bytes,
                        reply_bytes,
                        damage,
                    };
                    end.calls.insert(xid, call);
                    end.push_call(xid, call);
                }
                Task::Properties {
                    host_authentication_bytes: 0,
                } => end.outbox.push_back(Outgoing {
                    kind: OutgoingKind::Properties,
                    xid: 0,
                    bytes: Vec::new(),
                    sent_bytes: 0,
                    parts: 0,
                    damage: Damage::None,
                }),
                Task::Properties {
                    host_authentication_bytes,
                } => {
                    let bytes = property_set(end.config, host_authentication_bytes);
                    end.outbox.push_back(Outgoing {
                        kind: OutgoingKind::PropertiesParts,
                        xid: 0,
                        bytes,
                        sent_bytes: 0,
                        parts: 0,
                        damage: Damage::None,
                    });
                }
                Task::Sleep { duration } => end.asleep_until = now + duration,
                Task::WithholdGrants { duration } => end.withholding_until = now + duration,
                Task::LimitCredits { limit } => {
                    let before = end.connection.credits().limit;
                    if u32::from(limit) > before {
                        end.receives += usize::from(end.connection.raise_credit_limit(limit));
                    } else {
                        // Again for the same limit, it takes what was promised the first time.
                        end.receives -= usize::from(end.connection.lower_credit_limit(limit));
                    }
                }
                Task::Break => {
                    self.breaks += 1;
                    self.ends.iter_mut().for_each(End::reconnect);
                }
            }
        }
    }

    /// Messages on their way to `side` whose time has come take a Receive.
    fn deliver(&mut self, side: usize) {
        let (receiver, sender) = self.pair(side);
        let mut delivered = false;
        while let Some((at, _)) = sender.link.front() {
            if *at > receiver.1 {
                break;
            }
            let (_, message) = sender.link.pop_front().expect("it was looked at");
            assert!(receiver.0.receives > 0, "receiver not ready");
            let buffer_bytes = receiver.0.config.receive_buffer_bytes.max(4096) as usize;
            assert!(message.len() <= buffer_bytes, "longer than the Receive");
            receiver.0.receives -= 1;
            receiver.0.arrived.push_back(message);
            delivered = true;
        }
        if delivered {
            self.last_progress = self.now;
        }
    }

    /// The end itself with the time, and its peer.
    fn pair(&mut self, side: usize) -> ((&mut End, u64), &mut End) {
        let now = self.now;
        let [client, server] = &mut self.ends;
        if side == CLIENT {
            ((client, now), server)
        } else {
            ((server, now), client)
        }
    }

    fn repost(&mut self, side: usize) {
        let now = self.now;
        let end = &mut self.ends[side];
        let due = |returning: &Returning| returning.at <= now;
        while end.returning.front().is_some_and(due) {
            end.returning.pop_front();
            end.receives += 1;
            end.connection.handle_receives_posted(1);
            self.last_progress = now;
        }
    }

    fn handle(&mut self, side: usize) {
        for _ in 0..4 {
            let delay = self.delays.next();
            let ((end, now), peer) = self.pair(side);
            let Some(message) = end.arrived.pop_front() else {
                return;
            };
            let event = end.connection.handle_message(&message);
            end.act(event, &mut peer.calls);
            end.returning.push_back(Returning {
                at: now + delay,
                counted: is_counted(&message),
            });
            self.last_progress = self.now;
            self.check();
        }
    }

    fn send(&mut self, side: usize) {
        for _ in 0..3 {
            let Some(message) = self.ends[side].send_one() else {
                break;
            };
            self.launch(side, message);
            self.last_progress = self.now;
            self.check();
        }
        let end = &mut self.ends[side];
        if end.withholding_until <= self.now && end.connection.grant_due() {
            self.send_grant(side);
            self.last_progress = self.now;
        }
    }

    fn send_grant(&mut self, side: usize) {
        let mut space = vec![0; 36];
        let bytes = self.ends[side]
            .connection
            .encode_grant(&mut space)
            .expect("it was due");
        assert_eq!(bytes, 36);
        self.launch(side, space);
    }

    fn tick(&mut self, side: usize) {
        match self.ends[side].connection.handle_tick(4) {
            Tick::Quiet => {}
            Tick::SendKeepAlive => self.send_grant(side),
            Tick::PeerSilent => {
                let phase = self.ends[side].connection.phase();
                assert_eq!(phase, Phase::ClientStart, "the peer is alive and has ticks");
            }
        }
    }

    /// In order, whatever the delays are.
    fn launch(&mut self, side: usize, message: Vec<u8>) {
        let credits = self.ends[side].connection.credits();
        assert!(
            wire::granted(&message) == 0 || credits.unconsumed() <= credits.limit,
            "a grant beyond the limit: {credits:?}"
        );
        let at = self.now + 1 + self.delays.next();
        let link = &mut self.ends[side].link;
        let at = link.back().map_or(at, |(last, _)| at.max(*last));
        link.push_back((at, message));
    }

    /// What holds after every step.
    fn check(&self) {
        for (end, peer) in [
            (&self.ends[CLIENT], &self.ends[SERVER]),
            (&self.ends[SERVER], &self.ends[CLIENT]),
        ] {
            let credits = end.connection.credits();
            let posted = credits.receives_posted as usize;
            let unconsumed = credits.unconsumed() as usize;
            let spares_in_use = end.returning.iter().filter(|r| !r.counted).count();
            assert_eq!(posted, end.receives + end.arrived.len());
            let reserve = credits.receives_reserved as usize;
            assert_eq!(posted + end.returning.len(), reserve);
            assert!(reserve <= usize::from(end.config.receive_reserve));
            assert!(credits.limit <= credits.window && credits.limit < credits.receives_reserved);
            assert!(
                posted + spares_in_use > unconsumed,
                "a grant without a Receive, or no spare: {credits:?}"
            );
            assert!(credits.unconsumed() <= credits.window);
            assert!(
                peer.link.len() <= end.receives,
                "the messages on their way do not find a Receive each: {credits:?}"
            );
            // Both ends count the same, but for what is on its way.
            let on_the_way = || peer.link.iter().map(|(_, m)| m).chain(&end.arrived);
            let theirs = peer.connection.credits();
            let counted = on_the_way().map(|m| u32::from(is_counted(m))).sum::<u32>();
            assert_eq!(theirs.sent_total, credits.consumed_total + counted);
            let brought: u32 = on_the_way().map(|m| wire::granted(m)).sum();
            assert_eq!(theirs.granted_total, credits.peer_granted_total + brought);
            assert!(credits.unused() <= theirs.window, "an over-send");
        }
    }
}

/// A property set with host authentication of so many octets.
fn property_set(config: EndConfig, host_authentication_bytes: usize) -> Vec<u8> {
    let host_authentication = vec![0x5a; host_authentication_bytes];
    let properties = [
        Property::SendSizeMax(Some(config.send_bytes_max)),
        Property::ReceiveBufferSize(Some(config.receive_buffer_bytes)),
        Property::HostAuthentication(Some(&host_authentication)),
    ];
    let mut bytes = vec![0; host_authentication_bytes + 64];
    let mut writer = Writer::new(&mut bytes);
    write_property_set(&mut writer, &properties).expect("there is space");
    let written = writer.position();
    bytes.truncate(written);
    bytes
}

/// A message of the model is what the wire says.
#[test]
fn model_tells_counted_messages_from_grants() {
    let grant = wire::grant(7, 9);
    assert!(!is_counted(&grant));
    assert_eq!(wire::granted(&grant), 7);
    assert_eq!(words_of(&grant)[2], 0x0009_0007);
    let call = wire::message(1, 0, &rpc_message(1, Direction::Call, 12, 0));
    assert!(is_counted(&call));
    let error = wire::error(1, TransportError::System);
    assert!(is_counted(&error));
    assert_eq!(wire::granted(&error), 0);
    assert!(ChunkLists::default().are_empty());
}
