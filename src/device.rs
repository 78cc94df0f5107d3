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

/// A profile that a device can carry out.
#[derive(Debug)]
pub(crate) struct Fitted {
    pub(crate) profile: Profile,
    /// What was cut down to the limits of the device, a sentence each.
    pub(crate) warnings: Vec<String>,
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
) -> Result<Fitted, Error> {
    let no_device = |why: String| Failure::NoDevice {
        address: device.to_owned(),
        why,
    };
    let opened = Context::open(Some(device)).map_err(|error| no_device(error.to_string()))?;
    let limits = VerbsProvider::limits(opened.limits());
    if let Some(profile) = chosen {
        return fit_to(Layers::over(profile), &limits, device, settings);
    }
    let layers = match Device::named(Path::new("/"), device).detect() {
        Detected::Profile(name) => Layers::named(&name)?,
        Detected::Unknown => Layers::over(default()),
        Detected::Refused { reason, .. } => return Err(no_device(reason).into()),
    };
    fit_to(not_chosen(layers, &limits), &limits, device, settings)
}

/// The profile of a program that chose none.
fn not_chosen(layers: Layers, limits: &Settings) -> Layers {
    let has_no_place = limits.receive_scatter_entries_max == Some(1);
    layers.program(&Settings {
        idle: Some(Idle::Park),
        // Such a device takes the message alone.
        placement_segments: has_no_place.then_some(0),
        ..Settings::default()
    })
}

fn fit_to(
    layers: Layers,
    limits: &Settings,
    device: &str,
    settings: &Settings,
) -> Result<Fitted, Error> {
    let loaded = layers.program(settings).limited(limits, device).build()?;
    let warnings = loaded.clamps.iter().map(ToString::to_string).collect();
    Ok(Fitted {
        profile: loaded.profile,
        warnings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn knob_beyond_the_device_is_clamped_with_a_warning() {
        let limits = Settings {
            read_depth_max: Some(4),
            ..Settings::default()
        };
        let asked = Settings {
            read_depth_max: Some(8),
            ..Settings::default()
        };
        let layers = Layers::over(Profile::default());
        let fitted = fit_to(layers, &limits, "rxe0", &asked).unwrap();
        assert_eq!(fitted.profile.read_depth_max, 4);
        let [warning] = &fitted.warnings[..] else {
            panic!("{:?}", fitted.warnings);
        };
        assert!(
            warning.contains("read_depth_max") && warning.contains("rxe0"),
            "{warning}"
        );
    }

    #[test]
    fn a_device_with_one_entry_places_nothing_unless_the_program_asks_for_it() {
        let limits = Settings {
            receive_scatter_entries_max: Some(1),
            ..Settings::default()
        };
        let places = || {
            Layers::over(Profile {
                placement_segments: 1,
                ..Profile::default()
            })
        };
        let none = Settings::default();
        let fitted = fit_to(not_chosen(places(), &limits), &limits, "dev", &none).unwrap();
        assert_eq!(fitted.profile.placement_segments, 0);
        let refused = fit_to(places(), &limits, "dev", &none).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Configuration);
        assert!(
            refused.to_string().contains("placement_segments"),
            "{refused}"
        );
    }
}
