//! The page of `--to-knee`: the latency curve with its knee, and the figures of each step.

use std::fmt::{self, Write as _};

use super::{begin_page, begin_table, end_page, end_table, write_row, write_warnings};
use crate::histogram::LatencySummary;
use crate::report::chart::axis::{Axis, Unit};
use crate::report::chart::{Curve, figure};
use crate::report::escape::escape;
use crate::report::knee::{COLUMNS, KneeReport, Step, cells};
use crate::report::view::LoadReport;
use rpcrdma_units::{rate, text_of};

/// The page of a report.
#[must_use]
pub(crate) fn text(report: &KneeReport<impl LoadReport>) -> String {
    text_of(|page| write(page, report))
}

fn write(page: &mut String, report: &KneeReport<impl LoadReport>) -> fmt::Result {
    let closed = &report.closed_loop.view();
    begin_page(page, &closed.title)?;
    writeln!(
        page,
        "<p class=\"note\">open loops at rising rates, up to a tenth more than a closed loop carried ({}){}</p>\n\
         <p><b>Knee</b> {}</p>",
        escape(&rate(closed.load.rate_per_s)),
        if report.interrupted {
            "; ended early"
        } else {
            ""
        },
        escape(&report.finding())
    )?;
    write_warnings(page, &report.warnings())?;
    writeln!(
        page,
        "<h2>Latency against rate</h2>\n<p class=\"note\">response time, from the moment at which each call was due</p>"
    )?;
    write_curves(page, report);
    begin_table(page, "share of the closed loop", &COLUMNS)?;
    for step in &report.steps {
        let is_knee = report.knee.as_ref() == Some(step);
        let remark = match (is_knee, step.is_reached) {
            (true, _) => ", the knee",
            (_, false) => ", not reached",
            _ => "",
        };
        let first = format!("{} %{remark}", step.share_percent);
        write_row(page, &first, &cells(step))?;
    }
    end_table(page)?;
    let sections = text_of(|sections| report.closed_loop.write_sections(sections));
    if !sections.is_empty() {
        writeln!(
            page,
            "<p class=\"note\">The rest is about the closed loop.</p>\n{sections}"
        )?;
    }
    end_page(page, closed)
}

#[allow(clippy::cast_precision_loss, reason = "places on a picture")]
fn write_curves(page: &mut String, report: &KneeReport<impl LoadReport>) {
    let steps = &report.steps;
    let highest = steps.last().map_or(0.0, |it| it.offered_rate_per_s as f64);
    let rates = Axis::linear("offered calls per second", highest, Unit::Rate);
    let mut rates = rates.cut(highest);
    if let Some(knee) = &report.knee {
        rates = rates.noting(knee.offered_rate_per_s as f64, "knee");
    }
    // A step without calls has no latency: the curves get a gap there.
    let curve = |name, of: &dyn Fn(&LatencySummary) -> u64| {
        let value = |it: &Step| (it.latency_ns.count > 0).then(|| of(&it.latency_ns) as f64);
        let points = steps
            .iter()
            .map(|it| (it.offered_rate_per_s as f64, value(it)));
        Curve::new(name, points)
    };
    let curves = [
        curve("p50", &|it| it.p50),
        curve("p99", &|it| it.p99),
        curve("p99.9", &|it| it.p99_9),
    ];
    let medians = steps.iter().filter(|it| it.latency_ns.count > 0);
    let least = medians.map(|it| it.latency_ns.p50).min().unwrap_or(1);
    let most = steps
        .iter()
        .map(|it| it.latency_ns.p99_9)
        .max()
        .unwrap_or(1);
    let latencies = Axis::latency("response time", least, most);
    let title = "Response time by offered rate";
    page.push_str(&figure("knee", title, &rates, &latencies, &curves));
}

#[cfg(test)]
mod tests {
    use super::super::tests::elements;
    use super::*;
    use crate::histogram::LatencyHistogram;
    use crate::report::knee::tests::knee_report;
    use rpcrdma_testkit::CheckWords;

    #[test]
    fn it_has_the_curves_the_knee_and_every_step() {
        let report = knee_report();
        let page = text(&report);
        let counts = elements(&page);
        assert_eq!(counts.get("figure"), Some(&1));
        assert_eq!(paths(&page), [1; 3], "curves without a gap");
        page.check_words(&[
            ">knee</text>",
            ">offered calls per second</text>",
            "<th scope=\"row\">80 %, the knee</th>",
            "<th scope=\"row\">100 %, not reached</th>",
        ]);
        for step in &report.steps {
            let row = super::super::tests::row_of(&cells(step));
            assert!(page.contains(&row), "{row}");
        }
    }

    /// The number of pieces of each curve.
    fn paths(page: &str) -> Vec<usize> {
        let (_, chart) = page.split_once("</figcaption>").unwrap();
        let curves = chart.split("<path class=\"curve").skip(1);
        let paths = curves.filter_map(|it| it.split('>').next());
        paths.map(|path| path.matches('M').count()).collect()
    }

    #[test]
    fn a_step_without_a_completed_call_is_a_gap() {
        let mut report = knee_report();
        report.steps[1].latency_ns = LatencyHistogram::new().summary();
        assert_eq!(paths(&text(&report)), [2; 3]);
    }

    #[test]
    fn without_a_step_it_is_a_page_too_and_strangers_are_text() {
        let mut report = knee_report();
        report.steps.clear();
        (report.knee, report.interrupted) = (None, true);
        report.closed_loop.origin.command = "<script>".to_owned();
        let page = text(&report);
        let _ = elements(&page);
        assert!(page.contains("&lt;script&gt;") && page.contains("ended early"));
    }
}
