//! The conformance suite of the fabric, on the `shm` provider.
#![forbid(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{Manager, QueuePairId};
use rpcrdma_fabric::memory::{Arena, ArenaOptions, HugePages};
use rpcrdma_fabric::rails::{OnRail, Rails, RailsHandle, RailsManager};
use rpcrdma_fabric::shm;
use rpcrdma_testkit::Wait;
use rpcrdma_tests::fabric_conformance::{Extras, Fault, Harness, PortOptions};
use rpcrdma_tests::shm_peer::{Peer, Sizes, message, patient_manager};

/// Calibrating a clock takes time, so there is one for all tests.
fn clock() -> Clock {
    static CLOCK: OnceLock<Clock> = OnceLock::new();
    CLOCK.get_or_init(Clock::new).clone()
}

/// Tests run in threads of one process, in which ports and names are to be told apart.
fn unique() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Less than is usual, so that a long transfer takes many polls.
const COPIED_BYTES_PER_POLL: u32 = 64 << 10;

/// Ports and managers of `shm`, with a clock that can be held and set forward; with `OWN_QUEUES` ports that
/// have no shared receive queues.
struct ShmHarness<const OWN_QUEUES: bool> {
    clock: Clock,
    held: Option<Ticks>,
    passed: Ticks,
}

impl<const OWN_QUEUES: bool> Harness for ShmHarness<OWN_QUEUES> {
    type Port = shm::Port;
    type Manager = shm::Manager;

    fn new() -> Self {
        Self {
            clock: clock(),
            held: None,
            passed: 0,
        }
    }

    fn extras() -> Extras {
        Extras {
            set_delay: true,
            faults: true,
            copied_bytes_per_poll_max: Some(COPIED_BYTES_PER_POLL.into()),
            ..Extras::default()
        }
    }

    fn malformed_address() -> &'static str {
        "no address at all"
    }

    fn port(&mut self, options: PortOptions) -> (shm::Port, shm::PortHandle) {
        self.port_in(arena(options), options)
    }

    fn manager(&mut self) -> shm::Manager {
        patient_manager()
    }

    fn fresh_address(&mut self) -> String {
        format!("shm:conformance-{}-{}", std::process::id(), unique())
    }

    fn now(&self) -> Ticks {
        self.held.unwrap_or_else(|| self.clock.now()) + self.passed
    }

    fn hold(&mut self) {
        self.held = Some(self.clock.now());
    }

    fn release(&mut self) {
        self.held = None;
    }

    fn pass(&mut self, time: Duration) {
        self.passed += self.clock.ticks(time);
    }

    fn fault(&self, queue_pair: QueuePairId, fault: Fault) -> Option<shm::PortEvent> {
        let local = shm::QueuePairNumber(queue_pair.index | queue_pair.generation << 16);
        Some(shm::PortEvent::Inject(match fault {
            Fault::DropConnection => shm::Fault::DropConnection { local },
            Fault::FailNextWork(status) => shm::Fault::FailNextWork { local, status },
            Fault::ReceiverNotReady { polls } => shm::Fault::ReceiverNotReady { polls },
        }))
    }
}

fn arena(options: PortOptions) -> Arena {
    Arena::shared(&ArenaOptions {
        bytes: options.arena_bytes,
        huge_pages: HugePages::Never,
    })
    .expect("an arena of ordinary pages")
}

impl<const OWN_QUEUES: bool> ShmHarness<OWN_QUEUES> {
    fn port_in(&self, arena: Arena, options: PortOptions) -> (shm::Port, shm::PortHandle) {
        let mut config = shm::PortConfig::new(unique(), arena, self.clock.clone());
        config.queue_pairs_max = options.queue_pairs;
        config.send_queue_depth_max = options.send_queue_depth;
        config.windows_max = options.windows;
        config.delay = options.delay;
        config.copy_bytes_per_poll = COPIED_BYTES_PER_POLL;
        config.own_receive_queues = OWN_QUEUES;
        shm::Port::new(config).expect("a port of moderate size")
    }
}

rpcrdma_tests::fabric_conformance!(conformance, ShmHarness<false>, skipped []);

rpcrdma_tests::fabric_conformance!(own_receive_queues, ShmHarness<true>, skipped [
    shared_receive_queue_serves_many_queue_pairs,
    a_failed_receive_harms_no_other_connection,
    key_of_other_queue_pair,
    write_with_key_of_other_queue_pair,
    a_refused_access_harms_no_other_connection,
    invalidate_foreign_key_fails,
    late_message_of_an_old_connection_is_dropped,
    an_ended_connection_harms_no_other,
    many_connections,
    queue_pairs_run_out,
    a_dropped_connection_ends_both_sides
]);

/// Ports with two rails. All that the suite does is done on the second one.
struct RailsHarness<const OWN_QUEUES: bool>(ShmHarness<OWN_QUEUES>);

impl<const OWN_QUEUES: bool> Harness for RailsHarness<OWN_QUEUES> {
    type Port = Rails<shm::Port>;
    type Manager = RailsManager<shm::Manager>;

    const RAILS: u32 = 2;

    fn new() -> Self {
        Self(Harness::new())
    }

    fn extras() -> Extras {
        ShmHarness::<OWN_QUEUES>::extras()
    }

    fn malformed_address() -> &'static str {
        ShmHarness::<OWN_QUEUES>::malformed_address()
    }

    fn port(&mut self, options: PortOptions) -> (Rails<shm::Port>, RailsHandle<shm::PortHandle>) {
        let arena = arena(options);
        let same = arena.for_another_port().expect("a descriptor");
        let [first, last] = [arena, same].map(|arena| self.0.port_in(arena, options));
        let rails = Rails::new(vec![first.0, last.0]).expect("two ports of the same kind");
        (rails, RailsHandle::new([first.1, last.1]))
    }

    fn manager(&mut self) -> Self::Manager {
        RailsManager::new(self.0.manager())
    }

    /// A name with an odd sum of octets, which is of the second rail.
    fn fresh_address(&mut self) -> String {
        let name = self.0.fresh_address();
        let name = name.strip_prefix("shm:").expect("the scheme");
        let sum: u32 = name.bytes().map(u32::from).sum();
        let last = if sum.is_multiple_of(2) { 'a' } else { 'b' };
        format!("shm:{name}{last}")
    }

    fn now(&self) -> Ticks {
        self.0.now()
    }

    fn hold(&mut self) {
        self.0.hold();
    }

    fn release(&mut self) {
        self.0.release();
    }

    fn pass(&mut self, time: Duration) {
        self.0.pass(time);
    }

    fn fault(&self, queue_pair: QueuePairId, fault: Fault) -> Option<OnRail<shm::PortEvent>> {
        // Its index on its rail: without the highest bit, which is that of the second rail.
        let index = queue_pair.index ^ (1 << queue_pair.index.ilog2());
        let it = self.0.fault(
            QueuePairId {
                index,
                ..queue_pair
            },
            fault,
        )?;
        Some(OnRail { rail: 1, it })
    }
}

rpcrdma_tests::fabric_conformance!(rails, RailsHarness<false>, skipped []);

rpcrdma_tests::fabric_conformance!(rails_with_own_receive_queues, RailsHarness<true>, skipped [
    shared_receive_queue_serves_many_queue_pairs,
    a_failed_receive_harms_no_other_connection,
    key_of_other_queue_pair,
    write_with_key_of_other_queue_pair,
    a_refused_access_harms_no_other_connection,
    invalidate_foreign_key_fails,
    late_message_of_an_old_connection_is_dropped,
    an_ended_connection_harms_no_other,
    many_connections,
    queue_pairs_run_out,
    a_dropped_connection_ends_both_sides
]);

fn counter(peer: &Peer, name: &str) -> u64 {
    peer.port
        .counters()
        .into_iter()
        .find_map(|(other, value)| (other == name).then_some(value))
        .unwrap_or_else(|| panic!("there is no counter {name}"))
}

/// A server with that many clients, each of another port, and so of another channel.
fn connected(clients: u32) -> (Peer, Vec<(Peer, QueuePairId)>) {
    let sizes = |port, receives, queue_pairs| Sizes {
        port,
        sends: 4,
        receives,
        queue_pairs,
        hot_channels: 8,
    };
    let mut server = Peer::new(sizes(unique(), 128, 128));
    let address = format!("shm:idle-{}-{}", std::process::id(), unique());
    server.manager.listen(&address).expect("a fresh name");
    let connecting = std::thread::spawn(move || {
        let connect = |_| {
            let mut client = Peer::new(sizes(unique(), 4, 1));
            let queue_pair = client.connect(&address);
            (client, queue_pair)
        };
        (0..clients).map(connect).collect()
    });
    while !connecting.is_finished() {
        server.manage(Duration::from_millis(1));
    }
    let clients = connecting.join().expect("the clients connect");
    server.manage(Duration::ZERO);
    (server, clients)
}

/// What a poll does does not grow with the channels that are idle: some are looked at always,
/// one more now and then, and the others when they ring.
#[test]
fn a_poll_looks_at_few_channels_however_many_are_idle() {
    let polls = 3200;
    let mut swept = Vec::new();
    for count in [16, 100] {
        let (mut server, mut clients) = connected(count);
        for _ in 0..polls {
            server.turn();
        }
        let before: Vec<u64> = ["sweeps", "doorbells_in"]
            .iter()
            .map(|name| counter(&server, name))
            .collect();
        for _ in 0..polls {
            server.turn();
        }
        swept.push(counter(&server, "sweeps") - before[0]);
        assert_eq!(
            counter(&server, "doorbells_in"),
            before[1],
            "a channel that nobody rang for was looked at"
        );
        // Each of them is heard all the same, whether it is looked at always or has to ring.
        for (client, queue_pair) in &mut clients {
            client
                .send_copied(*queue_pair, &[1; 32])
                .expect("the connection stands");
            client.turn();
        }
        let wait = Wait::begin("a message of each");
        while server.arrivals.len() < clients.len() {
            wait.look(|| format!("{} of {count}", server.arrivals.len()));
            server.turn();
        }
    }
    assert!(swept[0] > 0, "cold channels are never swept");
    assert_eq!(
        swept[0], swept[1],
        "the work of a poll grows with idle channels"
    );
}

/// What a peer published before it died arrives, although the news of its death is older than the
/// look at its ring; only then does the connection end.
#[test]
fn messages_published_by_a_dead_peer_arrive() {
    let (mut server, mut clients) = connected(1);
    let (mut client, queue_pair) = clients.pop().expect("one client");
    // More than one poll yields.
    let messages: Vec<Vec<u8>> = (0..40)
        .map(|number| message(1, number, if number % 20 == 10 { 3000 } else { 64 }))
        .collect();
    for data in &messages {
        let posted = if data.len() < 512 {
            client.send_copied(queue_pair, data)
        } else {
            client.send_registered(queue_pair, data)
        };
        posted.expect("there is room for forty");
    }
    client.port.flush_sends();
    drop(client);
    let wait = Wait::begin("the news of the death");
    while server.lost.is_empty() {
        wait.look(String::new);
        server.manage(Duration::from_millis(10));
    }
    let wait = Wait::begin("the end of the connection");
    while server.ended.is_empty() {
        wait.look(|| format!("{} messages", server.arrivals.len()));
        server.turn();
    }
    let arrived: Vec<Vec<u8>> = server.arrivals.drain(..).map(|(_, data)| data).collect();
    assert!(
        arrived == messages,
        "{} of {} messages arrived",
        arrived.len(),
        messages.len()
    );
    server.bury();
    server.turn();
    server.reckon();
}
