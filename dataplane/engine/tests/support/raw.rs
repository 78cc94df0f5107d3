//! A peer that sends whatever it likes, over a port of its own.

use std::time::Duration;

use rpcrdma_engine::{Application, CloseReason, Command, ConnectionKey, CoreConfig};
use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{
    CompletionBatch, CompletionKind, Gather, PeerIdentity, QueuePairId, ReceiveQueueAttributes,
    ReceiveQueueId, SendOptions, Status,
};
use rpcrdma_fabric::memory::{Pool, PoolShape};
use rpcrdma_protocol::connection::{Terms, Versions};
use rpcrdma_protocol::v2::ReverseRequestSupport;
use rpcrdma_protocol::v2::connection::Role;
use rpcrdma_testkit::until;

use super::fabric::{Fabric, Polled, PreparedQueuePair, Sizes};
use super::{
    ALL, App, Beginning, Form, NULL, PROGRAM, Side, TestJoint, TestPort, TestPortHandle, Turns,
    VERSION, in_form, port, side,
};
use crate::TestFabric;

pub const CREDITS: u16 = 4;
/// Also of a message with a page behind its head.
const BUFFER_BYTES: u32 = 8192;
const RECEIVES: u32 = 64;

/// Of a core that is short of most things.
pub fn config() -> CoreConfig {
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

/// A queue of Receives, so many of which are posted.
fn receive_queue(port: &mut TestPort, posted: u32) -> ReceiveQueueId {
    let queue = port
        .create_receive_queue(ReceiveQueueAttributes {
            depth: RECEIVES,
            segments_max: 1,
        })
        .expect("a receive queue");
    let mut pool = port.carve(shape(RECEIVES)).expect("receive buffers");
    for _ in 0..posted {
        let receive = port
            .create_receive(queue, &mut pool.take().into_iter())
            .expect("a Receive");
        port.post_receive(receive);
    }
    port.flush_receives();
    queue
}

/// A port without a core: it sends bytes, and keeps what it gets.
pub struct Raw {
    pub port: TestPort,
    queue: ReceiveQueueId,
    pub pool: Pool,
    pub queue_pair: Option<QueuePairId>,
    pub got: Vec<Vec<u8>>,
    pub disconnected: bool,
}

impl Raw {
    fn new(mut port: TestPort, receives_posted: u32) -> Self {
        let queue = receive_queue(&mut port, receives_posted);
        let pool = port.carve(shape(32)).expect("send buffers");
        Self {
            port,
            queue,
            pool,
            queue_pair: None,
            got: Vec::new(),
            disconnected: false,
        }
    }

    pub fn send(&mut self, message: &[u8]) {
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
pub struct Attack<A: Application = App> {
    pub victim: Side<A>,
    pub raw: Raw,
    raw_handle: TestPortHandle,
    joint: TestJoint,
    /// A peer with a port of its own, which posts no Receives.
    pub deaf: Option<(Raw, TestPortHandle, TestJoint)>,
    now: Ticks,
    clock: Clock,
}

impl Attack {
    pub fn on(role: Role) -> Self {
        Self::with(role, false)
    }

    /// With a peer that is to authenticate itself, if `guarded`.
    pub fn with(role: Role, guarded: bool) -> Self {
        Self::against(role, guarded, &config(), App::default())
    }

    /// A server that has agreed on version 2 by a null call.
    pub fn established() -> Self {
        let mut attack = Self::on(Role::Server);
        attack.agree();
        attack
    }
}

impl<A: Application> Attack<A> {
    /// Against a core with that configuration and application.
    pub fn against(role: Role, guarded: bool, config: &CoreConfig, application: A) -> Self {
        let mut attack = Self::unconnected(role, config, application);
        attack.connect(guarded);
        attack
    }

    /// As [`Attack::against`], against one that announces how far it takes the reverse direction.
    pub fn announcing(
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
    pub fn placing(
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

    /// As [`Attack::announcing`], against one that speaks these versions.
    pub fn speaking(
        versions: Versions,
        level: ReverseRequestSupport,
        role: Role,
        config: &CoreConfig,
        application: A,
    ) -> Self {
        let mut attack = Self::unconnected(role, config, application);
        attack.victim.properties.reverse_requests = level;
        attack.victim.terms = Terms {
            versions,
            ..Terms::default()
        };
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
        let mut beginning = Beginning::default();
        let victim = beginning.of(&config, &clock, || {
            side(0, role, &config, &clock, application, victim_port)
        });
        Self {
            victim,
            raw: Raw::new(raw, RECEIVES),
            deaf: None,
            raw_handle,
            joint,
            now: beginning.now(&clock),
            clock,
        }
    }

    /// Time passes when what was sent has arrived; then all that there is to do.
    pub fn pass(&mut self, time: Duration) {
        self.settle(ALL);
        self.now += self.clock.ticks(time);
        self.turns(20);
    }

    /// Adopts a connection at both ends.
    pub fn connect(&mut self, guarded: bool) {
        let [prepared, raw_prepared] =
            TestFabric::prepared_pair(&mut self.joint, &self.victim.port, &self.raw_handle);
        if crate::FORM == Form::OwnQueues && self.raw.queue_pair.is_some() {
            self.raw.queue = receive_queue(&mut self.raw.port, RECEIVES);
        }
        let queue = self.raw.queue;
        self.raw.queue_pair = Some(
            self.raw
                .port
                .adopt_queue_pair(raw_prepared, queue)
                .expect("planted"),
        );
        self.adopt_queue_pair(prepared, guarded);
    }

    fn adopt_queue_pair(&mut self, prepared: PreparedQueuePair<TestFabric>, guarded: bool) {
        self.victim.command(Command::Adopt {
            token: 0,
            prepared,
            role: self.victim.role,
            peer: PeerIdentity::default(),
            properties: self.victim.properties,
            terms: self.victim.terms,
            credits_max: u16::MAX,
            guarded,
            has_other_path: false,
        });
        self.turns(5);
    }

    /// Connects a peer that posts no Receives.
    pub fn connect_deaf(&mut self) {
        let sizes = Sizes {
            arena_bytes: 2 << 20,
            connections: 1,
            receives_per_connection: RECEIVES,
            limits: None,
        };
        let (port, handle) = TestFabric::port(2, &sizes, &self.clock);
        let mut raw = Raw::new(port, 0);
        let victim = (self.victim.core.port(), &self.victim.port);
        let mut joint = TestFabric::join(victim, (&raw.port, &handle));
        let [prepared, raw_prepared] =
            TestFabric::prepared_pair(&mut joint, &self.victim.port, &handle);
        raw.queue_pair = Some(
            raw.port
                .adopt_queue_pair(raw_prepared, raw.queue)
                .expect("planted"),
        );
        self.deaf = Some((raw, handle, joint));
        self.adopt_queue_pair(prepared, false);
    }

    /// Has the deaf peer send a message.
    pub fn send_deaf(&mut self, message: &[u8]) {
        self.deaf.as_mut().expect("connected").0.send(message);
        self.turns(6);
    }

    /// Agrees on version 2 with a server, by a null call.
    pub fn agree(&mut self) {
        self.raw.send(&null_call(1));
        self.turns(10);
        assert_eq!(
            self.take(),
            [null_reply(1)],
            "the first message may be a call"
        );
    }

    /// As [`super::Pair::turns`].
    pub fn turns(&mut self, count: usize) {
        self.turns_of(ALL, count);
    }

    /// Turns until something is so; fails when it does not come to be.
    pub fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        self.turn_until(what, |attack| done(attack));
    }

    /// So many iterations of the victim, while its peers stand still.
    pub fn victim_turns(&mut self, count: usize) {
        for _ in 0..count {
            self.now += self.clock.ticks(TestFabric::TURN);
            self.victim.iterate(self.now);
        }
    }

    /// Waits until the victim sleeps, of which its configuration says when, while its peers stand still.
    pub fn sleeps(mut self, what: &str)
    where
        A: Send + 'static,
    {
        self.turns(50);
        let handle = self.victim.handle.clone();
        let core = std::thread::spawn(move || self.victim.core.run());
        until(what, || (handle.counters().parks >= 3).then_some(()));
        handle.stop();
        core.join().expect("no panic").expect("not pinned");
    }

    pub fn send(&mut self, message: &[u8]) {
        self.raw.send(message);
        self.turns(6);
    }

    /// What came since the last time, grants apart, with the credit word blanked.
    pub fn take(&mut self) -> Vec<Vec<u8>> {
        let mut got = std::mem::take(&mut self.raw.got);
        got.retain(|message| message.get(12..16) != Some(&[0, 0, 0, 1]));
        for message in &mut got {
            message[8..12].fill(0);
        }
        got
    }

    pub fn connection(&self) -> ConnectionKey {
        *self.victim.planted[0].as_ref().expect("planted")
    }

    pub fn assert_serves(&mut self, xid: u32) {
        self.send(&null_call(xid));
        assert_eq!(self.take(), [null_reply(xid)], "the connection goes on");
    }

    pub fn assert_closed(&mut self, reason: CloseReason) {
        self.turns(20);
        assert_eq!(self.victim.closed, [(self.connection(), reason)]);
        assert!(self.raw.disconnected, "the peer learns of it");
    }
}

impl<A: Application> Turns for Attack<A> {
    fn is_under_way(&self, polled: Polled) -> bool {
        let deaf = self.deaf.as_ref();
        TestFabric::is_under_way(&self.joint, polled)
            || deaf.is_some_and(|(.., joint)| TestFabric::is_under_way(joint, polled))
    }

    fn iterate(&mut self, polled: Polled, time: Duration) -> bool {
        assert_eq!(
            polled, ALL,
            "the peers of an attack are polled with its victim"
        );
        self.now += self.clock.ticks(time).max(1);
        let raw = self.raw.poll(self.now);
        let victim = self.victim.iterate(self.now);
        let [to_victim, to_raw] =
            TestFabric::port_events(&mut self.joint, &self.victim.port, &self.raw_handle);
        self.victim.tell(to_victim);
        if let Some(port_event) = to_raw {
            self.raw.port.handle_event(port_event);
        }
        let deaf = self.deaf.as_mut().is_some_and(|(raw, handle, joint)| {
            let [to_victim, to_raw] = TestFabric::port_events(joint, &self.victim.port, handle);
            self.victim.tell(to_victim);
            if let Some(port_event) = to_raw {
                raw.port.handle_event(port_event);
            }
            raw.poll(self.now)
        });
        raw || victim || deaf
    }

    fn state(&self) -> String {
        let (counters, victim) = (self.victim.counters(), self.victim.describe());
        let deaf = self.deaf.as_ref().map(|(.., joint)| joint);
        format!("{counters}{victim}{:?}{deaf:?}", self.joint)
    }
}

/// A loop, since tests without optimization spend much of their time here.
pub fn words(words: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 * words.len());
    for word in words {
        bytes.extend_from_slice(&word.to_be_bytes());
    }
    bytes
}

/// It grants one credit, of at most 60.
pub const CREDIT: u32 = 60 << 16 | 1;

/// Prefix, type, flags, and lists without chunks.
pub fn header(xid: u32, header_type: u32, flags: u32) -> [u32; 9] {
    [xid, 2, CREDIT, header_type, flags, 0, 0, 0, 0]
}

pub fn message(xid: u32, flags: u32, rpc: &[u32]) -> Vec<u8> {
    [words(&header(xid, 0, flags)), words(rpc)].concat()
}

pub fn null_call(xid: u32) -> Vec<u8> {
    message(xid, 0, &[xid, 0, 2, PROGRAM, VERSION, NULL, 0, 0, 0, 0])
}

pub fn null_reply(xid: u32) -> Vec<u8> {
    words(&[xid, 2, 0, 0, 1, 0, 0, 0, 0, xid, 1, 0, 0, 0, 0])
}

pub fn error(xid: u32, body: &[u32]) -> Vec<u8> {
    [words(&[xid, 2, 0, 4, 1]), words(body)].concat()
}
