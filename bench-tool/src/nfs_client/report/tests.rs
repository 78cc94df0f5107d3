use rpcrdma_testkit::CheckWords;
use std::time::{Duration, SystemTime};

use super::*;
use crate::commands::tests::nfs as config;
use crate::histogram::LatencyHistogram;
use crate::load::timeline::{CoreTimeline, Interval};
use crate::report::page;
use rpcrdma_nfs3::wire::types::Time;

fn info() -> Fsinfo {
    Fsinfo {
        attributes: None,
        read_bytes_max: 1 << 20,
        read_bytes_preferred: 1 << 20,
        read_bytes_multiple: 4096,
        write_bytes_max: 1 << 20,
        write_bytes_preferred: 1 << 20,
        write_bytes_multiple: 4096,
        readdir_bytes_preferred: 4096,
        file_bytes_max: 1 << 40,
        time_delta: Time::default(),
        properties: 0,
    }
}

fn timeline() -> Timeline {
    let mut latency = LatencyHistogram::new();
    (0..8_000).for_each(|_| latency.record(50_000));
    let mut core = CoreTimeline {
        elapsed: Duration::from_secs(2),
        ..CoreTimeline::default()
    };
    core.push(Interval::new(0), &latency);
    core.push(Interval::new(1), &latency);
    Timeline {
        interval: Duration::from_secs(1),
        began: SystemTime::UNIX_EPOCH,
        cores: vec![core],
        gaps: Vec::new(),
    }
}

fn outcome() -> Outcome {
    let mut tally = Tally::new(&[StepKind::Read, StepKind::Write]);
    for _ in 0..8_000 {
        tally.record(StepKind::Read, 50_000, 4096);
        tally.record(StepKind::Write, 100_000, 4096);
    }
    let measured = Measured {
        elapsed: Duration::from_secs(2),
        ..Measured::default()
    };
    Outcome::new((measured, tally), timeline(), info(), Transport::KernelTcp)
}

fn machine() -> Machine {
    Machine {
        kernel_clock_source: None,
        frequency_governor: None,
        ..Machine::detect()
    }
}

#[test]
fn the_table_tells_what_was_done_and_each_procedure() {
    let config = config("--op mix --read-percent 70 --depth 8 --connections 2").unwrap();
    let mut outcome = outcome();
    (outcome.blocks_checked, outcome.blocks_wrong) = (10, 1);
    let text = Report::new(&config, &machine(), &outcome).table(false);
    for part in [
        "mix of 4 KiB, 70 % of them reads, unstable, sequential in 4 files of 16 MiB, NFS version 3 over the \
         kernel's TCP, closed loop\n",
        "depth 8, 2 connections, server at tcp:server:2049, export /srv\n",
        "  read: 8,000 calls, p50 50.00 us, p99 50.00 us, max 50.00 us\n",
        "  write: 8,000 calls, p50 100.0 us",
        "calls     16,000 completed, 1 error\n",
        "rate      8.000 k/s\n",
        "bandwidth 32.77 MB/s of payload\n",
        "read back 10 blocks that were written, 1 of them wrong\n",
        "warning: 1 of 10 blocks that the server said",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn a_fabric_is_named_with_its_device() {
    let config = config("--op null").unwrap();
    let mut outcome = outcome();
    outcome.transport = Transport::Fabric {
        fabric: "verbs",
        device: Some("rxe0".to_owned()),
        version: 1,
        profile: "rxe".to_owned(),
        warnings: vec!["the profile wants more".to_owned()],
        client: Box::new(Record::of_tcp(&machine(), &[])),
    };
    let report = Report::new(&config, &machine(), &outcome);
    let text = report.table(false);
    assert!(
        text.starts_with("null, NFS version 3 over RPC-over-RDMA v1 on verbs (rxe0), closed loop"),
        "{text}"
    );
    assert!(text.contains("warning: the profile wants more\n"), "{text}");
    let json: serde_json::Value = serde_json::to_value(&report).unwrap();
    assert_eq!(
        (&json["transport"], &json["device"]),
        (&"verbs".into(), &"rxe0".into())
    );
}

#[test]
fn the_json_has_the_keys_of_a_run() {
    let config = config("--op read --rate 100k").unwrap();
    let mut outcome = outcome();
    outcome
        .measured
        .errors
        .note("wrong_content", || "first".to_owned());
    let report = Report::new(&config, &machine(), &outcome);
    let json: serde_json::Value = serde_json::to_value(&report).unwrap();
    assert_eq!(json["schema"], "rpcrdma.bench-tool.nfs/1");
    assert_eq!(json["loop"], "open");
    assert_eq!(json["calls"], 16_000);
    assert_eq!(json["errors_by_name"]["wrong_content"], 1);
    assert_eq!(json["latency_ns"]["count"], 16_000);
    assert_eq!(json["procedures"]["write"]["latency_ns"]["max"], 100_000);
    assert_eq!(json["procedures"]["read"]["payload_bytes"], 8_000 * 4096);
    assert!(json["procedures"].get("null").is_none());
    let warnings = json["warnings"].to_string();
    warnings.check_words(&[
        "the first call that failed: first",
        "of the offered",
        "cache",
    ]);
}

#[test]
fn restart_of_a_server_is_reported() {
    let config = config("--op write").unwrap();
    let mut outcome = outcome();
    outcome.tally.note_verifier([1; 8]);
    outcome.tally.note_verifier([2; 8]);
    outcome.measured.losses.connections = 3;
    outcome.measured.losses.reconnects = 3;
    let warnings = Report::new(&config, &machine(), &outcome)
        .warnings
        .join("\n");
    assert!(warnings.contains("restarted meanwhile"), "{warnings}");
    assert!(warnings.contains("3 connections were lost"), "{warnings}");
    outcome.is_lost_by_right = true;
    let warnings = Report::new(&config, &machine(), &outcome)
        .warnings
        .join("\n");
    assert!(warnings.contains("--stable file"), "{warnings}");
}

#[test]
fn parts_of_a_load_make_one() {
    let (mut all, mut measured) = (Tally::default(), Measured::default());
    for verifier in [[1; 8], [1; 8], [2; 8]] {
        let mut part = Tally::new(&[StepKind::Read]);
        part.record(StepKind::Read, 1000, 5);
        part.note_verifier(verifier);
        all.merge(part);
        measured.merge(Measured {
            elapsed: Duration::from_secs(verifier[0].into()),
            calls_due: Some(2),
            ..Measured::default()
        });
    }
    assert_eq!(
        (
            all.procedures.iter().flatten().count(),
            all.bytes(),
            measured.calls_due
        ),
        (1, 15, Some(6))
    );
    assert_eq!(measured.elapsed, Duration::from_secs(2));
    assert_eq!(all.verifier_changes, 1);
}

#[test]
fn intervals_are_in_the_table_that_asks_for_them_and_in_the_json() {
    let config = config("--op read --interval 1s").unwrap();
    let report = Report::new(&config, &machine(), &outcome());
    let row = "1 s               8,000   8.000 k/s   50.00 us   50.00 us   50.00 us\n";
    assert!(report.table(true).contains(row), "{}", report.table(true));
    assert!(!report.table(false).contains(row));
    let json: serde_json::Value = serde_json::to_value(&report).unwrap();
    assert_eq!(json["interval_s"], 1.0);
    assert_eq!(json["intervals"].as_array().unwrap().len(), 2);
    assert_eq!(json["intervals"][1]["calls"], 8_000);
    assert_eq!(json["latency_corrected_ns"]["expected_interval"], 125_000);
}

#[test]
fn intervals_with_calls_of_the_next_ones_are_warned_of() {
    let mut latency = LatencyHistogram::new();
    latency.record(50_000);
    let mut core = CoreTimeline {
        elapsed: Duration::from_secs(2),
        ..CoreTimeline::default()
    };
    let mut interval = Interval::new(0);
    interval.is_stretched = true;
    core.push(interval, &latency);
    let mut outcome = outcome();
    outcome.timeline.cores = vec![core];
    let report = Report::new(&config("--op read").unwrap(), &machine(), &outcome);
    let warnings = report.warnings.join("\n");
    assert!(warnings.contains("longer --interval"), "{warnings}");
}

#[test]
fn a_page_has_the_charts_of_a_run_and_what_is_of_nfs() {
    let config = config("--op mix --read-percent 70").unwrap();
    let outcome = outcome();
    let report = Report::new(&config, &machine(), &outcome);
    let page = page::text(&report);
    assert_eq!(page.matches("<figure>").count(), 3);
    page.check_words(&[
            "<h1>mix of 4 KiB, 70 % of them reads, unstable, sequential in 4 files of 16 MiB, depth 1, NFS version 3 over",
            "tcp:server:2049, export /srv",
            ">corrected for coordinated omission<",
            "2 intervals in figures",
        ]);
}
