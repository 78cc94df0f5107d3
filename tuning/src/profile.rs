//! [`Profile`], every knob with its unit, and [`Settings`], the same knobs as one layer
//! sets them. The knobs themselves are in `knobs.rs`.

use crate::error::{Error, Knob};
use crate::knobs::{Profile, Settings};
use crate::layers::Origin;
use crate::table::Table;
use crate::values::KnobInfo;

/// A knob is suggested for a mistyped name if the similarity of the names, from 0 to 1, is at least this.
const LIKENESS_MIN: f64 = 0.85;

/// Makes [`Profile`] (each knob with a value), [`Settings`] (any of them set) and what goes through all of them from the
/// table.
macro_rules! knobs {
    ($(
        $(#[doc = $line:literal])*
        $name:ident: $kind:ty = $default:expr, $unit:literal, $values:expr, because $source:literal;
    )*) => {
        /// Every knob of a process, each with a value.
        ///
        /// A profile that came from [`Layers::build`](crate::Layers::build) has been checked; check one that was changed
        /// afterwards with [`validate`](Profile::validate).
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Profile {
            $( $(#[doc = $line])* pub $name: $kind, )*
        }

        impl Default for Profile {
            /// The built-in defaults, the lowest layer.
            fn default() -> Self {
                Self { $( $name: $default, )* }
            }
        }

        /// The knobs that one layer sets; `None` leaves the value of the layers below.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct Settings {
            $( $(#[doc = $line])* pub $name: Option<$kind>, )*
        }

        impl Profile {
            /// The table of knobs, in the order in which they are documented.
            pub const KNOBS: &'static [KnobInfo] = &[$( KnobInfo {
                name: stringify!($name),
                unit: $unit,
                values: $values,
                source: $source,
                lines: &[$( $line ),*],
            } ),*];

            /// The value of each knob, in the order of [`Profile::KNOBS`].
            pub fn values(&self) -> impl Iterator<Item = (&'static KnobInfo, Value)> + use<> {
                let values = [$( self.$name.value() ),*];
                Self::KNOBS.iter().zip(values)
            }

            /// Sets every knob that `settings` sets, and calls `set` with its name.
            pub(crate) fn apply(&mut self, settings: &Settings, mut set: impl FnMut(&'static str)) {
                $(
                    if let Some(value) = settings.$name {
                        self.$name = value;
                        set(stringify!($name));
                    }
                )*
            }

            /// Cuts every knob down to its limit in `limits`, and calls `cut` with the name of each that was beyond.
            pub(crate) fn clamp(&mut self, limits: &Settings, mut cut: impl FnMut(&'static str)) {
                $(
                    if let Some(limit) = limits.$name
                        && let Some(value) = self.$name.cut_to(limit)
                    {
                        self.$name = value;
                        cut(stringify!($name));
                    }
                )*
            }
        }

        impl Settings {
            /// Takes over every knob that `other` sets.
            pub(crate) fn merge(&mut self, other: &Settings) {
                $( if other.$name.is_some() { self.$name = other.$name; } )*
            }

            /// Reads the value that follows the knob's name in a file, and returns its source.
            pub(crate) fn read<'de, A: MapAccess<'de>>(
                &mut self,
                name: &str,
                file: &mut A,
            ) -> Result<Option<String>, A::Error> {
                match name {
                    $( stringify!($name) => {
                        let Entry { value, source } = file.next_value()?;
                        self.$name = Some(value);
                        Ok(source)
                    } )*
                    _ => unreachable!("a name of the table"),
                }
            }
        }
    };
}

pub(crate) use knobs;

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
