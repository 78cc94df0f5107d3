//! A core over a port that watches what it is given, or that reports completions in another order.
//!
//! * A Receive is there before its credit is granted, since the Send that grants it may be answered at once.
//! * On an RDMA device all that has completed comes in one batch, and the end of a connection some polls later.

mod support;

use std::cell::Cell;
use std::time::Duration;

use rpcrdma_engine::CoreConfig;
use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::{
    Access, Completion, CompletionBatch, CompletionKind, Gather, PortPoll, PortReceives, PortSends,
    PortSetup, PortWindows, PostError, QueuePairId, Receive, RemoteAddress, WorkId,
};
use rpcrdma_fabric::shm;

use rpcrdma_protocol::connection::Versions;
use rpcrdma_protocol::v2::ReverseRequestSupport;
use rpcrdma_protocol::v2::connection::Role;
use support::bulk::{BulkApp, TAKE, bulk_config};
use support::fabric::{Fabric, Polled, PreparedQueuePair, Shm, Sizes, Told};
use support::raw::{Attack, CREDIT, words};
use support::{ECHO, NULL, PROGRAM, Pair, VERSION, pattern};

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
        post_send_copied post_send post_write probe next_returned
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

fn word(bytes: &[u8]) -> u32 {
    bytes[..4]
        .try_into()
        .map(u32::from_be_bytes)
        .expect("four octets")
}
