//! Line charts as SVG, without a script: axes with units, a grid, a legend.

use std::fmt::Write as _;

use super::escape::escape;
use rpcrdma_units::{text_of, time_mark};

/// The picture, in units of its own: it is scaled to the page.
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 320.0;

/// What the axes leave for the curves.
const LEFT: f64 = 84.0;
const RIGHT: f64 = 32.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 48.0;

/// Points are dots too in a curve of at most so many.
const DOTS_MAX: usize = 60;

/// Marks on an axis that is not logarithmic, about.
const MARKS: f64 = 5.0;

/// One axis: its range, its marks, and what it says.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    label: String,
    is_log: bool,
    low: f64,
    high: f64,
    marks: Vec<(f64, String)>,
    /// A place that is told apart, with its name.
    noted: Option<(f64, &'static str)>,
}

impl Axis {
    /// From 0 to at least `high`, with marks that `text` writes.
    pub(super) fn linear(label: &str, high: f64, text: impl Fn(f64) -> String) -> Self {
        let high = if high > 0.0 { high } else { 1.0 };
        let rough = high / MARKS;
        let scale = 10_f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * scale);
        let step = steps.into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let count = (high / step).ceil();
        let marks = (0..)
            .map(f64::from)
            .take_while(|number| *number <= count)
            .map(|number| (number * step, text(number * step)));
        Self {
            label: label.to_owned(),
            is_log: false,
            low: 0.0,
            high: count * step,
            marks: marks.collect(),
            noted: None,
        }
    }

    /// The same, ending at `high` and not at the mark behind it.
    pub(super) fn cut(mut self, high: f64) -> Self {
        if high > self.low {
            self.high = high;
            self.marks.retain(|(at, _)| *at <= high);
        }
        self
    }

    /// The same with a line at `at`, which has a name.
    pub(super) fn noting(mut self, at: f64, name: &'static str) -> Self {
        self.noted = Some((at, name));
        self
    }

    /// Round-trip times from `low_ns` to `high_ns`, logarithmic, with marks at 1, 2 and 5 of each power of ten.
    #[allow(clippy::cast_precision_loss, reason = "a place on a picture")]
    pub(super) fn latency(low_ns: u64, high_ns: u64) -> Self {
        let (low_ns, high_ns) = (low_ns.max(1), high_ns.max(2));
        let powers = (0..19).map(|power| 10_u64.pow(power));
        let all: Vec<u64> = powers
            .flat_map(|power| [1, 2, 5].map(|step| step * power))
            .collect();
        let first = all.iter().rposition(|mark| *mark <= low_ns).unwrap_or(0);
        let last = all.iter().position(|mark| *mark >= high_ns);
        let range = all
            .get(first..=last.unwrap_or(all.len() - 1))
            .unwrap_or(&[]);
        // Whole powers of ten alone where there would be too many marks.
        let is_wide = range.len() > 10;
        let ends = [range.first(), range.last()];
        let shown = range
            .iter()
            .filter(|mark| !is_wide || mark.ilog10() != (*mark - 1).max(1).ilog10() || **mark == 1);
        Self {
            label: "round-trip time".to_owned(),
            is_log: true,
            low: ends[0].map_or(1.0, |mark| *mark as f64),
            high: ends[1].map_or(2.0, |mark| *mark as f64),
            marks: shown.map(|at| (*at as f64, time_mark(*at))).collect(),
            noted: None,
        }
    }

    /// Percentiles by how many calls are slower: one of 1, of 10 and so on up to one of 100,000.
    pub(super) fn percentiles() -> Self {
        let names = ["0 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %"];
        let marks = (0..).map(|power| 10_f64.powi(power)).zip(names);
        Self {
            label: "share of the calls that were no slower".to_owned(),
            is_log: true,
            low: 1.0,
            high: 1e5,
            marks: marks.map(|(at, name)| (at, name.to_owned())).collect(),
            noted: None,
        }
    }

    /// Where a value lies, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let place = if self.is_log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        place.clamp(0.0, 1.0)
    }
}

/// One curve. Its name goes into the legend.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    pub(super) name: &'static str,
    pub(super) points: Vec<(f64, f64)>,
}

/// Classes of the curves, in order.
const STYLES: [&str; 3] = ["first", "second", "third"];

/// A chart of at most three curves; `id` is unique on the page.
pub(super) fn chart(id: &str, title: &str, x: &Axis, y: &Axis, curves: &[Curve]) -> String {
    text_of(|svg| write_chart(svg, id, title, (x, y), curves))
}

fn write_chart(
    svg: &mut String,
    id: &str,
    title: &str,
    (x, y): (&Axis, &Axis),
    curves: &[Curve],
) -> std::fmt::Result {
    writeln!(svg, "<figure>")?;
    write_caption(svg, title, curves)?;
    writeln!(
        svg,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-labelledby=\"{id}\">\n\
         <title id=\"{id}\">{}</title>",
        escape(title)
    )?;
    write_axes(svg, x, y)?;
    for (curve, style) in curves.iter().zip(STYLES) {
        write_curve(svg, (x, y), curve, style)?;
    }
    writeln!(svg, "</svg>\n</figure>")
}

/// The title, and the legend where there are several curves.
fn write_caption(svg: &mut String, title: &str, curves: &[Curve]) -> std::fmt::Result {
    write!(
        svg,
        "<figcaption class=\"legend note\"><span><b>{}</b></span> ",
        escape(title)
    )?;
    let several = curves.iter().filter(|_| curves.len() > 1);
    for (curve, style) in several.zip(STYLES) {
        write!(
            svg,
            "<span><svg class=\"key\" viewBox=\"0 0 32 10\" aria-hidden=\"true\">\
             <path class=\"curve {style}\" d=\"M0 5H32\"/></svg>{}</span> ",
            escape(curve.name)
        )?;
    }
    writeln!(svg, "</figcaption>")
}

fn at_x(axis: &Axis, value: f64) -> f64 {
    LEFT + axis.place(value) * (WIDTH - LEFT - RIGHT)
}

fn at_y(axis: &Axis, value: f64) -> f64 {
    HEIGHT - BOTTOM - axis.place(value) * (HEIGHT - TOP - BOTTOM)
}

fn write_axes(svg: &mut String, x: &Axis, y: &Axis) -> std::fmt::Result {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for (value, text) in &y.marks {
        let at = at_y(y, *value);
        writeln!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            at + 4.0,
            escape(text)
        )?;
    }
    for (value, text) in &x.marks {
        let at = at_x(x, *value);
        writeln!(
            svg,
            "<path class=\"grid\" d=\"M{at:.1} {TOP}V{bottom}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 18.0,
            escape(text)
        )?;
    }
    if let Some((value, name)) = x.noted {
        let at = at_x(x, value);
        writeln!(
            svg,
            "<path class=\"noted\" d=\"M{at:.1} {TOP}V{bottom}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
            at - 6.0,
            TOP + 12.0
        )?;
    }
    let middle = f64::midpoint(TOP, bottom);
    writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n\
         <text transform=\"translate(13 {middle:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        f64::midpoint(LEFT, right),
        HEIGHT - 8.0,
        escape(&x.label),
        escape(&y.label)
    )
}

fn write_curve(
    svg: &mut String,
    (x, y): (&Axis, &Axis),
    curve: &Curve,
    style: &str,
) -> std::fmt::Result {
    let points: Vec<(f64, f64)> = curve
        .points
        .iter()
        .map(|(at, value)| (at_x(x, *at), at_y(y, *value)))
        .collect();
    let path = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}"));
    let path = path.collect::<Vec<_>>().join(" ");
    writeln!(svg, "<polyline class=\"curve {style}\" points=\"{path}\"/>")?;
    for (x, y) in points.iter().filter(|_| points.len() <= DOTS_MAX) {
        writeln!(
            svg,
            "<circle class=\"dot {style}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>"
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_hold_the_range() {
        let axis = Axis::linear("rate", 4_300.0, |value| format!("{value}"));
        let marks: Vec<_> = axis.marks.iter().map(|(at, _)| *at).collect();
        assert_eq!(marks, [0.0, 1_000.0, 2_000.0, 3_000.0, 4_000.0, 5_000.0]);
        assert!((axis.place(2_500.0) - 0.5).abs() < 1e-9);
        let cut = axis.cut(4_300.0);
        assert!(cut.marks.len() == 5 && (cut.place(4_300.0) - 1.0).abs() < 1e-9);
        let nothing = Axis::linear("rate", 0.0, |value| format!("{value}"));
        assert!(nothing.high > 0.0, "an axis of nothing has a length");
    }

    #[test]
    fn latencies_have_marks_with_units() {
        let names = |low, high| -> Vec<String> {
            let axis = Axis::latency(low, high);
            axis.marks.into_iter().map(|(_, text)| text).collect()
        };
        assert_eq!(
            names(450, 4_000),
            ["200 ns", "500 ns", "1 us", "2 us", "5 us"]
        );
        let wide = names(400, 1_700_000);
        assert_eq!(wide, ["1 us", "10 us", "100 us", "1 ms"]);
        assert_eq!(names(0, 0), ["1 ns", "2 ns"]);
        assert!(!names(1, u64::MAX).is_empty());
    }

    #[test]
    fn percentiles_are_as_far_apart_as_their_nines() {
        let axis = Axis::percentiles();
        for (index, (value, _)) in axis.marks.iter().enumerate() {
            #[allow(clippy::cast_precision_loss)]
            let expected = index as f64 / 5.0;
            assert!((axis.place(*value) - expected).abs() < 1e-9);
        }
        assert!((axis.place(1e9) - 1.0).abs() < 1e-9, "never outside");
    }
}
