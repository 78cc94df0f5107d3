//! The connection manager of `shm`: Unix sockets that pass file descriptors.
//!
//! The two managers shake hands over a Unix socket in the same steps as RDMA-CM: a request with
//! private data, a reply or a rejection, a confirmation. Reply and confirmation carry the files of
//! the ports ([`wire`] has the messages, [`channels`] says which files they are). The manager checks
//! and maps the files, so that no core waits for that. After the handshake nothing is sent on the
//! socket. It stays open to detect the peer's end: the kernel closes it with the peer's process.
//!
//! # Failures
//!
//! * Before the application knows its peer: [`ManagerEvent::Failed`] or
//!   [`ManagerEvent::Rejected`] at a client, no event at a server.
//! * After `ConnectRequest` or `ConnectReply`, at any stage: [`ManagerEvent::Disconnected`],
//!   with a port event for the core when a queue pair was prepared.
//! * A peer that does not answer within [`ManagerOptions::handshake_timeout`] loses the
//!   connection. There is no timer on our own application, because the peer's manager has one.
//! * Either end refuses a peer of another user ([`socket::Peer::is_permitted`]). It closes the
//!   socket and the received files when the peer breaks the protocol, when a file fails its checks,
//!   and when a file is larger than [`ManagerOptions`] allows.
//!
//! The number of server handshakes in progress is limited. Above the limit, clients wait in the
//! listener's backlog; when the backlog is full, the client's manager tries again.

mod channels;
mod connection;
mod event_loop;
mod handshake;
mod lines;
mod prepare;
mod socket;
#[cfg(all(test, not(loom)))]
mod tests;
mod wire;

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::interface::{
    ChoosePort, ConnectionId, Counted, DeviceLevels, ListenerId, Manager as ManagerInterface,
    ManagerError, ManagerEvent, RejectReason, SetupError, counters,
};
use crate::shm::peer_memory::{PeerMemory, PeerMemoryLimits};
use crate::shm::{Port, PortHandle, PreparedQueuePair};
use crate::waiting::Waiting;
use channels::Channels;
use connection::{Connection, Side, Stage};
use lines::Lines;
pub use socket::check_free;

/// Parses a handshake message and encodes it again; `None` if the bytes are not a message.
#[cfg(feature = "testing")]
pub(crate) fn message_again(bytes: &[u8]) -> Option<Vec<u8>> {
    wire::Message::parse(bytes)
        .ok()
        .map(|message| message.encode())
}

/// Limits of a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagerOptions {
    /// The time that a peer has to send its next handshake message.
    pub handshake_timeout: Duration,
    /// The highest number of handshakes in progress, over all listeners.
    pub half_open_max: usize,
    /// The largest arena of a peer's port that is mapped, in bytes. A peer with a larger arena is
    /// refused.
    pub peer_arena_bytes_max: u64,
    /// The limit in bytes on the memory of all peers that is mapped at a time: for each port of a
    /// peer, its arena and its other files, once for any number of connections; for each channel,
    /// the peer's ring. A peer whose memory would exceed the limit is refused.
    pub peer_memory_bytes_max: u64,
}

impl Default for ManagerOptions {
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(5),
            half_open_max: 1024,
            peer_arena_bytes_max: 4 << 30,
            peer_memory_bytes_max: 64 << 30,
        }
    }
}

/// The connection manager of the `shm` provider; one control thread owns it.
///
/// A port belongs to one manager: channels and doorbell numbers are handed out here.
pub struct Manager {
    options: ManagerOptions,
    /// Sockets and timers; [`ACCEPTING`] is the timer that all listeners share.
    waiting: Waiting,
    listeners: HashMap<u64, Listener>,
    connections: HashMap<u64, Connection>,
    channels: Channels,
    lines: Lines,
    memory: PeerMemory,
    /// Events that the next wait delivers.
    ready: Vec<ManagerEvent<Port>>,
    /// The last number given to a listener or a connection.
    last_id: u64,
    half_open: usize,
    /// Whether `waiting` watches the listeners' sockets.
    accepting: bool,
    /// The end of the pause that follows a failed `accept`.
    paused_until: Option<Instant>,
    /// A descriptor in reserve. It is closed when no descriptor is free, so that one client can
    /// still be accepted and rejected with a reason.
    spare: Option<OwnedFd>,
    open_files_limit: String,
    counters: Counters,
}

/// The number of the timer that ends a pause of the listeners.
const ACCEPTING: u64 = 0;

struct Listener {
    name: String,
    socket: OwnedFd,
}

counters! {
    /// Counters of the manager.
    struct Counters {
        /// Connections established.
        connections_established,
        /// Peers that broke the protocol of the handshake.
        handshakes_malformed,
        /// Handshakes that took too long.
        handshakes_timed_out,
        /// Peers of another user.
        peers_not_permitted,
        /// Peers whose memory was not mapped, because it failed a check or a limit.
        peers_memory_refused,
        /// Connect attempts that were put off, because the backlog was full or an older connect waited.
        connects_backlog_full,
        /// Failures for lack of file descriptors or kernel memory.
        accepts_out_of_files,
    }
}

impl std::fmt::Debug for Manager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Manager")
            .field("options", &self.options)
            .field("listeners", &self.listeners.len())
            .field("connections", &self.connections.len())
            .field("half_open", &self.half_open)
            .field("channels", &self.channels.len())
            .finish_non_exhaustive()
    }
}

impl Manager {
    /// A manager with the default limits. Raises the soft limit of open files of this process to
    /// the hard one, because every connection takes a socket.
    pub fn new() -> Result<Self, ManagerError> {
        Self::with_options(ManagerOptions::default())
    }

    /// A manager with limits of your own.
    pub fn with_options(options: ManagerOptions) -> Result<Self, ManagerError> {
        let open_files_limit = socket::raise_open_files_limit();
        let files = || -> io::Result<_> { Ok((Waiting::new()?, event_loop::spare_file()?)) };
        let (waiting, spare) = files().map_err(|source| ManagerError::System {
            doing: format!("setting up the connection manager ({open_files_limit})"),
            source,
        })?;
        Ok(Self {
            options,
            waiting,
            listeners: HashMap::new(),
            connections: HashMap::new(),
            channels: Channels::new(),
            lines: Lines::default(),
            memory: PeerMemory::new(PeerMemoryLimits {
                arena_bytes_max: options.peer_arena_bytes_max,
                total_bytes_max: options.peer_memory_bytes_max,
            }),
            ready: Vec::new(),
            last_id: ACCEPTING,
            half_open: 0,
            accepting: true,
            paused_until: None,
            spare: Some(spare),
            open_files_limit,
            counters: Counters::default(),
        })
    }

    /// Counters as (name, value), for reports.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = Vec::new();
        self.counters.each(&mut |it| all.push((it.name, it.value)));
        all
    }

    fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// An error of a system call. Where the cause is the limit of open files, it names the limit.
    fn system(&self, doing: &str, source: io::Error) -> ManagerError {
        use rustix::io::Errno;
        let errno = Errno::from_io_error(&source);
        let doing = match errno {
            Some(Errno::MFILE | Errno::NFILE | Errno::TOOMANYREFS) => {
                format!("{doing} ({})", self.open_files_limit)
            }
            _ => doing.to_owned(),
        };
        ManagerError::System { doing, source }
    }
}

impl ManagerInterface for Manager {
    type Port = Port;
    type PortHandle = PortHandle;

    /// Listens on `shm:NAME`; a name has 1 to 80 letters, digits, `.`, `_` or `-`.
    fn listen(&mut self, address: &str) -> Result<ListenerId, ManagerError> {
        self.start_listening(address)
    }

    fn close_listener(&mut self, listener: ListenerId) {
        self.listeners.remove(&listener.0);
    }

    /// Asks for a connection, with at most 56 bytes of private data. Returns an error only for an
    /// invalid address, private data that is too long, or a port without a free queue pair number;
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
    /// call again, or disconnect.
    fn accept(
        &mut self,
        connection: ConnectionId,
        private_data: &[u8],
    ) -> Result<(), ManagerError> {
        self.send_reply(connection.0, private_data)
    }

    /// Rejects, with at most 148 bytes of private data. Longer data is dropped as a whole.
    fn reject(&mut self, connection: ConnectionId, reason: RejectReason, private_data: &[u8]) {
        self.send_reject(connection.0, reason, private_data);
    }

    /// Confirms; an `Established` event follows, or `Disconnected` when the peer has closed. An
    /// error leaves the connection unchanged: call again, or disconnect.
    fn confirm(&mut self, connection: ConnectionId) -> Result<(), ManagerError> {
        self.send_confirm(connection.0)
    }

    fn disconnect(&mut self, connection: ConnectionId) {
        self.remove(connection.0);
        // No event of a connection may follow `disconnect`.
        self.ready
            .retain(|event| event.connection() != Some(connection));
    }

    /// The memory of this machine, as one device whose link is always up.
    fn devices(&self) -> Vec<DeviceLevels> {
        let connections = self.connections.values();
        let established = connections.filter(|it| matches!(it.stage, Stage::Established));
        vec![DeviceLevels {
            name: "shm".to_owned(),
            links_up: 1,
            links: 1,
            connections: established.count() as u64,
        }]
    }

    /// There are no links, but tests cut them.
    fn abandon(&mut self, connection: ConnectionId) {
        self.gone(connection.0, ManagerError::UnknownConnection);
    }

    fn wait(
        &mut self,
        timeout: Duration,
        events: &mut Vec<ManagerEvent<Port>>,
    ) -> Result<(), ManagerError> {
        // Ports drop a channel with its last queue pair and do not notify the manager.
        self.channels.sweep();
        self.run(timeout, events)
    }

    fn each_counter(&self, each: &mut dyn FnMut(Counted)) {
        self.counters.each(each);
    }

    fn waker(&self) -> Arc<dyn Fn() + Send + Sync> {
        self.waiting.waker()
    }
}

/// The fabric of one machine has no devices. To try several rails without one, each name is of one rail: the sum of its
/// octets, divided by the number of rails, leaves the number of the rail. So `a` and `b` are of different rails where there are
/// two.
impl ChoosePort for Manager {
    fn connect_from(
        &mut self,
        address: &str,
        ports: &[PortHandle],
        private_data: &[u8],
    ) -> Result<ConnectionId, ManagerError> {
        let name = socket::parse_address(address)?;
        match ports.get(rail_of(&name, ports.len())) {
            Some(port) => self.start_connecting(address, port, private_data),
            None => Err(ManagerError::BadAddress {
                address: address.to_owned(),
                why: "there is no port to connect from".to_owned(),
            }),
        }
    }

    fn prepare_for(
        &mut self,
        connection: ConnectionId,
        ports: &[PortHandle],
    ) -> Result<(usize, PreparedQueuePair), SetupError> {
        let rail = match self.connections.get(&connection.0).map(|it| &it.side) {
            // The one that it connected from.
            Some(Side::Client(client)) => {
                let identity = client.port.identity;
                ports.iter().position(|it| it.identity == identity)
            }
            Some(Side::Server { listener, .. }) => {
                let listener = self.listeners.get(&listener.0);
                listener.map(|it| rail_of(&it.name, ports.len()))
            }
            None => None,
        };
        // A request whose listener was closed since may use any port, and the first one refuses what is wrong.
        let rail = rail.unwrap_or(0);
        let port = ports.get(rail).ok_or(SetupError::Limit {
            what: "ports to prepare a queue pair for",
            asked: 1,
            limit: 0,
        })?;
        Ok((rail, self.prepare_queue_pair(connection.0, port)?))
    }
}

/// The rail of a name, among so many.
fn rail_of(name: &str, rails: usize) -> usize {
    let sum: usize = name.bytes().map(usize::from).sum();
    sum.checked_rem(rails).unwrap_or(0)
}
