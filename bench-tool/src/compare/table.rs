//! The table of a comparison.

use std::fmt::{self, Write as _};

use super::rank_sum::Design;
use super::verdict::{Comparison, Verdict, percent};
use super::{ComparedPoint, Report};
use crate::report::table::write_warnings;
use rpcrdma_units::text_of;

/// A longer value is cut off after this many characters.
const VALUE_CHARACTERS_MAX: usize = 60;

/// The table. It ends with the verdict and the thresholds.
#[must_use]
pub(crate) fn text(report: &Report) -> String {
    text_of(|text| write(text, report))
}

fn write(text: &mut String, report: &Report) -> fmt::Result {
    for (name, side) in [("A", &report.a), ("B", &report.b)] {
        let runs = if side.runs == 1 { "run" } else { "runs" };
        writeln!(text, "{name}  {} {runs}  {}", side.runs, side.source)?;
    }
    if report.design == Design::InTurns {
        writeln!(
            text,
            "   in turns: the runs of each round are set against each other"
        )?;
    }
    for difference in &report.differences {
        let (a, b) = (short(&difference.a), short(&difference.b));
        writeln!(text, "   {}: {a} in A, {b} in B", difference.key)?;
    }
    if !report.metrics.is_empty() {
        write_figures(text, "", &report.metrics)?;
    }
    for ComparedPoint { point, metrics, .. } in &report.points {
        write_figures(text, point, metrics)?;
    }
    write_warnings(text, &report.warnings)?;
    writeln!(text)?;
    let mut differing = report.points.iter().filter_map(ComparedPoint::difference);
    match differing.next() {
        Some(first) => {
            writeln!(text, "{first}")?;
            differing.try_for_each(|it| writeln!(text, "{it}"))?;
        }
        None => writeln!(text, "{}", report.verdict)?,
    }
    for check in &report.thresholds {
        writeln!(text, "{check}")?;
    }
    Ok(())
}

fn write_figures(text: &mut String, point: &str, metrics: &[Comparison]) -> fmt::Result {
    if !point.is_empty() {
        write!(text, "\n{point}")?;
    }
    writeln!(
        text,
        "\n{:6} {:>11} {:>11} {:>9} {:>20} {:>7}",
        "", "A", "B", "change", "95 % interval", "p"
    )?;
    metrics.iter().try_for_each(|it| write_line(text, it))
}

fn write_line(text: &mut String, comparison: &Comparison) -> fmt::Result {
    let metric = comparison.metric;
    let interval = comparison.ratio_interval.map_or_else(
        || "-".to_owned(),
        |[low, high]| format!("{:+.1} .. {:+.1} %", percent(low), percent(high)),
    );
    let p = match comparison.p_adjusted {
        None => "-".to_owned(),
        Some(p) if p < 0.001 => "< 0.001".to_owned(),
        Some(p) => format!("{p:.3}"),
    };
    let verdict = match (comparison.verdict, comparison.is_worse()) {
        (Verdict::NoDifference, _) => "  no difference",
        (Verdict::TooFewRuns, _) => "",
        (_, true) => "  worse",
        (_, false) => "  better",
    };
    writeln!(
        text,
        "{:6} {:>11} {:>11} {:>9} {interval:>20} {p:>7}{verdict}",
        metric.name(),
        metric.text(comparison.a_median),
        metric.text(comparison.b_median),
        format!("{:+.1} %", comparison.change_percent()),
    )
}

/// A value from an untrusted file, shortened to one line and without control characters, which a terminal would
/// execute.
fn short(value: &serde_json::Value) -> String {
    let text = value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned);
    let plain = text.chars().map(|c| if c.is_control() { '?' } else { c });
    let short: String = plain.take(VALUE_CHARACTERS_MAX).collect();
    if short.is_empty() {
        "nothing".to_owned()
    } else {
        short
    }
}
