//! Text of any origin in a page.

/// `text` as text, or as the value of an attribute in quotes, of XML and HTML. Characters that neither may hold become
/// U+FFFD.
pub(super) fn escape(text: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_the_text_is_markup() {
        assert_eq!(
            escape("<b a='1' b=\"2\">&amp;\u{1b}[0m\u{ffff}\n"),
            "&lt;b a=&#39;1&#39; b=&quot;2&quot;&gt;&amp;amp;\u{fffd}[0m\u{fffd}\n"
        );
        assert_eq!(escape("µs, 99.9 %"), "µs, 99.9 %");
    }
}
