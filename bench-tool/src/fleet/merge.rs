//! Adds reports: counts and rates are added, and percentiles come from the merged histogram. They are never averaged.

use std::fmt::{self, Write as _};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::date::rfc3339;
use crate::exit::Failure;
use crate::histogram::{LatencyHistogram, LatencySummary, null_without_calls};
use crate::report::hgrm;
use crate::report::origin::Origin;
use crate::report::output::{Outputs, json_text};
use crate::report::saved::{self, SavedLoad, SavedReport};
use crate::report::table::{write_columns, write_latency, write_row, write_warnings};
use rpcrdma_units::{bandwidth, count, rate, text_of};

/// Name and version of the JSON layout. The version changes only if a key changes its meaning or is removed.
pub(crate) const SCHEMA: &str = "rpcrdma.bench-tool.merge/1";

/// What to give in place of a file that is no report.
const GIVE: &str = "give the files that --json of run, nfs, fleet or merge wrote";

/// Sums over reports.
#[derive(Debug, Default)]
pub(super) struct Sums {
    pub(super) latency: LatencyHistogram,
    pub(super) calls: u64,
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
        if merged == self.calls {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "the merged histogram has {merged} calls, and its parts have {}",
            self.calls
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
}

/// The report. Its serialization is the JSON report, whose layout is stable.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct MergeReport {
    #[serde(flatten)]
    origin: Origin,
    interrupted: bool,
    /// When the first part began (RFC 3339); `None` if a part does not say when it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    began: Option<String>,
    /// When the last part ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
    duration_s: f64,
    calls: u64,
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
/// A file that cannot be read or is no report with a histogram, and an output that cannot be written.
pub(crate) fn execute(
    files: &[PathBuf],
    outputs: &Outputs,
    command: String,
) -> Result<(), Failure> {
    let mut sums = Sums::default();
    let mut parts = Vec::new();
    let (mut loops, mut doubts) = (Vec::new(), Vec::new());
    let mut spans = Some(Vec::new());
    let mut reports = Vec::new();
    for file in files {
        reports.extend(saved::from_file(file, &[], GIVE)?);
    }
    for SavedReport { name, value } in reports {
        let (saved, latency) = SavedLoad::read(&value).map_err(|error| {
            Failure::failed(format!("cannot add {name}"))
                .because(error)
                .advice(format!("{GIVE}; earlier versions wrote no histogram"))
        })?;
        sums.add(&saved, &latency);
        loops.extend(saved.load_loop.clone());
        spans = spans.zip(saved.span()).map(|(mut all, span)| {
            all.push(span);
            all
        });
        if let Some(why) = &saved.failure {
            doubts.push(format!("{name} is not of a whole run: {why}"));
        }
        if !saved.failures.is_empty() {
            let failed = saved.failures.len();
            doubts.push(format!(
                "{failed} clients failed in {name}, and are not in it"
            ));
        }
        if saved.disturbed {
            doubts.push(format!(
                "the machine disturbed {name}: its warnings say how"
            ));
        }
        parts.push(Part {
            file: name,
            schema: saved.schema,
            command: saved.command,
            calls: saved.calls,
            errors: saved.errors,
            rate_per_s: saved.rate_per_s,
            latency_ns: latency.summary(),
        });
    }
    sums.check()?;
    let spans = spans.unwrap_or_default();
    let report = MergeReport {
        origin: Origin::new(SCHEMA, command),
        interrupted: sums.interrupted,
        began: spans.iter().map(|it| it.0).min().map(rfc3339),
        ended: spans.iter().map(|it| it.1).max().map(rfc3339),
        duration_s: sums.duration_s,
        calls: sums.calls,
        errors: sums.errors,
        rate_per_s: sums.rate_per_s,
        bandwidth_bytes_per_s: sums.bandwidth_bytes_per_s,
        latency_ns: sums.latency.summary(),
        histogram: sums.latency.encode(),
        warnings: warnings(&sums, &loops).chain(doubts).collect(),
        parts,
    };
    let is_open = !loops.is_empty() && loops.iter().all(|it| it == "open");
    let table = text_of(|text| write(text, &report, is_open));
    outputs.write(&table, &report.warnings, |option| match option {
        "--hgrm" => hgrm::text(&sums.latency),
        _ => json_text(&report),
    })
}

fn warnings(sums: &Sums, loops: &[String]) -> impl Iterator<Item = String> + use<> {
    let interrupted = sums
        .interrupted
        .then(|| "some of them ended early: they cover what was measured until then".to_owned());
    let mixed = loops.windows(2).any(|pair| pair[0] != pair[1]).then(|| {
        "some of them are open loops and some closed: their latencies do not count from the same moment"
            .to_owned()
    });
    interrupted.into_iter().chain(mixed)
}

fn write(text: &mut String, report: &MergeReport, is_open: bool) -> fmt::Result {
    writeln!(text, "sum of {} reports", report.parts.len())?;
    write_latency(text, &report.latency_ns, is_open)?;
    writeln!(
        text,
        "\ncalls     {} completed, {} errors",
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
        let again = merge(&folder, &["c", "b"]).unwrap();
        assert_eq!(again["calls"], 1_040);
        assert_eq!(again["latency_ns"]["max"], 1_000_019);
    }

    #[test]
    fn a_sum_lasts_from_the_first_begin_to_the_last_end() {
        let folder = Folder::new("merge-dates");
        let written = |file: &str, began: &str, duration_s: f64| {
            let mut report: Value = serde_json::from_str(&saved(1..50).0).unwrap();
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
        failure.check_words(&["cannot add", "/b", "missing field"]);
        let failure = merge(&folder, &["a", "c"]).unwrap_err();
        failure.check_words(&["/c"]);
        let failure = merge(&folder, &["a", "d"]).unwrap_err();
        failure.check_words(&["cannot read", "/d"]);
    }

    #[test]
    fn reports_that_are_not_whole_are_named() {
        let folder = Folder::new("merge-doubts");
        let whole: Value = serde_json::from_str(&saved(1..50).0).unwrap();
        let written = |file: &str, key: &str, value: Value| {
            let mut report = whole.clone();
            report[key] = value;
            folder.write(file, report.to_string());
        };
        written("huge", "errors", u64::MAX.into());
        let sum = merge(&folder, &["huge", "huge"]).unwrap();
        assert_eq!(sum["errors"], u64::MAX);
        written("a", "failure", "the server is gone".into());
        written("b", "failures", serde_json::json!([{}, {}]));
        written("c", "disturbed", true.into());
        let sum = merge(&folder, &["a", "b", "c"]).unwrap();
        sum["warnings"].to_string().check_words(&[
            "/a is not of a whole run: the server is gone",
            "2 clients failed in ",
            "the machine disturbed ",
        ]);
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
            warnings: warnings(
                &Sums {
                    interrupted: true,
                    ..Sums::default()
                },
                &["open".to_owned(), "closed".to_owned()],
            )
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
            };
            2
        ];
        text_of(|text| write(text, &report, false)).check_words(&[
            "sum of 2 reports",
            "calls     12,000 completed, 1 errors",
            "\ntime      from 2026-11-26T10:00:05.000Z to 2026-11-26T10:01:05.000Z\n",
            "rate      2.000 k/s, the sum of theirs",
            "report            calls        rate",
            "1                 6,000",
            "report 2  a.json",
            "some of them ended early",
            "some closed",
        ]);
    }
}
