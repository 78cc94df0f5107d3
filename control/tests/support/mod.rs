//! An application for tests: answers an echo program, and calls for the thread that holds its
//! rings.

pub(crate) mod foreign;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rpcrdma_control::{Connection, Node, NodeConfig, Provider};
use rpcrdma_engine::ring_client::{CallMessage, CallStatus, RingApplication, RingClient};
use rpcrdma_engine::{
    Activity, Application, Call, CallError, CallTag, ConnectionKey, Context, DeferToken,
    HostIdentity, Outcome, Reply, ReplyWriter, Request,
};
use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::{PeerIdentity, Port};
pub(crate) use rpcrdma_testkit::PATIENCE;
use rpcrdma_testkit::{Seen, reach, until};
use rpcrdma_tuning::{Idle, Profile};

/// The program of the tests.
pub(crate) const PROGRAM: u32 = 0x2000_0001;

/// Sends its arguments back.
pub(crate) const ECHO: u32 = 1;

/// Sends its arguments back once the test says so ([`TestNode::release`]), and never before: a call
/// of it is outstanding for as long as a test needs one, however slow the machine is.
pub(crate) const HELD: u32 = 2;

/// Serves and calls.
pub(crate) struct TestApplication {
    rings: RingApplication,
    /// What the peers of its connections proved to be, in the order in which they became ready.
    peers: Peers,
    opened: Opened,
    held: Vec<(DeferToken, Vec<u8>)>,
    released: Arc<AtomicBool>,
}

/// Peers of all cores of a node.
type Peers = Arc<Mutex<Vec<(ConnectionKey, Option<String>)>>>;

/// Who the peers of all connections of a node are, as the fabric says.
type Opened = Arc<Mutex<Vec<PeerIdentity>>>;

impl Application for TestApplication {
    fn opened(&mut self, _connection: ConnectionKey, peer: &PeerIdentity) {
        let mut opened = self.opened.lock().expect("no test fails with it");
        opened.push(peer.clone());
    }

    fn connected(&mut self, connection: ConnectionKey, peer: Option<&HostIdentity>) {
        let peer = peer.map(ToString::to_string);
        let mut peers = self.peers.lock().expect("no test fails with it");
        peers.push((connection, peer));
    }

    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        match (request.program, request.procedure) {
            (PROGRAM, ECHO) => match reply.write(request.args) {
                Ok(()) => Outcome::Success,
                Err(_) => Outcome::SystemError,
            },
            (PROGRAM, HELD) => match request.defer() {
                Some(token) => {
                    self.held.push((token, request.args.to_vec()));
                    Outcome::Deferred
                }
                None => Outcome::SystemError,
            },
            (PROGRAM, _) => Outcome::ProcedureUnavailable,
            _ => Outcome::ProgramUnavailable,
        }
    }

    fn completed(
        &mut self,
        tag: CallTag,
        connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        now: Ticks,
    ) {
        self.rings.completed(tag, connection, result, now);
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, now: Ticks) -> Activity {
        let mut busy = false;
        if !self.held.is_empty() && self.released.load(Ordering::Relaxed) {
            busy = true;
            for (token, results) in std::mem::take(&mut self.held) {
                if let Err((refused, token)) = core.reply(token, Outcome::Success, &results) {
                    assert_eq!(refused, rpcrdma_engine::ReplyRefused::Busy);
                    self.held.push((token, results));
                }
            }
        }
        self.rings.poll(core, now).or(Activity::from_busy(busy))
    }
}

/// The fabric that the cases are tried on.
pub(crate) trait Fabric: 'static {
    type Provider: Provider;

    /// Addresses that nobody can listen on.
    const BAD_ADDRESSES: &[&str];

    fn provider(profile: &Profile) -> Self::Provider;

    /// An address that no other test uses.
    fn address() -> String;

    /// A part of what this process is called as a peer.
    fn this_peer() -> String;
}

/// A node with the test application on every core, and a client of each core.
pub(crate) struct TestNode {
    pub(crate) node: Node<TestApplication>,
    pub(crate) clients: Vec<RingClient>,
    released: Arc<AtomicBool>,
    peers: Peers,
    opened: Opened,
}

/// Small sizes; cores that are not pinned and sleep, since tests share the processors. No time
/// limit is shorter than what a test waits: a test that is about one sets it.
pub(crate) fn profile() -> Profile {
    Profile {
        // TIME: these limits exceed `PATIENCE`, so a test fails by its own wait before one of them ends a connection or a
        // call, however slow the machine is. A peer may be silent for 255 ticks of a second.
        connect_timeout_ms: 600_000,
        call_timeout_ms: 300_000,
        keep_alive_silent_ticks_max: 255,
        stall_timeout_ms: 600_000,
        connections_max: 4,
        credits_per_connection: 8,
        calls_outstanding_max: 64,
        reassembly_buffers: 4,
        idle: Idle::Park,
        idle_park_after_us: 50,
        ..Profile::default()
    }
}

/// Starts a node of `cores` cores.
pub(crate) fn start<F: Fabric>(profile: &Profile, cores: usize) -> TestNode {
    let config = NodeConfig::from_profile(profile, vec![None; cores]);
    start_with::<F>(profile, &config)
}

/// As [`start`], of any configuration.
pub(crate) fn start_with<F: Fabric>(profile: &Profile, config: &NodeConfig) -> TestNode {
    let mut clients = Vec::new();
    let released = Arc::new(AtomicBool::new(false));
    let peers = Peers::default();
    let opened = Opened::default();
    let node = Node::start(F::provider(profile), config, |_| {
        let (rings, mut client) = RingApplication::new(1, 16);
        clients.append(&mut client);
        TestApplication {
            rings,
            peers: Arc::clone(&peers),
            opened: Arc::clone(&opened),
            held: Vec::new(),
            released: Arc::clone(&released),
        }
    })
    .expect("a small node fits on any machine");
    TestNode {
        node,
        clients,
        released,
        peers,
        opened,
    }
}

impl TestNode {
    /// Submits a call on `connection`.
    pub(crate) fn submit(&mut self, connection: &Connection, procedure: u32, args: &[u8]) {
        let message = CallMessage {
            connection: connection.key,
            call: Call {
                program: PROGRAM,
                version: 1,
                procedure,
            },
            args: args.to_vec(),
            results: Vec::with_capacity(args.len().max(64)),
            ..CallMessage::default()
        };
        self.clients[connection.core]
            .submit(Box::new(message))
            .expect("the ring has room");
        self.node.wake_cores();
    }

    /// Has the calls of [`HELD`] answered, those that come later included.
    pub(crate) fn release(&self) {
        self.released.store(true, Ordering::Relaxed);
        self.node.wake_cores();
    }

    /// Waits for a call of `core` to end.
    pub(crate) fn complete(&mut self, core: usize) -> Box<CallMessage> {
        until("the end of the call", || self.clients[core].complete())
    }

    /// Calls and waits; results or the status.
    pub(crate) fn call(
        &mut self,
        connection: &Connection,
        procedure: u32,
        args: &[u8],
    ) -> Result<Vec<u8>, CallStatus> {
        self.submit(connection, procedure, args);
        let message = self.complete(connection.core);
        match message.status {
            CallStatus::Success => Ok(message.results),
            status => Err(status),
        }
    }

    /// A call on `connection` brings these bytes back.
    pub(crate) fn assert_echo(&mut self, connection: &Connection, bytes: &[u8]) {
        assert_eq!(self.call(connection, ECHO, bytes), Ok(bytes.to_vec()));
    }

    /// Waits until the only core has closed so many connections.
    pub(crate) fn wait_closed(&self, count: u64) {
        wait_for_count("the end of the connection", count, || {
            self.node.cores()[0].counters().connections_closed
        });
    }

    /// Waits until the only core has deferred a call.
    pub(crate) fn wait_deferred(&self) {
        wait_for_count("the deferral", 1, || {
            self.node.cores()[0].counters().deferred
        });
    }

    /// Who is at the other end of each of its connections, in the order in which they began.
    pub(crate) fn opened(&self) -> Vec<PeerIdentity> {
        self.opened.lock().expect("no test fails with it").clone()
    }

    /// What the peers that came to be ready proved to be.
    pub(crate) fn peers(&self) -> Vec<Option<String>> {
        let peers = self.peers.lock().expect("no test fails with it");
        peers.iter().map(|(_, peer)| peer.clone()).collect()
    }

    /// The connection of the only core that became ready last, as that core knows it.
    pub(crate) fn last_connection(&self) -> Connection {
        let peers = self.peers.lock().expect("no test fails with it");
        let (key, _) = peers.last().expect("one is ready");
        Connection {
            core: 0,
            key: *key,
            address: String::new(),
            peer: String::new(),
            identity: None,
            version: 2,
        }
    }

    /// The value of a counter of the control thread.
    pub(crate) fn control_counter(&self, name: &str) -> u64 {
        let counters = self.node.counters();
        counters
            .iter()
            .find(|(found, _)| *found == name)
            .map(|(_, value)| *value)
            .expect("a counter")
    }

    /// Waits until a counter has this value: the control thread may learn of an event later than the test.
    pub(crate) fn counts(&self, name: &str, value: u64) {
        wait_for_count(name, value, || self.control_counter(name));
    }

    /// Waits until `condition` holds.
    pub(crate) fn wait_until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        until(what, || condition(self).then_some(()));
    }
}

/// Waits until `counter` has this value. It never decreases: a greater one is a fault.
#[track_caller]
fn wait_for_count(what: &str, value: u64, counter: impl Fn() -> u64) {
    let what = format!("{value} for {what}");
    reach(&what, || match counter().cmp(&value) {
        std::cmp::Ordering::Less => Seen::NotYet,
        std::cmp::Ordering::Equal => Seen::Reached(()),
        std::cmp::Ordering::Greater => Seen::Passed("it counts more"),
    });
}

/// A value is of this form.
macro_rules! assert_is {
    ($value:expr, $form:pat) => {
        assert!(matches!($value, $form), "{:?}", $value)
    };
}
pub(crate) use assert_is;

/// The text of an error has all these parts.
pub(crate) fn assert_says(error: &impl std::fmt::Display, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{text}");
    }
}
