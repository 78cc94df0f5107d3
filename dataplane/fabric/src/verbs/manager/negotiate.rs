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
    /// What we ask for, or grant at most: what the profile wants within the device's limits
    /// (`max_qp_rd_atom` and `max_qp_init_rd_atom`).
    pub(super) fn wanted(profile: u8, device_responder: u32, device_initiator: u32) -> Self {
        let within = |limit: u32| profile.min(u8::try_from(limit).unwrap_or(u8::MAX));
        Self {
            responder_resources: within(device_responder),
            initiator_depth: within(device_initiator),
        }
    }

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

    fn depths(responder_resources: u8, initiator_depth: u8) -> ReadDepths {
        ReadDepths {
            responder_resources,
            initiator_depth,
        }
    }

    #[test]
    fn the_device_bounds_the_profile() {
        assert_eq!(ReadDepths::wanted(16, 128, 128), depths(16, 16));
        assert_eq!(ReadDepths::wanted(16, 4, 128), depths(4, 16));
        assert_eq!(ReadDepths::wanted(255, 1000, 0), depths(255, 0));
        assert_eq!(ReadDepths::wanted(0, 128, 128), depths(0, 0));
    }

    #[test]
    fn the_peer_lowers_and_never_raises() {
        let asked = depths(16, 8);
        let peer = |responder_resources, initiator_depth| Parameters {
            responder_resources,
            initiator_depth,
            ..Parameters::default()
        };
        assert_eq!(asked.agreed(&peer(16, 8)), depths(16, 8));
        assert_eq!(asked.agreed(&peer(255, 255)), depths(16, 8));
        // The Linux client issues no RDMA Reads, and serves many.
        assert_eq!(asked.agreed(&peer(0, 128)), depths(0, 8));
        assert_eq!(asked.agreed(&peer(3, 0)), depths(3, 0));
    }
}
