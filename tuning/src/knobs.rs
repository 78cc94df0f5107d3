//! The knobs that are choices rather than numbers.

use serde::{Deserialize, Serialize};

/// What to do about hugepages when an arena of registered memory is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hugepages {
    /// Take hugepages; where there are none, take transparent or ordinary pages and say so in the
    /// report.
    Prefer,
    /// Take hugepages; where there are none, refuse to start.
    Require,
    /// Take ordinary pages.
    Never,
}

/// What a core does when a poll found nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Idle {
    /// Poll again at once. Lowest latency; the core is always busy.
    Spin,
    /// Issue the processor's pause instruction between polls, which leaves more to a sibling
    /// hyper-thread.
    Pause,
    /// Spin, then pause, and after `idle_park_after_us` without work sleep on the fabric's event
    /// descriptor. The first message after a sleep pays for a wake-up by the kernel.
    Park,
}

/// Where the receives of a core are posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReceiveQueues {
    /// In one queue that all connections of the core share, where the device has such.
    Shared,
    /// In a queue for each connection.
    Own,
}
