//! Whole machines made of files, and what is said of them.

use std::path::{Path, PathBuf};

use rpcrdma_testkit::CheckWords;

use super::finding::tests::{about, check_no_complaints, complaints};
use super::system::tests::FakeMachine;
use super::*;

pub(crate) fn needs() -> Needs {
    Needs {
        profile: "shm".to_owned(),
        core_bytes: 64 << 20,
        device_bytes: 16 << 20,
        connections_max: 256,
        parks: false,
        hugepages: Hugepages::Prefer,
        hugepage_bytes: 2 << 20,
    }
}

/// Files of a RoCE device of one port, over eth2.
const ROCE: &str = "\
DEVICE/fw_ver 22.31.1014
DEVICE/node_type 1: CA
DEVICE/device/numa_node 1
PORT/state 4: ACTIVE
PORT/phys_state 5: LinkUp
PORT/link_layer Ethernet
PORT/rate 100 Gb/sec (4X EDR)
PORT/gids/0 fe80:0000:0000:0000:0000:00ff:fe00:0001
PORT/gids/1 0000:0000:0000:0000:0000:ffff:c000:0207
PORT/gids/2 0000:0000:0000:0000:0000:0000:0000:0000
PORT/gid_attrs/types/0 IB/RoCE v1
PORT/gid_attrs/types/1 RoCE v2
PORT/gid_attrs/ndevs/0 eth2
sys/class/net/eth2/mtu 9000
sys/class/infiniband_verbs/abi_version 6
sys/class/infiniband_verbs/uverbs0/ibdev mlx5_0
dev/infiniband/uverbs0
dev/infiniband/rdma_cm
DEVICE/device/current_link_speed 16.0 GT/s PCIe
DEVICE/device/max_link_speed 16.0 GT/s PCIe
DEVICE/device/current_link_width 16
DEVICE/device/max_link_width 16
DEVICE/device/config
DEVICE/device/vendor 0x15b3
DEVICE/device/device 0x101b
proc/self/environ MLX5_TOTAL_UUARS=64\0MLX5_SCATTER_TO_CQE=0\0A=B";

/// A good machine with a RoCE device of one port, over eth2.
pub(crate) fn roce() -> FakeMachine {
    let machine = FakeMachine::good();
    machine.set_all(ROCE);
    machine.link("DEVICE/device/driver", "mlx5_core");
    machine
}

/// The files of the tuned machine beside those of a good one with a device: a path and what stands in it
/// on each line.
const TUNED: &str = "\
proc/cmdline iommu=pt isolcpus=managed_irq,domain,17-31 nohz_full=17-31
proc/sys/kernel/numa_balancing 0
CPU/online 0-31
CPU/isolated 17-31
CPU/nohz_full 17-31
CPU/cpu0/cpufreq/scaling_governor performance
CPU/cpu0/cpuidle/state0/name POLL
CPU/cpu0/cpuidle/state0/latency 0
CPU/cpu17/topology/thread_siblings_list 17
NODE/online 0-1
NODE/node1/distance 21 10
NODE/node1/hugepages/hugepages-2048kB/free_hugepages 2048
sys/module/ib_core/parameters/netns_mode Y
sys/module/mlx5_core/version 24.10-1.1.4
DEVICE/device/local_cpulist 0-31
DEVICE/device/iommu_group/type identity
PORT/counters/port_xmit_packets 5000000
PORT/counters/port_rcv_packets 5000000
PORT/counters/symbol_error 0
PORT/hw_counters/rnr_nak_retry_err 0
PORT/hw_counters/np_cnp_sent 12
sys/class/net/eth2/ecn/roce_rp/enable/3 1
sys/class/net/eth2/ecn/roce_np/enable/3 1
sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos 104";

/// What of them is otherwise on the badly set one.
const BADLY_SET: &str = "\
proc/sys/kernel/numa_balancing 1
CPU/isolated
CPU/cpu0/cpufreq/scaling_governor schedutil
CPU/cpu0/topology/thread_siblings_list 0-1
CPU/cpu0/cpuidle/state1/name C6
CPU/cpu0/cpuidle/state1/latency 133
sys/devices/system/clocksource/clocksource0/current_clocksource hpet
sys/kernel/mm/transparent_hugepage/enabled always madvise [never]
sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages 0
NODE/node1/hugepages/hugepages-2048kB/free_hugepages 0
DEVICE/device/local_cpulist 16-31
DEVICE/device/current_link_speed 8.0 GT/s PCIe
DEVICE/device/current_link_width 8
DEVICE/device/iommu_group/type DMA
PORT/counters/symbol_error 7
PORT/hw_counters/rnr_nak_retry_err 4000
PORT/hw_counters/local_ack_timeout_err 300
sys/class/net/eth2/mtu 1500
sys/class/net/eth2/ecn/roce_np/enable/3 0
sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos 0";

/// Two sockets, a ConnectX-6 on the second, and everything done for it.
fn tuned() -> FakeMachine {
    let machine = roce();
    machine.set_all(TUNED);
    machine.set("proc/self/status", "CapEff:\t0\nCpus_allowed_list:\t0-31");
    // MaxReadReq 4096, MaxPayload 256, relaxed ordering on.
    machine.set_bytes(CONFIG, &configuration(0x5930));
    machine
}

/// The same machine as it comes out of its box.
fn badly_set() -> FakeMachine {
    let machine = tuned();
    machine.set_all(BADLY_SET);
    machine.set("proc/self/status", "CapEff:\t0\nCpus_allowed_list:\t0-15");
    machine.set(
        "proc/self/limits",
        "Max open files   64   64   files\nMax locked memory   8388608   8388608   bytes",
    );
    machine.set_bytes("proc/self/environ", b"MLX5_SHUT_UP_BF=1\0");
    machine.set_bytes(CONFIG, &configuration(0x2920));
    machine
}

/// The configuration space of the device.
pub(crate) const CONFIG: &str = "DEVICE/device/config";

/// A configuration space in which the capability of PCI Express has this device control.
pub(crate) fn configuration(control: u16) -> Vec<u8> {
    let mut config = vec![0; 256];
    config[0x06] = 0x10;
    config[0x34] = 0x60;
    config[0x60] = 0x10;
    config[0x68..0x6a].copy_from_slice(&control.to_le_bytes());
    config
}

/// The findings of a machine but those of providers, which depend on the features of the build.
fn findings(machine: &FakeMachine) -> Vec<Finding> {
    let mut findings = report(machine).findings;
    findings.retain(|finding| finding.area != finding::Area::Providers);
    findings
}

#[test]
fn tuned_machine_with_two_sockets_has_nothing_to_fix() {
    let findings = findings(&tuned());
    check_no_complaints(&findings);
    for words in [
        "driver mlx5_core 24.10-1.1.4",
        "takes the profile mlx5",
        "PCIe at 16 GT/s on 16 lanes",
        "MaxReadReq is 4096 bytes",
        "relaxed ordering is on",
        "the IOMMU does not translate",
        "NUMA node 1, as every core",
        "nothing sent again",
        "ECN is on for priority 3",
        "with DSCP 26",
        "NUMA balancing is off",
        "no timer tick",
    ] {
        assert_eq!(about(&findings, words).severity, Severity::Ok, "{words}");
    }
}

#[test]
fn each_fault_of_a_badly_configured_machine_is_found_with_cost_and_fix() {
    let machine = badly_set();
    let findings = findings(&machine);
    #[rustfmt::skip]
    let expected = [
        (Severity::Warning, "MLX5_SHUT_UP_BF is 1", "unset MLX5_SHUT_UP_BF"),
        (Severity::Warning, "MLX5_TOTAL_UUARS is not set", "export MLX5_TOTAL_UUARS=64"),
        (Severity::Warning, "MLX5_SCATTER_TO_CQE is not set", "export MLX5_SCATTER_TO_CQE=0"),
        (Severity::Warning, "less than its ports", "lspci -vv -s "),
        (Severity::Hint, "MaxReadReq is 512", "setpci -s "),
        (Severity::Hint, "the IOMMU translates", "grubby "),
        (Severity::Warning, "no core of it may be used", "taskset -c 16-31 "),
        (Severity::Warning, "free on its NUMA node 1", "f=/sys/devices/system/node/node1/"),
        (Severity::Hint, "one of 4200", "ip link set dev eth2 mtu 4200"),
        (Severity::Warning, "Sends met no Receive", "rdma statistic show link mlx5_0/1"),
        (Severity::Warning, "packets were sent again", "rdma statistic show link mlx5_0/1"),
        (Severity::Hint, "packets were damaged", "rdma statistic show link mlx5_0/1"),
        (Severity::Warning, "ECN is off", "for point in rp np; do echo 1 > "),
        (Severity::Hint, "with DSCP 0", "echo 104 > "),
        (Severity::Problem, "may lock 8 MiB", "prlimit --pid $$ --memlock="),
        (Severity::Warning, "hugepages: 0 of 2 MiB", "echo 4"),
        (Severity::Hint, "transparent hugepages are off", "echo madvise > "),
        (Severity::Warning, "64 open files", "prlimit --pid $$ --nofile="),
        (Severity::Hint, "threads of one physical core", "echo off > "),
        (Severity::Hint, "no core is isolated", "grubby "),
        (Severity::Warning, "governor is schedutil", "cpupower frequency-set"),
        (Severity::Hint, "idle state C6 takes 133 us", "cpupower idle-set -D 10"),
        (Severity::Warning, "NUMA balancing is on", "sysctl -w kernel.numa_balancing=0"),
        (Severity::Warning, "clock source is hpet", "dmesg "),
    ];
    for (severity, words, fix) in expected {
        about(&findings, words).check(severity, fix);
    }
    assert_eq!(complaints(&findings).len(), expected.len(), "{findings:#?}");
    for finding in &findings {
        let costs = finding.cost.as_deref().is_some_and(|cost| !cost.is_empty());
        assert_eq!(costs, finding.severity != Severity::Ok, "{finding:#?}");
    }
    let report = report(&machine);
    assert!(report.severity() >= Severity::Warning);
    let text = report.text();
    text.check_words(&["             costs: registration with an RDMA device fails\n"]);
}

#[test]
fn a_virtual_machine_with_nothing_gets_hints_and_one_warning() {
    let machine = FakeMachine::empty();
    #[rustfmt::skip]
    let cases = [
        ("proc/sys/kernel/osrelease", "6.1.0-13-cloud-amd64"),
        ("proc/self/status", "CapEff:\t0\nCpus_allowed_list:\t0-1"),
        ("proc/cpuinfo", "flags\t\t: fpu hypervisor constant_tsc nonstop_tsc"),
        ("CLOCK/current_clocksource", "kvm-clock"),
    ];
    for (path, text) in cases {
        machine.set(path, text);
    }
    let findings = findings(&machine);
    let hugepages = about(&findings, "hugepages: 0 of 2 MiB");
    assert_eq!(hugepages.severity, Severity::Warning);
    for words in [
        "no RDMA device",
        "no core is isolated",
        "a hypervisor is underneath",
    ] {
        assert_eq!(about(&findings, words).severity, Severity::Hint, "{words}");
    }
    about(&findings, "no RDMA device").check_advice("CONFIG_RDMA_RXE");
    assert_eq!(complaints(&findings).len(), 4, "{findings:#?}");
    assert!(report(&machine).severity() >= Severity::Warning);
}

#[test]
fn a_warning_fails_the_command_and_a_hint_does_not() {
    let machine = FakeMachine::good();
    let governor = "CPU/cpu0/cpufreq/scaling_governor";
    assert!(report(&machine).severity() < Severity::Warning);
    machine.set(governor, "powersave");
    assert_eq!(report(&machine).severity, Severity::Warning);
    assert!(report(&machine).severity() >= Severity::Warning);
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(files(&entry.path()));
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    found
}

#[test]
fn files_with_anything_in_them_spoil_neither_report_nor_terminal() {
    let machine = tuned();
    let files = files(machine.root());
    assert!(files.len() > 60, "{}", files.len());
    let contents: [&[u8]; 6] = [
        b"",
        b"\xff\xfe\x00\x80",
        b"18446744073709551615",
        b"-1",
        b"\x1b[2J\x07 18446744073709551616 Gb/sec GT/s: [x]",
        b"0-18446744073709551615,5-3",
    ];
    for file in &files {
        let good = std::fs::read(file).unwrap();
        for content in contents {
            std::fs::write(file, content).unwrap();
            let report = report(&machine);
            let text = report.text();
            let harmless = |character: char| character == '\n' || !character.is_control();
            assert!(text.chars().all(harmless), "{}: {text:?}", file.display());
            assert!(serde_json::to_value(&report).is_ok());
        }
        std::fs::remove_file(file).unwrap();
        let _ = report(&machine).text();
        std::fs::create_dir(file).unwrap();
        let _ = report(&machine).text();
        std::fs::remove_dir(file).unwrap();
        std::fs::write(file, good).unwrap();
    }
    assert_eq!(complaints(&findings(&machine)), [] as [&Finding; 0]);
}

fn shm() -> Loaded {
    rpcrdma_tuning::Layers::named("shm")
        .unwrap()
        .build()
        .unwrap()
}

fn report(machine: &FakeMachine) -> Report {
    Report::of(&machine.system(), &Needs::of(&shm()))
}

#[test]
fn a_good_machine_without_a_device_has_hints_at_most() {
    let report = report(&FakeMachine::good());
    assert!(report.severity <= Severity::Hint, "{:?}", report.findings);
    assert!(report.severity() < Severity::Warning);
    let text = report.text();
    assert!(text.contains("shm:NAME is carried by shm"), "{text}");
    assert!(
        text.lines()
            .last()
            .unwrap()
            .starts_with("nothing stands in the way"),
        "{text}"
    );
}

#[test]
fn problem_fails_the_command_and_the_table_says_how_to_fix_it() {
    let machine = FakeMachine::good();
    machine.set("proc/sys/kernel/osrelease", "4.19.0");
    let report = report(&machine);
    assert_eq!(report.severity(), Severity::Problem);
    let text = report.text();
    text.check_words(&["  problem  shm:NAME cannot be used"]);
    text.check_words(&["what to do: run a kernel from 5.1 on"]);
    assert!(
        text.lines().last().unwrap().starts_with("1 problem"),
        "{text}"
    );
}

#[test]
fn nothing_at_all_is_known_and_nothing_panics() {
    let report = report(&FakeMachine::empty());
    assert!(report.severity < Severity::Problem, "{:?}", report.findings);
    let _ = (report.text(), serde_json::to_value(&report).unwrap());
}

#[test]
fn json_has_findings_by_area_and_the_facts_behind_them() {
    let value = serde_json::to_value(report(&FakeMachine::good())).unwrap();
    assert_eq!(value["profile"], "shm");
    assert_eq!(value["providers"][0]["provider"], "shm");
    assert_eq!(value["clock"]["source"], "tsc");
    assert_eq!(value["memory"]["hugepages"][0]["page_bytes"], 2 << 20);
    assert_eq!(
        value["processors"]["allowed"],
        serde_json::json!([0, 1, 2, 3])
    );
    let findings = value["findings"].as_array().unwrap();
    let areas: Vec<&str> = findings
        .iter()
        .map(|finding| finding["area"].as_str().unwrap())
        .collect();
    let order = |area: &str| {
        finding::Area::ALL
            .iter()
            .position(|known| known.name() == area)
    };
    assert!(
        areas.is_sorted_by_key(|area| order(area).unwrap()),
        "{areas:?}"
    );
    for finding in findings {
        assert!(finding["severity"].is_string() && finding["what"].is_string());
        assert!(finding["mend"].is_string() || finding["mend"].is_null());
    }
}

#[test]
fn the_needs_are_those_of_the_profile() {
    let needs = Needs::of(&shm());
    assert_eq!(needs.profile, "shm");
    assert!(needs.core_bytes > 1 << 20 && needs.connections_max > 0);
}

/// Each device has Receives for all connections of a core, so two of them lock more than twice the memory of one.
#[test]
fn needs_of_two_devices_are_those_of_a_core_on_both() {
    let profile = shm();
    let mut core = rpcrdma_control::NodeConfig::from_profile(&profile.profile, Vec::new()).core;
    let needs = Needs::of(&profile);
    assert_eq!(needs.locked_bytes(1), core.arena_bytes());
    core.rails = 2;
    assert_eq!(needs.locked_bytes(2), 2 * core.arena_bytes());
    assert!(needs.locked_bytes(2) > 2 * needs.locked_bytes(1));
}
