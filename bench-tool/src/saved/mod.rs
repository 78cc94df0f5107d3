//! `bench-tool report`: the table and the page of saved reports, one by one or side by side.
//!
//! | module | contents |
//! |---|---|
//! | [`single`] | one report: the table and the page that its command made |
//! | [`facts`] | what the reports say about how and where they were measured, and in what they differ |
//! | [`several`] | several reports, and their table |
//! | [`page`] | the page of several reports |

mod facts;
mod page;
mod several;
mod single;

use std::path::PathBuf;

use self::several::Several;
use self::single::{GIVE, Kind, Shown, Single, sweep};
use crate::compare::runs::SWEEPS;
use crate::exit::Failure;
use crate::report::origin::Origin;
use crate::report::output::Outputs;
use crate::report::saved::{self, SavedReport};

/// Upper bound of the reports of one page.
const REPORTS_MAX: usize = 500;

/// What to do with the reports.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) files: Vec<PathBuf>,
    /// Whether the table has a line for each interval.
    pub(crate) intervals: bool,
    /// Whether `--html` is given.
    pub(crate) has_page: bool,
    /// The option of a file that needs a single histogram: `--hgrm` or `--hlog`.
    pub(crate) histogram: Option<&'static str>,
    /// Whether `--hlog` is given.
    pub(crate) has_log: bool,
    /// The command line, for the page.
    pub(crate) command: String,
}

/// Writes the table and the page of the reports in files.
///
/// # Errors
/// A file that cannot be read or has no report of a load, an option that this report cannot have, and an output that
/// cannot be written.
pub(crate) fn execute(wanted: Wanted, outputs: &Outputs) -> Result<(), Failure> {
    let mut reports = Vec::new();
    for file in &wanted.files {
        reports.extend(saved::from_file(file, &SWEEPS, GIVE)?);
        check_number(reports.len())?;
    }
    if reports.len() > 1 {
        // Beside others, the runs of a sweep are reports.
        let runs = reports.into_iter().flat_map(SavedReport::into_runs);
        reports = runs.collect();
        check_number(reports.len())?;
    }
    match (&reports[..], wanted.histogram) {
        ([one], _) => one_alone(one, &wanted, outputs),
        (_, Some(option)) => Err(Failure::usage(format!(
            "{option} takes one report, and there are {} in these files",
            reports.len()
        ))
        .advice("add them with `bench-tool merge --json all.json`, and give all.json")),
        _ if wanted.intervals => Err(Failure::usage(format!(
            "--intervals takes one report, and there are {} in these files",
            reports.len()
        ))
        .advice("give one of them, or leave --intervals out")),
        _ => side_by_side(&reports, wanted.command, outputs),
    }
}

fn check_number(reports: usize) -> Result<(), Failure> {
    if reports <= REPORTS_MAX {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "there are more than {REPORTS_MAX} reports in these files, and a page has no more"
    ))
    .advice("give fewer files, or add them with `bench-tool merge`"))
}

fn one_alone(report: &SavedReport, wanted: &Wanted, outputs: &Outputs) -> Result<(), Failure> {
    let kind = Kind::of(report)?;
    if wanted.intervals && !matches!(kind, Kind::Run | Kind::Nfs) {
        return Err(Failure::usage(format!(
            "--intervals has no effect on {}, a report of {}",
            report.name,
            kind.command()
        ))
        .advice("leave it out: only reports of run and nfs have intervals in their table"));
    }
    if let Some(shown) = sweep(kind, report, wanted.has_page)? {
        if let Some(option) = wanted.histogram {
            return Err(Failure::usage(format!(
                "{option} takes one report, and {} is a report of {}",
                report.name,
                kind.command()
            ))
            .advice("leave it out: the JSON has the histogram of each run"));
        }
        return show(&shown, outputs);
    }
    let single = Single::read(report, wanted.intervals, wanted.has_page)?;
    if let Some(option) = wanted.histogram
        && single.latency.is_none()
    {
        return Err(Failure::failed(format!(
            "there is no histogram in {}, which {option} needs",
            report.name
        ))
        .advice(
            "leave the option out: an earlier version wrote the report, and the histogram is lost",
        ));
    }
    if wanted.has_log && single.span().is_none() {
        return Err(Failure::failed(format!(
            "there is no date in {}, which --hlog needs",
            report.name
        ))
        .advice("leave it out: an earlier version wrote the report, or one of which it is a sum"));
    }
    match &single.shown {
        Some(shown) => outputs.write(&shown.table, &shown.warnings, |option| match option {
            "--html" => shown.page.clone().unwrap_or_default(),
            option => single.histogram(option),
        }),
        // The sum of a merge is shown as a page of several reports that has one row.
        None => {
            let several = Several::read(std::slice::from_ref(report))?;
            let page = several.page(&Origin::new("", wanted.command.clone()));
            let warnings = several.warnings();
            outputs.write(&several.table(), &warnings, |option| match option {
                "--html" => page.clone(),
                option => single.histogram(option),
            })
        }
    }
}

fn show(shown: &Shown, outputs: &Outputs) -> Result<(), Failure> {
    outputs.write(&shown.table, &shown.warnings, |_| {
        shown.page.clone().unwrap_or_default()
    })
}

fn side_by_side(
    reports: &[SavedReport],
    command: String,
    outputs: &Outputs,
) -> Result<(), Failure> {
    let several = Several::read(reports)?;
    let origin = Origin::new("", command);
    outputs.write(&several.table(), &several.warnings(), |_| {
        several.page(&origin)
    })
}
