//! What happens to the connections of a node, for whoever keeps a log.

use std::fmt;
use std::sync::Arc;

use rpcrdma_engine::{CloseReason, ConnectionCounters, ConnectionKey, HostIdentity};
use rpcrdma_fabric::interface::RejectReason;

/// What happened to a connection.
///
/// # Example
/// ```
/// # mod nodes { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/nodes/documented.rs")); }
/// # use nodes::*;
/// # use rpcrdma_control::{EventSink, ListenOptions, NodeEvent};
/// # use std::sync::mpsc;
/// # let (log, lines) = mpsc::channel();
/// # let mut config = config();
/// config.events = Some(EventSink::new(move |event| {
///     let line = match event {
///         NodeEvent::Ready { core, version, .. } => format!("core {core}: version {version}"),
///         NodeEvent::Closed { core, reason, .. } => format!("core {core}: {reason}"),
///         NodeEvent::Rejected { peer, reason } => format!("{peer}: {reason}"),
///     };
///     let _ = log.send(line);
/// }));
/// # let (_server, address) = listening(ListenOptions::default());
/// # let client = start(&config);
/// # client.close(&client.connect(&address, patient())?);
/// assert_eq!(lines.recv_timeout(PATIENCE)?, "core 0: version 2");
/// assert_eq!(lines.recv_timeout(PATIENCE)?, "core 0: closed from this side");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
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
///
/// # Example
/// ```
/// # mod nodes { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/nodes/documented.rs")); }
/// # use nodes::*;
/// # use rpcrdma_control::{EventSink, ListenOptions, NodeConfig, NodeEvent};
/// # use std::sync::mpsc;
/// let (events, taken) = mpsc::channel();
/// // Sending waits for nothing; whoever writes the log does so on another thread.
/// let sink = EventSink::new(move |event| drop(events.send(event)));
/// let config = NodeConfig { events: Some(sink), ..config() };
/// # let (_server, address) = listening(ListenOptions::default());
/// # let client = start(&config);
/// # client.connect(&address, patient())?;
/// assert!(matches!(taken.recv_timeout(PATIENCE)?, NodeEvent::Ready { core: 0, .. }));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
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
