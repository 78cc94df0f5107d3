//! The size of a difference between alternating runs. It compares the two runs of each round, so drift of the machine
//! between rounds affects both and cancels out.

use super::rank_sum::SIGNIFICANCE;
use crate::report::metric::{median, sorted};

/// The ratio of `b` to `a`, whose runs with the same index are a round: the median over the ratios of all rounds and
/// of all pairs of rounds (the Hodges-Lehmann estimate for Wilcoxon's signed ranks), and its 95 % confidence interval
/// if there are enough rounds. All values are above zero.
#[must_use]
pub(crate) fn ratio(a: &[f64], b: &[f64]) -> (f64, Option<[f64; 2]>) {
    let rounds: Vec<f64> = a.iter().zip(b).map(|(a, b)| b / a).collect();
    let pairs = rounds.iter().enumerate().flat_map(|(index, one)| {
        let others = rounds.iter().skip(index);
        others.map(move |other| (one * other).sqrt())
    });
    let ratios = sorted(pairs.collect());
    let interval = pairs_outside(rounds.len()).and_then(|outside| {
        let last = ratios.len().checked_sub(1 + outside)?;
        Some([*ratios.get(outside)?, *ratios.get(last)?])
    });
    (median(&ratios), interval)
}

/// How many of the smallest ratios of pairs are outside of the 95 % interval; as many of the largest are too.
fn pairs_outside(rounds: usize) -> Option<usize> {
    // The probability of each sum of the ranks of the rounds in which B is ahead, if A and B are equally likely to be
    // ahead in each round.
    let sum_max = rounds * (rounds + 1) / 2;
    let mut likely = vec![0.0; sum_max + 1];
    likely[0] = 1.0;
    for rank in 1..=rounds {
        for sum in (0..=sum_max).rev() {
            let without = if sum < rank { 0.0 } else { likely[sum - rank] };
            likely[sum] = f64::midpoint(likely[sum], without);
        }
    }
    let mut below = 0.0;
    let within = likely.iter().take_while(|&&share| {
        below += share;
        below <= SIGNIFICANCE / 2.0
    });
    within.count().checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::super::rank_sum::size;
    use super::*;

    /// The approximation of [`pairs_outside`] for many rounds.
    fn expected_outside(rounds: usize) -> f64 {
        let rounds = size(rounds);
        let spread = (rounds * (rounds + 1.0) * (2.0 * rounds + 1.0) / 24.0).sqrt();
        rounds * (rounds + 1.0) / 4.0 - 1.959_964 * spread
    }

    #[test]
    fn known_values() {
        // Published tables of the signed-rank test give these critical values for 5 %, two-sided.
        let critical = [
            (5, None),
            (6, Some(0)),
            (7, Some(2)),
            (8, Some(3)),
            (10, Some(8)),
            (25, Some(89)),
        ];
        for (rounds, outside) in critical {
            assert_eq!(pairs_outside(rounds), outside, "{rounds} rounds");
        }
        let many = size(pairs_outside(500).unwrap());
        assert!((many - expected_outside(500)).abs() < 5.0, "{many}");
    }

    #[test]
    fn drift_between_rounds_cancels_in_the_ratio() {
        let a = [100.0, 150.0, 151.0, 99.0, 101.0, 149.0, 300.0, 98.0];
        let b = a.map(|value| value * 1.1);
        let (ratio, interval) = ratio(&a, &b);
        let [low, high] = interval.unwrap();
        for value in [ratio, low, high] {
            assert!((value - 1.1).abs() < 1e-9, "{ratio} {low} {high}");
        }
        assert_eq!(super::ratio(&a[..5], &b[..5]).1, None);
    }
}
