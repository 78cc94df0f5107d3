//! The format of a record.
//!
//! ```text
//! byte 0   sequence number     stored last
//!      4   destination         number of the queue pair at the receiver
//!      8   acked               how far the sender has worked off the other direction
//!     12   payload bytes (16 bits), operation (8), flags (8)
//!     16   with FLAG_EXTENDED: not before (64 bits, ticks), invalidate key (32), zero (32)
//!     16 or 32   payload
//! ```
//!
//! In a headed Send (`op::SEND_HEADED`) the payload is a descriptor, followed by the first bytes of the
//! message. The first piece has their number; its offset has no meaning.
//!
//! In a packed Send (`op::SEND_PACKED`) the payload has the format of the module `packed`. The field
//! payload bytes is the length of the unpacked message, and the flags are the mask of its blocks.
//!
//! In a formed Send (`op::SEND_FORMED`) the payload is the words of a form that vary, followed by what is behind the headers
//! of the message. The flags are the number of the form.
//!
//! Numbers are in the byte order of the machine, because both ends run on it.

use crate::interface::{FORM_WORDS_MAX, SEGMENTS_MAX, Status};

/// The granularity of the ring: two cache lines, which prefetchers like to fetch as a pair.
pub(super) const UNIT_BYTES: u32 = 128;
/// A cache line.
pub(super) const LINE_BYTES: u32 = 64;
/// The header without the extension.
pub(super) const HEADER_BYTES: u32 = 16;
/// The extension of the header.
pub(super) const EXTENSION_BYTES: u32 = 16;
/// A piece of a descriptor: offset (64 bits), bytes (32), zero (32).
pub(super) const PIECE_BYTES: u32 = 16;
/// The bytes of a payload in the first line of its record.
pub(super) const FIRST_LINE_BYTES: u32 = LINE_BYTES - HEADER_BYTES;
/// The shortest message of a short record: it fills the first line.
pub(super) const SHORT_BYTES_MIN: u32 = FIRST_LINE_BYTES;
/// The longest message of a short record: the default limit of copied Sends.
pub(super) const SHORT_BYTES_MAX: u32 = 1024;
/// The longest message that is packed. Unpacked, it still fits into one unit.
pub(super) const PACKED_BYTES_MAX: u32 = UNIT_BYTES - HEADER_BYTES;
/// The data before the pieces of an RDMA Write: remote offset (64 bits), key (32), zero (32).
pub(super) const WRITE_BYTES: u32 = 16;
/// The most payload that a descriptor record holds.
pub(super) const DESCRIPTOR_BYTES_MAX: u32 = WRITE_BYTES + PIECES_MAX * PIECE_BYTES;

/// A word of a form.
pub(super) const FORM_WORD_BYTES: u32 = 8;
/// The most bytes of the headers of a form.
pub(super) const FORM_HEADER_BYTES_MAX: u32 = 128;
/// The longest payload of a formed Send: with its headers, its message is a short one.
pub(super) const FORMED_BYTES_MAX: u32 = SHORT_BYTES_MAX - FORM_HEADER_BYTES_MAX;

/// The most bytes from the start of a message that the record of a pulled Send contains.
pub(super) const HEAD_BYTES_MAX: u32 = 256;

// The words of a form are in the first line.
const _: () = assert!(FORM_WORDS_MAX * (FORM_WORD_BYTES as usize) <= FIRST_LINE_BYTES as usize);

const PIECES_MAX: u32 = 32;
const _: () = assert!(PIECES_MAX as usize == SEGMENTS_MAX);

/// The header has its extension.
pub(super) const FLAG_EXTENDED: u8 = 1;
/// Send With Invalidate: the extension holds the key.
pub(super) const FLAG_INVALIDATE: u8 = 2;
/// The sender has revoked its memory: the bytes that the descriptor names must not be used.
pub(super) const FLAG_REVOKED: u8 = 0x80;

/// The operation of a record.
pub(super) mod op {
    /// Fills the rest of the ring.
    pub(in super::super) const PAD: u8 = 1;
    /// A Send whose bytes are the payload.
    pub(in super::super) const SEND: u8 = 2;
    /// A Send whose bytes the receiver pulls from the sender's arena.
    pub(in super::super) const SEND_PULLED: u8 = 3;
    /// An RDMA Write whose bytes the owner of the window pulls from the writer's arena.
    pub(in super::super) const WRITE: u8 = 4;
    /// A record of the other direction failed: its position (32 bits), a status (32 bits).
    pub(in super::super) const NAK: u8 = 5;
    /// The sender's queue pair is in error.
    pub(in super::super) const DISCONNECT: u8 = 6;
    /// A Send whose bytes are the payload, without blocks of zeroes.
    pub(in super::super) const SEND_PACKED: u8 = 7;
    /// As `SEND_PULLED`, but its first bytes are in the record.
    pub(in super::super) const SEND_HEADED: u8 = 8;
    /// A Send by its form. Only between ends that both announced the same forms.
    pub(in super::super) const SEND_FORMED: u8 = 9;
}

/// A header without its sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) destination: u32,
    pub(super) acked: u32,
    pub(super) payload_bytes: u16,
    pub(super) op: u8,
    pub(super) flags: u8,
}

impl Header {
    /// The last word of the header.
    #[inline]
    pub(super) fn shape(self) -> u32 {
        u32::from(self.payload_bytes) | u32::from(self.op) << 16 | u32::from(self.flags) << 24
    }

    /// The field payload bytes if the record is a short one: a Send without extension, plain or packed, whose message
    /// fills the first line and is within the limit; or a formed one within the limit.
    #[inline]
    pub(super) fn short_bytes(self) -> Option<u32> {
        let bytes = u32::from(self.payload_bytes);
        let (shortest, longest) = match (self.op, self.flags) {
            (op::SEND_FORMED, _) => (FORM_WORD_BYTES, FORMED_BYTES_MAX),
            (op::SEND_PACKED, _) => (SHORT_BYTES_MIN, PACKED_BYTES_MAX),
            (op::SEND, 0) => (SHORT_BYTES_MIN, SHORT_BYTES_MAX),
            _ => return None,
        };
        (shortest..=longest).contains(&bytes).then_some(bytes)
    }

    /// As [`Header::units`], for a short record, which has no extension.
    #[inline]
    pub(super) fn short_units(bytes: u32) -> u32 {
        (HEADER_BYTES + bytes).div_ceil(UNIT_BYTES)
    }

    /// Whether the header has its extension.
    #[inline]
    pub(super) fn is_extended(self) -> bool {
        !matches!(self.op, op::SEND_PACKED | op::SEND_FORMED) && self.flags & FLAG_EXTENDED != 0
    }

    /// The address of the payload in the record at `record`.
    #[inline]
    pub(super) fn payload(self, record: *mut u8) -> *const u8 {
        record
            .wrapping_add(self.payload_offset() as usize)
            .cast_const()
    }

    /// A header from its three words.
    #[inline]
    pub(super) fn from_words(destination: u32, acked: u32, shape: u32) -> Self {
        let [low, high, op, flags] = shape.to_le_bytes();
        Self {
            destination,
            acked,
            payload_bytes: u16::from_le_bytes([low, high]),
            op,
            flags,
        }
    }

    /// The offset of the payload in the record.
    #[inline]
    pub(super) fn payload_offset(self) -> u32 {
        if self.is_extended() {
            HEADER_BYTES + EXTENSION_BYTES
        } else {
            HEADER_BYTES
        }
    }

    /// The units that the record takes.
    #[inline]
    pub(super) fn units(self) -> u32 {
        (self.payload_offset() + u32::from(self.payload_bytes)).div_ceil(UNIT_BYTES)
    }
}

/// The extension of a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extension {
    /// The earliest time to process the record; zero if the sender has no delay.
    pub(super) not_before: u64,
    /// The key to invalidate, with [`FLAG_INVALIDATE`].
    pub(super) invalidate: u32,
}

/// A range of an arena, or of the record itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Piece {
    /// From the start of the arena, or of the record.
    pub(super) offset: u64,
    pub(super) bytes: u32,
    pub(super) in_record: bool,
}

/// A gather list of a peer, checked against the peer's arena.
#[derive(Clone, Debug)]
pub(super) struct Pieces {
    list: [Piece; SEGMENTS_MAX],
    len: usize,
    total: u32,
}

impl Pieces {
    /// An empty list.
    pub(super) fn new() -> Self {
        Self {
            list: [Piece::default(); SEGMENTS_MAX],
            len: 0,
            total: 0,
        }
    }

    /// Empties the list.
    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.total = 0;
    }

    /// Appends a piece. Returns false when it is not within the first `limit` bytes of the arena or record,
    /// when the list is full, or when the total overflows.
    #[must_use]
    #[inline]
    pub(super) fn push(&mut self, piece: Piece, limit: u64) -> bool {
        let within = piece
            .offset
            .checked_add(u64::from(piece.bytes))
            .is_some_and(|end| end <= limit);
        let total = self.total.checked_add(piece.bytes);
        match (self.list.get_mut(self.len), total) {
            (Some(entry), Some(total)) if within => {
                *entry = piece;
                self.len += 1;
                self.total = total;
                true
            }
            _ => false,
        }
    }

    /// The bytes of all pieces.
    pub(super) fn total(&self) -> u32 {
        self.total
    }

    /// The ranges that are left after the first `done` bytes of the list.
    #[inline]
    pub(super) fn ranges_from(&self, done: u32) -> impl Iterator<Item = Piece> {
        let mut skipped = done;
        self.list.iter().take(self.len).filter_map(move |piece| {
            let before = skipped.min(piece.bytes);
            skipped -= before;
            (before < piece.bytes).then(|| Piece {
                offset: piece.offset + u64::from(before),
                bytes: piece.bytes - before,
                ..*piece
            })
        })
    }
}

/// A status as encoded in a NAK.
pub(super) fn status_code(status: Status) -> u32 {
    match status {
        Status::RemoteAccess => 1,
        Status::RetryExceeded => 2,
        _ => 3,
    }
}

/// The status of a NAK. An unknown value becomes the general one.
pub(super) fn status_from(code: u32) -> Status {
    match code {
        1 => Status::RemoteAccess,
        2 => Status::RetryExceeded,
        _ => Status::RemoteOperation,
    }
}
