//! How a message is sent: [`plan_call`] and [`plan_reply`], the only places that choose.
//!
//! Both take sizes, properties, credits, limits and the profile's thresholds, and give a plan: the form of the
//! message, how each bulk item is moved, and how many credits it takes to begin. They keep no state: the same facts
//! give the same plan.

mod call;
mod reply;

pub use call::{
    CallFacts, CallForm, CallPlan, CallRefused, Direction, Directions, ExpectedResult, ReplyOffer,
    plan_call,
};
pub use reply::{
    ReplyFacts, ReplyForm, ReplyItems, ReplyPlan, RequesterOffer, ResultWay, plan_reply,
};

use super::layout::{BulkItems, Layout, LayoutError, LayoutRequest, SendLimits};
use crate::constants::{
    V1_HEADER_BYTES_WITHOUT_CHUNKS, V2_HEADER_BYTES_WITHOUT_CHUNKS, V2_MSG_BYTES_LEAST,
};
use crate::v2::rtr::ReceiveBufferStructure;

/// How the caller wants bulk items to be moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Demand {
    /// As sizes, thresholds and the means of both ends suggest.
    #[default]
    Auto,
    /// In the payload streams of call and reply.
    Inline,
    /// Placed by the Sends that carry the messages; refused if that is not possible.
    Send,
    /// By explicit RDMA; refused if that is not possible.
    Rdma,
}

/// The thresholds of the profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Octets up to which an item stays in the payload stream.
    pub inline_item_bytes_max: u32,
    /// Octets up to which an item is placed by Sends; a longer one is moved by explicit RDMA if that is possible.
    pub send_placement_bytes_max: u32,
    /// Octets up to which a payload stream is continued over several messages; a longer one is in a Position-Zero Read
    /// chunk or a Reply chunk if that is possible.
    pub continued_bytes_max: u32,
}

/// The means and limits of the sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderMeans {
    /// Octets of one Send: the own Maximum Send Size, which the peer's receive buffer limits too.
    pub send_bytes_max: u32,
    /// Entries of one Send's gather list.
    pub gather_entries_max: u32,
    /// Octets of the zeroed memory that padding is sent from.
    pub padding_region_bytes: u32,
    /// Octets of the longest payload stream that is sent continued.
    pub message_bytes_max: u32,
    /// Messages that may be sent now.
    pub credits: u32,
}

impl SenderMeans {
    fn limits(&self, transmissions_max: u32) -> SendLimits {
        SendLimits {
            send_bytes_max: self.send_bytes_max,
            gather_entries_max: self.gather_entries_max,
            padding_region_bytes: self.padding_region_bytes,
            transmissions_max,
        }
    }
}

/// The items of a message, with length 0 for those that are not placed: the layout of a group uses this. The indices
/// are those of all items.
#[derive(Debug)]
pub struct PlacedItems<'a, I: ?Sized> {
    items: &'a I,
    /// A bit for each item.
    placed: u32,
}

impl<I: BulkItems + ?Sized> BulkItems for PlacedItems<'_, I> {
    fn count(&self) -> usize {
        self.items.count()
    }

    fn length_bytes(&self, item: usize) -> u32 {
        let is_placed = item < 32 && self.placed & (1 << item) != 0;
        if is_placed {
            self.items.length_bytes(item)
        } else {
            0
        }
    }

    fn gather_entries(&self, item: usize, from_bytes: u32, length_bytes: u32) -> u32 {
        self.items.gather_entries(item, from_bytes, length_bytes)
    }
}

/// A bit for each item for which `is_placed` is true.
fn placed_bits(count: usize, is_placed: impl Fn(usize) -> bool) -> u32 {
    (0..count.min(32))
        .filter(|item| is_placed(*item))
        .fold(0, |bits, item| bits | 1 << item)
}

/// Transmissions of a group, if it can be laid out.
fn group_transmissions<I: BulkItems + ?Sized>(
    structure: &ReceiveBufferStructure,
    header_bytes: u32,
    stream_bytes: u32,
    items: &PlacedItems<'_, I>,
    limits: SendLimits,
) -> Result<u32, LayoutError> {
    let request = LayoutRequest {
        structure,
        header_bytes,
        stream_bytes,
        items,
        limits,
    };
    Layout::new(request).map(|layout| layout.transmission_count())
}

/// Octets of an item with its XDR round-up.
fn rounded_up(length_bytes: u32) -> u64 {
    u64::from(length_bytes).next_multiple_of(4)
}

/// The payload stream with the items that stay in it; `None` beyond 32 bits, which no message can have.
fn stream_with<I: BulkItems + ?Sized>(
    stream_bytes: u32,
    items: &I,
    stays: impl Fn(usize) -> bool,
) -> Option<u32> {
    let staying = (0..items.count())
        .filter(|item| stays(*item))
        .map(|item| rounded_up(items.length_bytes(item)));
    u32::try_from(u64::from(stream_bytes) + staying.sum::<u64>()).ok()
}

#[expect(clippy::cast_possible_truncation, reason = "small constants")]
const HEADER_BYTES: u32 = V2_HEADER_BYTES_WITHOUT_CHUNKS as u32;
#[expect(clippy::cast_possible_truncation, reason = "small constants")]
const V1_HEADER_BYTES: u32 = V1_HEADER_BYTES_WITHOUT_CHUNKS as u32;
#[expect(clippy::cast_possible_truncation, reason = "small constants")]
const MESSAGE_BYTES_LEAST: u32 = V2_MSG_BYTES_LEAST as u32;

/// Messages that a payload stream takes. The last has a header of `header_bytes`, the others one without chunks (-00
/// section 6.3.2.2). `None` if the last header leaves no room for payload.
fn messages(stream_bytes: u32, header_bytes: u32, send_bytes_max: u32) -> Option<u32> {
    let last_bytes = send_bytes_max.checked_sub(header_bytes)?;
    if stream_bytes <= last_bytes {
        return Some(1);
    }
    // The last one has at least a word of payload.
    if last_bytes < 4 || send_bytes_max < MESSAGE_BYTES_LEAST {
        return None;
    }
    let before_bytes = stream_bytes - last_bytes;
    Some(1 + before_bytes.div_ceil(send_bytes_max - HEADER_BYTES))
}
