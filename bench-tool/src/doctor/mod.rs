//! `bench-tool doctor`: looks at the machine as a run would meet it, and says what is wrong, how
//! much that matters, and which command mends it.
//!
//! | module | what |
//! |---|---|
//! | [`provider`] | which provider carries which address |
//! | [`device`] | RDMA devices, their ports, their limits |
//! | [`memory`] | registered memory, hugepages, descriptors |
//! | [`processor`] | cores that can poll |
//! | [`clock`] | clock source, TSC, steal time |
//! | [`system`], [`finding`] | the files that all of them read, and what they say |
//!
//! Everything is read from `/proc`, `/sys` and `/dev`, without privilege; nothing is changed.

pub mod clock;
pub mod device;
pub mod finding;
pub mod memory;
pub mod processor;
pub mod provider;
pub mod system;
mod text;

use rpcrdma_control::NodeConfig;
use rpcrdma_tuning::{Hugepages, Idle};
use serde::Serialize;

use self::finding::{Finding, Severity};
use self::system::System;
use crate::cli::{DoctorArgs, ProfileChoice};
use crate::exit::{Failure, Status};
use crate::fabric::Fabric;
use crate::report::origin::Origin;
use crate::report::output::{Output, put_report};
use crate::sizing::Need;

/// The `schema` of the JSON report; the meaning of its keys does not change under one.
const SCHEMA: &str = "rpcrdma.bench-tool.doctor/1";

/// What a profile needs of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// The profile's name.
    pub profile: String,
    /// Bytes that one core registers.
    pub core_bytes: u64,
    /// Connections that one core admits.
    pub connections_max: u32,
    /// Idle cores sleep.
    pub parks: bool,
    /// Whether arenas want hugepages.
    pub hugepages: Hugepages,
}

impl Needs {
    /// The needs of the profile chosen on the command line, or of the one of shm.
    ///
    /// # Errors
    /// A usage failure when there is no such profile.
    pub fn of_profile(choice: &ProfileChoice) -> Result<Self, Failure> {
        let loaded = Need::default().profile(choice, &Fabric::SHM)?;
        let profile = &loaded.profile;
        Ok(Self {
            core_bytes: NodeConfig::from_profile(profile, Vec::new())
                .core
                .arena_bytes(),
            connections_max: profile.connections_max,
            parks: profile.idle == Idle::Park,
            hugepages: profile.hugepages,
            profile: loaded.name,
        })
    }
}

/// The report, as JSON has it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What wrote it.
    #[serde(flatten)]
    origin: Origin,
    profile: String,
    /// The heaviest of the findings' severities.
    severity: Severity,
    findings: Vec<Finding>,
    providers: Vec<provider::Choice>,
    devices: Vec<device::Device>,
    memory: memory::Memory,
    processors: processor::Processors,
    clock: clock::Clock,
}

impl Report {
    /// Examines a machine.
    #[must_use]
    pub fn of(system: &System, needs: &Needs, command: String) -> Self {
        let mut findings = Vec::new();
        let devices = device::examine(system, &mut findings);
        let providers = provider::examine(system, &devices, &mut findings);
        let memory = memory::examine(system, needs, !devices.is_empty(), &mut findings);
        let processors = processor::examine(system, needs, &mut findings);
        let clock = clock::examine(system, &mut findings);
        // Stable: within an area things stay in the order in which they were looked at.
        findings.sort_by_key(|finding| finding.area);
        Self {
            origin: Origin::new(SCHEMA, command),
            profile: needs.profile.clone(),
            severity: findings
                .iter()
                .map(|finding| finding.severity)
                .max()
                .unwrap_or(Severity::Ok),
            findings,
            providers,
            devices,
            memory,
            processors,
            clock,
        }
    }

    /// What the command ends with: failure when something cannot work.
    #[must_use]
    pub fn status(&self) -> Status {
        if self.severity == Severity::Problem {
            Status::Failure
        } else {
            Status::Success
        }
    }
}

/// Runs the command.
///
/// # Errors
/// When the profile does not exist, or the report cannot be written.
pub fn execute(args: &DoctorArgs, command: String) -> Result<Status, Failure> {
    let output = args
        .json
        .as_deref()
        .map(|path| Output::check("--json", path))
        .transpose()?;
    let needs = Needs::of_profile(&args.profile)?;
    let report = Report::of(&System::below(&args.root), &needs, command);
    put_report(&text::of(&report), &report, output.as_ref())?;
    Ok(report.status())
}

#[cfg(test)]
mod tests {
    use super::system::tests::FakeMachine;
    use super::*;

    fn report(machine: &FakeMachine) -> Report {
        let needs = Needs::of_profile(&ProfileChoice::default()).unwrap();
        Report::of(&machine.system(), &needs, "bench-tool doctor".to_owned())
    }

    #[test]
    fn a_good_machine_without_a_device_has_hints_at_most() {
        let report = report(&FakeMachine::good());
        assert!(report.severity <= Severity::Hint, "{:?}", report.findings);
        assert_eq!(report.status(), Status::Success);
        let text = text::of(&report);
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
    fn a_problem_fails_the_command_and_the_table_says_how_to_mend_it() {
        let machine = FakeMachine::good();
        machine.set("proc/sys/kernel/osrelease", "4.19.0");
        let report = report(&machine);
        assert_eq!(
            (report.severity, report.status()),
            (Severity::Problem, Status::Failure)
        );
        let text = text::of(&report);
        assert!(
            text.contains("  problem  shm:NAME cannot be used"),
            "{text}"
        );
        assert!(
            text.contains("what to do: run a kernel from 5.1 on"),
            "{text}"
        );
        assert!(
            text.lines().last().unwrap().starts_with("1 problem"),
            "{text}"
        );
    }

    #[test]
    fn nothing_at_all_is_known_and_nothing_panics() {
        let report = report(&FakeMachine::empty());
        assert!(report.severity < Severity::Problem, "{:?}", report.findings);
        let _ = (text::of(&report), serde_json::to_value(&report).unwrap());
    }

    #[test]
    fn json_has_findings_by_area_and_the_facts_behind_them() {
        let value = serde_json::to_value(report(&FakeMachine::good())).unwrap();
        assert_eq!(value["schema"], SCHEMA);
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
        let needs = Needs::of_profile(&ProfileChoice::default()).unwrap();
        assert_eq!(needs.profile, "shm");
        assert!(needs.core_bytes > 1 << 20 && needs.connections_max > 0);
        let unknown = ProfileChoice {
            profile: Some("nosuch".to_owned()),
            ..ProfileChoice::default()
        };
        assert!(Needs::of_profile(&unknown).is_err());
    }
}
