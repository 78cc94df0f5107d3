//! What the core keeps of the header of a transmission that arrived.

use rpcrdma_fabric::interface::Receive;
use rpcrdma_protocol::constants::RTR_TRANSMISSIONS_MAX;
use rpcrdma_protocol::v2::connection::{Transmission, TransmissionPart};
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
    pub(in crate::core) fn new(transmission: &Transmission<'_>) -> Self {
        // No reply of this end has more transmissions, so a larger offer reserves no more credits.
        let most = u32::try_from(RTR_TRANSMISSIONS_MAX).unwrap_or(u32::MAX);
        let reply_transmissions_max = match transmission.part {
            TransmissionPart::Request {
                response_transmissions_max,
                ..
            } => response_transmissions_max,
            TransmissionPart::Response { .. } | TransmissionPart::Continue => 0,
        };
        Self {
            id: transmission.id,
            transmissions: transmission.transmissions,
            group: 0,
            arrival: transmission.arrival,
            first: FirstHeader {
                number: 0,
                lists: transmission.part.lists(),
                response_transmissions_max: reply_transmissions_max.clamp(1, most),
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
