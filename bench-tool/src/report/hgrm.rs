//! The percentile distribution in the text format of HdrHistogram's plotters and log analysers.
//!
//! Columns and footer are those of HdrHistogram's `outputPercentileDistribution`. For plotters, lines that begin with
//! `#` are comments.

use std::fmt::Write as _;

use crate::histogram::{LatencyHistogram, SIGNIFICANT_DIGITS};
use rpcrdma_units::text_of;

/// Lines per halving of the distance to 100 %, as in HdrHistogram's own files.
const TICKS_PER_HALF_DISTANCE: u32 = 5;

/// The distribution, in nanoseconds.
#[must_use]
pub(crate) fn text(latency: &LatencyHistogram) -> String {
    text_of(|text| write(text, latency))
}

#[allow(clippy::cast_precision_loss, reason = "the layout has three decimals")]
fn write(text: &mut String, latency: &LatencyHistogram) -> std::fmt::Result {
    let buckets = latency.buckets();
    writeln!(
        text,
        "{:>12} {:>14} {:>10} {:>14}\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    )?;
    let mut count = 0;
    for step in buckets.iter_quantiles(TICKS_PER_HALF_DISTANCE) {
        let value = step
            .value_iterated_to()
            .clamp(latency.min_ns(), latency.max_ns()) as f64;
        let quantile = step.quantile_iterated_to();
        count += step.count_since_last_iteration();
        if quantile < 1.0 {
            let inverse = 1.0 / (1.0 - quantile);
            writeln!(
                text,
                "{value:12.3} {quantile:.12} {count:10} {inverse:14.2}"
            )?;
        } else {
            writeln!(text, "{value:12.3} {quantile:.12} {count:10}")?;
        }
    }
    let sub_buckets = 2 * 10_u64
        .pow(u32::from(SIGNIFICANT_DIGITS))
        .next_power_of_two();
    writeln!(
        text,
        "#[Mean    = {:12.3}, StdDeviation   = {:12.3}]",
        latency.mean_ns(),
        latency.stddev_ns()
    )?;
    writeln!(
        text,
        "#[Max     = {:12.3}, Total count    = {:12}]",
        latency.max_ns() as f64,
        latency.count()
    )?;
    writeln!(
        text,
        "#[Buckets = {:12}, SubBuckets     = {sub_buckets:12}]",
        buckets.buckets()
    )?;
    writeln!(text, "# Value is round-trip time in nanoseconds")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(latency: &LatencyHistogram) -> Vec<String> {
        text(latency).lines().map(str::to_owned).collect()
    }

    #[test]
    fn it_has_the_columns_and_the_footer_of_the_format() {
        let mut latency = LatencyHistogram::new();
        for value in 1..=10_000 {
            latency.record(value);
        }
        let lines = lines(&latency);
        assert_eq!(
            lines[0].split_whitespace().collect::<Vec<_>>(),
            ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"]
        );
        assert_eq!(lines[1], "");
        assert_eq!(
            lines[2],
            "       1.000 0.000000000000          1           1.00"
        );
        let body: Vec<Vec<f64>> = lines[2..]
            .iter()
            .take_while(|line| !line.starts_with('#'))
            .map(|line| {
                line.split_whitespace()
                    .map(|n| n.parse().unwrap())
                    .collect()
            })
            .collect();
        // Values, percentiles and counts only rise, and each line is correct for the recorded values.
        for pair in body.windows(2) {
            assert!(
                pair[0][0] <= pair[1][0] && pair[0][1] <= pair[1][1] && pair[0][2] <= pair[1][2]
            );
        }
        let (last, others) = body.split_last().unwrap();
        assert_eq!(last[..], [10_000.0, 1.0, 10_000.0]);
        for line in others {
            assert_eq!(line.len(), 4);
            assert!(line[2] / 10_000.0 >= line[1] - 1e-9, "{line:?}");
        }
        let footer: Vec<&str> = lines
            .iter()
            .filter(|l| l.starts_with('#'))
            .map(String::as_str)
            .collect();
        // The deviation comes from the buckets, so it is within 0.1 % of the exact 2886.751.
        let (mean, deviation) = footer[0].split_once(", StdDeviation   =").unwrap();
        assert_eq!(mean, "#[Mean    =     5000.500");
        let deviation: f64 = deviation.trim_end_matches(']').trim().parse().unwrap();
        assert!((deviation - 2886.751).abs() < 2.9, "{deviation}");
        assert_eq!(
            footer[1],
            "#[Max     =    10000.000, Total count    =        10000]"
        );
        assert!(
            footer[2].starts_with("#[Buckets =")
                && footer[2].ends_with("SubBuckets     =         2048]")
        );
    }

    #[test]
    fn an_empty_one_is_still_a_file() {
        let lines = lines(&LatencyHistogram::new());
        assert!(
            lines
                .iter()
                .any(|l| l == "#[Max     =        0.000, Total count    =            0]"),
            "{lines:?}"
        );
    }
}
