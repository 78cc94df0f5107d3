//! The cost of a clock reading. Every timed call includes two.

use std::hint;
use std::time::Instant;

use crate::clock::clock;

/// Reads per batch.
const READS: u32 = 20_000;

/// Number of batches. The median counts, so an interrupt spoils only one batch.
const BATCHES: usize = 31;

/// Cost of one read, in nanoseconds.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct ClockCost {
    /// The source of the tool's clock.
    pub source: String,
    /// Reading the raw counter, as polling cores do.
    pub raw_ns: f64,
    /// Reading the standard library's monotonic clock, for comparison.
    pub std_instant_ns: f64,
}

/// Measures both clocks on the calling thread's core. Takes a few tens of milliseconds.
#[must_use]
pub(crate) fn clock_cost() -> ClockCost {
    ClockCost {
        source: crate::clock::source(),
        raw_ns: clock_read_ns(),
        std_instant_ns: median_cost_ns(|| {
            hint::black_box(Instant::now());
        }),
    }
}

/// Cost of one reading of the clock that times calls, on the calling thread's core.
#[must_use]
pub(crate) fn clock_read_ns() -> f64 {
    let clock = clock();
    median_cost_ns(|| {
        hint::black_box(clock.raw());
    })
}

fn median_cost_ns(read: impl Fn()) -> f64 {
    let clock = clock();
    let mut costs: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let begin = clock.raw();
            for _ in 0..READS {
                read();
            }
            #[allow(clippy::cast_precision_loss, reason = "a mean over thousands of reads")]
            let total_ns = clock.delta_as_nanos(begin, clock.raw()) as f64;
            total_ns / f64::from(READS)
        })
        .collect();
    costs.sort_unstable_by(f64::total_cmp);
    (costs[BATCHES / 2] * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_a_clock_costs_something() {
        let cost = clock_cost();
        assert!(cost.raw_ns > 0.0 && cost.std_instant_ns > 0.0, "{cost:?}");
        assert!(!cost.source.is_empty());
    }
}
