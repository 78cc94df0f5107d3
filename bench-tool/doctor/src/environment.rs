//! Checks the environment variables that a profile requires.

use rpcrdma_tuning::Loaded;
use serde::Serialize;

/// A variable with a wrong value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Complaint {
    /// The name of the variable.
    pub variable: String,
    /// The error and its consequence: `NAME is not set: CONSEQUENCE`.
    pub what: String,
    /// The shell command that fixes it.
    #[serde(rename = "mend")]
    pub fix: String,
}

/// Checks the environment variables of a profile. `variable` returns the value of a variable.
#[must_use]
pub fn complaints(loaded: &Loaded, variable: impl Fn(&str) -> Option<String>) -> Vec<Complaint> {
    let rules = loaded.environment.iter();
    rules
        .filter_map(|rule| {
            let (what, fix) = rule.complaint(variable(&rule.name).as_deref())?;
            let variable = rule.name.clone();
            Some(Complaint {
                variable,
                what,
                fix,
            })
        })
        .collect()
}
