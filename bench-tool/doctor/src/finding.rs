//! What the examination says: what was found, how much it matters, what it costs, and the command that
//! fixes it.

use serde::Serialize;

/// How much a finding matters. The order is that of weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// It works; something could be better, or is good to know.
    Hint,
    /// It works, but numbers suffer, or a limit will be met before the profile's own.
    Warning,
    /// Something cannot work.
    Problem,
}

impl Severity {
    /// The word for it, as in the table and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Hint => "hint",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// The parts of a machine, in the order in which they are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Area {
    /// What carries which address.
    Providers,
    /// RDMA devices and their ports.
    Devices,
    /// Registered memory, hugepages, descriptors.
    Memory,
    /// Cores that can poll.
    Processors,
    /// How it was started, NUMA balancing, RDMA namespaces.
    Kernel,
    /// What times are taken by, and what the hypervisor takes.
    Clock,
}

impl Area {
    /// All of them, in order.
    pub(crate) const ALL: [Self; 6] = [
        Self::Providers,
        Self::Devices,
        Self::Memory,
        Self::Processors,
        Self::Kernel,
        Self::Clock,
    ];

    /// The word for it, as in the table and in JSON.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Providers => "providers",
            Self::Devices => "devices",
            Self::Memory => "memory",
            Self::Processors => "processors",
            Self::Kernel => "kernel",
            Self::Clock => "clock",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// The part of the machine.
    pub area: Area,
    /// How much it matters.
    pub severity: Severity,
    /// What was found.
    pub what: String,
    /// What follows from it; `None` where all is well.
    pub cost: Option<String>,
    /// What to do: a line for a shell where there is a command, with what to know about it as the
    /// shell's comment. `None` where nothing is to be done here.
    #[serde(rename = "mend")]
    pub fix: Option<String>,
}

/// Collects findings of one area.
#[derive(Debug)]
pub(crate) struct Findings<'a> {
    area: Area,
    all: &'a mut Vec<Finding>,
}

impl<'a> Findings<'a> {
    /// Adds to `all`, under `area`.
    pub(crate) fn new(area: Area, all: &'a mut Vec<Finding>) -> Self {
        Self { area, all }
    }

    /// Something is as it should be.
    pub(crate) fn ok(&mut self, what: impl Into<String>) {
        self.add(Severity::Ok, what.into(), None, None);
    }

    /// Something costs, with what to do about it.
    pub(crate) fn note(
        &mut self,
        severity: Severity,
        what: impl Into<String>,
        cost: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.add(severity, what.into(), Some(cost.into()), Some(fix.into()));
    }

    /// Something costs, and nothing can be done about it here.
    pub(crate) fn note_only(
        &mut self,
        severity: Severity,
        what: impl Into<String>,
        cost: impl Into<String>,
    ) {
        self.add(severity, what.into(), Some(cost.into()), None);
    }

    fn add(&mut self, severity: Severity, what: String, cost: Option<String>, fix: Option<String>) {
        self.all.push(Finding {
            area: self.area,
            severity,
            what,
            cost,
            fix,
        });
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The first finding that says these words.
    pub(crate) fn about<'a>(findings: &'a [Finding], words: &str) -> &'a Finding {
        let found = findings.iter().find(|finding| finding.what.contains(words));
        found.unwrap_or_else(|| panic!("nothing about {words}: {findings:#?}"))
    }

    impl Finding {
        /// It has this weight, and advice that begins so, where it needs any.
        #[track_caller]
        pub(crate) fn check(&self, severity: Severity, fix: &str) {
            assert_eq!(self.severity, severity, "{self:#?}");
            let advice = self.fix.as_deref().unwrap_or_default();
            assert!(advice.starts_with(fix), "{self:#?}");
        }

        /// Its advice holds these words.
        #[track_caller]
        pub(crate) fn check_advice(&self, words: &str) {
            let advice = self.fix.as_deref().unwrap_or_default();
            assert!(advice.contains(words), "{self:#?}");
        }
    }

    #[track_caller]
    pub(crate) fn check_no_complaints(findings: &[Finding]) {
        assert_eq!(complaints(findings), [] as [&Finding; 0]);
    }

    /// The findings that are not as it should be.
    pub(crate) fn complaints(findings: &[Finding]) -> Vec<&Finding> {
        let complaints = findings
            .iter()
            .filter(|finding| finding.severity != Severity::Ok);
        complaints.collect()
    }

    #[test]
    fn severities_are_ordered_by_weight_and_named_alike_everywhere() {
        use Severity::{Hint, Ok, Problem, Warning};
        assert!(Ok < Hint && Hint < Warning && Warning < Problem);
        for severity in [Ok, Hint, Warning, Problem] {
            let json = serde_json::to_string(&severity).unwrap();
            assert_eq!(json, format!("\"{}\"", severity.name()));
        }
        for area in Area::ALL {
            let json = serde_json::to_string(&area).unwrap();
            assert_eq!(json, format!("\"{}\"", area.name()));
        }
    }
}
