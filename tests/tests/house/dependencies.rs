//! What may depend on what, and what may be depended on (deny.toml, docs/dependencies.md).

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::files;

/// The packages that `cargo metadata` names with these further arguments, and the ids of those that are built.
fn packages(arguments: &[&str]) -> (Vec<Value>, BTreeSet<String>) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = (Command::new(cargo).current_dir(files::root()))
        .args(["metadata", "--format-version=1", "--locked"])
        .args(arguments)
        .output()
        .expect("cargo starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata failed:\n{errors}");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let nodes = metadata["resolve"]["nodes"].as_array();
    let built = nodes.into_iter().flatten();
    let built = built.map(|node| text(node, "id").to_owned()).collect();
    (list(&metadata, "packages").to_vec(), built)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no {key}"))
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("no {key}"))
}

/// The strings under `section.key` of deny.toml.
fn deny_strings(deny: &toml::Table, section: &str, key: &str) -> Vec<String> {
    let list = deny[section][key].as_array().expect("a list in deny.toml");
    let names = list.iter().map(|it| it.get("name").unwrap_or(it));
    names
        .map(|name| name.as_str().expect("a string").to_owned())
        .collect()
}

/// Whether the licences in `allowed` satisfy an SPDX expression: each part of an AND needs one side of its ORs. Where
/// ANDs lie within an OR, this asks for more than the expression does.
fn is_satisfied(expression: &str, allowed: &[String]) -> bool {
    let is_allowed = |side: &str| {
        let licence = side.trim_matches(['(', ')']).split(" WITH ").next();
        allowed.iter().any(|it| Some(it.as_str()) == licence)
    };
    let sides = expression.replace('/', " OR ");
    let mut parts = sides.split(" AND ");
    parts.all(|part| part.split(" OR ").any(is_allowed))
}

#[test]
fn licences_bans_and_sources_are_as_deny_toml_says() {
    let deny: toml::Table = files::text("deny.toml").parse().expect("TOML");
    let strings = |section, key| deny_strings(&deny, section, key);
    let (allowed, banned) = (strings("licenses", "allow"), strings("bans", "deny"));
    let registries = strings("sources", "allow-registry");
    let clarified = deny["licenses"]["clarify"].as_array().expect("a list");
    let exceptions = deny["licenses"]["exceptions"].as_array().expect("a list");
    for (expression, expected) in [
        ("MIT OR GPL-3.0", true),
        ("GPL-3.0/MIT", true),
        ("(MIT OR GPL-3.0) AND Unicode-3.0", true),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("MIT AND GPL-3.0", false),
        ("(MIT OR Apache-2.0) AND OpenSSL", false),
        ("", false),
    ] {
        assert_eq!(is_satisfied(expression, &allowed), expected, "{expression}");
    }
    let mut wrong = BTreeSet::new();
    for target in strings("graph", "targets") {
        let (all, built) = packages(&["--all-features", "--filter-platform", &target]);
        assert!(built.len() > 20, "{target}: {} packages", built.len());
        for package in all.iter().filter(|it| built.contains(text(it, "id"))) {
            let name = text(package, "name");
            let clarified = clarified
                .iter()
                .find(|it| it["crate"].as_str() == Some(name));
            let licence = (package["license"].as_str())
                .or_else(|| clarified?["expression"].as_str())
                .unwrap_or_default();
            let excepted = exceptions
                .iter()
                .filter(|it| it["crate"].as_str() == Some(name))
                .flat_map(|it| it["allow"].as_array().into_iter().flatten())
                .filter_map(|it| Some(it.as_str()?.to_owned()));
            let allowed: Vec<String> = allowed.iter().cloned().chain(excepted).collect();
            if !is_satisfied(licence, &allowed) {
                wrong.insert(format!("{name}: the licence {licence:?}"));
            }
            if banned.iter().any(|banned| banned == name) {
                wrong.insert(format!("{name}: is banned"));
            }
            let source = package["source"].as_str().unwrap_or_default();
            let is_known = match source.strip_prefix("registry+") {
                Some(registry) => registries.iter().any(|known| known == registry),
                None => {
                    std::path::Path::new(text(package, "manifest_path")).starts_with(files::root())
                }
            };
            if !is_known {
                wrong.insert(format!("{name}: comes from {source:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "against deny.toml: {wrong:#?}");
}

/// Which crates of the workspace a crate may use, tests aside (docs/ARCHITECTURE.md).
#[rustfmt::skip]
const MAY_USE: &[(&str, &str)] = &[
    ("rpcrdma-protocol", ""),
    ("rpcrdma-fabric", ""),
    ("rpcrdma-tuning", ""),
    ("rpcrdma-units", ""),
    ("rpcrdma-nfs3", "rpcrdma protocol fabric engine"),
    ("rpcrdma-explain", "protocol units"),
    ("rpcrdma-doctor", "fabric control tuning units"),
    ("rpcrdma-engine", "protocol fabric"),
    ("rpcrdma-control", "protocol fabric engine tuning"),
    ("rpcrdma", "protocol fabric engine control tuning"),
    ("bench-tool", "rpcrdma protocol fabric engine control tuning doctor explain nfs3 units"),
    ("rpcrdma-c", "rpcrdma tuning"),
    ("rpcrdma-examples", "rpcrdma protocol fabric engine control tuning"),
    ("rpcrdma-tests", "rpcrdma protocol fabric engine control tuning explain testkit"),
    ("rpcrdma-testkit", ""),
    ("rpcrdma-bench", "rpcrdma protocol fabric engine control tuning"),
];

#[test]
fn crates_use_only_the_crates_below_them() {
    let (packages, _) = packages(&["--no-deps"]);
    assert_eq!(
        packages.len(),
        MAY_USE.len(),
        "a crate that is gone is in the table"
    );
    for package in &packages {
        let name = text(package, "name");
        let row = MAY_USE.iter().find(|(known, _)| *known == name);
        let (_, allowed) = row.unwrap_or_else(|| panic!("{name} is not in the table"));
        for dependency in list(package, "dependencies") {
            let used = text(dependency, "name").trim_start_matches("rpcrdma-");
            let is_free = !dependency["path"].is_string() || dependency["kind"] == "dev";
            let is_allowed = is_free || allowed.split(' ').any(|allowed| allowed == used);
            assert!(is_allowed, "{name} may not use {used}");
        }
        let path = text(package, "manifest_path");
        let manifest: toml::Table = files::text(path).parse().expect("TOML");
        assert_eq!(
            manifest["lints"]["workspace"].as_bool(),
            Some(true),
            "{path}: lints"
        );
        #[rustfmt::skip]
        let keys = ["version", "edition", "rust-version", "license", "repository"];
        for key in keys {
            let shared = manifest["package"][key].get("workspace");
            let is_shared = shared.and_then(toml::Value::as_bool);
            assert_eq!(is_shared, Some(true), "{path}: {key}");
        }
    }
}

#[test]
fn every_direct_dependency_has_its_reason() {
    let (packages, _) = packages(&["--no-deps"]);
    let used = packages.iter().flat_map(|it| list(it, "dependencies"));
    let used = used.filter(|dependency| !dependency["path"].is_string());
    let used: BTreeSet<&str> = used.map(|dependency| text(dependency, "name")).collect();
    let rows = files::table_rows(&files::text("docs/dependencies.md"), "Crate");
    let explained: BTreeSet<&str> = rows.iter().map(|row| row[0].trim_matches('`')).collect();
    assert_eq!(
        explained, used,
        "the rows of docs/dependencies.md, and what is used"
    );
    for row in &rows {
        assert!(
            row.len() == 3 && row.iter().all(|it| !it.is_empty()),
            "{row:?}"
        );
    }
}
