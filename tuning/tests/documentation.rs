//! docs/tuning.md lists every knob with its default, and the sizes that follow from the defaults.

use rpcrdma_tuning::{Profile, list};

fn page() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/tuning.md")).unwrap()
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

#[test]
fn every_knob_is_documented_with_its_default() {
    let page = page();
    let knobs = section(&page, "## Knobs");
    let rows: Vec<(&str, &str)> = knobs
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .filter_map(|(knob, rest)| Some((knob, rest.split_once(" | ")?.0)))
        .filter(|(knob, _)| !knob.contains(' '))
        .collect();
    let documented: Vec<&str> = rows.iter().map(|&(knob, _)| knob).collect();
    assert_eq!(
        documented,
        Profile::KNOBS,
        "the knobs, in the order of the struct"
    );
    for (knob, default) in rows {
        assert_eq!(
            Profile::default().value_text(knob).as_deref(),
            Some(default),
            "{knob}"
        );
    }
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
    let page = page().replace('\n', " ");
    for stated in [
        "2112 receives (8.25 MiB",
        "132 KiB for each connection",
        "384 send buffers (1.5 MiB)",
        "32.1 MiB of ordinary memory, and 257 MiB when each peer",
    ] {
        assert!(page.contains(stated), "{stated:?}");
    }
}
