//! The error counters of a port since the start of its device: retransmissions, and damaged or dropped packets.

use std::collections::BTreeMap;

use serde::Serialize;

use super::super::finding::{Findings, Severity};
use super::super::system::System;

/// More than one event per this number of packets gives a warning. Fewer events can be old and give a hint.
const PACKETS_PER_EVENT: u64 = 100_000;

/// The counters in the JSON report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counters {
    /// The number of packets in both directions; null if the device does not count them.
    pub packets: Option<u64>,
    /// The counters of `KINDS` and `CONGESTION` that the device has, by the name in the driver.
    pub events: BTreeMap<&'static str, u64>,
}

/// Counters of one kind of event. Drivers have different names for them.
struct Kind {
    what: &'static str,
    cost: &'static str,
    /// The advice if the counters grow during a run.
    where_growing: &'static str,
    names: &'static [&'static str],
}

const KINDS: [Kind; 3] = [
    Kind {
        what: "Sends met no Receive (RNR)",
        cost: "each waits for the receiver's timer before it is sent again",
        where_growing: "and rpcrdma alone uses the port, report it as a fault: its credits leave a Receive for each Send",
        names: &[
            "out_of_buffer",
            "rcvd_rnr_err",
            "retry_rnr_exceeded_err",
            "rnr_nak_retry_err",
            "rnr_naks_rcvd",
            "send_rnr_err",
        ],
    },
    Kind {
        what: "packets were sent again, or came out of order",
        cost: "each holds up its connection for a round trip, or for the acknowledgement timer",
        where_growing: "check the cables, and PFC and ECN of device and switches",
        names: &[
            "completer_retry_err",
            "duplicate_request",
            "implied_nak_seq_err",
            "local_ack_timeout_err",
            "max_retry_exceeded",
            "out_of_seq_request",
            "out_of_sequence",
            "packet_seq_err",
            "rcvd_seq_err",
            "retry_exceeded_err",
            "seq_err_naks_rcvd",
            "to_retransmits",
        ],
    },
    Kind {
        what: "packets were damaged or dropped at the port",
        cost: "each is sent again",
        where_growing: "check cable and transceiver, and PFC of device and switches",
        names: &[
            "excessive_buffer_overrun_errors",
            "local_link_integrity_errors",
            "port_rcv_errors",
            "port_rcv_remote_physical_errors",
            "port_xmit_discards",
            "rx_icrc_encapsulated",
            "symbol_error",
        ],
    },
];

/// Counters of packets that the network marked because of congestion, and of the reactions to them. They show that ECN
/// works, so they are no error.
const CONGESTION: [&str; 7] = [
    "RxECNMrkd",
    "cnpHandled",
    "cnpSent",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "rp_cnp_handled",
    "rx_ecn_marked_pkts",
];

/// Reads the counters of the port with the folder `port`. Some devices have one folder of counters for all ports.
pub(crate) fn read(system: &System, device: &str, port: &str) -> Counters {
    let folders = [
        format!("{port}/counters"),
        format!("{port}/hw_counters"),
        format!("{device}/hw_counters"),
    ];
    let count = |name: &str| {
        let numbers = folders.iter();
        numbers
            .filter_map(|folder| system.number(&format!("{folder}/{name}")))
            .next()
    };
    let both = |sent, received| count(sent)?.checked_add(count(received)?);
    let names = KINDS.iter().flat_map(|kind| kind.names).chain(&CONGESTION);
    Counters {
        packets: both("port_xmit_packets", "port_rcv_packets")
            .or_else(|| both("sent_pkts", "rcvd_pkts")),
        events: names
            .filter_map(|name| Some((*name, count(name)?)))
            .collect(),
    }
}

impl Counters {
    /// The counters among `names` that are not zero, as `name count`, and their sum.
    fn of(&self, names: &[&str]) -> (String, u64) {
        let found = names.iter().filter_map(|name| {
            let (name, count) = self.events.get_key_value(name)?;
            (*count != 0).then(|| (format!("{name} {count}"), *count))
        });
        let (texts, counts): (Vec<_>, Vec<_>) = found.unzip();
        let sum = counts.into_iter().fold(0, u64::saturating_add);
        (texts.join(", "), sum)
    }
}

/// Judges the counters of a port of `device`.
pub(crate) fn judge(device: &str, port: u32, counters: &Counters, findings: &mut Findings<'_>) {
    let place = format!("{device} port {port}");
    if counters.events.is_empty() {
        return findings.ok(format!(
            "{place}: counters of errors are not readable (`rdma statistic show link {device}/{port}`)"
        ));
    }
    let mut clean = true;
    for kind in &KINDS {
        let (events, sum) = counters.of(kind.names);
        if sum == 0 {
            continue;
        }
        clean = false;
        let often = counters
            .packets
            .is_some_and(|packets| sum.saturating_mul(PACKETS_PER_EVENT) > packets);
        let packets = counters
            .packets
            .map_or_else(String::new, |packets| format!(", of {packets} packets"));
        findings.note(
            if often { Severity::Warning } else { Severity::Hint },
            format!("{place}: {} since the device was started: {events}{packets}", kind.what),
            kind.cost,
            format!(
                "rdma statistic show link {device}/{}   # before and after a run; it counts for every program that uses \
                 the port. Where they grow with the run, {}",
                port, kind.where_growing
            ),
        );
    }
    if clean {
        findings.ok(format!(
            "{place}: no RNR, nothing sent again, nothing damaged since the device was started"
        ));
    }
    let (marked, sum) = counters.of(&CONGESTION);
    if sum != 0 {
        findings.ok(format!("{place}: ECN is at work: {marked}"));
    }
}
