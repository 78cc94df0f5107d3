//! Reports that were saved as JSON, read again. The files are untrusted input.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde_json::Value;

use super::escape::{plain_text, plain_value};
use super::figures::{LossFigures, PathFigures};
use super::whole::{Account, clients_failed_in};
use crate::date::parse_rfc3339;
use crate::exit::Failure;
use crate::histogram::{DecodeError, LatencyHistogram, LatencySummary};
use crate::sweep::runs::Repeat as _;

/// Upper bound of a file's size: the report of a fleet has those of its clients, of which there are 4096 at most.
/// The values that are read from it take several times as much memory.
pub(crate) const FILE_BYTES_MAX: u64 = 512 << 20;

/// A report in a file.
#[derive(Clone, Debug)]
pub(crate) struct SavedReport {
    /// The file and, where it has several, the number of the report in it.
    pub(crate) name: String,
    pub(crate) value: Value,
}

/// The reports in a file: one, several in a row or in a list, or those of a sweep. A sweep whose schema is among `whole`
/// is one report.
///
/// # Errors
/// A failure that names the file. `advice` says what to give instead.
pub(crate) fn from_file(
    path: &Path,
    whole: &[&str],
    advice: &str,
) -> Result<Vec<SavedReport>, Failure> {
    let file = path.display().to_string();
    let failed = |what: &str, error: String| {
        Failure::failed(format!("{what} {file}"))
            .because(error)
            .advice(advice)
    };
    let text = File::open(path).and_then(|it| read(it, FILE_BYTES_MAX));
    let text = text.map_err(|error| failed("cannot read", error.to_string()))?;
    let values = reports_in(&text, whole).collect::<Result<Vec<_>, _>>();
    let values: Vec<Value> = values
        .map_err(|error| failed("there is no JSON in", error.to_string()))?
        .into_iter()
        .flatten()
        .collect();
    if values.is_empty() {
        return Err(failed("there is no report in", "it is empty".to_owned()));
    }
    let plain = values.into_iter().map(plain_value);
    Ok(named(&plain_text(file), plain.collect()))
}

/// The reports with the name of their file and, if there are several, their numbers.
fn named(file: &str, values: Vec<Value>) -> Vec<SavedReport> {
    let several = values.len() > 1;
    let named = (1..).zip(values).map(|(number, value)| SavedReport {
        name: match several {
            true => format!("{file} ({number})"),
            false => file.to_owned(),
        },
        value,
    });
    named.collect()
}

impl SavedReport {
    /// The runs of a sweep; any other report is one.
    pub(crate) fn into_runs(self) -> Vec<Self> {
        named(&self.name, into_runs(self.value))
    }
}

/// Reads all of `input`, at most `bytes_max`.
///
/// # Errors
/// Read errors, text that is not UTF-8, and longer input.
pub(crate) fn read(input: impl Read, bytes_max: u64) -> io::Result<String> {
    let mut text = String::new();
    input.take(bytes_max + 1).read_to_string(&mut text)?;
    if text.len() as u64 > bytes_max {
        let words = format!("more than {bytes_max} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, words));
    }
    Ok(text)
}

/// The reports in a text, value by value: a value is a report, a list of reports, or a sweep with its runs. A sweep whose
/// schema is among `whole` is a report.
///
/// # Errors
/// Each item may be one: text that is no JSON.
pub(crate) fn reports_in(
    text: &str,
    whole: &[&str],
) -> impl Iterator<Item = serde_json::Result<Vec<Value>>> {
    let values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    values.map(move |value| {
        Ok(match value? {
            Value::Array(list) => list,
            // Earlier versions did not write the points of a sweep.
            report
                if report["points"].is_array()
                    && whole.iter().any(|it| report["schema"] == *it) =>
            {
                vec![report]
            }
            other => into_runs(other),
        })
    })
}

/// The runs of a sweep; any other value is one.
fn into_runs(value: Value) -> Vec<Value> {
    match value {
        Value::Object(mut object) => match object.remove("runs") {
            Some(Value::Array(list)) => list,
            Some(runs) => {
                object.insert("runs".to_owned(), runs);
                vec![Value::Object(object)]
            }
            None => vec![Value::Object(object)],
        },
        other => vec![other],
    }
}

/// What the JSON of `run`, `nfs`, `fleet` and `merge` has in common.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct SavedLoad {
    pub(crate) schema: String,
    #[serde(default)]
    pub(crate) command: String,
    /// Calls that succeeded in the measured time.
    pub(crate) calls: u64,
    /// Calls that were due in the measured time; `None` in a closed loop, and in a report of an earlier version.
    #[serde(default)]
    pub(crate) calls_due: Option<u64>,
    /// Calls without an answer, whose waits are in the histogram.
    #[serde(default)]
    pub(crate) calls_unanswered: u64,
    /// Calls that ended in an error.
    pub(crate) errors: u64,
    pub(crate) rate_per_s: f64,
    pub(crate) duration_s: f64,
    /// All zero without calls.
    #[serde(default, with = "crate::histogram::null_without_calls")]
    pub(crate) latency_ns: LatencySummary,
    /// Empty in a report of an earlier version.
    #[serde(default)]
    histogram: String,
    #[serde(default)]
    pub(crate) bandwidth_bytes_per_s: f64,
    /// When the measurement began (RFC 3339).
    #[serde(default)]
    pub(crate) began: String,
    /// When the measurement of the last part of a sum ended (RFC 3339).
    #[serde(default)]
    pub(crate) ended: Option<String>,
    #[serde(default)]
    pub(crate) interrupted: bool,
    /// Why the run failed although it has results.
    #[serde(default)]
    pub(crate) failure: Option<String>,
    /// The clients of a fleet that failed.
    #[serde(skip)]
    clients_failed: usize,
    #[serde(default)]
    pub(crate) disturbed: bool,
    #[serde(default)]
    pub(crate) depth: u32,
    #[serde(default)]
    pub(crate) connections: u32,
    #[serde(default)]
    pub(crate) warmup_s: f64,
    #[serde(default)]
    pub(crate) interval_s: f64,
    /// `closed` or `open`; none in a sum.
    #[serde(default, rename = "loop")]
    pub(crate) load_loop: Option<String>,
    #[serde(default)]
    pub(crate) warnings: Vec<String>,
    /// The address of the server.
    #[serde(default)]
    pub(crate) connect: Option<String>,
    /// See [`crate::run::report::Report::server_counters`].
    #[serde(default)]
    pub(crate) server_counters: Option<BTreeMap<String, u64>>,
    #[serde(flatten)]
    pub(crate) losses: LossFigures,
    #[serde(default)]
    pub(crate) paths: Vec<PathFigures>,
}

/// Why a report cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SavedError {
    #[error("it is no report of a load: {0}")]
    Layout(#[from] serde_json::Error),
    #[error(transparent)]
    Histogram(#[from] DecodeError),
    #[error("it has no histogram")]
    NoHistogram,
    #[error(
        "it has {calls} calls with those without an answer, and its histogram has {count} latencies"
    )]
    Calls { calls: u64, count: u64 },
}

impl SavedLoad {
    /// Reads a report, and restores its histogram.
    ///
    /// # Errors
    /// What is missing or contradicts itself.
    pub(crate) fn read(report: &Value) -> Result<(Self, LatencyHistogram), SavedError> {
        let saved = Self::of(report)?;
        let latency = saved.latency()?.ok_or(SavedError::NoHistogram)?;
        Ok((saved, latency))
    }

    /// Reads a report without its histogram.
    ///
    /// # Errors
    /// What is missing or contradicts itself.
    pub(crate) fn of(report: &Value) -> Result<Self, SavedError> {
        let mut saved = Self::deserialize(report)?;
        // Earlier versions did not say it of a fleet.
        saved.disturbed = report.is_disturbed();
        saved.clients_failed = clients_failed_in(report);
        Ok(saved)
    }

    /// What became of its calls.
    pub(crate) fn account(&self) -> Account<'_> {
        Account {
            calls: self.calls,
            errors: self.errors,
            due: self.calls_due,
            unanswered: self.calls_unanswered,
            interrupted: self.interrupted,
            failure: self.failure.as_deref(),
            clients_failed: self.clients_failed,
        }
    }

    /// When the measurement began and ended; `None` if the report does not say.
    pub(crate) fn span(&self) -> Option<(SystemTime, SystemTime)> {
        let began = parse_rfc3339(&self.began)?;
        let ended = match &self.ended {
            Some(ended) => parse_rfc3339(ended)?,
            None => began.checked_add(Duration::try_from_secs_f64(self.duration_s).ok()?)?,
        };
        (began <= ended).then_some((began, ended))
    }

    /// The histogram; `None` in a report of an earlier version.
    ///
    /// # Errors
    /// If it is no histogram, or contradicts the report.
    pub(crate) fn latency(&self) -> Result<Option<LatencyHistogram>, SavedError> {
        if self.histogram.is_empty() {
            return Ok(None);
        }
        let latency = LatencyHistogram::decode(&self.histogram, &self.latency_ns.exact())?;
        if latency.count() != self.calls.saturating_add(self.calls_unanswered) {
            return Err(SavedError::Calls {
                calls: self.calls.saturating_add(self.calls_unanswered),
                count: latency.count(),
            });
        }
        Ok(Some(latency))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::report::tests::report;
    use serde_json::json;

    #[test]
    fn the_report_of_a_run_is_read_again() {
        let original = report();
        let value = serde_json::to_value(&original).unwrap();
        let (saved, latency) = SavedLoad::read(&value).unwrap();
        assert_eq!((saved.calls, saved.errors), (original.load.calls, 0));
        assert_eq!(latency.summary(), original.load.latency_ns);
        assert_eq!(saved.losses, original.load.losses);
        assert_eq!((saved.depth, saved.connections), (1, 1));
    }

    #[test]
    fn a_report_without_a_histogram_or_with_another_count_is_refused() {
        let value = serde_json::to_value(report()).unwrap();
        let refused = |change: &dyn Fn(&mut Value)| {
            let mut value = value.clone();
            change(&mut value);
            SavedLoad::read(&value).unwrap_err().to_string()
        };
        let old = refused(&|it| drop(it.as_object_mut().unwrap().remove("histogram")));
        assert!(old.contains("it has no histogram"), "{old}");
        let other = refused(&|it| it["calls"] = json!(5));
        assert!(other.contains("it has 5 calls "), "{other}");
        let cut = refused(&|it| it["latency_ns"]["count"] = json!(5));
        assert!(cut.contains("latency_ns says 5"), "{cut}");
        assert!(refused(&|it| *it = json!([])).contains("no report of a load"));
    }

    #[test]
    fn input_without_end_and_what_is_no_text_are_refused() {
        assert!(read(io::repeat(b'x'), 100).is_err(), "no end of input");
        assert!(read(&[b'x'; 101][..], 100).is_err(), "one more");
        assert_eq!(read(&[b'x'; 100][..], 100).unwrap().len(), 100);
        assert!(read(&[0xff_u8, 0xfe][..], 100).is_err(), "no text");
    }

    #[test]
    fn the_reports_of_a_file_are_named() {
        let folder = rpcrdma_testkit::Folder::new("saved");
        let names = |text: &str| -> Vec<String> {
            folder.write("a.json", text);
            let reports = from_file(&folder.join("a.json"), &[], "give another").unwrap();
            let short = |it: SavedReport| it.name.rsplit('/').next().unwrap().to_owned();
            reports.into_iter().map(short).collect()
        };
        assert_eq!(names("{}"), ["a.json"]);
        // A terminal must not execute what a file says.
        folder.write("a.json", r#"{"a\u001b": ["\u001b]52;c\n"]}"#);
        let report = &from_file(&folder.join("a.json"), &[], "give another").unwrap()[0];
        assert_eq!(report.value, serde_json::json!({"a?": ["?]52;c?"]}));
        assert_eq!(names("[{}, {}]"), ["a.json (1)", "a.json (2)"]);
        assert_eq!(names("{} {\"runs\": [{}]}").len(), 2);
        folder.write(
            "a.json",
            r#"{"schema": "s", "points": [], "runs": [{}, {}]}"#,
        );
        let whole = from_file(&folder.join("a.json"), &["s"], "give another").unwrap();
        let [whole] = &whole[..] else {
            panic!("{whole:?}");
        };
        assert!(whole.value["runs"].is_array());
        let runs = whole.clone().into_runs();
        assert!(runs.len() == 2 && runs[1].name.ends_with("a.json (2)"));
        for (text, words) in [
            ("", "it is empty"),
            ("[]", "it is empty"),
            ("{", "there is no JSON in"),
        ] {
            folder.write("a.json", text);
            let failure = from_file(&folder.join("a.json"), &[], "give another").unwrap_err();
            let failure = failure.to_string();
            assert!(
                failure.contains(words) && failure.contains("/a.json"),
                "{failure}"
            );
            assert!(failure.contains("give another"), "{failure}");
        }
    }
}
