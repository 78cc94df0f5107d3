//! Several saved reports, and their table.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde::Deserialize as _;
use serde::de::IgnoredAny;

use super::facts::{self, Compared, Facts};
use super::single::{Kind, load_of, no_report, of_all_steps};
use crate::exit::Failure;
use crate::histogram::LatencyHistogram;
use crate::report::figures::seconds;
use crate::report::knee::KneeReport;
use crate::report::saved::{SavedError, SavedLoad, SavedReport};
use crate::report::table::{latency_cells, write_warnings};
use crate::report::whole::Account;
use rpcrdma_units::{count, rate, text_of};

/// One of the reports.
#[derive(Debug)]
pub(super) struct Entry {
    /// The file's name.
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) command: String,
    pub(super) load: SavedLoad,
    /// `None` in a report of an earlier version.
    pub(super) latency: Option<LatencyHistogram>,
    /// The report of `--to-knee`.
    pub(super) knee: Option<KneeReport<IgnoredAny>>,
    /// Those of all steps of `--to-knee` too.
    warnings: Vec<String>,
    /// Calls that failed, in all steps of `--to-knee` too.
    errors: u64,
    pub(super) facts: Facts,
}

impl Entry {
    fn read(report: &SavedReport) -> Result<Self, Failure> {
        let kind = Kind::of(report)?;
        let wrong = |error: SavedError| no_report(report, error.to_string());
        let of_load = load_of(kind, &report.value);
        let load = SavedLoad::of(of_load).map_err(wrong)?;
        let latency = load.latency().map_err(wrong)?;
        let knee = match kind {
            Kind::Knee => Some(KneeReport::deserialize(&report.value)),
            _ => None,
        };
        let knee = knee.transpose().map_err(|error| wrong(error.into()))?;
        let (warnings, errors) = match kind {
            Kind::Knee => of_all_steps(&report.value).map_err(|error| wrong(error.into()))?,
            _ => (load.warnings.clone(), load.errors),
        };
        let text = |key: &str| report.value[key].as_str().unwrap_or_default().to_owned();
        Ok(Self {
            name: report.name.clone(),
            kind,
            command: text("command"),
            latency,
            knee,
            warnings,
            errors,
            facts: facts::of(of_load),
            load,
        })
    }

    /// The cells of [`COLUMNS`].
    pub(super) fn cells(&self) -> [String; 9] {
        let load = &self.load;
        let latency = &load.latency_ns;
        let latencies = [latency.p50, latency.p99, latency.p99_9, latency.max];
        let [p50, p99, p99_9, max] = latency_cells((latency.count > 0).then_some(latencies));
        [
            seconds(load.duration_s),
            count(load.calls),
            rate(load.rate_per_s),
            p50,
            p99,
            p99_9,
            max,
            count(self.errors),
            count(self.warnings.len() as u64),
        ]
    }

    /// When it began, to the second.
    pub(super) fn began(&self) -> &str {
        match &*self.load.began {
            "" => "unknown",
            began => to_the_second(began),
        }
    }

    /// `began ...`, and when the last part of a sum ended.
    pub(super) fn times(&self) -> String {
        let ended = self.load.ended.as_deref().map(to_the_second);
        let ended = ended.map(|ended| format!(", the last part ended {ended}"));
        format!("began {}{}", self.began(), ended.unwrap_or_default())
    }

    /// How it ended: `whole`, or why its figures mean less.
    pub(super) fn state(&self) -> String {
        let load = &self.load;
        let account = load.account();
        let mut doubts = Account {
            interrupted: self.knee.as_ref().is_some_and(|it| it.interrupted) || load.interrupted,
            errors: self.errors,
            ..account
        }
        .doubts();
        if load.losses.connections_lost > 0 {
            doubts.push(format!(
                "{} connections lost, {} made again",
                count(load.losses.connections_lost),
                count(load.losses.reconnects)
            ));
        }
        if load.disturbed {
            doubts.push("disturbed by the machine".to_owned());
        }
        if self.latency.is_none() && load.calls > 0 {
            doubts.push("no histogram: of an earlier version".to_owned());
        }
        match doubts.is_empty() {
            true => "whole".to_owned(),
            false => doubts.join("; "),
        }
    }
}

/// A time without the fraction of its second.
fn to_the_second(time: &str) -> &str {
    time.split('.').next().unwrap_or(time)
}

/// Column names of a report, after its number and date.
pub(super) const COLUMNS: [&str; 9] = [
    "measured", "calls", "rate", "p50", "p99", "p99.9", "max", "errors", "warnings",
];

/// The reports, at least one.
#[derive(Debug)]
pub(super) struct Several {
    pub(super) entries: Vec<Entry>,
    pub(super) compared: Compared,
}

impl Several {
    /// Reads all of them.
    ///
    /// # Errors
    /// A failure that names the file and what is wrong with it.
    pub(super) fn read(reports: &[SavedReport]) -> Result<Self, Failure> {
        let entries: Vec<Entry> = reports.iter().map(Entry::read).collect::<Result<_, _>>()?;
        let facts: Vec<&Facts> = entries.iter().map(|it| &it.facts).collect();
        let compared = facts::compare(&facts);
        Ok(Self { entries, compared })
    }

    /// The warnings of all reports, each with the numbers of the reports that have it.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut of_reports: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (number, entry) in (1..).zip(&self.entries) {
            for warning in &entry.warnings {
                let numbers = of_reports.entry(warning).or_default();
                if numbers.last() != Some(&number) {
                    numbers.push(number);
                }
            }
        }
        let named =
            |(warning, numbers): (&str, Vec<usize>)| format!("{}: {warning}", runs(&numbers));
        let mut all: Vec<(&str, Vec<usize>)> = of_reports.into_iter().collect();
        all.sort_by(|(_, a), (_, b)| a.cmp(b));
        all.into_iter().map(named).collect()
    }

    /// The table for the terminal.
    pub(super) fn table(&self) -> String {
        text_of(|text| self.write(text))
    }

    fn write(&self, text: &mut String) -> fmt::Result {
        write!(text, "{:<5} {:<20}", "run", "began")?;
        COLUMNS
            .iter()
            .try_for_each(|name| write!(text, "{name:>12}"))?;
        writeln!(text)?;
        for (number, entry) in (1..).zip(&self.entries) {
            write!(text, "{number:<5} {:<20}", entry.began())?;
            entry
                .cells()
                .iter()
                .try_for_each(|cell| write!(text, "{cell:>12}"))?;
            writeln!(text)?;
        }
        writeln!(text)?;
        for (number, entry) in (1..).zip(&self.entries) {
            let (name, kind, state) = (&entry.name, entry.kind.command(), entry.state());
            writeln!(
                text,
                "run {number}  {name} ({kind}): {state}\n       {}",
                entry.command
            )?;
            if entry.load.ended.is_some() {
                writeln!(text, "       {}", entry.times())?;
            }
            if let Some(knee) = &entry.knee {
                writeln!(text, "       knee {}", knee.finding())?;
            }
        }
        if !self.compared.differing.is_empty() && self.entries.len() > 1 {
            writeln!(text, "\nwhat differs")?;
            for (path, values) in &self.compared.differing {
                writeln!(text, "  {path}: {}", grouped(values))?;
            }
        }
        write_warnings(text, &self.warnings())
    }
}

/// `run 1` or `runs 1, 2`.
fn runs(numbers: &[usize]) -> String {
    let list: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    let name = if numbers.len() == 1 { "run" } else { "runs" };
    format!("{name} {}", list.join(", "))
}

/// The values of the reports, each once with the numbers of its reports.
fn grouped(values: &[Option<String>]) -> String {
    let mut groups: Vec<(&str, Vec<usize>)> = Vec::new();
    for (number, value) in (1..).zip(values) {
        let value = value_text(value.as_ref());
        match groups.iter_mut().find(|(other, _)| *other == value) {
            Some((_, numbers)) => numbers.push(number),
            None => groups.push((value, vec![number])),
        }
    }
    let texts = groups
        .iter()
        .map(|(value, numbers)| format!("{value} ({})", runs(numbers)));
    texts.collect::<Vec<_>>().join(", ")
}

/// A value of a fact, or that the report does not have it.
pub(super) fn value_text(value: Option<&String>) -> &str {
    value.map_or("not in the report", String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::knee::tests::knee_report;

    #[test]
    fn errors_and_warnings_of_one_climb_step_are_shown() {
        let mut report = knee_report();
        let entry = |report: &KneeReport<crate::run::report::Report>| {
            let value = serde_json::to_value(report).unwrap();
            let name = "a.json".to_owned();
            Several::read(&[SavedReport { name, value }]).unwrap()
        };
        let whole = entry(&report);
        let before = whole.warnings().len();
        assert_eq!(whole.entries[0].state(), "whole");
        report.interrupted = true;
        report.steps[0].errors = 3;
        report.steps[0].is_reached = true;
        report.steps[0].warnings = vec!["the clock jumped".to_owned()];
        let several = entry(&report);
        let state = several.entries[0].state();
        assert_eq!(state, "ended early; 3 calls ended in an error");
        let [.., errors, warnings] = several.entries[0].cells();
        assert_eq!(
            [errors, warnings],
            [count(report.errors()), count(before as u64 + 1)]
        );
        assert!(report.errors() >= 3 && several.table().contains("other warnings"));
    }
}
