//! The fabric and the device of an address, and code that is generic over the fabric.

mod device;
pub(crate) use device::own_rdma_address;

use std::time::Duration;

use rpcrdma_control::{Provider, ShmProvider};
use rpcrdma_tuning::{Profile, Settings};

use crate::address::Address;
use crate::exit::Failure;

/// A task that is generic over the fabric.
pub(crate) trait Job {
    /// The result of the task.
    type Output;

    /// Runs the task with nodes of `provider`.
    ///
    /// # Errors
    /// The failure of the task.
    fn run<V: Provider>(self, provider: V) -> Result<Self::Output, Failure>;
}

/// A fabric, with its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fabric {
    /// Shared memory of one machine.
    Shm {
        /// Artificial one-way delay of every message that this process sends.
        delay: Duration,
    },
    /// An RDMA device.
    Verbs {
        /// Its name.
        device: String,
    },
}

impl Fabric {
    /// Shared memory without a delay.
    pub(crate) const SHM: Self = Self::Shm {
        delay: Duration::ZERO,
    };

    /// The fabric of an address to listen on. For a wildcard address the device is `device` or, without one, the
    /// first with an active port.
    ///
    /// # Errors
    /// A usage failure if `device` does not fit the address; a failure if rdma-core is missing, or no device has the
    /// address.
    pub(crate) fn to_listen(address: &Address, device: Option<&str>) -> Result<Self, Failure> {
        match address {
            Address::Shm(_) => Self::shm(device),
            Address::Rdma { .. } => Self::at(address, device),
        }
    }

    /// The fabric of an address to connect to. The device is `device` or, without one, the device on the route to the
    /// address.
    ///
    /// # Errors
    /// As [`Fabric::to_listen`]; a failure if no device has a route to the address.
    pub(crate) fn to_connect(address: &Address, device: Option<&str>) -> Result<Self, Failure> {
        match address {
            Address::Shm(_) => Self::shm(device),
            Address::Rdma { .. } => Self::towards(address, device),
        }
    }

    fn shm(device: Option<&str>) -> Result<Self, Failure> {
        match device {
            None => Ok(Self::SHM),
            Some(device) => Err(Failure::usage(format!(
                "the shm fabric has no devices, and --device names {device}"
            ))
            .advice("leave --device out, or give an address rdma:HOST:PORT")),
        }
    }

    /// The same fabric with an artificial one-way delay of every message that this process sends.
    ///
    /// # Errors
    /// A usage failure if the fabric cannot delay messages.
    pub(crate) fn delayed(self, by: Duration) -> Result<Self, Failure> {
        match self {
            Self::Shm { .. } => Ok(Self::Shm { delay: by }),
            verbs @ Self::Verbs { .. } if by.is_zero() => Ok(verbs),
            Self::Verbs { device } => Err(Failure::usage(format!(
                "{device} cannot delay messages: only the shm fabric can"
            ))
            .advice(
                "delay the link instead: `tests/lab/lab run --delay TIME` does it between the lab's guests, \
                 `tc qdisc add dev DEVICE root netem delay TIME` on an Ethernet device below soft-RoCE",
            )),
        }
    }

    /// The provider's name, for reports.
    #[must_use]
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Shm { .. } => "shm",
            Self::Verbs { .. } => "verbs",
        }
    }

    /// The device's name; `None` on shm.
    #[must_use]
    pub(crate) fn device(&self) -> Option<&str> {
        match self {
            Self::Shm { .. } => None,
            Self::Verbs { device } => Some(device),
        }
    }

    /// The name of the embedded profile for this fabric or device; with `None` the built-in defaults apply.
    ///
    /// # Errors
    /// A failure if the device is of a kind that cannot be used.
    pub(crate) fn family(&self) -> Result<Option<String>, Failure> {
        match self {
            Self::Shm { .. } => Ok(Some("shm".to_owned())),
            Self::Verbs { device } => device::family(device),
        }
    }

    /// The device's limits for the knobs, and its name; `None` on shm.
    ///
    /// # Errors
    /// A failure if the device cannot be opened.
    pub(crate) fn limits(&self) -> Result<Option<(Settings, &str)>, Failure> {
        match self {
            Self::Shm { .. } => Ok(None),
            Self::Verbs { device } => Ok(Some((device::limits(device)?, device))),
        }
    }

    /// Runs `job` with a provider that has the sizes of `profile`.
    ///
    /// # Errors
    /// The failure of the job.
    pub(crate) fn run<J: Job>(&self, profile: &Profile, job: J) -> Result<J::Output, Failure> {
        match self {
            Self::Shm { delay } => job.run(ShmProvider {
                delay: *delay,
                ..ShmProvider::from_profile(profile)
            }),
            Self::Verbs { device } => {
                let device = Some(device.clone());
                job.run(rpcrdma_control::VerbsProvider::from_profile(
                    profile, device,
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Status;

    #[test]
    fn shm_needs_nothing_and_has_no_device() {
        let address: Address = "shm:x".parse().unwrap();
        let fabric = Fabric::to_listen(&address, None).unwrap();
        assert_eq!(
            (fabric.name(), fabric.device(), fabric.family().unwrap()),
            ("shm", None, Some("shm".to_owned()))
        );
        assert_eq!(fabric.limits().unwrap(), None);
        let failure = Fabric::to_connect(&address, Some("mlx5_0")).unwrap_err();
        assert_eq!(failure.status(), Status::Usage);
        assert!(failure.to_string().contains("mlx5_0"), "{failure}");
    }
}
