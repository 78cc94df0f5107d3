//! Cores that a thread of the caller polls.

use std::fmt;

use rpcrdma_engine::{Activity, Application, Core};
use rpcrdma_fabric::interface::Port;

/// A core without a thread: it does its work in [`PolledCore::poll`], on whichever thread calls that. For programs whose threads
/// poll several things in turn, such as reactors of SPDK ([`Node::start_polled`](crate::Node::start_polled)).
///
/// Dropping it closes its connections, and calls in flight fail. A node that lives longer gives no more connections to it, and
/// rejects those that only it could take.
pub struct PolledCore<P: Port, A: Application> {
    /// `None` once it has stopped.
    core: Option<Core<P, A>>,
}

impl<P: Port, A: Application> PolledCore<P, A> {
    pub(crate) fn new(core: Core<P, A>) -> Self {
        Self { core: Some(core) }
    }

    /// Does what there is to do, within bounds, and returns: busy when there was something. Never waits. Reads the clock at
    /// every some polls only, so timers are late by as many intervals between polls.
    ///
    /// When the node has stopped, the core closes its connections and is idle from then on.
    #[inline]
    pub fn poll(&mut self) -> Activity {
        let Some(core) = &mut self.core else {
            return Activity::Idle;
        };
        let activity = core.iterate();
        if core.is_stopped() {
            self.stop();
        }
        activity
    }

    /// Whether the node has stopped, and this core with it.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.core.is_none()
    }

    #[cold]
    fn stop(&mut self) {
        if let Some(core) = self.core.take() {
            drop(core.finish());
        }
    }
}

impl<P: Port, A: Application> Drop for PolledCore<P, A> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<P: Port, A: Application> fmt::Debug for PolledCore<P, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolledCore")
            .field("is_stopped", &self.is_stopped())
            .finish_non_exhaustive()
    }
}
