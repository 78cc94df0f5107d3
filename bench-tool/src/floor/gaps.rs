//! Time that scheduler, interrupts and hypervisor take from a polling core.
//!
//! A thread that only reads the clock sees every interruption as a jump. No transport on this machine can keep these
//! jumps out of its latency tail.

use std::time::Duration;

use super::on_cores;
use crate::clock::clock;
use crate::exit::Failure;

/// A larger jump of the clock is a gap: far above a cache miss, and below the shortest time slice.
pub(crate) const GAP_NS_MIN: u64 = 20_000;

/// The gaps of one core.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub(crate) struct Gaps {
    /// The core.
    pub core: usize,
    /// Length of the measurement.
    pub duration_s: f64,
    /// Gaps above 20 us.
    pub gaps_above_20us: u64,
    /// Gaps above 100 us.
    pub gaps_above_100us: u64,
    /// Gaps above 500 us.
    pub gaps_above_500us: u64,
    /// The longest gap.
    pub longest_ns: u64,
    /// Share of the time that the gaps took, 0 to 1.
    pub stolen_share: f64,
}

/// Watches both cores at the same time for `duration`, because a run keeps both busy.
///
/// # Errors
/// If a core cannot be pinned to.
pub(crate) fn gaps(cores: [usize; 2], duration: Duration) -> Result<[Gaps; 2], Failure> {
    let limit_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let (first, second) = on_cores(
        cores,
        || watch(cores[0], limit_ns),
        || watch(cores[1], limit_ns),
    )?;
    Ok([first, second])
}

fn watch(core: usize, limit_ns: u64) -> Gaps {
    let clock = clock();
    let begin = clock.raw();
    let mut tally = Tally::default();
    let mut last = begin;
    loop {
        let now = clock.raw();
        tally.add(clock.delta_as_nanos(last, now));
        last = now;
        let elapsed_ns = clock.delta_as_nanos(begin, now);
        if elapsed_ns >= limit_ns {
            return tally.finish(core, elapsed_ns);
        }
    }
}

#[derive(Default)]
struct Tally {
    gaps: Gaps,
    stolen_ns: u64,
}

impl Tally {
    #[inline]
    fn add(&mut self, jump_ns: u64) {
        if jump_ns < GAP_NS_MIN {
            return;
        }
        self.stolen_ns += jump_ns;
        self.gaps.gaps_above_20us += 1;
        self.gaps.gaps_above_100us += u64::from(jump_ns >= 100_000);
        self.gaps.gaps_above_500us += u64::from(jump_ns >= 500_000);
        self.gaps.longest_ns = self.gaps.longest_ns.max(jump_ns);
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "a share and a duration for people"
    )]
    fn finish(self, core: usize, elapsed_ns: u64) -> Gaps {
        Gaps {
            core,
            duration_s: elapsed_ns as f64 / 1e9,
            stolen_share: self.stolen_ns as f64 / elapsed_ns.max(1) as f64,
            ..self.gaps
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_counted_by_length() {
        let mut tally = Tally::default();
        for jump_ns in [15, 19_999, 20_000, 150_000, 600_000] {
            tally.add(jump_ns);
        }
        let gaps = tally.finish(3, 7_700_000);
        assert_eq!(
            (
                gaps.core,
                gaps.gaps_above_20us,
                gaps.gaps_above_100us,
                gaps.gaps_above_500us
            ),
            (3, 3, 2, 1)
        );
        assert_eq!(gaps.longest_ns, 600_000);
        assert!((gaps.stolen_share - 0.1).abs() < 1e-12);
    }

    #[test]
    fn watching_ends() {
        let core = crate::machine::cores_usable()[0];
        let [first, second] = gaps([core, core], Duration::from_millis(5)).unwrap();
        assert!(first.duration_s >= 0.005 && second.duration_s >= 0.005);
        assert!(first.stolen_share <= 1.0);
    }
}
