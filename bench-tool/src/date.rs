//! The dates of logs and reports.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A time in RFC 3339 format, in UTC, with milliseconds.
#[must_use]
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since.subsec_millis()
    )
}

/// The time of a text of [`rfc3339`]; `None` for other texts.
#[must_use]
pub(crate) fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<u64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let seconds = number(11..13)? * 3600 + number(14..16)? * 60 + number(17..19)?;
    // 400 years have 146,097 days: this is the first of January or up to two days before.
    let mut days = (year.checked_sub(1970)? * 146_097 / 400).saturating_sub(1);
    while date(days) < (year, month, day) {
        days += 1;
    }
    let time =
        UNIX_EPOCH + Duration::from_millis((days * 86_400 + seconds) * 1000 + number(20..23)?);
    (rfc3339(time) == text).then_some(time)
}

/// The Gregorian date `days` days after 1970-01-01. The computation uses years that start on the first of March, so
/// that leap days are at the end of a year.
const fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    // Days from the first of March of year 0 to 1970-01-01.
    let days = days + 719_468;
    let (era, day) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year;
    (if month <= 2 { year + 1 } else { year }, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_the_time_that_wrote_it() {
        for seconds in [
            0,
            59,
            86_399,
            951_782_400,
            1_709_164_800,
            1_764_115_200,
            4_102_444_800,
        ] {
            let time = UNIX_EPOCH + Duration::from_millis(seconds * 1000 + 7);
            assert_eq!(parse_rfc3339(&rfc3339(time)), Some(time));
        }
        let (mut days, year) = (0, 366 * 86_400);
        while days < 400 * year {
            let time = UNIX_EPOCH + Duration::from_secs(days);
            assert_eq!(parse_rfc3339(&rfc3339(time)), Some(time));
            days += 37 * 86_400;
        }
        for text in [
            "",
            "today",
            "2025-02-29T00:00:00.000Z",
            "2025-01-01T00:00:00.000",
            "1969-12-31T00:00:00.000Z",
        ] {
            assert_eq!(parse_rfc3339(text), None, "{text}");
        }
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, milliseconds, text) in [
            (0, 0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, 7, "2000-02-28T23:59:59.007Z"),
            (951_782_400, 0, "2000-02-29T00:00:00.000Z"),
            (951_868_800, 0, "2000-03-01T00:00:00.000Z"),
            (1_795_323_600, 999, "2026-11-22T05:00:00.999Z"),
            (4_107_542_400, 0, "2100-03-01T00:00:00.000Z"),
            (4_107_456_000, 0, "2100-02-28T00:00:00.000Z"),
        ] {
            let since = Duration::from_secs(seconds) + Duration::from_millis(milliseconds);
            assert_eq!(rfc3339(UNIX_EPOCH + since), text);
        }
    }
}
