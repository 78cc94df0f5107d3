//! Examines a machine for RPC-over-RDMA, and reports each problem with its cost and the command that fixes it.
//! `bench-tool doctor` is its command line.
//!
//! This crate is for programs that want the same examination before they start: an appliance that refuses a machine with
//! little locked memory, or a test that notes what disturbs it.
//!
//! ```
//! use rpcrdma_doctor::{Needs, Report, Severity, System};
//!
//! let profile = rpcrdma_tuning::Layers::named("shm")?.build()?;
//! let report = Report::of(&System::below("/".as_ref()), &Needs::of(&profile));
//! if report.severity() >= Severity::Warning {
//!     println!("{}", report.text());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Needs`] is what a profile asks of a machine, a [`Report`] has the findings, and [`Severity`] says how bad each is.
//! The values come from `/proc`, `/sys` and `/dev`; PFC comes by netlink, and the limits of devices from rdma-core.
//! The examination needs no privilege and changes nothing.
#![forbid(unsafe_code)]

mod clock;
mod cores;
mod device;
mod disturbance;
mod environment;
mod finding;
mod kernel;
mod memory;
mod processor;
mod provider;
mod system;
mod tasks;
mod text;

use rpcrdma_control::NodeConfig;
use rpcrdma_fabric::rails::RAILS_MAX;
use rpcrdma_tuning::{Hugepages, Idle, Loaded};
use serde::Serialize;

pub use self::cores::{CoreList, core_list, format_cores};
pub use self::device::DeviceRecord;
pub use self::disturbance::Counted;
pub use self::environment::{Complaint, complaints};
use self::finding::Finding;
pub use self::finding::Severity;
pub use self::system::{System, chosen_of_brackets};

/// The requirements of a profile on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// The name of the profile.
    pub profile: String,
    /// The number of bytes that one core registers.
    pub core_bytes: u64,
    /// The number of bytes that one core registers more for each further device of its node.
    pub device_bytes: u64,
    /// The number of connections that one core accepts.
    pub connections_max: u32,
    /// Whether idle cores sleep.
    pub parks: bool,
    /// Whether arenas use hugepages.
    pub hugepages: Hugepages,
    /// The size of a hugepage.
    pub hugepage_bytes: u64,
}

impl Needs {
    /// The number of bytes that one core of a node locks on so many devices: each device registers all of its memory.
    pub(crate) fn locked_bytes(&self, devices: u64) -> u64 {
        let more = devices.saturating_sub(1).saturating_mul(self.device_bytes);
        self.core_bytes.saturating_add(more).saturating_mul(devices)
    }

    /// The requirements of a loaded profile.
    #[must_use]
    pub fn of(loaded: &Loaded) -> Self {
        let profile = &loaded.profile;
        let mut core = NodeConfig::from_profile(profile, Vec::new()).core;
        let core_bytes = core.arena_bytes();
        core.rails = 2;
        Self {
            profile: loaded.name.clone(),
            core_bytes,
            device_bytes: core.arena_bytes().saturating_sub(core_bytes),
            connections_max: profile.connections_max,
            parks: profile.idle == Idle::Park,
            hugepages: profile.hugepages,
            hugepage_bytes: profile.hugepage_bytes.into(),
        }
    }
}

/// The report. Its serialization is the JSON of `doctor --json`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    profile: String,
    /// The highest severity of the findings.
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
    pub fn of(system: &System, needs: &Needs) -> Self {
        let mut findings = Vec::new();
        let devices = device::examine(system, needs, &mut findings);
        let providers = provider::examine(system, &devices, &mut findings);
        // A node uses those that are active, up to its limit.
        let active = devices.iter().filter(|device| device.is_active()).count();
        let used = active.clamp(usize::from(!devices.is_empty()), RAILS_MAX);
        let memory = memory::examine(system, needs, used, &mut findings);
        let near = device::near_cores(&devices);
        let processors = processor::examine(system, needs, near, &mut findings);
        let kernel = kernel::examine(system, !devices.is_empty(), &mut findings);
        let clock = clock::examine(system, &mut findings);
        // The sort is stable: within an area the findings keep the order of the examination.
        findings.sort_by_key(|finding| finding.area);
        Self {
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

    /// The highest severity of the findings.
    #[must_use]
    pub const fn severity(&self) -> Severity {
        self.severity
    }

    /// The report as text: the findings by area, each with its fix.
    #[must_use]
    pub fn text(&self) -> String {
        text::of(self)
    }
}

#[cfg(test)]
mod tests;
