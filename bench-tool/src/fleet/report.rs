//! The report of a fleet: the calls of all clients in one histogram, and each client's figures.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::clock::signed_nanoseconds;
use super::config::FleetConfig;
use super::merge::Sums;
use super::round::{Failed, Reported, RoundResult};
use crate::exit::Failure;
use crate::histogram::{LatencyHistogram, LatencySummary, null_without_calls};
use crate::load::timeline::expected_interval;
use crate::machine::Machine;
use crate::report::Word;
use crate::report::figures::{CorrectedLatency, LoadFigures, LossFigures, PathFigures, plural};
use crate::report::origin::Origin;
use crate::report::saved::SavedLoad;
use crate::report::table::{
    latency_cells, warnings_of, write_calls, write_latencies, write_warnings,
};
use crate::report::whole::{Account, clients_failed};
use crate::sweep::runs::WHILE_IT_RAN;
use rpcrdma_units::{bandwidth, count, nanoseconds, rate, text_of};

/// Name and version of the JSON layout. The version changes only if a key changes its meaning or is removed.
pub(crate) const SCHEMA: &str = "rpcrdma.bench-tool.fleet/1";

/// A client in the report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ClientFigures {
    /// Its index, from 0.
    pub client: usize,
    /// Its host, as given.
    pub host: String,
    /// The name that its machine gives itself.
    pub node: String,
    /// Its process on that machine.
    pub process_id: u32,
    /// Its server; `None` if its report does not say.
    pub server: Option<String>,
    /// Calls that succeeded.
    pub calls: u64,
    /// Calls that failed.
    pub errors: u64,
    /// Its calls in its measured time.
    pub rate_per_s: f64,
    /// Its round-trip times.
    #[serde(with = "null_without_calls")]
    pub latency_ns: LatencySummary,
    /// How much later than planned it began, by the coordinator's clock; negative if earlier. `None` if it was stopped
    /// before.
    pub start_skew_ns: Option<i64>,
    /// By how much that may be wrong: half of the shortest round trip to the agent.
    pub start_uncertainty_ns: Option<u64>,
    /// Why its command would have failed after its report; `None` if it would not.
    pub failure: Option<String>,
    /// Its report, as `run` or `nfs` writes it.
    pub report: Value,
}

impl ClientFigures {
    /// The cells of its row in a table: calls, rate, p50, p99, maximum, errors, and start.
    pub(super) fn cells(&self) -> [String; 7] {
        let latency = &self.latency_ns;
        let latencies = (self.calls > 0).then_some([latency.p50, latency.p99, latency.max]);
        let [p50, p99, max] = latency_cells(latencies);
        let start = self.start_skew_ns;
        [
            count(self.calls),
            rate(self.rate_per_s),
            p50,
            p99,
            max,
            count(self.errors),
            start.map_or_else(|| "-".to_owned(), signed_nanoseconds),
        ]
    }
}

/// The counters of a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ServerCounters {
    /// Its address.
    pub server: Option<String>,
    /// The client that read them: the last one that reported. It read them before its first call and after its last
    /// one.
    pub client: usize,
    /// Over all clients of the server.
    pub counters: BTreeMap<String, u64>,
}

/// The report. Its serialization is the JSON report, whose layout is stable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FleetReport {
    /// The program and command line that wrote it.
    #[serde(flatten)]
    pub origin: Origin,
    /// The machine of the coordinator.
    pub machine: Machine,
    /// The command of the clients.
    pub client_command: String,
    /// Who calls whom.
    pub pattern: Word,
    /// How many clients there were to be.
    pub clients_asked: usize,
    /// Options and results of the load: sums over all clients. The intervals are in the clients' reports.
    #[serde(flatten)]
    pub load: LoadFigures,
    /// Jain's index of fairness of the clients' rates; `None` without calls.
    pub fairness: Option<f64>,
    /// The largest skew of a start, early or late.
    pub start_skew_ns_max: Option<u64>,
    /// The largest uncertainty of a skew.
    pub start_uncertainty_ns_max: Option<u64>,
    /// The client with the largest p99.
    pub slowest_client: Option<usize>,
    /// The clients that reported.
    pub clients: Vec<ClientFigures>,
    /// What failed at which client.
    pub failures: Vec<Failed>,
    /// How many of these, the first ones, are of earlier runs of the fleet.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failures_before: usize,
    /// The counters of each server that tells them, over the same time.
    pub servers: Vec<ServerCounters>,
    /// Whether the machine of a client disturbed it: the client's warnings say how.
    #[serde(default)]
    pub disturbed: bool,
    /// Warnings that limit the trust in the numbers.
    pub warnings: Vec<String>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// A report, and the histogram of all calls.
pub(super) struct Measured {
    pub(super) report: FleetReport,
    pub(super) latency: LatencyHistogram,
}

/// Jain's index of fairness: 1 if all rates are equal, `1/n` if one of `n` clients has all. `None` if all are 0.
#[allow(clippy::cast_precision_loss, reason = "a number of clients")]
pub(super) fn fairness(rates: &[f64]) -> Option<f64> {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    (squares > 0.0).then(|| sum * sum / (rates.len() as f64 * squares))
}

impl FleetReport {
    /// Adds the reports of the clients, whose command was `client_command`. One whose report cannot be read is a client
    /// that failed.
    ///
    /// # Errors
    /// If the merged histogram has not the calls of all clients.
    pub(super) fn of_round(
        config: &FleetConfig,
        machine: &Machine,
        client_command: &str,
        round: RoundResult,
    ) -> Result<Measured, Failure> {
        let mut failures = round.failed;
        let mut parts = Vec::new();
        for reported in round.reported {
            match SavedLoad::read(&reported.report) {
                Ok((saved, latency)) => parts.push(Part {
                    reported,
                    saved,
                    latency,
                }),
                Err(error) => failures.push(Failed {
                    client: reported.client,
                    host: reported.plan.host,
                    when: "after its report".into(),
                    why: format!("its report cannot be added: {error}"),
                }),
            }
        }
        if !round.interrupted {
            let early = parts
                .iter()
                .filter(|it| it.saved.interrupted && it.reported.failure.is_none());
            failures.extend(early.map(Part::ended_early));
        }
        let mut sums = Sums::default();
        parts.iter().for_each(|it| sums.add(&it.saved, &it.latency));
        sums.check()?;
        let mut load = load_figures(&parts, &sums, round.rate_per_s);
        load.interrupted = round.interrupted;
        // What was due in a client that did not report is not known.
        let is_partial = parts.len() < config.plan.clients.len();
        load.calls_due = load.calls_due.filter(|_| !is_partial);
        let account = Account {
            clients_failed: clients_failed(
                (failures.len(), round.failed_before),
                (config.plan.clients.len(), parts.len()),
            ),
            ..load.account()
        };
        load.whole = Some(account.is_whole());
        let disturbed = parts.iter().any(|it| it.saved.disturbed);
        let servers = server_counters(&parts);
        let clients: Vec<ClientFigures> = parts.into_iter().map(Part::figures).collect();
        let rates: Vec<f64> = clients.iter().map(|it| it.rate_per_s).collect();
        let skews = clients.iter().filter_map(|it| it.start_skew_ns);
        let with_calls = clients.iter().filter(|it| it.calls > 0);
        let slowest = with_calls.max_by_key(|it| it.latency_ns.p99);
        let report = Self {
            origin: Origin::new(SCHEMA, config.command.clone()),
            machine: machine.clone(),
            client_command: client_command.to_owned(),
            pattern: config.plan.pattern.name().into(),
            clients_asked: config.plan.clients.len(),
            fairness: fairness(&rates),
            start_skew_ns_max: skews.map(i64::unsigned_abs).max(),
            start_uncertainty_ns_max: clients
                .iter()
                .filter_map(|it| it.start_uncertainty_ns)
                .max(),
            slowest_client: slowest.map(|it| it.client),
            warnings: warnings(&load, &clients, &failures),
            load,
            clients,
            failures,
            failures_before: round.failed_before,
            servers,
            disturbed,
        };
        Ok(Measured {
            report,
            latency: sums.latency,
        })
    }
}

/// A client's report, read.
struct Part {
    reported: Reported,
    saved: SavedLoad,
    latency: LatencyHistogram,
}

impl Part {
    /// The failure of a client that ended its load before the others, for example by a signal on its host.
    fn ended_early(&self) -> Failed {
        Failed {
            client: self.reported.client,
            host: self.reported.plan.host.clone(),
            when: WHILE_IT_RAN.into(),
            why: "its load ended early, by a signal or for want of a connection; what it measured until then counts"
                .to_owned(),
        }
    }

    fn figures(self) -> ClientFigures {
        let Self {
            reported,
            saved,
            latency,
        } = self;
        ClientFigures {
            client: reported.client,
            host: reported.plan.host,
            node: reported.node,
            process_id: reported.process_id,
            server: saved.connect,
            calls: saved.calls,
            errors: saved.errors,
            rate_per_s: saved.rate_per_s,
            latency_ns: latency.summary(),
            start_skew_ns: reported.skew.map(|it| it.0),
            start_uncertainty_ns: reported.skew.map(|it| it.1),
            failure: reported.failure,
            report: reported.report,
        }
    }
}

fn load_figures(parts: &[Part], sums: &Sums, rate_per_s: Option<u64>) -> LoadFigures {
    let first = parts.first().map(|it| &it.saved);
    let all = || parts.iter().map(|it| &it.saved);
    let losses = all().map(|it| it.losses);
    let began = all().map(|it| it.began.as_str()).min();
    let slots = all().fold(0, |sum: u64, it| {
        sum.saturating_add(u64::from(it.depth) * u64::from(it.connections))
    });
    let elapsed = Duration::try_from_secs_f64(sums.duration_s).unwrap_or_default();
    let interval_ns = expected_interval(elapsed, slots, sums.calls);
    let corrected = rate_per_s.is_none().then(|| corrected(parts));
    LoadFigures {
        depth: first.map_or(0, |it| it.depth),
        connections: all().fold(0, |sum, it| sum.saturating_add(it.connections)),
        cores: Vec::new(),
        load_loop: if rate_per_s.is_some() {
            "open"
        } else {
            "closed"
        }
        .into(),
        offered_rate_per_s: rate_per_s,
        began: began.unwrap_or_default().to_owned(),
        failure: None,
        gaps: Vec::new(),
        warmup_s: first.map_or(0.0, |it| it.warmup_s),
        duration_s: sums.duration_s,
        interrupted: sums.interrupted,
        whole: None,
        calls: sums.calls,
        calls_due: sums.due.flatten(),
        calls_unanswered: sums.unanswered,
        errors: sums.errors,
        losses: losses.fold(LossFigures::default(), |sum, it| LossFigures {
            connections_lost: sum.connections_lost.saturating_add(it.connections_lost),
            reconnects: sum.reconnects.saturating_add(it.reconnects),
            calls_lost: sum.calls_lost.saturating_add(it.calls_lost),
            longest_loss_s: sum.longest_loss_s.max(it.longest_loss_s),
        }),
        rate_per_s: sums.rate_per_s,
        bandwidth_bytes_per_s: sums.bandwidth_bytes_per_s,
        latency_ns: sums.latency.summary(),
        histogram: sums.latency.encode(),
        latency_corrected_ns: CorrectedLatency::new(interval_ns, corrected),
        interval_s: first.map_or(0.0, |it| it.interval_s),
        intervals: Vec::new(),
        paths: PathFigures::sum(all().map(|it| &it.paths[..])),
    }
}

/// The latencies of all clients corrected for coordinated omission, each client's by its own interval. The mean interval of
/// all would be too long for fast clients, and too short for slow ones: those would count with far too many calls.
fn corrected(parts: &[Part]) -> LatencyHistogram {
    let mut all = LatencyHistogram::new();
    for Part { saved, latency, .. } in parts {
        let elapsed = Duration::try_from_secs_f64(saved.duration_s).unwrap_or_default();
        let slots = u64::from(saved.depth) * u64::from(saved.connections);
        let interval_ns = expected_interval(elapsed, slots, saved.calls);
        all.merge(&latency.corrected(interval_ns));
    }
    all
}

/// The counters of each server, from the client that reported last: its calls ended last.
fn server_counters(parts: &[Part]) -> Vec<ServerCounters> {
    let mut last: BTreeMap<Option<&String>, &Part> = BTreeMap::new();
    for part in parts.iter().filter(|it| it.saved.server_counters.is_some()) {
        let place = last.entry(part.saved.connect.as_ref()).or_insert(part);
        if part.reported.at > place.reported.at {
            *place = part;
        }
    }
    let of = |(server, part): (Option<&String>, &Part)| {
        Some(ServerCounters {
            server: server.cloned(),
            client: part.reported.client,
            counters: part.saved.server_counters.clone()?,
        })
    };
    last.into_iter().filter_map(of).collect()
}

fn warnings(load: &LoadFigures, clients: &[ClientFigures], failures: &[Failed]) -> Vec<String> {
    let mut warnings = Vec::new();
    if load.interrupted {
        warnings
            .push("stopped by a signal: the report covers what was measured until then".to_owned());
    }
    if !failures.is_empty() {
        warnings.push(
            "clients failed: the figures are those of the clients that reported, and the load was less than asked for"
                .to_owned(),
        );
    }
    warnings.extend(load.warnings_of_sums());
    let their: Vec<Vec<String>> = clients.iter().map(own_warnings).collect();
    warnings.extend(warnings_of(&their));
    warnings
}

/// The warnings of a client's report.
fn own_warnings(client: &ClientFigures) -> Vec<String> {
    let list = client.report["warnings"].as_array();
    let texts = list.into_iter().flatten().filter_map(Value::as_str);
    texts
        .map(|text| format!("client {}: {text}", client.client))
        .collect()
}

impl FleetReport {
    /// `fleet of 8 clients, many-to-one`.
    pub(super) fn clients_text(&self) -> String {
        clients_text(self.clients_asked, &self.pattern)
    }
}

/// `fleet of 8 clients, many-to-one`.
pub(super) fn clients_text(asked: usize, pattern: &str) -> String {
    let asked = u32::try_from(asked).unwrap_or(u32::MAX);
    format!("fleet of {}, {pattern}", plural(asked, "client", "clients"))
}

/// Fails if a client did. `failures` are those of all rounds.
///
/// # Errors
/// A failure that names the first one.
pub(super) fn judge_clients(failures: &[Failed], clients_asked: usize) -> Result<(), Failure> {
    let Some(first) = failures.first() else {
        return Ok(());
    };
    let failed: BTreeSet<usize> = failures.iter().map(|it| it.client).collect();
    Err(Failure::failed(format!(
        "{} of {clients_asked} clients failed; {first}",
        failed.len()
    ))
    .advice("the report names each of them, and has the calls of the others"))
}

/// The table.
pub(crate) fn table(report: &FleetReport) -> String {
    text_of(|text| write(text, report))
}

pub(super) fn write_heading(text: &mut String, report: &FleetReport) -> fmt::Result {
    let load = &report.load;
    writeln!(
        text,
        "{}, {}; each: {}",
        report.clients_text(),
        load.loop_text(),
        report.client_command
    )?;
    writeln!(
        text,
        "depth {}, {} in all, of {}",
        load.depth,
        plural(load.connections, "connection", "connections"),
        plural(
            u32::try_from(report.clients.len()).unwrap_or(u32::MAX),
            "client that reported",
            "clients that reported"
        )
    )?;
    let skew = match (report.start_skew_ns_max, report.start_uncertainty_ns_max) {
        (Some(skew), Some(uncertainty)) => format!(
            "; started within {} of the common start (known to {})",
            nanoseconds(skew),
            nanoseconds(uncertainty)
        ),
        _ => String::new(),
    };
    load.write_paths(text)?;
    writeln!(text, "measured for {}{skew}", load.time_text())
}

fn write(text: &mut String, report: &FleetReport) -> fmt::Result {
    write_heading(text, report)?;
    write_latencies(text, &report.load)?;
    write_calls(text, &report.load)?;
    if report.load.bandwidth_bytes_per_s > 0.0 {
        let all = bandwidth(report.load.bandwidth_bytes_per_s);
        writeln!(text, "bandwidth {all} of payload")?;
    }
    if let Some(fairness) = report.fairness {
        writeln!(
            text,
            "fairness  {fairness:.4} (Jain's index of the clients' rates; 1 if all are equal)"
        )?;
    }
    let slowest = report
        .clients
        .iter()
        .find(|it| Some(it.client) == report.slowest_client);
    if let Some(slowest) = slowest {
        writeln!(
            text,
            "slowest   client {} on {}, p99 {}",
            slowest.client,
            slowest.host,
            nanoseconds(slowest.latency_ns.p99)
        )?;
    }
    write_clients(text, &report.clients)?;
    write_failed(text, &report.failures)?;
    write_warnings(text, &report.warnings)
}

/// Writes a line for each failure, behind an empty one.
pub(super) fn write_failed(text: &mut String, failures: &[impl fmt::Display]) -> fmt::Result {
    if !failures.is_empty() {
        writeln!(text)?;
    }
    failures
        .iter()
        .try_for_each(|it| writeln!(text, "failed    {it}"))
}

/// The width of the column of hosts: the longest, within bounds.
fn host_width(clients: &[ClientFigures]) -> usize {
    let longest = clients.iter().map(|it| it.host.chars().count()).max();
    longest.unwrap_or(0).clamp(4, 32)
}

fn write_clients(text: &mut String, clients: &[ClientFigures]) -> fmt::Result {
    let width = host_width(clients);
    let head = ["calls", "rate", "p50", "p99", "max", "errors", "start"];
    write!(text, "\n{:<7} {:<width$}", "client", "host")?;
    head.iter()
        .try_for_each(|name| write!(text, "{name:>13}"))?;
    writeln!(text)?;
    for client in clients {
        write!(text, "{:<7} {:<width$}", client.client, client.host)?;
        client
            .cells()
            .iter()
            .try_for_each(|cell| write!(text, "{cell:>13}"))?;
        writeln!(text)?;
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests;
