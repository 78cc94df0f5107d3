//! A target as the application holds it.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use crate::events::TargetEvent;
use crate::reconnect::TargetId;
use crate::request::{Owner, Request};

/// A server that a node stays connected to ([`NodeHandle::keep_connected`](crate::NodeHandle::keep_connected)).
///
/// Take its events, or they accumulate in memory. Dropping the target cancels it: its connection is closed, whether it is
/// established or being made, and no other is made.
///
/// # Example
///
/// ```no_run
/// use std::time::Duration;
///
/// use rpcrdma_control::{ConnectOptions, Node, Reconnect, ShmProvider, TargetEvent};
/// use rpcrdma_engine::Application;
///
/// fn stay_connected(node: &Node<impl Application>) {
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
        // This fails only after the control thread has ended, and all connections with it.
        let cancel = Request::Cancel(Owner::Target(self.id));
        if self.requests.send(cancel).is_ok() {
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
