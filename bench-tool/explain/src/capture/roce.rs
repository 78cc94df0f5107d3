//! The transport headers of a RoCEv2 packet (InfiniBand Architecture, volume 1, chapter 9): the base header, and the
//! extended headers that the opcodes of reliable connections require.

use crate::capture::octets::Octets;

/// The queue pair that receives the messages of the connection manager.
pub const GENERAL_SERVICES_QUEUE_PAIR: u32 = 1;

/// The number of packet sequence numbers, which have 24 bits.
pub(crate) const SEQUENCE_NUMBERS: u32 = 1 << 24;

/// The length of the invariant checksum after the payload.
const CHECKSUM_BYTES: usize = 4;

/// A packet of RoCEv2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RocePacket<'a> {
    /// The queue pair of the receiver.
    pub queue_pair: u32,
    /// The packet sequence number.
    pub sequence: u32,
    /// The operation, with the fields of the extended headers.
    pub operation: Operation,
    /// The octets after the headers, without padding and checksum.
    pub payload: &'a [u8],
}

/// The part of a message that a packet holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The first of several.
    First,
    /// Neither the first nor the last.
    Middle,
    /// The last of several.
    Last,
    /// The whole message.
    Only,
}

impl Part {
    /// Whether it is the start of a message.
    #[must_use]
    pub const fn begins(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether it is the end of a message.
    #[must_use]
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// Memory of the peer (the RDMA extended transport header).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteMemory {
    /// The address.
    pub address: u64,
    /// The remote key.
    pub key: u32,
    /// The length of the whole operation in octets.
    pub length: u32,
}

/// The operation of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A Send, or a part of one.
    Send {
        /// The part.
        part: Part,
        /// The immediate data. Only the last packet can have it.
        immediate: Option<u32>,
        /// The key that the device of the receiver invalidates. Only the last packet can name one.
        invalidated: Option<u32>,
    },
    /// An RDMA Write, or a part of one.
    Write {
        /// The part.
        part: Part,
        /// The target. Only the first packet names it.
        memory: Option<RemoteMemory>,
        /// The immediate data. Only the last packet can have it.
        immediate: Option<u32>,
    },
    /// A request for an RDMA Read.
    Read(RemoteMemory),
    /// A part of the data of an RDMA Read.
    ReadResponse(Part),
    /// An acknowledgement of all packets up to this sequence number.
    Acknowledge,
    /// A negative acknowledgement: the peer asks for the packet of this sequence number again, or refuses it.
    Refuse {
        /// The syndrome: 0x20 to 0x3f receiver not ready, 0x60 sequence error, above that the request is refused.
        syndrome: u8,
    },
    /// A request for an atomic operation, which RPC-over-RDMA never sends.
    Atomic,
    /// An unreliable datagram, for example of the connection manager.
    Datagram {
        /// The queue pair of the sender.
        source_queue_pair: u32,
    },
    /// An opcode of another transport.
    Other(u8),
}

/// Reads the headers of a packet. `None` if the packet is shorter than its headers.
#[must_use]
pub fn read(octets: &[u8]) -> Option<RocePacket<'_>> {
    let mut rest = Octets(octets);
    let opcode = rest.u8()?;
    let padding = usize::from(rest.u8()? >> 4 & 3);
    rest.u16()?;
    rest.u8()?;
    let queue_pair = rest.u24()?;
    rest.u8()?;
    let sequence = rest.u24()?;
    let operation = operation(opcode, &mut rest)?;
    let payload_bytes = rest.0.len().checked_sub(padding + CHECKSUM_BYTES)?;
    Some(RocePacket {
        queue_pair,
        sequence,
        operation,
        payload: rest.take(payload_bytes)?,
    })
}

fn operation(opcode: u8, rest: &mut Octets<'_>) -> Option<Operation> {
    use Part::{First, Last, Middle, Only};
    let send = |part, immediate, invalidated| Operation::Send {
        part,
        immediate,
        invalidated,
    };
    let write = |part, memory, immediate| Operation::Write {
        part,
        memory,
        immediate,
    };
    Some(match opcode {
        0x00 => send(First, None, None),
        0x01 => send(Middle, None, None),
        0x02 => send(Last, None, None),
        0x03 => send(Last, Some(rest.u32()?), None),
        0x04 => send(Only, None, None),
        0x05 => send(Only, Some(rest.u32()?), None),
        0x06 => write(First, Some(memory(rest)?), None),
        0x07 => write(Middle, None, None),
        0x08 => write(Last, None, None),
        0x09 => write(Last, None, Some(rest.u32()?)),
        0x0a => write(Only, Some(memory(rest)?), None),
        0x0b => {
            let memory = memory(rest)?;
            write(Only, Some(memory), Some(rest.u32()?))
        }
        0x0c => Operation::Read(memory(rest)?),
        0x0d..=0x10 => {
            let part = match opcode {
                0x0d => First,
                0x0e => return Some(Operation::ReadResponse(Middle)),
                0x0f => Last,
                _ => Only,
            };
            rest.u32()?;
            Operation::ReadResponse(part)
        }
        0x11 => match rest.u32()?.to_be_bytes() {
            [syndrome @ 0x20..=0x7f, ..] => Operation::Refuse { syndrome },
            _ => Operation::Acknowledge,
        },
        0x12 => {
            rest.take(12)?;
            Operation::Acknowledge
        }
        0x13 | 0x14 => Operation::Atomic,
        0x16 => send(Last, None, Some(rest.u32()?)),
        0x17 => send(Only, None, Some(rest.u32()?)),
        // `SEND Only` of unreliable datagrams.
        0x64 => {
            rest.u32()?;
            rest.u8()?;
            Operation::Datagram {
                source_queue_pair: rest.u24()?,
            }
        }
        other => Operation::Other(other),
    })
}

fn memory(rest: &mut Octets<'_>) -> Option<RemoteMemory> {
    Some(RemoteMemory {
        address: rest.u64()?,
        key: rest.u32()?,
        length: rest.u32()?,
    })
}
