//! Reports of a load that goes on (`--checkpoint`).

use serde_json::Value;

/// The report in a file, whole whenever it is there: it is renamed into its place.
pub(crate) fn report_in(json: &str) -> Option<Value> {
    let text = std::fs::read_to_string(json).ok()?;
    Some(serde_json::from_str(&text).expect("a whole report"))
}
