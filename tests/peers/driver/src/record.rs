//! Raw values: one line of JSON for each run.

use serde::{Deserialize, Serialize};

/// Floors apart by more than this share of the higher one make a run void.
const FLOORS_APART: f64 = 0.25;

/// Below this floor, in nanoseconds, the cores are near each other.
const NEAR_BELOW_NS: u64 = 200;

/// How far the two cores are from each other. A host may move virtual processors.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Pace {
    Near,
    Far,
}

/// What a peer is.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Peer {
    /// A word without spaces.
    pub(crate) name: String,
    /// What a person reads.
    pub(crate) title: String,
    /// Its version.
    pub(crate) version: String,
}

/// What came of one run.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Measured {
        p50_ns: u64,
        round_trips_per_s: f64,
        floor_before_ns: u64,
        floor_after_ns: u64,
    },
    /// It was started, and failed.
    Failed(String),
    /// It cannot run on this machine.
    Skipped(String),
}

/// One run.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Record {
    /// Seconds since 1970.
    pub(crate) unix_s: u64,
    pub(crate) round: u32,
    pub(crate) cores: [usize; 2],
    #[serde(flatten)]
    pub(crate) peer: Peer,
    pub(crate) outcome: Outcome,
}

/// A run that counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) pace: Pace,
    pub(crate) p50_ns: f64,
    pub(crate) floor_ns: f64,
    pub(crate) round_trips_per_s: f64,
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds far below 2^52")]
fn float(value: u64) -> f64 {
    value as f64
}

impl Record {
    /// This run, when the machine was the same before and after it.
    pub(crate) fn kept(&self) -> Option<Kept> {
        let Outcome::Measured {
            p50_ns,
            round_trips_per_s,
            floor_before_ns: before,
            floor_after_ns: after,
        } = self.outcome
        else {
            return None;
        };
        let (low, high) = (before.min(after), before.max(after));
        let is_same_pace = (low < NEAR_BELOW_NS) == (high < NEAR_BELOW_NS);
        if !is_same_pace || float(high - low) > float(high) * FLOORS_APART {
            return None;
        }
        Some(Kept {
            pace: if low < NEAR_BELOW_NS {
                Pace::Near
            } else {
                Pace::Far
            },
            p50_ns: float(p50_ns),
            floor_ns: f64::midpoint(float(before), float(after)),
            round_trips_per_s,
        })
    }
}
