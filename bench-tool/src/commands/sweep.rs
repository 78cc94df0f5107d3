//! The command line of `bench-tool sweep`.

use std::path::PathBuf;

use clap::Args;

use super::{CommonArgs, Op, Placement, values};
use crate::compare::metric::Metric;
use crate::sweep::plot::Picture;

/// `bench-tool sweep`.
#[derive(Args, Debug)]
#[command(after_help = "\
Makes a run for every combination of the lists, --repeats times, in turns, so that drift of the machine affects all of \
them. Every combination is checked before the first run. The table shows medians over the repeats.\n\n\
The chart's horizontal axis is the first of size, depth, connections and rate that has several values, and every \
combination of the others is a line: median round-trip time against size or rate, calls per second against depth or \
connections, or the figure of --figure.\n\n\
The first Ctrl-C drops the current run, and reports the complete ones.\n\n\
Examples:
  bench-tool sweep --op write --size 1k,4k,64k --placement send,rdma --duration 1s --plot sizes.svg
      median round-trip time against size, a line for each placement
  bench-tool sweep --depth 1,2,4,8,16,32,64 --duration 1s --csv depths.csv --plot depths.svg
      calls per second against depth
  bench-tool sweep --rate 100k,200k,400k,800k --depth 64 --plot load.svg --figure p99
      the tail against the load
  bench-tool sweep --depth 8 --repeats 7 --json main.json
      seven runs of one kind, for `bench-tool compare main.json branch.json`")]
pub(crate) struct SweepArgs {
    /// Procedures to call
    #[arg(
        long,
        value_name = "OP,...",
        value_enum,
        value_delimiter = ',',
        default_value = "null"
    )]
    pub op: Vec<Op>,

    /// Payloads of one operation [default: as for run]
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', value_parser = values::size_bytes)]
    pub size: Vec<u64>,

    /// How payloads of read, write and mix travel
    #[arg(
        long,
        value_name = "PLACEMENT,...",
        value_enum,
        value_delimiter = ',',
        default_value = "auto"
    )]
    pub placement: Vec<Placement>,

    /// Calls outstanding on each connection
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub depth: Vec<u32>,

    /// Connections that carry calls
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub connections: Vec<u32>,

    /// Open loops: calls per second over all connections [default: a closed loop]
    #[arg(long, value_name = "CALLS_PER_S,...", value_delimiter = ',', value_parser = values::rate_per_s)]
    pub rate: Vec<u64>,

    /// Runs of each combination
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=500))]
    pub repeats: u32,

    /// Options of every run
    #[command(flatten)]
    pub common: CommonArgs,

    /// Write all runs as JSON; `-` is standard output, and the table then goes to standard error
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write a line for every run, for spreadsheets
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,

    /// Draw a chart as SVG, into a file whose name ends in .svg
    #[arg(long, value_name = "FILE")]
    pub plot: Option<Picture>,

    /// Figure in the chart: p50, p90, p99, p999, mean or rate
    #[arg(long, value_name = "FIGURE", value_parser = figure)]
    pub figure: Option<Metric>,
}

fn figure(text: &str) -> Result<Metric, String> {
    let names = || Metric::ALL.map(Metric::name).join(", ");
    Metric::named(text).ok_or_else(|| format!("`{text}` is not one of {}", names()))
}
