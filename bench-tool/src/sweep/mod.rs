//! `bench-tool sweep`: repeated runs for every combination of sizes, depths, placements and so on.
//!
//! | module | contents |
//! |---|---|
//! | [`grid`] | the combinations |
//! | [`runs`] | their order, and the figures of each combination |
//! | [`table`] | the table of medians, and the CSV |
//! | [`plot`] | the chart |
//! | [`page`] | the page |

pub(crate) mod grid;
pub(crate) mod page;
pub(crate) mod plot;
pub(crate) mod runs;
pub(crate) mod table;

use serde::{Deserialize, Serialize};

use self::page::SweepPage;
use self::runs::{Clients, Repeat, Runner, SweepPlan, Swept, SweptReport, make_runs};
use crate::exit::{Failure, Status};
use crate::machine::Machine;
use crate::report::figures::LoadFigures;
use crate::report::metric::Metric;
use crate::report::origin::Origin;
use crate::report::output::{Output, Outputs, json_text};
use crate::run::config::RunConfig;
use crate::run::report::Report;
use crate::run::{Load, measure};
use crate::signals::Stop;

/// The `schema` of the JSON.
pub(crate) const SCHEMA: &str = "rpcrdma.bench-tool.sweep/1";

/// The report of a sweep, over a fleet or of this process.
pub(crate) trait Sweep: Serialize + Sized {
    /// The report of a run.
    type Run: SweptReport;

    /// The combinations and the runs.
    fn swept(&self) -> &Swept<Self::Run>;

    /// The table.
    fn table(&self) -> String;

    /// Warnings that limit the trust in the numbers.
    fn warnings(&self) -> Vec<String>;

    /// The page.
    fn page(&self) -> String;

    /// Writes the report and, if requested, the chart.
    ///
    /// # Errors
    /// Files that cannot be written, and nothing to draw along.
    fn put(
        &self,
        outputs: &Outputs,
        chart: Option<&Output>,
        figure: Option<Metric>,
    ) -> Result<(), Failure> {
        let written = outputs.write(&self.table(), &self.warnings(), |option| match option {
            "--csv" => table::csv(self.swept()),
            "--html" => self.page(),
            _ => json_text(self),
        });
        // One output that fails costs no other.
        let drawn = chart.map_or(Ok(()), |output| {
            output.write(plot::chart(self.swept(), figure)?.svg())
        });
        written.and(drawn)
    }
}

/// The report of a sweep of this process. Its serialization is the JSON report, whose layout is stable.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SweepReport {
    /// The program and command line that wrote it.
    #[serde(flatten)]
    origin: Origin,
    #[serde(flatten)]
    swept: Swept<Report>,
}

impl Sweep for SweepReport {
    type Run = Report;

    fn swept(&self) -> &Swept<Report> {
        &self.swept
    }

    fn table(&self) -> String {
        table::text(&self.swept)
    }

    fn warnings(&self) -> Vec<String> {
        table::warnings(&self.swept)
    }

    fn page(&self) -> String {
        let page = SweepPage {
            title: match self.swept.points.len() {
                1 => "sweep of one combination".to_owned(),
                all => format!("sweep of {all} combinations"),
            },
            origin: &self.origin,
            machine: self.swept.runs.first().map(|run| &run.machine),
            swept: &self.swept,
            warnings: self.warnings(),
            together: "of all counted repeats together",
            after_combinations: String::new(),
            after_percentiles: String::new(),
            facts: Vec::new(),
        };
        page.text()
    }
}

impl Repeat for Report {
    fn is_disturbed(&self) -> bool {
        self.disturbed
    }

    fn clients(&self) -> Clients {
        Clients::ONE
    }
}

impl SweptReport for Report {
    const MORE_COLUMNS: &'static [&'static str] = &[];

    fn load(&self) -> &LoadFigures {
        &self.load
    }

    fn warnings(&self) -> &Vec<String> {
        &self.warnings
    }

    fn path(&self) -> Option<String> {
        Some(format!("{} over {}", self.protocol, self.fabric))
    }

    fn work(&self) -> [String; 4] {
        let asked = self.placement_asked.as_deref().unwrap_or_default();
        [
            self.op.to_string(),
            self.size_bytes.to_string(),
            asked.to_owned(),
            self.placement.clone(),
        ]
    }

    fn more_cells(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The configuration of a sweep.
pub(crate) struct SweepConfig {
    /// The command line, for the report.
    pub command: String,
    /// The runs to make.
    pub plan: SweepPlan,
    /// The run of each combination.
    pub runs: Vec<RunConfig>,
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
    let stop = Stop::on_signals()?;
    let swept = sweep(&config, machine, outputs.is_quiet(), &stop, load);
    if swept.runs.is_empty() {
        return Err(nothing(&swept));
    }
    let report = SweepReport {
        origin: Origin::new(SCHEMA, config.command),
        swept,
    };
    report.put(outputs, chart, config.figure)?;
    Ok(if report.swept.failures.is_empty() {
        Status::Success
    } else {
        Status::Failure
    })
}

fn nothing(swept: &Swept<Report>) -> Failure {
    match swept.failures.first() {
        Some(first) => Failure::failed(format!(
            "no run succeeded; {}: {}",
            first.point, first.failure
        )),
        None => Failure::failed("stopped by a signal before a run was complete"),
    }
}

fn sweep(
    config: &SweepConfig,
    machine: &Machine,
    is_quiet: bool,
    stop: &Stop,
    load: &mut impl Load,
) -> Swept<Report> {
    let mut runner = RunRunner {
        runs: &config.runs,
        machine,
        stop,
        load,
    };
    make_runs(&config.plan, is_quiet, &mut runner)
}

/// Makes the runs of this process.
struct RunRunner<'a, L> {
    runs: &'a [RunConfig],
    machine: &'a Machine,
    stop: &'a Stop,
    load: &'a mut L,
}

impl<L: Load> Runner for RunRunner<'_, L> {
    type Report = Report;

    const KEEPS_STOPPED: bool = false;

    fn run(&mut self, place: usize, _state: &str) -> Result<Report, Failure> {
        let config = self.runs.get(place);
        let config = config.ok_or_else(|| Failure::failed("there is no such combination"))?;
        let (result, floor) = measure(config, true, self.stop.clone(), self.load, &mut |_| {})?;
        if let Some(failure) = result.totals.failure {
            return Err(failure);
        }
        let report = Report::new(config, self.machine, &result, floor.as_ref());
        if !report.load.interrupted {
            let account = report.load.account();
            account.verdict("make a single run of it: its report says which errors")?;
        }
        Ok(report)
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_asked()
    }

    fn clients(&self) -> usize {
        1
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::commands::tests::sweep as args;
    use crate::load::Watch;
    use crate::run::report::RunResult;
    use crate::run::report::tests::result;
    use rpcrdma_control::ServerAddresses;
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
            _: &ServerAddresses,
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

    fn swept(line: &str, mut load: Formula) -> (Swept<Report>, Vec<(u64, u32)>) {
        let args = args(&format!("--connect shm:elsewhere --quiet {line}"));
        let machine = Machine::detect();
        let config = args.config(&machine, "test".to_owned()).unwrap();
        let report = sweep(&config, &machine, true, &Stop::new(), &mut load);
        (report, load.made)
    }

    pub(super) fn sizes_and_placements() -> Swept<Report> {
        let line = "--op write --size 1k,4k,64k --placement send,rdma --repeats 2";
        swept(line, Formula::default()).0
    }

    pub(super) fn depths() -> Swept<Report> {
        swept("--depth 1,4,16 --repeats 1", Formula::default()).0
    }

    /// The places of the runs of each combination.
    fn runs(report: &Swept<Report>) -> Vec<Vec<usize>> {
        report.points.iter().map(|it| it.runs.clone()).collect()
    }

    #[test]
    fn repeats_are_interleaved() {
        let (report, made) = swept("--depth 1,4 --repeats 3", Formula::default());
        assert_eq!(made, [(0, 1), (0, 4), (0, 4), (0, 1), (0, 1), (0, 4)]);
        assert_eq!(runs(&report), [vec![0, 3, 4], vec![1, 2, 5]]);
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
            "  disturbed, from 3 runs\n",
            "every run that counts of 1 of the 2 combinations was disturbed",
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
        // It ends no repeats of others, and the combination is not tried again.
        let failing = Formula {
            fails_at_depth: Some(4),
            fails_after: 1,
            ..load(&[1, 2, 4])
        };
        let line = "--depth 4,1 --repeats 1 --repeat-disturbed 3";
        let (report, made) = swept(line, failing);
        assert_eq!(made, [(0, 4), (0, 1), (0, 4), (0, 1), (0, 1)]);
        assert_eq!(report.failures.len(), 1);
        let stopped = Formula {
            stops_after: Some(2),
            ..load(&[1])
        };
        let (report, _) = swept("--repeats 1", stopped);
        assert_eq!((report.runs.len(), report.interrupted), (1, true));
    }

    #[test]
    fn interrupted_sweep_keeps_its_complete_runs() {
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
    fn combination_that_fails_later_stops_and_keeps_its_runs() {
        let load = Formula {
            fails_at_depth: Some(4),
            fails_after: 1,
            ..Formula::default()
        };
        let (report, made) = swept("--depth 1,4 --repeats 4", load);
        assert_eq!(made, [(0, 1), (0, 4), (0, 4), (0, 1), (0, 1), (0, 1)]);
        assert_eq!(runs(&report), [vec![0, 2, 3, 4], vec![1]]);
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
