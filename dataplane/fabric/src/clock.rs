//! Ticks of the processor's time stamp counter, and their conversion to time.
//!
//! A poll iteration reads the clock once. The counter is invariant and common to all cores on the
//! machines that this project runs on, so that ticks may be compared between two processes (the
//! set delay of the `shm` provider does). Where there is no such counter, `quanta` falls back to
//! the monotonic clock, which both processes share as well.

use std::time::Duration;

/// A reading of the clock, in ticks. Only differences and comparisons mean anything.
pub type Ticks = u64;

/// A calibrated clock: cheap raw readings, and their conversion to time.
#[derive(Clone, Debug)]
pub struct Clock {
    inner: quanta::Clock,
    ticks_per_second: u64,
}

impl Clock {
    /// Calibrates the clock (once per process; the first call takes up to 200 ms).
    #[must_use]
    pub fn new() -> Self {
        let inner = quanta::Clock::new();
        let probe_ticks = 1_u64 << 30;
        let nanos = inner.delta_as_nanos(0, probe_ticks).max(1);
        let per_second = u128::from(probe_ticks) * 1_000_000_000 / u128::from(nanos);
        let ticks_per_second = u64::try_from(per_second).unwrap_or(1_000_000_000).max(1);
        Self {
            inner,
            ticks_per_second,
        }
    }

    /// The current reading. About 10 ns; not serialising.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Ticks {
        self.inner.raw()
    }

    /// Ticks in one second.
    #[must_use]
    pub fn ticks_per_second(&self) -> u64 {
        self.ticks_per_second
    }

    /// The ticks that `duration` takes, saturating.
    #[must_use]
    pub fn ticks(&self, duration: Duration) -> Ticks {
        let ticks = duration.as_nanos() * u128::from(self.ticks_per_second) / 1_000_000_000;
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    /// The nanoseconds from `start` to `end`; zero when `end` is earlier.
    #[inline]
    #[must_use]
    pub fn nanos_between(&self, start: Ticks, end: Ticks) -> u64 {
        self.inner.delta_as_nanos(start, end)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
