//! Whether two groups of runs differ: the rank-sum test (Wilcoxon; Mann and Whitney), as a permutation test.
//!
//! The test sorts the values of all runs and adds up the ranks of one group. If the labels A and B meant nothing,
//! every choice of as many runs would be equally likely. The p-value is the share of choices whose rank sum is at
//! least as far from the middle as the observed one. Because only ranks count, a single run that the machine
//! disturbed has little influence.
//!
//! For alternating runs, the test exchanges labels only within a round. So drift of the machine from round to round
//! counts for neither side, and a difference that such a drift would hide is found.
//!
//! The test looks at several figures of the same runs. The adjusted p-value of a figure is the share of choices for
//! which the sum of *any* figure is as far from the middle (Westfall and Young). So figures that move together, such
//! as p50 and p90, cost no significance, while independent figures are corrected for.

use std::cmp::Ordering;

use serde::Serialize;

use crate::draw::Draw;
use crate::report::metric::{median, sorted};

/// A difference counts up to this p-value: one in twenty comparisons of a build with itself gives a false alarm.
pub(crate) const SIGNIFICANCE: f64 = 0.05;

/// Up to this number, every choice is counted: ten runs of each side have 184,756 choices.
const EXACT_CHOICES_MAX: u64 = 200_000;

/// Number of random choices if there are more.
const DRAWS: u64 = 20_000;

/// Seed of the random choices: the same files always give the same verdict.
const SEED: u64 = 1;

/// Up to this number of values in both groups, intervals are exact: a `u64` can hold the number of choices.
const EXACT_VALUES_MAX: usize = 64;

/// 95 % of a normal distribution is within this many standard deviations of its mean.
const NORMAL_95: f64 = 1.959_964;

/// Minimum number of rounds for exchanges within rounds: with fewer, no difference could be significant.
pub(crate) const ROUNDS_LEAST: usize = 6;

/// How the runs were made, which decides how labels may be exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Design {
    /// The order is unknown: every run could belong to either side.
    Apart,
    /// Alternating: run `i` of A and run `i` of B are a round, and could be exchanged.
    InTurns,
}

impl Design {
    /// The design for these numbers of runs.
    #[must_use]
    pub(crate) const fn of(in_turns: bool, a: usize, b: usize) -> Self {
        if in_turns && a == b && a >= ROUNDS_LEAST {
            Self::InTurns
        } else {
            Self::Apart
        }
    }
}

/// The p-values (two-sided, 0 to 1) of the hypothesis that both groups have the same distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PValue {
    /// For this figure alone.
    pub alone: f64,
    /// For this figure as one of all tested figures; never below `alone`.
    pub adjusted: f64,
}

/// The p-values of every figure. Each figure is the values of the runs of A and those of B, with the same order of
/// runs in every figure.
#[must_use]
pub(crate) fn p_values(figures: &[(&[f64], &[f64])], design: Design) -> Vec<PValue> {
    let ranks: Vec<Vec<usize>> = figures.iter().map(|(a, b)| doubled_ranks(a, b)).collect();
    let (chosen, all) = figures
        .first()
        .map_or((0, 0), |(a, b)| (a.len(), a.len() + b.len()));
    let middle = chosen * (all + 1);
    let ranks: Vec<(Vec<usize>, f64)> = (ranks.into_iter())
        .map(|ranks| {
            let spread = spread(&ranks, design);
            (ranks, spread)
        })
        .collect();
    let distance = |(ranks, spread): &(Vec<usize>, f64), choice: &[usize]| -> f64 {
        let of_choice = choice.iter().filter_map(|&run| ranks.get(run));
        size(of_choice.sum::<usize>().abs_diff(middle)) / spread
    };
    let labels: Vec<usize> = (0..chosen).collect();
    // Slightly less: rounding may change the last digit of equal distances, and `>=` below must still hold.
    let observed: Vec<f64> = ranks
        .iter()
        .map(|it| distance(it, &labels) * (1.0 - 1e-9))
        .collect();
    let mut extreme = vec![(0, 0); figures.len()];
    let mut distances = vec![0.0; figures.len()];
    let choices = each_labelling(design, chosen, all, |choice| {
        for (distance_of, ranks) in distances.iter_mut().zip(&ranks) {
            *distance_of = distance(ranks, choice);
        }
        let farthest = distances.iter().copied().fold(0.0, f64::max);
        for ((alone, any), (own, observed)) in
            extreme.iter_mut().zip(distances.iter().zip(&observed))
        {
            *alone += u64::from(own >= observed);
            *any += u64::from(farthest >= *observed);
        }
    });
    let p_value = |(alone, any): &(u64, u64)| PValue {
        alone: share(*alone, choices),
        adjusted: share(*any, choices),
    };
    extreme.iter().map(p_value).collect()
}

/// The scale of a figure's distances, which makes those of several figures comparable. If any runs may be exchanged,
/// all figures have the same scale. Within rounds they do not: a figure that follows the machine's speed changes
/// little within a round, and one that does not follow it changes much.
fn spread(ranks: &[usize], design: Design) -> f64 {
    if design == Design::Apart {
        return 1.0;
    }
    let (a, b) = ranks.split_at(ranks.len() / 2);
    let steps = a.iter().zip(b).map(|(a, b)| size(a.abs_diff(*b)));
    steps.map(|step| step * step).sum::<f64>().sqrt().max(1.0)
}

/// The smallest possible p-value for groups of these sizes without equal values: the groups do not overlap.
#[must_use]
pub(crate) fn p_value_least(a: usize, b: usize) -> f64 {
    number_of_choices(a, a + b).map_or(0.0, |choices| share(2, choices).min(1.0))
}

/// Calls `visit` with each choice of runs that could be A's. Returns the number of choices.
fn each_labelling(design: Design, count: usize, of: usize, visit: impl FnMut(&[usize])) -> u64 {
    match design {
        Design::Apart => each_choice(count, of, visit),
        Design::InTurns => each_exchange(count, visit),
    }
}

/// Calls `visit` with one run of each round, in every combination, or with [`DRAWS`] random ones if there are too
/// many. The first choice is A's own runs. Returns the number of choices. The run of B in round `r` is number `rounds
/// + r`.
fn each_exchange(rounds: usize, mut visit: impl FnMut(&[usize])) -> u64 {
    let mut choice: Vec<usize> = (0..rounds).collect();
    let ways = u32::try_from(rounds)
        .ok()
        .and_then(|it| 1_u64.checked_shl(it));
    if let Some(ways) = ways.filter(|ways| *ways <= EXACT_CHOICES_MAX) {
        for way in 0..ways {
            for (round, run) in choice.iter_mut().enumerate() {
                *run = round + rounds * usize::from(way >> round & 1 == 1);
            }
            visit(&choice);
        }
        return ways;
    }
    let mut draw = Draw(SEED);
    visit(&choice);
    for _ in 0..DRAWS {
        for (round, run) in choice.iter_mut().enumerate() {
            // The top bit: the low bits of the generator are less random.
            *run = round + rounds * usize::from(draw.next() >> 63 == 1);
        }
        visit(&choice);
    }
    DRAWS + 1
}

/// Calls `visit` with every choice of `count` numbers below `of`, or with [`DRAWS`] random ones if there are too
/// many. The first choice is `0..count`. Returns the number of choices.
fn each_choice(count: usize, of: usize, mut visit: impl FnMut(&[usize])) -> u64 {
    if let Some(choices) = number_of_choices(count, of) {
        let mut choice: Vec<usize> = (0..count).collect();
        visit(&choice);
        while next_choice(&mut choice, of) {
            visit(&choice);
        }
        return choices;
    }
    let mut draw = Draw(SEED);
    let mut values: Vec<usize> = (0..of).collect();
    visit(&values[..count]);
    for _ in 0..DRAWS {
        visit(choose(&mut values, count, &mut draw));
    }
    DRAWS + 1
}

/// The number of choices of `count` out of `of`; `None` if it exceeds [`EXACT_CHOICES_MAX`].
fn number_of_choices(count: usize, of: usize) -> Option<u64> {
    let count = count.min(of.checked_sub(count)?);
    (0..count).try_fold(1_u64, |choices, taken| {
        let more = choices * u64::try_from(of - taken).ok()? / u64::try_from(taken + 1).ok()?;
        (more <= EXACT_CHOICES_MAX).then_some(more)
    })
}

/// Changes a sorted choice into the next one; returns false after the last.
fn next_choice(choice: &mut [usize], of: usize) -> bool {
    let count = choice.len();
    let can_grow = |(place, value): &(usize, &usize)| **value + count < of + place;
    let Some((place, &value)) = choice.iter().enumerate().rfind(can_grow) else {
        return false;
    };
    for (later, next) in choice.iter_mut().skip(place).zip(value + 1..) {
        *later = next;
    }
    true
}

/// The ratio of `b` to `a`: the median of the ratios of all pairs (the Hodges-Lehmann estimate), and its 95 %
/// confidence interval if there are enough values. All values are above zero.
#[must_use]
pub(crate) fn ratio(a: &[f64], b: &[f64]) -> (f64, Option<[f64; 2]>) {
    let pairs = a.iter().flat_map(|a| b.iter().map(move |b| b / a));
    let ratios = sorted(pairs.collect());
    let interval = pairs_outside(a.len(), b.len()).and_then(|outside| {
        let last = ratios.len().checked_sub(1 + outside)?;
        Some([*ratios.get(outside)?, *ratios.get(last)?])
    });
    (median(&ratios), interval)
}

/// Whether `b` is less or greater than `a` in the majority of pairs, which is what the ranks measure.
#[must_use]
pub(crate) fn direction(a: &[f64], b: &[f64]) -> Ordering {
    let pairs = a.iter().flat_map(|a| b.iter().map(|b| b.total_cmp(a)));
    let (less, greater) = pairs.fold((0_usize, 0_usize), |(less, greater), order| {
        (
            less + usize::from(order.is_lt()),
            greater + usize::from(order.is_gt()),
        )
    });
    greater.cmp(&less)
}

/// Twice the rank of every value, those of `a` first. Equal values share the mean of their ranks; twice that is
/// always a whole number.
fn doubled_ranks(a: &[f64], b: &[f64]) -> Vec<usize> {
    let mut values: Vec<(usize, f64)> = a.iter().chain(b).copied().enumerate().collect();
    values.sort_by(|x, y| x.1.total_cmp(&y.1));
    let mut ranks: Vec<(usize, usize)> = Vec::with_capacity(values.len());
    for equal in values.chunk_by(|x, y| x.1 == y.1) {
        let rank = 2 * ranks.len() + equal.len() + 1;
        ranks.extend(equal.iter().map(|(run, _)| (*run, rank)));
    }
    ranks.sort_unstable();
    ranks.into_iter().map(|(_, rank)| rank).collect()
}

/// The number of choices of `count` ranks for each sum.
fn sums_of_choices(ranks: &[usize], count: usize) -> Vec<u64> {
    let sum_max: usize = ranks.iter().rev().take(count).sum();
    // Indexed by the number of chosen ranks, then by their sum.
    let mut choices = vec![vec![0_u64; sum_max + 1]; count + 1];
    choices[0][0] = 1;
    for &rank in ranks {
        for chosen in (1..=count).rev() {
            let [fewer, more] = &mut choices[chosen - 1..=chosen] else {
                continue;
            };
            for (with, without) in more.iter_mut().skip(rank).zip(fewer.iter()) {
                *with += without;
            }
        }
    }
    choices.pop().unwrap_or_default()
}

/// How many of the smallest ratios of all pairs are outside of the 95 % interval; as many of the largest are too.
fn pairs_outside(a: usize, b: usize) -> Option<usize> {
    if a + b > EXACT_VALUES_MAX {
        let spread = (size(a * b) * size(a + b + 1) / 12.0).sqrt();
        let outside = (size(a * b) / 2.0 - NORMAL_95 * spread).floor();
        return (0..a * b).rev().find(|&pairs| size(pairs) <= outside);
    }
    let ranks: Vec<usize> = (1..=a + b).map(|rank| 2 * rank).collect();
    let sums = sums_of_choices(&ranks, a);
    let all: u64 = sums.iter().sum();
    let least = a * (a + 1);
    let mut below = 0;
    let shares = sums.iter().skip(least).step_by(2).map(|choices| {
        below += choices;
        share(below, all)
    });
    let within = shares.take_while(|&share| share <= SIGNIFICANCE / 2.0);
    within.count().checked_sub(1)
}

/// Moves `count` random values to the front.
fn choose<'a>(values: &'a mut [usize], count: usize, draws: &mut Draw) -> &'a [usize] {
    for place in 0..count.min(values.len()) {
        let rest = u64::try_from(values.len() - place).unwrap_or(1);
        let other = usize::try_from(draws.next() % rest).unwrap_or(0);
        values.swap(place, place + other);
    }
    &values[..count.min(values.len())]
}

#[allow(clippy::cast_precision_loss, reason = "a share of choices")]
fn share(part: u64, all: u64) -> f64 {
    if all == 0 {
        1.0
    } else {
        part as f64 / all as f64
    }
}

#[allow(clippy::cast_precision_loss, reason = "numbers of runs")]
pub(super) const fn size(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition by brute force over every set of runs: for each figure alone, and for any of them.
    fn brute_force(figures: &[(&[f64], &[f64])]) -> Vec<PValue> {
        let (a, b) = figures[0];
        let middle = a.len() * (a.len() + b.len() + 1);
        let distance = |(a, b): &(&[f64], &[f64]), chosen: u32| {
            let all: Vec<f64> = a.iter().chain(*b).copied().collect();
            let rank = |value: &f64| {
                let less = all.iter().filter(|other| *other < value).count();
                2 * less + all.iter().filter(|other| *other == value).count() + 1
            };
            let is_chosen = |(index, _): &(usize, &f64)| chosen >> index & 1 == 1;
            let ranks = all
                .iter()
                .enumerate()
                .filter(is_chosen)
                .map(|(_, v)| rank(v));
            ranks.sum::<usize>().abs_diff(middle)
        };
        let sets: Vec<u32> = (0_u32..1 << (a.len() + b.len()))
            .filter(|set| set.count_ones() as usize == a.len())
            .collect();
        let labels = (1 << a.len()) - 1;
        let share_of = |figure: &(&[f64], &[f64]), others: &[(&[f64], &[f64])]| {
            let observed = distance(figure, labels);
            let is_far = |set: &&u32| others.iter().any(|f| distance(f, **set) >= observed);
            share(sets.iter().filter(is_far).count() as u64, sets.len() as u64)
        };
        let p_value = |figure| PValue {
            alone: share_of(figure, &[*figure]),
            adjusted: share_of(figure, figures),
        };
        figures.iter().map(p_value).collect()
    }

    fn alone(a: &[f64], b: &[f64]) -> f64 {
        p_values(&[(a, b)], Design::Apart)[0].alone
    }

    /// Two figures of up to six runs of each side, with few different values, so that many are equal.
    fn figures() -> impl Strategy<Value = [(Vec<f64>, Vec<f64>); 2]> {
        let values = |count| prop::collection::vec((1_u32..9).prop_map(f64::from), count);
        let sizes = (1_usize..6, 1_usize..6);
        sizes.prop_flat_map(move |(a, b)| [(values(a), values(b)), (values(a), values(b))])
    }

    proptest! {
        #[test]
        fn the_test_is_what_trying_every_choice_gives([one, other] in figures()) {
            let figures = [(&one.0[..], &one.1[..]), (&other.0[..], &other.1[..])];
            for (fast, plain) in p_values(&figures, Design::Apart).iter().zip(brute_force(&figures)) {
                prop_assert!((fast.alone - plain.alone).abs() < 1e-12);
                prop_assert!((fast.adjusted - plain.adjusted).abs() < 1e-12);
                prop_assert!(fast.alone <= fast.adjusted);
            }
        }

        #[test]
        fn the_groups_may_change_places([(a, b), _] in figures()) {
            prop_assert!((alone(&a, &b) - alone(&b, &a)).abs() < 1e-12);
            let (there, back) = (ratio(&a, &b), ratio(&b, &a));
            prop_assert_eq!(there.1.is_some(), back.1.is_some());
            if let (Some([low, high]), Some([low_back, high_back])) = (there.1, back.1) {
                prop_assert!((low * high_back - 1.0).abs() < 1e-9);
                prop_assert!((high * low_back - 1.0).abs() < 1e-9);
                prop_assert!(low <= there.0 && there.0 <= high);
            }
        }

        #[test]
        fn drawn_choices_hold_no_run_twice(seed in any::<u64>(), count in 0_usize..6) {
            let mut values = [1, 2, 3, 4, 5];
            let mut chosen = choose(&mut values, count, &mut Draw(seed)).to_vec();
            chosen.sort_unstable();
            chosen.dedup();
            prop_assert_eq!(chosen.len(), count.min(5));
        }
    }

    #[test]
    fn known_values() {
        let a = [1.0, 2.0, 3.0, 4.0, 5.0];
        let b = [6.0, 7.0, 8.0, 9.0, 10.0];
        // Two of the 252 choices of five out of ten.
        assert!((alone(&a, &b) - 2.0 / 252.0).abs() < 1e-12);
        assert!((p_value_least(5, 5) - 2.0 / 252.0).abs() < 1e-12);
        assert!((alone(&a, &a) - 1.0).abs() < 1e-12);
        assert!(p_values(&[], Design::Apart).is_empty());
        // Published tables give 2 and 8 as critical values of U for groups of 5 and 5, and of 7 and 7.
        assert_eq!(pairs_outside(5, 5), Some(2));
        assert_eq!(pairs_outside(7, 7), Some(8));
        assert_eq!(pairs_outside(3, 3), None);
    }

    #[test]
    fn runs_in_turns_change_places_within_their_round() {
        let in_turns = |a: &[f64], b: &[f64]| p_values(&[(a, b)], Design::InTurns)[0].alone;
        // A machine with two speeds: B is above A in every round, but many runs of A are above many of B.
        let a = [10.0, 20.0, 11.0, 21.0, 12.0, 22.0];
        let b = [13.0, 23.0, 14.0, 24.0, 15.0, 25.0];
        assert!((in_turns(&a, &b) - 2.0 / 64.0).abs() < 1e-12);
        assert!(alone(&a, &b) > 0.1);
        assert!((in_turns(&a, &a) - 1.0).abs() < 1e-12);
        // Ten speeds, with B a little slower at each; and a figure of pure noise with larger steps.
        let pace: Vec<f64> = (0..10).map(|round| f64::from(round * 10)).collect();
        let slower: Vec<f64> = pace.iter().map(|value| value + 1.0).collect();
        let noise = [3.0, 9.0, 1.0, 7.0, 5.0, 2.0, 8.0, 6.0, 4.0, 0.0];
        let other: Vec<f64> = noise.iter().map(|value| 9.5 - value).collect();
        let figures = [(&pace[..], &slower[..]), (&noise[..], &other[..])];
        let [found, not] = p_values(&figures, Design::InTurns)[..] else {
            panic!("two figures")
        };
        assert!(found.alone < 0.002 && found.adjusted < 0.01, "{found:?}");
        assert!(not.adjusted > 0.5, "{not:?}");
        let mut seen = std::collections::BTreeSet::new();
        let visited = each_exchange(4, |choice| assert!(seen.insert(choice.to_vec())));
        assert_eq!((visited, seen.len()), (16, 16));
        let of_round = |choice: &Vec<usize>| choice.iter().enumerate().all(|(r, run)| run % 4 == r);
        assert!(seen.iter().all(of_round));
        // With 18 rounds the combinations are random; with 17 all are counted.
        assert_eq!(each_exchange(17, |_| ()), 1 << 17);
        assert_eq!(each_exchange(18, |_| ()), DRAWS + 1);
        for (turns, a, b) in [(false, 9, 9), (true, 9, 8), (true, 5, 5)] {
            assert_eq!(Design::of(turns, a, b), Design::Apart);
        }
        assert_eq!(Design::of(true, 6, 6), Design::InTurns);
    }

    #[test]
    fn every_choice_is_visited_once() {
        assert_eq!(number_of_choices(7, 14), Some(3432));
        assert_eq!(number_of_choices(10, 20), Some(184_756));
        assert_eq!(number_of_choices(11, 22), None);
        assert!(number_of_choices(10, 20).is_some() && number_of_choices(11, 22).is_none());
        let mut seen = std::collections::BTreeSet::new();
        let visited = each_choice(3, 8, |choice| assert!(seen.insert(choice.to_vec())));
        assert_eq!((visited, seen.len()), (56, 56));
        assert!(seen.iter().flatten().all(|run| *run < 8));
    }

    #[test]
    fn drawing_agrees_with_counting() {
        // With 11 runs of each the choices are random; with 10 all are counted.
        let values = |count: u32, shift: f64| -> Vec<f64> {
            let value = |run| f64::from(run * 7919 % 101) + shift;
            (0..count).map(value).collect()
        };
        for shift in [0.5, 20.0, 60.0] {
            let drawn = alone(&values(11, 0.0), &values(11, shift));
            let counted = alone(&values(10, 0.0), &values(10, shift));
            assert!((drawn - counted).abs() < 0.1, "{shift}: {drawn} {counted}");
            let again = alone(&values(11, 0.0), &values(11, shift));
            assert!((drawn - again).abs() < 1e-15, "seeded");
        }
        let approximated = pairs_outside(33, 33).unwrap();
        let counted = pairs_outside(32, 32).unwrap();
        assert!(
            approximated > counted && approximated < counted + 40,
            "{approximated} {counted}"
        );
    }
}
