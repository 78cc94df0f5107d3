//! An entry of a table of knobs in a file. It is a value, or a value with its source.
//!
//! ```toml
//! [settings]
//! read_depth_max = 16
//! device_inline_bytes_max = { value = 101, source = "irdma driver: inline data of generation 2" }
//! ```

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A value, and why it is what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry<T> {
    pub(crate) value: T,
    pub(crate) source: Option<String>,
}

/// The long form of an entry.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Long<T> {
    value: T,
    source: String,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entry<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Either(PhantomData))
    }
}

/// Reads either form, and leaves what a value may be to its own type, so that errors say what that
/// expects.
struct Either<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
    type Value = Entry<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, or { value = VALUE, source = \"WHY\" }")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        T::deserialize(number.into_deserializer()).map(plain)
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Self::Value, E> {
        T::deserialize(word.into_deserializer()).map(plain)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let Long { value, source } = Long::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Entry {
            value,
            source: Some(source),
        })
    }
}

fn plain<T>(value: T) -> Entry<T> {
    Entry {
        value,
        source: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choices::Idle;

    #[derive(Debug, Deserialize)]
    struct File {
        number: Entry<u32>,
        word: Entry<Idle>,
    }

    #[test]
    fn both_forms_are_read() {
        let text = "number = { value = 0x10, source = \"why\" }\nword = \"park\"\n";
        let file: File = toml::from_str(text).unwrap();
        assert_eq!((file.number.value, file.word.value), (16, Idle::Park));
        assert_eq!(file.number.source.as_deref(), Some("why"));
        assert_eq!(file.word.source, None);
    }

    #[test]
    fn errors_say_what_is_expected_and_where() {
        for (text, expected) in [
            ("number = -1", "line 1"),
            ("number = 4294967296", "u32"),
            ("number = \"many\"", "expected u32"),
            ("number = 1.5", "a value, or { value"),
            ("number = { value = 3 }", "missing field `source`"),
            (
                "number = { value = 3, source = \"x\", s = 1 }",
                "unknown field `s`",
            ),
            (
                "number = 1\nword = \"sleep\"",
                "expected one of `spin`, `pause`, `park`",
            ),
        ] {
            let error = toml::from_str::<File>(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
