//! The latency floor: one cache line each way between two cores, through a ring.
//!
//! A ring uses many lines in turn, which makes the result stable. The time for a single pair of lines varies between
//! half and one and a half of it, depending on where the lines are.

use serde::{Deserialize, Serialize};
use std::hint;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::on_cores;
use crate::clock::clock;
use crate::exit::Failure;
use crate::histogram::LatencyHistogram;

/// Lines in each direction; a power of two.
pub(crate) const SLOTS: usize = 64;

/// Distance between lines in bytes: two cache lines, because x86 prefetches lines in pairs.
pub(crate) const SLOT_BYTES: usize = 128;

/// Number of round trips that do not count: they warm the caches, and the other thread gets going.
const WARM_UP: u64 = 4096;

/// The value in place of a sequence number that ends the responder.
const STOP: u64 = u64::MAX;

#[repr(align(128))]
struct Slot(AtomicU64);

const _: () = assert!(size_of::<Slot>() == SLOT_BYTES && SLOTS.is_power_of_two());

struct Ring(Box<[Slot]>);

impl Ring {
    fn new() -> Self {
        Self((0..SLOTS).map(|_| Slot(AtomicU64::new(0))).collect())
    }

    #[inline]
    fn slot(&self, sequence: u64) -> &AtomicU64 {
        #[allow(clippy::cast_possible_truncation, reason = "masked to the ring")]
        let index = sequence as usize & (SLOTS - 1);
        &self.0[index].0
    }
}

/// Round trips between two cores.
#[derive(Clone, Debug)]
pub(crate) struct RoundTrip {
    /// The timing core and the responding core.
    pub cores: [usize; 2],
    /// Every round trip after the warm-up, out and back, in nanoseconds.
    pub latency: LatencyHistogram,
    /// The median of each merged round.
    pub round_p50_ns: Vec<u64>,
}

impl RoundTrip {
    /// The floor: the median of the rounds' medians, in nanoseconds. Not the best one, which would depend on luck.
    #[must_use]
    pub(crate) fn p50_ns(&self) -> u64 {
        let mut medians = self.round_p50_ns.clone();
        medians.sort_unstable();
        let upper = medians.len() / 2;
        let lower = medians.len().saturating_sub(1) / 2;
        match (medians.get(lower), medians.get(upper)) {
            (Some(&lower), Some(&upper)) => lower.midpoint(upper),
            _ => 0,
        }
    }

    /// Adds another round between the same cores. Rounds before and after a run show whether the machine changed
    /// meanwhile.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.latency.merge(&other.latency);
        self.round_p50_ns.extend_from_slice(&other.round_p50_ns);
    }
}

/// Measures round trips between two cores for `duration`. Both cores spin, so nothing else should run on them.
///
/// # Errors
/// If a core cannot be pinned to.
pub(crate) fn round_trip(cores: [usize; 2], duration: Duration) -> Result<RoundTrip, Failure> {
    let (requests, replies) = (Ring::new(), Ring::new());
    let (latency, ()) = on_cores(
        cores,
        || request(&requests, &replies, duration),
        || respond(&requests, &replies),
    )?;
    let round_p50_ns = vec![latency.percentile_ns(50.0)];
    Ok(RoundTrip {
        cores,
        latency,
        round_p50_ns,
    })
}

fn request(requests: &Ring, replies: &Ring, duration: Duration) -> LatencyHistogram {
    let clock = clock();
    let limit_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let mut latency = LatencyHistogram::new();
    let begin = clock.raw();
    let mut sequence = 0;
    loop {
        sequence += 1;
        let (request, reply) = (requests.slot(sequence), replies.slot(sequence));
        let start = clock.raw();
        // SYNC POINT floor-request: Release as a real ring would need it; pairs with the Acquire in `respond`.
        request.store(sequence, Ordering::Release);
        // SYNC POINT floor-reply: Acquire; pairs with the Release in `respond`.
        while reply.load(Ordering::Acquire) != sequence {
            hint::spin_loop();
        }
        let end = clock.raw();
        if sequence > WARM_UP {
            latency.record(clock.delta_as_nanos(start, end));
            if sequence.is_multiple_of(1024) && clock.delta_as_nanos(begin, end) >= limit_ns {
                break;
            }
        }
    }
    // Relaxed: the value publishes no other data.
    requests.slot(sequence + 1).store(STOP, Ordering::Relaxed);
    latency
}

fn respond(requests: &Ring, replies: &Ring) {
    let mut sequence = 1;
    loop {
        // SYNC POINT floor-request: Acquire; pairs with the Release in `request`.
        match requests.slot(sequence).load(Ordering::Acquire) {
            // SYNC POINT floor-reply: Release; pairs with the Acquire in `request`.
            found if found == sequence => {
                replies.slot(sequence).store(sequence, Ordering::Release);
                sequence += 1;
            }
            STOP => return,
            _ => hint::spin_loop(),
        }
    }
}

/// The latency floor in a report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FloorSummary {
    /// Median of the rounds' medians: one cache line each way, through a ring.
    pub round_trip_ns: u64,
    /// The 99th percentile.
    pub round_trip_ns_p99: u64,
    /// The 99.9th percentile.
    pub round_trip_ns_p99_9: u64,
    /// The slowest round trip.
    pub round_trip_ns_max: u64,
    /// The median of each round.
    pub round_trip_ns_p50_of_rounds: Vec<u64>,
    /// Number of measured round trips.
    pub round_trips: u64,
    /// The two cores.
    pub cores: [usize; 2],
    /// The run's median divided by `round_trip_ns`; `None` in a report of `floor`.
    pub p50_ratio: Option<f64>,
}

impl FloorSummary {
    /// Summarizes a floor, and compares it with the `p50_ns` of a run, if there is one.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a ratio to three decimals")]
    pub(crate) fn new(floor: &RoundTrip, p50_ns: Option<u64>) -> Self {
        let floor_ns = floor.p50_ns();
        let ratio = |p50_ns: u64| (p50_ns as f64 / floor_ns as f64 * 1000.0).round() / 1000.0;
        Self {
            round_trip_ns: floor_ns,
            round_trip_ns_p99: floor.latency.percentile_ns(99.0),
            round_trip_ns_p99_9: floor.latency.percentile_ns(99.9),
            round_trip_ns_max: floor.latency.max_ns(),
            round_trip_ns_p50_of_rounds: floor.round_p50_ns.clone(),
            round_trips: floor.latency.count(),
            cores: floor.cores,
            p50_ratio: p50_ns.filter(|_| floor_ns > 0).map(ratio),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_measures_what_two_cores_do() {
        // On a single core the two threads would alternate at the scheduler's pace: no measurement, and a slow test.
        let Ok(cores) = crate::machine::Machine::detect().default_pair() else {
            return;
        };
        let mut result = round_trip(cores, Duration::from_millis(5)).unwrap();
        assert!(result.latency.count() > 0);
        assert!(result.p50_ns() > 0);
        assert!(result.latency.min_ns() <= result.p50_ns());
        let count = result.latency.count();
        result.merge(&result.clone());
        assert_eq!(result.latency.count(), 2 * count);
        assert_eq!(result.round_p50_ns.len(), 2);
    }

    #[test]
    fn the_floor_is_the_median_of_the_rounds() {
        let latency = LatencyHistogram::new();
        let with = |round_p50_ns| RoundTrip {
            cores: [0, 1],
            latency: latency.clone(),
            round_p50_ns,
        };
        assert_eq!(with(vec![300, 210, 220]).p50_ns(), 220);
        assert_eq!(with(vec![300, 210, 220, 230]).p50_ns(), 225);
        assert_eq!(with(vec![]).p50_ns(), 0);
    }
}
