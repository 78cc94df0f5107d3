//! The figures of runs that `sweep` and `compare` take together, and their medians.

use serde::Serialize;

use rpcrdma_units::{nanoseconds, rate};

/// A figure of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metric {
    /// Median of the round-trip times, in nanoseconds.
    P50,
    /// 90th percentile of the round-trip times, in nanoseconds.
    P90,
    /// 99th percentile, in nanoseconds.
    P99,
    /// 99.9th percentile, in nanoseconds.
    #[serde(rename = "p99_9")]
    P999,
    /// Mean of the round-trip times, in nanoseconds.
    Mean,
    /// Calls per second.
    Rate,
}

/// Number of figures.
pub(crate) const METRICS: usize = Metric::ALL.len();

impl Metric {
    /// All figures, in the order of the table.
    pub(crate) const ALL: [Self; 6] = [
        Self::P50,
        Self::P90,
        Self::P99,
        Self::P999,
        Self::Mean,
        Self::Rate,
    ];

    /// The name in tables.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::P50 => "p50",
            Self::P90 => "p90",
            Self::P99 => "p99",
            Self::P999 => "p99.9",
            Self::Mean => "mean",
            Self::Rate => "rate",
        }
    }

    /// The figure with a name as users write it: p999, p99.9 and p99_9 are the same.
    #[must_use]
    pub(crate) fn named(text: &str) -> Option<Self> {
        let plain = |name: &str| name.replace(['.', '_'], "");
        Self::ALL
            .into_iter()
            .find(|metric| plain(metric.name()) == plain(text))
    }

    /// The unit in the JSON.
    #[must_use]
    pub(crate) const fn unit(self) -> &'static str {
        match self {
            Self::Rate => "per_s",
            _ => "ns",
        }
    }

    /// A value with its unit, for the terminal.
    #[must_use]
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "values are above zero, and the conversion saturates"
    )]
    pub(crate) fn text(self, value: f64) -> String {
        match self {
            Self::Rate => rate(value),
            _ => nanoseconds(value.round() as u64),
        }
    }

    /// Whether a higher value is better.
    #[must_use]
    pub(crate) const fn is_better_when_more(self) -> bool {
        matches!(self, Self::Rate)
    }
}

/// The median of sorted values; 0 if there are none.
#[must_use]
pub(crate) fn median(sorted: &[f64]) -> f64 {
    let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
    let half = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) {
        f64::midpoint(at(half.saturating_sub(1)), at(half))
    } else {
        at(half)
    }
}

/// The values in ascending order.
#[must_use]
pub(crate) fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_found_by_its_name() {
        for metric in Metric::ALL {
            assert_eq!(Metric::named(metric.name()), Some(metric));
        }
        for text in ["p999", "p99_9", "p99.9"] {
            assert_eq!(Metric::named(text), Some(Metric::P999));
        }
        for text in ["", "p", "p95", "P50", "max"] {
            assert_eq!(Metric::named(text), None, "{text}");
        }
        assert_eq!(Metric::P50.text(412.4), "412 ns");
        assert_eq!(Metric::Rate.text(2_000_000.0), "2.000 M/s");
    }
    #[test]
    fn the_median_of_an_even_number_is_between_two() {
        assert!((median(&[1.0, 2.0, 4.0]) - 2.0).abs() < 1e-12);
        assert!((median(&[1.0, 2.0, 4.0, 5.0]) - 3.0).abs() < 1e-12);
    }
}
