//! Layers, assignments and relations of the tuning profiles, by their public interface.

use rpcrdma_testkit::{CheckWords, Folder};
use rpcrdma_tuning::{
    Error, Hugepages, Idle, KnobInfo, Layers, Origin, Profile, Settings, Values, list,
};

fn settings(assignments: &[&str]) -> Settings {
    let mut settings = Settings::default();
    for assignment in assignments {
        settings.assign(assignment).unwrap();
    }
    settings
}

/// The error and its sources, as a command line prints them.
fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

fn build(assignments: &[&str]) -> Result<Profile, Error> {
    Ok(Layers::defaults()
        .overrides(&settings(assignments))
        .build()?
        .profile)
}

#[test]
fn every_embedded_profile_is_valid_and_described() {
    let families = list();
    assert!(families.len() >= 14);
    for family in families {
        assert!(
            !family.description.is_empty(),
            "{} has no description",
            family.name
        );
        assert_eq!(family.refused.is_some(), family.name == "efa");
        if family.refused.is_none() {
            Profile::by_name(family.name).unwrap();
        }
        for device in family.devices {
            assert!(!device.description.is_empty());
            Profile::by_name(&format!("{}/{}", family.name, device.name)).unwrap();
        }
    }
    Profile::default().validate().unwrap();
}

#[test]
fn every_file_in_the_profiles_folder_is_embedded() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/profiles");
    let files = std::fs::read_dir(folder).unwrap();
    let mut on_disk: Vec<String> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .map(|file| file.trim_end_matches(".toml").to_owned())
        .collect();
    on_disk.sort();
    let mut embedded: Vec<_> = list()
        .into_iter()
        .map(|family| family.name.to_owned())
        .collect();
    embedded.sort();
    assert_eq!(on_disk, embedded);
}

#[test]
fn a_device_lies_on_its_family() {
    let family = Profile::by_name("irdma").unwrap();
    let device = Profile::by_name("irdma/x722").unwrap();
    assert_eq!(family.device_inline_bytes_max, 101);
    assert_eq!(device.device_inline_bytes_max, 48);
    assert_eq!(
        device.read_depth_max, 8,
        "what the device leaves alone is the family's"
    );
    assert_eq!(device.reap_batch, Profile::default().reap_batch);
}

#[test]
fn an_unknown_name_lists_the_names_that_exist() {
    for name in ["mlx6", "irdma/e9000", "", "/", "shm/"] {
        let error = Layers::named(name).unwrap_err();
        assert!(
            matches!(error, Error::UnknownProfile { .. }),
            "{name:?}: {error}"
        );
        let text = error.to_string();
        assert!(text.contains("shm") && text.contains("mlx5"), "{text}");
    }
}

#[test]
fn each_layer_wins_over_the_ones_below_it_and_is_remembered() {
    let folder = Folder::new("layers");
    let file = folder.write(
        "layers.toml",
        "base = \"irdma/x722\"\n[settings]\nreap_batch = 16\ncredits_per_connection = 8\n",
    );
    let loaded = Layers::choose(&file)
        .unwrap()
        .overrides(&settings(&["credits_per_connection=4"]))
        .build()
        .unwrap();
    assert_eq!(loaded.name, file);
    assert_eq!(loaded.profile.read_depth_max, 8);
    assert_eq!(loaded.profile.device_inline_bytes_max, 48);
    assert_eq!(loaded.profile.reap_batch, 16);
    assert_eq!(loaded.profile.credits_per_connection, 4);

    assert_eq!(loaded.origin("connections_max"), Origin::Defaults);
    assert_eq!(loaded.origin("read_depth_max"), Origin::Family("irdma"));
    let device = Origin::Device {
        family: "irdma",
        device: "x722".to_owned(),
    };
    assert_eq!(loaded.origin("device_inline_bytes_max"), device);
    assert_eq!(loaded.origin("reap_batch"), Origin::File(file.into()));
    assert_eq!(loaded.origin("credits_per_connection"), Origin::CommandLine);
}

#[test]
fn a_file_without_a_base_lies_on_the_defaults() {
    let folder = Folder::new("plain");
    let file = folder.write("plain.toml", "[settings]\nidle = \"park\"\n");
    let parking = Profile {
        idle: Idle::Park,
        ..Profile::default()
    };
    assert_eq!(Profile::load(&file).unwrap(), parking);
}

#[test]
fn files_that_cannot_be_used_say_why_and_which() {
    #[rustfmt::skip]
    let cases = [
        ("unknown.toml", "[settings]\nreap_bach = 8\n", "reap_bach"),
        ("kind.toml", "[settings]\nreap_batch = \"many\"\n", "reap_batch"),
        ("negative.toml", "[settings]\nreap_batch = -1\n", "reap_batch"),
        ("word.toml", "[settings]\nhugepages = \"maybe\"\n", "maybe"),
        ("section.toml", "[seting]\nreap_batch = 8\n", "seting"),
        ("top.toml", "reap_batch = 8\n", "reap_batch"),
        ("syntax.toml", "[settings\n", "line 1"),
        ("base.toml", "base = \"mlx6\"\n", "mlx6"),
        ("device.toml", "[device.x]\nreap_batch = 8\n", "device"),
        ("range.toml", "[settings]\nreap_batch = 65\n", "reap_batch = 65 (file "),
    ];
    let folder = Folder::new("unusable");
    for (name, text, expected) in cases {
        let file = folder.write(name, text);
        let text = chain(&Profile::load(&file).unwrap_err());
        assert!(text.contains(expected), "{name}: {text}");
        let has_path = name == "base.toml" || text.contains(&file);
        assert!(has_path, "{name}: no path in {text}");
    }
    let error = Profile::load("/nonexistent/profile.toml").unwrap_err();
    assert!(matches!(error, Error::Read { .. }));
    error.check_words(&["/nonexistent/profile.toml"]);
}

#[test]
fn assignments_take_numbers_and_words_with_or_without_quotes() {
    let settings = settings(&[
        "reap_batch = 4",
        "copy_bytes_per_poll=0x10000",
        "message_bytes_max=2_097_152",
        "hugepages=never",
        "idle=\"pause\"",
        "reap_batch=5",
    ]);
    let expected = Settings {
        reap_batch: Some(5),
        copy_bytes_per_poll: Some(65_536),
        message_bytes_max: Some(2 * 1024 * 1024),
        hugepages: Some(Hugepages::Never),
        idle: Some(Idle::Pause),
        ..Settings::default()
    };
    assert_eq!(settings, expected);
}

#[test]
fn a_bad_assignment_is_refused_and_changes_nothing() {
    let bad = [
        "reap_batch",
        "=8",
        "reap_bach=8",
        "reap_batch=",
        "reap_batch=-1",
        "reap_batch=4294967296",
        "reap_batch=many",
        "reap_batch=8\nidle=\"park\"",
        "idle=sleep",
        "idle=3",
        "idle=park\"\nreap_batch=\"3",
    ];
    for text in bad {
        let mut settings = Settings::default();
        let error = settings.assign(text).unwrap_err();
        assert!(
            matches!(error, Error::Assignment { .. }),
            "{text:?}: {error}"
        );
        assert_eq!(settings, Settings::default(), "{text:?}");
    }
}

#[test]
fn a_profile_reads_back_from_its_own_text() {
    let profile = Profile::by_name("irdma/x722").unwrap();
    let folder = Folder::new("again");
    let file = folder.write("again.toml", format!("[settings]\n{}", profile.to_toml()));
    assert_eq!(Profile::load(&file).unwrap(), profile);
}

/// Every knob at both ends of its range, and one beyond each; the relations are kept out of the way by moving the other
/// knob with it.
#[test]
fn ranges_hold_at_their_ends_and_not_beyond() {
    let together: &[(&str, &[&str])] = &[
        ("placement_segments", &["receive_scatter_entries_max=17"]),
        ("credits_per_connection", &["calls_outstanding_max=65535"]),
        ("calls_outstanding_max", &["credits_per_connection=1"]),
        ("channel_ring_bytes", &["inline_bytes_max=1984"]),
        (
            "inline_bytes_max",
            &["send_buffer_bytes=1048576", "channel_ring_bytes=16777216"],
        ),
        ("stall_timeout_ms", &["rnr_retry_count=6"]),
    ];
    for &KnobInfo { name, values, .. } in Profile::KNOBS {
        let moved = together.iter().find(|(knob, _)| *knob == name);
        let moved = moved.map_or(&[][..], |(_, others)| others);
        let with = |value: &str| {
            let assignment = format!("{name}={value}");
            build(&[moved, &[assignment.as_str()]].concat())
        };
        let (taken, refused): (Vec<u32>, Vec<u32>) = match values {
            Values::Range(0, most) => (vec![0, most], vec![most + 1]),
            Values::Range(least, most) => (vec![least, most], vec![least - 1, most + 1]),
            Values::Multiples {
                of, least, most, ..
            } => (
                vec![least, least + of, most],
                vec![least - of, least + 1, most + of],
            ),
            Values::PowersOfTwo { least, most, .. } => (
                vec![least, least * 2, most],
                vec![least / 2, least * 3, most * 2],
            ),
            Values::ZeroOrRange { least, most, .. } => {
                (vec![0, least, most], vec![1, least - 1, most + 1])
            }
            Values::OneOf { numbers, .. } => (numbers.to_vec(), vec![0, numbers[0] + 1]),
            Values::Words(words) => {
                for word in words {
                    let set = with(word).unwrap().value_text(name).unwrap();
                    assert_eq!(set, format!("\"{word}\""), "{name}");
                }
                continue;
            }
            other => panic!("{name}: no test of {other:?}"),
        };
        for value in taken.iter().map(u32::to_string) {
            let profile = with(&value).unwrap_or_else(|error| panic!("{name}={value}: {error}"));
            assert_eq!(profile.value_text(name), Some(value), "{name}");
        }
        for value in refused.iter().map(u32::to_string) {
            match with(&value) {
                Err(Error::Range {
                    knob,
                    values: stated,
                }) => {
                    assert_eq!((knob.name, &knob.value), (name, &value));
                    assert_eq!(knob.origin, Origin::CommandLine);
                    assert_eq!(stated, values);
                }
                other => panic!("{name}={value}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_refused_value_gets_the_values_that_are_taken_and_the_reason() {
    for (assignment, said) in [
        (
            "reap_batch=65",
            "reap_batch = 65 (command line) is out of range: use 1 to 64",
        ),
        (
            "receive_buffer_bytes=4097",
            "use 4096 to 1048576, multiple of 64 (buffers start on",
        ),
        (
            "channel_ring_bytes=40000",
            "use 8192 to 16777216, power of two (positions in a ring",
        ),
        (
            "hugepage_bytes=4096",
            "use 2097152 or 1073741824 (hugepages are 2 MiB or 1 GiB large)",
        ),
        (
            "keep_alive_interval_ms=9",
            "use 0, or 10 to 3600000 (a tick must last much longer",
        ),
    ] {
        let error = build(&[assignment]).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

/// On the command line and in a file, where the error names the line too.
#[test]
fn a_mistyped_knob_gets_a_suggestion() {
    let folder = Folder::new("typed");
    for (typed, meant) in [
        ("reap_bach", "reap_batch"),
        ("credits_per_conection", "credits_per_connection"),
        ("max_connections", "the knobs are connections_max, "),
        ("recieve_buffer_bytes", "receive_buffer_bytes"),
        ("connection_max", "connections_max"),
        ("call_timeout", "call_timeout_ms"),
    ] {
        let said = Settings::default().assign(&format!("{typed}=8"));
        let said = said.unwrap_err().to_string();
        assert!(
            said.contains(&format!("no knob is called {typed:?}")),
            "{said}"
        );
        let suggestion = match meant.contains(' ') {
            true => meant.to_owned(),
            false => format!("did you mean {meant}?"),
        };
        assert!(said.contains(&suggestion), "{said}");
        let text = format!("[settings]\nidle = \"park\"\n{typed} = 8\n");
        let file = folder.write("typed.toml", text);
        let said = chain(&Profile::load(&file).unwrap_err());
        assert!(
            said.contains(&suggestion) && said.contains("line 3"),
            "{said}"
        );
    }
}

/// For every relation: the last pair of values that holds, the first that does not, and that the
/// remedy in the message works.
#[test]
fn relations_name_both_knobs_and_a_remedy_that_works() {
    /// Assignments that hold and that fail, two of which the error names, and one that mends it.
    type Case = (&'static str, &'static str, [&'static str; 2], &'static str);
    let cases: [Case; 8] = [
        (
            "message_bytes_max=8192 receive_buffer_bytes=8192",
            "message_bytes_max=8191 receive_buffer_bytes=8192",
            ["message_bytes_max = 8191", "receive_buffer_bytes = 8192"],
            "message_bytes_max=8192",
        ),
        (
            "calls_outstanding_max=32",
            "calls_outstanding_max=31",
            [
                "calls_outstanding_max = 31",
                "credits_per_connection = 32 (built-in default)",
            ],
            "credits_per_connection=31",
        ),
        (
            "send_buffer_bytes=1024",
            "send_buffer_bytes=1024 inline_bytes_max=1025",
            ["inline_bytes_max = 1025", "send_buffer_bytes = 1024"],
            "inline_bytes_max=1024",
        ),
        (
            "channel_ring_bytes=8192 inline_bytes_max=1984",
            "channel_ring_bytes=8192 inline_bytes_max=1985",
            ["inline_bytes_max = 1985", "channel_ring_bytes = 8192"],
            "channel_ring_bytes=16384",
        ),
        (
            "connections_max=65536 credits_per_connection=4096 receives_shared=16580608",
            "connections_max=65536 credits_per_connection=4096 receives_shared=16580609",
            ["connections_max = 65536", "receives_shared = 16580609"],
            "connections_max=65535",
        ),
        (
            "stall_timeout_ms=0 rnr_retry_count=6",
            "stall_timeout_ms=0",
            ["stall_timeout_ms = 0", "rnr_retry_count = 7"],
            "stall_timeout_ms=100",
        ),
        (
            "placement_segments=2 placement_spares=2 receive_scatter_entries_max=3",
            "placement_segments=2 placement_spares=1 receive_scatter_entries_max=3",
            ["placement_spares = 1", "placement_segments = 2"],
            "placement_spares=2",
        ),
        (
            "placement_segments=1",
            "placement_segments=2",
            [
                "placement_segments = 2",
                "receive_scatter_entries_max = 2 (built-in default)",
            ],
            "placement_segments=1",
        ),
    ];
    assert_eq!(
        cases.len(),
        Profile::RELATIONS.len(),
        "a relation has no case"
    );
    let build = |assignments: &str| build(&assignments.split(' ').collect::<Vec<_>>());
    for (holds, fails, named, remedy) in cases {
        build(holds).unwrap_or_else(|error| panic!("{holds:?}: {error}"));
        let error = build(fails).unwrap_err();
        assert!(
            matches!(error, Error::Relation { .. }),
            "{fails:?}: {error}"
        );
        let text = error.to_string();
        for knob in named {
            assert!(text.contains(knob), "{knob:?} is not in {text:?}");
        }
        let advice = remedy.replace('=', " to ");
        assert!(
            text.contains(&advice) || text.contains("lower one of the two"),
            "{advice:?} is not in {text:?}"
        );
        let mended = format!("{fails} {remedy}");
        build(&mended).unwrap_or_else(|error| panic!("{mended}: {error}"));
    }
}

#[test]
fn a_profile_that_was_changed_by_hand_is_checked_too() {
    let profile = Profile {
        reap_batch: 0,
        ..Profile::default()
    };
    let error = profile.validate().unwrap_err().to_string();
    error.check_words(&["reap_batch = 0", "use 1 to 64"]);
}

#[test]
fn derived_sums_for_a_small_profile() {
    let profile = build(&[
        "connections_max=3",
        "credits_per_connection=4",
        "send_buffers=5",
        "reassembly_buffers=2",
        "message_bytes_max=5000",
        "receive_buffer_bytes=4096",
        "send_buffer_bytes=2048",
    ])
    .unwrap();
    assert_eq!(profile.receives_per_connection(), 5);
    assert_eq!(profile.receives_posted(), 15);
    assert_eq!(profile.connection_bytes(), 20_480);
    assert_eq!(profile.receive_pool_bytes(), 61_440);
    let many = build(&["connections_max=1000", "credits_per_connection=4"]).unwrap();
    assert_eq!(many.receives_posted(), 3000 + 64 * 2);
    let shared = build(&["connections_max=1000", "receives_shared=7"]).unwrap();
    assert_eq!(shared.receives_posted(), 3007);
    let one = build(&["connections_max=1000", "credits_per_connection=1"]).unwrap();
    assert_eq!(one.receives_posted(), 2000);
    assert_eq!(profile.send_pool_bytes(), (5 + 6) * 2048);
    assert_eq!(profile.registered_bytes(), 61_440 + (5 + 6) * 2048);
    assert_eq!(profile.reassembly_pool_bytes(), 10_000);
    assert_eq!(profile.reassembly_guaranteed_bytes(), 3 * 4 * 5000);
}

/// The largest values that pass the checks do not overflow the sums.
#[test]
fn derived_sums_do_not_overflow() {
    let profile = build(&[
        "connections_max=65536",
        "credits_per_connection=4096",
        "receives_shared=16580608",
        "send_buffers=65536",
        "reassembly_buffers=65536",
        "message_bytes_max=1073741824",
        "receive_buffer_bytes=1048576",
        "send_buffer_bytes=1048576",
    ])
    .unwrap();
    assert_eq!(profile.receives_posted(), 1 << 24);
    let sends = (65_536 + 2 * 1024) << 20;
    assert_eq!(profile.registered_bytes(), (1 << 44) + sends);
    assert_eq!(profile.reassembly_pool_bytes(), 1 << 46);
    assert_eq!(profile.reassembly_guaranteed_bytes(), 1 << 48);
}
