//! The ports of a device: state, link, addresses and packet size.

use serde::Serialize;

use super::super::finding::{Findings, Severity};
use super::super::system::{System, thousandths};
use super::congestion::{self, Congestion};
use super::counters::{self, Counters};

/// The largest overhead of a RoCE packet in octets (IP, UDP, BTH, extension headers, ICRC). The kernel subtracts it
/// from the Ethernet MTU before it chooses the MTU of the port.
const ROCE_OVERHEAD_BYTES: u64 = 96;

/// The kind of node whose Ethernet ports use RoCE. The kind of iWARP devices is `RNIC`.
const ROCE_NODE: &str = "CA";

/// The cost of packets that are smaller than necessary.
const MORE_PACKETS: &str =
    "large transfers need more packets, each with its own headers and processing";

/// One port of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct DevicePort {
    /// The number, counted from 1.
    pub number: u32,
    /// The state of the link: `ACTIVE`, `INIT`, `DOWN` and others.
    pub state: String,
    /// The state of the physical link: `LinkUp`, `Polling`, `Disabled` and others.
    pub physical_state: String,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: String,
    /// Whether the port uses RoCE. An Ethernet port may use iWARP.
    pub roce: bool,
    /// The rate in the words of the kernel.
    pub rate: String,
    /// The network device of an Ethernet port.
    pub netdev: Option<String>,
    /// The MTU of the network device, in octets.
    pub netdev_mtu_bytes: Option<u64>,
    /// The largest payload of a RoCE packet that this MTU allows, in octets; at most 4096.
    pub path_mtu_bytes: Option<u64>,
    /// The largest payload of a packet that the device uses, in octets; null if the port is not active or rdma-core is
    /// missing.
    pub active_mtu_bytes: Option<u64>,
    /// The number of addresses (GIDs) of the port.
    pub gids: usize,
    /// The number of GIDs of RoCE version 2 among them.
    pub roce_v2_gids: usize,
    /// The error counters since the start of the device.
    pub counters: Counters,
    /// The congestion settings; null for a port without RoCE.
    pub congestion: Option<Congestion>,
}

impl DevicePort {
    /// Whether the port is active, so that messages can pass.
    #[must_use]
    pub(crate) fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    /// Whether it is a port of RoCE or iWARP.
    #[must_use]
    pub(crate) fn is_ethernet(&self) -> bool {
        self.link_layer == "Ethernet"
    }

    /// The rate in megabits per second, from a text like `100 Gb/sec (4X EDR)`.
    #[must_use]
    pub(crate) fn rate_mbps(&self) -> Option<u64> {
        let (gigabits, _) = self.rate.split_once(" Gb/sec")?;
        thousandths(gigabits)
    }

    /// The name of the port in findings: `mlx5_0 port 1`.
    pub(crate) fn place(&self, device: &str) -> String {
        format!("{device} port {}", self.number)
    }
}

/// Reads a port of the device with the folder `device`. `node_type` is its kind of node (`CA`, `RNIC`).
pub(crate) fn read(
    system: &System,
    device: &str,
    node_type: Option<&str>,
    number: u32,
) -> DevicePort {
    let folder = format!("{device}/ports/{number}");
    let name = |file: &str| {
        let name = system.numbered_name(&format!("{folder}/{file}"));
        name.unwrap_or_default()
    };
    let netdev = system
        .text(&format!("{folder}/gid_attrs/ndevs/0"))
        .or_else(|| {
            system
                .names(&format!("{device}/device/net"))
                .into_iter()
                .next()
        })
        .filter(|name| !name.is_empty());
    let netdev_mtu_bytes = netdev
        .as_deref()
        .and_then(|netdev| system.number(&format!("/sys/class/net/{netdev}/mtu")));
    let link_layer = system
        .text(&format!("{folder}/link_layer"))
        .unwrap_or_default();
    let roce = link_layer == "Ethernet" && node_type.is_none_or(|kind| kind == ROCE_NODE);
    let congestion = roce.then(|| {
        let device = device.rsplit('/').next().unwrap_or_default();
        congestion::read(system, device, number, netdev.as_deref())
    });
    let (gids, roce_v2_gids) = count_gids(system, &folder);
    DevicePort {
        number,
        state: name("state"),
        physical_state: name("phys_state"),
        rate: system.text(&format!("{folder}/rate")).unwrap_or_default(),
        path_mtu_bytes: netdev_mtu_bytes.filter(|_| roce).and_then(path_mtu_bytes),
        link_layer,
        roce,
        netdev,
        netdev_mtu_bytes,
        active_mtu_bytes: None,
        gids,
        roce_v2_gids,
        counters: counters::read(system, device, &folder),
        congestion,
    }
}

/// The number of GIDs that are set, and the number of those of RoCE version 2.
fn count_gids(system: &System, port: &str) -> (usize, usize) {
    let set: Vec<String> = system
        .names(&format!("{port}/gids"))
        .into_iter()
        .filter(|index| {
            let gid = system
                .text(&format!("{port}/gids/{index}"))
                .unwrap_or_default();
            gid.chars().any(|digit| digit != '0' && digit != ':')
        })
        .collect();
    let version_2 = set
        .iter()
        .filter(|index| {
            system
                .text(&format!("{port}/gid_attrs/types/{index}"))
                .as_deref()
                == Some("RoCE v2")
        })
        .count();
    (set.len(), version_2)
}

/// The MTU of a RoCE port for an Ethernet MTU: the largest MTU of InfiniBand that fits. `None` if none fits.
pub(crate) fn path_mtu_bytes(netdev_mtu_bytes: u64) -> Option<u64> {
    [4096, 2048, 1024, 512, 256]
        .into_iter()
        .find(|mtu| mtu + ROCE_OVERHEAD_BYTES <= netdev_mtu_bytes)
}

/// Judges the state, the addresses and the packet size of a port.
///
/// `elsewhere_active`: a port of this machine is active. An inactive port may then have no cable by intent, and gives a
/// hint only.
pub(crate) fn judge(
    device: &str,
    port: &DevicePort,
    elsewhere_active: bool,
    findings: &mut Findings<'_>,
) {
    let place = port.place(device);
    let netdev = port.netdev.as_deref().unwrap_or("NETDEV");
    if !port.is_active() {
        let what = format!("{place} is {} ({})", port.state, port.physical_state);
        let fix = if port.is_ethernet() {
            format!("ip link set dev {netdev} up   # check the cable if that does not help")
        } else if port.state == "INIT" {
            "systemctl start opensm   # on one host or switch of the network: its subnet manager makes ports active".to_owned()
        } else {
            "ibstat; iblinkinfo   # check cable and switch".to_owned()
        };
        let severity = if elsewhere_active {
            Severity::Hint
        } else {
            Severity::Warning
        };
        return findings.note(severity, what, "no message passes it", fix);
    }
    let link = port
        .netdev_mtu_bytes
        .filter(|_| port.is_ethernet())
        .map_or_else(String::new, |mtu| format!(", {netdev} with MTU {mtu}"));
    let packet = match (port.active_mtu_bytes, port.path_mtu_bytes) {
        (Some(active), _) => format!(", {active} octets a packet"),
        (None, Some(path)) => format!(
            ", so {path} octets a packet (what the device took of it is not readable without verbs)"
        ),
        (None, None) => String::new(),
    };
    findings.ok(format!(
        "{place} is active, {}, {}{link}{packet}",
        port.link_layer, port.rate
    ));
    if port.gids == 0 {
        findings.note(
            Severity::Warning,
            format!("{place} has no address (GID)"),
            "RDMA-CM finds no route to or from it",
            format!("ip address add ADDRESS/PREFIX dev {netdev}"),
        );
    } else if port.roce && port.roce_v2_gids == 0 {
        findings.note(
            Severity::Warning,
            format!("{place} has addresses of RoCE version 1 alone"),
            "no router passes its packets on",
            format!("ip address add ADDRESS/PREFIX dev {netdev}   # and a driver and firmware that speak RoCE version 2"),
        );
    }
    judge_mtu(&place, netdev, port, findings);
}

/// Judges the packet size of a port.
fn judge_mtu(place: &str, netdev: &str, port: &DevicePort, findings: &mut Findings<'_>) {
    if let (Some(active), Some(path)) = (port.active_mtu_bytes, port.path_mtu_bytes)
        && active < path
    {
        findings.note(
            Severity::Hint,
            format!("{place}: the device puts {active} octets into a packet, and the MTU of {netdev} has room for {path}"),
            MORE_PACKETS,
            format!("ip link set dev {netdev} down; ip link set dev {netdev} up   # it reads the MTU when the link comes up"),
        );
    }
    if port.path_mtu_bytes.is_some_and(|mtu| mtu < 4096) {
        findings.note(
            Severity::Hint,
            format!(
                "{place}: {netdev} has an MTU of {} octets, and one of 4200 carries 4096 octets a packet",
                port.netdev_mtu_bytes.unwrap_or_default()
            ),
            MORE_PACKETS,
            format!("ip link set dev {netdev} mtu 4200   # on every host, and the switches between them"),
        );
    }
}
