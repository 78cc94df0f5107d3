//! Environment variables that a device's library reads, once, when the device is opened.
//!
//! They are checked and reported, never set: a process of several threads cannot change its environment safely, and the
//! library may have read it already.

use std::fmt;

use serde::Deserialize;

/// What a profile says about one variable.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RuleText")]
pub struct EnvironmentRule {
    /// The variable's name.
    pub name: String,
    /// What it should hold, or must not.
    pub value: EnvironmentValue,
    /// What depends on it.
    pub why: String,
    /// How that is known: a document, a library's source, or "inferred".
    pub source: String,
}

/// What a variable should hold, or must not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvironmentValue {
    /// It should be set to this; another value that the user chose is left alone.
    Set(String),
    /// It must not have this value.
    Avoid(String),
}

/// A rule as a file has it: `set = VALUE` or `avoid = VALUE`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    name: String,
    set: Option<String>,
    avoid: Option<String>,
    why: String,
    source: String,
}

impl TryFrom<RuleText> for EnvironmentRule {
    type Error = &'static str;

    fn try_from(text: RuleText) -> Result<Self, Self::Error> {
        let value = match (text.set, text.avoid) {
            (Some(wanted), None) => EnvironmentValue::Set(wanted),
            (None, Some(wrong)) => EnvironmentValue::Avoid(wrong),
            _ => return Err("a variable needs either `set` or `avoid`, as text"),
        };
        Ok(Self {
            name: text.name,
            value,
            why: text.why,
            source: text.source,
        })
    }
}

impl EnvironmentRule {
    /// What is wrong with the variable's value, and the shell command that fixes it; `None` if nothing is wrong.
    /// `value` is what the environment holds.
    #[must_use]
    pub fn complaint(&self, value: Option<&str>) -> Option<(String, String)> {
        let Self { name, why, .. } = self;
        match (&self.value, value) {
            (EnvironmentValue::Set(wanted), None) => Some((
                format!("{name} is not set: {why}"),
                format!("export {name}={wanted}"),
            )),
            (EnvironmentValue::Avoid(wrong), Some(value)) if value == wrong => {
                Some((format!("{name} is {value}: {why}"), format!("unset {name}")))
            }
            _ => None,
        }
    }
}

impl fmt::Display for EnvironmentRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            EnvironmentValue::Set(wanted) => write!(f, "{}={wanted}", self.name),
            EnvironmentValue::Avoid(wrong) => write!(f, "{} not {wrong}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(value: EnvironmentValue) -> EnvironmentRule {
        EnvironmentRule {
            name: "X_DOORBELLS".to_owned(),
            value,
            why: "cores share doorbells".to_owned(),
            source: "inferred".to_owned(),
        }
    }

    #[test]
    fn environment_complaint_names_the_command_that_fixes_it() {
        let set = rule(EnvironmentValue::Set("64".to_owned()));
        let (what, mend) = set.complaint(None).unwrap();
        assert_eq!(what, "X_DOORBELLS is not set: cores share doorbells");
        assert_eq!(mend, "export X_DOORBELLS=64");
        assert_eq!(set.complaint(Some("64")), None);
        assert_eq!(set.complaint(Some("8")), None, "somebody's choice");
        let avoid = rule(EnvironmentValue::Avoid("1".to_owned()));
        let (what, mend) = avoid.complaint(Some("1")).unwrap();
        assert_eq!(what, "X_DOORBELLS is 1: cores share doorbells");
        assert_eq!(mend, "unset X_DOORBELLS");
        assert_eq!(avoid.complaint(None), None);
        assert_eq!(avoid.complaint(Some("0")), None);
    }
}
