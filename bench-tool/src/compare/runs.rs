//! Reads runs from the JSON that `run` and `nfs` write. The input is untrusted.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::exit::Failure;
use crate::report::metric::{METRICS, Metric};
use crate::report::saved::{read, reports_in};

/// Upper bound of a file's size: far more than [`RUNS_MAX`] reports need.
pub(crate) const INPUT_BYTES_MAX: u64 = 64 << 20;

/// Upper bound of the runs of one side.
pub(crate) const RUNS_MAX: usize = 500;

/// The supported layouts.
const SCHEMAS: [&str; 2] = [crate::run::report::RUN_SCHEMA, crate::nfs_client::SCHEMA];

/// The keys of the work, which repeats of a run share. Runs that differ in them are not accepted as one side.
const WORK: [&str; 17] = [
    "schema",
    "op",
    "size_bytes",
    "sizes",
    "operations",
    "read_percent",
    "seed",
    "placement_asked",
    "delay_ns",
    "service_time_ns",
    "depth",
    "connections",
    "idle_connections",
    "loop",
    "offered_rate_per_s",
    "access",
    "stable",
];

/// Other properties in which runs may differ: how and where the work was done. A dot separates nested keys.
const CIRCUMSTANCES: [&str; 16] = [
    "version",
    "revision",
    "transport",
    "fabric",
    "device",
    "protocol",
    "placement",
    "profile",
    "cores",
    "server_cores",
    "warmup_s",
    "machine.cpu",
    "machine.os",
    "machine.cores_online",
    "machine.memory_bytes",
    "machine.frequency_governor",
];

/// The part of a run that is compared.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// In the order of [`Metric::ALL`]; all above zero.
    values: [f64; METRICS],
    /// The values of the keys of work and circumstances; null if the report has no such key.
    pub facts: BTreeMap<&'static str, Value>,
    /// The warnings of the report.
    pub warnings: Vec<String>,
}

#[derive(Deserialize)]
struct Report {
    schema: String,
    rate_per_s: f64,
    /// Null if no call completed.
    latency_ns: Option<Latency>,
    failure: Option<String>,
    #[serde(default)]
    errors: u64,
    #[serde(default)]
    warnings: Vec<String>,
}

#[derive(Deserialize)]
struct Latency {
    count: u64,
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p99_9: f64,
}

impl Run {
    /// Reads one report.
    ///
    /// # Errors
    /// A short description of what is wrong with it.
    pub(crate) fn new(report: &Value) -> Result<Self, String> {
        let facts = WORK.into_iter().chain(CIRCUMSTANCES).map(|key| {
            let value = key.split('.').try_fold(report, |value, key| value.get(key));
            (key, value.cloned().unwrap_or_default())
        });
        let facts = facts.collect();
        let report = Report::deserialize(report).map_err(|error| error.to_string())?;
        if !SCHEMAS.contains(&report.schema.as_str()) {
            let schema: String = report.schema.chars().take(64).collect();
            return Err(format!(
                "its schema is {schema:?}, not {}",
                SCHEMAS.join(" or ")
            ));
        }
        if let Some(failure) = report.failure {
            return Err(format!("it failed: {failure}"));
        }
        let Some(latency) = report.latency_ns.filter(|it| it.count > 0) else {
            return Err("no call completed in it".to_owned());
        };
        if report.errors > 0 {
            return Err(format!("{} of its calls ended in an error", report.errors));
        }
        let values = Metric::ALL.map(|metric| match metric {
            Metric::P50 => latency.p50,
            Metric::P90 => latency.p90,
            Metric::P99 => latency.p99,
            Metric::P999 => latency.p99_9,
            Metric::Mean => latency.mean,
            Metric::Rate => report.rate_per_s,
        });
        for (metric, value) in Metric::ALL.iter().zip(values) {
            // With these bounds, the ratio of any two values is finite and above zero.
            if !(1e-9..=1e18).contains(&value) {
                return Err(format!("its {} is {value}", metric.name()));
            }
        }
        Ok(Self {
            values,
            facts,
            warnings: report.warnings,
        })
    }

    /// The value of a figure.
    #[must_use]
    pub(crate) fn value(&self, metric: Metric) -> f64 {
        let place = Metric::ALL.iter().position(|other| *other == metric);
        place
            .and_then(|at| self.values.get(at))
            .copied()
            .unwrap_or(0.0)
    }
}

/// The runs of a file: one report, several in a row or in a list, or the output of `sweep`.
///
/// # Errors
/// A failure that names the file, the run, and what is wrong with it.
pub(crate) fn from_file(path: &Path) -> Result<Vec<Run>, Failure> {
    let name = path.display().to_string();
    let text = File::open(path).and_then(|file| read(file, INPUT_BYTES_MAX));
    let text = text.map_err(|error| {
        Failure::failed(format!("cannot read {name}"))
            .because(error)
            .advice("give the file that `bench-tool run --json FILE` wrote")
    })?;
    from_text(&text, &name)
}

/// The runs in a text; `name` is its source, for messages.
///
/// # Errors
/// As [`from_file`].
pub(crate) fn from_text(text: &str, name: &str) -> Result<Vec<Run>, Failure> {
    let wrong = |words: String| {
        Failure::failed(format!("{name} cannot be compared: {words}"))
            .advice("give runs as `bench-tool run --json` writes them: one, several in a row, or a list of them")
    };
    let mut runs: Vec<Run> = Vec::new();
    for reports in reports_in(text, None) {
        for report in reports.map_err(|error| wrong(error.to_string()))? {
            let number = runs.len() + 1;
            let run = Run::new(&report).map_err(|words| wrong(format!("run {number}: {words}")))?;
            if let Some(difference) = runs.first().and_then(|first| work_differs(first, &run)) {
                return Err(wrong(format!(
                    "runs 1 and {number} are not repeats of each other: {difference}"
                )));
            }
            runs.push(run);
            if runs.len() > RUNS_MAX {
                return Err(wrong(format!("it contains more than {RUNS_MAX} runs")));
            }
        }
    }
    if runs.is_empty() {
        return Err(wrong("it contains no run".to_owned()));
    }
    Ok(runs)
}

fn work_differs(first: &Run, other: &Run) -> Option<String> {
    let (key, ours, theirs) = differences(first, other).find(|(key, ..)| WORK.contains(key))?;
    Some(format!("{key} is {ours} and {theirs}"))
}

/// The keys in which two runs differ, with both values.
pub(crate) fn differences<'a>(
    a: &'a Run,
    b: &'a Run,
) -> impl Iterator<Item = (&'static str, &'a Value, &'a Value)> {
    let pairs = a.facts.iter().zip(b.facts.values());
    pairs.filter_map(|((key, a), b)| (a != b).then_some((*key, a, b)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// A report with the given median; the other figures are in proportion.
    pub(in crate::compare) fn report(p50: f64) -> Value {
        json!({
            "schema": crate::run::report::RUN_SCHEMA,
            "op": "null", "depth": 1, "revision": "abc",
            "rate_per_s": 1e9 / p50, "errors": 0, "warnings": [],
            "failure": null,
            "latency_ns": {
                "count": 1000, "mean": p50 * 1.1, "p50": p50, "p90": p50 * 1.2,
                "p99": p50 * 1.5, "p99_9": p50 * 2.0,
            },
        })
    }

    fn count(text: &str) -> usize {
        from_text(text, "a.json").unwrap().len()
    }

    #[test]
    fn one_several_a_list_and_a_sweep_are_read() {
        let one = report(400.0).to_string();
        assert_eq!(count(&one), 1);
        assert_eq!(count(&format!("{one}\n{one}{one}")), 3);
        assert_eq!(count(&format!("[{one}, {one}]\n")), 2);
        assert_eq!(
            count(&format!("{{\"schema\": \"x\", \"runs\": [{one}]}}")),
            1
        );
        let pretty = serde_json::to_string_pretty(&report(400.0)).unwrap();
        let runs = from_text(&pretty, "a.json").unwrap();
        assert!((runs[0].value(Metric::P50) - 400.0).abs() < 1e-9);
        assert!((runs[0].value(Metric::Rate) - 2.5e6).abs() < 1e-3);
        assert_eq!(runs[0].facts["op"], "null");
    }

    #[test]
    fn the_report_of_a_run_is_understood() {
        let text = crate::report::output::json_text(&crate::run::report::tests::report());
        let runs = from_text(&text, "run.json").unwrap();
        assert_eq!(runs[0].facts["op"], "null");
        assert!(runs[0].value(Metric::Rate) > 0.0 && !runs[0].warnings.is_empty());
    }

    #[test]
    fn what_is_no_run_is_refused_with_its_place() {
        let one = report(400.0).to_string();
        let with = |pointer: &str, value: Value| {
            let mut report = report(400.0);
            *report.pointer_mut(pointer).unwrap() = value;
            format!("{one} {report}")
        };
        for (text, words) in [
            (String::new(), "no run"),
            ("[]".to_owned(), "no run"),
            ("nonsense".to_owned(), "line 1"),
            (one[..40].to_owned(), "EOF"),
            ("7".to_owned(), "run 1"),
            ("[".repeat(100_000), "recursion"),
            (with("/schema", json!("other/9")), "other/9"),
            (with("/latency_ns", json!(null)), "no call completed"),
            (
                with("/failure", json!("server lost")),
                "it failed: server lost",
            ),
            (with("/latency_ns/p50", json!("fast")), "run 2"),
            (with("/latency_ns/p50", json!(0)), "its p50 is 0"),
            (with("/latency_ns/p99", json!(-5)), "its p99 is -5"),
            (with("/rate_per_s", json!(1e300)), "its rate"),
            (with("/latency_ns/count", json!(0)), "no call completed"),
            (with("/errors", json!(7)), "7 of its calls"),
            (
                with("/depth", json!(2)),
                "not repeats of each other: depth is 1 and 2",
            ),
            (one.replace("400.0", "1e999"), "out of range"),
            (format!("{one} ").repeat(RUNS_MAX + 1), "more than 500"),
        ] {
            let failure = from_text(&text, "a.json").unwrap_err().to_string();
            assert!(failure.contains(words), "{words}: {failure}");
            assert!(failure.contains("a.json"), "{failure}");
        }
        let failure = from_file(Path::new("/nonexistent/a.json")).unwrap_err();
        assert!(failure.to_string().contains("/nonexistent/a.json"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,64}", cut in 0_usize..400) {
            let _ = from_text(&text, "a");
            let one = report(400.0).to_string();
            let _ = from_text(one.get(..cut).unwrap_or_default(), "a");
        }
    }
}
