//! One connection of a client.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rpcrdma_control::Target;

use crate::exchange::{CoreShared, Line, Message, Slots, Submissions};
use crate::node::Node;

/// One connection of a client, with what its calls need.
pub(super) struct ClientLine {
    pub(super) line: Arc<Line>,
    pub(super) core: Arc<CoreShared>,
    /// Where calls wait for their replies, but for those of pollers.
    pub(super) slots: Arc<Slots>,
    /// The way to the core for those calls.
    pub(super) submissions: Mutex<Submissions>,
    pub(super) results_bytes_max: usize,
    pub(super) timeout: Duration,
    pub(super) spin: Duration,
    /// Dropping it closes the connection, also one that is only being made. In a lock so that it may be shared.
    pub(super) _target: Mutex<Target>,
    pub(super) node: Node,
}

impl ClientLine {
    /// Hands a call to the core. Its tag is the slot that it comes back to.
    #[inline]
    pub(super) fn submit(&self, message: Box<Message>) {
        let submissions = self.submissions.lock();
        submissions
            .unwrap_or_else(PoisonError::into_inner)
            .push(message);
        self.core.wake();
    }
}

impl Drop for ClientLine {
    fn drop(&mut self) {
        // Calls that nobody waits for any more need not wait for the connection.
        self.line.give_up();
    }
}
