//! The tuning profile of a device: its name, the values that the device reduces, and the environment variables that
//! the library of the device needs.

use rpcrdma_control::{Fabric, FabricError};
use rpcrdma_tuning::{Device as Named, Layers, Settings};
use serde::Serialize;

use super::super::finding::{Findings, Severity};
use super::super::system::System;
use crate::environment::{Complaint, complaints};

/// The profile in the JSON report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct DeviceProfile {
    /// The name, `FAMILY` or `FAMILY/DEVICE`; null if no profile exists for the device.
    pub name: Option<String>,
    /// Why the device cannot be used; null if it can.
    pub refused: Option<String>,
    /// The values of the profile that exceed a limit of the device, one sentence each. Empty if the limits of the
    /// device are unknown.
    pub clamps: Vec<String>,
    /// The environment variables with a wrong value.
    pub complaints: Vec<Complaint>,
}

/// The profile that a node without a chosen one has on a device. `limits` are the knobs within the limits of the device,
/// if these are known.
pub(crate) fn read(system: &System, device: &str, limits: Option<&Settings>) -> DeviceProfile {
    let refused = |name, error: String| DeviceProfile {
        refused: Some(error),
        name,
        ..DeviceProfile::default()
    };
    let layers = match Fabric::layers_of(&Named::named(system.root(), device), limits) {
        Ok(layers) => layers,
        Err(FabricError::Family { family, reason, .. }) => {
            return refused(None, format!("{family}: {reason}"));
        }
        Err(error) => return refused(None, error.to_string()),
    };
    let has_family = layers.name() != Layers::defaults().name();
    let name = has_family.then(|| layers.name().to_owned());
    match layers.build() {
        Ok(loaded) => DeviceProfile {
            clamps: loaded.clamps.iter().map(ToString::to_string).collect(),
            complaints: complaints(&loaded, |variable| system.variable(variable)),
            name,
            refused: None,
        },
        Err(error) => refused(name, error.to_string()),
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
            format!("{device} belongs to no family with a tuning profile"),
            "runs use the built-in defaults, which may be below the device's abilities",
            "bench-tool profile show > my.toml   # change it by measurement, and give it with --profile my.toml",
        );
    };
    findings.ok(format!("{device} takes the profile {name}"));
    for clamp in &profile.clamps {
        findings.note(
            Severity::Hint,
            format!("{device}: {clamp}"),
            "less than the profile was made for",
            format!("bench-tool profile show {name}   # shows the source of each value"),
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
