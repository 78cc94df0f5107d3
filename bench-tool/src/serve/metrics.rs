//! The metrics of a server: the counters and levels of its cores, with Prometheus names and labels.

use rpcrdma_control::{CoreSnapshot, FaultPlan, NodeSnapshot};
use rpcrdma_engine::LevelSnapshot;
use rpcrdma_fabric::interface::DeviceLevels;

use crate::metrics::build_info;
use crate::metrics::exposition::{Kind, Page, one};

/// The labels of a sample.
type Labels = &'static [(&'static str, &'static str)];

/// A family of per-core counters: name, help text, and the engine counters that are its samples, each with the labels
/// that distinguish it.
type Family = (
    &'static str,
    &'static str,
    &'static [(&'static str, Labels)],
);

const RECEIVED_V1: Labels = &[("version", "1"), ("direction", "received")];
const SENT_V1: Labels = &[("version", "1"), ("direction", "sent")];
const RECEIVED_V2: Labels = &[("version", "2"), ("direction", "received")];
const SENT_V2: Labels = &[("version", "2"), ("direction", "sent")];

/// The families of counters. [`OTHER_EVENTS`] contains the counters of no family.
const FAMILIES: &[Family] = &[
    (
        "rpcrdma_calls_total",
        "Calls of clients that were handed to the service.",
        &[
            ("calls_received_version_1", &[("version", "1")]),
            ("calls_received_version_2", &[("version", "2")]),
        ],
    ),
    (
        "rpcrdma_replies_total",
        "Replies sent, RPC errors included.",
        &[("replies_sent", &[])],
    ),
    (
        "rpcrdma_rpc_errors_total",
        "Calls answered with an RPC error.",
        &[("rpc_errors_sent", &[])],
    ),
    (
        "rpcrdma_deferred_calls_total",
        "Calls that the service answered later than in the poll that found them.",
        &[("deferred", &[])],
    ),
    (
        "rpcrdma_messages_total",
        "Messages by the version of their connection, credit grants apart; counted some times a second.",
        &[
            ("messages_received_version_1", RECEIVED_V1),
            ("messages_sent_version_1", SENT_V1),
            ("messages_received_version_2", RECEIVED_V2),
            ("messages_sent_version_2", SENT_V2),
        ],
    ),
    (
        "rpcrdma_message_bytes_total",
        "Bytes of messages, with what Sends place.",
        &[
            ("message_bytes_received_version_1", RECEIVED_V1),
            ("message_bytes_sent_version_1", SENT_V1),
            ("message_bytes_received_version_2", RECEIVED_V2),
            ("message_bytes_sent_version_2", SENT_V2),
        ],
    ),
    (
        "rpcrdma_bulk_bytes_total",
        "Bytes of bulk data by how they moved: fetched by RDMA Read, written to clients by RDMA Write, written here \
         by clients, placed here by Sends, or copied.",
        &[
            ("bulk_bytes_in", &[("by", "rdma_read")]),
            ("bulk_bytes_out", &[("by", "rdma_write")]),
            ("bulk_bytes_received", &[("by", "client_write")]),
            ("bulk_bytes_placed", &[("by", "send")]),
            ("bulk_bytes_copied", &[("by", "copy")]),
        ],
    ),
    (
        "rpcrdma_rdma_operations_total",
        "RDMA Reads and Writes posted.",
        &[
            ("rdma_reads", &[("operation", "read")]),
            ("rdma_writes", &[("operation", "write")]),
        ],
    ),
    (
        "rpcrdma_placed_segments_total",
        "Placement hits: segments of bulk data that the service got where Sends had placed them.",
        &[("segments_leased", &[])],
    ),
    (
        "rpcrdma_placement_fallbacks_total",
        "Messages read as a copy because they were longer than the first segment of their Receives, and calls and \
         replies that were sent again with other means.",
        &[
            ("messages_gathered", &[("how", "copied")]),
            ("bulk_calls_retried", &[("how", "call_again")]),
            ("bulk_replies_resent", &[("how", "reply_again")]),
        ],
    ),
    (
        "rpcrdma_waits_total",
        "Times that a message or call began to wait, by what for.",
        &[
            ("awaiting_credit", &[("state", "credit")]),
            ("awaiting_receives", &[("state", "shared_receive")]),
            ("awaiting_send_slot", &[("state", "send_slot")]),
            ("awaiting_send_buffer", &[("state", "send_buffer")]),
            ("awaiting_message_buffer", &[("state", "message_buffer")]),
            (
                "awaiting_placement_segment",
                &[("state", "placement_segment")],
            ),
            ("awaiting_bulk_buffer", &[("state", "bulk_buffer")]),
            ("awaiting_read_depth", &[("state", "read_depth")]),
            ("awaiting_window", &[("state", "window")]),
            ("awaiting_call_slot", &[("state", "call_slot")]),
            ("awaiting_control", &[("state", "control")]),
        ],
    ),
    (
        "rpcrdma_receiver_not_ready_total",
        "Times that a message found no Receive posted, as far as the device tells: on verbs, retries that ran out. \
         Anything but 0 is a fault.",
        &[("receiver_not_ready", &[])],
    ),
    (
        "rpcrdma_windows_bound_total",
        "Memory windows bound.",
        &[("windows_bound", &[])],
    ),
    (
        "rpcrdma_windows_invalidated_total",
        "Memory windows invalidated, by this end or by the client with its message.",
        &[
            ("windows_invalidated_locally", &[("by", "local")]),
            ("windows_invalidated_remotely", &[("by", "remote")]),
        ],
    ),
    (
        "rpcrdma_transport_errors_sent_total",
        "Transport errors sent, by what was wrong with the message of the client.",
        &[
            ("errors_sent_vers", &[("error", "vers")]),
            ("errors_sent_bad_xdr", &[("error", "bad_xdr")]),
            ("errors_sent_inval_htype", &[("error", "inval_htype")]),
            ("errors_sent_inval_flag", &[("error", "inval_flag")]),
            ("errors_sent_read_chunks", &[("error", "read_chunks")]),
            ("errors_sent_write_chunks", &[("error", "write_chunks")]),
            ("errors_sent_segments", &[("error", "segments")]),
            ("errors_sent_write_resource", &[("error", "write_resource")]),
            ("errors_sent_reply_resource", &[("error", "reply_resource")]),
            ("errors_sent_system", &[("error", "system")]),
            ("group_errors_sent", &[("error", "transmission_group")]),
        ],
    ),
    (
        "rpcrdma_transport_errors_received_total",
        "Transport errors received.",
        &[
            ("errors_received", &[("kind", "message")]),
            ("group_errors_received", &[("kind", "transmission_group")]),
        ],
    ),
    (
        "rpcrdma_connections_opened_total",
        "Connections whose queue pair was made.",
        &[("connections_planted", &[])],
    ),
    (
        "rpcrdma_connections_closed_total",
        "Connections that ended, for whatever reason.",
        &[("connections_closed", &[])],
    ),
    (
        "rpcrdma_connections_left_total",
        "Connections that this end closed for what the client did.",
        &[
            ("peers_silent", &[("reason", "silent")]),
            ("peers_stalled", &[("reason", "stalled")]),
            ("protocol_violations", &[("reason", "protocol")]),
            ("messages_unauthenticated", &[("reason", "unauthenticated")]),
        ],
    ),
    ("rpcrdma_polls_total", "Poll iterations.", &[("polls", &[])]),
    (
        "rpcrdma_empty_polls_total",
        "Poll iterations that found nothing to do.",
        &[("empty_polls", &[])],
    ),
    (
        "rpcrdma_parks_total",
        "Times that the core slept.",
        &[("parks", &[])],
    ),
];

/// Counters that are sums over both versions. They are left out, because the families have the parts.
const SUMS: [&str; 3] = [
    "calls_received",
    "message_bytes_received",
    "message_bytes_sent",
];

/// The family of all other engine counters, so that every counter is visible.
const OTHER_EVENTS: &str = "rpcrdma_core_events_total";

/// A per-core level: its labels, and where it is.
type Level = (Labels, fn(&LevelSnapshot) -> u64);

/// The families of levels.
const LEVELS: &[(&str, &str, &[Level])] = &[
    (
        "rpcrdma_connections",
        "Connections that are open, by version; one that has not told its version yet is of version 2.",
        &[
            (&[("version", "1")], |core| core.connections_version_1),
            (&[("version", "2")], |core| core.connections_version_2),
        ],
    ),
    (
        "rpcrdma_connections_without_credit",
        "Connections with messages that wait for a credit of the client.",
        &[(&[], |core| core.connections_without_credit)],
    ),
    (
        "rpcrdma_credits_granted",
        "Credits that clients have: in version 1 those that each reply grants, in version 2 those not used yet.",
        &[
            (&[("version", "1")], |core| core.credits_granted_version_1),
            (&[("version", "2")], |core| core.credits_granted_version_2),
        ],
    ),
    (
        "rpcrdma_credits_available",
        "Credits that clients have granted and this end has not used.",
        &[(&[], |core| core.credits_available)],
    ),
    (
        "rpcrdma_calls_waiting",
        "Calls of clients on the core: deferred by the service, or held in their Receives.",
        &[
            (&[("state", "deferred")], |core| core.calls_deferred),
            (&[("state", "held")], |core| core.calls_held),
        ],
    ),
    (
        "rpcrdma_receives_posted",
        "Receives posted on the shared receive queue; 0 where each connection has a queue of its own.",
        &[(&[], |core| core.receives_posted)],
    ),
    (
        "rpcrdma_pool_free_buffers",
        "Buffers of a pool that are free.",
        &[
            (&[("pool", "send")], |core| core.send_buffers_free),
            (&[("pool", "message")], |core| core.message_buffers_free),
            (&[("pool", "bulk")], |core| core.bulk_buffers_free),
            (&[("pool", "placement")], |core| {
                core.placement_segments_free
            }),
        ],
    ),
    (
        "rpcrdma_pool_buffers",
        "Buffers of a pool.",
        &[
            (&[("pool", "send")], |core| core.send_buffers_total),
            (&[("pool", "message")], |core| core.message_buffers_total),
            (&[("pool", "bulk")], |core| core.bulk_buffers_total),
        ],
    ),
    (
        "rpcrdma_placement_segments_leased",
        "Placement segments that the service keeps.",
        &[(&[], |core| core.placement_segments_leased)],
    ),
    (
        "rpcrdma_windows_open",
        "Memory windows that are bound, or being invalidated.",
        &[(&[], |core| core.windows_open)],
    ),
];

/// The constant properties of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Identity {
    /// The address from `--listen`.
    pub address: String,
    /// `bench` or `nfs3`.
    pub service: &'static str,
    /// `shm`, `verbs` or `tcp`.
    pub fabric: &'static str,
    /// Start of the process, in seconds since 1970.
    pub started_s: f64,
    /// The CPUs of the cores, in the node's order.
    pub processors: Vec<usize>,
    /// The injected faults.
    pub faults: FaultPlan,
}

/// The page of metrics.
#[must_use]
pub(crate) fn page(identity: &Identity, is_ready: bool, node: &NodeSnapshot) -> String {
    let mut page = Page::default();
    build_info(&mut page);
    let of_server: &[(&str, &str)] = &[
        ("address", &identity.address),
        ("service", identity.service),
        ("fabric", identity.fabric),
    ];
    one(
        &mut page,
        "rpcrdma_server_info",
        "What is served; always 1.",
        of_server,
        1.0,
    );
    one(
        &mut page,
        "process_start_time_seconds",
        "When the process began, since 1970.",
        &[],
        identity.started_s,
    );
    one(
        &mut page,
        "rpcrdma_ready",
        "1 while clients are taken, 0 before and during a drain.",
        &[],
        f64::from(u8::from(is_ready)),
    );
    let names: Vec<String> = identity.processors.iter().map(usize::to_string).collect();
    let cores: Vec<_> = names.iter().map(String::as_str).zip(&node.cores).collect();
    if !cores.is_empty() {
        core_pages(&mut page, &cores);
    }
    if !node.control.is_empty() {
        page.family(
            "rpcrdma_control_events_total",
            Kind::Counter,
            "What is counted outside the cores: connection requests, rejections, authentications; connections, calls and \
             other messages by TCP.",
        );
        for (event, count) in &node.control {
            page.sample(&[("event", event)], count);
        }
    }
    if !node.fabric.is_empty() || node.cores.iter().any(|core| !core.fabric.is_empty()) {
        page.family(
            "rpcrdma_fabric_events_total",
            Kind::Counter,
            "What the fabric counted: the manager of connections with the events of devices (no core), and the ports of \
             the cores.",
        );
        for it in &node.fabric {
            page.sample(&[("event", it.name)], it.value);
        }
        for (core, snapshot) in &cores {
            for it in &snapshot.fabric {
                page.sample(&with_core(core, &[("event", it.name)]), it.value);
            }
        }
    }
    device_pages(&mut page, &node.devices);
    if !identity.faults.is_empty() {
        page.family(
            "rpcrdma_faults_injected_total",
            Kind::Counter,
            "Times that a fault of --fault struck.",
        );
        for (fault, times) in identity.faults.injected() {
            page.sample(&[("fault", &fault.to_string())], times);
        }
    }
    page.finish()
}

fn device_pages(page: &mut Page, devices: &[DeviceLevels]) {
    let levels = DeviceLevels::ALL.iter().filter(|_| !devices.is_empty());
    for (name, help, level) in levels {
        page.family(&format!("rpcrdma_device_{name}"), Kind::Gauge, help);
        for device in devices {
            page.sample(&[("device", &device.name)], level(device));
        }
    }
}

fn core_pages(page: &mut Page, cores: &[(&str, &CoreSnapshot)]) {
    for (name, help, counters) in FAMILIES {
        page.family(name, Kind::Counter, help);
        for (core, snapshot) in cores {
            for (counter, labels) in *counters {
                let value = snapshot.counters.iter().find(|entry| entry.0 == *counter);
                page.sample(&with_core(core, labels), value.map_or(0, |entry| entry.1));
            }
        }
    }
    page.family(
        OTHER_EVENTS,
        Kind::Counter,
        "All other counters of the core, by the engine's names.",
    );
    for (core, snapshot) in cores {
        for (event, count) in snapshot
            .counters
            .iter()
            .filter(|entry| !is_in_family(entry.0))
        {
            page.sample(&with_core(core, &[("event", event)]), count);
        }
    }
    for (name, help, levels) in LEVELS {
        page.family(name, Kind::Gauge, help);
        for (core, snapshot) in cores {
            for (labels, level) in *levels {
                page.sample(&with_core(core, labels), level(&snapshot.levels));
            }
        }
    }
    page.family(
        "rpcrdma_busy_seconds_total",
        Kind::Counter,
        "Time of the polls that did something: its rate is the share of the core that is busy.",
    );
    for (core, snapshot) in cores {
        let busy_s = snapshot.poll_times.busy_time.as_secs_f64();
        page.sample(&with_core(core, &[]), busy_s);
    }
    page.family(
        "rpcrdma_reply_seconds",
        Kind::Histogram,
        "Replies by how long their calls were on the core: the time of the poll that found and answered them, or the \
         time from that poll to the one that sent the reply.",
    );
    for (core, snapshot) in cores {
        let times = &snapshot.poll_times;
        let counts = times.replies.iter();
        let counts: Vec<_> = counts
            .map(|(bound, count)| (bound.map(|bound| bound.as_secs_f64()), *count))
            .collect();
        page.histogram(
            &with_core(core, &[]),
            &counts,
            times.reply_time.as_secs_f64(),
        );
    }
}

fn with_core<'a>(core: &'a str, labels: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    std::iter::once(("core", core))
        .chain(labels.iter().copied())
        .collect()
}

fn is_in_family(counter: &str) -> bool {
    if SUMS.contains(&counter) {
        return true;
    }
    let mut counters = FAMILIES.iter().flat_map(|family| family.2);
    counters.any(|entry| entry.0 == counter)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use rpcrdma_engine::{CounterSnapshot, PollTimeSnapshot};
    use rpcrdma_fabric::interface::Counted;

    use super::*;

    fn counted(name: &'static str, value: u64) -> Counted {
        Counted {
            name,
            meaning: "",
            value,
        }
    }

    #[test]
    fn counters_of_the_fabric_are_on_the_page() {
        let text = page(&identity(), true, &node());
        for sample in [
            "rpcrdma_fabric_events_total{event=\"links_down\"} 3",
            "rpcrdma_fabric_events_total{core=\"5\",event=\"queue_full\"} 8",
        ] {
            assert_eq!(text.matches(sample).count(), 1, "{sample}");
        }
    }

    fn node() -> NodeSnapshot {
        let core = CoreSnapshot {
            counters: CounterSnapshot {
                calls_received_version_1: 2,
                calls_received_version_2: 7,
                awaiting_credit: 2,
                keep_alives_sent: 5,
                ..CounterSnapshot::default()
            },
            levels: LevelSnapshot {
                bulk_buffers_free: 3,
                ..LevelSnapshot::default()
            },
            poll_times: PollTimeSnapshot {
                replies: vec![(Some(Duration::from_micros(1)), 6), (None, 1)],
                reply_time: Duration::from_millis(1),
                busy_time: Duration::from_millis(1500),
            },
            fabric: vec![counted("queue_full", 8)],
        };
        NodeSnapshot {
            cores: vec![core.clone(), core],
            control: vec![("rejected_exhausted", 4)],
            fabric: vec![counted("links_down", 3)],
            devices: [("mlx5_0", 0, 0), ("mlx5_1", 1, 7)]
                .map(|(name, links_up, connections)| DeviceLevels {
                    name: name.to_owned(),
                    links_up,
                    links: 1,
                    connections,
                })
                .to_vec(),
        }
    }

    fn identity() -> Identity {
        Identity {
            address: "shm:x".to_owned(),
            service: "bench",
            fabric: "shm",
            started_s: 1.5,
            processors: vec![2, 5],
            faults: FaultPlan::default(),
        }
    }

    #[test]
    fn every_counter_of_the_engine_is_exported_once() {
        let counters = CounterSnapshot::default();
        for (name, _) in FAMILIES.iter().flat_map(|family| family.2) {
            let found = counters.iter().filter(|entry| entry.0 == *name).count();
            assert_eq!(found, 1, "{name} is no counter of the engine");
            let uses = FAMILIES.iter().flat_map(|family| family.2);
            assert_eq!(uses.filter(|entry| entry.0 == *name).count(), 1, "{name}");
        }
        let text = page(&identity(), true, &node());
        for (name, _) in counters.iter().filter(|entry| !is_in_family(entry.0)) {
            let sample = format!("{OTHER_EVENTS}{{core=\"2\",event=\"{name}\"}} ");
            assert_eq!(text.matches(&sample).count(), 1, "{name}");
        }
    }

    #[test]
    fn samples_carry_their_values() {
        let text = page(&identity(), true, &node());
        for line in [
            "rpcrdma_server_info{address=\"shm:x\",service=\"bench\",fabric=\"shm\"} 1",
            "process_start_time_seconds 1.5",
            "rpcrdma_ready 1",
            "rpcrdma_calls_total{core=\"2\",version=\"2\"} 7",
            "rpcrdma_calls_total{core=\"5\",version=\"1\"} 2",
            "rpcrdma_waits_total{core=\"5\",state=\"credit\"} 2",
            "rpcrdma_core_events_total{core=\"2\",event=\"keep_alives_sent\"} 5",
            "rpcrdma_pool_free_buffers{core=\"2\",pool=\"bulk\"} 3",
            "rpcrdma_busy_seconds_total{core=\"2\"} 1.5",
            "rpcrdma_reply_seconds_bucket{core=\"2\",le=\"0.000001\"} 6",
            "rpcrdma_reply_seconds_bucket{core=\"2\",le=\"+Inf\"} 7",
            "rpcrdma_control_events_total{event=\"rejected_exhausted\"} 4",
            "rpcrdma_device_links_up{device=\"mlx5_0\"} 0",
            "rpcrdma_device_links{device=\"mlx5_0\"} 1",
            "rpcrdma_device_connections{device=\"mlx5_1\"} 7",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in\n{text}");
        }
    }

    /// Prometheus' naming rules: snake case, base units, and the suffix `_total` for counters only.
    #[test]
    fn families_are_named_as_prometheus_wants() {
        let text = page(&identity(), false, &node());
        let mut kinds = BTreeMap::new();
        for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let (name, kind) = line.split_once(' ').unwrap();
            assert!(kinds.insert(name, kind).is_none(), "{name} stands twice");
            assert!(text.contains(&format!("# HELP {name} ")));
            let is_good =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
            assert!(name.bytes().all(is_good), "{name}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
            for unit in ["_ms", "_us", "_ns", "_kib", "_percent", "_ticks"] {
                assert!(!name.contains(unit), "{name}");
            }
        }
        assert!(kinds.len() > 30, "{kinds:?}");
    }

    #[test]
    fn without_cores_no_family_is_empty() {
        let text = page(&Identity::default(), false, &NodeSnapshot::default());
        let heads = text
            .lines()
            .filter(|line| line.starts_with("# TYPE "))
            .count();
        let samples = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!((heads, samples), (4, 4), "{text}");
    }
}
