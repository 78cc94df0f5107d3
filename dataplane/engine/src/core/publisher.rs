//! What a core has told of itself, and tells next.

use std::time::Duration;

use rpcrdma_fabric::clock::{Clock, Ticks};

use super::sweep::Sweep;
use crate::levels::LevelSnapshot;

/// Between two publications; a sweep over many connections adds to it.
const INTERVAL: Duration = Duration::from_millis(100);

/// What is published next.
#[derive(Debug)]
pub(super) struct Publisher {
    pub(super) sweep: Sweep,
    /// What the connections visited so far come to.
    pub(super) next: LevelSnapshot,
    /// The last poll did something.
    pub(super) was_busy: bool,
    /// Replies sent when that was looked at last.
    pub(super) replies_sent: u64,
    /// Replies since then to calls that were found in a poll before.
    pub(super) late_replies: u64,
    /// Of the port, when it was looked at last.
    pub(super) receiver_not_ready: u64,
}

impl Publisher {
    pub(super) fn new(clock: &Clock, now: Ticks) -> Self {
        Self {
            sweep: Sweep::new(INTERVAL, clock, now),
            next: LevelSnapshot::default(),
            was_busy: false,
            replies_sent: 0,
            late_replies: 0,
            receiver_not_ready: 0,
        }
    }
}
