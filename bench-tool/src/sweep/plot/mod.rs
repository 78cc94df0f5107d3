//! The picture of a sweep: one line for every combination of what is not on the horizontal axis.

mod scale;

use std::error::Error;
use std::path::PathBuf;
use std::str::FromStr;

use plotters::coord::Shift;
use plotters::prelude::*;

use self::scale::Scale;
use super::SweepReport;
use super::grid::{Axis, Point};
use super::table::heading;
use crate::compare::metric::Metric;
use crate::exit::Failure;
use rpcrdma_units::{rate_mark, size, time_mark};

/// Width and height in pixels.
const SIZE: (u32, u32) = (960, 600);

/// The colours of the lines, in the order of the lines; told apart by eyes that see fewer colours, and seen on light
/// and on dark (Okabe and Ito).
const COLORS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x56, 0xB4, 0xE9),
    RGBColor(0x80, 0x80, 0x80),
];

/// Lines of the grid, on light.
const GRID: RGBColor = RGBColor(0xDD, 0xDD, 0xDD);

/// What a reader on dark sees in place of white, black and the grid.
const DARK: &str = "<style>@media (prefers-color-scheme: dark) { [fill='#FFFFFF'] { fill: #15181C } \
                    [fill='#000000'] { fill: #E6E6E6 } [stroke='#000000'] { stroke: #E6E6E6 } \
                    [stroke='#DDDDDD'] { stroke: #3A3F46 } }</style>";

/// A file to draw to, whose name ends in `.svg`.
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

/// The horizontal axis of a picture of these points: the first one of numbers on which they differ.
///
/// # Errors
/// A usage failure when there is none.
pub(crate) fn axis(points: &[Point]) -> Result<Axis, Failure> {
    let is_number = |axis: &Axis| points.iter().all(|point| axis.number(point).is_some());
    let varied = Axis::varied(points).into_iter().find(is_number);
    varied.ok_or_else(|| {
        Failure::usage("there is nothing to draw a line along").advice(
            "give --size, --depth, --connections or --rate two values or more, or leave --plot out",
        )
    })
}

/// What is drawn, apart from how.
struct Chart {
    title: String,
    subtitle: String,
    x: Axis,
    y: Metric,
    lines: Vec<Line>,
}

struct Line {
    name: String,
    /// Value on the horizontal axis, and figure.
    points: Vec<(f64, f64)>,
}

/// The picture, as SVG.
///
/// # Errors
/// A usage failure when the points have no axis of numbers; a picture that cannot be made.
pub(crate) fn draw(report: &SweepReport, figure: Option<Metric>) -> Result<String, Failure> {
    let chart = Chart::new(report, figure)?;
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
    chart
        .paint(&area)
        .map_err(|error| Failure::failed("cannot make the picture").because(error))?;
    drop(area);
    Ok(with_title(&text, &chart.title))
}

/// Puts the title, for those who do not see the picture, and the colours on dark behind the first tag.
fn with_title(svg: &str, title: &str) -> String {
    let begin = svg
        .find("<svg")
        .and_then(|at| svg[at..].find('>').map(|end| at + end + 1));
    let (head, body) = svg.split_at(begin.unwrap_or(0));
    format!("{head}\n<title>{title}</title>\n{DARK}{body}")
}

impl Chart {
    fn new(report: &SweepReport, figure: Option<Metric>) -> Result<Self, Failure> {
        let x = axis(&report.points)?;
        let y = figure.unwrap_or(match x {
            Axis::Depth | Axis::Connections => Metric::Rate,
            _ => Metric::P50,
        });
        let others: Vec<Axis> = Axis::varied(&report.points)
            .into_iter()
            .filter(|axis| *axis != x)
            .collect();
        let mut lines: Vec<Line> = Vec::new();
        for (place, point) in report.points.iter().enumerate() {
            let (Some(at), Some(value)) = (x.number(point), report.median(place, y)) else {
                continue;
            };
            let name = point.label(&others);
            match lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push((at, value)),
                None => lines.push(Line {
                    name,
                    points: vec![(at, value)],
                }),
            }
        }
        for line in &mut lines {
            line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        let figure = match y {
            Metric::Rate => "Calls per second".to_owned(),
            _ => format!("Round-trip time ({})", y.name()),
        };
        let against = match x {
            Axis::Size => "payload size",
            Axis::Connections => "connections",
            Axis::Rate => "offered rate",
            _ => "depth",
        };
        Ok(Self {
            title: format!("{figure} against {against}"),
            subtitle: heading(report),
            x,
            y,
            lines,
        })
    }

    fn x_name(&self) -> &'static str {
        match self.x {
            Axis::Size => "payload of one operation (bytes)",
            Axis::Connections => "connections",
            Axis::Rate => "offered (calls per second)",
            _ => "calls outstanding on each connection",
        }
    }

    fn y_name(&self) -> String {
        match self.y {
            Metric::Rate => "calls per second".to_owned(),
            metric => format!("round-trip time, {}", metric.name()),
        }
    }

    fn x_text(&self, value: f64) -> String {
        match self.x {
            Axis::Size => size(whole(value)),
            Axis::Rate => rate_mark(value),
            _ => format!("{value:.0}"),
        }
    }

    fn y_text(&self, value: f64) -> String {
        match self.y {
            _ if value == 0.0 => "0".to_owned(),
            Metric::Rate => rate_mark(value),
            _ => time_mark(whole(value)),
        }
    }

    fn paint(
        &self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let values = |of: fn(&(f64, f64)) -> f64| -> Vec<f64> {
            self.lines
                .iter()
                .flat_map(|line| &line.points)
                .map(of)
                .collect()
        };
        let (x, y) = (
            Scale::of_places(&values(|p| p.0)),
            Scale::of_figures(&values(|p| p.1)),
        );
        area.fill(&WHITE)?;
        let text = |height: u32| ("sans-serif", height).into_font().color(&BLACK);
        let area = area.margin(8, 0, 0, 0);
        let area = area.titled(&self.title, text(24))?;
        let area = area.titled(&self.subtitle, text(14))?;
        let mut chart = ChartBuilder::on(&area)
            .margin(16)
            .margin_right(32)
            .x_label_area_size(56)
            .y_label_area_size(110)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .light_line_style(GRID)
            .axis_style(BLACK)
            .x_desc(self.x_name())
            .y_desc(self.y_name())
            .axis_desc_style(text(16))
            .label_style(text(14))
            .x_label_formatter(&|value| self.x_text(*value))
            .y_label_formatter(&|value| self.y_text(*value))
            .draw()?;
        for (line, color) in self.lines.iter().zip(COLORS.into_iter().cycle()) {
            let drawn =
                chart.draw_series(LineSeries::new(line.points.clone(), color.stroke_width(2)))?;
            if self.lines.len() > 1 {
                drawn.label(&line.name).legend(move |(left, middle)| {
                    PathElement::new([(left, middle), (left + 18, middle)], color.stroke_width(2))
                });
            }
            chart.draw_series(
                line.points
                    .iter()
                    .map(|point| Circle::new(*point, 4, color.filled())),
            )?;
        }
        if self.lines.len() > 1 {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperLeft)
                .background_style(WHITE)
                .border_style(GRID)
                .label_font(text(14))
                .draw()?;
        }
        area.present()?;
        Ok(())
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "values of an axis are not below zero, and the conversion saturates"
)]
const fn whole(value: f64) -> u64 {
    value.round() as u64
}

#[cfg(test)]
mod tests {
    use super::super::tests::{depths, sizes_and_placements};
    use super::*;

    fn svg(report: &SweepReport, figure: Option<Metric>) -> String {
        draw(report, figure).unwrap()
    }

    /// Whether every tag is closed, in order: enough of XML for a picture without text that could hold a tag.
    fn is_balanced(text: &str) -> bool {
        let mut open = Vec::new();
        for tag in text
            .split('<')
            .skip(1)
            .filter_map(|part| part.split('>').next())
        {
            let name = tag.split([' ', '\n']).next().unwrap_or_default();
            if let Some(name) = name.strip_prefix('/') {
                if open.pop() != Some(name) {
                    return false;
                }
            } else if !tag.ends_with('/') && !tag.starts_with(['?', '!']) {
                open.push(name);
            }
        }
        open.is_empty()
    }

    #[test]
    fn a_picture_of_sizes_has_a_line_for_each_placement() {
        let text = svg(&sizes_and_placements(), None);
        assert!(text.starts_with("<svg") && is_balanced(&text), "{text}");
        for words in [
            "<title>Round-trip time (p50) against payload size</title>",
            "payload of one operation (bytes)",
            "round-trip time, p50",
            "prefers-color-scheme: dark",
            "64 KiB",
            "send",
            "rdma",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert_eq!(text.matches("<circle").count(), 6);
        let colors = COLORS.map(|color| format!("#{:02X}{:02X}{:02X}", color.0, color.1, color.2));
        assert!(
            text.contains(&colors[0]) && text.contains(&colors[1]) && !text.contains(&colors[2])
        );
    }

    #[test]
    fn a_picture_of_depths_shows_the_rate_unless_told_otherwise() {
        assert!(svg(&depths(), None).contains("Calls per second against depth"));
        let text = svg(&depths(), Some(Metric::P99));
        assert!(text.contains("Round-trip time (p99) against depth") && is_balanced(&text));
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
