//! The end of a command with a load: writes the table and the files; failed calls make the command fail.

use super::knee::KneeReport;
use super::output::{Outputs, json_text};
use super::view::LoadReport;
use super::{hgrm, hlog, knee, page};
use crate::exit::Failure;
use crate::histogram::LatencyHistogram;
use crate::load::timeline::Timeline;
use crate::progress::say;

/// Writes a report and its table. `latency` has the round-trip times; `failure` is why the load broke off, if it did;
/// `errors_advice` says where the user finds the errors.
///
/// # Errors
/// A report that cannot be written, `failure`, and failed calls (after the report).
pub(crate) fn put(
    report: &impl LoadReport,
    table: &str,
    measured: (&LatencyHistogram, &Timeline),
    outputs: &Outputs,
    failure: Option<&Failure>,
    errors_advice: &str,
) -> Result<(), Failure> {
    let view = report.view();
    outputs.write(table, view.warnings, contents(report, measured))?;
    if let Some(failure) = failure {
        return Err(failure.clone());
    }
    view.load.account().verdict(errors_advice)
}

/// Writes the files of a load that goes on. A file that cannot be written is said, and the load goes on.
pub(crate) fn put_checkpoint(
    report: &impl LoadReport,
    measured: (&LatencyHistogram, &Timeline),
    outputs: &Outputs,
) {
    if let Err(failure) = outputs.write_files(contents(report, measured)) {
        say(&format!("bench-tool: no checkpoint: {failure}"));
    }
}

/// The contents of the file that an option names.
fn contents(
    report: &impl LoadReport,
    (latency, timeline): (&LatencyHistogram, &Timeline),
) -> impl Fn(&str) -> String {
    move |option| match option {
        "--hgrm" => hgrm::text(latency),
        "--hlog" => hlog::text(timeline, &report.view().origin.command),
        "--html" => page::text(report),
        _ => json_text(report),
    }
}

/// Writes the report of `--to-knee`.
///
/// # Errors
/// Those of [`put`].
pub(crate) fn put_knee(
    report: &KneeReport<impl LoadReport>,
    outputs: &Outputs,
    failure: Option<Failure>,
    errors_advice: &str,
) -> Result<(), Failure> {
    let table = knee::text(report);
    outputs.write(&table, &report.warnings(), |option| match option {
        "--html" => page::knee::text(report),
        _ => json_text(report),
    })?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    report.account().verdict(errors_advice)
}
