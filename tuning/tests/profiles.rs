//! Layers, assignments and relations of the tuning profiles, by their public interface.

use std::path::PathBuf;

use rpcrdma_tuning::{Error, Hugepages, Idle, Layers, Origin, Profile, Settings, list};

/// A file in the temporary directory that goes away with the test.
struct TemporaryFile(PathBuf);

impl TemporaryFile {
    fn new(name: &str, text: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("rpcrdma-tuning-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

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
    let mut on_disk: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            entry
                .unwrap()
                .path()
                .file_stem()
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        })
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
    let file = TemporaryFile::new(
        "layers.toml",
        "base = \"irdma/x722\"\n[settings]\nreap_batch = 16\ncredits_per_connection = 8\n",
    );
    let loaded = Layers::choose(file.0.to_str().unwrap())
        .unwrap()
        .overrides(&settings(&["credits_per_connection=4"]))
        .build()
        .unwrap();
    assert_eq!(loaded.name, file.0.display().to_string());
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
    assert_eq!(loaded.origin("reap_batch"), Origin::File(file.0.clone()));
    assert_eq!(loaded.origin("credits_per_connection"), Origin::CommandLine);
}

#[test]
fn a_file_without_a_base_lies_on_the_defaults() {
    let file = TemporaryFile::new("plain.toml", "[settings]\nidle = \"park\"\n");
    let profile = Profile::load(&file.0).unwrap();
    assert_eq!(
        profile,
        Profile {
            idle: Idle::Park,
            ..Profile::default()
        }
    );
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
    for (name, text, expected) in cases {
        let file = TemporaryFile::new(name, text);
        let text = chain(&Profile::load(&file.0).unwrap_err());
        assert!(text.contains(expected), "{name}: {text}");
        let path = file.0.to_str().unwrap();
        assert!(
            name == "base.toml" || text.contains(path),
            "{name}: no path in {text}"
        );
    }
    let error = Profile::load("/nonexistent/profile.toml").unwrap_err();
    assert!(matches!(error, Error::Read { .. }));
    assert!(
        error.to_string().contains("/nonexistent/profile.toml"),
        "{error}"
    );
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
    let file = TemporaryFile::new("again.toml", &format!("[settings]\n{}", profile.to_toml()));
    assert_eq!(Profile::load(&file.0).unwrap(), profile);
}

/// Every numeric knob at both ends of its range, and one beyond each; the relations are kept out of
/// the way by moving the other knob with it.
#[test]
fn ranges_hold_at_their_ends_and_not_beyond() {
    #[rustfmt::skip]
    let together: &[(&str, u64, u64, &[&str])] = &[
        ("connections_max", 1, 65_536, &[]),
        ("peers_connections_max", 1, 1_048_576, &[]),
        ("receive_buffer_bytes", 4096, 1_048_576, &[]),
        ("placement_segments", 0, 16, &["receive_scatter_entries_max=17"]),
        ("placement_segment_bytes", 4096, 1_048_576, &[]),
        ("inline_segment_bytes", 256, 65_536, &[]),
        ("placement_spares", 1, 65_536, &[]),
        ("inline_item_bytes_max", 0, 1 << 20, &[]),
        ("send_placement_bytes_max", 0, 16 << 20, &[]),
        ("continued_bytes_max", 0, 16 << 20, &[]),
        ("send_buffer_bytes", 1024, 1_048_576, &[]),
        ("message_bytes_max", 4096, 1 << 30, &[]),
        ("credits_per_connection", 1, 65_535, &["calls_outstanding_max=65535"]),
        ("receives_shared", 0, 1 << 24, &[]),
        ("reassembly_buffers", 1, 65_536, &[]),
        ("calls_outstanding_max", 1, 65_536, &["credits_per_connection=1"]),
        ("deferred_replies_max", 1, 65_536, &[]),
        ("send_buffers", 1, 65_536, &[]),
        ("send_queue_depth_max", 16, 32_768, &[]),
        ("mailbox_depth", 1, 65_536, &[]),
        ("read_depth_max", 1, 255, &[]),
        ("bulk_buffers", 0, 65_536, &[]),
        ("bulk_buffer_bytes", 4096, 16 << 20, &[]),
        ("bulk_calls_max", 1, 65_535, &[]),
        ("rdma_segments_max", 1, 160, &[]),
        ("reap_batch", 1, 64, &[]),
        ("copy_bytes_per_poll", 4096, 16 << 20, &[]),
        ("channel_ring_bytes", 8192, 16 << 20, &["inline_bytes_max=1984"]),
        ("hot_channels_max", 1, 64, &[]),
        ("cold_sweep_polls", 1, 65_536, &[]),
        ("inline_bytes_max", 0, 1 << 20, &["send_buffer_bytes=1048576", "channel_ring_bytes=16777216"]),
        ("peer_arena_mib_max", 1, 1 << 20, &[]),
        ("peer_memory_mib_max", 1, 1 << 20, &[]),
        ("device_inline_bytes_max", 0, 4096, &[]),
        ("send_gather_entries_max", 1, 64, &[]),
        ("receive_scatter_entries_max", 1, 64, &[]),
        ("ack_timeout_exponent", 1, 31, &[]),
        ("retry_count", 0, 7, &[]),
        ("rnr_retry_count", 0, 7, &[]),
        ("min_rnr_timer_code", 0, 31, &[]),
        ("type_of_service", 0, 255, &[]),
        ("idle_park_after_us", 1, 10_000_000, &[]),
        ("connect_timeout_ms", 1, 3_600_000, &[]),
        ("reconnects_per_second_max", 1, 65_536, &[]),
        ("call_timeout_ms", 1, 3_600_000, &[]),
        ("keep_alive_interval_ms", 0, 3_600_000, &[]),
        ("keep_alive_silent_ticks_max", 3, 255, &[]),
        ("stall_timeout_ms", 0, 3_600_000, &["rnr_retry_count=6"]),
        ("drain_timeout_ms", 1, 3_600_000, &[]),
    ];
    let choices = [
        "hugepages",
        "hugepage_bytes",
        "idle",
        "receive_queues",
        "without_windows",
    ];
    assert_eq!(
        together.len() + choices.len(),
        Profile::KNOBS.len(),
        "a knob has no range test"
    );

    for &(name, least, most, others) in together {
        let with = |value: u64| {
            let own = format!("{name}={value}");
            build(&[others, &[own.as_str()]].concat())
        };
        with(least).unwrap_or_else(|error| panic!("{name} at its least: {error}"));
        with(most).unwrap_or_else(|error| panic!("{name} at its most: {error}"));
        for beyond in [least.checked_sub(1), Some(most + 1)].into_iter().flatten() {
            match with(beyond) {
                Err(Error::Range {
                    knob,
                    least: stated_least,
                    most: stated_most,
                }) => {
                    assert_eq!(
                        (knob.name, knob.value.as_str()),
                        (name, beyond.to_string().as_str())
                    );
                    assert_eq!(knob.origin, Origin::CommandLine);
                    assert_eq!((stated_least, stated_most), (least, most));
                }
                other => panic!("{name} = {beyond}: {other:?}"),
            }
        }
    }
}

#[test]
fn forms_are_checked() {
    let cases = [
        "receive_buffer_bytes=4097",
        "send_buffer_bytes=4100",
        "channel_ring_bytes=40000",
        "hugepage_bytes=4096",
        "keep_alive_interval_ms=9",
        "stall_timeout_ms=99",
    ];
    for case in cases {
        let error = build(&[case]).unwrap_err();
        assert!(matches!(error, Error::Form { .. }), "{case}: {error}");
        assert!(
            error.to_string().contains(case.split('=').next().unwrap()),
            "{error}"
        );
    }
    build(&["hugepage_bytes=1073741824"]).unwrap();
    build(&["keep_alive_interval_ms=10"]).unwrap();
    build(&["stall_timeout_ms=100"]).unwrap();
}

/// For every relation: the last pair of values that holds, the first that does not, and that the
/// remedy in the message works.
#[test]
fn relations_name_both_knobs_and_a_remedy_that_works() {
    struct Case {
        holds: &'static [&'static str],
        fails: &'static [&'static str],
        named: [&'static str; 2],
        remedy: &'static str,
    }
    let case = |holds, fails, named, remedy| Case {
        holds,
        fails,
        named,
        remedy,
    };
    let cases = [
        case(
            &["message_bytes_max=8192", "receive_buffer_bytes=8192"],
            &["message_bytes_max=8191", "receive_buffer_bytes=8192"],
            ["message_bytes_max = 8191", "receive_buffer_bytes = 8192"],
            "message_bytes_max=8192",
        ),
        case(
            &["calls_outstanding_max=32"],
            &["calls_outstanding_max=31"],
            [
                "calls_outstanding_max = 31",
                "credits_per_connection = 32 (built-in default)",
            ],
            "credits_per_connection=31",
        ),
        case(
            &["send_buffer_bytes=1024"],
            &["send_buffer_bytes=1024", "inline_bytes_max=1025"],
            ["inline_bytes_max = 1025", "send_buffer_bytes = 1024"],
            "inline_bytes_max=1024",
        ),
        case(
            &["channel_ring_bytes=8192", "inline_bytes_max=1984"],
            &["channel_ring_bytes=8192", "inline_bytes_max=1985"],
            ["inline_bytes_max = 1985", "channel_ring_bytes = 8192"],
            "channel_ring_bytes=16384",
        ),
        case(
            &[
                "connections_max=65536",
                "credits_per_connection=4096",
                "receives_shared=16580608",
            ],
            &[
                "connections_max=65536",
                "credits_per_connection=4096",
                "receives_shared=16580609",
            ],
            ["connections_max = 65536", "receives_shared = 16580609"],
            "connections_max=65535",
        ),
        case(
            &["stall_timeout_ms=0", "rnr_retry_count=6"],
            &["stall_timeout_ms=0"],
            ["stall_timeout_ms = 0", "rnr_retry_count = 7"],
            "stall_timeout_ms=100",
        ),
    ];
    for Case {
        holds,
        fails,
        named,
        remedy,
    } in cases
    {
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
        build(&[fails, &[remedy]].concat())
            .unwrap_or_else(|error| panic!("{fails:?} with {remedy}: {error}"));
    }
}

#[test]
fn a_profile_that_was_changed_by_hand_is_checked_too() {
    let profile = Profile {
        reap_batch: 0,
        ..Profile::default()
    };
    let error = profile.validate().unwrap_err().to_string();
    assert!(
        error.contains("reap_batch = 0") && error.contains("from 1 to 64"),
        "{error}"
    );
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
