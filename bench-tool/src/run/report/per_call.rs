//! Operations per call, from the counters of client and server.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::workloads::bench::op::Op;

/// Operations per call: means over all calls of the run, including those of the warm-up.
///
/// The counters are read while no call is outstanding, so the figures are of whole calls. Sends include credit grants
/// and keep-alives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PerCall {
    /// Number of calls.
    pub calls: u64,
    /// Round trips that a caller waits for: one for call and reply, one for each time that the responder fetches
    /// payloads before it can serve the call, and one for each repeated call. `None` if the server does not report
    /// its counters.
    pub round_trips: Option<f64>,
    /// Operations of the client.
    pub client: EndPerCall,
    /// Operations of the server; `None` if it does not report its counters.
    pub server: Option<EndPerCall>,
}

/// Operations per call at one endpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct EndPerCall {
    /// Sends posted.
    pub sends: f64,
    /// Receives consumed.
    pub receives: f64,
    /// RDMA Reads posted.
    pub rdma_reads: f64,
    /// RDMA Writes posted.
    pub rdma_writes: f64,
    /// Memory regions exposed to the peer: windows bound, each of which is also invalidated.
    pub registrations: f64,
    /// Payload bytes that the peer's Sends placed here.
    pub placed_bytes: f64,
    /// Bytes that the CPU copied between buffers: payloads into messages, and messages in several parts, with their
    /// headers.
    pub copied_bytes: f64,
    /// `copied_bytes` as a multiple of the payload.
    pub copies: f64,
}

impl PerCall {
    /// Computes the means from the counters' increase during the calls, each of `call_bytes` of payload. In the
    /// reverse direction the client answers the calls, so it counts received calls.
    #[must_use]
    pub(crate) fn new(
        client: &BTreeMap<String, u64>,
        server: Option<&BTreeMap<String, u64>>,
        call_bytes: u64,
        is_reverse: bool,
    ) -> Self {
        let counted = if is_reverse {
            "calls_received"
        } else {
            "replies_received"
        };
        let calls = value(client, counted);
        if calls == 0 {
            return Self::default();
        }
        let round_trips = server.map(|server| {
            let more = value(server, "rdma_read_rounds") + value(client, "bulk_calls_retried");
            mean(calls + more, calls)
        });
        Self {
            calls,
            round_trips,
            client: EndPerCall::new(client, calls, call_bytes),
            server: server.map(|server| EndPerCall::new(server, calls, call_bytes)),
        }
    }

    /// How payloads travelled: `inline`, `send`, `rdma` or `mixed`.
    #[must_use]
    pub(crate) fn placement(&self, op: Op) -> &'static str {
        let server = self.server.as_ref();
        let is_placed =
            self.client.placed_bytes > 0.0 || server.is_some_and(|it| it.placed_bytes > 0.0);
        match (op.is_bulk(), is_placed, self.client.registrations > 0.0) {
            (true, true, true) => "mixed",
            (true, true, false) => "send",
            (true, false, true) => "rdma",
            _ => "inline",
        }
    }
}

impl EndPerCall {
    fn new(counters: &BTreeMap<String, u64>, calls: u64, call_bytes: u64) -> Self {
        let per_call = |names: &[&str]| {
            let total = names.iter().map(|name| value(counters, name)).sum();
            mean(total, calls)
        };
        // Payloads copied into messages, and messages cut into fragments and reassembled.
        let copied =
            value(counters, "bulk_bytes_copied") + value(counters, "fragment_bytes_copied");
        Self {
            sends: per_call(&["sends_copied", "sends_registered"]),
            receives: per_call(&["receives_posted"]),
            rdma_reads: per_call(&["rdma_reads"]),
            rdma_writes: per_call(&["rdma_writes"]),
            registrations: per_call(&["windows_bound"]),
            placed_bytes: per_call(&["bulk_bytes_placed"]),
            copied_bytes: mean(copied, calls),
            copies: mean(copied, calls.saturating_mul(call_bytes)),
        }
    }
}

fn value(counters: &BTreeMap<String, u64>, name: &str) -> u64 {
    counters.get(name).copied().unwrap_or(0)
}

/// `total / count`, rounded to three decimals; 0 if `count` is 0.
#[allow(clippy::cast_precision_loss, reason = "a mean to three decimals")]
fn mean(total: u64, count: u64) -> f64 {
    if count == 0 {
        return 0.0;
    }
    (total as f64 / count as f64 * 1000.0).round() / 1000.0
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn counters(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
        let named = |&(name, value): &(&str, u64)| (name.to_owned(), value);
        pairs.iter().map(named).collect()
    }

    pub(crate) fn of_writes_by_rdma() -> PerCall {
        let client = counters(&[
            ("replies_received", 1000),
            ("sends_copied", 1010),
            ("receives_posted", 1000),
            ("windows_bound", 1000),
        ]);
        let server = counters(&[
            ("sends_copied", 1000),
            ("receives_posted", 1010),
            ("rdma_reads", 2000),
            ("rdma_read_rounds", 1000),
        ]);
        PerCall::new(&client, Some(&server), 4096, false)
    }

    #[test]
    fn reads_in_flight_together_are_one_round_trip() {
        let per_call = of_writes_by_rdma();
        assert_eq!((per_call.calls, per_call.round_trips), (1000, Some(2.0)));
        assert_eq!(per_call.client.sends, 1.01);
        assert_eq!(per_call.client.registrations, 1.0);
        let server = per_call.server.as_ref().unwrap();
        assert_eq!((server.rdma_reads, server.copies), (2.0, 0.0));
        assert_eq!(per_call.placement(Op::Write), "rdma");
        assert_eq!(per_call.placement(Op::Echo), "inline");
    }

    #[test]
    fn copies_are_multiples_of_the_payload() {
        let client = counters(&[("replies_received", 10), ("bulk_bytes_copied", 81_920)]);
        let per_call = PerCall::new(&client, None, 4096, false);
        assert_eq!(
            (per_call.client.copied_bytes, per_call.client.copies),
            (8192.0, 2.0)
        );
        assert_eq!(
            (per_call.round_trips, per_call.server.clone()),
            (None, None)
        );
        assert_eq!(per_call.placement(Op::Write), "inline");
    }

    #[test]
    fn send_placement_with_exposed_windows_is_mixed() {
        let client = |windows| counters(&[("replies_received", 10), ("windows_bound", windows)]);
        let server = counters(&[("bulk_bytes_placed", 40_960)]);
        for (windows, placement) in [(0, "send"), (3, "mixed")] {
            let per_call = PerCall::new(&client(windows), Some(&server), 4096, false);
            assert_eq!(per_call.server.as_ref().unwrap().placed_bytes, 4096.0);
            assert_eq!(per_call.placement(Op::Write), placement);
        }
    }

    #[test]
    fn no_call_took_nothing() {
        assert_eq!(
            PerCall::new(&counters(&[]), None, 4096, false),
            PerCall::default()
        );
    }
}
