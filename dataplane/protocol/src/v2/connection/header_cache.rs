//! A cache of decoded headers, for first transmissions that differ from the previous one only in XID and credits: calls
//! of one kind often follow each other, and so do their replies. The checks of the previous header hold for them as
//! well, since they depend only on the octets of the header, the length of the Send and the properties of this end. So
//! headers are compared instead of decoded.

use super::event::TransmissionPart;
use crate::v2::rtr::{Arrival, TransmitLists};

/// The longest header that is kept, in octets; longer ones are decoded each time.
const HEADER_BYTES_MAX: usize = 152;
/// The offset of the header type, which is followed by flags and lists. Of the words before it only the version counts.
const TYPE_AT: usize = 12;

/// The latest valid first transmission of one direction that was the only one of its group.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeaderCache {
    header: [u8; HEADER_BYTES_MAX],
    /// All zero before the first header is kept.
    pub(super) arrival: Arrival,
    lists: Option<TransmitLists>,
    /// 0 for a reply.
    pub(super) response_transmissions_max: u32,
    /// How many headers were kept, with it.
    number: u32,
}

impl HeaderCache {
    pub(super) const NONE: Self = Self {
        header: [0; HEADER_BYTES_MAX],
        arrival: Arrival {
            header_bytes: 0,
            stream_bytes: 0,
            message_bytes: 0,
        },
        lists: None,
        response_transmissions_max: 0,
        number: 0,
    };

    /// Replaces the kept header.
    pub(super) fn remember(
        &mut self,
        message: &[u8],
        arrival: Arrival,
        part: TransmissionPart<'_>,
    ) {
        self.lists = None;
        // No number comes again: when all were used, no header is kept.
        let Some(number) = self.number.checked_add(1) else {
            return;
        };
        let header_bytes = usize::try_from(arrival.header_bytes).unwrap_or(usize::MAX);
        let header = message.get(..header_bytes);
        let place = self.header.get_mut(..header_bytes);
        let (Some(header), Some(place)) = (header, place) else {
            return;
        };
        place.copy_from_slice(header);
        self.arrival = arrival;
        self.lists = part.lists();
        self.response_transmissions_max = match part {
            TransmissionPart::Request {
                response_transmissions_max,
                ..
            } => response_transmissions_max,
            TransmissionPart::Response { .. } | TransmissionPart::Continue => 0,
        };
        self.number = number;
    }

    /// The number of the kept header; 0 if none is kept.
    #[inline]
    pub(super) const fn number(&self) -> u32 {
        match self.lists {
            Some(_) => self.number,
            None => 0,
        }
    }

    /// Where the lists are, if this header equals the kept one.
    #[inline]
    pub(super) fn lists_of(&self, message: &[u8]) -> Option<TransmitLists> {
        let lists = self.lists?;
        let header_bytes = usize::try_from(self.arrival.header_bytes).unwrap_or(usize::MAX);
        let says = |header| parts_that_count(header, header_bytes);
        (says(message)? == says(&self.header)?).then_some(lists)
    }
}

/// Version and, from the header type on, the rest of a header.
#[inline]
fn parts_that_count(header: &[u8], header_bytes: usize) -> Option<(&[u8], &[u8])> {
    Some((header.get(4..8)?, header.get(TYPE_AT..header_bytes)?))
}
