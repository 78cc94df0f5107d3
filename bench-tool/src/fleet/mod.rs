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
//! | `coordinator`, `client`, `round` | rounds: prepare, compare the clocks, start, collect; their results |
//! | `sweep` | a round for each combination of a sweep, and their report |
//! | `live` | the metrics while they run |
//! | `report`, `sections`, `merge` | the report of all clients, its sections on a page, and the sum of any reports |

pub(crate) mod agent;
mod client;
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
pub(crate) mod sweep;

use std::process;

use self::config::{FleetConfig, FleetWork};
use self::coordinator::Fleet;
use self::live::FleetMetrics;
use self::report::{FleetReport, Measured, judge_clients, table};
use self::round::RoundPlan;
use crate::exit::Failure;
use crate::machine::Machine;
use crate::metrics::MetricsAddress;
use crate::report::climb::climb;
use crate::report::hgrm;
use crate::report::knee;
use crate::report::output::{Output, Outputs, json_text};
use crate::report::page;
use crate::report::whole::Account;
use crate::signals::StopTwice;

const ERRORS_ADVICE: &str = "the reports of the clients say which; --json has all of them";

/// Runs the fleet, and writes the report and, of a sweep, the chart. Meanwhile its metrics are at the address `metrics`.
///
/// # Errors
/// Metrics that cannot be served, and a report that cannot be written; and, after the report, clients that failed, failed calls, and no calls.
pub(crate) fn execute(
    config: &FleetConfig,
    machine: &Machine,
    outputs: &Outputs,
    chart: Option<&Output>,
    metrics: Option<&MetricsAddress>,
) -> Result<(), Failure> {
    let start = |at| FleetMetrics::start(at, &config.plan, config.quiet);
    let metrics = metrics.map(start).transpose()?;
    let signals = StopTwice::on_signals()?;
    let mut fleet = Fleet::launch(config, &signals, metrics);
    let outcome = match &config.work {
        FleetWork::Once(rate_per_s) => once(&mut fleet, config, machine, outputs, *rate_per_s),
        FleetWork::ToKnee => to_knee(&mut fleet, config, machine, outputs, &signals),
        FleetWork::Sweep(sweep) => {
            let of_fleet = (&mut fleet, config, machine);
            sweep::execute(of_fleet, sweep, (outputs, chart), &signals)
        }
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
    rate_per_s: Option<u64>,
) -> Result<(), Failure> {
    let round = fleet.round(RoundPlan::at(rate_per_s))?;
    let Measured { report, latency } =
        FleetReport::of_round(config, machine, &config.client_command, round)?;
    outputs.write(&table(&report), &report.warnings, |option| match option {
        "--hgrm" => hgrm::text(&latency),
        "--html" => page::text(&report),
        _ => json_text(&report),
    })?;
    judge(&report, &report.load.account())
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
        let round = fleet.round(RoundPlan::at(rate_per_s))?;
        let measured = FleetReport::of_round(config, machine, &config.client_command, round)?;
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
    let last = last.as_ref().unwrap_or(&report.closed_loop);
    judge(last, &report.account())
}

/// Fails if a client did, or calls, or if there were none. `report` has the failures of all rounds.
fn judge(report: &FleetReport, account: &Account<'_>) -> Result<(), Failure> {
    judge_clients(&report.failures, report.clients_asked)?;
    // A fleet that was stopped may have no calls.
    if report.load.interrupted && account.calls == 0 && account.errors == 0 {
        return Ok(());
    }
    account.verdict(ERRORS_ADVICE)
}
