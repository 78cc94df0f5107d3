//! How an endpoint's receive buffers are made: the Receive Buffer Structure property (RTR sections 7.2 and 8.3).
//!
//! A receive buffer is a row of segments, which a Send fills one after the other. Bulk data may be put only into
//! *targetable* segments. Only these are numbered, through all the transmissions of a group, and each transmission
//! counts as if it filled its buffer (RTR section 6.2).

use core::fmt;

use crate::constants::{
    RBSIZ_DEFAULT_BYTES, RECEIVE_BUFFER_GROUPS_MAX, RECEIVE_BUFFER_SEGMENTS_MAX,
    RTR_SEGMENT_FLAG_TARGETABLE,
};
use crate::error::{DecodeError, EncodeError, Reason};
use crate::xdr::{Reader, Writer};

/// One segment of a receive buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BufferSegment {
    /// Octets, at least one.
    pub length_bytes: u32,
    /// The alignment of its address that the receiver guarantees, in octets: a power of two. 0 and 1 guarantee none.
    pub align_bytes: u32,
    /// Whether bulk data may be put here.
    pub is_targetable: bool,
}

/// A run of segments that are alike and follow one another in the buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SegmentGroup {
    /// How many segments, at least one.
    pub count: u32,
    /// The length and properties of each.
    pub segment: BufferSegment,
}

/// A segment at its place in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocatedSegment {
    /// Octets of the buffer before the segment.
    pub offset_bytes: u32,
    /// Its length and properties.
    pub segment: BufferSegment,
    /// If it is targetable, how many targetable segments of the same buffer come before it.
    pub target_index: Option<u32>,
}

/// A targetable segment, found by its number in a transmission group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NumberedSegment {
    /// Which transmission of the group carries it, counted from 0.
    pub transmission: u32,
    /// Octets of that transmission before the segment.
    pub offset_bytes: u32,
    /// Octets of the segment.
    pub length_bytes: u32,
}

/// The structure of the receive buffers of one endpoint.
///
/// A value of this type is always valid: at least one segment, none empty, alignments that are powers of two, and a
/// total of at most `u32::MAX` octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReceiveBufferStructure {
    /// The first `group_count` are in use, the others are all zero.
    groups: [SegmentGroup; RECEIVE_BUFFER_GROUPS_MAX],
    group_count: usize,
    length_bytes: u32,
    target_count: u32,
}

/// One segment of the default Receive Buffer Size, not targetable (RTR section 8.1, note 1).
impl Default for ReceiveBufferStructure {
    fn default() -> Self {
        Self::single(RBSIZ_DEFAULT_BYTES)
    }
}

impl ReceiveBufferStructure {
    /// A structure of these groups, in the order of the buffer.
    ///
    /// # Errors
    /// [`StructureError`], for the rule that is broken.
    pub fn new(groups: &[SegmentGroup]) -> Result<Self, StructureError> {
        if groups.is_empty() {
            return Err(StructureError::NoSegment);
        }
        let mut structure = Self::EMPTY;
        let mut tally = Tally::default();
        for group in groups {
            tally.add(*group)?;
            structure.push(*group);
        }
        if !tally.is_within_bounds() {
            return Err(StructureError::TooManySegments);
        }
        structure.length_bytes =
            u32::try_from(tally.length_bytes).map_err(|_| StructureError::TooLong)?;
        Ok(structure)
    }

    /// A buffer of one segment that is not targetable: the structure of an endpoint that announces its Receive Buffer
    /// Size and no structure (RTR section 8.3). A buffer has at least one octet, so 0 counts as 1.
    #[must_use]
    pub fn single(length_bytes: u32) -> Self {
        let length_bytes = length_bytes.max(1);
        let mut structure = Self::EMPTY;
        structure.push(SegmentGroup {
            count: 1,
            segment: BufferSegment {
                length_bytes,
                ..BufferSegment::default()
            },
        });
        structure.length_bytes = length_bytes;
        structure
    }

    const EMPTY: Self = Self {
        groups: [SegmentGroup {
            count: 0,
            segment: BufferSegment {
                length_bytes: 0,
                align_bytes: 0,
                is_targetable: false,
            },
        }; RECEIVE_BUFFER_GROUPS_MAX],
        group_count: 0,
        length_bytes: 0,
        target_count: 0,
    };

    /// Appends a group if there is room; otherwise [`Tally::is_within_bounds`] is false.
    fn push(&mut self, group: SegmentGroup) {
        if let Some(slot) = self.groups.get_mut(self.group_count) {
            *slot = group;
            self.group_count += 1;
            if group.segment.is_targetable {
                self.target_count = self.target_count.saturating_add(group.count);
            }
        }
    }

    /// The groups, in the order of the buffer.
    #[must_use]
    pub fn groups(&self) -> &[SegmentGroup] {
        self.groups.get(..self.group_count).unwrap_or_default()
    }

    /// Octets of the whole buffer: the most that one Send may have. The Receive Buffer Size of the same endpoint is
    /// equal to it (RTR section 8.3).
    #[inline]
    #[must_use]
    pub const fn length_bytes(&self) -> u32 {
        self.length_bytes
    }

    /// How many segments of one buffer are targetable. With none, nothing can be placed by a Send.
    #[inline]
    #[must_use]
    pub const fn target_count(&self) -> u32 {
        self.target_count
    }

    /// The segments of one buffer, in order.
    #[must_use]
    pub fn segments(&self) -> LocatedSegments<'_> {
        LocatedSegments {
            groups: self.groups(),
            index_in_group: 0,
            offset_bytes: 0,
            target_index: 0,
        }
    }

    /// The targetable segment `number` of a transmission group; `None` if buffers have none. The caller checks how many
    /// transmissions the group has.
    #[must_use]
    pub fn numbered_segment(&self, number: u32) -> Option<NumberedSegment> {
        let transmission = number.checked_div(self.target_count)?;
        let mut index = number % self.target_count;
        let mut offset_bytes = 0_u32;
        for SegmentGroup { count, segment } in self.groups() {
            let is_here = segment.is_targetable && index < *count;
            let passed = if is_here { index } else { *count };
            offset_bytes = offset_bytes.saturating_add(passed.saturating_mul(segment.length_bytes));
            if is_here {
                return Some(NumberedSegment {
                    transmission,
                    offset_bytes,
                    length_bytes: segment.length_bytes,
                });
            }
            if segment.is_targetable {
                index -= *count;
            }
        }
        None
    }

    /// The number of the targetable segment `target_index` of transmission `transmission`; `None` if there is no such
    /// segment, or its number does not fit 32 bits.
    #[must_use]
    pub fn number(&self, transmission: u32, target_index: u32) -> Option<u32> {
        if target_index >= self.target_count {
            return None;
        }
        transmission
            .checked_mul(self.target_count)?
            .checked_add(target_index)
    }

    /// Reads the data of the property.
    ///
    /// We cannot interpret a valid structure with more groups or segments than we handle
    /// ([`RECEIVE_BUFFER_GROUPS_MAX`], [`RECEIVE_BUFFER_SEGMENTS_MAX`]): a single segment of its length replaces it
    /// (RTR section 8.1). Reserved flag bits are ignored.
    ///
    /// # Errors
    /// `Truncated`, `TrailingBytes`; `InvalidPropertyValue` for a structure that breaks a rule of
    /// [`StructureError`], or whose length is not the sum of its segments. All are answered with RDMA2_ERR_BAD_XDR.
    pub fn decode(data: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(data);
        let length_field = reader;
        let length_bytes = reader.read_u32()?;
        let group_count = reader.read_u32()?;
        let mut structure = Self::EMPTY;
        let mut tally = Tally::default();
        for _ in 0..group_count {
            // Each round consumes sixteen octets or fails, so that the input bounds the loop.
            let field = reader;
            let group = decode_group(&mut reader)?;
            tally
                .add(group)
                .map_err(|_| field.error(Reason::InvalidPropertyValue))?;
            structure.push(group);
        }
        if !reader.is_at_end() {
            return Err(reader.error(Reason::TrailingBytes));
        }
        if tally.groups == 0 || tally.length_bytes != u64::from(length_bytes) {
            return Err(length_field.error(Reason::InvalidPropertyValue));
        }
        if !tally.is_within_bounds() {
            return Ok(Self::single(length_bytes));
        }
        structure.length_bytes = length_bytes;
        Ok(structure)
    }

    /// Octets that [`encode`](Self::encode) writes.
    #[must_use]
    pub const fn encoded_bytes(&self) -> usize {
        8 + self.group_count * 16
    }

    /// Writes the data of the property.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        writer.write_u32(self.length_bytes)?;
        writer.write_count(self.group_count)?;
        for SegmentGroup { count, segment } in self.groups() {
            writer.write_u32(*count)?;
            writer.write_u32(segment.length_bytes)?;
            writer.write_u32(segment.align_bytes)?;
            writer.write_u32(if segment.is_targetable {
                RTR_SEGMENT_FLAG_TARGETABLE
            } else {
                0
            })?;
        }
        Ok(())
    }
}

/// Yields the segments of a buffer, each at its place.
#[derive(Clone, Debug)]
pub struct LocatedSegments<'a> {
    /// The group that comes next, and those after it.
    groups: &'a [SegmentGroup],
    index_in_group: u32,
    offset_bytes: u32,
    target_index: u32,
}

impl Iterator for LocatedSegments<'_> {
    type Item = LocatedSegment;

    #[inline]
    fn next(&mut self) -> Option<LocatedSegment> {
        let (group, later) = self.groups.split_first()?;
        let segment = group.segment;
        let located = LocatedSegment {
            offset_bytes: self.offset_bytes,
            segment,
            target_index: segment.is_targetable.then_some(self.target_index),
        };
        // Neither wraps: the length of the buffer and the count of its segments bound them.
        self.offset_bytes = self.offset_bytes.saturating_add(segment.length_bytes);
        self.target_index += u32::from(segment.is_targetable);
        self.index_in_group += 1;
        if self.index_in_group == group.count {
            self.groups = later;
            self.index_in_group = 0;
        }
        Some(located)
    }
}

impl core::iter::FusedIterator for LocatedSegments<'_> {}

fn decode_group(reader: &mut Reader<'_>) -> Result<SegmentGroup, DecodeError> {
    Ok(SegmentGroup {
        count: reader.read_u32()?,
        segment: BufferSegment {
            length_bytes: reader.read_u32()?,
            align_bytes: reader.read_u32()?,
            is_targetable: reader.read_u32()? & RTR_SEGMENT_FLAG_TARGETABLE != 0,
        },
    })
}

/// Sums over the groups read so far, wide enough that no input of a peer makes them wrap.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    groups: usize,
    segments: u64,
    length_bytes: u64,
}

impl Tally {
    fn add(&mut self, group: SegmentGroup) -> Result<(), StructureError> {
        let BufferSegment {
            length_bytes,
            align_bytes,
            ..
        } = group.segment;
        if group.count == 0 {
            return Err(StructureError::NoSegment);
        }
        if length_bytes == 0 {
            return Err(StructureError::EmptySegment);
        }
        if align_bytes != 0 && !align_bytes.is_power_of_two() {
            return Err(StructureError::AlignmentNotPowerOfTwo);
        }
        self.groups += 1;
        self.segments = self.segments.saturating_add(u64::from(group.count));
        self.length_bytes = self
            .length_bytes
            .saturating_add(u64::from(group.count) * u64::from(length_bytes));
        Ok(())
    }

    fn is_within_bounds(&self) -> bool {
        self.groups <= RECEIVE_BUFFER_GROUPS_MAX
            && self.segments <= u64::from(RECEIVE_BUFFER_SEGMENTS_MAX)
    }
}

/// Why groups are not a valid receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StructureError {
    /// There is no group, or one of no segment.
    NoSegment,
    /// A segment has no octets.
    EmptySegment,
    /// An alignment is not a power of two.
    AlignmentNotPowerOfTwo,
    /// More than [`RECEIVE_BUFFER_GROUPS_MAX`] groups or [`RECEIVE_BUFFER_SEGMENTS_MAX`] segments.
    TooManySegments,
    /// More than `u32::MAX` octets.
    TooLong,
}

impl fmt::Display for StructureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSegment => "the receive buffer, or a group of it, has no segment",
            Self::EmptySegment => "a segment of the receive buffer has no octets",
            Self::AlignmentNotPowerOfTwo => "the alignment of a segment is no power of two",
            Self::TooManySegments => "the receive buffer has too many groups or segments",
            Self::TooLong => "the receive buffer is longer than a length can say",
        })
    }
}

impl core::error::Error for StructureError {}
