//! docs/tuning.md has the tables of knobs and relations as the source has them, every family, and the sizes that follow
//! from the defaults.

use rpcrdma_testkit::CheckWords;
use rpcrdma_tuning::{KnobInfo, Profile, list};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/tuning.md");

fn page() -> String {
    std::fs::read_to_string(PAGE).unwrap()
}

/// The text below a heading, up to the next of its rank.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, text) = page.split_once(heading).expect(heading);
    text.split("\n## ").next().unwrap_or_default()
}

#[test]
fn every_family_is_documented() {
    let page = page();
    let families = section(&page, "## Families");
    for family in list() {
        assert!(
            families.contains(&format!("`{}`", family.name)),
            "{}",
            family.name
        );
        for device in family.devices {
            let name = format!("`{}/{}`", family.name, device.name);
            assert!(families.contains(&name), "{name}");
        }
    }
}

/// The lines of `tuning/src/knobs.rs` as a table.
fn knobs() -> Vec<String> {
    let head = [
        "| Knob | Default | Unit | Range | Meaning | Why this default |",
        "|---|---|---|---|---|---|",
    ];
    let defaults = Profile::default();
    let rows = defaults.values().map(|(knob, default)| {
        let KnobInfo {
            name,
            unit,
            values,
            source,
            ..
        } = knob;
        let meaning = knob.meaning();
        format!("| `{name}` | {default} | {unit} | {values} | {meaning} | {source} |")
    });
    head.map(str::to_owned).into_iter().chain(rows).collect()
}

/// The relations of `tuning/src/relations.rs` as a table.
fn relations() -> Vec<String> {
    let head = ["| Must hold | Because |", "|---|---|"];
    let rows = Profile::RELATIONS
        .iter()
        .map(|relation| format!("| {} | {} |", relation.rule, relation.because));
    head.map(str::to_owned).into_iter().chain(rows).collect()
}

/// The page with `table` in place of the one whose first columns have the same heads.
fn with_table(page: &str, table: &[String]) -> String {
    let first_columns = |line: &str| line.split('|').take(3).collect::<Vec<_>>().join("|");
    let head = first_columns(&table[0]);
    let mut lines = page.lines();
    let before = lines
        .by_ref()
        .take_while(|line| first_columns(line) != head);
    let before: Vec<&str> = before.collect();
    let after = lines.skip_while(|line| line.starts_with('|'));
    let table = table.iter().map(String::as_str);
    let lines: Vec<&str> = before.into_iter().chain(table).chain(after).collect();
    lines.join("\n") + "\n"
}

#[test]
fn the_tables_are_those_of_the_source() {
    let written = [knobs(), relations()]
        .iter()
        .fold(page(), |page, table| with_table(&page, table));
    if std::env::var_os("RPCRDMA_WRITE_DOCUMENTS").is_some() {
        std::fs::write(PAGE, &written).unwrap();
    }
    let page = page();
    let differing = page
        .lines()
        .zip(written.lines())
        .find(|(is, should)| is != should);
    assert!(
        page == written,
        "docs/tuning.md differs from tuning/src/knobs.rs or relations.rs: {differing:?}\nThis writes it anew: \
         RPCRDMA_WRITE_DOCUMENTS=1 cargo test -p rpcrdma-tuning --test documentation"
    );
}

#[test]
fn the_sizes_of_the_defaults_are_documented() {
    let profile = Profile::default();
    assert_eq!(profile.receives_posted(), 2112);
    assert_eq!(profile.connection_bytes(), 132 * 1024);
    assert_eq!(profile.receive_pool_bytes(), 33 * 1024 * 1024 / 4);
    assert_eq!(profile.send_pool_bytes(), 3 * 1024 * 1024 / 2);
    assert_eq!(profile.reassembly_pool_bytes(), 32 * ((1 << 20) + 4096));
    assert_eq!(profile.reassembly_guaranteed_bytes(), 257 << 20);
    // The reason for the default of peer_arena_mib_max.
    let most = Profile {
        connections_max: 65_536,
        ..Profile::default()
    };
    let most_mib = most.registered_bytes() >> 20;
    assert_eq!(u64::from(profile.peer_arena_mib_max) / most_mib, 5);
    let page = page().replace('\n', " ");
    page.check_words(&[
        "2112 receives (8.25 MiB",
        "132 KiB for each connection",
        "384 send buffers (1.5 MiB)",
        "32.1 MiB of ordinary memory, and 257 MiB when each peer",
    ]);
}
