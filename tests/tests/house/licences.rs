//! Licence expressions: whether an allow-list satisfies one.

/// Whether a crate under `expression` may be used when the licences in `allowed` may be: an OR needs
/// one side, an AND both. Knows the SPDX operators as they stand in manifests, and the old `A/B` for
/// `A OR B`.
///
/// # Errors
/// A text that says where the expression cannot be understood.
pub(crate) fn is_satisfied(expression: &str, allowed: &[&str]) -> Result<bool, String> {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let mut parser = Parser {
        words: spaced.split_whitespace().peekable(),
        allowed,
    };
    let satisfied = parser.either()?;
    match parser.words.next() {
        None => Ok(satisfied),
        Some(word) => Err(format!("{word:?} after the end of {expression:?}")),
    }
}

struct Parser<'a> {
    words: std::iter::Peekable<std::str::SplitWhitespace<'a>>,
    allowed: &'a [&'a str],
}

impl Parser<'_> {
    fn either(&mut self) -> Result<bool, String> {
        let mut satisfied = self.both()?;
        while self.words.next_if_eq(&"OR").is_some() {
            // Not short-circuited: the right side must be read in any case.
            satisfied |= self.both()?;
        }
        Ok(satisfied)
    }

    fn both(&mut self) -> Result<bool, String> {
        let mut satisfied = self.one()?;
        while self.words.next_if_eq(&"AND").is_some() {
            satisfied &= self.one()?;
        }
        Ok(satisfied)
    }

    fn one(&mut self) -> Result<bool, String> {
        match self.words.next() {
            Some("(") => {
                let satisfied = self.either()?;
                self.words
                    .next_if_eq(&")")
                    .ok_or("a parenthesis is not closed")?;
                Ok(satisfied)
            }
            None | Some(")" | "OR" | "AND" | "WITH") => Err("a licence is missing".to_owned()),
            Some(licence) if self.words.next_if_eq(&"WITH").is_some() => {
                let exception = self.words.next().ok_or("an exception is missing")?;
                // Whoever allows the licence alone allows it with an exception to it.
                let with = format!("{licence} WITH {exception}");
                Ok(self.allowed.contains(&licence) || self.allowed.contains(&with.as_str()))
            }
            Some(licence) => Ok(self.allowed.contains(&licence)),
        }
    }
}

#[test]
fn licence_expressions_are_understood() {
    let allowed = [
        "MIT",
        "Apache-2.0",
        "Unicode-3.0",
        "GPL-2.0 WITH Linux-syscall-note",
    ];
    let cases = [
        ("MIT", true),
        ("GPL-3.0", false),
        ("MIT OR GPL-3.0", true),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0/MIT", true),
        ("MIT AND GPL-3.0", false),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
        ("(MIT OR Apache-2.0) AND OpenSSL", false),
        ("GPL-3.0 AND MIT OR Apache-2.0", true),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("GPL-2.0 WITH Linux-syscall-note", true),
        ("GPL-2.0", false),
        ("GPL-2.0 WITH Classpath-exception", false),
    ];
    for (expression, expected) in cases {
        assert_eq!(
            is_satisfied(expression, &allowed),
            Ok(expected),
            "{expression}"
        );
    }
    for wrong in [
        "",
        "MIT OR",
        "AND MIT",
        "(MIT",
        "MIT)",
        "MIT Apache-2.0",
        "MIT WITH",
    ] {
        assert!(is_satisfied(wrong, &allowed).is_err(), "{wrong:?}");
    }
}
