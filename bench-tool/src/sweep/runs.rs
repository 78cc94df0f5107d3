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

    /// How many clients of a fleet made its calls.
    fn clients(&self) -> usize;
}

/// The JSON of a run or of a fleet, which was disturbed if a client was.
impl Repeat for Value {
    fn clients(&self) -> usize {
        self["clients"].as_array().map_or(1, Vec::len)
    }

    fn is_disturbed(&self) -> bool {
        let mut clients = self["clients"].as_array().into_iter().flatten();
        self["disturbed"] == true || clients.any(|it| it["report"].is_disturbed())
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

    /// Whether nothing is left that could make another run.
    fn is_exhausted(&self) -> bool;
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

    /// The runs of a combination with the most clients. Another of them has another load.
    fn whole(&self, place: usize) -> impl Iterator<Item = &R> {
        let most = self.runs_of(place).map(Repeat::clients).max();
        self.runs_of(place)
            .filter(move |run| Some(run.clients()) == most)
    }

    /// The runs of a combination whose figures count: of those with the most clients, the ones that were not disturbed, or
    /// all if each was.
    pub(crate) fn counted(&self, place: usize) -> impl Iterator<Item = &R> {
        let all = self.is_disturbed(place);
        self.whole(place)
            .filter(move |run| all || !run.is_disturbed())
    }

    /// How many runs do not count because others of their combination have more clients.
    pub(crate) fn with_fewer_clients(&self) -> usize {
        let places = 0..self.points.len();
        let fewer = places.map(|it| self.runs_of(it).count() - self.whole(it).count());
        fewer.sum()
    }

    /// Whether the machine disturbed every run of a combination that could count.
    pub(super) fn is_disturbed(&self, place: usize) -> bool {
        self.whole(place).all(Repeat::is_disturbed)
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
                match self.runner.is_exhausted() {
                    true => Made::End,
                    false => Made::Failed,
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
    /// any and the sweep goes on. A failure ends the repeats, and is reported.
    fn repeat_disturbed(&mut self) -> bool {
        let repeats = self.swept.repeats as usize;
        let missing = |place: usize| {
            let runs = || self.swept.runs_of(place);
            let disturbed = runs().filter(|run| run.is_disturbed()).count();
            let others = runs().count() - disturbed;
            repeats.saturating_sub(others).min(disturbed)
        };
        let again: Vec<usize> = (0..self.labels.len())
            .flat_map(|place| std::iter::repeat_n(place, missing(place)))
            .collect();
        self.rounds.add(again.len());
        let are_any = !again.is_empty();
        let mut made = again.into_iter().map(|place| self.make(place, ", again"));
        are_any && made.all(|it| it == Made::Complete)
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
    for _ in 0..plan.repeats {
        let mut failed = Vec::new();
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
        if !making.repeat_disturbed() {
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
            match self.is_exhausted() {
                true => Err(Failure::failed("nobody is left")),
                false => Ok(report),
            }
        }

        fn is_stopped(&self) -> bool {
            self.stopped_in == Some(self.made.len())
        }

        fn is_exhausted(&self) -> bool {
            self.exhausted_in == Some(self.made.len())
        }
    }

    fn made<const KEEPS_STOPPED: bool>(
        mut runner: Counted<KEEPS_STOPPED>,
    ) -> (Vec<usize>, Swept<Report>) {
        let point = |depth| Point {
            op: Op::Null,
            size: None,
            placement: Placement::Auto,
            depth,
            connections: 1,
            rate_per_s: None,
        };
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
            let is_marked = text.contains("  stopped early\n");
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
