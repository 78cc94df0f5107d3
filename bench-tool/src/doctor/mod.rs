//! `bench-tool doctor`: looks at the machine as a run would meet it, and says what is wrong, what
//! that costs, and which command mends it.
//!
//! | module | what |
//! |---|---|
//! | [`provider`] | which provider carries which address |
//! | [`device`] | RDMA devices: ports, slot, place, profile, limits |
//! | [`memory`] | registered memory, hugepages, descriptors |
//! | [`processor`] | cores that can poll |
//! | [`kernel`] | how it was started, NUMA balancing, RDMA namespaces |
//! | [`clock`] | clock source, TSC, steal time |
//! | [`system`], [`finding`] | the files that all of them read, and what they say |
//!
//! Everything is read from `/proc`, `/sys` and `/dev`, PFC by netlink and the limits of devices by their
//! library; without privilege, and nothing is changed.

pub mod clock;
pub mod device;
pub mod finding;
pub mod kernel;
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
    /// The size of those.
    pub hugepage_bytes: u64,
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
            hugepage_bytes: profile.hugepage_bytes.into(),
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
    kernel: kernel::Kernel,
    clock: clock::Clock,
}

impl Report {
    /// Examines a machine.
    #[must_use]
    pub fn of(system: &System, needs: &Needs, command: String) -> Self {
        let mut findings = Vec::new();
        let devices = device::examine(system, needs, &mut findings);
        let providers = provider::examine(system, &devices, &mut findings);
        let memory = memory::examine(system, needs, !devices.is_empty(), &mut findings);
        let near = device::near_cores(&devices);
        let processors = processor::examine(system, needs, near, &mut findings);
        let kernel = kernel::examine(system, !devices.is_empty(), &mut findings);
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
            kernel,
            clock,
        }
    }

    /// What the command ends with: failure when something cannot work, or numbers suffer.
    #[must_use]
    pub fn status(&self) -> Status {
        if self.severity >= Severity::Warning {
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
mod tests;
