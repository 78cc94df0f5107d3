//! `bench-tool compare`: whether two groups of runs differ beyond noise.
//!
//! | module | contents |
//! |---|---|
//! | [`runs`] | runs read from files, which are untrusted input |
//! | [`commands`] | runs of two alternating commands |
//! | [`pairs`] | which runs of A are compared with which of B |
//! | [`rank_sum`] | the significance test, and the size of a difference |
//! | [`rounds`] | the size of a difference between alternating runs |
//! | [`mod@verdict`] | the verdict |
//! | [`threshold`] | `--fail-if` |
//! | [`table`] | the table |

pub(crate) mod commands;
pub(crate) mod pairs;
pub(crate) mod rank_sum;
pub(crate) mod rounds;
pub(crate) mod runs;
pub(crate) mod table;
pub(crate) mod threshold;
pub(crate) mod verdict;

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use self::pairs::{Pair, Pairs};
use self::rank_sum::Design;
use self::runs::Runs;
use self::threshold::Check;
pub(crate) use self::threshold::Threshold;
use self::verdict::{Comparison, compare, sentence};
use crate::exit::{Failure, Status};
use crate::report::origin::Origin;
use crate::report::output::{Output, put_report};
use crate::report::table::warnings_of;
use crate::signals::Stop;

/// The `schema` of the JSON.
const SCHEMA: &str = "rpcrdma.bench-tool.compare/1";

/// Default of `--runs`: the largest number for which the test counts every choice.
pub(crate) const RUNS_DEFAULT: u32 = 10;

/// One side of a comparison.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Side {
    /// The file or the command of its runs.
    pub source: String,
    /// Number of runs.
    pub runs: usize,
}

/// A property in which the sides differ.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Difference {
    /// The key in a run's JSON.
    pub key: &'static str,
    /// Its value in the first run of A.
    pub a: Value,
    /// Its value in the first run of B.
    pub b: Value,
}

/// A combination of two sweeps.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ComparedPoint {
    /// Its name.
    pub point: String,
    /// Its figures.
    pub metrics: Vec<Comparison>,
    /// The verdict in one sentence.
    pub verdict: String,
}

/// A comparison. Its serialization is the JSON report, whose layout is stable.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// The program and command line that wrote it.
    #[serde(flatten)]
    origin: Origin,
    a: Side,
    b: Side,
    differences: Vec<Difference>,
    design: Design,
    /// Empty if there are combinations.
    metrics: Vec<Comparison>,
    /// The combinations of two sweeps; empty if there are none.
    points: Vec<ComparedPoint>,
    verdict: String,
    thresholds: Vec<Check>,
    interrupted: bool,
    warnings: Vec<String>,
}

impl Report {
    /// Compares the groups of each pair.
    #[must_use]
    pub(crate) fn new(
        command: String,
        sources: [String; 2],
        pairs: &Pairs,
        in_turns: bool,
        thresholds: &[Threshold],
    ) -> Self {
        let Pairs {
            pairs, left_out, ..
        } = pairs;
        let number = pairs.len();
        let design = match &pairs[..] {
            [Pair { sides: [a, b], .. }] => Design::of(in_turns, a.runs.len(), b.runs.len()),
            _ => Design::Apart,
        };
        let mut points: Vec<ComparedPoint> = pairs
            .iter()
            .map(
                |Pair {
                     label,
                     sides: [a, b],
                 }| {
                    let metrics = compare(&a.runs, &b.runs, design, number);
                    ComparedPoint {
                        point: label.clone(),
                        verdict: sentence(&metrics, number),
                        metrics,
                    }
                },
            )
            .collect();
        let checks = points.iter().flat_map(|it| {
            let check = |threshold: &Threshold| Check::new(*threshold, &it.point, &it.metrics);
            thresholds.iter().filter_map(check)
        });
        let thresholds = checks.collect();
        let verdict = verdict(&points);
        let metrics = match &mut points[..] {
            [only] if only.point.is_empty() => std::mem::take(&mut only.metrics),
            _ => Vec::new(),
        };
        points.retain(|it| !it.point.is_empty());
        let side = |source, side: usize| Side {
            source,
            runs: pairs.iter().map(|it| it.sides[side].runs.len()).sum(),
        };
        let [source_a, source_b] = sources;
        let mut warnings = warnings(pairs);
        warnings.extend(left_out.iter().map(|it| it.escape_debug().to_string()));
        Self {
            origin: Origin::new(SCHEMA, command),
            a: side(source_a, 0),
            b: side(source_b, 1),
            differences: differences(pairs),
            design,
            metrics,
            points,
            verdict,
            thresholds,
            interrupted: false,
            warnings,
        }
    }
}

impl ComparedPoint {
    /// Its verdict with its name; `None` if no figure differs beyond noise.
    fn difference(&self) -> Option<String> {
        let differs = self.metrics.iter().any(Comparison::is_significant);
        differs.then(|| match &*self.point {
            "" => self.verdict.clone(),
            point => format!("{point}: {}", self.verdict),
        })
    }
}

/// The verdict on all combinations in one sentence.
fn verdict(points: &[ComparedPoint]) -> String {
    let differing: Vec<String> = points
        .iter()
        .filter_map(ComparedPoint::difference)
        .collect();
    if differing.is_empty() {
        let all: Vec<Comparison> = points.iter().flat_map(|it| it.metrics.clone()).collect();
        return sentence(&all, points.len());
    }
    differing.join("; ")
}

/// In what the sides differ, each once.
fn differences(pairs: &[Pair]) -> Vec<Difference> {
    let mut all: Vec<Difference> = Vec::new();
    for Pair { sides: [a, b], .. } in pairs {
        let Some((a, b)) = a.runs.first().zip(b.runs.first()) else {
            continue;
        };
        for (key, a, b) in runs::differences(a, b) {
            if !all.iter().any(|it| it.key == key) {
                let (a, b) = (a.clone(), b.clone());
                all.push(Difference { key, a, b });
            }
        }
    }
    all
}

fn warnings(pairs: &[Pair]) -> Vec<String> {
    let mut warnings = Vec::new();
    let lengths = pairs
        .iter()
        .map(|it| it.sides.each_ref().map(|side| side.runs.len()));
    let few: Vec<[usize; 2]> = lengths
        .filter(|[a, b]| !verdict::are_enough(*a, *b, pairs.len()))
        .collect();
    if let [[a, b], ..] = few[..] {
        let of = match pairs.len() {
            1 => String::new(),
            all => format!(" at {} of {all} combinations", few.len()),
        };
        warnings.push(format!(
            "{a} and {b} runs{of}: their difference may be noise; make at least {} of each, better {RUNS_DEFAULT}",
            verdict::runs_least(pairs.len())
        ));
    }
    for (name, side) in [("A", 0), ("B", 1)] {
        let sides = || pairs.iter().map(|it| &it.sides[side]);
        match sides().map(|it| it.not_counted).sum() {
            0 => {}
            1 => warnings.push(format!(
                "{name}: 1 more run does not count, because the machine disturbed it or fewer clients stayed to its end"
            )),
            others => warnings.push(format!(
                "{name}: {others} more runs do not count, because the machine disturbed them or fewer clients stayed to \
                 their end"
            )),
        }
        match sides().filter(|it| it.are_disturbed).count() {
            0 => {}
            disturbed => warnings.push(format!(
                "{name}: every run that counts of {disturbed} of {} combinations was disturbed",
                pairs.len()
            )),
        }
        let runs = || sides().map(|it| &it.runs);
        let changing: BTreeSet<&str> = runs()
            .filter_map(|runs| Some((runs.first()?, runs)))
            .flat_map(|(first, runs)| runs.iter().flat_map(|run| runs::differences(first, run)))
            .map(|(key, ..)| key)
            .collect();
        if !changing.is_empty() {
            let keys = changing.into_iter().collect::<Vec<_>>().join(", ");
            warnings.push(format!(
                "the runs of {name} are not all of the same kind: they differ in {keys}"
            ));
        }
        let said = warnings_of(runs().flatten().map(|run| &run.warnings));
        warnings.extend(
            said.iter()
                .map(|warning| format!("{name}: {}", warning.escape_debug())),
        );
    }
    warnings
}

/// The source of the runs.
pub(crate) enum Source {
    /// Files with existing runs.
    Files([PathBuf; 2]),
    /// Two commands that alternate.
    Commands {
        /// Two commands, with `--` between them.
        words: Vec<String>,
        /// Runs of each.
        count: u32,
        /// Whether to show no progress.
        quiet: bool,
    },
}

/// Compares and writes the report.
///
/// # Errors
/// Files that cannot be read or compared, commands that fail, a report that cannot be written.
pub(crate) fn execute(
    source: &Source,
    thresholds: &[Threshold],
    json: Option<&Output>,
    command: String,
) -> Result<Status, Failure> {
    let (sources, pairs, interrupted) = sides(source)?;
    let in_turns = matches!(source, Source::Commands { .. });
    let mut report = Report::new(command, sources, &pairs, in_turns, thresholds);
    if interrupted {
        report.interrupted = true;
        report
            .warnings
            .push("stopped by a signal: the runs made until then are compared".to_owned());
    }
    put_report(&table::text(&report), &report, json)?;
    match Check::status(&report.thresholds) {
        // With fewer runs than requested, or without a combination, a threshold that is not exceeded proves nothing.
        Status::Success
            if !report.thresholds.is_empty() && (interrupted || pairs.is_incomplete) =>
        {
            Ok(Status::Failure)
        }
        status => Ok(status),
    }
}

type Sides = ([String; 2], Pairs, bool);

/// Reads the two files, or makes the runs.
fn sides(source: &Source) -> Result<Sides, Failure> {
    let (words, count, quiet) = match source {
        Source::Files(files) => {
            let [a, b] = files;
            let sources = [a, b].map(|path| path.display().to_string());
            let pairs = Pairs::new(&sources, [runs::from_file(a)?, runs::from_file(b)?])?;
            return Ok((sources, pairs, false));
        }
        Source::Commands {
            words,
            count,
            quiet,
        } => (commands::split(words)?, *count, *quiet),
    };
    let stop = Stop::on_signals()?;
    let runs = commands::take_turns(words, count, quiet, &stop)?;
    if runs.iter().any(Vec::is_empty) {
        return Err(
            Failure::failed("stopped by a signal before there was a run of either")
                .advice("let it run for longer, or lower --duration of the commands"),
        );
    }
    let sources = words.map(|words| words.join(" "));
    let pairs = Pairs::new(&sources, runs.map(|it| Runs::Alike(it.into())))?;
    Ok((sources, pairs, stop.is_asked()))
}

#[cfg(test)]
mod tests {
    use super::runs::Run;
    use super::*;
    use rpcrdma_testkit::CheckWords;
    use serde_json::json;

    fn group(p50s: &[f64], revision: &str) -> Vec<Run> {
        let run = |&p50: &f64| {
            let mut report = runs::tests::report(p50);
            report["revision"] = json!(revision);
            report["warnings"] = json!([format!("\u{1b}[31m{revision}")]);
            Run::new(&report).unwrap()
        };
        p50s.iter().map(run).collect()
    }

    fn compared(a: &[f64], b: &[f64]) -> Report {
        let runs = [group(a, "old"), group(b, "new\u{1b}[2J")];
        let sources = ["a.json".to_owned(), "b.json".to_owned()];
        let runs = Pairs::new(&sources, runs.map(|it| Runs::Alike(it.into()))).unwrap();
        Report::new(
            "test".to_owned(),
            sources,
            &runs,
            false,
            &["p50+5%".parse().unwrap()],
        )
    }

    const A: [f64; 7] = [400.0, 402.0, 399.0, 401.0, 405.0, 398.0, 403.0];

    #[test]
    fn the_table_says_what_differs_and_by_how_much() {
        let text = table::text(&compared(&A, &A.map(|p50| p50 * 1.1)));
        text.check_words(&[
            "A  7 runs  a.json",
            "revision: old in A, new?[2J in B",
            "95 % interval",
            "worse",
            "B is slower: p50 +10.0 %",
            "p50+5%: EXCEEDED, beyond noise (+10.0 %)",
        ]);
        assert!(
            !text.contains('\u{1b}'),
            "a file does not steer the terminal"
        );
        let same = table::text(&compared(&A, &A));
        same.check_words(&["\nno difference beyond noise\np50+5%: kept"]);
        let single = table::text(&compared(&[400.0], &[500.0]));
        assert!(single.contains("A  1 run  a.json"), "{single}");
        assert!(single.contains("warning: 1 and 1 runs"), "{single}");
    }

    #[test]
    fn the_json_holds_every_value() {
        let report = compared(&A, &A.map(|p50| p50 * 1.1));
        let value = serde_json::to_value(&report).unwrap();
        assert_eq!(value["schema"], SCHEMA);
        assert_eq!(value["metrics"][0]["a"].as_array().unwrap().len(), 7);
        assert_eq!(value["metrics"][0]["verdict"], "higher");
        assert_eq!(value["metrics"][3]["metric"], "p99_9");
        assert_eq!(value["thresholds"][0]["threshold"], "p50+5%");
        assert_eq!(value["thresholds"][0]["significant"], true);
        assert_eq!(value["differences"][0]["key"], "revision");
        assert_eq!(value["design"], "apart");
    }

    #[test]
    fn runs_that_are_not_made_alike_are_pointed_out() {
        let mut a = group(&A, "old");
        a.extend(group(&[400.0], "newer"));
        let sides = [a, group(&A, "new")].map(Into::into);
        let warnings = warnings(&[Pair::only(sides)]);
        warnings[0].check_words(&["runs of A", "revision"]);
    }
}
