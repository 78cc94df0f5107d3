//! `bench-tool profile detect`: the profile for each RDMA device of this machine.

use std::fmt::Write as _;
use std::path::Path;

use rpcrdma_control::{Fabric, FabricError};
use rpcrdma_tuning::{Device, Layers};
use serde::Serialize;

use super::{cannot_be_used, own_variable, put};
use crate::exit::Failure;
use rpcrdma_doctor::{Complaint, complaints};

/// The `schema` of the JSON report. The keys of a schema never change their meaning.
const SCHEMA: &str = "rpcrdma.bench-tool.profile-detect/1";

/// The JSON report.
#[derive(Serialize)]
struct Report {
    schema: &'static str,
    devices: Vec<Line>,
}

/// One device.
#[derive(Serialize)]
struct Line {
    device: String,
    driver: Option<String>,
    /// PCI identifiers, `VENDOR:PART`.
    part: Option<String>,
    /// The device's profile; null if there is none for its kind, or if the device is refused.
    profile: Option<String>,
    /// Why the device cannot be used; null if it can.
    refused: Option<String>,
    complaints: Vec<Complaint>,
}

/// Shows the profile of each device below `root`, or only of the `wanted` one.
///
/// # Errors
/// If there is no such device, or the output cannot be written.
pub(crate) fn detect(
    root: &Path,
    wanted: Option<&str>,
    json: Option<&Path>,
) -> Result<(), Failure> {
    let mut devices = Device::all(root);
    if let Some(wanted) = wanted {
        devices.retain(|device| device.name == wanted);
        if devices.is_empty() {
            return Err(Failure::failed(format!("there is no RDMA device {wanted}"))
                .advice("`rdma link` and `bench-tool profile detect` name those that are there"));
        }
    }
    let variable = |name: &str| {
        // Another root holds the files of another machine, whose environment is unknown.
        (root == Path::new("/")).then(|| own_variable(name))?
    };
    let lines = devices.into_iter().map(|device| line(device, variable));
    let report = Report {
        schema: SCHEMA,
        devices: lines.collect::<Result<_, _>>()?,
    };
    put(&text(&report), &report, json)
}

fn line(device: Device, variable: impl Fn(&str) -> Option<String>) -> Result<Line, Failure> {
    let (profile, refused, complaints) = match Fabric::layers_of(&device, None) {
        Ok(layers) if layers.name() == Layers::defaults().name() => (None, None, Vec::new()),
        Ok(layers) => {
            let loaded = layers.build().map_err(cannot_be_used)?;
            (
                Some(loaded.name.clone()),
                None,
                complaints(&loaded, variable),
            )
        }
        Err(FabricError::Family { reason, .. }) => (None, Some(reason), Vec::new()),
        Err(error) => return Err(error.into()),
    };
    Ok(Line {
        device: device.name,
        driver: device.driver,
        part: device.part,
        profile,
        refused,
        complaints,
    })
}

fn text(report: &Report) -> String {
    if report.devices.is_empty() {
        return "no RDMA device: addresses that begin with shm: need none, and take the profile shm\n"
            .to_owned();
    }
    let mut text = String::new();
    for line in &report.devices {
        let driver = line.driver.as_deref().unwrap_or("no driver");
        let part = line.part.as_deref().unwrap_or("no PCI identifiers");
        let taken = match (&line.profile, &line.refused) {
            (Some(profile), _) => format!("profile {profile}"),
            (None, Some(reason)) => format!("cannot be used: {reason}"),
            (None, None) => "no profile is for it: the built-in defaults are taken".to_owned(),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{} ({driver}, {part}): {taken}", line.device);
        for Complaint { what, fix, .. } in &line.complaints {
            let _ = writeln!(text, "  {what}\n    what to do: {fix}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use rpcrdma_testkit::CheckWords;

    fn device(name: &str, driver: Option<&str>, part: Option<&str>) -> Device {
        Device {
            name: name.to_owned(),
            driver: driver.map(str::to_owned),
            part: part.map(str::to_owned),
        }
    }

    #[test]
    fn each_device_is_shown_with_its_profile_and_environment() {
        let devices = [
            device("mlx5_0", Some("mlx5_core"), Some("15b3:1021")),
            device("rdmap0s6", Some("efa"), Some("1d0f:efa1")),
            device("ocrdma0", Some("ocrdma"), Some("10df:0720")),
            device("rxe0", None, None),
        ];
        let lines = devices
            .into_iter()
            .map(|device| line(device, |_| None).unwrap());
        let report = Report {
            schema: SCHEMA,
            devices: lines.collect(),
        };
        let text = text(&report);
        text.check_words(&[
            "mlx5_0 (mlx5_core, 15b3:1021): profile mlx5-connectx7",
            "what to do: export MLX5_TOTAL_UUARS=64",
            "rdmap0s6 (efa, 1d0f:efa1): cannot be used: RPC-over-RDMA needs reliable connections",
            "ocrdma0 (ocrdma, 10df:0720): no profile is for it",
            "rxe0 (no driver, no PCI identifiers): profile rxe",
        ]);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["devices"][0]["profile"], "mlx5-connectx7");
        assert!(json["devices"][2]["profile"].is_null());
        assert!(json["devices"][1]["refused"].is_string());
    }

    #[test]
    fn without_a_device_it_says_what_needs_none() {
        let report = Report {
            schema: SCHEMA,
            devices: Vec::new(),
        };
        assert!(text(&report).contains("profile shm"));
    }
}
