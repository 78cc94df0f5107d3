//! One Send of a group: what is placed where, and the pieces that it is gathered from.

use core::iter::Peekable;

use super::{BulkItems, CONTINUE_HEADER_BYTES, Layout, LayoutRequest, State};
use crate::v2::rtr::{LocatedSegment, LocatedSegments};

/// One Send of the group.
#[derive(Debug)]
pub struct Transmission<'a, I: ?Sized> {
    pub(super) layout: Layout<'a, I>,
    pub(super) index: u32,
    /// Where header and stream end in the plan; in the Send they end no later.
    pub(super) planned_end_bytes: u32,
    pub(super) state: State,
    pub(super) stream_bytes: u32,
    /// After its placements: how much of the items is placed, how many placements there are, and where the last ends.
    after: State,
    pub(super) placement_count: u32,
    end_of_items_bytes: u32,
}

impl<I: ?Sized> Clone for Transmission<'_, I> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I: ?Sized> Copy for Transmission<'_, I> {}

impl<'a, I: BulkItems + ?Sized> Transmission<'a, I> {
    /// A transmission with so much of the stream, and the items that fit after it.
    pub(super) fn new(
        layout: &Layout<'a, I>,
        index: u32,
        planned_header_bytes: u32,
        state: State,
        stream_bytes: u32,
    ) -> Self {
        let mut transmission = Self {
            layout: *layout,
            index,
            planned_end_bytes: planned_header_bytes + stream_bytes,
            state,
            stream_bytes,
            after: state,
            placement_count: 0,
            end_of_items_bytes: 0,
        };
        for placement in transmission.placements() {
            transmission.after.place(&placement);
            transmission.placement_count += 1;
            transmission.end_of_items_bytes = placement.offset_bytes + placement.length_bytes;
        }
        transmission
    }

    /// How much of the message it and the earlier ones have.
    pub(super) fn state_after(&self) -> State {
        State {
            stream_bytes: self.state.stream_bytes + self.stream_bytes,
            ..self.after
        }
    }

    /// Which of the group it is, from 0.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// Octets of its header.
    #[must_use]
    pub fn header_bytes(&self) -> u32 {
        match self.index {
            0 => self.layout.header_bytes(),
            _ => CONTINUE_HEADER_BYTES,
        }
    }

    /// Octets of the payload stream in it, which its header gives.
    #[must_use]
    pub const fn stream_bytes(&self) -> u32 {
        self.stream_bytes
    }

    /// Octets of the Send.
    #[must_use]
    pub fn length_bytes(&self) -> u32 {
        match self.placement_count {
            0 => self.header_bytes() + self.stream_bytes,
            _ => self.end_of_items_bytes,
        }
    }

    /// The parts of the items that are in it.
    #[must_use]
    pub fn placements(&self) -> Placements<'a, I> {
        let layout = self.layout;
        Placements {
            layout,
            index: self.index,
            segments: layout.request.structure.segments(),
            state: self.state,
            end_bytes: self.planned_end_bytes,
            slack_bytes: match self.index {
                0 => 4 * layout.numbers_reserved.saturating_sub(layout.numbers_least),
                _ => 0,
            },
            entries_before_run: 1 + u32::from(self.stream_bytes > 0),
            run: None,
            is_over: false,
        }
    }

    /// The pieces that the Send is gathered from, in order. Each padding and each piece of an item that is in one part
    /// takes one entry of the gather list.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> + use<'a, I> {
        let padding_region_bytes = self.layout.request.limits.padding_region_bytes.max(1);
        let length_bytes = self.header_bytes();
        let stream = Piece::Stream {
            from_bytes: self.state.stream_bytes,
            length_bytes: self.stream_bytes,
        };
        let rest = Gathering {
            placements: self.placements().peekable(),
            end_bytes: length_bytes + self.stream_bytes,
            padding_region_bytes,
        };
        core::iter::once(Piece::Header { length_bytes })
            .chain((self.stream_bytes > 0).then_some(stream))
            .chain(rest)
    }

    pub(super) fn has_placements(&self) -> bool {
        self.placement_count > 0
    }

    pub(super) fn finishes_items(&self) -> bool {
        self.layout.has_placed_all(self.after)
    }
}

/// Octets of an item in one targetable segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The number of the segment in the group.
    pub number: u32,
    /// Which item.
    pub item: usize,
    /// Where the octets begin in the item.
    pub from_bytes: u32,
    /// How many.
    pub length_bytes: u32,
    /// Octets of the Send before them.
    pub offset_bytes: u32,
}

/// A piece that a Send is gathered from. No piece is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The transport header.
    Header {
        /// Its octets.
        length_bytes: u32,
    },
    /// Octets of the payload stream.
    Stream {
        /// Where they begin in it.
        from_bytes: u32,
        /// How many.
        length_bytes: u32,
    },
    /// Zeroes that bring the item after them to its segment.
    Padding {
        /// How many: at most those of the zeroed memory.
        length_bytes: u32,
    },
    /// Octets of an item.
    Item {
        /// Which.
        item: usize,
        /// Where they begin in it.
        from_bytes: u32,
        /// How many.
        length_bytes: u32,
    },
}

/// Puts items into the targetable segments of one transmission, as many as room and gather list allow.
#[derive(Debug)]
pub struct Placements<'a, I: ?Sized> {
    layout: Layout<'a, I>,
    index: u32,
    segments: LocatedSegments<'a>,
    state: State,
    /// Where the latest piece ends.
    end_bytes: u32,
    /// Octets by which the header may be shorter than planned; they add to the first padding.
    slack_bytes: u32,
    /// Entries of the gather list before the run.
    entries_before_run: u32,
    run: Option<Run>,
    is_over: bool,
}

/// Octets of one item that follow one another in a Send.
#[derive(Clone, Copy, Debug)]
struct Run {
    item: usize,
    from_bytes: u32,
    length_bytes: u32,
}

impl<I: ?Sized> Clone for Placements<'_, I> {
    fn clone(&self) -> Self {
        Self {
            segments: self.segments.clone(),
            ..*self
        }
    }
}

impl<I: BulkItems + ?Sized> Placements<'_, I> {
    /// Puts octets of the next item into a targetable segment that can have them.
    fn place(&mut self, located: LocatedSegment) -> Option<Placement> {
        let (item, from_bytes) = self.state.next_of(self.layout.request.items)?;
        let segment_bytes = located.segment.length_bytes;
        let left_bytes = self.layout.request.items.length_bytes(item) - from_bytes;
        let length_bytes = left_bytes.min(segment_bytes);
        // An item fills each of its segments except the last. So a segment that the Send cannot fill cannot be used.
        let end_bytes = located.offset_bytes.checked_add(length_bytes)?;
        if end_bytes > self.layout.send_bytes_max() {
            return None;
        }
        let number = self
            .layout
            .request
            .structure
            .number(self.index, located.target_index?)?;
        self.gather(located.offset_bytes, item, from_bytes, length_bytes)?;
        let placement = Placement {
            number,
            item,
            from_bytes,
            length_bytes,
            offset_bytes: located.offset_bytes,
        };
        self.state.place(&placement);
        self.end_bytes = end_bytes;
        Some(placement)
    }

    /// Counts the entries of the gather list with these octets; `None` if they are too many.
    fn gather(
        &mut self,
        offset_bytes: u32,
        item: usize,
        from_bytes: u32,
        length_bytes: u32,
    ) -> Option<()> {
        let LayoutRequest { items, limits, .. } = self.layout.request;
        let entries_of =
            |run: Run| items.gather_entries(run.item, run.from_bytes, run.length_bytes);
        let gap_bytes = offset_bytes - self.end_bytes;
        let (run, entries_before_run) = match self.run {
            Some(run) if run.item == item && gap_bytes == 0 => {
                let run = Run {
                    length_bytes: run.length_bytes + length_bytes,
                    ..run
                };
                (run, self.entries_before_run)
            }
            before => {
                // A header shorter than planned lengthens only the padding before the first item.
                let padding_bytes = match before {
                    None => gap_bytes + self.slack_bytes,
                    Some(_) => gap_bytes,
                };
                let entries_before_run = self.entries_before_run
                    + before.map_or(0, entries_of)
                    + padding_bytes.div_ceil(limits.padding_region_bytes.max(1));
                let run = Run {
                    item,
                    from_bytes,
                    length_bytes,
                };
                (run, entries_before_run)
            }
        };
        if entries_before_run.saturating_add(entries_of(run)) > limits.gather_entries_max {
            return None;
        }
        self.run = Some(run);
        self.entries_before_run = entries_before_run;
        Some(())
    }
}

impl<I: BulkItems + ?Sized> Iterator for Placements<'_, I> {
    type Item = Placement;

    fn next(&mut self) -> Option<Placement> {
        if self.is_over {
            return None;
        }
        let end_bytes = self.end_bytes;
        let located = self
            .segments
            .find(|located| located.target_index.is_some() && located.offset_bytes >= end_bytes);
        let placement = located.and_then(|located| self.place(located));
        self.is_over = placement.is_none();
        placement
    }
}

impl<I: BulkItems + ?Sized> core::iter::FusedIterator for Placements<'_, I> {}

/// Makes pieces of placements: padding before them, and one piece of adjacent placements of one item.
struct Gathering<'a, I: BulkItems + ?Sized> {
    placements: Peekable<Placements<'a, I>>,
    end_bytes: u32,
    padding_region_bytes: u32,
}

impl<I: BulkItems + ?Sized> Iterator for Gathering<'_, I> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let first = *self.placements.peek()?;
        let gap_bytes = first.offset_bytes - self.end_bytes;
        if gap_bytes > 0 {
            let length_bytes = gap_bytes.min(self.padding_region_bytes);
            self.end_bytes += length_bytes;
            return Some(Piece::Padding { length_bytes });
        }
        while let Some(placement) = self.placements.next_if(|placement| {
            placement.item == first.item && placement.offset_bytes == self.end_bytes
        }) {
            self.end_bytes += placement.length_bytes;
        }
        Some(Piece::Item {
            item: first.item,
            from_bytes: first.from_bytes,
            length_bytes: self.end_bytes - first.offset_bytes,
        })
    }
}
