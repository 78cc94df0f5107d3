//! The cores that can poll, and the settings that interrupt or slow them.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::Needs;
use super::finding::{Area, Finding, Findings, Severity};
use super::system::System;
use crate::cores::format_cores;
use crate::disturbance::stolen_and_all;
use crate::tasks::{Taker, Tasks};

/// How long the cores are watched for other work.
const WATCHED: Duration = Duration::from_millis(300);

/// The share of a core, in thousandths, from which other work is named. Most machines have a little everywhere.
const TAKEN_PERMILLE_MAX: u64 = 50;

const CPU: &str = "/sys/devices/system/cpu";

/// The limit for the exit latency of an idle state. A longer one shows in the latency of calls.
const WAKE_UP_US_MAX: u64 = 10;

/// The number of polling cores of a run: one for the client and one for the server.
const POLLING_CORES: usize = 2;

/// An idle state that is not disabled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct IdleState {
    /// The name, for example `C6`.
    pub name: String,
    /// The exit latency.
    pub latency_us: u64,
}

/// The processors in the JSON report. `None` if the system does not give the value.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Processors {
    /// The cores that are online.
    pub online: Option<Vec<usize>>,
    /// The cores that this process may use.
    pub allowed: Option<Vec<usize>>,
    /// The cores that the command line of the kernel isolates from other work.
    pub isolated: Option<Vec<usize>>,
    /// The cores without a timer tick while one thread runs; null if the kernel does not support them.
    pub nohz_full: Option<Vec<usize>>,
    /// The pairs of allowed cores that are threads of one physical core.
    pub siblings: Vec<[usize; 2]>,
    /// The smallest CPU quota of the control group and of the groups above it, as (microseconds, per microseconds).
    pub quota_us: Option<(u64, u64)>,
    /// The file of that quota.
    pub quota_file: Option<String>,
    /// The frequency governors of the allowed cores.
    pub governors: Vec<String>,
    /// The idle states of the first allowed core that are not disabled.
    pub idle_states: Vec<IdleState>,
    /// Whether the machine runs under a hypervisor.
    pub hypervisor: Option<bool>,
    /// The threads of other processes that took [`TAKEN_PERMILLE_MAX`] of an allowed core or more during the
    /// examination.
    pub taken: Vec<Taker>,
}

impl Processors {
    /// Two physical cores for polling, with all their allowed threads. Cores near a device are preferred, and then
    /// cores with high numbers. The first allowed core is left for other work.
    fn to_poll_on(&self, near: &[usize]) -> Vec<usize> {
        let allowed = self.allowed.as_deref().unwrap_or_default();
        let is_second_thread =
            |core: &usize| self.siblings.iter().any(|[_, second]| second == core);
        let physical = allowed.iter().copied();
        let mut physical: Vec<usize> = physical
            .filter(|core| !is_second_thread(core))
            .skip(1)
            .collect();
        physical.sort_by_key(|core| near.contains(core));
        let chosen = physical.split_off(physical.len().saturating_sub(POLLING_CORES));
        let is_chosen = |core: &usize| {
            let with = |first: &usize| first == core || self.siblings.contains(&[*first, *core]);
            chosen.iter().any(with)
        };
        allowed.iter().copied().filter(is_chosen).collect()
    }
}

/// Examines the processors. `near` holds the cores near the device of a run; it is empty if they are unknown.
pub(crate) fn examine(
    system: &System,
    needs: &Needs,
    near: &[usize],
    all: &mut Vec<Finding>,
) -> Processors {
    let allowed = system.cores_allowed();
    let cores = allowed.clone().unwrap_or_default();
    let (quota_us, quota_file) = quota(system).unzip();
    let nohz_full = format!("{CPU}/nohz_full");
    let processors = Processors {
        online: system.cores(&format!("{CPU}/online")),
        isolated: system.cores(&format!("{CPU}/isolated")),
        // If no core is in the list, the file holds `(null)` or nothing.
        nohz_full: system
            .exists(&nohz_full)
            .then(|| system.cores(&nohz_full).unwrap_or_default()),
        siblings: siblings(system, &cores),
        quota_us,
        quota_file,
        governors: governors(system, &cores),
        idle_states: idle_states(system, cores.first().copied().unwrap_or(0)),
        hypervisor: system.has_cpu_flag("hypervisor"),
        taken: taken(system, &cores),
        allowed,
    };
    let mut findings = Findings::new(Area::Processors, all);
    judge_allowed(&processors, &mut findings);
    judge_taken(&processors, &mut findings);
    judge_isolated(&processors, near, &mut findings);
    judge_quota(&processors, &mut findings);
    judge_governors(&processors, &mut findings);
    judge_idle_states(&processors, needs, &mut findings);
    if processors.hypervisor == Some(true) {
        findings.note_only(
            Severity::Hint,
            "a hypervisor is underneath",
            "it may stop any core at any time: p99.99 and the maximum are its own",
        );
    }
    processors
}

/// Watches the cores for [`WATCHED`].
fn taken(system: &System, cores: &[usize]) -> Vec<Taker> {
    let own = [std::process::id()];
    let read = || (system.text("/proc/stat"), Tasks::read(system, &own));
    let (stat_before, before) = read();
    if system.is_real() {
        // WAIT: `WATCHED`.
        std::thread::sleep(WATCHED);
    }
    let (stat, after) = read();
    let ticks = |stat: &Option<String>, core: usize| {
        let name = format!("cpu{core} ");
        let line = stat
            .as_ref()?
            .lines()
            .find_map(|it| it.strip_prefix(&name))?;
        Some(stolen_and_all(line)?.1)
    };
    let of_core = |core: &usize| {
        let all = ticks(&stat, *core)?.saturating_sub(ticks(&stat_before, *core)?);
        Some(after.takers_since(&before, *core, all))
    };
    let takers = cores.iter().filter_map(of_core).flatten();
    takers
        .filter(|it| it.permille >= TAKEN_PERMILLE_MAX)
        .collect()
}

fn judge_taken(processors: &Processors, findings: &mut Findings<'_>) {
    for taker in &processors.taken {
        findings.note(
            Severity::Warning,
            format!("core {} is not free: {}", taker.core, taker.text()),
            "it takes the core from a polling thread, and every call waits for it",
            "stop it, or give --cores others".to_owned(),
        );
    }
}

fn siblings(system: &System, cores: &[usize]) -> Vec<[usize; 2]> {
    let mut pairs = Vec::new();
    for &core in cores {
        let list = system.cores(&format!("{CPU}/cpu{core}/topology/thread_siblings_list"));
        for other in list.unwrap_or_default() {
            if core < other && cores.contains(&other) {
                pairs.push([core, other]);
            }
        }
    }
    pairs
}

/// The smallest CPU quota of the control group of this process and of all groups above it, and the file of that quota.
/// Every one of these quotas applies, so the smallest one decides. Reads control groups of versions 1 and 2.
fn quota(system: &System) -> Option<((u64, u64), String)> {
    let groups = system.text("/proc/self/cgroup")?;
    let quotas = groups.lines().flat_map(|line| quotas_of(system, line));
    quotas
        .filter(|((_, period), _)| *period != 0)
        .min_by_key(|((quota, period), _)| {
            // Shares are compared in units of 2^-32, so that rounding does not make two of them equal.
            (u128::from(*quota) << 32) / u128::from(*period)
        })
}

/// The quotas of the control group in `line` of `/proc/self/cgroup`, and of the groups above it.
fn quotas_of(system: &System, line: &str) -> Vec<((u64, u64), String)> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
        return Vec::new();
    };
    let around = Path::new(path).ancestors().filter_map(Path::to_str);
    let folders = around.map(|group| {
        let group = group.trim_end_matches('/');
        match controllers {
            "" => format!("/sys/fs/cgroup{group}"),
            controllers => format!("/sys/fs/cgroup/{controllers}{group}"),
        }
    });
    if controllers.is_empty() {
        let read = |folder: String| {
            let file = format!("{folder}/cpu.max");
            let text = system.text(&file)?;
            let (quota, period) = text.split_once(' ')?;
            Some(((quota.parse().ok()?, period.parse().ok()?), file))
        };
        folders.filter_map(read).collect()
    } else if controllers.split(',').any(|name| name == "cpu") {
        let read = |folder: String| {
            let file = format!("{folder}/cpu.cfs_quota_us");
            let period = system.number(&format!("{folder}/cpu.cfs_period_us"))?;
            Some(((system.number(&file)?, period), file))
        };
        folders.filter_map(read).collect()
    } else {
        Vec::new()
    }
}

fn governors(system: &System, cores: &[usize]) -> Vec<String> {
    let mut governors: Vec<String> = cores
        .iter()
        .filter_map(|core| system.text(&format!("{CPU}/cpu{core}/cpufreq/scaling_governor")))
        .collect();
    governors.sort_unstable();
    governors.dedup();
    governors
}

fn idle_states(system: &System, core: usize) -> Vec<IdleState> {
    let folder = format!("{CPU}/cpu{core}/cpuidle");
    system
        .names(&folder)
        .iter()
        .filter(|state| state.starts_with("state"))
        .filter(|state| system.number(&format!("{folder}/{state}/disable")) != Some(1))
        .filter_map(|state| {
            Some(IdleState {
                name: system.text(&format!("{folder}/{state}/name"))?,
                latency_us: system.number(&format!("{folder}/{state}/latency"))?,
            })
        })
        .collect()
}

fn judge_allowed(processors: &Processors, findings: &mut Findings<'_>) {
    let Some(allowed) = &processors.allowed else {
        return;
    };
    let list = format_cores(allowed);
    if allowed.len() < 2 {
        let online = processors.online.as_deref().unwrap_or_default();
        let fix = if online.len() < 2 {
            "give the machine a second processor: client and server poll on one each".to_owned()
        } else {
            format!(
                "taskset -c {} bench-tool run   # or a wider cpuset for the container",
                format_cores(online)
            )
        };
        findings.note(
            Severity::Warning,
            format!("this process may use core {list} alone"),
            "client and server alternate at the scheduler's pace",
            fix,
        );
    } else {
        findings.ok(format!("cores that this process may use: {list}"));
    }
    if let [[first, second], more @ ..] = processors.siblings.as_slice() {
        let more = match more.len() {
            0 => String::new(),
            pairs => format!(", one of {} such pairs", pairs + 1),
        };
        findings.note(
            Severity::Hint,
            format!("cores {first} and {second} are threads of one physical core{more}"),
            "work on one thread takes execution units and caches from the other",
            format!(
                "echo off > {CPU}/smt/control   # until the next boot; or leave one of a pair idle: --cores without it"
            ),
        );
    }
}

fn judge_isolated(processors: &Processors, near: &[usize], findings: &mut Findings<'_>) {
    let isolated = processors.isolated.as_deref().unwrap_or_default();
    if isolated.is_empty() {
        let polling = processors.to_poll_on(near);
        if polling.is_empty() {
            return;
        }
        return findings.note(
            Severity::Hint,
            "no core is isolated",
            "other work and the timer tick interrupt polling cores",
            format!(
                "{}; more cores go into each list likewise, all threads of one together",
                match processors.nohz_full {
                    Some(_) => command_line(
                        "isolcpus=managed_irq,domain,LIST nohz_full=LIST rcu_nocbs=LIST",
                        &polling,
                    ),
                    None => command_line("isolcpus=managed_irq,domain,LIST", &polling),
                }
            ),
        );
    }
    findings.ok(format!("isolated cores: {}", format_cores(isolated)));
    judge_away(processors, isolated, findings);
    let full = processors.nohz_full.as_deref().unwrap_or_default();
    let ticking: Vec<usize> = isolated
        .iter()
        .copied()
        .filter(|core| !full.contains(core))
        .collect();
    if ticking.is_empty() {
        findings.ok("isolated cores have no timer tick while one thread runs (nohz_full)");
    } else {
        let fix = if processors.nohz_full.is_some() {
            command_line("nohz_full=LIST rcu_nocbs=LIST", isolated)
        } else {
            "run a kernel with CONFIG_NO_HZ_FULL: this one can stop no tick".to_owned()
        };
        findings.note(
            Severity::Hint,
            format!(
                "isolated cores {} keep their timer tick",
                format_cores(&ticking)
            ),
            "each tick takes a few microseconds from a polling core, some hundred times a second",
            fix,
        );
    }
}

/// Judges whether this process may use the isolated cores. The kernel excludes them from the cores of a process until
/// the process asks for them.
fn judge_away(processors: &Processors, isolated: &[usize], findings: &mut Findings<'_>) {
    let Some(allowed) = processors.allowed.as_deref() else {
        return;
    };
    let away: Vec<usize> = isolated
        .iter()
        .copied()
        .filter(|core| !allowed.contains(core))
        .collect();
    if away.is_empty() {
        return;
    }
    let mut together = [allowed, &away].concat();
    together.sort_unstable();
    findings.note(
        Severity::Hint,
        format!(
            "isolated cores {} are not among those that this process may use",
            format_cores(&away)
        ),
        "runs poll on cores that have other work",
        format!(
            "taskset -c {} bench-tool run   # and --cores with two among {}",
            format_cores(&together),
            format_cores(&away)
        ),
    );
}

/// The command that adds options to the command line of the kernel. A list of cores replaces `LIST`.
fn command_line(options: &str, cores: &[usize]) -> String {
    let options = options.replace("LIST", &format_cores(cores));
    format!(
        "grubby --update-kernel=ALL --args=\"{options}\"   # or GRUB_CMDLINE_LINUX in /etc/default/grub and \
         update-grub; then reboot"
    )
}

fn judge_quota(processors: &Processors, findings: &mut Findings<'_>) {
    if let (Some((quota, period)), Some(file)) = (processors.quota_us, &processors.quota_file) {
        let none = if file.ends_with("cpu.max") {
            "max"
        } else {
            "-1"
        };
        let what = format!("the control group may run {quota} of every {period} us");
        let need = period.saturating_mul(POLLING_CORES as u64);
        if quota >= need {
            return findings.ok(format!("{what}, and two polling cores take {need}"));
        }
        findings.note(
            Severity::Warning,
            format!("{what}, and two polling cores take {need}"),
            "polling cores use all of their time, and are stopped for the rest of each period",
            format!(
                "echo {none} > {file}   # lasting: CPUQuota= of the systemd unit; in Kubernetes: whole CPUs and the \
                 static CPU manager policy"
            ),
        );
    }
}

fn judge_governors(processors: &Processors, findings: &mut Findings<'_>) {
    let slow: Vec<&str> = processors
        .governors
        .iter()
        .map(String::as_str)
        .filter(|governor| *governor != "performance")
        .collect();
    if !slow.is_empty() {
        findings.note(
            Severity::Warning,
            format!("frequency governor is {}", slow.join(", ")),
            "cores slow down when they wait: numbers move with their clock",
            "cpupower frequency-set -g performance",
        );
    } else if !processors.governors.is_empty() {
        findings.ok("frequency governor: performance");
    }
}

fn judge_idle_states(processors: &Processors, needs: &Needs, findings: &mut Findings<'_>) {
    let deepest = processors
        .idle_states
        .iter()
        .max_by_key(|state| state.latency_us);
    let Some(deepest) = deepest.filter(|state| state.latency_us > WAKE_UP_US_MAX) else {
        return;
    };
    let IdleState { name, latency_us } = deepest;
    let (severity, cost) = if needs.parks {
        (
            Severity::Warning,
            "cores of this profile sleep when idle, and each wake-up waits for it",
        )
    } else {
        (
            Severity::Hint,
            "cores that poll never enter it; the other threads do, and wake up late",
        )
    };
    findings.note(
        severity,
        format!("leaving idle state {name} takes {latency_us} us"),
        cost,
        format!("cpupower idle-set -D {WAKE_UP_US_MAX}"),
    );
}

#[cfg(test)]
mod tests {
    use super::super::finding::tests::{about, check_no_complaints};
    use super::super::system::tests::FakeMachine;
    use super::super::tests::needs;
    use super::*;

    fn of(machine: &FakeMachine, needs: &Needs) -> (Processors, Vec<Finding>) {
        let mut findings = Vec::new();
        let processors = examine(&machine.system(), needs, &[], &mut findings);
        (processors, findings)
    }

    #[test]
    fn good_cores_are_reported_as_good() {
        let machine = FakeMachine::good();
        machine.set("CPU/cpu0/cpufreq/scaling_governor", "performance");
        let (processors, findings) = of(&machine, &needs());
        check_no_complaints(&findings);
        assert_eq!(processors.allowed, Some(vec![0, 1, 2, 3]));
        assert_eq!(processors.isolated, Some(vec![2, 3]));
        assert_eq!(processors.quota_us, None);
    }

    #[test]
    fn one_core_siblings_and_no_isolation() {
        let machine = FakeMachine::good();
        machine.set("CPU/isolated", "");
        machine.set("CPU/cpu0/topology/thread_siblings_list", "0,2");
        machine.set("CPU/cpu1/topology/thread_siblings_list", "1,9");
        let (processors, findings) = of(&machine, &needs());
        // Core 9 is not ours to use.
        assert_eq!(processors.siblings, [[0, 2]]);
        let pair = about(&findings, "cores 0 and 2 are threads of one physical core");
        assert_eq!(pair.severity, Severity::Hint);
        assert!(pair.what.ends_with("core"), "{pair:?}");
        machine.set("CPU/cpu1/topology/thread_siblings_list", "1,3");
        about(&of(&machine, &needs()).1, "core, one of 2 such pairs");
        machine.set("CPU/cpu1/topology/thread_siblings_list", "1");
        let isolated = about(&findings, "no core is isolated");
        // Core 2 is a thread of core 0, which everything else gets.
        isolated.check_advice("isolcpus=managed_irq,domain,1,3 nohz_full=1,3 rcu_nocbs=1,3");
        machine.set("CPU/isolated", "1,3");
        machine.set("CPU/nohz_full", "(null)");
        let ticking = about(&of(&machine, &needs()).1, "cores 1,3 keep their timer tick").clone();
        assert_eq!(ticking.severity, Severity::Hint);
        machine.set("proc/self/status", "Cpus_allowed_list:\t3");
        about(&of(&machine, &needs()).1, "core 3 alone")
            .check(Severity::Warning, "taskset -c 0-3 ");
        machine.set("CPU/online", "3");
        let alone = about(&of(&machine, &needs()).1, "core 3 alone").clone();
        assert!(alone.fix.unwrap().starts_with("give the machine "));
    }

    #[test]
    fn two_physical_cores_are_proposed_with_their_threads_near_the_device() {
        let with = |allowed: usize, siblings: &[[usize; 2]]| Processors {
            allowed: Some((0..allowed).collect()),
            siblings: siblings.to_vec(),
            ..Processors::default()
        };
        let pairs: Vec<[usize; 2]> = (0..4).map(|core| [core, core + 4]).collect();
        for (processors, near, polling) in [
            (with(64, &[]), vec![], vec![62, 63]),
            (with(64, &[]), (0..16).collect(), vec![14, 15]),
            (with(64, &[]), vec![0, 7], vec![7, 63]),
            (with(8, &pairs), vec![], vec![2, 3, 6, 7]),
            (with(8, &pairs), vec![0, 1, 4, 5], vec![1, 3, 5, 7]),
            (with(2, &[]), vec![], vec![1]),
            (with(2, &[[0, 1]]), vec![], vec![]),
            (with(0, &[]), vec![0], vec![]),
        ] {
            assert_eq!(processors.to_poll_on(&near), polling, "near {near:?}");
        }
        let machine = FakeMachine::good();
        machine.set("CPU/isolated", "");
        let mut findings = Vec::new();
        examine(&machine.system(), &needs(), &[0, 1], &mut findings);
        let isolated = about(&findings, "no core is isolated");
        isolated.check_advice("isolcpus=managed_irq,domain,1,3 ");
        isolated.check_advice("more cores go into each list likewise");
    }

    #[test]
    fn isolated_cores_that_a_process_was_not_given_are_a_hint() {
        let machine = FakeMachine::good();
        machine.set("proc/self/status", "Cpus_allowed_list:\t0-1");
        let away = about(
            &of(&machine, &needs()).1,
            "isolated cores 2,3 are not among",
        )
        .clone();
        assert_eq!(away.severity, Severity::Hint);
        assert!(
            away.fix
                .unwrap()
                .starts_with("taskset -c 0-3 bench-tool run ")
        );
        machine.set("proc/self/status", "Cpus_allowed_list:\t0-3");
        let (_, findings) = of(&machine, &needs());
        assert!(!findings.iter().any(|it| it.what.contains("not among")));
    }

    #[test]
    fn a_kernel_that_stops_no_tick_is_not_asked_to() {
        let machine = FakeMachine::good();
        machine.remove("CPU/nohz_full");
        let (processors, findings) = of(&machine, &needs());
        assert_eq!(processors.nohz_full, None);
        let ticking = about(&findings, "cores 2,3 keep their timer tick");
        ticking.check_advice("CONFIG_NO_HZ_FULL");
        machine.set("CPU/isolated", "");
        let isolated = about(&of(&machine, &needs()).1, "no core is isolated").clone();
        isolated.check_advice("=\"isolcpus=managed_irq,domain,2,3\"");
    }

    #[test]
    fn quotas_of_both_versions_of_control_groups() {
        let machine = FakeMachine::good();
        machine.set("sys/fs/cgroup/user.slice/cpu.max", "150000 100000");
        let (processors, findings) = of(&machine, &needs());
        assert_eq!(processors.quota_us, Some((150_000, 100_000)));
        let quota = about(&findings, "150000 of every 100000 us");
        let unlimit = "echo max > /sys/fs/cgroup/user.slice/cpu.max ";
        quota.check(Severity::Warning, unlimit);
        // That of a group around it holds as well.
        machine.set("proc/self/cgroup", "0::/user.slice/a/b");
        machine.set("sys/fs/cgroup/user.slice/a/b/cpu.max", "max 100000");
        let (processors, _) = of(&machine, &needs());
        let file = processors.quota_file.as_deref();
        assert_eq!(file, Some("/sys/fs/cgroup/user.slice/cpu.max"));
        // Of two that hold the lesser counts, though a nearer one has more, or another period.
        machine.set("sys/fs/cgroup/user.slice/a/cpu.max", "100000 50000");
        assert_eq!(of(&machine, &needs()).0.quota_us, Some((150_000, 100_000)));
        machine.set("sys/fs/cgroup/user.slice/a/cpu.max", "70000 50000");
        assert_eq!(of(&machine, &needs()).0.quota_us, Some((70_000, 50_000)));
        machine.set("sys/fs/cgroup/user.slice/a/cpu.max", "1 0");
        assert_eq!(of(&machine, &needs()).0.quota_us, Some((150_000, 100_000)));
        // Two processors are what two polling cores take.
        for (quota, severity) in [("200000", Severity::Ok), ("199999", Severity::Warning)] {
            machine.set(
                "sys/fs/cgroup/user.slice/cpu.max",
                &format!("{quota} 100000"),
            );
            let found = about(&of(&machine, &needs()).1, "two polling cores take 200000").clone();
            assert!(found.what.contains(quota), "{found:?}");
            assert_eq!(found.severity, severity);
        }
        machine.set("proc/self/cgroup", "0::/");
        machine.set("sys/fs/cgroup/cpu.max", "1000 100000");
        let (processors, _) = of(&machine, &needs());
        let file = processors.quota_file.as_deref();
        assert_eq!(file, Some("/sys/fs/cgroup/cpu.max"), "as in a container");
        machine.set("proc/self/cgroup", "4:cpu,cpuacct:/pod\n1:name=systemd:/");
        assert_eq!(of(&machine, &needs()).0.quota_us, None);
        machine.set("sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_quota_us", "-1");
        machine.set("sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_period_us", "100000");
        assert_eq!(of(&machine, &needs()).0.quota_us, None, "-1 is no quota");
        machine.set("sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_quota_us", "50000");
        let (processors, findings) = of(&machine, &needs());
        assert_eq!(processors.quota_us, Some((50_000, 100_000)));
        let unlimit = "echo -1 > /sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_quota_us ";
        about(&findings, "50000 of every").check(Severity::Warning, unlimit);
    }

    #[test]
    fn governors_idle_states_and_a_hypervisor() {
        let machine = FakeMachine::good();
        machine.set("CPU/cpu0/cpufreq/scaling_governor", "performance");
        machine.set("CPU/cpu1/cpufreq/scaling_governor", "powersave");
        machine.set("proc/cpuinfo", "flags\t\t: fpu hypervisor");
        for (state, name, latency, disable) in [
            (0, "POLL", 0, 0),
            (1, "C1", 2, 0),
            (2, "C6", 133, 0),
            (3, "C10", 890, 1),
        ] {
            let folder = format!("CPU/cpu0/cpuidle/state{state}");
            machine.set(&format!("{folder}/name"), name);
            machine.set(&format!("{folder}/latency"), &latency.to_string());
            machine.set(&format!("{folder}/disable"), &disable.to_string());
        }
        let (processors, findings) = of(&machine, &needs());
        assert_eq!(processors.governors, ["performance", "powersave"]);
        let governor = about(&findings, "governor is powersave");
        assert_eq!(
            governor.fix.as_deref(),
            Some("cpupower frequency-set -g performance")
        );
        // The deepest is disabled, so the one before it counts.
        about(&findings, "state C6 takes 133 us").check(Severity::Hint, "");
        about(&findings, "hypervisor").check(Severity::Hint, "");
        let parks = Needs {
            parks: true,
            ..needs()
        };
        about(&of(&machine, &parks).1, "state C6").check(Severity::Warning, "");
    }
}
