//! Events of the connections of a node, for logs.

use std::fmt;
use std::sync::Arc;

use rpcrdma_engine::{CloseReason, ConnectionCounters, ConnectionKey, HostIdentity};
use rpcrdma_fabric::interface::RejectReason;

/// What happened to a connection.
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
