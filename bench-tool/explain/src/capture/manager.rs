//! Messages of the InfiniBand connection manager (volume 1, chapter 12) that make and end connections, with the
//! private data that applications put into them. RDMA-CM puts a header of its own in front of that of a request.

use crate::capture::octets::Octets;

const CLASS_COMMUNICATION_MANAGEMENT: u8 = 7;
/// Octets of RDMA-CM in front of the application's private data, in requests alone (annex A11).
const RDMA_CM_HEADER_BYTES: usize = 36;
/// The service identifiers of RDMA-CM begin so; the port is in the last two octets.
const RDMA_CM_SERVICE: u64 = 0x0000_0000_0100_0000;

/// What one end tells of itself when a connection is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Its name for the connection while this is made.
    pub id: u32,
    /// Its queue pair.
    pub queue_pair: u32,
    /// The sequence number that it wants the first packet to have that it is sent.
    pub first_sequence: u32,
}

/// A message of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagerMessage<'a> {
    /// Asks for a connection.
    Request {
        /// The end that asks.
        end: End,
        /// The port of RDMA-CM, where it is such a service.
        port: Option<u16>,
        /// The largest payload of one packet, in octets; 0 where the field has no meaning.
        path_mtu: u32,
        /// The application's, with the zeros that fill the field.
        private_data: &'a [u8],
    },
    /// Grants it.
    Reply {
        /// The end that grants.
        end: End,
        /// The other end's name for the connection.
        peer_id: u32,
        /// As above.
        private_data: &'a [u8],
    },
    /// Refuses it.
    Reject {
        /// The other end's name for the connection.
        peer_id: u32,
        /// The number of the reason (section 12.6.7.2); 28 is the application's own.
        reason: u16,
        /// As above.
        private_data: &'a [u8],
    },
    /// The end that asked is ready.
    ReadyToUse,
    /// One end wants no more of it.
    DisconnectRequest,
    /// And the other end agrees.
    DisconnectReply,
    /// Another attribute of this class.
    Other(u16),
}

/// Reads a management datagram. `None` of another class, or when it is too short.
#[must_use]
pub fn read(octets: &[u8]) -> Option<ManagerMessage<'_>> {
    let mut rest = Octets(octets);
    rest.u8()?;
    if rest.u8()? != CLASS_COMMUNICATION_MANAGEMENT {
        return None;
    }
    rest.take(14)?;
    let attribute = rest.u16()?;
    rest.take(6)?;
    Some(match attribute {
        0x10 => request(rest)?,
        0x12 => reject(rest)?,
        0x13 => reply(rest)?,
        0x14 => ManagerMessage::ReadyToUse,
        0x15 => ManagerMessage::DisconnectRequest,
        0x16 => ManagerMessage::DisconnectReply,
        other => ManagerMessage::Other(other),
    })
}

fn request(mut rest: Octets<'_>) -> Option<ManagerMessage<'_>> {
    let id = rest.u32()?;
    rest.take(4)?;
    let service = rest.u64()?;
    rest.take(16)?;
    let queue_pair = rest.u24()?;
    rest.take(9)?;
    let first_sequence = rest.u24()?;
    rest.take(3)?;
    let path_mtu = match rest.u8()? >> 4 {
        code @ 1..=5 => 128 << code,
        _ => 0,
    };
    rest.take(89)?;
    let mut private_data = Octets(rest.take(92)?);
    let port = (service & !0x00ff_ffff == RDMA_CM_SERVICE)
        .then(|| u16::try_from(service & 0xffff).unwrap_or_default());
    if port.is_some() {
        private_data.take(RDMA_CM_HEADER_BYTES)?;
    }
    Some(ManagerMessage::Request {
        end: End {
            id,
            queue_pair,
            first_sequence,
        },
        port,
        path_mtu,
        private_data: private_data.0,
    })
}

fn reply(mut rest: Octets<'_>) -> Option<ManagerMessage<'_>> {
    let id = rest.u32()?;
    let peer_id = rest.u32()?;
    rest.take(4)?;
    let queue_pair = rest.u24()?;
    rest.take(5)?;
    let first_sequence = rest.u24()?;
    rest.take(13)?;
    Some(ManagerMessage::Reply {
        end: End {
            id,
            queue_pair,
            first_sequence,
        },
        peer_id,
        private_data: rest.take(196)?,
    })
}

fn reject(mut rest: Octets<'_>) -> Option<ManagerMessage<'_>> {
    rest.take(4)?;
    let peer_id = rest.u32()?;
    rest.take(2)?;
    let reason = rest.u16()?;
    rest.take(72)?;
    Some(ManagerMessage::Reject {
        peer_id,
        reason,
        private_data: rest.take(148)?,
    })
}
