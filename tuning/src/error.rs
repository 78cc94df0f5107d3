//! What can be wrong with a profile, and what to do about it.

use std::path::PathBuf;

use crate::origin::{Knob, Origin};
use crate::values::Values;

/// Why no profile could be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No embedded profile has this name.
    #[error(
        "no profile is called {name:?}; use one of {known}, or the path of a file that ends in \
         .toml"
    )]
    UnknownProfile {
        /// The name that was asked for.
        name: String,
        /// The names that exist, separated by commas.
        known: String,
    },

    /// The profile is of devices that cannot be used.
    #[error("devices of the family {name} cannot be used: {reason}")]
    Refused {
        /// The family.
        name: String,
        /// What they lack.
        reason: String,
    },

    /// The user's file could not be read.
    #[error("cannot read the profile {}; check the path and its permissions", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },

    /// A profile's text is not what a profile may be: no TOML, an unknown knob, a wrong kind of
    /// value.
    #[error("cannot understand the profile {origin}")]
    Parse {
        /// The layer whose text it is.
        origin: Origin,
        /// Where in the text, and why.
        #[source]
        source: Box<toml::de::Error>,
    },

    /// A file uses a section that only another kind of file may have.
    #[error("cannot use the profile {origin}: {reason}")]
    Misplaced {
        /// The layer whose text it is.
        origin: Origin,
        /// What is out of place, and where it belongs.
        reason: &'static str,
    },

    /// A `NAME=VALUE` of the command line cannot be used.
    #[error("cannot set {text:?}: {reason}")]
    Assignment {
        /// The assignment as it was given.
        text: String,
        /// Why, and what to write instead.
        reason: String,
    },

    /// A value is not one of those that its knob takes.
    #[error("{knob} is out of range: use {values}{}", in_brackets(values.because()))]
    Range {
        /// The knob.
        knob: Knob,
        /// The values that it takes.
        values: Values,
    },

    /// Two values cannot be used together.
    #[error("{left} and {right} cannot be used together: {because}; {remedy}")]
    Relation {
        /// The first of the two knobs.
        left: Box<Knob>,
        /// The second of the two knobs.
        right: Box<Knob>,
        /// Why not.
        because: &'static str,
        /// What to change.
        remedy: String,
    },
}

fn in_brackets(text: Option<&str>) -> String {
    text.map_or_else(String::new, |text| format!(" ({text})"))
}
