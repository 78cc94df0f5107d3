//! Adds reports: counts and rates are added, and percentiles come from the merged histogram. They are never averaged.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::date::rfc3339;
use crate::exit::Failure;
use crate::histogram::{LatencyHistogram, LatencySummary, null_without_calls};
use crate::report::hgrm;
use crate::report::knee;
use crate::report::origin::Origin;
use crate::report::output::{Outputs, json_text};
use crate::report::saved::{self, SavedLoad, SavedReport};
use crate::report::table::{write_columns, write_latency, write_row, write_warnings};
use crate::report::whole::Account;
use crate::{nfs_client, run};
use rpcrdma_units::{bandwidth, count, rate, text_of};

/// Name and version of the JSON layout. The version changes only if a key changes its meaning or is removed.
pub(crate) const SCHEMA: &str = "rpcrdma.bench-tool.merge/1";

/// The layouts of the reports that can be added.
const SCHEMAS: [&str; 4] = [
    run::report::RUN_SCHEMA,
    nfs_client::SCHEMA,
    super::report::SCHEMA,
    SCHEMA,
];

/// What to give in place of a file that is no report.
const GIVE: &str = "give the files that --json of run, nfs, fleet or merge wrote";

/// Sums over reports.
#[derive(Debug, Default)]
pub(super) struct Sums {
    pub(super) latency: LatencyHistogram,
    pub(super) calls: u64,
    /// `None` without a report, `Some(None)` if one does not say it.
    pub(super) due: Option<Option<u64>>,
    pub(super) unanswered: u64,
    pub(super) errors: u64,
    pub(super) rate_per_s: f64,
    pub(super) bandwidth_bytes_per_s: f64,
    /// The longest.
    pub(super) duration_s: f64,
    pub(super) interrupted: bool,
}

impl Sums {
    pub(super) fn add(&mut self, saved: &SavedLoad, latency: &LatencyHistogram) {
        self.latency.merge(latency);
        // What others wrote may have any counts.
        self.calls = self.calls.saturating_add(saved.calls);
        let due = self.due.unwrap_or(Some(0)).zip(saved.calls_due);
        self.due = Some(due.map(|(all, its)| all.saturating_add(its)));
        self.unanswered = self.unanswered.saturating_add(saved.calls_unanswered);
        self.errors = self.errors.saturating_add(saved.errors);
        self.rate_per_s += saved.rate_per_s;
        self.bandwidth_bytes_per_s += saved.bandwidth_bytes_per_s;
        self.duration_s = self.duration_s.max(saved.duration_s);
        self.interrupted |= saved.interrupted;
    }

    /// Checks that no call is lost in the merge, nor counted twice.
    ///
    /// # Errors
    /// A failure with both counts.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let merged = self.latency.count();
        let parts = self.calls.saturating_add(self.unanswered);
        if merged == parts {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "the merged histogram has {merged} calls, and its parts have {parts}"
        ))
        .advice("keep the reports, and report this: it is an error of this program"))
    }
}

/// One of the merged reports.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Part {
    file: String,
    schema: String,
    command: String,
    calls: u64,
    errors: u64,
    rate_per_s: f64,
    #[serde(with = "null_without_calls")]
    latency_ns: LatencySummary,
    /// Of a sum its parts, and of a fleet its clients, so that none of them counts twice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parts: Vec<Value>,
}

/// The report. Its serialization is the JSON report, whose layout is stable.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct MergeReport {
    #[serde(flatten)]
    origin: Origin,
    interrupted: bool,
    /// Why a part failed, or that clients of it did; `None` if none did.
    #[serde(default)]
    failure: Option<String>,
    /// Whether the machine disturbed a part.
    #[serde(default)]
    disturbed: bool,
    /// Whether it is a whole load: see [`crate::report::whole`].
    #[serde(default)]
    whole: Option<bool>,
    /// When the first part began (RFC 3339); `None` if a part does not say when it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    began: Option<String>,
    /// When the last part ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
    duration_s: f64,
    calls: u64,
    /// The sum of theirs; `None` if a part does not have it.
    #[serde(default)]
    calls_due: Option<u64>,
    #[serde(default)]
    calls_unanswered: u64,
    errors: u64,
    rate_per_s: f64,
    bandwidth_bytes_per_s: f64,
    #[serde(with = "null_without_calls")]
    latency_ns: LatencySummary,
    histogram: String,
    parts: Vec<Part>,
    warnings: Vec<String>,
}

/// Adds the reports in `files`, and writes the sum.
///
/// # Errors
/// A file that cannot be read or is no report with a histogram, a report that is given twice or is a part of another one, and
/// an output that cannot be written.
pub(crate) fn execute(
    files: &[PathBuf],
    outputs: &Outputs,
    command: String,
) -> Result<(), Failure> {
    let mut sums = Sums::default();
    let mut parts = Vec::new();
    let (mut loops, mut doubts, mut disturbed) = (Vec::new(), Vec::new(), false);
    let mut spans = Some(Vec::new());
    let mut reports = Vec::new();
    for file in files {
        reports.extend(saved::from_file(file, &[], GIVE)?);
    }
    let mut seen = BTreeMap::new();
    let (mut failed, mut not_whole) = (None, None);
    for SavedReport { name, value } in reports {
        check_schema(&name, &value)?;
        let (saved, latency) = SavedLoad::read(&value).map_err(|error| {
            Failure::failed(format!("cannot add {name}"))
                .because(error)
                .advice(format!("{GIVE}; earlier versions wrote no histogram"))
        })?;
        check_once(&mut seen, &name, &value)?;
        sums.add(&saved, &latency);
        loops.extend(saved.load_loop.clone());
        spans = spans.zip(saved.span()).map(|(mut all, span)| {
            all.push(span);
            all
        });
        let account = saved.account();
        if !account.is_whole() {
            let doubt = format!("{name} is not whole: {}", account.doubts().join("; "));
            if account.failure.is_some() || account.clients_failed > 0 {
                failed.get_or_insert_with(|| doubt.clone());
            }
            not_whole.get_or_insert_with(|| doubt.clone());
            doubts.push(doubt);
        }
        disturbed |= saved.disturbed;
        if saved.disturbed {
            doubts.push(format!(
                "the machine disturbed {name}: its warnings say how"
            ));
        }
        let below = parts_of(&name, &value);
        parts.push(Part {
            file: name,
            schema: saved.schema,
            command: saved.command,
            calls: saved.calls,
            errors: saved.errors,
            rate_per_s: saved.rate_per_s,
            latency_ns: latency.summary(),
            parts: below,
        });
    }
    sums.check()?;
    let spans = spans.unwrap_or_default();
    let mut account = Account {
        calls: sums.calls,
        errors: sums.errors,
        due: sums.due.flatten(),
        unanswered: sums.unanswered,
        interrupted: sums.interrupted,
        failure: failed.as_deref(),
        clients_failed: 0,
    };
    // The sums do not show each doubt of a part: calls of another one stand for those that it lacks.
    if account.is_whole() {
        account.failure = not_whole.as_deref();
    }
    let report = MergeReport {
        origin: Origin::new(SCHEMA, command),
        interrupted: sums.interrupted,
        whole: Some(account.is_whole()),
        failure: account.failure.map(str::to_owned),
        disturbed,
        began: spans.iter().map(|it| it.0).min().map(rfc3339),
        ended: spans.iter().map(|it| it.1).max().map(rfc3339),
        duration_s: sums.duration_s,
        calls: sums.calls,
        calls_due: sums.due.flatten(),
        calls_unanswered: sums.unanswered,
        errors: sums.errors,
        rate_per_s: sums.rate_per_s,
        bandwidth_bytes_per_s: sums.bandwidth_bytes_per_s,
        latency_ns: sums.latency.summary(),
        histogram: sums.latency.encode(),
        warnings: warnings(&loops).into_iter().chain(doubts).collect(),
        parts,
    };
    let is_open = !loops.is_empty() && loops.iter().all(|it| it == "open");
    let table = text_of(|text| write(text, &report, is_open));
    outputs.write(&table, &report.warnings, |option| match option {
        "--hgrm" => hgrm::text(&sums.latency),
        _ => json_text(&report),
    })
}

/// Refuses a report of another kind than those that can be added.
fn check_schema(name: &str, report: &Value) -> Result<(), Failure> {
    let schema = report["schema"].as_str().unwrap_or_default();
    if SCHEMAS.contains(&schema) {
        return Ok(());
    }
    let why = match schema {
        "" => "it is no report of bench-tool: it has no schema".to_owned(),
        knee::SCHEMA => "it is a report of --to-knee, which has many loads".to_owned(),
        other => {
            let other: String = other.chars().take(64).collect();
            format!("its schema is {other:?}")
        }
    };
    Err(Failure::failed(format!("cannot add {name}"))
        .because(why)
        .advice(GIVE))
}

/// Refuses a report whose calls another one has already: the same one again, or a sum and a part of it. `seen` has the
/// measurements of the reports so far, each with the report that has it.
fn check_once(
    seen: &mut BTreeMap<String, String>,
    name: &str,
    report: &Value,
) -> Result<(), Failure> {
    let mut its = BTreeSet::new();
    measurements(report, &mut its);
    for measurement in its {
        if let Some(other) = seen.insert(measurement, name.to_owned()) {
            return Err(Failure::failed(format!(
                "{name} and {other} have the same calls, which would count twice"
            ))
            .advice(
                "leave one of them out: they are the same report, or one is a sum of the other",
            ));
        }
    }
    Ok(())
}

/// What tells the measurements of a report from all others: that of the report, and those of which it is a sum.
fn measurements(report: &Value, all: &mut BTreeSet<String>) {
    // Without calls there is nothing to count twice, and nothing to tell them apart.
    if report["calls"].as_u64().is_some_and(|calls| calls > 0) {
        let latencies = ["min", "p50", "p90", "p99", "p99_9", "p99_99", "max"];
        let own = COUNTED.iter().map(|key| &report[key]);
        let latencies = latencies.iter().map(|key| &report["latency_ns"][key]);
        let texts: Vec<String> = own.chain(latencies).map(Value::to_string).collect();
        all.insert(texts.join(" "));
    }
    for below in clients(report).chain(list(report, "parts")) {
        measurements(below, all);
    }
}

/// The keys that tell a measurement from others, and that a part of a sum has too. Its latencies do as well.
const COUNTED: [&str; 5] = ["schema", "command", "calls", "errors", "rate_per_s"];

fn list<'a>(report: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    report[key].as_array().into_iter().flatten()
}

/// The reports of a fleet's clients; empty for another report.
fn clients(report: &Value) -> impl Iterator<Item = &Value> {
    list(report, "clients").map(|client| &client["report"])
}

/// The reports whose calls the report `name` has too, as parts of a sum have them.
fn parts_of(name: &str, report: &Value) -> Vec<Value> {
    let part = |(number, client): (usize, &Value)| {
        let mut part = json!({"file": format!("{name}, client {number}")});
        for key in COUNTED.iter().chain(&["latency_ns"]) {
            part[key] = client[key].clone();
        }
        part
    };
    let clients = clients(report).enumerate().map(part);
    clients.chain(list(report, "parts").cloned()).collect()
}

fn warnings(loops: &[String]) -> Option<String> {
    loops.windows(2).any(|pair| pair[0] != pair[1]).then(|| {
        "some of them are open loops and some closed: their latencies do not count from the same moment"
            .to_owned()
    })
}

fn write(text: &mut String, report: &MergeReport, is_open: bool) -> fmt::Result {
    writeln!(text, "sum of {} reports", report.parts.len())?;
    write_latency(text, &report.latency_ns, is_open)?;
    let unanswered = match report.calls_unanswered {
        0 => String::new(),
        calls => format!(", {} not answered", count(calls)),
    };
    writeln!(
        text,
        "\ncalls     {} completed, {} errors{unanswered}",
        count(report.calls),
        count(report.errors)
    )?;
    if let (Some(began), Some(ended)) = (&report.began, &report.ended) {
        writeln!(text, "time      from {began} to {ended}")?;
    }
    writeln!(
        text,
        "rate      {}, the sum of theirs",
        rate(report.rate_per_s)
    )?;
    if report.bandwidth_bytes_per_s > 0.0 {
        let sum = bandwidth(report.bandwidth_bytes_per_s);
        writeln!(text, "bandwidth {sum} of payload")?;
    }
    write_columns(text, "report")?;
    for (number, part) in report.parts.iter().enumerate() {
        let latency = &part.latency_ns;
        write_row(
            text,
            &(number + 1).to_string(),
            (part.calls, part.rate_per_s),
            (part.calls > 0).then_some([latency.p50, latency.p99, latency.max]),
        )?;
    }
    writeln!(text)?;
    for (number, part) in report.parts.iter().enumerate() {
        writeln!(text, "report {}  {}", number + 1, part.file)?;
    }
    write_warnings(text, &report.warnings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::report::tests::report;
    use rpcrdma_testkit::{CheckWords, Folder};
    use serde_json::Value;
    use std::path::Path;

    /// A report of a run with these latencies.
    fn saved(values: impl Iterator<Item = u64>) -> (String, LatencyHistogram) {
        let mut latency = LatencyHistogram::new();
        values.for_each(|value| latency.record(value));
        let mut report = report();
        report.load.calls = latency.count();
        report.load.latency_ns = latency.summary();
        report.load.histogram = latency.encode();
        report.load.rate_per_s = 1_000.0;
        report.load.errors = 1;
        (json_text(&report), latency)
    }

    fn merge(folder: &Folder, files: &[&str]) -> Result<Value, Failure> {
        let json = folder.path("sum.json");
        let outputs = Outputs::check(&[("--json", Some(Path::new(&json)))], true)?;
        let files: Vec<PathBuf> = files.iter().map(|it| folder.path(it).into()).collect();
        execute(&files, &outputs, "test".to_owned())?;
        Ok(serde_json::from_str(&folder.read("sum.json")).unwrap())
    }

    #[test]
    fn percentiles_are_those_of_all_calls_together() {
        let folder = Folder::new("merge");
        let (fast, mut all) = saved(1_000..2_000);
        // A few slow calls of another client: the mean of both p99 would be far too high.
        let (slow, its) = saved((0..20).map(|it| 1_000_000 + it));
        all.merge(&its);
        folder.write("a", &fast);
        folder.write("b", &slow);
        let sum = merge(&folder, &["a", "b"]).unwrap();
        assert_eq!(sum["schema"], SCHEMA);
        assert_eq!(
            (sum["calls"].as_u64(), sum["errors"].as_u64()),
            (Some(1_020), Some(2))
        );
        assert_eq!(sum["rate_per_s"], 2_000.0);
        let summary = serde_json::to_value(all.summary()).unwrap();
        assert_eq!(sum["latency_ns"], summary);
        assert_eq!(sum["parts"][1]["calls"], 20);
        // A sum is a report that can be added again.
        folder.write("c", sum.to_string());
        folder.write("d", saved((0..20).map(|it| 2_000_000 + it)).0);
        let again = merge(&folder, &["c", "d"]).unwrap();
        assert_eq!(again["calls"], 1_040);
        assert_eq!(
            again["latency_ns"]["max"].as_u64().map(|it| it / 1_000),
            Some(2_000)
        );
    }

    #[test]
    fn calls_that_would_count_twice_are_refused() {
        let folder = Folder::new("merge-twice");
        for (number, file) in ["a", "b", "c"].iter().enumerate() {
            folder.write(file, saved((1..50).map(|it| it * (number as u64 + 1))).0);
        }
        std::fs::copy(folder.join("a"), folder.join("copy")).unwrap();
        let sum = merge(&folder, &["a", "b"]).unwrap();
        folder.write("sum", sum.to_string());
        let sum = merge(&folder, &["sum", "c"]).unwrap();
        folder.write("sum2", sum.to_string());
        let client = |file: &str| {
            let report: Value = serde_json::from_str(&folder.read(file)).unwrap();
            serde_json::json!({"report": report})
        };
        let mut fleet: Value = serde_json::from_str(&saved((1..50).map(|it| it * 9)).0).unwrap();
        fleet["schema"] = crate::fleet::report::SCHEMA.into();
        fleet["clients"] = serde_json::json!([client("a"), client("c")]);
        folder.write("fleet", fleet.to_string());
        let sum = merge(&folder, &["fleet", "b"]).unwrap();
        folder.write("sum3", sum.to_string());
        for files in [
            ["a", "a"],
            ["a", "copy"],
            ["sum", "a"],
            ["b", "sum"],
            ["sum2", "a"],
            ["sum2", "sum"],
            ["c", "sum2"],
            ["fleet", "c"],
            ["sum", "fleet"],
            ["sum3", "a"],
            ["c", "sum3"],
            ["sum3", "fleet"],
        ] {
            let failure = merge(&folder, &files).unwrap_err();
            failure.check_words(&["have the same calls", "leave one of them out"]);
        }
        assert_eq!(merge(&folder, &["c", "sum"]).unwrap()["calls"], 147);
        // Nothing was measured: nothing counts twice.
        let mut nothing: Value = serde_json::from_str(&saved(std::iter::empty()).0).unwrap();
        nothing["latency_ns"] = Value::Null;
        folder.write("nothing", nothing.to_string());
        assert_eq!(merge(&folder, &["nothing", "nothing"]).unwrap()["calls"], 0);
    }

    #[test]
    fn sum_of_what_is_not_whole_is_not_whole() {
        let folder = Folder::new("merge-unanswered");
        let mut part: Value = serde_json::from_str(&saved(1..101).0).unwrap();
        part["calls"] = 90.into();
        part["calls_due"] = 100.into();
        part["calls_unanswered"] = 10.into();
        part["errors"] = 0.into();
        folder.write("a", part.to_string());
        folder.write("b", saved(1..50).0);
        let sum = merge(&folder, &["a", "b"]).unwrap();
        assert_eq!(
            (&sum["whole"], &sum["calls_unanswered"]),
            (&false.into(), &10.into())
        );
        assert_eq!(
            (&sum["calls"], &sum["calls_due"]),
            (&139.into(), &Value::Null)
        );
        assert_eq!(sum["latency_ns"]["count"], 149);
        sum["warnings"]
            .to_string()
            .check_words(&["/a is not whole: 10 of 100 calls that were due"]);
        // The calls of the other part hide that it has none.
        let part = |latencies: std::ops::Range<u64>| {
            let mut part: Value = serde_json::from_str(&saved(latencies).0).unwrap();
            part["errors"] = 0.into();
            part.to_string()
        };
        folder.write("whole", part(1..50));
        folder.write("none", part(1..1));
        let sum = merge(&folder, &["whole", "none"]).unwrap();
        assert_eq!(sum["whole"], false);
        sum["failure"]
            .to_string()
            .check_words(&["/none is not whole: no call completed"]);
    }

    #[test]
    fn a_sum_lasts_from_the_first_begin_to_the_last_end() {
        let folder = Folder::new("merge-dates");
        let written = |file: &str, began: &str, duration_s: f64| {
            let longest = u64::from(file.as_bytes()[0]);
            let mut report: Value = serde_json::from_str(&saved(1..longest).0).unwrap();
            report["began"] = began.into();
            report["duration_s"] = duration_s.into();
            folder.write(file, report.to_string());
        };
        written("a", "2026-11-26T10:00:05.000Z", 60.0);
        written("b", "2026-11-26T10:00:07.250Z", 2.5);
        written("c", "2026-11-26T09:59:59.000Z", 30.0);
        let times = |sum: &Value| ["began", "ended"].map(|key| sum[key].clone());
        let sum = merge(&folder, &["a", "b"]).unwrap();
        let expected = ["2026-11-26T10:00:05.000Z", "2026-11-26T10:01:05.000Z"];
        assert_eq!(times(&sum), expected.map(Value::from));
        // The longest of its parts lasted for less time than the sum.
        folder.write("sum", sum.to_string());
        let sum = merge(&folder, &["c", "sum"]).unwrap();
        let expected = ["2026-11-26T09:59:59.000Z", "2026-11-26T10:01:05.000Z"];
        assert_eq!(times(&sum), expected.map(Value::from));
        // A part of an earlier version does not say.
        written("d", "", 2.0);
        for files in [["a", "d"], ["d", "a"]] {
            let sum = merge(&folder, &files).unwrap();
            assert_eq!(times(&sum), [Value::Null, Value::Null]);
        }
    }

    #[test]
    fn a_file_that_is_no_report_is_named() {
        let folder = Folder::new("merge-wrong");
        folder.write("a", saved(1..50).0);
        folder.write("b", "{}");
        folder.write("c", "no JSON");
        let failure = merge(&folder, &["a", "b"]).unwrap_err();
        failure.check_words(&["cannot add", "/b", "it has no schema"]);
        for (schema, words) in [
            (knee::SCHEMA, "a report of --to-knee"),
            (
                "rpcrdma.bench-tool.run/9",
                "its schema is \"rpcrdma.bench-tool.run/9\"",
            ),
        ] {
            let mut other: Value = serde_json::from_str(&saved(1..50).0).unwrap();
            other["schema"] = schema.into();
            folder.write("b", other.to_string());
            merge(&folder, &["b"])
                .unwrap_err()
                .check_words(&["/b", words]);
        }
        let failure = merge(&folder, &["a", "c"]).unwrap_err();
        failure.check_words(&["/c"]);
        let failure = merge(&folder, &["a", "d"]).unwrap_err();
        failure.check_words(&["cannot read", "/d"]);
    }

    #[test]
    fn reports_that_are_not_whole_are_named() {
        let folder = Folder::new("merge-doubts");
        let written = |file: &str, key: &str, value: Value| {
            let longest = u64::from(file.as_bytes()[0]);
            let mut report: Value = serde_json::from_str(&saved(1..longest).0).unwrap();
            report["errors"] = 0.into();
            report[key] = value;
            folder.write(file, report.to_string());
        };
        written("huge", "errors", u64::MAX.into());
        written("vast", "errors", u64::MAX.into());
        let sum = merge(&folder, &["huge", "vast"]).unwrap();
        assert_eq!(sum["errors"], u64::MAX);
        written("a", "failure", "the server is gone".into());
        written("b", "failures", serde_json::json!([{}, {}]));
        written("c", "disturbed", true.into());
        let sum = merge(&folder, &["a", "b", "c"]).unwrap();
        sum["warnings"].to_string().check_words(&[
            "/a is not whole: failed: the server is gone",
            "/b is not whole: 2 clients failed",
            "the machine disturbed ",
        ]);
        assert_eq!(
            (&sum["whole"], &sum["disturbed"]),
            (&false.into(), &true.into())
        );
        let failure = sum["failure"].as_str().unwrap();
        failure.check_words(&["/a is not whole: failed: "]);
    }

    #[test]
    fn a_merge_that_loses_calls_is_an_error() {
        let sums = Sums {
            calls: 1,
            ..Sums::default()
        };
        sums.check().unwrap_err().check_words(&["has 0 calls"]);
    }

    #[test]
    fn the_table_has_a_line_for_each_report() {
        let mut report = MergeReport {
            origin: Origin::new(SCHEMA, String::new()),
            interrupted: true,
            failure: None,
            disturbed: false,
            whole: Some(false),
            calls_due: None,
            calls_unanswered: 3,
            began: Some("2026-11-26T10:00:05.000Z".to_owned()),
            ended: Some("2026-11-26T10:01:05.000Z".to_owned()),
            duration_s: 1.0,
            calls: 12_000,
            errors: 1,
            rate_per_s: 2_000.0,
            bandwidth_bytes_per_s: 0.0,
            latency_ns: report().load.latency_ns,
            histogram: String::new(),
            parts: Vec::new(),
            warnings: warnings(&["open".to_owned(), "closed".to_owned()])
                .into_iter()
                .collect(),
        };
        report.parts = vec![
            Part {
                file: "a.json".to_owned(),
                schema: String::new(),
                command: String::new(),
                calls: 6_000,
                errors: 0,
                rate_per_s: 1_000.0,
                latency_ns: report.latency_ns,
                parts: Vec::new(),
            };
            2
        ];
        text_of(|text| write(text, &report, false)).check_words(&[
            "sum of 2 reports",
            "calls     12,000 completed, 1 errors, 3 not answered",
            "\ntime      from 2026-11-26T10:00:05.000Z to 2026-11-26T10:01:05.000Z\n",
            "rate      2.000 k/s, the sum of theirs",
            "report            calls        rate",
            "1                 6,000",
            "report 2  a.json",
            "some closed",
        ]);
    }
}
