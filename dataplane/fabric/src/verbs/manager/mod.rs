//! The connection manager of `verbs`: RDMA-CM, with queue pairs whose states this crate changes.
//!
//! The manager owns one event channel and runs in the control thread. A connection is an
//! identifier of RDMA-CM without a queue pair. The manager creates the queue pair for the port that
//! will own it, changes its state, and hands it over in a [`PreparedQueuePair`]. The core adopts it
//! before `accept` or `confirm`, so that the first message of the peer finds it in its port.
//!
//! ```text
//! client: resolve address and path, make the queue pair (Init), request
//!         reply:   prepare takes it to Ready to Send; confirm sends the "ready to use"
//! server: request: prepare makes the queue pair and takes it to Ready to Send; accept replies
//! ```
//!
//! # Failures
//!
//! * Before the application knows its peer: [`ManagerEvent::Failed`] or
//!   [`ManagerEvent::Rejected`] at a client, no event at a server. A client tries all addresses of
//!   a host name in turn.
//! * After `ConnectRequest` or `ConnectReply`, at any stage: [`ManagerEvent::Disconnected`],
//!   with a port event for the core when a queue pair was prepared. The removal of the device and the
//!   move of an address to another device end a connection in the same way.
//! * A peer or a network that does not answer within [`ManagerOptions::handshake_timeout`] loses the
//!   connection.
//!
//! A rejection carries our reason at the end of its private data. A rejection by another program or
//! by the peer's connection manager becomes an error with a text.
//!
//! On iWARP the reply itself establishes the connection, and the kernel changes the states of the
//! queue pair. There, calls that wait for the peer's TCP run in separate threads.

mod blocking_calls;
mod client;
mod connection;
mod device;
mod drive;
mod event_loop;
mod host_names;
mod machine;
mod negotiate;
mod options;
mod pair;
mod server;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::interface::{
    ChoosePort, ConnectionId, Counted, DeviceLevels, ListenerId, Manager as ManagerInterface,
    ManagerError, ManagerEvent, PeerIdentity, QueuePairId, RejectReason, SetupError, counters,
};
use crate::verbs::cm::channel::Channel;
use crate::verbs::cm::event::EventKind;
use crate::verbs::cm::id::Id;
use crate::verbs::events::DeviceEvent;
use crate::verbs::{Context, Port, PortHandle, PreparedQueuePair};
use crate::waiting::Waiting;
pub use device::{check_free, device_at, device_towards};
pub use options::ManagerOptions;
pub(in crate::verbs) use pair::connected_pair;

use blocking_calls::BlockingCalls;
use connection::{Connection, number_of};
use host_names::HostNames;
use machine::Stage;

/// The connection manager of the `verbs` provider; one control thread owns it.
pub struct Manager {
    options: ManagerOptions,
    waiting: Waiting,
    listeners: HashMap<u64, Listener>,
    connections: HashMap<u64, Connection>,
    /// Connections by port number and queue pair, because ports name them so.
    by_queue_pair: HashMap<(usize, QueuePairId), u64>,
    /// The ports that connections were made for, by number.
    ports: HashMap<usize, PortHandle>,
    /// The devices of these ports. Index `i` has the number `FIRST_DEVICE + i` in `waiting`.
    devices: Vec<Device>,
    /// The device (its place in memory) that led to an address when it was last resolved.
    devices_of_addresses: HashMap<String, usize>,
    host_names: HostNames,
    blocking_calls: BlockingCalls,
    /// Events that the next wait delivers.
    ready: Vec<ManagerEvent<Port>>,
    /// The last number given to a listener or a connection.
    last_number: u64,
    /// Hashes an address to the key of its peer. The seed is random in each process, so that nobody
    /// can search for an address whose key collides with another's.
    peer_keys: RandomState,
    counters: Counters,
    /// Events of RDMA-CM, by their rows.
    cm_events: [u64; EventKind::ROWS.len()],
    /// The last field, so that it is dropped after the identifiers on it.
    channel: Arc<Channel>,
}

/// The number of the event channel in `waiting`.
const CHANNEL: u64 = 0;
/// The number of the first device in `waiting`; the other devices follow.
const FIRST_DEVICE: u64 = 1;

/// How long a link may be down before [`ManagerEvent::LinkDown`]. A shorter flap costs the retries of the device, and no
/// connection.
const LINK_DOWN_HOLD: Duration = Duration::from_millis(50);

/// How often a link that is down is looked at: there may be another one then.
const LINK_DOWN_AGAIN: Duration = Duration::from_millis(250);

/// Addresses whose devices are remembered; beyond that, all are forgotten. A client has a few, and each costs some 100 bytes.
const ADDRESSES_REMEMBERED: usize = 4096;

/// A device of the ports.
#[derive(Debug)]
struct Device {
    context: Arc<Context>,
    /// How often a link of it went down, as far as the manager knows.
    downs: u64,
    /// The number of its timer.
    number: u64,
    /// When its links are looked at.
    timer: Option<Instant>,
    /// The ports whose links were down at the last look.
    down: Vec<u8>,
}

impl Device {
    fn has(&self, connection: &Connection) -> bool {
        let mut id = connection.id.iter();
        id.any(|id| id.context() == self.context.raw())
    }

    /// Whether a connection uses a port of which the link was down.
    fn has_cut(&self, connection: &Connection) -> bool {
        let mut id = connection.id.iter();
        id.any(|id| id.context() == self.context.raw() && self.down.contains(&id.port()))
    }
}

struct Listener {
    /// `None` while its device is removed.
    id: Option<Id>,
    /// Where it listens, with the port that the system chose.
    address: SocketAddr,
    /// When it is tried again.
    timer: Option<Instant>,
}

counters! {
    /// Counters of the manager. Those of events are rows of their tables.
    struct Counters {
        /// Connections established.
        connections_established,
        /// Connects that the peer rejected.
        connects_rejected_by_peer,
        /// Connects that failed.
        connects_failed,
        /// Handshakes that took too long.
        handshakes_timed_out,
        /// Connections that the peer or the fabric ended.
        connections_lost,
        /// Connections that were left because this end's link was down: their server had another address, or another client needed
        /// their place.
        connections_abandoned,
        /// Listeners that lost their device.
        listeners_lost,
        /// Listeners whose device came back.
        listeners_restored,
    }
}

impl std::fmt::Debug for Manager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Manager")
            .field("options", &self.options)
            .field("listeners", &self.listeners.len())
            .field("connections", &self.connections.len())
            .field("devices", &self.devices)
            .finish_non_exhaustive()
    }
}

impl Manager {
    /// A manager with the default options.
    ///
    /// # Errors
    /// When librdmacm or the kernel's RDMA-CM is missing, or this user may not use it. The error says
    /// what to do.
    pub fn new() -> Result<Self, ManagerError> {
        Self::with_options(ManagerOptions::default())
    }

    /// A manager with options of your own.
    ///
    /// # Errors
    /// As [`Manager::new`].
    pub fn with_options(options: ManagerOptions) -> Result<Self, ManagerError> {
        let system = |doing: &str| {
            let doing = doing.to_owned();
            move |source| ManagerError::System { doing, source }
        };
        let channel = Channel::open().map_err(system("opening RDMA-CM's event channel"))?;
        let files = || -> io::Result<_> {
            let waiting = Waiting::new()?;
            waiting.watch(&*channel, CHANNEL)?;
            Ok(waiting)
        };
        let waiting = files().map_err(system("setting up the connection manager"))?;
        Ok(Self {
            options,
            host_names: HostNames::new(waiting.waker()),
            blocking_calls: BlockingCalls::new(waiting.waker()),
            waiting,
            listeners: HashMap::new(),
            connections: HashMap::new(),
            by_queue_pair: HashMap::new(),
            ports: HashMap::new(),
            devices: Vec::new(),
            devices_of_addresses: HashMap::new(),
            ready: Vec::new(),
            last_number: 0,
            peer_keys: RandomState::new(),
            counters: Counters::default(),
            cm_events: [0; EventKind::ROWS.len()],
            channel,
        })
    }

    /// Counters as (name, value), for reports, and the `connections` known now, including those that wait for the peer to
    /// answer a disconnect.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = vec![("connections", self.connections.len() as u64)];
        ManagerInterface::each_counter(self, &mut |it| all.push((it.name, it.value)));
        all
    }

    fn new_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// The identity of the peer at `address`. The limit per peer counts hosts, so the key leaves the
    /// TCP port out.
    fn peer(&self, address: Option<SocketAddr>) -> PeerIdentity {
        let ip = address.map(|address| address.ip().to_canonical());
        PeerIdentity {
            key: ip.map_or(0, |ip| self.peer_keys.hash_one(ip)),
            address: ip,
            name: address.map_or_else(
                || "an unknown address".to_owned(),
                |address| address.to_string(),
            ),
            arrival: 0,
        }
    }

    /// Registers a port: its failed queue pairs will be disconnected, and the events of its device
    /// will reach it.
    fn know(&mut self, port: &PortHandle) -> io::Result<()> {
        let number = number_of(port);
        if self.ports.contains_key(&number) {
            return Ok(());
        }
        let context = port.context();
        let mut devices = self.devices.iter();
        if !devices.any(|known| Arc::ptr_eq(&known.context, context)) {
            let number = FIRST_DEVICE + self.devices.len() as u64;
            self.waiting.watch(context.event_descriptor(), number)?;
            let device = Device {
                context: Arc::clone(context),
                downs: context.links_down(),
                number: self.new_number(),
                timer: None,
                down: Vec::new(),
            };
            self.devices.push(device);
        }
        port.set_waker(self.waiting.waker());
        self.ports.insert(number, port.clone());
        Ok(())
    }
}

impl ManagerInterface for Manager {
    type Port = Port;
    type PortHandle = PortHandle;

    /// Listens on `rdma:HOST:PORT`: an address of this host, or a wildcard (`0.0.0.0`, `[::]`)
    /// for all devices; port 0 lets the system choose. Resolves a host name within the call and uses
    /// its first address.
    fn listen(&mut self, address: &str) -> Result<ListenerId, ManagerError> {
        self.start_listening(address)
    }

    fn listener_address(&self, listener: ListenerId) -> Option<String> {
        self.address_of(listener)
    }

    fn close_listener(&mut self, listener: ListenerId) {
        self.stop_listening(listener.0);
    }

    /// Asks for a connection, with at most 56 bytes of private data. Returns an error for an invalid
    /// address, for private data that is too long, and when the system refuses a thread or a watch;
    /// every other failure is an event.
    fn connect(
        &mut self,
        address: &str,
        port: &PortHandle,
        private_data: &[u8],
    ) -> Result<ConnectionId, ManagerError> {
        self.connect_from(address, std::slice::from_ref(port), private_data)
    }

    /// As [`ManagerInterface::prepare`]; a client's port is the one that it connected with.
    fn prepare(
        &mut self,
        connection: ConnectionId,
        port: &PortHandle,
    ) -> Result<PreparedQueuePair, SetupError> {
        let (_, prepared) = self.prepare_for(connection, std::slice::from_ref(port))?;
        Ok(prepared)
    }

    /// Accepts, with at most 196 bytes of private data. An error leaves the connection unchanged:
    /// disconnect.
    fn accept(
        &mut self,
        connection: ConnectionId,
        private_data: &[u8],
    ) -> Result<(), ManagerError> {
        self.send_reply(connection.0, private_data)
    }

    /// Rejects, with at most 136 bytes of private data. Longer data is dropped as a whole.
    fn reject(&mut self, connection: ConnectionId, reason: RejectReason, private_data: &[u8]) {
        self.send_reject(connection.0, reason, private_data);
    }

    /// Confirms; an `Established` event follows. An error leaves the connection unchanged: disconnect.
    fn confirm(&mut self, connection: ConnectionId) -> Result<(), ManagerError> {
        self.send_confirm(connection.0)
    }

    fn disconnect(&mut self, connection: ConnectionId) {
        self.close(connection.0);
        // No event of a connection may follow `disconnect`.
        self.ready
            .retain(|event| event.connection() != Some(connection));
    }

    fn leads_elsewhere(&self, connection: ConnectionId, address: &str) -> bool {
        let connection = self.connections.get(&connection.0);
        let own = connection.and_then(|it| Some(it.id.as_ref()?.context().addr()));
        match (self.devices_of_addresses.get(address), own) {
            (Some(device), Some(own)) => *device != own,
            _ => true,
        }
    }

    fn devices(&self) -> Vec<DeviceLevels> {
        let levels = |device: &Device| {
            let ports = 1..=device.context.limits().ports;
            let active = ports.filter(|port| device.context.port_mtu(*port).is_some());
            let connections = self.connections.values().filter(|it| device.has(it));
            let established = connections.filter(|it| it.stage == Stage::Established);
            DeviceLevels {
                name: device.context.name().to_owned(),
                links_up: active.count() as u64,
                links: device.context.limits().ports.into(),
                connections: established.count() as u64,
            }
        };
        self.devices.iter().map(levels).collect()
    }

    fn cut_connections(&mut self) -> Vec<ConnectionId> {
        if self.devices.iter().all(|device| device.down.is_empty()) {
            return Vec::new();
        }
        // A link may be back without a word of it: it is looked at again only while there are connections by it.
        for device in &mut self.devices {
            let context = &device.context;
            device.down.retain(|port| context.port_mtu(*port).is_none());
        }
        let is_cut = |it: &Connection| self.devices.iter().any(|device| device.has_cut(it));
        let cut = self.connections.iter().filter(|(_, it)| is_cut(it));
        cut.map(|(number, _)| ConnectionId(*number)).collect()
    }

    fn abandon(&mut self, connection: ConnectionId) {
        let known = self.connections.get(&connection.0);
        if known.is_some_and(|it| it.stage == Stage::Established) {
            self.counters.connections_abandoned += 1;
            self.lose(connection.0);
        }
    }

    fn wait(
        &mut self,
        timeout: Duration,
        events: &mut Vec<ManagerEvent<Port>>,
    ) -> Result<(), ManagerError> {
        self.run(timeout, events)
    }

    fn each_counter(&self, each: &mut dyn FnMut(Counted)) {
        self.counters.each(each);
        let rows = EventKind::ROWS.iter().zip(self.cm_events);
        let devices = DeviceEvent::ROWS.iter().enumerate().map(|(index, row)| {
            let counts = self
                .devices
                .iter()
                .map(|it| it.context.events().of_row(index));
            (row, counts.sum())
        });
        for (row, value) in rows.chain(devices) {
            each(Counted {
                name: row.counter,
                meaning: row.meaning,
                value,
            });
        }
    }

    fn waker(&self) -> Arc<dyn Fn() + Send + Sync> {
        self.waiting.waker()
    }
}

impl ChoosePort for Manager {
    fn connect_from(
        &mut self,
        address: &str,
        ports: &[PortHandle],
        private_data: &[u8],
    ) -> Result<ConnectionId, ManagerError> {
        self.start_connecting(address, ports, private_data)
    }

    fn prepare_for(
        &mut self,
        connection: ConnectionId,
        ports: &[PortHandle],
    ) -> Result<(usize, PreparedQueuePair), SetupError> {
        self.prepare_queue_pair(connection.0, ports)
    }
}
