//! The report as a single HTML page: no network access, no scripts, light and dark.

pub(crate) mod knee;

use std::fmt::{self, Write as _};

use super::chart::axis::{Axis, Unit, whole};
use super::chart::{self, Curve};
use super::escape::escape;
use super::figures::seconds;
use super::origin::Origin;
use super::table::{correction_meaning, latency_cell, latency_cells, latency_meaning};
use super::view::{LoadReport, LoadView};
use crate::histogram::{LatencyHistogram, LatencySummary};
use crate::load::timeline::{Gap, IntervalFigures, IntervalLatency};
use rpcrdma_units::{bandwidth, count, rate, text_of};

const STYLE: &str = include_str!("style.css");

/// Steps per halving of the distance to 100 %.
const STEPS_PER_HALF_DISTANCE: u32 = 5;

/// Calls per slower call at the right end of the percentile curve, which is 99.999 %.
const INVERSE_MAX: f64 = 1e5;

/// Upper bound of the intervals in the page's table; the JSON has all of them.
const ROWS_MAX: usize = 600;

/// The vertical axis of the charts of latencies.
pub(crate) const LATENCY: &str = "round-trip time";

/// The page of a report.
#[must_use]
pub(crate) fn text(report: &impl LoadReport) -> String {
    text_of(|page| {
        let view = report.view();
        begin_page(page, &view.title)?;
        write_heading(page, &view)?;
        write_warnings(page, view.warnings)?;
        write_latency(page, &view)?;
        report.write_sections(page)?;
        write_over_time(page, &view)?;
        end_page(page, &view)
    })
}

pub(crate) fn begin_page(page: &mut String, title: &str) -> fmt::Result {
    let title = escape(title);
    writeln!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{title}</title>\n<style>\n{STYLE}{}</style>\n</head>\n<body>\n<h1>{title}</h1>",
        chart::STYLE
    )
}

/// Writes how it was measured, and with which version of the tool.
fn end_page(page: &mut String, report: &LoadView<'_>) -> fmt::Result {
    write_facts(page, report)?;
    if !report.missing.is_empty() {
        writeln!(
            page,
            "<p class=\"note\">The report is of an earlier version, and does not have: {}.</p>",
            report.missing.join("; ")
        )?;
    }
    end_document(page, report.origin)
}

pub(crate) fn end_document(page: &mut String, origin: &Origin) -> fmt::Result {
    writeln!(
        page,
        "<p class=\"note\">bench-tool {}, revision {}</p>\n</body>\n</html>",
        escape(&origin.version),
        escape(&origin.revision)
    )
}

fn write_heading(page: &mut String, report: &LoadView<'_>) -> fmt::Result {
    writeln!(
        page,
        "<p class=\"note\">{}: {}</p>\n<ul class=\"figures\">",
        match (&report.load.failure, report.load.interrupted) {
            (Some(_), _) => "failed, and measured until then",
            (None, true) => "measured until a signal",
            (None, false) => "measured",
        },
        report.load.time_text()
    )?;
    let latency = &report.load.latency_ns;
    let percentiles = [latency.p50, latency.p99, latency.p99_9];
    let [p50, p99, p99_9] = latency_cells((latency.count > 0).then_some(percentiles));
    let mut figures = vec![
        ("p50", p50),
        ("p99", p99),
        ("p99.9", p99_9),
        ("calls", rate(report.load.rate_per_s)),
    ];
    if let Some(bytes_per_s) = report.bandwidth_bytes_per_s {
        figures.push(("payload", bandwidth(bytes_per_s)));
    }
    figures.push(("errors", count(report.load.errors)));
    if report.load.calls_unanswered > 0 {
        figures.push(("not answered", count(report.load.calls_unanswered)));
    }
    if let Some(ratio) = report.floor_ratio {
        figures.push(("p50 to the floor", format!("{ratio:.2}")));
    }
    for (name, value) in figures {
        writeln!(page, "<li><b>{}</b> {name}</li>", escape(&value))?;
    }
    writeln!(page, "</ul>")
}

pub(crate) fn write_warnings(page: &mut String, warnings: &[String]) -> fmt::Result {
    if warnings.is_empty() {
        return Ok(());
    }
    writeln!(page, "<h2>Warnings</h2>\n<ul class=\"warnings\">")?;
    for warning in warnings {
        writeln!(page, "<li>{}</li>", prose(warning))?;
    }
    writeln!(page, "</ul>")
}

/// The latency at each percentile up to 99.999 %; the position is the number of calls per slower call.
#[allow(clippy::cast_precision_loss, reason = "a place on a picture")]
pub(crate) fn percentile_curve(name: &str, latency: &LatencyHistogram) -> Curve {
    // With n calls, all percentiles beyond 1 - 1/n are the maximum.
    let end = (latency.count() as f64).clamp(1.0, INVERSE_MAX);
    let steps = latency
        .buckets()
        .iter_quantiles(STEPS_PER_HALF_DISTANCE)
        .map(|step| 1.0 / (1.0 - step.quantile_iterated_to()))
        .take_while(|inverse| *inverse < end)
        .chain([end]);
    let point = |inverse: f64| {
        let percent = 100.0 * (1.0 - 1.0 / inverse);
        (inverse, Some(latency.percentile_ns(percent) as f64))
    };
    let has_calls = latency.count() > 0;
    Curve::new(name, steps.filter(|_| has_calls).map(point))
}

fn write_latency(page: &mut String, report: &LoadView<'_>) -> fmt::Result {
    let latency = report.load.latency();
    let latency = latency.as_ref();
    writeln!(
        page,
        "<h2>Round-trip times</h2>\n<p class=\"note\">{}</p>",
        escape(latency_meaning(report.load.is_open()))
    )?;
    let mut columns = vec![("as measured", report.load.latency_ns)];
    let mut curves: Vec<Curve> = latency
        .map(|latency| percentile_curve("as measured", latency))
        .into_iter()
        .collect();
    if let Some(corrected) = &report.load.latency_corrected_ns {
        let name = "corrected for coordinated omission";
        columns.push((name, corrected.summary));
        let latency = latency.map(|it| it.corrected(corrected.expected_interval));
        curves.extend(latency.map(|latency| percentile_curve(name, &latency)));
    }
    if !curves.is_empty() {
        let range = (report.load.latency_ns.min, report.load.latency_ns.max);
        write_percentiles(page, "percentiles", range, &curves);
    }
    write_summaries(page, &columns)?;
    match &report.load.latency_corrected_ns {
        Some(corrected) => writeln!(
            page,
            "<p class=\"note\">Corrected: {}.</p>",
            prose(&correction_meaning(corrected))
        ),
        None => Ok(()),
    }
}

/// Writes the chart of percentiles; `range` has the lowest and the highest latency, and `id` is unique on the page.
pub(crate) fn write_percentiles(
    page: &mut String,
    id: &str,
    (least, most): (u64, u64),
    curves: &[Curve],
) {
    let title = "Round-trip time by percentile";
    let axes = (Axis::percentiles(), Axis::latency(LATENCY, least, most));
    page.push_str(&chart::figure(id, title, &axes.0, &axes.1, curves));
}

fn write_summaries(page: &mut String, columns: &[(&str, LatencySummary)]) -> fmt::Result {
    type Of = fn(&LatencySummary) -> u64;
    let heads: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let rows: [(&str, Of); 7] = [
        ("minimum", |it| it.min),
        ("p50", |it| it.p50),
        ("p90", |it| it.p90),
        ("p99", |it| it.p99),
        ("p99.9", |it| it.p99_9),
        ("p99.99", |it| it.p99_99),
        ("maximum", |it| it.max),
    ];
    let all = |text: &dyn Fn(&LatencySummary) -> String| -> Vec<String> {
        columns.iter().map(|(_, summary)| text(summary)).collect()
    };
    begin_table(page, "", &heads)?;
    for (name, of) in rows {
        write_row(page, name, &all(&|it| latency_cell(it, of(it))))?;
    }
    write_row(page, "mean", &all(&|it| latency_cell(it, whole(it.mean))))?;
    let deviation = |it: &LatencySummary| latency_cell(it, whole(it.stddev));
    write_row(page, "standard deviation", &all(&deviation))?;
    write_row(page, "calls", &all(&|it| count(it.count)))?;
    end_table(page)
}

/// Begins a table of numbers, with the column names.
pub(crate) fn begin_table(page: &mut String, first: &str, heads: &[&str]) -> fmt::Result {
    write!(
        page,
        "<div class=\"scroll\"><table class=\"numbers\">\n<thead><tr><th>{first}</th>"
    )?;
    for head in heads {
        write!(page, "<th scope=\"col\">{}</th>", escape(head))?;
    }
    writeln!(page, "</tr></thead>\n<tbody>")
}

/// Escapes text that may name options: a line does not break within one.
pub(crate) fn prose(text: &str) -> String {
    let word = |word: &str| match word.starts_with("--") {
        true => format!("<span class=\"option\">{}</span>", escape(word)),
        false => escape(word),
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// The units of figures.
const UNITS: [&str; 16] = [
    "%", "ns", "us", "ms", "s", "/s", "k/s", "M/s", "B", "KiB", "MiB", "GiB", "B/s", "kB/s",
    "MB/s", "GB/s",
];

/// Joins each figure with its unit: a line does not break between them.
fn with_units(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    // In place: a report that was read may have a million of them in a cell.
    for word in text.split_inclusive(' ') {
        let is_unit = UNITS.contains(&word.trim_end_matches([' ', ',', ';', ':']));
        let is_figure = |it: &str| it.ends_with(|c: char| c.is_ascii_digit());
        if is_unit && joined.strip_suffix(' ').is_some_and(is_figure) {
            joined.pop();
            joined.push('\u{a0}');
        }
        joined.push_str(word);
    }
    joined
}

pub(crate) fn write_row(page: &mut String, first: &str, cells: &[String]) -> fmt::Result {
    write!(page, "<tr><th scope=\"row\">{}</th>", escape(first))?;
    for cell in cells {
        write!(page, "<td>{}</td>", with_units(&prose(cell)))?;
    }
    writeln!(page, "</tr>")
}

pub(crate) fn end_table(page: &mut String) -> fmt::Result {
    writeln!(page, "</tbody></table></div>")
}

#[allow(clippy::cast_precision_loss, reason = "places on a picture")]
fn write_over_time(page: &mut String, report: &LoadView<'_>) -> fmt::Result {
    let intervals = &report.load.intervals;
    let Some(last) = intervals.last() else {
        // A fleet has its intervals in the reports of its clients.
        return match report.load.calls {
            0 => writeln!(page, "<h2>Over time</h2>\n<p>No call ended.</p>"),
            _ => Ok(()),
        };
    };
    writeln!(page, "<h2>Over time</h2>")?;
    let end_s = last.start_s + last.duration_s;
    let label = "time since the measurement began";
    let mut times = Axis::linear(label, end_s, Unit::Seconds).cut(end_s);
    for gap in report.load.gaps.iter().take(GAPS_SHOWN) {
        let lost = (gap.start_s, gap.start_s + gap.duration_s);
        times = times.noting_band(lost, "lost");
    }
    let curve = |name, of: &dyn Fn(&IntervalFigures) -> Option<f64>| {
        let middle = |it: &IntervalFigures| it.start_s + it.duration_s / 2.0;
        Curve::new(name, intervals.iter().map(|it| (middle(it), of(it))))
    };
    // Without calls the rate is zero, but there is no latency.
    let latency = |of: fn(&IntervalLatency) -> u64| {
        move |it: &IntervalFigures| it.latency_ns.as_ref().map(|it| of(it) as f64)
    };
    let rates = curve("rate", &|it| Some(it.rate_per_s));
    let most = intervals.iter().map(|it| it.rate_per_s).fold(0.0, f64::max);
    let axis = Axis::linear("calls per second", most, Unit::Rate);
    let title = "Rate of each interval";
    page.push_str(&chart::figure("rates", title, &times, &axis, &[rates]));
    let curves = [
        curve("p50", &latency(|it| it.p50)),
        curve("p99", &latency(|it| it.p99)),
        curve("maximum", &latency(|it| it.max)),
    ];
    let medians = intervals.iter().filter_map(|it| Some(it.latency_ns?.p50));
    let least = medians.min().unwrap_or(1);
    let axis = Axis::latency(LATENCY, least, report.load.latency_ns.max);
    let title = "Round-trip times of each interval";
    page.push_str(&chart::figure("latencies", title, &times, &axis, &curves));
    write_gaps(page, &report.load.gaps)?;
    write_intervals(page, intervals)?;
    if report.per_core.len() > 1 {
        begin_table(page, "core", &COLUMNS)?;
        for core in report.per_core {
            let latency = &core.latency_ns;
            let cells = cells(
                core.calls,
                core.rate_per_s,
                (core.calls > 0).then_some([latency.p50, latency.p99, latency.max]),
            );
            write_row(page, &core.core.to_string(), &cells)?;
        }
        end_table(page)?;
    }
    Ok(())
}

/// Lost connections that a page shows.
const GAPS_SHOWN: usize = 8;

const COLUMNS: [&str; 5] = ["calls", "rate", "p50", "p99", "maximum"];

fn cells(calls: u64, rate_per_s: f64, latency_ns: Option<[u64; 3]>) -> [String; 5] {
    let [p50, p99, max] = latency_cells(latency_ns);
    [count(calls), rate(rate_per_s), p50, p99, max]
}

/// Says which connections were lost when; the charts mark the first.
fn write_gaps(page: &mut String, gaps: &[Gap]) -> fmt::Result {
    for gap in gaps.iter().take(GAPS_SHOWN) {
        let (start, length) = (seconds(gap.start_s), seconds(gap.duration_s));
        writeln!(
            page,
            "<p class=\"note\">A connection was lost at {start}, and replaced after {length}.</p>"
        )?;
    }
    if gaps.len() > GAPS_SHOWN {
        writeln!(
            page,
            "<p class=\"note\">{} more were lost; the report's JSON has them.</p>",
            gaps.len() - GAPS_SHOWN
        )?;
    }
    Ok(())
}

fn write_intervals(page: &mut String, intervals: &[IntervalFigures]) -> fmt::Result {
    writeln!(
        page,
        "<details><summary>{} intervals in figures</summary>",
        count(intervals.len() as u64)
    )?;
    begin_table(page, "from", &COLUMNS)?;
    for it in intervals.iter().take(ROWS_MAX) {
        let latency = it.latency_ns.map(|it| [it.p50, it.p99, it.max]);
        let cells = cells(it.calls, it.rate_per_s, latency);
        write_row(page, &seconds(it.start_s), &cells)?;
    }
    end_table(page)?;
    if intervals.len() > ROWS_MAX {
        writeln!(
            page,
            "<p class=\"note\">The report's JSON has the rest.</p>"
        )?;
    }
    writeln!(page, "</details>")
}

fn write_facts(page: &mut String, report: &LoadView<'_>) -> fmt::Result {
    writeln!(
        page,
        "<h2>How it was measured</h2>\n<pre>{}</pre>\n<table class=\"facts\"><tbody>",
        prose(&report.origin.command)
    )?;
    for (name, value) in &report.facts {
        write_row(page, name, std::slice::from_ref(value))?;
    }
    writeln!(page, "</tbody></table>")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::report::chart::tests::luminance;
    use crate::report::escape;
    use crate::run::report::Report;
    use crate::run::report::tests::{config, floor, result};
    use crate::workloads::bench::op::Op;
    use rpcrdma_testkit::CheckWords;
    use rpcrdma_units::nanoseconds;

    fn page_of(change: impl FnOnce(&mut Report)) -> (Report, String) {
        let mut config = config();
        (config.op, config.size_bytes) = (Op::Echo, 4096);
        let result = result();
        let mut report = Report::new(&config, &Machine::detect(), &result, Some(&floor()));
        change(&mut report);
        let page = text(&report);
        (report, page)
    }

    /// Checks that the page is XML as well as HTML. Returns the number of elements of each name.
    pub(super) fn elements(page: &str) -> std::collections::BTreeMap<String, usize> {
        let body = page.strip_prefix("<!DOCTYPE html>\n").expect("a page");
        escape::tests::elements(body)
    }

    #[test]
    fn it_is_well_formed_and_has_three_charts_with_axes() {
        let (_, page) = page_of(|_| ());
        let counts = elements(&page);
        for (name, expected) in [
            ("html", 1),
            ("h1", 1),
            ("figure", 3),
            ("script", 0),
            ("link", 0),
        ] {
            assert_eq!(counts.get(name).copied().unwrap_or(0), expected, "{name}");
        }
        page.check_words(&[
            ">99.999 %</text>",
            ">share of the calls that were no slower</text>",
            ">round-trip time</text>",
            ">calls per second</text>",
            ">time since the measurement began</text>",
        ]);
    }

    /// A reader of any width, in the dark, on paper or by ear: what a test can hold of that.
    #[test]
    fn it_has_rules_for_narrow_pages_the_dark_and_paper() {
        let rules = |query: &str| {
            let (_, rules) = STYLE.split_once(&format!("@media {query} {{\n")).unwrap();
            let end = rules.find("\n}").unwrap();
            &rules[..end]
        };
        let (narrow, paper) = (rules("(max-width: 520px)"), rules("print"));
        narrow.check_words(&["body { padding", "table { font-size", ".facts th"]);
        paper.check_words(&[
            "tr, pre, li, table { break-inside: avoid; }",
            ".scroll { overflow: visible;",
            "details:not([open]) { display: none; }",
        ]);
        STYLE.check_words(&[
            "figure { margin: 1rem 0 1.5rem; max-width: 50rem; break-inside: avoid; }",
        ]);
        for style in [STYLE, chart::STYLE] {
            let dark = style.matches("prefers-color-scheme: dark").count();
            let on_screens = "screen and (prefers-color-scheme: dark)";
            assert_eq!(
                (dark, style.matches(on_screens).count()),
                (1, 1),
                "no dark paper"
            );
        }
        let dark = rules("screen and (prefers-color-scheme: dark)");
        for colors in [STYLE.split_once("@media").unwrap().0, dark] {
            let color = |name: &str| {
                let (_, color) = colors.split_once(&format!("--{name}: ")).unwrap();
                luminance(&color[..7])
            };
            for (text, ground) in [("ink", "ground"), ("muted", "ground"), ("ink", "warn")] {
                let (a, b) = (color(text), color(ground));
                let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
                assert!(contrast >= 4.5, "{text} on {ground}: {contrast}");
            }
        }
    }

    #[test]
    fn each_chart_has_a_title_words_and_axes_with_units() {
        let (_, page) = page_of(|_| ());
        let charts: Vec<_> = page.split("<figure>").skip(1).collect();
        for chart in charts {
            let (chart, _) = chart.split_once("</figure>").unwrap();
            chart.check_words(&["<title id=", "<desc id=", "role=\"img\"", "<figcaption"]);
            assert_eq!(chart.matches("class=\"label\"").count(), 2, "{chart}");
            let marks: Vec<_> = chart.split("<text class=\"mark").skip(1).collect();
            let words = marks.iter().map(|mark| {
                let (_, words) = mark.split_once('>').unwrap();
                words.split('<').next().unwrap()
            });
            for words in words {
                let unit = words.split_once(' ').map(|(_, unit)| unit);
                let known = ["%", "ns", "us", "ms", "s", "/s", "k/s", "M/s"];
                let has_unit = unit.is_some_and(|unit| known.contains(&unit));
                assert!(has_unit || words == "0", "{words}");
            }
            assert!(marks.len() > 4, "{chart}");
        }
    }

    #[test]
    fn a_line_does_not_break_within_the_name_of_an_option() {
        assert_eq!(
            prose("give --cores <others>"),
            "give <span class=\"option\">--cores</span> &lt;others&gt;"
        );
        let (_, page) = page_of(|report| report.warnings = vec!["give --cores".to_owned()]);
        assert!(page.contains("<li>give <span class=\"option\">--cores</span></li>"));
        assert!(STYLE.contains(".option { display: inline-block; max-width: 100%; }"));
    }

    #[test]
    fn a_line_of_a_table_does_not_break_between_a_figure_and_its_unit() {
        let cells =
            ["771.3 k/s", "client 1 on b, p99 2.000 ms; 5 clients", "a s"].map(str::to_owned);
        let row = text_of(|page| write_row(page, "", &cells));
        row.check_words(&[
            "<td>771.3\u{a0}k/s</td>",
            "<td>client 1 on b, p99 2.000\u{a0}ms; 5 clients</td><td>a s</td>",
        ]);
    }

    #[test]
    fn it_refers_to_nothing_outside() {
        let (_, page) = page_of(|report| report.connect = None);
        for word in [
            "http", "//", "url(", "@import", "src=", "href=", "<script", "onload",
        ] {
            assert!(!page.contains(word), "{word}");
        }
        assert!(page.contains("prefers-color-scheme: dark"));
    }

    /// The cells of a row as a page has them.
    pub(super) fn row_of(cells: &[String]) -> String {
        let cells = cells
            .iter()
            .map(|cell| format!("<td>{}</td>", with_units(cell)));
        cells.collect()
    }

    #[test]
    fn it_holds_the_figures_of_the_report() {
        let (report, page) = page_of(|_| ());
        let latency = &report.load.latency_ns;
        let corrected = report.load.latency_corrected_ns.unwrap().summary;
        for (name, measured, corrected) in [
            ("minimum", latency.min, corrected.min),
            ("p50", latency.p50, corrected.p50),
            ("p99.99", latency.p99_99, corrected.p99_99),
            ("maximum", latency.max, corrected.max),
        ] {
            let [measured, corrected] =
                [measured, corrected].map(|it| with_units(&nanoseconds(it)));
            let row =
                format!("<th scope=\"row\">{name}</th><td>{measured}</td><td>{corrected}</td>");
            assert!(page.contains(&row), "{row}");
        }
        assert!(page.contains("<td>20,001</td><td>20,017</td>"));
        for it in &report.load.intervals {
            let latency = it.latency_ns.map(|it| [it.p50, it.p99, it.max]);
            let figures = cells(it.calls, it.rate_per_s, latency);
            assert!(page.contains(&row_of(&figures)));
        }
        assert!(
            page.contains(&format!("<pre>{}</pre>", prose(&report.origin.command)))
                && page.contains(&escape(&report.machine.cpu))
        );
        assert!(page.contains("ordinary pages: there are no huge pages"));
    }

    #[test]
    fn an_interval_without_a_call_is_a_gap_between_latencies_and_a_rate_of_zero() {
        let paths = |page: &str, title: &str| -> Vec<usize> {
            let (_, chart) = page.split_once(&format!(">{title}</title>")).unwrap();
            let (chart, _) = chart.split_once("</figure>").unwrap();
            let curves = chart.split("<path class=\"curve").skip(1);
            let paths = curves.filter_map(|it| it.split('>').next());
            paths.map(|path| path.matches('M').count()).collect()
        };
        let (report, page) = page_of(|_| ());
        let (title, rates) = ("Round-trip times of each interval", "Rate of each interval");
        assert!(report.load.intervals.len() > 2, "one that is not at an end");
        assert_eq!(
            (paths(&page, title), paths(&page, rates)),
            (vec![1; 3], vec![1])
        );
        let (_, page) = page_of(|report| {
            let empty = &mut report.load.intervals[1];
            (empty.calls, empty.rate_per_s, empty.latency_ns) = (0, 0.0, None);
        });
        let row = row_of(&cells(0, 0.0, None));
        assert!(row.ends_with("<td>-</td>") && page.contains(&row));
        assert_eq!(
            (paths(&page, title), paths(&page, rates)),
            (vec![2; 3], vec![1])
        );
    }

    #[test]
    fn a_lost_connection_is_marked_where_it_was_lost() {
        let (report, whole) = page_of(|_| ());
        assert!(report.load.gaps.is_empty() && !whole.contains(">lost<"));
        let (_, page) = page_of(|report| {
            report.load.gaps = vec![
                Gap {
                    start_s: 1.0,
                    duration_s: 0.4
                };
                GAPS_SHOWN + 2
            ];
        });
        let marked = ["noted", "band"].map(|class| {
            let mark = format!("class=\"{class}\"");
            page.matches(&mark).count()
        });
        assert_eq!(marked, [2 * GAPS_SHOWN; 2], "in both charts");
        assert!(page.contains(">lost</text>"));
        let words = "lost at 1 s, and replaced after 400 ms";
        assert_eq!(page.matches(words).count(), GAPS_SHOWN);
        assert!(page.contains("2 more were lost"));
    }

    #[test]
    fn html_page_escapes_text_from_outside() {
        let evil = "</pre><script>alert('1')</script>&\u{7}\"";
        let (_, page) = page_of(|report| {
            report.origin.command = evil.to_owned();
            report.device = Some(evil.to_owned());
            report.profile = evil.to_owned();
            report.machine.cpu = evil.to_owned();
            report.machine.os = evil.to_owned();
            report.warnings = vec![evil.to_owned()];
            report.fabric = evil.to_owned();
            report.connect = Some(evil.to_owned());
            report.server_cores = None;
        });
        assert!(!page.contains("<script"));
        assert!(page.matches("&lt;script&gt;").count() >= 7);
        let _ = elements(&page);
    }

    #[test]
    fn a_run_without_calls_is_a_page_too() {
        let mut nothing = result();
        nothing.latency = LatencyHistogram::new();
        nothing.timeline.cores.clear();
        let report = Report::new(&config(), &Machine::detect(), &nothing, None);
        let page = text(&report);
        let _ = elements(&page);
        assert!(page.contains("No call ended."));
    }

    #[test]
    fn the_curve_ends_where_its_calls_do() {
        let latency = result().latency;
        let curve = percentile_curve("x", &latency);
        let (first, last) = (curve.points[0], curve.points[curve.points.len() - 1]);
        assert!((first.0 - 1.0).abs() < 1e-9 && first.1 == Some(400.0));
        assert!((last.0 - 20_001.0).abs() < 1e-9);
        for pair in curve.points.windows(2) {
            assert!(pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1, "{pair:?}");
        }
    }
}
