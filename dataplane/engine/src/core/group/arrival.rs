//! An incoming transmission group: its Receives, which are collected until all have arrived, and the places of its
//! items in them.
//!
//! The decoded header is kept with its slot: the next group in the slot usually has the same header, except for its XID
//! and credits, and is not decoded again.

use rpcrdma_protocol::constants::{RTR_TRANSMISSIONS_MAX, SEGMENT_BYTES};
use rpcrdma_protocol::v2::rtr::{
    Location, MessageItems, ReceiveBufferStructure, ResponseItemView, ResponseSets, TransmitLists,
    placed_pieces,
};

use super::pieces::Way;
use crate::bulk::directed::{OpenDirection, open_directions};
use crate::bulk::{BULK_ITEMS_MAX, BulkPool};
use crate::limits::{DIRECTIONS_MAX, HEADER_BYTES_MAX, LANDINGS_MAX};
use crate::message::Received;
use crate::placement_segments::PlacementConfig;
use crate::rpc::ConnectionKey;

/// A piece of an item in a placement segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Landing {
    /// Its item, by its place in the header.
    pub(crate) item: u32,
    /// Which Receive of the group.
    pub(crate) transmission: u32,
    /// Which placement segment of it.
    pub(crate) segment: u32,
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
    /// A later piece lies in the same segment, which is leased for that.
    pub(crate) is_shared: bool,
}

/// The fields of the first header of a group, and where its lists are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstHeader {
    /// Headers of a connection with the same number, which is not 0, are alike.
    pub(crate) number: u32,
    /// `None` of a later transmission.
    pub(crate) lists: Option<TransmitLists>,
    pub(crate) response_transmissions_max: u32,
}

/// The contents of the header of a call that came as a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupRequest<'a> {
    pub(crate) items: MessageItems<'a>,
    pub(crate) directions: ResponseSets<'a>,
    pub(crate) response_transmissions_max: u32,
}

/// An item as a header describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivedItem {
    pub(crate) displacement: u32,
    pub(crate) bytes: u32,
    pub(crate) way: Way,
}

/// A group that is being received, or was received and is not served yet.
#[derive(Debug, Default)]
pub(crate) struct GroupArrival {
    /// Whether there is one. If not, the other fields describe the previous one.
    is_some: bool,
    connection: ConnectionKey,
    /// The header of its first transmission, and its number.
    header: Vec<u8>,
    number: u32,
    /// Where its lists are, and how many transmissions the reply to it may take.
    lists: Option<TransmitLists>,
    response_transmissions_max: u32,
    /// The header is valid, and the fields below were derived from it.
    is_checked: bool,
    pub(crate) landed: Vec<ArrivedItem>,
    landings: Vec<Landing>,
    /// The directions of a call.
    pub(crate) directions: Vec<OpenDirection>,
    /// The bytes that the header of the reply to a call can take beyond one without chunks.
    pub(crate) response_header_bytes: usize,
    /// Its Receives, with the range of each that is payload stream.
    pub(crate) receives: Vec<Received>,
}

impl GroupArrival {
    /// A place for a call of a peer, or for a reply, which has no directions.
    pub(crate) fn new(of_calls: bool) -> Self {
        Self {
            header: Vec::with_capacity(HEADER_BYTES_MAX),
            landed: Vec::with_capacity(BULK_ITEMS_MAX),
            landings: Vec::with_capacity(LANDINGS_MAX),
            directions: Vec::with_capacity(if of_calls { DIRECTIONS_MAX } else { 0 }),
            receives: Vec::with_capacity(RTR_TRANSMISSIONS_MAX),
            ..Self::default()
        }
    }

    /// Whether there is a group.
    pub(crate) fn is_some(&self) -> bool {
        self.is_some
    }

    /// Takes the decoded first header of a group; `header` gives its octets. False, and no group begins, when the header
    /// is longer than [`HEADER_BYTES_MAX`].
    #[inline]
    pub(crate) fn begin<'a>(
        &mut self,
        connection: ConnectionKey,
        first: FirstHeader,
        header: impl FnOnce() -> &'a [u8],
    ) -> bool {
        // Of the same connection, since the limits of a header depend on its properties.
        let is_of = self.is_checked && self.connection == connection;
        if is_of && first.number != 0 && self.number == first.number {
            self.is_some = true;
            return true;
        }
        self.begin_with(is_of, connection, first, header())
    }

    #[inline(never)]
    fn begin_with(
        &mut self,
        is_of: bool,
        connection: ConnectionKey,
        first: FirstHeader,
        header: &[u8],
    ) -> bool {
        self.is_some = header.len() <= HEADER_BYTES_MAX;
        if !self.is_some {
            return false;
        }
        self.number = first.number;
        if is_of && what_counts(&self.header) == what_counts(header) {
            return self.is_some;
        }
        self.connection = connection;
        self.header.clear();
        self.header.extend_from_slice(header);
        self.lists = first.lists;
        self.response_transmissions_max = first.response_transmissions_max;
        self.is_checked = false;
        true
    }

    /// Ends the group. What was derived from its header is kept for the next one; the caller takes out the Receives.
    pub(crate) fn end(&mut self) {
        self.is_some = false;
    }

    /// Whether its header was found valid, now or as the header of an earlier group.
    pub(crate) fn is_checked(&self) -> bool {
        self.is_some && self.is_checked
    }

    /// Notes that its header is valid.
    pub(crate) fn set_checked(&mut self) {
        self.is_checked = true;
    }

    /// The contents of its header, if it is a call.
    pub(crate) fn request(&self) -> Option<GroupRequest<'_>> {
        Some(GroupRequest {
            items: self.items(),
            directions: self
                .lists
                .filter(|_| self.is_some)?
                .directions(&self.header)?,
            response_transmissions_max: self.response_transmissions_max,
        })
    }

    /// The items that were taken out of its stream.
    pub(crate) fn items(&self) -> MessageItems<'_> {
        let lists = self.lists.filter(|_| self.is_some);
        let items = lists.map(|lists| lists.items(&self.header));
        items.unwrap_or_default()
    }

    /// The items of the group, the places of their pieces, and its Receives.
    pub(crate) fn pieces(&mut self) -> (&[ArrivedItem], &[Landing], &mut [Received]) {
        (&self.landed, &self.landings, &mut self.receives)
    }

    /// What is needed to take the whole group out of its Receives: how many Receives have a part of its payload stream,
    /// how many placement segments are leased, and how many bulk buffers copies take.
    pub(crate) fn needs(&self, pool: &BulkPool) -> (usize, usize, usize) {
        let (mut leases, mut copies) = (0, 0);
        for landing in &self.landings {
            match landing.is_shared {
                true => copies += pool.buffers_for(landing.bytes),
                false => leases += 1,
            }
        }
        let carriers = self.receives.iter().filter(|it| it.has_stream()).count();
        (carriers, leases, copies)
    }

    /// Derives the items, their places and the directions from its header. False when there are more items or
    /// pieces than this end handles, or no header.
    pub(crate) fn land(
        &mut self,
        structure: &ReceiveBufferStructure,
        config: &PlacementConfig,
    ) -> bool {
        self.landed.clear();
        self.landings.clear();
        self.directions.clear();
        let Some(lists) = self.lists.filter(|_| self.is_some) else {
            return false;
        };
        if let Some(sets) = lists.directions(&self.header) {
            // Further ones cannot be used: a reply has no more results.
            let room = self.directions.capacity();
            self.directions.extend(open_directions(sets).take(room));
            self.response_header_bytes = response_header_bytes(sets);
        }
        let items = lists.items(&self.header);
        if items.len() > BULK_ITEMS_MAX {
            return false;
        }
        for (item, number) in items.zip(0..) {
            self.landed.push(ArrivedItem {
                displacement: item.displacement,
                bytes: item.length_bytes,
                way: match item.location {
                    Location::Explicit(_) => Way::Explicit,
                    Location::Placed { .. } => Way::Placed,
                    Location::TooShort => Way::TooShort,
                    Location::NoItem => Way::NoItem,
                },
            });
            let Location::Placed {
                offset_bytes,
                numbers,
            } = item.location
            else {
                continue;
            };
            for piece in placed_pieces(structure, offset_bytes, numbers, item.length_bytes) {
                // The inline segment comes first, and nothing is placed in it.
                let behind = piece.offset_bytes.checked_sub(config.inline_segment_bytes);
                let (Some(behind), true) = (behind, self.landings.len() < LANDINGS_MAX) else {
                    return false;
                };
                let segment_bytes = config.segment_bytes.max(1);
                let landing = Landing {
                    item: number,
                    transmission: piece.transmission,
                    segment: behind / segment_bytes,
                    offset: behind % segment_bytes,
                    bytes: piece.length_bytes,
                    is_shared: false,
                };
                // Items are in increasing order, so pieces in one segment follow each other. Only the
                // last of them can lease it.
                if let Some(last) = self.landings.last_mut() {
                    let place = (landing.transmission, landing.segment);
                    last.is_shared = (last.transmission, last.segment) == place;
                }
                self.landings.push(landing);
            }
        }
        true
    }
}

/// A header without its XID, version and credits: groups of one shape differ only in those.
fn what_counts(header: &[u8]) -> &[u8] {
    header.get(12..).unwrap_or(&[])
}

/// The bytes that the header of a Transmit Response can take beyond one without chunks.
fn response_header_bytes(directions: ResponseSets<'_>) -> usize {
    let numbers = 4 * RTR_TRANSMISSIONS_MAX;
    let of_direction = |item: ResponseItemView<'_>| {
        let segments = item.location.segments().map_or(0, |list| list.len());
        20 + SEGMENT_BYTES * segments
    };
    let items = directions.flat_map(|set| set.items);
    let items: usize = items.map(of_direction).sum();
    if items == 0 { 0 } else { items + numbers }
}
