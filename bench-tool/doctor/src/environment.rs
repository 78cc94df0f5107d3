//! Variables of the environment that a profile wants, and what is wrong with them.

use rpcrdma_tuning::Loaded;
use serde::Serialize;

/// A variable that does not hold what it should.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Complaint {
    /// Its name.
    pub variable: String,
    /// What is wrong with it, and what follows: `NAME is not set: CONSEQUENCE`.
    pub what: String,
    /// The shell command that fixes it.
    #[serde(rename = "mend")]
    pub fix: String,
}

/// What is wrong with the environment that `variable` reads.
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
