//! The report of `--to-knee`: latency by offered rate, and the knee where it turns upward.

use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};

use super::Word;
use super::figures::OFFERED_SHARE_MIN;
use super::origin::Origin;
use super::table::{latency_cells, write_warnings};
use super::view::LoadReport;
use super::whole::Account;
use crate::histogram::{LatencySummary, null_without_calls};
use rpcrdma_units::{count, nanoseconds, rate, text_of};

/// Version of the JSON layout.
pub(crate) const SCHEMA: &str = "rpcrdma.bench-tool.knee/1";

/// A p99 of less than this many times the smallest has not risen: other work on the machine does as much. If none has, there
/// is no knee.
const RISE_MIN: u64 = 2;

/// The p99 of a rate that was not reached says little: the queue grows for as long as the rate is offered. Such a p99
/// counts as at most this many times the largest p99 of the rates that were reached, so that the duration does not set
/// the scale.
const BEYOND: u64 = 3;

/// With fewer rates that were reached, a curve has no shape to speak of.
const REACHED_MIN: usize = 4;

/// From this distance on, a knee is clear: p99 stays in the lower half while half of the rates go by.
const CLEAR_DISTANCE: f64 = 0.5;

/// With fewer calls at a rate, a knee is not clear: of so many, ten are slower than p99, and chance moves it no further than
/// between p98.3 and p99.6 of an endless measurement (19 of 20 times). With 100 it is one call, the slowest.
const CALLS_MIN: u64 = 1_000;

/// The result of one open loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// The offered rate in percent of the closed loop's rate.
    pub share_percent: u32,
    /// Calls per second that were due.
    pub offered_rate_per_s: u64,
    /// Calls per second that completed.
    pub rate_per_s: f64,
    /// Whether the load was whole, and `rate_per_s` is at least 95 % of `offered_rate_per_s`.
    pub is_reached: bool,
    /// Whether it is a whole load: see [`crate::report::whole`]. `None` in the report of an earlier version.
    #[serde(default)]
    pub whole: Option<bool>,
    /// Calls without an answer.
    #[serde(default)]
    pub calls_unanswered: u64,
    /// The measured time.
    pub duration_s: f64,
    /// Calls that ended in an error, in all tries.
    pub errors: u64,
    /// Response times, counted from each call's due time.
    #[serde(with = "null_without_calls")]
    pub latency_ns: LatencySummary,
    /// How often it was measured. This is the best try: see [`Step::improve`].
    #[serde(default = "once")]
    pub tries: u32,
    /// Whether the machine disturbed this try, if the load looks for that.
    #[serde(default)]
    pub disturbed: bool,
    /// Warnings about this step.
    pub warnings: Vec<String>,
}

/// What earlier versions do not say.
const fn once() -> u32 {
    1
}

impl Step {
    /// The step for `report`.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    pub(crate) fn new(share_percent: u32, report: &impl LoadReport) -> Self {
        let report = report.view();
        let load = report.load;
        let offered_rate_per_s = load.offered_rate_per_s.unwrap_or_default();
        // That of a fleet knows of the clients that failed.
        let is_whole = load.whole != Some(false) && load.account().is_whole();
        Self {
            share_percent,
            offered_rate_per_s,
            rate_per_s: load.rate_per_s,
            is_reached: is_whole
                && load.rate_per_s >= offered_rate_per_s as f64 * OFFERED_SHARE_MIN,
            whole: Some(is_whole),
            calls_unanswered: load.calls_unanswered,
            duration_s: load.duration_s,
            errors: load.errors,
            latency_ns: load.latency_ns,
            tries: 1,
            disturbed: report.disturbed,
            warnings: report.warnings.to_vec(),
        }
    }

    /// Takes over another try at the same rate if it is better: if it was not disturbed, then if it reached the rate, and
    /// then by its p99. Errors count from all tries.
    pub(crate) fn improve(&mut self, again: Self) {
        let rank = |it: &Self| (it.disturbed, !it.has_place(), it.latency_ns.p99);
        let (tries, errors) = (self.tries + 1, self.errors + again.errors);
        if rank(&again) < rank(self) {
            *self = again;
        }
        (self.tries, self.errors) = (tries, errors);
    }

    /// Whether it can be the knee: its rate was reached, by calls that completed.
    fn has_place(&self) -> bool {
        self.is_reached && self.latency_ns.count > 0
    }
}

/// The report. Its JSON layout is stable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct KneeReport<R> {
    /// The program and command line that wrote it.
    #[serde(flatten)]
    pub origin: Origin,
    /// Whether a signal or a failure ended it before the last step.
    pub interrupted: bool,
    /// The step at which latency turns upward: see [`knee`]. `None` if it does not, or if too few rates were reached.
    pub knee: Option<Step>,
    /// How far p99 stays below a straight rise, above 0 and up to 1: the higher, the clearer the knee.
    pub knee_distance: Option<f64>,
    /// `clear` or `faint`.
    pub knee_certainty: Option<Word>,
    /// Why it is faint, a sentence each.
    #[serde(default)]
    pub knee_doubts: Vec<String>,
    /// The open loops, in the order of their rates.
    pub steps: Vec<Step>,
    /// The report of the closed loop before them, as in the JSON of a run.
    pub closed_loop: R,
}

impl<R: LoadReport> KneeReport<R> {
    /// Combines a closed loop and its steps. `interrupted` says that a signal ended them.
    #[must_use]
    pub(crate) fn new(closed_loop: R, steps: Vec<Step>, interrupted: bool) -> Self {
        let (knee, knee_distance) = match knee(&steps) {
            Some((knee, distance)) => (Some(knee.clone()), Some(distance)),
            None => (None, None),
        };
        let knee_doubts = knee_distance.map_or_else(Vec::new, |it| doubts(&steps, it));
        let certainty = match knee_doubts.is_empty() {
            true => "clear",
            false => "faint",
        };
        Self {
            origin: Origin::new(SCHEMA, closed_loop.view().origin.command.clone()),
            interrupted,
            knee,
            knee_distance,
            knee_certainty: knee_distance.map(|_| certainty.into()),
            knee_doubts,
            steps,
            closed_loop,
        }
    }

    /// What became of the calls of the closed loop, with the failed ones of all steps. That a step left calls without an answer
    /// is what it is for: it is beyond what the path carries.
    pub(crate) fn account(&self) -> Account<'_> {
        Account {
            errors: self.errors(),
            ..self.closed_loop.view().load.account()
        }
    }

    /// Failed calls of the closed loop and all steps.
    #[must_use]
    pub(crate) fn errors(&self) -> u64 {
        let first = self.closed_loop.view().load.errors;
        let steps = self.steps.iter();
        steps.fold(first, |sum, it| sum.saturating_add(it.errors))
    }

    /// The warnings of the closed loop, and the number of reached steps with other warnings. Steps that were not
    /// reached always have warnings, so they do not count.
    #[must_use]
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = self.closed_loop.view().warnings.to_vec();
        let has_own =
            |it: &&Step| it.is_reached && it.warnings.iter().any(|own| !warnings.contains(own));
        let others = self.steps.iter().filter(has_own).count();
        if others > 0 {
            let were = if others == 1 { "was" } else { "were" };
            warnings.push(format!(
                "{others} of the {} rates {were} measured with other warnings: --json has them",
                self.steps.len()
            ));
        }
        warnings
    }
}

impl<R> KneeReport<R> {
    /// The result in one sentence.
    #[must_use]
    pub(crate) fn finding(&self) -> String {
        let reached: Vec<_> = self.steps.iter().filter(|it| it.has_place()).collect();
        if let (Some(knee), Some(distance)) = (&self.knee, self.knee_distance) {
            return format!(
                "at {}, {} % of the closed loop: p50 {}, p99 {}; beyond it p99 rises faster than the rate ({}, \
                 distance {distance:.2} of 1)",
                rate(knee.rate_per_s),
                knee.share_percent,
                nanoseconds(knee.latency_ns.p50),
                nanoseconds(knee.latency_ns.p99),
                // Earlier versions did not look for all of these.
                match &doubts(&self.steps, distance)[..] {
                    [] => "clear".to_owned(),
                    doubts => format!("faint: {}", doubts.join("; ")),
                }
            );
        }
        match reached.last() {
            Some(last) if reached.len() >= REACHED_MIN => format!(
                "none up to {}: p99 did not rise to {RISE_MIN} times its least, or no faster than the rate",
                rate(last.rate_per_s)
            ),
            _ => format!(
                "none: only {} of the offered rates were reached, and it takes {REACHED_MIN}",
                reached.len()
            ),
        }
    }
}

/// Why a knee at this distance is not clear: too few calls at a rate, a disturbed one, or a curve that is too even. Empty if
/// it is.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time for people"
)]
fn doubts(steps: &[Step], distance: f64) -> Vec<String> {
    let mut doubts = Vec::new();
    let of_all = |number: usize| format!("{number} of the {} rates", steps.len());
    let few = || steps.iter().filter(|it| it.latency_ns.count < CALLS_MIN);
    if let Some(least) = few().map(|it| it.offered_rate_per_s.max(1)).min() {
        let seconds = (CALLS_MIN as f64 / least as f64).ceil() as u64;
        doubts.push(format!(
            "{} have fewer than {} calls, and so fewer than ten above p99: give a --duration of at least {seconds}s",
            of_all(few().count()),
            count(CALLS_MIN)
        ));
    }
    let disturbed = steps.iter().filter(|it| it.disturbed).count();
    if disturbed > 0 {
        doubts.push(format!(
            "the machine disturbed {}: repeat it on a quiet machine",
            of_all(disturbed)
        ));
    }
    if distance < CLEAR_DISTANCE {
        doubts.push("p99 rises almost evenly: repeat it with a longer --duration".to_owned());
    }
    doubts
}

/// The steps that were disturbed, and whose p99 rose or whose rate was not reached: it may be because of that.
pub(crate) fn disturbed_rises(steps: &[Step]) -> impl Iterator<Item = &Step> {
    let p99s = steps.iter().filter(|it| it.has_place());
    let least = p99s.map(|it| it.latency_ns.p99).min().unwrap_or(0);
    let has_risen =
        move |it: &&Step| !it.has_place() || it.latency_ns.p99 >= least.saturating_mul(RISE_MIN);
    steps.iter().filter(|it| it.disturbed).filter(has_risen)
}

/// The p99 of each step, but not above that of a later one that reached its rate: the queue at a lower rate is not longer,
/// so what is above it is a disturbance. Those that were not reached are at most [`BEYOND`] times the others.
fn rising_p99s(curve: &[&Step]) -> Vec<u64> {
    let mut least = u64::MAX;
    let mut p99s: Vec<u64> = Vec::with_capacity(curve.len());
    for step in curve.iter().rev() {
        if step.has_place() {
            least = least.min(step.latency_ns.p99);
        }
        p99s.push(step.latency_ns.p99.min(least));
    }
    p99s.reverse();
    let reached = curve.iter().zip(&p99s).filter(|(it, _)| it.has_place());
    let most = reached.map(|(_, p99)| *p99).max().unwrap_or(u64::MAX);
    for p99 in &mut p99s {
        *p99 = (*p99).min(most.saturating_mul(BEYOND));
    }
    p99s
}

/// The step at which the curve of p99 by offered rate turns upward, and how far the curve stays below a straight rise. Among the steps whose rate was
/// reached, it is the one farthest below the line from the lower left to the upper right of the curve, with both axes
/// scaled to their range (the Kneedle method of Satopaa and others, 2011, without smoothing). The curve never falls: see
/// [`rising_p99s`]. Whether it turns upward is asked of this curve, and where, of one on which a p99 that has not risen
/// counts as [`RISE_MIN`] times the smallest: else other work on the machine would choose among the rates before the rise.
///
/// Steps without a completed call have no place on the curve. `None` if p99 hardly rises, if no step is below the
/// line, or if fewer than [`REACHED_MIN`] rates were reached.
#[must_use]
pub(crate) fn knee(steps: &[Step]) -> Option<(&Step, f64)> {
    let curve: Vec<&Step> = steps.iter().filter(|it| it.latency_ns.count > 0).collect();
    if curve.iter().filter(|it| it.has_place()).count() < REACHED_MIN {
        return None;
    }
    let mut p99s = rising_p99s(&curve);
    let (_, distance) = farthest_below(&curve, &p99s)?;
    let unrisen = p99s.iter().min()?.saturating_mul(RISE_MIN);
    for p99 in &mut p99s {
        *p99 = (*p99).max(unrisen);
    }
    let (knee, _) = farthest_below(&curve, &p99s)?;
    Some((knee, distance))
}

/// The reached step that is farthest below the line from the first to the highest point of a curve, and how far. `None` if
/// none is below it.
#[allow(clippy::cast_precision_loss, reason = "places on a curve")]
fn farthest_below<'a>(curve: &[&'a Step], p99s: &[u64]) -> Option<(&'a Step, f64)> {
    let (least, most) = (*p99s.iter().min()?, *p99s.iter().max()?);
    let first = curve.first()?.offered_rate_per_s as f64;
    let rates = curve.last()?.offered_rate_per_s as f64 - first;
    if rates <= 0.0 || most == least {
        return None;
    }
    let reached = curve.iter().zip(p99s).filter(|(it, _)| it.has_place());
    let distances = reached.map(|(step, p99)| {
        // A step that lost clients of a fleet may have offered less than the first one.
        let along = (step.offered_rate_per_s as f64 - first) / rates;
        (*step, along - (p99 - least) as f64 / (most - least) as f64)
    });
    let farthest = distances.max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    (farthest.1 > 0.0).then_some(farthest)
}

/// The whole table.
#[must_use]
pub(crate) fn text(report: &KneeReport<impl LoadReport>) -> String {
    text_of(|text| write(text, report))
}

/// Column names of a step, after its share.
pub(crate) const COLUMNS: [&str; 6] = ["offered", "rate", "p50", "p99", "p99.9", "max"];

/// The columns of a step.
#[allow(clippy::cast_precision_loss, reason = "a rate")]
pub(crate) fn cells(step: &Step) -> [String; 6] {
    let latency = &step.latency_ns;
    let latencies = [latency.p50, latency.p99, latency.p99_9, latency.max];
    let [p50, p99, p99_9, max] = latency_cells((latency.count > 0).then_some(latencies));
    let offered = rate(step.offered_rate_per_s as f64);
    [offered, rate(step.rate_per_s), p50, p99, p99_9, max]
}

fn write(text: &mut String, report: &KneeReport<impl LoadReport>) -> fmt::Result {
    let closed = report.closed_loop.view();
    text.push_str(&closed.heading);
    writeln!(
        text,
        "rate {}; open loops at shares of it, latency from the moment at which each call was due",
        rate(closed.load.rate_per_s)
    )?;
    let line = |text: &mut String, first: &str, cells: &[String]| {
        write!(text, "{first:<7}")?;
        cells.iter().try_for_each(|cell| write!(text, "{cell:>12}"))
    };
    writeln!(text)?;
    line(text, "share", &COLUMNS.map(str::to_owned))?;
    writeln!(text)?;
    for step in &report.steps {
        line(text, &format!("{} %", step.share_percent), &cells(step))?;
        let is_knee = report.knee.as_ref() == Some(step);
        let remark = match (is_knee, step.is_reached) {
            (true, _) => "  <- knee",
            (_, false) => "  not reached",
            _ => "",
        };
        writeln!(text, "{remark}")?;
    }
    writeln!(text, "\nknee      {}", report.finding())?;
    write_warnings(text, &report.warnings())?;
    writeln!(text)?;
    write!(text, "{}", closed.floor)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::histogram::LatencyHistogram;
    use crate::run::report::Report;
    use crate::run::report::tests::report;
    use rpcrdma_testkit::CheckWords;

    /// A step at a share of 20 k/s.
    fn step(share_percent: u32, p99: u64) -> Step {
        let mut report = report();
        report.load.offered_rate_per_s = Some(u64::from(share_percent) * 200);
        report.load.rate_per_s = f64::from(share_percent) * 200.0;
        (report.load.latency_ns.p99, report.warnings) = (p99, vec![]);
        Step::new(share_percent, &report)
    }

    /// Steps that rise from 80 % on; the last one was not reached.
    pub(crate) fn knee_report() -> KneeReport<Report> {
        let mut steps = [
            (20, 900),
            (40, 1_000),
            (60, 1_100),
            (80, 2_000),
            (90, 30_000),
        ]
        .map(|(share, p99)| step(share, p99))
        .to_vec();
        let mut last = step(100, 90_000);
        (last.rate_per_s, last.is_reached) = (18_500.0, false);
        last.warnings = vec!["only 18.50 k/s of the offered 20.00 k/s completed".to_owned()];
        steps.push(last);
        KneeReport::new(report(), steps, false)
    }

    #[test]
    fn the_better_try_counts() {
        let slow = Step {
            disturbed: true,
            ..step(50, 9_000)
        };
        let missed = Step {
            is_reached: false,
            ..step(50, 500)
        };
        let mut best = slow.clone();
        best.improve(missed);
        // It was not disturbed: that is what the machine can do.
        assert_eq!((best.latency_ns.p99, best.tries), (500, 2));
        best = slow.clone();
        best.improve(Step {
            disturbed: true,
            errors: 3,
            ..step(50, 9_500)
        });
        assert_eq!((best.latency_ns.p99, best.errors), (9_000, 3));
        best.improve(step(50, 1_000));
        best.improve(step(50, 2_000));
        assert_eq!((best.latency_ns.p99, best.tries), (1_000, 4));
        assert_eq!(best.errors, 3);
        assert!(!best.disturbed);
        // Only what rose, or was not reached, is worth another try.
        let flat = Step {
            disturbed: true,
            ..step(40, 1_500)
        };
        let steps = [step(30, 1_000), flat, slow, step(60, 9_000)];
        let again: Vec<_> = disturbed_rises(&steps).collect();
        assert_eq!(again, [&steps[2]]);
    }

    #[test]
    fn the_knee_is_where_the_curve_turns() {
        assert_eq!(knee_report().knee.unwrap().share_percent, 80);
        // A single disturbed step is no knee.
        let mut steps = knee_report().steps;
        steps[1].latency_ns.p99 = 50_000;
        assert_eq!(knee(&steps).unwrap().0.share_percent, 80);
        // What other work adds below twice the least does not choose among the rates before the rise.
        let mut uneven = knee_report().steps;
        for (number, p99) in [(0, 500), (1, 501), (2, 502), (3, 503), (4, 990)] {
            uneven[number].latency_ns.p99 = p99;
        }
        assert_eq!(knee(&uneven).unwrap().0.share_percent, 90);
        // A curve that hardly rises has no knee.
        let flat: Vec<_> = (1..=10)
            .map(|it| step(it * 10, 1_000 + u64::from(it)))
            .collect();
        assert_eq!(knee(&flat), None);
        assert_eq!(knee(&[]), None);
        // A rate that was not reached does not set the scale: the knee is before the rise, not behind it.
        let p99s = [10, 10, 10, 10, 11, 11, 12, 14, 20, 200, 1_000, 4_000];
        let shares = [10, 20, 30, 40, 50, 60, 70, 80, 85, 90, 95, 100];
        let mut rising: Vec<_> = std::iter::zip(shares, p99s)
            .map(|(share, p99)| step(share, p99))
            .collect();
        let (before, _) = knee(&rising).unwrap();
        let before = before.share_percent;
        rising.push(Step {
            is_reached: false,
            ..step(110, 180_000)
        });
        assert_eq!((before, knee(&rising).unwrap().0.share_percent), (90, 90));
        // An even load has a knee too: the last rate that was reached.
        rising.iter_mut().for_each(|it| {
            it.latency_ns.p99 = if it.is_reached { 10 } else { 180_000 };
        });
        assert_eq!(knee(&rising).unwrap().0.share_percent, 100);
        // What is above a later rate that was reached is a disturbance, in the table and not in the curve.
        let mut noisy = knee_report().steps;
        for (number, p99) in [(0, 900_000), (1, 40_000), (2, 50_000)] {
            noisy[number].latency_ns.p99 = p99;
        }
        assert_eq!(knee(&noisy).unwrap().0.share_percent, 80);
        assert_eq!(knee(&steps[..1]), None);
    }

    #[test]
    fn a_step_without_a_call_has_no_place_on_the_curve() {
        let mut steps = knee_report().steps;
        // A p99 of zero would be the lowest, and would put this step farthest below the line.
        steps[4].latency_ns = LatencyHistogram::new().summary();
        assert_eq!(knee(&steps).unwrap().0.share_percent, 80);
        let report = KneeReport::new(report(), steps, false);
        let table = text(&report);
        let row =
            "90 %      18.00 k/s   18.00 k/s           -           -           -           -\n";
        assert!(table.contains(row), "{table}");
        let json: serde_json::Value = serde_json::to_value(&report).unwrap();
        assert!(json["steps"][4]["latency_ns"].is_null(), "{json}");
        assert_eq!(json["knee_certainty"], "faint");
    }

    #[test]
    fn a_clear_knee_needs_enough_calls_and_no_disturbance() {
        let steps = knee_report().steps;
        assert_eq!(knee_report().knee_certainty.as_deref(), Some("clear"));
        let faint = |change: &dyn Fn(&mut Step)| {
            let mut steps = steps.clone();
            change(&mut steps[0]);
            let report = KneeReport::new(report(), steps, false);
            assert_eq!(report.knee_certainty.as_deref(), Some("faint"));
            // What an earlier version called clear is not, if it is read again.
            let mut older = report.clone();
            (older.knee_certainty, older.knee_doubts) = (Some("clear".into()), vec![]);
            assert_eq!(older.finding(), report.finding());
            report.finding()
        };
        faint(&|step| step.latency_ns.count = 999).check_words(&[
            "(faint: 1 of the 6 rates have fewer than 1,000 calls",
            "give a --duration of at least 1s, distance 0.",
        ]);
        faint(&|step| step.disturbed = true).check_words(&[
            "(faint: the machine disturbed 1 of the 6 rates: repeat it on a quiet machine",
        ]);
        let mut enough = steps.clone();
        enough.iter_mut().for_each(|it| it.latency_ns.count = 1_000);
        assert_eq!(doubts(&enough, CLEAR_DISTANCE), [""; 0]);
    }

    #[test]
    fn a_rate_whose_calls_were_not_all_answered_is_not_reached() {
        let mut report = report();
        report.load.offered_rate_per_s = Some(10_000);
        report.load.rate_per_s = 10_000.0;
        assert!(Step::new(50, &report).is_reached);
        report.load.whole = Some(false);
        let step = Step::new(50, &report);
        assert!(!step.is_reached, "clients of a fleet failed");
        report.load.whole = Some(true);
        report.load.calls_unanswered = 1;
        let step = Step::new(50, &report);
        assert!(!step.is_reached && step.whole == Some(false));
        assert_eq!(step.calls_unanswered, 1);
    }

    #[test]
    fn a_step_that_offered_less_than_the_first_is_no_knee() {
        let mut steps = knee_report().steps;
        let found = knee(&steps).map(|(step, _)| step.share_percent);
        steps.insert(2, step(10, 1_050));
        assert_eq!(knee(&steps).map(|(step, _)| step.share_percent), found);
    }

    #[test]
    fn a_step_without_a_call_is_not_the_least_of_a_flat_curve() {
        let mut steps: Vec<_> = (1..=10).map(|it| step(it * 10, 1_000)).collect();
        steps[0].latency_ns = LatencyHistogram::new().summary();
        assert_eq!(knee(&steps), None);
    }

    #[test]
    fn a_knee_needs_four_rates_that_were_reached() {
        let mut steps = knee_report().steps;
        for (reached, found) in [(5, true), (4, true), (3, false), (0, false)] {
            for (number, step) in steps.iter_mut().enumerate() {
                step.is_reached = number < reached;
            }
            assert_eq!(knee(&steps).is_some(), found, "{reached}");
        }
        let report = KneeReport::new(report(), steps, false);
        let words = "none: only 0 of the offered rates were reached, and it takes 4";
        assert_eq!(report.finding(), words);
    }

    #[test]
    fn a_straight_rise_and_one_that_turns_downward_have_no_knee() {
        for rise in [|share: u64| share, |share: u64| share.isqrt()] {
            let steps: Vec<_> = (1..=10)
                .map(|it| step(it * 10, 1_000_000 * rise(u64::from(it * 100))))
                .collect();
            assert_eq!(knee(&steps), None);
        }
    }

    #[test]
    fn a_faint_knee_is_said_to_be_faint() {
        let rise = [100, 180, 260, 340, 420, 520, 640, 760, 880, 1_000];
        let steps = (1..).zip(rise).map(|(it, p99)| step(it * 10, p99));
        let report = KneeReport::new(report(), steps.collect(), false);
        assert!(report.knee_distance.unwrap() < 0.1);
        let finding = report.finding();
        assert!(
            finding.contains("(faint: p99 rises almost evenly: repeat it"),
            "{finding}"
        );
    }

    #[test]
    fn a_rate_that_was_not_reached_is_no_knee() {
        let mut steps = knee_report().steps;
        steps.iter_mut().for_each(|it| it.is_reached = false);
        assert_eq!(knee(&steps), None);
        let report = KneeReport::new(report(), steps, false);
        assert_eq!(report.knee_distance, None);
    }

    #[test]
    fn flat_latency_is_reported_though_the_last_rate_was_not_reached() {
        let mut steps: Vec<_> = (1..=5).map(|it| step(it * 10, 1_000)).collect();
        steps[4].is_reached = false;
        let finding = KneeReport::new(report(), steps, false).finding();
        assert!(
            finding.starts_with("none up to 8.000 k/s: p99"),
            "{finding}"
        );
    }

    #[test]
    fn the_table_has_a_line_for_each_rate_and_marks_the_knee() {
        let table = text(&knee_report());
        table.check_words(&[
                "rate 10.00 k/s; open loops at shares of it",
                "share       offered        rate         p50         p99       p99.9         max\n",
                "80 %      16.00 k/s   16.00 k/s      450 ns     2000 ns      499 ns    1.700 ms  <- knee\n",
                "100 %     20.00 k/s   18.50 k/s      450 ns    90.00 us      499 ns    1.700 ms  not reached\n",
                "knee      at 16.00 k/s, 80 % of the closed loop: p50 450 ns, p99 2000 ns; beyond",
            ]);
        assert!(!table.contains("measured with other"), "{table}");
        let mut report = knee_report();
        report.steps[2].warnings = vec!["other work ran on core 0".to_owned()];
        let words = "1 of the 6 rates was measured with other warnings";
        assert!(text(&report).contains(words), "{}", text(&report));
    }

    #[test]
    fn the_json_has_the_knee_the_steps_and_the_closed_loop() {
        let value: serde_json::Value = serde_json::to_value(knee_report()).unwrap();
        assert_eq!(value["schema"], SCHEMA);
        assert_eq!(value["knee"]["offered_rate_per_s"], 16_000);
        assert_eq!(value["steps"].as_array().unwrap().len(), 6);
        assert_eq!(value["steps"][5]["is_reached"], false);
        assert_eq!(value["steps"][5]["latency_ns"]["p99"], 90_000);
        assert_eq!(value["closed_loop"]["loop"], "closed");
        assert_eq!(value["interrupted"], false);
    }
}
