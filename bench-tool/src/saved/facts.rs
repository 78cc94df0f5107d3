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
    "errors",
    "errors_by_name",
    "failure",
    "failures",
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
    "per_call",
    "per_core",
    "procedures",
    "put_off",
    "rate_per_s",
    "reconnects",
    "seed",
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
    let mut of_clients: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for client in report["clients"].as_array().into_iter().flatten() {
        for (path, value) in of(&client["report"]) {
            of_clients.entry(path).or_default().insert(value);
        }
    }
    for (path, values) in of_clients {
        let more = values.len().saturating_sub(VALUES_MAX);
        let mut text = values
            .into_iter()
            .take(VALUES_MAX)
            .collect::<Vec<_>>()
            .join(" or ");
        if more > 0 {
            text.push_str(&format!(" or {more} others"));
        }
        facts.entry(path).or_insert(text);
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
        Value::Null => drop(all.insert(path, "none".to_owned())),
        Value::String(text) if text.is_empty() => drop(all.insert(path, "none".to_owned())),
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
    let paths: BTreeSet<&String> = reports.iter().flat_map(|it| it.keys()).collect();
    let mut paths: Vec<&String> = paths.into_iter().collect();
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

/// The value of a fact. A record has those knobs only that differ from the default.
fn value_of(facts: &Facts, path: &str) -> Option<String> {
    let default = || {
        let (end, _) = path.split_once(".knobs.")?;
        let host = format!("{end}.host");
        facts.contains_key(&host).then(|| "default".to_owned())
    };
    facts.get(path).cloned().or_else(default)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
        assert_eq!(
            facts,
            texts
                .map(|(path, text)| (path.to_owned(), text.to_owned()))
                .into()
        );
    }

    #[test]
    fn the_clients_of_a_fleet_are_one_fact_where_they_agree() {
        let client =
            |host: &str| json!({"report": {"op": "null", "depth": 1, "client": {"host": host}}});
        let clients: Vec<Value> = ["a", "b", "b", "c", "d"].into_iter().map(client).collect();
        let facts = of(&json!({"depth": 5, "clients": clients}));
        assert_eq!(facts["client.host"], "a or b or c or 1 others");
        assert_eq!((&*facts["op"], &*facts["depth"]), ("null", "5"));
    }

    #[test]
    fn what_differs_and_what_a_report_lacks_is_found() {
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
}
