//! Where the lists of a first transmission are in its header (RTR sections 9.2 and 9.3). With these positions, a header
//! that is kept is decoded only once.

use super::directions::ResponseSets;
use super::items::MessageItems;
use crate::constants::V2_PREFIX_BYTES;

/// Octets of the count before a list.
const COUNT_BYTES: usize = 4;

/// The positions of the lists of a decoded Transmit Request or Response. With its header, or a copy of it, they give
/// the decoded lists. With other octets they give meaningless lists, which do no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmitLists {
    items: Extent,
    /// Only a request has directions.
    directions: Option<Extent>,
}

/// The octets of a list after its count, and the count.
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
