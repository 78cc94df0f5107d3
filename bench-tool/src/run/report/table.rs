//! The table of a run, for the terminal.

use std::fmt::{self, Write as _};

use super::per_call::{EndPerCall, PerCall};
use super::{Report, SizeShare};
use crate::floor::FloorSummary;
use crate::report::figures::plural;
use crate::report::table::{
    write_calls, write_cores, write_intervals, write_latencies, write_warnings,
};
use rpcrdma_doctor::format_cores;
use rpcrdma_units::{bandwidth, count, nanoseconds, size, text_of};

/// Counters that the table shows if they are not zero: each means that something waited, was refused, or failed. A
/// name matches all counters that start with it.
const COUNTERS_SHOWN: [&str; 15] = [
    "timeouts",
    "calls_disconnected",
    "calls_refused_",
    "unmatched_replies",
    "late_replies",
    "errors_",
    "rpc_errors_",
    "messages_discarded",
    "protocol_violations",
    "peers_",
    "paths_dead",
    "reassemblies_refused",
    "completions_late",
    "awaiting_",
    "idle_",
];

/// The table. Its last line compares the result with the floor; with `intervals` it has one line for each interval.
#[must_use]
pub(crate) fn text(report: &Report, intervals: bool) -> String {
    text_of(|text| write(text, report, intervals))
}

fn write(text: &mut String, report: &Report, intervals: bool) -> fmt::Result {
    write_heading(text, report)?;
    write_latencies(text, &report.load)?;
    write_totals(text, report)?;
    if report.per_core.len() > 1 {
        write_cores(text, &report.per_core)?;
    }
    if intervals {
        write_intervals(text, &report.load.intervals)?;
    }
    write_warnings(text, &report.warnings)?;
    writeln!(text)?;
    write_floor(text, report)
}

/// A description of the calls: `null`, `write of 4 KiB`, `mix of 4 times 4 KiB, 70 % of them reads`.
pub(crate) fn work(report: &Report) -> String {
    if report.op == "null" {
        return report.op.to_string();
    }
    let size = match &report.sizes {
        None => size(report.size_bytes),
        Some(sizes) => {
            let share = |it: &SizeShare| format!("{} ({:.0} %)", size(it.bytes), it.share_percent);
            sizes.iter().map(share).collect::<Vec<_>>().join(" or ")
        }
    };
    let Some(asked) = report.placement_asked.as_deref() else {
        return format!("{}, {size}", report.op);
    };
    let times = match report.operations {
        1 => String::new(),
        operations => format!("{operations} times "),
    };
    let share = match (&*report.op, report.read_percent) {
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
    let delay = match report.delay_ns {
        0 => String::new(),
        delay => format!(" with {} of delay each way", nanoseconds(delay)),
    };
    let service_time = match report.service_time_ns {
        0 => String::new(),
        time => format!(", a service that takes {}", nanoseconds(time)),
    };
    let direction = match &*report.direction {
        "reverse" => " in the reverse direction (the server calls, and measures)",
        _ => "",
    };
    let through = match &*report.through {
        "poller" => " by pollers of the library",
        "call" => " by blocking calls of the library",
        "async" => " by futures of the library",
        _ => "",
    };
    writeln!(
        text,
        "{}{direction}{through}, RPC-over-RDMA {} over {}{device}{delay}{service_time}, {}",
        work(report),
        report.protocol,
        report.fabric,
        report.load.loop_text()
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
        report.load.depth,
        plural(report.load.connections, "connection", "connections"),
        format_cores(&report.load.cores),
    )?;
    report.load.write_paths(text)?;
    writeln!(text, "measured for {}", report.load.time_text())
}

fn write_totals(text: &mut String, report: &Report) -> fmt::Result {
    write_calls(text, &report.load)?;
    if report.size_bytes > 0 {
        let direction = if report.op == "echo" { " each way" } else { "" };
        writeln!(
            text,
            "bandwidth {} of payload{direction}",
            bandwidth(report.load.bandwidth_bytes_per_s)
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

/// Operations per call at both endpoints. Sends and Receives always appear, others only if they are not zero.
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

/// How busy the client's cores were. Completions per busy poll show the amount of batching.
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

pub(crate) fn write_floor(text: &mut String, report: &Report) -> fmt::Result {
    match &report.floor {
        Some(
            floor @ FloorSummary {
                p50_ratio: Some(ratio),
                ..
            },
        ) if report.load.calls > 0 => writeln!(
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
    use crate::histogram::LatencyHistogram;
    use crate::machine::Machine;
    use crate::report::page;
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
        // No machine has these cores, so nothing says that they are hyper-thread siblings.
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
    fn latencies_of_no_call_are_dashes() {
        let mut report = Report::new(&config(), &quiet_machine(), &result(), None);
        let without = LatencyHistogram::new().summary();
        report.load.latency_ns = without;
        if let Some(corrected) = &mut report.load.latency_corrected_ns {
            corrected.summary = without;
        }
        let expected = "
  min            -
  p50            -
  p90            -
  p99            -
  p99.9          -
  p99.99         -
  max            -
  mean          -, standard deviation -
  half of p50, which perftest and UCX print as latency: -
  corrected for coordinated omission: p50 -, p99 -, p99.9 -, p99.99 -
";
        let table = text(&report, false);
        assert!(table.contains(expected), "{table}");
        let page = page::text(&report);
        assert!(
            page.contains("<td>-</td>") && !page.contains(">0 ns<"),
            "{page}"
        );
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
        result.totals.payload_bytes = 20_480;
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
        (result.totals.errors, result.totals.payload_bytes) = (3, 20_001 * 4096);
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
}
