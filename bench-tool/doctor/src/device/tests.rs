//! Devices made of files, as the kernel's drivers lay them out.

use super::super::finding::tests::{about, check_no_complaints, complaints};
use super::super::system::tests::FakeMachine;
use super::super::tests::{configuration, needs, roce};
use super::*;

fn of(machine: &FakeMachine) -> (Vec<Device>, Vec<Finding>) {
    with_needs(machine, &needs())
}

fn with_needs(machine: &FakeMachine, needs: &Needs) -> (Vec<Device>, Vec<Finding>) {
    let mut findings = Vec::new();
    let devices = examine(&machine.system(), needs, &mut findings);
    (devices, findings)
}

#[test]
fn no_device_is_a_hint_with_a_way_to_try() {
    let (devices, findings) = of(&FakeMachine::good());
    assert!(devices.is_empty());
    assert_eq!(findings.len(), 1);
    findings[0].check(Severity::Hint, "rdma link add");
}

#[test]
fn good_device_is_reported_with_link_and_mtu() {
    let machine = roce();
    let (devices, findings) = of(&machine);
    check_no_complaints(&findings);
    let port = &devices[0].ports[0];
    assert!(devices[0].usable && devices[0].is_active());
    assert_eq!(devices[0].place.numa_node, Some(1));
    assert_eq!(
        (port.state.as_str(), port.physical_state.as_str()),
        ("ACTIVE", "LinkUp")
    );
    assert_eq!(
        (port.netdev_mtu_bytes, port.path_mtu_bytes),
        (Some(9000), Some(4096))
    );
    // The third GID is not set.
    assert_eq!((port.gids, port.roce_v2_gids), (2, 1));
    about(
        &findings,
        "active, Ethernet, 100 Gb/sec (4X EDR), eth2 with MTU 9000, so 4096 octets",
    );
}

#[test]
fn a_device_that_took_less_than_its_link_has_room_for_is_a_hint() {
    let machine = roce();
    let mut port = of(&machine).0[0].ports[0].clone();
    let mut judged = |active| {
        port.active_mtu_bytes = active;
        let mut all = Vec::new();
        port::judge(
            "mlx5_0",
            &port,
            true,
            &mut Findings::new(Area::Devices, &mut all),
        );
        all
    };
    assert_eq!(complaints(&judged(Some(4096))), [] as [&Finding; 0]);
    about(
        &judged(Some(4096)),
        "eth2 with MTU 9000, 4096 octets a packet",
    );
    about(&judged(None), "is not readable without verbs");
    about(&judged(Some(1024)), "room for 4096").check(
        Severity::Hint,
        "ip link set dev eth2 down; ip link set dev eth2 up ",
    );
}

#[test]
fn the_path_mtu_is_the_largest_that_fits_the_ethernet_mtu() {
    for (ethernet, path) in [
        (9000, Some(4096)),
        (4192, Some(4096)),
        (4191, Some(2048)),
        (1500, Some(1024)),
        (352, Some(256)),
        (351, None),
    ] {
        assert_eq!(port::path_mtu_bytes(ethernet), path, "{ethernet}");
    }
    let machine = roce();
    machine.set("sys/class/net/eth2/mtu", "1500");
    let (devices, findings) = of(&machine);
    assert_eq!(devices[0].ports[0].path_mtu_bytes, Some(1024));
    about(&findings, "one of 4200").check(Severity::Hint, "ip link set dev eth2 mtu 4200");
}

#[test]
fn ports_that_are_not_active_say_what_makes_them_so() {
    let machine = roce();
    let port = "PORT";
    machine.set(&format!("{port}/state"), "1: DOWN");
    machine.set(&format!("{port}/phys_state"), "3: Disabled");
    let (devices, findings) = of(&machine);
    assert!(!devices[0].is_active());
    about(&findings, "port 1 is DOWN (Disabled)")
        .check(Severity::Warning, "ip link set dev eth2 up");
    machine.set(&format!("{port}/link_layer"), "InfiniBand");
    machine.set(&format!("{port}/state"), "2: INIT");
    let (devices, findings) = of(&machine);
    assert!(
        about(&findings, "is INIT")
            .fix
            .as_deref()
            .unwrap()
            .contains("opensm")
    );
    assert_eq!(
        devices[0].ports[0].path_mtu_bytes, None,
        "an Ethernet MTU says nothing of InfiniBand"
    );
}

#[test]
fn iwarp_over_ethernet_gets_no_advice_that_is_for_roce() {
    let machine = roce();
    machine.set("DEVICE/node_type", "4: RNIC");
    machine.set("sys/class/net/eth2/mtu", "1500");
    machine.set("PORT/gid_attrs/types/1", "IB/RoCE v1");
    let (devices, findings) = of(&machine);
    assert_eq!(devices[0].node_type.as_deref(), Some("RNIC"));
    let port = &devices[0].ports[0];
    assert!(!port.roce && port.is_ethernet());
    assert_eq!((port.path_mtu_bytes, &port.congestion), (None, &None));
    let link = about(&findings, "active, Ethernet, 100 Gb/sec");
    assert!(link.what.ends_with("eth2 with MTU 1500"), "{link:?}");
    check_no_complaints(&findings);
    for words in ["RoCE", "4200", "PFC", "ECN", "DSCP"] {
        assert!(
            !findings.iter().any(|it| it.what.contains(words)),
            "{words}"
        );
    }
    let port = "PORT/state";
    machine.set(port, "1: DOWN");
    let down = about(&of(&machine).1, "port 1 is DOWN").clone();
    assert!(down.fix.unwrap().starts_with("ip link set dev eth2 up "));
    machine.remove("DEVICE/node_type");
    assert!(of(&machine).0[0].ports[0].roce, "RoCE where nobody tells");
}

#[test]
fn a_second_port_without_a_cable_is_a_hint_and_what_belongs_to_it_is_not_judged() {
    let machine = roce();
    let second = "sys/class/infiniband/mlx5_1";
    for (file, text) in [
        ("node_type", "1: CA"),
        ("device/numa_node", "0"),
        ("device/local_cpulist", "8-15"),
        ("ports/1/state", "1: DOWN"),
        ("ports/1/phys_state", "3: Disabled"),
        ("ports/1/link_layer", "Ethernet"),
        ("ports/1/gid_attrs/ndevs/0", "eth3"),
        ("ports/1/counters/symbol_error", "7"),
        ("ports/1/counters/port_xmit_packets", "1"),
        ("ports/1/counters/port_rcv_packets", "1"),
    ] {
        machine.set(&format!("{second}/{file}"), text);
    }
    machine.set("sys/class/net/eth3/ecn/roce_rp/enable/3", "0");
    machine.set("sys/class/net/eth3/ecn/roce_np/enable/3", "0");
    let pages = "NODE/node0/hugepages/hugepages-2048kB/free_hugepages";
    machine.set(pages, "0");
    let of_second = || {
        let findings = of(&machine).1;
        let second = complaints(&findings)
            .into_iter()
            .filter(|it| it.what.contains("mlx5_1 ") || it.what.contains("mlx5_1:"));
        second.cloned().collect::<Vec<Finding>>()
    };
    let down = "mlx5_1 port 1 is DOWN (Disabled)";
    about(&of_second(), down).check(Severity::Hint, "");
    let others = [
        "no core of it may be used",
        "0 hugepages of 2 MiB",
        "ECN is off on every priority",
        "packets were damaged",
    ];
    for words in others {
        let found = of_second();
        assert!(!found.iter().any(|it| it.what.contains(words)), "{words}");
    }
    // Where none is active, the second may be the one that is meant.
    machine.set("PORT/state", "1: DOWN");
    about(&of_second(), down).check(Severity::Warning, "");
    for words in others {
        assert!(about(&of_second(), words).severity >= Severity::Warning);
    }
}

#[test]
fn a_device_of_another_numa_node_names_the_cores_that_are_near() {
    let machine = roce();
    let list = "DEVICE/device/local_cpulist";
    machine.set("NODE/node1/distance", "21 10");
    machine.set(list, "0-7");
    let (devices, findings) = of(&machine);
    assert_eq!(devices[0].place.numa_distances, Some(vec![21, 10]));
    about(&findings, "NUMA node 1, as every core").check(Severity::Ok, "");
    machine.set(list, "2-7");
    let some = about(&of(&machine).1, "with cores 2,3; cores 0,1 are on others").clone();
    some.check(Severity::Hint, "taskset -c 2,3 ");
    assert!(some.what.contains("of up to 21"), "{some:?}");
    machine.set(list, "4-7");
    about(&of(&machine).1, "no core of it may be used").check(Severity::Warning, "taskset -c 4-7 ");
}

#[test]
fn hugepages_of_the_wrong_node_are_a_warning_with_the_command_for_the_right_one() {
    let machine = roce();
    let pages = "NODE/node1/hugepages/hugepages-2048kB/free_hugepages";
    machine.set(pages, "64");
    let near = "hugepages of 2 MiB are free on its NUMA node 1";
    about(&of(&machine).1, near).check(Severity::Ok, "");
    machine.set(pages, "60");
    let far = about(&of(&machine).1, near).clone();
    assert_eq!(far.severity, Severity::Warning);
    assert_eq!(
        far.fix.as_deref(),
        Some(
            "f=/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages; \
             echo $(($(cat $f) + 4)) > $f"
        )
    );
    let large = Needs {
        hugepage_bytes: 1 << 30,
        ..needs()
    };
    machine.set(
        "NODE/node1/hugepages/hugepages-1048576kB/free_hugepages",
        "1",
    );
    let (devices, findings) = with_needs(&machine, &large);
    assert_eq!(devices[0].place.local_hugepages_free, Some(1));
    let far = about(
        &findings,
        "1 hugepages of 1 GiB are free on its NUMA node 1",
    );
    let fix = far.fix.as_deref().unwrap();
    assert!(fix.contains("/hugepages-1048576kB/nr_hugepages; echo $(($(cat $f) + 1)) "));
}

#[test]
fn a_slot_that_is_too_slow_for_the_ports_is_a_warning() {
    let machine = roce();
    let slot = "DEVICE/device";
    let set = |speed: &str, lanes: &str| {
        machine.set(&format!("{slot}/current_link_speed"), speed);
        machine.set(&format!("{slot}/current_link_width"), lanes);
    };
    let (devices, findings) = of(&machine);
    let pcie = devices[0].pcie.as_ref().unwrap();
    assert_eq!((pcie.speed_mtps, pcie.lanes), (Some(16_000), Some(16)));
    about(&findings, "PCIe at 16 GT/s on 16 lanes, 252 Gb/s").check(Severity::Ok, "");
    set("8.0 GT/s PCIe", "8");
    let slow = about(&of(&machine).1, "less than its ports").clone();
    assert_eq!(slow.severity, Severity::Warning);
    assert_eq!(
        slow.cost.as_deref(),
        Some("at most 63 Gb/s of the 100 Gb/s of its ports")
    );
    set("8.0 GT/s PCIe", "16");
    about(&of(&machine).1, "device can do 16 GT/s on 16 lanes").check(Severity::Hint, "");
    for (speed, lanes) in [
        ("Unknown", "0"),
        ("", ""),
        ("fast GT/s", "99"),
        ("8.0", "16"),
    ] {
        set(speed, lanes);
        let (_, findings) = of(&machine);
        about(&findings, "unknown, as for a virtual function");
        assert_eq!(complaints(&findings), [] as [&Finding; 0], "{speed}");
    }
}

/// Adds a port of 100 Gb/s at this address of PCI.
fn add_function(machine: &FakeMachine, name: &str, address: &str) {
    for (file, text) in [
        ("current_link_speed", "8.0 GT/s PCIe"),
        ("max_link_speed", "8.0 GT/s PCIe"),
        ("current_link_width", "16"),
        ("max_link_width", "16"),
    ] {
        machine.set(&format!("sys/class/{address}/{file}"), text);
    }
    let config = format!("sys/class/{address}/config");
    machine.set_bytes(&config, &configuration(0x2920));
    let port = format!("sys/class/infiniband/{name}/ports/1");
    machine.set(&format!("{port}/state"), "4: ACTIVE");
    machine.set(&format!("{port}/rate"), "100 Gb/sec (4X EDR)");
    machine.link(&format!("sys/class/infiniband/{name}/device"), address);
}

#[test]
fn functions_of_one_card_share_its_slot() {
    let machine = FakeMachine::good();
    add_function(&machine, "mlx5_0", "0000:3b:00.0");
    add_function(&machine, "mlx5_2", "0000:5e:00.0");
    // A virtual function has the port of its physical one.
    add_function(&machine, "mlx5_3", "0000:3b:00.2");
    machine.set("sys/class/0000:3b:00.2/physfn/vendor", "0x15b3");
    let enough = "mlx5_0: PCIe at 8 GT/s on 16 lanes, 126 Gb/s";
    about(&of(&machine).1, enough).check(Severity::Ok, "");
    add_function(&machine, "mlx5_1", "0000:3b:00.1");
    let (_, findings) = of(&machine);
    for name in ["mlx5_0", "mlx5_1"] {
        let words =
            format!("{name}: PCIe at 8 GT/s on 16 lanes, less than the ports of mlx5_0 and");
        let slow = about(&findings, &words);
        assert_eq!(slow.severity, Severity::Warning);
        let cost = slow.cost.as_deref().unwrap();
        assert!(cost.starts_with("at most 126 Gb/s of the 200 Gb/s of the ports of "));
    }
    about(&findings, "mlx5_2: PCIe at 8 GT/s on 16 lanes, 126 Gb/s");
    machine.set("sys/class/0000:5e:00.0/current_link_width", "1");
    about(
        &of(&machine).1,
        "mlx5_2: PCIe at 8 GT/s on 1 lane, less than its ports",
    );
}

#[test]
fn requests_of_a_virtual_function_are_its_hosts_affair() {
    let machine = FakeMachine::good();
    let slot = "sys/class/0000:3b:00.2";
    add_function(&machine, "mlx5_0", "0000:3b:00.2");
    machine.set_bytes(&format!("{slot}/config"), &configuration(0));
    about(&of(&machine).1, "MaxReadReq is 128 bytes");
    machine.set(&format!("{slot}/physfn/vendor"), "0x15b3");
    let told_by_host = || {
        let (devices, findings) = of(&machine);
        let pcie = devices[0].pcie.as_ref().unwrap();
        assert!(pcie.virtual_function);
        assert_eq!(
            (pcie.read_request_max_bytes, pcie.relaxed_ordering),
            (None, None)
        );
        let words = "relaxed ordering of a virtual function are set by its physical one";
        about(&findings, words).check(Severity::Ok, "");
    };
    told_by_host();
    // In the machine that it was given to.
    std::fs::remove_dir_all(machine.root().join(slot).join("physfn")).unwrap();
    machine.set(&format!("{slot}/current_link_speed"), "Unknown");
    machine.set(&format!("{slot}/current_link_width"), "0");
    told_by_host();
}

#[test]
fn requests_of_the_device_are_reported_where_the_kernel_shows_them() {
    let machine = roce();
    let config = "DEVICE/device/config";
    machine.set_bytes(config, &configuration(0x2920));
    let (devices, findings) = of(&machine);
    let pcie = devices[0].pcie.as_ref().unwrap();
    assert_eq!(
        (
            pcie.read_request_max_bytes,
            pcie.payload_max_bytes,
            pcie.relaxed_ordering
        ),
        (Some(512), Some(256), Some(false))
    );
    let small = about(&findings, "MaxReadReq is 512 bytes");
    small.check(Severity::Hint, "");
    small.check_advice(" CAP_EXP+8.w=5000:7000 ");
    about(&findings, "relaxed ordering is off");
    machine.set_bytes(config, &configuration(0x2920)[..64]);
    let (_, findings) = of(&machine);
    about(&findings, "can be read by root only");
    check_no_complaints(&findings);
}

#[test]
fn an_iommu_that_translates_is_a_hint() {
    let machine = roce();
    let mode = "DEVICE/device/iommu_group/type";
    machine.set(mode, "identity");
    about(&of(&machine).1, "IOMMU").check(Severity::Ok, "");
    machine.set(mode, "DMA-FQ");
    let finding = about(&of(&machine).1, "IOMMU").clone();
    finding.check(Severity::Hint, "");
    finding.check_advice("--args=iommu=pt ");
}

#[test]
fn events_that_are_many_for_the_packets_are_a_warning_and_few_are_a_hint() {
    let machine = roce();
    let port = "PORT";
    let what = "mlx5_0 port 1: Sends met no Receive";
    for (packets, severity) in [
        (Some(300_000_u64), Severity::Hint),
        (Some(100_000), Severity::Warning),
        (None, Severity::Hint),
    ] {
        machine.set(&format!("{port}/hw_counters/rnr_nak_retry_err"), "2");
        machine.set(&format!("{port}/hw_counters/out_of_buffer"), "1");
        let packets = packets.map_or_else(String::new, |packets| packets.to_string());
        machine.set(&format!("{port}/counters/port_xmit_packets"), &packets);
        machine.set(&format!("{port}/counters/port_rcv_packets"), "0");
        let finding = about(&of(&machine).1, what).clone();
        finding.check(severity, "rdma statistic show link mlx5_0/1 ");
        let counts = "out_of_buffer 1, rnr_nak_retry_err 2";
        assert!(finding.what.contains(counts), "{finding:?}");
        finding.check_advice("every program that uses the port");
        finding.check_advice("report it as a fault");
    }
}

#[test]
fn kinds_of_events_are_distinguished_and_congestion_marks_are_no_complaint() {
    let machine = roce();
    let port = "PORT";
    for (file, words) in [
        (
            "hw_counters/local_ack_timeout_err",
            "sent again, or came out of order",
        ),
        ("counters/symbol_error", "damaged or dropped"),
        ("hw_counters/rcvd_rnr_err", "(RNR)"),
    ] {
        let path = format!("{port}/{file}");
        machine.set(&path, "7");
        let (_, findings) = of(&machine);
        about(&findings, words).check(Severity::Hint, "");
        assert_eq!(complaints(&findings).len(), 1, "{findings:#?}");
        machine.set(&path, "0");
    }
    machine.set(&format!("{port}/hw_counters/np_cnp_sent"), "9");
    let (devices, findings) = of(&machine);
    about(&findings, "ECN is at work: np_cnp_sent 9").check(Severity::Ok, "");
    about(&findings, "nothing sent again");
    assert_eq!(devices[0].ports[0].counters.events["np_cnp_sent"], 9);
    // The greatest numbers do not overflow.
    let most = u64::MAX.to_string();
    for file in [
        "counters/port_xmit_packets",
        "counters/port_rcv_packets",
        "hw_counters/out_of_buffer",
        "hw_counters/rcvd_rnr_err",
    ] {
        machine.set(&format!("{port}/{file}"), &most);
    }
    about(&of(&machine).1, "(RNR)");
}

#[test]
fn counters_of_the_whole_device_count_for_its_ports() {
    let machine = roce();
    let hw = "DEVICE/hw_counters";
    for (name, count) in [
        ("sent_pkts", "10"),
        ("rcvd_pkts", "5"),
        ("rcvd_rnr_err", "1"),
    ] {
        machine.set(&format!("{hw}/{name}"), count);
    }
    let (devices, findings) = of(&machine);
    assert_eq!(devices[0].ports[0].counters.packets, Some(15));
    about(&findings, "(RNR)").check(Severity::Warning, "");
}

#[test]
fn a_port_says_what_of_flow_control_cannot_be_read() {
    let machine = roce();
    let (devices, findings) = of(&machine);
    assert_eq!(
        devices[0].ports[0].congestion,
        Some(congestion::Congestion::default())
    );
    for words in [
        "PFC is not readable",
        "ECN is not readable",
        "DSCP of RDMA-CM is not readable",
    ] {
        about(&findings, words).check(Severity::Ok, "");
    }
    // A machine made of files has no kernel to ask.
    let netdev = devices[0].ports[0].netdev.as_deref();
    let judged = |priorities| {
        let congestion = congestion::Congestion {
            pfc: Some(priorities),
            ..congestion::Congestion::default()
        };
        let mut all = Vec::new();
        let mut findings = Findings::new(Area::Devices, &mut all);
        congestion::judge("mlx5_0", 1, netdev, &congestion, &mut findings);
        all
    };
    about(&judged(vec![3, 4]), "PFC is on for priority 3, 4");
    about(&judged(vec![]), "PFC is off for every priority").check(
        Severity::Hint,
        "dcb pfc set dev eth2 prio-pfc all:off 3:on ",
    );
    machine.set("PORT/link_layer", "InfiniBand");
    let (devices, findings) = of(&machine);
    assert_eq!(devices[0].ports[0].congestion, None);
    assert!(!findings.iter().any(|finding| finding.what.contains("PFC")));
}

#[test]
fn ecn_needs_both_points_on_one_priority_and_dscp_0_is_a_hint() {
    let machine = roce();
    let set = |point: &str, priority: u8, state: &str| {
        machine.set(
            &format!("sys/class/net/eth2/ecn/{point}/enable/{priority}"),
            state,
        );
    };
    set("roce_rp", 3, "1");
    set("roce_np", 3, "0");
    let off = about(&of(&machine).1, "ECN is off on every priority").clone();
    off.check(Severity::Warning, "");
    off.check_advice("/sys/class/net/eth2/ecn/roce_$point/enable/3");
    set("roce_np", 3, "1");
    about(&of(&machine).1, "ECN is on for priority 3").check(Severity::Ok, "");
    let tos = "sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos";
    machine.set(tos, "0");
    about(&of(&machine).1, "with DSCP 0").check(Severity::Hint, &format!("echo 104 > /{tos} "));
    machine.set(tos, "104");
    about(&of(&machine).1, "with DSCP 26").check(Severity::Ok, "");
}

#[test]
fn device_is_reported_with_driver_profile_and_environment() {
    let machine = roce();
    let (devices, findings) = of(&machine);
    assert_eq!(devices[0].profile.name.as_deref(), Some("mlx5"));
    about(
        &findings,
        "firmware 22.31.1014, driver mlx5_core of the kernel",
    );
    about(&findings, "mlx5_0 takes the profile mlx5");
    machine.set("sys/module/mlx5_core/version", "24.10-1.1.4");
    machine.set_bytes(
        "proc/self/environ",
        b"MLX5_SINGLE_THREADED=1\0PATH=/bin\0\xff=x",
    );
    let (devices, findings) = of(&machine);
    about(&findings, "driver mlx5_core 24.10-1.1.4");
    let set = about(&findings, "MLX5_SINGLE_THREADED is 1");
    set.check(Severity::Warning, "unset MLX5_SINGLE_THREADED");
    about(&findings, "MLX5_TOTAL_UUARS is not set");
    assert!(devices[0].profile.complaints.len() > 1);
}

#[test]
fn knob_clamped_by_the_device_is_a_hint() {
    let machine = roce();
    let few = Settings {
        send_queue_depth_max: Some(16),
        ..Settings::default()
    };
    let profile = profile::read(&machine.system(), "mlx5_0", Some(&few));
    let mut all = Vec::new();
    profile::judge(
        "mlx5_0",
        &profile,
        &mut Findings::new(Area::Devices, &mut all),
    );
    about(&all, "send_queue_depth_max").check(Severity::Hint, "");
    assert!(
        profile::read(&machine.system(), "mlx5_0", None)
            .clamps
            .is_empty()
    );
}

/// A node places nothing there, and is not refused.
#[test]
fn profile_of_a_device_with_one_scatter_entry_is_that_of_a_node() {
    let machine = roce();
    let one_entry = Settings {
        receive_scatter_entries_max: Some(1),
        ..Settings::default()
    };
    let profile = profile::read(&machine.system(), "mlx5_0", Some(&one_entry));
    assert_eq!(profile.refused, None);
    assert_eq!(profile.name.as_deref(), Some("mlx5"));
}

#[test]
fn devices_without_a_profile_or_refused_are_reported() {
    let machine = FakeMachine::good();
    for (name, driver) in [("new_0", "nobody_knows"), ("rdmap0", "efa")] {
        machine.set(&format!("sys/class/infiniband/{name}/fw_ver"), "1");
        machine.link(
            &format!("sys/class/infiniband/{name}/device/driver"),
            driver,
        );
    }
    let (devices, findings) = of(&machine);
    assert_eq!(devices.len(), 2);
    about(&findings, "new_0 belongs to no family").check(Severity::Hint, "");
    about(&findings, "rdmap0 cannot be used").check(Severity::Problem, "");
}

#[test]
fn files_that_are_missing_are_problems() {
    let machine = roce();
    machine.remove("dev/infiniband/rdma_cm");
    let cm = about(&of(&machine).1, "/dev/infiniband/rdma_cm").clone();
    assert_eq!(cm.severity, Severity::Problem);
    assert_eq!(cm.fix.as_deref(), Some("modprobe rdma_ucm"));
    machine.remove("dev/infiniband/uverbs0");
    let (devices, findings) = of(&machine);
    assert!(!devices[0].usable && devices[0].file.is_none());
    about(&findings, "no file in /dev/infiniband").check(Severity::Problem, "");
}

#[test]
fn files_that_may_not_be_opened_name_the_group() {
    if rustix::process::geteuid().is_root() {
        // Root may open any file.
        return;
    }
    use std::os::unix::fs::PermissionsExt as _;
    let machine = roce();
    for file in ["uverbs0", "rdma_cm"] {
        let file = machine.root().join("dev/infiniband").join(file);
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o000)).unwrap();
    }
    let (_, findings) = of(&machine);
    for words in [
        "may not open /dev/infiniband/uverbs0",
        "may not open /dev/infiniband/rdma_cm",
    ] {
        let finding = about(&findings, words);
        finding.check(Severity::Problem, "");
        finding.check_advice("rdma");
    }
}

#[test]
fn addresses_of_a_port_are_counted_by_version() {
    let machine = roce();
    let port = "PORT";
    machine.set(&format!("{port}/gid_attrs/types/1"), "IB/RoCE v1");
    about(&of(&machine).1, "RoCE version 1 alone").check(Severity::Warning, "");
    for index in 0..2 {
        machine.set(
            &format!("{port}/gids/{index}"),
            "0000:0000:0000:0000:0000:0000:0000:0000",
        );
    }
    let (_, findings) = of(&machine);
    about(&findings, "no address (GID)").check(Severity::Warning, "");
}

#[test]
fn device_limits_and_missing_features_are_reported() {
    let mut device = Device {
        name: "rxe0".to_owned(),
        ..Device::default()
    };
    device.limits = Some(Limits {
        queue_pairs: 100,
        queue_pair_work_requests: 64,
        segments: 32,
        read_segments: 16,
        completion_queue_entries: 1000,
        responder_resources: 8,
        initiator_depth: 4,
        shared_receive_queues: 0,
        windows: 0,
        windows_refused: Some("the device refused a memory window".to_owned()),
        thread_domains_refused: Some("the device refused a thread domain".to_owned()),
        send_with_invalidate: true,
    });
    let mut all = Vec::new();
    judge_device(
        &FakeMachine::empty().system(),
        &device,
        &mut Findings::new(Area::Devices, &mut all),
    );
    about(&all, "100 queue pairs of 64 work requests");
    about(&all, "4 RDMA Reads each way");
    about(&all, "no shared receive queues").check(Severity::Hint, "");
    about(
        &all,
        "reports memory windows and has none: the device refused",
    )
    .check(Severity::Hint, "");
    about(&all, "no thread domains: the device refused").check(Severity::Hint, "");
}
