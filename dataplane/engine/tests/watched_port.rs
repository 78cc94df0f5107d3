//! A core over a port that watches what it is given, or that reports completions in another order.
//!
//! * A Receive is there before its credit is granted, since the Send that grants it may be answered at once.
//! * A device answers probes of silent paths, or does not.
//! * On an RDMA device all that has completed comes in one batch, and the end of a connection some polls later.

mod support;

use std::cell::Cell;
use std::time::Duration;

use rpcrdma_engine::{CallError, CloseReason, CoreConfig};
use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::{
    Access, Completion, CompletionBatch, CompletionKind, Gather, PortPoll, PortReceives, PortSends,
    PortSetup, PortWindows, PostError, QueuePairId, Receive, RemoteAddress, Status, WorkId,
};
use rpcrdma_fabric::shm;

use rpcrdma_protocol::connection::Versions;
use rpcrdma_protocol::v2::ReverseRequestSupport;
use rpcrdma_protocol::v2::connection::Role;
use support::bulk::{BulkApp, TAKE, bulk_config};
use support::fabric::{Fabric, Polled, PreparedQueuePair, Shm, Sizes, Told};
use support::raw::{Attack, CREDIT, words};
use support::{ECHO, NEVER, NULL, PROGRAM, Pair, VERSION, pattern};

const FORM: support::Form = support::Form::SharedQueue;
type TestFabric = Watched;

/// Shared memory, by ports that see what is flushed.
#[derive(Debug)]
struct Watched;

impl Fabric for Watched {
    type Port = WatchedPort;
    type Handle = shm::PortHandle;
    type Joint = shm::Joint;

    const TURN: Duration = Shm::TURN;
    const WORKS_BY_ITSELF: bool = Shm::WORKS_BY_ITSELF;
    const ONE_CASE_IN: u32 = Shm::ONE_CASE_IN;
    const HAS_PROBES: bool = Shm::HAS_PROBES;
    const SKIPPED: &'static [(&'static str, &'static str)] = Shm::SKIPPED;

    fn port(number: u32, sizes: &Sizes, clock: &Clock) -> (WatchedPort, shm::PortHandle) {
        let (port, handle) = Shm::port(number, sizes, clock);
        let port = WatchedPort {
            port,
            receives_staged: 0,
            flushes_with_receives: 0,
            reads_at_once: Cell::new(0),
            reads_are_refused: Cell::new(false),
            kept_back: Vec::new(),
            probes: Cell::new(Probes::Refused),
            probed: Vec::new(),
            oldest_work: Cell::new(None),
        };
        (port, handle)
    }

    fn join(
        a: (&WatchedPort, &shm::PortHandle),
        b: (&WatchedPort, &shm::PortHandle),
    ) -> shm::Joint {
        Shm::join((&a.0.port, a.1), (&b.0.port, b.1))
    }

    fn prepared_pair(
        joint: &mut shm::Joint,
        a: &shm::PortHandle,
        b: &shm::PortHandle,
    ) -> [PreparedQueuePair<Self>; 2] {
        Shm::prepared_pair(joint, a, b)
    }

    fn port_events(
        joint: &mut shm::Joint,
        a: &shm::PortHandle,
        b: &shm::PortHandle,
    ) -> [Option<Told<Self>>; 2] {
        Shm::port_events(joint, a, b)
    }

    fn is_under_way(joint: &shm::Joint, polled: Polled) -> bool {
        Shm::is_under_way(joint, polled)
    }

    fn work() {
        Shm::work();
    }

    fn broken_link() -> Told<Self> {
        Shm::broken_link()
    }
}

/// A port that does what another one does.
#[derive(Debug)]
struct WatchedPort {
    port: shm::Port,
    /// Receives posted since the last time that they were flushed.
    receives_staged: u32,
    /// How often there were any to flush.
    flushes_with_receives: u32,
    /// RDMA Reads whose completions are reported together, and the end of the connection in the poll behind them; 0:
    /// as they come.
    reads_at_once: Cell<usize>,
    /// It posts no RDMA Reads, as a port on iWARP, or for a peer that agreed to none.
    reads_are_refused: Cell<bool>,
    /// What is still to be reported.
    kept_back: Vec<Completion>,
    probes: Cell<Probes>,
    /// Probes that are to be answered.
    probed: Vec<(QueuePairId, WorkId)>,
    /// What it says of any queue pair.
    oldest_work: Cell<Option<u64>>,
}

/// What becomes of the probes of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probes {
    /// It has none, as shared memory.
    Refused,
    /// They are acknowledged.
    Answered,
    /// Nothing comes back.
    Unanswered,
    /// The queue has no place for one.
    QueueFull,
}

impl WatchedPort {
    /// Takes the ends of RDMA Reads and of connections out of the batch, until there are enough of the first.
    fn keep_back(&mut self, batch: &mut CompletionBatch) {
        let is_read = |it: &Completion| matches!(it.kind, CompletionKind::Read(..));
        let came: Vec<_> = batch.drain().collect();
        for completion in came {
            if is_read(&completion) || matches!(completion.kind, CompletionKind::Disconnected) {
                self.kept_back.push(completion);
            } else {
                batch.push(completion).expect("it came out of the batch");
            }
        }
        let reads = self.kept_back.iter().filter(|it| is_read(it)).count();
        let is_due = |it: &Completion| is_read(it) == (reads != 0);
        if reads != 0 && reads < self.reads_at_once.get() {
            return;
        }
        for completion in self.kept_back.extract_if(.., |it| is_due(it)) {
            batch.push(completion).expect("few of them");
        }
    }
}

impl PortSetup for WatchedPort {
    type PreparedQueuePair = shm::PreparedQueuePair;
    type PortEvent = shm::PortEvent;

    rpcrdma_testkit::pass_on! {
        attributes memory carve carve_untouched page_report create_receive_queue create_receive
        adopt_queue_pair handle_event disconnect destroy_queue_pair
    }
}

impl PortReceives for WatchedPort {
    rpcrdma_testkit::pass_on! {
        receives_posted received received_segment replace_segment
    }

    fn post_receive(&mut self, receive: Receive) -> Option<Receive> {
        self.receives_staged += 1;
        self.port.post_receive(receive)
    }

    fn flush_receives(&mut self) {
        self.flushes_with_receives += u32::from(self.receives_staged != 0);
        self.receives_staged = 0;
        self.port.flush_receives();
    }
}

impl PortSends for WatchedPort {
    rpcrdma_testkit::pass_on! {
        post_send_copied post_send post_write next_returned
    }

    fn probe(&mut self, queue_pair: QueuePairId, work: WorkId) -> Result<(), PostError> {
        match self.probes.get() {
            Probes::Refused => self.port.probe(queue_pair, work),
            Probes::Answered => {
                self.probed.push((queue_pair, work));
                Ok(())
            }
            Probes::Unanswered => Ok(()),
            Probes::QueueFull => Err(PostError::QueueFull),
        }
    }

    fn oldest_work(&mut self, _: QueuePairId) -> Option<u64> {
        self.oldest_work.get()
    }

    fn post_read(
        &mut self,
        queue_pair: QueuePairId,
        list: Gather,
        from: RemoteAddress,
        work: WorkId,
    ) -> Result<(), (PostError, Gather)> {
        if self.reads_are_refused.get() {
            return Err((PostError::Unsupported, list));
        }
        self.port.post_read(queue_pair, list, from, work)
    }

    fn flush_sends(&mut self) {
        let staged = self.receives_staged;
        assert_eq!(
            staged, 0,
            "Sends leave before the Receives that they may grant"
        );
        self.port.flush_sends();
    }
}

impl PortWindows for WatchedPort {
    rpcrdma_testkit::pass_on! {
        bind_window invalidate_window close_window window_has_key
    }
}

impl PortPoll for WatchedPort {
    rpcrdma_testkit::pass_on! {
        prepare_to_park waits_unnotified event unpark receiver_not_ready counters
    }

    fn poll(&mut self, now: Ticks, batch: &mut CompletionBatch) -> bool {
        let moved = self.port.poll(now, batch);
        for (queue_pair, work) in self.probed.drain(..) {
            let acknowledged = Completion {
                queue_pair,
                status: Status::Success,
                kind: CompletionKind::Write(work),
            };
            batch.push(acknowledged).expect("few of them");
        }
        if self.reads_at_once.get() != 0 {
            self.keep_back(batch);
        }
        moved
    }
}

#[test]
fn receives_are_flushed_before_the_sends_that_grant_them() {
    let mut pair = Pair::new(&CoreConfig::default());
    let (connection, _) = pair.connect();
    for (tag, bytes) in (0..100).zip((8..).step_by(8)) {
        let application = pair.client.app_mut();
        application.want(connection, ECHO, &pattern(bytes, tag), tag);
    }
    pair.until("all replies", |pair| pair.client.app().ended.len() == 100);
    for side in [&pair.client, &pair.server] {
        assert_ne!(side.core.port().flushes_with_receives, 0);
    }
}

/// One RDMA Read of a call brings its bytes and the next one fails, and both are known before the end of the connection:
/// the service is not called, with what stood in the second buffer before.
#[test]
fn a_call_is_not_served_when_one_of_its_reads_has_failed() {
    let config = CoreConfig {
        connections_max: 2,
        bulk_buffers: 16,
        bulk_buffer_bytes: 4096,
        ..bulk_config()
    };
    // A segment fills one buffer. So the second Read need not wait for the first.
    let bytes = config.bulk_buffer_bytes;
    let mut attack = Attack::against(Role::Server, false, &config, BulkApp::default());
    attack.agree();
    attack.victim.core.port().reads_at_once.set(2);
    let raw = &mut attack.raw;
    let (queue_pair, buffer) = (raw.queue_pair.expect("planted"), raw.pool.take());
    let buffer = buffer.expect("a buffer");
    let access = Access {
        remote_read: true,
        remote_write: false,
    };
    let window = raw
        .port
        .bind_window(queue_pair, buffer, bytes, access)
        .expect("a window");
    let (good, at) = (window.remote().key.0, window.remote().offset);
    // An item of two segments: the second one's key names nothing.
    let [high, low] = [at >> 32, at & 0xffff_ffff].map(|it| u32::try_from(it).expect("a half"));
    let lists = [
        1, 40, good, bytes, high, low, 1, 40, 77, bytes, 0, 0, 0, 0, 0,
    ];
    let rpc = [2, 0, 2, PROGRAM, VERSION, TAKE, 0, 0, 0, 0];
    let call = [words(&[2, 2, CREDIT, 0, 0, 0]), words(&lists), words(&rpc)].concat();
    attack.send(&call);
    attack.turns(30);
    let counters = attack.victim.counters();
    assert_eq!(counters.rdma_reads, 2);
    assert_eq!(counters.bulk_bytes_in, u64::from(bytes), "of the first");
    assert_eq!(counters.calls_received, 1, "the null call alone");
    assert!(attack.raw.disconnected, "its key was wrong");
    assert_eq!(attack.victim.closed.len(), 1);
    assert_eq!(attack.victim.core.bulk_buffers_free(), 16);
}

/// A connection with a read depth of 0: a call that would have to be read is refused, and keeps nothing.
#[test]
fn a_call_that_cannot_be_read_is_refused_and_leaves_nothing_behind() {
    let config = CoreConfig {
        connections_max: 2,
        bulk_buffers: 16,
        bulk_buffer_bytes: 4096,
        bulk_calls: 2,
        ..bulk_config()
    };
    // Read chunks of two buffers, no Write list, no Reply chunk.
    let lists = [1, 40, 77, 8192, 0, 0, 0, 0, 0];
    let call = |xid: u32, version: u32, procedure: u32, lists: &[u32]| {
        let prefix = match version {
            1 => vec![xid, 1, 32, 0],
            _ => vec![xid, 2, CREDIT, 0, 0, 0],
        };
        let rpc = [xid, 0, 2, PROGRAM, VERSION, procedure, 0, 0, 0, 0];
        [words(&prefix), words(lists), words(&rpc)].concat()
    };
    // SYSTEM of version 2, and ERR_CHUNK of version 1.
    for (version, is_refused) in [(2, [4, 1, 10]), (1, [4, 2, 0])] {
        let (level, app) = (ReverseRequestSupport::None, BulkApp::default());
        let versions = Versions::Both;
        let mut attack = Attack::speaking(versions, level, Role::Server, &config, app);
        attack.victim.core.port().reads_are_refused.set(true);
        // More often than there are slots.
        for xid in (2..22).step_by(2) {
            attack.send(&call(xid, version, TAKE, &lists));
            attack.send(&call(xid + 1, version, NULL, &[0, 0, 0]));
            let [refused, reply] = &attack.take()[..] else {
                panic!("version {version}: an error and a reply");
            };
            let words: Vec<_> = refused.chunks_exact(4).map(word).collect();
            assert_eq!(words[..2], [xid, version], "version {version}");
            let wanted = &is_refused[..words.len() - 3];
            assert_eq!(words[3..], *wanted, "version {version}");
            assert_eq!(word(reply), xid + 1);
        }
        assert_eq!(attack.victim.closed, []);
        assert_eq!(attack.victim.counters().rdma_reads, 0);
        assert_eq!(attack.victim.core.bulk_buffers_free(), 16);
        let served = attack.victim.app().taken.len();
        assert_eq!(served, 10, "the null calls alone");
    }
}

/// A visit of a watched path, of which there are four before it is suspected.
const VISIT: Duration = Duration::from_millis(50);

/// Nothing but a dead path ends a connection or a call.
fn endless() -> CoreConfig {
    CoreConfig {
        call_timeout: Duration::from_secs(1_000_000),
        keep_alive_interval: Duration::ZERO,
        stall_timeout: Duration::ZERO,
        ..CoreConfig::default()
    }
}

/// A client with one call that its service answers late or never, and another path to the server.
fn waiting_client(probes: Probes) -> Pair {
    let mut pair = Pair::new(&endless());
    pair.has_other_path = true;
    let (client, _) = pair.connect();
    pair.client.core.port().probes.set(probes);
    pair.client.app_mut().want(client, NEVER, &[], 1);
    pair.until("the call", |pair| pair.server.app().never.len() == 1);
    pair
}

fn pass_visits(pair: &mut Pair, visits: u32) {
    for _ in 0..visits {
        pair.pass_at_the_client(VISIT);
        pair.client_turns(5);
    }
}

#[test]
fn path_by_which_no_probe_is_answered_ends_its_connection_within_half_a_second() {
    for probes in [Probes::Unanswered, Probes::QueueFull] {
        let mut pair = waiting_client(probes);
        // The first visit notes where it begins.
        pass_visits(&mut pair, 4);
        assert_eq!(pair.client.counters().probes_sent, 0);
        pass_visits(&mut pair, 4);
        let sent = if probes == Probes::Unanswered { 2 } else { 0 };
        assert_eq!(pair.client.counters().probes_sent, sent);
        assert_eq!(pair.client.closed, []);
        pass_visits(&mut pair, 2);
        let reason = CloseReason::PathDead { silent_ms: 400 };
        assert_eq!(
            reason.to_string(),
            "the path to the peer was silent for 400 ms, also to a probe"
        );
        let connection = pair.client.ready[0];
        assert_eq!(pair.client.closed, [(connection, reason)]);
        let ended = pair.client.app().result(1);
        assert_eq!(ended, Some(&Err(CallError::Disconnected)));
        assert_eq!(pair.client.counters().paths_dead, 1);
        // A connection that takes its place is not judged by it.
        pair.has_other_path = false;
        let (next, _) = pair.connect();
        pair.client.app_mut().want(next, NEVER, &[], 2);
        pass_visits(&mut pair, 40);
        assert_eq!(pair.client.closed.len(), 1);
        assert_eq!(pair.client.counters().probes_sent, sent);
    }
}

#[test]
fn slow_service_costs_a_probe_five_times_a_second_and_no_connection() {
    let mut pair = waiting_client(Probes::Answered);
    pass_visits(&mut pair, 400);
    let sent = pair.client.counters().probes_sent;
    assert!((60..=100).contains(&sent), "{sent} in 20 s");
    assert_eq!(pair.client.closed, []);
}

#[test]
fn port_without_probes_keeps_its_connection() {
    let mut pair = waiting_client(Probes::Refused);
    pass_visits(&mut pair, 400);
    assert_eq!(pair.client.closed, []);
    assert_eq!(pair.client.counters().probes_sent, 0);
}

/// A probe waits behind bulk data that leaves slowly.
#[test]
fn work_that_is_done_shows_that_a_path_works_and_work_that_is_posted_does_not() {
    let mut pair = waiting_client(Probes::Unanswered);
    for name in 0..100 {
        pair.client.core.port().oldest_work.set(Some(name));
        pass_visits(&mut pair, 6);
        assert_eq!(pair.client.closed, [], "after {name} that were done");
    }
    pass_visits(&mut pair, 4);
    assert_eq!(pair.client.closed.len(), 1);

    let mut pair = waiting_client(Probes::Unanswered);
    pass_visits(&mut pair, 6);
    pair.client.core.port().oldest_work.set(Some(1));
    pass_visits(&mut pair, 4);
    assert_eq!(pair.client.closed.len(), 1);
}

#[test]
fn path_by_which_no_reply_is_awaited_is_not_probed() {
    let mut pair = Pair::new(&CoreConfig::default());
    pair.has_other_path = true;
    let (client, _) = pair.connect();
    pair.client.core.port().probes.set(Probes::Unanswered);
    for tag in 0..20 {
        assert_eq!(pair.ask(client, ECHO, &[7; 8], tag), Ok(vec![7; 8]));
        pass_visits(&mut pair, 10);
    }
    assert_eq!(pair.client.counters().probes_sent, 0);
    assert_eq!(pair.client.closed, []);
}

/// A probe is lost, and its device repeats it after longer than a path has. The second one makes the peer ask for the first.
#[test]
fn lost_probe_costs_no_connection() {
    let mut pair = waiting_client(Probes::Unanswered);
    for _ in 0..20 {
        let before = pair.client.counters().probes_sent;
        while pair.client.counters().probes_sent == before {
            pass_visits(&mut pair, 1);
        }
        pair.client.core.port().probes.set(Probes::Answered);
        pass_visits(&mut pair, 3);
        pair.client.core.port().probes.set(Probes::Unanswered);
    }
    assert_eq!(pair.client.closed, []);
}

/// Its slot is free again before the path is judged.
#[test]
fn calls_with_a_short_time_limit_find_a_dead_path() {
    let mut pair = Pair::new(&CoreConfig {
        call_timeout: Duration::from_millis(10),
        ..endless()
    });
    pair.has_other_path = true;
    let (client, _) = pair.connect();
    pair.client.core.port().probes.set(Probes::Unanswered);
    for tag in 0..3 {
        pair.client.app_mut().want(client, NEVER, &[], tag);
        pass_visits(&mut pair, 4);
    }
    assert_eq!(pair.client.closed.len(), 1);
}

/// Each of those that end gives its place on the list to the last one.
#[test]
fn of_many_watched_connections_those_are_left_whose_paths_are_dead() {
    let mut pair = Pair::new(&CoreConfig {
        connections_max: 40,
        ..endless()
    });
    pair.has_other_path = true;
    pair.client.core.port().probes.set(Probes::Unanswered);
    let mut tag = 0;
    for round in 1..5_usize {
        // The server learns of the ends.
        pair.turns(200);
        while pair.client.ready.len() - pair.client.closed.len() < 40 {
            pair.connect();
        }
        let open = pair.client.ready.iter().copied();
        let closed: Vec<_> = pair.client.closed.iter().map(|(key, _)| *key).collect();
        let open: Vec<_> = open.filter(|key| !closed.contains(key)).collect();
        for key in open.iter().step_by(round) {
            tag += 1;
            pair.client.app_mut().want(*key, NEVER, &[], tag);
        }
        pass_visits(&mut pair, 12);
        let ended = pair.client.closed.len() - closed.len();
        assert_eq!(ended, open.len().div_ceil(round), "round {round}");
    }
    // Those that take their places, and have no other path, are not judged.
    pair.has_other_path = false;
    pair.turns(200);
    let (ready, closed) = (pair.client.ready.len(), pair.client.closed.len());
    while pair.client.ready.len() - closed < 40 {
        pair.connect();
    }
    for key in pair.client.ready.split_off(ready) {
        tag += 1;
        pair.client.app_mut().want(key, NEVER, &[], tag);
    }
    pass_visits(&mut pair, 40);
    assert_eq!(pair.client.closed.len(), closed);
}

/// What came while the core did not run is handled before it judges.
#[test]
fn core_that_did_not_run_blames_no_path() {
    let mut pair = waiting_client(Probes::Unanswered);
    for _ in 0..5 {
        pair.pass_at_the_client(Duration::from_secs(1000));
        pair.client_turns(5);
    }
    assert_eq!(pair.client.closed, []);
}

#[test]
fn client_whose_configuration_watches_no_path_sends_no_probe() {
    let mut pair = Pair::new(&CoreConfig {
        path_suspect_after: Duration::ZERO,
        ..CoreConfig::default()
    });
    pair.has_other_path = true;
    let (client, _) = pair.connect();
    pair.client.core.port().probes.set(Probes::Unanswered);
    pair.client.app_mut().want(client, NEVER, &[], 1);
    pass_visits(&mut pair, 100);
    assert_eq!(pair.client.counters().probes_sent, 0);
    assert_eq!(pair.client.closed, []);
}

fn word(bytes: &[u8]) -> u32 {
    bytes[..4]
        .try_into()
        .map(u32::from_be_bytes)
        .expect("four octets")
}
