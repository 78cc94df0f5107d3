//! Finds disturbances of a measured run: steal time of the hypervisor, other work on the cores, a changing frequency.
//!
//! The kernel counts the times. They are read before and after the calls, by the thread that waits for the calls, so
//! the reads take no time from the polling cores.

use std::path::Path;

use rpcrdma_units::nanoseconds;

use crate::cores::format_cores;
use crate::system::{System, field};
use crate::tasks::{Taker, Tasks, percent};

/// Steal time above this share gives a warning, in thousandths: such a share shows in p99.9.
const STOLEN_PERMILLE_MAX: u64 = 1;

/// The same limit for the time in which a polling thread was runnable but did not run.
const WAITED_PERMILLE_MAX: u64 = 1;

/// A larger difference between the first and the last frequency gives a warning, in percent.
const FREQUENCY_PERCENT_MAX: u64 = 3;

/// The number of fields that make up the time of a processor in `/proc/stat`: user, nice, system, idle, iowait, irq,
/// softirq, steal. The fields after them, the time of guests, are part of user and nice.
const TIMES: usize = 8;

/// The counters of the kernel for the cores and threads of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    cores: Vec<Core>,
    threads: Vec<Thread>,
    /// The threads of other processes.
    others: Tasks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Core {
    core: usize,
    /// Steal time and all time since the boot, in ticks of the kernel.
    stolen: u64,
    all: u64,
    frequency_khz: Option<u64>,
}

/// A thread that is pinned to one of the cores.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Thread {
    directory: String,
    core: usize,
    ran_ns: u64,
    /// The time in which the thread was runnable but did not run.
    waited_ns: u64,
    switches: u64,
}

impl Counted {
    /// Reads the counters of `cores`, and of the threads of `processes` that are pinned to one of these cores.
    #[must_use]
    pub fn read(cores: &[usize], processes: &[u32]) -> Self {
        Self::read_from(&System::below(Path::new("/")), cores, processes)
    }

    fn read_from(system: &System, cores: &[usize], processes: &[u32]) -> Self {
        let stat = system.text("/proc/stat").unwrap_or_default();
        let threads = processes.iter().flat_map(|process| {
            let tasks = format!("/proc/{process}/task");
            let names = system.names(&tasks).into_iter();
            names.map(move |name| format!("{tasks}/{name}"))
        });
        Self {
            others: Tasks::read(system, processes),
            cores: cores
                .iter()
                .filter_map(|core| Core::read(system, &stat, *core))
                .collect(),
            threads: threads
                .filter_map(|directory| Thread::read(system, directory, cores))
                .collect(),
        }
    }

    /// The disturbances between `before` and `self`, one sentence each with advice.
    #[must_use]
    pub fn warnings_since(&self, before: &Self) -> Vec<String> {
        let mut warnings = Vec::new();
        for core in &self.cores {
            let same = before.cores.iter().find(|it| it.core == core.core);
            warnings.extend(same.into_iter().flat_map(|it| core.warnings_since(it)));
        }
        for thread in &self.threads {
            let mut same = before.threads.iter();
            let same = same.find(|it| it.directory == thread.directory);
            warnings.extend(same.and_then(|it| {
                let taker = self.taker_since(before, thread.core);
                thread.warning_since(it, taker.as_ref())
            }));
        }
        warnings
    }

    /// The thread of another process that took most of this core's time.
    fn taker_since(&self, before: &Self, core: usize) -> Option<Taker> {
        let of = |counted: &Self| {
            let mut cores = counted.cores.iter();
            cores.find(|it| it.core == core).map(|it| it.all)
        };
        let ticks = of(self)?.saturating_sub(of(before)?);
        let takers = self.others.takers_since(&before.others, core, ticks);
        takers.into_iter().next()
    }
}

impl Core {
    fn read(system: &System, stat: &str, core: usize) -> Option<Self> {
        let name = format!("cpu{core} ");
        let line = stat.lines().find_map(|line| line.strip_prefix(&name))?;
        let (stolen, all) = stolen_and_all(line)?;
        Some(Self {
            core,
            stolen,
            all,
            frequency_khz: system.number(&format!(
                "/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq"
            )),
        })
    }

    fn warnings_since(&self, before: &Self) -> Vec<String> {
        let core = self.core;
        let stolen = permille(self.stolen, before.stolen, self.all, before.all);
        let stolen = (stolen > STOLEN_PERMILLE_MAX).then(|| {
            format!(
                "the hypervisor took {} of core {core} while calls were made: that is in the latencies; give the \
                 virtual machine processors of its own (pinned vCPUs, a dedicated or metal instance)",
                percent(stolen)
            )
        });
        let frequencies = before.frequency_khz.zip(self.frequency_khz);
        let moved = frequencies.filter(|(first, last)| {
            first.abs_diff(*last).saturating_mul(100) > first.saturating_mul(FREQUENCY_PERCENT_MAX)
        });
        let moved = moved.map(|(first, last)| {
            format!(
                "core {core} ran at {} MHz at first and at {} MHz in the end: rates and latencies moved with it; \
                 pin it (`cpupower frequency-set -g performance`, no turbo), or give a longer --warmup",
                first / 1000,
                last / 1000
            )
        });
        stolen.into_iter().chain(moved).collect()
    }
}

impl Thread {
    /// `None` for a thread that is not pinned to one of `cores`. Polling threads are pinned, and only their waiting
    /// disturbs a run.
    fn read(system: &System, directory: String, cores: &[usize]) -> Option<Self> {
        let status = system.text(&format!("{directory}/status"))?;
        let core = field(&status, "Cpus_allowed_list")?.parse().ok()?;
        if !cores.contains(&core) {
            return None;
        }
        let times = system.text(&format!("{directory}/schedstat"))?;
        let mut times = times.split_whitespace().map_while(|word| word.parse().ok());
        Some(Self {
            core,
            ran_ns: times.next()?,
            waited_ns: times.next()?,
            switches: field(&status, "nonvoluntary_ctxt_switches")?.parse().ok()?,
            directory,
        })
    }

    fn warning_since(&self, before: &Self, taker: Option<&Taker>) -> Option<String> {
        let all = |it: &Self| it.ran_ns.saturating_add(it.waited_ns);
        let waited = permille(self.waited_ns, before.waited_ns, all(self), all(before));
        (waited > WAITED_PERMILLE_MAX).then(|| {
            let core = format_cores(&[self.core]);
            let taker = taker.map_or_else(String::new, |it| format!(": {}", it.text()));
            format!(
                "other work ran on core {core}{taker}: the polling thread was taken off it {} times and waited {}, {} of \
                 the time; stop what runs there, give --cores others, or isolate them (isolcpus=, nohz_full=)",
                self.switches.saturating_sub(before.switches),
                nanoseconds(self.waited_ns.saturating_sub(before.waited_ns)),
                percent(waited)
            )
        })
    }
}

/// The growth of a part in thousandths of the growth of the whole.
fn permille(part: u64, part_before: u64, whole: u64, whole_before: u64) -> u64 {
    let part = part.saturating_sub(part_before).saturating_mul(1000);
    part.checked_div(whole.saturating_sub(whole_before))
        .unwrap_or(0)
}

/// Steal time and all time of a line of `/proc/stat`. `times` is the line after its name.
pub(crate) fn stolen_and_all(times: &str) -> Option<(u64, u64)> {
    let words = times.split_whitespace().take(TIMES);
    let times: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
    let all = times
        .iter()
        .try_fold(0_u64, |sum, time| sum.checked_add(*time))?;
    Some((*times.get(TIMES - 1)?, all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::tests::FakeMachine;
    use crate::tasks::tests::stat;

    const FREQUENCY: &str = "CPU/cpu1/cpufreq/scaling_cur_freq";

    /// Core 1 with its line of `/proc/stat`, and thread 8 of process 7 pinned to `allowed`.
    fn machine(stat: &str, frequency_khz: &str, allowed: &str, schedstat: &str) -> Counted {
        let machine = FakeMachine::empty();
        machine.set(
            "proc/stat",
            &format!("cpu  9 9 9 9 9 9 9 9\ncpu0 1 1 1 1 1 1 1 1\ncpu1 {stat}"),
        );
        machine.set(FREQUENCY, frequency_khz);
        let status =
            format!("Name:\tx\nCpus_allowed_list:\t{allowed}\nnonvoluntary_ctxt_switches:\t12");
        machine.set("proc/7/task/8/status", &status);
        machine.set("proc/7/task/8/schedstat", schedstat);
        Counted::read_from(&machine.system(), &[0, 1], &[7])
    }

    fn at_first() -> Counted {
        machine("500 0 0 500 0 0 0 0 0 0", "3000000", "1", "1000000 0 5")
    }

    #[test]
    fn a_quiet_run_is_not_warned_of() {
        let last = machine(
            "1500 0 0 500 0 0 0 1 0 0",
            "3050000",
            "1",
            "5000000000 4000000 9",
        );
        assert_eq!(last.warnings_since(&at_first()), Vec::<String>::new());
        assert_eq!(at_first().threads.len(), 1);
        assert_eq!(at_first().cores.len(), 2);
    }

    #[test]
    fn each_disturbance_is_named_with_its_size_and_its_remedy() {
        let last = machine(
            "1450 0 0 500 0 0 0 50 0 0",
            "2400000",
            "1",
            "3001000000 1000000000 9",
        );
        let warnings = last.warnings_since(&at_first());
        for (warning, words) in warnings.iter().zip([
            ["took 5.0 % of core 1", "pinned vCPUs"],
            ["3000 MHz at first and at 2400 MHz", "cpupower"],
            ["waited 1.000 s, 25.0 % of the time", "isolcpus"],
        ]) {
            assert!(words.iter().all(|it| warning.contains(it)), "{warning}");
        }
        assert_eq!(warnings.len(), 3, "{warnings:?}");
    }

    #[test]
    fn process_that_took_a_polling_core_is_named() {
        let at = |stat: &str, schedstat: &str, other: &str| {
            let machine = FakeMachine::empty();
            machine.set("proc/stat", &format!("cpu1 {stat}"));
            let status = "Cpus_allowed_list:\t1\nnonvoluntary_ctxt_switches:\t12";
            machine.set("proc/7/task/8/status", status);
            machine.set("proc/7/task/8/schedstat", schedstat);
            machine.set("proc/9/task/9/stat", other);
            Counted::read_from(&machine.system(), &[1], &[7])
        };
        let first = at("0 0 0 0 0 0 0 0", "0 0 0", &stat("rustc", 5, 0, 1));
        let last = at("100 0 0 0 0 0 0 0", "700 300 9", &stat("rustc", 30, 0, 1));
        let words =
            "other work ran on core 1: rustc (process 9) took 25.0 % of it: the polling thread";
        let warnings = last.warnings_since(&first);
        assert!(warnings[0].starts_with(words), "{warnings:?}");
    }

    #[test]
    fn threads_that_may_run_elsewhere_and_files_that_are_not_there_count_nothing() {
        let last = machine(
            "1500 0 0 500 0 0 0 0",
            "3000000",
            "0-1",
            "3001000000 1000000000 9",
        );
        assert!(last.threads.is_empty());
        assert!(last.warnings_since(&at_first()).is_empty());
        let nothing = Counted::read_from(&FakeMachine::empty().system(), &[0, 1], &[7]);
        assert_eq!(nothing, Counted::default());
        assert!(nothing.warnings_since(&at_first()).is_empty());
        let nonsense = machine("one two", "fast", "1", "never");
        assert!(nonsense.threads.is_empty() && nonsense.cores.len() == 1);
    }

    #[test]
    fn a_pinned_thread_of_this_process_is_found() {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        let allowed = sched_getaffinity(None).unwrap();
        let core = (0..CpuSet::MAX_CPU)
            .find(|&core| allowed.is_set(core))
            .unwrap();
        let pinned = std::thread::spawn(move || {
            let mut one = CpuSet::new();
            one.set(core);
            sched_setaffinity(None, &one).unwrap();
            Counted::read(&[core], &[std::process::id()])
        });
        let counted = pinned.join().unwrap();
        assert_eq!(counted.cores.len(), 1);
        assert!(!counted.threads.is_empty());
    }
}
