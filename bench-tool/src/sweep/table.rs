//! The table of medians of a sweep, and its CSV.

use std::fmt::{self, Write as _};

use super::grid::Axis;
use super::runs::{PointFailure, Swept, SweptPoint, SweptReport};
use crate::report::escape::csv_cell;
use crate::report::metric::Metric;
use crate::report::table::{warnings_of, write_warnings};
use rpcrdma_units::text_of;

/// The figures in the table.
const FIGURES: [Metric; 4] = [Metric::P50, Metric::P99, Metric::P999, Metric::Rate];

/// The figures whose spread is in the table.
const SPREADS: [Metric; 2] = [Metric::P50, Metric::Rate];

/// The highest minus the lowest figure of a combination, as a share of the median.
fn spread(report: &Swept<impl SweptReport>, place: usize, metric: Metric) -> String {
    let range = report.range(place, metric);
    match range.zip(report.median(place, metric)) {
        Some(((least, largest), median)) if median > 0.0 => {
            format!("{:.1} %", (largest - least) / median * 100.0)
        }
        _ => "-".to_owned(),
    }
}

/// Whether a combination has only disturbed runs.
fn is_marked(report: &Swept<impl SweptReport>, place: usize) -> bool {
    report.median(place, Metric::Rate).is_some() && report.is_disturbed(place)
}

/// The table, with one line for each combination, and the warnings.
#[must_use]
pub(crate) fn text(report: &Swept<impl SweptReport>) -> String {
    text_of(|text| {
        write(text, report)?;
        write_warnings(text, &warnings(report))
    })
}

/// Writes the table without the warnings.
///
/// # Errors
/// None from a string.
pub(crate) fn write(text: &mut String, report: &Swept<impl SweptReport>) -> fmt::Result {
    writeln!(text, "{}\n", heading(report))?;
    write_heads(text, &report.axes())?;
    for name in columns() {
        write!(text, "{name:>0$}", width(&name))?;
    }
    writeln!(text)?;
    let axes = report.axes();
    for place in 0..report.points.len() {
        write_values(text, report, &axes, place)?;
        for (name, cell) in columns().iter().zip(cells(report, place)) {
            write!(text, "{cell:>0$}", width(name))?;
        }
        match mark(report, place) {
            None => writeln!(text)?,
            Some(mark) => writeln!(text, "  {mark}")?,
        }
    }
    Ok(())
}

/// The width of a column of figures.
fn width(name: &str) -> usize {
    if name.ends_with("spread") { 15 } else { 12 }
}

/// Writes the names of the axes.
///
/// # Errors
/// None from a string.
pub(crate) fn write_heads(text: &mut String, axes: &[Axis]) -> fmt::Result {
    axes.iter()
        .try_for_each(|axis| write!(text, "{:>12}", axis.name()))
}

/// Writes the values of a combination on the axes.
///
/// # Errors
/// None from a string.
pub(crate) fn write_values<R>(
    text: &mut String,
    report: &Swept<R>,
    axes: &[Axis],
    place: usize,
) -> fmt::Result {
    let point = report.points.get(place).into_iter();
    let values = point.flat_map(|it| axes.iter().map(|axis| axis.text(&it.point)));
    values
        .into_iter()
        .try_for_each(|value| write!(text, "{value:>12}"))
}

/// The names of the columns of figures.
pub(crate) fn columns() -> Vec<String> {
    let figures = FIGURES.iter().map(|it| it.name().to_owned());
    let spreads = SPREADS.iter().map(|it| format!("{} spread", it.name()));
    figures.chain(spreads).collect()
}

/// The figures of a combination: the cells of [`columns`].
pub(crate) fn cells(report: &Swept<impl SweptReport>, place: usize) -> Vec<String> {
    let median = |metric: &Metric| {
        let value = report.median(place, *metric);
        value.map_or_else(|| "-".to_owned(), |value| metric.text(value))
    };
    let spreads = SPREADS.iter().map(|it| spread(report, place, *it));
    FIGURES.iter().map(median).chain(spreads).collect()
}

/// What is to be said of a combination with its figures.
pub(crate) fn mark(report: &Swept<impl SweptReport>, place: usize) -> Option<String> {
    let mut runs = report.runs_of(place);
    let state = if runs.any(|run| run.load().interrupted) {
        Some("stopped early".to_owned())
    } else {
        is_marked(report, place).then(|| "disturbed".to_owned())
    };
    let counted = report.counted(place).count();
    let is_as_asked = counted == 0 || usize::try_from(report.repeats) == Ok(counted);
    let number = (!is_as_asked).then(|| match counted {
        1 => "from 1 run".to_owned(),
        runs => format!("from {runs} runs"),
    });
    let said: Vec<String> = state.into_iter().chain(number).collect();
    (!said.is_empty()).then(|| said.join(", "))
}

/// The parameters that all runs share: `write, placement send, depth 1, connections 1, v2 over shm; medians of 3
/// runs`.
pub(crate) fn heading(report: &Swept<impl SweptReport>) -> String {
    let varied = report.axes();
    let fixed: Vec<Axis> = Axis::ALL
        .into_iter()
        .filter(|axis| !varied.contains(axis))
        .collect();
    let work = report.points.first().map(|SweptPoint { point, .. }| {
        let said = |axis: &Axis| match axis {
            Axis::Size => point.size.is_some(),
            Axis::Placement => point.op.is_bulk(),
            Axis::Rate => point.rate_per_s.is_some(),
            _ => true,
        };
        point.label(&fixed.into_iter().filter(said).collect::<Vec<_>>())
    });
    let path = report.runs.iter().find_map(SweptReport::path);
    let parts: Vec<String> = work
        .into_iter()
        .chain(path)
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
pub(crate) fn warnings(report: &Swept<impl SweptReport>) -> Vec<String> {
    let mut warnings = warnings_of(report.runs.iter().map(SweptReport::warnings));
    let failed = |failure: &PointFailure| format!("{} failed: {}", failure.point, failure.failure);
    warnings.extend(report.failures.iter().map(failed));
    let marked = (0..report.points.len()).filter(|place| is_marked(report, *place));
    match marked.count() {
        0 => {}
        marked => warnings.push(format!(
            "every run that counts of {marked} of the {} combinations was disturbed: stop what disturbs them, or give \
             --repeat-disturbed more",
            report.points.len()
        )),
    }
    if report.interrupted {
        let repeats = usize::try_from(report.repeats).unwrap_or(usize::MAX);
        let is_complete = |run: &&_| !SweptReport::load(*run).interrupted;
        warnings.push(format!(
            "stopped by a signal: {} of {} runs are complete",
            report.runs.iter().filter(is_complete).count(),
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
pub(crate) fn csv<R: SweptReport>(report: &Swept<R>) -> String {
    let lines = report.runs.iter().map(line);
    let columns = [&[COLUMNS], R::MORE_COLUMNS].concat().join(",");
    let all: Vec<String> = std::iter::once(columns).chain(lines).collect();
    all.join("\n") + "\n"
}

fn line(run: &impl SweptReport) -> String {
    let load = run.load();
    let latency = &load.latency_ns;
    let offered = load
        .offered_rate_per_s
        .map_or_else(String::new, |rate| rate.to_string());
    let figures = [
        load.depth.to_string(),
        load.connections.to_string(),
        offered,
        load.calls.to_string(),
        load.duration_s.to_string(),
        load.rate_per_s.to_string(),
        load.bandwidth_bytes_per_s.to_string(),
        latency.min.to_string(),
        latency.mean.to_string(),
        latency.p50.to_string(),
        latency.p90.to_string(),
        latency.p99.to_string(),
        latency.p99_9.to_string(),
        latency.p99_99.to_string(),
        latency.max.to_string(),
        run.is_disturbed().to_string(),
    ];
    let cells = run.work().into_iter().chain(figures);
    let cells = cells.chain(run.more_cells());
    let cells = cells.map(|cell| csv_cell(&cell));
    cells.collect::<Vec<_>>().join(",")
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
