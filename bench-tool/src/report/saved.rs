//! A report of a load, read again from its JSON: what it needs to be added to others.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::figures::LossFigures;
use crate::histogram::{DecodeError, ExactFigures, LatencyHistogram};

/// What the JSON of `run`, `nfs`, `fleet` and `merge` has in common.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct SavedLoad {
    pub(crate) schema: String,
    #[serde(default)]
    pub(crate) command: String,
    /// Calls that succeeded in the measured time.
    pub(crate) calls: u64,
    /// Calls that ended in an error.
    pub(crate) errors: u64,
    pub(crate) rate_per_s: f64,
    pub(crate) duration_s: f64,
    /// `None` without calls.
    latency_ns: Option<ExactFigures>,
    histogram: String,
    #[serde(default)]
    pub(crate) bandwidth_bytes_per_s: f64,
    /// When the measurement began (RFC 3339).
    #[serde(default)]
    pub(crate) began: String,
    #[serde(default)]
    pub(crate) interrupted: bool,
    /// Why the run failed although it has results.
    #[serde(default)]
    pub(crate) failure: Option<String>,
    /// The clients of a fleet that failed.
    #[serde(default)]
    pub(crate) failures: Vec<Value>,
    #[serde(default)]
    pub(crate) disturbed: bool,
    #[serde(default)]
    pub(crate) depth: u32,
    #[serde(default)]
    pub(crate) connections: u32,
    #[serde(default)]
    pub(crate) warmup_s: f64,
    #[serde(default)]
    pub(crate) interval_s: f64,
    /// `closed` or `open`; none in a sum.
    #[serde(default, rename = "loop")]
    pub(crate) load_loop: Option<String>,
    /// The address of the server.
    #[serde(default)]
    pub(crate) connect: Option<String>,
    /// See [`crate::run::report::Report::server_counters`].
    #[serde(default)]
    pub(crate) server_counters: Option<BTreeMap<String, u64>>,
    #[serde(flatten)]
    pub(crate) losses: LossFigures,
}

/// Why a report cannot be added to others.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SavedError {
    #[error("it is no report of a load: {0}")]
    Layout(#[from] serde_json::Error),
    #[error(transparent)]
    Histogram(#[from] DecodeError),
    #[error("it has {calls} calls, and its histogram has {count} latencies")]
    Calls { calls: u64, count: u64 },
}

impl SavedLoad {
    /// Reads a report, and restores its histogram.
    ///
    /// # Errors
    /// What is missing or contradicts itself.
    pub(crate) fn read(report: &Value) -> Result<(Self, LatencyHistogram), SavedError> {
        let saved = Self::deserialize(report)?;
        let latency =
            LatencyHistogram::decode(&saved.histogram, &saved.latency_ns.unwrap_or_default())?;
        if latency.count() != saved.calls {
            return Err(SavedError::Calls {
                calls: saved.calls,
                count: latency.count(),
            });
        }
        Ok((saved, latency))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::report::tests::report;
    use serde_json::json;

    #[test]
    fn the_report_of_a_run_is_read_again() {
        let original = report();
        let value = serde_json::to_value(&original).unwrap();
        let (saved, latency) = SavedLoad::read(&value).unwrap();
        assert_eq!((saved.calls, saved.errors), (original.load.calls, 0));
        assert_eq!(latency.summary(), original.load.latency_ns);
        assert_eq!(saved.losses, original.load.losses);
        assert_eq!((saved.depth, saved.connections), (1, 1));
    }

    #[test]
    fn a_report_without_a_histogram_or_with_another_count_is_refused() {
        let value = serde_json::to_value(report()).unwrap();
        let refused = |change: &dyn Fn(&mut Value)| {
            let mut value = value.clone();
            change(&mut value);
            SavedLoad::read(&value).unwrap_err().to_string()
        };
        let old = refused(&|it| drop(it.as_object_mut().unwrap().remove("histogram")));
        assert!(old.contains("missing field `histogram`"), "{old}");
        let other = refused(&|it| it["calls"] = json!(5));
        assert!(other.contains("it has 5 calls, and"), "{other}");
        let cut = refused(&|it| it["latency_ns"]["count"] = json!(5));
        assert!(cut.contains("latency_ns says 5"), "{cut}");
        assert!(refused(&|it| *it = json!([])).contains("no report of a load"));
    }
}
