//! The embedded families: what each must say, which devices they are for, and what they limit.

use std::path::Path;

use rpcrdma_testkit::{CheckWords, Folder};
use rpcrdma_tuning::{
    Detected, Device, EnvironmentValue, Error, KnobInfo, Layers, Loaded, Origin, Profile,
    ReceiveQueues, Settings, list,
};

/// What a NIC decides: every family says something of each.
const DEVICE_KNOBS: [&str; 12] = [
    "send_queue_depth_max",
    "read_depth_max",
    "device_inline_bytes_max",
    "send_gather_entries_max",
    "receive_scatter_entries_max",
    "receive_queues",
    "without_windows",
    "ack_timeout_exponent",
    "retry_count",
    "rnr_retry_count",
    "min_rnr_timer_code",
    "type_of_service",
];

fn load(name: &str) -> Loaded {
    with(name, &Settings::default()).unwrap()
}

/// A profile with these settings on top.
fn with(name: &str, settings: &Settings) -> Result<Loaded, Error> {
    Layers::named(name).unwrap().overrides(settings).build()
}

/// The names of all profiles that can be loaded, those of single devices included.
fn names() -> Vec<String> {
    let usable = list().into_iter().filter(|family| family.refused.is_none());
    usable
        .flat_map(|family| {
            let devices = family.devices.into_iter();
            let devices = devices.map(move |device| format!("{}/{}", family.name, device.name));
            std::iter::once(family.name.to_owned()).chain(devices)
        })
        .collect()
}

#[test]
fn every_value_of_every_profile_has_a_source() {
    for name in names() {
        let loaded = load(&name);
        for KnobInfo { name: knob, .. } in Profile::KNOBS {
            let source = loaded.source(knob).unwrap_or_default();
            assert!(source.len() > 8, "{name}: {knob} has no source");
        }
        assert_eq!(loaded.source("no_such_knob"), None);
        assert!(
            loaded.clamps.is_empty(),
            "{name} asks for more than there is: {:?}",
            loaded.clamps
        );
    }
}

#[test]
fn every_family_of_nics_says_something_of_what_a_nic_decides() {
    for name in names().iter().filter(|name| *name != "shm") {
        let loaded = load(name);
        for knob in DEVICE_KNOBS {
            assert_ne!(loaded.origin(knob), Origin::Defaults, "{name}: {knob}");
        }
    }
}

#[test]
fn limits_have_sources() {
    let more = Settings {
        device_inline_bytes_max: Some(4096),
        read_depth_max: Some(255),
        ..Settings::default()
    };
    for name in names().iter().filter(|name| *name != "shm") {
        let loaded = with(name, &more).unwrap();
        for clamp in &loaded.clamps {
            let knob = clamp.asked.name;
            assert!(matches!(loaded.origin(knob), Origin::Limit(_)));
            assert!(loaded.source(knob).is_some(), "{name}: the limit of {knob}");
        }
    }
}

/// The values of the NICs' limits that most is known of.
#[test]
fn families_hold_what_is_published_of_them() {
    for (name, inline, gather, scatter, depth) in [
        ("mlx4", 1024, 30, 31, 16),
        ("mlx5", 988, 30, 31, 16),
        ("mlx5-connectx7", 988, 30, 31, 32),
        ("irdma", 216, 14, 14, 8),
        ("irdma/x722", 48, 3, 3, 8),
        ("bnxt_re", 208, 13, 13, 126),
        ("cxgb4", 280, 17, 4, 32),
        ("erdma", 96, 6, 1, 128),
        ("rxe", 512, 32, 27, 128),
        ("siw", 80, 6, 6, 128),
    ] {
        let most = Settings {
            device_inline_bytes_max: Some(4096),
            send_gather_entries_max: Some(64),
            receive_scatter_entries_max: Some(64),
            read_depth_max: Some(255),
            ..Settings::default()
        };
        let loaded = with(name, &most).unwrap();
        let profile = &loaded.profile;
        assert_eq!(
            (
                profile.device_inline_bytes_max,
                profile.send_gather_entries_max,
                profile.receive_scatter_entries_max,
                profile.read_depth_max
            ),
            (inline, gather, scatter, depth),
            "{name}"
        );
        assert_eq!(loaded.clamps.len(), 4, "{name}: {:?}", loaded.clamps);
    }
}

#[test]
fn knob_beyond_the_family_is_clamped_and_reported() {
    let mut settings = Settings::default();
    settings.assign("read_depth_max=32").unwrap();
    let loaded = with("irdma", &settings).unwrap();
    assert_eq!(loaded.profile.read_depth_max, 8);
    assert_eq!(
        loaded.origin("read_depth_max"),
        Origin::Limit("irdma".to_owned())
    );
    let told: Vec<String> = loaded.clamps.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        ["read_depth_max = 32 (command line) is beyond what irdma can do: 8 is used"]
    );

    settings.assign("receive_queues=shared").unwrap();
    let loaded = with("erdma", &settings).unwrap();
    assert_eq!(loaded.profile.receive_queues, ReceiveQueues::Own);
    assert_eq!(
        loaded.clamps.len(),
        1,
        "32 reads are within 128: {:?}",
        loaded.clamps
    );
}

#[test]
fn a_device_at_hand_knows_better_than_what_is_published() {
    let settings = Settings {
        read_depth_max: Some(64),
        ..Settings::default()
    };
    let with = |limit| {
        let device = Settings {
            read_depth_max: Some(limit),
            ..Settings::default()
        };
        let layers = Layers::named("irdma").unwrap().limited(&device, "irdma0");
        layers.overrides(&settings).build().unwrap()
    };
    assert_eq!(with(4).profile.read_depth_max, 4);
    assert_eq!(with(4).clamps[0].of, "irdma0");
    assert_eq!(with(48).profile.read_depth_max, 48);
    assert_eq!(with(100).profile.read_depth_max, 64);
    assert!(with(100).clamps.is_empty());
}

/// What the family alone asks for is cut without a report, and what somebody asks for with one.
#[test]
fn a_profile_that_nobody_chose_fits_the_device() {
    let device = Settings {
        read_depth_max: Some(4),
        receive_queues: Some(ReceiveQueues::Own),
        ..Settings::default()
    };
    let limited = Layers::named("irdma").unwrap().limited(&device, "irdma0");
    let fitted = limited.fitted();
    let loaded = fitted.clone().build().unwrap();
    assert_eq!(loaded.profile.read_depth_max, 4);
    assert_eq!(loaded.profile.receive_queues, ReceiveQueues::Own);
    assert_eq!(
        loaded.origin("receive_queues"),
        Origin::Limit("irdma0".to_owned())
    );
    assert_eq!(loaded.clamps, []);
    let more = Settings {
        read_depth_max: Some(8),
        ..Settings::default()
    };
    let loaded = fitted.overrides(&more).build().unwrap();
    assert_eq!(loaded.profile.read_depth_max, 4);
    assert_eq!(loaded.clamps.len(), 1, "{:?}", loaded.clamps);
}

/// A placement buffer that no scatter list of the device can hold is an error, not something to cut.
#[test]
fn placement_beyond_the_scatter_list_of_the_device_is_refused() {
    let mut settings = Settings::default();
    for assignment in ["placement_segments=4", "receive_scatter_entries_max=5"] {
        settings.assign(assignment).unwrap();
    }
    with("mlx5", &settings).unwrap();
    let error = with("qedr", &settings).unwrap_err();
    assert!(matches!(error, Error::Relation { .. }), "{error}");
    let text = error.to_string();
    text.check_words(&[
        "placement_segments = 4 (command line)",
        "receive_scatter_entries_max = 4 (limit of qedr)",
        "set placement_segments to 3 or less",
    ]);
    settings.assign("placement_segments=3").unwrap();
    with("qedr", &settings).unwrap();
}

#[test]
fn a_value_out_of_its_range_is_refused_whatever_the_limit() {
    let mut settings = Settings::default();
    settings.assign("read_depth_max=256").unwrap();
    let error = with("irdma", &settings).unwrap_err();
    assert!(matches!(error, Error::Range { .. }), "{error}");
}

#[test]
fn a_family_that_cannot_be_used_says_why() {
    let error = Layers::named("efa").unwrap_err();
    assert!(matches!(error, Error::Refused { .. }));
    let text = error.to_string();
    text.check_words(&["efa", "reliable connections"]);
}

#[test]
fn the_environment_of_devices_is_known() {
    for name in ["mlx5", "mlx5-connectx7"] {
        let rules = load(name).environment;
        let rule = |wanted: &str| {
            let rule = rules.iter().find(|rule| rule.name == wanted);
            rule.unwrap_or_else(|| panic!("{name}: {wanted}")).clone()
        };
        assert_eq!(
            rule("MLX5_SINGLE_THREADED").value,
            EnvironmentValue::Avoid("1".to_owned())
        );
        let doorbells = rule("MLX5_TOTAL_UUARS");
        assert!(
            doorbells
                .complaint(None)
                .unwrap()
                .1
                .starts_with("export MLX5_TOTAL_UUARS=")
        );
    }
    let combining = &load("cxgb4").environment[0];
    assert_eq!(combining.complaint(None), None, "it is on by default");
    let (complaint, command) = combining.complaint(Some("0")).unwrap();
    assert!(complaint.starts_with("T5_ENABLE_WC is 0: write combining"));
    assert_eq!(command, "unset T5_ENABLE_WC");
    assert!(load("shm").environment.is_empty());
    for rule in names().iter().flat_map(|name| load(name).environment) {
        assert!(rule.why.len() > 8 && rule.source.len() > 8, "{rule}");
    }
}

/// Adds a device to the `/sys` of a machine.
fn add_device(machine: &Folder, name: &str, driver: Option<&str>, part: Option<(&str, &str)>) {
    let function = format!("sys/class/infiniband/{name}/device");
    std::fs::create_dir_all(machine.join(&function)).unwrap();
    if let Some(driver) = driver {
        let target = Path::new("../../../../bus/pci/drivers").join(driver);
        std::os::unix::fs::symlink(target, machine.join(&function).join("driver")).unwrap();
    }
    if let Some((vendor, part)) = part {
        machine.write(&format!("{function}/vendor"), format!("0x{vendor}\n"));
        machine.write(&format!("{function}/device"), format!("0x{part}\n"));
    }
}

#[test]
fn devices_are_distinguished_by_driver_and_part_and_software_ones_by_name() {
    let machine = Folder::new("families");
    #[rustfmt::skip]
    let cases = [
        ("ibp65s0", Some("mlx4_core"), Some(("15b3", "1007")), "mlx4"),
        ("rocep1s0f0", Some("mlx5_core"), Some(("15b3", "1017")), "mlx5"),
        ("mlx5_vf", Some("mlx5_core"), Some(("15b3", "101e")), "mlx5"),
        ("mlx5_bf2", Some("mlx5_core"), Some(("15b3", "a2d6")), "mlx5"),
        ("mlx5_7", Some("mlx5_core"), Some(("15b3", "1021")), "mlx5-connectx7"),
        ("mlx5_8", Some("mlx5_core"), Some(("15b3", "1023")), "mlx5-connectx7"),
        ("mlx5_bf3", Some("mlx5_core"), Some(("15b3", "a2dc")), "mlx5-connectx7"),
        ("mlx5_bare", Some("mlx5_core"), None, "mlx5"),
        ("rocep4s0", Some("ice"), Some(("8086", "1592")), "irdma"),
        ("iwp5s0", Some("i40e"), Some(("8086", "37d2")), "irdma/x722"),
        ("irdma3", Some("idpf"), Some(("8086", "1452")), "irdma"),
        ("bnxt_re0", Some("bnxt_en"), Some(("14e4", "1750")), "bnxt_re"),
        ("cxgb4_0", Some("cxgb4"), Some(("1425", "6007")), "cxgb4"),
        ("qedr0", Some("qede"), Some(("1077", "8070")), "qedr"),
        ("hns_0", Some("hns3"), Some(("19e5", "a222")), "hns"),
        ("ionic_0", Some("ionic"), Some(("1dd8", "1002")), "ionic"),
        ("mana_0", Some("mana"), Some(("1414", "00ba")), "mana"),
        ("erdma_0", Some("erdma"), Some(("1ded", "107f")), "erdma"),
        ("rxe0", None, None, "rxe"),
        ("rxe_on_a_nic", Some("mlx5_core"), Some(("15b3", "1017")), "rxe"),
        ("siw_eth0", Some("virtio-pci"), Some(("1af4", "1000")), "siw"),
    ];
    for (name, driver, part, _) in cases {
        add_device(&machine, name, driver, part);
    }
    for (name, _, _, profile) in cases {
        let device = Device::named(&machine, name);
        assert_eq!(
            device.detect(),
            Detected::Profile(profile.to_owned()),
            "{device:?}"
        );
        Layers::named(profile).unwrap();
    }
    let found = Device::all(&machine);
    assert_eq!(found.len(), cases.len());
    assert!(found.is_sorted_by_key(|device| device.name.clone()));
}

#[test]
fn a_device_that_nobody_knows_has_no_profile_and_efa_is_refused() {
    let machine = Folder::new("others");
    add_device(&machine, "new_0", Some("new"), Some(("1dd8", "9999")));
    add_device(&machine, "bare", None, None);
    add_device(&machine, "odd", Some("mlx6_core"), None);
    add_device(&machine, "rdmap0s6", Some("efa"), Some(("1d0f", "efa1")));
    for name in ["new_0", "bare", "odd", "not_there"] {
        assert_eq!(
            Device::named(&machine, name).detect(),
            Detected::Unknown,
            "{name}"
        );
    }
    let device = Device::named(&machine, "rdmap0s6");
    assert_eq!(device.part.as_deref(), Some("1d0f:efa1"));
    match device.detect() {
        Detected::Refused { family, reason } => {
            assert_eq!(family, "efa");
            assert!(reason.contains("reliable"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    assert!(Device::all(Path::new("/nonexistent")).is_empty());
}

#[test]
fn a_users_file_may_limit_and_rule_but_not_match() {
    let machine = Folder::new("file");
    let file = machine.join("mine.toml");
    let write = |text: &str| machine.write("mine.toml", text);
    write(
        "base = \"irdma\"\n[settings]\nread_depth_max = { value = 24, source = \"tried\" }\n\
         [limits]\nread_depth_max = 20\n\
         [[environment]]\nname = \"X\"\nset = \"1\"\nwhy = \"because\"\nsource = \"tried\"\n",
    );
    let loaded = Layers::file(&file).unwrap().build().unwrap();
    assert_eq!(
        loaded.profile.read_depth_max, 20,
        "the file knows of more than irdma's 8"
    );
    assert_eq!(loaded.clamps[0].of, file.display().to_string());
    assert_eq!(loaded.environment.len(), 1);

    for (text, word) in [
        ("[match]\ndrivers = [\"x\"]\n", "[match]"),
        ("refused = \"no\"\n", "refused"),
        (
            "[device.x]\ndescription = \"x\"\nparts = []\n",
            "device sections",
        ),
    ] {
        write(text);
        let error = Layers::file(&file).unwrap_err();
        assert!(matches!(error, Error::Misplaced { .. }), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    write("[[environment]]\nname = \"X\"\nwhy = \"because\"\nsource = \"tried\"\n");
    assert!(matches!(
        Layers::file(&file).unwrap_err(),
        Error::Parse { .. }
    ));
}
