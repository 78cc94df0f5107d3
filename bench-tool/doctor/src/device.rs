//! Examines RDMA devices and their ports. The files of the kernel describe them without any library; rdma-core, if it
//! is installed, gives their limits.
//!
//! | module | contents |
//! |---|---|
//! | `port` | state, link, addresses and packet size of a port |
//! | `counters` | retransmissions, and damaged or dropped packets |
//! | `congestion` | PFC, ECN and the class of packets |
//! | `dcb` | PFC, which the kernel reports by netlink |
//! | `pcie` | the slot: speed, lanes, requests, IOMMU |
//! | `place` | the NUMA distance of cores and hugepages from the device |
//! | `profile` | the tuning profile of the device |
//! | `several` | ports that a node can use together |

mod congestion;
mod counters;
mod dcb;
mod pcie;
mod place;
mod port;
mod profile;
mod several;

use rpcrdma_tuning::Settings;
use serde::Serialize;

use self::pcie::{Card, Pcie};
use self::place::Place;
pub(crate) use self::port::DevicePort;
use self::profile::DeviceProfile;
use super::Needs;
use super::finding::{Area, Finding, Findings, Severity};
use super::system::System;

const CLASS: &str = "/sys/class/infiniband";

/// The limits that a device reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Limits {
    /// The number of queue pairs.
    pub queue_pairs: u32,
    /// The number of work requests in one queue of a queue pair.
    pub queue_pair_work_requests: u32,
    /// The number of segments of a Send, Receive or RDMA Write.
    pub segments: u32,
    /// The number of segments of an RDMA Read.
    pub read_segments: u32,
    /// The number of entries of a completion queue.
    pub completion_queue_entries: u32,
    /// The number of RDMA Reads that a queue pair serves at the same time.
    pub responder_resources: u8,
    /// The number of RDMA Reads that a queue pair has outstanding at the same time.
    pub initiator_depth: u8,
    /// The number of shared receive queues; 0 if the device has none.
    pub shared_receive_queues: u32,
    /// The number of memory windows of type 2 bound to a queue pair; 0 if the device has none.
    pub windows: u32,
    /// Why a window could not be used, if the device reports some and has none.
    pub windows_refused: Option<String>,
    /// Why a thread domain, or a parent domain in it, is refused; `None` if the device has both.
    pub thread_domains_refused: Option<String>,
    /// Whether the device supports Send With Invalidate.
    pub send_with_invalidate: bool,
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Device {
    /// The name, for example `mlx5_0`.
    pub name: String,
    /// The kind of node: `CA` for InfiniBand and RoCE, `RNIC` for iWARP.
    pub node_type: Option<String>,
    /// The version of the firmware.
    pub firmware: Option<String>,
    /// The driver of the hardware; null for a software device.
    pub driver: Option<String>,
    /// The version of the driver; null for a driver that reports none, as most drivers of the kernel.
    pub driver_version: Option<String>,
    /// The NUMA place.
    #[serde(flatten)]
    pub place: Place,
    /// The slot; null for a software device.
    pub pcie: Option<Pcie>,
    /// The tuning profile for the device.
    pub profile: DeviceProfile,
    /// The file in `/dev/infiniband`.
    pub file: Option<String>,
    /// Whether this process may open that file.
    pub usable: bool,
    /// The ports.
    pub ports: Vec<DevicePort>,
    /// The limits; null if rdma-core is missing or the device cannot be opened.
    pub limits: Option<Limits>,
}

impl Device {
    /// Whether at least one port is active.
    #[must_use]
    pub(crate) fn is_active(&self) -> bool {
        self.active_ports().next().is_some()
    }

    /// The ports that are active.
    pub(crate) fn active_ports(&self) -> impl Iterator<Item = &DevicePort> {
        self.ports.iter().filter(|port| port.is_active())
    }
}

/// The cores near the first active device whose cores are known. Empty if there is no such device.
#[must_use]
pub(crate) fn near_cores(devices: &[Device]) -> &[usize] {
    let mut active = devices.iter().filter(|device| device.is_active());
    let local = active.find_map(|device| device.place.local_cores.as_deref());
    local.unwrap_or_default()
}

/// A device with the functions of its card, as the two ports of many. Virtual functions share the ports of those.
fn card<'a>(device: &'a Device, pcie: &Pcie, all: &'a [Device]) -> Card<'a> {
    let is_in = |slot, other: &Device| {
        let pcie = other.pcie.as_ref();
        pcie.is_some_and(|pcie| !pcie.virtual_function && pcie.slot() == Some(slot))
    };
    let sharing: Vec<&Device> = match pcie.slot() {
        Some(slot) => all.iter().filter(|other| is_in(slot, other)).collect(),
        None => vec![device],
    };
    let ports = sharing.iter().flat_map(|device| &device.ports);
    let rates = ports
        .filter(|port| port.is_active())
        .filter_map(DevicePort::rate_mbps);
    Card {
        name: &device.name,
        driver: device.driver.as_deref(),
        rate_mbps: rates.fold(0, u64::saturating_add),
        sharing: sharing.iter().map(|device| device.name.as_str()).collect(),
    }
}

/// The facts about one device, as `doctor --json` has them.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct DeviceRecord(Device);

impl DeviceRecord {
    /// Reads the facts about the device of this name; `None` if the kernel lists no such device.
    #[must_use]
    pub fn read(system: &System, needs: &Needs, name: &str) -> Option<Self> {
        let mut findings = Vec::new();
        let mut findings = Findings::new(Area::Devices, &mut findings);
        let name = system.names(CLASS).into_iter().find(|it| it == name)?;
        Some(Self(read_device(system, needs, name, &mut findings)))
    }
}

/// Finds and examines the devices.
pub(crate) fn examine(system: &System, needs: &Needs, all: &mut Vec<Finding>) -> Vec<Device> {
    let mut findings = Findings::new(Area::Devices, all);
    let devices: Vec<Device> = system
        .names(CLASS)
        .into_iter()
        .map(|name| read_device(system, needs, name, &mut findings))
        .collect();
    if devices.is_empty() {
        findings.note(
            Severity::Hint,
            "no RDMA device",
            "nothing with shm: addresses, which need none; rdma: addresses do",
            system.way_to_soft_roce(),
        );
        return devices;
    }
    let any_active = devices.iter().any(Device::is_active);
    for device in &devices {
        let name = &device.name;
        judge_device(system, device, &mut findings);
        profile::judge(name, &device.profile, &mut findings);
        if let Some(pcie) = &device.pcie {
            pcie::judge(&card(device, pcie, &devices), pcie, &mut findings);
        }
        // A device without an active port carries no messages while another device does, so its place does not matter.
        if device.is_active() || !any_active {
            place::judge(system, needs, (name, &device.place), &mut findings);
        }
        for port in &device.ports {
            port::judge(name, port, any_active, &mut findings);
            if port.is_active() || !any_active {
                counters::judge(name, port.number, &port.counters, &mut findings);
                if let Some(congestion) = &port.congestion {
                    let netdev = port.netdev.as_deref();
                    congestion::judge(name, port.number, netdev, congestion, &mut findings);
                }
            }
        }
    }
    several::judge(system, &devices, &mut findings);
    judge_cm(system, &mut findings);
    devices
}

fn read_device(
    system: &System,
    needs: &Needs,
    name: String,
    findings: &mut Findings<'_>,
) -> Device {
    let folder = format!("{CLASS}/{name}");
    let file = uverbs(system, &name);
    let node_type = system.numbered_name(&format!("{folder}/node_type"));
    let ports = system.names(&format!("{folder}/ports"));
    let mut ports: Vec<DevicePort> = ports
        .iter()
        .filter_map(|number| {
            let number = number.parse().ok()?;
            Some(port::read(system, &folder, node_type.as_deref(), number))
        })
        .collect();
    ports.sort_unstable_by_key(|port| port.number);
    let usable = file.as_deref().is_some_and(|file| system.is_usable(file));
    let answer = if system.is_real() && usable {
        ask(&name, &mut ports).map(Some)
    } else {
        Ok(None)
    };
    let answer = answer.unwrap_or_else(|why| {
        findings.note_only(
            Severity::Warning,
            format!("{name} does not tell its limits: {why}"),
            "a profile that asks for too much is found out by calls that fail",
        );
        None
    });
    let (limits, knobs) = answer.unzip();
    let driver = system.link_name(&format!("{folder}/device/driver"));
    Device {
        node_type,
        firmware: system
            .text(&format!("{folder}/fw_ver"))
            .filter(|text| !text.is_empty()),
        driver_version: driver
            .as_ref()
            .and_then(|driver| system.text(&format!("/sys/module/{driver}/version"))),
        driver,
        place: place::read(system, needs, &folder),
        pcie: pcie::read(system, &folder),
        profile: profile::read(system, &name, knobs.as_ref()),
        usable,
        file,
        ports,
        limits,
        name,
    }
}

/// The file through which programs reach a device: `/dev/infiniband/uverbsN`.
fn uverbs(system: &System, device: &str) -> Option<String> {
    const VERBS: &str = "/sys/class/infiniband_verbs";
    let of_device =
        |name: &&String| system.text(&format!("{VERBS}/{name}/ibdev")).as_deref() == Some(device);
    let names = system.names(VERBS);
    let name = names.iter().find(of_device)?;
    let file = format!("/dev/infiniband/{name}");
    system.exists(&file).then_some(file)
}

fn judge_device(system: &System, device: &Device, findings: &mut Findings<'_>) {
    let Device { name, .. } = device;
    match (&device.file, device.usable) {
        (None, _) => findings.note(
            Severity::Problem,
            format!("{name} has no file in /dev/infiniband"),
            "programs cannot reach it",
            "modprobe ib_uverbs   # in a container: pass /dev/infiniband through",
        ),
        (Some(file), false) => findings.note(
            Severity::Problem,
            format!("{name}: this user may not open {file}"),
            "programs of this user cannot reach it",
            system.way_to_open(file),
        ),
        (Some(_), true) => {
            let firmware = device
                .firmware
                .as_ref()
                .map_or_else(String::new, |version| format!(", firmware {version}"));
            let driver = device.driver.as_ref().map_or_else(String::new, |driver| {
                let version = device.driver_version.as_deref().unwrap_or("of the kernel");
                format!(", driver {driver} {version}")
            });
            findings.ok(format!("{name} can be opened{firmware}{driver}"));
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
                format!("{name} has no shared receive queues"),
                "each connection has its own receives: memory grows with connections, not with load",
            );
        }
        if limits.windows == 0 {
            findings.note_only(
                Severity::Hint,
                match &limits.windows_refused {
                    None => format!("{name} has no memory windows of type 2"),
                    Some(reason) => format!("{name} reports memory windows and has none: {reason}"),
                },
                "bulk data stays in messages and Sends, unless without_windows is \"register\"",
            );
        }
        if let Some(reason) = &limits.thread_domains_refused {
            findings.note_only(
                Severity::Hint,
                format!("{name} has no thread domains: {reason}"),
                "posts take the locks of its library, also where thread_domains is \"prefer\"",
            );
        }
    }
}

fn judge_cm(system: &System, findings: &mut Findings<'_>) {
    const FILE: &str = "/dev/infiniband/rdma_cm";
    const CONNECTIONS: &str = "connections to rdma: addresses are made through it, and fail";
    if !system.exists(FILE) {
        findings.note(
            Severity::Problem,
            format!("there is no {FILE}"),
            CONNECTIONS,
            "modprobe rdma_ucm",
        );
    } else if !system.is_usable(FILE) {
        findings.note(
            Severity::Problem,
            format!("this user may not open {FILE}"),
            CONNECTIONS,
            system.way_to_open(FILE),
        );
    }
}

/// Opens the device with rdma-core and reads its limits, the knobs within these limits, and the packet size of its
/// ports.
fn ask(name: &str, ports: &mut [DevicePort]) -> Result<(Limits, Settings), String> {
    use rpcrdma_control::VerbsProvider;
    use rpcrdma_fabric::verbs::Context;
    let context = Context::open(Some(name)).map_err(|error| error.to_string())?;
    for port in ports {
        let number = u8::try_from(port.number).ok();
        let mtu = number.and_then(|number| context.port_mtu_bytes(number));
        port.active_mtu_bytes = mtu.map(u64::from);
    }
    let limits = context.limits();
    let knobs = VerbsProvider::limits(limits);
    let limits = Limits {
        queue_pairs: limits.queue_pairs,
        queue_pair_work_requests: limits.queue_pair_work_requests,
        segments: limits.segments,
        read_segments: limits.read_segments,
        completion_queue_entries: limits.completion_queue_entries,
        responder_resources: limits.responder_resources,
        initiator_depth: limits.initiator_depth,
        shared_receive_queues: limits.shared_receive_queues,
        windows: limits.windows,
        windows_refused: context.windows_refused().map(str::to_owned),
        thread_domains_refused: context.thread_domains_refused(),
        send_with_invalidate: limits.send_with_invalidate,
    };
    Ok((limits, knobs))
}

#[cfg(test)]
mod tests;
