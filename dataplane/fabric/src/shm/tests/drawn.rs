//! Random records of a peer, with random faults.

use proptest::prelude::*;
use proptest::sample::select;

use super::forms::FORMS;
use super::pattern;
use crate::interface::RemoteAddress;
use crate::shm::mapped::MappedRing;
use crate::shm::record::{
    Extension, FLAG_EXTENDED, FLAG_INVALIDATE, HEADER_BYTES, Header, UNIT_BYTES, op,
};
use crate::shm::ring::{RingMemory, sequence_of};

/// Operations after which the queue pair continues, if their records are valid.
pub(super) const LASTING: [u8; 7] = [
    op::PAD,
    op::SEND,
    op::SEND_PULLED,
    op::WRITE,
    op::SEND_PACKED,
    op::SEND_HEADED,
    op::SEND_FORMED,
];
pub(super) const WINDOWS: usize = 3;

/// The time from which a record may be delivered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Due {
    Always,
    Past,
    Now,
    /// After this many milliseconds.
    Soon(u64),
}

/// The fault of a record.
#[derive(Clone, Debug)]
pub(super) enum Wrong {
    Operation(u8),
    PayloadBytes(u16),
    Flags(u8),
    Destination(u32),
    /// A word of the payload.
    Word(u16, u64),
    Payload(Vec<u8>),
    /// A piece starts this many bytes before the end of the arena, and ends after it.
    BeyondArena(u32),
    /// The record is delayed by this many seconds more than the largest delay.
    FarAhead(u64),
    Invalidates(u32),
    Failure(u32, u32),
    Disconnect,
}

/// An event while the receiver handles a record.
#[derive(Clone, Copy, Debug)]
pub(super) enum Interruption {
    /// The sender revokes the record.
    Revoked,
    PeerGone,
    Disconnected,
    Destroyed,
    /// The receiver ends the window.
    WindowEnded,
}

#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub(super) op: u8,
    /// Determines the length of the data in the record.
    pub(super) bytes: u16,
    pub(super) pieces: Vec<(u32, u32)>,
    pub(super) window: usize,
    pub(super) due: Due,
    /// The window whose key the record invalidates.
    pub(super) invalidates: Option<usize>,
    pub(super) acked: u32,
    pub(super) wrong: Option<Wrong>,
    /// The interruption, and the number of polls before it.
    pub(super) interruption: Option<(Interruption, usize)>,
    pub(super) polls: usize,
    pub(super) elapsed_ms: u64,
}

fn due() -> impl Strategy<Value = Due> {
    prop_oneof![
        5 => Just(Due::Always),
        1 => Just(Due::Past),
        1 => Just(Due::Now),
        1 => (1_u64..10_000).prop_map(Due::Soon),
    ]
}

fn wrong() -> impl Strategy<Value = Wrong> {
    prop_oneof![
        any::<u8>().prop_map(Wrong::Operation),
        any::<u16>().prop_map(Wrong::PayloadBytes),
        any::<u8>().prop_map(Wrong::Flags),
        any::<u32>().prop_map(Wrong::Destination),
        (any::<u16>(), any::<u64>()).prop_map(|(at, word)| Wrong::Word(at, word)),
        prop::collection::vec(any::<u8>(), 0..200).prop_map(Wrong::Payload),
        (0_u32..3000).prop_map(Wrong::BeyondArena),
        prop_oneof![1_u64..100_000, Just(u64::MAX)].prop_map(Wrong::FarAhead),
        any::<u32>().prop_map(Wrong::Invalidates),
        (0_u32..8, 0_u32..5).prop_map(|(position, code)| Wrong::Failure(position, code)),
        Just(Wrong::Disconnect),
    ]
}

fn interruption() -> impl Strategy<Value = (Interruption, usize)> {
    let kinds = [
        Interruption::Revoked,
        Interruption::PeerGone,
        Interruption::Disconnected,
        Interruption::Destroyed,
        Interruption::WindowEnded,
    ];
    (select(kinds.to_vec()), 0_usize..8)
}

pub(super) fn drawn() -> impl Strategy<Value = Drawn> {
    let piece = (0_u32..1 << 20, prop_oneof![1 => Just(0), 8 => 1_u32..2500]);
    (
        (select(&LASTING[..]), any::<u16>()),
        prop::collection::vec(piece, 1..6),
        (0..WINDOWS, due()),
        prop::option::weighted(0.1, 0..WINDOWS),
        prop_oneof![0_u32..40, any::<u32>()],
        prop::option::weighted(0.03, wrong()),
        prop::option::weighted(0.04, interruption()),
        (1_usize..12, 0_u64..500),
    )
        .prop_map(|parts| {
            let (head, pieces, place, invalidates, acked, wrong, interruption, pace) = parts;
            let ((op, bytes), (window, due), (polls, elapsed_ms)) = (head, place, pace);
            Drawn {
                op,
                bytes,
                pieces,
                window,
                due,
                invalidates,
                acked,
                wrong,
                interruption,
                polls,
                elapsed_ms,
            }
        })
}

/// The form of a formed Send.
fn form_of(drawn: &Drawn) -> u8 {
    drawn.bytes.to_le_bytes()[1] % 2
}

/// A record before it is written.
pub(super) struct Record {
    pub(super) header: Header,
    pub(super) extension: Extension,
    pub(super) payload: Vec<u8>,
    /// The length of the message in a valid record.
    pub(super) message: Option<u32>,
}

fn piece(offset: u64, bytes: u32) -> Vec<u8> {
    let words = [offset, bytes.into()];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl Record {
    /// The drawn record without its fault.
    fn right(drawn: &Drawn, destination: u32, to: RemoteAddress) -> Self {
        let total = drawn.pieces.iter().map(|(_, bytes)| bytes).sum::<u32>();
        let list = || {
            let pieces = drawn.pieces.iter();
            pieces.flat_map(|(offset, bytes)| piece(u64::from(*offset), *bytes))
        };
        let inline = |bytes: u16| pattern(1, usize::from(bytes));
        let (payload, message) = match drawn.op {
            op::PAD => (Vec::new(), None),
            op::SEND => (
                inline(drawn.bytes % 1100),
                Some(u32::from(drawn.bytes % 1100)),
            ),
            op::SEND_PACKED => {
                let bytes = 48 + drawn.bytes % 65;
                (inline(bytes), Some(u32::from(bytes)))
            }
            op::SEND_FORMED => {
                let shape = FORMS.shapes[usize::from(form_of(drawn))];
                let behind = drawn.bytes % 860;
                let message = u32::from(shape.header_bytes + behind);
                (inline(u16::from(shape.words) * 8 + behind), Some(message))
            }
            op::WRITE => (
                piece(to.offset, to.key.0)
                    .into_iter()
                    .chain(list())
                    .collect(),
                None,
            ),
            op::SEND_HEADED => {
                let head = drawn.bytes % 300;
                // The offset of a head is not used, so it may have any value.
                let first = piece(u64::MAX, u32::from(head));
                let payload = [first, list().collect(), inline(head)].concat();
                (payload, Some(total + u32::from(head)))
            }
            _ => (list().collect(), Some(total)),
        };
        let header = Header {
            destination,
            acked: drawn.acked,
            payload_bytes: u16::try_from(payload.len()).unwrap(),
            op: drawn.op,
            // The mask of a packed Send, or the number of a form.
            flags: match drawn.op {
                op::SEND_PACKED => drawn.bytes.to_le_bytes()[1],
                op::SEND_FORMED => form_of(drawn),
                _ => 0,
            },
        };
        Self {
            header,
            extension: Extension::default(),
            payload,
            message,
        }
    }

    fn extend(&mut self, not_before: u64, invalidate: Option<u32>) {
        self.header.flags |= FLAG_EXTENDED;
        self.extension.not_before = not_before;
        if let Some(key) = invalidate {
            self.header.flags |= FLAG_INVALIDATE;
            self.extension.invalidate = key;
        }
    }

    /// Adds a fault to the record. The outcome of such a record is not predicted.
    fn spoil(&mut self, wrong: &Wrong, now: u64, second: u64) {
        self.message = None;
        match wrong {
            Wrong::Operation(op) => self.header.op = *op,
            Wrong::PayloadBytes(bytes) => self.header.payload_bytes = *bytes,
            Wrong::Flags(flags) => self.header.flags = *flags,
            Wrong::Destination(destination) => self.header.destination = *destination,
            Wrong::Word(at, word) => {
                let words = self.payload.len() / 8;
                if words > 0 {
                    let at = usize::from(*at) % words * 8;
                    self.payload[at..at + 8].copy_from_slice(&word.to_le_bytes());
                }
            }
            // `Drawn::record` has already set the piece.
            Wrong::BeyondArena(_) => {}
            Wrong::Payload(bytes) => {
                self.payload.clone_from(bytes);
                self.header.payload_bytes = u16::try_from(bytes.len()).unwrap();
            }
            Wrong::FarAhead(seconds) => {
                let ahead = seconds.saturating_add(30).saturating_mul(second);
                self.extend(now.saturating_add(ahead), None);
            }
            Wrong::Invalidates(key) => self.extend(0, Some(*key)),
            Wrong::Failure(position, code) => {
                self.header.op = op::NAK;
                self.payload = [position.to_le_bytes(), code.to_le_bytes()].concat();
                self.header.payload_bytes = 8;
            }
            Wrong::Disconnect => self.header.op = op::DISCONNECT,
        }
    }

    /// The length of the record according to its header.
    fn bytes(&self) -> u32 {
        self.header.payload_offset() + u32::from(self.header.payload_bytes)
    }

    /// Writes the record at the next position of its receiver. Drops the part that does not fit before the end of the ring.
    pub(super) fn publish(&self, ring: &MappedRing, head: u32) {
        let index = head & (ring.units() - 1);
        let room = ((ring.units() - index) * UNIT_BYTES - HEADER_BYTES) as usize;
        let place = ring.unit(index).wrapping_add(HEADER_BYTES as usize);
        let offset = (self.header.payload_offset() - HEADER_BYTES) as usize;
        let bytes = self.payload.len().min(room.saturating_sub(offset));
        // SAFETY: the unit and `room` bytes in all lie within the ring, and nothing reads the ring now.
        unsafe {
            std::ptr::copy_nonoverlapping(self.payload.as_ptr(), place.wrapping_add(offset), bytes);
        }
        if self.header.is_extended() {
            ring.write_extension(index, self.extension);
        }
        ring.write_header(index, self.header);
        ring.publish(index, sequence_of(head));
    }
}

impl Drawn {
    /// The size of the arena of the sender.
    const ARENA_BYTES: u32 = 8 << 20;

    /// The record for the queue pair `destination` with the windows `windows`. A valid record of more than `room` bytes is
    /// replaced by a pad.
    pub(super) fn record(
        &self,
        destination: u32,
        windows: &[RemoteAddress],
        (now, second): (u64, u64),
        room: u32,
    ) -> Record {
        let mut drawn = self.clone();
        if let Some(Wrong::BeyondArena(left)) = drawn.wrong {
            drawn.pieces[0] = (Self::ARENA_BYTES - left, left + 1);
        }
        let mut record = Record::right(&drawn, destination, windows[drawn.window]);
        if !matches!(drawn.op, op::PAD | op::SEND_PACKED | op::SEND_FORMED) {
            let not_before = match drawn.due {
                Due::Always => None,
                Due::Past => Some(now - second),
                Due::Now => Some(now),
                Due::Soon(ms) => Some(now + 1 + ms * second / 1000),
            };
            let invalidates = drawn.invalidates.filter(|_| drawn.op != op::WRITE);
            let key = invalidates.map(|number| windows[number].key.0);
            if not_before.is_some() || key.is_some() {
                record.extend(not_before.unwrap_or(0), key);
            }
        }
        if let Some(wrong) = &drawn.wrong {
            record.spoil(wrong, now, second);
        } else if record.bytes() > room {
            drawn.op = op::PAD;
            record = Record::right(&drawn, destination, windows[drawn.window]);
        }
        record
    }

    /// Whether the record must break its channel.
    pub(super) fn must_break(&self) -> bool {
        let is_pulled = matches!(self.op, op::SEND_PULLED | op::SEND_HEADED | op::WRITE);
        match self.wrong {
            Some(Wrong::BeyondArena(_)) => is_pulled,
            Some(Wrong::FarAhead(_)) => {
                !matches!(self.op, op::PAD | op::SEND_PACKED | op::SEND_FORMED)
            }
            _ => false,
        }
    }

    /// The kind of the fault, without its values.
    pub(super) fn name_of_wrong(&self) -> Option<String> {
        let text = format!("{:?}", self.wrong.as_ref()?);
        text.split('(').next().map(str::to_owned)
    }
}
