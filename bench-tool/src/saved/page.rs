//! The page of several saved reports: their figures side by side, their percentiles over each other, and in what they
//! differ.

use std::fmt::{self, Write as _};

use super::several::{COLUMNS, Entry, Several, value_text};
use crate::report::chart::axis::{Axis, Unit};
use crate::report::chart::{CURVES_MAX, Curve, figure};
use crate::report::escape::escape;
use crate::report::origin::Origin;
use crate::report::page::{
    begin_page, begin_table, end_document, end_table, percentile_curve, prose, write_percentiles,
    write_row, write_warnings,
};
use crate::report::table::latency_meaning;
use rpcrdma_units::{count, text_of};

impl Several {
    /// The page; `origin` is the program that makes it.
    pub(super) fn page(&self, origin: &Origin) -> String {
        text_of(|page| self.write_page(page, origin))
    }

    fn write_page(&self, page: &mut String, origin: &Origin) -> fmt::Result {
        let title = match &self.entries[..] {
            [one] => one.name.clone(),
            all => format!("{} runs side by side", count(all.len() as u64)),
        };
        begin_page(page, &title)?;
        self.write_figures(page)?;
        self.write_runs(page)?;
        self.write_latency(page)?;
        self.write_knees(page)?;
        self.write_differences(page)?;
        write_warnings(page, &self.warnings())?;
        self.write_shared(page)?;
        writeln!(page, "<pre>{}</pre>", prose(&origin.command))?;
        end_document(page, origin)
    }

    fn write_figures(&self, page: &mut String) -> fmt::Result {
        begin_table(page, "run", &COLUMNS)?;
        for (number, entry) in (1..).zip(&self.entries) {
            write_row(page, &label(number, entry), &entry.cells())?;
        }
        end_table(page)
    }

    /// Writes the file, the state and the command line of each run.
    fn write_runs(&self, page: &mut String) -> fmt::Result {
        writeln!(page, "<table><tbody>")?;
        for (number, entry) in (1..).zip(&self.entries) {
            writeln!(
                page,
                "<tr><th scope=\"row\">{number}</th><td>{} ({}), {}: {}<pre>{}</pre>",
                escape(&entry.name),
                entry.kind.command(),
                escape(&entry.times()),
                escape(&entry.state()),
                prose(&entry.command)
            )?;
            if let Some(knee) = &entry.knee {
                writeln!(page, "<b>Knee</b> {}", escape(&knee.finding()))?;
            }
            writeln!(page, "</td></tr>")?;
        }
        writeln!(page, "</tbody></table>")
    }

    fn write_latency(&self, page: &mut String) -> fmt::Result {
        writeln!(page, "<h2>Round-trip times</h2>")?;
        let is_open = |entry: &Entry| entry.load.load_loop.as_deref() == Some("open");
        let open = self.entries.iter().filter(|it| is_open(it)).count();
        let meaning = match open {
            0 => latency_meaning(false),
            all if all == self.entries.len() => latency_meaning(true),
            _ => {
                "open and closed loops: the first count from the moment at which a call was due, the others from posting it"
            }
        };
        writeln!(page, "<p class=\"note\">{}</p>", escape(meaning))?;
        let numbered = || (1..).zip(&self.entries);
        let with_calls = || {
            self.entries
                .iter()
                .map(|it| &it.load.latency_ns)
                .filter(|it| it.count > 0)
        };
        let curve = |(number, entry): (usize, &Entry)| {
            let latency = entry.latency.as_ref().filter(|it| it.count() > 0)?;
            Some(percentile_curve(&label(number, entry), latency))
        };
        let curves: Vec<Curve> = numbered().filter_map(curve).collect();
        let least = with_calls().map(|it| it.min).min();
        let most = with_calls().map(|it| it.max).max();
        if let (Some(least), Some(most), false) = (least, most, curves.is_empty()) {
            let shown = curves.get(..CURVES_MAX).unwrap_or(&curves);
            write_percentiles(page, "percentiles", (least, most), shown);
        }
        write_rest(page, &curves)?;
        for (number, entry) in numbered().filter(|(_, it)| it.latency.is_none()) {
            writeln!(
                page,
                "<p class=\"note\">Run {} is of an earlier version, which saved no histogram: it has no curve.</p>",
                escape(&label(number, entry))
            )?;
        }
        Ok(())
    }

    /// Writes p99 by offered rate of the runs of `--to-knee`.
    #[allow(clippy::cast_precision_loss, reason = "places on a picture")]
    fn write_knees(&self, page: &mut String) -> fmt::Result {
        let knees = (1..).zip(&self.entries);
        let knees: Vec<_> = knees
            .filter_map(|(number, entry)| Some((label(number, entry), entry.knee.as_ref()?)))
            .collect();
        let steps = || {
            let steps = knees.iter().flat_map(|(_, knee)| &knee.steps);
            steps.filter(|it| it.latency_ns.count > 0)
        };
        let highest = steps().map(|it| it.offered_rate_per_s).max();
        let least = steps().map(|it| it.latency_ns.p99).min();
        let most = steps().map(|it| it.latency_ns.p99).max();
        let (Some(highest), Some(least), Some(most)) = (highest, least, most) else {
            return Ok(());
        };
        writeln!(
            page,
            "<h2>Latency against rate</h2>\n<p class=\"note\">p99 of the response time, from the moment at which \
             each call was due</p>"
        )?;
        let highest = highest as f64;
        let mut rates = Axis::linear("offered calls per second", highest, Unit::Rate).cut(highest);
        for (label, knee) in &knees {
            if let Some(step) = &knee.knee {
                let number = label.split(' ').next().unwrap_or_default();
                rates = rates.noting(step.offered_rate_per_s as f64, &format!("knee {number}"));
            }
        }
        let curves: Vec<Curve> = knees
            .iter()
            .map(|(label, knee)| {
                let points = knee.steps.iter().map(|it| {
                    let p99 = it.latency_ns.p99 as f64;
                    (
                        it.offered_rate_per_s as f64,
                        (it.latency_ns.count > 0).then_some(p99),
                    )
                });
                Curve::new(label, points)
            })
            .collect();
        let shown = curves.get(..CURVES_MAX).unwrap_or(&curves);
        let latencies = Axis::latency("response time", least, most);
        let title = "p99 by offered rate";
        page.push_str(&figure("knees", title, &rates, &latencies, shown));
        write_rest(page, &curves)
    }

    fn write_differences(&self, page: &mut String) -> fmt::Result {
        if self.entries.len() < 2 {
            return Ok(());
        }
        writeln!(page, "<h2>What differs</h2>")?;
        if self.compared.differing.is_empty() {
            return writeln!(
                page,
                "<p>Nothing that the reports say about options, program, machines and devices.</p>"
            );
        }
        let names: Vec<String> = (1..=self.entries.len())
            .map(|it| format!("run {it}"))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        begin_table(page, "", &names)?;
        for (path, values) in &self.compared.differing {
            let texts = values.iter().map(|it| value_text(it.as_ref()).to_owned());
            write_row(page, path, &texts.collect::<Vec<_>>())?;
        }
        end_table(page)
    }

    fn write_shared(&self, page: &mut String) -> fmt::Result {
        writeln!(
            page,
            "<h2>What they share</h2>\n<details><summary>{} values</summary>\n<table><tbody>",
            self.compared.shared.len()
        )?;
        for (path, value) in &self.compared.shared {
            write_row(page, path, std::slice::from_ref(value))?;
        }
        writeln!(page, "</tbody></table></details>")
    }
}

/// The number and the file of a run, without its folder.
fn label(number: usize, entry: &Entry) -> String {
    let file = entry.name.rsplit('/').next().unwrap_or_default();
    format!("{number} {file}")
}

/// Says that a chart has not all curves.
fn write_rest(page: &mut String, curves: &[Curve]) -> fmt::Result {
    if curves.len() <= CURVES_MAX {
        return Ok(());
    }
    writeln!(
        page,
        "<p class=\"note\">The chart has the first {CURVES_MAX} of {} runs.</p>",
        curves.len()
    )
}
