//! The report of a sweep over a fleet, and its table.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fleet::clock::signed_nanoseconds;
use crate::fleet::config::FleetConfig;
use crate::fleet::report::{ClientFigures, FleetReport, clients_text, write_failed};
use crate::fleet::round::Failed;
use crate::machine::Machine;
use crate::report::Word;
use crate::report::figures::LoadFigures;
use crate::report::origin::Origin;
use crate::report::table::write_warnings;
use crate::sweep::Sweep;
use crate::sweep::runs::{Clients, Repeat, Swept, SweptReport};
use crate::sweep::table;
use rpcrdma_units::{count, nanoseconds, text_of};

/// Name and version of the JSON layout. The version changes only if a key changes its meaning or is removed.
pub(crate) const SCHEMA: &str = "rpcrdma.bench-tool.fleet-sweep/1";

/// What failed at a client, and at which combination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClientFailure {
    /// The combination.
    pub point: String,
    /// The client, and why.
    #[serde(flatten)]
    pub failed: Failed,
}

impl fmt::Display for ClientFailure {
    /// `depth 1: client 2 on c while it ran: it ended (signal: 9)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.point, self.failed)
    }
}

/// The report. Its serialization is the JSON report, whose layout is stable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FleetSweepReport {
    /// The program and command line that wrote it.
    #[serde(flatten)]
    pub origin: Origin,
    /// The machine of the coordinator.
    pub machine: Machine,
    /// The command of the clients, with the lists of the sweep.
    pub client_command: String,
    /// Who calls whom.
    pub pattern: Word,
    /// How many clients there were to be.
    pub clients_asked: usize,
    /// The combinations, and a report of the fleet for each run.
    #[serde(flatten)]
    pub swept: Swept<FleetReport>,
    /// What failed at single clients. What fails at all of them is a failure of the combination.
    pub client_failures: Vec<ClientFailure>,
}

impl Repeat for FleetReport {
    fn is_disturbed(&self) -> bool {
        self.clients.iter().any(|it| it.report.is_disturbed())
    }

    fn clients(&self) -> Clients {
        let failures = self.failures.iter().skip(self.failures_before);
        Clients::of_fleet(
            self.clients.iter().map(|it| &it.report),
            failures.map(|it| &*it.when),
            self.load.interrupted,
            self.load.offered_rate_per_s,
        )
    }
}

impl SweptReport for FleetReport {
    const MORE_COLUMNS: &'static [&'static str] = &[
        "errors",
        "clients",
        "clients_asked",
        "fairness",
        "slowest_client",
        "start_skew_ns_max",
        "start_uncertainty_ns_max",
    ];

    fn load(&self) -> &LoadFigures {
        &self.load
    }

    fn warnings(&self) -> &Vec<String> {
        &self.warnings
    }

    fn path(&self) -> Option<String> {
        let report = &self.clients.first()?.report;
        let [protocol, fabric] = ["protocol", "fabric"].map(|key| report[key].as_str());
        Some(format!("{} over {}", protocol?, fabric?))
    }

    fn work(&self) -> [String; 4] {
        let reports = || self.clients.iter().map(|it| &it.report);
        ["op", "size_bytes", "placement_asked", "placement"].map(|key| {
            let values: BTreeSet<String> = reports().map(|it| cell(&it[key])).collect();
            let values: Vec<String> = values.into_iter().collect();
            // The ends choose the placement, each pair for itself.
            values.join(" or ")
        })
    }

    fn more_cells(&self) -> Vec<String> {
        vec![
            self.load.errors.to_string(),
            Repeat::clients(self).stayed.to_string(),
            self.clients_asked.to_string(),
            text(self.fairness),
            text(self.slowest_client),
            text(self.start_skew_ns_max),
            text(self.start_uncertainty_ns_max),
        ]
    }
}

fn text(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |it| it.to_string())
}

/// A value of a client's report, as text.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The columns about the clients, behind the combination.
pub(super) const COLUMNS: [&str; 5] = ["clients", "errors", "fairness", "start", "slowest"];

impl Sweep for FleetSweepReport {
    type Run = FleetReport;

    fn swept(&self) -> &Swept<FleetReport> {
        &self.swept
    }

    fn table(&self) -> String {
        text_of(|text| self.write(text))
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = table::warnings(&self.swept);
        let points = self.swept.points.len();
        let has_fewer = |place: &usize| {
            let first = self.swept.counted(*place).next();
            first.is_some_and(|it| Repeat::clients(it).stayed < self.clients_asked)
        };
        let fewer = (0..points).filter(has_fewer).count();
        if fewer > 0 {
            warnings.push(format!(
                "{fewer} of the {points} combinations have fewer clients than the {} that were asked for: their figures are \
                 those of another load",
                self.clients_asked
            ));
        }
        let left_out = self.swept.with_fewer_clients();
        if left_out > 0 {
            warnings.push(format!(
                "{left_out} of the {} runs had fewer clients than others of their combination, or lost one, and are in no \
                 median",
                self.swept.runs.len()
            ));
        }
        warnings
    }

    fn page(&self) -> String {
        self.sweep_page()
    }
}

impl FleetSweepReport {
    pub(super) fn new(
        config: &FleetConfig,
        machine: &Machine,
        swept: Swept<FleetReport>,
        client_failures: Vec<ClientFailure>,
    ) -> Self {
        Self {
            origin: Origin::new(SCHEMA, config.command.clone()),
            machine: machine.clone(),
            client_command: config.client_command.clone(),
            pattern: config.plan.pattern.name().into(),
            clients_asked: config.plan.clients.len(),
            swept,
            client_failures,
        }
    }

    /// `fleet of 8 clients, many-to-one`.
    pub(super) fn clients_text(&self) -> String {
        clients_text(self.clients_asked, &self.pattern)
    }

    /// The cells of [`COLUMNS`] for a combination: of the runs whose figures count.
    pub(super) fn client_cells(&self, place: usize) -> [String; 5] {
        let runs: Vec<&FleetReport> = self.swept.counted(place).collect();
        let Some(first) = runs.first() else {
            return COLUMNS.map(|_| "-".to_owned());
        };
        let errors = runs
            .iter()
            .fold(0, |sum: u64, run| sum.saturating_add(run.load.errors));
        let fairness = runs.iter().filter_map(|run| run.fairness);
        let fairness = fairness.min_by(f64::total_cmp);
        let starts = runs.iter().flat_map(|run| &run.clients);
        let start = starts
            .filter_map(|it| it.start_skew_ns)
            .max_by_key(|it| it.unsigned_abs());
        let dash = || "-".to_owned();
        [
            format!(
                "{} of {}",
                Repeat::clients(*first).stayed,
                self.clients_asked
            ),
            count(errors),
            fairness.map_or_else(dash, |it| format!("{it:.4}")),
            start.map_or_else(dash, signed_nanoseconds),
            slowest(&runs).map_or_else(dash, |it| {
                let p99 = nanoseconds(it.latency_ns.p99);
                format!("client {} on {}, p99 {p99}", it.client, it.host)
            }),
        ]
    }

    fn write(&self, text: &mut String) -> fmt::Result {
        writeln!(
            text,
            "{}; each: {}",
            self.clients_text(),
            self.client_command
        )?;
        table::write(text, &self.swept)?;
        self.write_clients(text)?;
        write_failed(text, &self.client_failures)?;
        write_warnings(text, &self.warnings())
    }

    fn write_clients(&self, text: &mut String) -> fmt::Result {
        let axes = self.swept.axes();
        let line = |text: &mut String, cells: [String; 5]| {
            let [clients, errors, fairness, start, slowest] = cells;
            writeln!(
                text,
                "{clients:>14}{errors:>10}{fairness:>12}{start:>12}  {slowest}"
            )
        };
        writeln!(text)?;
        table::write_heads(text, &axes)?;
        line(text, COLUMNS.map(str::to_owned))?;
        for place in 0..self.swept.points.len() {
            table::write_values(text, &self.swept, &axes, place)?;
            line(text, self.client_cells(place))?;
        }
        Ok(())
    }
}

/// The client with the largest p99 in any of the runs.
fn slowest<'a>(runs: &[&'a FleetReport]) -> Option<&'a ClientFigures> {
    let clients = runs.iter().flat_map(|run| &run.clients);
    let with_calls = clients.filter(|it| it.calls > 0);
    with_calls.max_by_key(|it| it.latency_ns.p99)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::report::tests::{config, measured, round};
    use crate::report::escape::tests::elements;
    use crate::sweep::grid::Point;
    use crate::sweep::runs::{PointFailure, SweptPoint};
    use crate::workloads::bench::op::{Op, Placement};
    use rpcrdma_testkit::CheckWords;

    /// Two of three clients ran at the first and the second depth, and one of them again at the first.
    fn report() -> FleetSweepReport {
        let mut second = round();
        second.reported.truncate(1);
        let runs = [measured(round()), measured(round()), measured(second)];
        let point = |depth, runs: &[usize]| SweptPoint {
            point: Point {
                op: Op::Null,
                size: None,
                placement: Placement::Auto,
                depth,
                connections: 1,
                rate_per_s: None,
            },
            runs: runs.to_vec(),
        };
        let swept = Swept {
            repeats: 2,
            interrupted: false,
            points: vec![point(1, &[0, 2]), point(4, &[1]), point(9, &[])],
            runs: runs.to_vec(),
            failures: vec![PointFailure {
                point: "depth 9".to_owned(),
                failure: "no client is left".to_owned(),
            }],
        };
        let failure = ClientFailure {
            point: "depth 1".to_owned(),
            failed: runs[0].failures[0].clone(),
        };
        FleetSweepReport::new(&config(), &Machine::detect(), swept, vec![failure])
    }

    #[test]
    fn the_table_says_how_many_clients_each_combination_had_and_which_failed() {
        let mut report = report();
        report.table().check_words(&[
            "fleet of 3 clients, many-to-one; each: run --connect shm:x\nnull, connections 1, v2 over shm; medians of 2 runs\n",
            "  from 1 run\n           4    ",
            "\n           1        2 of 3         0      0.9000   -30.00 us  client 1 on b, p99 2.000 ms\n",
            "\n           4        2 of 3         0      0.9000   -30.00 us  client 1 on b, p99 2.000 ms\n",
            "\n           9             -         -           -           -  -\n",
            "\nfailed    depth 1: client 2 on c while it ran: it ended (signal: 9)\n",
            "warning: depth 9 failed: no client is left",
            "2 of the 3 combinations have fewer clients than the 3 that were asked for",
            "1 of the 3 runs had fewer clients than others of their combination, or lost one, and are in no median",
        ]);
        assert_eq!(report.swept.counted(0).count(), 1);
        // A combination is disturbed if one of its clients was in each run with the most clients.
        report.swept.runs[1].clients[1].report["disturbed"] = true.into();
        let marked =
            |report: &FleetSweepReport| report.table().matches("  disturbed, from 1 run\n").count();
        assert_eq!(marked(&report), 1);
        report.swept.runs[0].clients[0].report["disturbed"] = true.into();
        assert_eq!(marked(&report), 2);
        assert_eq!(report.client_cells(0)[0], "2 of 3");
        // A client that left early is none.
        let left = &mut report.swept.runs[0].clients[0].report;
        left["failure"] = "the server is gone".into();
        report.swept.runs[2].failures.clear();
        let numbers: Vec<usize> = report.swept.numbered(0).map(|it| it.0).collect();
        assert_eq!(
            (numbers, &report.client_cells(0)[0][..]),
            (vec![2], "1 of 3")
        );
    }

    #[test]
    fn the_csv_has_the_sums_of_each_run_and_its_clients() {
        let csv = table::csv(&report().swept);
        let lines: Vec<Vec<&str>> = csv.lines().map(|it| it.split(',').collect()).collect();
        assert!(lines.len() == 4 && lines.iter().all(|it| it.len() == lines[0].len()));
        let place = |name| lines[0].iter().position(|it| *it == name).unwrap();
        let cells = [
            "calls",
            "connections",
            "clients",
            "clients_asked",
            "slowest_client",
        ]
        .map(place);
        assert_eq!(cells.map(|it| lines[1][it]), ["2000", "2", "2", "3", "1"]);
        assert_eq!(cells.map(|it| lines[3][it]), ["1000", "1", "1", "3", "0"]);
        assert_eq!(lines[1][place("start_skew_ns_max")], "30000");
    }

    #[test]
    fn text_of_a_client_is_no_formula_in_the_csv() {
        let mut report = report();
        report.swept.runs[0].clients[0].report["placement"] = "=cmd|' /C calc'!A0".into();
        let csv = table::csv(&report.swept);
        let cell = csv.lines().nth(1).and_then(|line| line.split(',').nth(3));
        assert_eq!(cell.map(|it| it.starts_with("'=cmd|")), Some(true), "{csv}");
    }

    #[test]
    fn the_keys_of_the_json_are_stable_and_it_is_read_again() {
        let report = report();
        let value = serde_json::to_value(&report).unwrap();
        let keys = |value: &Value| -> String {
            let keys = value.as_object().unwrap().keys().cloned();
            keys.collect::<Vec<_>>().join(" ")
        };
        let expected = "client_command client_failures clients_asked command failures interrupted machine pattern points \
                        repeats revision runs schema version";
        assert_eq!(keys(&value), expected);
        let expected = "connections depth offered_rate_per_s op placement runs size_bytes";
        assert_eq!(keys(&value["points"][0]), expected);
        assert_eq!(
            keys(&value["client_failures"][0]),
            "client host point when why"
        );
        let again: FleetSweepReport = serde_json::from_value(value).unwrap();
        assert!(again.swept.has_each_run_once());
        assert_eq!(
            (again.table(), again.page()),
            (report.table(), report.page())
        );
        for runs in [vec![0], vec![0, 0], vec![0, 1], vec![0, 9]] {
            let mut wrong = again.clone();
            wrong.swept.points[0].runs = runs;
            assert!(!wrong.swept.has_each_run_once());
            // It is refused, and yet it would not panic.
            let _ = (wrong.table(), wrong.page());
        }
    }

    #[test]
    fn the_page_has_charts_and_the_clients_of_each_run_and_strangers_are_text() {
        let mut report = report();
        report.client_failures[0].failed.why = "<script>".to_owned();
        let page = report.page();
        let counts = elements(page.strip_prefix("<!DOCTYPE html>\n").unwrap());
        assert_eq!((counts["figure"], counts["details"]), (4, 6));
        page.check_words(&[
            "Calls per second against depth",
            "Round-trip time (p99) against depth",
            "<th scope=\"row\">depth 1</th><td>2 of 3</td>",
            "<summary>depth 1, run 2</summary>",
            "counters of shm:x over the same time",
            "<li>depth 1: client 2 on c while it ran: &lt;script&gt;</li>",
        ]);
        // Nothing was measured.
        report.swept.runs.clear();
        report
            .swept
            .points
            .iter_mut()
            .for_each(|it| it.runs.clear());
        let counts = elements(report.page().strip_prefix("<!DOCTYPE html>\n").unwrap());
        assert!(!counts.contains_key("details"));
    }
}
