//! A sweep over a fleet: a round for each run of each combination, with one agent of each client for all of them.
//!
//! The order of the runs, their medians, the table and the chart are those of [`crate::sweep`].
//!
//! | module | contents |
//! |---|---|
//! | [`report`] | the report and its table |
//! | [`page`] | its page |

pub(crate) mod page;
pub(crate) mod report;

use self::report::{ClientFailure, FleetSweepReport};
use super::config::{FleetConfig, FleetSweep};
use super::coordinator::Fleet;
use super::report::{FleetReport, Measured, judge_clients};
use super::round::{Failed, RoundPlan};
use crate::exit::Failure;
use crate::machine::Machine;
use crate::report::output::{Output, Outputs};
use crate::signals::StopTwice;
use crate::sweep::Sweep as _;
use crate::sweep::grid::labels;
use crate::sweep::runs::{Runner, make_runs};

/// Makes the runs, and writes the report and, if requested, the chart.
///
/// # Errors
/// A second signal, and a report that cannot be written; and, after the report, clients and combinations that failed.
pub(super) fn execute(
    (fleet, config, machine): (&mut Fleet<'_>, &FleetConfig, &Machine),
    sweep: &FleetSweep,
    (outputs, chart): (&Outputs, Option<&Output>),
    signals: &StopTwice,
) -> Result<(), Failure> {
    let mut runner = FleetRunner {
        fleet,
        config,
        machine,
        sweep,
        labels: labels(&sweep.plan.points),
        signals,
        failures: Vec::new(),
    };
    let swept = make_runs(&sweep.plan, config.quiet, &mut runner);
    if signals.second().is_some() {
        return Err(Failure::failed("stopped by a second signal"));
    }
    let report = FleetSweepReport::new(config, machine, swept, runner.failures);
    report.put(outputs, chart, sweep.figure)?;
    judge(&report)
}

/// Fails if a client did, or calls of one, or a combination.
fn judge(report: &FleetSweepReport) -> Result<(), Failure> {
    let failures = report.client_failures.iter();
    let failed: Vec<Failed> = failures.map(|it| it.failed.clone()).collect();
    judge_clients(&failed, report.clients_asked)?;
    let swept = &report.swept;
    if let Some(first) = swept.failures.first() {
        return Err(Failure::failed(format!(
            "{} of {} combinations failed; {}: {}",
            swept.failures.len(),
            swept.points.len(),
            first.point,
            first.failure
        )));
    }
    match swept.runs.is_empty() {
        true => Err(Failure::failed(
            "stopped by a signal before a run was complete",
        )),
        false => Ok(()),
    }
}

/// Makes the runs by rounds of a fleet.
struct FleetRunner<'f, 'c> {
    fleet: &'f mut Fleet<'c>,
    config: &'f FleetConfig,
    machine: &'f Machine,
    sweep: &'f FleetSweep,
    labels: Vec<String>,
    signals: &'f StopTwice,
    /// What failed at single clients so far.
    failures: Vec<ClientFailure>,
}

impl FleetRunner<'_, '_> {
    fn note(&mut self, place: usize, failed: &[Failed]) {
        for failed in failed {
            let failure = ClientFailure {
                point: self.labels.get(place).cloned().unwrap_or_default(),
                failed: failed.clone(),
            };
            // Each repeat fails again.
            if !self.failures.contains(&failure) {
                self.failures.push(failure);
            }
        }
    }
}

impl Runner for FleetRunner<'_, '_> {
    type Report = FleetReport;

    const KEEPS_STOPPED: bool = true;

    fn run(&mut self, place: usize, state: &str) -> Result<FleetReport, Failure> {
        let points = self.sweep.plan.points.get(place);
        let (Some(point), Some(options)) = (points, self.sweep.options.get(place)) else {
            return Err(Failure::failed("there is no such combination"));
        };
        let round = self.fleet.round(RoundPlan {
            options: options.clone(),
            rate_per_s: point.rate_per_s,
            keeps_failed: true,
            note: state.to_owned(),
        })?;
        let command = [&self.sweep.shared[..], options].concat().join(" ");
        let Measured { report, .. } =
            FleetReport::of_round(self.config, self.machine, &command, round)?;
        let new = report
            .failures
            .get(report.failures_before..)
            .unwrap_or_default();
        if self.signals.is_asked() {
            self.note(place, new);
            return Ok(report);
        }
        let is_whole = |client: usize| !new.iter().any(|it| it.client == client);
        if report
            .clients
            .iter()
            .any(|it| it.calls > 0 && is_whole(it.client))
        {
            self.note(place, new);
            return Ok(report);
        }
        // It is not the fault of one client, unless the client takes part no more.
        let lost = new.iter().filter(|it| self.fleet.is_out(it.client));
        let lost: Vec<Failed> = lost.cloned().collect();
        self.note(place, &lost);
        Err(self.nothing(new))
    }

    fn is_stopped(&self) -> bool {
        self.signals.is_asked()
    }

    fn clients(&self) -> usize {
        self.fleet.clients_left()
    }
}

impl FleetRunner<'_, '_> {
    /// Why a round has no run of any client.
    fn nothing(&self, failed: &[Failed]) -> Failure {
        match failed {
            [] if self.fleet.clients_left() == 0 => Failure::failed("no client is left"),
            [] => Failure::failed("no call completed in the measured time"),
            [first, others @ ..] => {
                let others = match others.len() {
                    0 => String::new(),
                    1 => "; another client failed too".to_owned(),
                    more => format!("; {more} other clients failed too"),
                };
                Failure::failed(format!("{first}{others}"))
            }
        }
    }
}
