//! Line charts as SVG without scripts: axes with units, a grid, a legend.
//!
//! | module | contents |
//! |---|---|
//! | [`axis`] | ranges, marks and their texts |
//! | [`mod@file`] | a chart as a file: title, frame and legend |
//!
//! Colours and sizes are in `style.css`, as plain values, because not every SVG viewer supports CSS variables.

pub(crate) mod axis;
mod file;

use std::fmt::{self, Write as _};

use self::axis::{Axis, Mark};
pub(crate) use self::file::ChartFile;
use super::escape::escape;
use rpcrdma_units::text_of;

/// The style of all charts; a page contains it once.
pub(super) const STYLE: &str = include_str!("style.css");

/// Width and height of a chart in its own units, which scale with the page.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 390.0;

/// Space between the curves and the edges of the chart. The left and the right edge have more where the text of a mark
/// needs it.
const LEFT_MIN: f64 = 76.0;
const RIGHT_MIN: f64 = 28.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 66.0;

/// Space between a mark and the text beside it, and between a text and the edge of the chart.
const MARK_SPACE: f64 = 8.0;
const EDGE: f64 = 4.0;

/// Font sizes of `style.css` on the widest and on the narrowest page, in the chart's units.
const FONT_WIDE: f64 = 13.0;
const FONT_NARROW: f64 = 23.0;

/// Width of a character relative to the font size, in fonts as wide as DejaVu Sans.
const CHARACTER: f64 = 0.62;

/// Curves with at most this many points have a dot at every point.
const DOTS_MAX: usize = 60;

/// Number of combinations of colour, dashes and dot shape. Further curves have hollow dots; after these, styles
/// repeat.
const STYLES: usize = 7;

/// Upper bound of the curves of a chart. More cannot be distinguished by color, line and mark.
pub(crate) const CURVES_MAX: usize = 2 * STYLES;

/// One curve. Its name is in the legend.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    pub(crate) name: String,
    /// The points in order, as values on both axes. At a `None` the curve has a gap.
    pub(crate) points: Vec<(f64, Option<f64>)>,
    /// Vertical lines: each has its place, and its lowest and highest value.
    pub(crate) ranges: Vec<(f64, (f64, f64))>,
}

impl Curve {
    pub(crate) fn new(
        name: impl Into<String>,
        points: impl IntoIterator<Item = (f64, Option<f64>)>,
    ) -> Self {
        Self {
            name: name.into(),
            points: points.into_iter().collect(),
            ranges: Vec::new(),
        }
    }
}

/// A chart as a figure of a page; `id` must be unique on the page.
pub(crate) fn figure(id: &str, title: &str, x: &Axis, y: &Axis, curves: &[Curve]) -> String {
    text_of(|svg| write_figure(svg, id, title, (x, y), curves))
}

fn write_figure(
    svg: &mut String,
    id: &str,
    title: &str,
    axes: (&Axis, &Axis),
    curves: &[Curve],
) -> fmt::Result {
    writeln!(svg, "<figure>")?;
    write_caption(svg, title, curves)?;
    writeln!(
        svg,
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-labelledby=\"{id} {id}-text\">\n\
         <title id=\"{id}\">{}</title>\n<desc id=\"{id}-text\">{}</desc>",
        escape(title),
        escape(&described(axes, curves))
    )?;
    write_plot(svg, axes, curves, EDGE)?;
    writeln!(svg, "</svg>\n</figure>")
}

/// Writes the title and, for several curves, the legend.
fn write_caption(svg: &mut String, title: &str, curves: &[Curve]) -> fmt::Result {
    write!(
        svg,
        "<figcaption class=\"legend note\"><b>{}</b> ",
        escape(title)
    )?;
    let several = curves.iter().enumerate().filter(|_| curves.len() > 1);
    for (place, curve) in several {
        write!(
            svg,
            "<span><svg class=\"key\" viewBox=\"0 0 40 12\" aria-hidden=\"true\">"
        )?;
        write_key(svg, place, (0.0, 6.0))?;
        write!(svg, "</svg>{}</span> ", escape(&curve.name))?;
    }
    writeln!(svg, "</figcaption>")
}

/// Writes a legend key: a piece of the curve with a dot, 40 units long.
fn write_key(svg: &mut String, place: usize, (x, y): (f64, f64)) -> fmt::Result {
    let style = style(place);
    write!(
        svg,
        "<path class=\"curve {style}\" d=\"M{x} {y}h40\"/>{}",
        dot(place, (x + 20.0, y))
    )
}

/// The chart in words, for those who do not see it: the axes, and the range of each curve.
pub(super) fn described((x, y): (&Axis, &Axis), curves: &[Curve]) -> String {
    let of_curve = |curve: &Curve| {
        let values = || curve.points.iter().filter_map(|(_, value)| *value);
        let least = values().min_by(f64::total_cmp);
        let Some((least, largest)) = least.zip(values().max_by(f64::total_cmp)) else {
            return format!("{}: no values", curve.name);
        };
        let gaps = curve.points.iter().filter(|it| it.1.is_none()).count();
        let gaps = match gaps {
            0 => String::new(),
            1 => ", 1 point without a value".to_owned(),
            gaps => format!(", {gaps} points without a value"),
        };
        format!(
            "{}: {} to {}{gaps}",
            curve.name,
            y.unit.text(least),
            y.unit.text(largest)
        )
    };
    let curves: Vec<String> = curves.iter().map(of_curve).collect();
    format!("{} by {}. {}", y.label, x.label, curves.join("; "))
}

/// Writes axes and curves. The label of the vertical axis begins at `edge`.
fn write_plot(svg: &mut String, axes: (&Axis, &Axis), curves: &[Curve], edge: f64) -> fmt::Result {
    let plot = Plot::new(axes);
    plot.write_axes(svg, edge)?;
    for (place, curve) in curves.iter().enumerate() {
        plot.write_curve(svg, place, curve)?;
    }
    Ok(())
}

/// The axes and the edges of the curves between them.
struct Plot<'a> {
    x: &'a Axis,
    y: &'a Axis,
    left: f64,
    right: f64,
}

impl<'a> Plot<'a> {
    /// Leaves room for the texts of the marks in the font of a narrow page.
    fn new((x, y): (&'a Axis, &'a Axis)) -> Self {
        let width = |mark: &Mark| text_width(&mark.text, FONT_NARROW);
        let marks = y.marks.iter().map(width).fold(0.0, f64::max) + MARK_SPACE + EDGE;
        let half = |mark: Option<&Mark>| mark.map_or(0.0, width) / 2.0 + EDGE;
        Self {
            x,
            y,
            left: marks.max(half(x.marks.first())).max(LEFT_MIN),
            right: WIDTH - half(x.marks.last()).max(RIGHT_MIN),
        }
    }

    fn at_x(&self, value: f64) -> f64 {
        self.left + self.x.share(value) * (self.right - self.left)
    }

    fn at_y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.share(value) * (HEIGHT - TOP - BOTTOM)
    }
}

fn text_width(text: &str, font: f64) -> f64 {
    u32::try_from(text.chars().count()).map_or(f64::MAX, f64::from) * font * CHARACTER
}

/// On which pages the text of a mark is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Always,
    /// On pages that are wide enough for a small font.
    Fine,
    Never,
}

/// Selects the marks whose text is shown, so that no text covers another. `places` are their positions along the
/// axis; `extent` is the length of a text along the axis at a font size.
fn shown(marks: &[Mark], places: &[f64], extent: impl Fn(&str, f64) -> f64) -> Vec<Shown> {
    let fits = |last: Option<usize>, at: usize, font: f64| {
        let Some((other, last)) = last.and_then(|it| Some((marks.get(it)?, places.get(it)?)))
        else {
            return true;
        };
        let (Some(mark), Some(place)) = (marks.get(at), places.get(at)) else {
            return false;
        };
        let needed = f64::midpoint(extent(&mark.text, font), extent(&other.text, font));
        (place - last).abs() >= needed + font / 5.0
    };
    let (mut wide, mut narrow) = (None, None);
    let one = |at| {
        if !fits(wide, at, FONT_WIDE) {
            return Shown::Never;
        }
        wide = Some(at);
        if !fits(narrow, at, FONT_NARROW) {
            return Shown::Fine;
        }
        narrow = Some(at);
        Shown::Always
    };
    (0..marks.len()).map(one).collect()
}

fn write_mark(
    svg: &mut String,
    text: &str,
    shown: Shown,
    (x, y): (f64, f64),
    rest: &str,
) -> fmt::Result {
    let class = match shown {
        Shown::Always => "mark",
        Shown::Fine => "mark fine",
        Shown::Never => return Ok(()),
    };
    writeln!(
        svg,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" {rest}>{}</text>",
        escape(text)
    )
}

impl Plot<'_> {
    fn write_axes(&self, svg: &mut String, edge: f64) -> fmt::Result {
        let (x, y, left, right) = (self.x, self.y, self.left, self.right);
        let bottom = HEIGHT - BOTTOM;
        for noted in &x.noted {
            if let Some(until) = noted.until {
                let (from, until) = (self.at_x(noted.at), self.at_x(until));
                let height = bottom - TOP;
                writeln!(
                    svg,
                    "<rect class=\"band\" x=\"{from:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{height}\"/>",
                    until - from
                )?;
            }
        }
        let places: Vec<f64> = y.marks.iter().map(|mark| self.at_y(mark.at)).collect();
        let texts = shown(&y.marks, &places, |_, font| font * 0.7);
        for ((mark, at), shown) in y.marks.iter().zip(places).zip(texts) {
            writeln!(
                svg,
                "<path class=\"grid\" d=\"M{left:.1} {at:.1}H{right:.1}\"/>"
            )?;
            let end = "dy=\".35em\" text-anchor=\"end\"";
            write_mark(svg, &mark.text, shown, (left - MARK_SPACE, at), end)?;
        }
        let places: Vec<f64> = x.marks.iter().map(|mark| self.at_x(mark.at)).collect();
        let texts = shown(&x.marks, &places, text_width);
        for ((mark, at), shown) in x.marks.iter().zip(places).zip(texts) {
            writeln!(svg, "<path class=\"grid\" d=\"M{at:.1} {TOP}V{bottom}\"/>")?;
            let middle = "dy=\"1em\" text-anchor=\"middle\"";
            write_mark(svg, &mark.text, shown, (at, bottom + 5.0), middle)?;
        }
        self.write_noted(svg)?;
        // The label of the vertical axis is above the axis: rotated by 90 degrees it would take width and be harder to
        // read.
        writeln!(
            svg,
            "<text class=\"label\" x=\"{edge}\" y=\"{}\">{}</text>\n\
             <text class=\"label\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            TOP - 22.0,
            escape(&y.label),
            f64::midpoint(left, right),
            HEIGHT - 9.0,
            escape(&x.label)
        )
    }

    /// Writes the named values of the horizontal axis: a line for each, and its name where that covers no other name.
    fn write_noted(&self, svg: &mut String) -> fmt::Result {
        let mut named: Option<f64> = None;
        for noted in &self.x.noted {
            let (at, bottom) = (self.at_x(noted.at), HEIGHT - BOTTOM);
            writeln!(svg, "<path class=\"noted\" d=\"M{at:.1} {TOP}V{bottom}\"/>")?;
            let width = text_width(&noted.name, FONT_NARROW) + MARK_SPACE;
            let (place, anchor, end) = if at - width >= named.unwrap_or(self.left) {
                (at - MARK_SPACE, "end", at)
            } else if named.is_none() && at + width <= self.right {
                (at + MARK_SPACE, "start", at + width)
            } else {
                continue;
            };
            named = Some(end);
            writeln!(
                svg,
                "<text class=\"name\" x=\"{place:.1}\" y=\"{TOP}\" dy=\"1.1em\" text-anchor=\"{anchor}\">{}</text>",
                escape(&noted.name)
            )?;
        }
        Ok(())
    }

    fn write_curve(&self, svg: &mut String, place: usize, curve: &Curve) -> fmt::Result {
        let points: Vec<Option<(f64, f64)>> = curve
            .points
            .iter()
            .map(|(at, value)| {
                let value = value.filter(|value| value.is_finite())?;
                Some((self.at_x(*at), self.at_y(value)))
            })
            .collect();
        let pieces: Vec<&[Option<(f64, f64)>]> = points.split(Option::is_none).collect();
        let path = text_of(|path| {
            for (x, y, is_first) in pieces.iter().flat_map(|piece| numbered(piece)) {
                write!(path, "{}{x:.1} {y:.1}", if is_first { "M" } else { "L" })?;
            }
            Ok(())
        });
        if path.is_empty() {
            return Ok(());
        }
        writeln!(svg, "<path class=\"curve {}\" d=\"{path}\"/>", style(place))?;
        for (at, (least, largest)) in &curve.ranges {
            let (at, least, largest) = (self.at_x(*at), self.at_y(*least), self.at_y(*largest));
            let (class, left) = (style(place), at - 4.0);
            writeln!(
                svg,
                "<path class=\"range {class}\" d=\"M{left:.1} {least:.1}h8M{at:.1} {least:.1}V{largest:.1}m-4 0h8\"/>"
            )?;
        }
        let has_dots = points.len() <= DOTS_MAX;
        // A single point between two gaps has no line, so without a dot it would be invisible.
        for piece in pieces.iter().filter(|piece| has_dots || piece.len() == 1) {
            for (x, y, _) in numbered(piece) {
                writeln!(svg, "{}", dot(place, (x, y)))?;
            }
        }
        Ok(())
    }
}

/// The points of a piece of a curve, each with whether it is the first.
fn numbered(piece: &[Option<(f64, f64)>]) -> impl Iterator<Item = (f64, f64, bool)> {
    let points = piece.iter().flatten().enumerate();
    points.map(|(number, (x, y))| (*x, *y, number == 0))
}

/// The CSS class of curve number `place`, which sets colour and dashes.
fn style(place: usize) -> String {
    format!("s{}", place % STYLES + 1)
}

/// A dot of curve number `place`: a circle, a square, a triangle and so on.
fn dot(place: usize, (x, y): (f64, f64)) -> String {
    let shape = match place % STYLES {
        0 => "m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z",
        1 => "m-3 -3h6v6h-6z",
        2 => "m0 -4l4 7h-8z",
        3 => "m0 -4.5l4.5 4.5l-4.5 4.5l-4.5 -4.5z",
        4 => "m0 4l4 -7h-8z",
        5 => "m-4 0h8m-4 -4v8",
        _ => "m-3.5 -3.5l7 7m0 -7l-7 7",
    };
    let hollow = match place / STYLES % 2 {
        0 => "",
        _ => " hollow",
    };
    format!(
        "<path class=\"dot {}{hollow}\" d=\"M{x:.1} {y:.1}{shape}\"/>",
        style(place)
    )
}

#[cfg(test)]
pub(super) mod tests;
