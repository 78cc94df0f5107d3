//! What a node does when the link of its connections goes down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rpcrdma_control::{
    CoreChoice, ListenOptions, PortAndHandle, PortNeed, Provider, ShmProvider, TargetEvent,
};
use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::{
    ConnectionId, Counted, DeviceLevels, ListenerId, Manager, ManagerError, ManagerEvent,
    RejectReason, SetupError,
};
use rpcrdma_fabric::memory::Arena;
use rpcrdma_fabric::shm;
use rpcrdma_tuning::Profile;

use super::Shm;
use crate::cases::targets::{established, next, soon};
use crate::cases::{listening, options, server};
use crate::support::{Fabric, TestNode, profile, start};

/// The link of all connections of [`Cut`] goes down once.
static IS_CUT: AtomicBool = AtomicBool::new(false);

/// The links of all connections of [`Cut`] are down.
static ARE_CUT: AtomicBool = AtomicBool::new(false);

/// The shm fabric with a link that goes down.
struct Cut;

impl Fabric for Cut {
    type Provider = CutProvider;

    const BAD_ADDRESSES: &[&str] = Shm::BAD_ADDRESSES;

    fn provider(profile: &Profile) -> CutProvider {
        CutProvider(Shm::provider(profile))
    }

    fn address() -> String {
        Shm::address()
    }

    fn this_peer() -> String {
        Shm::this_peer()
    }
}

struct CutProvider(ShmProvider);

impl Provider for CutProvider {
    const VOUCHES_FOR_PEERS: bool = ShmProvider::VOUCHES_FOR_PEERS;

    type Port = shm::Port;
    type Manager = CutManager;

    fn manager(&self) -> Result<CutManager, ManagerError> {
        Ok(CutManager {
            inner: self.0.manager()?,
            established: Vec::new(),
        })
    }

    fn arena(&self, need: &PortNeed) -> Result<Arena, SetupError> {
        self.0.arena(need)
    }

    fn port_in(
        &self,
        arena: Arena,
        need: &PortNeed,
        clock: &Clock,
    ) -> Result<PortAndHandle<Self>, SetupError> {
        self.0.port_in(arena, need, clock)
    }
}

struct CutManager {
    inner: shm::Manager,
    established: Vec<ConnectionId>,
}

impl Manager for CutManager {
    type Port = shm::Port;
    type PortHandle = shm::PortHandle;

    fn listen(&mut self, address: &str) -> Result<ListenerId, ManagerError> {
        self.inner.listen(address)
    }

    fn close_listener(&mut self, listener: ListenerId) {
        self.inner.close_listener(listener);
    }

    fn connect(
        &mut self,
        address: &str,
        port: &shm::PortHandle,
        private_data: &[u8],
    ) -> Result<ConnectionId, ManagerError> {
        self.inner.connect(address, port, private_data)
    }

    fn prepare(
        &mut self,
        connection: ConnectionId,
        port: &shm::PortHandle,
    ) -> Result<shm::PreparedQueuePair, SetupError> {
        self.inner.prepare(connection, port)
    }

    fn accept(&mut self, connection: ConnectionId, data: &[u8]) -> Result<(), ManagerError> {
        self.inner.accept(connection, data)
    }

    fn reject(&mut self, connection: ConnectionId, reason: RejectReason, data: &[u8]) {
        self.inner.reject(connection, reason, data);
    }

    fn confirm(&mut self, connection: ConnectionId) -> Result<(), ManagerError> {
        self.inner.confirm(connection)
    }

    fn disconnect(&mut self, connection: ConnectionId) {
        self.inner.disconnect(connection);
    }

    fn devices(&self) -> Vec<DeviceLevels> {
        self.inner.devices()
    }

    fn cut_connections(&mut self) -> Vec<ConnectionId> {
        match ARE_CUT.load(Ordering::Relaxed) {
            true => self.established.clone(),
            false => Vec::new(),
        }
    }

    fn abandon(&mut self, connection: ConnectionId) {
        self.inner.abandon(connection);
    }

    fn wait(
        &mut self,
        timeout: Duration,
        events: &mut Vec<ManagerEvent<shm::Port>>,
    ) -> Result<(), ManagerError> {
        // TIME: how often the link is looked at; nothing waits for exactly that.
        let waited = self
            .inner
            .wait(timeout.min(Duration::from_millis(10)), events);
        for event in &*events {
            if let ManagerEvent::Established { connection, .. } = event {
                self.established.push(*connection);
            }
        }
        if IS_CUT.swap(false, Ordering::Relaxed) {
            let cut = self.established.drain(..);
            events.extend(cut.map(|connection| ManagerEvent::LinkDown { connection }));
        }
        waited
    }

    fn each_counter(&self, each: &mut dyn FnMut(Counted)) {
        self.inner.each_counter(each);
    }

    fn waker(&self) -> Arc<dyn Fn() + Send + Sync> {
        self.inner.waker()
    }
}

/// A server whose places are all taken gives those away whose link is down, and no others.
#[test]
fn server_has_places_for_clients_that_come_again_by_another_link() {
    let small = Profile {
        connections_max: 2,
        ..profile()
    };
    let server = start::<Cut>(&small, 2);
    let listen = |core| {
        let (address, core) = (Shm::address(), CoreChoice::Core(core));
        let options = ListenOptions {
            core,
            ..listening()
        };
        let listens = server.node.listen(&address, options);
        listens.expect("the name is free").address
    };
    let (address, other) = (listen(0), listen(1));
    let mut client = start::<Shm>(&profile(), 1);
    let connect = |client: &TestNode, at: &str| client.node.connect(at, options());
    let before = [connect(&client, &address), connect(&client, &address)];
    assert!(before.iter().all(Result::is_ok));
    let stays = connect(&client, &other).expect("it has room");
    assert!(connect(&client, &address).is_err(), "it is full");
    for connection in before.into_iter().flatten() {
        client.assert_echo(&connection, b"it stays");
    }
    ARE_CUT.store(true, Ordering::Relaxed);
    let both = [(); 2].map(|()| client.node.keep_connected(&address, options(), soon()));
    let after = both.each_ref().map(established);
    ARE_CUT.store(false, Ordering::Relaxed);
    for connection in &after {
        client.assert_echo(connection, b"by the other link");
    }
    // To end it would have made no room.
    client.assert_echo(&stays, b"on another core");
}

#[test]
fn connection_whose_server_has_another_address_leaves_a_link_that_is_down() {
    let (server, first) = server::<Shm>(&profile(), 1);
    let second = Shm::address();
    let listens = server.node.listen(&second, listening());
    listens.expect("the name is free");
    let mut client = start::<Cut>(&profile(), 1);
    let alone = client.node.keep_connected(&second, options(), soon());
    let stays = established(&alone);
    let both = format!("{first},{}", second.trim_start_matches("shm:"));
    let target = client.node.keep_connected(&both, options(), soon());
    assert_eq!(established(&target).address, first);
    IS_CUT.store(true, Ordering::Relaxed);
    match next(&target) {
        TargetEvent::Lost { retry_after, .. } => assert_eq!(retry_after, Duration::ZERO),
        other => panic!("{other}"),
    }
    let moved = established(&target);
    assert_eq!(moved.address, second);
    client.assert_echo(&moved, b"by the other");
    // Both connections were reported together, and this one has nowhere else to go.
    client.assert_echo(&stays, b"by the device's retries");
}
