//! Finding and reading the files of the repository.

use std::path::{Path, PathBuf};

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the tests crate lies in the root")
}

/// The text of a file of the repository.
pub(crate) fn text(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file of the repository with one of these extensions, as a path from the root, in order.
/// What a build or a fuzzer leaves behind is not part of the repository.
pub(crate) fn with_extension(extensions: &[&str]) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).expect("a folder") {
            let entry = entry.expect("an entry");
            let path = folder.join(entry.file_name());
            let is_left_behind = ["target", "artifacts", ".git"]
                .iter()
                .any(|it| path.ends_with(it));
            let extension = path.extension().and_then(|it| it.to_str());
            if entry.file_type().expect("a kind").is_dir() {
                folders.extend((!is_left_behind).then_some(path));
            } else if extension.is_some_and(|it| extensions.contains(&it)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The path from the root of every file of the repository, whatever its kind, also of those that are not committed yet.
pub(crate) fn all() -> Vec<PathBuf> {
    let listed = std::process::Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root())
        .output()
        .expect("git starts");
    let listed = String::from_utf8(listed.stdout).expect("UTF-8");
    let paths = listed.split_terminator('\0').map(PathBuf::from);
    // Git also lists files that were removed and not committed.
    paths.filter(|path| root().join(path).is_file()).collect()
}

/// The rows of every table of a Markdown text whose header begins with `first_header`, each as its
/// cells without surrounding spaces.
pub(crate) fn table_rows(markdown: &str, first_header: &str) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut inside = false;
    for line in markdown.lines().map(str::trim) {
        let Some(cells) = line
            .strip_prefix('|')
            .and_then(|line| line.strip_suffix('|'))
        else {
            inside = false;
            continue;
        };
        // A pipe inside a cell is written as \|.
        let cells: Vec<String> = cells
            .replace("\\|", "\u{1}")
            .split('|')
            .map(|cell| cell.trim().replace('\u{1}', "|"))
            .collect();
        let is_ruler = cells
            .iter()
            .all(|cell| cell.chars().all(|c| matches!(c, '-' | ':')) && !cell.is_empty());
        if cells[0] == first_header {
            inside = true;
        } else if inside && !is_ruler {
            rows.push(cells);
        }
    }
    rows
}
