//! A transmission group as it comes in: its Receives, until all of them are there, and where its
//! items lie in them.

use rpcrdma_protocol::constants::RTR_TRANSMISSIONS_MAX;
use rpcrdma_protocol::v2::rtr::{
    Location, MessageItems, ReceiveBufferStructure, RtrSupport, TransmitRequestView,
    TransmitResponseView, placed_pieces,
};
use rpcrdma_protocol::v2::{Body, decode_with_rtr};

use super::state::HEADER_BYTES_MAX;
use crate::core::Received;
use crate::placement::PlacementConfig;

/// Pieces that all items of one group lie in at most.
pub(crate) const LANDINGS_MAX: usize = 256;

/// A piece of an item in a placement segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Landing {
    /// Its item, by its place in the header.
    pub(crate) item: usize,
    /// Which Receive of the group.
    pub(crate) transmission: usize,
    /// Which placement segment of it.
    pub(crate) segment: usize,
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
    /// A later piece lies in the same segment, which is leased for that.
    pub(crate) is_shared: bool,
}

/// A group that is being received, or was and is not served yet.
#[derive(Debug)]
pub(crate) struct GroupArrival {
    /// The header of its first transmission.
    pub(crate) header: Vec<u8>,
    /// Its Receives, with the range of each that is payload stream.
    pub(crate) receives: Vec<Received>,
}

impl GroupArrival {
    pub(crate) fn new() -> Self {
        Self {
            header: Vec::with_capacity(HEADER_BYTES_MAX),
            receives: Vec::with_capacity(RTR_TRANSMISSIONS_MAX),
        }
    }

    /// Receives that have some of its payload stream.
    pub(crate) fn carriers(&self) -> usize {
        let has_stream = |received: &&Received| received.end > received.start;
        self.receives.iter().filter(has_stream).count()
    }

    /// Whether there is a group.
    pub(crate) fn is_some(&self) -> bool {
        !self.header.is_empty()
    }

    /// Its header, if it is a call.
    pub(crate) fn request(&self) -> Option<TransmitRequestView<'_>> {
        match decode_with_rtr(&self.header, RtrSupport::ALL).ok()?.body {
            Body::TransmitRequest(request) => Some(request),
            _ => None,
        }
    }

    /// Its header, if it is a reply.
    pub(crate) fn response(&self) -> Option<TransmitResponseView<'_>> {
        match decode_with_rtr(&self.header, RtrSupport::ALL).ok()?.body {
            Body::TransmitResponse(response) => Some(response),
            _ => None,
        }
    }

    /// What was taken out of its stream.
    pub(crate) fn items(&self) -> MessageItems<'_> {
        let request = self.request().map(|request| request.items);
        let items = request.or_else(|| self.response().map(|response| response.items));
        items.unwrap_or_default()
    }

    /// Finds the pieces of its items; false when there are more than are kept.
    pub(crate) fn land(
        &self,
        structure: &ReceiveBufferStructure,
        config: &PlacementConfig,
        landings: &mut Vec<Landing>,
    ) -> bool {
        landings.clear();
        for (item, placed) in self.items().enumerate() {
            let Location::Placed {
                offset_bytes,
                numbers,
            } = placed.location
            else {
                continue;
            };
            for piece in placed_pieces(structure, offset_bytes, numbers, placed.length_bytes) {
                let behind = piece.offset_bytes.checked_sub(config.inline_segment_bytes);
                let (Some(behind), true) = (behind, landings.len() < LANDINGS_MAX) else {
                    return false;
                };
                let segment_bytes = config.segment_bytes.max(1);
                let landing = Landing {
                    item,
                    transmission: piece.transmission as usize,
                    segment: (behind / segment_bytes) as usize,
                    offset: behind % segment_bytes,
                    bytes: piece.length_bytes,
                    is_shared: false,
                };
                if let Some(last) = landings.last_mut() {
                    let place = (landing.transmission, landing.segment);
                    last.is_shared = (last.transmission, last.segment) == place;
                }
                landings.push(landing);
            }
        }
        true
    }
}
