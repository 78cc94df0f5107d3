//! Where the lists of a first transmission are in its header (RTR sections 9.2 and 9.3), so that a header which is
//! kept is decoded once.

use super::directions::ResponseSets;
use super::items::MessageItems;
use crate::constants::V2_PREFIX_BYTES;

/// Octets of the count before a list.
const COUNT_BYTES: usize = 4;

/// The lists of a Transmit Request or Response that was decoded, apart from its header: with that header, or a copy
/// of it, they are what they were. With other octets they are lists that mean nothing, and do no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmitLists {
    items: Extent,
    /// Those of a request.
    directions: Option<Extent>,
}

/// Octets of a list behind its count, and what it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    bytes: usize,
    count: usize,
}

impl TransmitLists {
    /// Those of a Transmit Request.
    #[must_use]
    pub fn of_request(items: &MessageItems<'_>, directions: &ResponseSets<'_>) -> Self {
        Self {
            directions: Some(Extent {
                bytes: directions.bytes().len(),
                count: directions.len(),
            }),
            ..Self::of_response(items)
        }
    }

    /// Those of a Transmit Response.
    #[must_use]
    pub fn of_response(items: &MessageItems<'_>) -> Self {
        Self {
            items: Extent {
                bytes: items.bytes().len(),
                count: items.len(),
            },
            directions: None,
        }
    }

    /// The items.
    #[must_use]
    pub fn items<'a>(&self, header: &'a [u8]) -> MessageItems<'a> {
        MessageItems::decoded(
            self.items.of(header, V2_PREFIX_BYTES + COUNT_BYTES),
            self.items.count,
        )
    }

    /// The directions, if it is a request.
    #[must_use]
    pub fn directions<'a>(&self, header: &'a [u8]) -> Option<ResponseSets<'a>> {
        let directions = self.directions?;
        let begin = V2_PREFIX_BYTES + COUNT_BYTES + self.items.bytes + COUNT_BYTES;
        Some(ResponseSets::decoded(
            directions.of(header, begin),
            directions.count,
        ))
    }
}

impl Extent {
    fn of(self, header: &[u8], begin: usize) -> &[u8] {
        let behind = header.get(begin..).unwrap_or_default();
        behind.get(..self.bytes).unwrap_or_default()
    }
}
