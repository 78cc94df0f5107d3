//! RDMA devices and their ports, as the kernel tells of them without any library; and their limits,
//! where this build has one to ask.

use serde::Serialize;

use super::finding::{Area, Finding, Findings, Severity};
use super::system::System;
use crate::machine::format_cores;

const CLASS: &str = "/sys/class/infiniband";

/// What RoCE puts around the payload of a packet at most, in octets: what the kernel takes off an
/// Ethernet MTU before it chooses the MTU of the port (IP, UDP, BTH, extension headers, ICRC).
const ROCE_OVERHEAD_BYTES: u64 = 96;

/// One port of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DevicePort {
    /// Its number, from 1.
    pub number: u32,
    /// The state of the link, as `ACTIVE`, `INIT`, `DOWN`.
    pub state: String,
    /// The state of the physical link, as `LinkUp`, `Polling`, `Disabled`.
    pub physical_state: String,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: String,
    /// Its rate, as the kernel writes it.
    pub rate: String,
    /// The network device beneath an Ethernet port.
    pub netdev: Option<String>,
    /// The MTU of that, in octets.
    pub netdev_mtu_bytes: Option<u64>,
    /// The largest payload of a packet that follows from it, in octets; at most 4096.
    pub path_mtu_bytes: Option<u64>,
    /// Addresses (GIDs) of the port, and how many of them are of RoCE version 2.
    pub gids: usize,
    /// Of those, the ones of RoCE version 2.
    pub roce_v2_gids: usize,
}

impl DevicePort {
    /// Whether messages can pass.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    fn is_ethernet(&self) -> bool {
        self.link_layer == "Ethernet"
    }
}

/// What a device can do, as it says itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Work requests in one queue of a queue pair.
    pub queue_pair_work_requests: u32,
    /// Segments of a Send, Receive or RDMA Write.
    pub segments: u32,
    /// Segments of an RDMA Read.
    pub read_segments: u32,
    /// Entries of a completion queue.
    pub completion_queue_entries: u32,
    /// RDMA Reads that a queue pair serves at a time.
    pub responder_resources: u8,
    /// RDMA Reads that a queue pair has outstanding.
    pub initiator_depth: u8,
    /// Shared receive queues; 0 where there are none.
    pub shared_receive_queues: u32,
    /// Memory windows of type 2 bound to a queue pair; 0 where there are none.
    pub windows: u32,
    /// Send With Invalidate.
    pub send_with_invalidate: bool,
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Its name, as `mlx5_0`.
    pub name: String,
    /// Version of its firmware.
    pub firmware: Option<String>,
    /// NUMA node that it is attached to.
    pub numa_node: Option<u32>,
    /// Cores of that node; null where the device says nothing of it.
    pub local_cores: Option<Vec<usize>>,
    /// Its file in `/dev/infiniband`.
    pub file: Option<String>,
    /// This process may open that.
    pub usable: bool,
    /// Its ports.
    pub ports: Vec<DevicePort>,
    /// Its limits; null where this build cannot ask for them, or the device does not answer.
    pub limits: Option<Limits>,
}

impl Device {
    /// Whether a port of it is active.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.ports.iter().any(DevicePort::is_active)
    }
}

/// The feature of this build that reaches devices.
#[must_use]
pub const fn feature() -> Option<&'static str> {
    if cfg!(feature = "verbs-dlopen") {
        Some("verbs-dlopen")
    } else if cfg!(feature = "verbs") {
        Some("verbs")
    } else {
        None
    }
}

/// Finds and examines the devices.
pub fn examine(system: &System, all: &mut Vec<Finding>) -> Vec<Device> {
    let mut findings = Findings::new(Area::Devices, all);
    let allowed = system.cores_allowed();
    let devices: Vec<Device> = system
        .names(CLASS)
        .into_iter()
        .map(|name| read_device(system, name, &mut findings))
        .collect();
    if devices.is_empty() {
        findings.note(
            Severity::Hint,
            "no RDMA device: addresses that begin with shm: need none",
            "rdma link add rxe0 type rxe netdev eth0   (to try rdma: addresses over any network device: soft-RoCE)",
        );
        return devices;
    }
    for device in &devices {
        judge_device(device, &mut findings);
        for port in &device.ports {
            judge_port(device, port, &mut findings);
        }
        judge_place(device, allowed.as_deref(), &mut findings);
    }
    judge_cm(system, &mut findings);
    devices
}

fn read_device(system: &System, name: String, findings: &mut Findings<'_>) -> Device {
    let folder = format!("{CLASS}/{name}");
    let file = uverbs(system, &name);
    let limits = if system.is_real() {
        limits(&name)
    } else {
        Ok(None)
    };
    let limits = limits.unwrap_or_else(|why| {
        findings.note_only(
            Severity::Warning,
            format!("{name} does not tell its limits: {why}"),
        );
        None
    });
    let ports = system.names(&format!("{folder}/ports"));
    let mut ports: Vec<DevicePort> = ports
        .iter()
        .filter_map(|number| Some(read_port(system, &folder, number.parse().ok()?)))
        .collect();
    ports.sort_unstable_by_key(|port| port.number);
    Device {
        firmware: system
            .text(&format!("{folder}/fw_ver"))
            .filter(|text| !text.is_empty()),
        numa_node: system
            .number(&format!("{folder}/device/numa_node"))
            .and_then(|node| u32::try_from(node).ok()),
        local_cores: system.cores(&format!("{folder}/device/local_cpulist")),
        usable: file.as_deref().is_some_and(|file| system.is_usable(file)),
        file,
        ports,
        limits,
        name,
    }
}

/// The file by which programs reach a device: `/dev/infiniband/uverbsN`.
fn uverbs(system: &System, device: &str) -> Option<String> {
    const VERBS: &str = "/sys/class/infiniband_verbs";
    let of_device =
        |name: &&String| system.text(&format!("{VERBS}/{name}/ibdev")).as_deref() == Some(device);
    let names = system.names(VERBS);
    let name = names.iter().find(of_device)?;
    let file = format!("/dev/infiniband/{name}");
    system.exists(&file).then_some(file)
}

fn read_port(system: &System, device: &str, number: u32) -> DevicePort {
    let folder = format!("{device}/ports/{number}");
    // As in `4: ACTIVE`.
    let name = |file: &str| {
        let text = system.text(&format!("{folder}/{file}")).unwrap_or_default();
        text.split_once(": ")
            .map_or(text.clone(), |(_, name)| name.to_owned())
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
    let (gids, roce_v2_gids) = count_gids(system, &folder);
    DevicePort {
        number,
        state: name("state"),
        physical_state: name("phys_state"),
        rate: system.text(&format!("{folder}/rate")).unwrap_or_default(),
        path_mtu_bytes: netdev_mtu_bytes
            .filter(|_| link_layer == "Ethernet")
            .and_then(path_mtu_bytes),
        link_layer,
        netdev,
        netdev_mtu_bytes,
        gids,
        roce_v2_gids,
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
fn path_mtu_bytes(netdev_mtu_bytes: u64) -> Option<u64> {
    [4096, 2048, 1024, 512, 256]
        .into_iter()
        .find(|mtu| mtu + ROCE_OVERHEAD_BYTES <= netdev_mtu_bytes)
}

fn judge_device(device: &Device, findings: &mut Findings<'_>) {
    let Device { name, .. } = device;
    match (&device.file, device.usable) {
        (None, _) => findings.note(
            Severity::Problem,
            format!("{name} has no file in /dev/infiniband: programs cannot reach it"),
            "modprobe ib_uverbs   (in a container: pass /dev/infiniband through)",
        ),
        (Some(file), false) => findings.note(
            Severity::Problem,
            format!("{name}: this user may not open {file}"),
            "usermod -aG rdma $USER   (and log in again; the file's group and mode say who may)",
        ),
        (Some(_), true) => {
            let firmware = device
                .firmware
                .as_ref()
                .map_or_else(String::new, |version| format!(", firmware {version}"));
            let node = device
                .numa_node
                .map_or_else(String::new, |node| format!(", NUMA node {node}"));
            findings.ok(format!("{name} can be opened{firmware}{node}"));
        }
    }
    if let Some(limits) = &device.limits {
        findings.ok(format!(
            "{name} has {} queue pairs of {} work requests, {} shared receive queues, {} memory windows, \
             {} RDMA Reads each way",
            limits.queue_pairs,
            limits.queue_pair_work_requests,
            limits.shared_receive_queues,
            limits.windows,
            limits.initiator_depth.min(limits.responder_resources),
        ));
        if limits.shared_receive_queues == 0 {
            findings.note_only(
                Severity::Hint,
                format!(
                    "{name} has no shared receive queues: each connection holds receives of its own"
                ),
            );
        }
        if limits.windows == 0 {
            findings.note_only(
                Severity::Hint,
                format!(
                    "{name} has no memory windows of type 2: memory is registered for each call"
                ),
            );
        }
    }
}

fn judge_port(device: &Device, port: &DevicePort, findings: &mut Findings<'_>) {
    let place = format!("{} port {}", device.name, port.number);
    let netdev = port.netdev.as_deref().unwrap_or("NETDEV");
    if !port.is_active() {
        let what = format!("{place} is {} ({})", port.state, port.physical_state);
        let mend = if port.is_ethernet() {
            format!(
                "ip link set dev {netdev} up   (and look after the cable when that does not help)"
            )
        } else if port.state == "INIT" {
            "start a subnet manager in the network (opensm), which makes the port active".to_owned()
        } else {
            "look after cable and switch (ibstat, iblinkinfo)".to_owned()
        };
        return findings.note(Severity::Warning, what, mend);
    }
    let mtu = match (port.path_mtu_bytes, port.netdev_mtu_bytes) {
        (Some(path), Some(mtu)) => format!(", {netdev} with MTU {mtu}, so {path} octets a packet"),
        _ => String::new(),
    };
    findings.ok(format!(
        "{place} is active, {}, {}{mtu}",
        port.link_layer, port.rate
    ));
    if port.gids == 0 {
        findings.note(
            Severity::Warning,
            format!("{place} has no address (GID): RDMA-CM finds no route to or from it"),
            format!("ip address add ADDRESS/PREFIX dev {netdev}"),
        );
    } else if port.is_ethernet() && port.roce_v2_gids == 0 {
        findings.note(
            Severity::Warning,
            format!("{place} has addresses of RoCE version 1 alone, which no router passes on"),
            "set the RoCE version of RDMA-CM (cma_roce_mode), or the driver's",
        );
    }
    if port.path_mtu_bytes.is_some_and(|mtu| mtu < 4096) {
        findings.note(
            Severity::Hint,
            format!("{place}: an Ethernet MTU of 4200 carries 4096 octets a packet, and large transfers faster"),
            format!("ip link set dev {netdev} mtu 4200   (on every host, and the switches between them)"),
        );
    }
}

/// Whether cores near the device can poll it.
fn judge_place(device: &Device, allowed: Option<&[usize]>, findings: &mut Findings<'_>) {
    let (Some(local), Some(allowed)) = (&device.local_cores, allowed) else {
        return;
    };
    if local.is_empty() || local.iter().any(|core| allowed.contains(core)) {
        return;
    }
    let local = format_cores(local);
    findings.note(
        Severity::Hint,
        format!(
            "{} is attached to another NUMA node than every core that this process may use: each access \
             to it crosses between the nodes",
            device.name
        ),
        format!("taskset -c {local} bench-tool run --cores ...   (poll on cores among {local})"),
    );
}

fn judge_cm(system: &System, findings: &mut Findings<'_>) {
    const FILE: &str = "/dev/infiniband/rdma_cm";
    if !system.exists(FILE) {
        findings.note(
            Severity::Problem,
            format!("there is no {FILE}: connections to rdma: addresses are made through it"),
            "modprobe rdma_ucm",
        );
    } else if !system.is_usable(FILE) {
        findings.note(
            Severity::Problem,
            format!("this user may not open {FILE}"),
            "usermod -aG rdma $USER   (and log in again)",
        );
    }
}

/// Asks the device, by the library that this build has.
#[cfg(any(feature = "verbs", feature = "verbs-dlopen"))]
fn limits(name: &str) -> Result<Option<Limits>, String> {
    use rpcrdma_fabric::verbs::Context;
    let context = Context::open(Some(name)).map_err(|error| {
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    })?;
    let limits = context.limits();
    Ok(Some(Limits {
        queue_pairs: limits.queue_pairs,
        queue_pair_work_requests: limits.queue_pair_work_requests,
        segments: limits.segments,
        read_segments: limits.read_segments,
        completion_queue_entries: limits.completion_queue_entries,
        responder_resources: limits.responder_resources,
        initiator_depth: limits.initiator_depth,
        shared_receive_queues: limits.shared_receive_queues,
        windows: limits.windows,
        send_with_invalidate: limits.send_with_invalidate,
    }))
}

/// This build has no library to ask.
#[cfg(not(any(feature = "verbs", feature = "verbs-dlopen")))]
#[expect(clippy::unnecessary_wraps, reason = "the other build can fail")]
fn limits(_name: &str) -> Result<Option<Limits>, String> {
    Ok(None)
}

#[cfg(test)]
mod tests;
