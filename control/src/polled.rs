//! Cores that a thread of the caller polls.

use std::fmt;

use rpcrdma_engine::{Activity, Application, Core};
use rpcrdma_fabric::interface::Port;

/// A core without a thread: it does its work in [`PolledCore::poll`], on whichever thread calls that. For programs whose threads
/// poll several things in turn, such as reactors of SPDK ([`Node::start_polled`](crate::Node::start_polled)).
///
/// Dropping it closes its connections, and calls in flight fail. A node that lives longer gives no more connections to it, and
/// rejects those that only it could take.
pub struct PolledCore {
    /// `None` once it has stopped.
    core: Option<Box<dyn AnyCore>>,
}

/// A core of whichever fabric and application.
trait AnyCore: Send {
    /// One iteration: what it did, and whether the core was asked to stop.
    fn iterate(&mut self) -> (Activity, bool);
    fn finish(self: Box<Self>);
}

impl<P: Port, A: Application> AnyCore for Core<P, A> {
    fn iterate(&mut self) -> (Activity, bool) {
        (Self::iterate(self), self.is_stopped())
    }

    fn finish(self: Box<Self>) {
        drop(Self::finish(*self));
    }
}

impl PolledCore {
    pub(crate) fn new<P: Port, A: Application>(core: Core<P, A>) -> Self {
        Self {
            core: Some(Box::new(core)),
        }
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
        let (activity, is_stopped) = core.iterate();
        if is_stopped {
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
            core.finish();
        }
    }
}

impl Drop for PolledCore {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for PolledCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolledCore")
            .field("is_stopped", &self.is_stopped())
            .finish_non_exhaustive()
    }
}
