//! Ports of a device: state, link, addresses, and the size of packets.

use serde::Serialize;

use super::super::finding::{Findings, Severity};
use super::super::system::{System, thousandths};
use super::congestion::{self, Congestion};
use super::counters::{self, Counters};

/// What RoCE puts around the payload of a packet at most, in octets: what the kernel takes off an
/// Ethernet MTU before it chooses the MTU of the port (IP, UDP, BTH, extension headers, ICRC).
const ROCE_OVERHEAD_BYTES: u64 = 96;

/// The kind of node whose ports speak RoCE where they are Ethernet; that of iWARP is `RNIC`.
const ROCE_NODE: &str = "CA";

/// What packets cost that are smaller than they could be.
const MORE_PACKETS: &str = "large transfers take more packets, each with its headers and its work";

/// One port of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct DevicePort {
    /// Its number, from 1.
    pub number: u32,
    /// The state of the link, as `ACTIVE`, `INIT`, `DOWN`.
    pub state: String,
    /// The state of the physical link, as `LinkUp`, `Polling`, `Disabled`.
    pub physical_state: String,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: String,
    /// Whether it speaks RoCE; iWARP runs over Ethernet as well.
    pub roce: bool,
    /// Its rate, as the kernel writes it.
    pub rate: String,
    /// The network device beneath an Ethernet port.
    pub netdev: Option<String>,
    /// The MTU of that, in octets.
    pub netdev_mtu_bytes: Option<u64>,
    /// The largest payload of a packet of RoCE that follows from it, in octets; at most 4096.
    pub path_mtu_bytes: Option<u64>,
    /// The payload of a packet that the device took of it, in octets; null where the port is not
    /// active, or rdma-core is missing.
    pub active_mtu_bytes: Option<u64>,
    /// Addresses (GIDs) of the port, and how many of them are of RoCE version 2.
    pub gids: usize,
    /// Of those, the ones of RoCE version 2.
    pub roce_v2_gids: usize,
    /// What the device counted since it was started.
    pub counters: Counters,
    /// What keeps packets of RoCE from being lost; null on other links.
    pub congestion: Option<Congestion>,
}

impl DevicePort {
    /// Whether messages can pass.
    #[must_use]
    pub(crate) fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    /// Whether it is a port of RoCE or iWARP.
    #[must_use]
    pub(crate) fn is_ethernet(&self) -> bool {
        self.link_layer == "Ethernet"
    }

    /// Its rate in megabits a second, as in `100 Gb/sec (4X EDR)`.
    #[must_use]
    pub(crate) fn rate_mbps(&self) -> Option<u64> {
        let (gigabits, _) = self.rate.split_once(" Gb/sec")?;
        thousandths(gigabits)
    }

    /// `mlx5_0 port 1`.
    pub(crate) fn place(&self, device: &str) -> String {
        format!("{device} port {}", self.number)
    }
}

/// Reads a port of the device in that folder, of that kind of node (`CA`, `RNIC`).
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

/// GIDs that are set, and those of them that are of RoCE version 2.
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

/// The MTU of a RoCE port over an Ethernet MTU: the largest of InfiniBand's that fits. `None` when
/// none does.
pub(crate) fn path_mtu_bytes(netdev_mtu_bytes: u64) -> Option<u64> {
    [4096, 2048, 1024, 512, 256]
        .into_iter()
        .find(|mtu| mtu + ROCE_OVERHEAD_BYTES <= netdev_mtu_bytes)
}

/// Whether messages can pass, and how large their packets are.
///
/// `elsewhere_active`: another port of this machine is active, so that this one may have no cable by intent.
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
            format!(
                "ip link set dev {netdev} up   # and look after the cable when that does not help"
            )
        } else if port.state == "INIT" {
            "systemctl start opensm   # on one host or switch of the network: its subnet manager makes ports active".to_owned()
        } else {
            "ibstat; iblinkinfo   # and look after cable and switch".to_owned()
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

/// Whether packets are as large as they can be.
fn judge_mtu(place: &str, netdev: &str, port: &DevicePort, findings: &mut Findings<'_>) {
    if let (Some(active), Some(path)) = (port.active_mtu_bytes, port.path_mtu_bytes)
        && active < path
    {
        findings.note(
            Severity::Hint,
            format!("{place}: the device puts {active} octets into a packet, and the MTU of {netdev} has room for {path}"),
            MORE_PACKETS,
            format!("ip link set dev {netdev} down; ip link set dev {netdev} up   # it takes the MTU as the link comes up"),
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
