//! What reports say about how and where they were measured, and in what they differ.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Keys of results: reports always differ in them, or show them elsewhere.
const RESULTS: &[&str] = &[
    "began",
    "bandwidth_bytes_per_s",
    "blocks_checked",
    "blocks_wrong",
    "calls",
    "calls_lost",
    "clients",
    "clock_read_ns",
    "command",
    "connections_lost",
    "counters",
    "disturbed",
    "duration_s",
    "ended",
    "errors",
    "errors_by_name",
    "failure",
    "failures",
    "failures_before",
    "fairness",
    "floor",
    "gaps",
    "histogram",
    "hugepages_2mib_free",
    "interrupted",
    "intervals",
    "latency_corrected_ns",
    "latency_ns",
    "longest_loss_s",
    "parts",
    "paths",
    "per_call",
    "per_core",
    "procedures",
    "put_off",
    "rate_per_s",
    "reconnects",
    "schema",
    "server_counters",
    "servers",
    "short_transfers",
    "slowest_client",
    "start_skew_ns_max",
    "start_uncertainty_ns_max",
    "verifier_changes",
    "warnings",
];

/// The text of a value that is null or empty.
const NONE: &str = "none";

/// Values of the clients of a fleet that a fact names.
const VALUES_MAX: usize = 3;

/// The facts of a report by their paths, such as `client.device.firmware`.
pub(super) type Facts = BTreeMap<String, String>;

/// The facts of a report. Those of a fleet's clients are one fact if all clients agree, and several values if not.
pub(super) fn of(report: &Value) -> Facts {
    let mut facts = Facts::new();
    leaves(String::new(), report, &mut facts);
    // The record of the end has its machine too.
    if facts.keys().any(|it| it.starts_with("client.machine.")) {
        facts.retain(|path, _| !path.starts_with("machine."));
    }
    let clients = report["clients"].as_array().into_iter().flatten();
    let of_clients: Vec<Facts> = clients.map(|client| of(&client["report"])).collect();
    let of_clients: Vec<&Facts> = of_clients.iter().collect();
    for path in paths(&of_clients) {
        let values = of_clients.iter().filter_map(|it| value_of(it, path));
        let values: BTreeSet<String> = values.collect();
        let more = values.len().saturating_sub(VALUES_MAX);
        let mut text = values
            .into_iter()
            .take(VALUES_MAX)
            .collect::<Vec<_>>()
            .join(" or ");
        match more {
            0 => {}
            1 => text.push_str(" or 1 other"),
            more => text.push_str(&format!(" or {more} others")),
        }
        facts.entry(path.clone()).or_insert(text);
    }
    facts
}

/// Collects all values below `value`, each with its path.
fn leaves(path: String, value: &Value, all: &mut Facts) {
    let below = |key: &str| match &*path {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    };
    match value {
        Value::Object(knob) if path.contains(".knobs.") => {
            let text = |key: &str| knob.get(key).and_then(Value::as_str);
            let [value, origin] = ["value", "origin"].map(|key| text(key).unwrap_or("unknown"));
            all.insert(path, format!("{value} ({origin})"));
        }
        Value::Object(object) => {
            let facts = object
                .iter()
                .filter(|(key, _)| !RESULTS.contains(&key.as_str()));
            for (key, value) in facts {
                leaves(below(key), value, all);
            }
        }
        Value::Array(values) if values.iter().any(Value::is_object) => {
            for (number, value) in values.iter().enumerate() {
                leaves(below(&number.to_string()), value, all);
            }
        }
        Value::Null => drop(all.insert(path, NONE.to_owned())),
        Value::Array(values) if values.is_empty() => drop(all.insert(path, NONE.to_owned())),
        Value::String(text) if text.is_empty() => drop(all.insert(path, NONE.to_owned())),
        Value::String(text) => drop(all.insert(path, text.clone())),
        other => drop(all.insert(path, other.to_string())),
    }
}

/// Facts of several reports.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Compared {
    /// Those in which the reports differ, with the value of each; `None` where a report does not have it.
    pub(super) differing: Vec<(String, Vec<Option<String>>)>,
    /// Those in which all reports agree that have them.
    pub(super) shared: Vec<(String, String)>,
}

/// Compares the facts of reports: first those of the work, then those of the ends.
pub(super) fn compare(reports: &[&Facts]) -> Compared {
    let mut paths = paths(reports);
    paths.sort_by_key(|path| path.contains('.'));
    let mut compared = Compared::default();
    for path in paths {
        let values: Vec<Option<String>> = reports.iter().map(|it| value_of(it, path)).collect();
        let known: BTreeSet<&String> = values.iter().flatten().collect();
        match known.first() {
            Some(one) if known.len() == 1 => compared.shared.push((path.clone(), (*one).clone())),
            _ => compared.differing.push((path.clone(), values)),
        }
    }
    compared
}

/// The paths of all facts. A path that is none in one report, and an object or a list in another, is left out: those
/// below it are compared.
fn paths<'a>(reports: &[&'a Facts]) -> Vec<&'a String> {
    let all: BTreeSet<&String> = reports.iter().flat_map(|it| it.keys()).collect();
    let is_above = |path: &str| {
        let is_none = |it: &Facts| it.get(path).is_none_or(|it| it == NONE);
        reports.iter().any(|it| has_below(it, path)) && reports.iter().all(|it| is_none(it))
    };
    all.into_iter().filter(|path| !is_above(path)).collect()
}

/// Whether the report has facts below a path.
fn has_below(facts: &Facts, path: &str) -> bool {
    let begin = format!("{path}.");
    let next = facts.range(begin.clone()..).next();
    next.is_some_and(|(path, _)| path.starts_with(&begin))
}

/// The value of a fact. A record has those knobs only that differ from the default. What is below a none is none, and so
/// is what a longer list has.
fn value_of(facts: &Facts, path: &str) -> Option<String> {
    let default = || {
        let (end, _) = path.split_once(".knobs.")?;
        let host = format!("{end}.host");
        facts.contains_key(&host).then(|| "default".to_owned())
    };
    let none = || {
        let dots = path.match_indices('.');
        let mut steps = dots.map(|(at, _)| (&path[..at], &path[at + 1..]));
        let is_none = |(above, below): (&str, &str)| {
            let number = below.split('.').next().unwrap_or_default();
            let is_of_list = number.parse::<usize>().is_ok()
                && has_below(facts, above)
                && !has_below(facts, &format!("{above}.{number}"));
            is_of_list || facts.get(above).is_some_and(|it| it == NONE)
        };
        steps.any(is_none).then(|| NONE.to_owned())
    };
    facts.get(path).cloned().or_else(default).or_else(none)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn facts_of<const N: usize>(texts: [(&str, &str); N]) -> Facts {
        texts
            .map(|(path, text)| (path.to_owned(), text.to_owned()))
            .into()
    }

    #[test]
    fn facts_are_what_is_no_result() {
        let report = json!({
            "op": "null", "calls": 5, "cores": [0, 1], "connect": null, "warnings": ["w"],
            "machine": {"cpu": "x"},
            "client": {"host": "a", "machine": {"cpu": "x"},
                "device": {"firmware": "22.1", "counters": {"n": 1}, "ports": [{"mtu_bytes": 4096}]}},
        });
        let facts = of(&report);
        let texts = [
            ("client.device.firmware", "22.1"),
            ("client.device.ports.0.mtu_bytes", "4096"),
            ("client.host", "a"),
            ("client.machine.cpu", "x"),
            ("connect", "none"),
            ("cores", "[0,1]"),
            ("op", "null"),
        ];
        assert_eq!(facts, facts_of(texts));
    }

    #[test]
    fn the_clients_of_a_fleet_are_one_fact_where_they_agree() {
        let client =
            |host: &str| json!({"report": {"op": "null", "depth": 1, "client": {"host": host}}});
        let clients: Vec<Value> = ["a", "b", "b", "c", "d"].into_iter().map(client).collect();
        let facts = of(&json!({"depth": 5, "clients": clients}));
        assert_eq!(facts["client.host"], "a or b or c or 1 other");
        assert_eq!((&*facts["op"], &*facts["depth"]), ("null", "5"));
        // Values that some clients do not have, because they have the default or none.
        let clients = json!([
            {"report": {"sizes": null, "client": {"host": "a", "device": null}}},
            {"report": {"sizes": [{"bytes": 5}], "client": {"host": "a", "device": {"name": "mlx5_0"},
                "knobs": {"reap_batch": {"value": "5", "origin": "file"}}}}},
        ]);
        let facts = of(&json!({"clients": clients}));
        let texts = [
            ("client.device.name", "mlx5_0 or none"),
            ("client.host", "a"),
            ("client.knobs.reap_batch", "5 (file) or default"),
            ("sizes.0.bytes", "5 or none"),
        ];
        assert_eq!(facts, facts_of(texts));
    }

    #[test]
    fn compare_finds_differing_and_missing_facts() {
        let facts = [
            json!({"op": "null", "client": {"host": "a"}, "depth": 1, "loop": "open"}),
            json!({"op": "null", "client": {"host": "b", "knobs": {
                "reap_batch": {"value": "5", "origin": "command line"},
            }}, "loop": "closed"}),
            json!({"op": "null"}),
        ];
        let facts = facts.map(|it| of(&it));
        let compared = compare(&[&facts[0], &facts[1], &facts[2]]);
        let some = |text: &str| Some(text.to_owned());
        let differing = [
            ("loop".to_owned(), vec![some("open"), some("closed"), None]),
            ("client.host".to_owned(), vec![some("a"), some("b"), None]),
            (
                "client.knobs.reap_batch".to_owned(),
                vec![some("default"), some("5 (command line)"), None],
            ),
        ];
        assert_eq!(compared.differing, differing);
        let shared = [("depth", "1"), ("op", "null")];
        assert_eq!(
            compared.shared,
            shared.map(|(path, value)| (path.to_owned(), value.to_owned()))
        );
    }

    #[test]
    fn a_none_differs_from_what_is_below_its_path_in_another_report() {
        let size = |bytes: u32| json!({"bytes": bytes});
        let reports = [
            json!({"sizes": null, "client": {"device": null}, "server": null, "seed": 1}),
            json!({"sizes": [], "client": {"device": null}, "seed": 1}),
            json!({"sizes": [size(1000)], "client": {"device": {"name": "mlx5_0"}}, "server": {"host": "b"}, "seed": 2}),
            json!({"sizes": [size(1000), size(7)], "client": {"device": {"name": "mlx5_0"}}, "server": {"host": "b"},
                "seed": 2}),
        ];
        let facts = reports.map(|it| of(&it));
        let compared = compare(&facts.iter().collect::<Vec<_>>());
        let texts: Vec<(&str, [&str; 4])> = vec![
            ("seed", ["1", "1", "2", "2"]),
            ("client.device.name", ["none", "none", "mlx5_0", "mlx5_0"]),
            ("server.host", ["none", "lacks it", "b", "b"]),
            ("sizes.0.bytes", ["none", "none", "1000", "1000"]),
            ("sizes.1.bytes", ["none", "none", "none", "7"]),
        ];
        let differing = compared.differing.iter().map(|(path, values)| {
            let values = values.iter().map(|it| it.as_deref().unwrap_or("lacks it"));
            (&**path, values.collect::<Vec<_>>().try_into().unwrap())
        });
        assert_eq!(differing.collect::<Vec<_>>(), texts);
        assert_eq!(compared.shared, []);
    }
}
