//! That links between the documents point at files and headings that exist, that what is not tried
//! on a device is told, and that what peers may take and owe is told as it is.

use std::path::{Path, PathBuf};

use rpcrdma_engine::{CloseReason, CoreConfig, Counters, LEDGER, LedgerEntry, Owed};

use crate::files;

/// The text of a Markdown file without its fenced blocks and its code spans, which hold no links.
fn prose(markdown: &str) -> String {
    let mut prose = String::new();
    let mut fenced = false;
    for line in markdown.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            // What stands between backticks is every second piece.
            for piece in line.split('`').step_by(2) {
                prose.push_str(piece);
            }
            prose.push('\n');
        }
    }
    prose
}

/// The targets of the links of a Markdown text.
fn link_targets(markdown: &str) -> Vec<String> {
    prose(markdown)
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.trim().to_owned())
        .collect()
}

/// The anchor that a heading gets: lower case, spaces to hyphens, other punctuation dropped.
fn anchor(heading: &str) -> String {
    heading
        .trim()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            c if c.is_alphanumeric() => Some(c.to_ascii_lowercase()),
            _ => None,
        })
        .collect()
}

fn has_anchor(markdown: &str, wanted: &str) -> bool {
    let mut fenced = false;
    markdown.lines().any(|line| {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        !fenced && line.starts_with('#') && anchor(line.trim_start_matches('#')) == wanted
    })
}

/// Why a link from `document` leads nowhere, or `None` when it leads somewhere.
fn broken(document: &Path, target: &str) -> Option<String> {
    if ["http://", "https://", "mailto:"]
        .iter()
        .any(|scheme| target.starts_with(scheme))
    {
        return None;
    }
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor)),
        None => (target, None),
    };
    let file = if path.is_empty() {
        document.to_owned()
    } else {
        document.parent().unwrap_or(Path::new("")).join(path)
    };
    if !files::root().join(&file).exists() {
        return Some(format!("{}: {target}: no such file", document.display()));
    }
    match anchor {
        Some(anchor) if !has_anchor(&files::text(&file), anchor) => {
            Some(format!("{}: {target}: no such heading", document.display()))
        }
        _ => None,
    }
}

#[test]
fn links_between_documents_lead_somewhere() {
    let documents: Vec<PathBuf> = files::with_extension(&["md"]);
    let mut links = 0;
    let mut wrong = Vec::new();
    for document in &documents {
        for target in link_targets(&files::text(document)) {
            links += 1;
            wrong.extend(broken(document, &target));
        }
    }
    assert!(links >= 10, "only {links} links were found");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn links_and_headings_are_recognised() {
    let markdown = "a [b](c.md) and [d](e.md#f)\n`[no](code)`\n```\n[no](block)\n```\n[g](h)";
    assert_eq!(link_targets(markdown), ["c.md", "e.md#f", "h"]);
    assert_eq!(
        anchor(" The way of a call, in `one` page "),
        "the-way-of-a-call-in-one-page"
    );
    let page = "# A b\n```\n# No\n```\n## C-d\n";
    assert!(has_anchor(page, "a-b") && has_anchor(page, "c-d") && !has_anchor(page, "no"));
    assert!(broken(Path::new("README.md"), "no/such/file.md").is_some());
    assert!(broken(Path::new("README.md"), "#no-such-heading").is_some());
    assert!(broken(Path::new("docs/ARCHITECTURE.md"), "../README.md").is_none());
}

/// The names between `begin` and the next `end` of a file, without its comments.
fn names_between(file: &str, begin: &str, end: &str) -> Vec<String> {
    let text = files::text(file);
    let (_, list) = text.split_once(begin).expect("the list begins");
    let (list, _) = list.split_once(end).expect("the list ends");
    let code = list.lines().filter_map(|line| line.split("//").next());
    let words = code.flat_map(|line| line.split(|c: char| !(c.is_alphanumeric() || c == '_')));
    // What stands between quotes are a name and a sentence: names have an underscore.
    let names = words.filter(|word| word.contains('_'));
    names.map(str::to_owned).collect()
}

#[test]
fn what_is_skipped_on_a_device_is_told() {
    let told = files::text("docs/verbs.md");
    let suite = "tests/tests/fabric_verbs.rs";
    let engine = "dataplane/engine/tests/support/verbs.rs";
    let ports = "dataplane/fabric/tests/port_verbs/main.rs";
    // Each list, and how many names it has at least.
    let lists = [
        (suite, "VerbsHarness, skipped [", "], or", 5),
        (suite, "is_iwarp() => [", "]);", 5),
        (
            engine,
            "const SKIPPED: &'static [(&'static str, &'static str)] = &[",
            "];",
            2,
        ),
        (engine, "const PLACEMENT: &[(&str, &str)] = &[", "];", 2),
        (
            engine,
            "const PLACEMENT_ON_IWARP: &[(&str, &str)] = &[",
            "];",
            2,
        ),
        (
            engine,
            "const ENGINE_ON_IWARP: &[(&str, &str)] = &[",
            "];",
            2,
        ),
        (
            ports,
            "const SKIPPED_ON_IWARP: &[(&str, &str)] = &[",
            "];",
            2,
        ),
    ];
    let names = lists.map(|(file, begin, end, least)| {
        let names = names_between(file, begin, end);
        assert!(names.len() >= least, "{file}: {names:?}");
        names
    });
    for name in names.iter().flatten() {
        assert!(told.contains(&format!("`{name}`")), "docs/verbs.md: {name}");
    }
    let cases = files::text("tests/src/fabric_conformance/list.rs");
    let cases = cases.matches("#[test]").count();
    let count = format!("Of the {cases} cases of the fabric's suite");
    assert!(told.contains(&count), "docs/verbs.md: {count}");
}

/// The row of `docs/security.md` for something that connections share.
fn row_of(entry: &LedgerEntry) -> Vec<String> {
    let guaranteed = match entry.guaranteed {
        Some(count) => count.to_string(),
        None => "nothing".to_owned(),
    };
    vec![
        entry.resource.to_owned(),
        format!("{guaranteed}: {}", entry.note),
        format!("`{}`", entry.borrowed),
        format!("`{}`", entry.counter),
    ]
}

/// The numbers and names in `docs/security.md` of what a peer may take, and of what it may owe, are those of the code.
#[test]
fn what_a_peer_may_take_and_owe_is_told() {
    let told = files::text("docs/security.md");
    let rows = files::table_rows(&told, "Shared by the connections of a core");
    let expected: Vec<_> = LEDGER.iter().map(row_of).collect();
    assert_eq!(rows, expected);
    // What a core has of them for one connection more.
    let of = |connections_max| CoreConfig {
        connections_max,
        ..CoreConfig::default()
    };
    let each = |count: fn(&CoreConfig) -> u32| count(&of(9)) - count(&of(8));
    // Of few connections each has a whole window.
    let receives = of(1009).receives() - of(1008).receives();
    for (begin, each) in [
        ("Receives", receives),
        ("send buffers", each(CoreConfig::send_buffers_total)),
        ("message buffers", each(CoreConfig::message_buffers_total)),
    ] {
        let entry = LEDGER.iter().find(|it| it.resource.starts_with(begin));
        let entry = entry.unwrap_or_else(|| panic!("an entry for {begin}"));
        assert_eq!(entry.guaranteed, Some(each), "{begin}");
    }
    let counters = Counters::default().snapshot();
    for entry in LEDGER {
        let is_counted = counters.iter().any(|(name, _)| name == entry.counter);
        assert!(is_counted, "there is no counter {}", entry.counter);
    }
    let own = files::table_rows(&told, "Resource");
    let knobs = rpcrdma_tuning::Profile::default();
    for row in rows
        .iter()
        .map(|row| &row[..3])
        .chain(own.iter().map(|row| &row[..]))
    {
        let named = row[1..]
            .iter()
            .flat_map(|cell| cell.split('`').skip(1).step_by(2));
        for knob in named {
            assert!(knobs.value_text(knob).is_some(), "there is no knob {knob}");
        }
    }

    let debts = files::table_rows(&told, "The peer owes");
    let left_as = |reason: &str| {
        let reason = format!("`{reason}`");
        debts.iter().filter(|row| row[2] == reason).count()
    };
    let all = [
        Owed::FirstMessage,
        Owed::RestOfMessage,
        Owed::Credits,
        Owed::Receives,
        Owed::Acknowledgement,
    ];
    for owed in all {
        // A new one belongs into the list, and into the table.
        match owed {
            Owed::FirstMessage
            | Owed::RestOfMessage
            | Owed::Credits
            | Owed::Receives
            | Owed::Acknowledgement => {}
        }
        assert_eq!(left_as(&owed.to_string()), 1, "{owed}");
    }
    let silent = CloseReason::PeerSilent { silent_ms: 1 }.to_string();
    assert!(silent.starts_with("the peer was silent"), "{silent}");
    assert_eq!(left_as("the peer was silent"), 1);
    assert_eq!(debts.len(), all.len() + 1, "{debts:?}");
}
