//! How many RDMA Reads may be in flight, each way.

use crate::verbs::cm::event::Parameters;

/// RDMA Reads in flight at a time on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadDepths {
    /// Of the peer's, which our device serves.
    pub(super) responder_resources: u8,
    /// Of ours, which the peer's device serves.
    pub(super) initiator_depth: u8,
}

impl ReadDepths {
    /// What both ends can do: a server after the request, a client after the reply. RDMA-CM has
    /// exchanged the peer's numbers, so that each is from this end's point of view. A peer that
    /// answers with more than it was asked for gets what we asked for.
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
