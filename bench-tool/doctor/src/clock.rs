//! The clock source of the kernel, the TSC and the steal time.

use serde::Serialize;

use super::disturbance::stolen_and_all;
use super::finding::{Area, Finding, Findings, Severity};
use super::system::System;
use super::tasks::percent;

const CLOCK: &str = "/sys/devices/system/clocksource/clocksource0";

/// Clock sources that are read without entering the kernel.
const FAST: [&str; 4] = [
    "tsc",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "arch_sys_counter",
];

/// Clock sources that the kernel of a PC uses if it finds the TSC unstable.
const SLOW: [&str; 4] = ["hpet", "acpi_pm", "jiffies", "refined-jiffies"];

/// A share of steal time from this value on gives a hint, in thousandths.
const STEAL_HINT_PERMILLE: u64 = 1;

/// A share of steal time above this value gives a warning, because it shows in measurements. In thousandths.
const STEAL_WARNING_PERMILLE: u64 = 10;

/// The clock in the JSON report. `None` if the system does not give the value.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Clock {
    /// The clock source of the kernel.
    pub source: Option<String>,
    /// The available clock sources.
    pub available: Vec<String>,
    /// Whether the TSC has a constant rate.
    pub tsc_constant: Option<bool>,
    /// Whether the TSC continues in idle states.
    pub tsc_nonstop: Option<bool>,
    /// The steal time since the boot, in thousandths of all time: time that the hypervisor gave to others.
    pub stolen_permille: Option<u64>,
}

/// Examines clock source, TSC and steal time.
pub(crate) fn examine(system: &System, all: &mut Vec<Finding>) -> Clock {
    let clock = Clock {
        source: system.text(&format!("{CLOCK}/current_clocksource")),
        available: system
            .text(&format!("{CLOCK}/available_clocksource"))
            .map(|text| text.split_whitespace().map(str::to_owned).collect())
            .unwrap_or_default(),
        tsc_constant: system.has_cpu_flag("constant_tsc"),
        tsc_nonstop: system.has_cpu_flag("nonstop_tsc"),
        stolen_permille: system
            .text("/proc/stat")
            .and_then(|stat| stolen_permille(&stat)),
    };
    let mut findings = Findings::new(Area::Clock, all);
    judge_source(&clock, &mut findings);
    judge_steal(&clock, &mut findings);
    clock
}

fn judge_source(clock: &Clock, findings: &mut Findings<'_>) {
    let Some(source) = clock.source.as_deref() else {
        return findings.note_only(
            Severity::Hint,
            "the kernel does not tell its clock source",
            "a slow one would not be seen",
        );
    };
    if SLOW.contains(&source) {
        let what =
            format!("clock source is {source}: the kernel does not trust the processor's counter");
        let cost = "each clock reading is a system call, which takes longer than a small message";
        let fix = if clock.available.iter().any(|name| name == "tsc") {
            format!("echo tsc > {CLOCK}/current_clocksource")
        } else {
            "dmesg | grep -i tsc   # shows why the kernel rejected the TSC; fix it in the firmware or hypervisor settings"
                .to_owned()
        };
        return findings.note(Severity::Warning, what, cost, fix);
    }
    if !FAST.contains(&source) {
        return findings.ok(format!(
            "clock source is {source}; its reading time is not known"
        ));
    }
    let unsteady = clock.tsc_constant == Some(false) || clock.tsc_nonstop == Some(false);
    if unsteady && source != "tsc" {
        return findings.note(
            Severity::Hint,
            format!(
                "clock source is {source}; the processor does not promise a TSC of constant rate that runs \
                 on in idle states"
            ),
            "times may drift against the kernel's",
            "let the hypervisor pass an invariant TSC to this machine (QEMU: -cpu host,+invtsc)",
        );
    }
    findings.ok(format!("clock source is {source}"));
}

fn judge_steal(clock: &Clock, findings: &mut Findings<'_>) {
    let Some(permille) = clock.stolen_permille else {
        return;
    };
    let share = percent(permille);
    let what = format!("the hypervisor took {share} of the time since the boot");
    let cost = "it owns the far tail of every latency";
    let fix = "give the virtual machine dedicated processors (pinned vCPUs, a dedicated or metal instance)";
    if permille > STEAL_WARNING_PERMILLE {
        findings.note(Severity::Warning, what, cost, fix);
    } else if permille >= STEAL_HINT_PERMILLE {
        findings.note(Severity::Hint, what, cost, fix);
    } else {
        findings.ok(format!("steal time since the boot: {share}"));
    }
}

/// The steal time in thousandths of all time, from the line of all processors in `/proc/stat`.
fn stolen_permille(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let (stolen, all) = stolen_and_all(line)?;
    stolen.checked_mul(1000)?.checked_div(all)
}

#[cfg(test)]
mod tests {
    use super::super::finding::tests::check_no_complaints;
    use super::super::system::tests::FakeMachine;
    use super::*;

    fn of(machine: &FakeMachine) -> (Clock, Vec<Finding>) {
        let mut findings = Vec::new();
        let clock = examine(&machine.system(), &mut findings);
        (clock, findings)
    }

    #[test]
    fn good_clock_is_reported_as_good() {
        let (clock, findings) = of(&FakeMachine::good());
        assert_eq!(clock.source.as_deref(), Some("tsc"));
        assert_eq!(clock.stolen_permille, Some(0));
        check_no_complaints(&findings);
        assert_eq!(findings.len(), 2);
    }

    #[test]
    fn a_slow_source_is_a_warning_with_the_way_back_to_the_tsc() {
        let machine = FakeMachine::good();
        machine.set("CLOCK/current_clocksource", "hpet");
        machine.set("CLOCK/available_clocksource", "tsc hpet acpi_pm");
        let (_, findings) = of(&machine);
        findings[0].check(Severity::Warning, "echo tsc > ");
        machine.set("CLOCK/available_clocksource", "hpet acpi_pm");
        let (_, findings) = of(&machine);
        findings[0].check(Severity::Warning, "dmesg");
    }

    #[test]
    fn unknown_clock_sources_are_reported_without_judgement() {
        let machine = FakeMachine::good();
        for (source, severity) in [
            ("acpi_pm", Severity::Warning),
            ("jiffies", Severity::Warning),
            ("refined-jiffies", Severity::Warning),
            ("xen", Severity::Ok),
            ("timebase", Severity::Ok),
            ("riscv_clocksource", Severity::Ok),
        ] {
            machine.set("CLOCK/current_clocksource", source);
            let found = &of(&machine).1[0];
            assert_eq!(found.severity, severity, "{found:?}");
            let distrusts = found.what.contains("does not trust");
            assert_eq!(distrusts, severity == Severity::Warning, "{found:?}");
        }
    }

    #[test]
    fn an_unsteady_counter_below_another_source_is_a_hint() {
        let machine = FakeMachine::good();
        machine.set("CLOCK/current_clocksource", "kvm-clock");
        assert_eq!(of(&machine).1[0].severity, Severity::Ok);
        machine.set("proc/cpuinfo", "flags\t\t: fpu constant_tsc");
        assert_eq!(of(&machine).1[0].severity, Severity::Hint);
    }

    #[test]
    fn steal_is_weighed() {
        let machine = FakeMachine::good();
        for (stat, severity) in [
            ("cpu  0 0 0 1000 0 0 0 0 0 0", Severity::Ok),
            ("cpu  0 0 0 999 0 0 0 1 0 0", Severity::Hint),
            ("cpu  0 0 0 900 0 0 0 100 0 0", Severity::Warning),
        ] {
            machine.set("proc/stat", stat);
            assert_eq!(of(&machine).1[1].severity, severity, "{stat}");
        }
        for nonsense in [
            "cpu  0 0 0 0 0 0 0 0 0 0",
            "cpu  1 2 3",
            "cpu  a b c d e f g h",
            "intr 1",
        ] {
            machine.set("proc/stat", nonsense);
            assert_eq!(of(&machine).0.stolen_permille, None, "{nonsense}");
        }
    }
}
