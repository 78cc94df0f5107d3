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
use crate::report::figures::{CorrectedLatency, LoadFigures, LossFigures, plural};
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
pub(super) mod tests {
    use super::*;
    use crate::fleet::config::FleetWork;
    use crate::fleet::launch::Launch;
    use crate::fleet::plan::FleetPlan;
    use crate::report::page;
    use crate::report::view::LoadReport;
    use crate::run::report::tests::report as run_report;
    use rpcrdma_testkit::CheckWords;
    use serde_json::json;
    use std::time::Instant;

    pub(in crate::fleet) fn config() -> FleetConfig {
        let hosts = ["a", "b", "c"].map(str::to_owned);
        let arguments = ["run", "--connect", "shm:x"].map(str::to_owned);
        FleetConfig {
            command: "bench-tool fleet".to_owned(),
            plan: FleetPlan::new(&hosts, &[], None, &arguments).unwrap(),
            launch: Launch::program("bench-tool", "agent"),
            client_command: arguments.join(" "),
            work: FleetWork::Once(None),
            expected: None,
            start_timeout: Duration::from_secs(1),
            silence_timeout: Duration::from_secs(1),
            report_bytes_max: 1 << 20,
            quiet: true,
        }
    }

    /// The report of a client with 1,000 calls of `latency_ns` each.
    fn reported(client: usize, latency_ns: u64, at: Instant) -> Reported {
        let mut latency = LatencyHistogram::new();
        latency.record_equal(latency_ns, 1_000);
        let mut report = run_report();
        report.connect = Some("shm:x".to_owned());
        report.load.calls = 1_000;
        report.load.latency_ns = latency.summary();
        report.load.histogram = latency.encode();
        report.load.rate_per_s = 1e12 / latency_ns as f64;
        report.warnings = vec!["ordinary pages".to_owned()];
        report.server_counters = Some(BTreeMap::from([("polls".to_owned(), latency_ns)]));
        Reported {
            client,
            plan: config().plan.clients[client].clone(),
            node: "node".to_owned(),
            process_id: 7,
            report: serde_json::to_value(report).unwrap(),
            failure: None,
            skew: Some((if client == 0 { -30_000 } else { 12_000 }, 900)),
            at,
        }
    }

    pub(in crate::fleet) fn round() -> RoundResult {
        // TIME: nothing waits: one client's report is a second behind the other's at any time.
        let now = Instant::now();
        let failed = Failed {
            client: 2,
            host: "c".to_owned(),
            when: "while it ran".into(),
            why: "it ended (signal: 9)".to_owned(),
        };
        RoundResult {
            reported: vec![
                reported(0, 1_000_000, now + Duration::from_secs(1)),
                reported(1, 2_000_000, now),
            ],
            failed: vec![failed],
            failed_before: 0,
            rate_per_s: None,
            interrupted: false,
        }
    }

    pub(in crate::fleet) fn measured(round: RoundResult) -> FleetReport {
        let config = config();
        let command = &config.client_command;
        let measured = FleetReport::of_round(&config, &Machine::detect(), command, round).unwrap();
        let load = &measured.report.load;
        assert_eq!(measured.latency.count(), load.calls + load.calls_unanswered);
        measured.report
    }

    fn account(calls: u64) -> Account<'static> {
        Account {
            calls,
            ..Account::default()
        }
    }

    /// Lets a client have made these calls, one at a time, in a second.
    fn set_calls(report: &mut Value, calls: u64, latency_ns: u64) {
        let mut latency = LatencyHistogram::new();
        latency.record_equal(latency_ns, calls);
        report["calls"] = json!(calls);
        report["latency_ns"] = json!(latency.summary());
        report["histogram"] = json!(latency.encode());
        report["duration_s"] = json!(1.0);
    }

    #[test]
    fn each_client_is_corrected_for_omission_by_its_own_interval() {
        let mut round = round();
        set_calls(&mut round.reported[0].report, 10_000, 100_000);
        set_calls(&mut round.reported[1].report, 100, 10_000_000);
        let corrected = measured(round.clone()).load.latency_corrected_ns.unwrap();
        // No client had a stall. By an interval of both together, each call of the slow one would count 50 times.
        assert_eq!(
            (corrected.summary.count, corrected.expected_interval),
            (10_100, 198_019)
        );
        assert_eq!(corrected.summary.p99 / 1_000, 100);
        round.rate_per_s = Some(10);
        assert_eq!(
            measured(round).load.latency_corrected_ns,
            None,
            "an open loop"
        );
    }

    #[test]
    fn a_fleet_is_disturbed_if_a_client_was() {
        let mut round = round();
        round.failed.clear();
        let report = measured(round.clone());
        assert!(!report.disturbed);
        assert_eq!(
            report.load.whole,
            Some(false),
            "the third client is missing"
        );
        round.reported[1].report["disturbed"] = json!(true);
        let report = measured(round);
        assert!(report.disturbed && LoadReport::view(&report).disturbed);
        let mut value = serde_json::to_value(&report).unwrap();
        assert!(SavedLoad::of(&value).unwrap().disturbed);
        // Earlier versions did not say it of the fleet.
        value.as_object_mut().unwrap().remove("disturbed");
        assert!(SavedLoad::of(&value).unwrap().disturbed);
    }

    #[test]
    fn calls_that_were_due_and_not_answered_are_added() {
        let mut round = round();
        round.failed.clear();
        round.rate_per_s = Some(1_100);
        for (client, due) in [(0, 550), (1, 1_000)] {
            round.reported[client].report["calls_due"] = json!(due);
        }
        let report = &mut round.reported[0].report;
        (report["calls"], report["calls_unanswered"]) = (json!(400), json!(600));
        let report = measured(round.clone());
        let account = report.load.account();
        assert_eq!(
            (account.calls, account.due, account.unanswered),
            (1_400, Some(1_550), 600)
        );
        assert_eq!(
            (report.load.whole, report.load.latency_ns.count),
            (Some(false), 2_000)
        );
        let text = table(&report);
        text.check_words(&["no errors; 600 of 1,550 calls that were due were not answered"]);
        let failure = super::super::judge(&report, &account).unwrap_err();
        failure.check_words(&["600 of 1,550 calls"]);
        round.reported[0].report["calls_due"] = Value::Null;
        assert_eq!(measured(round).load.calls_due, None, "an earlier version");
    }

    #[test]
    fn fairness_is_jains_index() {
        assert_eq!(fairness(&[]), None);
        assert_eq!(fairness(&[0.0, 0.0]), None);
        let near = |rates: &[f64], index: f64| (fairness(rates).unwrap() - index).abs() < 1e-12;
        assert!(near(&[5.0; 100], 1.0));
        assert!(near(&[7.0, 0.0, 0.0, 0.0], 0.25));
        assert!(near(&[1.0, 2.0, 3.0], 36.0 / 42.0));
    }

    #[test]
    fn the_sum_has_all_calls_and_percentiles_of_all_together() {
        let report = measured(round());
        assert_eq!((report.load.calls, report.clients.len()), (2_000, 2));
        assert_eq!(report.load.latency_ns.p50 / 1_000, 1_000);
        assert_eq!(report.load.latency_ns.max, 2_000_000);
        assert!((report.load.rate_per_s - 1_500_000.0).abs() < 1e-6);
        assert!((report.fairness.unwrap() - 0.9).abs() < 1e-12);
        assert_eq!(report.slowest_client, Some(1));
        assert_eq!(report.start_skew_ns_max, Some(30_000));
        assert_eq!(report.clients[1].start_skew_ns, Some(12_000));
        // Of the client that reported last.
        let counters = &report.servers;
        assert_eq!((counters.len(), counters[0].client), (1, 0));
        assert_eq!(counters[0].counters["polls"], 1_000_000);
        assert_eq!(report.failures.len(), 1);
        let value = serde_json::to_value(&report).unwrap();
        assert_eq!(value["schema"], SCHEMA);
        assert_eq!(value["clients"][1]["report"]["calls"], 1_000);
        // It can be added to others.
        let (saved, latency) = SavedLoad::read(&value).unwrap();
        assert_eq!(
            (saved.calls, latency.summary()),
            (2_000, report.load.latency_ns)
        );
    }

    #[test]
    fn the_keys_of_the_json_are_stable() {
        let value = serde_json::to_value(measured(round())).unwrap();
        let keys = |value: &Value| {
            let keys = value.as_object().unwrap().keys().cloned();
            keys.collect::<std::collections::BTreeSet<String>>()
        };
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        // Those of the load are in the reports of the clients too.
        let own: Vec<String> = keys(&value)
            .difference(&keys(&value["clients"][0]["report"]))
            .cloned()
            .collect();
        let expected: Vec<String> = words(
            "client_command clients clients_asked failures fairness pattern servers slowest_client \
             start_skew_ns_max start_uncertainty_ns_max",
        );
        assert_eq!(own, expected);
        for (part, expected) in [
            (
                "clients",
                "calls client errors failure host latency_ns node process_id rate_per_s report server \
                 start_skew_ns start_uncertainty_ns",
            ),
            ("failures", "client host when why"),
            ("servers", "client counters server"),
        ] {
            let found: Vec<String> = keys(&value[part][0]).into_iter().collect();
            let expected: Vec<String> = words(expected);
            assert_eq!(found, expected, "{part}");
        }
    }

    #[test]
    fn a_client_that_ended_early_is_named_unless_all_were_stopped() {
        let ended = |is_all: bool| {
            let mut round = round();
            round.failed.clear();
            round.interrupted = is_all;
            round.reported[1].report["interrupted"] = json!(true);
            measured(round)
        };
        let report = ended(false);
        assert_eq!((report.load.calls, report.failures.len()), (2_000, 1));
        assert_eq!(report.failures[0].client, 1);
        assert!(!report.load.interrupted, "the fleet was not");
        assert!(super::super::judge(&report, &account(2_000)).is_err());
        let report = ended(true);
        assert_eq!(report.failures, []);
        assert!(super::super::judge(&report, &account(0)).is_ok());
        let unanswered = Account {
            unanswered: 1,
            ..account(5)
        };
        assert!(super::super::judge(&report, &unanswered).is_err());
    }

    #[test]
    fn a_report_that_cannot_be_added_is_a_failure_of_its_client() {
        let mut round = round();
        round.reported[1].report["histogram"] = json!("HISTFAAAAAA=");
        let report = measured(round);
        assert_eq!((report.load.calls, report.clients.len()), (1_000, 1));
        let failed = &report.failures[1];
        assert_eq!((failed.client, &failed.host[..]), (1, "b"));
        assert!(failed.why.contains("cannot be added"), "{}", failed.why);
        assert!(super::super::judge(&report, &account(0)).is_err());
    }

    #[test]
    fn the_table_has_a_line_for_each_client_and_names_the_failed_ones() {
        let text = table(&measured(round()));
        text.check_words(&[
            "fleet of 3 clients, many-to-one, closed loop; each: run --connect shm:x\n",
            "depth 1, 2 connections in all, of 2 clients that reported\n",
            "; started within 30.00 us of the common start (known to 900 ns)\n",
            "calls     2,000 completed, no errors\n",
            "fairness  0.9000 (Jain's index",
            "slowest   client 1 on b, p99 2.000 ms\n",
            "client  host        calls         rate          p50          p99          max       errors        start\n",
            "0       a           1,000",
            "-30.00 us\n",
            "failed    client 2 on c while it ran: it ended (signal: 9)\n",
            "warning: clients failed",
            "warning: client 0: ordinary pages (and 1 more like it)",
        ]);
    }

    #[test]
    fn a_fleet_without_reports_has_a_report_too() {
        let mut round = round();
        round.reported.clear();
        let report = measured(round);
        assert_eq!((report.load.calls, report.fairness), (0, None));
        table(&report).check_words(&["fleet of 3 clients", "calls     0 completed"]);
        let failure = super::super::judge(&report, &account(0)).unwrap_err();
        failure.check_words(&["1 of 3 clients failed; client 2 on c while it ran"]);
    }

    #[test]
    fn the_page_names_the_slowest_and_what_failed_and_is_made_again_from_the_json() {
        let report = measured(round());
        let page = page::text(&report);
        page.check_words(&[
            "<b>2 of 3</b> clients reported",
            "<b>Slowest</b> client 1 on b: p99 2.000 ms, of all clients together 2.000 ms",
            "slowest, client 1 on b</span>",
            "fastest, client 0 on a</span>",
            "largest start skew",
            "<h2>What failed</h2>",
            "<li>client 2 on c while it ran: it ended (signal: 9)</li>",
            "counters of shm:x over the same time",
        ]);
        let slowest = page.find("<th scope=\"row\">1</th><td>b</td>").unwrap();
        let fastest = page.find("<th scope=\"row\">0</th><td>a</td>").unwrap();
        assert!(slowest < fastest, "the slowest is first");
        assert!(!page.contains("No call ended"));
        let value = serde_json::to_value(&report).unwrap();
        let again: FleetReport = serde_json::from_value(value).unwrap();
        assert_eq!(page::text(&again), page);
    }

    #[test]
    fn a_fleet_of_which_nothing_is_left_is_a_page_too_and_strangers_are_text() {
        let mut round = round();
        round.reported.clear();
        round.failed[0].why = "<script>".to_owned();
        let page = page::text(&measured(round));
        page.check_words(&["<b>0 of 3</b>", "&lt;script&gt;", "No call ended"]);
        assert!(!page.contains("Slowest") && !page.contains("<script"));
    }
}
