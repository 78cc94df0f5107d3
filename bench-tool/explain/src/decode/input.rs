//! One line of input: hex, or a JSON object with a field `hex`.

use std::fmt;

/// Why a line is not a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InputError {
    /// The position of the error, in bytes of the message.
    pub(crate) at: usize,
    /// The reason.
    pub(crate) reason: InputReason,
}

/// A fault of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InputReason {
    /// A character that is neither a hex digit nor a separator.
    NotHex(char),
    /// A group has an odd number of digits, so half a byte is missing.
    HalfByte,
    /// The line starts with `{` but is not JSON.
    NotJson(String),
    /// The JSON has no field `hex`, or the field is not a string.
    NoHexField,
}

impl fmt::Display for InputReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotHex(character) => write!(f, "{character:?} is not a hex digit"),
            Self::HalfByte => {
                f.write_str("the number of hex digits is odd: half a byte is missing")
            }
            Self::NotJson(error) => write!(f, "the line is not JSON: {error}"),
            Self::NoHexField => f.write_str("the JSON has no field `hex` that holds a string"),
        }
    }
}

/// The bytes of the message on a line; `None` for blank lines and comments.
///
/// # Errors
/// The line is neither hex nor JSON with a field `hex`.
pub(crate) fn message_bytes(line: &[u8]) -> Result<Option<Vec<u8>>, InputError> {
    let text = String::from_utf8_lossy(line);
    let text = text.trim();
    if text.is_empty() || text.starts_with('#') {
        return Ok(None);
    }
    if !text.starts_with('{') {
        return hex(text).map(Some);
    }
    let error = |reason| InputError { at: 0, reason };
    let value: serde_json::Value =
        serde_json::from_str(text).map_err(|e| error(InputReason::NotJson(e.to_string())))?;
    let field = value.get("hex").and_then(serde_json::Value::as_str);
    hex(field.ok_or_else(|| error(InputReason::NoHexField))?.trim()).map(Some)
}

/// Reads hex digits. Any group may start with `0x`; white space, colons and commas separate groups.
fn hex(text: &str) -> Result<Vec<u8>, InputError> {
    let mut bytes = Vec::with_capacity(text.len() / 2);
    for group in text.split(|c: char| c.is_whitespace() || c == ':' || c == ',') {
        let digits = group
            .strip_prefix("0x")
            .or_else(|| group.strip_prefix("0X"))
            .unwrap_or(group);
        let mut high = None;
        for character in digits.chars() {
            let at = bytes.len();
            let digit = character
                .to_digit(16)
                .and_then(|digit| u8::try_from(digit).ok())
                .ok_or(InputError {
                    at,
                    reason: InputReason::NotHex(character),
                })?;
            match high.take() {
                None => high = Some(digit),
                Some(high) => bytes.push(high << 4 | digit),
            }
        }
        if high.is_some() {
            return Err(InputError {
                at: bytes.len(),
                reason: InputReason::HalfByte,
            });
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(line: &str) -> Result<Option<Vec<u8>>, InputError> {
        message_bytes(line.as_bytes())
    }

    #[test]
    fn hex_in_all_its_clothes() {
        for line in [
            "d7811d8b",
            "D7811D8B\r\n",
            " 0xd7811d8b ",
            "d7 81 1d 8b",
            "d7:81:1d:8b",
            "0xd781 0x1d8b",
            "0xd7, 0x81, 0x1d, 0x8b",
            r#"{"hex": "d7811d8b", "from": "client"}"#,
        ] {
            assert_eq!(read(line), Ok(Some(vec![0xd7, 0x81, 0x1d, 0x8b])), "{line}");
        }
        assert_eq!(read("0x"), Ok(Some(vec![])));
    }

    #[test]
    fn blank_lines_and_comments_are_no_messages() {
        for line in ["", "  \t\r\n", "# d781"] {
            assert_eq!(read(line), Ok(None));
        }
    }

    #[test]
    fn errors_say_where_and_what() {
        let error = |at, reason| Err(InputError { at, reason });
        assert_eq!(read("d78g"), error(1, InputReason::NotHex('g')));
        assert_eq!(read("d7 8"), error(1, InputReason::HalfByte));
        assert_eq!(read("d 7"), error(0, InputReason::HalfByte));
        assert_eq!(read("{}"), error(0, InputReason::NoHexField));
        assert_eq!(read(r#"{"hex": 5}"#), error(0, InputReason::NoHexField));
        assert!(matches!(
            read("{oops").unwrap_err().reason,
            InputReason::NotJson(_)
        ));
        assert!(message_bytes(&[0xff, 0xfe]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let line: String = std::iter::once("0x".to_owned()).chain(bytes.iter().map(|b| format!("{b:02x}"))).collect();
            prop_assert_eq!(read(&line), Ok(Some(bytes)));
        }

        #[test]
        fn no_line_panics(line in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = message_bytes(&line);
        }
    }
}
