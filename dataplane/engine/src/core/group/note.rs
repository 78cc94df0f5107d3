//! What the core keeps of the header of a transmission that arrived.

use rpcrdma_fabric::interface::Receive;
use rpcrdma_protocol::constants::RTR_TRANSMISSIONS_MAX;
use rpcrdma_protocol::v2::connection::TransmissionHeading;
use rpcrdma_protocol::v2::rtr::{Arrival, TransmissionId};

use super::arrival::FirstHeader;
use crate::message::Received;

/// A transmission that arrived, without its bytes.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct TransmissionNote {
    pub(in crate::core) id: TransmissionId,
    pub(in crate::core) transmissions: u32,
    /// The number of its group among those of its lane.
    pub(in crate::core) group: u32,
    arrival: Arrival,
    pub(in crate::core) first: FirstHeader,
}

impl TransmissionNote {
    pub(in crate::core) fn new(heading: &TransmissionHeading) -> Self {
        // No reply of this end has more transmissions, so a larger offer reserves no more credits.
        let most = u32::try_from(RTR_TRANSMISSIONS_MAX).unwrap_or(u32::MAX);
        Self {
            id: heading.id,
            transmissions: heading.transmissions,
            group: 0,
            arrival: heading.arrival,
            first: FirstHeader {
                number: heading.header_number,
                lists: heading.lists,
                response_transmissions_max: heading.response_transmissions_max.clamp(1, most),
            },
        }
    }

    pub(in crate::core) fn is_first(&self) -> bool {
        self.id.sequence == 0
    }

    pub(in crate::core) fn is_last(&self) -> bool {
        self.id.sequence + 1 == self.transmissions
    }

    /// The Receive, with the range of it that is payload stream.
    pub(in crate::core) fn received(&self, receive: Receive) -> Received {
        let start = self.arrival.header_bytes as usize;
        Received {
            receive,
            start,
            end: start + self.arrival.stream_bytes as usize,
        }
    }
}
