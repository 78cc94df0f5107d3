//! Every knob of a profile changes what runs: the sizes of a node, or what its fabric is made with.

use rpcrdma_tuning::{Layers, Profile, Settings};

use crate::{NodeConfig, ShmProvider};

use crate::VerbsProvider;

/// Where a knob arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// The sizes of the node and its cores.
    Node,
    /// The shm fabric.
    Shm,
    /// An RDMA device.
    Device,
    /// The shm fabric and RDMA devices.
    Fabrics,
    /// The cores, and RDMA devices.
    CoresAndDevice,
    /// The application, which passes it on with a request: there is nothing in the node.
    Application,
}

/// Each knob, a value other than in [`BASE`], and where that makes a difference.
const KNOBS: &[(&str, &str, At)] = &[
    ("connections_max", "65", At::Node),
    ("peers_connections_max", "65", At::Node),
    ("receive_buffer_bytes", "8192", At::Node),
    ("placement_segments", "2", At::Node),
    ("placement_segment_bytes", "8192", At::Node),
    ("inline_segment_bytes", "2048", At::Node),
    ("placement_spares", "65", At::Node),
    ("inline_item_bytes_max", "511", At::Node),
    ("send_placement_bytes_max", "65535", At::Node),
    ("continued_bytes_max", "16383", At::Node),
    ("send_buffer_bytes", "8192", At::Node),
    ("message_bytes_max", "2000000", At::Node),
    ("credits_per_connection", "31", At::Node),
    ("receives_shared", "7", At::Node),
    ("reassembly_buffers", "33", At::Node),
    ("calls_outstanding_max", "4095", At::Node),
    ("deferred_replies_max", "1023", At::Node),
    ("send_buffers", "255", At::Node),
    ("send_queue_depth_max", "128", At::Device),
    ("mailbox_depth", "255", At::Node),
    ("read_depth_max", "15", At::CoresAndDevice),
    ("bulk_buffers", "9", At::Node),
    ("bulk_buffer_bytes", "8192", At::Node),
    ("bulk_calls_max", "63", At::Node),
    ("rdma_segments_max", "63", At::Node),
    ("reap_batch", "4", At::Node),
    ("copy_bytes_per_poll", "32768", At::Shm),
    ("channel_ring_bytes", "65536", At::Shm),
    ("hot_channels_max", "9", At::Shm),
    ("cold_sweep_polls", "17", At::Shm),
    ("inline_bytes_max", "512", At::Fabrics),
    ("peer_arena_mib_max", "4095", At::Shm),
    ("peer_memory_mib_max", "65535", At::Shm),
    ("device_inline_bytes_max", "96", At::Device),
    ("send_gather_entries_max", "5", At::Device),
    ("receive_scatter_entries_max", "4", At::Device),
    ("receive_queues", "own", At::Fabrics),
    ("without_windows", "register", At::Device),
    ("relaxed_ordering", "refuse", At::Device),
    ("thread_domains", "prefer", At::Device),
    ("ack_timeout_exponent", "15", At::Device),
    ("retry_count", "6", At::Device),
    ("rnr_retry_count", "6", At::Device),
    ("min_rnr_timer_code", "13", At::Device),
    ("type_of_service", "104", At::Device),
    ("hugepages", "require", At::Node),
    ("hugepage_bytes", "1073741824", At::Node),
    ("idle", "spin", At::Node),
    ("idle_park_after_us", "101", At::Node),
    ("idle_awake_percent", "99", At::Node),
    ("connect_timeout_ms", "60000", At::Fabrics),
    ("reconnects_per_second_max", "101", At::Node),
    ("call_timeout_ms", "29999", At::Node),
    ("keep_alive_interval_ms", "999", At::Node),
    ("keep_alive_silent_ticks_max", "11", At::Node),
    ("stall_timeout_ms", "59999", At::Node),
    ("path_suspect_ms", "199", At::Node),
    ("path_probe_ms", "199", At::Node),
    ("drain_timeout_ms", "4999", At::Application),
];

/// A profile in which every knob has something to do.
const BASE: &[&str] = &[
    "idle=park",
    "placement_segments=1",
    "receive_scatter_entries_max=3",
    "bulk_buffers=8",
];

fn profile(assignments: &[&str]) -> Profile {
    let mut settings = Settings::default();
    for assignment in assignments {
        settings.assign(assignment).unwrap();
    }
    let layers = Layers::defaults().overrides(&settings);
    layers.build().unwrap().profile
}

/// What runs with a profile: the node, the shm fabric, and an RDMA device.
fn made(profile: &Profile) -> [String; 3] {
    let device = format!("{:?}", VerbsProvider::from_profile(profile, None));
    [
        format!("{:?}", NodeConfig::from_profile(profile, vec![None])),
        format!("{:?}", ShmProvider::from_profile(profile)),
        device,
    ]
}

#[test]
fn every_knob_is_in_the_table() {
    let named: Vec<&str> = KNOBS.iter().map(|&(knob, _, _)| knob).collect();
    let all: Vec<&str> = Profile::KNOBS.iter().map(|knob| knob.name).collect();
    assert_eq!(named, all);
}

// The stage `verbs` of ./check chooses it by that word, and sees the device.
#[test]
fn every_knob_changes_what_runs_on_shm_and_on_verbs() {
    let base = made(&profile(BASE));
    let has_devices = !base[2].is_empty();
    for &(knob, value, at) in KNOBS {
        // With placement the size of a receive buffer is that of its segments.
        let (base, under) = if knob == "receive_buffer_bytes" {
            (made(&profile(&[])), &[][..])
        } else {
            (base.clone(), BASE)
        };
        let assignment = format!("{knob}={value}");
        let changed = made(&profile(&[under, &[assignment.as_str()]].concat()));
        let differ = |place: usize| base[place] != changed[place];
        let expected = match at {
            At::Node => [true, false, false],
            At::Shm => [false, true, false],
            At::Device => [false, false, has_devices],
            At::Fabrics => [false, true, has_devices],
            At::CoresAndDevice => [true, false, has_devices],
            At::Application => [false, false, false],
        };
        assert_eq!(
            [differ(0), differ(1), differ(2)],
            expected,
            "{assignment}: {at:?}"
        );
    }
}
