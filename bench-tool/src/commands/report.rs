//! The command line of `bench-tool report`.

use std::path::PathBuf;

use clap::Args;

use crate::exit::Failure;
use crate::report::output::Outputs;
use crate::saved::{self, Wanted};

/// `bench-tool report`.
#[derive(Args, Debug)]
#[command(after_help = "\
Makes the table and the page again from the JSON that run, nfs, fleet and sweep wrote, with or without --to-knee: the \
page is the one that --html of that command wrote, except for what only a later version shows.\n\n\
Of several reports, in one file or in many, it makes one table and one page: rates and percentiles side by side, all \
histograms in one chart, and the options, hosts, kernels, cards, firmware and knobs in which they differ. It also takes sweeps and sums of merge. Whether a difference is more than noise is a question for \
`compare`.\n\n\
Reports of earlier versions have no histogram, date or records of the ends: the page says what is missing.\n\n\
Examples:
  bench-tool report run.json
      the table of a saved run
  bench-tool report run.json --html run.html
      its page
  bench-tool report --html both.html before.json after.json
      two runs side by side, with what changed between them
  bench-tool report --quiet --html - fleet.json >fleet.html
      the page of a fleet on standard output
  bench-tool report --hgrm run.hgrm run.json
      its distribution for HdrHistogram plotters")]
pub(crate) struct ReportArgs {
    /// The JSON reports
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// Write the page, with charts, for a browser without network or scripts; `-` is standard output, and the table then goes to standard error
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write the percentile distribution of one report as text that HdrHistogram plotters load
    #[arg(long, value_name = "FILE")]
    pub hgrm: Option<PathBuf>,

    /// Write the histogram of one report as a log with one interval that HdrHistogram's tools read
    #[arg(long, value_name = "FILE")]
    pub hlog: Option<PathBuf>,

    /// Show rate and round-trip times of each interval in the table of one report
    #[arg(long)]
    pub intervals: bool,

    /// Show only errors and warnings, no table
    #[arg(long, short)]
    pub quiet: bool,
}

/// Runs the command.
///
/// # Errors
/// Those of [`saved::execute`].
pub(super) fn execute(args: &ReportArgs, command: String) -> Result<(), Failure> {
    let files = [
        ("--html", args.html.as_deref()),
        ("--hgrm", args.hgrm.as_deref()),
        ("--hlog", args.hlog.as_deref()),
    ];
    let outputs = Outputs::check(&files, args.quiet)?;
    let of_histogram = files.iter().skip(1).find(|(_, path)| path.is_some());
    let wanted = Wanted {
        files: args.files.clone(),
        intervals: args.intervals,
        has_page: args.html.is_some(),
        has_log: args.hlog.is_some(),
        histogram: of_histogram.map(|(option, _)| *option),
        command,
    };
    saved::execute(wanted, &outputs)
}
