//! The control thread's interface to make and end connections.
//!
//! Both sides go through the same steps, so that a queue pair is always adopted in its core
//! before the peer may send to it:
//!
//! ```text
//! client: connect ───────────────▶ server: ConnectRequest
//!                                  server: prepare → core adopts → accept
//! client: ConnectReply ◀──────────
//! client: prepare → core adopts → confirm ─▶ server: Established (a port event for its core)
//! client: Established
//! ```

use std::net::IpAddr;
use std::time::Duration;

use super::{Counted, ManagerError, Port, PortSetup, SetupError};

/// Names a listener of a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId(pub u64);

/// Names a connection of a manager, from the request to the end. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId(pub u64);

/// The identity of the peer, as far as the fabric knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PeerIdentity {
    /// The key for limits per peer: the process on shm, the address on verbs.
    pub key: u64,
    /// Its IP address, in the canonical form, if the fabric uses them (verbs). It is the same in all connections of a
    /// host.
    pub address: Option<IpAddr>,
    /// The same for people.
    pub name: String,
    /// The place of this connection among those of the process, by when peers asked for them: of two connections of a peer that
    /// has lost one, it tells which is the later one. A manager leaves it 0, and the control thread sets it.
    pub arrival: u64,
}

/// Why a connection was rejected; travels to the peer.
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

/// What happened to a connection, or to a listener.
pub enum ManagerEvent<P: Port> {
    /// A peer asks for a connection: answer with prepare and accept, or with reject.
    ConnectRequest {
        /// The new connection.
        connection: ConnectionId,
        /// The listener that it came by.
        listener: ListenerId,
        /// The peer.
        peer: PeerIdentity,
        /// The private data of the request (RFC 8797); some fabrics pad it with zeros, so its contents must include
        /// their length.
        private_data: Vec<u8>,
    },
    /// The peer accepts: prepare, adopt, then confirm.
    ConnectReply {
        /// The connection.
        connection: ConnectionId,
        /// The peer.
        peer: PeerIdentity,
        /// The private data of the reply.
        private_data: Vec<u8>,
    },
    /// The connection is established; on the server, after the client's confirmation.
    Established {
        /// The connection.
        connection: ConnectionId,
        /// To be handed to the core that adopted the queue pair.
        port_event: Option<P::PortEvent>,
    },
    /// The peer rejected the request.
    Rejected {
        /// The connection, which has ended.
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
    /// A listener lost its device, and hears nothing until [`ManagerEvent::ListenerRestored`].
    ListenerLost {
        /// The listener.
        listener: ListenerId,
        /// Where it listened.
        address: String,
    },
    /// A listener that lost its device listens again: the address is there again.
    ListenerRestored {
        /// The listener.
        listener: ListenerId,
        /// Where it listens.
        address: String,
    },
    /// This end's link of a connection that it requested is down for longer than a flap, and there is another link. It is
    /// reported again and again until the link is back. [`Manager::abandon`] ends the connection where the peer can be reached in another way; otherwise the device
    /// goes on with its retries.
    LinkDown {
        /// The connection.
        connection: ConnectionId,
    },
    /// The peer closed the connection, or died.
    Disconnected {
        /// The connection, which is gone.
        connection: ConnectionId,
        /// To be handed to the core that adopted the queue pair.
        port_event: Option<P::PortEvent>,
    },
}

impl<P: Port> ManagerEvent<P> {
    /// The same event for a port that is built on this one. `port_event` makes what the core that adopted the queue pair is to be given.
    pub fn for_port<Q: Port>(
        self,
        port_event: impl FnOnce(ConnectionId, P::PortEvent) -> Q::PortEvent,
    ) -> ManagerEvent<Q> {
        match self {
            Self::ConnectRequest {
                connection,
                listener,
                peer,
                private_data,
            } => ManagerEvent::ConnectRequest {
                connection,
                listener,
                peer,
                private_data,
            },
            Self::ConnectReply {
                connection,
                peer,
                private_data,
            } => ManagerEvent::ConnectReply {
                connection,
                peer,
                private_data,
            },
            Self::Established {
                connection,
                port_event: event,
            } => ManagerEvent::Established {
                connection,
                port_event: event.map(|event| port_event(connection, event)),
            },
            Self::Rejected {
                connection,
                reason,
                private_data,
            } => ManagerEvent::Rejected {
                connection,
                reason,
                private_data,
            },
            Self::Failed { connection, error } => ManagerEvent::Failed { connection, error },
            Self::ListenerLost { listener, address } => {
                ManagerEvent::ListenerLost { listener, address }
            }
            Self::ListenerRestored { listener, address } => {
                ManagerEvent::ListenerRestored { listener, address }
            }
            Self::LinkDown { connection } => ManagerEvent::LinkDown { connection },
            Self::Disconnected {
                connection,
                port_event: event,
            } => ManagerEvent::Disconnected {
                connection,
                port_event: event.map(|event| port_event(connection, event)),
            },
        }
    }

    /// The connection that the event is about; `None` for an event of a listener.
    #[must_use]
    pub fn connection(&self) -> Option<ConnectionId> {
        match self {
            Self::ConnectRequest { connection, .. }
            | Self::ConnectReply { connection, .. }
            | Self::Established { connection, .. }
            | Self::Rejected { connection, .. }
            | Self::Failed { connection, .. }
            | Self::LinkDown { connection }
            | Self::Disconnected { connection, .. } => Some(*connection),
            Self::ListenerLost { .. } | Self::ListenerRestored { .. } => None,
        }
    }
}

/// A device of a manager's connections, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLevels {
    /// Its name.
    pub name: String,
    /// The ports with an active link.
    pub links_up: u64,
    /// Its ports.
    pub links: u64,
    /// Connections that are established.
    pub connections: u64,
}

/// A level of a device: its name, its meaning, and where it is.
pub type DeviceLevel = (&'static str, &'static str, fn(&DeviceLevels) -> u64);

impl DeviceLevels {
    /// All levels, for reports.
    pub const ALL: [DeviceLevel; 3] = [
        (
            "links_up",
            "Ports of the device with an active link.",
            |it| it.links_up,
        ),
        ("links", "Ports of the device.", |it| it.links),
        (
            "connections",
            "Connections that are established on the device.",
            |it| it.connections,
        ),
    ];
}

/// Listens, connects, accepts. Lives in the control thread; may block for short system calls,
/// never for a peer.
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
    ) -> Result<<Self::Port as PortSetup>::PreparedQueuePair, SetupError>;

    /// Accepts a request, after the core adopted the queue pair.
    fn accept(&mut self, connection: ConnectionId, private_data: &[u8])
    -> Result<(), ManagerError>;

    /// Rejects a request, and forgets the connection.
    fn reject(&mut self, connection: ConnectionId, reason: RejectReason, private_data: &[u8]);

    /// Completes a connection at the client, after the core adopted the queue pair.
    fn confirm(&mut self, connection: ConnectionId) -> Result<(), ManagerError>;

    /// Ends a connection from this side; no event follows.
    fn disconnect(&mut self, connection: ConnectionId);

    /// Whether a connection to `address` uses another device than `connection` does. True if nothing is known of the address.
    fn leads_elsewhere(&self, connection: ConnectionId, address: &str) -> bool {
        let _ = (connection, address);
        true
    }

    /// The connections whose link at this end is down, now and for longer than a flap. It may ask devices, so not for each event.
    fn cut_connections(&mut self) -> Vec<ConnectionId> {
        Vec::new()
    }

    /// The devices of the ports for which it has prepared queue pairs. It asks each of them, so not for each event.
    fn devices(&self) -> Vec<DeviceLevels>;

    /// Ends a connection whose link is down ([`ManagerEvent::LinkDown`], [`Manager::cut_connections`]), as if its peer had closed it: `Disconnected`
    /// follows.
    fn abandon(&mut self, connection: ConnectionId);

    /// Waits at most `timeout` for events and appends them to `events`.
    fn wait(
        &mut self,
        timeout: Duration,
        events: &mut Vec<ManagerEvent<Self::Port>>,
    ) -> Result<(), ManagerError>;

    /// Reports the manager's counters: always the same ones, in the same order.
    fn each_counter(&self, each: &mut dyn FnMut(Counted));

    /// A way to end a [`Manager::wait`] early from another thread.
    fn waker(&self) -> std::sync::Arc<dyn Fn() + Send + Sync>;
}

/// A manager that chooses among several ports of one core, each of another device: the one of the device that leads to the
/// peer. [`Rails`](crate::rails::Rails) joins such ports.
pub trait ChoosePort: Manager {
    /// As [`Manager::connect`], from one of `ports`.
    ///
    /// # Errors
    /// As [`Manager::connect`].
    fn connect_from(
        &mut self,
        address: &str,
        ports: &[Self::PortHandle],
        private_data: &[u8],
    ) -> Result<ConnectionId, ManagerError>;

    /// As [`Manager::prepare`], for one of `ports`. Returns which one.
    ///
    /// # Errors
    /// As [`Manager::prepare`].
    fn prepare_for(
        &mut self,
        connection: ConnectionId,
        ports: &[Self::PortHandle],
    ) -> Result<PreparedFor<Self::Port>, SetupError>;
}

/// The index of a port, and a queue pair for it.
pub type PreparedFor<P> = (usize, <P as PortSetup>::PreparedQueuePair);
