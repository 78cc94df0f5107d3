//! Writes the text format of Prometheus (exposition format 0.0.4).

use std::fmt::{self, Write as _};

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A value that only grows.
    Counter,
    /// A current value.
    Gauge,
    /// Counts per bucket, the sum of the values, and their number.
    Histogram,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Labels of a sample: names and values.
pub(crate) type Labels<'a> = &'a [(&'a str, &'a str)];

/// A page of metrics under construction. The format requires all samples of a family to follow its header.
#[derive(Debug, Default)]
pub(crate) struct Page {
    text: String,
    family: String,
}

impl Page {
    /// Starts a family. `help` is one sentence.
    pub(crate) fn family(&mut self, name: &str, kind: Kind, help: &str) {
        name.clone_into(&mut self.family);
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {}", kind.name()));
    }

    /// Adds a sample to the last family.
    pub(crate) fn sample(&mut self, labels: Labels<'_>, value: impl fmt::Display) {
        self.sample_of("", labels, value);
    }

    /// Adds a histogram to the last family. `counts` has one entry per bucket: its upper bound and the number of
    /// values in this bucket alone; the last entry has no bound. `sum` is the sum of all values.
    pub(crate) fn histogram(
        &mut self,
        labels: Labels<'_>,
        counts: &[(Option<f64>, u64)],
        sum: f64,
    ) {
        let mut all = 0_u64;
        for (bound, count) in counts {
            all = all.wrapping_add(*count);
            let bound = bound.map_or_else(|| "+Inf".to_owned(), |bound| bound.to_string());
            let labels: Vec<_> = labels.iter().copied().chain([("le", &*bound)]).collect();
            self.sample_of("_bucket", &labels, all);
        }
        self.sample_of("_sum", labels, sum);
        self.sample_of("_count", labels, all);
    }

    /// The text of the page.
    #[must_use]
    pub(crate) fn finish(self) -> String {
        self.text
    }

    fn sample_of(&mut self, suffix: &str, labels: Labels<'_>, value: impl fmt::Display) {
        let family = std::mem::take(&mut self.family);
        if labels.is_empty() {
            self.line(format_args!("{family}{suffix} {value}"));
        } else {
            let labels = labels.iter().map(|(name, value)| {
                let value = value.replace('\\', "\\\\").replace('"', "\\\"");
                format!("{name}=\"{}\"", value.replace('\n', "\\n"))
            });
            let labels = labels.collect::<Vec<_>>().join(",");
            self.line(format_args!("{family}{suffix}{{{labels}}} {value}"));
        }
        self.family = family;
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{line}");
    }
}

/// Adds a family that is one gauge.
pub(crate) fn one(page: &mut Page, name: &str, help: &str, labels: Labels<'_>, value: f64) {
    page.family(name, Kind::Gauge, help);
    page.sample(labels, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_stand_below_the_head_of_their_family() {
        let mut page = Page::default();
        page.family("a_total", Kind::Counter, "How often.");
        page.sample(&[], 3);
        page.sample(&[("core", "1"), ("peer", "a\"b\\c\nd")], 4);
        page.family("b_seconds", Kind::Histogram, "How long,\nor \\ not.");
        page.histogram(
            &[("core", "0")],
            &[(Some(5e-7), 2), (Some(1.0), 0), (None, 1)],
            0.25,
        );
        let wanted = "\
# HELP a_total How often.
# TYPE a_total counter
a_total 3
a_total{core=\"1\",peer=\"a\\\"b\\\\c\\nd\"} 4
# HELP b_seconds How long,\\nor \\\\ not.
# TYPE b_seconds histogram
b_seconds_bucket{core=\"0\",le=\"0.0000005\"} 2
b_seconds_bucket{core=\"0\",le=\"1\"} 2
b_seconds_bucket{core=\"0\",le=\"+Inf\"} 3
b_seconds_sum{core=\"0\"} 0.25
b_seconds_count{core=\"0\"} 3
";
        assert_eq!(page.finish(), wanted);
    }
}
