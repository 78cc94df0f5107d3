//! Waits of bench-tool. A measurement that hangs is worse than one that fails, so each call that may block says how long at
//! most, or what ends it. Regular files are left out: the kernel answers for those.

use std::path::Path;

use crate::files;

/// The crates of the tool.
const FOLDER: &str = "bench-tool";
/// What may block: channels, threads, processes, pauses, sockets, pipes, the terminal, locks, and connections. Names of
/// functions that wait are found by their endings.
const BLOCKING: [&str; 29] = [
    ".recv()",
    ".recv_timeout(",
    ".join()",
    ".wait()",
    ".wait(",
    ".wait_timeout(",
    ".forever()",
    "Barrier",
    concat!("slee", "p("),
    "::park()",
    "park_timeout(",
    ".spawn()",
    ".lock()",
    "listener.accept()",
    "::connect(",
    ".connect(",
    " connect(",
    "(connect(",
    "connect_start(",
    "poll(&mut",
    "to_socket_addrs(",
    "stdin()",
    "stdout()",
    "stderr()",
    "stream.read(",
    "stream.write",
    ".read_line(",
    ".read_until(",
    "io::copy(",
];
/// What starts a thread and panics if there is none; `threads::start` fails.
const PANICS: [&str; 2] = ["thread::spawn(", "scope.spawn("];
/// What a reason begins with.
const REASON: &str = "// WAIT: ";
/// How far above the call its reason may begin, in lines.
const LINES_ABOVE_MAX: usize = 4;

/// The lines of a file of the tool that are no tests.
fn product_lines(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    let is_tests = |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].contains("mod ");
    let tests = lines.windows(2).position(is_tests);
    lines[..tests.unwrap_or(lines.len())].to_vec()
}

fn is_product(path: &Path) -> bool {
    let mut parts = path.iter().filter_map(|part| part.to_str());
    let has_tests = parts.any(|it| ["tests", "tests.rs", "examples"].contains(&it));
    path.starts_with(FOLDER) && !has_tests && path.file_name() != Some("build.rs".as_ref())
}

/// The call in a line of code that may block, if there is one.
fn blocking(line: &str) -> Option<&'static str> {
    let code = line.split("//").next().unwrap_or_default().trim_start();
    let is_other = ["fn ", "pub fn ", "pub(crate) fn ", "use ", "pub use "];
    let is_other = is_other.iter().any(|it| code.starts_with(it));
    let mut calls = BLOCKING.into_iter();
    // Whether something is a terminal blocks nobody.
    let code = code.replace("stdin().is_terminal()", "");
    let code = code.replace("stderr().is_terminal()", "");
    let code = code.replace("use_stderr()", "");
    calls.find(|call| !is_other && code.contains(call))
}

#[test]
fn every_call_that_may_block_says_what_ends_it() {
    let (mut reasons, mut found) = (0, Vec::new());
    for path in files::with_extension(&["rs"]) {
        if !is_product(&path) {
            continue;
        }
        let text = files::text(&path);
        let lines = product_lines(&text);
        for (number, line) in lines.iter().enumerate() {
            let place = format!("{}:{}: {}", path.display(), number + 1, line.trim());
            let panics = PANICS.iter().any(|it| line.contains(it));
            assert!(
                !panics,
                "a thread may not start: use threads::start: {place}"
            );
            if blocking(line).is_none() {
                continue;
            }
            let above = number.saturating_sub(LINES_ABOVE_MAX);
            let nearest = lines[above..=number].iter().rev();
            match nearest.clone().find(|it| it.contains(REASON)) {
                Some(reason) => {
                    reasons += 1;
                    println!("{place}\n    {}", reason.trim());
                }
                None => found.push(place),
            }
        }
    }
    assert!(reasons > 0, "bench-tool waits for nothing");
    let why = "say with \"WAIT:\" how long this waits at most, or what ends it";
    assert!(found.is_empty(), "{why}: {found:#?}");
}

#[test]
fn calls_that_block_are_distinguished_from_others() {
    for line in [
        "    let event = events.recv_timeout(PERIOD);",
        "let status = child.wait()?;",
        "first.join()",
        "while let Some(line) = stdin().lock().lines().next() {",
        concat!("std::thread::slee", "p(PERIOD);"),
    ] {
        assert!(blocking(line).is_some(), "{line}");
    }
    for line in [
        "pub(crate) fn connect(&self) {",
        "let text = words.join(\", \");",
        "/// Waits with recv() for it.",
        "use std::sync::Barrier;",
    ] {
        assert_eq!(blocking(line), None, "{line}");
    }
}
