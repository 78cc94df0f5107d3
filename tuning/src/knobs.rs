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

/// What becomes of explicit RDMA where the device has no memory windows of type 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WithoutWindows {
    /// No memory is exposed: bulk data stays in messages, or is placed by Sends.
    Refuse,
    /// Memory is registered for each call: two system calls, and a key that opens the buffer to every
    /// peer of the core, not to one alone.
    Register,
}

/// A knob's value that a device may limit.
pub(crate) trait Limited: Sized {
    /// What is left of the value where `limit` is the most that can be had; `None` when the value is
    /// within it.
    fn cut_to(self, limit: Self) -> Option<Self>;
}

impl Limited for u32 {
    fn cut_to(self, limit: Self) -> Option<Self> {
        (self > limit).then_some(limit)
    }
}

impl Limited for ReceiveQueues {
    /// A device that limits it has no shared ones.
    fn cut_to(self, limit: Self) -> Option<Self> {
        (self == Self::Shared && limit == Self::Own).then_some(limit)
    }
}

/// Choices that no device takes away.
macro_rules! unlimited {
    ($($kind:ty),*) => {
        $( impl Limited for $kind {
            fn cut_to(self, _limit: Self) -> Option<Self> {
                None
            }
        } )*
    };
}

unlimited!(Hugepages, Idle, WithoutWindows);
