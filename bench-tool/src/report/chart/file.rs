//! A chart as a separate file, with title, frame and legend.

use std::fmt::{self, Write as _};

use super::axis::Axis;
use super::{
    CHARACTER, Curve, FONT_NARROW, HEIGHT, STYLE, WIDTH, described, text_width, write_key,
    write_plot,
};
use crate::report::escape::escape;
use rpcrdma_units::text_of;

/// Default width of the file in pixels.
const SHOWN_WIDTH: f64 = 960.0;

/// Space between the frame and the texts.
const MARGIN: f64 = 16.0;

/// Height of a title line, and of a line in the smaller font.
const TITLE_LINE: f64 = 31.0;
const LINE: f64 = 27.0;

/// Font size of the title on the narrowest page, in the chart's units.
const TITLE_FONT: f64 = 27.0;

/// Length of a legend key, and its distance from the name.
const KEY: f64 = 40.0;
const KEY_SPACE: f64 = 8.0;

/// A chart with title and subtitle.
#[derive(Clone, Debug)]
pub(crate) struct ChartFile {
    pub(crate) title: String,
    pub(crate) subtitle: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) curves: Vec<Curve>,
}

impl ChartFile {
    /// The text of an SVG file.
    pub(crate) fn svg(&self) -> String {
        let mut top = 0.0;
        let head = text_of(|head| {
            top = self.write_head(head)?;
            Ok(())
        });
        let height = top + HEIGHT + MARGIN / 2.0;
        text_of(|svg| {
            writeln!(
                svg,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" width=\"{SHOWN_WIDTH}\" height=\"{:.0}\" \
                 viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"title text\">\n\
                 <title id=\"title\">{}</title>\n<desc id=\"text\">{}</desc>\n<style>\n{STYLE}</style>\n\
                 <rect class=\"ground\" x=\".5\" y=\".5\" width=\"{}\" height=\"{}\" rx=\"4\"/>\n\
                 {head}<g transform=\"translate(0 {top})\">",
                SHOWN_WIDTH / WIDTH * height,
                escape(&self.title),
                escape(&described((&self.x, &self.y), &self.curves)),
                WIDTH - 1.0,
                height - 1.0
            )?;
            write_plot(svg, (&self.x, &self.y), &self.curves, MARGIN)?;
            writeln!(svg, "</g>\n</svg>")
        })
    }

    /// Writes title, subtitle and legend. Returns the position where the plot begins.
    fn write_head(&self, head: &mut String) -> Result<f64, fmt::Error> {
        let mut y = MARGIN / 2.0;
        for line in wrapped(&self.title, TITLE_FONT * 1.05) {
            y += TITLE_LINE;
            write_text(head, "title", (MARGIN, y), &line)?;
        }
        for line in wrapped(&self.subtitle, FONT_NARROW) {
            y += LINE;
            write_text(head, "note", (MARGIN, y), &line)?;
        }
        if self.curves.len() > 1 {
            y = self.write_legend(head, y + LINE / 4.0)?;
        }
        Ok(y + LINE / 2.0)
    }

    /// Writes the legend below `y`, in as many columns as the longest name allows. Returns the position where it
    /// ends.
    fn write_legend(&self, head: &mut String, y: f64) -> Result<f64, fmt::Error> {
        let space = WIDTH - 2.0 * MARGIN;
        let longest = fitting(space - KEY - KEY_SPACE, FONT_NARROW);
        let names: Vec<String> = self
            .curves
            .iter()
            .map(|curve| shortened(&curve.name, longest))
            .collect();
        let widths = names.iter().map(|name| text_width(name, FONT_NARROW));
        let cell = KEY + KEY_SPACE + widths.fold(0.0, f64::max) + MARGIN;
        let columns = (1..=names.len())
            .take_while(|columns| as_f64(*columns) * cell <= space + MARGIN)
            .last()
            .unwrap_or(1);
        for (place, name) in names.iter().enumerate() {
            let x = MARGIN + as_f64(place % columns) * cell;
            let base = y + as_f64(place / columns + 1) * LINE;
            write_key(head, place, (x, base - 6.0))?;
            write_text(head, "name", (x + KEY + KEY_SPACE, base), name)?;
        }
        Ok(y + as_f64(names.len().div_ceil(columns)) * LINE)
    }
}

fn write_text(svg: &mut String, class: &str, (x, y): (f64, f64), text: &str) -> fmt::Result {
    writeln!(
        svg,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>",
        escape(text)
    )
}

/// Breaks the text into lines that fit between the margins at a font size.
fn wrapped(text: &str, font: f64) -> Vec<String> {
    let longest = fitting(WIDTH - 2.0 * MARGIN, font);
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if length(line) + 1 + length(word) <= longest => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(shortened(word, longest)),
        }
    }
    lines
}

/// The text, cut to at most `longest` characters with a final ellipsis.
fn shortened(text: &str, longest: usize) -> String {
    if length(text) <= longest {
        return text.to_owned();
    }
    let begin = text.chars().take(longest.saturating_sub(1));
    begin.chain(['…']).collect()
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// The number of characters of a font size that fit into `width`.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small number"
)]
fn fitting(width: f64, font: f64) -> usize {
    (width / (font * CHARACTER)) as usize
}

#[allow(clippy::cast_precision_loss, reason = "a small number")]
const fn as_f64(count: usize) -> f64 {
    count as f64
}
