//! The list of items in the first header of a transmission group (RTR sections 7.3 and 7.4).

use rpcrdma_protocol::EncodeError;
use rpcrdma_protocol::chunks::Segment;
use rpcrdma_protocol::v2::rtr::{EncodeItems, Location, MessageItem, write_items};
use rpcrdma_protocol::xdr::Writer;

use super::laid_out::LaidOut;
use super::pieces::{Group, GroupItem, Way};

/// The items of a call, or an item for each direction of the call that is answered.
pub(in crate::core) struct GroupItems<'a, F> {
    pub(in crate::core) group: &'a Group,
    pub(in crate::core) laid_out: &'a LaidOut,
    /// The segments of the item of this number, which goes by explicit RDMA.
    pub(in crate::core) segments: F,
}

impl<F, I> EncodeItems for GroupItems<'_, F>
where
    F: Fn(usize, GroupItem) -> I,
    I: ExactSizeIterator<Item = Segment>,
{
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        let items = self.group.items.iter().enumerate();
        let items = items.map(|(index, item)| MessageItem {
            displacement: item.displacement,
            length_bytes: item.bytes,
            location: match item.way {
                Way::Explicit => Location::Explicit((self.segments)(index, *item)),
                Way::Placed => Location::Placed {
                    offset_bytes: 0,
                    numbers: self.laid_out.numbers(index),
                },
                Way::TooShort => Location::TooShort,
                Way::NoItem => Location::NoItem,
            },
        });
        write_items(writer, items)
    }
}
