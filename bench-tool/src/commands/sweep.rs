//! The command line of `bench-tool sweep`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::common::{CommonArgs, OutputArgs, PaceArgs};
use super::run::RunArgs;
use super::values;
use crate::exit::{Failure, Status};
use crate::machine::Machine;
use crate::report::metric::Metric;
use crate::report::output::{Output, Outputs};
use crate::run::Load;
use crate::run::through::Through;
use crate::sweep::grid::Point;
use crate::sweep::plot::{self, Picture};
use crate::sweep::runs::SweepPlan;
use crate::sweep::{self, SweepConfig};
use crate::workloads::bench::op::{Op, Placement};

/// Upper bound of the runs of one sweep.
const RUNS_MAX: usize = 10_000;

/// `bench-tool sweep`.
#[derive(Args, Debug)]
#[command(after_help = "\
Makes a run for every combination of the lists, --repeats times, in turns, so that drift of the machine affects all of \
them. Every combination is checked before the first run. The table shows medians over the repeats, without disturbed \
runs where there are others, and how far p50 and rate spread.\n\n\
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

    /// How often a run is made again that the machine disturbed: by other work, stolen time or a changing frequency
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=10))]
    pub repeat_disturbed: u32,

    /// Options of every run
    #[command(flatten)]
    pub common: CommonArgs,

    /// Write all runs as JSON; `-` is standard output, and the table then goes to standard error
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write a self-contained page with charts and the table; `-` is standard output, and the table then goes to standard error
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Outputs that only a sweep has
    #[command(flatten)]
    pub files: SweepFilesArgs,
}

/// The outputs that only a sweep has.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SweepFilesArgs {
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

impl SweepFilesArgs {
    /// The first of these options that was given; `None` if none was.
    pub(super) fn given(&self) -> Option<&'static str> {
        let given = [
            ("--csv", self.csv.is_some()),
            ("--plot", self.plot.is_some()),
            ("--figure", self.figure.is_some()),
        ];
        given.iter().find(|it| it.1).map(|it| it.0)
    }

    /// Checks before the runs that there is something to draw, and that the file can be written.
    ///
    /// # Errors
    /// A failure with the option and what to give instead.
    pub(super) fn chart(&self, points: &[Point]) -> Result<Option<Output>, Failure> {
        let Some(picture) = &self.plot else {
            return Ok(None);
        };
        plot::axis(points)?;
        Output::check("--plot", &picture.0).map(Some)
    }
}

fn figure(text: &str) -> Result<Metric, String> {
    let names = || Metric::ALL.map(Metric::name).join(", ");
    Metric::named(text).ok_or_else(|| format!("`{text}` is not one of {}", names()))
}

/// Runs the command.
///
/// # Errors
/// Combinations that this machine cannot run, and those of [`sweep::execute`].
pub(super) fn execute(
    args: &SweepArgs,
    command: String,
    load: &mut impl Load,
) -> Result<Status, Failure> {
    let machine = Machine::detect();
    let config = args.config(&machine, command)?;
    let files = [
        ("--json", args.json.as_deref()),
        ("--csv", args.files.csv.as_deref()),
        ("--html", args.html.as_deref()),
    ];
    let outputs = Outputs::check(&files, args.common.quiet)?;
    let chart = args.files.chart(&config.plan.points)?;
    outputs.check_other(chart.as_ref())?;
    sweep::execute(config, &machine, &outputs, chart.as_ref(), load)
}

impl SweepArgs {
    /// # Errors
    /// A usage failure for an impossible combination, or for too many.
    pub(crate) fn config(
        &self,
        machine: &Machine,
        command: String,
    ) -> Result<SweepConfig, Failure> {
        let plan = self.plan()?;
        let runs = plan
            .points
            .iter()
            .map(|point| self.run_args(point).config(machine, command.clone()))
            .collect::<Result<_, _>>()?;
        Ok(SweepConfig {
            command,
            plan,
            runs,
            figure: self.files.figure,
        })
    }

    /// The runs to make.
    ///
    /// # Errors
    /// A usage failure for more than [`RUNS_MAX`] runs.
    pub(super) fn plan(&self) -> Result<SweepPlan, Failure> {
        Ok(SweepPlan {
            points: points(self)?,
            repeats: self.repeats,
            repeat_disturbed: self.repeat_disturbed,
        })
    }

    /// The first output that was given; `None` if none was.
    pub(super) fn output(&self) -> Option<&'static str> {
        let json = self.json.is_some().then_some("--json");
        let html = self.html.is_some().then_some("--html");
        json.or(html).or_else(|| self.files.given())
    }

    /// The arguments of `run` for a combination.
    pub(super) fn run_args(&self, point: &Point) -> RunArgs {
        RunArgs {
            op: point.op,
            size: point.size,
            placement: point.placement,
            depth: point.depth,
            connections: point.connections,
            repeat_disturbed: None,
            pace: PaceArgs {
                rate: point.rate_per_s,
                to_knee: false,
            },
            retry: Duration::ZERO,
            reverse: false,
            through: Through::Core,
            common: self.common.clone(),
            sizes: None,
            output: OutputArgs::default(),
        }
    }
}

/// Every combination of the lists. Repeated list entries count once.
///
/// # Errors
/// A usage failure for more than [`RUNS_MAX`] runs.
fn points(args: &SweepArgs) -> Result<Vec<Point>, Failure> {
    let sizes = options(&args.size);
    let rates = options(&args.rate);
    let lengths = [
        args.op.len(),
        sizes.len(),
        args.placement.len(),
        args.depth.len(),
        args.connections.len(),
        rates.len(),
        usize::try_from(args.repeats).unwrap_or(usize::MAX),
    ];
    let runs = lengths.into_iter().fold(1, usize::saturating_mul);
    if runs > RUNS_MAX {
        return Err(Failure::usage(format!("these are {runs} runs"))
            .advice(format!("make the lists shorter: {RUNS_MAX} runs at most")));
    }
    let mut points = Vec::new();
    for &op in &args.op {
        for &size in &sizes {
            for &placement in &args.placement {
                for &depth in &args.depth {
                    for &connections in &args.connections {
                        for &rate_per_s in &rates {
                            let point = Point {
                                op,
                                size,
                                placement,
                                depth,
                                connections,
                                rate_per_s,
                            };
                            if !points.contains(&point) {
                                points.push(point);
                            }
                        }
                    }
                }
            }
        }
    }
    Ok(points)
}

fn options(list: &[u64]) -> Vec<Option<u64>> {
    if list.is_empty() {
        vec![None]
    } else {
        list.iter().copied().map(Some).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::tests::sweep as args;
    use crate::sweep::grid::Axis;
    use rpcrdma_testkit::CheckWords;

    #[test]
    fn every_combination_is_there_once() {
        let sweep = args("--op read,write --size 1k,4k,1k --placement send,rdma --depth 1,8");
        let points = points(&sweep).unwrap();
        assert_eq!(points.len(), 2 * 2 * 2 * 2);
        assert_eq!(
            Axis::varied(&points),
            [Axis::Op, Axis::Size, Axis::Placement, Axis::Depth]
        );
        assert_eq!(
            points[0].label(&Axis::varied(&points)),
            "read, size 1 KiB, send, depth 1"
        );
        assert_eq!(Axis::Size.number(&points[0]), Some(1024.0));
        let run = sweep.run_args(&points[15]);
        assert_eq!((run.op, run.size, run.depth), (Op::Write, Some(4096), 8));
    }

    #[test]
    fn a_bare_sweep_is_one_point() {
        let points = points(&args("")).unwrap();
        assert_eq!(points.len(), 1);
        assert!(Axis::varied(&points).is_empty());
        assert_eq!(Axis::Rate.text(&points[0]), "closed");
    }

    #[test]
    fn too_many_runs_are_refused() {
        let list = (1..200)
            .map(|n| n.to_string())
            .collect::<Vec<_>>()
            .join(",");
        let failure = points(&args(&format!("--depth {list} --connections {list}"))).unwrap_err();
        failure.check_words(&["10000 runs at most"]);
    }
}
