//! What happens to the connections of a node, for whoever keeps a log.

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
        /// The version of RPC-over-RDMA that is spoken.
        version: u32,
    },
    /// It is gone. Told of connections that never became ready, too.
    Closed {
        /// The number of its core within the node.
        core: usize,
        /// Its key there.
        key: ConnectionKey,
        /// The peer, for people.
        peer: String,
        /// Why.
        reason: CloseReason,
        /// What passed over it.
        counters: ConnectionCounters,
    },
    /// A peer asked for one and was refused.
    Rejected {
        /// The peer, for people.
        peer: String,
        /// Why.
        reason: RejectReason,
    },
}

/// Takes events. It is called on the control thread, and must not wait for anything.
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
