//! The names of a node's RDMA devices.

use std::fmt;
use std::path::Path;

use rpcrdma_fabric::verbs::Context;
use rpcrdma_tuning::{Detected, Device};

use crate::device::FabricError;

/// The RDMA devices of a node: at least one, each once. A node with several has a rail on each
/// ([`RailsProvider`](crate::RailsProvider)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    /// With commas between them.
    names: String,
    /// Why no device led to some addresses.
    left_out: Vec<String>,
}

impl Devices {
    /// One device, by its name.
    #[must_use]
    pub fn one(name: &str) -> Self {
        Self {
            names: name.to_owned(),
            left_out: Vec::new(),
        }
    }

    /// These devices, for a list of addresses of which some have no device.
    pub(crate) fn without(mut self, left_out: Vec<String>) -> Self {
        self.left_out = left_out;
        self
    }

    /// For each address of a list that no device led to, what that means: one sentence.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        self.left_out.iter().map(|why| {
            format!(
                "an address of the list has no RDMA device now, so connections to it fail ({why}): list all devices by \
                 --device, or start again when the link is up"
            )
        })
    }

    /// The devices of a list with commas. `all` is every device with an active port, of a family that can be used.
    ///
    /// # Errors
    /// [`FabricError::NoDevice`] if there is no device of a name, or none with an active port.
    pub fn named(list: &str) -> Result<Self, FabricError> {
        let all: Vec<String> = match list {
            "all" => {
                let found = Context::devices().map_err(FabricError::NoDevice)?;
                let usable = found.into_iter().filter(|(name, is_active)| {
                    let device = Device::named(Path::new("/"), name);
                    *is_active && !matches!(device.detect(), Detected::Refused { .. })
                });
                usable.map(|(name, _)| name).collect()
            }
            _ => list.split(',').map(str::to_owned).collect(),
        };
        let mut devices: Option<Self> = None;
        for name in &all {
            Context::open(Some(name)).map_err(FabricError::NoDevice)?;
            devices = Some(Self::with(devices, name));
        }
        match devices {
            Some(devices) => Ok(devices),
            None => {
                let first = Context::open(None).map_err(FabricError::NoDevice)?;
                Ok(Self::one(first.name()))
            }
        }
    }

    /// These devices and `name`.
    pub(crate) fn with(devices: Option<Self>, name: &str) -> Self {
        match devices {
            None => Self::one(name),
            Some(devices) if devices.has(name) => devices,
            Some(devices) => Self {
                names: format!("{devices},{name}"),
                ..devices
            },
        }
    }

    /// The names, in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.names.split(',')
    }

    /// The first name.
    #[must_use]
    pub fn first(&self) -> &str {
        self.iter().next().unwrap_or_default()
    }

    /// The names, with commas between them.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.names
    }

    /// Whether `name` is one of them.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.iter().any(|it| it == name)
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_is_in_the_list_once() {
        let devices = ["mlx5_0", "mlx5_1", "mlx5_0"]
            .into_iter()
            .fold(None, |devices, name| Some(Devices::with(devices, name)))
            .unwrap();
        assert_eq!(devices.to_string(), "mlx5_0,mlx5_1");
        assert_eq!(devices.iter().count(), 2);
        assert_eq!(devices.first(), "mlx5_0");
        assert!(devices.has("mlx5_1") && !devices.has("mlx5_"));
        assert_eq!(Devices::one("rxe0").as_str(), "rxe0");
    }
}
