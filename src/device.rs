//! The RDMA device of a node, and the profile that fits it.

use std::path::Path;
use std::time::Duration;

use rpcrdma_control::VerbsProvider;
use rpcrdma_fabric::verbs::{Context, device_at, device_towards};
use rpcrdma_tuning::{Detected, Device, Idle, Layers, Profile, Settings};

use crate::error::{Error, Failure};

/// How long finding the way to an address may take.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The name of the device that has `address`, or else of the one by which it is reached. Where all have it, it is the first
/// that is active. One that is named is taken in any case.
///
/// # Errors
/// [`Failure::NoDevice`].
pub(crate) fn of_address(address: &str, named: Option<&str>) -> Result<String, Error> {
    let no_device = |error: &dyn std::error::Error| Failure::NoDevice {
        address: address.to_owned(),
        why: error.to_string(),
    };
    let found = match named {
        Some(_) => Ok(None),
        // An address of this machine is that of a listener.
        None => device_at(address).or_else(|_| device_towards(address, RESOLVE_TIMEOUT).map(Some)),
    };
    if let Some(device) = found.map_err(|error| no_device(&error))? {
        return Ok(device);
    }
    let opened = Context::open(named).map_err(|error| no_device(&error))?;
    Ok(opened.name().to_owned())
}

/// The chosen profile, or else that of the device's family, with `settings` on top, as far as the device goes.
///
/// # Errors
/// When the device cannot be used, or cannot do what the profile asks for.
pub(crate) fn fit(
    device: &str,
    chosen: Option<Profile>,
    settings: &Settings,
    default: impl FnOnce() -> Profile,
) -> Result<Profile, Error> {
    let opened = Context::open(Some(device)).map_err(|error| Failure::NoDevice {
        address: device.to_owned(),
        why: error.to_string(),
    })?;
    let limits = VerbsProvider::limits(opened.limits());
    let layers = match chosen {
        Some(profile) => Layers::over(profile),
        None => {
            let layers = match Device::named(Path::new("/"), device).detect() {
                Detected::Profile(name) => Layers::named(&name)?,
                Detected::Unknown => Layers::over(default()),
                Detected::Refused { reason: why, .. } => {
                    let address = device.to_owned();
                    return Err(Failure::NoDevice { address, why }.into());
                }
            };
            let places = limits.receive_scatter_entries_max != Some(1);
            layers.program(&Settings {
                idle: Some(Idle::Park),
                // A device that nobody knows may have no room for a segment beside the message.
                placement_segments: (!places).then_some(0),
                ..Settings::default()
            })
        }
    };
    let layers = layers.limited(&limits, device).program(settings);
    Ok(layers.build()?.profile)
}
