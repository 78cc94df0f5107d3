//! A strict reader of Prometheus' text format 0.0.4, made from its description and from nothing of the
//! program's: what it takes, Prometheus takes.

use std::collections::{BTreeMap, BTreeSet};

/// A page of metrics.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// Families and their types.
    pub(crate) kinds: BTreeMap<String, String>,
    /// Values by name and sorted labels, as in `name{a="b"}`.
    pub(crate) samples: BTreeMap<String, f64>,
}

impl Page {
    /// Reads a page; panics at whatever Prometheus, or its linter, would not take.
    pub(crate) fn parse(text: &str) -> Self {
        assert!(text.ends_with('\n'), "the last line ends");
        let mut page = Self::default();
        let mut helped = BTreeSet::new();
        let mut current = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').expect(line);
                assert!(!help.is_empty() && helped.insert(name.to_owned()), "{line}");
                name.clone_into(&mut current);
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect(line);
                assert_eq!(name, current, "TYPE stands below HELP");
                assert!(matches!(kind, "counter" | "gauge" | "histogram"), "{line}");
                let before = page.kinds.insert(name.to_owned(), kind.to_owned());
                assert!(before.is_none(), "{line}: a family stands in one piece");
            } else {
                page.sample(line, &current);
            }
        }
        page.check_histograms();
        page
    }

    fn sample(&mut self, line: &str, family: &str) {
        let (name, rest) = match line.find(['{', ' ']) {
            Some(end) => line.split_at(end),
            None => panic!("{line}: no value"),
        };
        let kind = self.kinds.get(family).expect(line);
        let suffix = name.strip_prefix(family).expect(line);
        let is_histogram = kind == "histogram";
        assert!(
            if is_histogram {
                matches!(suffix, "_bucket" | "_sum" | "_count")
            } else {
                suffix.is_empty()
            },
            "{line}: of family {family}"
        );
        let (labels, value) = if rest.starts_with('{') {
            labels(rest)
        } else {
            (BTreeMap::new(), rest)
        };
        let value: f64 = value
            .strip_prefix(' ')
            .and_then(|value| value.parse().ok())
            .expect(line);
        assert!(kind == "gauge" || value >= 0.0, "{line}");
        let is_bucket = suffix == "_bucket";
        assert_eq!(labels.contains_key("le"), is_bucket, "{line}");
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{name}={value:?}"))
            .collect();
        let key = match labels.is_empty() {
            true => name.to_owned(),
            false => format!("{name}{{{}}}", labels.join(",")),
        };
        assert!(
            self.samples.insert(key, value).is_none(),
            "{line}: stands twice"
        );
    }

    /// Buckets grow to the count, and the last one has no bound.
    fn check_histograms(&self) {
        let histograms = self.kinds.iter().filter(|(_, kind)| *kind == "histogram");
        for (family, _) in histograms {
            let [count, bucket] = ["_count", "_bucket"].map(|suffix| format!("{family}{suffix}"));
            let counts: Vec<_> = self.named(&count).collect();
            assert!(!counts.is_empty(), "{family}");
            for (labels, count) in counts {
                let mut buckets: Vec<(f64, f64)> = Vec::new();
                for (of_bucket, value) in self.named(&bucket) {
                    let mut parts: Vec<&str> = of_bucket.split(',').collect();
                    let bound = parts
                        .iter()
                        .position(|part| part.starts_with("le="))
                        .unwrap();
                    let bound = parts
                        .remove(bound)
                        .trim_start_matches("le=")
                        .trim_matches('"');
                    if parts.join(",") == labels {
                        let bound = bound.replace("+Inf", "inf").parse().unwrap();
                        buckets.push((bound, value));
                    }
                }
                buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
                assert!(
                    buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1),
                    "{buckets:?}"
                );
                assert_eq!(buckets.last(), Some(&(f64::INFINITY, count)), "{family}");
            }
        }
    }

    /// Labels and values of the samples of this name.
    fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.samples.iter().filter_map(move |(key, value)| {
            let labels = key.strip_prefix(name)?;
            match labels.strip_prefix('{') {
                Some(labels) => Some((labels.strip_suffix('}')?, *value)),
                None => labels.is_empty().then_some(("", *value)),
            }
        })
    }

    /// The sum of the samples of this name whose labels hold `label`.
    pub(crate) fn sum(&self, name: &str, label: &str) -> f64 {
        let of_name = self
            .named(name)
            .filter(|(labels, _)| labels.contains(label));
        let values: Vec<f64> = of_name.map(|(_, value)| value).collect();
        assert!(!values.is_empty(), "{name} with {label}");
        values.iter().sum()
    }

    /// What may only grow is still there in a later page, and is not less.
    pub(crate) fn check_growth(&self, later: &Self) {
        for (sample, value) in self.growing() {
            let later = later.samples.get(sample);
            assert!(
                later.is_some_and(|it| *it >= value),
                "{sample}: {value}, then {later:?}"
            );
        }
    }

    /// The samples that may only grow.
    fn growing(&self) -> impl Iterator<Item = (&String, f64)> {
        let grows = |name: &str| {
            let kind = self.kinds.get(name).map(String::as_str);
            let of_histogram = ["_bucket", "_sum", "_count"].iter().any(|suffix| {
                let family = name
                    .strip_suffix(suffix)
                    .and_then(|family| self.kinds.get(family));
                family.is_some_and(|kind| kind == "histogram")
            });
            of_histogram || kind == Some("counter")
        };
        self.samples
            .iter()
            .filter(move |(key, _)| grows(key.split('{').next().unwrap_or_default()))
            .map(|(key, value)| (key, *value))
    }
}

/// The labels between braces, and what follows them.
fn labels(text: &str) -> (BTreeMap<String, String>, &str) {
    let mut labels = BTreeMap::new();
    let mut rest = text.strip_prefix('{').unwrap();
    loop {
        let (name, behind) = rest.split_once("=\"").expect(text);
        let is_good = |c: char| c.is_ascii_alphanumeric() || c == '_';
        assert!(
            name.chars().all(is_good) && !name.starts_with(|c: char| c.is_ascii_digit()),
            "{text}"
        );
        let mut value = String::new();
        let mut chars = behind.char_indices();
        let end = loop {
            match chars.next().expect(text) {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next().expect(text).1 {
                    'n' => '\n',
                    escaped @ ('\\' | '"') => escaped,
                    other => panic!("{text}: \\{other}"),
                }),
                (_, plain) => value.push(plain),
            }
        };
        assert!(
            labels.insert(name.to_owned(), value).is_none(),
            "{text}: {name} stands twice"
        );
        rest = &behind[end + 1..];
        match rest.strip_prefix(',') {
            Some(next) => rest = next,
            None => return (labels, rest.strip_prefix('}').expect(text)),
        }
    }
}

#[test]
fn the_reader_is_strict() {
    let head = "# HELP a_total b\n# TYPE a_total counter\n";
    let page = Page::parse(&format!(
        "{head}a_total{{x=\"1\",y=\"a\\\"\\n\"}} 2\na_total{{x=\"2\"}} 3\n"
    ));
    assert_eq!(page.sum("a_total", ""), 5.0);
    assert_eq!(page.sum("a_total", "x=\"2\""), 3.0);
    for wrong in [
        "a_total 1\n".to_owned(),
        format!("{head}a_total 1"),
        format!("{head}a_total -1\n"),
        format!("{head}a_total x\n"),
        format!("{head}a_total 1\na_total 2\n"),
        format!("{head}b_total 1\n"),
        format!("{head}a_total{{x=\"1\\q\"}} 1\n"),
        format!("{head}a_total{{x=\"1\"}}1\n"),
        format!("{head}a_total 1\n{head}"),
        "# HELP h b\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_sum 1\nh_count 2\n".to_owned(),
        "# HELP h b\n# TYPE h histogram\nh_bucket{le=\"1\"} 3\nh_bucket{le=\"+Inf\"} 2\nh_sum 1\nh_count 2\n".to_owned(),
    ] {
        let parsed = std::panic::catch_unwind(|| Page::parse(&wrong));
        assert!(parsed.is_err(), "{wrong}");
    }
}
