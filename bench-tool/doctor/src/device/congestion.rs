//! The settings that protect RoCE packets from loss in the network: priority flow control (PFC), congestion
//! notification (ECN), and the class of packets (DSCP).

use serde::Serialize;

use super::super::finding::{Findings, Severity};
use super::super::system::System;
use super::dcb;

/// The number of priorities of Ethernet.
const PRIORITIES: u8 = 8;

/// The type of service in the suggested commands: DSCP 26, which NICs map to priority 3.
const TYPE_OF_SERVICE: u8 = 104;

/// The congestion settings in the JSON report. `None` if the driver does not give the value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Congestion {
    /// The priorities with PFC.
    pub pfc: Option<Vec<u8>>,
    /// The default type of service of RDMA-CM, for connections that set none. The DSCP is a quarter of it.
    pub type_of_service: Option<u64>,
    /// The priorities on which the device slows down after a congestion notification.
    pub ecn_reaction: Option<Vec<u8>>,
    /// The priorities on which the device sends congestion notifications to the sender.
    pub ecn_notification: Option<Vec<u8>>,
}

/// Reads the congestion settings of a port.
pub(crate) fn read(system: &System, device: &str, number: u32, netdev: Option<&str>) -> Congestion {
    let priorities = |point: &str| {
        let folder = format!("/sys/class/net/{}/ecn/{point}/enable", netdev?);
        let state = |priority| Some((priority, system.number(&format!("{folder}/{priority}"))?));
        let told: Vec<(u8, u64)> = (0..PRIORITIES).filter_map(state).collect();
        let enabled = told.iter().filter(|(_, state)| *state == 1);
        (!told.is_empty()).then(|| enabled.map(|(priority, _)| *priority).collect())
    };
    Congestion {
        pfc: netdev
            .filter(|_| system.is_real())
            .and_then(dcb::pfc_priorities),
        type_of_service: system.number(&format!(
            "/sys/kernel/config/rdma_cm/{device}/ports/{number}/default_roce_tos"
        )),
        ecn_reaction: priorities("roce_rp"),
        ecn_notification: priorities("roce_np"),
    }
}

/// Judges a port of `device`, whose interface is `netdev`.
pub(crate) fn judge(
    device: &str,
    port: u32,
    netdev: Option<&str>,
    congestion: &Congestion,
    findings: &mut Findings<'_>,
) {
    let place = format!("{device} port {port}");
    let netdev = netdev.unwrap_or("NETDEV");
    judge_pfc(&place, netdev, congestion, findings);
    judge_ecn(&place, netdev, congestion, findings);
    let folder = format!("/sys/kernel/config/rdma_cm/{device}");
    match congestion.type_of_service {
        Some(0) => findings.note(
            Severity::Hint,
            format!("{place}: RDMA-CM marks packets with DSCP 0"),
            "a network that keeps RDMA apart by DSCP carries them in the class of everything else",
            format!(
                "echo {TYPE_OF_SERVICE} > {folder}/ports/{port}/default_roce_tos   # or type_of_service of the profile; \
                 as the network's administrator has it"
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

fn judge_pfc(place: &str, netdev: &str, congestion: &Congestion, findings: &mut Findings<'_>) {
    match congestion.pfc.as_deref() {
        None => findings.ok(format!(
            "{place}: PFC is not readable: the driver does not tell the kernel (`dcb pfc show dev {netdev}`, \
             `mlnx_qos -i {netdev}`)"
        )),
        Some([]) => findings.note(
            Severity::Hint,
            format!("{place}: PFC is off for every priority"),
            "where ECN does not slow senders down in time, packets are dropped and sent again",
            format!(
                "dcb pfc set dev {netdev} prio-pfc all:off 3:on   # or mlnx_qos -i {netdev} --pfc 0,0,0,1,0,0,0,0; \
                 and the same on the switches"
            ),
        ),
        Some(priorities) => findings.ok(format!(
            "{place}: PFC is on for priority {}",
            list(priorities.iter())
        )),
    }
}

/// Writes priorities with commas between them.
fn list<'a>(priorities: impl Iterator<Item = &'a u8>) -> String {
    let words: Vec<String> = priorities.map(ToString::to_string).collect();
    words.join(", ")
}

fn judge_ecn(place: &str, netdev: &str, congestion: &Congestion, findings: &mut Findings<'_>) {
    let (Some(reaction), Some(notification)) =
        (&congestion.ecn_reaction, &congestion.ecn_notification)
    else {
        return findings.ok(format!(
            "{place}: ECN is not readable: the driver has no files for it (/sys/class/net/{netdev}/ecn)"
        ));
    };
    let both = list(
        reaction
            .iter()
            .filter(|priority| notification.contains(priority)),
    );
    if both.is_empty() {
        findings.note(
            Severity::Warning,
            format!("{place}: ECN is off on every priority"),
            "senders do not slow down before the network drops or stops their packets",
            format!("for point in rp np; do echo 1 > /sys/class/net/{netdev}/ecn/roce_$point/enable/3; done"),
        );
    } else {
        findings.ok(format!("{place}: ECN is on for priority {both}"));
    }
}
