//! Tests of the report of a fleet.

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
    let at = round.reported[1].at;
    round.reported.push(reported(2, 3_000_000, at));
    round.rate_per_s = Some(1_100);
    for (client, due) in [(0, 550), (1, 1_000), (2, 1_000)] {
        round.reported[client].report["calls_due"] = json!(due);
    }
    let report = &mut round.reported[0].report;
    (report["calls"], report["calls_unanswered"]) = (json!(400), json!(600));
    let report = measured(round.clone());
    let account = report.load.account();
    assert_eq!(
        (account.calls, account.due, account.unanswered),
        (2_400, Some(2_550), 600)
    );
    assert_eq!(
        (report.load.whole, report.load.latency_ns.count),
        (Some(false), 3_000)
    );
    let text = table(&report);
    text.check_words(&["no errors; 600 of 2,550 calls that were due were not answered"]);
    let failure = super::super::judge(&report, &account).unwrap_err();
    failure.check_words(&["600 of 2,550 calls"]);
    let mut partial = round.clone();
    partial.reported.pop();
    let load = measured(partial).load;
    assert_eq!((load.calls_due, load.whole), (None, Some(false)));
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
