//! Which runs of A are compared with which of B: all with all, or those of each combination of two sweeps.

use super::runs::{Repeats, Runs, SweptRuns};
use crate::exit::Failure;
use crate::sweep::grid::{Point, labels};

/// Runs of both sides that are compared with each other. Neither is empty.
#[derive(Debug)]
pub(crate) struct Pair {
    /// The combination; empty if there are no others.
    pub label: String,
    /// Those of A and those of B.
    pub sides: [Repeats; 2],
}

impl Pair {
    /// Runs without combinations.
    pub(crate) const fn only(sides: [Repeats; 2]) -> Self {
        Self {
            label: String::new(),
            sides,
        }
    }
}

/// What is compared, and what is not.
#[derive(Debug)]
pub(crate) struct Pairs {
    /// At least one.
    pub pairs: Vec<Pair>,
    /// The combinations that are left out, and why, one sentence each.
    pub left_out: Vec<String>,
    /// Whether a combination that both sides have is left out.
    pub is_incomplete: bool,
}

impl Pairs {
    /// Pairs the combinations of two sweeps, and otherwise all runs.
    ///
    /// # Errors
    /// Sides that cannot be compared.
    pub(crate) fn new(sources: &[String; 2], sides: [Runs; 2]) -> Result<Self, Failure> {
        let [a, b] = sources;
        let are_fleets = sides.each_ref().map(Runs::are_of_fleets);
        if are_fleets[0] != are_fleets[1] {
            let [fleet, single] = if are_fleets[0] { [a, b] } else { [b, a] };
            return Err(refused(format!(
                "{fleet} is of a fleet and {single} of one process: a run of the fleet has the calls of all its clients"
            )));
        }
        let (points, others) = match sides {
            [Runs::Alike(a), Runs::Alike(b)] => {
                return Ok(Self {
                    pairs: vec![Pair::only([a, b])],
                    left_out: Vec::new(),
                    is_incomplete: false,
                });
            }
            [
                Runs::Swept { points, .. },
                Runs::Swept { points: others, .. },
            ] => (points, others),
            [Runs::Swept { .. }, Runs::Alike(_)] => return Err(one_has_combinations(a, b)),
            [Runs::Alike(_), Runs::Swept { .. }] => return Err(one_has_combinations(b, a)),
        };
        let pairs = Self::of_points(points, others);
        match (pairs.pairs.is_empty(), pairs.left_out.first()) {
            (false, _) => Ok(pairs),
            (true, Some(first)) if pairs.is_incomplete => Err(refused(format!(
                "no combination of {a} and {b} has runs on both sides that can be compared; {first}"
            ))),
            (true, _) => Err(refused(format!(
                "{a} and {b} have no combination in common"
            ))),
        }
    }

    fn of_points(a: Vec<SweptRuns>, mut b: Vec<SweptRuns>) -> Self {
        let has = |points: &[SweptRuns], point: Point| points.iter().any(|it| it.0 == point);
        let only_b = b.iter().filter(|it| !has(&a, it.0));
        let all: Vec<Point> = a.iter().chain(only_b).map(|it| it.0).collect();
        let mut made = Self {
            pairs: Vec::new(),
            left_out: Vec::new(),
            is_incomplete: false,
        };
        let mut a = a.into_iter();
        for (point, label) in all.iter().zip(labels(&all)) {
            let ours = a.next().map(|it| it.1);
            let theirs = b.iter().position(|it| it.0 == *point);
            let theirs = theirs.map(|at| b.swap_remove(at).1);
            let why = match (ours, theirs) {
                (Some(Ok(ours)), Some(Ok(theirs))) => {
                    let sides = [ours, theirs];
                    made.pairs.push(Pair { label, sides });
                    continue;
                }
                (Some(ours), Some(theirs)) => {
                    made.is_incomplete = true;
                    let named = [("A", ours.err()), ("B", theirs.err())];
                    let whys = named
                        .into_iter()
                        .filter_map(|(name, why)| Some(format!("{name}: {}", why?)));
                    whys.collect::<Vec<_>>().join("; ")
                }
                (Some(_), None) => "only A has it".to_owned(),
                (None, _) => "only B has it".to_owned(),
            };
            made.left_out.push(format!("{label} is left out: {why}"));
        }
        made
    }
}

fn one_has_combinations(swept: &str, other: &str) -> Failure {
    refused(format!(
        "{swept} has several combinations of a sweep, and {other} has runs of one kind"
    ))
}

fn refused(why: String) -> Failure {
    Failure::failed(format!("these files cannot be compared: {why}"))
        .advice("give two sweeps over the same lists, or two files with runs of one kind each")
}

#[cfg(test)]
mod tests {
    use super::super::runs::tests::report;
    use super::super::runs::{from_file, from_text};
    use super::super::{Report, table};
    use super::*;
    use crate::{fleet, sweep};
    use rpcrdma_testkit::{CheckWords, Folder};
    use serde_json::{Value, json};

    /// A sweep whose depths have runs with these medians.
    fn sweep(points: &[(u32, &[f64])]) -> Value {
        let (mut grid, mut runs) = (Vec::new(), Vec::new());
        for (depth, p50s) in points {
            let places: Vec<usize> = (runs.len()..).take(p50s.len()).collect();
            grid.push(json!({
                "op": "null", "size_bytes": null, "placement": "auto", "depth": depth, "connections": 1,
                "offered_rate_per_s": null, "runs": places,
            }));
            runs.extend(p50s.iter().map(|p50| {
                let mut run = report(*p50);
                run["depth"] = json!(depth);
                run
            }));
        }
        json!({
            "schema": sweep::SCHEMA, "repeats": 7, "interrupted": false, "points": grid, "runs": runs, "failures": [],
        })
    }

    /// The same over a fleet of two clients.
    fn of_fleet(mut sweep: Value) -> Value {
        sweep["schema"] = fleet::sweep::report::SCHEMA.into();
        for run in sweep["runs"].as_array_mut().unwrap() {
            let client =
                json!({"report": {"op": run["op"], "revision": run["revision"], "seed": 7}});
            run["schema"] = fleet::report::SCHEMA.into();
            run["clients"] = json!([client, client]);
            run.as_object_mut().unwrap().remove("op");
        }
        sweep
    }

    fn paired(a: &Value, b: &Value) -> Result<Pairs, Failure> {
        let folder = Folder::new("pairs");
        let sides = [("a.json", a), ("b.json", b)].map(|(name, side)| {
            folder.write(name, side.to_string());
            from_file(&folder.join(name)).unwrap()
        });
        Pairs::new(&["a.json", "b.json"].map(str::to_owned), sides)
    }

    fn compared(pairs: &Pairs) -> Report {
        let thresholds = ["p50+5%".parse().unwrap()];
        let sources = ["a.json", "b.json"].map(str::to_owned);
        Report::new("test".to_owned(), sources, pairs, false, &thresholds)
    }

    const A: [f64; 7] = [400.0, 402.0, 399.0, 401.0, 405.0, 398.0, 403.0];

    #[test]
    fn each_combination_of_two_sweeps_is_compared_without_its_disturbed_runs() {
        let slower = A.map(|p50| p50 * 1.1);
        let a = sweep(&[(1, &A), (4, &A)]);
        let mut b = sweep(&[(4, &slower), (1, &[&A[..], &[9e4]].concat())]);
        b["runs"][14]["disturbed"] = true.into();
        let mut of_fleets = [of_fleet(a.clone()), of_fleet(b.clone())];
        let client = &mut of_fleets[1]["runs"][14]["clients"][1];
        client["report"]["disturbed"] = true.into();
        of_fleets[1]["runs"][14]["disturbed"] = Value::Null;
        let [fleet_a, fleet_b] = &of_fleets;
        for (a, b) in [(&a, &b), (fleet_a, fleet_b)] {
            let report = compared(&paired(a, b).unwrap());
            assert_eq!((report.a.runs, report.b.runs), (14, 14));
            let points: Vec<&str> = report.points.iter().map(|it| &*it.point).collect();
            assert_eq!(points, ["depth 1", "depth 4"]);
            assert!(report.metrics.is_empty() && report.differences.is_empty());
            table::text(&report).check_words(&[
                "A  14 runs  a.json\n",
                "\nwarning: B: 1 more run does not count, because the machine disturbed it or fewer clients stayed to its end",
                "\n\ndepth 4\n",
                "\ndepth 4: B is slower: p50 +10.0 %",
                "\ndepth 1: p50+5%: kept (+0.0 %)\n",
                "\ndepth 4: p50+5%: EXCEEDED, beyond noise (+10.0 %)\n",
            ]);
            assert_eq!(report.points[0].verdict, "no difference beyond noise");
            // Seven runs of each can be divided in 3432 ways, and there are two combinations.
            let [p50, ..] = &report.points[1].metrics[..] else {
                panic!("{report:?}");
            };
            let p = p50.p_adjusted.unwrap();
            assert!((p - 2.0 * 2.0 / 3432.0).abs() < 1e-9, "{p}");
        }
    }

    #[test]
    fn a_combination_whose_runs_were_all_disturbed_is_compared_with_a_warning() {
        let a = sweep(&[(1, &A), (4, &A)]);
        let mut b = a.clone();
        for run in &mut b["runs"].as_array_mut().unwrap()[7..] {
            run["disturbed"] = true.into();
        }
        let report = compared(&paired(&a, &b).unwrap());
        assert_eq!((report.a.runs, report.b.runs), (14, 14));
        let warning = "B: every run that counts of 1 of 2 combinations was disturbed";
        assert_eq!(report.warnings, [warning]);
    }

    #[test]
    fn many_combinations_need_more_runs() {
        let few = [(1, &A[..4]), (4, &A[..4])];
        let report = compared(&paired(&sweep(&few), &sweep(&few)).unwrap());
        assert!(report.verdict.contains("at least 5 of each"), "{report:?}");
        report.warnings[0].check_words(&["4 and 4 runs at 2 of 2 combinations", "at least 5"]);
    }

    #[test]
    fn unpaired_and_incomparable_combinations_are_left_out() {
        let a = sweep(&[(1, &A), (4, &A), (8, &A), (9, &[])]);
        let mut b = sweep(&[(4, &A), (2, &A), (8, &A), (9, &A)]);
        let whole = paired(&a, &b).unwrap();
        assert_eq!(whole.pairs.len(), 2);
        b["runs"][14]["disturbed"] = true.into();
        b["runs"][15]["errors"] = 3.into();
        let pairs = paired(&a, &b).unwrap();
        assert!(pairs.is_incomplete && pairs.pairs.len() == 1);
        compared(&pairs).warnings.join("\n").check_words(&[
            "depth 1 is left out: only A has it",
            "depth 2 is left out: only B has it",
            "depth 8 is left out: B: run 2: it is not whole: 3 calls ended in an error",
            "depth 9 is left out: A: it contains no run",
        ]);
        let pairs = paired(&sweep(&[(1, &A), (4, &A)]), &sweep(&[(4, &A), (2, &A)])).unwrap();
        assert!(!pairs.is_incomplete);
    }

    #[test]
    fn sides_that_cannot_be_compared_are_refused_with_the_reason() {
        let two = sweep(&[(1, &A), (4, &A)]);
        let none = sweep(&[(1, &[]), (4, &[])]);
        let run = report(400.0);
        for (a, b, words) in [
            (
                &two,
                &run,
                "a.json has several combinations of a sweep, and b.json",
            ),
            (
                &run,
                &two,
                "b.json has several combinations of a sweep, and a.json",
            ),
            (
                &two,
                &of_fleet(two.clone()),
                "b.json is of a fleet and a.json of one process",
            ),
            (
                &two,
                &sweep(&[(2, &A), (8, &A)]),
                "have no combination in common",
            ),
            (
                &two,
                &none,
                "no combination of a.json and b.json has runs on both sides",
            ),
        ] {
            let failure = paired(a, b).unwrap_err().to_string();
            assert!(failure.contains(words), "{words}: {failure}");
        }
        let one_of_fleet = of_fleet(sweep(&[(1, &A)]));
        let failure = paired(&one_of_fleet, &run).unwrap_err().to_string();
        assert!(failure.contains("a.json is of a fleet"), "{failure}");
        // A sweep of one combination is a list of its runs, over a fleet too; and so are reports of fleets.
        let one = paired(&sweep(&[(1, &A)]), &run).unwrap();
        assert!(one.pairs[0].label.is_empty());
        let fleet = of_fleet(sweep(&[(1, &A)]));
        let several = &fleet["runs"];
        let mut earlier = sweep(&[(1, &A)]);
        earlier.as_object_mut().unwrap().remove("points");
        let pairs = paired(&earlier, &run).unwrap();
        assert_eq!(pairs.pairs[0].sides[0].runs.len(), 7);
        let pairs = paired(&fleet, several).unwrap();
        let numbers = pairs.pairs[0].sides.each_ref().map(|it| it.runs.len());
        assert_eq!(numbers, [7, 7]);
        let mut fewer = fleet.clone();
        fewer["runs"][0]["clients"].as_array_mut().unwrap().pop();
        let refused = from_text(&fewer["runs"].to_string(), "a.json").unwrap_err();
        refused.check_words(&["clients is 1 and 2"]);
        let mut wrong = two.clone();
        wrong["points"][0]["runs"] = json!([0, 0]);
        let folder = Folder::new("pairs-wrong");
        folder.write("a.json", wrong.to_string());
        let refused = from_file(&folder.join("a.json")).unwrap_err();
        refused.check_words(&["its points do not name each of its runs once"]);
        folder.write("a.json", format!("{two}{two}"));
        let refused = from_file(&folder.join("a.json")).unwrap_err();
        refused.check_words(&["a sweep and other reports"]);
    }
}
