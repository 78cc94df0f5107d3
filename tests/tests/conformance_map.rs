//! docs/conformance.md names, for every requirement, the tests that check it; this test holds the
//! page to it. Every test that is named exists, and every requirement has one, or says why not.
#![forbid(unsafe_code)]

// The house's tests use more of it.
#[allow(dead_code)]
#[path = "house/files.rs"]
mod files;

use std::collections::BTreeMap;

/// Requirements that the page must have at least, so that an emptied page does not pass.
const REQUIREMENTS_MIN: usize = 150;

/// The start of the last cell of a requirement whose part is not there, followed by the reason.
const NOT_BUILT: &str = "not built:";

/// What is wrong with the `Tests` cell of a requirement, given the source text of any file.
fn faults(cell: &str, source_of: &mut dyn FnMut(&str) -> Option<String>) -> Vec<String> {
    if let Some(reason) = cell.strip_prefix(NOT_BUILT) {
        return match reason.trim().len() {
            0..10 => vec![format!("{cell:?} gives no reason")],
            _ => Vec::new(),
        };
    }
    let named: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
    if named.is_empty() {
        return vec![format!(
            "{cell:?} names no test as `path/to/file.rs::test_name`"
        )];
    }
    named
        .into_iter()
        .filter_map(|test| {
            let Some((path, name)) = test.rsplit_once("::") else {
                return Some(format!(
                    "{test:?} is not of the form path/to/file.rs::test_name"
                ));
            };
            match source_of(path) {
                None => Some(format!("{test}: no such file")),
                Some(source) if !is_test(&source, name) => Some(format!("{test}: no such test")),
                Some(_) => None,
            }
        })
        .collect()
}

/// Whether the source has a function of that name that a test attribute or a property-test macro
/// runs.
fn is_test(source: &str, name: &str) -> bool {
    let head = format!("fn {name}(");
    let mut is_marked = false;
    for line in source.lines().map(str::trim) {
        if line.starts_with(&format!("#[test] {head}")) {
            return true;
        } else if line.starts_with("#[") {
            is_marked |= line == "#[test]";
        } else if line
            .trim_start_matches("pub ")
            .trim_start_matches("pub(crate) ")
            .starts_with(&head)
        {
            return is_marked;
        } else if !line.is_empty() && !line.starts_with("//") {
            is_marked = false;
        }
    }
    false
}

#[test]
fn every_requirement_names_tests_that_exist() {
    let page = files::text("docs/conformance.md");
    let rows = files::table_rows(&page, "Requirement");
    assert!(
        rows.len() >= REQUIREMENTS_MIN,
        "docs/conformance.md has {} requirements, {REQUIREMENTS_MIN} are expected",
        rows.len()
    );
    let mut read: BTreeMap<String, Option<String>> = BTreeMap::new();
    let mut source_of = |path: &str| {
        read.entry(path.to_owned())
            .or_insert_with(|| std::fs::read_to_string(files::root().join(path)).ok())
            .clone()
    };
    let mut wrong = Vec::new();
    for row in rows {
        if row.len() != 3 || row.iter().any(String::is_empty) {
            wrong.push(format!("not three cells: {row:?}"));
            continue;
        }
        wrong.extend(
            faults(&row[2], &mut source_of)
                .into_iter()
                .map(|fault| format!("{}: {fault}", row[0])),
        );
    }
    assert!(wrong.is_empty(), "docs/conformance.md: {wrong:#?}");
}

#[test]
fn cells_are_judged() {
    let source = "#[test]\nfn a() {}\nfn b() {}\n#[test]\n#[cfg(unix)]\n/// c\nfn c() {}\n#[test] fn e() needs [];";
    let mut source_of = |path: &str| (path == "x.rs").then(|| source.to_owned());
    let mut count = |cell: &str| faults(cell, &mut source_of).len();
    assert_eq!(count("`x.rs::a`"), 0);
    assert_eq!(count("`x.rs::a`, `x.rs::c`, `x.rs::e`"), 0);
    assert_eq!(count("`x.rs::b`"), 1, "a function that is no test");
    assert_eq!(count("`x.rs::d`, `y.rs::a`"), 2);
    assert_eq!(count("`x.rs`"), 1);
    assert_eq!(count("a test"), 1);
    assert_eq!(
        count("not built: chunks are pulled from the next release on"),
        0
    );
    assert_eq!(count("not built: "), 1);
}
