//! Two cores in one thread, driven by turns, with time as an argument.
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    unused_macros,
    reason = "each test binary uses a part of it"
)]

pub mod bulk;
pub mod fabric;
pub mod raw;
pub mod turns;
pub mod under_way;
pub mod verbs;

use std::collections::VecDeque;
use std::time::Duration;

use rpcrdma_engine::{
    Activity, Application, Call, CallError, CallRefused, CallTag, CloseReason, Command,
    ConnectionKey, Context, Core, CoreConfig, CoreEvent, CoreHandle, CounterSnapshot, DeferToken,
    HostIdentity, Outcome, PlacementConfig, Reply, ReplyRefused, ReplyWriter, Request,
};
use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::{PeerIdentity, Port};
use rpcrdma_protocol::cm_private_data::PrivateData;
use rpcrdma_protocol::connection::{Terms, Versions};
use rpcrdma_protocol::v2::connection::Role;
use rpcrdma_protocol::v2::{Properties, PropertySet};
pub use rpcrdma_testkit::pattern;

use crate::TestFabric;
use fabric::{Fabric, Limits, Polled, PreparedQueuePair, Sizes, Told};
use turns::{ALL, CLIENT};
pub use turns::{Beginning, Turns};

pub const PROGRAM: u32 = 0x2000_0001;
pub const VERSION: u32 = 1;
pub const NULL: u32 = 0;
pub const ECHO: u32 = 1;
/// Deferred, and answered with its arguments two polls later.
pub const LATER: u32 = 2;
/// Never answered.
pub const NEVER: u32 = 3;
/// Answered with as many bytes as the first word of the arguments says.
pub const FILL: u32 = 4;

pub fn call(procedure: u32) -> Call {
    Call {
        program: PROGRAM,
        version: VERSION,
        procedure,
    }
}

/// A call that an [`App`] is to make.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub connection: ConnectionKey,
    pub call: Call,
    pub args: Vec<u8>,
    pub tag: CallTag,
}

/// Serves the bench program, and makes the calls that it is told to.
#[derive(Debug, Default)]
pub struct App {
    pub wanted: VecDeque<Wanted>,
    /// Calls that were refused for good.
    pub refused: Vec<(CallTag, CallRefused)>,
    pub ended: Vec<(CallTag, Result<Vec<u8>, CallError>)>,
    /// Who the peers of its connections are, as the control plane says.
    pub opened: Vec<(ConnectionKey, PeerIdentity)>,
    pub connected: Vec<ConnectionKey>,
    /// What peers proved to be.
    pub identities: Vec<HostIdentity>,
    pub disconnected: Vec<(ConnectionKey, CloseReason)>,
    pub deferred: VecDeque<(DeferToken, Vec<u8>, u32)>,
    pub never: Vec<DeferToken>,
    /// Answer deferred calls last in, first out.
    pub backwards: bool,
    pub to_close: Vec<ConnectionKey>,
    pub calls: u64,
}

impl App {
    pub fn want(&mut self, connection: ConnectionKey, procedure: u32, args: &[u8], tag: CallTag) {
        self.wanted.push_back(Wanted {
            connection,
            call: call(procedure),
            args: args.to_vec(),
            tag,
        });
    }

    pub fn result(&self, tag: CallTag) -> Option<&Result<Vec<u8>, CallError>> {
        let mut ended = self.ended.iter().filter(|(other, _)| *other == tag);
        let found = ended.next();
        assert!(ended.next().is_none(), "call {tag} ended twice");
        found.map(|(_, result)| result)
    }

    fn defer(&mut self, request: &Request<'_>) -> Outcome {
        let Some(token) = request.defer() else {
            return Outcome::SystemError;
        };
        if request.procedure == NEVER {
            self.never.push(token);
        } else {
            self.deferred.push_back((token, request.args.to_vec(), 2));
        }
        Outcome::Deferred
    }

    fn answer_deferred<P: Port>(&mut self, core: &mut Context<'_, P>) -> bool {
        for entry in &mut self.deferred {
            entry.2 = entry.2.saturating_sub(1);
        }
        let due = |entry: &(DeferToken, Vec<u8>, u32)| entry.2 == 0;
        let next = if self.backwards {
            self.deferred
                .back()
                .is_some_and(due)
                .then(|| self.deferred.pop_back())
        } else {
            self.deferred
                .front()
                .is_some_and(due)
                .then(|| self.deferred.pop_front())
        };
        let Some((token, args, _)) = next.flatten() else {
            return false;
        };
        match core.reply(token, Outcome::Success, &args) {
            Ok(()) => true,
            Err((ReplyRefused::Busy, token)) => {
                self.deferred.push_front((token, args, 1));
                false
            }
            Err((refused, _)) => panic!("a good answer was refused: {refused:?}"),
        }
    }
}

impl Application for App {
    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        self.calls += 1;
        let mut opened = self.opened.iter().map(|(key, _)| *key);
        assert!(
            opened.any(|key| key == request.connection),
            "a call of a connection that nobody told of"
        );
        if request.program != PROGRAM {
            return Outcome::ProgramUnavailable;
        }
        if request.version != VERSION {
            return Outcome::ProgramMismatch { low: 1, high: 1 };
        }
        match request.procedure {
            NULL => Outcome::Success,
            ECHO => match reply.write(request.args) {
                Ok(()) => Outcome::Success,
                Err(_) => Outcome::SystemError,
            },
            LATER | NEVER => self.defer(request),
            FILL => {
                let Some(count) = request.args.first_chunk::<4>() else {
                    return Outcome::GarbageArgs;
                };
                for _ in 0..u32::from_be_bytes(*count) / 4 {
                    if reply.write_u32(0x0102_0304).is_err() {
                        break;
                    }
                }
                Outcome::Success
            }
            _ => Outcome::ProcedureUnavailable,
        }
    }

    fn completed(
        &mut self,
        tag: CallTag,
        _connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        _now: Ticks,
    ) {
        self.ended
            .push((tag, result.map(|reply| reply.results.to_vec())));
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        let mut busy = self.answer_deferred(core);
        for connection in self.to_close.drain(..) {
            core.disconnect(connection);
            busy = true;
        }
        for _ in 0..self.wanted.len() {
            let Some(wanted) = self.wanted.pop_front() else {
                break;
            };
            match core.call(wanted.connection, wanted.call, &wanted.args, wanted.tag) {
                Ok(()) => busy = true,
                Err(refused) if refused.is_transient() => self.wanted.push_back(wanted),
                Err(refused) => self.refused.push((wanted.tag, refused)),
            }
        }
        Activity::from_busy(busy)
    }

    fn opened(&mut self, connection: ConnectionKey, peer: &PeerIdentity) {
        self.opened.push((connection, peer.clone()));
    }

    fn connected(&mut self, connection: ConnectionKey, peer: Option<&HostIdentity>) {
        self.connected.push(connection);
        self.identities.extend(peer.cloned());
    }

    fn disconnected(&mut self, connection: ConnectionKey, reason: CloseReason) {
        self.disconnected.push((connection, reason));
    }
}

/// The port of a core, in this test program.
pub type TestPort = <TestFabric as Fabric>::Port;
pub type TestPortHandle = <TestFabric as Fabric>::Handle;
pub type TestJoint = <TestFabric as Fabric>::Joint;

/// A core, its handle, and what its control plane would remember.
pub struct Side<A: Application = App> {
    pub core: Core<TestPort, A>,
    pub handle: CoreHandle<TestPort>,
    pub port: TestPortHandle,
    pub role: Role,
    pub properties: Properties,
    pub terms: Terms,
    /// A connection came to be one of version 1.
    pub version_1: bool,
    pub ready: Vec<ConnectionKey>,
    pub planted: Vec<Result<ConnectionKey, String>>,
    pub closed: Vec<(ConnectionKey, CloseReason)>,
    pub mismatched: Vec<(ConnectionKey, u32, u32)>,
    pub drained: usize,
    /// Leave the peer's properties unanswered.
    pub ignore_properties: bool,
    /// Take the peer's properties for others.
    pub mishears: Option<fn(Properties) -> Properties>,
}

/// How the Receives of both cores are made. Each test program says in which form it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One queue for all connections, one segment.
    SharedQueue,
    /// A queue for each connection, as on devices without shared receive queues.
    OwnQueues,
    /// A short inline segment, and the rest of the buffer in placement segments.
    Segments,
}

/// Of a short inline segment, in which not even a header without chunks and a call fit.
const INLINE_SEGMENT_BYTES: u32 = 70;

/// The configuration in the form of this test program; receive buffers are as long as they were.
pub fn in_form(config: &CoreConfig) -> CoreConfig {
    let mut config = config.clone();
    // A core touches each page that it is given, so most of the time of a small test would go into making cores of the
    // default size.
    config.message_buffers = config.message_buffers.min(8);
    if config.connections_max == CoreConfig::default().connections_max {
        config.connections_max = 8;
    }
    if crate::FORM == Form::Segments && config.placement.is_none() {
        config.placement = Some(PlacementConfig {
            inline_segment_bytes: INLINE_SEGMENT_BYTES,
            segments: 2,
            segment_bytes: (config.receive_buffer_bytes - INLINE_SEGMENT_BYTES) / 2,
            spares: 2,
        });
    }
    config
}

/// A core is given a little more than it needs, for the pools that a test carves itself.
const ARENA_SPARE_BYTES: u64 = 1 << 20;

pub fn port(number: u32, config: &CoreConfig, clock: &Clock) -> (TestPort, TestPortHandle) {
    limited_port(number, config, clock, None)
}

fn limited_port(
    number: u32,
    config: &CoreConfig,
    clock: &Clock,
    limits: Option<Limits>,
) -> (TestPort, TestPortHandle) {
    let sizes = Sizes {
        arena_bytes: config.arena_bytes() + ARENA_SPARE_BYTES,
        connections: config.connections_max,
        receives_per_connection: config.receives_per_connection(),
        limits,
    };
    TestFabric::port(number, &sizes, clock)
}

pub fn properties(config: &CoreConfig) -> Properties {
    Properties {
        send_bytes_max: config.send_buffer_bytes,
        receive_buffer_bytes: config.receive_bytes(),
        ..Properties::default()
    }
}

impl<A: Application> Side<A> {
    pub fn app(&self) -> &A {
        self.core.application()
    }

    pub fn app_mut(&mut self) -> &mut A {
        self.core.application_mut()
    }

    pub fn counters(&self) -> CounterSnapshot {
        self.handle.counters()
    }

    pub fn command(&self, command: Command<TestPort>) {
        self.handle.send(command).expect("the mailbox has room");
    }

    /// Has its control plane close a connection.
    pub fn close(&self, connection: ConnectionKey) {
        let reason = CloseReason::Local;
        self.command(Command::Close { connection, reason });
    }

    /// One iteration of the core, and of its control plane. Whether there was anything to do.
    pub fn iterate(&mut self, now: Ticks) -> bool {
        let activity = self.core.iterate_at(now);
        self.control();
        activity == Activity::Busy
    }

    /// What a connection manager tells the port.
    pub fn tell(&self, told: Option<Told<TestFabric>>) {
        if let Some(port_event) = told {
            self.command(Command::PortEvent(port_event));
        }
    }

    /// Message buffers and credits, for a test that failed.
    fn describe(&self) -> String {
        let credits: Vec<_> = self
            .ready
            .iter()
            .map(|&key| self.core.credits(key))
            .collect();
        format!(
            "{} message buffers in use, credits {credits:?}\n",
            self.core.message_buffers_in_use()
        )
    }

    /// The control plane: answers what is to be answered.
    pub fn control(&mut self) {
        while let Some(notification) = self.handle.receive() {
            self.note(notification);
        }
    }

    fn note(&mut self, notification: CoreEvent) {
        match notification {
            CoreEvent::Adopted { result, .. } => {
                if let (Ok(connection), Role::Client) = (&result, self.role) {
                    let connection = *connection;
                    self.command(Command::SendProperties { connection });
                }
                self.planted.push(result.map_err(|error| error.to_string()));
            }
            CoreEvent::Properties { connection, bytes } => {
                if self.ignore_properties {
                    return;
                }
                let set = PropertySet::decode(&bytes).expect("checked by the core");
                let peer = set.properties();
                self.command(Command::AnswerProperties {
                    connection,
                    peer: self.mishears.map_or(peer, |hear| hear(peer)),
                    answer: self.role == Role::Server,
                });
            }
            CoreEvent::Ready {
                connection,
                version_1,
            } => {
                self.ready.push(connection);
                self.version_1 |= version_1;
            }
            CoreEvent::VersionMismatch {
                connection,
                low,
                high,
            } => self.mismatched.push((connection, low, high)),
            CoreEvent::Closed {
                connection, reason, ..
            } => {
                let twice = self.closed.iter().any(|(other, _)| *other == connection);
                assert!(!twice, "{connection:?} was closed twice");
                self.closed.push((connection, reason));
            }
            CoreEvent::Drained => self.drained += 1,
        }
    }
}

/// An application that counts how many of its calls have ended.
pub trait Caller {
    fn calls_ended(&self) -> usize;
}

impl Caller for App {
    fn calls_ended(&self) -> usize {
        self.ended.len()
    }
}

/// Two cores that are joined by shared memory.
pub struct Pair<A: Application = App, B: Application = App> {
    pub client: Side<A>,
    pub server: Side<B>,
    pub joint: TestJoint,
    pub now: Ticks,
    pub clock: Clock,
    token: u64,
    /// Of the connections that the client adopts from now on.
    pub has_other_path: bool,
    /// How far the time of the server is behind.
    server_behind: Ticks,
}

impl Pair {
    pub fn new(config: &CoreConfig) -> Self {
        Self::with(config, config, App::default(), App::default())
    }
}

pub fn side<A: Application>(
    number: u32,
    role: Role,
    config: &CoreConfig,
    clock: &Clock,
    application: A,
    port: (TestPort, TestPortHandle),
) -> Side<A> {
    let _ = number;
    let (port, port_handle) = port;
    let (core, handle) = Core::new(port, config, clock.clone(), application).expect("a core");
    Side {
        core,
        handle,
        port: port_handle,
        role,
        properties: properties(config),
        terms: Terms::default(),
        version_1: false,
        ready: Vec::new(),
        planted: Vec::new(),
        closed: Vec::new(),
        mismatched: Vec::new(),
        drained: 0,
        ignore_properties: false,
        mishears: None,
    }
}

impl<B: Application> Pair<App, B> {
    /// Has the client call, and gives how the call ended.
    pub fn ask(
        &mut self,
        connection: ConnectionKey,
        procedure: u32,
        args: &[u8],
        tag: CallTag,
    ) -> Result<Vec<u8>, CallError> {
        let app = self.client.app_mut();
        app.want(connection, procedure, args, tag);
        self.until("the reply", |pair| pair.client.app().result(tag).is_some());
        self.client.app().result(tag).cloned().expect("it ended")
    }
}

impl<A: Application + Caller, B: Application + Caller> Pair<A, B> {
    /// Waits until so many calls of each end have ended.
    pub fn until_ended(&mut self, client: usize, server: usize) {
        self.until("the ends of all calls", |pair| {
            let ended = (
                pair.client.app().calls_ended(),
                pair.server.app().calls_ended(),
            );
            ended == (client, server)
        });
    }
}

impl<A: Application, B: Application> Pair<A, B> {
    pub fn with(client: &CoreConfig, server: &CoreConfig, a: A, b: B) -> Self {
        Self::limited(client, server, a, b, None)
    }

    /// As [`Pair::with`], on ports with these limits.
    pub fn limited(
        client: &CoreConfig,
        server: &CoreConfig,
        a: A,
        b: B,
        limits: Option<Limits>,
    ) -> Self {
        let clock = Clock::new();
        let (client, server) = (&in_form(client), &in_form(server));
        let client_port = limited_port(0, client, &clock, limits);
        let server_port = limited_port(1, server, &clock, limits);
        let joint = TestFabric::join(
            (&client_port.0, &client_port.1),
            (&server_port.0, &server_port.1),
        );
        let (mut beginning, configs) = (Beginning::default(), [client, server]);
        let client = beginning.of(configs[0], &clock, || {
            side(0, Role::Client, configs[0], &clock, a, client_port)
        });
        let server = beginning.of(configs[1], &clock, || {
            side(1, Role::Server, configs[1], &clock, b, server_port)
        });
        Self {
            client,
            server,
            joint,
            now: beginning.now(&clock),
            clock,
            token: 0,
            has_other_path: false,
            server_behind: 0,
        }
    }

    /// The two ends of one more connection.
    pub fn prepared_pair(&mut self) -> [PreparedQueuePair<TestFabric>; 2] {
        TestFabric::prepared_pair(&mut self.joint, &self.client.port, &self.server.port)
    }

    /// Adopts a connection at both ends.
    pub fn adopt_queue_pair(&mut self) {
        let [client_prepared, server_prepared] = self.prepared_pair();
        self.token += 1;
        let token = self.token;
        self.server.command(Command::Adopt {
            token,
            prepared: server_prepared,
            role: Role::Server,
            peer: client(token),
            properties: self.server.properties,
            terms: self.server.terms,
            credits_max: u16::MAX,
            guarded: false,
            has_other_path: false,
        });
        // The server first: the client speaks as soon as it is adopted.
        self.turn();
        self.client.command(Command::Adopt {
            token,
            prepared: client_prepared,
            role: Role::Client,
            peer: PeerIdentity::default(),
            properties: self.client.properties,
            terms: self.client.terms,
            credits_max: u16::MAX,
            guarded: false,
            has_other_path: self.has_other_path,
        });
    }

    /// Connects, and gives both ends' names of the connection.
    pub fn connect(&mut self) -> (ConnectionKey, ConnectionKey) {
        let (client, server) = (self.client.ready.len(), self.server.ready.len());
        self.adopt_queue_pair();
        self.until("both ends are ready", |pair| {
            pair.client.ready.len() > client && pair.server.ready.len() > server
        });
        (self.client.ready[client], self.server.ready[server])
    }

    /// Connects, where each end speaks these versions: in version 1 the server is ready with the first call.
    pub fn connect_with(&mut self, client: Versions, server: Versions) -> ConnectionKey {
        let ready = self.client.ready.len();
        self.plant_with(client, server);
        self.until("the client is ready", |pair| {
            pair.client.ready.len() > ready
        });
        self.client.ready[ready]
    }

    /// Adopts a connection at both ends, which speak these versions.
    pub fn plant_with(&mut self, client: Versions, server: Versions) {
        let terms = |versions| Terms {
            versions,
            own: sizes(),
            peer: sizes(),
        };
        (self.client.terms, self.server.terms) = (terms(client), terms(server));
        self.adopt_queue_pair();
    }

    /// One iteration of each core, and of its control plane. Whether there was anything to do.
    pub fn turn(&mut self) -> bool {
        self.turn_of(ALL)
    }

    /// So many turns; on a device, each of them with all that was sent before, and as many more as there is work for.
    pub fn turns(&mut self, count: usize) {
        self.turns_of(ALL, count);
    }

    /// The same of the client, while the server stands still.
    pub fn client_turns(&mut self, count: usize) {
        self.turns_of(CLIENT, count);
    }

    /// A turn, and on a device as many more as what was sent takes to arrive.
    pub fn turn_with_all_that_was_sent(&mut self) {
        self.turn();
        self.settle(ALL);
    }

    /// So many turns, whatever is under way then.
    pub fn turns_exactly(&mut self, count: usize) {
        for _ in 0..count {
            self.turn();
        }
    }

    /// So many iterations of the server, while the client stands still.
    pub fn server_turns(&mut self, count: usize) {
        for _ in 0..count {
            self.now += self.clock.ticks(TestFabric::TURN);
            self.server.iterate(self.now - self.server_behind);
        }
    }

    /// Time passes when what was sent has arrived, and nothing else happens.
    pub fn pass(&mut self, time: Duration) {
        self.settle(ALL);
        self.now += self.clock.ticks(time);
    }

    /// The same, for the server when what the client does then has arrived.
    pub fn pass_first_at_the_client(&mut self, time: Duration) {
        self.pass(time);
        self.server_behind = self.clock.ticks(time);
        self.turns(20);
        self.server_behind = 0;
    }

    /// Time passes while the server stands still.
    pub fn pass_at_the_client(&mut self, time: Duration) {
        self.settle(CLIENT);
        self.now += self.clock.ticks(time);
    }

    /// Turns until something is so; fails when it does not come to be.
    pub fn until(&mut self, what: &str, done: impl FnMut(&mut Self) -> bool) {
        self.turn_until(what, done);
    }
}

impl<A: Application, B: Application> Turns for Pair<A, B> {
    fn is_under_way(&self, polled: Polled) -> bool {
        TestFabric::is_under_way(&self.joint, polled)
    }

    fn iterate(&mut self, polled: Polled, time: Duration) -> bool {
        self.now += self.clock.ticks(time).max(1);
        let client = polled[0] && self.client.iterate(self.now);
        let server = polled[1] && self.server.iterate(self.now - self.server_behind);
        let [to_client, to_server] =
            TestFabric::port_events(&mut self.joint, &self.client.port, &self.server.port);
        self.client.tell(to_client);
        self.server.tell(to_server);
        client || server
    }

    fn state(&self) -> String {
        format!(
            "client:\n{}{}server:\n{}{}{:?}",
            self.client.counters(),
            self.client.describe(),
            self.server.counters(),
            self.server.describe(),
            self.joint
        )
    }
}

/// Who the client of connection `token` is, to its server.
pub fn client(token: u64) -> PeerIdentity {
    PeerIdentity {
        key: token,
        name: format!("client {token}"),
        ..PeerIdentity::default()
    }
}

/// What both ends say of themselves: messages of 4096 bytes, and that remote invalidation is supported.
fn sizes() -> PrivateData {
    PrivateData {
        remote_invalidation: true,
        send_bytes: 4096,
        receive_bytes: 4096,
    }
}
