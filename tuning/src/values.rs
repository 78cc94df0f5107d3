//! What a knob is ([`KnobInfo`]), which values it takes ([`Values`]), and one of them ([`Value`]).

use std::fmt;

use serde::{Serialize, Serializer};

/// A row of the table of knobs, `Profile::KNOBS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnobInfo {
    /// Its name: a field of [`Profile`](crate::Profile).
    pub name: &'static str,
    /// What its numbers count; empty for a choice between words.
    pub unit: &'static str,
    /// The values that it takes.
    pub values: Values,
    /// Why its default is what it is.
    pub source: &'static str,
    /// The lines of its documentation.
    pub(crate) lines: &'static [&'static str],
}

impl KnobInfo {
    /// What it does, in a few sentences.
    #[must_use]
    pub fn meaning(&self) -> String {
        let lines = self.lines.iter().map(|line| line.trim());
        lines.collect::<Vec<_>>().join(" ")
    }
}

/// A knob's value. Its text is that of TOML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Number(u32),
    /// One of a few words.
    Word(&'static str),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Word(word) => write!(f, "\"{word}\""),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Number(number) => serializer.serialize_u32(number),
            Self::Word(word) => serializer.serialize_str(word),
        }
    }
}

/// The values that a knob takes. `because` is the reason for a form that is more than a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Values {
    /// Every number from the first to the second.
    Range(u32, u32),
    /// The multiples of `of` in a range.
    Multiples {
        /// The number that divides them.
        of: u32,
        /// The smallest of them.
        least: u32,
        /// The largest of them.
        most: u32,
        /// Why only these.
        because: &'static str,
    },
    /// The powers of two in a range.
    PowersOfTwo {
        /// The smallest of them.
        least: u32,
        /// The largest of them.
        most: u32,
        /// Why only these.
        because: &'static str,
    },
    /// A range, and 0 with a special meaning.
    ZeroOrRange {
        /// The least number of the range.
        least: u32,
        /// The largest number of the range.
        most: u32,
        /// Why not less.
        because: &'static str,
    },
    /// A few numbers.
    OneOf {
        /// Each of them.
        numbers: &'static [u32],
        /// Why only these.
        because: &'static str,
    },
    /// A few words.
    Words(&'static [&'static str]),
}

impl Values {
    /// Whether `value` is one of them.
    #[must_use]
    pub fn contain(&self, value: Value) -> bool {
        let number = match (self, value) {
            (Self::Words(words), Value::Word(word)) => return words.contains(&word),
            (_, Value::Number(number)) => number,
            (_, Value::Word(_)) => return false,
        };
        match *self {
            Self::Range(least, most) => (least..=most).contains(&number),
            Self::Multiples {
                of, least, most, ..
            } => (least..=most).contains(&number) && number.is_multiple_of(of),
            Self::PowersOfTwo { least, most, .. } => {
                (least..=most).contains(&number) && number.is_power_of_two()
            }
            Self::ZeroOrRange { least, most, .. } => {
                number == 0 || (least..=most).contains(&number)
            }
            Self::OneOf { numbers, .. } => numbers.contains(&number),
            Self::Words(_) => false,
        }
    }

    /// Why it takes only these; `None` for a plain range and for words.
    #[must_use]
    pub fn because(&self) -> Option<&'static str> {
        match self {
            Self::Range(..) | Self::Words(_) => None,
            Self::Multiples { because, .. }
            | Self::PowersOfTwo { because, .. }
            | Self::ZeroOrRange { because, .. }
            | Self::OneOf { because, .. } => Some(because),
        }
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range(least, most) => write!(f, "{least} to {most}"),
            Self::Multiples {
                of, least, most, ..
            } => {
                write!(f, "{least} to {most}, multiple of {of}")
            }
            Self::PowersOfTwo { least, most, .. } => {
                write!(f, "{least} to {most}, power of two")
            }
            Self::ZeroOrRange { least, most, .. } => write!(f, "0, or {least} to {most}"),
            Self::OneOf { numbers, .. } => {
                let numbers: Vec<_> = numbers.iter().map(u32::to_string).collect();
                f.write_str(&numbers.join(" or "))
            }
            Self::Words(words) => {
                let words: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
                f.write_str(&words.join(", "))
            }
        }
    }
}

/// The type of a knob.
pub(crate) trait KnobValue: Copy {
    fn value(self) -> Value;

    /// The value where `limit` is the most that a device can do; `None` when it is within the limit.
    fn cut_to(self, limit: Self) -> Option<Self>;
}

impl KnobValue for u32 {
    fn value(self) -> Value {
        Value::Number(self)
    }

    fn cut_to(self, limit: Self) -> Option<Self> {
        (self > limit).then_some(limit)
    }
}
