//! A finding of the examination: a fact, its severity, its cost, and the command that fixes it.

use serde::Serialize;

/// The severity of a finding, from the lowest to the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Nothing to do.
    Ok,
    /// Runs work. A setting can be better, or the fact is useful to know.
    Hint,
    /// Runs work, but measurements suffer, or a limit is lower than the profile needs.
    Warning,
    /// A function does not work.
    Problem,
}

impl Severity {
    /// The word for it in the text and in JSON.
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

/// The areas of the examination, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Area {
    /// The provider for each kind of address.
    Providers,
    /// RDMA devices and their ports.
    Devices,
    /// Registered memory, hugepages, file descriptors.
    Memory,
    /// Cores that can poll.
    Processors,
    /// The command line of the kernel, NUMA balancing, RDMA namespaces.
    Kernel,
    /// The clock source, the TSC, steal time.
    Clock,
}

impl Area {
    /// All areas, in order.
    pub(crate) const ALL: [Self; 6] = [
        Self::Providers,
        Self::Devices,
        Self::Memory,
        Self::Processors,
        Self::Kernel,
        Self::Clock,
    ];

    /// The word for it in the text and in JSON.
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
    /// The area.
    pub area: Area,
    /// The severity.
    pub severity: Severity,
    /// The fact.
    pub what: String,
    /// The cost of the fact; `None` for `Severity::Ok`.
    pub cost: Option<String>,
    /// The fix: a shell command, with remarks as a comment of the shell, or a sentence. `None` if there is nothing to
    /// do on this machine.
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
    /// Collects findings of `area` in `all`.
    pub(crate) fn new(area: Area, all: &'a mut Vec<Finding>) -> Self {
        Self { area, all }
    }

    /// Adds a fact that needs no action.
    pub(crate) fn ok(&mut self, what: impl Into<String>) {
        self.add(Severity::Ok, what.into(), None, None);
    }

    /// Adds a fact with its cost and its fix.
    pub(crate) fn note(
        &mut self,
        severity: Severity,
        what: impl Into<String>,
        cost: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.add(severity, what.into(), Some(cost.into()), Some(fix.into()));
    }

    /// Adds a fact with its cost. There is no fix on this machine.
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
