//! Negotiates how many RDMA Reads may be in flight, each way.

use crate::verbs::cm::event::Parameters;

/// RDMA Reads in flight at a time on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadDepths {
    /// The peer's Reads, which our device serves.
    pub(super) responder_resources: u8,
    /// Our Reads, which the peer's device serves.
    pub(super) initiator_depth: u8,
}

impl ReadDepths {
    /// The depths that both ends support. A server computes them after the request, a client after
    /// the reply. RDMA-CM has swapped the peer's two numbers, so that each is from our point of view.
    /// The peer can lower our numbers but not raise them.
    pub(super) fn agreed(self, peer: &Parameters) -> Self {
        Self {
            responder_resources: self.responder_resources.min(peer.responder_resources),
            initiator_depth: self.initiator_depth.min(peer.initiator_depth),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_lowers_and_never_raises() {
        let asked = ReadDepths {
            responder_resources: 16,
            initiator_depth: 8,
        };
        for ((peers_responder, peers_initiator), (responder, initiator)) in [
            ((16, 8), (16, 8)),
            ((255, 255), (16, 8)),
            // The Linux client issues no RDMA Reads, and serves many.
            ((0, 128), (0, 8)),
            ((3, 0), (3, 0)),
        ] {
            let peer = Parameters {
                responder_resources: peers_responder,
                initiator_depth: peers_initiator,
                ..Parameters::default()
            };
            let agreed = ReadDepths {
                responder_resources: responder,
                initiator_depth: initiator,
            };
            assert_eq!(asked.agreed(&peer), agreed);
        }
    }
}
