//! The table of medians of a sweep, and its CSV.

use std::fmt::{self, Write as _};

use super::SweepReport;
use super::grid::Axis;
use crate::compare::metric::Metric;
use crate::report::table::{warnings_of, write_warnings};
use crate::run::report::Report;
use rpcrdma_units::text_of;

/// The figures in the table.
const FIGURES: [Metric; 4] = [Metric::P50, Metric::P99, Metric::P999, Metric::Rate];

/// The figures whose spread is in the table.
const SPREADS: [Metric; 2] = [Metric::P50, Metric::Rate];

/// The highest minus the lowest figure of a combination, as a share of the median.
fn spread(report: &SweepReport, place: usize, metric: Metric) -> String {
    let range = report.range(place, metric);
    match range.zip(report.median(place, metric)) {
        Some(((least, largest), median)) if median > 0.0 => {
            format!("{:.1} %", (largest - least) / median * 100.0)
        }
        _ => "-".to_owned(),
    }
}

/// Whether a combination has only disturbed runs.
fn is_marked(report: &SweepReport, place: usize) -> bool {
    report.median(place, Metric::Rate).is_some() && report.is_disturbed(place)
}

/// The table, with one line for each combination.
#[must_use]
pub(crate) fn text(report: &SweepReport) -> String {
    text_of(|text| write(text, report))
}

fn write(text: &mut String, report: &SweepReport) -> fmt::Result {
    let axes = Axis::varied(&report.points);
    writeln!(text, "{}\n", heading(report))?;
    for axis in &axes {
        write!(text, "{:>12}", axis.name())?;
    }
    for metric in FIGURES {
        write!(text, "{:>12}", metric.name())?;
    }
    for metric in SPREADS {
        write!(text, "{:>15}", format!("{} spread", metric.name()))?;
    }
    writeln!(text)?;
    for (place, point) in report.points.iter().enumerate() {
        for axis in &axes {
            write!(text, "{:>12}", axis.text(point))?;
        }
        for metric in FIGURES {
            let value = report.median(place, metric);
            write!(
                text,
                "{:>12}",
                value.map_or_else(|| "-".to_owned(), |v| metric.text(v))
            )?;
        }
        for metric in SPREADS {
            write!(text, "{:>15}", spread(report, place, metric))?;
        }
        let mark = if is_marked(report, place) {
            "  disturbed"
        } else {
            ""
        };
        writeln!(text, "{mark}")?;
    }
    write_warnings(text, &warnings(report))
}

/// The parameters that all runs share: `write, placement send, depth 1, connections 1, v2 over shm; medians of 3
/// runs`.
pub(super) fn heading(report: &SweepReport) -> String {
    let varied = Axis::varied(&report.points);
    let fixed: Vec<Axis> = Axis::ALL
        .into_iter()
        .filter(|axis| !varied.contains(axis))
        .collect();
    let work = report.points.first().map(|point| {
        let said = |axis: &Axis| match axis {
            Axis::Size => point.size.is_some(),
            Axis::Placement => point.op.is_bulk(),
            Axis::Rate => point.rate_per_s.is_some(),
            _ => true,
        };
        point.label(&fixed.into_iter().filter(said).collect::<Vec<_>>())
    });
    let place = report
        .runs
        .first()
        .map(|run| format!("{} over {}", run.protocol, run.fabric));
    let parts: Vec<String> = work
        .into_iter()
        .chain(place)
        .filter(|part| !part.is_empty())
        .collect();
    let runs = match report.repeats {
        1 => "one run of each".to_owned(),
        repeats if report.interrupted => format!("medians of up to {repeats} runs"),
        repeats => format!("medians of {repeats} runs"),
    };
    format!("{}; {runs}", parts.join(", "))
}

/// Warnings for the reader of a sweep.
pub(super) fn warnings(report: &SweepReport) -> Vec<String> {
    let mut warnings = warnings_of(report.runs.iter().map(|run| &run.warnings));
    let failed =
        |failure: &super::PointFailure| format!("{} failed: {}", failure.point, failure.failure);
    warnings.extend(report.failures.iter().map(failed));
    let marked = (0..report.points.len()).filter(|place| is_marked(report, *place));
    match marked.count() {
        0 => {}
        marked => warnings.push(format!(
            "every run of {marked} of the {} combinations was disturbed: stop what disturbs them, or give \
             --repeat-disturbed more",
            report.points.len()
        )),
    }
    if report.interrupted {
        let repeats = usize::try_from(report.repeats).unwrap_or(usize::MAX);
        warnings.push(format!(
            "stopped by a signal: {} of {} runs are complete",
            report.runs.len(),
            report.points.len().saturating_mul(repeats)
        ));
    }
    warnings
}

/// The columns of [`csv`].
const COLUMNS: &str = "op,size_bytes,placement_asked,placement,depth,connections,offered_rate_per_s,calls,duration_s,\
                       rate_per_s,bandwidth_bytes_per_s,latency_ns_min,latency_ns_mean,latency_ns_p50,latency_ns_p90,\
                       latency_ns_p99,latency_ns_p99_9,latency_ns_p99_99,latency_ns_max,disturbed";

/// CSV: a line of column names, then one line for each run.
#[must_use]
pub(crate) fn csv(report: &SweepReport) -> String {
    let lines = report.runs.iter().map(line);
    let all: Vec<String> = std::iter::once(COLUMNS.to_owned()).chain(lines).collect();
    all.join("\n") + "\n"
}

fn line(run: &Report) -> String {
    let latency = &run.load.latency_ns;
    let offered = run
        .load
        .offered_rate_per_s
        .map_or_else(String::new, |rate| rate.to_string());
    [
        run.op.to_string(),
        run.size_bytes.to_string(),
        run.placement_asked
            .as_deref()
            .unwrap_or_default()
            .to_owned(),
        run.placement.clone(),
        run.load.depth.to_string(),
        run.load.connections.to_string(),
        offered,
        run.load.calls.to_string(),
        run.load.duration_s.to_string(),
        run.load.rate_per_s.to_string(),
        run.load.bandwidth_bytes_per_s.to_string(),
        latency.min.to_string(),
        latency.mean.to_string(),
        latency.p50.to_string(),
        latency.p90.to_string(),
        latency.p99.to_string(),
        latency.p99_9.to_string(),
        latency.p99_99.to_string(),
        latency.max.to_string(),
        run.disturbed.to_string(),
    ]
    .join(",")
}

#[cfg(test)]
mod tests {
    use super::super::tests::{depths, sizes_and_placements};
    use super::*;
    use rpcrdma_testkit::CheckWords;
    use std::collections::BTreeSet;

    #[test]
    fn the_table_has_a_line_for_each_combination() {
        let text = text(&sizes_and_placements());
        assert!(
            text.starts_with("write, depth 1, connections 1, v2 over shm; medians of 2 runs"),
            "{text}"
        );
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            lines[2],
            [
                "size",
                "placement",
                "p50",
                "p99",
                "p99.9",
                "rate",
                "p50",
                "spread",
                "rate",
                "spread"
            ]
        );
        assert_eq!(&lines[3][..3], ["1", "KiB", "send"]);
        assert_eq!(
            lines.iter().filter(|line| line.contains(&"rdma")).count(),
            3
        );
    }

    #[test]
    fn every_line_for_a_spreadsheet_has_all_columns() {
        let text = csv(&depths());
        let widths: BTreeSet<usize> = text.lines().map(|line| line.split(',').count()).collect();
        assert_eq!((text.lines().count(), widths), (4, BTreeSet::from([20])));
        text.check_words(&["\nnull,0,,inline,4,1,,40000,2,20000,"]);
    }
}
