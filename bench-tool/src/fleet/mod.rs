//! `bench-tool fleet`: the loads of many clients as one run, with one report.
//!
//! The coordinator launches an agent for each client, by ssh or whatever the user names, and speaks with it over its
//! standard input and output: no ports, no keys, and nothing to install but this program. An agent runs `run` or `nfs`
//! within its own process.
//!
//! | module | contents |
//! |---|---|
//! | `protocol`, `clock` | the messages, and the comparison of clocks |
//! | `agent` | the end that makes the calls |
//! | `config` | the configuration |
//! | `plan`, `launch` | the clients with their shares, and their processes |
//! | `coordinator`, `round` | rounds: prepare, compare the clocks, start, collect; their results |
//! | `live` | the metrics while they run |
//! | `report`, `sections`, `merge` | the report of all clients, its sections on a page, and the sum of any reports |

pub(crate) mod agent;
mod clock;
pub(crate) mod config;
mod coordinator;
pub(crate) mod launch;
mod live;
pub(crate) mod merge;
pub(crate) mod plan;
pub(crate) mod protocol;
pub(crate) mod report;
mod round;
mod sections;

use std::process;

use self::config::FleetConfig;
use self::coordinator::Fleet;
use self::live::FleetMetrics;
use self::report::{FleetReport, Measured, table};
use crate::exit::Failure;
use crate::machine::Machine;
use crate::metrics::MetricsAddress;
use crate::report::climb::climb;
use crate::report::hgrm;
use crate::report::knee;
use crate::report::output::{Outputs, json_text, verdict};
use crate::report::page;
use crate::signals::StopTwice;

const ERRORS_ADVICE: &str = "the reports of the clients say which; --json has all of them";

/// Runs the fleet, and writes the report. Meanwhile its metrics are at the address `metrics`.
///
/// # Errors
/// Metrics that cannot be served, and a report that cannot be written; and, after the report, clients that failed, failed calls, and no calls.
pub(crate) fn execute(
    config: &FleetConfig,
    machine: &Machine,
    outputs: &Outputs,
    metrics: Option<&MetricsAddress>,
) -> Result<(), Failure> {
    let start = |at| FleetMetrics::start(at, &config.plan, config.quiet);
    let metrics = metrics.map(start).transpose()?;
    let signals = StopTwice::on_signals()?;
    let mut fleet = Fleet::launch(config, &signals, metrics);
    let outcome = if config.to_knee {
        to_knee(&mut fleet, config, machine, outputs, &signals)
    } else {
        once(&mut fleet, config, machine, outputs)
    };
    if let Some(signal) = signals.second() {
        // The drop kills the agents.
        drop(fleet);
        process::exit(128 + signal);
    }
    fleet.end();
    outcome
}

fn once(
    fleet: &mut Fleet<'_>,
    config: &FleetConfig,
    machine: &Machine,
    outputs: &Outputs,
) -> Result<(), Failure> {
    let round = fleet.round(config.rate_per_s)?;
    let Measured { report, latency } = FleetReport::of_round(config, machine, round)?;
    outputs.write(&table(&report), &report.warnings, |option| match option {
        "--hgrm" => hgrm::text(&latency),
        "--html" => page::text(&report),
        _ => json_text(&report),
    })?;
    judge(&report, (report.load.calls, report.load.errors))
}

fn to_knee(
    fleet: &mut Fleet<'_>,
    config: &FleetConfig,
    machine: &Machine,
    outputs: &Outputs,
    signals: &StopTwice,
) -> Result<(), Failure> {
    let mut last = None;
    let (report, failure) = climb(signals.stop(), 0, |rate_per_s| {
        let round = fleet.round(rate_per_s)?;
        let measured = FleetReport::of_round(config, machine, round)?;
        last = Some(measured.report.clone());
        // A client that fails ends no climb: the others go on.
        Ok((measured.report, None))
    })?;
    outputs.write(
        &knee::text(&report),
        &report.warnings(),
        |option| match option {
            "--html" => page::knee::text(&report),
            _ => json_text(&report),
        },
    )?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    // Failures of earlier rounds are in the report of the last one too.
    let closed_loop = &report.closed_loop;
    let calls = closed_loop.load.calls;
    judge(
        last.as_ref().unwrap_or(closed_loop),
        (calls, report.errors()),
    )
}

/// Fails if a client did, or calls, or if there were none. `report` has the failures of all rounds.
fn judge(report: &FleetReport, (calls, errors): (u64, u64)) -> Result<(), Failure> {
    if let Some(first) = report.failures.first() {
        let mut failed: Vec<usize> = report.failures.iter().map(|it| it.client).collect();
        failed.sort_unstable();
        failed.dedup();
        return Err(Failure::failed(format!(
            "{} of {} clients failed; client {} on {} {}: {}",
            failed.len(),
            report.clients_asked,
            first.client,
            first.host,
            first.when,
            first.why
        ))
        .advice("the report names each of them, and has the calls of the others"));
    }
    // A fleet that was stopped may have no calls.
    if report.load.interrupted && errors == 0 {
        return Ok(());
    }
    verdict(calls, errors, ERRORS_ADVICE)
}
