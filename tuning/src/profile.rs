//! What [`Profile`], every knob with its value, and [`Settings`], the same knobs as one layer sets them, can do. The knobs
//! themselves are in `knobs.rs`.

use crate::error::Error;
use crate::knobs::{Profile, Settings};
use crate::origin::{Knob, Origin};
use crate::table::{Table, knob_named};

/// Describes a knob for an error, by its name.
type Describe<'a> = &'a dyn Fn(&'static str) -> Knob;

impl Profile {
    /// The profile of an embedded family, or of one of its devices as `FAMILY/DEVICE`, with no
    /// further layers.
    ///
    /// # Errors
    /// [`Error::UnknownProfile`] when there is none of that name.
    pub fn by_name(name: &str) -> Result<Self, Error> {
        Ok(crate::Layers::named(name)?.build()?.profile)
    }

    /// The profile of a user's file, with the family under it that the file names, and no further
    /// layers.
    ///
    /// # Errors
    /// [`Error::Read`] or [`Error::Parse`] when the file cannot be read or understood,
    /// [`Error::UnknownProfile`] when it builds on a family that does not exist, and
    /// [`Error::Range`] or [`Error::Relation`] when its values cannot be used.
    pub fn load(path: impl AsRef<std::path::Path>) -> Result<Self, Error> {
        Ok(crate::Layers::file(path)?.build()?.profile)
    }

    /// Checks every value, and the relations between them.
    ///
    /// # Errors
    /// [`Error::Range`] or [`Error::Relation`] for the first value that cannot be used. Its origin is always the
    /// built-in defaults here; [`Layers::build`](crate::Layers::build) does the same check and knows the layer.
    pub fn validate(&self) -> Result<(), Error> {
        let describe: Describe<'_> = &|name| Knob {
            name,
            value: self.value_text(name).unwrap_or_default(),
            origin: Origin::Defaults,
        };
        self.validate_values(describe)?;
        self.validate_relations(describe)
    }

    /// Every value alone.
    pub(crate) fn validate_values(&self, describe: Describe<'_>) -> Result<(), Error> {
        let unusable = self
            .values()
            .find(|(knob, value)| !knob.values.contain(*value));
        unusable.map_or(Ok(()), |(knob, _)| {
            Err(Error::Range {
                knob: describe(knob.name),
                values: knob.values,
            })
        })
    }

    pub(crate) fn validate_relations(&self, describe: Describe<'_>) -> Result<(), Error> {
        let broken = Self::RELATIONS
            .iter()
            .find(|relation| !(relation.holds)(self));
        broken.map_or(Ok(()), |relation| {
            Err(Error::Relation {
                left: Box::new(describe(relation.left)),
                right: Box::new(describe(relation.right)),
                because: relation.because,
                remedy: (relation.remedy)(self),
            })
        })
    }

    /// The profile as TOML, one knob a line.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let lines = self
            .values()
            .map(|(knob, value)| format!("{} = {value}\n", knob.name));
        lines.collect()
    }

    /// The value of the knob of that name as TOML writes it, or `None` when there is no such knob.
    #[must_use]
    pub fn value_text(&self, name: &str) -> Option<String> {
        let value = self.values().find(|(knob, _)| knob.name == name);
        value.map(|(_, value)| value.to_string())
    }
}

impl Settings {
    /// Sets one knob from `NAME=VALUE`, as a command line gives it. A later assignment of the same
    /// knob replaces the earlier one. Quotes around a word are optional (`idle=park`).
    ///
    /// # Errors
    /// [`Error::Assignment`] when there is no `=`, no knob of that name, or the value is not of
    /// the knob's kind.
    pub fn assign(&mut self, assignment: &str) -> Result<(), Error> {
        let refuse = |reason: String| Error::Assignment {
            text: assignment.to_owned(),
            reason,
        };
        let (name, value) = assignment
            .split_once('=')
            .map(|(name, value)| (name.trim(), value.trim()))
            .ok_or_else(|| refuse("write it as NAME=VALUE".to_owned()))?;
        knob_named(name).map_err(refuse)?;
        let value = value.trim_matches('"');
        let is_word = value.starts_with(|first: char| first.is_ascii_alphabetic());
        let quote = if is_word { "\"" } else { "" };
        // A value with a line break would be parsed as a second assignment.
        if value.chars().any(char::is_control) {
            return Err(refuse("the value holds a control character".to_owned()));
        }
        let one: Table = toml::from_str(&format!("{name} = {quote}{value}{quote}"))
            .map_err(|error| refuse(error.message().to_owned()))?;
        self.merge(&one.settings);
        Ok(())
    }
}
