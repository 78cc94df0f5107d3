//! One saved report: it is read into the types that its command serialized, whose table and page it then has.

use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::SystemTime;

use crate::exit::Failure;
use crate::fleet::sweep::report::FleetSweepReport;
use crate::fleet::{self, merge};
use crate::histogram::LatencyHistogram;
use crate::load::timeline::{CoreTimeline, Interval, Timeline};
use crate::report::knee::{self, KneeReport};
use crate::report::saved::{SavedError, SavedLoad, SavedReport};
use crate::report::view::LoadReport;
use crate::report::{hgrm, hlog, page};
use crate::sweep::{Sweep, SweepReport};
use crate::{nfs_client, run, sweep};

/// What to give in place of a file that cannot be shown.
pub(super) const GIVE: &str = "give the files that --json of run, nfs, fleet, sweep or merge wrote";

/// The table and the page of a report.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) table: String,
    /// Only if it is wanted.
    pub(super) page: Option<String>,
    pub(super) warnings: Vec<String>,
}

/// A report.
#[derive(Debug)]
pub(super) struct Single {
    /// `None` for a sum of reports.
    pub(super) shown: Option<Shown>,
    /// `None` in a report of an earlier version.
    pub(super) latency: Option<LatencyHistogram>,
    load: SavedLoad,
}

/// The kinds of reports that can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Run,
    Nfs,
    Fleet,
    Sweep,
    FleetSweep,
    Merge,
    Knee,
}

impl Kind {
    const ALL: [(&'static str, Self); 7] = [
        (run::report::RUN_SCHEMA, Self::Run),
        (nfs_client::SCHEMA, Self::Nfs),
        (fleet::report::SCHEMA, Self::Fleet),
        (sweep::SCHEMA, Self::Sweep),
        (fleet::sweep::report::SCHEMA, Self::FleetSweep),
        (merge::SCHEMA, Self::Merge),
        (knee::SCHEMA, Self::Knee),
    ];

    /// The kind of a report.
    ///
    /// # Errors
    /// A failure that says what it is instead.
    pub(super) fn of(report: &SavedReport) -> Result<Self, Failure> {
        let Some(schema) = report.value["schema"].as_str() else {
            return Err(no_report(report, "it has no schema"));
        };
        let known = Self::ALL.iter().find(|(name, _)| *name == schema);
        if let Some((_, kind)) = known {
            return Ok(*kind);
        }
        let short: String = schema.chars().take(64).collect();
        let of_load = |(name, _): &(&str, Self)| {
            let family = name.rsplit_once('/').map(|(family, _)| family);
            family == schema.rsplit_once('/').map(|(family, _)| family)
        };
        Err(match Self::ALL.iter().any(of_load) {
            true => no_report(report, format!("its schema is {short:?}")).advice(
                "use the version of bench-tool that wrote it: this version does not know the layout",
            ),
            false => no_report(report, format!("its schema is {short:?}")),
        })
    }

    /// The command that writes it.
    pub(super) const fn command(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Nfs => "nfs",
            Self::Fleet => "fleet",
            Self::Sweep => "sweep",
            Self::FleetSweep => "a sweep of a fleet",
            Self::Merge => "merge",
            Self::Knee => "--to-knee",
        }
    }
}

/// A failure for a file that cannot be shown.
pub(super) fn no_report(report: &SavedReport, why: impl Into<String>) -> Failure {
    Failure::failed(format!("cannot show {}", report.name))
        .because(why.into())
        .advice(GIVE)
}

/// The part that all reports of loads have: that of the closed loop in a report of `--to-knee`.
pub(super) fn load_of(kind: Kind, report: &Value) -> &Value {
    match kind {
        Kind::Knee => &report["closed_loop"],
        _ => report,
    }
}

impl Single {
    /// Reads a report. With `intervals`, its table has a line for each interval; with `has_page`, the page is made.
    ///
    /// # Errors
    /// A failure that names the file and what is wrong with it.
    pub(super) fn read(
        report: &SavedReport,
        intervals: bool,
        has_page: bool,
    ) -> Result<Self, Failure> {
        let kind = Kind::of(report)?;
        let wrong = |error: SavedError| no_report(report, error.to_string());
        let load = SavedLoad::of(load_of(kind, &report.value)).map_err(wrong)?;
        let latency = load.latency().map_err(wrong)?;
        let shown = shown(kind, &report.value, intervals, has_page);
        Ok(Self {
            shown: shown.map_err(|error| wrong(error.into()))?,
            latency,
            load,
        })
    }

    /// When its measurement began and ended; a report of an earlier version does not say.
    pub(super) fn span(&self) -> Option<(SystemTime, SystemTime)> {
        self.load.span()
    }

    /// The contents of the files of `--hgrm` and `--hlog`, whose log has the whole measurement as one interval.
    pub(super) fn histogram(&self, option: &str) -> String {
        let nothing = LatencyHistogram::new();
        let latency = self.latency.as_ref().unwrap_or(&nothing);
        if option == "--hgrm" {
            return hgrm::text(latency);
        }
        let epoch = SystemTime::UNIX_EPOCH;
        let (began, ended) = self.span().unwrap_or((epoch, epoch));
        let elapsed = ended.duration_since(began).unwrap_or_default();
        let all = CoreTimeline {
            core: 0,
            elapsed,
            intervals: vec![(Interval::new(0), latency.pack())],
            ..CoreTimeline::default()
        };
        let timeline = Timeline {
            interval: elapsed,
            began,
            cores: vec![all],
            gaps: Vec::new(),
        };
        hlog::text(&timeline, &self.load.command)
    }
}

type Loaded = serde_json::Result<Option<Shown>>;

fn shown(kind: Kind, report: &Value, intervals: bool, has_page: bool) -> Loaded {
    let of_run = |it: &run::report::Report| run::report::table::text(it, intervals);
    match kind {
        Kind::Run => load(report, has_page, of_run),
        Kind::Nfs => load(report, has_page, |it: &nfs_client::Report| {
            it.table(intervals)
        }),
        Kind::Fleet => load(report, has_page, fleet::report::table),
        Kind::Merge | Kind::Sweep | Kind::FleetSweep => Ok(None),
        Kind::Knee => match report["closed_loop"]["schema"].as_str() {
            Some(nfs_client::SCHEMA) => climb::<nfs_client::Report>(report, has_page),
            Some(fleet::report::SCHEMA) => climb::<fleet::report::FleetReport>(report, has_page),
            _ => climb::<run::report::Report>(report, has_page),
        },
    }
}

/// The table and the page of a sweep.
///
/// # Errors
/// A failure that names the file and what is wrong with it.
pub(super) fn sweep(
    kind: Kind,
    report: &SavedReport,
    has_page: bool,
) -> Result<Option<Shown>, Failure> {
    match kind {
        Kind::Sweep => read_sweep::<SweepReport>(report, has_page).map(Some),
        Kind::FleetSweep => read_sweep::<FleetSweepReport>(report, has_page).map(Some),
        _ => Ok(None),
    }
}

fn read_sweep<S: Sweep + DeserializeOwned>(
    report: &SavedReport,
    has_page: bool,
) -> Result<Shown, Failure> {
    let wrong = |error: SavedError| no_report(report, error.to_string());
    let read = S::deserialize(&report.value).map_err(|error| wrong(error.into()))?;
    if !read.swept().has_each_run_once() {
        return Err(no_report(
            report,
            "its points do not name each of its runs once",
        ));
    }
    for run in report.value["runs"].as_array().into_iter().flatten() {
        SavedLoad::read(run).map_err(wrong)?;
    }
    Ok(Shown {
        table: read.table(),
        page: has_page.then(|| read.page()),
        warnings: read.warnings(),
    })
}

/// The warnings of a report of `--to-knee`, and the calls that failed in its closed loop and in all steps.
pub(super) fn of_all_steps(report: &Value) -> serde_json::Result<(Vec<String>, u64)> {
    fn read<R: LoadReport + DeserializeOwned>(
        report: &Value,
    ) -> serde_json::Result<(Vec<String>, u64)> {
        let report = KneeReport::<R>::deserialize(report)?;
        Ok((report.warnings(), report.errors()))
    }
    match report["closed_loop"]["schema"].as_str() {
        Some(nfs_client::SCHEMA) => read::<nfs_client::Report>(report),
        Some(fleet::report::SCHEMA) => read::<fleet::report::FleetReport>(report),
        _ => read::<run::report::Report>(report),
    }
}

fn load<R: LoadReport + DeserializeOwned>(
    report: &Value,
    has_page: bool,
    table: impl FnOnce(&R) -> String,
) -> Loaded {
    let report = R::deserialize(report)?;
    Ok(Some(Shown {
        table: table(&report),
        page: has_page.then(|| page::text(&report)),
        warnings: report.view().warnings.to_vec(),
    }))
}

fn climb<R: LoadReport + DeserializeOwned>(report: &Value, has_page: bool) -> Loaded {
    let report = KneeReport::<R>::deserialize(report)?;
    Ok(Some(Shown {
        table: knee::text(&report),
        page: has_page.then(|| page::knee::text(&report)),
        warnings: report.warnings(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The places of all numbers below a value.
    fn numbers(place: String, value: &Value, all: &mut Vec<String>) {
        match value {
            Value::Number(_) => all.push(place),
            Value::Object(object) => {
                let below = object.iter();
                below.for_each(|(key, it)| numbers(format!("{place}/{key}"), it, all));
            }
            // The elements of a list are alike.
            Value::Array(list) => {
                let first = list.iter().take(1);
                first.for_each(|it| numbers(format!("{place}/0"), it, all));
            }
            _ => {}
        }
    }

    #[test]
    fn no_number_of_a_report_makes_it_panic() {
        let mut report = run::report::tests::report();
        report.load.gaps = vec![crate::load::timeline::Gap {
            start_s: 1.0,
            duration_s: 0.5,
        }];
        let whole = serde_json::to_value(report).unwrap();
        let mut places = Vec::new();
        numbers(String::new(), &whole, &mut places);
        // The record of an end is text on a page, and counters are no part of it.
        places.retain(|it| {
            !["/client", "/server", "/machine", "/counters"]
                .iter()
                .any(|its| it.starts_with(its))
        });
        assert!(places.len() > 40, "{places:?}");
        let mut read = 0;
        for place in &places {
            for extreme in [json!(-1.0), json!(1e300), json!(0), json!(u64::MAX)] {
                let mut value = whole.clone();
                *value.pointer_mut(place).unwrap() = extreme;
                let name = format!("{place} = {}", value.pointer(place).unwrap());
                read += u32::from(Single::read(&SavedReport { name, value }, true, true).is_ok());
            }
        }
        assert!(read > 60, "most are no integers, but {read} were read");
    }
}
