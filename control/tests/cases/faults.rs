//! Faults of a server, as its client meets them.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rpcrdma_control::{
    ConnectError, ConnectOptions, Connection, Fault, FaultPlan, Node, NodeConfig, Versions,
};
use rpcrdma_engine::ring_client::CallStatus;
use rpcrdma_engine::{
    Activity, Application, BulkCall, Call, CallError, CallTag, ConnectionKey, Context, Outcome,
    Reply, ReplyWriter, Request,
};
use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::{Port, RejectReason};
use rpcrdma_testkit::until;
use rpcrdma_tuning::Profile;

use super::{connected, listening, options, refused};
use crate::support::{ECHO, Fabric, PATIENCE, PROGRAM, TestNode, profile, start};

/// How late things are. Tests measure that at least this much passes, and a slow machine takes less without a fault.
const LATE: Duration = Duration::from_millis(150);

/// The time before the first of some calls that are late.
struct Begin(Instant);

impl Begin {
    fn now() -> Self {
        // TIME: this clock is read before the calls are made, and again when they have ended.
        Self(Instant::now())
    }

    /// So many delays of [`LATE`] have passed. They are measured in ticks of the processor, whose calibration has an error.
    #[track_caller]
    fn check_delays(&self, count: u32) {
        // TIME: the bound is from below. A slow machine takes longer.
        let took = self.0.elapsed();
        assert!(took >= LATE * count * 9 / 10, "{took:?}");
    }
}

/// Sends arguments back.
struct Echo;

impl Application for Echo {
    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        let written = reply.write(request.args);
        written.map_or(Outcome::SystemError, |()| Outcome::Success)
    }
}

/// A server of one core with faults.
struct FaultyServer {
    node: Node<Echo>,
    plan: FaultPlan,
    address: String,
}

impl FaultyServer {
    fn start<F: Fabric>(profile: &Profile, faults: &[&str]) -> Self {
        let faults = faults
            .iter()
            .map(|text| -> Fault { text.parse().expect(text) });
        let plan = FaultPlan::new(faults);
        let config = NodeConfig::from_profile(profile, vec![None]);
        let node = Node::start_with_faults(F::provider(profile), &config, &plan, |_| Echo);
        let node = node.expect("a small node fits on any machine");
        let address = F::address();
        node.listen(&address, listening())
            .expect("the name is free");
        Self {
            node,
            plan,
            address,
        }
    }

    /// How often its only fault has struck.
    fn injected(&self) -> u64 {
        self.plan.injected().map(|(_, times)| times).sum()
    }

    fn calls_received(&self) -> u64 {
        self.node.cores()[0].counters().calls_received
    }

    /// A client of it, with a connection.
    fn client<F: Fabric>(&self, profile: &Profile) -> (TestNode, Connection) {
        let client = start::<F>(profile, 1);
        let connection = connected(&client, &self.address);
        (client, connection)
    }
}

fn failed<T>(error: CallError) -> Result<T, CallStatus> {
    Err(CallStatus::Failed(error))
}

pub(crate) fn calls_that_are_struck_end_with_an_error_and_are_the_same_in_each_run<F: Fabric>() {
    /// The calls that fail of 40.
    fn struck<F: Fabric>(fault: &str) -> Vec<u32> {
        let server = FaultyServer::start::<F>(&profile(), &[fault]);
        let (mut client, connection) = server.client::<F>(&profile());
        let calls = (1..=40_u32).filter(|number| {
            let args = number.to_be_bytes();
            let ended = client.call(&connection, ECHO, &args);
            let is_struck = ended == failed(CallError::SystemError);
            assert!(is_struck || ended == Ok(args.to_vec()), "{ended:?}");
            is_struck
        });
        let calls: Vec<_> = calls.collect();
        assert_eq!(server.injected(), calls.len() as u64);
        calls
    }
    assert_eq!(
        struck::<F>("error-reply:every=3,after=21,times=4"),
        [24, 27, 30, 33]
    );
    let first = struck::<F>("error-reply:one-in=4,seed=9");
    assert!((2..=25).contains(&first.len()), "{first:?}");
    assert_eq!(first, struck::<F>("error-reply:one-in=4,seed=9"));
    assert_ne!(first, struck::<F>("error-reply:one-in=4,seed=10"));
}

pub(crate) fn a_call_whose_reply_is_dropped_times_out_and_the_next_is_answered<F: Fabric>() {
    // TIME: a machine that takes a second for a call makes it time out, too. It does not do so five times in a row; a
    // server that never answers the next call does.
    let answered = (0..5).any(|_| next_is_answered_after_a_dropped_reply::<F>());
    assert!(answered, "the next call is never answered");
}

/// Whether the call behind one whose reply is dropped had its answer in time.
fn next_is_answered_after_a_dropped_reply<F: Fabric>() -> bool {
    let server = FaultyServer::start::<F>(&profile(), &["drop-reply:after=1,times=1"]);
    let (mut patient, other) = server.client::<F>(&profile());
    patient.assert_echo(&other, b"1st.");
    let hasty = Profile {
        call_timeout_ms: 1000,
        ..profile()
    };
    let (mut client, connection) = server.client::<F>(&hasty);
    let dropped = client.call(&connection, ECHO, b"2nd.");
    assert_eq!(dropped, failed(CallError::TimedOut));
    let next = client.call(&connection, ECHO, b"3rd.");
    let is_answered = next != failed(CallError::TimedOut);
    assert!(!is_answered || next == Ok(b"3rd.".to_vec()), "{next:?}");
    patient.assert_echo(&other, b"4th.");
    assert_eq!(server.injected(), 1);
    // A call that will not be answered does not hold up the end.
    let drained = server.node.drain(PATIENCE).expect("it drains");
    assert!(drained.complete, "{drained:?}");
    is_answered
}

pub(crate) fn a_connection_is_lost_at_the_send_that_is_struck<F: Fabric>() {
    // Without keep-alive: a Send of it would be struck in place of a reply where the client is slow.
    let profile = Profile {
        keep_alive_interval_ms: 0,
        ..profile()
    };
    let server = FaultyServer::start::<F>(&profile, &["disconnect:after=20,times=1"]);
    let (mut client, connection) = server.client::<F>(&profile);
    let mut answered = 0_u64;
    let lost = loop {
        assert!(answered <= 20, "no call failed");
        match client.call(&connection, ECHO, b"ping") {
            Ok(_) => answered += 1,
            Err(status) => break status,
        }
    };
    assert_eq!(lost, CallStatus::Failed(CallError::Disconnected));
    // Its properties, and credits by themselves, are Sends as well.
    assert!((10..=20).contains(&answered), "{answered}");
    assert_eq!(
        (server.injected(), server.calls_received()),
        (1, answered + 1)
    );
    let again = connected(&client, &server.address);
    for _ in 0..30 {
        client.assert_echo(&again, b"ping");
    }
}

pub(crate) fn connects_that_are_struck_are_refused<F: Fabric>() {
    let server = FaultyServer::start::<F>(&profile(), &["refuse-connect:every=2"]);
    let (mut client, first) = server.client::<F>(&profile());
    for times in 1..=2 {
        match refused(&client, &server.address) {
            ConnectError::Rejected { reason, .. } => {
                assert_eq!(reason, RejectReason::ConnectionsExhausted);
            }
            other => panic!("{other}"),
        }
        assert_eq!(server.injected(), times);
        let next = connected(&client, &server.address);
        client.assert_echo(&next, b"ping");
    }
    client.assert_echo(&first, b"ping");
}

pub(crate) fn messages_that_are_struck_come_late_and_in_order<F: Fabric>() {
    let fault = format!("delay-message:for={}ms,every=2", LATE.as_millis());
    let server = FaultyServer::start::<F>(&profile(), &[&fault]);
    let (mut client, connection) = server.client::<F>(&profile());
    // Twice as many as there are credits: the second half waits for Receives of the first.
    let begin = Begin::now();
    let numbers = 0..16_u32;
    for number in numbers.clone() {
        client.submit(&connection, ECHO, &number.to_be_bytes());
    }
    for number in numbers {
        let ended = client.complete(connection.core);
        assert_eq!(ended.status, CallStatus::Success);
        assert_eq!(ended.results, number.to_be_bytes());
    }
    begin.check_delays(2);
    assert!(server.injected() >= 8, "{}", server.injected());
}

pub(crate) fn a_connection_that_ends_does_not_wait_for_what_is_late<F: Fabric>() {
    let one = Profile {
        connections_max: 1,
        ..profile()
    };
    let server = FaultyServer::start::<F>(&one, &["delay-message:for=60s,after=4,times=1"]);
    let (mut client, connection) = server.client::<F>(&profile());
    // TIME: an end that waits for what is late comes after 60 s or more, counted from here. One that does not takes milliseconds,
    // on an emulated device up to a second.
    let begin = Instant::now();
    for _ in 0..8 {
        client.submit(&connection, ECHO, b"late");
    }
    client.wait_until("a late message", |_| server.injected() == 1);
    client.node.close(&connection);
    let is_closed = || server.node.counters().contains(&("connections_closed", 1));
    client.wait_until("the server's end", |_| is_closed());
    // TIME: see there.
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(60) * 9 / 10, "{took:?}");
    // The only place is free again.
    for _ in 0..8 {
        client.complete(connection.core);
    }
    let again = connected(&client, &server.address);
    client.assert_echo(&again, b"ping");
}

pub(crate) fn receives_that_are_struck_are_posted_late<F: Fabric>() {
    // The lab tells the name of its device.
    if std::env::var("LAB_DEV").is_ok_and(|device| device.starts_with("siw")) {
        println!("SKIPPED on iWARP: a Send that finds no Receive ends its connection there");
        return;
    }
    let few = Profile {
        connections_max: 1,
        credits_per_connection: 4,
        ..profile()
    };
    let fault = format!("late-receive:for={}ms", LATE.as_millis());
    let server = FaultyServer::start::<F>(&few, &[&fault]);
    let (mut client, connection) = server.client::<F>(&few);
    // Five Receives are there, and one was taken for the properties: each serves its next message late.
    let begin = Begin::now();
    for number in 0..20_u32 {
        let args = number.to_be_bytes();
        client.assert_echo(&connection, &args);
    }
    begin.check_delays(3);
    assert!(server.injected() >= 20, "{}", server.injected());
}

/// A client that makes one call of version 1, in a Read chunk and with a Reply chunk.
struct LongCaller {
    wanted: Arc<Mutex<Option<ConnectionKey>>>,
    ended: Ended,
}

/// How its call ended: the bytes of the results.
type Ended = Arc<Mutex<Option<Result<usize, CallError>>>>;

impl LongCaller {
    const BYTES: usize = 20_000;
}

impl Application for LongCaller {
    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        let mut wanted = self.wanted.lock().expect("no test fails with it");
        let Some(connection) = *wanted else {
            return Activity::Idle;
        };
        let call = Call {
            program: PROGRAM,
            version: 1,
            procedure: ECHO,
        };
        let args = [7; Self::BYTES];
        let mut call = BulkCall::new(call, &args);
        call.results_bytes_max = Self::BYTES;
        core.call_bulk(connection, &mut call, 1)
            .expect("there is room");
        *wanted = None;
        Activity::Busy
    }

    fn completed(
        &mut self,
        _tag: CallTag,
        _connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        _now: Ticks,
    ) {
        let mut ended = self.ended.lock().expect("no test fails with it");
        *ended = Some(result.map(|reply| reply.results.len()));
    }
}

/// How a call ends whose arguments the server reads and whose results it writes, and the calls that the server saw;
/// `None` where the device reads nothing.
fn long_call<F: Fabric>(faults: &[&str]) -> Option<(Result<usize, CallError>, u64)> {
    let profile = Profile {
        bulk_buffers: 16,
        ..profile()
    };
    let server = FaultyServer::start::<F>(&profile, faults);
    let attributes = &server.node.attributes()[0];
    if attributes.read_depth_max == 0 || attributes.windows_max == 0 {
        println!("{} has no RDMA Read: nothing to fail", attributes.device);
        return None;
    }
    let (wanted, ended) = (Arc::default(), Ended::default());
    let config = NodeConfig::from_profile(&profile, vec![None]);
    let client = Node::start(F::provider(&profile), &config, |_| LongCaller {
        wanted: Arc::clone(&wanted),
        ended: Arc::clone(&ended),
    });
    let client = client.expect("a small node fits on any machine");
    let version_1 = ConnectOptions {
        versions: Versions::One,
        ..options()
    };
    let connection = client.connect(&server.address, version_1);
    let connection = connection.expect("a server listens, and has room");
    *wanted.lock().expect("no test fails with it") = Some(connection.key);
    client.wake_cores();
    let result = until("the end of the call", || {
        *ended.lock().expect("no test fails with it")
    });
    assert_eq!(server.injected(), u64::from(result.is_err()));
    Some((result, server.calls_received()))
}

pub(crate) fn an_rdma_read_that_is_struck_loses_the_connection_before_the_call<F: Fabric>() {
    let Some(whole) = long_call::<F>(&[]) else {
        return;
    };
    assert_eq!(whole, (Ok(LongCaller::BYTES), 1));
    let struck = long_call::<F>(&["fail-read:times=1"]);
    assert_eq!(struck, Some((Err(CallError::Disconnected), 0)));
}

pub(crate) fn an_rdma_write_that_is_struck_loses_the_connection_behind_the_call<F: Fabric>() {
    let struck = long_call::<F>(&["fail-write:times=1"]);
    if let Some(struck) = struck {
        assert_eq!(struck, (Err(CallError::Disconnected), 1));
    }
}
