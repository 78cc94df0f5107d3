//! What the application asks the control thread to do. The handles ([`Node`](crate::Node), [`Target`](crate::Target)) send
//! requests, and the thread executes them.

use std::sync::mpsc::Sender;
use std::time::Duration;

use rpcrdma_engine::ConnectionKey;
use rpcrdma_fabric::interface::ManagerError;

use crate::connection::{ConnectOptions, Connection, DrainReport, ListenOptions, Listening};
use crate::error::ConnectError;
use crate::events::TargetEvent;
use crate::limits::NodeLimits;
use crate::reconnect::{Reconnect, TargetId};

/// A request of the application.
pub(crate) enum Request {
    Listen {
        address: String,
        options: ListenOptions,
        answer: Sender<Result<Listening, ManagerError>>,
    },
    StopListening {
        address: String,
        answer: Sender<bool>,
    },
    Connect {
        id: ConnectId,
        address: String,
        options: ConnectOptions,
        answer: Sender<Result<Connection, ConnectError>>,
    },
    Close {
        core: usize,
        key: ConnectionKey,
    },
    SetLimits(NodeLimits),
    KeepConnected(Wanted),
    /// Nobody wants this connection any more, whether it is there or not.
    Cancel(Owner),
    Drain {
        timeout: Duration,
        answer: Sender<DrainReport>,
    },
    Stop,
}

/// A single connect, by the number that its node gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectId(pub(crate) u64);

/// Who has asked for a connection. The control thread knows the connection of each owner from the request to the end. So one
/// order ends it at any stage, and nobody needs to know at which it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// A single connect. What it leads to is the application's from the moment it takes the outcome.
    Connect(ConnectId),
    /// A target, which has its connection until it is dropped.
    Target(TargetId),
}

/// A target as the application asked for it.
pub(crate) struct Wanted {
    pub(crate) id: TargetId,
    /// Those of its server, in the order in which they are tried; or what is wrong with them.
    pub(crate) addresses: Result<Vec<String>, ConnectError>,
    pub(crate) options: ConnectOptions,
    pub(crate) reconnect: Reconnect,
    /// If it is tried at its first address only, until it is connected there: after this time.
    pub(crate) first_after: Option<Duration>,
    pub(crate) events: TargetSink,
}

/// Receives the events of a target. It runs on the control thread, and must not block.
pub(crate) type TargetSink = Box<dyn FnMut(TargetEvent) + Send>;
