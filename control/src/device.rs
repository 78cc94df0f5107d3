//! From an address to the fabric and device that a node uses for it, and to the profile that fits them.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::time::Duration;

use rpcrdma_fabric::address::Address;
use rpcrdma_fabric::interface::{ManagerError, SetupError};
use rpcrdma_fabric::verbs::{Context, device_at, device_towards};
use rpcrdma_fabric::{shm, verbs};
use rpcrdma_tuning::{Detected, Device, Layers, Settings};

use crate::devices::Devices;
use crate::provider::VerbsProvider;

/// Time limit for resolving the route to an address.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The kernel's directory of RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";

/// The directory of the device files that processes open.
const FILES: &str = "/dev/infiniband";

/// A fabric, with its devices: where a node runs.
///
/// # Example
/// ```
/// use rpcrdma_control::{Fabric, Use};
///
/// let fabric = Fabric::of([&"shm:example".parse()?], None, Use::Listen)?;
/// assert_eq!((fabric.name(), fabric.devices()), ("shm", None));
/// assert_eq!(fabric.layers(None)?.build()?.name, "shm");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// Shared memory of one machine.
    Shm {
        /// Artificial one-way delay of every message that this process sends.
        delay: Duration,
    },
    /// RDMA devices: one, or a rail on each of several.
    Verbs {
        /// Their names.
        devices: Devices,
    },
}

/// What a node does at the addresses that choose its fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It listens there.
    Listen,
    /// It connects to there.
    Connect,
    /// It listens there if the address is of this machine, unless another device is named; otherwise it connects.
    Either,
}

/// Why a fabric or its device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// A device was named for the fabric that has none.
    #[error("the shm fabric has no devices, and {named} was named")]
    NoDevices {
        /// The name.
        named: String,
    },
    /// No named device has the address to listen on.
    #[error("{address} is an address of the device {found}, and {named} was named")]
    OtherDevice {
        /// The address.
        address: String,
        /// The device that has it.
        found: String,
        /// The name.
        named: String,
    },
    /// No device has the address to listen on.
    #[error("cannot listen on {address}")]
    NotHere {
        /// The address.
        address: String,
        /// Why.
        source: ManagerError,
    },
    /// The address is reached through no device.
    #[error("cannot connect to {address}")]
    NoWay {
        /// The address.
        address: String,
        /// Why.
        source: ManagerError,
    },
    /// No device can be used, or not the named one.
    #[error("no RDMA device can be used")]
    NoDevice(#[source] SetupError),
    /// The device is of a family that cannot be used.
    #[error("the device {device} is of the family {family}, which cannot be used: {reason}")]
    Family {
        /// Its name.
        device: String,
        /// The family.
        family: String,
        /// Why.
        reason: String,
    },
    /// The device has no IP address.
    #[error("the device {device} has no IP address in its table ({gids})")]
    NoAddress {
        /// Its name.
        device: String,
        /// The kernel's directory of the addresses.
        gids: String,
    },
    /// An RDMA device cannot delay messages.
    #[error("{device} cannot delay messages: only the shm fabric can")]
    NoDelay {
        /// Its name.
        device: String,
    },
    /// The profile cannot be read.
    #[error("the profile cannot be used")]
    Profile(#[from] rpcrdma_tuning::Error),
}

impl FabricError {
    /// What to do: one sentence without a full stop, if there is something to say.
    #[must_use]
    pub fn advice(&self) -> Option<String> {
        let text = match self {
            Self::NoDevices { .. } => "name no device, or give an address rdma:HOST:PORT",
            Self::OtherDevice { .. } | Self::Family { .. } => LOOK_AT_DEVICES,
            Self::NotHere { address, source } | Self::NoWay { address, source } => {
                let is_bad = matches!(source, ManagerError::BadAddress { .. });
                if let Some(name) = host_name(address).filter(|_| is_bad) {
                    return Some(format!(
                        "is {name} spelt right, and does this machine know it? `getent hosts {name}` has to print its address"
                    ));
                }
                general_advice()
            }
            Self::NoDevice(_) => {
                return closed_file(Path::new(FILES)).or_else(|| Some(general_advice().to_owned()));
            }
            Self::NoAddress { .. } => {
                "give its network interface one (`ip address add`), or name an address of a server that runs elsewhere"
            }
            Self::NoDelay { .. } => {
                "delay the link instead: `tc qdisc add dev DEVICE root netem delay TIME` does it on an Ethernet device \
                 below soft-RoCE"
            }
            Self::Profile(_) => return None,
        };
        Some(text.to_owned())
    }

    /// Whether what was asked for contradicts itself, so that nothing was tried.
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        match self {
            Self::NoDevices { .. }
            | Self::OtherDevice { .. }
            | Self::Family { .. }
            | Self::NoDelay { .. }
            | Self::Profile(_) => true,
            Self::NotHere { .. }
            | Self::NoWay { .. }
            | Self::NoDevice(_)
            | Self::NoAddress { .. } => false,
        }
    }
}

/// The host name in an address `rdma:HOST:PORT`; `None` if the host is an IP address.
fn host_name(address: &str) -> Option<&str> {
    let (host, _) = address.strip_prefix("rdma:")?.rsplit_once(':')?;
    let ip = host.trim_start_matches('[').trim_end_matches(']');
    let ip = ip.split('%').next()?;
    ip.parse::<IpAddr>().is_err().then_some(host)
}

/// Advice if there is no device, or a wrong one.
const LOOK_AT_DEVICES: &str =
    "`rdma link` shows the devices and the network interface of each; name one of them";

/// Advice if no device can be used.
fn general_advice() -> &'static str {
    if rpcrdma_fabric::verbs::facilities().is_ok() {
        LOOK_AT_DEVICES
    } else {
        "without rdma-core, shm:NAME joins processes of one machine"
    }
}

impl Fabric {
    /// Shared memory without a delay.
    pub const SHM: Self = Self::Shm {
        delay: Duration::ZERO,
    };

    /// The fabric of the first address, with the devices for all addresses of it. To listen, they are those that have the
    /// addresses; where all have one (a wildcard), the first with an active port. To connect, they are those on the routes to the
    /// addresses. `named` takes their place: names with commas between them, or `all`.
    ///
    /// # Errors
    /// If `named` does not fit an address, rdma-core is missing, or no device has or reaches an address. Of several to connect
    /// to, one that no device reaches is left out.
    pub fn of<'a>(
        addresses: impl IntoIterator<Item = &'a Address>,
        named: Option<&str>,
        purpose: Use,
    ) -> Result<Self, FabricError> {
        let addresses: Vec<&Address> = addresses.into_iter().collect();
        if let Some(Address::Shm(_)) = addresses.first() {
            return match named {
                None => Ok(Self::SHM),
                Some(named) => Err(FabricError::NoDevices {
                    named: named.to_owned(),
                }),
            };
        }
        let named = named.map(Devices::named).transpose()?;
        let is_rdma = |address: &&&Address| matches!(address, Address::Rdma { .. });
        let rdma: Vec<&Address> = addresses.iter().filter(is_rdma).copied().collect();
        let (mut found, mut unreached) = (None, None);
        let mut left_out = Vec::new();
        for address in &rdma {
            match Self::devices_of(address, named.as_ref(), purpose, rdma.len() > 1) {
                // All devices have a wildcard, and the first is as good as another one.
                Ok(devices) if devices.is_empty() && named.is_none() => {
                    let first = Context::open(None).map_err(FabricError::NoDevice)?;
                    found = Some(Devices::with(found, first.name()));
                }
                Ok(devices) => {
                    for device in devices {
                        found = Some(Devices::with(found, &device));
                    }
                }
                // A list with a wrong address is wrong.
                Err(FabricError::NoWay { address, source })
                    if !matches!(source, ManagerError::BadAddress { .. }) =>
                {
                    left_out.push(source.to_string());
                    unreached = Some(FabricError::NoWay { address, source });
                }
                Err(error) => return Err(error),
            }
        }
        match (named.or(found), unreached) {
            (Some(devices), _) => Ok(Self::Verbs {
                devices: devices.without(left_out),
            }),
            (None, Some(error)) => Err(error),
            (None, None) => Self::device_named(None),
        }
    }

    /// The devices for one address, if the address decides; `is_one_of_several` if there are other addresses.
    fn devices_of(
        address: &Address,
        named: Option<&Devices>,
        purpose: Use,
        is_one_of_several: bool,
    ) -> Result<Vec<String>, FabricError> {
        let towards = || match named {
            Some(_) => Ok(Vec::new()),
            None => Self::towards(address, is_one_of_several),
        };
        match purpose {
            Use::Connect => towards(),
            Use::Listen => Self::at(address, named),
            // An address of this machine is that of a listener.
            Use::Either => match device_at(&address.to_string()) {
                // A client on another device of this machine, if one was named.
                Ok(Some(found)) if named.is_some_and(|named| !named.has(&found)) => towards(),
                Ok(found) => Ok(found.into_iter().collect()),
                Err(_) => towards(),
            },
        }
    }

    /// Checks that a node on `devices` may listen at `address`: clients that come by another device find no cores.
    ///
    /// # Errors
    /// [`FabricError::OtherDevice`], and [`FabricError::NotHere`] if no device has the address.
    pub fn check_listen(devices: &Devices, address: &Address) -> Result<(), FabricError> {
        Self::at(address, Some(devices)).map(drop)
    }

    fn at(address: &Address, named: Option<&Devices>) -> Result<Vec<String>, FabricError> {
        let found = device_at(&address.to_string()).map_err(|source| FabricError::NotHere {
            address: address.to_string(),
            source,
        })?;
        match (found, named) {
            (Some(found), Some(named)) if !named.has(&found) => Err(FabricError::OtherDevice {
                address: address.to_string(),
                found,
                named: named.to_string(),
            }),
            (found, _) => Ok(found.into_iter().collect()),
        }
    }

    fn towards(address: &Address, is_one_of_several: bool) -> Result<Vec<String>, FabricError> {
        // A server may be down at one of its addresses, where RDMA-CM finds no device: the way to it begins at one all the same. A
        // name may have several addresses, too.
        let devices = devices_on_routes(address);
        if !devices.is_empty() && (is_one_of_several || devices.len() > 1) {
            return Ok(devices);
        }
        let found = device_towards(&address.to_string(), RESOLVE_TIMEOUT);
        match found {
            Ok(device) => Ok(vec![device]),
            Err(source) => Err(FabricError::NoWay {
                address: address.to_string(),
                source,
            }),
        }
    }

    /// The named devices ([`Devices::named`]), or the first one with an active port.
    ///
    /// # Errors
    /// [`FabricError::NoDevice`].
    pub fn device_named(named: Option<&str>) -> Result<Self, FabricError> {
        let devices = match named {
            Some(named) => Devices::named(named)?,
            None => {
                let first = Context::open(None).map_err(FabricError::NoDevice)?;
                Devices::one(first.name())
            }
        };
        Ok(Self::Verbs { devices })
    }

    /// The same fabric with an artificial one-way delay of every message that this process sends.
    ///
    /// # Errors
    /// [`FabricError::NoDelay`], unless `by` is zero.
    pub fn delayed(self, by: Duration) -> Result<Self, FabricError> {
        match self {
            Self::Shm { .. } => Ok(Self::Shm { delay: by }),
            verbs @ Self::Verbs { .. } if by.is_zero() => Ok(verbs),
            Self::Verbs { devices } => Err(FabricError::NoDelay {
                device: devices.to_string(),
            }),
        }
    }

    /// The provider's name, for reports.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Shm { .. } => "shm",
            Self::Verbs { .. } => "verbs",
        }
    }

    /// The devices; `None` on shm.
    #[must_use]
    pub const fn devices(&self) -> Option<&Devices> {
        match self {
            Self::Shm { .. } => None,
            Self::Verbs { devices } => Some(devices),
        }
    }

    /// Whether `address` is of this fabric, on whichever device.
    #[must_use]
    pub const fn is_of(&self, address: &Address) -> bool {
        matches!(
            (self, address),
            (Self::Shm { .. }, Address::Shm(_)) | (Self::Verbs { .. }, Address::Rdma { .. })
        )
    }

    /// The layers of a profile, with the limits of the device: of `chosen`, or else of the family of the device. A device of no
    /// known family has the built-in defaults ([`Layers::defaults`]), with memory for bulk data. Further layers may be put on
    /// top: the limits hold for them too.
    ///
    /// # Errors
    /// When the device cannot be opened, or is of a family that cannot be used.
    pub fn layers(&self, chosen: Option<Layers>) -> Result<Layers, FabricError> {
        let Self::Verbs { devices } = self else {
            return Ok(chosen.map_or_else(|| Layers::named("shm"), Ok)?);
        };
        let mut limits: Option<Settings> = None;
        let mut lacks = Vec::new();
        for device in devices.iter() {
            let context = Context::open(Some(device)).map_err(FabricError::NoDevice)?;
            let own = VerbsProvider::limits(context.limits());
            limits = Some(limits.map_or_else(|| own.clone(), |all| least(&all, &own)));
            if context.limits().windows == 0 {
                lacks.push(no_windows(device, context.windows_refused()));
            }
        }
        let limits = limits.unwrap_or_default();
        let layers = match chosen {
            Some(chosen) => chosen.limited(&limits, devices.as_str()),
            // Nobody chose it: what the devices lack of it is no warning of a node, but a hint of the doctor.
            None => {
                let of = |name| Self::layers_of(&Device::named(Path::new("/"), name), None);
                // The profile is that of the first device. The others have to be of a family that can be used.
                devices.iter().skip(1).try_for_each(|it| of(it).map(drop))?;
                let layers = without_place(of(devices.first())?, &limits);
                layers.limited(&limits, devices.as_str()).fitted()
            }
        };
        Ok(lacks.into_iter().fold(layers, Layers::lacking))
    }

    /// The layers of [`Fabric::layers`] for a device that the kernel describes, if no profile is chosen: those of its
    /// family. `limits` are those of the device for the knobs; `None` if it is not opened.
    ///
    /// # Errors
    /// [`FabricError::Family`].
    pub fn layers_of(device: &Device, limits: Option<&Settings>) -> Result<Layers, FabricError> {
        let layers = match device.detect() {
            Detected::Profile(name) => Layers::named(&name)?,
            Detected::Unknown => Layers::defaults().program(&of_unknown_family()),
            Detected::Refused { family, reason } => {
                return Err(FabricError::Family {
                    device: device.name.clone(),
                    family: family.to_owned(),
                    reason,
                });
            }
        };
        Ok(match limits {
            Some(limits) => without_place(layers, limits).limited(limits, &device.name),
            None => layers,
        })
    }

    /// Checks that nobody listens at `address`, where a node is to listen when it has its memory.
    ///
    /// # Errors
    /// [`ManagerError::InUse`], or why the address cannot be listened at.
    pub fn check_free(address: &Address) -> Result<(), ManagerError> {
        match address {
            Address::Shm(_) => shm::check_free(&address.to_string()),
            Address::Rdma { .. } => verbs::check_free(&address.to_string()),
        }
    }

    /// An address of a device for a server that only this machine uses: an IP address of the device's first port, with port
    /// number 0, so that the system chooses one.
    ///
    /// # Errors
    /// If there is no device, or it has no IP address.
    pub fn own_rdma_address(named: Option<&str>) -> Result<Address, FabricError> {
        let fabric = Self::device_named(named)?;
        let device = fabric.devices().map_or("", Devices::first);
        let gids = format!("{DEVICES}/{device}/ports/1/gids");
        let address = std::fs::read_dir(&gids)
            .into_iter()
            .flatten()
            .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path()).ok())
            .find_map(|gid| address_of(gid.trim()));
        let address = address.ok_or_else(|| FabricError::NoAddress {
            device: device.to_owned(),
            gids,
        })?;
        Ok(Address::Rdma {
            host: address.to_string(),
            port: 0,
        })
    }
}

/// The devices of the local addresses from which the kernel's routes to `address` begin. Several if its host has several addresses.
fn devices_on_routes(address: &Address) -> Vec<String> {
    let Address::Rdma { host, port } = address else {
        return Vec::new();
    };
    let remotes = (host.as_str(), *port).to_socket_addrs();
    let devices = remotes.into_iter().flatten().filter_map(device_on_route);
    devices.collect()
}

fn device_on_route(remote: SocketAddr) -> Option<String> {
    let any: SocketAddr = match remote {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // Nothing is sent: connecting a datagram socket only looks the route up.
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(remote).ok()?;
    let host = match socket.local_addr().ok()? {
        SocketAddr::V6(local) if local.scope_id() != 0 => {
            format!("{}%{}", local.ip(), local.scope_id())
        }
        local => local.ip().to_string(),
    };
    device_at(&Address::Rdma { host, port: 0 }.to_string()).ok()?
}

/// What becomes of bulk data on a device without memory windows. `refused` is the reason if the device reports some.
fn no_windows(device: &str, refused: Option<&str>) -> String {
    let reason = refused.map_or_else(String::new, |reason| {
        format!(" that work, though it reports some ({reason})")
    });
    format!(
        "{device} has no memory windows{reason}: without_windows = \"refuse\" keeps bulk data in messages and Sends, and \
         \"register\" registers memory for each call"
    )
}

/// What a device of no known family has in addition to the built-in defaults, which have no memory for bulk data.
fn of_unknown_family() -> Settings {
    Settings {
        bulk_buffers: Some(64),
        placement_segments: Some(1),
        placement_segment_bytes: Some(4096),
        ..Settings::default()
    }
}

/// The limits of two devices together.
fn least(a: &Settings, b: &Settings) -> Settings {
    // A device sets all of them.
    let least = |of: fn(&Settings) -> Option<u32>| of(a).into_iter().chain(of(b)).min();
    Settings {
        connections_max: least(|it| it.connections_max),
        send_queue_depth_max: least(|it| it.send_queue_depth_max),
        send_gather_entries_max: least(|it| it.send_gather_entries_max),
        receive_scatter_entries_max: least(|it| it.receive_scatter_entries_max),
        // Each port has the depth of its device.
        read_depth_max: a.read_depth_max.max(b.read_depth_max),
        receive_queues: a.receive_queues.or(b.receive_queues),
        ..Settings::default()
    }
}

/// Layers that nobody chose, without placement where a Receive has room for the message alone.
fn without_place(layers: Layers, limits: &Settings) -> Layers {
    let has_no_place = limits.receive_scatter_entries_max == Some(1);
    layers.program(&Settings {
        placement_segments: has_no_place.then_some(0),
        ..Settings::default()
    })
}

/// Advice if there are devices that this user may not open: rdma-core leaves these devices out without a message.
fn closed_file(folder: &Path) -> Option<String> {
    let files = std::fs::read_dir(folder).ok()?;
    let closed = files
        .filter_map(|file| Some(file.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(is_device_file))
        .find(|path| {
            let opened = OpenOptions::new().read(true).write(true).open(path);
            opened.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
        })?;
    Some(format!(
        "{} may not be opened by this user: join the group that owns it (`ls -l {}`), often `rdma`",
        closed.display(),
        folder.display()
    ))
}

fn is_device_file(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name == "rdma_cm" || name.starts_with("uverbs")
}

/// The IP address of a RoCE GID. Link-local addresses are left out, because they need a zone.
fn address_of(gid: &str) -> Option<IpAddr> {
    let ip: Ipv6Addr = gid.parse().ok()?;
    match ip.to_ipv4_mapped() {
        Some(ip) => (!ip.is_unspecified()).then_some(IpAddr::V4(ip)),
        None => (!ip.is_unspecified() && !ip.is_unicast_link_local()).then_some(IpAddr::V6(ip)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_windows_is_said_with_the_reason() {
        let plain = no_windows("siw0", None);
        assert!(plain.starts_with("siw0 has no memory windows: "), "{plain}");
        let refused = no_windows("bnxt_re0", Some("the device refused a memory window"));
        for words in ["though it reports some (the device refused", "\"register\""] {
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn shm_needs_nothing_and_has_no_device() {
        let address: Address = "shm:x".parse().unwrap();
        for purpose in [Use::Listen, Use::Connect, Use::Either] {
            let fabric = Fabric::of([&address], None, purpose).unwrap();
            assert_eq!(fabric, Fabric::SHM);
            assert!(fabric.is_of(&address));
            let error = Fabric::of([&address], Some("mlx5_0"), purpose).unwrap_err();
            assert!(error.is_usage() && error.advice().is_some());
            assert!(error.to_string().contains("mlx5_0"), "{error}");
        }
        let loaded = Fabric::SHM.layers(None).unwrap().build().unwrap();
        assert_eq!(loaded.name, "shm");
        let chosen = Fabric::SHM.layers(Some(Layers::defaults())).unwrap();
        assert_eq!(chosen.build().unwrap().name, "defaults");
    }

    #[test]
    fn unknown_host_name_is_not_a_matter_of_devices() {
        let of = |address: &str| {
            let source = ManagerError::BadAddress {
                address: address.to_owned(),
                why: "it cannot be resolved".to_owned(),
            };
            let address = address.to_owned();
            FabricError::NoWay { address, source }.advice().unwrap()
        };
        assert!(of("rdma:nosuchhost:20049").contains("getent hosts nosuchhost"));
        for address in ["rdma:192.0.2.1:20049", "rdma:[fe80::1%eth0]:20049"] {
            assert_eq!(of(address), general_advice());
        }
        let unreached = FabricError::NoWay {
            address: "rdma:host:1".to_owned(),
            source: ManagerError::UnknownConnection,
        };
        assert_eq!(unreached.advice().unwrap(), general_advice());
    }

    #[test]
    fn only_shm_delays() {
        let by = Duration::from_millis(1);
        assert_eq!(Fabric::SHM.delayed(by).unwrap(), Fabric::Shm { delay: by });
        let device = Fabric::Verbs {
            devices: Devices::one("rxe0"),
        };
        assert_eq!(device.clone().delayed(Duration::ZERO).unwrap(), device);
        let error = device.delayed(by).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains("rxe0"));
    }
}

#[cfg(test)]
mod family_tests {
    use super::*;
    use rpcrdma_tuning::Profile;

    /// The bulk buffers and placement segments of layers on a device with these scatter entries.
    fn built(layers: Layers, scatter_entries: u32) -> Result<(u32, u32), rpcrdma_tuning::Error> {
        let limits = Settings {
            receive_scatter_entries_max: Some(scatter_entries),
            ..Settings::default()
        };
        let layers = without_place(layers, &limits).limited(&limits, "dev");
        let profile = layers.build()?.profile;
        Ok((profile.bulk_buffers, profile.placement_segments))
    }

    #[test]
    fn device_of_no_family_has_memory_for_bulk_data() {
        let unknown = || Layers::defaults().program(&of_unknown_family());
        assert_eq!(built(unknown(), 4).unwrap(), (64, 1));
        assert_eq!(built(unknown(), 1).unwrap(), (64, 0));
    }

    #[test]
    fn device_with_one_entry_places_nothing_unless_the_program_asks_for_it() {
        let places = Profile {
            placement_segments: 1,
            ..Profile::default()
        };
        assert_eq!(built(Layers::over(places.clone()), 1).unwrap().1, 0);
        let limits = Settings {
            receive_scatter_entries_max: Some(1),
            ..Settings::default()
        };
        let asked = Layers::over(places).limited(&limits, "dev").build();
        let refused = asked.unwrap_err().to_string();
        assert!(refused.contains("placement_segments"), "{refused}");
    }
}

// The stage `verbs` of ./check selects unit tests by this word.
#[cfg(test)]
mod verbs_tests {
    use super::*;

    #[test]
    fn files_that_may_not_be_opened_are_named() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = std::env::temp_dir().join(format!("rpcrdma-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        assert_eq!(closed_file(&folder), None);
        std::fs::write(folder.join("other"), "").unwrap();
        std::fs::write(folder.join("uverbs7"), "").unwrap();
        assert_eq!(closed_file(&folder), None, "it can be opened");
        for name in ["other", "uverbs7"] {
            let closed = std::fs::Permissions::from_mode(0o000);
            std::fs::set_permissions(folder.join(name), closed).unwrap();
        }
        // Root may open any file, so the test proves nothing there.
        if OpenOptions::new()
            .read(true)
            .open(folder.join("other"))
            .is_err()
        {
            let advice = closed_file(&folder).expect("it cannot be opened");
            assert!(advice.contains("uverbs7"), "{advice}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(closed_file(&folder), None, "no folder");
    }

    #[test]
    fn gids_stand_for_addresses() {
        for (gid, address) in [
            ("0000:0000:0000:0000:0000:ffff:0a09:0001", Some("10.9.0.1")),
            (
                "2001:0db8:0000:0000:0000:0000:0000:0007",
                Some("2001:db8::7"),
            ),
            ("fe80:0000:0000:0000:5054:00ff:fe12:3456", None),
            ("0000:0000:0000:0000:0000:0000:0000:0000", None),
            ("nonsense", None),
        ] {
            assert_eq!(
                address_of(gid),
                address.map(|address| address.parse().unwrap()),
                "{gid}"
            );
        }
    }
}
