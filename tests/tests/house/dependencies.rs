//! What may depend on what, and what may be depended on (deny.toml, docs/dependencies.md).

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::files;
use crate::licences;

/// What `cargo metadata` says with these further arguments.
fn metadata(arguments: &[&str]) -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--locked"])
        .args(arguments)
        .current_dir(files::root())
        .output()
        .expect("cargo starts");
    assert!(
        output.status.success(),
        "cargo metadata failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("cargo metadata writes JSON")
}

fn deny_toml() -> toml::Table {
    files::text("deny.toml").parse().expect("deny.toml is TOML")
}

/// The strings under `section.key` of deny.toml.
fn deny_strings(section: &str, key: &str) -> Vec<String> {
    let deny = deny_toml();
    let list = deny[section][key].as_array().expect("a list in deny.toml");
    list.iter()
        .map(|entry| {
            entry
                .get("name")
                .unwrap_or(entry)
                .as_str()
                .expect("a string")
                .to_owned()
        })
        .collect()
}

/// The licence that deny.toml gives a crate whose manifest states none, for a file that is there.
fn clarified_licence(package: &Value) -> Option<String> {
    let deny = deny_toml();
    let entries = deny["licenses"].get("clarify")?.as_array()?;
    let entry = entries
        .iter()
        .find(|entry| entry["crate"].as_str() == package["name"].as_str())?;
    let folder = std::path::Path::new(text(package, "manifest_path")).parent()?;
    for file in entry["license-files"].as_array()? {
        let path = folder.join(file["path"].as_str()?);
        assert!(path.is_file(), "{} is not there", path.display());
    }
    Some(entry["expression"].as_str()?.to_owned())
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key]
        .as_str()
        .unwrap_or_else(|| panic!("no text under {key} in {value}"))
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key]
        .as_array()
        .unwrap_or_else(|| panic!("no list under {key} in {value}"))
}

/// Every package that a build for one of the platforms of deny.toml may take in, ours included.
fn packages_of_all_targets() -> Vec<Value> {
    let mut packages = Vec::new();
    for target in deny_strings("graph", "targets") {
        let metadata = metadata(&["--all-features", "--filter-platform", &target]);
        let used: BTreeSet<&str> = list(&metadata["resolve"], "nodes")
            .iter()
            .map(|node| text(node, "id"))
            .collect();
        packages.extend(
            list(&metadata, "packages")
                .iter()
                .filter(|package| used.contains(text(package, "id")))
                .cloned(),
        );
    }
    assert!(
        packages.len() > 20,
        "cargo metadata named only {} packages",
        packages.len()
    );
    packages
}

#[test]
fn licences_bans_and_sources_are_as_deny_toml_says() {
    let allowed = deny_strings("licenses", "allow");
    let allowed: Vec<&str> = allowed.iter().map(String::as_str).collect();
    let banned = deny_strings("bans", "deny");
    let registries = deny_strings("sources", "allow-registry");
    let mut wrong = BTreeSet::new();
    for package in packages_of_all_targets() {
        let name = text(&package, "name");
        let stated = package["license"].as_str().map(str::to_owned);
        match stated
            .or_else(|| clarified_licence(&package))
            .map(|license| licences::is_satisfied(&license, &allowed))
        {
            Some(Ok(true)) => {}
            Some(Ok(false)) => {
                wrong.insert(format!(
                    "{name}: the licence {} is not allowed",
                    package["license"]
                ));
            }
            Some(Err(error)) => {
                wrong.insert(format!("{name}: licence not understood: {error}"));
            }
            None => {
                wrong.insert(format!("{name}: states no licence"));
            }
        }
        if banned.iter().any(|banned| banned == name) {
            wrong.insert(format!("{name}: is banned"));
        }
        let known_source = match package["source"].as_str() {
            Some(source) => registries
                .iter()
                .any(|registry| source.strip_prefix("registry+") == Some(registry.as_str())),
            None => text(&package, "manifest_path")
                .starts_with(files::root().to_str().expect("the root's path is UTF-8")),
        };
        if !known_source {
            wrong.insert(format!("{name}: comes from {}", package["source"]));
        }
    }
    assert!(wrong.is_empty(), "against deny.toml: {wrong:#?}");
}

/// Which crates of the workspace a crate may use, tests aside; design.md's "who may use whom".
const MAY_USE: &[(&str, &[&str])] = &[
    ("rpcrdma-protocol", &[]),
    ("rpcrdma-fabric", &[]),
    ("rpcrdma-tuning", &[]),
    ("rpcrdma-units", &[]),
    (
        "rpcrdma-nfs3",
        &["rpcrdma-protocol", "rpcrdma-fabric", "rpcrdma-engine"],
    ),
    ("rpcrdma-explain", &["rpcrdma-protocol", "rpcrdma-units"]),
    (
        "rpcrdma-doctor",
        &[
            "rpcrdma-fabric",
            "rpcrdma-control",
            "rpcrdma-tuning",
            "rpcrdma-units",
        ],
    ),
    ("rpcrdma-engine", &["rpcrdma-protocol", "rpcrdma-fabric"]),
    (
        "rpcrdma-control",
        &[
            "rpcrdma-protocol",
            "rpcrdma-fabric",
            "rpcrdma-engine",
            "rpcrdma-tuning",
        ],
    ),
    (
        "bench-tool",
        &[
            "rpcrdma-protocol",
            "rpcrdma-fabric",
            "rpcrdma-engine",
            "rpcrdma-control",
            "rpcrdma-tuning",
            "rpcrdma-doctor",
            "rpcrdma-explain",
            "rpcrdma-nfs3",
            "rpcrdma-units",
        ],
    ),
    (
        "rpcrdma-examples",
        &[
            "rpcrdma-protocol",
            "rpcrdma-fabric",
            "rpcrdma-engine",
            "rpcrdma-control",
            "rpcrdma-tuning",
        ],
    ),
    (
        "rpcrdma-tests",
        &[
            "rpcrdma-protocol",
            "rpcrdma-fabric",
            "rpcrdma-engine",
            "rpcrdma-control",
            "rpcrdma-tuning",
            "rpcrdma-explain",
        ],
    ),
    ("rpcrdma-bench", &["rpcrdma-protocol", "rpcrdma-fabric"]),
];

#[test]
fn crates_use_only_the_crates_below_them() {
    let metadata = metadata(&["--no-deps"]);
    let packages = list(&metadata, "packages");
    assert_eq!(
        packages.len(),
        MAY_USE.len(),
        "a crate is missing from the table of who uses whom"
    );
    for package in packages {
        let name = text(package, "name");
        let (_, allowed) = MAY_USE
            .iter()
            .find(|(known, _)| *known == name)
            .unwrap_or_else(|| panic!("{name} is missing from the table of who uses whom"));
        for dependency in list(package, "dependencies") {
            let used = text(dependency, "name");
            let is_ours = dependency["path"].is_string();
            let in_tests_only = dependency["kind"] == "dev";
            assert!(
                !is_ours || in_tests_only || allowed.contains(&used),
                "{name} may not use {used}"
            );
        }
    }
}

#[test]
fn every_direct_dependency_has_its_reason() {
    let metadata = metadata(&["--no-deps"]);
    let used: BTreeSet<String> = list(&metadata, "packages")
        .iter()
        .flat_map(|package| list(package, "dependencies"))
        .filter(|dependency| !dependency["path"].is_string())
        .map(|dependency| text(dependency, "name").to_owned())
        .collect();
    let rows = files::table_rows(&files::text("docs/dependencies.md"), "Crate");
    let explained: BTreeSet<String> = rows
        .iter()
        .map(|row| row[0].trim_matches('`').to_owned())
        .collect();
    assert_eq!(
        explained.len(),
        rows.len(),
        "docs/dependencies.md explains a crate twice"
    );
    for row in &rows {
        assert!(
            row.len() == 3 && row.iter().all(|cell| !cell.is_empty()),
            "an empty cell: {row:?}"
        );
    }
    let missing: Vec<_> = used.difference(&explained).collect();
    let left_over: Vec<_> = explained.difference(&used).collect();
    assert!(
        missing.is_empty(),
        "without a row in docs/dependencies.md: {missing:?}"
    );
    assert!(
        left_over.is_empty(),
        "in docs/dependencies.md but not used: {left_over:?}"
    );
}

#[test]
fn every_crate_takes_the_shared_lints_and_the_shared_package_data() {
    for package in list(&metadata(&["--no-deps"]), "packages") {
        let path = text(package, "manifest_path");
        let manifest: toml::Table = files::text(path).parse().expect("a manifest is TOML");
        assert_eq!(
            manifest["lints"]["workspace"].as_bool(),
            Some(true),
            "{path}: lints"
        );
        for key in [
            "version",
            "edition",
            "rust-version",
            "license",
            "repository",
            "publish",
        ] {
            let shared = manifest["package"][key]
                .get("workspace")
                .and_then(toml::Value::as_bool);
            assert_eq!(shared, Some(true), "{path}: {key}");
        }
    }
}

/// Every library and program outside the fabric forbids unsafe code at its root; that no other file
/// holds any is checked with the sources.
#[test]
fn unsafe_code_is_forbidden_outside_the_fabric() {
    let mut roots = 0;
    for package in list(&metadata(&["--no-deps"]), "packages") {
        if text(package, "name") == "rpcrdma-fabric" {
            continue;
        }
        for target in list(package, "targets") {
            let kinds = list(target, "kind");
            if !["lib", "bin"]
                .iter()
                .any(|kind| kinds.contains(&Value::from(*kind)))
            {
                continue;
            }
            let path = text(target, "src_path");
            let forbids = files::text(path)
                .lines()
                .any(|line| line.trim() == "#![forbid(unsafe_code)]");
            assert!(forbids, "{path} lacks #![forbid(unsafe_code)]");
            roots += 1;
        }
    }
    assert!(roots >= 6, "only {roots} crate roots were found");
}
