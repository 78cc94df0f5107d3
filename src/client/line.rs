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
    /// Dropping it ends the attempts to connect. In a lock so that it may be shared.
    pub(super) target: Mutex<Option<Target>>,
    pub(super) core_number: usize,
    pub(super) node: Node,
}

impl ClientLine {
    /// Hands a call to the core. Its tag is the slot that it comes back to.
    #[inline]
    pub(super) fn submit(&self, message: Box<Message>) {
        let submissions = self.submissions.lock();
        let pushed = submissions
            .unwrap_or_else(PoisonError::into_inner)
            .push(message);
        debug_assert!(
            pushed.is_ok(),
            "there is room for as many as there are slots"
        );
        self.core.wake();
    }
}

impl Drop for ClientLine {
    fn drop(&mut self) {
        // First, so that it does not connect again.
        let target = self
            .target
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        drop(target.take());
        if let Some(key) = self.line.connection() {
            self.node.inner().close(self.core_number, key);
        }
    }
}
