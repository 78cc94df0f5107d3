//! The command line of the kernel, and its settings that affect registered memory and devices.

use serde::Serialize;

use super::finding::{Area, Finding, Findings, Severity};
use super::system::System;

/// The kernel in the JSON report. `None` if the system does not give the value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Kernel {
    /// The release.
    pub release: Option<String>,
    /// The command line.
    pub command_line: Option<String>,
    /// Whether NUMA balancing is on: the kernel moves memory and threads between NUMA nodes according to their use.
    pub numa_balancing: Option<bool>,
    /// The number of NUMA nodes that are online.
    pub numa_nodes: usize,
    /// Whether each RDMA device belongs to one network namespace. If not, all namespaces share all devices.
    pub rdma_namespaces_exclusive: Option<bool>,
}

/// Examines the kernel. `has_devices`: whether this process sees an RDMA device.
pub(crate) fn examine(system: &System, has_devices: bool, all: &mut Vec<Finding>) -> Kernel {
    let nodes = system.cores("/sys/devices/system/node/online");
    let kernel = Kernel {
        release: system.text("/proc/sys/kernel/osrelease"),
        command_line: system.text("/proc/cmdline"),
        numa_balancing: system
            .number("/proc/sys/kernel/numa_balancing")
            .map(|mode| mode != 0),
        numa_nodes: nodes.map_or(0, |nodes| nodes.len()),
        // The parameter is `Y` if namespaces share devices, and `N` if they do not.
        rdma_namespaces_exclusive: system
            .text("/sys/module/ib_core/parameters/netns_mode")
            .map(|shared| shared == "N"),
    };
    let mut findings = Findings::new(Area::Kernel, all);
    if let Some(release) = &kernel.release {
        let command_line = kernel.command_line.as_deref().unwrap_or("not readable");
        findings.ok(format!(
            "kernel {release}, its command line: {command_line}"
        ));
    }
    judge_balancing(&kernel, &mut findings);
    let has_core = system.exists("/sys/module/ib_core");
    judge_namespaces(&kernel, has_core, has_devices, &mut findings);
    kernel
}

fn judge_balancing(kernel: &Kernel, findings: &mut Findings<'_>) {
    match kernel.numa_balancing {
        // On one node, NUMA balancing has no effect.
        Some(true) if kernel.numa_nodes > 1 => findings.note(
            Severity::Warning,
            "NUMA balancing is on",
            "the kernel unmaps pages to see which threads use them: polling cores take page faults, and threads migrate",
            "sysctl -w kernel.numa_balancing=0   # lasting: the same in /etc/sysctl.d",
        ),
        Some(true) => findings.ok("NUMA balancing is on, and there is one node"),
        Some(false) => findings.ok("NUMA balancing is off"),
        None => {}
    }
}

fn judge_namespaces(
    kernel: &Kernel,
    has_core: bool,
    has_devices: bool,
    findings: &mut Findings<'_>,
) {
    match kernel.rdma_namespaces_exclusive {
        Some(true) if has_devices => {
            findings.ok("each RDMA device belongs to one network namespace; those of this one are seen");
        }
        Some(true) => findings.note(
            Severity::Hint,
            "each RDMA device belongs to one network namespace, and this one has none",
            "devices of other namespaces cannot be reached from here",
            "rdma dev set DEVICE netns NAMESPACE   # in the namespace that has it; to share all: `options ib_core \
             netns_mode=1` in /etc/modprobe.d, and reboot",
        ),
        Some(false) => findings.ok("RDMA devices are shared by all network namespaces"),
        None if has_core => findings.ok(
            "whether RDMA devices belong to network namespaces is not told: ib_core of this kernel has no netns_mode",
        ),
        None => findings.ok("no RDMA namespaces: the kernel's RDMA core (ib_core) is not loaded"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::tests::about;
    use super::super::system::tests::FakeMachine;
    use super::*;

    fn of(machine: &FakeMachine, has_devices: bool) -> (Kernel, Vec<Finding>) {
        let mut findings = Vec::new();
        let kernel = examine(&machine.system(), has_devices, &mut findings);
        (kernel, findings)
    }

    #[test]
    fn the_command_line_is_told_as_it_is() {
        let machine = FakeMachine::good();
        about(
            &of(&machine, false).1,
            "6.12.3, its command line: not readable",
        );
        machine.set("proc/cmdline", "quiet nohz_full=2-3");
        let (kernel, findings) = of(&machine, false);
        assert_eq!(kernel.command_line.as_deref(), Some("quiet nohz_full=2-3"));
        about(&findings, "its command line: quiet nohz_full=2-3");
    }

    #[test]
    fn numa_balancing_costs_where_there_is_more_than_one_node() {
        let machine = FakeMachine::good();
        machine.set("proc/sys/kernel/numa_balancing", "1");
        for (nodes, severity) in [("0", Severity::Ok), ("0-1", Severity::Warning)] {
            machine.set("NODE/online", nodes);
            about(&of(&machine, true).1, "NUMA balancing").check(severity, "");
        }
        machine.set("proc/sys/kernel/numa_balancing", "0");
        about(&of(&machine, true).1, "NUMA balancing is off").check(Severity::Ok, "");
    }

    #[test]
    fn namespaces_without_a_device_are_reported() {
        let machine = FakeMachine::good();
        about(&of(&machine, false).1, "no RDMA namespaces");
        machine.set("sys/module/ib_core/refcnt", "3");
        about(
            &of(&machine, false).1,
            "ib_core of this kernel has no netns_mode",
        );
        let mode = "sys/module/ib_core/parameters/netns_mode";
        machine.set(mode, "Y");
        about(&of(&machine, false).1, "shared by all network namespaces");
        machine.set(mode, "N");
        about(&of(&machine, true).1, "those of this one are seen");
        about(&of(&machine, false).1, "this one has none")
            .check(Severity::Hint, "rdma dev set DEVICE netns ");
    }
}
