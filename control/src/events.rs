//! Events of a node: of its connections, for logs, and of the targets that it stays connected to.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rpcrdma_engine::{CloseReason, ConnectionCounters, ConnectionKey, HostIdentity};
use rpcrdma_fabric::interface::RejectReason;

use crate::connection::Connection;
use crate::error::ConnectError;

/// What happened to a connection, or to a listener.
#[derive(Clone, Debug)]
pub enum NodeEvent {
    /// Both ends may call.
    Ready {
        /// The number of its core within the node.
        core: usize,
        /// Its key there.
        key: ConnectionKey,
        /// The peer, for people.
        peer: String,
        /// What the peer proved to be, if host authentication took place.
        identity: Option<HostIdentity>,
        /// The version of RPC-over-RDMA in use.
        version: u32,
    },
    /// It has closed. Connections that never became ready are reported as well.
    Closed {
        /// The number of its core within the node.
        core: usize,
        /// Its key there.
        key: ConnectionKey,
        /// The peer, for people.
        peer: String,
        /// Why.
        reason: CloseReason,
        /// Its counters.
        counters: ConnectionCounters,
    },
    /// A peer's connection request was refused.
    Rejected {
        /// The peer, for people.
        peer: String,
        /// Why.
        reason: RejectReason,
    },
    /// A listener lost its device. The address is tried again each second.
    ListenerLost {
        /// The address.
        address: String,
    },
    /// A listener that lost its device listens again.
    ListenerRestored {
        /// The address.
        address: String,
    },
}

/// Receives events. It is called on the control thread, and must not block.
#[derive(Clone)]
pub struct EventSink(Arc<dyn Fn(NodeEvent) + Send + Sync>);

impl EventSink {
    /// Events go to `take`.
    #[must_use]
    pub fn new(take: impl Fn(NodeEvent) + Send + Sync + 'static) -> Self {
        Self(Arc::new(take))
    }

    pub(crate) fn tell(&self, event: NodeEvent) {
        (self.0)(event);
    }
}

impl fmt::Debug for EventSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EventSink")
    }
}

/// What happens to a target, in order.
#[derive(Debug)]
pub enum TargetEvent {
    /// It is connected, for the first time or again.
    Established {
        /// The connection. Its key differs each time.
        connection: Connection,
    },
    /// The connection is lost. Calls in flight have failed.
    Lost {
        /// The lost connection.
        connection: Connection,
        /// Why it ended.
        reason: CloseReason,
        /// When it is tried again at the earliest.
        retry_after: Duration,
    },
    /// An attempt has failed.
    Failed {
        /// Why.
        error: ConnectError,
        /// When it is tried again at the earliest.
        retry_after: Duration,
    },
    /// It is not tried again. Nothing follows.
    GivenUp(GivenUp),
}

/// Why a target is not tried again.
#[derive(Debug)]
pub enum GivenUp {
    /// Trying again cannot help ([`ConnectError::is_permanent`]), or as many attempts in a row have
    /// failed as may. This is the last one.
    Failed(ConnectError),
    /// The connection was closed from this side.
    Closed(CloseReason),
}

impl fmt::Display for TargetEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Established { connection } => write!(f, "connected to {}", connection.peer),
            Self::Lost {
                connection,
                reason,
                retry_after,
            } => write!(
                f,
                "lost the connection to {}: {reason}; retrying in {} ms",
                connection.peer,
                retry_after.as_millis()
            ),
            Self::Failed { error, retry_after } => {
                write!(f, "{error}; retrying in {} ms", retry_after.as_millis())
            }
            Self::GivenUp(GivenUp::Failed(error)) => write!(f, "{error}; given up"),
            Self::GivenUp(GivenUp::Closed(reason)) => write!(f, "{reason}; given up"),
        }
    }
}
