//! Every test of the repository runs in a stage of ./check: its file belongs to a program that cargo builds, what
//! switches it on is switched on by a stage, and what is ignored runs in a guest of the lab.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::files;

/// A program with tests in it, by cargo's rules for where its source lies.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Program {
    /// The unit tests of a library or program in this folder.
    Unit(PathBuf),
    /// A file of `tests/`, or a folder with a `main.rs`.
    Integration(String),
}

/// A test where it was found.
#[derive(Debug)]
struct Test {
    file: PathBuf,
    /// As the test program names it.
    name: String,
    program: Program,
    /// What of the file, of the modules around it and of itself is behind `cfg`.
    gates: Vec<String>,
    is_ignored: bool,
}

/// What is the same in every build on the machines that ./check is for.
const ALWAYS: [&str; 10] = [
    "test",
    "not(loom)",
    "all(test, not(loom))",
    "unix",
    "target_os = \"linux\"",
    "target_arch = \"x86_64\"",
    "target_pointer_width = \"64\"",
    // The stage `tests` builds the whole workspace, and with it the examples, which switch this on.
    "feature = \"storage\"",
    // The stages of ./check have `verbs-dlopen` on.
    "any(feature = \"verbs\", feature = \"verbs-dlopen\")",
    "feature = \"verbs-dlopen\"",
];

/// Why no stage runs a test; `None` where one does.
fn left_out(test: &Test) -> Option<&'static str> {
    let is_of_the_fabric =
        matches!(&test.program, Program::Unit(folder) if folder.ends_with("dataplane/fabric"));
    // A guest runs the ignored unit tests of the fabric, and no others.
    if test.is_ignored && !is_of_the_fabric {
        return Some("it is ignored");
    }
    let is_on = |gate: &str| match gate {
        "loom" | "all(test, loom)" => is_of_the_fabric && test.name.contains("loom_tests"),
        "not(any(feature = \"verbs\", feature = \"verbs-dlopen\"))" => {
            test.program == Program::Integration("cli".to_owned())
                && test.name.contains("without_the_verbs_fabric")
        }
        gate => ALWAYS.contains(&gate),
    };
    let is_off = test.gates.iter().any(|gate| !is_on(gate));
    is_off.then_some("no stage of ./check switches on what it is behind")
}

/// The attribute's inside, if the line is this attribute.
fn attribute<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let inside = line
        .strip_prefix("#[")
        .or_else(|| line.strip_prefix("#!["))?
        .strip_suffix(']')?
        .strip_prefix(name)?;
    let inside = inside.trim_start_matches(" = ").trim_matches('"');
    let inside = inside.strip_prefix('(').unwrap_or(inside);
    Some(inside.strip_suffix(')').unwrap_or(inside))
}

/// A declaration without what says who sees it.
fn bare(line: &str) -> &str {
    let within = line.strip_prefix("pub(").and_then(|it| it.split_once(") "));
    let line = within.map_or(line, |(_, rest)| rest);
    line.strip_prefix("pub ").unwrap_or(line)
}

/// Walks over the modules of one program.
struct Walk<'a> {
    program: &'a Program,
    tests: &'a mut Vec<Test>,
    reached: &'a mut BTreeSet<PathBuf>,
}

impl Walk<'_> {
    /// Notes the tests of a file and of the modules below it. `folder` is where these lie.
    fn file(&mut self, file: &Path, folder: &Path, module: &str, gates: &[String]) {
        self.reached.insert(file.to_owned());
        let source = files::text(file);
        // Modules whose end has not come: their indentation, name and gates.
        let mut open: Vec<(usize, String, Vec<String>)> = vec![(0, String::new(), gates.to_vec())];
        let mut attributes: Vec<&str> = Vec::new();
        for whole in source.lines() {
            let (line, indentation) = (whole.trim(), whole.len() - whole.trim_start().len());
            if let Some(gate) = attribute(line, "cfg").filter(|_| line.starts_with("#!")) {
                open[0].2.push(gate.to_owned());
            } else if line.starts_with("#[") {
                attributes.push(line);
            } else if !line.is_empty() && !line.starts_with("//") {
                let own = std::mem::take(&mut attributes);
                let gates = open.iter().flat_map(|(_, _, gates)| gates.clone());
                let mut gates: Vec<String> = gates.collect();
                let cfg = own.iter().filter_map(|line| attribute(line, "cfg"));
                let cfg: Vec<String> = cfg.map(str::to_owned).collect();
                let names = open.iter().map(|(_, name, _)| name.as_str());
                let path = names.fold(module.to_owned(), |path, name| path + name);
                if line == "}"
                    && open.len() > 1
                    && open.last().is_some_and(|it| it.0 == indentation)
                {
                    open.pop();
                } else if let Some(name) = bare(line).strip_prefix("mod ") {
                    if let Some(name) = name.strip_suffix(" {") {
                        open.push((indentation, format!("{name}::"), cfg));
                    } else if let Some(name) = name.strip_suffix(';') {
                        gates.extend(cfg);
                        let told = own.iter().find_map(|line| attribute(line, "path"));
                        self.module(file, folder, name, told, &format!("{path}{name}::"), &gates);
                    }
                } else if let Some(rest) = bare(line).strip_prefix("fn ")
                    && own.contains(&"#[test]")
                {
                    gates.extend(cfg);
                    let name = rest.split('(').next().unwrap_or(rest);
                    self.tests.push(Test {
                        file: file.to_owned(),
                        name: format!("{path}{name}"),
                        program: self.program.clone(),
                        gates,
                        is_ignored: own.iter().any(|line| line.starts_with("#[ignore")),
                    });
                }
            }
        }
    }

    /// Follows `mod name;`, with what `#[path]` says.
    fn module(
        &mut self,
        file: &Path,
        folder: &Path,
        name: &str,
        told: Option<&str>,
        module: &str,
        gates: &[String],
    ) {
        let found = match told {
            Some(told) => normal(&file.parent().unwrap_or(Path::new("")).join(told)),
            None => folder.join(name).with_extension("rs"),
        };
        let is_there = files::root().join(&found).is_file();
        let found = match is_there {
            true => found,
            false => folder.join(name).join("mod.rs"),
        };
        // What a path names has its modules beside it, as a `mod.rs` has.
        let below = match told.is_some() || found.ends_with("mod.rs") {
            true => found.parent().unwrap_or(Path::new("")).to_owned(),
            false => found.with_extension(""),
        };
        if files::root().join(&found).is_file() {
            self.file(&found, &below, module, gates);
        }
    }
}

/// A path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                normal.pop();
            }
            other => normal.push(other),
        }
    }
    normal
}

/// The programs of a package, each with the file that it begins with.
fn programs(package: &Path, sources: &[PathBuf]) -> Vec<(Program, PathBuf)> {
    let mut programs = Vec::new();
    for source in sources {
        let Ok(inside) = source.strip_prefix(package) else {
            continue;
        };
        let parts: Vec<&str> = inside.iter().filter_map(|part| part.to_str()).collect();
        let program = match parts[..] {
            ["src", "lib.rs" | "main.rs"] | ["src", "bin", _] | ["src", "bin", _, "main.rs"] => {
                Program::Unit(package.to_owned())
            }
            ["tests", name] => Program::Integration(name.trim_end_matches(".rs").to_owned()),
            ["tests", name, "main.rs"] => Program::Integration(name.to_owned()),
            _ => continue,
        };
        programs.push((program, source.clone()));
    }
    programs
}

#[test]
fn every_test_runs_in_a_stage() {
    let (mut tests, mut reached) = (Vec::new(), BTreeSet::new());
    let sources = files::with_extension(&["rs"]);
    let mut wrong = Vec::new();
    for manifest in files::with_extension(&["toml"]) {
        let text = files::text(&manifest);
        let is_of_the_workspace = !manifest.starts_with("tests/fuzz");
        if !manifest.ends_with("Cargo.toml") || !text.contains("[package]") || !is_of_the_workspace
        {
            continue;
        }
        for word in ["test = false", "autotests", "[[test]]"] {
            if text.contains(word) {
                wrong.push(format!("{}: {word}", manifest.display()));
            }
        }
        let package = manifest.parent().expect("a manifest lies in a folder");
        for (program, file) in programs(package, &sources) {
            let mut walk = Walk {
                program: &program,
                tests: &mut tests,
                reached: &mut reached,
            };
            let folder = file.parent().expect("a source lies in a folder");
            walk.file(&file, folder, "", &[]);
        }
    }
    for source in sources.iter().filter(|it| !reached.contains(*it)) {
        if files::text(source).lines().any(|it| it.trim() == "#[test]") {
            wrong.push(format!("{}: no program has its tests", source.display()));
        }
    }
    // Several programs may have the same test: one is enough.
    let mut reasons: BTreeMap<(&Path, &str), Option<&str>> = BTreeMap::new();
    for test in &tests {
        let name = test.name.rsplit("::").next().unwrap_or(&test.name);
        let reason = reasons.entry((&test.file, name)).or_insert(Some(""));
        if reason.is_some() {
            *reason = left_out(test);
        }
    }
    assert!(reasons.len() > 1000, "only {} were found", reasons.len());
    wrong.extend(reasons.iter().filter_map(|((file, name), reason)| {
        let reason = (*reason)?;
        Some(format!("{}::{name}: {reason}", file.display()))
    }));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn what_no_stage_switches_on_is_left_out() {
    let unit = Program::Unit(PathBuf::from("dataplane/fabric"));
    let elsewhere = Program::Unit(PathBuf::from("control"));
    let runs = |program: &Program, name: &str, gate: &str, is_ignored: bool| {
        let test = Test {
            file: PathBuf::new(),
            name: name.to_owned(),
            program: program.clone(),
            gates: vec![gate.to_owned()],
            is_ignored,
        };
        left_out(&test).is_none()
    };
    let case = |program, name, gate| runs(program, name, gate, false);
    assert!(case(&unit, "ring::tests::a", "all(test, not(loom))"));
    assert!(case(&unit, "ring::loom_tests::a", "all(test, loom)"));
    assert!(!case(&unit, "ring::tests::a", "all(test, loom)"));
    assert!(!case(&elsewhere, "ring::loom_tests::a", "all(test, loom)"));
    assert!(!case(&unit, "tests::a", "feature = \"slow\""));
    assert!(!case(&unit, "tests::a", "feature = \"verbs\""));
    assert!(case(&unit, "tests::a", "feature = \"verbs-dlopen\""));
    assert!(case(&unit, "tests::a", "feature = \"storage\""));
    let check = files::text("check");
    assert!(check.contains("\nfeatures=verbs-dlopen\n"));
    let (cli, without) = (
        Program::Integration("cli".to_owned()),
        "not(any(feature = \"verbs\", feature = \"verbs-dlopen\"))",
    );
    assert!(case(&cli, "a_without_the_verbs_fabric_b", without));
    assert!(!case(&cli, "another", without));
    assert!(!case(&unit, "a_without_the_verbs_fabric_b", without));
    assert!(check.contains("-E 'test(without_the_verbs_fabric)'"));
    let examples = files::text("examples/Cargo.toml");
    assert!(examples.contains("rpcrdma-fabric = { workspace = true, features = [\"storage\"] }"));
    assert!(runs(&unit, "tests::a", "test", true));
    assert!(!runs(&elsewhere, "tests::a", "test", true));
    assert!(files::text("tests/lab/guest/programs").contains("--ignored"));
}
