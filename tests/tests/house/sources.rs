//! How source files look: length, unfinished work, paths of one machine.

use std::path::Path;

use crate::files;

/// Lines that a file may have beside its tests; longer ones cannot be read in one sitting.
const NON_TEST_LINES_MAX: usize = 800;

/// The lines of a source file before its unit tests, which stand at its end.
fn non_test_lines(source: &str) -> usize {
    let lines: Vec<&str> = source.lines().collect();
    let is_test_module = |pair: &[&str]| {
        pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{')
    };
    lines
        .windows(2)
        .position(is_test_module)
        .unwrap_or(lines.len())
}

/// Whether the whole file is tests.
fn is_test_file(path: &Path) -> bool {
    path.components()
        .any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "benches")))
        || path
            .file_stem()
            .is_some_and(|stem| stem.to_string_lossy().ends_with("tests"))
}

#[test]
fn no_file_is_too_long_to_read() {
    let mut long = Vec::new();
    let mut read = 0;
    for path in files::with_extension(&["rs"]) {
        if is_test_file(&path) {
            continue;
        }
        read += 1;
        let lines = non_test_lines(&files::text(&path));
        if lines > NON_TEST_LINES_MAX {
            long.push(format!("{}: {lines} lines", path.display()));
        }
    }
    assert!(read >= 7, "only {read} source files were found");
    assert!(
        long.is_empty(),
        "longer than {NON_TEST_LINES_MAX} lines beside tests: {long:#?}"
    );
}

#[test]
fn lines_are_counted_up_to_the_unit_tests() {
    assert_eq!(non_test_lines("a\nb\n"), 2);
    assert_eq!(non_test_lines("a\n#[cfg(test)]\nmod tests {\n}\n"), 1);
    assert_eq!(non_test_lines("#[cfg(test)]\nmod tests;\na\n"), 3);
}

/// What marks work that is not finished, and what belongs to one machine. Written in two halves, so
/// that this file does not hold them.
const FORBIDDEN: &[(&str, &str)] = &[
    (concat!("to", "do!("), "unfinished"),
    (concat!("un", "implemented!("), "unfinished"),
    (concat!("FIX", "ME"), "unfinished"),
    (concat!("TO", "DO"), "unfinished"),
    (concat!("XX", "X"), "unfinished"),
    (concat!("HA", "CK"), "unfinished"),
    (concat!("not yet", " implemented"), "unfinished"),
    (
        concat!("unreachable", "_unchecked"),
        "undefined behaviour in place of a check",
    ),
    (
        concat!("#[", "ignore]"),
        "a test that is skipped without a reason",
    ),
    (concat!("assert!(", "true"), "a test that cannot fail"),
    (concat!("db", "g!("), "left over from debugging"),
    (concat!("/wo", "rk/"), "a path of one machine"),
    (concat!("/ro", "ot/"), "a path of one machine"),
    (concat!("/ho", "me/"), "a path of one machine"),
];

#[test]
fn nothing_is_unfinished_and_nothing_names_one_machine() {
    let mut found = Vec::new();
    let mut paths = files::with_extension(&["rs", "md", "toml", "sh"]);
    paths.extend(["check".into(), ".ci/run".into()]);
    for path in &paths {
        for (index, line) in files::text(path).lines().enumerate() {
            // What mktemp fills in.
            let line = line.replace(concat!("XX", "XX", "XX"), "");
            for (word, why) in FORBIDDEN {
                if line.contains(word) {
                    found.push(format!("{}:{}: {word:?}: {why}", path.display(), index + 1));
                }
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// Whether a line of code, comments aside, opens unsafe code.
fn is_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let keyword = concat!("un", "safe");
    code.match_indices(keyword).any(|(at, _)| {
        let follows = code[at + keyword.len()..].trim_start();
        let starts_word = !code[..at]
            .ends_with(|before: char| before.is_alphanumeric() || "_\"".contains(before));
        starts_word
            && (["{", "fn ", "impl", "extern", "trait", "("].iter())
                .any(|opening| follows.starts_with(opening))
    })
}

#[test]
fn unsafe_code_stands_in_the_fabric_alone() {
    let mut found = Vec::new();
    for path in files::with_extension(&["rs"]) {
        if path.starts_with("dataplane/fabric") {
            continue;
        }
        for (index, line) in files::text(&path).lines().enumerate() {
            if is_unsafe(line) {
                found.push(format!("{}:{}", path.display(), index + 1));
            }
        }
    }
    assert!(
        found.is_empty(),
        "unsafe code outside dataplane/fabric: {found:#?}"
    );
}

#[test]
fn unsafe_code_is_recognised() {
    let keyword = concat!("un", "safe");
    let yes = [
        "let x = @ { y };",
        "@ fn f() {}",
        "@ impl Send for X {}",
        "#[@(no_mangle)]",
    ];
    let no = [
        "#![forbid(@_code)]",
        "// @ { }",
        "@ly {",
        "not_@ {",
        "an @ thing",
    ];
    for line in yes {
        assert!(is_unsafe(&line.replace('@', keyword)), "{line}");
    }
    for line in no {
        assert!(!is_unsafe(&line.replace('@', keyword)), "{line}");
    }
}

/// `./check` and `.ci/run` are started as programs.
#[test]
fn the_programs_of_the_root_are_executable() {
    use std::os::unix::fs::PermissionsExt;
    for name in ["check", ".ci/run"] {
        let metadata = std::fs::metadata(files::root().join(name)).expect(name);
        assert_eq!(
            metadata.permissions().mode() & 0o111,
            0o111,
            "{name} is not executable"
        );
        assert!(
            files::text(name).starts_with("#!"),
            "{name} names no interpreter"
        );
    }
}
