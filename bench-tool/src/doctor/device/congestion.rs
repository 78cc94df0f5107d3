//! What keeps packets of RoCE from being lost in the network: flow control by priority (PFC),
//! congestion notification (ECN), and the class that packets are marked with (DSCP).

use serde::Serialize;

use super::super::finding::{Findings, Severity};
use super::super::system::System;
use super::DevicePort;

/// Priorities of Ethernet.
const PRIORITIES: u8 = 8;

/// The type of service that is asked for in examples: DSCP 26, which NICs map to priority 3.
const TYPE_OF_SERVICE: u8 = 104;

/// What can be read of it, as JSON has it; the kernel has no files for PFC. `None` where the driver
/// does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Congestion {
    /// The type of service that RDMA-CM gives to connections that do not choose one; DSCP is a quarter of it.
    pub type_of_service: Option<u64>,
    /// Priorities on which the device slows down when it is told of congestion.
    pub ecn_reaction: Option<Vec<u8>>,
    /// Priorities on which the device tells the sender of congestion.
    pub ecn_notification: Option<Vec<u8>>,
}

/// Reads what there is of a port.
pub(super) fn read(system: &System, device: &str, number: u32, netdev: Option<&str>) -> Congestion {
    let priorities = |point: &str| {
        let folder = format!("/sys/class/net/{}/ecn/{point}/enable", netdev?);
        let state = |priority| Some((priority, system.number(&format!("{folder}/{priority}"))?));
        let told: Vec<(u8, u64)> = (0..PRIORITIES).filter_map(state).collect();
        let enabled = told.iter().filter(|(_, state)| *state == 1);
        (!told.is_empty()).then(|| enabled.map(|(priority, _)| *priority).collect())
    };
    Congestion {
        type_of_service: system.number(&format!(
            "/sys/kernel/config/rdma_cm/{device}/ports/{number}/default_roce_tos"
        )),
        ecn_reaction: priorities("roce_rp"),
        ecn_notification: priorities("roce_np"),
    }
}

pub(super) fn judge(device: &str, port: &DevicePort, findings: &mut Findings<'_>) {
    let Some(congestion) = &port.congestion else {
        return;
    };
    let place = port.place(device);
    let netdev = port.netdev.as_deref().unwrap_or("NETDEV");
    findings.ok(format!(
        "{place}: PFC is not readable from files (`dcb pfc show dev {netdev}`, `mlnx_qos -i {netdev}`)"
    ));
    judge_ecn(&place, netdev, congestion, findings);
    let folder = format!("/sys/kernel/config/rdma_cm/{device}");
    match congestion.type_of_service {
        Some(0) => findings.note(
            Severity::Hint,
            format!("{place}: RDMA-CM marks packets with DSCP 0"),
            "a network that keeps RDMA apart by DSCP carries them in the class of everything else",
            format!(
                "echo {TYPE_OF_SERVICE} > {folder}/ports/{}/default_roce_tos   # or type_of_service of the profile; \
                 as the network's administrator has it",
                port.number
            ),
        ),
        Some(tos) => findings.ok(format!(
            "{place}: RDMA-CM marks packets with DSCP {}",
            tos / 4
        )),
        None => findings.ok(format!(
            "{place}: the DSCP of RDMA-CM is not readable (`mkdir {folder}` shows it)"
        )),
    }
}

fn judge_ecn(place: &str, netdev: &str, congestion: &Congestion, findings: &mut Findings<'_>) {
    let (Some(reaction), Some(notification)) =
        (&congestion.ecn_reaction, &congestion.ecn_notification)
    else {
        return findings.ok(format!(
            "{place}: ECN is not readable: the driver has no files for it (/sys/class/net/{netdev}/ecn)"
        ));
    };
    let both: Vec<String> = reaction
        .iter()
        .filter(|priority| notification.contains(priority))
        .map(ToString::to_string)
        .collect();
    if both.is_empty() {
        findings.note(
            Severity::Warning,
            format!("{place}: ECN is off on every priority"),
            "senders do not slow down before the network drops or stops their packets",
            format!("for point in rp np; do echo 1 > /sys/class/net/{netdev}/ecn/roce_$point/enable/3; done"),
        );
    } else {
        findings.ok(format!(
            "{place}: ECN is on for priority {}",
            both.join(", ")
        ));
    }
}
