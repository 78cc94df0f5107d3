//! The command line of `bench-tool merge`.

use std::path::PathBuf;

use clap::Args;

use crate::exit::Failure;
use crate::fleet::merge;
use crate::report::output::Outputs;

/// `bench-tool merge`.
#[derive(Args, Debug)]
#[command(after_help = "\
Adds the JSON reports of run, nfs, fleet or merge itself: their histograms, calls, errors and rates. Percentiles are \
those of the merged histogram, as if all calls had been measured together; they are never averaged. The number of calls \
of the sum is checked against its parts.\n\n\
The sum of the rates is the rate of clients that ran at the same time. For runs that took turns, use `compare`.\n\n\
Examples:
  bench-tool merge a.json b.json
      two clients of one server, run by hand at the same time
  bench-tool merge --json all.json --hgrm all.hgrm host1.json host2.json host3.json
      save the sum, and its distribution for HdrHistogram plotters")]
pub(crate) struct MergeArgs {
    /// The JSON reports
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// Write the sum as JSON; `-` is standard output, and the table then goes to standard error
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write the percentile distribution as text that HdrHistogram plotters load
    #[arg(long, value_name = "FILE")]
    pub hgrm: Option<PathBuf>,

    /// Show only errors and warnings, no table
    #[arg(long, short)]
    pub quiet: bool,
}

/// Runs the command.
///
/// # Errors
/// Those of [`merge::execute`].
pub(super) fn execute(args: &MergeArgs, command: String) -> Result<(), Failure> {
    let files = [
        ("--json", args.json.as_deref()),
        ("--hgrm", args.hgrm.as_deref()),
    ];
    let outputs = Outputs::check(&files, args.quiet)?;
    merge::execute(&args.files, &outputs, command)
}
