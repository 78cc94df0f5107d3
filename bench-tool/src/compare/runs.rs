//! Reads runs from the JSON that `run`, `nfs`, `fleet` and `sweep` write. The input is untrusted.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::exit::Failure;
use crate::report::knee;
use crate::report::metric::{METRICS, Metric};
use crate::report::saved::{self, SavedReport, reports_in};
use crate::report::whole::{Account, clients_failed_in};
use crate::sweep::grid::Point;
use crate::sweep::runs::Swept;
use crate::{fleet, nfs_client, run, sweep};

/// Upper bound of the runs of one side, and of one combination of a sweep.
pub(crate) const RUNS_MAX: usize = 500;

/// The supported layouts.
const SCHEMAS: [&str; 3] = [
    run::report::RUN_SCHEMA,
    nfs_client::SCHEMA,
    fleet::report::SCHEMA,
];

/// The layouts of sweeps.
pub(crate) const SWEEPS: [&str; 2] = [sweep::SCHEMA, fleet::sweep::report::SCHEMA];

/// What to give in place of a file that cannot be compared.
const GIVE: &str = "give runs as `bench-tool run --json` writes them, one, several in a row, or a list of them; or a sweep";

/// The keys of the work, which repeats of a run share. Runs that differ in them are not accepted as one side.
const WORK: [&str; 22] = [
    "schema",
    "pattern",
    "clients_asked",
    "clients",
    "op",
    "direction",
    "through",
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
    rate_per_s: f64,
    /// Null if no call completed.
    latency_ns: Option<Latency>,
    #[serde(default)]
    calls_due: Option<u64>,
    #[serde(default)]
    calls_unanswered: u64,
    failure: Option<String>,
    #[serde(skip)]
    clients_failed: usize,
    #[serde(default)]
    errors: u64,
    #[serde(default)]
    warnings: Vec<String>,
}

impl Report {
    /// What became of its calls. That a signal ended it is in its warnings: its figures are those of a shorter run.
    fn account(&self) -> Account<'_> {
        let latencies = self.latency_ns.as_ref().map_or(0, |it| it.count);
        Account {
            calls: latencies.saturating_sub(self.calls_unanswered),
            errors: self.errors,
            due: self.calls_due,
            unanswered: self.calls_unanswered,
            interrupted: false,
            failure: self.failure.as_deref(),
            clients_failed: self.clients_failed,
        }
    }
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
        let keys = WORK.into_iter().chain(CIRCUMSTANCES);
        let mut facts: BTreeMap<_, _> = keys.map(|key| (key, fact(report, key))).collect();
        // Older runs do not say it, and those of `nfs` never.
        for (key, usual) in [("direction", "forward"), ("through", "core")] {
            facts.entry(key).and_modify(|it| {
                *it = if it.is_null() {
                    usual.into()
                } else {
                    it.take()
                }
            });
        }
        check_schema(report)?;
        let clients_failed = clients_failed_in(report);
        let mut report = Report::deserialize(report).map_err(|error| error.to_string())?;
        report.clients_failed = clients_failed;
        let doubts = report.account().doubts();
        if !doubts.is_empty() {
            return Err(format!("it is not whole: {}", doubts.join("; ")));
        }
        let Some(latency) = report.latency_ns else {
            return Err("no call completed in it".to_owned());
        };
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

/// Refuses a report without a schema, and what has no single load.
fn check_schema(report: &Value) -> Result<(), String> {
    let Some(schema) = report["schema"].as_str() else {
        return Err("it is no report of bench-tool: it has no schema".to_owned());
    };
    if schema == knee::SCHEMA {
        return Err(
            "it is a report of --to-knee, which has many loads: compare runs at one --rate, or see both side by side with \
             `bench-tool report`"
                .to_owned(),
        );
    }
    if !SCHEMAS.contains(&schema) {
        let schema: String = schema.chars().take(64).collect();
        return Err(format!(
            "its schema is {schema:?}, not {}",
            SCHEMAS.join(" or ")
        ));
    }
    Ok(())
}

/// A fact of a report; null if it has none. Of a fleet, it is that of all clients, or a list of theirs if they differ,
/// unless it is one of the sum; `clients` is their number.
fn fact(report: &Value, key: &str) -> Value {
    let of = |report: &Value| {
        let value = key.split('.').try_fold(report, |value, key| value.get(key));
        value.cloned().unwrap_or_default()
    };
    let Some(clients) = report["clients"].as_array() else {
        return of(report);
    };
    match of(report) {
        Value::Array(clients) if key == "clients" => clients.len().into(),
        // The machine is the coordinator's, and a sum has no cores.
        value if value.is_null() || value.is_array() || key.starts_with("machine.") => {
            let mut values: Vec<Value> = Vec::new();
            for value in clients.iter().map(|it| of(&it["report"])) {
                if !values.contains(&value) {
                    values.push(value);
                }
            }
            match values.len() {
                1 => values.remove(0),
                _ => values.into(),
            }
        }
        value => value,
    }
}

/// Repeats of one run.
#[derive(Debug)]
pub(crate) struct Repeats {
    /// Those whose figures count.
    pub runs: Vec<Run>,
    /// How many others of a sweep do not.
    pub not_counted: usize,
    /// Whether they are those of a sweep that had none without a disturbance.
    pub are_disturbed: bool,
}

impl From<Vec<Run>> for Repeats {
    fn from(runs: Vec<Run>) -> Self {
        Self {
            runs,
            not_counted: 0,
            are_disturbed: false,
        }
    }
}

/// A combination of a sweep, with its runs or why they cannot be compared.
pub(crate) type SweptRuns = (Point, Result<Repeats, String>);

/// The runs of one side.
#[derive(Debug)]
pub(crate) enum Runs {
    /// Repeats of one run.
    Alike(Repeats),
    /// Those of each combination of a sweep.
    Swept {
        /// Whether they are those of a fleet.
        is_fleet: bool,
        /// The combinations.
        points: Vec<SweptRuns>,
    },
}

impl Runs {
    /// Whether they are those of a fleet.
    pub(crate) fn are_of_fleets(&self) -> bool {
        match self {
            Self::Alike(repeats) => {
                let first = repeats.runs.first();
                first.is_some_and(|run| run.facts["schema"] == fleet::report::SCHEMA)
            }
            Self::Swept { is_fleet, .. } => *is_fleet,
        }
    }
}

/// The runs of a file: one report, several in a row or in a list, or a sweep.
///
/// # Errors
/// A failure that names the file, the run, and what is wrong with it.
pub(crate) fn from_file(path: &Path) -> Result<Runs, Failure> {
    let reports = saved::from_file(path, &SWEEPS, GIVE)?;
    let name = path.display().to_string();
    // Earlier versions did not write the combinations.
    let is_sweep = |it: &SavedReport| {
        SWEEPS.iter().any(|schema| it.value["schema"] == *schema) && it.value["points"].is_array()
    };
    let runs = match &reports[..] {
        [sweep] if is_sweep(sweep) => swept(&sweep.value),
        several if several.iter().any(is_sweep) => Err(
            "it contains a sweep and other reports: give each sweep in a file by itself".to_owned(),
        ),
        _ => {
            let runs = reports.into_iter().flat_map(SavedReport::into_runs);
            let runs = alike((1..).zip(runs.map(|it| it.value)));
            runs.map(|runs| Runs::Alike(runs.into()))
        }
    };
    runs.map_err(|why| wrong(&name, &why))
}

fn wrong(name: &str, why: &str) -> Failure {
    Failure::failed(format!("{name} cannot be compared: {why}")).advice(GIVE)
}

/// The runs of a sweep whose figures count. Those of one combination are repeats of one run.
fn swept(sweep: &Value) -> Result<Runs, String> {
    let swept = Swept::<Value>::deserialize(sweep).map_err(|error| error.to_string())?;
    if !swept.has_each_run_once() {
        return Err("its points do not name each of its runs once".to_owned());
    }
    let repeats = |place| {
        let runs = alike(swept.numbered(place))?;
        Ok(Repeats {
            not_counted: swept.runs_of(place).count() - runs.len(),
            runs,
            are_disturbed: swept.is_disturbed(place),
        })
    };
    if swept.points.len() == 1 {
        return repeats(0).map(Runs::Alike);
    }
    let points = swept.points.iter().enumerate();
    let points = points.map(|(place, it)| (it.point, repeats(place)));
    Ok(Runs::Swept {
        is_fleet: sweep["schema"] == fleet::sweep::report::SCHEMA,
        points: points.collect(),
    })
}

/// The runs in a text; `name` is its source, for messages.
///
/// # Errors
/// As [`from_file`].
pub(crate) fn from_text(text: &str, name: &str) -> Result<Vec<Run>, Failure> {
    let reports = reports_in(text, &[]).collect::<Result<Vec<_>, _>>();
    let reports = reports.map_err(|error| wrong(name, &error.to_string()))?;
    alike((1..).zip(reports.into_iter().flatten())).map_err(|why| wrong(name, &why))
}

/// Reads reports that are repeats of one run, each with its number.
///
/// # Errors
/// What is wrong with which of them, and none at all.
fn alike(
    reports: impl IntoIterator<Item = (usize, impl Borrow<Value>)>,
) -> Result<Vec<Run>, String> {
    let mut runs: Vec<Run> = Vec::new();
    let mut first = 1;
    for (number, report) in reports {
        if runs.len() == RUNS_MAX {
            return Err(format!("it contains more than {RUNS_MAX} runs"));
        }
        let run = Run::new(report.borrow()).map_err(|why| format!("run {number}: {why}"))?;
        match runs.first() {
            None => first = number,
            Some(other) => {
                if let Some(difference) = work_differs(other, &run) {
                    return Err(format!(
                        "runs {first} and {number} are not repeats of each other: {difference}"
                    ));
                }
            }
        }
        runs.push(run);
    }
    match runs.is_empty() {
        true => Err("it contains no run".to_owned()),
        false => Ok(runs),
    }
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
    fn invalid_run_report_is_refused_with_its_place() {
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
            (with("/schema", json!(null)), "it has no schema"),
            (
                with("/schema", json!(knee::SCHEMA)),
                "a report of --to-knee",
            ),
            (
                with("/failure", json!("server lost")),
                "it is not whole: failed: server lost",
            ),
            (with("/latency_ns/p50", json!("fast")), "run 2"),
            (with("/latency_ns/p50", json!(0)), "its p50 is 0"),
            (with("/latency_ns/p99", json!(-5)), "its p99 is -5"),
            (with("/rate_per_s", json!(1e300)), "its rate"),
            (with("/latency_ns/count", json!(0)), "no call completed"),
            (with("/errors", json!(7)), "7 calls ended in an error"),
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
