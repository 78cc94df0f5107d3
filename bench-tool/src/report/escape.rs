//! Escapes text of any origin for pages and charts, and makes it plain for terminals.

use serde_json::Value;

/// Escapes `text` for use as XML or HTML text, or in a quoted attribute. Characters that XML or HTML forbid become
/// U+FFFD.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\t' | '\n' => escaped.push(character),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            character if character.is_control() => escaped.push('\u{fffd}'),
            character => escaped.push(character),
        }
    }
    escaped
}

/// The text without control characters, which a terminal would execute: each becomes `?`.
pub(crate) fn plain_text(text: String) -> String {
    match text.contains(char::is_control) {
        true => text.replace(char::is_control, "?"),
        false => text,
    }
}

/// A cell of CSV (RFC 4180). A spreadsheet would take text that begins like a formula for one, and execute it: an apostrophe
/// makes it text. Numbers stay as they are.
pub(crate) fn csv_cell(text: &str) -> String {
    let is_formula =
        text.starts_with(['=', '+', '-', '@', '\t', '\r']) && text.parse::<f64>().is_err();
    let text = if is_formula {
        format!("'{text}")
    } else {
        text.to_owned()
    };
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

/// The value with all its texts and keys as [`plain_text`].
pub(crate) fn plain_value(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(plain_text(text)),
        Value::Array(list) => list.into_iter().map(plain_value).collect(),
        Value::Object(object) => {
            let plain = |(key, value)| (plain_text(key), plain_value(value));
            object.into_iter().map(plain).collect()
        }
        other => other,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Checks that the text is XML: balanced tags, quoted attributes, and every `&` begins an entity.
    /// Returns the number of elements of each name.
    pub(crate) fn elements(markup: &str) -> std::collections::BTreeMap<String, usize> {
        let (mut open, mut counts) = (Vec::new(), std::collections::BTreeMap::new());
        for part in markup.split('<').skip(1) {
            let (tag, text) = part.split_once('>').expect("every tag ends");
            assert!(!text.contains('>'), "{text}");
            for entity in part.split('&').skip(1) {
                let (name, _) = entity.split_once(';').expect("an entity");
                assert!(["amp", "lt", "gt", "quot", "#39"].contains(&name), "{name}");
            }
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name.to_owned()));
                continue;
            }
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            assert_eq!(
                tag.matches('"').count(),
                2 * tag.matches('=').count() - {
                    let content = tag.contains("width=device-width");
                    if content { 4 } else { 0 }
                },
                "{tag}"
            );
            let name = tag.split([' ', '/']).next().unwrap_or_default().to_owned();
            *counts.entry(name.clone()).or_default() += 1;
            if !tag.ends_with('/') {
                open.push(name);
            }
        }
        assert!(open.is_empty(), "left open: {open:?}");
        counts
    }

    #[test]
    fn cells_of_csv_are_no_formulas_and_no_other_cells() {
        for (text, cell) in [
            ("send or rdma", "send or rdma"),
            ("-1.5", "-1.5"),
            ("", ""),
            ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
            ("+1+1", "'+1+1"),
            ("-2-3", "'-2-3"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "'\t=1"),
            ("a,b", "\"a,b\""),
            ("=A1,\"b\"", "\"'=A1,\"\"b\"\"\""),
            ("a\n=1", "\"a\n=1\""),
        ] {
            assert_eq!(csv_cell(text), cell);
        }
    }

    #[test]
    fn nothing_of_the_text_is_markup() {
        assert_eq!(
            escape("<b a='1' b=\"2\">&amp;\u{1b}[0m\u{ffff}\n"),
            "&lt;b a=&#39;1&#39; b=&quot;2&quot;&gt;&amp;amp;\u{fffd}[0m\u{fffd}\n"
        );
        assert_eq!(escape("µs, 99.9 %"), "µs, 99.9 %");
    }
}
