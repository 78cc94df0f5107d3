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
    Connect {
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
    CancelTarget(TargetId),
    Drain {
        timeout: Duration,
        answer: Sender<DrainReport>,
    },
    Stop,
}

/// A target as the application asked for it.
pub(crate) struct Wanted {
    pub(crate) id: TargetId,
    pub(crate) address: String,
    pub(crate) options: ConnectOptions,
    pub(crate) reconnect: Reconnect,
    pub(crate) events: TargetSink,
}

/// Receives the events of a target. It runs on the control thread, and must not block.
pub(crate) type TargetSink = Box<dyn FnMut(TargetEvent) + Send>;
