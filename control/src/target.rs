//! A target as the application holds it.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use rpcrdma_engine::CloseReason;

use crate::error::ConnectError;
use crate::node::Connection;
use crate::reconnect::TargetId;
use crate::thread::Request;

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

/// An address that a node stays connected to ([`Node::keep_connected`](crate::Node::keep_connected)).
///
/// Take its events, or they accumulate in memory. Dropping the target cancels it: no further attempt is made, and an
/// attempt under way is given up. An established connection stays open, and the application has to close it.
///
/// # Example
///
/// ```no_run
/// use std::time::Duration;
///
/// use rpcrdma_control::{ConnectOptions, Node, Reconnect, ShmProvider, TargetEvent};
/// use rpcrdma_engine::Application;
///
/// fn stay_connected(node: &Node<ShmProvider, impl Application>) {
///     let target = node.keep_connected("shm:store", ConnectOptions::default(), Reconnect::default());
///     while let Some(event) = target.wait(Duration::from_secs(60)) {
///         // As in "lost the connection to ...; retrying in 15 ms".
///         eprintln!("{event}");
///         if matches!(event, TargetEvent::GivenUp(_)) {
///             break;
///         }
///     }
/// }
/// ```
pub struct Target {
    id: TargetId,
    events: Receiver<TargetEvent>,
    requests: Sender<Request>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl Target {
    pub(crate) fn new(
        id: TargetId,
        events: Receiver<TargetEvent>,
        requests: Sender<Request>,
        wake: Arc<dyn Fn() + Send + Sync>,
    ) -> Self {
        Self {
            id,
            events,
            requests,
            wake,
        }
    }

    /// The next event, or nothing when none came within `timeout`, or none will come: after [`TargetEvent::GivenUp`],
    /// and when the node has stopped.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> Option<TargetEvent> {
        self.events.recv_timeout(timeout).ok()
    }

    /// The next event, if one has come.
    #[must_use]
    pub fn next_event(&self) -> Option<TargetEvent> {
        self.events.try_recv().ok()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // This fails only after the control thread has ended. Then no attempt is made anyway.
        if self.requests.send(Request::CancelTarget(self.id)).is_ok() {
            (self.wake)();
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
