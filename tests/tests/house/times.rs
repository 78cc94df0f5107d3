//! Times that tests compare. A test that measures a time, or that pauses, depends on the machine; so each such place says
//! what it needs of the machine, and why every machine has it. All other waits are those of the testkit.

use std::path::Path;

use crate::files;

/// What reads the clock or pauses. Written in two halves, so that this file does not hold them.
const CLOCKS: [&str; 3] = [
    concat!("Instant", "::now()"),
    concat!(".elap", "sed()"),
    concat!("slee", "p("),
];
/// What a reason begins with.
const REASON: &str = concat!("// TI", "ME: ");
/// How far above the place its reason may be, in lines.
const LINES_ABOVE_MAX: usize = 8;

/// The number of the first line of a file that is of its tests.
fn first_line_of_tests(path: &Path, text: &str) -> usize {
    let mut parts = path.iter().filter_map(|part| part.to_str());
    if parts.any(|part| part == "tests" || part.ends_with("tests.rs")) {
        return 0;
    }
    let mut lines = text.lines();
    let tests = lines.position(|line| line.trim() == "#[cfg(test)]");
    tests.unwrap_or(usize::MAX)
}

/// The testkit has the waits; benchmarks and other systems measure times, and no test is among them.
fn is_outside(path: &Path) -> bool {
    let folders = ["testkit", "bench", "peers", "fuzz"].map(|it| Path::new("tests").join(it));
    folders.iter().any(|it| path.starts_with(it))
}

#[test]
fn every_time_that_a_test_compares_has_its_reason() {
    let (mut reasons, mut found) = (0, Vec::new());
    for path in files::with_extension(&["rs"]) {
        if is_outside(&path) {
            continue;
        }
        let text = files::text(&path);
        let lines: Vec<&str> = text.lines().collect();
        for number in first_line_of_tests(&path, &text)..lines.len() {
            let code = lines[number].split("//").next().unwrap_or_default();
            // The name of a function may end as a pause begins.
            let is_name = code.trim_start().starts_with("fn ");
            if is_name || !CLOCKS.iter().any(|clock| code.contains(clock)) {
                continue;
            }
            let above = number.saturating_sub(LINES_ABOVE_MAX);
            let mut nearest_first = lines[above..=number].iter().rev();
            let reason = nearest_first.find(|it| it.contains(REASON));
            match reason {
                Some(reason) => {
                    reasons += 1;
                    println!("{}:{}: {}", path.display(), number + 1, reason.trim());
                }
                None => found.push(format!(
                    "{}:{}: {}",
                    path.display(),
                    number + 1,
                    code.trim()
                )),
            }
        }
    }
    assert!(reasons > 0, "no test measures a time");
    let why =
        "use the waits of rpcrdma_testkit, or say with \"TIME:\" why this holds on every machine";
    assert!(found.is_empty(), "{why}: {found:#?}");
}
