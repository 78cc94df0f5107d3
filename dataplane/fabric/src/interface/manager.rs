//! The control thread's way to make and end connections.
//!
//! Both sides go through the same steps, so that a queue pair is always planted in its core
//! before the peer may send to it:
//!
//! ```text
//! client: connect ───────────────▶ server: ConnectRequest
//!                                  server: prepare → core plants → accept
//! client: ConnectReply ◀──────────
//! client: prepare → core plants → confirm ─▶ server: Established (a notice for its core)
//! client: Established
//! ```

use std::net::IpAddr;
use std::time::Duration;

use super::{ManagerError, Port, PortSetup, SetupError};

/// Names a listener of a manager.
///
/// # Example
///
/// ```
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/ends/shm.rs")); }
/// # use std::time::Duration;
/// # use rpcrdma_fabric::interface::{Manager, ManagerEvent};
/// # let handle = ends::End::new(0).handle;
/// # let mut manager = rpcrdma_fabric::shm::Manager::new()?;
/// # let process = std::process::id();
/// # let [first, second] = ["data", "metadata"].map(|name| format!("shm:{name}.{process}"));
/// let (data, metadata) = (manager.listen(&first)?, manager.listen(&second)?);
/// manager.connect(&second, &handle, b"")?;
/// let mut events = Vec::new();
/// manager.wait(Duration::from_secs(10), &mut events)?;
/// let Some(ManagerEvent::ConnectRequest { listener, .. }) = events.pop() else {
///     panic!("we asked for a connection");
/// };
/// assert_eq!(listener, metadata);
/// manager.close_listener(data);
/// # Ok::<(), rpcrdma_fabric::interface::ManagerError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId(pub u64);

/// Names a connection of a manager, from the request to the end. Never used again.
///
/// # Example
///
/// ```
/// use std::collections::HashMap;
/// use rpcrdma_fabric::interface::{ConnectionId, ManagerEvent, Port};
///
/// /// Takes what ended out of the table of what stands: from this side no more is to be done.
/// fn forget<P: Port>(cores: &mut HashMap<ConnectionId, usize>, event: &ManagerEvent<P>) {
///     if let ManagerEvent::Disconnected { connection, .. } = event {
///         cores.remove(connection);
///     }
/// }
/// let mut cores = HashMap::from([(ConnectionId(7), 0), (ConnectionId(8), 1)]);
/// # type Event = ManagerEvent<rpcrdma_fabric::shm::Port>;
/// forget(&mut cores, &Event::Disconnected { connection: ConnectionId(7), notice: None });
/// assert_eq!(cores, HashMap::from([(ConnectionId(8), 1)]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId(pub u64);

/// Who the peer is, as far as the fabric can tell.
///
/// # Example
///
/// ```
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/ends/shm.rs")); }
/// # use std::{collections::HashMap, time::Duration};
/// # use rpcrdma_fabric::interface::{Manager, ManagerEvent};
/// # let handle = ends::End::new(0).handle;
/// # let mut manager = rpcrdma_fabric::shm::Manager::new()?;
/// # let address = format!("shm:peers.{}", std::process::id());
/// # manager.listen(&address)?;
/// manager.connect(&address, &handle, b"")?;
/// manager.connect(&address, &handle, b"")?;
/// let (mut events, mut held) = (Vec::new(), HashMap::new());
/// while events.len() < 2 {
///     manager.wait(Duration::from_secs(10), &mut events)?;
/// }
/// for event in &events {
///     if let ManagerEvent::ConnectRequest { peer, .. } = event {
///         *held.entry(peer.key).or_insert(0) += 1;
///         assert!(peer.name.starts_with("pid ") && peer.address.is_none());
///     }
/// }
/// // On shm a peer is a process, and this one asked twice.
/// assert_eq!(held, HashMap::from([(u64::from(std::process::id()), 2)]));
/// # Ok::<(), rpcrdma_fabric::interface::ManagerError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PeerIdentity {
    /// What a limit per peer counts by: the process on shm, the address on verbs.
    pub key: u64,
    /// Its IP address, in the canonical form, where the fabric has such: verbs. It is the same in each
    /// connection of a host.
    pub address: Option<IpAddr>,
    /// The same for people.
    pub name: String,
}

/// Why a connection was rejected; travels to the peer.
///
/// # Example
///
/// ```
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/ends/shm.rs")); }
/// # use std::time::Duration;
/// use rpcrdma_fabric::interface::{Manager, ManagerEvent, RejectReason};
///
/// # let handle = ends::End::new(0).handle;
/// # let mut manager = rpcrdma_fabric::shm::Manager::new()?;
/// # let address = format!("shm:rejects.{}", std::process::id());
/// # manager.listen(&address)?;
/// # manager.connect(&address, &handle, b"")?;
/// # let mut told = None;
/// # let mut events = Vec::new();
/// while told.is_none() {
///     manager.wait(Duration::from_secs(10), &mut events)?;
///     match events.pop() {
///         Some(ManagerEvent::ConnectRequest { connection, .. }) => {
///             manager.reject(connection, RejectReason::Draining, b"");
///         }
///         Some(ManagerEvent::Rejected { reason, .. }) => told = Some(reason),
///         _ => panic!("a request, then its rejection"),
///     }
/// }
/// assert_eq!(told.unwrap().to_string(), "it is shutting down");
/// # Ok::<(), rpcrdma_fabric::interface::ManagerError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// All connections that receive memory was reserved for are taken.
    ConnectionsExhausted,
    /// This peer has as many connections as it may have.
    PeerLimit,
    /// The listener is draining.
    Draining,
    /// The peers speak no common version of the connection protocol.
    VersionMismatch,
    /// The listener's policy refuses this peer.
    NotPermitted,
    /// Something else failed at the peer.
    Other(u32),
}

impl std::fmt::Display for RejectReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ConnectionsExhausted => f.write_str("all its connections are taken"),
            Self::PeerLimit => f.write_str("this peer already has as many connections as it may"),
            Self::Draining => f.write_str("it is shutting down"),
            Self::VersionMismatch => f.write_str("it speaks another version of the protocol"),
            Self::NotPermitted => f.write_str("its policy does not permit this peer"),
            Self::Other(code) => write!(f, "reason code {code}"),
        }
    }
}

/// What happened to a connection.
///
/// # Example
///
/// ```
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/ends/shm.rs")); }
/// # use std::time::Duration;
/// use rpcrdma_fabric::interface::{Manager, ManagerEvent as Event, Port, ReceiveQueueId};
///
/// /// What a process with one core does about an event, whichever end it is.
/// fn answer<M: Manager>(
///     (manager, handle, port): (&mut M, &M::PortHandle, &mut M::Port), event: Event<M::Port>,
/// ) -> Result<(), Box<dyn std::error::Error>> {
///     match event {
///         Event::ConnectRequest { connection, .. } => {
///             port.plant(manager.prepare(connection, handle)?, ReceiveQueueId(0))?;
///             manager.accept(connection, b"welcome")?;
///         }
///         Event::ConnectReply { connection, .. } => {
///             port.plant(manager.prepare(connection, handle)?, ReceiveQueueId(0))?;
///             manager.confirm(connection)?;
///         }
///         Event::Established { notice, .. } | Event::Disconnected { notice, .. } => {
///             notice.into_iter().for_each(|notice| port.notice(notice));
///         }
///         Event::Rejected { reason, .. } => println!("the server refuses: {reason}"),
///         Event::Failed { error, .. } => return Err(error.into()),
///     }
///     Ok(())
/// }
/// # let ends::End { mut port, handle, .. } = ends::End::new(0);
/// # let mut manager = rpcrdma_fabric::shm::Manager::new()?;
/// # let address = format!("shm:events.{}", std::process::id());
/// # manager.listen(&address)?;
/// # manager.connect(&address, &handle, b"")?;
/// # let mut events = Vec::new();
/// # for _ in 0..4 {
/// #     while events.is_empty() { manager.wait(Duration::from_secs(10), &mut events)?; }
/// #     answer((&mut manager, &handle, &mut port), events.remove(0))?;
/// # }
/// # assert!(manager.counters().contains(&("connections_established", 2)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub enum ManagerEvent<P: Port> {
    /// A peer asks for a connection: answer with prepare and accept, or with reject.
    ConnectRequest {
        /// The new connection.
        connection: ConnectionId,
        /// The listener that it came by.
        listener: ListenerId,
        /// The peer.
        peer: PeerIdentity,
        /// The private data of the request (RFC 8797); some fabrics fill it up with zeros, so what
        /// it holds must tell its own length.
        private_data: Vec<u8>,
    },
    /// The peer accepts: prepare, plant, then confirm.
    ConnectReply {
        /// The connection.
        connection: ConnectionId,
        /// The peer.
        peer: PeerIdentity,
        /// The private data of the reply.
        private_data: Vec<u8>,
    },
    /// The connection stands, on the server after the client's confirmation.
    Established {
        /// The connection.
        connection: ConnectionId,
        /// To be handed to the core that planted the queue pair.
        notice: Option<P::Notice>,
    },
    /// The peer rejected the request.
    Rejected {
        /// The connection, which is gone.
        connection: ConnectionId,
        /// Why.
        reason: RejectReason,
        /// The private data of the rejection.
        private_data: Vec<u8>,
    },
    /// The connection could not be made.
    Failed {
        /// The connection, which is gone.
        connection: ConnectionId,
        /// Why.
        error: ManagerError,
    },
    /// The peer closed the connection, or died.
    Disconnected {
        /// The connection, which is gone.
        connection: ConnectionId,
        /// To be handed to the core that planted the queue pair.
        notice: Option<P::Notice>,
    },
}

/// Listens, connects, accepts. Lives in the control thread; may block for short system calls,
/// never for a peer.
///
/// # Example
///
/// ```
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/ends/shm.rs")); }
/// # use std::time::Duration;
/// use rpcrdma_fabric::interface::{Manager, ManagerError, ManagerEvent};
/// use rpcrdma_fabric::shm;
///
/// # let handle = ends::End::new(0).handle;
/// let mut manager = shm::Manager::new()?;
/// let asked = manager.connect("shm:nobody.is.there", &handle, b"hello")?;
/// let mut events = Vec::new();
/// while events.is_empty() {
///     manager.wait(Duration::from_secs(1), &mut events)?;
/// }
/// let Some(ManagerEvent::Failed { connection, error }) = events.pop() else {
///     panic!("nobody listens there");
/// };
/// assert_eq!(connection, asked);
/// assert!(matches!(error, ManagerError::Refused { .. }));
/// # Ok::<(), ManagerError>(())
/// ```
pub trait Manager: Send + 'static {
    /// The ports that it prepares queue pairs for.
    type Port: Port;
    /// What the manager needs to know of a port: cheap to clone, for any thread.
    type PortHandle: Clone + Send + Sync + 'static;

    /// Listens on `address`.
    fn listen(&mut self, address: &str) -> Result<ListenerId, ManagerError>;

    /// The address that `listener` listens on, where the system chose a part of it, such as a
    /// port. `None` means the address that was given.
    fn listener_address(&self, listener: ListenerId) -> Option<String> {
        let _ = listener;
        None
    }

    /// Stops listening; connections stay.
    fn close_listener(&mut self, listener: ListenerId);

    /// Asks for a connection from `port` to `address`. The answer is an event.
    fn connect(
        &mut self,
        address: &str,
        port: &Self::PortHandle,
        private_data: &[u8],
    ) -> Result<ConnectionId, ManagerError>;

    /// Prepares the queue pair of `connection` for `port`, after ConnectRequest or ConnectReply.
    fn prepare(
        &mut self,
        connection: ConnectionId,
        port: &Self::PortHandle,
    ) -> Result<<Self::Port as PortSetup>::Seed, SetupError>;

    /// Accepts a request, after the core planted the queue pair.
    fn accept(&mut self, connection: ConnectionId, private_data: &[u8])
    -> Result<(), ManagerError>;

    /// Rejects a request; the connection is gone.
    fn reject(&mut self, connection: ConnectionId, reason: RejectReason, private_data: &[u8]);

    /// Completes a connection at the client, after the core planted the queue pair.
    fn confirm(&mut self, connection: ConnectionId) -> Result<(), ManagerError>;

    /// Ends a connection from this side; no event follows.
    fn disconnect(&mut self, connection: ConnectionId);

    /// Waits at most `timeout` for events and appends them to `events`.
    fn wait(
        &mut self,
        timeout: Duration,
        events: &mut Vec<ManagerEvent<Self::Port>>,
    ) -> Result<(), ManagerError>;

    /// A way to end a [`Manager::wait`] early from another thread.
    fn waker(&self) -> std::sync::Arc<dyn Fn() + Send + Sync>;
}
