//! The page of a sweep over a fleet.

use std::cmp::Reverse;
use std::fmt::{self, Write as _};

use super::report::{COLUMNS, FleetSweepReport};
use crate::fleet::report::{ClientFigures, FleetReport};
use crate::fleet::sections::{ROWS_MAX, write_clients, write_failures, write_servers};
use crate::histogram::LatencyHistogram;
use crate::report::chart::{CURVES_MAX, Curve, figure};
use crate::report::escape::escape;
use crate::report::metric::Metric;
use crate::report::page::{
    begin_page, begin_table, end_document, end_table, percentile_curve, prose, write_percentiles,
    write_row, write_warnings,
};
use crate::report::table::latency_meaning;
use crate::report::view::machine_facts;
use crate::sweep::plot::chart;
use crate::sweep::table::{cells, columns, heading, mark};
use rpcrdma_units::{count, text_of};

/// The figures of the charts.
const CHARTS: [(&str, Metric); 3] = [
    ("rates", Metric::Rate),
    ("medians", Metric::P50),
    ("tails", Metric::P99),
];

impl FleetSweepReport {
    /// The page.
    pub(crate) fn page(&self) -> String {
        text_of(|page| self.write_page(page))
    }

    fn write_page(&self, page: &mut String) -> fmt::Result {
        let title = format!("{}: {}", self.clients_text(), self.client_command);
        begin_page(page, &title)?;
        let stopped = match self.swept.interrupted {
            true => "; stopped by a signal",
            false => "",
        };
        writeln!(
            page,
            "<p class=\"note\">{}{stopped}</p>",
            escape(&heading(&self.swept))
        )?;
        write_warnings(page, &self.warnings())?;
        self.write_combinations(page)?;
        self.write_percentiles(page)?;
        write_failures(page, &self.client_failures)?;
        self.write_runs(page)?;
        self.write_facts(page)?;
        end_document(page, &self.origin)
    }

    fn write_combinations(&self, page: &mut String) -> fmt::Result {
        writeln!(page, "<h2>Combinations</h2>")?;
        let charts = CHARTS.map(|(id, metric)| (id, chart(&self.swept, Some(metric))));
        // Without numbers to draw along there is a table only.
        for (id, chart) in charts {
            if let Ok(chart) = chart {
                let curves = chart.curves.get(..CURVES_MAX).unwrap_or(&chart.curves);
                page.push_str(&figure(id, &chart.title, &chart.x, &chart.y, curves));
            }
        }
        let labels = self.swept.labels();
        let columns = columns();
        let heads: Vec<&str> = columns.iter().map(String::as_str).collect();
        begin_table(page, "", &heads)?;
        for (place, label) in labels.iter().enumerate() {
            let first = match mark(&self.swept, place) {
                "" => label.clone(),
                mark => format!("{label}, {mark}"),
            };
            write_row(page, &first, &cells(&self.swept, place))?;
        }
        end_table(page)?;
        writeln!(
            page,
            "<p class=\"note\">Fairness is Jain's index of the clients' rates: 1 if all are equal; the lowest of the runs. \
             Start is the largest skew of a start; slowest has the largest p99 of a client.</p>"
        )?;
        begin_table(page, "", &COLUMNS)?;
        for (place, label) in labels.iter().enumerate() {
            write_row(page, label, &self.client_cells(place))?;
        }
        end_table(page)
    }

    /// Writes the percentiles of all calls of each combination.
    fn write_percentiles(&self, page: &mut String) -> fmt::Result {
        let mut curves: Vec<Curve> = Vec::new();
        let mut range = (u64::MAX, 0);
        for (place, label) in self.swept.labels().iter().enumerate().take(CURVES_MAX) {
            let mut all = LatencyHistogram::new();
            for run in self.swept.counted(place) {
                run.load.latency().iter().for_each(|it| all.merge(it));
            }
            if all.count() > 0 {
                range = (range.0.min(all.min_ns()), range.1.max(all.max_ns()));
                curves.push(percentile_curve(label, &all));
            }
        }
        if curves.is_empty() {
            return Ok(());
        }
        let is_open = |it: &FleetReport| it.load.is_open();
        let meaning = match self.swept.runs.iter().all(is_open) {
            false if self.swept.runs.iter().any(is_open) => "of open and closed loops",
            is_open => latency_meaning(is_open),
        };
        writeln!(
            page,
            "<h2>Round-trip times</h2>\n<p class=\"note\">{}; of all clients and repeats together</p>",
            escape(meaning)
        )?;
        write_percentiles(page, "percentiles", range, &curves);
        let points = self.swept.points.len();
        match points > CURVES_MAX {
            true => writeln!(
                page,
                "<p class=\"note\">Each chart has at most {CURVES_MAX} curves, and there are {points} combinations.</p>"
            ),
            false => Ok(()),
        }
    }

    /// Writes the clients and the servers of each run, as long as the page stays readable.
    fn write_runs(&self, page: &mut String) -> fmt::Result {
        writeln!(page, "<h2>Clients of each run</h2>")?;
        let mut rows = 0;
        for (place, label) in self.swept.labels().iter().enumerate() {
            for (number, run) in (1_u64..).zip(self.swept.runs_of(place)) {
                rows += run.clients.len();
                if rows > ROWS_MAX {
                    return writeln!(
                        page,
                        "<p class=\"note\">The report's JSON has those of the other runs.</p>"
                    );
                }
                writeln!(
                    page,
                    "<details><summary>{}, run {}</summary>",
                    escape(label),
                    count(number)
                )?;
                let mut clients: Vec<&ClientFigures> = run.clients.iter().collect();
                clients.sort_by_key(|it| Reverse(it.latency_ns.p99));
                write_clients(page, &clients)?;
                write_servers(page, run)?;
                writeln!(page, "</details>")?;
            }
        }
        Ok(())
    }

    fn write_facts(&self, page: &mut String) -> fmt::Result {
        writeln!(
            page,
            "<h2>How it was measured</h2>\n<pre>{}</pre>\n<table class=\"facts\"><tbody>",
            prose(&self.origin.command)
        )?;
        let mut facts = vec![
            ("clients", self.clients_text()),
            ("their command", self.client_command.clone()),
        ];
        facts.extend(machine_facts(&self.machine));
        let first = self.swept.runs.first();
        facts.extend(first.and_then(|run| run.load.began_fact()));
        for (name, value) in facts {
            write_row(page, name, &[value])?;
        }
        writeln!(page, "</tbody></table>")
    }
}
