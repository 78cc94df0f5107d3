//! The page of a sweep.

use std::fmt::{self, Write as _};

use super::plot::chart;
use super::runs::{Swept, SweptReport};
use super::table::{cells, columns, heading, mark};
use crate::histogram::LatencyHistogram;
use crate::machine::Machine;
use crate::report::chart::{CURVES_MAX, Curve, figure};
use crate::report::escape::escape;
use crate::report::metric::Metric;
use crate::report::origin::Origin;
use crate::report::page::{
    begin_page, begin_table, end_document, end_table, percentile_curve, prose, write_percentiles,
    write_row, write_warnings,
};
use crate::report::table::latency_meaning;
use crate::report::view::machine_facts;
use rpcrdma_units::text_of;

/// The figures of the charts.
const CHARTS: [(&str, Metric); 3] = [
    ("rates", Metric::Rate),
    ("medians", Metric::P50),
    ("tails", Metric::P99),
];

/// What a page shows.
pub(crate) struct SweepPage<'a, R> {
    pub(crate) title: String,
    pub(crate) origin: &'a Origin,
    pub(crate) machine: Option<&'a Machine>,
    pub(crate) swept: &'a Swept<R>,
    pub(crate) warnings: Vec<String>,
    /// Of what the percentiles of a combination are: `of all counted repeats together`.
    pub(crate) together: &'static str,
    /// HTML after the table of the combinations.
    pub(crate) after_combinations: String,
    /// HTML after the percentiles.
    pub(crate) after_percentiles: String,
    /// Facts about the measurement before those of the machine.
    pub(crate) facts: Vec<(&'static str, String)>,
}

impl<R: SweptReport> SweepPage<'_, R> {
    /// The page.
    pub(crate) fn text(&self) -> String {
        text_of(|page| self.write(page))
    }

    fn write(&self, page: &mut String) -> fmt::Result {
        begin_page(page, &self.title)?;
        let stopped = match self.swept.interrupted {
            true => "; stopped by a signal",
            false => "",
        };
        writeln!(
            page,
            "<p class=\"note\">{}{stopped}</p>",
            escape(&heading(self.swept))
        )?;
        write_warnings(page, &self.warnings)?;
        self.write_combinations(page)?;
        page.push_str(&self.after_combinations);
        self.write_percentiles(page)?;
        page.push_str(&self.after_percentiles);
        self.write_facts(page)?;
        end_document(page, self.origin)
    }

    fn write_combinations(&self, page: &mut String) -> fmt::Result {
        writeln!(page, "<h2>Combinations</h2>")?;
        let charts = CHARTS.map(|(id, metric)| (id, chart(self.swept, Some(metric))));
        // Without numbers to draw along there is a table only.
        for (id, chart) in charts {
            if let Ok(chart) = chart {
                let curves = chart.curves.get(..CURVES_MAX).unwrap_or(&chart.curves);
                page.push_str(&figure(id, &chart.title, &chart.x, &chart.y, curves));
            }
        }
        let columns = columns();
        let heads: Vec<&str> = columns.iter().map(String::as_str).collect();
        begin_table(page, "", &heads)?;
        for (place, label) in self.swept.labels().into_iter().enumerate() {
            let first = match mark(self.swept, place) {
                None => label,
                Some(mark) => format!("{label}, {mark}"),
            };
            write_row(page, &first, &cells(self.swept, place))?;
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
                run.load().latency().iter().for_each(|it| all.merge(it));
            }
            if all.count() > 0 {
                range = (range.0.min(all.min_ns()), range.1.max(all.max_ns()));
                curves.push(percentile_curve(label, &all));
            }
        }
        if curves.is_empty() {
            return Ok(());
        }
        let is_open = |it: &R| it.load().is_open();
        let meaning = match self.swept.runs.iter().all(is_open) {
            false if self.swept.runs.iter().any(is_open) => "of open and closed loops",
            is_open => latency_meaning(is_open),
        };
        writeln!(
            page,
            "<h2>Round-trip times</h2>\n<p class=\"note\">{}; {}</p>",
            escape(meaning),
            self.together
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

    fn write_facts(&self, page: &mut String) -> fmt::Result {
        writeln!(
            page,
            "<h2>How it was measured</h2>\n<pre>{}</pre>\n<table class=\"facts\"><tbody>",
            prose(&self.origin.command)
        )?;
        let machine = self.machine.into_iter().flat_map(machine_facts);
        let first = self.swept.runs.first();
        let began = first.and_then(|run| run.load().began_fact());
        for (name, value) in self.facts.iter().cloned().chain(machine).chain(began) {
            write_row(page, name, &[value])?;
        }
        writeln!(page, "</tbody></table>")
    }
}
