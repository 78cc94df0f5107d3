//! Where each octet of a message with bulk items goes in the Sends of a transmission group (RTR sections 3.3, 6.2
//! and 9).
//!
//! A transmission is a header, then a part of the payload stream, then items; padding brings each item to the start
//! of a targetable segment of the receiver's buffer. An item continues in the targetable segments that follow, in
//! the same transmission and the next ones, and fills each except its last.
//!
//! Items keep their order, and take targetable segments while a transmission has any. The payload stream takes the
//! space before them, and all of the transmissions that no item needs. If the targetable segments of a buffer are
//! alike and follow the others, no layout with items at segment starts has fewer transmissions.

mod transmission;

use core::fmt;

use crate::constants::RTR_TRANSMIT_CONTINUE_HEADER_BYTES;
use crate::v2::rtr::ReceiveBufferStructure;

pub use transmission::{Piece, Placement, Placements, Transmission};

#[expect(clippy::cast_possible_truncation, reason = "a small constant")]
const CONTINUE_HEADER_BYTES: u32 = RTR_TRANSMIT_CONTINUE_HEADER_BYTES as u32;

/// The bulk items of a message, which the sender has in memory.
pub trait BulkItems {
    /// How many items there are.
    fn count(&self) -> usize;

    /// Octets of item `item`.
    fn length_bytes(&self, item: usize) -> u32;

    /// Entries of a gather list that `length_bytes` octets of the item take, from octet `from_bytes` on. One, unless
    /// the item is in parts; an implementation with parts also overrides [`segments`](Self::segments).
    fn gather_entries(&self, item: usize, from_bytes: u32, length_bytes: u32) -> u32 {
        let _ = (item, from_bytes, length_bytes);
        1
    }

    /// Segments of at most `segment_bytes_max` octets in which the item is exposed to explicit RDMA.
    fn segments(&self, item: usize, segment_bytes_max: u32) -> u32 {
        self.length_bytes(item).div_ceil(segment_bytes_max.max(1))
    }
}

/// Items of these lengths, each in one part.
impl BulkItems for [u32] {
    fn count(&self) -> usize {
        self.len()
    }

    fn length_bytes(&self, item: usize) -> u32 {
        self.get(item).copied().unwrap_or(0)
    }
}

/// What a sender can send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendLimits {
    /// Octets of one Send. The receiver's buffer limits it too.
    pub send_bytes_max: u32,
    /// Entries of one Send's gather list. Header, stream and each padding take at least one. With fewer than four no
    /// transmission has both stream and item; with fewer than three, none has an item.
    pub gather_entries_max: u32,
    /// Octets of the zeroed memory that padding is sent from: a longer padding takes several entries.
    pub padding_region_bytes: u32,
    /// Transmissions of the group: the receiver's limit, and the credits that there are.
    pub transmissions_max: u32,
}

/// What is to be laid out.
#[derive(Debug)]
pub struct LayoutRequest<'a, I: ?Sized> {
    /// The receiver's buffers.
    pub structure: &'a ReceiveBufferStructure,
    /// Octets of the first header with empty lists of segment numbers.
    pub header_bytes: u32,
    /// Octets of the payload stream, without the items.
    pub stream_bytes: u32,
    /// The items to be placed.
    pub items: &'a I,
    /// What can be sent.
    pub limits: SendLimits,
}

impl<I: ?Sized> Clone for LayoutRequest<'_, I> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I: ?Sized> Copy for LayoutRequest<'_, I> {}

/// Why a message cannot be laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayoutError {
    /// The receiver has no segment that an item can be put into, or the gather list is too short for one.
    NotTargetable,
    /// A header does not fit a Send, or a later transmission has no room after it.
    NoRoom,
    /// The message takes more transmissions than there may be.
    TooManyTransmissions,
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotTargetable => "the receiver has no segment for an item",
            Self::NoRoom => "a transmission has no room beside its header",
            Self::TooManyTransmissions => "the message takes too many transmissions",
        })
    }
}

impl core::error::Error for LayoutError {}

/// A message laid out over the transmissions of a group.
#[derive(Debug)]
pub struct Layout<'a, I: ?Sized> {
    request: LayoutRequest<'a, I>,
    /// The fewest numbers that the items can take.
    numbers_least: u32,
    /// Numbers for which the first header has room in the plan, at least `number_count`.
    numbers_reserved: u32,
    number_count: u32,
    transmission_count: u32,
}

impl<I: ?Sized> Clone for Layout<'_, I> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I: ?Sized> Copy for Layout<'_, I> {}

impl<'a, I: BulkItems + ?Sized> Layout<'a, I> {
    /// Lays a message out.
    ///
    /// The first header holds the number of every segment that an item is in. So its length is known only when the
    /// items are laid out, and their places depend on its length. Room for too many numbers does no harm: padding
    /// takes it. So the plan is repeated with more room until the numbers fit.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn new(request: LayoutRequest<'a, I>) -> Result<Self, LayoutError> {
        /// Plans before room is kept for every possible number.
        const TRIES: usize = 4;
        let numbers_least = least_numbers(&request)?;
        let mut layout = Self {
            request,
            numbers_least,
            numbers_reserved: numbers_least,
            number_count: 0,
            transmission_count: 0,
        };
        for _ in 0..TRIES {
            layout.plan()?;
            if layout.number_count <= layout.numbers_reserved {
                return Ok(layout);
            }
            layout.numbers_reserved = layout.number_count;
        }
        let LayoutRequest {
            structure, limits, ..
        } = request;
        layout.numbers_reserved = structure
            .target_count()
            .saturating_mul(limits.transmissions_max);
        layout.plan()?;
        Ok(layout)
    }

    /// Counts transmissions and numbers.
    fn plan(&mut self) -> Result<(), LayoutError> {
        let mut state = State::default();
        let (mut numbers, mut transmissions) = (0_u32, 0_u32);
        loop {
            if transmissions == self.request.limits.transmissions_max {
                return Err(LayoutError::TooManyTransmissions);
            }
            let transmission = self.transmission(transmissions, state)?;
            state = transmission.state_after();
            numbers = numbers.saturating_add(transmission.placement_count);
            transmissions += 1;
            if self.is_done(state) {
                self.number_count = numbers;
                self.transmission_count = transmissions;
                return Ok(());
            }
        }
    }

    fn is_done(&self, state: State) -> bool {
        state.stream_bytes == self.request.stream_bytes && self.has_placed_all(state)
    }

    fn has_placed_all(&self, state: State) -> bool {
        state.next_of(self.request.items).is_none()
    }

    /// Octets of one Send.
    fn send_bytes_max(&self) -> u32 {
        let LayoutRequest {
            structure, limits, ..
        } = self.request;
        structure.length_bytes().min(limits.send_bytes_max)
    }

    /// Decides on one transmission.
    fn transmission(&self, index: u32, state: State) -> Result<Transmission<'a, I>, LayoutError> {
        let planned_header_bytes = self.planned_header_bytes(index);
        let space_bytes = self
            .send_bytes_max()
            .checked_sub(planned_header_bytes)
            .ok_or(LayoutError::NoRoom)?;
        let stream_left_bytes = self.request.stream_bytes - state.stream_bytes;
        let with_stream = |stream_bytes| {
            Transmission::new(self, index, planned_header_bytes, state, stream_bytes)
        };
        let most = with_stream(stream_left_bytes.min(space_bytes));
        let has_all_items = self.has_placed_all(state);
        let has_all = most.stream_bytes == stream_left_bytes && most.finishes_items();
        if has_all || (has_all_items && most.stream_bytes > 0) {
            return Ok(most);
        }
        // Items come first, while there are any; the stream takes the space before them.
        let offsets = self
            .request
            .structure
            .segments()
            .filter(|located| located.segment.is_targetable)
            .map(|located| located.offset_bytes)
            .filter(|offset_bytes| *offset_bytes >= planned_header_bytes);
        let up_to = |offset_bytes: u32| {
            with_stream(
                stream_left_bytes
                    .min(space_bytes)
                    .min(offset_bytes - planned_header_bytes),
            )
        };
        let mut chosen = None;
        for candidate in offsets.map(up_to) {
            if !candidate.finishes_items() {
                chosen = chosen.or_else(|| candidate.has_placements().then_some(candidate));
                break;
            }
            // The rest of the items fits behind this much stream. Try more stream.
            chosen = Some(candidate);
        }
        let transmission = chosen.unwrap_or(most);
        // The first transmission may have only its header: a long header may overlap the only targetable segment of the
        // buffer, and then the item is in the next transmission, whose header is shorter. A later transmission without
        // stream and items would make no progress.
        if index == 0 || transmission.stream_bytes > 0 || transmission.has_placements() {
            Ok(transmission)
        } else if stream_left_bytes == 0 && space_bytes > 0 {
            Err(LayoutError::NotTargetable)
        } else {
            Err(LayoutError::NoRoom)
        }
    }

    /// Octets of a header as the plan counts them.
    fn planned_header_bytes(&self, index: u32) -> u32 {
        match index {
            0 => self.first_header_bytes(self.numbers_reserved),
            _ => CONTINUE_HEADER_BYTES,
        }
    }

    fn first_header_bytes(&self, numbers: u32) -> u32 {
        self.request
            .header_bytes
            .saturating_add(numbers.saturating_mul(4))
    }

    /// Transmissions of the group, at least one.
    #[must_use]
    pub const fn transmission_count(&self) -> u32 {
        self.transmission_count
    }

    /// Octets of the first header, with all numbers.
    #[must_use]
    pub fn header_bytes(&self) -> u32 {
        self.first_header_bytes(self.number_count)
    }

    /// The transmissions, in the order in which they are sent.
    pub fn transmissions(&self) -> impl Iterator<Item = Transmission<'a, I>> + Clone + use<'a, I> {
        let layout = *self;
        let mut state = State::default();
        (0..self.transmission_count).map_while(move |index| {
            // The plan succeeded with the same values, so this succeeds too.
            let transmission = layout.transmission(index, state).ok()?;
            state = transmission.state_after();
            Some(transmission)
        })
    }

    /// The numbers of the segments that item `item` is in, in order, for the first header. The item begins at offset 0
    /// of the first. An empty item is in none.
    pub fn numbers(&self, item: usize) -> impl ExactSizeIterator<Item = u32> + use<'a, I> {
        let numbers = self
            .transmissions()
            .flat_map(|transmission| transmission.placements())
            .filter(move |placement| placement.item == item)
            .map(|placement| placement.number);
        Counted {
            left: numbers.clone().count(),
            numbers,
        }
    }
}

/// Numbers whose count is known.
struct Counted<N> {
    numbers: N,
    left: usize,
}

impl<N: Iterator<Item = u32>> Iterator for Counted<N> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        self.numbers.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<N: Iterator<Item = u32>> ExactSizeIterator for Counted<N> {}

/// The least count of numbers that the items can take. Fails if they cannot be placed.
fn least_numbers<I: BulkItems + ?Sized>(
    request: &LayoutRequest<'_, I>,
) -> Result<u32, LayoutError> {
    let targets = (request.structure.groups().iter()).filter(|group| group.segment.is_targetable);
    let longest_bytes = targets.map(|group| group.segment.length_bytes).max();
    let mut numbers = 0_u32;
    for item in 0..request.items.count() {
        let length_bytes = request.items.length_bytes(item);
        if length_bytes > 0 {
            let target_bytes = longest_bytes.ok_or(LayoutError::NotTargetable)?;
            numbers = numbers.saturating_add(length_bytes.div_ceil(target_bytes));
        }
    }
    Ok(numbers)
}

/// How much of the message the earlier transmissions have.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    stream_bytes: u32,
    /// The item that comes next, and how much of it was placed.
    item: usize,
    item_bytes: u32,
}

impl State {
    /// The item whose octets come next, from which octet on.
    fn next_of<I: BulkItems + ?Sized>(self, items: &I) -> Option<(usize, u32)> {
        (self.item..items.count())
            .map(|item| {
                (
                    item,
                    if item == self.item {
                        self.item_bytes
                    } else {
                        0
                    },
                )
            })
            .find(|(item, placed_bytes)| items.length_bytes(*item) > *placed_bytes)
    }

    fn place(&mut self, placement: &Placement) {
        self.item = placement.item;
        self.item_bytes = placement.from_bytes + placement.length_bytes;
    }
}
