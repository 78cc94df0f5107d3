//! Devices made of files, as the kernel's drivers lay them out.

use super::super::system::tests::FakeMachine;
use super::*;

/// A RoCE device of one port, over eth2.
fn with_roce(machine: &FakeMachine) {
    for (path, text) in [
        ("sys/class/infiniband/mlx5_0/fw_ver", "22.31.1014"),
        ("sys/class/infiniband/mlx5_0/device/numa_node", "1"),
        ("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE"),
        (
            "sys/class/infiniband/mlx5_0/ports/1/phys_state",
            "5: LinkUp",
        ),
        ("sys/class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet"),
        (
            "sys/class/infiniband/mlx5_0/ports/1/rate",
            "100 Gb/sec (4X EDR)",
        ),
        (
            "sys/class/infiniband/mlx5_0/ports/1/gids/0",
            "fe80:0000:0000:0000:0000:00ff:fe00:0001",
        ),
        (
            "sys/class/infiniband/mlx5_0/ports/1/gids/1",
            "0000:0000:0000:0000:0000:ffff:c000:0207",
        ),
        (
            "sys/class/infiniband/mlx5_0/ports/1/gids/2",
            "0000:0000:0000:0000:0000:0000:0000:0000",
        ),
        (
            "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0",
            "IB/RoCE v1",
        ),
        (
            "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/1",
            "RoCE v2",
        ),
        (
            "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0",
            "eth2",
        ),
        ("sys/class/net/eth2/mtu", "9000"),
        ("sys/class/infiniband_verbs/abi_version", "6"),
        ("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0"),
        ("dev/infiniband/uverbs0", ""),
        ("dev/infiniband/rdma_cm", ""),
    ] {
        machine.set(path, text);
    }
}

fn of(machine: &FakeMachine) -> (Vec<Device>, Vec<Finding>) {
    let mut findings = Vec::new();
    let devices = examine(&machine.system(), &mut findings);
    (devices, findings)
}

fn about<'a>(findings: &'a [Finding], words: &str) -> &'a Finding {
    let found = findings.iter().find(|finding| finding.what.contains(words));
    found.unwrap_or_else(|| panic!("nothing about {words}: {findings:?}"))
}

#[test]
fn no_device_is_a_hint_with_a_way_to_try() {
    let (devices, findings) = of(&FakeMachine::good());
    assert!(devices.is_empty());
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].severity, Severity::Hint);
    assert!(
        findings[0]
            .mend
            .as_deref()
            .unwrap()
            .starts_with("rdma link add")
    );
}

#[test]
fn a_good_device_is_told_with_link_and_mtu() {
    let machine = FakeMachine::good();
    with_roce(&machine);
    let (devices, findings) = of(&machine);
    assert!(
        findings
            .iter()
            .all(|finding| finding.severity == Severity::Ok),
        "{findings:?}"
    );
    let port = &devices[0].ports[0];
    assert!(devices[0].usable && devices[0].is_active());
    assert_eq!(devices[0].numa_node, Some(1));
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
fn the_path_mtu_is_the_largest_that_fits_the_ethernet_mtu() {
    for (ethernet, path) in [
        (9000, Some(4096)),
        (4192, Some(4096)),
        (4191, Some(2048)),
        (1500, Some(1024)),
        (352, Some(256)),
        (351, None),
    ] {
        assert_eq!(path_mtu_bytes(ethernet), path, "{ethernet}");
    }
    let machine = FakeMachine::good();
    with_roce(&machine);
    machine.set("sys/class/net/eth2/mtu", "1500");
    let (devices, findings) = of(&machine);
    assert_eq!(devices[0].ports[0].path_mtu_bytes, Some(1024));
    let mtu = about(&findings, "MTU of 4200");
    assert_eq!(mtu.severity, Severity::Hint);
    assert!(
        mtu.mend
            .as_deref()
            .unwrap()
            .starts_with("ip link set dev eth2 mtu 4200")
    );
}

#[test]
fn ports_that_are_not_active_say_what_makes_them_so() {
    let machine = FakeMachine::good();
    with_roce(&machine);
    let port = "sys/class/infiniband/mlx5_0/ports/1";
    machine.set(&format!("{port}/state"), "1: DOWN");
    machine.set(&format!("{port}/phys_state"), "3: Disabled");
    let (devices, findings) = of(&machine);
    assert!(!devices[0].is_active());
    let down = about(&findings, "port 1 is DOWN (Disabled)");
    assert_eq!(down.severity, Severity::Warning);
    assert!(
        down.mend
            .as_deref()
            .unwrap()
            .starts_with("ip link set dev eth2 up")
    );
    machine.set(&format!("{port}/link_layer"), "InfiniBand");
    machine.set(&format!("{port}/state"), "2: INIT");
    let (devices, findings) = of(&machine);
    assert!(
        about(&findings, "is INIT")
            .mend
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
fn a_device_of_another_numa_node_names_the_cores_that_are_near() {
    let machine = FakeMachine::good();
    with_roce(&machine);
    let list = "sys/class/infiniband/mlx5_0/device/local_cpulist";
    machine.set(list, "2-7");
    let (devices, findings) = of(&machine);
    assert_eq!(devices[0].local_cores, Some(vec![2, 3, 4, 5, 6, 7]));
    assert!(
        findings
            .iter()
            .all(|finding| finding.severity == Severity::Ok),
        "two of them are ours: {findings:?}"
    );
    machine.set(list, "4-7");
    let far = about(&of(&machine).1, "another NUMA node").clone();
    assert_eq!(far.severity, Severity::Hint);
    assert!(far.mend.unwrap().starts_with("taskset -c 4-7 "));
}

#[test]
fn files_that_are_missing_are_problems() {
    let machine = FakeMachine::good();
    with_roce(&machine);
    std::fs::remove_file(machine.root().join("dev/infiniband/rdma_cm")).unwrap();
    let (_, findings) = of(&machine);
    let cm = about(&findings, "/dev/infiniband/rdma_cm");
    assert_eq!(
        (cm.severity, cm.mend.as_deref()),
        (Severity::Problem, Some("modprobe rdma_ucm"))
    );
    std::fs::remove_file(machine.root().join("dev/infiniband/uverbs0")).unwrap();
    let (devices, findings) = of(&machine);
    assert!(!devices[0].usable && devices[0].file.is_none());
    assert_eq!(
        about(&findings, "no file in /dev/infiniband").severity,
        Severity::Problem
    );
}

#[test]
fn files_that_may_not_be_opened_name_the_group() {
    if rustix::process::geteuid().is_root() {
        // Root may open any file.
        return;
    }
    use std::os::unix::fs::PermissionsExt as _;
    let machine = FakeMachine::good();
    with_roce(&machine);
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
        assert_eq!(finding.severity, Severity::Problem);
        assert!(finding.mend.as_deref().unwrap().contains("rdma"));
    }
}

#[test]
fn addresses_of_a_port_are_counted_by_version() {
    let machine = FakeMachine::good();
    with_roce(&machine);
    let port = "sys/class/infiniband/mlx5_0/ports/1";
    machine.set(&format!("{port}/gid_attrs/types/1"), "IB/RoCE v1");
    assert_eq!(
        about(&of(&machine).1, "RoCE version 1 alone").severity,
        Severity::Warning
    );
    for index in 0..2 {
        machine.set(
            &format!("{port}/gids/{index}"),
            "0000:0000:0000:0000:0000:0000:0000:0000",
        );
    }
    let (_, findings) = of(&machine);
    assert_eq!(
        about(&findings, "no address (GID)").severity,
        Severity::Warning
    );
}

#[test]
fn what_a_device_lacks_is_told_once_its_limits_are_known() {
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
        send_with_invalidate: true,
    });
    let mut all = Vec::new();
    judge_device(&device, &mut Findings::new(Area::Devices, &mut all));
    about(&all, "100 queue pairs of 64 work requests");
    about(&all, "4 RDMA Reads each way");
    assert_eq!(
        about(&all, "no shared receive queues").severity,
        Severity::Hint
    );
    assert_eq!(about(&all, "no memory windows").severity, Severity::Hint);
}
