//! The connection manager of `shm`: Unix sockets that pass files, and nothing else.
//!
//! A connection begins as a Unix socket, over which the two managers shake hands as RDMA-CM does:
//! a request with private data, a reply or a rejection, a confirmation; reply and confirmation
//! carry the files of the ports (see [`wire`] for the messages and [`channels`] for which files those
//! are). They are checked and mapped here, so that no core waits for that. Afterwards nothing is sent
//! any more, and the socket stands for the peer's life: when it closes, by hand or with its process,
//! the peer is gone.
//!
//! # What may go wrong, and what follows
//!
//! * Before the application has heard of its peer: [`ManagerEvent::Failed`] or
//!   [`ManagerEvent::Rejected`] at a client, nothing at a server.
//! * After `ConnectRequest` or `ConnectReply`, in whatever stage: [`ManagerEvent::Disconnected`],
//!   with a port event for the core when a queue pair was prepared.
//! * A peer that is silent when it is its turn is given up after
//!   [`ManagerOptions::handshake_timeout`]; our own application may take its time, because the
//!   peer's manager gives us up.
//! * A peer of another user is turned away at either end ([`socket::Peer::is_permitted`]). One
//!   that breaks the protocol is hung up on; its files are closed. So is one whose files are not
//!   what they must be, or are larger than [`ManagerOptions`] allows.
//!
//! Handshakes of servers are limited in number: when all places are taken, further clients wait
//! in the listener's backlog, and when that is full, at their own end.

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
    ConnectionId, ListenerId, Manager as ManagerInterface, ManagerError, ManagerEvent,
    RejectReason, SetupError,
};
use crate::shm::doorbell::CHANNELS_MAX as CHANNELS_PER_PORT_MAX;
use crate::shm::peer_memory::{PeerMemory, PeerMemoryLimits};
use crate::shm::{Port, PortHandle, PreparedQueuePair};
use crate::waiting::Waiting;
use channels::Channels;
use connection::Connection;
use lines::Lines;

/// What the handshake takes for a message, written again; `None` for anything else.
#[cfg(feature = "testing")]
pub(crate) fn message_again(bytes: &[u8]) -> Option<Vec<u8>> {
    wire::Message::parse(bytes)
        .ok()
        .map(|message| message.encode())
}

/// Limits of a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagerOptions {
    /// How long a peer may be silent when it is its turn.
    pub handshake_timeout: Duration,
    /// Handshakes that may be under way at a time on the listeners together.
    pub half_open_max: usize,
    /// Bytes of the arena of a peer's port that are mapped at most. A peer with a larger one is
    /// refused.
    pub peer_arena_bytes_max: u64,
    /// Bytes that are mapped at most of all peers together: the arena of each of their ports once,
    /// however many connections there are, with its other files, and of each channel the peer's ring.
    /// A peer that goes beyond is refused.
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
    /// Sockets and timers; [`ACCEPTING`] stands for the listeners together.
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
    /// Whether the listeners' sockets are waited for.
    accepting: bool,
    /// After an error of the system: no accepting until then.
    paused_until: Option<Instant>,
    /// A file to close when there are no more, so that one client can still be told so.
    spare: Option<OwnedFd>,
    open_files_limit: String,
    counters: Counters,
}

/// The number of the timer that ends a pause of the listeners.
const ACCEPTING: u64 = 0;

struct Listener {
    socket: OwnedFd,
}

#[derive(Debug, Default)]
struct Counters {
    established: u64,
    malformed: u64,
    timed_out: u64,
    not_permitted: u64,
    memory_refused: u64,
    backlog_full: u64,
    out_of_files: u64,
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

    /// Counters as (name, value), for reports: connections established, peers that broke the
    /// protocol, handshakes that timed out, peers of another user, peers whose memory was not
    /// mapped (it is not as it must be, or beyond a limit), connects that waited for a full backlog and their further attempts, clients turned away for want of files, and channels now known.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let counters = &self.counters;
        vec![
            ("connections_established", counters.established),
            ("handshakes_malformed", counters.malformed),
            ("handshakes_timed_out", counters.timed_out),
            ("peers_not_permitted", counters.not_permitted),
            ("peers_memory_refused", counters.memory_refused),
            ("connects_backlog_full", counters.backlog_full),
            ("accepts_out_of_files", counters.out_of_files),
            ("channels", self.channels.len() as u64),
        ]
    }

    fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// An error of the system, with what to do where that is known.
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

    /// Asks for a connection, with at most 56 bytes of private data. Fails at once only for an
    /// address or private data that cannot be used; all else is an event.
    fn connect(
        &mut self,
        address: &str,
        port: &PortHandle,
        private_data: &[u8],
    ) -> Result<ConnectionId, ManagerError> {
        self.start_connecting(address, port, private_data)
    }

    /// As [`ManagerInterface::prepare`]; a client's port is the one that it connected with.
    fn prepare(
        &mut self,
        connection: ConnectionId,
        port: &PortHandle,
    ) -> Result<PreparedQueuePair, SetupError> {
        self.prepare_queue_pair(connection.0, port)
    }

    /// Accepts, with at most 196 bytes of private data. After an error the connection is as it
    /// was: try again, or disconnect.
    fn accept(
        &mut self,
        connection: ConnectionId,
        private_data: &[u8],
    ) -> Result<(), ManagerError> {
        self.send_reply(connection.0, private_data)
    }

    /// Rejects, with at most 148 bytes of private data; longer data is left out.
    fn reject(&mut self, connection: ConnectionId, reason: RejectReason, private_data: &[u8]) {
        self.send_reject(connection.0, reason, private_data);
    }

    /// Confirms; an `Established` event follows, or `Disconnected` when the peer is gone. After
    /// an error the connection is as it was: try again, or disconnect.
    fn confirm(&mut self, connection: ConnectionId) -> Result<(), ManagerError> {
        self.send_confirm(connection.0)
    }

    fn disconnect(&mut self, connection: ConnectionId) {
        self.remove(connection.0);
        // What already happened to it is not told any more.
        self.ready.retain(|event| event.connection() != connection);
    }

    fn wait(
        &mut self,
        timeout: Duration,
        events: &mut Vec<ManagerEvent<Port>>,
    ) -> Result<(), ManagerError> {
        // Ports let go of a channel when its last queue pair is destroyed, and tell nobody.
        self.channels.sweep();
        self.run(timeout, events)
    }

    fn waker(&self) -> Arc<dyn Fn() + Send + Sync> {
        self.waiting.waker()
    }
}
