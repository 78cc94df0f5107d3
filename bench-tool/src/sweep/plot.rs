//! The chart of a sweep: one line for every combination of the parameters that are not on the horizontal axis.

use std::path::PathBuf;
use std::str::FromStr;

use super::grid::{Axis, Point};
use super::runs::{Swept, SweptReport};
use super::table::heading;
use crate::exit::Failure;
use crate::report::chart::axis::{self as chart, Unit, whole};
use crate::report::chart::{ChartFile, Curve};
use crate::report::metric::Metric;
use rpcrdma_units::{rate_mark, size};

/// The chart's file. Its name ends in `.svg`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Picture(pub(crate) PathBuf);

impl FromStr for Picture {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = PathBuf::from(text);
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("svg") => Ok(Self(path)),
            _ => Err(format!(
                "the chart is SVG, and `{text}` does not end in .svg: give a name that does"
            )),
        }
    }
}

/// The horizontal axis for these points: the first axis with numbers on which they differ.
///
/// # Errors
/// A usage failure if there is none.
pub(crate) fn axis(points: &[Point]) -> Result<Axis, Failure> {
    let is_number = |axis: &Axis| points.iter().all(|point| axis.number(point).is_some());
    let varied = Axis::varied(points).into_iter().find(is_number);
    varied.ok_or_else(|| {
        Failure::usage("there is nothing to draw a line along").advice(
            "give --size, --depth, --connections or --rate two values or more, or leave --plot out",
        )
    })
}

/// The chart.
///
/// # Errors
/// A usage failure if the points differ on no axis with numbers.
pub(crate) fn chart(
    report: &Swept<impl SweptReport>,
    figure: Option<Metric>,
) -> Result<ChartFile, Failure> {
    let x = axis(&report.grid())?;
    let y = figure.unwrap_or(match x {
        Axis::Depth | Axis::Connections => Metric::Rate,
        _ => Metric::P50,
    });
    let curves = curves(report, x, y);
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let places: Vec<f64> = points().map(|(at, _)| *at).collect();
    let ranges = curves.iter().flat_map(|curve| &curve.ranges);
    let ends = ranges.flat_map(|(_, (least, largest))| [*least, *largest]);
    let figures: Vec<f64> = points()
        .filter_map(|(_, value)| *value)
        .chain(ends)
        .collect();
    let against = match x {
        Axis::Size => "payload size",
        Axis::Connections => "connections",
        Axis::Rate => "offered rate",
        _ => "depth",
    };
    Ok(ChartFile {
        title: match y {
            Metric::Rate => format!("Calls per second against {against}"),
            _ => format!("Round-trip time ({}) against {against}", y.name()),
        },
        subtitle: match curves.iter().any(|curve| !curve.ranges.is_empty()) {
            true => format!("{}, bars from the lowest to the highest", heading(report)),
            false => heading(report),
        },
        x: places_axis(x, &places),
        y: match y {
            Metric::Rate => chart::Axis::figures("calls per second", &figures, Unit::Rate),
            _ => {
                let label = format!("round-trip time, {}", y.name());
                chart::Axis::figures(&label, &figures, Unit::Nanoseconds)
            }
        },
        curves,
    })
}

/// The curves by name. A combination without a complete run leaves a gap.
fn curves(report: &Swept<impl SweptReport>, x: Axis, y: Metric) -> Vec<Curve> {
    let mut others = report.axes();
    others.retain(|axis| *axis != x);
    let mut curves: Vec<Curve> = Vec::new();
    for (place, point) in report.grid().iter().enumerate() {
        let Some(at) = x.number(point) else {
            continue;
        };
        let value = (at, report.median(place, y));
        let name = point.label(&others);
        let known = curves.iter().position(|curve| curve.name == name);
        let number = known.unwrap_or_else(|| {
            curves.push(Curve::new(name, []));
            curves.len() - 1
        });
        if let Some(curve) = curves.get_mut(number) {
            curve.points.push(value);
            let range = report.range(place, y);
            curve.ranges.extend(range.map(|range| (at, range)));
        }
    }
    for curve in &mut curves {
        curve.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    curves
}

/// The horizontal axis, with a mark for each value of the sweep.
fn places_axis(axis: Axis, values: &[f64]) -> chart::Axis {
    let label = match axis {
        Axis::Size => "payload of one operation (bytes)",
        Axis::Connections => "connections",
        Axis::Rate => "offered (calls per second)",
        _ => "calls outstanding on each connection",
    };
    chart::Axis::places(label, values, |value| match axis {
        Axis::Size => size(whole(value)),
        Axis::Rate => rate_mark(value),
        _ => format!("{value:.0}"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{depths, sizes_and_placements};
    use super::*;
    use crate::report::escape::tests::elements;
    use crate::run::report::Report;

    fn svg(report: &Swept<Report>, figure: Option<Metric>) -> String {
        chart(report, figure).unwrap().svg()
    }

    #[test]
    fn a_picture_of_sizes_has_a_line_for_each_placement() {
        let text = svg(&sizes_and_placements(), None);
        assert!(text.starts_with("<svg"), "{text}");
        let _ = elements(&text);
        for words in [
            ">Round-trip time (p50) against payload size</title>",
            "payload of one operation (bytes)",
            "round-trip time, p50",
            "prefers-color-scheme: dark",
            "64 KiB",
            "send",
            "rdma",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        // Three points and the key of each line.
        let dots = |style| {
            text.matches(&format!("<path class=\"dot {style}\""))
                .count()
        };
        assert_eq!(["s1", "s2", "s3"].map(dots), [4, 4, 0]);
    }

    #[test]
    fn bars_are_explained_where_there_are_any() {
        let bars = |report: &Swept<Report>| {
            let text = svg(report, None);
            let explained = text.contains("bars from");
            (text.matches("class=\"range s1\"").count(), explained)
        };
        let mut report = depths();
        assert_eq!(bars(&report), (0, false), "one run of each");
        let second = report.runs[0].clone();
        report.push(0, second);
        assert_eq!(bars(&report), (1, true));
    }

    #[test]
    fn a_combination_that_failed_is_a_gap() {
        let curve = |report: &Swept<Report>| {
            let text = svg(report, None);
            let (_, path) = text.split_once("<path class=\"curve s1\" d=\"").unwrap();
            let path = path.split('"').next().unwrap().to_owned();
            (path.matches('M').count(), path.matches('L').count())
        };
        let mut report = depths();
        assert_eq!(curve(&report), (1, 2));
        // The second of three depths has no run.
        report.points[1].runs.clear();
        assert_eq!(curve(&report), (2, 0));
    }

    #[test]
    fn chart_of_depths_shows_the_rate_unless_another_metric_is_chosen() {
        assert!(svg(&depths(), None).contains("Calls per second against depth"));
        let text = svg(&depths(), Some(Metric::P99));
        assert!(text.contains("Round-trip time (p99) against depth"));
        let _ = elements(&text);
    }

    #[test]
    fn names_of_pictures() {
        assert_eq!("a.b.svg".parse(), Ok(Picture("a.b.svg".into())));
        for wrong in ["a", "a.jpg", "a.png", "", "svg", "a.SVG.txt"] {
            assert!(
                wrong.parse::<Picture>().unwrap_err().contains(".svg"),
                "{wrong}"
            );
        }
        assert!(axis(&[]).is_err());
    }
}
