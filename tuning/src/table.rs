//! A table of knobs in a file: `[settings]` or `[limits]`.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::knobs::{Profile, Settings};
use crate::values::KnobInfo;

/// A knob is suggested for a mistyped name if the similarity of the names, from 0 to 1, is at least this.
const LIKENESS_MIN: f64 = 0.85;

/// A table of knobs, `[settings]` or `[limits]`.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) settings: Settings,
    /// The names of the knobs that are set, with their sources.
    pub(crate) sources: BTreeMap<&'static str, Option<String>>,
}

impl<'de> Deserialize<'de> for Table {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Entries)
    }
}

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Table;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table of knobs")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut file: A) -> Result<Table, A::Error> {
        let mut table = Table::default();
        while let Some(Name(name)) = file.next_key()? {
            let source = table.settings.read(name, &mut file)?;
            table.sources.insert(name, source);
        }
        Ok(table)
    }
}

/// A knob's name. Another is refused here, so that the error has the place of the name.
struct Name(&'static str);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let knob = knob_named(&name).map_err(D::Error::custom)?;
        Ok(Self(knob.name))
    }
}

/// The knob of that name.
///
/// # Errors
/// What to write instead.
pub(crate) fn knob_named(name: &str) -> Result<&'static KnobInfo, String> {
    if let Some(knob) = Profile::KNOBS.iter().find(|knob| knob.name == name) {
        return Ok(knob);
    }
    let likeness = |knob: &&KnobInfo| strsim::jaro_winkler(name, knob.name);
    let closest = Profile::KNOBS
        .iter()
        .max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    let advice = match closest.filter(|knob| likeness(knob) >= LIKENESS_MIN) {
        Some(knob) => format!("did you mean {}?", knob.name),
        None => {
            let names: Vec<_> = Profile::KNOBS.iter().map(|knob| knob.name).collect();
            format!("the knobs are {}", names.join(", "))
        }
    };
    Err(format!("no knob is called {name:?}; {advice}"))
}
