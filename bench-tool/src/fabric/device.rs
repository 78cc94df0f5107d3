//! RDMA devices: the device for an address, an address of a device, and the profile and limits of a device.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use rpcrdma_control::VerbsProvider;
use rpcrdma_fabric::verbs::{Context, device_at, device_towards};
use rpcrdma_tuning::{Detected, Device, Settings};

use super::Fabric;
use crate::address::Address;
use crate::exit::Failure;

/// Time limit for resolving the route to an address.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The kernel's directory of RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";

/// The directory of the device files that processes open.
const FILES: &str = "/dev/infiniband";

/// Advice if there is no device, or a wrong one.
const LOOK_AT_DEVICES: &str =
    "`rdma link` shows the devices and the network interface of each; name one with --device";

/// Advice if no device can be used.
fn advice() -> &'static str {
    if rpcrdma_fabric::verbs::facilities().is_ok() {
        LOOK_AT_DEVICES
    } else {
        "without rdma-core, shm:NAME joins processes of one machine"
    }
}

impl Fabric {
    pub(super) fn at(address: &Address, device: Option<&str>) -> Result<Self, Failure> {
        let found = device_at(&address.to_string()).map_err(|error| {
            Failure::failed(format!("cannot listen on {address}"))
                .because(error)
                .advice(advice())
        })?;
        match (found, device) {
            (Some(found), Some(named)) if found != named => Err(Failure::usage(format!(
                "{address} is an address of the device {found}, and --device names {named}"
            ))
            .advice(LOOK_AT_DEVICES)),
            (Some(found), _) => Ok(Self::Verbs { device: found }),
            (None, named) => Ok(Self::Verbs {
                device: open(named)?,
            }),
        }
    }

    pub(super) fn towards(address: &Address, device: Option<&str>) -> Result<Self, Failure> {
        if let Some(named) = device {
            return Ok(Self::Verbs {
                device: open(Some(named))?,
            });
        }
        let found = device_towards(&address.to_string(), RESOLVE_TIMEOUT);
        found.map(|device| Self::Verbs { device }).map_err(|error| {
            Failure::failed(format!("cannot connect to {address}"))
                .because(error)
                .advice(advice())
        })
    }
}

/// The name of a usable device: the named one, or the first active one.
fn open(named: Option<&str>) -> Result<String, Failure> {
    let context = Context::open(named).map_err(|error| {
        Failure::failed("no RDMA device can be used")
            .because(error)
            .advice(closed_file(Path::new(FILES)).unwrap_or_else(|| advice().to_owned()))
    })?;
    Ok(context.name().to_owned())
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

/// The name of the embedded profile for a device; `None` if there is none for its kind.
pub(super) fn family(device: &str) -> Result<Option<String>, Failure> {
    match Device::named(Path::new("/"), device).detect() {
        Detected::Profile(name) => Ok(Some(name)),
        Detected::Unknown => Ok(None),
        Detected::Refused { family, reason } => Err(Failure::usage(format!(
            "the device {device} is of the family {family}, which cannot be used: {reason}"
        ))
        .advice(LOOK_AT_DEVICES)),
    }
}

/// The device's limits for the knobs.
pub(super) fn limits(device: &str) -> Result<Settings, Failure> {
    let context = Context::open(Some(device)).map_err(|error| {
        Failure::failed(format!("the device {device} does not tell its limits")).because(error)
    })?;
    Ok(VerbsProvider::limits(context.limits()))
}

/// An address of an RDMA device for a run's own server: an IP address of the device's first port, with port number 0,
/// so that the system chooses one.
///
/// # Errors
/// A failure if there is no device, or it has no IP address.
pub(crate) fn own_rdma_address(device: Option<&str>) -> Result<Address, Failure> {
    let device = open(device)?;
    let gids = format!("{DEVICES}/{device}/ports/1/gids");
    let address = std::fs::read_dir(&gids)
        .into_iter()
        .flatten()
        .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path()).ok())
        .find_map(|gid| address_of(gid.trim()));
    let address = address.ok_or_else(|| {
        Failure::failed(format!("the device {device} has no IP address in its table ({gids})"))
            .advice("give its network interface one (`ip address add`), or start `bench-tool serve` and use --connect")
    })?;
    Ok(Address::Rdma {
        host: address.to_string(),
        port: 0,
    })
}

/// The IP address of a RoCE GID. Link-local addresses are left out, because they need a zone.
fn address_of(gid: &str) -> Option<IpAddr> {
    let ip: Ipv6Addr = gid.parse().ok()?;
    match ip.to_ipv4_mapped() {
        Some(ip) => (!ip.is_unspecified()).then_some(IpAddr::V4(ip)),
        None => (!ip.is_unspecified() && !ip.is_unicast_link_local()).then_some(IpAddr::V6(ip)),
    }
}

// The stage `verbs` of ./check selects unit tests by this word.
#[cfg(test)]
mod verbs_tests {
    use super::*;

    #[test]
    fn files_that_may_not_be_opened_are_named() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = std::env::temp_dir().join(format!("bench-tool-files-{}", std::process::id()));
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
        if !rustix::process::geteuid().is_root() {
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
