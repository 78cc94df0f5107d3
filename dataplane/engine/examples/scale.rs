//! What a core that is made for many connections spends on a call that its service answers later, without chunks and
//! with a Write chunk, on a poll in which nothing happens but that what peers owe is watched, and on a null call where
//! all connections call.
//!
//! `cargo run --release -p rpcrdma-engine --example scale -- [CONNECTIONS...]`
//!
//! Both cores run by turns in one thread. They are made for so many connections, and have one; for the last column they
//! have them all. Calls go over them in an order that no cache foresees, 32 at a time, and the states of both ends are in
//! the caches of one processor. Each time is the shortest of several rounds; that of the last column is time of the
//! processor, so that what else runs on the machine counts only by what it does to the caches.

mod ends;

use std::time::{Duration, Instant};

use rpcrdma_engine::{
    Activity, Application, BulkCall, BulkReply, Call, CallError, CallTag, ConnectionKey, Context,
    CoreConfig, DeferToken, ExpectedResult, HostIdentity, Outcome, Placement, Reply, ReplyWriter,
    Request,
};
use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::Port;
use rpcrdma_fabric::shm;
use rpcrdma_protocol::connection::Versions;
use rpcrdma_protocol::v2::connection::Role;

use ends::{End, adopt_queue_pair, connect, end, ends, port};

const ROUNDS: usize = 7;

/// Answers each call in its next poll.
#[derive(Default)]
struct Later(Option<DeferToken>);

impl Application for Later {
    fn call(&mut self, request: &Request<'_>, _reply: &mut ReplyWriter<'_>) -> Outcome {
        self.0 = request.defer();
        Outcome::Deferred
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        let token = self.0.take();
        if let Some(token) = token {
            let sent = core.reply_bulk(token, Outcome::Success, &[], &mut []);
            assert!(sent.is_ok(), "the reply is taken");
        }
        Activity::Idle
    }
}

/// Makes one call after the other.
#[derive(Default)]
struct Caller {
    connection: Option<ConnectionKey>,
    has_chunks: bool,
    is_waiting: bool,
    is_idle: bool,
    ended: u64,
}

impl Application for Caller {
    fn completed(
        &mut self,
        _tag: CallTag,
        _connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        _now: Ticks,
    ) {
        assert!(result.is_ok(), "the call is answered");
        self.ended += 1;
        self.is_waiting = false;
    }

    fn completed_bulk(
        &mut self,
        tag: CallTag,
        connection: ConnectionKey,
        result: Result<BulkReply<'_>, CallError>,
        now: Ticks,
    ) {
        self.completed(tag, connection, result.map(|bulk| bulk.reply), now);
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        let Some(connection) = self
            .connection
            .filter(|_| !self.is_waiting && !self.is_idle)
        else {
            return Activity::Idle;
        };
        let call = Call {
            program: 0x2000_0001,
            version: 1,
            procedure: 1,
        };
        let made = if self.has_chunks {
            let mut bulk = BulkCall::new(call, &[]);
            bulk.placement = Placement::Rdma;
            let expected = ExpectedResult {
                bytes_max: 8192,
                ..ExpectedResult::default()
            };
            bulk.expect(expected).expect("room for one");
            core.call_bulk(connection, &mut bulk, 0)
        } else {
            core.call(connection, call, &[], 0)
        };
        made.expect("one call at a time is taken");
        self.is_waiting = true;
        Activity::Idle
    }

    fn connected(&mut self, connection: ConnectionKey, _peer: Option<&HostIdentity>) {
        self.connection = Some(connection);
    }
}

/// Answers each call while it looks at it.
struct Now;

impl Application for Now {
    fn call(&mut self, _request: &Request<'_>, _reply: &mut ReplyWriter<'_>) -> Outcome {
        Outcome::Success
    }
}

/// Makes calls on all connections by turns.
#[derive(Default)]
struct Crowd {
    connections: Vec<ConnectionKey>,
    next: usize,
    waiting: u32,
    is_calling: bool,
    ended: u64,
}

impl Crowd {
    const AT_A_TIME: u32 = 32;

    /// The next connection: all have a turn before one has another, in leaps that no prefetcher follows.
    fn next(&mut self) -> Option<ConnectionKey> {
        /// A prime: it divides no number of connections but its multiples.
        const LEAP: usize = 7919;
        let count = self.connections.len();
        self.next = (self.next + LEAP) % count.max(1);
        self.connections.get(self.next).copied()
    }
}

impl Application for Crowd {
    fn completed(
        &mut self,
        _tag: CallTag,
        _connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        _now: Ticks,
    ) {
        assert!(result.is_ok(), "the call is answered");
        self.ended += 1;
        self.waiting -= 1;
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        while self.is_calling && self.waiting < Self::AT_A_TIME {
            let call = Call {
                program: 0x2000_0001,
                version: 1,
                procedure: 0,
            };
            let connection = self.next().expect("there are some");
            core.call(connection, call, &[], 0)
                .expect("each has few calls");
            self.waiting += 1;
        }
        Activity::Idle
    }
}

/// Two cores with so many connections between them.
fn crowd(clock: &Clock, connections: u32) -> (End<Crowd>, End<Now>) {
    let config = CoreConfig {
        calls_outstanding_max: 64,
        bulk_buffers: 0,
        ..config(connections)
    };
    let (client_port, client_files) = port(0, &config, clock);
    let (server_port, server_files) = port(1, &config, clock);
    let joint = shm::Joint::new(&client_port, &client_files, &server_port, &server_files)
        .expect("a channel");
    let mut server = end(clock, server_port, &config, Now);
    let mut client = end(clock, client_port, &config, Crowd::default());
    for _ in 0..connections {
        let (of_client, of_server) = joint
            .prepared_pair(&client_files, &server_files)
            .expect("a queue pair");
        adopt_queue_pair(
            &server.handle,
            of_server,
            (Role::Server, Versions::Two),
            &config,
        );
        adopt_queue_pair(
            &client.handle,
            of_client,
            (Role::Client, Versions::Two),
            &config,
        );
        let connection = connect(&mut client, &mut server);
        client.core.application_mut().connections.push(connection);
    }
    (client, server)
}

/// The least nanoseconds of a null call, over all connections.
fn active_ns(clock: &Clock, connections: u32) -> f64 {
    let calls = u64::from(connections.max(20_000)) * 10;
    let (mut client, mut server) = crowd(clock, connections);
    client.core.application_mut().is_calling = true;
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let last = client.core.application().ended + calls;
        let start_ns = processor_ns();
        while client.core.application().ended < last {
            let _ = client.core.iterate();
            let _ = server.core.iterate();
        }
        best = best.min((processor_ns() - start_ns) as f64 / calls as f64);
    }
    best
}

/// The time that the processor has spent on this thread. The kernel counts it in its ticks: some milliseconds.
fn processor_ns() -> u64 {
    let path = "/proc/thread-self/schedstat";
    let text = std::fs::read_to_string(path).expect("Linux has this file");
    let first = text.split_whitespace().next();
    let spent_ns = first.and_then(|word| word.parse().ok());
    spent_ns.expect("a number")
}

fn config(connections: u32) -> CoreConfig {
    CoreConfig {
        connections_max: connections,
        credits_per_connection: 4,
        // Each connection is guaranteed four such messages, and the machine must have that much memory.
        message_bytes_max: 16_384,
        message_buffers: 8,
        calls_outstanding_max: 16,
        deferred_max: 16,
        bulk_buffers: 64,
        bulk_buffer_bytes: 65_536,
        bulk_calls: 16,
        keep_alive_interval: Duration::ZERO,
        // Its shortest: each connection is looked at forty times in a second.
        stall_timeout: Duration::from_millis(100),
        mailbox_depth: 64,
        ..CoreConfig::default()
    }
}

/// The least nanoseconds of a call that is answered later.
fn call_ns(client: &mut End<Caller>, server: &mut End<Later>, has_chunks: bool) -> f64 {
    const CALLS: u32 = 20_000;
    client.core.application_mut().has_chunks = has_chunks;
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let last = client.core.application().ended + u64::from(CALLS);
        let start = Instant::now();
        while client.core.application().ended < last {
            let _ = client.core.iterate();
            let _ = server.core.iterate();
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS));
    }
    best
}

/// The least nanoseconds of `polls` idle polls of a server.
fn polls_ns(server: &mut End<Later>, polls: u32) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..polls {
            let _ = server.core.iterate();
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(polls));
    }
    best
}

fn main() {
    let clock = Clock::new();
    let mut counts: Vec<u32> = std::env::args()
        .skip(1)
        .map(|text| text.parse().expect("a number of connections"))
        .collect();
    if counts.is_empty() {
        counts = vec![16, 256, 1000, 10_000];
    }
    println!("connections  deferred call  with a Write chunk   idle poll  call, all active");
    for connections in counts {
        let config = config(connections);
        let (mut client, mut server) = ends(
            &clock,
            Versions::Two,
            (&config, Caller::default()),
            (&config, Later::default()),
        );
        connect(&mut client, &mut server);
        let calls = [false, true].map(|has_chunks| call_ns(&mut client, &mut server, has_chunks));
        // The call that is under way ends.
        client.core.application_mut().is_idle = true;
        for _ in 0..100 {
            let _ = client.core.iterate();
            let _ = server.core.iterate();
        }
        let idle_ns = polls_ns(&mut server, 2_000_000);
        println!(
            "{connections:11}  {:10.0} ns  {:15.0} ns  {idle_ns:6.1} ns  {:13.0} ns",
            calls[0],
            calls[1],
            active_ns(&clock, connections)
        );
    }
}
