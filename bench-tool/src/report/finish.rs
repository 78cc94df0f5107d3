//! The end of a command with a load: writes the table and the files; failed calls make the command fail.

use super::knee::KneeReport;
use super::output::{Outputs, json_text, verdict};
use super::view::LoadReport;
use super::{hgrm, hlog, knee, page};
use crate::exit::Failure;
use crate::histogram::LatencyHistogram;
use crate::load::timeline::Timeline;

/// Writes a report and its table. `latency` has the round-trip times; `errors_advice` says where the user finds the
/// errors.
///
/// # Errors
/// A report that cannot be written, and failed calls (after the report).
pub(crate) fn put(
    report: &impl LoadReport,
    table: &str,
    (latency, timeline): (&LatencyHistogram, &Timeline),
    outputs: &Outputs,
    errors_advice: &str,
) -> Result<(), Failure> {
    let view = report.view();
    outputs.write(table, view.warnings, |option| match option {
        "--hgrm" => hgrm::text(latency),
        "--hlog" => hlog::text(timeline, view.command),
        "--html" => page::text(report, latency),
        _ => json_text(report),
    })?;
    verdict(view.load.calls, view.load.errors, errors_advice)
}

/// Writes the report of `--to-knee`.
///
/// # Errors
/// Those of [`put`].
pub(crate) fn put_knee(
    report: &KneeReport<impl LoadReport>,
    outputs: &Outputs,
    errors_advice: &str,
) -> Result<(), Failure> {
    let table = knee::text(report);
    outputs.write(&table, &report.warnings(), |option| match option {
        "--html" => page::knee::text(report),
        _ => json_text(report),
    })?;
    let calls = report.closed_loop.view().load.calls;
    verdict(calls, report.errors(), errors_advice)
}
