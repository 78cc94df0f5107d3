//! Where a value stands on an axis, and which values are marked there.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};

/// An axis.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    is_logarithmic: bool,
    low: f64,
    high: f64,
    marks: Vec<f64>,
}

/// Values that lie further apart than this are shown on a logarithmic axis.
const LINEAR_RATIO_MAX: f64 = 20.0;

/// Marks on a linear axis, about.
const MARKS: f64 = 6.0;

impl Scale {
    /// For places of measurement: each has its mark, and equal ratios are equally far apart.
    pub(super) fn of_places(values: &[f64]) -> Self {
        let mut marks: Vec<f64> = values.iter().map(|value| value.max(1.0)).collect();
        marks.sort_by(f64::total_cmp);
        marks.dedup();
        let (low, high) = ends(&marks);
        Self {
            is_logarithmic: true,
            low: low / 1.15,
            high: high * 1.15,
            marks,
        }
    }

    /// For measured values: from zero, unless they lie too far apart.
    pub(super) fn of_figures(values: &[f64]) -> Self {
        let (low, high) = ends(values);
        if high > low * LINEAR_RATIO_MAX && low > 0.0 {
            let (low, high) = (low / 1.3, high * 1.3);
            return Self {
                is_logarithmic: true,
                low,
                high,
                marks: round_numbers(low, high),
            };
        }
        let high = if high > 0.0 { high * 1.1 } else { 1.0 };
        let step = round_numbers(high / MARKS / 2.5, high / MARKS * 2.5);
        let step = step
            .into_iter()
            .find(|step| step * MARKS >= high)
            .unwrap_or(high);
        let marks = (0..=10)
            .map(|mark| f64::from(mark) * step)
            .filter(|&mark| mark <= high);
        Self {
            is_logarithmic: false,
            low: 0.0,
            high,
            marks: marks.collect(),
        }
    }

    /// Where a value stands, before it becomes a pixel.
    fn place(&self, value: f64) -> f64 {
        if self.is_logarithmic {
            value.max(self.low).log10()
        } else {
            value
        }
    }
}

impl Ranged for Scale {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    #[allow(clippy::cast_possible_truncation, reason = "a pixel")]
    fn map(&self, value: &f64, (first, last): (i32, i32)) -> i32 {
        let (low, high) = (self.place(self.low), self.place(self.high));
        let share = (self.place(*value) - low) / (high - low);
        first + (f64::from(last - first) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.marks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

fn ends(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().min_by(f64::total_cmp).unwrap_or(1.0);
    let high = values.iter().copied().max_by(f64::total_cmp).unwrap_or(1.0);
    (low, high)
}

/// 1, 2 and 5 times powers of ten, as far as they lie between the two.
fn round_numbers(low: f64, high: f64) -> Vec<f64> {
    let powers = (-9..19).map(|power| 10_f64.powi(power));
    let all = powers.flat_map(|power| [power, 2.0 * power, 5.0 * power]);
    all.filter(|number| (low..=high).contains(number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn axes_have_round_marks() {
        assert_eq!(
            Scale::of_figures(&[400.0, 900.0]).marks,
            [0.0, 200.0, 400.0, 600.0, 800.0]
        );
        let wide = Scale::of_figures(&[100.0, 10_000.0]);
        assert_eq!(wide.marks, [100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4]);
        assert_eq!(Scale::of_places(&[4.0, 1.0, 0.0]).marks, [1.0, 4.0]);
    }

    proptest! {
        #[test]
        fn every_value_and_mark_is_on_the_axis(values in prop::collection::vec(1.0_f64..1e12, 1..9)) {
            for scale in [Scale::of_figures(&values), Scale::of_places(&values)] {
                let pixel = |value: &f64| scale.map(value, (500, 20));
                prop_assert!(!scale.marks.is_empty());
                prop_assert!(scale.marks.is_sorted_by_key(|mark| -pixel(mark)));
                for value in scale.marks.iter().chain(&values) {
                    prop_assert!((20..=500).contains(&pixel(value)), "{value} at {}", pixel(value));
                }
            }
        }
    }
}
