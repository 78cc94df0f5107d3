//! `bench-tool sweep`: repeated runs for every combination of sizes, depths, placements and so on.
//!
//! | module | contents |
//! |---|---|
//! | [`grid`] | the combinations |
//! | [`table`] | the table of medians, and the CSV |
//! | [`plot`] | the chart |

pub(crate) mod grid;
pub(crate) mod plot;
pub(crate) mod table;

use serde::Serialize;

use self::grid::{Axis, Point};
use crate::compare::metric::Metric;
use crate::compare::rank_sum::{median, sorted};
use crate::exit::{Failure, Status};
use crate::machine::Machine;
use crate::progress::Rounds;
use crate::report::origin::Origin;
use crate::report::output::{Output, Outputs, json_text, verdict};
use crate::run::config::RunConfig;
use crate::run::report::Report;
use crate::run::{Load, measure};
use crate::signals::Stop;

/// The `schema` of the JSON.
const SCHEMA: &str = "rpcrdma.bench-tool.sweep/1";

/// A combination whose runs failed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PointFailure {
    /// The combination.
    pub point: String,
    /// The reason and the advice.
    pub failure: String,
}

/// The report of a sweep. Its serialization is the JSON report, whose layout is stable.
#[derive(Debug, Serialize)]
pub(crate) struct SweepReport {
    /// The program and command line that wrote it.
    #[serde(flatten)]
    origin: Origin,
    repeats: u32,
    interrupted: bool,
    /// All complete runs, in the order in which they were made.
    runs: Vec<Report>,
    failures: Vec<PointFailure>,
    /// The combinations, and below the index of each run's combination.
    #[serde(skip)]
    points: Vec<Point>,
    #[serde(skip)]
    point_of_run: Vec<usize>,
}

impl SweepReport {
    fn new(command: String, repeats: u32, points: Vec<Point>) -> Self {
        Self {
            origin: Origin::new(SCHEMA, command),
            repeats,
            interrupted: false,
            runs: Vec::new(),
            failures: Vec::new(),
            points,
            point_of_run: Vec::new(),
        }
    }

    /// The runs of the combination with this index.
    fn runs_of(&self, point: usize) -> impl Iterator<Item = &Report> {
        let runs = self.runs.iter().zip(&self.point_of_run);
        runs.filter_map(move |(run, of)| (*of == point).then_some(run))
    }

    /// The sorted figures of a combination: those of its undisturbed runs, or of all runs if each was disturbed. Empty if no
    /// run is complete.
    fn figures(&self, point: usize, metric: Metric) -> Vec<f64> {
        let all = self.is_disturbed(point);
        let runs = self.runs_of(point).filter(|run| all || !run.disturbed);
        sorted(runs.map(|run| figure(run, metric)).collect())
    }

    /// The median of a figure over the runs of a combination; `None` if no run is complete.
    fn median(&self, point: usize, metric: Metric) -> Option<f64> {
        let values = self.figures(point, metric);
        (!values.is_empty()).then(|| median(&values))
    }

    /// The lowest and the highest figure of a combination; `None` with fewer than two runs.
    fn range(&self, point: usize, metric: Metric) -> Option<(f64, f64)> {
        match self.figures(point, metric)[..] {
            [least, .., largest] => Some((least, largest)),
            _ => None,
        }
    }

    /// Whether the machine disturbed every run of a combination.
    fn is_disturbed(&self, point: usize) -> bool {
        self.runs_of(point).all(|run| run.disturbed)
    }

    fn label(&self, point: &Point) -> String {
        match point.label(&Axis::varied(&self.points)) {
            label if label.is_empty() => point.op.name().to_owned(),
            label => label,
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "a figure of a table")]
fn figure(run: &Report, metric: Metric) -> f64 {
    let latency = &run.load.latency_ns;
    match metric {
        Metric::P50 => latency.p50 as f64,
        Metric::P90 => latency.p90 as f64,
        Metric::P99 => latency.p99 as f64,
        Metric::P999 => latency.p99_9 as f64,
        Metric::Mean => latency.mean,
        Metric::Rate => run.load.rate_per_s,
    }
}

/// The configuration of a sweep.
pub(crate) struct SweepConfig {
    /// The command line, for the report.
    pub command: String,
    /// The combinations.
    pub points: Vec<Point>,
    /// The run of each combination.
    pub runs: Vec<RunConfig>,
    /// Number of runs of each combination.
    pub repeats: u32,
    /// How often a disturbed run is made again.
    pub repeat_disturbed: u32,
    /// The figure of the chart; with `None` the axis decides.
    pub figure: Option<Metric>,
}

/// Makes the runs, and writes the report and, if requested, the chart.
///
/// # Errors
/// Files that cannot be written, and a sweep without any successful run. If only some combinations fail, the others
/// are reported and the exit status is 1.
pub(crate) fn execute(
    config: SweepConfig,
    machine: &Machine,
    outputs: &Outputs,
    chart: Option<&Output>,
    load: &mut impl Load,
) -> Result<Status, Failure> {
    let (figure, stop) = (config.figure, Stop::on_signals()?);
    let report = make_runs(config, machine, outputs.is_quiet(), &stop, load);
    if report.runs.is_empty() {
        return Err(nothing(&report));
    }
    let (text, warnings) = (table::text(&report), table::warnings(&report));
    outputs.write(&text, &warnings, |option| match option {
        "--csv" => table::csv(&report),
        _ => json_text(&report),
    })?;
    if let Some(output) = chart {
        output.write(plot::draw(&report, figure)?)?;
    }
    Ok(if report.failures.is_empty() {
        Status::Success
    } else {
        Status::Failure
    })
}

fn nothing(report: &SweepReport) -> Failure {
    match report.failures.first() {
        Some(first) => Failure::failed(format!(
            "no run succeeded; {}: {}",
            first.point, first.failure
        )),
        None => Failure::failed("stopped by a signal before a run was complete"),
    }
}

/// Makes the runs: all combinations once, then all again in reverse order, and so on. So drift of the machine affects
/// the first and the last combinations alike. A failed combination is not repeated.
fn make_runs(
    config: SweepConfig,
    machine: &Machine,
    is_quiet: bool,
    stop: &Stop,
    load: &mut impl Load,
) -> SweepReport {
    let configs = config.runs;
    let mut report = SweepReport::new(config.command, config.repeats, config.points);
    let mut order: Vec<usize> = (0..configs.len()).collect();
    let mut failed = Vec::new();
    let total = u64::try_from(configs.len()).unwrap_or(u64::MAX) * u64::from(report.repeats);
    let mut rounds = Rounds::start(total, is_quiet);
    for _ in 0..report.repeats {
        for &place in &order {
            let (Some(config), Some(point)) = (configs.get(place), report.points.get(place)) else {
                continue;
            };
            let label = report.label(point);
            rounds.next(&label);
            match one(config, machine, stop, load) {
                Ok(run) if !run.load.interrupted && !stop.is_asked() => {
                    report.runs.push(run);
                    report.point_of_run.push(place);
                }
                Err(failure) if !stop.is_asked() => {
                    failed.push(place);
                    report.failures.push(PointFailure {
                        point: label,
                        failure: failure.to_string(),
                    });
                }
                Ok(_) | Err(_) => {
                    report.interrupted = true;
                    return report;
                }
            }
        }
        order.retain(|place| !failed.contains(place));
        order.reverse();
    }
    for _ in 0..config.repeat_disturbed {
        if !repeat_disturbed(&configs, machine, stop, load, &mut report, &mut rounds) {
            break;
        }
    }
    report
}

/// Makes the runs again that were disturbed, for combinations that have too few others. Returns whether there were any
/// and the sweep goes on. A failure ends the repeats, and is reported.
fn repeat_disturbed(
    configs: &[RunConfig],
    machine: &Machine,
    stop: &Stop,
    load: &mut impl Load,
    report: &mut SweepReport,
    rounds: &mut Rounds,
) -> bool {
    let repeats = report.repeats as usize;
    let missing = |place: usize| {
        let of = |disturbed| {
            report
                .runs_of(place)
                .filter(move |run| run.disturbed == disturbed)
        };
        repeats
            .saturating_sub(of(false).count())
            .min(of(true).count())
    };
    let again: Vec<usize> = (0..configs.len())
        .flat_map(|place| std::iter::repeat_n(place, missing(place)))
        .collect();
    rounds.add(again.len());
    let mut made = false;
    for place in again {
        let (Some(config), Some(point)) = (configs.get(place), report.points.get(place)) else {
            continue;
        };
        let label = report.label(point);
        rounds.next(&format!("{label}, again"));
        match one(config, machine, stop, load) {
            Ok(run) if !run.load.interrupted && !stop.is_asked() => {
                report.runs.push(run);
                report.point_of_run.push(place);
                made = true;
            }
            Err(failure) if !stop.is_asked() => {
                report.failures.push(PointFailure {
                    point: label,
                    failure: failure.to_string(),
                });
                return false;
            }
            Ok(_) | Err(_) => {
                report.interrupted = true;
                return false;
            }
        }
    }
    made
}

fn one(
    config: &RunConfig,
    machine: &Machine,
    stop: &Stop,
    load: &mut impl Load,
) -> Result<Report, Failure> {
    let (result, floor) = measure(config, true, stop.clone(), load, &mut |_| {})?;
    if let Some(failure) = result.totals.failure {
        return Err(failure);
    }
    let report = Report::new(config, machine, &result, floor.as_ref());
    if !report.load.interrupted {
        verdict(
            report.load.calls,
            report.load.errors,
            "make a single run of it: its report says which errors",
        )?;
    }
    Ok(report)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::address::Address;
    use crate::commands::tests::sweep as args;
    use crate::load::Watch;
    use crate::run::report::RunResult;
    use crate::run::report::tests::result;
    use rpcrdma_testkit::CheckWords;

    /// A load whose latency grows with size and depth. It fails and stops at the configured points.
    #[derive(Default)]
    struct Formula {
        made: Vec<(u64, u32)>,
        fails_at_depth: Option<u32>,
        /// Number of runs of that depth that succeed before the failure.
        fails_after: usize,
        stops_after: Option<usize>,
        /// The runs that are disturbed, and slow, by their numbers from 1.
        disturbed: &'static [usize],
    }

    impl Load for Formula {
        fn measure(
            &mut self,
            config: &RunConfig,
            _: &Address,
            watch: &Watch,
            _: &mut dyn FnMut(&RunResult),
        ) -> Result<RunResult, Failure> {
            self.made.push((config.size_bytes, config.load.depth));
            let made_before = self
                .made
                .iter()
                .filter(|(_, it)| *it == config.load.depth)
                .count()
                - 1;
            if self.fails_at_depth == Some(config.load.depth) && made_before >= self.fails_after {
                return Err(Failure::failed("no such placement"));
            }
            let mut made = result();
            made.latency = crate::histogram::LatencyHistogram::new();
            let step = self.made.len() as u64;
            made.disturbed = self.disturbed.contains(&self.made.len());
            let slower = if made.disturbed { 5_000 } else { 0 };
            for _ in 0..10_000 * u64::from(config.load.depth) {
                made.latency
                    .record(400 + config.size_bytes / 8 + step + slower);
            }
            if self.stops_after == Some(self.made.len()) {
                watch.stop.ask();
                made.totals.interrupted = true;
            }
            Ok(made)
        }
    }

    fn swept(line: &str, mut load: Formula) -> (SweepReport, Vec<(u64, u32)>) {
        let args = args(&format!("--connect shm:elsewhere --quiet {line}"));
        let machine = Machine::detect();
        let config = args.config(&machine, "test".to_owned()).unwrap();
        let report = make_runs(config, &machine, true, &Stop::new(), &mut load);
        (report, load.made)
    }

    pub(super) fn sizes_and_placements() -> SweepReport {
        let line = "--op write --size 1k,4k,64k --placement send,rdma --repeats 2";
        swept(line, Formula::default()).0
    }

    pub(super) fn depths() -> SweepReport {
        swept("--depth 1,4,16 --repeats 1", Formula::default()).0
    }

    #[test]
    fn repeats_are_interleaved() {
        let (report, made) = swept("--depth 1,4 --repeats 3", Formula::default());
        assert_eq!(made, [(0, 1), (0, 4), (0, 4), (0, 1), (0, 1), (0, 4)]);
        assert_eq!(report.point_of_run, [0, 1, 1, 0, 0, 1]);
        assert_eq!(report.median(0, Metric::P50), Some(404.0));
        assert!(!report.interrupted);
    }

    #[test]
    fn a_disturbed_run_is_made_again_and_is_in_no_median() {
        let load = |disturbed| Formula {
            disturbed,
            ..Formula::default()
        };
        // The second and the third run are those of depth 4.
        let (report, made) = swept("--depth 1,4 --repeats 2", load(&[2]));
        assert_eq!(made, [(0, 1), (0, 4), (0, 4), (0, 1), (0, 4)]);
        assert_eq!(report.figures(1, Metric::P50), [403.0, 405.0]);
        assert_eq!(report.range(1, Metric::P50), Some((403.0, 405.0)));
        let text = table::text(&report);
        assert!(
            text.contains("0.5 %") && !text.contains("disturbed"),
            "{text}"
        );
        // One that is disturbed again is shown as such, and so often only.
        let (report, made) = swept(
            "--depth 1,4 --repeats 1 --repeat-disturbed 2",
            load(&[2, 3, 4, 5, 6]),
        );
        assert_eq!(made.len(), 4);
        assert_eq!(report.median(1, Metric::P50), Some(5_403.0));
        let text = table::text(&report);
        text.check_words(&[
            "  disturbed\n",
            "every run of 1 of the 2 combinations was disturbed",
        ]);
        let csv = table::csv(&report);
        assert_eq!(csv.matches(",true\n").count(), 3);
        let (_, made) = swept("--repeats 1 --repeat-disturbed 0", load(&[1]));
        assert_eq!(made.len(), 1);
        // A failure of a run that is made again is reported, as is a signal; the first run stays.
        let failing = Formula {
            fails_at_depth: Some(4),
            fails_after: 1,
            ..load(&[2])
        };
        let (report, _) = swept("--depth 1,4 --repeats 1", failing);
        assert_eq!((report.runs.len(), report.failures.len()), (2, 1));
        let stopped = Formula {
            stops_after: Some(2),
            ..load(&[1])
        };
        let (report, _) = swept("--repeats 1", stopped);
        assert_eq!((report.runs.len(), report.interrupted), (1, true));
    }

    #[test]
    fn what_is_complete_is_kept_when_it_ends_early() {
        let load = Formula {
            stops_after: Some(4),
            ..Formula::default()
        };
        let (report, made) = swept("--depth 1,4 --repeats 3", load);
        assert_eq!(
            (made.len(), report.runs.len(), report.interrupted),
            (4, 3, true)
        );
        let text = table::text(&report);
        text.check_words(&["medians of up to 3", "signal: 3 of 6 runs are complete"]);
    }

    #[test]
    fn a_combination_that_fails_does_not_stop_the_others() {
        let load = Formula {
            fails_at_depth: Some(4),
            ..Formula::default()
        };
        let (report, made) = swept("--depth 1,4,8 --repeats 2", load);
        assert_eq!((made.len(), report.runs.len()), (5, 4));
        assert_eq!(report.failures.len(), 1);
        let text = table::text(&report);
        assert!(text.contains("depth 4 failed: no such placement"), "{text}");
        let load = Formula {
            fails_at_depth: Some(1),
            ..Formula::default()
        };
        let (report, _) = swept("--repeats 2", load);
        assert!(nothing(&report).to_string().contains("no such placement"));
    }

    #[test]
    fn what_fails_after_it_succeeded_is_not_tried_again_and_keeps_its_runs() {
        let load = Formula {
            fails_at_depth: Some(4),
            fails_after: 1,
            ..Formula::default()
        };
        let (report, made) = swept("--depth 1,4 --repeats 4", load);
        assert_eq!(made, [(0, 1), (0, 4), (0, 4), (0, 1), (0, 1), (0, 1)]);
        assert_eq!(report.point_of_run, [0, 1, 0, 0, 0]);
        assert_eq!(report.failures.len(), 1);
        let text = table::text(&report);
        assert!(text.contains("depth 4 failed: no such placement"), "{text}");
    }

    #[test]
    fn compare_reads_what_sweep_writes() {
        let (report, _) = swept("--repeats 5", Formula::default());
        let text = serde_json::to_string_pretty(&report).unwrap();
        let runs = crate::compare::runs::from_text(&text, "sweep.json").unwrap();
        assert_eq!(runs.len(), 5);
        let mixed = serde_json::to_string(&depths()).unwrap();
        let failure = crate::compare::runs::from_text(&mixed, "sweep.json").unwrap_err();
        failure.check_words(&["depth is 1 and 4"]);
    }
}
