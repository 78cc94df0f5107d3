//! Compares memory, hugepages and file descriptors with the requirements of the profile.

use serde::Serialize;

use rpcrdma_tuning::Hugepages;

use super::Needs;
use super::finding::{Area, Finding, Findings, Severity};
use super::system::System;
use rpcrdma_units::size;

/// The bit of CAP_IPC_LOCK in the capabilities. A process with it may lock memory without limit.
const CAP_IPC_LOCK: u32 = 14;

/// The user map of the first user namespace: the first user inside, the first user outside, the number of users.
const ALL_USERS: [&str; 3] = ["0", "0", "4294967295"];

/// An upper bound for the file descriptors of a process other than those of its connections.
const OTHER_FILES: u64 = 64;

/// The number of cores of a run: one for the client and one for the server.
const CORES: u64 = 2;

const MM: &str = "/sys/kernel/mm";

/// Hugepages of one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct HugepageSize {
    /// The size of a page.
    pub page_bytes: u64,
    /// The number of pages.
    pub total: u64,
    /// The number of free pages.
    pub free: u64,
    /// The number of free pages that are reserved for a mapping.
    pub reserved: u64,
}

/// The memory in the JSON report. `None` if the system does not give the value or there is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Memory {
    /// The memory that is available without swapping.
    pub available_bytes: Option<u64>,
    /// The number of bytes that this process may lock (soft limit); null means unlimited.
    pub memlock_bytes: Option<u64>,
    /// The largest soft limit that this process may set (hard limit); null means unlimited.
    pub memlock_max_bytes: Option<u64>,
    /// Whether this process may exceed the limit (CAP_IPC_LOCK of the machine, not of another user namespace).
    pub memlock_exempt: bool,
    /// The hugepages, by size.
    pub hugepages: Vec<HugepageSize>,
    /// The default size of hugepages, which `vm.nr_hugepages` counts.
    pub hugepage_default_bytes: Option<u64>,
    /// The mode of transparent hugepages: always, madvise or never.
    pub transparent_hugepages: Option<String>,
    /// The largest number of open files that this process may set as its limit; null means unlimited.
    pub open_files_max: Option<u64>,
    /// The number of bytes that one core of the profile registers.
    pub core_bytes: u64,
}

/// Examines the memory for a machine with so many active RDMA devices. Registration locks memory, for each device once more.
pub(crate) fn examine(
    system: &System,
    needs: &Needs,
    devices: usize,
    all: &mut Vec<Finding>,
) -> Memory {
    let memory = Memory {
        available_bytes: system.meminfo_bytes("MemAvailable"),
        memlock_bytes: system
            .limit("Max locked memory")
            .and_then(|limit| limit.soft),
        memlock_max_bytes: system
            .limit("Max locked memory")
            .and_then(|limit| limit.hard),
        memlock_exempt: may_lock(system),
        hugepages: hugepages(system),
        hugepage_default_bytes: system.meminfo_bytes("Hugepagesize"),
        transparent_hugepages: system
            .text("/sys/kernel/mm/transparent_hugepage/enabled")
            .and_then(|text| super::system::chosen_of_brackets(&text)),
        open_files_max: system.limit("Max open files").and_then(|limit| limit.hard),
        core_bytes: needs.core_bytes,
    };
    let mut findings = Findings::new(Area::Memory, all);
    judge_available(&memory, &mut findings);
    judge_memlock(&memory, needs, devices, &mut findings);
    judge_hugepages(&memory, needs, &mut findings);
    judge_transparent(&memory, &mut findings);
    judge_files(&memory, needs, &mut findings);
    memory
}

/// Whether this process has CAP_IPC_LOCK in the first user namespace. The kernel checks the capability there when
/// memory is registered with a device.
fn may_lock(system: &System) -> bool {
    let has_capability = system
        .status("CapEff")
        .and_then(|hex| u64::from_str_radix(&hex, 16).ok())
        .is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1);
    // Only the first user namespace maps every user to itself. A kernel without user namespaces has no such file.
    let users = system.text("/proc/self/uid_map");
    let is_first = users.is_none_or(|users| users.split_whitespace().eq(ALL_USERS));
    has_capability && is_first
}

fn hugepages(system: &System) -> Vec<HugepageSize> {
    let folder = format!("{MM}/hugepages");
    let mut sizes: Vec<HugepageSize> = system
        .names(&folder)
        .iter()
        .filter_map(|name| {
            let kib: u64 = name
                .strip_prefix("hugepages-")?
                .strip_suffix("kB")?
                .parse()
                .ok()?;
            let count = |file: &str| system.number(&format!("{folder}/{name}/{file}"));
            Some(HugepageSize {
                page_bytes: kib.checked_mul(1024)?,
                total: count("nr_hugepages")?,
                free: count("free_hugepages")?,
                reserved: count("resv_hugepages").unwrap_or(0),
            })
        })
        .collect();
    sizes.sort_unstable_by_key(|pages| pages.page_bytes);
    sizes
}

fn judge_available(memory: &Memory, findings: &mut Findings<'_>) {
    let need = memory.core_bytes.saturating_mul(CORES);
    if let Some(available) = memory.available_bytes.filter(|available| *available < need) {
        findings.note(
            Severity::Problem,
            format!(
                "{} MiB of memory can be had, and two cores of the profile register {} MiB",
                available >> 20,
                need >> 20
            ),
            "cores do not start",
            "bench-tool run --connections 1   # or a profile with a smaller connections_max or credits_per_connection",
        );
    }
}

fn judge_memlock(memory: &Memory, needs: &Needs, devices: usize, findings: &mut Findings<'_>) {
    let Some(limit) = memory.memlock_bytes.filter(|_| !memory.memlock_exempt) else {
        let why = if memory.memlock_exempt {
            "this process has CAP_IPC_LOCK"
        } else {
            "unlimited"
        };
        return findings.ok(format!("locked memory: {why}"));
    };
    let count = u64::try_from(devices).unwrap_or(u64::MAX);
    let of_all = needs.locked_bytes(count.max(1));
    // The limit counts per process. Client and server are separate processes of one core each.
    if limit > of_all {
        return findings.ok(format!("locked memory: up to {}", size(limit)));
    }
    let registers =
        |bytes: u64| format!("registers {} MiB and its queues", bytes.div_ceil(1 << 20));
    let (severity, who, cost) = if limit > memory.core_bytes {
        let who = format!(
            "one core of a node on {devices} devices {} in all",
            registers(of_all)
        );
        let cost = "enough for a node on one device; a node on several does not start";
        (Severity::Hint, who, cost)
    } else {
        let who = format!("a process of one core {}", registers(memory.core_bytes));
        match devices {
            0 => {
                let cost = "nothing with shm; registration with an RDMA device would fail";
                (Severity::Hint, who, cost)
            }
            _ => (
                Severity::Problem,
                who,
                "registration with an RDMA device fails",
            ),
        }
    };
    findings.note(
        severity,
        format!("this process may lock {}, and {who}", size(limit)),
        cost,
        format!(
            "{}; lasting: `* - memlock unlimited` in /etc/security/limits.d/rdma.conf, or LimitMEMLOCK=infinity \
             in the systemd unit",
            match memory.memlock_max_bytes {
                None => "ulimit -l unlimited   # in the shell of the run",
                Some(_) => "prlimit --pid $$ --memlock=unlimited   # by sudo, in the shell of the run",
            }
        ),
    );
}

/// The number of hugepages for the arenas of a run; `None` if the profile uses no hugepages.
pub(crate) fn pages_needed(needs: &Needs) -> Option<u64> {
    let pages = needs.core_bytes.div_ceil(needs.hugepage_bytes.max(1));
    (needs.hugepages != Hugepages::Never).then_some(pages.saturating_mul(CORES))
}

/// The folder of the hugepages with the size in the profile, relative to the folder of the kernel or of a NUMA node.
pub(crate) fn pool(needs: &Needs) -> String {
    format!("hugepages/hugepages-{}kB", needs.hugepage_bytes / 1024)
}

fn judge_hugepages(memory: &Memory, needs: &Needs, findings: &mut Findings<'_>) {
    let Some(pages) = pages_needed(needs) else {
        return findings.ok("hugepages: the profile does not want them");
    };
    let found = memory
        .hugepages
        .iter()
        .find(|pages| pages.page_bytes == needs.hugepage_bytes);
    let (total, unclaimed) = found.map_or((0, 0), |found| {
        (found.total, found.free.saturating_sub(found.reserved))
    });
    let what = format!(
        "hugepages: {unclaimed} of {} are free, two cores take {pages}",
        size(needs.hugepage_bytes)
    );
    if unclaimed >= pages {
        return findings.ok(what);
    }
    let (severity, cost) = if needs.hugepages == Hugepages::Require {
        (
            Severity::Problem,
            "the profile requires them: cores do not start",
        )
    } else {
        (
            Severity::Warning,
            "arenas are made of ordinary pages: more TLB misses, in the processor and in the device",
        )
    };
    let fix = if found.is_some() {
        let count = total.saturating_add(pages - unclaimed);
        // The sysctl sets the number of hugepages of the default size only.
        let sysctl = if memory.hugepage_default_bytes == Some(needs.hugepage_bytes) {
            format!("vm.nr_hugepages={count} in /etc/sysctl.d, or ")
        } else {
            String::new()
        };
        format!(
            "echo {count} > {MM}/{}/nr_hugepages   # lasting: {sysctl}hugepagesz={} hugepages={count} on the \
             kernel's command line",
            pool(needs),
            size(needs.hugepage_bytes)
                .replace(" GiB", "G")
                .replace(" MiB", "M")
        )
    } else {
        format!(
            "ls {MM}/hugepages   # the sizes that the kernel has; hugepage_bytes of the profile chooses one"
        )
    };
    findings.note(severity, what, cost, fix);
}

fn judge_transparent(memory: &Memory, findings: &mut Findings<'_>) {
    match memory.transparent_hugepages.as_deref() {
        Some("never") => findings.note(
            Severity::Hint,
            "transparent hugepages are off",
            "memory that got no hugepages stays on ordinary pages",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        Some(mode) => findings.ok(format!("transparent hugepages: {mode}")),
        None => {}
    }
}

fn judge_files(memory: &Memory, needs: &Needs, findings: &mut Findings<'_>) {
    let need = u64::from(needs.connections_max) + OTHER_FILES;
    match memory.open_files_max {
        Some(limit) if limit < need => findings.note(
            Severity::Warning,
            format!(
                "a process may have {limit} open files, and the profile admits {} connections to a core",
                needs.connections_max
            ),
            "each connection uses one: they run out before the profile's own limit",
            format!(
                "prlimit --pid $$ --nofile={need}   # by sudo, in the shell of the run; lasting: nofile in \
                 /etc/security/limits.d, or LimitNOFILE={need} in the systemd unit"
            ),
        ),
        Some(limit) => findings.ok(format!("open files: up to {limit}")),
        None => findings.ok("open files: unlimited, or unknown"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::tests::{about, check_no_complaints};
    use super::super::system::tests::FakeMachine;
    use super::super::tests::needs;
    use super::*;

    fn of(machine: &FakeMachine, needs: &Needs, devices: usize) -> (Memory, Vec<Finding>) {
        let mut findings = Vec::new();
        let memory = examine(&machine.system(), needs, devices, &mut findings);
        (memory, findings)
    }

    #[test]
    fn machine_with_enough_memory_has_no_complaint() {
        let (memory, findings) = of(&FakeMachine::good(), &needs(), 1);
        check_no_complaints(&findings);
        let pages = HugepageSize {
            page_bytes: 2 << 20,
            total: 4096,
            free: 4096,
            reserved: 0,
        };
        assert_eq!(memory.hugepages, [pages]);
        assert_eq!(
            (memory.memlock_bytes, memory.open_files_max),
            (None, Some(1 << 20))
        );
    }

    #[test]
    fn a_memlock_limit_is_a_problem_for_devices_alone_and_not_for_the_privileged() {
        let machine = FakeMachine::good();
        let locked = "Max locked memory   8388608   8388608   bytes";
        machine.set("proc/self/limits", locked);
        let (memory, findings) = of(&machine, &needs(), 1);
        assert_eq!(memory.memlock_bytes, Some(8 << 20));
        // Above the hard limit only root lifts it.
        about(&findings, "may lock 8 MiB")
            .check(Severity::Problem, "prlimit --pid $$ --memlock=unlimited ");
        let locked = "Max locked memory   8388608   unlimited   bytes";
        machine.set("proc/self/limits", locked);
        let (_, findings) = of(&machine, &needs(), 1);
        about(&findings, "may lock 8 MiB").check(Severity::Problem, "ulimit -l unlimited ");
        let (_, findings) = of(&machine, &needs(), 0);
        about(&findings, "may lock 8 MiB").check(Severity::Hint, "");
        // Each device of a node has more Receives, and counts all that it registers.
        for (locked, severity) in [(160 << 20, Severity::Hint), ((160 << 20) + 1, Severity::Ok)] {
            let locked = format!("Max locked memory   {locked}   {locked}   bytes");
            machine.set("proc/self/limits", &locked);
            assert_eq!(
                about(&of(&machine, &needs(), 1).1, "lock").severity,
                Severity::Ok
            );
            let found = about(&of(&machine, &needs(), 2).1, "lock").clone();
            assert_eq!(found.severity, severity, "{found:?}");
            let says_how_much = found.what.contains("on 2 devices registers 160 MiB");
            assert_eq!(says_how_much, severity == Severity::Hint, "{found:?}");
        }
        // Client and server are two processes, and each has the limit for itself.
        for (locked, severity) in [("67108865", Severity::Ok), ("67108864", Severity::Problem)] {
            let locked = format!("Max locked memory   {locked}   {locked}   bytes");
            machine.set("proc/self/limits", &locked);
            let found = about(&of(&machine, &needs(), 1).1, "lock").clone();
            assert_eq!(found.severity, severity, "{found:?}");
        }
        machine.set("proc/self/status", "CapEff:\t0000000000004000");
        let (memory, findings) = of(&machine, &needs(), 1);
        assert!(memory.memlock_exempt);
        about(&findings, "CAP_IPC_LOCK").check(Severity::Ok, "");
        // Root of a user namespace, as in a rootless container, has it there alone.
        for (users, exempt) in [
            ("         0          0 4294967295", true),
            ("         0       1000          1", false),
            ("0 1000 1\n1 100000 65536", false),
        ] {
            machine.set("proc/self/uid_map", users);
            let (memory, findings) = of(&machine, &needs(), 1);
            assert_eq!(memory.memlock_exempt, exempt, "{users}");
            let problem = findings
                .iter()
                .any(|finding| finding.severity == Severity::Problem);
            assert_eq!(problem, !exempt, "{users}");
        }
    }

    #[test]
    fn hugepages_that_lack_are_counted_and_the_command_asks_for_those_that_are_missing() {
        let machine = FakeMachine::good();
        // 100 in all, of which 40 are free and 10 of those promised; 64 are needed.
        for (file, count) in [("nr", 100), ("free", 40), ("resv", 10)] {
            let path = format!("sys/kernel/mm/hugepages/hugepages-2048kB/{file}_hugepages");
            machine.set(&path, &count.to_string());
        }
        let finding = |needs: &Needs| about(&of(&machine, needs, 0).1, "hugepages: ").clone();
        let preferred = finding(&needs());
        let lack = "30 of 2 MiB are free, two cores take 64";
        assert!(preferred.what.contains(lack), "{preferred:?}");
        let pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
        let command = format!("echo 134 > {pool}   # lasting: hugepagesz=2M hugepages=134 on ");
        preferred.check(Severity::Warning, &command);
        machine.set(
            "proc/meminfo",
            "MemAvailable: 12000000 kB\nHugepagesize: 2048 kB",
        );
        let lasting = "# lasting: vm.nr_hugepages=134 in /etc/sysctl.d, or hugepagesz=2M ";
        finding(&needs()).check_advice(lasting);
        let hugepages = |hugepages| Needs {
            hugepages,
            ..needs()
        };
        finding(&hugepages(Hugepages::Require)).check(Severity::Problem, "");
        finding(&hugepages(Hugepages::Never)).check(Severity::Ok, "");
    }

    #[test]
    fn hugepages_are_looked_for_in_the_size_that_the_profile_asks_for() {
        let machine = FakeMachine::good();
        let large = Needs {
            hugepage_bytes: 1 << 30,
            ..needs()
        };
        let finding = || about(&of(&machine, &large, 0).1, "hugepages: ").clone();
        let none = finding();
        assert!(none.what.contains("0 of 1 GiB are free, two cores take 2"));
        none.check(Severity::Warning, "ls /sys/kernel/mm/hugepages ");
        let pool = "sys/kernel/mm/hugepages/hugepages-1048576kB";
        machine.set(&format!("{pool}/nr_hugepages"), "1");
        machine.set(&format!("{pool}/free_hugepages"), "1");
        // The default size, which a sysctl sets, is another.
        machine.set("proc/meminfo", "Hugepagesize: 2048 kB");
        let one = finding();
        let command =
            format!("echo 2 > /{pool}/nr_hugepages   # lasting: hugepagesz=1G hugepages=2 on ");
        one.check(Severity::Warning, &command);
        machine.set(&format!("{pool}/nr_hugepages"), "2");
        machine.set(&format!("{pool}/free_hugepages"), "2");
        assert_eq!(finding().severity, Severity::Ok);
    }

    #[test]
    fn too_little_memory_too_few_files_and_no_transparent_pages() {
        let machine = FakeMachine::good();
        machine.set("proc/meminfo", "MemAvailable: 102400 kB");
        machine.set("proc/self/limits", "Max open files   64   128   files");
        machine.set(
            "sys/kernel/mm/transparent_hugepage/enabled",
            "always madvise [never]",
        );
        let (_, findings) = of(&machine, &needs(), 0);
        about(&findings, "100 MiB of memory can be had").check(Severity::Problem, "");
        let files = about(&findings, "may have 128 open files");
        assert_eq!(files.severity, Severity::Warning);
        assert!(files.fix.as_deref().unwrap().contains(" --nofile=320 "));
        about(&findings, "transparent hugepages are off").check(Severity::Hint, "");
    }

    #[test]
    fn a_machine_of_which_nothing_is_known_has_no_hugepages_and_no_other_complaint() {
        let (memory, findings) = of(&FakeMachine::empty(), &needs(), 1);
        assert_eq!(memory.hugepages, []);
        let worse: Vec<_> = findings
            .iter()
            .filter(|finding| finding.severity > Severity::Hint)
            .collect();
        assert_eq!(worse.len(), 1, "{worse:?}");
    }
}
