//! The verdict on two groups of runs.

use std::cmp::Ordering;

use serde::Serialize;

use super::rank_sum::{Design, SIGNIFICANCE, direction, p_value_least, p_values, ratio, size};
use super::rounds;
use super::runs::Run;
use crate::report::metric::{Metric, median, sorted};

/// The verdict on one figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// B is lower, beyond noise.
    Lower,
    /// B is higher, beyond noise.
    Higher,
    /// The groups differ no more than runs of the same build do.
    NoDifference,
    /// With so few runs, no difference could be significant.
    TooFewRuns,
}

/// One figure of both groups.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Comparison {
    /// The figure.
    pub metric: Metric,
    /// Its unit.
    pub unit: &'static str,
    /// The values of A, in the order of its runs.
    pub a: Vec<f64>,
    /// The values of B.
    pub b: Vec<f64>,
    /// The median of the values of A.
    pub a_median: f64,
    /// The median of the values of B.
    pub b_median: f64,
    /// B divided by A: the median over all pairs of runs, or over all rounds and pairs of rounds.
    pub ratio: f64,
    /// The 95 % confidence interval of `ratio`; `None` with too few runs.
    pub ratio_interval: Option<[f64; 2]>,
    /// The p-value of this figure alone; `None` with too few runs.
    pub p: Option<f64>,
    /// The p-value adjusted for the number of figures (Westfall and Young) and of combinations (Bonferroni).
    pub p_adjusted: Option<f64>,
    /// The verdict.
    pub verdict: Verdict,
}

impl Comparison {
    /// The change from A to B in percent.
    #[must_use]
    pub(crate) fn change_percent(&self) -> f64 {
        percent(self.ratio)
    }

    /// Whether the difference is beyond noise.
    #[must_use]
    pub(crate) const fn is_significant(&self) -> bool {
        matches!(self.verdict, Verdict::Lower | Verdict::Higher)
    }

    /// Whether B is worse, beyond noise.
    #[must_use]
    pub(crate) const fn is_worse(&self) -> bool {
        match self.verdict {
            Verdict::Lower => self.metric.is_better_when_more(),
            Verdict::Higher => !self.metric.is_better_when_more(),
            Verdict::NoDifference | Verdict::TooFewRuns => false,
        }
    }
}

/// A ratio as a change in percent.
#[must_use]
pub(crate) fn percent(ratio: f64) -> f64 {
    (ratio - 1.0) * 100.0
}

/// A p-value of one of `pairs` pairs of groups, adjusted for their number (Bonferroni).
fn of_all(p: f64, pairs: usize) -> f64 {
    (p * size(pairs)).min(1.0)
}

/// Whether groups of these sizes can differ significantly, as one of `pairs` pairs of groups.
#[must_use]
pub(crate) fn are_enough(a: usize, b: usize, pairs: usize) -> bool {
    of_all(p_value_least(a, b), pairs) <= SIGNIFICANCE
}

/// The minimum number of runs of each side for a significant difference in one of `pairs` pairs of groups.
#[must_use]
pub(crate) fn runs_least(pairs: usize) -> usize {
    let is_enough = |runs: &usize| are_enough(*runs, *runs, pairs);
    (1..).find(is_enough).unwrap_or(1)
}

/// Compares every figure of two groups, which are one of `pairs` pairs.
#[must_use]
pub(crate) fn compare(a: &[Run], b: &[Run], design: Design, pairs: usize) -> Vec<Comparison> {
    let values = |runs: &[Run], metric| runs.iter().map(|run| run.value(metric)).collect();
    let mut comparisons: Vec<Comparison> = Metric::ALL
        .into_iter()
        .map(|metric| estimate(metric, values(a, metric), values(b, metric), design))
        .collect();
    if are_enough(a.len(), b.len(), pairs) {
        judge(&mut comparisons, design, pairs);
    }
    comparisons
}

/// The estimates of one figure, without a verdict.
fn estimate(metric: Metric, a: Vec<f64>, b: Vec<f64>, design: Design) -> Comparison {
    let (ratio, ratio_interval) = match design {
        Design::Apart => ratio(&a, &b),
        Design::InTurns => rounds::ratio(&a, &b),
    };
    Comparison {
        metric,
        unit: metric.unit(),
        a_median: median(&sorted(a.clone())),
        b_median: median(&sorted(b.clone())),
        ratio,
        ratio_interval,
        p: None,
        p_adjusted: None,
        verdict: Verdict::TooFewRuns,
        a,
        b,
    }
}

/// Sets the verdict of every figure, from the adjusted p-value. So one comparison in twenty of a build with itself
/// gives a false alarm, and not one figure or combination in twenty.
fn judge(comparisons: &mut [Comparison], design: Design, pairs: usize) {
    let figures: Vec<(&[f64], &[f64])> = comparisons.iter().map(|c| (&c.a[..], &c.b[..])).collect();
    for (p, comparison) in p_values(&figures, design).into_iter().zip(comparisons) {
        comparison.p = Some(p.alone);
        let adjusted = of_all(p.adjusted, pairs);
        comparison.p_adjusted = Some(adjusted);
        // Not by the ratio: with many equal values it may be 1 although the ranks differ.
        comparison.verdict = match direction(&comparison.a, &comparison.b) {
            _ if adjusted > SIGNIFICANCE => Verdict::NoDifference,
            Ordering::Less => Verdict::Lower,
            Ordering::Greater => Verdict::Higher,
            Ordering::Equal => Verdict::NoDifference,
        };
    }
}

/// The verdict on one of `pairs` pairs of groups in one sentence.
#[must_use]
pub(crate) fn sentence(comparisons: &[Comparison], pairs: usize) -> String {
    let beyond: Vec<&Comparison> = comparisons.iter().filter(|c| c.is_significant()).collect();
    if beyond.is_empty() {
        let too_few = |c: &Comparison| c.verdict == Verdict::TooFewRuns;
        return if comparisons.iter().any(too_few) {
            let least = runs_least(pairs);
            format!("too few runs to tell a difference from noise: make at least {least} of each")
        } else {
            "no difference beyond noise".to_owned()
        };
    }
    let worse = beyond
        .iter()
        .filter(|comparison| comparison.is_worse())
        .count();
    let word = match worse {
        0 => "B is faster",
        all if all == beyond.len() => "B is slower",
        _ => "B is faster in some figures and slower in others",
    };
    let changes = beyond.iter().map(|comparison| {
        let (name, change) = (comparison.metric.name(), comparison.change_percent());
        format!("{name} {change:+.1} %")
    });
    format!("{word}: {}", changes.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::runs::tests::report;
    use super::*;
    use crate::draw::Draw;

    /// Runs of a build with a median of 400 ns times `factor`. The machine disturbs each run by about 2 %, and one
    /// run in twenty by 30 %. The median is in whole nanoseconds; the tails have their own noise of about 5 % and 20
    /// %.
    fn runs(draw: &mut Draw, count: usize, factor: f64) -> Vec<Run> {
        let mut uniform = || f64::from(u32::try_from(draw.next() >> 32).unwrap()) / 4_294_967_296.0;
        let mut run = || {
            let mut noise = |deviation: f64| {
                let four: f64 = (0..4).map(|_| uniform() - 0.5).sum();
                1.0 + four * deviation * 3_f64.sqrt()
            };
            let (all, tail, far_tail) = (noise(0.02), noise(0.05), noise(0.2));
            let spoilt = if uniform() < 0.05 { 1.3 } else { 1.0 };
            let p50 = 400.0 * factor * all * spoilt;
            let mut run = report(p50);
            let latency = &mut run["latency_ns"];
            latency["p50"] = p50.round().into();
            latency["p99"] = (p50 * 1.5 * tail).into();
            latency["p99_9"] = (p50 * 3.0 * far_tail).into();
            Run::new(&run).unwrap()
        };
        (0..count).map(|_| run()).collect()
    }

    /// The number of comparisons, out of `seeds`, that find a difference. A machine that `drifts` is slower by half
    /// in some rounds, for several rounds in a row.
    fn verdicts(seeds: usize, count: usize, factor: f64, design: Design, drifts: bool) -> usize {
        let found = |seed: &u64| {
            let mut draw = Draw(*seed);
            let (mut a, mut b, mut pace) = (Vec::new(), Vec::new(), 1.0);
            for _ in 0..count {
                if drifts && draw.next() % 10 < 3 {
                    pace = 2.5 - pace;
                }
                a.append(&mut runs(&mut draw, 1, pace));
                b.append(&mut runs(&mut draw, 1, pace * factor));
            }
            compare(&a, &b, design, 1)
                .iter()
                .any(Comparison::is_significant)
        };
        (1..).take(seeds).filter(found).count()
    }

    /// The number of comparisons for each claim; an environment variable asks for the full number.
    fn comparisons() -> usize {
        if std::env::var_os("RPCRDMA_WHOLE").is_some() {
            200
        } else {
            40
        }
    }

    /// Whether this many of all are at least so many of a hundred.
    fn is_share(found: usize, all: usize, percent: usize) -> bool {
        found * 100 >= percent * all
    }

    #[test]
    fn a_build_against_itself_shows_no_difference_nine_times_in_ten() {
        let all = comparisons();
        for (design, counts) in [
            (Design::Apart, [4, 5, 7, 12]),
            (Design::InTurns, [6, 7, 10, 12]),
        ] {
            for (count, drifts) in counts.into_iter().flat_map(|it| [(it, false), (it, true)]) {
                let wrong = verdicts(all, count, 1.0, design, drifts);
                assert!(
                    wrong * 10 <= all,
                    "{count} runs: {wrong} of {all}, {design:?} {drifts}"
                );
            }
        }
    }

    #[test]
    fn ten_percent_are_found() {
        // If the machine spoils one run in twenty, seven runs find such a difference three times out of four.
        let all = comparisons();
        for (count, factor, percent) in [
            (7, 1.1, 70),
            (7, 1.0 / 1.1, 70),
            (10, 1.1, 90),
            (12, 1.1, 90),
        ] {
            for design in [Design::Apart, Design::InTurns] {
                let found = verdicts(all, count, factor, design, false);
                assert!(
                    is_share(found, all, percent),
                    "{count} runs, {factor}, {design:?}: {found} of {all}"
                );
            }
        }
    }

    #[test]
    fn ten_percent_are_found_by_turns_on_a_machine_that_drifts() {
        let all = comparisons();
        for (count, percent) in [(7, 65), (10, 85)] {
            let in_turns = verdicts(all, count, 1.1, Design::InTurns, true);
            let apart = verdicts(all, count, 1.1, Design::Apart, true);
            assert!(
                is_share(in_turns, all, percent),
                "{count} runs: {in_turns} of {all}"
            );
            assert!(
                apart < in_turns / 2,
                "{count} runs: {apart}, {in_turns} in turns"
            );
        }
    }

    #[test]
    fn the_sentence_says_which_way() {
        let mut draw = Draw(7);
        let a = runs(&mut draw, 9, 1.0);
        let slower = compare(&a, &runs(&mut draw, 9, 1.2), Design::Apart, 1);
        let text = sentence(&slower, 1);
        assert!(text.starts_with("B is slower: p50 +"), "{text}");
        assert!(text.contains("rate -"), "{text}");
        let p50 = &slower[0];
        assert_eq!(p50.verdict, Verdict::Higher);
        let [low, high] = p50.ratio_interval.unwrap();
        assert!(low <= p50.ratio && p50.ratio <= high && low > 1.0);
        assert!(p50.p_adjusted >= p50.p);
        let faster = compare(&a, &runs(&mut draw, 9, 0.8), Design::Apart, 1);
        assert!(sentence(&faster, 1).starts_with("B is faster: "));
        let mut mixed = slower;
        mixed[0].verdict = Verdict::Lower;
        assert!(sentence(&mixed, 1).contains("in some figures"));
        assert_eq!(
            sentence(&compare(&a, &a, Design::Apart, 1), 1),
            "no difference beyond noise"
        );
    }

    #[test]
    fn values_that_are_often_equal_are_judged_by_their_ranks() {
        let group = |lower: usize| -> Vec<Run> {
            let p50 = (0..30).map(|run| if run < lower { 390.0 } else { 400.0 });
            p50.map(|p50| Run::new(&report(p50)).unwrap()).collect()
        };
        let comparison = &compare(&group(0), &group(12), Design::Apart, 1)[0];
        assert!((comparison.ratio - 1.0).abs() < 1e-12);
        assert_eq!(comparison.verdict, Verdict::Lower);
        assert!(!comparison.is_worse());
        // Half of the runs are one step lower: four runs cannot show such a difference.
        let few = &compare(&group(0)[..4], &group(2)[..4], Design::Apart, 1)[0];
        assert_eq!(few.verdict, Verdict::NoDifference);
    }

    #[test]
    fn few_runs_are_not_judged() {
        assert_eq!(runs_least(1), 4);
        assert!(are_enough(3, 8, 1) && !are_enough(1, 9, 1) && are_enough(400, 400, 1));
        let mut draw = Draw(7);
        let (a, b) = (runs(&mut draw, 1, 1.0), runs(&mut draw, 1, 2.0));
        let comparisons = compare(&a, &b, Design::Apart, 1);
        assert_eq!(comparisons[0].verdict, Verdict::TooFewRuns);
        assert_eq!(
            (comparisons[0].p, comparisons[0].ratio_interval),
            (None, None)
        );
        assert!(comparisons[0].change_percent() > 30.0);
        assert!(sentence(&comparisons, 1).contains("too few runs"));
    }
}
