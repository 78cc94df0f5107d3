//! What a request and a reply say of their queue pair, and how many RDMA Reads may be in flight, each way.

use super::options::ManagerOptions;
use crate::verbs::cm::event::Parameters;
use crate::verbs::cm::id::ConnectionParameters;
use crate::verbs::queue_pair::QueuePair;

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

/// The facts about a queue pair that a request or a reply carries.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuePairFacts {
    pub(super) number: u32,
    pub(super) shared_receive_queue: bool,
}

impl QueuePairFacts {
    pub(super) fn of(queue_pair: &QueuePair) -> Self {
        Self {
            number: queue_pair.number(),
            shared_receive_queue: !queue_pair.has_own_receive_queue(),
        }
    }

    pub(super) fn parameters<'a>(
        &self,
        depths: ReadDepths,
        options: &ManagerOptions,
        private_data: &'a [u8],
    ) -> ConnectionParameters<'a> {
        ConnectionParameters {
            private_data,
            responder_resources: depths.responder_resources,
            initiator_depth: depths.initiator_depth,
            retry_count: options.retry_count,
            rnr_retry_count: options.rnr_retry_count,
            shared_receive_queue: self.shared_receive_queue,
            queue_pair_number: self.number,
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
