//! The machine and its cores. Reports include it, because numbers mean little without the machine.

use std::borrow::Cow;
use std::fs;

use crate::exit::Failure;
use rpcrdma_doctor::{CoreList, chosen_of_brackets, core_list, format_cores};
use serde::{Deserialize, Serialize};

/// The machine in a report. `None` means that the system does not provide the value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// CPU model.
    pub cpu: String,
    /// Instruction set, as Rust names it.
    pub arch: Cow<'static, str>,
    /// Operating system and kernel release.
    pub os: String,
    /// Number of online cores.
    pub cores_online: usize,
    /// Cores that this process may use.
    pub cores_usable: Vec<usize>,
    /// Main memory.
    pub memory_bytes: Option<u64>,
    /// Whether a hypervisor is present; it determines the far tail of every latency.
    pub hypervisor: bool,
    /// The kernel's clock source; anything but `tsc` makes clock reads slow on x86.
    pub kernel_clock_source: Option<String>,
    /// Frequency governor of the first usable core.
    pub frequency_governor: Option<String>,
    /// The list of isolated cores, which the kernel keeps free of other work; empty if there are none.
    pub isolated_cores: Option<String>,
    /// Reserved pages of 2 MiB.
    pub hugepages_2mib_total: Option<u64>,
    /// Reserved pages of 2 MiB that are free.
    pub hugepages_2mib_free: Option<u64>,
    /// Mode of transparent huge pages: always, madvise or never.
    pub transparent_hugepages: Option<String>,
}

impl Machine {
    /// Reads the machine's properties. Call it before pinning: the usable cores are those of the calling thread.
    #[must_use]
    pub(crate) fn detect() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            cpuinfo.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim().to_owned())
            })
        };
        let cores_usable = cores_usable();
        let first = cores_usable.first().copied().unwrap_or(0);
        Self {
            cpu: field("model name").unwrap_or_else(|| "unknown".to_owned()),
            arch: std::env::consts::ARCH.into(),
            os: os_line(),
            cores_online: read("/sys/devices/system/cpu/online")
                .and_then(|text| core_list(&text).ok())
                .map_or(cores_usable.len(), |list| list.0.len()),
            memory_bytes: memory_total_bytes(),
            hypervisor: field("flags")
                .is_some_and(|flags| flags.split(' ').any(|f| f == "hypervisor")),
            kernel_clock_source: read(
                "/sys/devices/system/clocksource/clocksource0/current_clocksource",
            ),
            frequency_governor: read(&format!(
                "/sys/devices/system/cpu/cpu{first}/cpufreq/scaling_governor"
            )),
            isolated_cores: read_even_empty("/sys/devices/system/cpu/isolated"),
            hugepages_2mib_total: hugepages("nr_hugepages"),
            hugepages_2mib_free: hugepages("free_hugepages"),
            transparent_hugepages: read("/sys/kernel/mm/transparent_hugepage/enabled")
                .and_then(|text| chosen_of_brackets(&text)),
            cores_usable,
        }
    }

    /// Checks that this process may use the cores.
    ///
    /// # Errors
    /// A usage failure with the first unusable core and the list of usable ones.
    pub(crate) fn check_cores(&self, cores: &CoreList) -> Result<(), Failure> {
        match cores.0.iter().find(|core| !self.cores_usable.contains(core)) {
            None => Ok(()),
            Some(core) => Err(Failure::usage(format!(
                "there is no core {core} that this process may use"
            ))
            .advice(format!(
                "give --cores numbers from {}; taskset and the container's cpuset decide which these are, and only taskset gives isolated cores",
                format_cores(&self.cores_usable)
            ))),
        }
    }

    /// Two cores for a measurement: different physical cores and, if possible, in the same package.
    ///
    /// # Errors
    /// A failure if this process may use fewer than two cores.
    pub(crate) fn default_pair(&self) -> Result<[usize; 2], Failure> {
        let (&first, rest) = self.cores_usable.split_first().ok_or_else(no_pair)?;
        let apart = |core: &&usize| !are_siblings(first, **core);
        let near = |core: &&usize| package(first) == package(**core);
        rest.iter()
            .find(|core| apart(core) && near(core))
            .or_else(|| rest.iter().find(apart))
            .or_else(|| rest.first())
            .map(|&second| [first, second])
            .ok_or_else(no_pair)
    }

    /// Warnings about the machine that limit the trust in the numbers, one sentence each.
    #[must_use]
    pub(crate) fn warnings(&self, cores: &[usize]) -> Vec<String> {
        let mut warnings = Vec::new();
        if let [first, second, ..] = *cores
            && are_siblings(first, second)
        {
            warnings.push(format!(
                "cores {first} and {second} are threads of one physical core: they share its caches and \
                 its execution units, so latencies look better and rates worse than between two cores"
            ));
        }
        if self
            .kernel_clock_source
            .as_deref()
            .is_some_and(|source| self.arch == "x86_64" && source != "tsc" && source != "kvm-clock")
        {
            warnings.push(format!(
                "the kernel does not trust the TSC of this machine (clock source {}): times may drift",
                self.kernel_clock_source.as_deref().unwrap_or("unknown")
            ));
        }
        if let Some(governor) = self.frequency_governor.as_deref()
            && governor != "performance"
        {
            warnings.push(format!(
                "frequency governor is {governor}: results change with the frequency; \
                 `cpupower frequency-set -g performance` pins it"
            ));
        }
        if cfg!(debug_assertions) {
            warnings.push(
                "this is a debug build, many times slower: build with --release to measure"
                    .to_owned(),
            );
        }
        warnings
    }
}

fn no_pair() -> Failure {
    Failure::failed("this process may use only one core, and a round trip between cores needs two")
        .advice("give it a second one (taskset, the container's cpuset, or the size of the virtual machine)")
}

/// The cores that the calling thread may use, in ascending order.
#[must_use]
pub(crate) fn cores_usable() -> Vec<usize> {
    let mut cores: Vec<usize> = core_affinity::get_core_ids()
        .unwrap_or_default()
        .into_iter()
        .map(|core| core.id)
        .collect();
    cores.sort_unstable();
    cores
}

/// Whether the kernel reports both as threads of one physical core.
fn are_siblings(first: usize, second: usize) -> bool {
    read(&format!(
        "/sys/devices/system/cpu/cpu{first}/topology/thread_siblings_list"
    ))
    .and_then(|text| core_list(&text).ok())
    .is_some_and(|list| list.0.contains(&second))
}

fn package(core: usize) -> Option<String> {
    read(&format!(
        "/sys/devices/system/cpu/cpu{core}/topology/physical_package_id"
    ))
}

fn hugepages(file: &str) -> Option<u64> {
    read(&format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{file}"))?
        .parse()
        .ok()
}

fn memory_total_bytes() -> Option<u64> {
    meminfo_bytes("MemTotal")
}

/// Memory that is available without swapping.
#[must_use]
pub(crate) fn memory_available_bytes() -> Option<u64> {
    meminfo_bytes("MemAvailable")
}

fn meminfo_bytes(key: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find(|line| line.split(':').next() == Some(key))?;
    line.split_whitespace()
        .nth(1)?
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

/// Moves the calling thread off the CPUs of polling cores, if it may use any others.
pub(crate) fn keep_off(processors: &[usize]) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(mut allowed) = sched_getaffinity(None) else {
        return;
    };
    for processor in processors.iter().filter(|it| **it < CpuSet::MAX_CPU) {
        allowed.unset(*processor);
    }
    if allowed.count() != 0 {
        // Ignore a failure: a thread that shares a CPU with a polling core only costs some latency.
        let _ = sched_setaffinity(None, &allowed);
    }
}

fn os_line() -> String {
    match (
        read("/proc/sys/kernel/ostype"),
        read("/proc/sys/kernel/osrelease"),
    ) {
        (Some(name), Some(release)) => format!("{name} {release}"),
        _ => std::env::consts::OS.to_owned(),
    }
}

fn read_even_empty(path: &str) -> Option<String> {
    fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
}

fn read(path: &str) -> Option<String> {
    read_even_empty(path).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(cores_usable: Vec<usize>) -> Machine {
        Machine {
            cores_usable,
            ..Machine::detect()
        }
    }

    #[test]
    fn a_core_that_is_not_there_is_a_usage_error_that_names_those_that_are() {
        let failure = machine(vec![0, 1, 2, 5])
            .check_cores(&CoreList(vec![1, 7]))
            .unwrap_err();
        assert_eq!(failure.status(), crate::exit::Status::Usage);
        let text = failure.to_string();
        assert!(text.contains("core 7") && text.contains("0-2,5"), "{text}");
        assert!(
            machine(vec![0, 1])
                .check_cores(&CoreList(vec![1, 0]))
                .is_ok()
        );
    }

    #[test]
    fn one_core_is_no_pair() {
        assert!(
            machine(vec![3])
                .default_pair()
                .unwrap_err()
                .to_string()
                .contains("one core")
        );
        assert!(machine(vec![]).default_pair().is_err());
        // Cores 900 and 901 have no topology files, so nothing excludes the pair.
        assert_eq!(machine(vec![900, 901]).default_pair().unwrap(), [900, 901]);
    }

    #[test]
    fn this_machine_has_a_core_and_memory() {
        let machine = Machine::detect();
        assert!(!machine.cores_usable.is_empty());
        assert!(machine.cores_online >= 1);
        assert!(machine.memory_bytes.is_some_and(|bytes| bytes > 1 << 20));
    }
}
