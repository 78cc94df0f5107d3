//! The parts of a table that the reports of all loads share.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use super::chart::axis::whole;
use super::figures::{CorrectedLatency, LoadFigures, seconds};
use crate::histogram::LatencySummary;
use crate::load::timeline::{CoreFigures, IntervalFigures};
use rpcrdma_units::{count, nanoseconds, rate};

/// Upper bound of the kinds of warnings that are shown for many runs.
const WARNINGS_OF_RUNS_MAX: usize = 5;

/// The meaning of the latencies in an open or closed loop.
#[must_use]
pub(crate) fn latency_meaning(is_open: bool) -> &'static str {
    if is_open {
        "response time, from the moment at which the call was due"
    } else {
        "service time, from posting the call to its reply"
    }
}

/// Writes the round-trip times of an open or closed loop: dashes where no call completed.
///
/// # Errors
/// None from a string.
pub(crate) fn write_latency(
    text: &mut impl fmt::Write,
    latency: &LatencySummary,
    is_open: bool,
) -> fmt::Result {
    writeln!(text, "\nround-trip time ({})", latency_meaning(is_open))?;
    let cell = |value| latency_cell(latency, value);
    let mean = format!(
        "{}, standard deviation {}",
        cell(whole(latency.mean)),
        cell(whole(latency.stddev))
    );
    let rows = [
        ("min", cell(latency.min)),
        ("p50", cell(latency.p50)),
        ("p90", cell(latency.p90)),
        ("p99", cell(latency.p99)),
        ("p99.9", cell(latency.p99_9)),
        ("p99.99", cell(latency.p99_99)),
        ("max", cell(latency.max)),
        ("mean", mean),
    ];
    for (name, value) in rows {
        let (number, rest) = value.split_once(' ').unwrap_or((&value, ""));
        let line = format!("  {name:<8}{number:>8} {rest}");
        writeln!(text, "{}", line.trim_end())?;
    }
    writeln!(
        text,
        "  half of p50, which perftest and UCX print as latency: {}",
        cell(latency.p50 / 2)
    )
}

/// A latency of a summary: a dash where no call completed.
pub(crate) fn latency_cell(summary: &LatencySummary, value: u64) -> String {
    let [cell] = latency_cells((summary.count > 0).then_some([value]));
    cell
}

/// Writes the round-trip times of a load and, for a closed loop, the corrected ones.
pub(crate) fn write_latencies(text: &mut String, load: &LoadFigures) -> fmt::Result {
    write_latency(text, &load.latency_ns, load.is_open())?;
    load.latency_corrected_ns
        .as_ref()
        .map_or(Ok(()), |corrected| write_corrected(text, corrected))
}

fn write_corrected(text: &mut String, corrected: &CorrectedLatency) -> fmt::Result {
    let summary = &corrected.summary;
    writeln!(
        text,
        "  corrected for coordinated omission: p50 {}, p99 {}, p99.9 {}, p99.99 {}",
        latency_cell(summary, summary.p50),
        latency_cell(summary, summary.p99),
        latency_cell(summary, summary.p99_9),
        latency_cell(summary, summary.p99_99)
    )?;
    writeln!(text, "    {}", correction_meaning(corrected))
}

/// Explains the correction in a sentence.
#[must_use]
pub(crate) fn correction_meaning(corrected: &CorrectedLatency) -> String {
    format!(
        "an estimate of what callers meet that call every {} without waiting: a stall counts for each call that it \
         would have kept; --rate measures it",
        nanoseconds(corrected.expected_interval)
    )
}

/// Writes the lines of calls, errors and rate.
pub(crate) fn write_calls(text: &mut String, load: &LoadFigures) -> fmt::Result {
    let errors = match load.errors {
        0 => "no errors".to_owned(),
        1 => "1 error".to_owned(),
        errors => format!("{} errors", count(errors)),
    };
    let unanswered = load.account().unanswered_text();
    let unanswered = unanswered.map_or_else(String::new, |text| format!("; {text}"));
    writeln!(
        text,
        "\ncalls     {} completed, {errors}{unanswered}",
        count(load.calls)
    )?;
    writeln!(text, "rate      {}", rate(load.rate_per_s))
}

/// Writes the column names for [`write_row`].
pub(crate) fn write_columns(text: &mut String, first: &str) -> fmt::Result {
    writeln!(
        text,
        "\n{first:<9}{:>14}{:>12}{:>11}{:>11}{:>11}",
        "calls", "rate", "p50", "p99", "max"
    )
}

/// The cells of some latencies: dashes where no call completed.
pub(crate) fn latency_cells<const N: usize>(latency_ns: Option<[u64; N]>) -> [String; N] {
    latency_ns.map_or_else(
        || std::array::from_fn(|_| "-".to_owned()),
        |it| it.map(nanoseconds),
    )
}

/// Writes calls, rate, p50, p99 and maximum of a core or an interval.
pub(crate) fn write_row(
    text: &mut String,
    first: &str,
    (calls, rate_per_s): (u64, f64),
    latency_ns: Option<[u64; 3]>,
) -> fmt::Result {
    let [p50, p99, max] = latency_cells(latency_ns);
    let (calls, rate) = (count(calls), rate(rate_per_s));
    writeln!(
        text,
        "{first:<9}{calls:>14}{rate:>12}{p50:>11}{p99:>11}{max:>11}"
    )
}

pub(crate) fn write_cores(text: &mut String, cores: &[CoreFigures]) -> fmt::Result {
    write_columns(text, "core")?;
    cores.iter().try_for_each(|core| {
        let latency = &core.latency_ns;
        write_row(
            text,
            &core.core.to_string(),
            (core.calls, core.rate_per_s),
            (core.calls > 0).then_some([latency.p50, latency.p99, latency.max]),
        )
    })
}

/// Writes rate and round-trip times of each interval.
pub(crate) fn write_intervals(text: &mut String, intervals: &[IntervalFigures]) -> fmt::Result {
    write_columns(text, "from")?;
    intervals.iter().try_for_each(|interval| {
        let latency = interval.latency_ns.as_ref();
        write_row(
            text,
            &seconds(interval.start_s),
            (interval.calls, interval.rate_per_s),
            latency.map(|it| [it.p50, it.p99, it.max]),
        )
    })
}

/// Writes one line per warning.
///
/// # Errors
/// None from a string.
pub(crate) fn write_warnings(text: &mut impl fmt::Write, warnings: &[String]) -> fmt::Result {
    if !warnings.is_empty() {
        writeln!(text)?;
    }
    warnings
        .iter()
        .try_for_each(|warning| writeln!(text, "warning: {warning}"))
}

/// The warnings of many runs: each kind once, at most [`WARNINGS_OF_RUNS_MAX`] kinds, and the number of further
/// kinds.
pub(crate) fn warnings_of<'a>(runs: impl IntoIterator<Item = &'a Vec<String>>) -> Vec<String> {
    let mut kinds: BTreeMap<String, (&str, usize)> = BTreeMap::new();
    for warning in runs.into_iter().flatten() {
        let (warning, more) = without_more(warning);
        let (_, times) = kinds.entry(kind_of(warning)).or_insert((warning, 0));
        *times += 1 + more;
    }
    let shown = kinds.values().take(WARNINGS_OF_RUNS_MAX);
    let mut warnings: Vec<String> = shown
        .map(|(first, times)| match times - 1 {
            0 => (*first).to_owned(),
            more => format!("{first} (and {more} more like it)"),
        })
        .collect();
    let more = kinds.len() - warnings.len();
    if more > 0 {
        warnings.push(format!("{more} more kinds of warnings are in the runs"));
    }
    warnings
}

/// A warning that is one of several runs already, and how many more there were.
fn without_more(warning: &str) -> (&str, usize) {
    let more = warning.strip_suffix(" more like it)");
    let more = more.and_then(|it| it.rsplit_once(" (and "));
    match more.map(|(first, more)| (first, more.parse())) {
        Some((first, Ok(more))) => (first, more),
        _ => (warning, 0),
    }
}

/// A warning without its numbers, which differ from run to run.
fn kind_of(warning: &str) -> String {
    const UNITS: [&str; 4] = ["ns", "us", "ms", "s"];
    let words = warning.split_whitespace().filter(|word| {
        let is_figure = word.contains(|c: char| c.is_ascii_digit());
        !is_figure && !UNITS.contains(&word.trim_end_matches(','))
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_runs_warn_of_each_kind_once() {
        let run = |ms: u32| {
            vec![
                format!("other work ran on core 0: it waited {ms}.5 ms, 0.{ms} % of the time"),
                "an arena needs hugepages".to_owned(),
            ]
        };
        let runs = [run(3), run(4), run(5), vec!["few calls".to_owned()]];
        let expected = [
            "an arena needs hugepages (and 2 more like it)",
            "few calls",
            "other work ran on core 0: it waited 3.5 ms, 0.3 % of the time (and 2 more like it)",
        ];
        let warned = warnings_of(&runs);
        assert_eq!(warned, expected);
        // Those of several fleets are counted together.
        let twice = warnings_of(&[warned.clone(), warned, runs[0].clone()]);
        let expected = [
            "an arena needs hugepages (and 6 more like it)",
            "few calls (and 1 more like it)",
            "other work ran on core 0: it waited 3.5 ms, 0.3 % of the time (and 6 more like it)",
        ];
        assert_eq!(twice, expected);
        let many: Vec<String> = ('a'..='z').map(|c| c.to_string()).collect();
        let shown = warnings_of(&[many]);
        assert_eq!(shown.len(), WARNINGS_OF_RUNS_MAX + 1);
        assert!(
            shown
                .last()
                .unwrap()
                .ends_with("more kinds of warnings are in the runs")
        );
    }
}
