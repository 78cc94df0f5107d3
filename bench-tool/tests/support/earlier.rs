//! Reports of `run` as earlier versions wrote them.

use serde_json::Value;

/// A report without the keys that were added since the first version of its schema.
pub(crate) fn earlier(report: &Value) -> Value {
    let mut report = report.clone();
    let keys = report.as_object_mut().unwrap();
    for key in [
        "failure",
        "gaps",
        "began",
        "client",
        "server",
        "disturbed",
        "histogram",
        "whole",
        "calls_due",
        "calls_unanswered",
    ] {
        keys.remove(key).expect(key);
    }
    report
}
