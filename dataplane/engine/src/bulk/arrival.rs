//! A transmission group as it comes in: its Receives, until all of them are there, and where its
//! items lie in them.

use rpcrdma_protocol::constants::RTR_TRANSMISSIONS_MAX;
use rpcrdma_protocol::v2::rtr::{
    Location, MessageItems, ReceiveBufferStructure, ResponseSets, TransmitLists, placed_pieces,
};

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

/// What the first header of a group says, beside what stands in its lists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstHeader {
    /// `None` of a later transmission.
    pub(crate) lists: Option<TransmitLists>,
    pub(crate) response_transmissions_max: u32,
}

/// What the header of a call says that came as a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupRequest<'a> {
    pub(crate) items: MessageItems<'a>,
    pub(crate) directions: ResponseSets<'a>,
    pub(crate) response_transmissions_max: u32,
}

/// A group that is being received, or was and is not served yet.
#[derive(Debug)]
pub(crate) struct GroupArrival {
    /// The header of its first transmission.
    header: Vec<u8>,
    /// Where its lists are, and how many transmissions the reply to it may take.
    lists: Option<TransmitLists>,
    response_transmissions_max: u32,
    /// Its Receives, with the range of each that is payload stream.
    pub(crate) receives: Vec<Received>,
}

impl GroupArrival {
    pub(crate) fn new() -> Self {
        Self {
            header: Vec::with_capacity(HEADER_BYTES_MAX),
            lists: None,
            response_transmissions_max: 0,
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
        self.lists.is_some()
    }

    /// Takes the first header of a group, which was decoded. False, and there is no group, when it
    /// is longer than any that is kept.
    pub(crate) fn begin(&mut self, first: FirstHeader, header: &[u8]) -> bool {
        self.clear_header();
        if header.len() > HEADER_BYTES_MAX {
            return false;
        }
        self.header.extend_from_slice(header);
        self.lists = first.lists;
        self.response_transmissions_max = first.response_transmissions_max;
        true
    }

    /// Forgets the header. The Receives are taken out by others.
    pub(crate) fn clear_header(&mut self) {
        self.header.clear();
        self.lists = None;
    }

    /// What its header says, if it is a call.
    pub(crate) fn request(&self) -> Option<GroupRequest<'_>> {
        Some(GroupRequest {
            items: self.items(),
            directions: self.lists?.directions(&self.header)?,
            response_transmissions_max: self.response_transmissions_max,
        })
    }

    /// What was taken out of its stream.
    pub(crate) fn items(&self) -> MessageItems<'_> {
        let items = self.lists.map(|lists| lists.items(&self.header));
        items.unwrap_or_default()
    }

    /// Finds the pieces of its items; false when there are more than are kept, or no header.
    pub(crate) fn land(
        &self,
        structure: &ReceiveBufferStructure,
        config: &PlacementConfig,
        landings: &mut Vec<Landing>,
    ) -> bool {
        landings.clear();
        if !self.is_some() {
            return false;
        }
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
