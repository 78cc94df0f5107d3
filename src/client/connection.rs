//! One connection of a client.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::home::Home;
use crate::exchange::{CoreShared, Message, PeerConnection, Slots, SubmissionSink};
use crate::node::Node;

/// One connection of a client, with what its calls need.
pub(super) struct ClientConnection {
    pub(super) peer: Arc<PeerConnection>,
    pub(super) core: Arc<CoreShared>,
    /// Where calls wait for their replies, but for those of pollers.
    pub(super) slots: Arc<Slots>,
    /// The way to the core for those calls.
    pub(super) submissions: Mutex<SubmissionSink>,
    pub(super) results_bytes_max: usize,
    pub(super) timeout: Duration,
    pub(super) spin: Duration,
    pub(super) home: Arc<Home>,
    pub(super) node: Node,
}

impl ClientConnection {
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

impl Drop for ClientConnection {
    fn drop(&mut self) {
        // Calls that nobody waits for any more need not wait for the connection.
        self.peer.give_up();
        self.home.close();
    }
}
