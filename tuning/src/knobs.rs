//! The knobs that are choices rather than numbers.

use serde::{Deserialize, Serialize};

/// What to do about hugepages when an arena of registered memory is made.
///
/// # Example
///
/// ```
/// use rpcrdma_tuning::{Hugepages, Layers, Settings};
///
/// let mut command_line = Settings::default();
/// command_line.assign("hugepages=require")?;
/// command_line.assign("hugepage_bytes=1073741824")?;
/// // A process with this does not start where hugepages of 1 GiB are not to be had.
/// let profile = Layers::named("mlx5")?.overrides(&command_line).build()?.profile;
/// assert_eq!((profile.hugepages, profile.hugepage_bytes), (Hugepages::Require, 1 << 30));
/// # Ok::<(), rpcrdma_tuning::Error>(())
/// ```
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
///
/// # Example
///
/// ```
/// use rpcrdma_tuning::{Idle, Profile};
///
/// let mut profile = Profile::default();
/// assert_eq!(profile.idle, Idle::Spin);
/// // For cores that others want as well: asleep after a millisecond without work.
/// (profile.idle, profile.idle_park_after_us) = (Idle::Park, 1000);
/// assert_eq!(profile.value_text("idle").as_deref(), Some("\"park\""));
/// profile.validate()?;
/// # Ok::<(), rpcrdma_tuning::Error>(())
/// ```
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
///
/// # Example
///
/// ```
/// use rpcrdma_tuning::{Layers, ReceiveQueues, Settings};
///
/// // A device that has no shared ones takes them away from any profile, and it is told.
/// let device = Settings { receive_queues: Some(ReceiveQueues::Own), ..Settings::default() };
/// let loaded = Layers::defaults().limited(&device, "the device").build()?;
/// assert_eq!(loaded.profile.receive_queues, ReceiveQueues::Own);
/// assert_eq!(loaded.clamps[0].asked.value, "\"shared\"");
/// # Ok::<(), rpcrdma_tuning::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReceiveQueues {
    /// In one queue that all connections of the core share, where the device has such.
    Shared,
    /// In a queue for each connection.
    Own,
}

/// What becomes of explicit RDMA where the device has no memory windows of type 2.
///
/// # Example
///
/// ```
/// use rpcrdma_tuning::{Profile, Settings, WithoutWindows};
///
/// assert_eq!(Profile::by_name("siw")?.without_windows, WithoutWindows::Refuse);
/// // Among peers that trust each other; "expose" is no choice.
/// let mut command_line = Settings::default();
/// command_line.assign("without_windows=register")?;
/// assert_eq!(command_line.without_windows, Some(WithoutWindows::Register));
/// assert!(command_line.assign("without_windows=expose").is_err());
/// # Ok::<(), rpcrdma_tuning::Error>(())
/// ```
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
