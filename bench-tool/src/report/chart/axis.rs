//! The axes of a chart: ranges, marks, and the texts of the marks.

use rpcrdma_units::{rate_mark, time_mark};

/// Approximate number of marks on a linear axis.
const LINEAR_MARKS: f64 = 5.0;

/// Upper bound of the marks on a logarithmic axis.
const LOGARITHMIC_MARKS_MAX: usize = 10;

/// Values with a larger ratio get a logarithmic axis.
const LINEAR_RATIO_MAX: f64 = 20.0;

/// The kind of values on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Calls per second.
    Rate,
    /// Times in nanoseconds.
    Nanoseconds,
    /// Times in seconds.
    Seconds,
    /// Numbers whose marks the caller writes.
    Other,
}

impl Unit {
    const fn scales(self) -> &'static [(f64, &'static str)] {
        match self {
            Self::Rate => &[(1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")],
            Self::Nanoseconds => &[(1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")],
            Self::Seconds => &[(1.0, "s"), (1e-3, "ms"), (1e-6, "us")],
            Self::Other => &[(1.0, "")],
        }
    }

    /// A single value, in a suitable scale.
    pub(crate) fn text(self, value: f64) -> String {
        match self {
            Self::Rate => rate_mark(value),
            Self::Nanoseconds => time_mark(whole(value)),
            Self::Seconds => time_mark(whole(value * 1e9)),
            Self::Other => value.to_string(),
        }
    }

    /// The multiples of `step` from 0 to `count`, all in one scale and with the same number of decimal places.
    fn multiples(self, step: f64, count: u32) -> Vec<Mark> {
        let high = step * f64::from(count);
        let scales = self.scales();
        let fitting = scales.iter().find(|(scale, _)| *scale <= high);
        let (scale, name) = *fitting.or(scales.last()).unwrap_or(&(1.0, ""));
        let decimals = decimal_places(step / scale);
        let multiple = |number: u32| {
            let at = f64::from(number) * step;
            let text = match number {
                0 => "0".to_owned(),
                _ => format!("{:.decimals$} {name}", at / scale),
            };
            Mark { at, text }
        };
        (0..=count).map(multiple).collect()
    }
}

/// The number of decimal places of 1, 2 or 5 times a power of ten.
fn decimal_places(step: f64) -> usize {
    let is_written =
        |places: &i32| step * 10_f64.powi(*places) > 1.0 - 1e-9 && step > 0.0 && step.is_finite();
    let places = (0..9).find(is_written).unwrap_or(9);
    usize::try_from(places).unwrap_or(0)
}

/// A value on an axis, with its text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mark {
    pub(super) at: f64,
    pub(super) text: String,
}

/// One axis: its range, its marks and its label.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub(super) label: String,
    is_logarithmic: bool,
    low: f64,
    high: f64,
    pub(super) marks: Vec<Mark>,
    pub(super) unit: Unit,
    /// Values with a line and a name, such as the knee, in their order.
    pub(super) noted: Vec<Noted>,
}

/// A value with a line and a name.
#[derive(Clone, Debug)]
pub(super) struct Noted {
    pub(super) at: f64,
    /// The end of what began at this value; the chart fills the band between them.
    pub(super) until: Option<f64>,
    pub(super) name: String,
}

impl Axis {
    fn new(
        label: &str,
        is_logarithmic: bool,
        (low, high): (f64, f64),
        marks: Vec<Mark>,
        unit: Unit,
    ) -> Self {
        Self {
            label: label.to_owned(),
            is_logarithmic,
            low,
            high,
            marks,
            unit,
            noted: Vec::new(),
        }
    }

    /// A linear axis from 0 to the first round mark at or above `high`.
    pub(crate) fn linear(label: &str, high: f64, unit: Unit) -> Self {
        let high = if high > 0.0 { high } else { 1.0 };
        let rough = high / LINEAR_MARKS;
        let power = 10_f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
        let step = steps.into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let count = u32::try_from(whole((high / step).ceil())).unwrap_or(1);
        let end = step * f64::from(count);
        Self::new(label, false, (0.0, end), unit.multiples(step, count), unit)
    }

    /// A logarithmic axis from the last mark at or below `low` to the first at or above `high`. Marks are 1, 2 and 5
    /// times powers of ten, or only powers of ten if there would be too many.
    pub(crate) fn logarithmic(label: &str, low: f64, high: f64, unit: Unit) -> Self {
        let low = if low > 0.0 { low } else { 1.0 };
        let high = high.max(2.0 * low);
        let rounds = round_numbers(low, high);
        let values = rounds.iter().map(|(value, _)| *value);
        let first = rounds.iter().rposition(|(value, _)| *value <= low);
        let last = values.clone().position(|value| value >= high);
        let range = first.unwrap_or(0)..=last.unwrap_or(rounds.len() - 1);
        let range = rounds.get(range).unwrap_or(&[]);
        let powers = range.iter().filter(|(_, is_power)| *is_power).count();
        let is_wide = range.len() > LOGARITHMIC_MARKS_MAX;
        let stride = powers.div_ceil(LOGARITHMIC_MARKS_MAX).max(1);
        let shown = range
            .iter()
            .filter(|(_, is_power)| !is_wide || *is_power)
            .step_by(if is_wide { stride } else { 1 })
            .map(|(at, _)| Mark {
                at: *at,
                text: unit.text(*at),
            });
        let ends = (
            range.first().map_or(low, |it| it.0),
            range.last().map_or(high, |it| it.0),
        );
        Self::new(label, true, ends, shown.collect(), unit)
    }

    /// A logarithmic axis with a mark at each value (at least 1), so that equal ratios have equal distances.
    pub(crate) fn places(label: &str, values: &[f64], text: impl Fn(f64) -> String) -> Self {
        let mut values: Vec<f64> = values.iter().map(|value| value.max(1.0)).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let (low, high) = ends(&values);
        let marks = values.iter().map(|at| Mark {
            at: *at,
            text: text(*at),
        });
        let range = (low / 1.15, high * 1.15);
        Self::new(label, true, range, marks.collect(), Unit::Other)
    }

    /// An axis for measured values: linear from zero, or logarithmic if they are far apart.
    pub(crate) fn figures(label: &str, values: &[f64], unit: Unit) -> Self {
        let (low, high) = ends(values);
        if low > 0.0 && high > low * LINEAR_RATIO_MAX {
            Self::logarithmic(label, low, high, unit)
        } else {
            Self::linear(label, high, unit)
        }
    }

    /// A logarithmic axis for latencies in nanoseconds.
    #[allow(clippy::cast_precision_loss, reason = "a place on a picture")]
    pub(crate) fn latency(label: &str, low_ns: u64, high_ns: u64) -> Self {
        let (low, high) = (low_ns.max(1) as f64, high_ns.max(2) as f64);
        Self::logarithmic(label, low, high, Unit::Nanoseconds)
    }

    /// An axis for percentiles, by the number of calls per slower call: 1, 10, and so on up to 100,000.
    pub(crate) fn percentiles() -> Self {
        let names = ["0 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %"];
        let marks = (0..).zip(names).map(|(power, name)| Mark {
            at: 10_f64.powi(power),
            text: name.to_owned(),
        });
        let label = "share of the calls that were no slower";
        Self::new(label, true, (1.0, 1e5), marks.collect(), Unit::Other)
    }

    /// The same axis, but ending at `high` instead of the next mark.
    pub(crate) fn cut(mut self, high: f64) -> Self {
        if high > self.low {
            self.high = high;
            self.marks.retain(|mark| mark.at <= high);
        }
        self
    }

    /// The same axis with a named line at `at`.
    pub(crate) fn noting(mut self, at: f64, name: &str) -> Self {
        self.note(at, None, name);
        self
    }

    /// The same axis with a filled band between two values, and a named line where it begins.
    pub(crate) fn noting_band(mut self, (from, until): (f64, f64), name: &str) -> Self {
        self.note(from, Some(until), name);
        self
    }

    fn note(&mut self, at: f64, until: Option<f64>, name: &str) {
        let name = name.to_owned();
        let place = self.noted.partition_point(|it| it.at <= at);
        self.noted.insert(place, Noted { at, until, name });
    }

    /// The position of a value on the axis, from 0 to 1.
    pub(super) fn share(&self, value: f64) -> f64 {
        let share = if self.is_logarithmic {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        share.clamp(0.0, 1.0)
    }
}

/// The smallest and the largest value; both are 1 if there is none.
fn ends(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().min_by(f64::total_cmp);
    let high = values.iter().copied().max_by(f64::total_cmp);
    (low.unwrap_or(1.0), high.unwrap_or(1.0))
}

/// 1, 2 and 5 times the powers of ten around a range, each with whether it is a power of ten.
#[allow(clippy::cast_possible_truncation, reason = "exponents are small")]
fn round_numbers(low: f64, high: f64) -> Vec<(f64, bool)> {
    let powers = low.log10().floor() as i32 - 1..=high.log10().ceil() as i32;
    let steps = [(1.0, true), (2.0, false), (5.0, false)];
    let of_power = |power| steps.map(|(step, is_power)| (step * 10_f64.powi(power), is_power));
    powers.flat_map(of_power).collect()
}

/// A non-negative value, rounded.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the conversion saturates"
)]
pub(crate) fn whole(value: f64) -> u64 {
    value.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values(axis: &Axis) -> Vec<f64> {
        axis.marks.iter().map(|mark| mark.at).collect()
    }

    fn texts(axis: &Axis) -> Vec<&str> {
        axis.marks.iter().map(|mark| &*mark.text).collect()
    }

    #[test]
    fn marks_are_round_and_hold_the_range() {
        let axis = Axis::linear("rate", 4_300.0, Unit::Rate);
        assert_eq!(
            values(&axis),
            [0.0, 1_000.0, 2_000.0, 3_000.0, 4_000.0, 5_000.0]
        );
        assert!((axis.share(2_500.0) - 0.5).abs() < 1e-9);
        let cut = axis.cut(4_300.0);
        assert!(cut.marks.len() == 5 && (cut.share(4_300.0) - 1.0).abs() < 1e-9);
        let nothing = Axis::linear("rate", 0.0, Unit::Rate);
        assert!(nothing.high > 0.0, "an axis of nothing has a length");
    }

    #[test]
    fn marks_of_a_linear_axis_have_one_unit_and_the_same_decimal_places() {
        for (high, unit, expected) in [
            (
                2_100_000.0,
                Unit::Rate,
                ["0", "0.5 M/s", "1.0 M/s", "1.5 M/s", "2.0 M/s", "2.5 M/s"],
            ),
            (
                4_900.0,
                Unit::Nanoseconds,
                ["0", "1 us", "2 us", "3 us", "4 us", "5 us"],
            ),
            (
                0.25,
                Unit::Seconds,
                ["0", "50 ms", "100 ms", "150 ms", "200 ms", "250 ms"],
            ),
            (
                1.0,
                Unit::Seconds,
                ["0", "0.2 s", "0.4 s", "0.6 s", "0.8 s", "1.0 s"],
            ),
        ] {
            assert_eq!(texts(&Axis::linear("x", high, unit)), expected);
        }
    }

    #[test]
    fn latencies_have_marks_with_units() {
        let names = |low, high| -> Vec<String> {
            let axis = Axis::latency("x", low, high);
            axis.marks.into_iter().map(|mark| mark.text).collect()
        };
        assert_eq!(
            names(450, 4_000),
            ["200 ns", "500 ns", "1 us", "2 us", "5 us"]
        );
        let wide = names(400, 1_700_000);
        assert_eq!(wide, ["1 us", "10 us", "100 us", "1 ms"]);
        assert_eq!(names(0, 0), ["1 ns", "2 ns"]);
        let widest = names(1, u64::MAX).len();
        assert!((5..=LOGARITHMIC_MARKS_MAX).contains(&widest), "{widest}");
    }

    #[test]
    fn percentiles_are_as_far_apart_as_their_nines() {
        let axis = Axis::percentiles();
        for (index, value) in values(&axis).into_iter().enumerate() {
            #[allow(clippy::cast_precision_loss)]
            let expected = index as f64 / 5.0;
            assert!((axis.share(value) - expected).abs() < 1e-9);
        }
        assert!((axis.share(1e9) - 1.0).abs() < 1e-9, "never outside");
    }

    #[test]
    fn figures_begin_at_zero_unless_they_lie_far_apart() {
        let near = Axis::figures("y", &[400.0, 900.0], Unit::Nanoseconds);
        assert_eq!(values(&near), [0.0, 200.0, 400.0, 600.0, 800.0, 1_000.0]);
        let wide = Axis::figures("y", &[100.0, 10_000.0], Unit::Rate);
        assert_eq!(values(&wide), [100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4]);
        assert_eq!(texts(&wide)[2..4], ["500 /s", "1 k/s"]);
        let places = Axis::places("x", &[4.0, 1.0, 0.0], |it| it.to_string());
        assert_eq!(values(&places), [1.0, 4.0]);
        let apart = |a, b| places.share(b) - places.share(a);
        assert!((apart(1.0, 2.0) - apart(2.0, 4.0)).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn every_value_is_on_the_axis_and_marks_rise(values in prop::collection::vec(1.0_f64..1e12, 1..9)) {
            for axis in [
                Axis::figures("", &values, Unit::Nanoseconds),
                Axis::places("", &values, |_| String::new()),
            ] {
                prop_assert!(!axis.marks.is_empty());
                let places = axis.marks.iter().map(|mark| axis.share(mark.at));
                prop_assert!(places.is_sorted_by(|a, b| a < b));
                for value in axis.marks.iter().map(|mark| mark.at).chain(values.iter().copied()) {
                    prop_assert!((axis.low..=axis.high).contains(&value), "{value} on {axis:?}");
                }
            }
        }
    }
}
