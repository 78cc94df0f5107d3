//! How source files look: length, unfinished work, paths of one machine, tests that no stage runs.

use std::path::Path;

use crate::files;

/// Lines that a file may have beside its tests; longer ones cannot be read in one sitting.
const NON_TEST_LINES_MAX: usize = 800;

fn is_test_file(path: &Path) -> bool {
    let mut parts = path.iter().filter_map(|part| part.to_str());
    parts.any(|part| part == "tests" || part.ends_with("tests.rs"))
}

#[test]
fn no_file_is_too_long_to_read() {
    for path in files::with_extension(&["rs"]) {
        let source = files::text(&path);
        let code = source.split("#[cfg(test)]\nmod tests {").next();
        let lines = code.unwrap_or_default().lines().count();
        let is_short = lines <= NON_TEST_LINES_MAX || is_test_file(&path);
        assert!(is_short, "{}: {lines} lines beside tests", path.display());
    }
}

/// What marks work that is not finished, what belongs to one machine, and what is unsafe. Written in two halves, so
/// that this file does not hold them.
const FORBIDDEN: &[&str] = &[
    concat!("FIX", "ME"),
    concat!("TO", "DO"),
    concat!("XX", "X"),
    concat!("HA", "CK"),
    concat!("not yet", " implemented"),
    concat!("unreachable", "_unchecked"),
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
];

#[test]
fn nothing_is_unfinished_and_nothing_names_one_machine() {
    let mut found = Vec::new();
    let paths = files::all();
    assert!(paths.iter().any(|path| path == Path::new(".ci/run")));
    for path in &paths {
        let bytes = std::fs::read(files::root().join(path)).expect("a file");
        // What is no text is no work and no path.
        let text = String::from_utf8(bytes).unwrap_or_default();
        for (index, line) in text.lines().enumerate() {
            // What mktemp fills in.
            let line = line.replace(concat!("XX", "XX", "XX"), "");
            if let Some(word) = FORBIDDEN.iter().find(|word| line.contains(**word)) {
                found.push(format!("{}:{}: {word:?}", path.display(), index + 1));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// The lint `unsafe_code` of the workspace does the work: here is only who may switch it off.
#[test]
fn unsafe_code_is_allowed_in_the_fabric_and_at_the_border_to_c_alone() {
    let manifest = files::text("Cargo.toml");
    assert!(manifest.contains("\nunsafe_code = \"deny\"\n"));
    for path in files::with_extension(&["rs"]) {
        let source = files::text(&path);
        // Lists of lints, wherever in them it is.
        let levels = ["allow(", "expect(", "warn("].into_iter();
        let lists = levels.flat_map(|level| source.split(level).skip(1));
        let mut lists = lists.filter_map(|rest| rest.split(')').next());
        let allows = lists.any(|lints| lints.contains("unsafe_code"));
        let may = path.starts_with("dataplane/fabric") || path.starts_with("src/capi");
        assert!(may || !allows, "{}", path.display());
        // These are workspaces of their own, without the lint.
        let is_outside = path.starts_with("tests/fuzz") || path.starts_with("tests/peers");
        let code = source.replace("forbid(unsafe_code)", "");
        let is_safe = !code.contains("unsafe");
        assert!(!is_outside || is_safe, "{}", path.display());
    }
}

/// The command line becomes configurations, which know nothing of it.
#[test]
fn only_the_commands_of_bench_tool_know_the_command_line() {
    let folder = Path::new("bench-tool/src");
    let may = ["commands", "lib.rs"].map(|it| folder.join(it));
    for path in files::with_extension(&["rs"]) {
        let may = may.iter().any(|it| path.starts_with(it)) || is_test_file(&path);
        if path.starts_with(folder) && !may {
            let source = files::text(&path);
            let code = source.split("#[cfg(test)]\n").next().unwrap_or_default();
            let knows = code.contains("crate::commands") || code.contains("clap::");
            assert!(!knows, "{}", path.display());
        }
    }
}

/// What a stage of ./check switches on.
const FEATURES: [&str; 6] = [
    "prometheus",
    "rdma-sys",
    "storage",
    "testing",
    "tracing",
    "usdt",
];

/// A file with tests is a program by cargo's rules, or a module of another file; what switches tests on is switched on
/// by a stage; what is ignored are unit tests of the fabric, which a guest of the lab runs.
#[test]
fn every_test_runs_in_a_stage() {
    let sources = files::with_extension(&["rs"]);
    let texts: Vec<String> = sources.iter().map(files::text).collect();
    let feature = concat!("feature", " = \"");
    let features = texts.iter().flat_map(|it| it.split(feature).skip(1));
    let mut features = features.filter_map(|it| it.split('"').next());
    let unknown = features.find(|it| !FEATURES.contains(it));
    assert_eq!(unknown, None, "a feature that no stage switches on");
    for (path, text) in sources.iter().zip(&texts) {
        let place = path.display();
        let module = path.with_extension("");
        let module = module.to_str().expect("UTF-8").trim_end_matches("/mod");
        let (folder, module) = module.rsplit_once('/').expect("a folder");
        // Cargo looks into these folders of a package alone: a folder `tests` within `src` has modules.
        let is_of_package = ["/tests", "/src/bin", "/examples"].iter().any(|it| {
            let package = folder.strip_suffix(*it);
            package.is_some_and(|it| files::root().join(it).join("Cargo.toml").is_file())
        });
        let is_program = is_of_package || ["lib", "main"].contains(&module);
        // A module is declared beside it, or in the file with the name of its folder.
        let (declaration, above) = (format!("mod {module};"), format!("{folder}.rs"));
        let is_module = sources.iter().zip(&texts).any(|(it, text)| {
            let is_near = it.parent() == Some(Path::new(folder)) || it == Path::new(&above);
            is_near && text.contains(&declaration)
        });
        let is_plain = !text.contains(concat!("#[", "test]"));
        assert!(
            is_plain || is_program || is_module,
            "{place}: no program has its tests"
        );
        let is_ignored = text.contains(concat!("#[", "ignore"));
        let may = path.starts_with("dataplane/fabric/src");
        assert!(may || !is_ignored, "{place}: a test is ignored");
    }
    for manifest in files::with_extension(&["toml"]) {
        let text = files::text(&manifest);
        let words = ["test = false", "autotests", "[[test]]"].map(|it| text.contains(it));
        // The root's `tests` has packages of its own.
        let may = manifest.starts_with("tests/fuzz") || manifest == Path::new("Cargo.toml");
        assert!(may || words == [false; 3], "{}", manifest.display());
    }
    let check = files::text("check");
    let part = "--features rdma-sys,storage,testing";
    assert!(check.contains(part), "./check: {part}");
    assert!(files::text("tests/lab/guest/programs").contains("--ignored"));
}

/// Documents, `.ci/run` and other scripts run them by their names.
#[test]
fn scripts_are_executable() {
    let listed = std::process::Command::new("git")
        .args(["ls-files", "--stage"])
        .current_dir(files::root())
        .output()
        .expect("git starts");
    let listed = String::from_utf8(listed.stdout).expect("UTF-8");
    let scripts = listed.lines().filter_map(|line| line.split_once('\t'));
    let scripts = scripts.filter(|(_, path)| {
        let bytes = std::fs::read(files::root().join(path));
        bytes.is_ok_and(|bytes| bytes.starts_with(b"#!/"))
    });
    let (executable, others): (Vec<_>, Vec<_>) =
        scripts.partition(|(mode, _)| mode.starts_with("100755"));
    assert!(
        executable.iter().any(|(_, path)| *path == "check"),
        "{executable:?}"
    );
    assert!(others.is_empty(), "git update-index --chmod=+x: {others:?}");
}
