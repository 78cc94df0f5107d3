//! A peer that sends whatever it likes, over a port of its own.

use std::time::Duration;

use proptest::prelude::*;

use crate::TestFabric;
use crate::support::fabric::{Fabric, Sizes};
use crate::support::{
    App, ECHO, Form, NEVER, NULL, PROGRAM, Side, TestJoint, TestPort, TestPortHandle, VERSION,
    in_form, port, side, turns_until_idle,
};
use rpcrdma_engine::{Application, CallError, CloseReason, Command, ConnectionKey, CoreConfig};
use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::{
    CompletionBatch, CompletionKind, Gather, Port, QueuePairId, ReceiveQueueAttributes,
    ReceiveQueueId, SendOptions, Status,
};
use rpcrdma_fabric::memory::{Pool, PoolShape};
use rpcrdma_protocol::connection::Terms;
use rpcrdma_protocol::v2::ReverseRequestSupport;
use rpcrdma_protocol::v2::connection::{CloseReason as ProtocolReason, Role};

pub(crate) const CREDITS: u16 = 4;
const BUFFER_BYTES: u32 = 4096;
const RECEIVES: u32 = 64;

fn config() -> CoreConfig {
    CoreConfig {
        connections_max: 2,
        credits_per_connection: CREDITS,
        message_buffers: 4,
        message_bytes_max: 20_000,
        calls_outstanding_max: 16,
        deferred_max: 4,
        call_timeout: Duration::from_secs(10),
        ..CoreConfig::default()
    }
}

fn shape(buffers: u32) -> PoolShape {
    PoolShape {
        buffers,
        buffer_bytes: BUFFER_BYTES,
        stride_bytes: BUFFER_BYTES,
        align_bytes: 64,
    }
}

/// A queue of posted Receives.
fn receive_queue(port: &mut TestPort) -> ReceiveQueueId {
    let queue = port
        .create_receive_queue(ReceiveQueueAttributes {
            depth: RECEIVES,
            segments_max: 1,
        })
        .expect("a receive queue");
    let mut pool = port.carve(shape(RECEIVES)).expect("receive buffers");
    for _ in 0..RECEIVES {
        let receive = port
            .create_receive(queue, &mut pool.take().into_iter())
            .expect("a Receive");
        port.post_receive(receive);
    }
    port.flush_receives();
    queue
}

/// A port without a core: it sends bytes, and keeps what it gets.
pub(crate) struct Raw {
    pub(crate) port: TestPort,
    queue: ReceiveQueueId,
    pub(crate) pool: Pool,
    pub(crate) queue_pair: Option<QueuePairId>,
    pub(crate) got: Vec<Vec<u8>>,
    pub(crate) disconnected: bool,
}

impl Raw {
    fn new(mut port: TestPort) -> Self {
        let queue = receive_queue(&mut port);
        let pool = port.carve(shape(16)).expect("send buffers");
        Self {
            port,
            queue,
            pool,
            queue_pair: None,
            got: Vec::new(),
            disconnected: false,
        }
    }

    pub(crate) fn send(&mut self, message: &[u8]) {
        let queue_pair = self.queue_pair.expect("planted");
        let mut buffer = self.pool.take().expect("a send buffer");
        self.port.memory().clone().bytes_mut(&mut buffer)[..message.len()].copy_from_slice(message);
        let bytes = u32::try_from(message.len()).expect("small");
        let mut list = Gather::new();
        list.push(buffer, 0, bytes).expect("within the buffer");
        if self
            .port
            .post_send(queue_pair, &mut list, SendOptions::default())
            .is_err()
        {
            let (buffer, _, _) = list.pop().expect("left as it was");
            self.pool.give(buffer);
        }
    }

    /// Whether there was anything to do.
    fn poll(&mut self, now: Ticks) -> bool {
        let mut batch = CompletionBatch::new();
        let moved = self.port.poll(now, &mut batch);
        for completion in batch.drain() {
            match completion.kind {
                CompletionKind::Receive { receive, bytes, .. } => {
                    if completion.status == Status::Success {
                        let message = &self.port.received(&receive)[..bytes as usize];
                        self.got.push(message.to_vec());
                    }
                    self.port.post_receive(receive);
                }
                CompletionKind::Disconnected => self.disconnected = true,
                _ => {}
            }
        }
        while let Some(buffer) = self.port.next_returned() {
            self.pool.give(buffer);
        }
        self.port.flush_receives();
        self.port.flush_sends();
        moved
    }
}

/// A core under attack.
pub(crate) struct Attack<A: Application = App> {
    pub(crate) victim: Side<A>,
    pub(crate) raw: Raw,
    raw_handle: TestPortHandle,
    joint: TestJoint,
    now: Ticks,
    clock: Clock,
}

impl Attack {
    pub(crate) fn on(role: Role) -> Self {
        Self::with(role, false)
    }

    /// With a peer that is to authenticate itself, if `guarded`.
    pub(crate) fn with(role: Role, guarded: bool) -> Self {
        Self::against(role, guarded, &config(), App::default())
    }

    /// A server that has agreed on version 2 by a null call.
    fn established() -> Self {
        let mut attack = Self::on(Role::Server);
        attack.agree();
        attack
    }
}

impl<A: Application> Attack<A> {
    /// Against a core with that configuration and application.
    pub(crate) fn against(role: Role, guarded: bool, config: &CoreConfig, application: A) -> Self {
        let level = ReverseRequestSupport::default();
        Self::announcing(level, role, guarded, config, application)
    }

    /// As [`Attack::against`], against one that announces how far it takes the reverse direction.
    pub(crate) fn announcing(
        level: ReverseRequestSupport,
        role: Role,
        guarded: bool,
        config: &CoreConfig,
        application: A,
    ) -> Self {
        let mut attack = Self::unconnected(role, config, application);
        attack.victim.properties.reverse_requests = level;
        attack.connect(guarded);
        attack
    }

    /// As [`Attack::announcing`], against one that announces all that it is configured for.
    pub(crate) fn placing(
        level: ReverseRequestSupport,
        role: Role,
        config: &CoreConfig,
        application: A,
    ) -> Self {
        let mut attack = Self::unconnected(role, config, application);
        attack.victim.properties = config.announced(attack.victim.properties);
        attack.victim.properties.reverse_requests = level;
        attack.connect(false);
        attack
    }

    fn unconnected(role: Role, config: &CoreConfig, application: A) -> Self {
        let clock = Clock::new();
        let config = in_form(config);
        let victim_port = port(0, &config, &clock);
        let sizes = Sizes {
            arena_bytes: (2 + u64::from(config.connections_max)) << 20,
            connections: config.connections_max,
            receives_per_connection: RECEIVES,
            limits: None,
        };
        let (raw, raw_handle) = TestFabric::port(1, &sizes, &clock);
        let joint = TestFabric::join((&victim_port.0, &victim_port.1), (&raw, &raw_handle));
        Self {
            victim: side(0, role, &config, &clock, application, victim_port),
            raw: Raw::new(raw),
            raw_handle,
            joint,
            now: clock.now(),
            clock,
        }
    }

    /// Time passes, in which nothing comes and nothing is done; then all that there is to do.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += self.clock.ticks(time);
        self.turns(20);
    }

    /// Plants a connection at both ends.
    pub(crate) fn connect(&mut self, guarded: bool) {
        let [seed, raw_seed] =
            TestFabric::seeds(&mut self.joint, &self.victim.port, &self.raw_handle);
        if crate::FORM == Form::OwnQueues && self.raw.queue_pair.is_some() {
            self.raw.queue = receive_queue(&mut self.raw.port);
        }
        let queue = self.raw.queue;
        self.raw.queue_pair = Some(self.raw.port.plant(raw_seed, queue).expect("planted"));
        self.victim.command(Command::Plant {
            token: 0,
            seed,
            role: self.victim.role,
            properties: self.victim.properties,
            terms: Terms::default(),
            guarded,
        });
        self.turns(5);
    }

    /// Agrees on version 2 with a server, by a null call.
    pub(crate) fn agree(&mut self) {
        self.raw.send(&null_call(1));
        self.turns(10);
        assert_eq!(
            self.take(),
            [null_reply(1)],
            "the first message may be a call"
        );
    }

    pub(crate) fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.turn();
        }
        turns_until_idle(|| self.turn());
    }

    fn turn(&mut self) -> bool {
        self.now += self.clock.ticks(TestFabric::TURN);
        let raw = self.raw.poll(self.now);
        let victim = self.victim.iterate(self.now);
        let [to_victim, to_raw] =
            TestFabric::notices(&mut self.joint, &self.victim.port, &self.raw_handle);
        self.victim.tell(to_victim);
        if let Some(notice) = to_raw {
            self.raw.port.notice(notice);
        }
        TestFabric::work();
        raw || victim
    }

    pub(crate) fn send(&mut self, message: &[u8]) {
        self.raw.send(message);
        self.turns(6);
    }

    /// What came since the last time, grants apart, with the credit word blanked.
    pub(crate) fn take(&mut self) -> Vec<Vec<u8>> {
        let mut got = std::mem::take(&mut self.raw.got);
        got.retain(|message| message.get(12..16) != Some(&[0, 0, 0, 1]));
        for message in &mut got {
            message[8..12].fill(0);
        }
        got
    }

    pub(crate) fn connection(&self) -> ConnectionKey {
        *self.victim.planted[0].as_ref().expect("planted")
    }

    pub(crate) fn assert_serves(&mut self, xid: u32) {
        self.send(&null_call(xid));
        assert_eq!(self.take(), [null_reply(xid)], "the connection goes on");
    }

    pub(crate) fn assert_closed(&mut self, reason: CloseReason) {
        self.turns(20);
        assert_eq!(self.victim.closed, [(self.connection(), reason)]);
        assert!(self.raw.disconnected, "the peer learns of it");
    }
}

pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// It grants one credit, of at most 60.
pub(crate) const CREDIT: u32 = 60 << 16 | 1;

/// Prefix, type, flags, and lists without chunks.
pub(crate) fn header(xid: u32, header_type: u32, flags: u32) -> [u32; 9] {
    [xid, 2, CREDIT, header_type, flags, 0, 0, 0, 0]
}

pub(crate) fn message(xid: u32, flags: u32, rpc: &[u32]) -> Vec<u8> {
    [words(&header(xid, 0, flags)), words(rpc)].concat()
}

pub(crate) fn null_call(xid: u32) -> Vec<u8> {
    message(xid, 0, &[xid, 0, 2, PROGRAM, VERSION, NULL, 0, 0, 0, 0])
}

pub(crate) fn null_reply(xid: u32) -> Vec<u8> {
    words(&[xid, 2, 0, 0, 1, 0, 0, 0, 0, xid, 1, 0, 0, 0, 0])
}

pub(crate) fn error(xid: u32, body: &[u32]) -> Vec<u8> {
    [words(&[xid, 2, 0, 4, 1]), words(body)].concat()
}

#[test]
fn wrong_messages_draw_the_error_that_names_them_and_the_connection_goes_on() {
    let read_chunk = [1, 0, 7, 8, 0, 9, 0];
    let write_chunk = [1, 1, 7, 8, 0, 9, 0];
    let rpc = |xid| [xid, 0, 2, PROGRAM, VERSION, NULL, 0, 0, 0, 0];
    let prefix = |xid, header_type, flags| vec![xid, 2, CREDIT, header_type, flags];
    let cases: Vec<(&str, Vec<u32>, Vec<u8>)> = vec![
        (
            "an unknown header type",
            [header(2, 2, 0).as_slice(), &rpc(2)].concat(),
            error(2, &[3]),
        ),
        (
            "a reserved flag",
            [header(2, 0, 4).as_slice(), &rpc(2)].concat(),
            error(2, &[4]),
        ),
        (
            "a mark that is neither 0 nor 1",
            [prefix(2, 0, 0), vec![0, 2, 0, 0], rpc(2).to_vec()].concat(),
            error(2, &[2]),
        ),
        (
            "an XID that is not that of the header",
            [header(2, 0, 0).as_slice(), &rpc(3)].concat(),
            error(2, &[2]),
        ),
        (
            "a Read chunk, of which we read none",
            [
                prefix(2, 0, 0),
                vec![0, 1, 4],
                read_chunk[2..].to_vec(),
                vec![0, 0],
                rpc(2).to_vec(),
            ]
            .concat(),
            error(2, &[5, 0]),
        ),
        (
            "a long call",
            [
                prefix(2, 1, 0),
                vec![0, 1, 0],
                read_chunk[2..].to_vec(),
                vec![0, 0],
            ]
            .concat(),
            error(2, &[5, 0]),
        ),
        (
            "a Write chunk, of which we write none",
            [
                prefix(2, 0, 0),
                vec![0, 0],
                write_chunk.to_vec(),
                vec![0],
                rpc(2).to_vec(),
            ]
            .concat(),
            error(2, &[9, 0]),
        ),
        (
            "a property set that breaks off",
            [prefix(2, 5, 0), vec![3, 1, 4]].concat(),
            error(2, &[2]),
        ),
    ];
    for (name, wrong, expected) in cases {
        let mut attack = Attack::established();
        attack.send(&words(&wrong));
        assert_eq!(attack.take(), [expected], "{name}");
        attack.assert_serves(9);
        assert!(attack.victim.closed.is_empty(), "{name}");
    }
}

#[test]
fn a_reply_chunk_that_is_not_needed_is_not_used() {
    let mut attack = Attack::established();
    let rpc = [2, 0, 2, PROGRAM, VERSION, NULL, 0, 0, 0, 0];
    let offered = [2, 2, CREDIT, 0, 0, 0, 0, 0, 1, 1, 7, 4096, 0, 0];
    attack.send(&[words(&offered), words(&rpc)].concat());
    assert_eq!(attack.take(), [null_reply(2)]);
}

#[test]
fn rpc_headers_that_cannot_be_served_draw_rpc_errors() {
    let reply = |rpc: &[u32]| [words(&[5, 2, 0, 0, 1, 0, 0, 0, 0, 5, 1]), words(rpc)].concat();
    let cases: Vec<(&str, Vec<u32>, Vec<u8>)> = vec![
        (
            "RPC version 3",
            vec![5, 0, 3, PROGRAM, VERSION, 0, 0, 0, 0, 0],
            reply(&[1, 0, 2, 2]),
        ),
        (
            "a header that breaks off",
            vec![5, 0, 2, PROGRAM],
            reply(&[0, 0, 0, 4]),
        ),
        (
            "a credential of 404 bytes",
            [vec![5, 0, 2, PROGRAM, VERSION, 0, 1, 404], vec![0; 103]].concat(),
            reply(&[0, 0, 0, 4]),
        ),
        (
            "another program",
            vec![5, 0, 2, 1, 1, 0, 0, 0, 0, 0],
            reply(&[0, 0, 0, 1]),
        ),
        (
            "another version",
            vec![5, 0, 2, PROGRAM, 7, 0, 0, 0, 0, 0],
            reply(&[0, 0, 0, 2, 1, 1]),
        ),
        (
            "no such procedure",
            vec![5, 0, 2, PROGRAM, VERSION, 99, 0, 0, 0, 0],
            reply(&[0, 0, 0, 3]),
        ),
    ];
    let mut attack = Attack::established();
    for (name, rpc, expected) in cases {
        attack.send(&message(5, 0, &rpc));
        assert_eq!(attack.take(), [expected], "{name}");
    }
    attack.assert_serves(6);
}

#[test]
fn short_messages_are_discarded_and_counted() {
    let mut attack = Attack::established();
    for bytes in [1, 15, 19, 39] {
        attack.send(&null_call(2)[..bytes]);
    }
    assert_eq!(attack.take(), Vec::<Vec<u8>>::new());
    assert_eq!(attack.victim.handle.counters().messages_discarded_short, 4);
    attack.assert_serves(3);
}

#[test]
fn a_sequence_that_is_broken_draws_one_error_and_gives_its_buffer_back() {
    for _ in 0..2 * config().message_buffers {
        let mut attack = Attack::established();
        attack.send(&message(2, 2, &[2, 0, 2, PROGRAM, VERSION, ECHO]));
        attack.send(&null_call(3));
        assert_eq!(attack.take(), [error(3, &[4])]);
        attack.assert_serves(4);
    }
}

#[test]
fn a_call_longer_than_our_limit_draws_system_and_is_discarded_to_its_end() {
    let mut attack = Attack::established();
    let part = [0_u32; 1000];
    attack.send(&message(
        2,
        2,
        &[[2, 0, 2, PROGRAM, VERSION, ECHO].as_slice(), &part].concat(),
    ));
    for _ in 0..6 {
        attack.send(&message(2, 2, &part));
    }
    attack.send(&message(2, 0, &part));
    assert_eq!(attack.take(), [error(2, &[10])]);
    assert_eq!(
        attack.victim.core.application().calls,
        1,
        "the null call alone"
    );
    attack.assert_serves(3);
}

#[test]
fn replies_to_nothing_are_counted_and_dropped() {
    let mut attack = Attack::established();
    for xid in [0, 1, 0xffff_ffff, 0x1234_0003] {
        attack.send(&message(xid, 1, &[xid, 1, 0, 0, 0, 0]));
    }
    attack.send(&error(77, &[10]));
    assert_eq!(attack.take(), Vec::<Vec<u8>>::new());
    assert_eq!(attack.victim.handle.counters().unmatched_replies, 4);
    assert!(attack.victim.core.application().ended.is_empty());
}

#[test]
fn what_breaks_the_protocol_costs_the_connection() {
    type Wrong = fn(&mut Attack);
    let cases: [(&str, Wrong, ProtocolReason); 4] = [
        (
            "more messages than credits",
            |attack| {
                // Deferred, so that no reply grants anew between them.
                for xid in 0..2 * u32::from(CREDITS) {
                    let rpc = [xid, 0, 2, PROGRAM, VERSION, NEVER, 0, 0, 0, 0];
                    attack.raw.send(&message(xid, 0, &rpc));
                }
            },
            ProtocolReason::OverSend,
        ),
        (
            "more credits than announced",
            |attack| {
                let mut wrong = null_call(2);
                wrong[8..12].copy_from_slice(&[0, 2, 0xff, 0xff]);
                attack.send(&wrong);
            },
            ProtocolReason::OverGrant,
        ),
        (
            "another version",
            |attack| {
                let mut wrong = null_call(2);
                wrong[7] = 1;
                attack.send(&wrong);
            },
            ProtocolReason::VersionChanged,
        ),
        (
            "an error that cannot be decoded",
            |attack| attack.send(&words(&[2, 2, 0, 4, 1, 5])),
            ProtocolReason::BadError,
        ),
    ];
    for (name, wrong, reason) in cases {
        let mut attack = Attack::established();
        wrong(&mut attack);
        attack.turns(20);
        let closed = &attack.victim.closed;
        assert_eq!(
            *closed,
            [(attack.connection(), CloseReason::Protocol(reason))],
            "{name}"
        );
        assert_eq!(attack.victim.handle.counters().protocol_violations, 1);
    }
}

#[test]
fn a_reply_that_cannot_be_decoded_costs_the_connection() {
    let mut attack = Attack::established();
    attack.send(&words(&[2, 2, CREDIT, 0, 1, 0, 2, 0, 0, 2, 1]));
    attack.turns(20);
    assert!(matches!(
        attack.victim.closed[..],
        [(_, CloseReason::Protocol(ProtocolReason::BadReply(_)))]
    ));
}

#[test]
fn a_peer_that_grants_nothing_for_its_errors_is_disconnected() {
    let mut attack = Attack::established();
    // The credits that were granted before are used up first.
    for xid in 0..20 {
        let mut wrong = words(&[header(xid, 2, 0).as_slice(), &[xid]].concat());
        wrong[8..12].copy_from_slice(&[0, 60, 0, 0]);
        attack.send(&wrong);
    }
    attack.assert_closed(CloseReason::ErrorsUnread);
}

#[test]
fn properties_come_one_at_a_time() {
    let mut attack = Attack::on(Role::Server);
    attack.victim.ignore_properties = true;
    let set = words(&[3, 2, CREDIT, 5, 0, 1, 2, 4, 8192]);
    attack.send(&set);
    attack.send(&null_call(4));
    assert_eq!(
        attack.take(),
        [null_reply(4)],
        "calls are served while control decides"
    );
    attack.send(&set);
    attack.assert_closed(CloseReason::PropertiesUnawaited);
}

#[test]
fn properties_in_parts_become_one_set() {
    let mut attack = Attack::on(Role::Server);
    attack.send(&words(&[3, 2, CREDIT, 5, 2, 1, 2]));
    attack.send(&words(&[3, 2, CREDIT, 5, 0, 4, 2048]));
    attack.turns(10);
    let got = attack.take();
    assert_eq!(got.len(), 1, "our properties in answer");
    assert_eq!(got[0][12..16], [0, 0, 0, 5]);
    assert_eq!(attack.victim.ready.len(), 1);
}

#[test]
fn a_version_1_client_is_told_which_versions_there_are() {
    let mut attack = Attack::on(Role::Server);
    attack.send(&words(&[9, 1, 32, 0, 0, 0, 0, 9, 0, 2, PROGRAM, 1, 0]));
    assert_eq!(attack.take(), [words(&[9, 1, 0, 4, 1, 2, 2])]);
    attack.assert_serves(10);
}

#[test]
fn a_version_1_server_is_a_mismatch() {
    let mut attack = Attack::on(Role::Client);
    assert_eq!(attack.raw.got.len(), 1, "the client speaks first");
    assert_eq!(attack.raw.got[0][12..16], [0, 0, 0, 5]);
    attack.send(&words(&[0, 2, 32, 4, 1, 1, 1]));
    attack.turns(20);
    let connection = attack.connection();
    assert_eq!(attack.victim.mismatched, [(connection, 1, 1)]);
    let reason = CloseReason::VersionMismatch { low: 1, high: 1 };
    assert_eq!(attack.victim.closed, [(connection, reason)]);
}

/// A client core that has agreed on version 2 and has a call outstanding; its XID.
fn calling() -> (Attack, u32) {
    let mut attack = Attack::on(Role::Client);
    let grant = 60 << 16 | 10;
    attack.raw.got.clear();
    attack.send(&words(&[0, 2, grant, 5, 0, 0]));
    attack.turns(10);
    let connection = attack.connection();
    attack
        .victim
        .core
        .application_mut()
        .want(connection, ECHO, &[1; 8], 42);
    attack.turns(10);
    let got = attack.take();
    assert_eq!(got.len(), 1);
    let (xid, _) = got[0].split_first_chunk::<4>().expect("a call");
    (attack, u32::from_be_bytes(*xid))
}

#[test]
fn each_wrong_answer_ends_the_call_once_with_what_was_wrong() {
    type Answer = fn(u32) -> Vec<Vec<u8>>;
    let cases: [(&str, Answer, CallError); 6] = [
        (
            "a transport error",
            |xid| vec![error(xid, &[10])],
            CallError::Transport(rpcrdma_protocol::v2::TransportError::System),
        ),
        (
            "an RPC reply that breaks off",
            |xid| vec![message(xid, 1, &[xid, 1, 0])],
            CallError::BadReply,
        ),
        (
            "a reply of another XID inside",
            |xid| vec![message(xid, 1, &[xid ^ 1, 1, 0, 0, 0, 0])],
            CallError::BadReply,
        ),
        (
            "a denial",
            |xid| vec![message(xid, 1, &[xid, 1, 1, 1, 5])],
            CallError::Denied(rpcrdma_protocol::rpc::RejectStatus::AuthError(
                rpcrdma_protocol::rpc::AuthStatus::TOO_WEAK,
            )),
        ),
        (
            "a reply that never ends",
            |xid| {
                let first = [[xid, 1, 0, 0, 0, 0].as_slice(), &[0; 1000]].concat();
                let mut parts = vec![message(xid, 3, &first)];
                parts.extend(std::iter::repeat_n(message(xid, 3, &[0; 1000]), 6));
                parts
            },
            CallError::ReplyTooLong,
        ),
        (
            "parts with a gap",
            |xid| vec![message(xid, 3, &[xid, 1, 0, 0]), message(xid, 1, &[])],
            CallError::BadReply,
        ),
    ];
    for (name, answer, expected) in cases {
        let (mut attack, xid) = calling();
        for part in answer(xid) {
            attack.send(&part);
        }
        let app = attack.victim.core.application();
        assert_eq!(app.result(42), Some(&Err(expected)), "{name}");
        // A second answer is nobody's.
        attack.send(&message(xid, 1, &[xid, 1, 0, 0, 0, 0]));
        let app = attack.victim.core.application();
        assert_eq!(app.ended.len(), 1, "{name}");
    }
}

#[test]
fn a_right_answer_is_right() {
    let (mut attack, xid) = calling();
    attack.send(&message(xid, 1, &[xid, 1, 0, 0, 0, 0, 0xaabb_ccdd]));
    let app = attack.victim.core.application();
    assert_eq!(app.result(42), Some(&Ok(vec![0xaa, 0xbb, 0xcc, 0xdd])));
}

/// A message that is right but for a few bytes, or is no message at all.
fn message_of_sorts() -> impl Strategy<Value = Vec<u8>> {
    let seed = prop_oneof![
        Just(null_call(2)),
        Just(message(
            2,
            2,
            &[2, 0, 2, PROGRAM, VERSION, ECHO, 0, 0, 0, 0, 1]
        )),
        Just(message(
            2,
            0,
            &[2, 0, 2, PROGRAM, VERSION, ECHO, 0, 0, 0, 0, 1]
        )),
        Just(message(2, 1, &[2, 1, 0, 0, 0, 0])),
        Just(words(&[3, 2, CREDIT, 5, 0, 1, 2, 4, 8192])),
        Just(words(&[3, 2, CREDIT, 5, 2, 1, 2, 4])),
        Just(error(2, &[10])),
        Just(words(&header(0, 1, 0))),
        proptest::collection::vec(any::<u8>(), 1..200),
    ];
    let changes = proptest::collection::vec((0_usize..80, any::<u8>()), 0..3);
    (seed, changes, 0_usize..4).prop_map(|(mut bytes, changes, cut)| {
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        if cut == 0 {
            bytes.truncate(bytes.len() / 2 + 1);
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64 / TestFabric::ONE_CASE_IN))]

    /// Whatever one peer sends, the core does not panic, loses no Receive and no message buffer,
    /// and serves the next connection.
    #[test]
    fn whatever_comes_the_core_goes_on(
        messages in proptest::collection::vec(message_of_sorts(), 1..40),
    ) {
        let mut attack = Attack::established();
        for message in &messages {
            attack.send(message);
        }
        attack.victim.command(Command::Close {
            connection: attack.connection(),
            reason: CloseReason::Local,
        });
        attack.turns(30);
        prop_assert_eq!(attack.victim.closed.len(), 1);
        let gone = attack.raw.queue_pair.take().expect("planted");
        attack.raw.port.destroy_queue_pair(gone);
        attack.connect(false);
        prop_assert!(attack.victim.planted.last().is_some_and(Result::is_ok));
        let posted = attack.victim.core.port().receives_posted(ReceiveQueueId(0));
        let reserved = match crate::FORM {
            Form::OwnQueues => config().receives_per_connection(),
            Form::SharedQueue | Form::Segments => config().receives(),
        };
        prop_assert_eq!(posted, reserved);
        prop_assert_eq!(attack.victim.core.message_buffers_free(), config().message_buffers as usize);
    }
}
