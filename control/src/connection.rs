//! Connections as the application asks for them and gets them: how to listen, to connect and to drain, and what comes of
//! it.

use std::time::Duration;

use rpcrdma_engine::{ConnectionKey, HostIdentity, PeerProperties};
use rpcrdma_fabric::interface::ListenerId;
use rpcrdma_protocol::v2::ApplicationProperties;

use crate::authentication::Authentication;
use crate::core_choice::CoreChoice;
use crate::versions::Versions;

/// What a client calls a connection: the same each time that it makes it again.
pub type ConnectionName = [u8; 16];

/// Reads the name of a connection from the properties of its client. `None` if it has none.
pub type NameOf = fn(&PeerProperties) -> Option<ConnectionName>;

/// How to listen.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// The core for each connection that comes in.
    pub core: CoreChoice,
    /// Who may connect. The default suffices only on a fabric that checks its peers, such as `shm`.
    pub authentication: Authentication,
    /// The time that a peer has to authenticate itself.
    pub authentication_timeout: Duration,
    /// The versions that peers may speak. Peers that must authenticate themselves speak version 2.
    pub versions: Versions,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            core: CoreChoice::default(),
            authentication: Authentication::default(),
            authentication_timeout: Duration::from_secs(5),
            versions: Versions::Both,
        }
    }
}

/// A listener of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listening {
    /// Its name within the node.
    pub listener: ListenerId,
    /// The address that was asked for, with the port that the system chose.
    pub address: String,
}

/// How to connect.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The core that takes the connection.
    pub core: CoreChoice,
    /// The time for the whole connect, including version, properties and authentication.
    pub timeout: Duration,
    /// Who the server must be. This end proves itself as well, in the same exchange.
    pub authentication: Authentication,
    /// The versions that may be spoken. With both, version 2 is asked for first, and a server with version 1 only is
    /// remembered for [`VERSION_1_REMEMBERED`](crate::VERSION_1_REMEMBERED). A server that closes the connection at version
    /// 2 is asked for version 1 in the rest of `timeout`, unless it has answered version 2 before, or `authentication` has a
    /// mechanism. If authentication is required, version 2 is used in any case.
    pub versions: Versions,
    /// What to announce for the application, in place of
    /// [`CoreConfig::application_properties`](rpcrdma_engine::CoreConfig::application_properties).
    pub application_properties: Option<ApplicationProperties>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            core: CoreChoice::default(),
            timeout: Duration::from_secs(5),
            authentication: Authentication::default(),
            versions: Versions::Both,
            application_properties: None,
        }
    }
}

impl ConnectOptions {
    /// The versions that may be spoken, with authentication considered.
    pub(crate) const fn permitted(&self) -> Versions {
        if self.authentication.is_required() {
            // Version 1 has no host authentication.
            Versions::Two
        } else {
            self.versions
        }
    }
}

/// A connection that is ready for calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The number of its core within the node.
    pub core: usize,
    /// Its key there.
    pub key: ConnectionKey,
    /// The address at which it was made.
    pub address: String,
    /// The peer, for people.
    pub peer: String,
    /// What the peer proved to be, if host authentication took place.
    pub identity: Option<HostIdentity>,
    /// The version of RPC-over-RDMA that is spoken.
    pub version: u32,
}

/// How a drain went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainReport {
    /// Connections that were open when the drain began.
    pub connections: u64,
    /// Whether every core finished its calls in time. Otherwise some were abandoned, and their
    /// requesters saw the connection end.
    pub complete: bool,
}
