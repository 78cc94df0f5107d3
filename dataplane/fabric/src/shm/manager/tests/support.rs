//! Helpers for the tests: managers, ports and events.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use rpcrdma_testkit::Wait;

use crate::interface::{
    ConnectionId, ListenerId, Manager as _, ManagerError, ManagerEvent, PeerIdentity, RejectReason,
};
use crate::memory::{Arena, ArenaOptions, HugePages};
use crate::shm::files;
use crate::shm::manager::{Manager, ManagerOptions};
use crate::shm::{
    CoreIdentity, Port, PortEvent, PortFiles, PortHandle, PreparedQueuePair, QueuePairNumber,
};

/// The handshake timeout of managers whose peers all answer: no machine is slow enough to reach it.
// TIME: a day is longer than any test may run.
pub(super) const NEVER: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) type Event = ManagerEvent<Port>;

/// An address that no other test uses.
pub(super) fn fresh_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("shm:test-{}.{number}", std::process::id())
}

/// The handle of a small port with `queue_pairs` numbers. The manager needs no more of a port.
pub(super) fn port(queue_pairs: u32) -> PortHandle {
    let options = ArenaOptions {
        bytes: 4096,
        huge_pages: HugePages::Never,
    };
    let arena = Arena::shared(&options).unwrap();
    port_with_arena(queue_pairs, arena.file().unwrap().try_clone().unwrap())
}

/// As [`port`], with `arena` as the file of the arena.
pub(super) fn port_with_arena(queue_pairs: u32, arena: OwnedFd) -> PortHandle {
    static NEXT: AtomicU32 = AtomicU32::new(1000);
    let numbers = ArrayQueue::new(queue_pairs.max(1) as usize);
    for index in 0..queue_pairs {
        numbers.push(QueuePairNumber(index | 7 << 16)).unwrap();
    }
    PortHandle {
        identity: CoreIdentity {
            process: [u8::try_from(std::process::id() % 251).unwrap(); 16],
            port: NEXT.fetch_add(1, Ordering::Relaxed),
        },
        files: Arc::new(PortFiles {
            arena,
            keys: files::create_key_table(1).unwrap().0,
            doorbell: files::create_doorbell().unwrap().0,
            event: files::create_event().unwrap().1,
            external: Vec::new(),
        }),
        numbers: Arc::new(numbers),
        channel_ring_bytes: 8192,
    }
}

/// A manager that gives no peer up, so that a slow machine does not end a handshake.
pub(super) fn manager() -> Manager {
    manager_with(NEVER, ManagerOptions::default().half_open_max)
}

/// Lets a manager listen, and returns it with its address.
pub(super) fn listening(mut manager: Manager) -> (Manager, String) {
    let address = fresh_address();
    manager.listen(&address).unwrap();
    (manager, address)
}

/// The managers of a client and of a server, and the address of the server.
pub(super) fn client_and_server() -> (Manager, Manager, String) {
    let (server, address) = listening(manager());
    (manager(), server, address)
}

pub(super) fn manager_with(timeout: Duration, half_open_max: usize) -> Manager {
    Manager::with_options(ManagerOptions {
        handshake_timeout: timeout,
        half_open_max,
        ..ManagerOptions::default()
    })
    .unwrap()
}

/// The next event. The test fails if none comes.
pub(super) fn next(manager: &mut Manager) -> Event {
    let mut events = Vec::new();
    wait_for_events(manager, &mut events, "an event");
    // `wait` returns several events at once. All but the first go back to the manager, in order.
    let first = events.remove(0);
    manager.ready.splice(0..0, events);
    first
}

/// Lets the manager work until it has an event for us.
pub(super) fn wait_for_events(manager: &mut Manager, events: &mut Vec<Event>, what: &str) {
    let wait = Wait::begin(what);
    loop {
        manager.wait(Duration::from_secs(1), events).unwrap();
        if !events.is_empty() {
            return;
        }
        wait.look(|| format!("{manager:?}"));
    }
}

/// Checks that the manager has no event.
pub(super) fn assert_quiet(manager: &mut Manager) {
    let mut events = Vec::new();
    manager.wait(Duration::ZERO, &mut events).unwrap();
    let told: Vec<_> = events.iter().map(name).collect();
    assert!(told.is_empty(), "unexpected events: {told:?}");
}

pub(super) fn name(event: &Event) -> &'static str {
    match event {
        ManagerEvent::ConnectRequest { .. } => "ConnectRequest",
        ManagerEvent::ConnectReply { .. } => "ConnectReply",
        ManagerEvent::Established { .. } => "Established",
        ManagerEvent::Rejected { .. } => "Rejected",
        ManagerEvent::Failed { .. } => "Failed",
        ManagerEvent::LinkDown { .. } => "LinkDown",
        ManagerEvent::Disconnected { .. } => "Disconnected",
        ManagerEvent::ListenerLost { .. } => "ListenerLost",
        ManagerEvent::ListenerRestored { .. } => "ListenerRestored",
    }
}

macro_rules! expect {
    ($manager:expr, $pattern:pat => $result:expr) => {
        match next($manager) {
            $pattern => $result,
            other => panic!("expected {}, got {}", stringify!($pattern), name(&other)),
        }
    };
}

pub(super) fn expect_request(m: &mut Manager) -> (ConnectionId, ListenerId, PeerIdentity, Vec<u8>) {
    expect!(m, ManagerEvent::ConnectRequest { connection, listener, peer, private_data }
        => (connection, listener, peer, private_data))
}

pub(super) fn expect_reply(m: &mut Manager) -> (ConnectionId, PeerIdentity, Vec<u8>) {
    expect!(m, ManagerEvent::ConnectReply { connection, peer, private_data }
        => (connection, peer, private_data))
}

pub(super) fn expect_established(m: &mut Manager) -> (ConnectionId, Option<PortEvent>) {
    expect!(m, ManagerEvent::Established { connection, port_event } => (connection, port_event))
}

pub(super) fn expect_rejected(m: &mut Manager) -> (ConnectionId, RejectReason, Vec<u8>) {
    expect!(m, ManagerEvent::Rejected { connection, reason, private_data }
        => (connection, reason, private_data))
}

pub(super) fn expect_failed(m: &mut Manager) -> (ConnectionId, ManagerError) {
    expect!(m, ManagerEvent::Failed { connection, error } => (connection, error))
}

pub(super) fn expect_disconnected(m: &mut Manager) -> (ConnectionId, Option<PortEvent>) {
    expect!(m, ManagerEvent::Disconnected { connection, port_event } => (connection, port_event))
}

/// An established connection, with the prepared queue pairs of both ends.
pub(super) struct Standing {
    pub(super) client: ConnectionId,
    pub(super) server: ConnectionId,
    pub(super) client_prepared: PreparedQueuePair,
    pub(super) server_prepared: PreparedQueuePair,
}

/// Establishes one connection, step by step.
pub(super) fn establish(
    client: (&mut Manager, &PortHandle),
    server: (&mut Manager, &PortHandle),
    address: &str,
) -> Standing {
    let asked = client.0.connect(address, client.1, b"ask").unwrap();
    let (accepted, ..) = expect_request(server.0);
    let server_prepared = server.0.prepare(accepted, server.1).unwrap();
    server.0.accept(accepted, b"yes").unwrap();
    let (replied, ..) = expect_reply(client.0);
    assert_eq!(asked, replied);
    let client_prepared = client.0.prepare(asked, client.1).unwrap();
    client.0.confirm(asked).unwrap();
    assert_eq!(expect_established(client.0).0, asked);
    assert_eq!(expect_established(server.0).0, accepted);
    Standing {
        client: asked,
        server: accepted,
        client_prepared,
        server_prepared,
    }
}

/// The prepared queue pairs of both ends of many connections, and the numbers of established ones.
#[derive(Default)]
pub(super) struct Storm {
    pub(super) client_seeds: Vec<PreparedQueuePair>,
    pub(super) server_seeds: Vec<PreparedQueuePair>,
    pub(super) established: [usize; 2],
}

/// Handles the events of both ends until `count` connections are established at both.
pub(super) fn establish_all(
    client: (&mut Manager, &PortHandle),
    server: (&mut Manager, &PortHandle),
    count: usize,
) -> Storm {
    let mut storm = Storm::default();
    let wait = Wait::begin("all connections at both ends");
    while storm.established != [count, count] {
        wait.look(|| format!("{:?}", storm.established));
        let mut events = Vec::new();
        server
            .0
            .wait(Duration::from_millis(1), &mut events)
            .unwrap();
        for event in events.drain(..) {
            match event {
                ManagerEvent::ConnectRequest { connection, .. } => {
                    let prepared = server.0.prepare(connection, server.1).unwrap();
                    storm.server_seeds.push(prepared);
                    server.0.accept(connection, b"").unwrap();
                }
                ManagerEvent::Established { .. } => storm.established[1] += 1,
                other => panic!("server: {}", name(&other)),
            }
        }
        client
            .0
            .wait(Duration::from_millis(1), &mut events)
            .unwrap();
        for event in events.drain(..) {
            match event {
                ManagerEvent::ConnectReply { connection, .. } => {
                    let prepared = client.0.prepare(connection, client.1).unwrap();
                    storm.client_seeds.push(prepared);
                    client.0.confirm(connection).unwrap();
                }
                ManagerEvent::Established { .. } => storm.established[0] += 1,
                other => panic!("client: {}", name(&other)),
            }
        }
    }
    storm
}

pub(super) fn inode(file: &OwnedFd) -> u64 {
    rustix::fs::fstat(file).unwrap().st_ino
}

/// The number of open files of this process.
pub(super) fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
