//! The tuning profile that a device takes: which, what the device cuts down of it, and what its
//! library wants of the environment.

use rpcrdma_tuning::{Detected, Device as Named, Layers, Settings};
use serde::Serialize;

use super::super::finding::{Findings, Severity};
use super::super::system::System;
use crate::environment::{Complaint, complaints};

/// The profile, as JSON has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct DeviceProfile {
    /// Its name, `FAMILY` or `FAMILY/DEVICE`; null where there is none for the device.
    pub name: Option<String>,
    /// Why the device cannot be used at all; null when it can.
    pub refused: Option<String>,
    /// What the profile asks for and the device does not have, one sentence each; none where the
    /// limits of the device are not known.
    pub clamps: Vec<String>,
    /// Variables of the environment that do not hold what they should.
    pub complaints: Vec<Complaint>,
}

/// Finds the profile of that device. `limits`: what it leaves of the knobs, where that is known.
pub(crate) fn read(system: &System, device: &str, limits: Option<&Settings>) -> DeviceProfile {
    let name = match Named::named(system.root(), device).detect() {
        Detected::Profile(name) => name,
        Detected::Refused { family, reason } => {
            return DeviceProfile {
                refused: Some(format!("{family}: {reason}")),
                ..DeviceProfile::default()
            };
        }
        Detected::Unknown => return DeviceProfile::default(),
    };
    let limited = |layers: Layers| match limits {
        Some(limits) => layers.limited(limits, device),
        None => layers,
    };
    let loaded = Layers::named(&name).map(limited).and_then(Layers::build);
    match loaded {
        Ok(loaded) => DeviceProfile {
            clamps: loaded.clamps.iter().map(ToString::to_string).collect(),
            complaints: complaints(&loaded, |variable| system.variable(variable)),
            name: Some(name),
            refused: None,
        },
        Err(error) => DeviceProfile {
            refused: Some(error.to_string()),
            name: Some(name),
            ..DeviceProfile::default()
        },
    }
}

pub(crate) fn judge(device: &str, profile: &DeviceProfile, findings: &mut Findings<'_>) {
    if let Some(reason) = &profile.refused {
        return findings.note(
            Severity::Problem,
            format!("{device} cannot be used: {reason}"),
            "no connection can be made through it",
            "bench-tool profile list   # names what can be used",
        );
    }
    let Some(name) = &profile.name else {
        return findings.note(
            Severity::Hint,
            format!("{device} is of no family that a tuning profile is for"),
            "runs take the built-in defaults, which may be less than it can do",
            "bench-tool profile show > my.toml   # change it by measurement, and give it with --profile my.toml",
        );
    };
    findings.ok(format!("{device} takes the profile {name}"));
    for clamp in &profile.clamps {
        findings.note(
            Severity::Hint,
            format!("{device}: {clamp}"),
            "less than the profile was made for",
            format!("bench-tool profile show {name}   # says where each value comes from"),
        );
    }
    for Complaint { what, fix, .. } in &profile.complaints {
        let (what, cost) = what
            .split_once(": ")
            .unwrap_or((what, "its library is slower"));
        findings.note(
            Severity::Warning,
            format!("{device}: {what}"),
            cost,
            format!("{fix}   # before the program starts"),
        );
    }
}
