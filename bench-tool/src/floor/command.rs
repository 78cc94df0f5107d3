//! `bench-tool floor`: runs all four measurements and reports them as a table or JSON.

use std::fmt::{self, Write as _};
use std::time::Duration;

use serde::Serialize;

use super::{
    ClockCost, CopyBandwidth, CopyShape, FloorSummary, Gaps, RoundTrip, clock_cost, copy, gaps,
    round_trip,
};
use crate::exit::Failure;
use crate::histogram::LatencySummary;
use crate::machine::Machine;
use crate::report::origin::Origin;
use crate::report::output::{Output, put_report};
use crate::report::table::write_warnings;
use rpcrdma_units::{bandwidth, count, duration, nanoseconds, size, text_of};

/// Name and version of the JSON layout.
pub(crate) const FLOOR_SCHEMA: &str = "rpcrdma.bench-tool.floor/1";

/// Number of round-trip rounds; the floor is the median of their medians.
const ROUNDS: u32 = 7;

/// Above this share of stolen time, the tail shows other work on the machine instead of the machine's limits.
const STOLEN_SHARE_MAX: f64 = 0.05;

/// Durations of the measurements.
struct Times {
    round: Duration,
    copy: Duration,
    gaps: Duration,
}

const FULL: Times = Times {
    round: Duration::from_millis(300),
    copy: Duration::from_millis(1000),
    gaps: Duration::from_millis(3000),
};

const QUICK: Times = Times {
    round: Duration::from_millis(70),
    copy: Duration::from_millis(300),
    gaps: Duration::from_millis(700),
};

/// The report of `floor`. Its serialization is the JSON report, whose layout is stable.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FloorReport {
    /// The program and command line that wrote it.
    #[serde(flatten)]
    pub origin: Origin,
    /// The machine that it ran on.
    pub machine: Machine,
    /// The latency floor, with the same keys as in a run's report.
    pub floor: FloorSummary,
    /// Summary of all round trips.
    pub round_trip_latency_ns: LatencySummary,
    /// Hand-off copy, one entry per size.
    pub copy: Vec<CopyBandwidth>,
    /// Cost of a clock reading.
    pub clock: ClockCost,
    /// Time that the system took from each core.
    pub gaps: [Gaps; 2],
    /// Warnings that limit the trust in the numbers.
    pub warnings: Vec<String>,
}

/// The configuration of `floor`.
pub(crate) struct FloorConfig {
    /// The command line, for the report.
    pub command: String,
    /// The two cores.
    pub cores: [usize; 2],
    /// Payloads of the copy.
    pub shapes: Vec<CopyShape>,
    /// Whether to measure for about a quarter of the time.
    pub is_quick: bool,
}

/// Measures and writes the report.
///
/// # Errors
/// A core that cannot be pinned to, sizes that do not fit into memory, and an output that cannot be written.
pub(crate) fn execute(
    config: FloorConfig,
    machine: &Machine,
    json: Option<&Output>,
) -> Result<(), Failure> {
    let report = measure(config, machine)?;
    put_report(&text(&report), &report, json)
}

fn measure(config: FloorConfig, machine: &Machine) -> Result<FloorReport, Failure> {
    let cores = config.cores;
    let times = if config.is_quick { QUICK } else { FULL };
    let mut trips = round_trip(cores, times.round)?;
    for _ in 1..ROUNDS {
        trips.merge(&round_trip(cores, times.round)?);
    }
    let copies: Result<Vec<_>, _> = config
        .shapes
        .iter()
        .map(|&shape| copy(cores, shape, times.copy))
        .collect();
    let (clock, ()) = super::on_cores(cores, clock_cost, || ())?;
    let gaps = gaps(cores, times.gaps)?;
    Ok(FloorReport {
        origin: Origin::new(FLOOR_SCHEMA, config.command),
        machine: machine.clone(),
        floor: FloorSummary::new(&trips, None),
        round_trip_latency_ns: trips.latency.summary(),
        copy: copies?,
        clock,
        warnings: warnings(machine, cores, &trips, &gaps),
        gaps,
    })
}

fn warnings(
    machine: &Machine,
    cores: [usize; 2],
    trips: &RoundTrip,
    gaps: &[Gaps; 2],
) -> Vec<String> {
    let mut warnings = machine.warnings(&cores);
    let (low, high) = extremes(&trips.round_p50_ns);
    if high > low + low / 4 {
        warnings.push(format!(
            "the rounds disagree ({} to {}): something else runs on these cores, or their frequency changes; \
             try again when the machine is quiet",
            nanoseconds(low),
            nanoseconds(high)
        ));
    }
    for gaps in gaps {
        if gaps.stolen_share > STOLEN_SHARE_MAX {
            warnings.push(format!(
                "{:.0} % of core {} was taken away: the machine is busy, and no latency measured now is the machine's own",
                gaps.stolen_share * 100.0,
                gaps.core
            ));
        }
    }
    warnings
}

fn extremes(values: &[u64]) -> (u64, u64) {
    let low = values.iter().copied().min().unwrap_or(0);
    let high = values.iter().copied().max().unwrap_or(0);
    (low, high)
}

fn text(report: &FloorReport) -> String {
    text_of(|text| write(text, report))
}

fn write(text: &mut String, report: &FloorReport) -> fmt::Result {
    let floor = &report.floor;
    writeln!(
        text,
        "cores {} and {}, {}",
        floor.cores[0], floor.cores[1], report.machine.cpu
    )?;

    writeln!(
        text,
        "\nround trip between the cores: one cache line each way, through a ring of {} of {} B",
        super::round_trip::SLOTS,
        super::round_trip::SLOT_BYTES
    )?;
    let latency = &report.round_trip_latency_ns;
    for (name, value) in [
        ("min", latency.min),
        ("p50", floor.round_trip_ns),
        ("p99", latency.p99),
        ("p99.9", latency.p99_9),
        ("max", latency.max),
    ] {
        let value = nanoseconds(value);
        let (number, unit) = value.split_once(' ').unwrap_or((&value, ""));
        writeln!(text, "  {name:<8}{number:>8} {unit}")?;
    }
    let (low, high) = extremes(&floor.round_trip_ns_p50_of_rounds);
    writeln!(
        text,
        "  {} round trips; p50 of each of {} rounds: {} to {}",
        count(floor.round_trips),
        floor.round_trip_ns_p50_of_rounds.len(),
        nanoseconds(low),
        nanoseconds(high)
    )?;

    writeln!(
        text,
        "\nhand-off copy: core {} rewrites a payload, core {} copies it",
        floor.cores[0], floor.cores[1]
    )?;
    for copy in &report.copy {
        writeln!(
            text,
            "  {:<10}{:>12}   (windows of 50 ms: {} to {}; depth {}, {} buffers)",
            size(u64::try_from(copy.size_bytes).unwrap_or(u64::MAX)),
            bandwidth(copy.bandwidth_bytes_per_s),
            bandwidth(copy.bandwidth_bytes_per_s_min),
            bandwidth(copy.bandwidth_bytes_per_s_max),
            copy.depth,
            copy.buffers
        )?;
    }

    writeln!(text, "\nclock: {}", report.clock.source)?;
    writeln!(
        text,
        "  {:<20}{:>6.1} ns per read",
        "raw counter", report.clock.raw_ns
    )?;
    writeln!(
        text,
        "  {:<20}{:>6.1} ns per read",
        "std::time::Instant", report.clock.std_instant_ns
    )?;

    writeln!(
        text,
        "\ngaps above 20 us in {}: time that the system took from a polling core",
        watched(report)
    )?;
    for gaps in &report.gaps {
        writeln!(
            text,
            "  core {:<5}{:>6.2} % of the time, {} gaps, {} above 100 us, {} above 500 us, longest {}",
            gaps.core,
            gaps.stolen_share * 100.0,
            count(gaps.gaps_above_20us),
            count(gaps.gaps_above_100us),
            count(gaps.gaps_above_500us),
            nanoseconds(gaps.longest_ns)
        )?;
    }
    write_warnings(text, &report.warnings)
}

fn watched(report: &FloorReport) -> String {
    duration(Duration::from_secs_f64(
        (report.gaps[0].duration_s * 10.0).round() / 10.0,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::LatencyHistogram;
    use rpcrdma_testkit::CheckWords;

    fn machine() -> Machine {
        Machine {
            cores_usable: vec![900, 901, 902],
            ..Machine::detect()
        }
    }

    fn report() -> FloorReport {
        let mut latency = LatencyHistogram::new();
        for value in [210, 220, 230, 1_200_000] {
            latency.record(value);
        }
        let trips = RoundTrip {
            cores: [0, 1],
            latency,
            round_p50_ns: vec![219, 224, 221],
        };
        let gap = |core| Gaps {
            core,
            duration_s: 3.0,
            longest_ns: 1_700_000,
            ..Gaps::default()
        };
        FloorReport {
            origin: Origin::new(FLOOR_SCHEMA, "bench-tool floor".to_owned()),
            machine: Machine {
                cpu: "a processor".to_owned(),
                ..machine()
            },
            floor: FloorSummary::new(&trips, None),
            round_trip_latency_ns: trips.latency.summary(),
            copy: vec![CopyBandwidth {
                size_bytes: 65_536,
                depth: 8,
                buffers: 8,
                bandwidth_bytes_per_s: 17.2e9,
                bandwidth_bytes_per_s_min: 16.0e9,
                bandwidth_bytes_per_s_max: 17.9e9,
            }],
            clock: ClockCost {
                source: "tsc 2.445 GHz".to_owned(),
                raw_ns: 10.04,
                std_instant_ns: 22.3,
            },
            gaps: [gap(0), gap(1)],
            warnings: vec!["careful".to_owned()],
        }
    }

    #[test]
    fn the_table_has_a_unit_in_every_line() {
        let text = text(&report());
        text.check_words(&[
            "cores 0 and 1, a processor",
            "  p50          221 ns",
            "  max        1.200 ms",
            "rounds: 219 ns to 224 ns",
            "64 KiB      17.20 GB/s",
            "10.0 ns per read",
            "longest 1.700 ms",
            "warning: careful",
        ]);
    }

    #[test]
    fn the_json_carries_units_in_its_keys() {
        let value: serde_json::Value = serde_json::to_value(report()).unwrap();
        assert_eq!(value["schema"], FLOOR_SCHEMA);
        assert_eq!(value["floor"]["round_trip_ns"], 221);
        assert_eq!(value["floor"]["cores"], serde_json::json!([0, 1]));
        assert_eq!(value["copy"][0]["bandwidth_bytes_per_s"], 17.2e9);
        assert_eq!(value["gaps"][1]["longest_ns"], 1_700_000);
        assert_eq!(value["clock"]["raw_ns"], 10.04);
    }

    #[test]
    fn a_busy_machine_is_pointed_out() {
        let mut gaps = [Gaps::default(), Gaps::default()];
        gaps[1].stolen_share = 0.31;
        let trips = |medians| RoundTrip {
            cores: [900, 901],
            latency: LatencyHistogram::new(),
            round_p50_ns: medians,
        };
        let all = warnings(&machine(), [900, 901], &trips(vec![200, 300]), &gaps).join("\n");
        all.check_words(&["rounds disagree", "31 % of core 0"]);
        let quiet = warnings(
            &machine(),
            [900, 901],
            &trips(vec![200, 210]),
            &Default::default(),
        );
        assert!(!quiet.join("\n").contains("rounds disagree"));
    }
}
