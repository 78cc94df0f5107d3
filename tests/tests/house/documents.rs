//! That links between the documents lead to files and headings that exist, and that documents name what is not tried on
//! a device.

use std::path::Path;

use crate::files;

/// The lines of a Markdown text that are in no fenced block.
fn prose(markdown: &str) -> impl Iterator<Item = &str> {
    let mut is_fenced = false;
    markdown.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        !is_fenced && !is_fence
    })
}

/// The targets of the links of a Markdown text, those in code spans aside.
fn link_targets(markdown: &str) -> Vec<String> {
    // What backticks enclose is every second piece.
    let text: String = prose(markdown)
        .flat_map(|line| line.split('`').step_by(2).chain(["\n"]))
        .collect();
    let links = text.split("](").skip(1);
    let targets = links.filter_map(|rest| rest.split_once(')'));
    targets
        .map(|(target, _)| target.trim().to_owned())
        .collect()
}

/// The anchor that a heading gets: lower case, spaces to hyphens, other punctuation dropped.
fn anchor(heading: &str) -> String {
    let is_kept = |c: &char| matches!(c, ' ' | '-' | '_') || c.is_alphanumeric();
    let heading = heading.trim_start_matches('#').trim();
    let kept: String = heading.chars().filter(is_kept).collect();
    kept.to_ascii_lowercase().replace(' ', "-")
}

/// Why a link from `document` leads nowhere, or `None` when it leads somewhere.
fn broken(document: &Path, target: &str) -> Option<&'static str> {
    if ["http://", "https://", "mailto:"]
        .iter()
        .any(|it| target.starts_with(it))
    {
        return None;
    }
    let (path, wanted) = target.split_once('#').unwrap_or((target, ""));
    let file = match path {
        "" => document.to_owned(),
        path => document.parent()?.join(path),
    };
    if !files::root().join(&file).exists() {
        return Some("no such file");
    }
    let has_anchor = || {
        let text = files::text(&file);
        prose(&text).any(|line| line.starts_with('#') && anchor(line) == wanted)
    };
    (!wanted.is_empty() && !has_anchor()).then_some("no such heading")
}

#[test]
fn links_between_documents_lead_somewhere() {
    let (mut links, mut wrong) = (0, Vec::new());
    for document in files::with_extension(&["md"]) {
        for target in link_targets(&files::text(&document)) {
            links += 1;
            let why = broken(&document, &target);
            wrong.extend(why.map(|why| format!("{}: {target}: {why}", document.display())));
        }
    }
    assert!(links >= 10, "only {links} links were found");
    assert!(wrong.is_empty(), "{wrong:#?}");

    let markdown = "a [b](c.md) and [d](e.md#f)\n`[no](code)`\n```\n[no](block)\n```\n[g](h)";
    assert_eq!(link_targets(markdown), ["c.md", "e.md#f", "h"]);
    let readme = Path::new("README.md");
    assert!(broken(readme, "no/such/file.md").is_some() && broken(readme, "#none").is_some());
}

/// The names between `begin` and the next `];` of a file, without its comments.
fn names_between(file: &str, begin: &str) -> Vec<String> {
    let text = files::text(file);
    let (_, list) = text.split_once(begin).expect("the list begins");
    let (list, _) = list.split_once("]").expect("the list ends");
    let code = list.lines().filter_map(|line| line.split("//").next());
    let words = code.flat_map(|line| line.split(|c: char| !(c.is_alphanumeric() || c == '_')));
    // What stands between quotes are a name and a sentence: names have an underscore.
    let names = words.filter(|word| word.contains('_'));
    names.map(str::to_owned).collect()
}

#[test]
fn cases_skipped_on_a_device_are_documented() {
    let told = files::text("docs/verbs.md");
    let suite = "tests/tests/fabric_verbs.rs";
    let engine = "dataplane/engine/tests/support/verbs.rs";
    let ports = "dataplane/fabric/tests/port_verbs/main.rs";
    // Each list, and how many names it has at least.
    for (file, begin, least) in [
        (suite, "VerbsHarness, skipped [", 5),
        (suite, "is_iwarp() => [", 5),
        (
            engine,
            "const SKIPPED: &'static [(&'static str, &'static str)] = &[",
            2,
        ),
        (engine, "const PLACEMENT: &[(&str, &str)] = &[", 2),
        (engine, "const PLACEMENT_ON_IWARP: &[(&str, &str)] = &[", 2),
        (engine, "const ENGINE_ON_IWARP: &[(&str, &str)] = &[", 2),
        (
            engine,
            "const ENGINE_WITHOUT_WINDOWS: &[(&str, &str)] = &[",
            2,
        ),
        (ports, "const SKIPPED_ON_IWARP: &[(&str, &str)] = &[", 2),
    ] {
        let names = names_between(file, begin);
        assert!(names.len() >= least, "{file}: {names:?}");
        for name in names {
            assert!(told.contains(&format!("`{name}`")), "docs/verbs.md: {name}");
        }
    }
    let cases = files::text("tests/src/fabric_conformance/list.rs");
    let cases = cases.matches("#[test]").count();
    let count = format!("Of the {cases} cases of the fabric's suite");
    assert!(told.contains(&count), "docs/verbs.md: {count}");
}

#[test]
fn every_family_of_nics_has_a_card_that_the_lab_tries() {
    let cards = files::text("tests/lab/as-card.c");
    let tried =
        ["one", "iwarp"].map(|it| files::text(format!("tests/lab/scenarios/{it}-cards.sh")));
    let document = files::text("docs/verbs.md");
    let families = rpcrdma_tuning::list().into_iter().filter(|family| {
        let is_no_nic = ["shm", "rxe", "siw"].contains(&family.name);
        !is_no_nic && family.refused.is_none()
    });
    let names: Vec<String> = families
        .flat_map(|family| {
            let devices = family.devices.into_iter();
            let devices = devices.map(move |device| format!("{}-{}", family.name, device.name));
            std::iter::once(family.name.to_owned()).chain(devices)
        })
        .collect();
    assert!(names.len() >= 12, "{names:?}");
    for name in names {
        assert!(cards.contains(&format!("{{\"{name}\", ")), "{name}");
        assert!(
            tried
                .iter()
                .any(|it| it.contains(&format!("\ncard {name} "))),
            "{name}"
        );
        assert!(
            document.contains(&format!("`{name}`")),
            "docs/verbs.md: {name}"
        );
    }
}
