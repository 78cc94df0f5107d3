//! The command line of `bench-tool compare`.

use std::path::PathBuf;

use clap::Args;

use crate::compare::{self, RUNS_DEFAULT, Source, Threshold};
use crate::exit::{Failure, Status};
use crate::report::output::Output;

/// `bench-tool compare`.
#[derive(Args, Debug)]
#[command(
    override_usage = "bench-tool compare [OPTIONS] A.json B.json\n       \
                      bench-tool compare [OPTIONS] [--runs N] -- COMMAND_A -- COMMAND_B",
    after_help = "\
A file contains the JSON of one run (or `nfs`, or `fleet`) or of several, in a row or in a list; or a sweep, also of a \
fleet. Two sweeps are compared combination by combination, without their disturbed runs where there are others. A command is `run` or \
`nfs` with its options, run by this program; or any other program that writes the JSON of a run to standard output. \
They take turns (A B, B A, ...), so drift of the machine affects both.\n\n\
Each run gives one p50, one p99 and so on. Ranks and permutations judge whether those of A and B differ: of all \
runs, for files; of the two runs of each round, if commands took turns for six rounds or more, so that \
a machine that is slower in some rounds hides nothing. The result is corrected for the number of figures and of combinations: at most one \
comparison in twenty of a build with itself finds a difference. The change is the median over pairs of runs, or over \
rounds, with its 95 % confidence interval. Use at least four runs of each; ten are better.\n\n\
Exit status: 0 no threshold exceeded, 1 failure, or interrupted or a combination left out before a threshold could be judged, 2 the command line is wrong, 3 a threshold of \
--fail-if is exceeded beyond noise, 4 one is exceeded, perhaps by noise.\n\n\
Examples:
  bench-tool compare -- run --op write --placement send -- run --op write --placement rdma
      ten runs of each, in turns
  bench-tool compare --runs 7 -- ./old run --json - --quiet -- ./new run --json - --quiet
      two builds
  bench-tool compare --fail-if p99+5% --fail-if rate-3% main.json branch.json
      in CI"
)]
pub(crate) struct CompareArgs {
    /// The runs of A, and those of B
    #[arg(
        value_name = "FILE",
        num_args = 2,
        required_unless_present = "commands"
    )]
    pub files: Vec<PathBuf>,

    /// The commands of A and of B, with `--` between them
    #[arg(
        last = true,
        value_name = "COMMAND",
        conflicts_with = "files",
        allow_hyphen_values = true
    )]
    pub commands: Vec<String>,

    /// Runs of each command [default: 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=500), conflicts_with = "files")]
    pub runs: Option<u32>,

    /// Exit with 3 (4 if it may be noise) when, at any combination, a figure of B (p50, p90, p99, p999, mean, rate) is above (+) or below (-) that of A by more than this, such as p99+5% or rate-3%; may be repeated
    #[arg(long, value_name = "FIGURE+PERCENT%")]
    pub fail_if: Vec<Threshold>,

    /// Write JSON; `-` is standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Show no progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// Runs the command.
///
/// # Errors
/// Those of [`compare::execute`].
pub(super) fn execute(args: &CompareArgs, command: String) -> Result<Status, Failure> {
    let json = Output::check_json(args.json.as_deref())?;
    let source = match &args.files[..] {
        [a, b] => Source::Files([a.clone(), b.clone()]),
        _ => Source::Commands {
            words: args.commands.clone(),
            count: args.runs.unwrap_or(RUNS_DEFAULT),
            quiet: args.quiet,
        },
    };
    compare::execute(&source, &args.fail_if, json.as_ref(), command)
}
