//! Formats numbers with units as text, as all reports of `bench-tool`, `rpcrdma-doctor` and `rpcrdma-explain` do.
//!
//! Programs that print such numbers beside theirs use it, so that both look alike. JSON output has plain numbers instead, with
//! the unit in the key.
//!
//! ```
//! use rpcrdma_units::{count, nanoseconds, rate};
//!
//! assert_eq!(count(1_234_567), "1,234,567");
//! assert_eq!(nanoseconds(1_870), "1870 ns");
//! assert_eq!(rate(4_456_000.0), "4.456 M/s");
//! ```
#![forbid(unsafe_code)]

use std::fmt;
use std::time::Duration;

/// The text that `write` produces.
pub fn text_of(write: impl FnOnce(&mut String) -> fmt::Result) -> String {
    let mut text = String::new();
    let result = write(&mut text);
    debug_assert!(result.is_ok(), "a string takes all that is written to it");
    text
}

/// `1,234,567`.
#[must_use]
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A latency: whole nanoseconds below 10 us, four digits from there on.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "four digits are shown")]
pub fn nanoseconds(value: u64) -> String {
    match value {
        0..10_000 => format!("{value} ns"),
        10_000..1_000_000 => format!("{} us", four_digits(value as f64 / 1e3)),
        1_000_000..1_000_000_000 => format!("{} ms", four_digits(value as f64 / 1e6)),
        _ => format!("{} s", four_digits(value as f64 / 1e9)),
    }
}

/// A latency for the mark of an axis: microseconds from 1 us on, without trailing zeroes.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "four digits are shown")]
pub fn time_mark(value: u64) -> String {
    match value {
        1_000..10_000 => short(&format!("{} us", four_digits(value as f64 / 1e3))),
        _ => short(&nanoseconds(value)),
    }
}

/// A rate for the mark of an axis, without trailing zeroes.
#[must_use]
pub fn rate_mark(value: f64) -> String {
    short(&rate(value))
}

/// Removes trailing zeroes from a number with a unit: `8 M/s` for `8.000 M/s`.
fn short(text: &str) -> String {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let number = if number.contains('.') {
        number.trim_end_matches('0').trim_end_matches('.')
    } else {
        number
    };
    format!("{number} {unit}").trim_end().to_owned()
}

/// The number per second; zero for a duration of zero.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "a rate")]
pub fn per_s(total: u64, duration_s: f64) -> f64 {
    if duration_s > 0.0 {
        total as f64 / duration_s
    } else {
        0.0
    }
}

/// A duration for headings: `5 s`, `500 ms`.
#[must_use]
pub fn duration(value: Duration) -> String {
    let seconds = value.as_secs_f64();
    let (scaled, unit) = if seconds >= 1.0 || seconds == 0.0 {
        (seconds, "s")
    } else if seconds >= 1e-3 {
        (seconds * 1e3, "ms")
    } else {
        (seconds * 1e6, "us")
    };
    let text = format!("{scaled:.2}");
    format!(
        "{} {unit}",
        text.trim_end_matches('0').trim_end_matches('.')
    )
}

/// A size: in KiB, MiB or GiB if it is a whole number of them, otherwise in bytes.
#[must_use]
pub fn size(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{} {unit}", count(bytes >> shift));
        }
    }
    format!("{} B", count(bytes))
}

/// A rate of calls: `4.712 M/s`.
#[must_use]
pub fn rate(per_s: f64) -> String {
    scaled(per_s, &[(1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")])
}

/// A bandwidth in decimal units, as is usual for bandwidth: `17.24 GB/s`.
#[must_use]
pub fn bandwidth(bytes_per_s: f64) -> String {
    scaled(
        bytes_per_s,
        &[(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")],
    )
}

fn scaled(value: f64, scales: &[(f64, &str)]) -> String {
    let (scale, unit) = scales
        .iter()
        .find(|(scale, _)| value >= *scale)
        .or_else(|| scales.last())
        .copied()
        .unwrap_or((1.0, ""));
    format!("{} {unit}", four_digits(value / scale))
}

fn four_digits(value: f64) -> String {
    let decimals = match value {
        v if v >= 999.95 => 0,
        v if v >= 99.995 => 1,
        v if v >= 9.9995 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_commas() {
        for (value, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
            (u64::MAX, "18,446,744,073,709,551,615"),
        ] {
            assert_eq!(count(value), text);
        }
    }

    #[test]
    fn latencies_change_unit_as_they_grow() {
        for (value, text) in [
            (0, "0 ns"),
            (9_999, "9999 ns"),
            (10_000, "10.00 us"),
            (123_456, "123.5 us"),
            (999_999, "1000 us"),
            (1_700_000, "1.700 ms"),
            (2_500_000_000, "2.500 s"),
        ] {
            assert_eq!(nanoseconds(value), text);
        }
    }

    #[test]
    fn marks_of_axes_are_short() {
        for (value, text) in [
            (500, "500 ns"),
            (5_000, "5 us"),
            (2_500, "2.5 us"),
            (10_000, "10 us"),
            (100_000, "100 us"),
        ] {
            assert_eq!(time_mark(value), text);
        }
        assert_eq!(rate_mark(8e6), "8 M/s");
        assert_eq!(rate_mark(1.5e5), "150 k/s");
        assert_eq!(rate_mark(0.0), "0 /s");
        assert_eq!(short("7"), "7");
    }

    #[test]
    fn durations_sizes_and_rates() {
        assert_eq!(duration(Duration::from_secs(5)), "5 s");
        assert_eq!(duration(Duration::from_millis(500)), "500 ms");
        assert_eq!(duration(Duration::from_millis(1250)), "1.25 s");
        assert_eq!(duration(Duration::from_micros(50)), "50 us");
        assert_eq!(duration(Duration::ZERO), "0 s");
        assert_eq!(size(0), "0 B");
        assert_eq!(size(64), "64 B");
        assert_eq!(size(65_536), "64 KiB");
        assert_eq!(size(1_000_000), "1,000,000 B");
        assert_eq!(size(1 << 20), "1 MiB");
        assert_eq!(rate(4_712_345.0), "4.712 M/s");
        assert_eq!(rate(95.14), "95.14 /s");
        assert_eq!(rate(0.0), "0.000 /s");
        assert_eq!(bandwidth(17_240_000_000.0), "17.24 GB/s");
        assert_eq!(bandwidth(1_500.0), "1.500 kB/s");
    }
}
