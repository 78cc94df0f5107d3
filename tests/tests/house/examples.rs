//! Every public type of the libraries shows in its documentation how it is used, by an example that
//! is compiled with the tests.

use std::path::Path;

use crate::files;

/// The libraries that users of rpcrdma build on.
const LIBRARIES: &[&str] = &[
    "dataplane/protocol/src",
    "dataplane/fabric/src",
    "dataplane/engine/src",
    "control/src",
    "tuning/src",
    "capture/src",
];

const KINDS: &[&str] = &["struct", "enum", "trait", "union", "type"];

/// The name of the public type that this line begins.
fn public_type(line: &str) -> Option<&str> {
    let mut words = line.trim_start().strip_prefix("pub ")?.split_whitespace();
    let is_type = KINDS.contains(&words.next()?);
    let name = words.next()?;
    let end = name
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(name.len());
    is_type.then_some(&name[..end])
}

/// Whether these lines of documentation hold a block of code that is compiled and must succeed.
fn shows_code<'a>(documentation: impl Iterator<Item = &'a str>) -> bool {
    let mut inside = false;
    for line in documentation {
        let Some(info) = line.trim_start().strip_prefix("```") else {
            continue;
        };
        let compiled = (info.split(','))
            .all(|word| matches!(word.trim(), "" | "rust" | "no_run" | "should_panic"));
        if !inside && compiled {
            return true;
        }
        inside = !inside;
    }
    false
}

/// The public types of a source file that have no example, with their lines.
fn without_example(source: &str) -> (usize, Vec<(usize, &str)>) {
    let lines: Vec<&str> = source.lines().collect();
    let mut types = 0;
    let mut without = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(name) = public_type(line) else {
            continue;
        };
        types += 1;
        // Documentation and attributes stand above, without an empty line between.
        let above = lines[..index]
            .iter()
            .rposition(|line| line.trim().is_empty())
            .map_or(0, |empty| empty + 1);
        let documentation =
            (lines[above..index].iter()).filter_map(|line| line.trim_start().strip_prefix("///"));
        if !shows_code(documentation) {
            without.push((index + 1, name));
        }
    }
    (types, without)
}

#[test]
fn every_public_type_of_the_libraries_has_an_example() {
    let mut types = 0;
    let mut missing = Vec::new();
    for path in files::with_extension(&["rs"]) {
        let in_library = LIBRARIES.iter().any(|library| path.starts_with(library));
        let is_test = (path.iter()).any(|part| Path::new(part).ends_with("tests"))
            || path.ends_with("tests.rs");
        if !in_library || is_test {
            continue;
        }
        let source = files::text(&path);
        let (found, without) = without_example(&source);
        types += found;
        for (line, name) in without {
            missing.push(format!("{}:{line}: {name}", path.display()));
        }
    }
    assert!(types >= 300, "only {types} public types were found");
    assert!(
        missing.is_empty(),
        "{} of {types} public types have no example: {missing:#?}",
        missing.len()
    );
}

#[test]
fn types_and_examples_are_recognised() {
    assert_eq!(public_type("pub struct Clock {"), Some("Clock"));
    assert_eq!(public_type("    pub enum Fault<'a, T: X> {"), Some("Fault"));
    assert_eq!(public_type("pub type Ticks = u64;"), Some("Ticks"));
    assert_eq!(public_type("pub(crate) struct Inner;"), None);
    assert_eq!(public_type("pub fn enumerate() {}"), None);

    let shown = "/// A clock.\n///\n/// ```\n/// let x = 1;\n/// ```\n#[derive(\n    Debug,\n)]\npub struct A;";
    assert_eq!(without_example(shown), (1, vec![]));
    let refused = "/// ```compile_fail\n/// let x = ;\n/// ```\npub struct A;";
    assert_eq!(without_example(refused), (1, vec![(4, "A")]));
    let drawn =
        "/// ```text\n/// --\n/// ```\n/// and\n/// ```no_run\n/// x();\n/// ```\npub enum B {}";
    assert_eq!(without_example(drawn), (1, vec![]));
    let other = "/// ```\n/// ```\npub struct A;\n\npub struct B;";
    assert_eq!(without_example(other), (2, vec![(5, "B")]));
}
