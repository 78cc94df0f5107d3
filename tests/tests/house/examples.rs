//! The types that a user starts with show in their documentation how they are used, by an example
//! that is compiled with the tests.

use crate::files;

/// The types, and the files that they are in.
const FIRST_MET: &[(&str, &str)] = &[
    ("control/src/node.rs", "Node"),
    ("control/src/node.rs", "NodeConfig"),
    ("control/src/target.rs", "Target"),
    ("dataplane/engine/src/bulk/call.rs", "BulkCall"),
    ("dataplane/engine/src/config.rs", "CoreConfig"),
    ("dataplane/engine/src/core/application.rs", "Application"),
    ("dataplane/engine/src/core/context.rs", "Context"),
    ("dataplane/engine/src/core/mod.rs", "Core"),
    ("dataplane/engine/src/responder.rs", "ReplyWriter"),
    ("dataplane/engine/src/ring_client.rs", "RingClient"),
    ("dataplane/fabric/src/memory/lease.rs", "Lease"),
    ("tuning/src/layers.rs", "Layers"),
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

/// Whether the public type `name` of a source file has an example; `None` if the file has no such
/// type.
fn has_example(source: &str, name: &str) -> Option<bool> {
    let lines: Vec<&str> = source.lines().collect();
    let index = lines
        .iter()
        .position(|line| public_type(line) == Some(name))?;
    // Documentation and attributes stand above, without an empty line between.
    let above = lines[..index]
        .iter()
        .rposition(|line| line.trim().is_empty())
        .map_or(0, |empty| empty + 1);
    let documentation =
        (lines[above..index].iter()).filter_map(|line| line.trim_start().strip_prefix("///"));
    Some(shows_code(documentation))
}

#[test]
fn the_types_that_a_user_starts_with_have_an_example() {
    for (path, name) in FIRST_MET {
        let found = has_example(&files::text(path), name);
        assert_eq!(found, Some(true), "{path}: {name}");
    }
}

#[test]
fn types_and_examples_are_recognised() {
    assert_eq!(public_type("pub struct Clock {"), Some("Clock"));
    assert_eq!(public_type("    pub enum Fault<'a, T: X> {"), Some("Fault"));
    assert_eq!(public_type("pub type Ticks = u64;"), Some("Ticks"));
    assert_eq!(public_type("pub(crate) struct Inner;"), None);
    assert_eq!(public_type("pub fn enumerate() {}"), None);

    let shown = "/// A clock.\n///\n/// ```\n/// let x = 1;\n/// ```\n#[derive(\n    Debug,\n)]\npub struct A;";
    assert_eq!(has_example(shown, "A"), Some(true));
    assert_eq!(has_example(shown, "B"), None);
    let refused = "/// ```compile_fail\n/// let x = ;\n/// ```\npub struct A;";
    assert_eq!(has_example(refused, "A"), Some(false));
    let drawn =
        "/// ```text\n/// --\n/// ```\n/// and\n/// ```no_run\n/// x();\n/// ```\npub enum B {}";
    assert_eq!(has_example(drawn, "B"), Some(true));
    let other = "/// ```\n/// ```\npub struct A;\n\npub struct B;";
    assert_eq!(has_example(other, "B"), Some(false));
}
