//! The runs of a sweep: their order, what becomes of those that fail or are disturbed, and the figures of each
//! combination.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::grid::{Axis, Point, labels};
use crate::exit::Failure;
use crate::progress::Rounds;
use crate::report::figures::LoadFigures;
use crate::report::metric::{Metric, median, sorted};

/// A run of a combination, as far as it decides which of its runs count.
pub(crate) trait Repeat {
    /// Whether other work, stolen time or the frequency disturbed it.
    fn is_disturbed(&self) -> bool;

    /// Whose calls it has.
    fn clients(&self) -> Clients;
}

/// Whose calls a run has. Runs of a combination in which that differs have another load, and those with the largest count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Clients {
    /// How many clients made calls until its end.
    pub stayed: usize,
    /// Whether no other client made calls for a part of the time.
    pub is_whole: bool,
    /// How many clients reported.
    pub reported: usize,
    /// The rate of all together in an open loop over a fleet.
    pub offered_rate_per_s: Option<u64>,
}

impl Clients {
    /// A process without a fleet.
    pub(crate) const ONE: Self = Self {
        stayed: 1,
        is_whole: true,
        reported: 1,
        offered_rate_per_s: None,
    };

    /// Clients of a fleet, by their reports, and by when those failed that failed in the run. `is_stopped` says that a signal
    /// to the coordinator ended it.
    pub(crate) fn of_fleet<'a>(
        reports: impl Iterator<Item = &'a Value>,
        mut failed_when: impl Iterator<Item = &'a str>,
        is_stopped: bool,
        offered_rate_per_s: Option<u64>,
    ) -> Self {
        let (mut stayed, mut reported) = (0, 0);
        for report in reports {
            reported += 1;
            stayed += usize::from(!left_early(report, is_stopped));
        }
        Self {
            stayed,
            is_whole: stayed == reported && !failed_when.any(|when| when == WHILE_IT_RAN),
            reported,
            offered_rate_per_s,
        }
    }
}

/// What a client of a fleet did when it failed in the time of its calls, as reports say it.
pub(crate) const WHILE_IT_RAN: &str = "while it ran";

/// Whether the load of a client that reported broke off, a signal ended it alone, or none of its calls succeeded. Errors of
/// some do not end it.
fn left_early(report: &Value, is_stopped: bool) -> bool {
    let ended = report["interrupted"] == true || report["calls"] == 0;
    report["failure"].is_string() || (ended && !is_stopped)
}

/// The JSON of a run or of a fleet, which was disturbed if a client was.
impl Repeat for Value {
    fn is_disturbed(&self) -> bool {
        let mut clients = self["clients"].as_array().into_iter().flatten();
        self["disturbed"] == true || clients.any(|it| it["report"].is_disturbed())
    }

    fn clients(&self) -> Clients {
        let Some(clients) = self["clients"].as_array() else {
            return Clients::ONE;
        };
        let before = self["failures_before"].as_u64().unwrap_or(0);
        let failures = self["failures"].as_array().into_iter().flatten();
        let failures = failures.skip(usize::try_from(before).unwrap_or(usize::MAX));
        Clients::of_fleet(
            clients.iter().map(|it| &it["report"]),
            failures.filter_map(|it| it["when"].as_str()),
            self["interrupted"] == true,
            self["offered_rate_per_s"].as_u64(),
        )
    }
}

/// The report of one run of a sweep.
pub(crate) trait SweptReport: Repeat {
    /// Names of the columns of the CSV that only this kind of report has.
    const MORE_COLUMNS: &'static [&'static str];

    /// Options and results of the load.
    fn load(&self) -> &LoadFigures;

    /// Warnings that limit the trust in the numbers.
    fn warnings(&self) -> &Vec<String>;

    /// `v2 over shm`; `None` if the report does not say.
    fn path(&self) -> Option<String>;

    /// Procedure, size in bytes, the placement that was asked for, and the placement; empty where there is none.
    fn work(&self) -> [String; 4];

    /// The cells of [`Self::MORE_COLUMNS`].
    fn more_cells(&self) -> Vec<String>;
}

/// Makes the runs of a sweep.
pub(crate) trait Runner {
    /// What it reports.
    type Report: SweptReport;

    /// Whether a run that a signal ended is kept if its combination has no other.
    const KEEPS_STOPPED: bool;

    /// Makes a run of the combination with this index. `state` says which run of how many it is.
    ///
    /// # Errors
    /// Why the combination has no such run.
    fn run(&mut self, place: usize, state: &str) -> Result<Self::Report, Failure>;

    /// Whether a signal asked for the end of the sweep.
    fn is_stopped(&self) -> bool;

    /// How many clients are left that could make another run.
    fn clients(&self) -> usize;
}

/// The runs that a sweep is to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SweepPlan {
    /// The combinations.
    pub points: Vec<Point>,
    /// Number of runs of each combination.
    pub repeats: u32,
    /// How often a disturbed run is made again.
    pub repeat_disturbed: u32,
}

/// A combination whose runs failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PointFailure {
    /// The combination.
    pub point: String,
    /// The reason and the advice.
    pub failure: String,
}

/// A combination, and its runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SweptPoint {
    /// The combination.
    #[serde(flatten)]
    pub point: Point,
    /// The places of its runs among those of the sweep.
    pub runs: Vec<usize>,
}

/// What a sweep has made. Its serialization is a part of JSON reports, whose layout is stable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Swept<R> {
    /// How many runs of each combination were asked for.
    pub(crate) repeats: u32,
    /// Whether a signal ended it.
    pub(crate) interrupted: bool,
    /// The combinations.
    pub(crate) points: Vec<SweptPoint>,
    /// All runs, in the order in which they were made.
    pub(crate) runs: Vec<R>,
    /// The combinations whose runs failed.
    pub(crate) failures: Vec<PointFailure>,
}

impl<R: Repeat> Swept<R> {
    fn new(plan: &SweepPlan) -> Self {
        let points = plan.points.iter();
        Self {
            repeats: plan.repeats,
            interrupted: false,
            points: points
                .map(|point| SweptPoint {
                    point: *point,
                    runs: Vec::new(),
                })
                .collect(),
            runs: Vec::new(),
            failures: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, place: usize, run: R) {
        if let Some(point) = self.points.get_mut(place) {
            point.runs.push(self.runs.len());
            self.runs.push(run);
        }
    }

    /// The combinations.
    pub(crate) fn grid(&self) -> Vec<Point> {
        self.points.iter().map(|it| it.point).collect()
    }

    /// The runs of the combination with this index.
    pub(crate) fn runs_of(&self, place: usize) -> impl Iterator<Item = &R> {
        let point = self.points.get(place).into_iter();
        let places = point.flat_map(|point| &point.runs);
        places.filter_map(|place| self.runs.get(*place))
    }

    /// The runs of a combination with the same load: that of the most clients, of which none left early if there is such a
    /// run.
    fn alike(&self, place: usize) -> impl Iterator<Item = (usize, &R)> {
        let most = self.runs_of(place).map(Repeat::clients).max();
        let runs = (1..).zip(self.runs_of(place));
        runs.filter(move |(_, run)| Some(run.clients()) == most)
    }

    /// Whether a run by so many clients could count. Others have more already if not.
    fn can_count(&self, place: usize, clients: usize) -> bool {
        self.alike(place)
            .all(|(_, run)| run.clients().stayed <= clients)
    }

    /// The runs of a combination whose figures count: of those with the most clients, the ones that were not disturbed, or
    /// all if each was.
    pub(crate) fn counted(&self, place: usize) -> impl Iterator<Item = &R> {
        self.numbered(place).map(|(_, run)| run)
    }

    /// The same, each with its number from 1 among all runs of the combination.
    pub(crate) fn numbered(&self, place: usize) -> impl Iterator<Item = (usize, &R)> {
        let all = self.is_disturbed(place);
        self.alike(place)
            .filter(move |(_, run)| all || !run.is_disturbed())
    }

    /// How many runs do not count because others of their combination have more clients, or lost none.
    pub(crate) fn with_fewer_clients(&self) -> usize {
        let places = 0..self.points.len();
        let fewer = places.map(|it| self.runs_of(it).count() - self.alike(it).count());
        fewer.sum()
    }

    /// Whether the machine disturbed every run of a combination that could count.
    pub(crate) fn is_disturbed(&self, place: usize) -> bool {
        self.alike(place).all(|(_, run)| run.is_disturbed())
    }

    /// How many disturbed runs of a combination are to be made again by so many clients: none that could not count.
    fn missing(&self, place: usize, clients: usize) -> usize {
        if !self.can_count(place, clients) {
            return 0;
        }
        let (all, disturbed) = self
            .alike(place)
            .fold((0, 0), |(all, disturbed), (_, run)| {
                (all + 1, disturbed + usize::from(run.is_disturbed()))
            });
        (self.repeats as usize)
            .saturating_sub(all - disturbed)
            .min(disturbed)
    }

    /// Whether each run belongs to one combination, which a report that was read may not have.
    pub(crate) fn has_each_run_once(&self) -> bool {
        let places = self.points.iter().flat_map(|it| &it.runs);
        let mut places: Vec<usize> = places.copied().collect();
        places.sort_unstable();
        places.into_iter().eq(0..self.runs.len())
    }
}

impl<R: SweptReport> Swept<R> {
    /// The sorted figures of a combination. Empty if no run counts.
    pub(super) fn figures(&self, place: usize, metric: Metric) -> Vec<f64> {
        let runs = self.counted(place);
        sorted(runs.map(|run| figure(run.load(), metric)).collect())
    }

    /// The median of a figure over the runs of a combination; `None` without one.
    pub(crate) fn median(&self, place: usize, metric: Metric) -> Option<f64> {
        let values = self.figures(place, metric);
        (!values.is_empty()).then(|| median(&values))
    }

    /// The lowest and the highest figure of a combination; `None` with fewer than two runs.
    pub(super) fn range(&self, place: usize, metric: Metric) -> Option<(f64, f64)> {
        match self.figures(place, metric)[..] {
            [least, .., largest] => Some((least, largest)),
            _ => None,
        }
    }

    /// The axes on which the combinations differ.
    pub(crate) fn axes(&self) -> Vec<Axis> {
        Axis::varied(&self.grid())
    }

    /// The names of all combinations.
    pub(crate) fn labels(&self) -> Vec<String> {
        labels(&self.grid())
    }
}

#[allow(clippy::cast_precision_loss, reason = "a figure of a table")]
fn figure(load: &LoadFigures, metric: Metric) -> f64 {
    let latency = &load.latency_ns;
    match metric {
        Metric::P50 => latency.p50 as f64,
        Metric::P90 => latency.p90 as f64,
        Metric::P99 => latency.p99 as f64,
        Metric::P999 => latency.p99_9 as f64,
        Metric::Mean => latency.mean,
        Metric::Rate => load.rate_per_s,
    }
}

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    Complete,
    Failed,
    /// It was the last one, complete or not.
    End,
}

/// A sweep that is being made.
struct Making<'a, R: Runner> {
    runner: &'a mut R,
    swept: Swept<R::Report>,
    labels: Vec<String>,
    rounds: Rounds,
}

impl<R: Runner> Making<'_, R> {
    /// Makes a run; `again` is added to the name of its combination.
    fn make(&mut self, place: usize, again: &str) -> Made {
        let Some(label) = self.labels.get(place) else {
            return Made::Failed;
        };
        let state = self.rounds.next(&format!("{label}{again}"));
        match self.runner.run(place, &state) {
            Ok(run) if !run.load().interrupted && !self.runner.is_stopped() => {
                self.swept.push(place, run);
                Made::Complete
            }
            Err(failure) if !self.runner.is_stopped() => {
                self.swept.failures.push(PointFailure {
                    point: label.clone(),
                    failure: failure.to_string(),
                });
                match self.runner.clients() {
                    0 => Made::End,
                    _ => Made::Failed,
                }
            }
            stopped => {
                self.swept.interrupted = true;
                if let Ok(run) = stopped
                    && R::KEEPS_STOPPED
                    && run.load().calls > 0
                    && self.swept.runs_of(place).next().is_none()
                {
                    self.swept.push(place, run);
                }
                Made::End
            }
        }
    }

    /// Makes the runs again that were disturbed, for combinations that have too few others. Returns whether there were
    /// any and the sweep goes on.
    fn repeat_disturbed(&mut self, failed: &mut Vec<usize>) -> bool {
        let clients = self.runner.clients();
        let again: Vec<usize> = (0..self.labels.len())
            .filter(|place| !failed.contains(place))
            .flat_map(|place| std::iter::repeat_n(place, self.swept.missing(place, clients)))
            .collect();
        self.rounds.add(again.len());
        for &place in &again {
            // A client may have been lost since.
            let can_count = self.swept.can_count(place, self.runner.clients());
            if failed.contains(&place) || !can_count {
                continue;
            }
            match self.make(place, ", again") {
                Made::Complete => {}
                Made::Failed => failed.push(place),
                Made::End => return false,
            }
        }
        !again.is_empty()
    }
}

/// Makes the runs: all combinations once, then all again in reverse order, and so on. So drift of the machine affects
/// the first and the last combinations alike. A failed combination is not repeated.
pub(crate) fn make_runs<R: Runner>(
    plan: &SweepPlan,
    is_quiet: bool,
    runner: &mut R,
) -> Swept<R::Report> {
    let swept = Swept::new(plan);
    let mut order: Vec<usize> = (0..plan.points.len()).collect();
    let total = u64::try_from(order.len()).unwrap_or(u64::MAX) * u64::from(plan.repeats);
    let mut making = Making {
        runner,
        labels: swept.labels(),
        swept,
        rounds: Rounds::start(total, is_quiet),
    };
    let mut failed = Vec::new();
    for _ in 0..plan.repeats {
        for &place in &order {
            match making.make(place, "") {
                Made::Complete => {}
                Made::Failed => failed.push(place),
                Made::End => return making.swept,
            }
        }
        order.retain(|place| !failed.contains(place));
        order.reverse();
    }
    for _ in 0..plan.repeat_disturbed {
        if !making.repeat_disturbed(&mut failed) {
            break;
        }
    }
    making.swept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::report::Report;
    use crate::run::report::tests::report;
    use crate::workloads::bench::op::{Op, Placement};
    use serde_json::json;

    /// Makes runs until a signal comes in one of them, or nothing is left before it.
    #[derive(Default)]
    struct Counted<const KEEPS_STOPPED: bool> {
        made: Vec<usize>,
        stopped_in: Option<usize>,
        exhausted_in: Option<usize>,
    }

    impl<const KEEPS_STOPPED: bool> Runner for Counted<KEEPS_STOPPED> {
        type Report = Report;

        const KEEPS_STOPPED: bool = KEEPS_STOPPED;

        fn run(&mut self, place: usize, state: &str) -> Result<Report, Failure> {
            self.made.push(place);
            assert_eq!(state, format!("run {} of 4", self.made.len()));
            let mut report = report();
            report.load.interrupted = self.is_stopped();
            match self.clients() {
                0 => Err(Failure::failed("nobody is left")),
                _ => Ok(report),
            }
        }

        fn is_stopped(&self) -> bool {
            self.stopped_in == Some(self.made.len())
        }

        fn clients(&self) -> usize {
            usize::from(self.exhausted_in != Some(self.made.len()))
        }
    }

    fn point(depth: u32) -> Point {
        Point {
            op: Op::Null,
            size: None,
            placement: Placement::Auto,
            depth,
            connections: 1,
            rate_per_s: None,
        }
    }

    fn made<const KEEPS_STOPPED: bool>(
        mut runner: Counted<KEEPS_STOPPED>,
    ) -> (Vec<usize>, Swept<Report>) {
        let plan = SweepPlan {
            points: vec![point(1), point(2)],
            repeats: 2,
            repeat_disturbed: 0,
        };
        let swept = make_runs(&plan, true, &mut runner);
        (runner.made, swept)
    }

    #[test]
    fn a_run_that_a_signal_ended_is_kept_if_its_combination_has_no_other_and_the_sweep_wants_it() {
        let stopped = |stopped_in| Counted {
            stopped_in: Some(stopped_in),
            ..Counted::<true>::default()
        };
        for (stopped_in, kept) in [(1, 1), (2, 2), (3, 2), (4, 3)] {
            let (made, swept) = made(stopped(stopped_in));
            assert_eq!((made.len(), swept.runs.len()), (stopped_in, kept));
            assert!(swept.interrupted);
            let text = super::super::table::text(&swept);
            let is_marked = text.contains("  stopped early, from 1 run\n");
            assert_eq!(is_marked, kept == stopped_in, "{stopped_in}: {text}");
            let complete = format!("{} of 4 runs are complete", stopped_in - 1);
            assert!(text.contains(&complete), "{text}");
        }
        let runner = Counted::<false> {
            stopped_in: Some(1),
            ..Counted::default()
        };
        assert!(made(runner).1.runs.is_empty());
    }

    /// The runs of one combination over a fleet.
    fn of_fleet(runs: impl IntoIterator<Item = Value>) -> Swept<Value> {
        let plan = SweepPlan {
            points: vec![point(1)],
            repeats: 2,
            repeat_disturbed: 0,
        };
        let mut swept = Swept::new(&plan);
        runs.into_iter().for_each(|run| swept.push(0, run));
        swept
    }

    fn of_clients(clients: usize, disturbed: bool) -> Value {
        json!({"clients": vec![json!({"report": {"disturbed": disturbed}}); clients]})
    }

    #[test]
    fn a_disturbed_run_is_made_again_if_the_other_can_count() {
        let mut swept = of_fleet([of_clients(4, true)]);
        assert_eq!((swept.missing(0, 4), swept.missing(0, 3)), (1, 0));
        swept.push(0, of_clients(3, false));
        assert_eq!(swept.missing(0, 4), 1);
        swept.push(0, of_clients(4, false));
        assert_eq!(swept.missing(0, 4), 1);
        swept.push(0, of_clients(4, false));
        assert_eq!(swept.missing(0, 4), 0);
    }

    #[test]
    fn a_run_that_a_client_left_early_counts_only_without_another() {
        let left = |key: &str| {
            let mut run = of_clients(3, false);
            let client = &mut run["clients"][2];
            match key {
                "failure" => client["report"][key] = "the server is gone".into(),
                "interrupted" => client["report"][key] = true.into(),
                "calls" => client["report"][key] = 0.into(),
                _ => {
                    run = of_clients(2, false);
                    run["failures"] = json!([{"client": 2, "when": WHILE_IT_RAN}]);
                }
            }
            run
        };
        for key in ["failure", "interrupted", "calls", "died"] {
            let run = left(key);
            let clients = run.clients();
            assert_eq!((clients.stayed, clients.is_whole), (2, false), "{key}");
            let mut swept = of_fleet([run]);
            assert_eq!(swept.counted(0).count(), 1);
            swept.push(0, of_clients(2, true));
            let counted: Vec<usize> = swept.numbered(0).map(|it| it.0).collect();
            assert_eq!((counted, swept.with_fewer_clients()), (vec![2], 1));
        }
        // Failed calls, or a client that did not begin, are no reason.
        let mut failed = of_clients(3, false);
        failed["clients"][2]["failure"] = "5 of 100 calls failed".into();
        failed["failures"] = json!([{"client": 3, "when": "while it prepared the load"}]);
        assert_eq!(failed.clients(), of_clients(3, false).clients());
        // A failure of an earlier run is none of this one.
        failed["failures"] = json!([{"client": 3, "when": WHILE_IT_RAN}]);
        assert!(!failed.clients().is_whole);
        failed["failures_before"] = 1.into();
        assert!(failed.clients().is_whole);
        // A client that did not begin takes its share of the rate along.
        failed["offered_rate_per_s"] = 600.into();
        let mut later = of_clients(3, false);
        later["offered_rate_per_s"] = 900.into();
        let swept = of_fleet([failed, later]);
        let counted: Vec<usize> = swept.numbered(0).map(|it| it.0).collect();
        assert_eq!(counted, [2]);
        // A signal to the coordinator ends the load of all clients.
        let mut stopped = left("interrupted");
        stopped["interrupted"] = true.into();
        assert_eq!(stopped.clients(), of_clients(3, false).clients());
    }

    #[test]
    fn nothing_more_is_tried_when_nobody_is_left() {
        let runner = Counted::<true> {
            exhausted_in: Some(2),
            ..Counted::default()
        };
        let (made, swept) = made(runner);
        assert_eq!((made, swept.runs.len()), (vec![0, 1], 1));
        assert_eq!(swept.failures.len(), 1);
        assert_eq!(swept.failures[0].point, "depth 2");
        assert!(!swept.interrupted);
    }
}
