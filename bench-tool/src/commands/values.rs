//! Parsers of values with units: sizes, times, counts, rates.
//!
//! Every error message shows a correct example, because that is what the user needs next.

use std::time::Duration;

use crate::workloads::bench::sizes::Sizes;

/// The longest delay of a message that the shm fabric can make.
const DELAY_MAX: Duration = Duration::from_secs(10);

/// Splits `12.5MiB` into number and unit. Spaces between them are allowed.
fn number_and_unit(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (!number.is_empty()).then_some((number, unit.trim()))
}

/// `number` times `scale`, exact: a fraction is allowed if the product is whole (`1.5KiB` is 1536).
fn scaled(number: &str, scale: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.len() > 9 {
        return None;
    }
    let whole: u64 = if whole.is_empty() {
        0
    } else {
        whole.parse().ok()?
    };
    let mut total = whole.checked_mul(scale)?;
    if !fraction.is_empty() {
        let digits: u64 = fraction.parse().ok()?;
        let divisor = 10_u64.pow(u32::try_from(fraction.len()).ok()?);
        let product = digits.checked_mul(scale)?;
        if product % divisor != 0 {
            return None;
        }
        total = total.checked_add(product / divisor)?;
    }
    Some(total)
}

/// Parses a size in bytes: `64`, `4KiB`, `1M`, in capital or small letters. K, M, G and T are powers of 1024 with or
/// without `iB`, as is usual for block sizes; `kB`, `MB`, `GB` and `TB` are powers of 1000.
///
/// # Errors
/// A message for the user, if the text is not a size or does not fit into 64 bits.
pub(crate) fn size_bytes(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!("`{text}` is not a size: write bytes (64), or as in 4KiB or 4k, 1MiB, 2GiB, 1TiB")
    };
    let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
    let scale = match &unit.to_ascii_lowercase()[..] {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(wrong()),
    };
    scaled(number, scale).ok_or_else(wrong)
}

/// Parses sizes with their shares: `4k=80,64k=20`.
///
/// # Errors
/// A message for the user, if the text is not a list of sizes and shares, or has a size twice.
pub(crate) fn sizes(text: &str) -> Result<Sizes, String> {
    let wrong = |what: &str| {
        format!(
            "`{text}` is not a list of sizes with their shares{what}: write it as in 4k=80,64k=20"
        )
    };
    let share = |part: &str| -> Option<(u64, u32)> {
        let (size, share) = part.split_once('=')?;
        let share = share.trim().trim_end_matches('%');
        Some((size_bytes(size).ok()?, share.parse().ok()?))
    };
    let shares: Option<Vec<_>> = text.split(',').map(share).collect();
    let shares = shares.ok_or_else(|| wrong(""))?;
    Sizes::new(&shares).map_err(|error| wrong(&format!(" ({error})")))
}

/// Parses a time: `10s`, `500ms`, `50us`, `2m`, `1h`, `1d`. A number without a unit is refused, because it could mean
/// seconds or milliseconds; only `0` is accepted.
///
/// # Errors
/// A message for the user, if the text is not a time.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let wrong = || {
        format!(
            "`{text}` is not a time: write it with its unit, as in 10s, 500ms, 50us, 800ns, 2m, 1h or 1d"
        )
    };
    let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
    let scale_ns: u64 = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        "" if number == "0" => 0,
        _ => return Err(wrong()),
    };
    scaled(number, scale_ns)
        .map(Duration::from_nanos)
        .ok_or_else(wrong)
}

/// Parses an artificial delay of messages, of at most [`DELAY_MAX`].
///
/// # Errors
/// As [`time`], and for a longer one.
pub(crate) fn delay(text: &str) -> Result<Duration, String> {
    let delay = time(text)?;
    match delay <= DELAY_MAX {
        true => Ok(delay),
        false => Err(format!(
            "`{text}` is longer than the {} s by which the shm fabric can delay a message: write a shorter time, as in 10ms",
            DELAY_MAX.as_secs()
        )),
    }
}

/// Parses a time above zero, for the length of a measurement.
///
/// # Errors
/// As [`time`], and for zero.
pub(crate) fn time_above_zero(text: &str) -> Result<Duration, String> {
    match time(text)? {
        Duration::ZERO => Err(format!(
            "`{text}` measures nothing: write a time above zero, as in 10s"
        )),
        duration => Ok(duration),
    }
}

/// Parses a count: `1000`, `250k`, `5M`, `1G`. Here k, M and G are powers of 1000.
///
/// # Errors
/// A message for the user, if the text is not a count, or zero.
pub(crate) fn count(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a count above zero: write it as 1000, 250k or 5M");
    let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
    let scale = match unit {
        "" => 1,
        "k" | "K" => 1_000,
        "m" | "M" => 1_000_000,
        "g" | "G" => 1_000_000_000,
        _ => return Err(wrong()),
    };
    scaled(number, scale)
        .filter(|&count| count > 0)
        .ok_or_else(wrong)
}

/// Parses a rate in calls per second: `20000`, `250k`, `1.5M`, with or without `/s`.
///
/// # Errors
/// A message for the user, if the text is not a rate above zero.
pub(crate) fn rate_per_s(text: &str) -> Result<u64, String> {
    count(text.strip_suffix("/s").unwrap_or(text)).map_err(|_| {
        format!("`{text}` is not a rate: write calls per second, as in 20000, 250k or 1.5M")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_of_sizes() {
        let expected = Sizes::new(&[(4096, 80), (65_536, 20)]);
        for text in ["4k=80,64k=20", "4KiB = 80, 64KiB=20", "4096=80%,64K=20%"] {
            assert_eq!(super::sizes(text), expected, "{text}");
        }
        for text in [
            "",
            "64",
            "4k=",
            "=80",
            "4k=80,",
            "4k=1,4096=2",
            "4k=0",
            "4k=-1",
            "4k=80;8k=20",
        ] {
            let error = super::sizes(text).unwrap_err();
            assert!(error.contains("4k=80,64k=20"), "{error}");
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("64", 64),
            ("64B", 64),
            ("4KiB", 4096),
            ("4K", 4096),
            ("4k", 4096),
            ("1M", 1 << 20),
            ("1 MiB", 1 << 20),
            ("1.5KiB", 1536),
            ("0.5K", 512),
            ("2G", 2 << 30),
            ("4kib", 4096),
            ("4KIB", 4096),
            ("1TiB", 1 << 40),
            ("2t", 2 << 40),
            ("4kb", 4000),
            ("1TB", 1_000_000_000_000),
            ("1kB", 1000),
            ("1MB", 1_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(size_bytes(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "K",
            "-1",
            "1.3",
            "0.1K",
            "1e3",
            "4 K iB",
            "4KiBs",
            "1..5K",
            ".",
            "18446744073709551616",
            "99999999999G",
        ] {
            assert!(size_bytes(text).unwrap_err().contains("4KiB"), "{text}");
        }
    }

    #[test]
    fn times() {
        for (text, nanoseconds) in [
            ("10s", 10_000_000_000),
            ("500ms", 500_000_000),
            ("50us", 50_000),
            ("50µs", 50_000),
            ("800ns", 800),
            ("0", 0),
            ("0s", 0),
            ("0.5s", 500_000_000),
            ("2m", 120_000_000_000),
            ("1h", 3_600_000_000_000),
            ("1d", 86_400_000_000_000),
        ] {
            assert_eq!(time(text), Ok(Duration::from_nanos(nanoseconds)), "{text}");
        }
        for text in ["", "10", "s", "-1s", "10 parsecs", "1.5ns", "9999999999h"] {
            assert!(time(text).unwrap_err().contains("500ms"), "{text}");
        }
        assert!(time_above_zero("0s").is_err());
        assert!(time_above_zero("1ns").is_ok());
    }

    #[test]
    fn counts_and_rates() {
        assert_eq!(count("1000"), Ok(1000));
        assert_eq!(count("250k"), Ok(250_000));
        assert_eq!(rate_per_s("1.5M"), Ok(1_500_000));
        assert_eq!(rate_per_s("20000/s"), Ok(20_000));
        for text in ["0", "", "-5", "ten", "5KiB", "0.5"] {
            assert!(count(text).is_err(), "{text}");
            assert!(rate_per_s(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,24}") {
            let _ = size_bytes(&text);
            let _ = time(&text);
            let _ = rate_per_s(&text);
        }

        #[test]
        fn plain_numbers_are_themselves(number in any::<u64>()) {
            prop_assert_eq!(size_bytes(&number.to_string()), Ok(number));
        }

        #[test]
        fn kibibytes_are_exact(number in 0..(1_u64 << 40)) {
            let text = format!("{number}KiB");
            prop_assert_eq!(size_bytes(&text), Ok(number * 1024));
        }
    }
}
