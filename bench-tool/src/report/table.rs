//! The report of a run, for people.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use super::per_call::{EndPerCall, PerCall};
use super::timeline::{CoreFigures, IntervalFigures};
use super::{CorrectedLatency, FloorSummary, Report, SizeShare};
use crate::histogram::LatencySummary;
use rpcrdma_doctor::format_cores;
use rpcrdma_units::{bandwidth, count, duration, nanoseconds, rate, size, text_of};

/// Warnings of many runs that are shown.
const WARNINGS_OF_RUNS_MAX: usize = 5;

/// Counters that are worth a line even in a table when they are not zero: each means that something waited, was
/// refused, or went wrong. A name stands for all that begin with it.
const COUNTERS_SHOWN: [&str; 13] = [
    "timeouts",
    "calls_disconnected",
    "calls_refused_",
    "unmatched_replies",
    "late_replies",
    "errors_",
    "rpc_errors_",
    "messages_discarded",
    "protocol_violations",
    "reassemblies_refused",
    "completions_late",
    "awaiting_",
    "idle_",
];

/// The table, ending with the distance to the floor; `intervals` asks for a line for each of them.
#[must_use]
pub(crate) fn text(report: &Report, intervals: bool) -> String {
    text_of(|text| write(text, report, intervals))
}

fn write(text: &mut String, report: &Report, intervals: bool) -> fmt::Result {
    write_heading(text, report)?;
    write_latency(text, &report.latency_ns, report.load_loop == "open")?;
    if let Some(corrected) = &report.latency_corrected_ns {
        write_corrected(text, corrected)?;
    }
    write_totals(text, report)?;
    if report.per_core.len() > 1 {
        write_cores(text, &report.per_core)?;
    }
    if intervals {
        write_intervals(text, &report.intervals)?;
    }
    write_warnings(text, &report.warnings)?;
    writeln!(text)?;
    write_floor(text, report)
}

pub(crate) fn plural(number: u32, one: &str, many: &str) -> String {
    format!(
        "{} {}",
        count(u64::from(number)),
        if number == 1 { one } else { many }
    )
}

/// What a call does: `null`, `write of 4 KiB`, `mix of 4 times 4 KiB, 70 % of them reads`.
pub(crate) fn work(report: &Report) -> String {
    if report.op == "null" {
        return report.op.to_owned();
    }
    let size = match &report.sizes {
        None => size(report.size_bytes),
        Some(sizes) => {
            let share = |it: &SizeShare| format!("{} ({:.0} %)", size(it.bytes), it.share_percent);
            sizes.iter().map(share).collect::<Vec<_>>().join(" or ")
        }
    };
    let Some(asked) = report.placement_asked else {
        return format!("{}, {size}", report.op);
    };
    let times = match report.operations {
        1 => String::new(),
        operations => format!("{operations} times "),
    };
    let share = match (report.op, report.read_percent) {
        ("mix", Some(percent)) => format!(", {percent} % of them reads"),
        _ => String::new(),
    };
    let placement = if asked == report.placement {
        asked.to_owned()
    } else {
        format!("{asked}, which is {}", report.placement)
    };
    format!(
        "{} of {times}{size}{share}, placement {placement}",
        report.op
    )
}

pub(crate) fn write_heading(text: &mut String, report: &Report) -> fmt::Result {
    let device = report
        .device
        .as_deref()
        .map(|d| format!(" ({d})"))
        .unwrap_or_default();
    let looped = match report.offered_rate_per_s {
        #[allow(clippy::cast_precision_loss, reason = "a rate")]
        Some(offered) => format!("open loop at {}", rate(offered as f64)),
        None => "closed loop".to_owned(),
    };
    let delay = match report.delay_ns {
        0 => String::new(),
        delay => format!(" with {} of delay each way", nanoseconds(delay)),
    };
    let service_time = match report.service_time_ns {
        0 => String::new(),
        time => format!(", a service that takes {}", nanoseconds(time)),
    };
    let direction = match report.direction {
        "reverse" => " in the reverse direction (the server calls, and measures)",
        _ => "",
    };
    writeln!(
        text,
        "{}{direction}, RPC-over-RDMA {} over {}{device}{delay}{service_time}, {looped}",
        work(report),
        report.protocol,
        report.fabric
    )?;
    let idle = match report.idle_connections {
        0 => String::new(),
        idle => format!(" and {} idle", count(u64::from(idle))),
    };
    let server = match (&report.server_cores, &report.connect) {
        (Some(cores), _) => format!("server in a second process on core {}", format_cores(cores)),
        (None, Some(address)) => format!("server at {address}"),
        (None, None) => "server unknown".to_owned(),
    };
    writeln!(
        text,
        "depth {}, {}{idle}, client on core {}, {server}",
        report.depth,
        plural(report.connections, "connection", "connections"),
        format_cores(&report.cores),
    )?;
    let warmup = std::time::Duration::from_secs_f64(report.warmup_s.max(0.0));
    let measured = std::time::Duration::from_secs_f64(report.duration_s.max(0.0));
    writeln!(
        text,
        "measured for {} after {} of warm-up",
        duration(measured),
        duration(warmup)
    )
}

/// What the latencies of an open loop or a closed one are.
#[must_use]
pub(crate) fn latency_meaning(is_open: bool) -> &'static str {
    if is_open {
        "response time, from the moment at which the call was due"
    } else {
        "service time, from posting the call to its reply"
    }
}

/// Round-trip times, of an open loop or a closed one.
///
/// # Errors
/// None from a string.
pub(crate) fn write_latency(
    text: &mut impl fmt::Write,
    latency: &LatencySummary,
    is_open: bool,
) -> fmt::Result {
    writeln!(text, "\nround-trip time ({})", latency_meaning(is_open))?;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "rounded, never negative"
    )]
    let whole = |value: f64| nanoseconds(value.max(0.0).round() as u64);
    let rows = [
        ("min", nanoseconds(latency.min)),
        ("p50", nanoseconds(latency.p50)),
        ("p90", nanoseconds(latency.p90)),
        ("p99", nanoseconds(latency.p99)),
        ("p99.9", nanoseconds(latency.p99_9)),
        ("p99.99", nanoseconds(latency.p99_99)),
        ("max", nanoseconds(latency.max)),
        (
            "mean",
            format!(
                "{}, standard deviation {}",
                whole(latency.mean),
                whole(latency.stddev)
            ),
        ),
    ];
    for (name, value) in rows {
        let (number, rest) = value.split_once(' ').unwrap_or((&value, ""));
        writeln!(text, "  {name:<8}{number:>8} {rest}")?;
    }
    writeln!(
        text,
        "  half of p50, which perftest and UCX print as latency: {}",
        nanoseconds(latency.p50 / 2)
    )
}

pub(crate) fn write_corrected(text: &mut String, corrected: &CorrectedLatency) -> fmt::Result {
    let summary = &corrected.summary;
    writeln!(
        text,
        "  corrected for coordinated omission: p50 {}, p99 {}, p99.9 {}, p99.99 {}",
        nanoseconds(summary.p50),
        nanoseconds(summary.p99),
        nanoseconds(summary.p99_9),
        nanoseconds(summary.p99_99)
    )?;
    writeln!(text, "    {}", correction_meaning(corrected))
}

/// What a correction is, in a sentence.
#[must_use]
pub(crate) fn correction_meaning(corrected: &CorrectedLatency) -> String {
    format!(
        "an estimate of what callers meet that call every {} without waiting: a stall counts for each call that it \
         would have kept; --rate measures it",
        nanoseconds(corrected.expected_interval)
    )
}

/// The lines of calls, errors and rate.
pub(crate) fn write_calls(
    text: &mut String,
    calls: u64,
    errors: u64,
    rate_per_s: f64,
) -> fmt::Result {
    let errors = match errors {
        0 => "no errors".to_owned(),
        1 => "1 error".to_owned(),
        errors => format!("{} errors", count(errors)),
    };
    writeln!(text, "\ncalls     {} completed, {errors}", count(calls))?;
    writeln!(text, "rate      {}", rate(rate_per_s))
}

fn write_totals(text: &mut String, report: &Report) -> fmt::Result {
    write_calls(text, report.calls, report.errors, report.rate_per_s)?;
    if report.size_bytes > 0 {
        let direction = if report.op == "echo" { " each way" } else { "" };
        writeln!(
            text,
            "bandwidth {} of payload{direction}",
            bandwidth(report.bandwidth_bytes_per_s)
        )?;
    }
    if report.placement_asked.is_some() {
        write_per_call(text, &report.per_call)?;
    }
    writeln!(
        text,
        "memory    {} registered, in {} pages of {}; {} for each connection{}",
        size(report.memory.registered_bytes),
        report.memory.kind,
        size(report.memory.page_bytes),
        size(report.memory.connection_bytes),
        if report.memory.receive_queues == "own" {
            ", which has a receive queue of its own"
        } else {
            ""
        }
    )?;
    write_polls(text, report)?;
    let shown = |name: &str| COUNTERS_SHOWN.iter().any(|prefix| name.starts_with(prefix));
    report
        .counters
        .iter()
        .filter(|(name, value)| **value > 0 && shown(name))
        .try_for_each(|(name, value)| writeln!(text, "counter   {name} {}", count(*value)))
}

/// A heading of [`write_row`].
fn write_columns(text: &mut String, first: &str) -> fmt::Result {
    writeln!(
        text,
        "\n{first:<9}{:>14}{:>12}{:>11}{:>11}{:>11}",
        "calls", "rate", "p50", "p99", "max"
    )
}

/// Calls, rate, p50, p99 and maximum of a core or an interval.
fn write_row(
    text: &mut String,
    first: &str,
    (calls, rate_per_s): (u64, f64),
    latency_ns: [u64; 3],
) -> fmt::Result {
    let [p50, p99, max] = latency_ns.map(nanoseconds);
    let (calls, rate) = (count(calls), rate(rate_per_s));
    writeln!(
        text,
        "{first:<9}{calls:>14}{rate:>12}{p50:>11}{p99:>11}{max:>11}"
    )
}

fn write_cores(text: &mut String, cores: &[CoreFigures]) -> fmt::Result {
    write_columns(text, "core")?;
    cores.iter().try_for_each(|core| {
        let latency = &core.latency_ns;
        write_row(
            text,
            &core.core.to_string(),
            (core.calls, core.rate_per_s),
            [latency.p50, latency.p99, latency.max],
        )
    })
}

/// Rate and round-trip times of each interval.
pub(crate) fn write_intervals(text: &mut String, intervals: &[IntervalFigures]) -> fmt::Result {
    write_columns(text, "from")?;
    intervals.iter().try_for_each(|interval| {
        let latency = &interval.latency_ns;
        write_row(
            text,
            &duration(std::time::Duration::from_secs_f64(interval.start_s)),
            (interval.calls, interval.rate_per_s),
            [latency.p50, latency.p99, latency.max],
        )
    })
}

/// What a call took at both ends: what is not mentioned it did without.
fn write_per_call(text: &mut String, per_call: &PerCall) -> fmt::Result {
    if per_call.calls == 0 {
        return Ok(());
    }
    let trips = match per_call.round_trips {
        Some(trips) => format!("{trips:.2} round trips"),
        None => "round trips unknown: the server does not tell its counters".to_owned(),
    };
    writeln!(text, "per call  {trips}")?;
    writeln!(text, "  client  {}", at_end(&per_call.client))?;
    match &per_call.server {
        Some(server) => writeln!(text, "  server  {}", at_end(server)),
        None => Ok(()),
    }
}

fn at_end(end: &EndPerCall) -> String {
    let mut parts = vec![
        format!("{:.2} Sends", end.sends),
        format!("{:.2} Receives", end.receives),
    ];
    for (number, what) in [
        (end.rdma_reads, "RDMA Reads"),
        (end.rdma_writes, "RDMA Writes"),
        (end.registrations, "registrations"),
        (end.copies, "copies of the payload"),
    ] {
        if number > 0.0 {
            parts.push(format!("{number:.2} {what}"));
        }
    }
    parts.join(", ")
}

/// How busy the client's cores were: completions per busy poll say how much batching there was.
fn write_polls(text: &mut String, report: &Report) -> fmt::Result {
    let counter = |name: &str| report.counters.get(name).copied();
    let (Some(polls), Some(empty), Some(completions)) = (
        counter("polls"),
        counter("empty_polls"),
        counter("completions"),
    ) else {
        return Ok(());
    };
    let busy = polls.saturating_sub(empty);
    if busy == 0 {
        return Ok(());
    }
    #[allow(clippy::cast_precision_loss, reason = "shares for people")]
    let (empty_percent, per_poll) = (
        empty as f64 * 100.0 / polls as f64,
        completions as f64 / busy as f64,
    );
    writeln!(
        text,
        "polls     {}, {empty_percent:.1} % of them empty; {per_poll:.2} completions per busy poll",
        count(polls)
    )
}

/// One line per warning.
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

/// What many runs warn of: each kind of warning once, the first few kinds, and how many more there are.
pub(crate) fn warnings_of<'a>(runs: impl IntoIterator<Item = &'a Vec<String>>) -> Vec<String> {
    let mut kinds: BTreeMap<String, (&str, usize)> = BTreeMap::new();
    for warning in runs.into_iter().flatten() {
        let (_, times) = kinds.entry(kind_of(warning)).or_insert((warning, 0));
        *times += 1;
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

/// A warning without its figures, which differ from run to run.
fn kind_of(warning: &str) -> String {
    const UNITS: [&str; 4] = ["ns", "us", "ms", "s"];
    let words = warning.split_whitespace().filter(|word| {
        let is_figure = word.contains(|c: char| c.is_ascii_digit());
        !is_figure && !UNITS.contains(&word.trim_end_matches(','))
    });
    words.collect::<Vec<_>>().join(" ")
}

pub(crate) fn write_floor(text: &mut String, report: &Report) -> fmt::Result {
    match &report.floor {
        Some(
            floor @ FloorSummary {
                p50_ratio: Some(ratio),
                ..
            },
        ) if report.calls > 0 => writeln!(
            text,
            "floor     {} between cores {} and {} (p50); p50 of the run is {ratio:.2} times that",
            nanoseconds(floor.round_trip_ns),
            floor.cores[0],
            floor.cores[1],
        ),
        Some(floor) => writeln!(
            text,
            "floor     {} between cores {} and {} (p50)",
            nanoseconds(floor.round_trip_ns),
            floor.cores[0],
            floor.cores[1],
        ),
        None => writeln!(
            text,
            "floor     not measured: it needs the client's and the server's core, both idle"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{config, floor, result};
    use super::*;
    use crate::machine::Machine;
    use crate::run::config::Server;
    use crate::workloads::bench::op::Op;
    use crate::workloads::bench::sizes::Sizes;
    use rpcrdma_testkit::CheckWords;

    fn quiet_machine() -> Machine {
        Machine {
            kernel_clock_source: None,
            frequency_governor: None,
            ..Machine::detect()
        }
    }

    #[test]
    fn a_closed_loop_reads_well() {
        let mut config = config();
        // Cores without topology files: no machine of ours says that they are siblings.
        config.load.cores = vec![900];
        config.server = Server::Own {
            fabric: crate::run::config::OwnFabric::Shm,
            cores: vec![901],
        };
        let mut report = Report::new(&config, &quiet_machine(), &result(), Some(&floor()));
        report.warnings.retain(|w| !w.contains("debug build"));
        let expected = "\
null, RPC-over-RDMA v2 over shm, closed loop
depth 1, 1 connection, client on core 900, server in a second process on core 901
measured for 2 s after 500 ms of warm-up

round-trip time (service time, from posting the call to its reply)
  min          400 ns
  p50          450 ns
  p90          490 ns
  p99          499 ns
  p99.9        499 ns
  p99.99       499 ns
  max        1.700 ms
  mean         534 ns, standard deviation 12.02 us
  half of p50, which perftest and UCX print as latency: 225 ns
  corrected for coordinated omission: p50 450 ns, p99 499 ns, p99.9 499 ns, p99.99 1.501 ms
    an estimate of what callers meet that call every 100.0 us without waiting: a stall counts for each call that it \
would have kept; --rate measures it

calls     20,001 completed, no errors
rate      10.00 k/s
memory    64 MiB registered, in ordinary pages of 4 KiB; 137,280 B for each connection

warning: ordinary pages: there are no huge pages

floor     220 ns between cores 0 and 1 (p50); p50 of the run is 2.04 times that
";
        report.per_core.truncate(1);
        assert_eq!(text(&report, false), expected);
    }

    #[test]
    fn cores_and_intervals_have_a_line_each() {
        let report = Report::new(&config(), &quiet_machine(), &result(), None);
        let expected = "
core              calls        rate        p50        p99        max
2                   350    140.0 /s     600 ns     700 ns     700 ns
3                   150    60.00 /s    1000 ns    2000 ns    2000 ns
";
        assert!(text(&report, false).contains(expected));
        assert!(!text(&report, false).contains("\nfrom"));
        let expected = "
from              calls        rate        p50        p99        max
0 s                 200    200.0 /s     500 ns    1000 ns    1000 ns
1 s                 200    200.0 /s     600 ns     600 ns     600 ns
2 s                 100    200.0 /s     700 ns    2000 ns    2000 ns
";
        assert!(
            text(&report, true).contains(expected),
            "{}",
            text(&report, true)
        );
    }

    #[test]
    fn a_write_says_what_it_took() {
        let mut config = config();
        (config.op, config.size_bytes) = (Op::Mix, 4096);
        config.sizes = Sizes::new(&[(4096, 80), (65_536, 20)]).ok();
        config.slowed.delay = std::time::Duration::from_micros(50);
        config.slowed.service_time = std::time::Duration::from_nanos(40);
        config.bulk = Some(crate::run::config::BulkConfig {
            operations: 4,
            read_percent: 70,
            seed: 1,
            placement: crate::workloads::bench::op::Placement::Auto,
        });
        let mut result = result();
        result.placement = "rdma".to_owned();
        result.payload_bytes = Some(20_480);
        result.per_call = super::super::per_call::tests::of_writes_by_rdma();
        let text = text(
            &Report::new(&config, &quiet_machine(), &result, None),
            false,
        );
        for part in [
            "mix of 4 times 4 KiB (80 %) or 64 KiB (20 %), 70 % of them reads, placement auto, which is rdma, RPC-over-RDMA v2 over shm \
             with 50.00 us of delay each way, a service that takes 40 ns, ",
            "bandwidth 10.24 kB/s of payload\n",
            "per call  2.00 round trips\n",
            "  client  1.01 Sends, 1.00 Receives, 1.00 registrations\n",
            "  server  1.00 Sends, 1.01 Receives, 2.00 RDMA Reads\n",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn an_open_loop_says_so_and_shows_what_waited() {
        let mut config = config();
        (config.op, config.size_bytes, config.load.connections) = (Op::Echo, 4096, 4);
        (config.idle_connections, config.load.rate_per_s) = (4096, Some(10_000));
        config.server = Server::At("shm:bench".parse().unwrap());
        let mut result = result();
        result.errors = 3;
        for (name, value) in [
            ("awaiting_credit", 12_345),
            ("polls", 10_000),
            ("empty_polls", 7_500),
            ("completions", 5_000),
            ("grants_sent", 77),
            ("timeouts", 0),
        ] {
            result.counters.insert(name.to_owned(), value);
        }
        let text = text(
            &Report::new(&config, &quiet_machine(), &result, None),
            false,
        );
        text.check_words(&[
            "echo, 4 KiB, RPC-over-RDMA v2 over shm, open loop at 10.00 k/s",
            "4 connections and 4,096 idle, client on core 0, server at shm:bench",
            "response time, from the moment at which the call was due",
            "which perftest and UCX print as latency: 225 ns\n\ncalls",
            "20,001 completed, 3 errors",
            "bandwidth 40.96 MB/s of payload each way",
            "counter   awaiting_credit 12,345",
            "polls     10,000, 75.0 % of them empty; 2.00 completions per busy poll",
            "floor     not measured",
        ]);
        assert_eq!(
            text.matches("counter ").count(),
            1,
            "only what waited or failed:\n{text}"
        );
        assert!(text.lines().last().unwrap().starts_with("floor"));
    }

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
        assert_eq!(warnings_of(&runs), expected);
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
