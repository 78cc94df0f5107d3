//! Judges active ports that a node can use together: what makes two of them one path, or unlike each other.

use std::fmt::Display;
use std::net::Ipv4Addr;

use super::super::finding::{Findings, Severity};
use super::super::system::System;
use super::Device;
use super::port::DevicePort;

const RAILS: &str = "docs/rails.md";

/// A network that is reached directly by a network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Subnet {
    address: u32,
    mask: u32,
}

impl Subnet {
    /// Whether it says where a port is. Every port may have a route to its link's own addresses, to groups, and to a single host.
    fn is_of_a_port(self) -> bool {
        let address = Ipv4Addr::from_bits(self.address);
        let is_of_all = address.is_link_local() || address.is_multicast();
        self.mask != 0 && self.mask != u32::MAX && !is_of_all
    }

    /// Whether one is within the other.
    fn overlaps(self, other: Self) -> bool {
        (self.address ^ other.address) & self.mask & other.mask == 0
    }
}

impl Display for Subnet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let prefix = self.mask.count_ones();
        write!(f, "{}/{prefix}", Ipv4Addr::from_bits(self.address))
    }
}

/// An active port.
struct Active<'a> {
    device: &'a Device,
    port: &'a DevicePort,
}

impl Active<'_> {
    fn netdev(&self) -> Option<&str> {
        self.port.netdev.as_deref()
    }
}

/// Judges the active ports of all devices together. One port is judged alone.
pub(super) fn judge(system: &System, devices: &[Device], findings: &mut Findings<'_>) {
    let mut active = Vec::new();
    for device in devices {
        active.extend(device.active_ports().map(|port| Active { device, port }));
    }
    for one in &active {
        judge_bond(system, one, findings);
    }
    let Some((first, others)) = active.split_first().filter(|(_, rest)| !rest.is_empty()) else {
        return;
    };
    judge_subnets(system, &active, findings);
    for other in others {
        judge_likeness(first, other, findings);
    }
}

/// A bond chooses the port for its traffic, and may be one device.
fn judge_bond(system: &System, one: &Active<'_>, findings: &mut Findings<'_>) {
    let Some(netdev) = one.netdev() else {
        return;
    };
    let ports = system.text(&format!("/sys/class/net/{netdev}/bonding/slaves"));
    if let Some(ports) = ports.filter(|ports| ports.split_whitespace().count() > 1) {
        let place = one.port.place(&one.device.name);
        findings.ok(format!(
            "{place} is the bond {netdev} of {ports}: connections outlast the loss of a port if both are of one card"
        ));
    }
}

/// One finding for each subnet that several ports are in.
fn judge_subnets(system: &System, active: &[Active<'_>], findings: &mut Findings<'_>) {
    let mut netdevs: Vec<&str> = active.iter().filter_map(Active::netdev).collect();
    netdevs.sort_unstable();
    netdevs.dedup();
    let mut routes = direct_routes(system);
    routes.retain(|(netdev, subnet)| netdevs.contains(&&**netdev) && subnet.is_of_a_port());
    // The widest first: it has the others.
    routes.sort_by_key(|(_, subnet)| subnet.mask);
    let mut judged: Vec<Subnet> = Vec::new();
    for (_, subnet) in &routes {
        if judged.iter().any(|it| it.overlaps(*subnet)) {
            continue;
        }
        judged.push(*subnet);
        let is_in = |netdev: &&str| {
            let mut own = routes.iter().filter(|(name, _)| name == netdev);
            own.any(|(_, other)| subnet.overlaps(*other))
        };
        let sharing: Vec<&str> = netdevs.iter().copied().filter(is_in).collect();
        if sharing.len() > 1 {
            judge_shared_subnet(system, &sharing, *subnet, findings);
        }
    }
}

fn judge_shared_subnet(
    system: &System,
    netdevs: &[&str],
    subnet: Subnet,
    findings: &mut Findings<'_>,
) {
    // The kernel takes the larger of the value for all devices and that of the device.
    let setting = |name: &str, netdev: &str| {
        let of = |whose: &str| system.number(&format!("/proc/sys/net/ipv4/conf/{whose}/{name}"));
        of("all").unwrap_or(0).max(of(netdev).unwrap_or(0))
    };
    // Larger values of arp_ignore answer for addresses of other ports too, or for none.
    let is_set = |netdev: &&str| {
        matches!(setting("arp_ignore", netdev), 1 | 2) && setting("arp_announce", netdev) == 2
    };
    let names = netdevs.join(", ");
    if netdevs.iter().all(is_set) {
        findings.note(
            Severity::Hint,
            format!("{names} are all in {subnet}"),
            "what is sent to it leaves by one of them alone, if no rule chooses by the source address",
            format!("ip rule   # {RAILS} has the rules; better: a subnet for each port"),
        );
    } else {
        findings.note(
            Severity::Warning,
            format!("{names} are all in {subnet}, and the kernel answers for the addresses of each at any of them"),
            "all addresses may be reached by one port: when its cable is pulled, all are lost",
            format!(
                "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2   # and rules for the way back \
                 ({RAILS}); better: a subnet for each port"
            ),
        );
    }
}

/// The networks that network devices reach without a router, by `/proc/net/route`.
fn direct_routes(system: &System) -> Vec<(String, Subnet)> {
    const GATEWAY: u32 = 2;
    let text = system.text("/proc/self/net/route").unwrap_or_default();
    let route = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let hex = |index: usize| u32::from_str_radix(columns.get(index)?, 16).ok();
        let (netdev, flags) = (columns.first()?, hex(3)?);
        // The kernel prints them as they are in memory.
        let (address, mask) = (u32::from_be(hex(1)?), u32::from_be(hex(7)?));
        let is_direct = flags & GATEWAY == 0;
        is_direct.then(|| ((*netdev).to_owned(), Subnet { address, mask }))
    };
    text.lines().filter_map(route).collect()
}

/// Connections are spread over ports as if they were equal.
fn judge_likeness(first: &Active<'_>, other: &Active<'_>, findings: &mut Findings<'_>) {
    let both = [first, other];
    let [one, two] = both.map(|it| it.port.place(&it.device.name));
    let mut differ = |what: &str, values: [String; 2], cost: &str, fix: String| {
        let [first, second] = values;
        let what = format!("{what}: {one} has {first}, and {two} has {second}");
        findings.note(Severity::Hint, what, cost, format!("{fix}   # {RAILS}"));
    };
    if let [Some(a), Some(b)] = both.map(|it| it.port.rate_mbps())
        && a != b
    {
        differ(
            "ports of different rates",
            both.map(|it| it.port.rate.clone()),
            "connections are spread over both alike, and the slower one holds up the whole",
            "name the address of the faster one first, and let all connections start there (Start::Standby)"
                .to_owned(),
        );
    }
    let octets = |it: &Active<'_>| it.port.active_mtu_bytes.or(it.port.path_mtu_bytes);
    if let [Some(a), Some(b)] = both.map(octets)
        && a != b
    {
        let smaller = if a < b { first } else { other };
        let fix = match smaller.netdev().filter(|_| smaller.port.is_ethernet()) {
            Some(netdev) => format!("ip link set dev {netdev} mtu 4200"),
            None => "ask who runs the network for the MTU of both".to_owned(),
        };
        differ(
            "ports of different packet sizes",
            [a, b].map(|octets| format!("{octets} octets a packet")),
            "bulk data is slower by one of them",
            fix,
        );
    }
    if let [Some(a), Some(b)] = both.map(|it| it.device.place.numa_node)
        && a != b
    {
        differ(
            "devices of different NUMA nodes",
            [a, b].map(|node| format!("node {node}")),
            "a core that polls both is far from one of them",
            "start a node of this library for each device, with cores near it".to_owned(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::Finding;
    use super::super::super::finding::tests::{about, check_no_complaints};
    use super::super::super::system::tests::FakeMachine;
    use super::super::super::tests::{needs, roce};
    use super::super::examine;
    use super::*;

    /// The other port of the card, over eth3, each in another subnet.
    const SECOND: &str = "\
node_type 1: CA
device/numa_node 1
ports/1/state 4: ACTIVE
ports/1/phys_state 5: LinkUp
ports/1/link_layer Ethernet
ports/1/rate 100 Gb/sec (4X EDR)
ports/1/gids/0 0000:0000:0000:0000:0000:ffff:c000:0307
ports/1/gid_attrs/types/0 RoCE v2
ports/1/gid_attrs/ndevs/0 eth3";

    const ROUTES: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth2\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth2\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
eth3\t000200C0\t010300C0\t0003\t0\t0\t0\t00FFFFFF\t0\t0\t0
eth3\t000300C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0";

    fn two_ports() -> FakeMachine {
        let machine = roce();
        for line in SECOND.lines() {
            let (file, text) = line.split_once(' ').unwrap();
            machine.set(&format!("sys/class/infiniband/mlx5_1/{file}"), text);
        }
        machine.set("sys/class/infiniband_verbs/uverbs1/ibdev", "mlx5_1");
        machine.set("dev/infiniband/uverbs1", "");
        machine.set("sys/class/net/eth3/mtu", "9000");
        machine.set("proc/self/net/route", ROUTES);
        machine
    }

    fn of(machine: &FakeMachine) -> Vec<Finding> {
        let mut findings = Vec::new();
        examine(&machine.system(), &needs(), &mut findings);
        findings
    }

    fn sysctl(machine: &FakeMachine, whose: &str, ignore: &str, announce: &str) {
        let folder = format!("proc/sys/net/ipv4/conf/{whose}");
        machine.set(&format!("{folder}/arp_ignore"), ignore);
        machine.set(&format!("{folder}/arp_announce"), announce);
    }

    #[test]
    fn two_equal_ports_in_two_subnets_have_no_complaint() {
        let machine = two_ports();
        machine.link("sys/class/infiniband/mlx5_1/device/driver", "mlx5_core");
        let findings = of(&machine);
        let of_both = findings.iter().filter(|it| it.what.contains("eth3"));
        check_no_complaints(&of_both.cloned().collect::<Vec<_>>());
        assert!(!findings.iter().any(|it| it.what.contains("different")));
    }

    #[test]
    fn two_ports_in_one_subnet_need_settings_and_rules() {
        let machine = two_ports();
        machine.set(
            "proc/self/net/route",
            &ROUTES.replace("000300C0", "000200C0"),
        );
        let shared = || about(&of(&machine), "eth2, eth3 are all in 192.0.2.0/24").clone();
        let command = "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 ";
        shared().check(Severity::Warning, command);
        // One of the two settings is no help, and neither are both at one port.
        sysctl(&machine, "all", "1", "0");
        shared().check(Severity::Warning, command);
        sysctl(&machine, "eth2", "0", "2");
        shared().check(Severity::Warning, command);
        sysctl(&machine, "eth3", "0", "2");
        shared().check(Severity::Hint, "ip rule ");
        sysctl(&machine, "all", "1", "2");
        shared().check(Severity::Hint, "ip rule ");
        // Answers for the addresses of other ports, too.
        sysctl(&machine, "eth3", "3", "2");
        shared().check(Severity::Warning, command);
    }

    #[test]
    fn subnet_within_another_is_shared_and_what_every_port_has_is_not() {
        let machine = two_ports();
        // 192.0.0.0/16 of eth3 has 192.0.2.0/24 of eth2.
        let wide = ROUTES.replace("000300C0\t00000000", "000000C0\t00000000");
        let wide = wide.replacen("00FFFFFF\t0\t0\t0", "0000FFFF\t0\t0\t0", 3);
        let wide = wide.replacen("0000FFFF", "00FFFFFF", 2);
        machine.set("proc/self/net/route", &wide);
        let shared = about(&of(&machine), "eth2, eth3 are all in 192.0.0.0/16").clone();
        assert_eq!(shared.severity, Severity::Warning);
        let of_all = [
            "0000FEA9 0000FFFF",
            "000000E0 000000F0",
            "090909C0 FFFFFFFF",
        ];
        let mut routes = ROUTES.to_owned();
        for (netdev, route) in ["eth2", "eth3"]
            .iter()
            .flat_map(|it| of_all.map(|route| (it, route)))
        {
            let (address, mask) = route.split_once(' ').unwrap();
            routes += &format!("\n{netdev}\t{address}\t00000000\t0001\t0\t0\t0\t{mask}\t0\t0\t0");
        }
        machine.set("proc/self/net/route", &routes);
        assert!(!of(&machine).iter().any(|it| it.what.contains("are all in")));
    }

    #[test]
    fn what_makes_two_ports_unequal_is_a_hint() {
        let machine = two_ports();
        for (file, text, what, fix) in [
            (
                "ports/1/rate",
                "25 Gb/sec (1X EDR)",
                "different rates",
                "name the address of the faster one first",
            ),
            (
                "device/numa_node",
                "0",
                "different NUMA nodes",
                "start a node of this library for each device",
            ),
        ] {
            machine.set(&format!("sys/class/infiniband/mlx5_1/{file}"), text);
            about(&of(&machine), what).check(Severity::Hint, fix);
        }
        machine.set("sys/class/net/eth3/mtu", "1500");
        let packets = about(&of(&machine), "different packet sizes").clone();
        assert!(
            packets
                .what
                .ends_with("and mlx5_1 port 1 has 1024 octets a packet"),
            "{packets:?}"
        );
    }

    #[test]
    fn port_that_is_down_is_compared_with_none() {
        let machine = two_ports();
        machine.set(
            "proc/self/net/route",
            &ROUTES.replace("000300C0", "000200C0"),
        );
        machine.set(
            "sys/class/infiniband/mlx5_1/ports/1/rate",
            "25 Gb/sec (1X EDR)",
        );
        machine.set("sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN");
        let findings = of(&machine);
        for words in ["are all in", "different"] {
            assert!(
                !findings.iter().any(|it| it.what.contains(words)),
                "{words}"
            );
        }
    }

    #[test]
    fn bond_is_named_with_its_ports() {
        let machine = roce();
        machine.set("sys/class/net/eth2/bonding/slaves", "ens1f0 ens1f1");
        let bond = "mlx5_0 port 1 is the bond eth2 of ens1f0 ens1f1";
        about(&of(&machine), bond).check(Severity::Ok, "");
    }
}
