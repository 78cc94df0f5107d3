//! What a reader sees in a chart: gaps, styles that differ without colour, contrast, texts that do not overlap.

use super::axis::Unit;
use super::*;
use crate::report::escape::tests::elements;

const EVIL: &str = "</text><script>&\"'\u{7}";

fn axes() -> (Axis, Axis) {
    (
        Axis::linear("x", 10.0, Unit::Seconds),
        Axis::linear("y", 10.0, Unit::Rate),
    )
}

fn drawn(curves: &[Curve]) -> String {
    let (x, y) = axes();
    figure("id", "title", &x, &y, curves)
}

/// The path of the first curve.
fn path(svg: &str) -> &str {
    let (_, chart) = svg.split_once("</figcaption>").unwrap();
    let (_, path) = chart
        .split_once("<path class=\"curve s1\" d=\"")
        .unwrap_or_default();
    path.split('"').next().unwrap()
}

#[test]
fn a_point_without_a_value_is_a_gap_and_not_zero() {
    let points = [
        Some(5.0),
        Some(10.0),
        None,
        Some(f64::NAN),
        Some(5.0),
        None,
        Some(10.0),
    ];
    let points = (0..).map(f64::from).zip(points);
    let svg = drawn(&[Curve::new("a", points)]);
    assert_eq!(
        path(&svg),
        "M83.3 184.0L143.7 44.0M325.0 184.0M445.8 44.0",
        "of two points, of one, and of one"
    );
    assert_eq!(svg.matches("class=\"dot s1\"").count(), 4);
    let svg = drawn(&[Curve::new("nothing", [(1.0, None)])]);
    assert!(!svg.contains("class=\"curve") && !svg.contains("class=\"dot"));
}

#[test]
fn in_a_long_curve_only_lone_points_have_dots() {
    let value = |at: u32| ((at != 50) && (at != 52)).then_some(5.0);
    let points = (0..100).map(|at| (f64::from(at) / 10.0, value(at)));
    let svg = drawn(&[Curve::new("a", points)]);
    assert_eq!(svg.matches("class=\"dot s1\"").count(), 1);
    assert_eq!(path(&svg).matches('M').count(), 3);
}

#[test]
fn seven_styles_differ_without_colour_and_seven_more_are_hollow() {
    let rule = |class: &str| {
        let (_, rule) = STYLE
            .split_once(&format!(".curve.{class} {{"))
            .unwrap_or_default();
        rule.split('}').next().unwrap().to_owned()
    };
    let shape = |place| {
        let dot = dot(place, (0.0, 0.0));
        let (_, shape) = dot.split_once(" d=").unwrap();
        (shape.to_owned(), dot.contains("hollow"))
    };
    let all: std::collections::BTreeSet<_> = (0..2 * STYLES).map(shape).collect();
    assert_eq!(all.len(), 2 * STYLES);
    let dashes: std::collections::BTreeSet<_> = (0..STYLES).map(|it| rule(&style(it))).collect();
    assert_eq!(dashes.len(), STYLES);
    assert_eq!(style(STYLES), style(0));
}

/// Relative luminance, as WCAG 2 defines it.
pub(in crate::report) fn luminance(color: &str) -> f64 {
    let part = |at: usize| f64::from(u8::from_str_radix(&color[at..at + 2], 16).unwrap()) / 255.0;
    let linear = |part: f64| match part {
        it if it <= 0.04045 => it / 12.92,
        it => ((it + 0.055) / 1.055).powf(2.4),
    };
    0.2126 * linear(part(1)) + 0.7152 * linear(part(3)) + 0.0722 * linear(part(5))
}

#[test]
fn curves_and_texts_contrast_with_a_light_and_a_dark_ground() {
    let (light, dark) = STYLE
        .split_once("@media screen and (prefers-color-scheme: dark)")
        .unwrap();
    for part in [light, dark] {
        let color = |selector: &str| {
            let (_, rule) = part.split_once(&format!("{selector} {{")).unwrap();
            let at = rule.find('#').unwrap();
            luminance(&rule[at..at + 7])
        };
        let contrast = |selector: &str| {
            let (a, b) = (color(selector), color(".ground"));
            (a.max(b) + 0.05) / (a.min(b) + 0.05)
        };
        for place in 0..STYLES {
            let selector = format!(".{}", style(place));
            assert!(contrast(&selector) >= 4.5, "{selector}");
        }
        for text in [".chart text", ".title"] {
            assert!(contrast(text) >= 4.5, "{text}");
        }
    }
}

#[test]
fn texts_of_an_axis_do_not_cover_each_other() {
    let values: Vec<f64> = (1..=40).map(|it| f64::from(it) * 1024.0).collect();
    let axis = Axis::places("x", &values, |value| format!("{value} bytes"));
    let y = Axis::linear("y", 10.0, Unit::Rate);
    let plot = Plot::new((&axis, &y));
    let places: Vec<f64> = axis.marks.iter().map(|mark| plot.at_x(mark.at)).collect();
    let texts = shown(&axis.marks, &places, text_width);
    for (font, narrow) in [(FONT_WIDE, false), (FONT_NARROW, true)] {
        let mut end = f64::MIN;
        let mut count = 0;
        for ((mark, place), shown) in axis.marks.iter().zip(&places).zip(&texts) {
            if *shown == Shown::Always || (!narrow && *shown == Shown::Fine) {
                let half = text_width(&mark.text, font) / 2.0;
                assert!(place - half > end, "{} at {font}", mark.text);
                end = place + half;
                count += 1;
            }
        }
        assert!(count >= 2, "{count} at {font}");
    }
    assert!(texts.contains(&Shown::Fine) && texts.contains(&Shown::Never));
}

/// The texts of a chart: class, horizontal place, anchor and words.
fn texts(svg: &str) -> Vec<[String; 4]> {
    let texts = svg.split("<text ").skip(1);
    let one = |text: &str| {
        let (tag, rest) = text.split_once('>').unwrap();
        let tag = format!(" {tag}");
        let field = |name: &str| {
            let found = tag.split_once(&format!(" {name}=\""));
            let value = found.and_then(|(_, rest)| rest.split('"').next());
            value.unwrap_or_default().to_owned()
        };
        let words = rest.split('<').next().unwrap().to_owned();
        [field("class"), field("x"), field("text-anchor"), words]
    };
    texts.map(one).collect()
}

/// Where a text begins and ends on the narrowest page.
fn extent([_, at, anchor, words]: &[String; 4]) -> (f64, f64) {
    let at: f64 = at.parse().unwrap();
    let width = text_width(words, FONT_NARROW);
    match &**anchor {
        "middle" => (at - width / 2.0, at + width / 2.0),
        "end" => (at - width, at),
        _ => (at, at + width),
    }
}

#[test]
fn no_text_is_cut_off_at_the_edge_of_a_narrow_page() {
    for (x, y) in [
        (
            Axis::percentiles(),
            Axis::latency("time", 400, 1_700_000_000),
        ),
        (
            Axis::linear("time since the measurement began", 0.45, Unit::Seconds),
            Axis::linear("calls per second", 123_400.0, Unit::Rate),
        ),
        (
            Axis::linear("x", 86_400.0, Unit::Seconds).noting(0.0, "lost"),
            Axis::linear("y", 1_240_000.0, Unit::Rate),
        ),
    ] {
        let svg = figure("id", "title", &x, &y, &[]);
        let texts = texts(&svg);
        assert!(texts.len() > 6, "{svg}");
        for text in texts.iter().filter(|it| it[0] != "mark fine") {
            let (from, to) = extent(text);
            assert!(from >= 0.0 && to <= WIDTH, "{text:?}: {from} to {to}");
        }
    }
}

#[test]
fn names_of_values_cover_no_other_and_a_band_lasts_as_long_as_its_gap() {
    let y = Axis::linear("y", 10.0, Unit::Rate);
    let x = [0.0, 0.1, 5.0, 5.1, 9.9].into_iter();
    let x = x.fold(Axis::linear("x", 10.0, Unit::Seconds), |x, at| {
        x.noting_band((at, at + 2.0), "lost")
    });
    let svg = figure("id", "title", &x, &y, &[]);
    assert_eq!(svg.matches("class=\"noted\"").count(), 5);
    assert_eq!(svg.matches("class=\"band\"").count(), 5);
    let plot = Plot::new((&x, &y));
    let width = format!(" width=\"{:.1}\"", plot.at_x(2.0) - plot.at_x(0.0));
    assert_eq!(svg.matches(&width).count(), 4, "the last is cut: {svg}");
    let names: Vec<_> = texts(&svg)
        .into_iter()
        .filter(|it| it[3] == "lost")
        .collect();
    assert_eq!(names.len(), 3, "two have no room: {names:?}");
    for pair in names.windows(2) {
        assert!(extent(&pair[0]).1 <= extent(&pair[1]).0, "{pair:?}");
    }
    for name in &names {
        let (from, to) = extent(name);
        assert!(from >= plot.left && to <= plot.right, "{name:?}");
    }
}

#[test]
fn a_chart_in_words_has_its_axes_and_the_range_of_each_curve() {
    let (x, y) = axes();
    let curves = [
        Curve::new("a", [(1.0, Some(2.5)), (2.0, None), (3.0, Some(7.0))]),
        Curve::new("b", [(1.0, None)]),
    ];
    let words = "y by x. a: 2.5 /s to 7 /s, 1 point without a value; b: no values";
    assert_eq!(described((&x, &y), &curves), words);
    let svg = figure("id", "title", &x, &y, &curves);
    assert!(svg.contains(&format!("<desc id=\"id-text\">{words}</desc>")));
    assert!(svg.contains("aria-labelledby=\"id id-text\""));
}

#[test]
fn the_font_of_a_chart_has_ten_pixels_or_more_at_every_width_from_360_on() {
    let font = |width: f64| {
        let rules = STYLE.split("@media").filter_map(|rule| {
            let (query, rule) = rule.split_once(".chart text {").unwrap_or_default();
            let size = rule.split_once("font-size: ")?.1.split_once("px")?.0;
            let most = query
                .split_once("max-width: ")
                .and_then(|(_, it)| it.split_once("px")?.0.parse().ok());
            let fits = most.is_none_or(|most: f64| width <= most);
            fits.then(|| size.parse::<f64>().unwrap())
        });
        rules.last().unwrap()
    };
    assert_eq!((font(400.0), font(1280.0)), (FONT_NARROW, FONT_WIDE));
    for width in [360.0, 400.0, 520.0, 521.0, 700.0, 701.0, 800.0, 1280.0_f64] {
        // The space at the sides of a page.
        let chart = (width - 32.0).min(800.0);
        let pixels = font(width) * chart / WIDTH;
        assert!((10.4..18.0).contains(&pixels), "{width}: {pixels}");
    }
}

#[test]
fn every_text_is_text() {
    let x = Axis::places(EVIL, &[1.0, 5.0], |_| EVIL.to_owned()).noting(4.9, EVIL);
    let y = Axis::linear(EVIL, 10.0, Unit::Rate);
    let curves = ["a", "b"].map(|it| Curve::new(format!("{it}{EVIL}"), [(1.0, Some(2.0))]));
    let figure = figure("id", EVIL, &x, &y, &curves);
    let file = ChartFile {
        title: EVIL.to_owned(),
        subtitle: EVIL.to_owned(),
        x,
        y,
        curves: curves.to_vec(),
    };
    for svg in [figure, file.svg()] {
        let counts = elements(&svg);
        assert_eq!(counts.get("script"), None);
        // Title twice, two labels, two marks, the noted value, two names.
        assert!(svg.matches("&lt;script&gt;").count() >= 9, "{svg}");
    }
}

#[test]
fn names_of_a_file_are_inside_of_its_frame_and_each_has_a_place_of_its_own() {
    let (x, y) = axes();
    let name = |it: usize| "long ".repeat(it * 4) + &it.to_string();
    for count in [2, 9, 20] {
        let file = ChartFile {
            title: "a title ".repeat(9),
            subtitle: "words ".repeat(40),
            x: x.clone(),
            y: y.clone(),
            curves: (0..count)
                .map(|it| Curve::new(name(it), [(1.0, Some(2.0))]))
                .collect(),
        };
        let svg = file.svg();
        let (head, plot) = svg.split_once("<g transform=\"translate(0 ").unwrap();
        let top: f64 = plot.split(')').next().unwrap().parse().unwrap();
        let mut places = std::collections::BTreeSet::new();
        let texts = head.split("<text class=\"").skip(1);
        for text in texts {
            let field = |name: &str| {
                let (_, rest) = text.split_once(&format!(" {name}=\"")).unwrap();
                rest.split('"').next().unwrap()
            };
            let (x, y): (f64, f64) = (field("x").parse().unwrap(), field("y").parse().unwrap());
            let (_, words) = text.split_once('>').unwrap();
            let words = words.split('<').next().unwrap();
            assert!(x + text_width(words, FONT_NARROW) <= WIDTH, "{words}");
            assert!(y < top, "{words} above the plot");
            assert!(places.insert((field("x"), field("y"))), "{words}");
        }
        assert_eq!(head.matches("<text class=\"name\"").count(), count);
    }
}
