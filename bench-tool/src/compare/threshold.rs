//! `--fail-if`: limits for the change from A to B.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::verdict::Comparison;
use crate::exit::Status;
use crate::report::metric::Metric;

/// A figure, and the change from A to B beyond which the comparison fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Threshold {
    metric: Metric,
    /// If positive, a larger increase fails; if negative, a larger decrease.
    percent: f64,
}

impl FromStr for Threshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let names = Metric::ALL.map(Metric::name).join(", ");
            format!(
                "`{text}` is not a threshold: write a figure ({names}), + or -, and percent, as in p99+5% or rate-3%"
            )
        };
        let (name, sign) = text
            .find(['+', '-'])
            .and_then(|at| text.split_at_checked(at))
            .ok_or_else(wrong)?;
        let metric = Metric::named(name).ok_or_else(wrong)?;
        let number = sign.strip_suffix('%').ok_or_else(wrong)?;
        let is_plain = |c: char| c.is_ascii_digit() || c == '.';
        if !number.chars().skip(1).all(is_plain) {
            return Err(wrong());
        }
        let percent: f64 = number.parse().map_err(|_| wrong())?;
        if !percent.is_finite() || percent <= -100.0 {
            return Err(wrong());
        }
        Ok(Self { metric, percent })
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:+}%", self.metric.name(), self.percent)
    }
}

impl Serialize for Threshold {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The result for a threshold.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Check {
    /// The combination of two sweeps; empty if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub point: String,
    /// The threshold.
    pub threshold: Threshold,
    /// The measured change.
    pub change_percent: f64,
    /// Whether the change is beyond the threshold.
    pub exceeded: bool,
    /// Whether the change is beyond noise.
    pub significant: bool,
}

impl Check {
    /// Checks a threshold for a combination; `None` if its figure was not compared.
    #[must_use]
    pub(crate) fn new(
        threshold: Threshold,
        point: &str,
        comparisons: &[Comparison],
    ) -> Option<Self> {
        let found = comparisons.iter().find(|c| c.metric == threshold.metric)?;
        let change_percent = found.change_percent();
        let exceeded = if threshold.percent.is_sign_negative() {
            change_percent < threshold.percent
        } else {
            change_percent > threshold.percent
        };
        Some(Self {
            point: point.to_owned(),
            threshold,
            change_percent,
            exceeded,
            significant: found.is_significant(),
        })
    }

    /// The exit status for all thresholds together.
    #[must_use]
    pub(crate) fn status(checks: &[Self]) -> Status {
        let mut exceeded = checks.iter().filter(|check| check.exceeded).peekable();
        if exceeded.peek().is_none() {
            Status::Success
        } else if exceeded.any(|check| check.significant) {
            Status::Exceeded
        } else {
            Status::ExceededInNoise
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            point,
            threshold,
            change_percent,
            ..
        } = self;
        if !point.is_empty() {
            write!(f, "{point}: ")?;
        }
        let verdict = match (self.exceeded, self.significant) {
            (false, _) => "kept",
            (true, true) => "EXCEEDED, beyond noise",
            (true, false) => "exceeded, but not beyond noise",
        };
        write!(f, "{threshold}: {verdict} ({change_percent:+.1} %)")
    }
}

#[cfg(test)]
mod tests {
    use super::super::rank_sum::Design;
    use super::super::runs::{Run, tests::report};
    use super::super::verdict::compare;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn thresholds_are_read_and_shown() {
        for (text, shown) in [
            ("p99+5%", "p99+5%"),
            ("p999+12.5%", "p99.9+12.5%"),
            ("rate-3%", "rate-3%"),
            ("p50+0%", "p50+0%"),
        ] {
            assert_eq!(text.parse::<Threshold>().unwrap().to_string(), shown);
        }
        for text in [
            "",
            "p99",
            "p99+5",
            "p99+%",
            "p99+-5%",
            "p98+5%",
            "+5%",
            "p99+5%%",
            "rate-100%",
            "p99+1e3%",
            "p99+inf%",
            "p99 + 5%",
        ] {
            assert!(
                text.parse::<Threshold>().unwrap_err().contains("rate-3%"),
                "{text}"
            );
        }
    }

    fn checks(runs: usize, factor: f64, thresholds: &[&str]) -> Vec<Check> {
        let group = |factor: f64| -> Vec<Run> {
            let p50 =
                (0..u32::try_from(runs).unwrap()).map(|run| (400.0 + f64::from(run)) * factor);
            p50.map(|p50| Run::new(&report(p50)).unwrap()).collect()
        };
        let comparisons = compare(&group(1.0), &group(factor), Design::Apart, 1);
        let check = |text: &&str| Check::new(text.parse().unwrap(), "", &comparisons).unwrap();
        thresholds.iter().map(check).collect()
    }

    #[test]
    fn threshold_tells_an_excess_beyond_noise_from_noise() {
        let kept = checks(7, 1.04, &["p99+5%", "rate-5%"]);
        assert_eq!(Check::status(&kept), Status::Success);
        assert!(
            kept[0].to_string().starts_with("p99+5%: kept (+4.0"),
            "{}",
            kept[0]
        );
        let exceeded = checks(7, 1.1, &["p99+50%", "rate-5%"]);
        assert_eq!(Check::status(&exceeded), Status::Exceeded);
        assert!(exceeded[1].to_string().contains("EXCEEDED, beyond noise"));
        let single = checks(1, 1.1, &["p50+5%"]);
        assert_eq!(Check::status(&single), Status::ExceededInNoise);
        assert!(single[0].to_string().contains("not beyond noise"));
        assert_eq!(Check::status(&[]), Status::Success);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(p99|rate)?[+-]?\\PC{0,8}%?") {
            let _ = text.parse::<Threshold>();
        }
    }
}
